//! Records ↔ rows, and the checks that hold on write as on read.

use crate::StoreError;
use crate::table::{EventRow, LayerRow, LinkTableRow, RequestRow, RouteRow, StepRow, Table};
use evenkeel_trace::{
    Direction, Event, EventKind, Finish, LayerCell, LinkRow, RankCell, RecordedRequest,
    RequestRecord, RoutingRow, StepRecord, TraceHeader,
};
use evenkeel_types::{ExpertId, LayerId, Phase, RankId, SliceId};
use std::path::Path;

const EVENT_KINDS: [(EventKind, &str); 9] = [
    (EventKind::TokensDropped, "tokens_dropped"),
    (EventKind::MapPrepared, "map_prepared"),
    (EventKind::MapCommitted, "map_committed"),
    (EventKind::MapAborted, "map_aborted"),
    (EventKind::RankLost, "rank_lost"),
    (EventKind::RankJoined, "rank_joined"),
    (EventKind::Stall, "stall"),
    (EventKind::CapChanged, "cap_changed"),
    (EventKind::Rollout, "rollout"),
];

const FINISHES: [Finish; 4] = [Finish::Stop, Finish::Length, Finish::Error, Finish::Unfinished];

/// Checks a step against the header, the first step's ranks and the step before.
pub(crate) fn check_step(
    path: &Path,
    header: &TraceHeader,
    ranks: usize,
    record: &StepRecord,
    last: Option<(u64, u64)>,
) -> Result<(), StoreError> {
    let bad = |problem: String| {
        let problem = format!("step {}: {problem}", record.step);
        Err(StoreError::Field { path: path.to_owned(), problem })
    };
    if let Some((step, start_ns)) = last
        && (record.step <= step || record.start_ns < start_ns)
    {
        return bad(format!(
            "starts at {} ns after step {step} at {start_ns} ns, expected both to rise",
            record.start_ns
        ));
    }
    if record.end_ns < record.start_ns {
        return bad(format!("ends at {} ns, before its start", record.end_ns));
    }
    if record.ranks.is_empty() || record.ranks.len() != ranks {
        return bad(format!("has {} ranks, expected {}", record.ranks.len(), ranks.max(1)));
    }
    let cells = usize::from(header.model.moe_layers) * ranks;
    if !record.cells.is_empty() && record.cells.len() != cells {
        return bad(format!("has {} layer cells, expected {cells} or none", record.cells.len()));
    }
    let shape = Bounds::new(header, Some(ranks));
    for row in &record.routing {
        if let Some(problem) = shape.routing(row.layer.0, row.source.0, row.expert.0) {
            return bad(problem);
        }
        if let Some(problem) = row.host.and_then(|host| shape.rank("host rank", host.0)) {
            return bad(problem);
        }
    }
    for row in &record.links {
        let place = (row.layer.0, row.source.0, row.destination.0);
        if let Some(problem) = shape.link(place.0, place.1, place.2) {
            return bad(problem);
        }
    }
    let kernels = header.kernels.len();
    match record.cells.iter().find(|cell| !kernel_known(cell.kernel, kernels)) {
        Some(cell) => bad(format!("kernel {}, expected below {kernels}", cell.kernel)),
        None => Ok(()),
    }
}

/// Kernel 0 needs no name: it is what a record without kernels has.
pub(crate) fn kernel_known(kernel: u16, kernels: usize) -> bool {
    kernel == 0 || usize::from(kernel) < kernels
}

/// Ranges of ids.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub layers: u16,
    pub experts: u16,
    /// Ranks of the group, where known.
    pub ranks: Option<usize>,
}

impl Bounds {
    pub fn new(header: &TraceHeader, ranks: Option<usize>) -> Self {
        Self { layers: header.model.moe_layers, experts: header.model.experts, ranks }
    }

    pub fn layer(&self, layer: u16) -> Option<String> {
        (layer >= self.layers).then(|| format!("layer {layer}, expected below {}", self.layers))
    }

    pub fn rank(&self, what: &str, rank: u16) -> Option<String> {
        let ranks = self.ranks.unwrap_or(evenkeel_types::Topology::RANKS_MAX);
        (usize::from(rank) >= ranks).then(|| format!("{what} {rank}, expected below {ranks}"))
    }

    #[inline]
    pub fn routing(&self, layer: u16, source: u16, expert: u16) -> Option<String> {
        if expert >= self.experts {
            return Some(format!(
                "layer {layer}: expert {expert}, expected below {}",
                self.experts
            ));
        }
        self.layer(layer).or_else(|| self.rank("source rank", source))
    }

    pub fn link(&self, layer: u16, source: u16, destination: u16) -> Option<String> {
        if source == destination {
            return Some(format!("layer {layer}: a link from rank {source} to itself"));
        }
        self.layer(layer)
            .or_else(|| self.rank("source rank", source))
            .or_else(|| self.rank("destination rank", destination))
    }
}

pub(crate) fn step_row(record: &StepRecord, rank: RankId, cell: &RankCell) -> StepRow {
    let RankCell { sequences, tokens, tokens_padded, kv_blocks_used, kv_blocks_free } = *cell;
    StepRow {
        step: record.step,
        rank: rank.0,
        phase: record.phase.index() as u8,
        start_ns: record.start_ns,
        end_ns: record.end_ns,
        map_version: record.map_version,
        sequences,
        tokens,
        tokens_padded,
        kv_blocks_used,
        kv_blocks_free,
    }
}

pub(crate) fn rank_cell(row: &StepRow) -> RankCell {
    RankCell {
        sequences: row.sequences,
        tokens: row.tokens,
        tokens_padded: row.tokens_padded,
        kv_blocks_used: row.kv_blocks_used,
        kv_blocks_free: row.kv_blocks_free,
    }
}

macro_rules! layer_fields {
    ($make:ident) => {
        $make! {
            attention_ns, router_ns, dispatch_skew_ns, dispatch_wait_ns, dispatch_service_ns,
            queue_ns, expert_ns, cpu_ns, return_skew_ns, return_wait_ns, return_service_ns,
            combine_ns, rows_in, tokens_in, experts_activated, kernel, bytes_out, bytes_in
        }
    };
}

pub(crate) fn layer_row(step: u64, layer: u16, rank: u16, cell: &LayerCell) -> LayerRow {
    macro_rules! make {
        ($($field:ident),*) => {{
            let LayerCell { $($field),* } = *cell;
            LayerRow { step, layer, rank, $($field),* }
        }};
    }
    layer_fields!(make)
}

pub(crate) fn layer_cell(row: &LayerRow) -> LayerCell {
    macro_rules! make {
        ($($field:ident),*) => { LayerCell { $($field: row.$field),* } };
    }
    layer_fields!(make)
}

/// Key of a routing row within its step; unknown hosts come last.
#[inline]
pub(crate) fn routing_key(row: &RouteRow) -> u64 {
    u64::from(row.layer) << 48
        | u64::from(row.source) << 32
        | u64::from(row.expert) << 16
        | u64::from(row.host.unwrap_or(u16::MAX))
}

/// A step's routing rows in table order.
pub(crate) fn routing_rows(dir: &Path, record: &StepRecord) -> Result<Vec<RouteRow>, StoreError> {
    let row = |row: &RoutingRow| RouteRow {
        step: record.step,
        phase: record.phase.index() as u8,
        layer: row.layer.0,
        source: row.source.0,
        expert: row.expert.0,
        host: row.host.map(|host| host.0),
        tokens: row.tokens,
    };
    let mut rows: Vec<RouteRow> = record.routing.iter().map(row).collect();
    rows.sort_by_key(routing_key);
    match rows.windows(2).find(|pair| routing_key(&pair[0]) == routing_key(&pair[1])) {
        Some(pair) => Err(StoreError::Field {
            path: dir.join(Table::Routing.file_name()),
            problem: format!("step {}, {}: is there twice", record.step, routing_place(&pair[0])),
        }),
        None => Ok(rows),
    }
}

pub(crate) fn routing_place(row: &RouteRow) -> String {
    let place = format!("layer {}, source rank {}, expert {}", row.layer, row.source, row.expert);
    match row.host {
        Some(host) => format!("{place}, host rank {host}"),
        None => place,
    }
}

pub(crate) fn routing_record(row: &RouteRow) -> RoutingRow {
    RoutingRow {
        layer: LayerId(row.layer),
        source: RankId(row.source),
        expert: ExpertId(row.expert),
        host: row.host.map(RankId),
        tokens: row.tokens,
    }
}

/// Key of a link row within its step.
pub(crate) fn link_key(row: &LinkTableRow) -> (u16, u8, u16, u16) {
    (row.layer, row.direction, row.source, row.destination)
}

/// A step's link rows in table order.
pub(crate) fn link_rows(dir: &Path, record: &StepRecord) -> Result<Vec<LinkTableRow>, StoreError> {
    let row = |row: &LinkRow| LinkTableRow {
        step: record.step,
        layer: row.layer.0,
        direction: match row.direction {
            Direction::Dispatch => 0,
            Direction::Return => 1,
        },
        source: row.source.0,
        destination: row.destination.0,
        messages: row.messages,
        bytes: row.bytes,
        largest_bytes: row.largest_bytes,
        service_ns: row.service_ns,
    };
    let mut rows: Vec<LinkTableRow> = record.links.iter().map(row).collect();
    rows.sort_by_key(link_key);
    match rows.windows(2).find(|pair| link_key(&pair[0]) == link_key(&pair[1])) {
        Some(pair) => Err(StoreError::Field {
            path: dir.join(Table::Links.file_name()),
            problem: format!(
                "step {}, layer {}, rank {} to rank {}: is there twice",
                record.step, pair[0].layer, pair[0].source, pair[0].destination
            ),
        }),
        None => Ok(rows),
    }
}

/// The link, or `None` where the direction's code is unknown.
pub(crate) fn link_record(row: &LinkTableRow) -> Option<LinkRow> {
    Some(LinkRow {
        layer: LayerId(row.layer),
        direction: match row.direction {
            0 => Direction::Dispatch,
            1 => Direction::Return,
            _ => return None,
        },
        source: RankId(row.source),
        destination: RankId(row.destination),
        messages: row.messages,
        bytes: row.bytes,
        largest_bytes: row.largest_bytes,
        service_ns: row.service_ns,
    })
}

pub(crate) fn check_request(
    path: &Path,
    row: u64,
    header: &TraceHeader,
    request: &RequestRecord,
) -> Result<(), StoreError> {
    let bad = |problem: String| {
        let (path, place) = (path.to_owned(), format!("request {}", request.request));
        Err(StoreError::Row { path, row, place, problem })
    };
    let slices = header.slices.len();
    if request.slice.index() >= slices {
        return bad(format!("slice {}, expected below {slices}", request.slice.0));
    }
    if let (Some(first), Some(last)) = (request.ttft_ns, request.finish_ns)
        && last < first
    {
        return bad(format!("finish_ns is {last}, before ttft_ns {first}"));
    }
    if request.token_ns.len() > request.output_tokens as usize {
        let (found, limit) = (request.token_ns.len(), request.output_tokens);
        return bad(format!(
            "token_ns has {found} times, expected at most {limit} (output_tokens)"
        ));
    }
    if request.token_ns.windows(2).any(|pair| pair[1] < pair[0]) {
        return bad("token_ns falls, expected times in order".to_owned());
    }
    for (field, value) in [
        ("mean_log_probability", request.mean_log_probability),
        ("quality_score", request.quality_score),
    ] {
        if value.is_some_and(|value| !value.is_finite()) {
            return bad(format!("{field} is not a finite number"));
        }
    }
    match request.quality_score {
        Some(score) if !(0.0..=1.0).contains(&score) => {
            bad(format!("quality_score is {score}, expected a share in 0..=1"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn request_row(request: &RequestRecord) -> RequestRow {
    let request = request.clone();
    RequestRow {
        request: request.request,
        slice: request.slice.0,
        arrival_ns: request.arrival_ns,
        queue_ns: request.queue_ns,
        ttft_ns: request.ttft_ns,
        finish_ns: request.finish_ns,
        token_ns: request.token_ns,
        prompt_tokens: request.prompt_tokens,
        output_tokens: request.output_tokens,
        finish: match request.finish {
            Finish::Stop => 0,
            Finish::Length => 1,
            Finish::Error => 2,
            Finish::Unfinished => 3,
        },
        error: request.error,
        output_digest: request.output_digest,
        mean_log_probability: request.mean_log_probability,
        quality_score: request.quality_score,
    }
}

/// The request, or what is wrong with its `finish`.
pub(crate) fn request_record(row: RequestRow) -> Result<RequestRecord, String> {
    let Some(&finish) = FINISHES.get(usize::from(row.finish)) else {
        return Err(format!("finish is {}, expected 0..=3", row.finish));
    };
    Ok(RequestRecord {
        request: row.request,
        slice: SliceId(row.slice),
        arrival_ns: row.arrival_ns,
        queue_ns: row.queue_ns,
        ttft_ns: row.ttft_ns,
        finish_ns: row.finish_ns,
        token_ns: row.token_ns,
        prompt_tokens: row.prompt_tokens,
        output_tokens: row.output_tokens,
        finish,
        error: row.error,
        output_digest: row.output_digest,
        mean_log_probability: row.mean_log_probability,
        quality_score: row.quality_score,
    })
}

/// What is known of a request of which only routing was recorded: no times.
pub(crate) fn derived_request(recorded: &RecordedRequest) -> RequestRecord {
    RequestRecord {
        request: recorded.request,
        slice: recorded.slice,
        arrival_ns: 0,
        queue_ns: None,
        ttft_ns: None,
        finish_ns: None,
        token_ns: Vec::new(),
        prompt_tokens: recorded.prompt_tokens,
        output_tokens: recorded.output_tokens(),
        finish: Finish::Stop,
        error: String::new(),
        output_digest: String::new(),
        mean_log_probability: None,
        quality_score: None,
    }
}

pub(crate) fn event_row(event: &Event) -> EventRow {
    let name = EVENT_KINDS.iter().find(|(kind, _)| *kind == event.kind);
    EventRow {
        at_ns: event.at_ns,
        step: event.step,
        kind: name.map_or("", |(_, name)| *name).to_owned(),
        phase: event.phase.map(|phase| phase.index() as u8),
        layer: event.layer.map(|layer| layer.0),
        rank: event.rank.map(|rank| rank.0),
        value: event.value,
        detail: event.detail.clone(),
    }
}

/// The event, or what is wrong with it.
pub(crate) fn event_record(row: EventRow, bounds: &Bounds) -> Result<Event, String> {
    let Some((kind, _)) = EVENT_KINDS.iter().find(|(_, name)| *name == row.kind) else {
        return Err(format!("kind `{}` is unknown", row.kind.escape_default()));
    };
    let phase = match row.phase {
        None => None,
        Some(code) => Some(
            Phase::from_code(code).ok_or_else(|| format!("phase is {code}, expected 0 or 1"))?,
        ),
    };
    let problem = row.layer.and_then(|layer| bounds.layer(layer));
    if let Some(problem) = problem.or_else(|| row.rank.and_then(|rank| bounds.rank("rank", rank))) {
        return Err(problem);
    }
    Ok(Event {
        at_ns: row.at_ns,
        step: row.step,
        kind: *kind,
        phase,
        layer: row.layer.map(LayerId),
        rank: row.rank.map(RankId),
        value: row.value,
        detail: row.detail,
    })
}
