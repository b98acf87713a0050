//! A small trace with every table filled, lawful by construction.
#![allow(dead_code, missing_docs, reason = "each test file uses a part; a test has no readers")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

use evenkeel_trace::{
    Direction, Event, EventKind, Finish, LayerCell, LinkRow, RankCell, RecordedRequest,
    RequestRecord, Routes, RoutingRow, StepRecord, TraceHeader,
};
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, ModelShape, Phase, RankId, Slice, SliceId, Topology, hash3,
};
use std::collections::BTreeMap;

pub const RANKS: usize = 4;
pub const LAYERS: u16 = 3;
pub const EXPERTS: u16 = 16;
pub const TOP_K: u8 = 2;

pub fn shape() -> ModelShape {
    ModelShape {
        name: "tiny".into(),
        moe_layers: LAYERS,
        experts: EXPERTS,
        top_k: TOP_K,
        ..ModelShape::known("olmoe-1b-7b").unwrap()
    }
}

pub fn header() -> TraceHeader {
    let slices = vec![Slice::of_tenant("chat"), Slice::of_tenant("code")];
    let mut header = TraceHeader::new(shape(), slices);
    header.topology = Some(Topology::uniform("h20", RANKS as u16, 96_000_000_000));
    header.kernels = vec!["grouped".into(), "fallback".into()];
    header.routing_every = 2;
    header
}

pub fn map(version: u64) -> ExpertMap {
    ExpertMap { version, ..ExpertMap::contiguous(&shape(), RANKS, 5) }
}

/// Steps whose counts obey the laws; every second one has routing and link rows.
pub fn random_steps(seed: u64, count: u64) -> Vec<StepRecord> {
    (0..count).map(|index| random_step(seed, index)).collect()
}

fn random_step(seed: u64, index: u64) -> StepRecord {
    let draw = |a: u64, below: u64| hash3(seed ^ index << 20, a, 1) % below;
    let ranks: Vec<RankCell> = (0..RANKS as u64)
        .map(|rank| RankCell {
            sequences: draw(rank, 9) as u32,
            tokens: 1 + draw(rank + 10, 6) as u32,
            tokens_padded: 8,
            kv_blocks_used: draw(rank + 20, 100) as u32,
            kv_blocks_free: 100,
        })
        .collect();
    let mut routing = BTreeMap::new();
    let mut executed = vec![0_u32; usize::from(LAYERS) * RANKS];
    for layer in 0..LAYERS {
        for (rank, cell) in ranks.iter().enumerate() {
            for token in 0..u64::from(cell.tokens) {
                let at = u64::from(layer) << 16 | (rank as u64) << 8 | token;
                let first = draw(at + 1000, u64::from(EXPERTS)) as u16;
                for expert in [first, (first + 1) % EXPERTS] {
                    let host = expert % RANKS as u16;
                    *routing.entry((layer, rank as u16, expert, host)).or_insert(0) += 1;
                    executed[usize::from(layer) * RANKS + usize::from(host)] += 1;
                }
            }
        }
    }
    let recorded = index.is_multiple_of(2);
    let routing = routing.into_iter().map(|((layer, source, expert, host), tokens)| RoutingRow {
        layer: LayerId(layer),
        source: RankId(source),
        expert: ExpertId(expert),
        host: (draw(3, 5) > 0).then_some(RankId(host)),
        tokens,
    });
    let cells = executed.iter().enumerate().map(|(index, rows)| LayerCell {
        attention_ns: draw(index as u64, 5000),
        expert_ns: draw(index as u64 + 50, 9000),
        rows_in: *rows,
        tokens_in: *rows,
        experts_activated: 3,
        kernel: draw(index as u64 + 99, 2) as u16,
        bytes_out: draw(index as u64 + 7, 1 << 40),
        ..LayerCell::default()
    });
    StepRecord {
        step: 10 + index * 3,
        phase: if draw(77, 3) == 0 { Phase::Prefill } else { Phase::Decode },
        start_ns: 1000 + index * 500,
        end_ns: 1400 + index * 500,
        map_version: 1,
        ranks,
        cells: if draw(5, 4) == 0 { Vec::new() } else { cells.collect() },
        routing: if recorded { routing.collect() } else { Vec::new() },
        links: if recorded { links(&draw) } else { Vec::new() },
    }
}

fn links(draw: &dyn Fn(u64, u64) -> u64) -> Vec<LinkRow> {
    let mut rows = Vec::new();
    for layer in 0..LAYERS {
        for direction in [Direction::Dispatch, Direction::Return] {
            for destination in 1..RANKS as u16 {
                let bytes = draw(u64::from(layer) * 8 + u64::from(destination), 100_000);
                rows.push(LinkRow {
                    layer: LayerId(layer),
                    direction,
                    source: RankId(0),
                    destination: RankId(destination),
                    messages: 3,
                    bytes,
                    largest_bytes: bytes / 2,
                    service_ns: 100,
                });
            }
        }
    }
    rows
}

pub fn routes() -> Routes {
    let mut requests = Vec::new();
    let mut tokens = 0;
    for request in 0..20_u64 {
        let count = 3 + hash3(1, request, 0) as u32 % 9;
        requests.push(RecordedRequest {
            request,
            slice: SliceId((request % 2) as u16),
            first_token: tokens,
            prompt_tokens: count * 3 / 4,
            tokens: count,
        });
        tokens += count as usize;
    }
    let mut ids = Vec::new();
    for cell in 0..tokens * usize::from(LAYERS) {
        let first = hash3(2, cell as u64, 0) as u16 % EXPERTS;
        ids.extend([first, (first + 1 + hash3(3, cell as u64, 0) as u16 % 5) % EXPERTS]);
    }
    Routes::new(&shape(), requests, ids).unwrap()
}

pub fn requests() -> Vec<RequestRecord> {
    let routes = routes();
    let of = |recorded: &RecordedRequest| RequestRecord {
        request: recorded.request,
        slice: recorded.slice,
        arrival_ns: recorded.request * 1000,
        queue_ns: Some(5),
        ttft_ns: (!recorded.request.is_multiple_of(3)).then_some(100),
        finish_ns: Some(200),
        token_ns: (0..u64::from(recorded.output_tokens())).map(|token| 100 + token).collect(),
        prompt_tokens: recorded.prompt_tokens,
        output_tokens: recorded.output_tokens(),
        finish: [Finish::Stop, Finish::Length, Finish::Error, Finish::Unfinished]
            [recorded.request as usize % 4],
        error: if recorded.request % 4 == 2 { "out of memory".into() } else { String::new() },
        output_digest: "ab".into(),
        mean_log_probability: recorded.request.is_multiple_of(2).then_some(-1.5),
        quality_score: None,
    };
    routes.requests().iter().map(of).collect()
}

pub fn events() -> Vec<Event> {
    vec![
        Event {
            at_ns: 5,
            step: None,
            kind: EventKind::MapCommitted,
            phase: None,
            layer: None,
            rank: None,
            value: 1,
            detail: "map \u{1f980} live".into(),
        },
        Event {
            at_ns: 9,
            step: Some(13),
            kind: EventKind::Stall,
            phase: Some(Phase::Decode),
            layer: Some(LayerId(1)),
            rank: Some(RankId(3)),
            value: 77,
            detail: String::new(),
        },
    ]
}
