//! Steps from a sketch: one model of the machine, written apart from the one under test.

use super::draw::{counts, cut, normal};
use super::{Scene, Sketch, WindowSketch};
use evenkeel_cost::{AttentionLoad, Crossing, StepModel};
use evenkeel_trace::{
    Direction, Finish, LayerCell, LinkRow, RankCell, RequestRecord, RoutingRow, StepRecord,
    TimeOrigin, TraceHeader,
};
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, ModelShape, Phase, RankId, Slice, SliceId, Topology, hash3,
    unit_f64,
};

const BLOCK: u32 = 16;

pub struct Recorder<'a> {
    sketch: &'a Sketch,
    window: &'a WindowSketch,
    seed: u64,
    shape: ModelShape,
    topology: Topology,
    map: ExpertMap,
    model: StepModel,
}

/// Rows of a layer: `[rank]` → slots, and who sent what.
#[derive(Default)]
struct LayerRows {
    slots: Vec<Vec<u32>>,
    routing: Vec<RoutingRow>,
}

impl<'a> Recorder<'a> {
    pub fn new(sketch: &'a Sketch, window: &'a WindowSketch, salt: u64) -> Self {
        Self {
            sketch,
            window,
            seed: hash3(sketch.seed, salt, 99),
            shape: sketch.shape(),
            topology: sketch.topology(),
            map: sketch.map(),
            model: sketch.model(),
        }
    }

    fn ranks(&self) -> usize {
        self.topology.rank_count()
    }

    pub fn scene(self) -> Scene {
        let mut steps = Vec::new();
        let mut now = 0;
        for step in 0..self.window.steps {
            let record = self.step(step, now);
            now = record.end_ns;
            steps.push(record);
            if let Some((every, ms)) = self.window.prefill
                && step % every == every - 1
            {
                let end_ns = now + (ms * 1e6) as u64;
                steps.push(StepRecord {
                    step: 1_000_000 + step,
                    phase: Phase::Prefill,
                    start_ns: now,
                    end_ns,
                    map_version: 1,
                    ranks: vec![RankCell::default(); self.ranks()],
                    cells: Vec::new(),
                    routing: Vec::new(),
                    links: Vec::new(),
                });
                now = end_ns;
            }
        }
        let slices = self.window.mix.iter().map(|(tenant, _)| Slice {
            model_revision: self.window.revision.clone(),
            ..Slice::of_tenant(tenant)
        });
        let mut header = TraceHeader::new(self.shape.clone(), slices.collect());
        header.times = TimeOrigin::Modelled;
        header.topology = Some(self.topology.clone());
        header.kernels = vec!["tuned".into()];
        header.kernels.extend(self.window.faults.kernel.iter().map(|(name, ..)| name.clone()));
        let requests = (0..self.window.requests).map(|request| self.request(request)).collect();
        Scene {
            header,
            map: self.map,
            topology: self.topology,
            steps,
            requests,
            breaches: Vec::new(),
        }
    }

    fn request(&self, request: u64) -> RequestRecord {
        let mut draw = unit_f64(hash3(self.seed, 7, request));
        let mut slice = 0;
        for (index, (_, share)) in self.window.mix.iter().enumerate() {
            slice = index;
            if draw < *share {
                break;
            }
            draw -= share;
        }
        // Sizes with a long tail: few requests make most tokens.
        let output_tokens = (20.0 / (0.03 + unit_f64(hash3(self.seed, 8, request)))) as u32;
        RequestRecord {
            request,
            slice: SliceId(slice as u16),
            arrival_ns: request,
            queue_ns: None,
            ttft_ns: None,
            finish_ns: None,
            token_ns: Vec::new(),
            prompt_tokens: 100,
            output_tokens,
            finish: Finish::Stop,
            error: String::new(),
            output_digest: String::new(),
            mean_log_probability: None,
            quality_score: None,
        }
    }

    fn noise(&self, step: u64, what: u64, cell: usize) -> f64 {
        (self.sketch.noise * normal(hash3(self.seed, step, what), cell as u64, 1)).exp()
    }

    fn step(&self, step: u64, start_ns: u64) -> StepRecord {
        let ranks = self.ranks();
        let cells: Vec<RankCell> = (0..ranks).map(|rank| self.rank(rank)).collect();
        let (mut ns, mut layer_cells, mut routing, mut links) = (0, vec![], vec![], vec![]);
        for layer in 0..usize::from(self.sketch.layers) {
            let rows = self.layer_rows(step, layer);
            let spans = self.layer(step, layer, &rows, &cells, &mut ns);
            layer_cells.extend(spans);
            if self.window.links {
                self.push_links(step, &rows, &mut links);
            }
            if self.window.routing {
                routing.extend(rows.routing);
            }
        }
        let tokens = self.window.sequences_per_rank;
        ns += (1000.0 * self.model.step_rest_us(Phase::Decode, tokens)) as u64;
        if !self.window.spans {
            layer_cells.clear();
        }
        StepRecord {
            step,
            phase: Phase::Decode,
            start_ns,
            end_ns: start_ns + ns,
            map_version: 1,
            ranks: cells,
            cells: layer_cells,
            routing,
            links,
        }
    }

    fn rank(&self, rank: usize) -> RankCell {
        let times = match self.window.faults.kv {
            Some((long, times)) if long == rank => times,
            _ => 1.0,
        };
        let sequences = self.window.sequences_per_rank;
        let context = (f64::from(self.window.context) * times) as u32;
        RankCell {
            sequences,
            tokens: sequences,
            tokens_padded: sequences,
            kv_blocks_used: sequences * context.div_ceil(BLOCK),
            kv_blocks_free: 1000,
        }
    }

    fn layer_rows(&self, step: u64, layer: usize) -> LayerRows {
        let ranks = self.ranks();
        if let Some(rows) = self.window.rows.get(layer) {
            let slots = self.sketch.slots_per_rank as u32;
            let spread = |rows: &u32| {
                (0..slots).map(|slot| rows / slots + u32::from(slot < rows % slots)).collect()
            };
            return LayerRows { slots: rows.iter().map(spread).collect(), routing: Vec::new() };
        }
        let mut weights = vec![1.0; usize::from(self.sketch.experts)];
        let warm = step < self.window.warm_up;
        if warm {
            weights[0] = 20.0;
        } else {
            for (at, expert, times) in &self.window.hot {
                if usize::from(*at) == layer {
                    weights[usize::from(*expert)] = *times;
                }
            }
        }
        let empty = self.window.empty_layers.iter().any(|empty| usize::from(*empty) == layer);
        let tokens = self.window.sequences_per_rank * ranks as u32;
        let total = if empty { 0 } else { tokens * u32::from(self.sketch.top_k) };
        let drawn = if warm { 0 } else { step + 1 };
        let counts = counts(&weights, total, hash3(self.seed, drawn, 3), layer as u64);
        self.place(layer, &counts)
    }

    fn place(&self, layer: usize, counts: &[u32]) -> LayerRows {
        let ranks = self.ranks();
        let layer_id = LayerId(layer as u16);
        let mut rows = LayerRows { slots: vec![Vec::new(); ranks], routing: Vec::new() };
        for (expert, hosts) in self.map.hosts(layer_id).iter().enumerate() {
            let mut shares = vec![1.0 / hosts.len() as f64; hosts.len()];
            for (at, which, rank, share) in &self.window.copy_share {
                if usize::from(*at) == layer && usize::from(*which) == expert {
                    let rest = (1.0 - share) / (hosts.len() - 1).max(1) as f64;
                    for (host, value) in hosts.iter().zip(&mut shares) {
                        *value = if host.0 == *rank { *share } else { rest };
                    }
                }
            }
            for (host, copy) in hosts.iter().zip(cut(counts[expert], &shares)) {
                rows.slots[host.index()].push(copy);
                let from = cut(copy, &vec![1.0 / ranks as f64; ranks]);
                for (source, tokens) in from.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                    rows.routing.push(RoutingRow {
                        layer: layer_id,
                        source: RankId(source as u16),
                        expert: ExpertId(expert as u16),
                        host: Some(*host),
                        tokens,
                    });
                }
            }
        }
        for slots in &mut rows.slots {
            slots.resize(self.sketch.slots_per_rank.max(slots.len()), 0);
        }
        rows
    }

    /// Spans of one layer; adds its time to `total_ns`.
    fn layer(
        &self,
        step: u64,
        layer: usize,
        rows: &LayerRows,
        ranks: &[RankCell],
        total_ns: &mut u64,
    ) -> Vec<LayerCell> {
        let faults = &self.window.faults;
        let [expert_bias, attention_bias, exchange_bias] = self.sketch.bias;
        let count = ranks.len();
        let top_k = f64::from(self.sketch.top_k);
        let fullest = rows.slots.iter().map(|slots| slots.iter().sum::<u32>()).max().unwrap_or(0);
        let pairs = f64::from(self.window.sequences_per_rank) * top_k;
        let crossing = Crossing { pairs: pairs.max(f64::from(fullest)), ..Crossing::default() };
        let tokens = self.model.tokens_equivalent(Phase::Decode, &crossing);
        let slow_link = match faults.link {
            Some((_, share, from)) if step >= from => 1.0 / share,
            _ => 1.0,
        };
        let exchange = [
            self.model.dispatch_us(Phase::Decode, tokens),
            self.model.combine_us(Phase::Decode, tokens),
        ]
        .map(|us| 1000.0 * us * exchange_bias * slow_link);
        let kernel = match &faults.kernel {
            Some((_, factor, from)) if step >= *from => (1, *factor),
            _ => (0, 1.0),
        };
        let mut cells = vec![LayerCell::default(); count];
        for (rank, cell) in cells.iter_mut().enumerate() {
            let slow = match faults.slow_rank {
                Some((slow, factor, from)) if slow == rank && step >= from => factor,
                _ => 1.0,
            };
            let slots = &rows.slots[rank];
            let received: u32 = slots.iter().sum();
            let at = layer * count + rank;
            let experts = self.model.experts(Phase::Decode).rank_us(slots, received);
            let context = ranks[rank].kv_blocks_used * BLOCK;
            let load = AttentionLoad {
                sequences: ranks[rank].sequences,
                new_tokens: ranks[rank].tokens,
                context_tokens: u64::from(context),
                context_products: f64::from(context),
            };
            let attention = self.model.attention_us(Phase::Decode, &load) * attention_bias;
            let router = self.model.layer_rest_us(Phase::Decode, ranks[rank].tokens);
            let ns = |us: f64, what| (1000.0 * us * slow * self.noise(step, what, at)) as u64;
            cell.expert_ns = ns(experts * expert_bias * kernel.1, 1);
            cell.attention_ns = ns(attention, 2);
            cell.router_ns = ns(router, 3);
            cell.kernel = kernel.0;
            cell.rows_in = received;
            cell.tokens_in = received;
            cell.experts_activated = slots.iter().filter(|rows| **rows > 0).count() as u16;
            cell.dispatch_service_ns = (exchange[0] * self.noise(step, 4, layer)) as u64;
            cell.return_service_ns = (exchange[1] * self.noise(step, 5, layer)) as u64;
        }
        self.meet(step, layer, &mut cells, total_ns);
        cells
    }

    /// Waiting at both exchanges, and the layer's time.
    fn meet(&self, step: u64, layer: usize, cells: &mut [LayerCell], total_ns: &mut u64) {
        let late = self.window.faults.late.as_ref().filter(|late| layer == 0 && step >= late.2);
        let mut arrival: Vec<u64> =
            cells.iter().map(|cell| cell.attention_ns + cell.router_ns).collect();
        if let Some((rank, ms, _, span)) = late {
            arrival[*rank] += (ms * 1e6) as u64;
            if span == "router" {
                cells[*rank].router_ns += (ms * 1e6) as u64;
            }
        }
        let (first, last) =
            (arrival.iter().min().copied().unwrap(), arrival.iter().max().copied().unwrap());
        let done = cells.iter().map(|cell| cell.expert_ns).max().unwrap();
        *total_ns += last + cells[0].dispatch_service_ns + done + cells[0].return_service_ns;
        for (cell, arrival) in cells.iter_mut().zip(arrival) {
            if self.window.waiting_as_service {
                cell.dispatch_service_ns += last - arrival;
            } else {
                cell.dispatch_skew_ns = arrival - first;
                cell.dispatch_wait_ns = last - arrival;
            }
            cell.return_wait_ns = done - cell.expert_ns;
        }
    }

    fn push_links(&self, step: u64, rows: &LayerRows, links: &mut Vec<LinkRow>) {
        let ranks = self.topology.ranks();
        let count = ranks.len();
        let layer = rows.routing.first().map_or(LayerId(0), |row| row.layer);
        let mut pairs = vec![0_u64; count * count];
        for row in &rows.routing {
            if let Some(host) = row.host {
                pairs[row.source.index() * count + host.index()] += u64::from(row.tokens);
            }
        }
        for direction in [Direction::Dispatch, Direction::Return] {
            for (index, rows) in pairs.iter().enumerate().filter(|(_, rows)| **rows > 0) {
                let (a, b) = (index / count, index % count);
                if a == b {
                    continue;
                }
                let (from, to) = if direction == Direction::Dispatch { (a, b) } else { (b, a) };
                let crosses = ranks[a].node != ranks[b].node;
                let class = if crosses { self.topology.inter } else { self.topology.intra };
                let touches =
                    |node: usize| ranks[a].node.index() == node || ranks[b].node.index() == node;
                let share = match self.window.faults.link {
                    Some((node, share, first)) if crosses && touches(node) && step >= first => {
                        share
                    }
                    _ => 1.0,
                };
                let bytes = rows * 4096;
                let us = class.alpha_us + bytes as f64 / (class.beta_gb_per_s * 1e3 * share);
                links.push(LinkRow {
                    layer,
                    direction,
                    source: RankId(from as u16),
                    destination: RankId(to as u16),
                    messages: *rows as u32,
                    bytes,
                    largest_bytes: 4096,
                    service_ns: (1000.0 * us * self.noise(step, 6, index)) as u64,
                });
            }
        }
    }
}
