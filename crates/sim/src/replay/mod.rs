//! The replay backend: recorded routing on a map, timed by cost curves.

mod blocks;
mod charge;
mod exchange;
mod placement;
mod rows;
mod tally;
mod times;
mod volumes;

pub use times::StepTimes;

use crate::{Backend, Faults, Group, SimError, StepBatch, StepCost};
use blocks::Blocks;
use charge::Arrival;
use evenkeel_cost::AttentionLoad;
use evenkeel_split::SplitTable;
use evenkeel_trace::Routes;
use evenkeel_types::{ExpertMap, NodeId, Phase, Topology};
use exchange::Exchange;
use placement::Placement;
use tally::{FlatRoutes, Tally};
use volumes::Volumes;

/// Recorded routing on one map with one split, timed by cost curves.
///
/// Takes the routing's memory once more (flat ids) and per-map blocks of prompt counts.
pub struct Replay<'a> {
    group: Group,
    times: &'a dyn StepTimes,
    faults: Faults,
    placement: Placement,
    flat: FlatRoutes,
    blocks: Blocks,
    tally: Tally,
    exchange: Exchange,
    /// Filled for traced steps alone.
    volumes: Volumes,
    /// `[rank]`: share of the curves' speed.
    speed: Vec<f64>,
    /// `[from node * nodes + to node]`: fixed µs, and bytes per µs, of a rank's link.
    links: Vec<(f64, f64)>,
    /// Whether decode's experts cost by distinct tokens too.
    decode_needs_distinct: bool,
    counted_by_source: bool,
    tokens_by_rank: Vec<u32>,
    loads: Vec<AttentionLoad>,
    arrivals: Vec<Arrival>,
    expert_ns: Vec<u64>,
}

impl<'a> Replay<'a> {
    /// Resolves a map and a split for recorded routing.
    ///
    /// # Errors
    /// Names what does not fit: dimensions, an expert without a copy, a split that sends tokens to
    /// a rank without a copy, a fault on a rank that does not exist.
    pub fn new(
        routes: &Routes,
        map: &ExpertMap,
        split: &SplitTable,
        times: &'a dyn StepTimes,
        topology: &Topology,
        faults: &Faults,
    ) -> Result<Self, SimError> {
        let ranks = map.ranks();
        check_dimensions(routes, map, topology)?;
        faults.validate(ranks)?;
        let placement = Placement::new(map, split, topology)?;
        let tally = Tally::new(&placement);
        Ok(Self {
            group: Group {
                ranks: ranks as u16,
                layers: map.layers(),
                experts: usize::from(map.experts),
                top_k: routes.top_k(),
                map_version: map.version,
                map_digest: map.digest(),
            },
            times,
            faults: faults.clone(),
            flat: FlatRoutes::new(routes),
            blocks: Blocks::new(routes, &tally.layout),
            exchange: Exchange::new(&placement, topology, routes.top_k()),
            tally,
            volumes: Volumes::default(),
            speed: topology.ranks().iter().map(|rank| rank.speed_share).collect(),
            links: link_classes(topology),
            decode_needs_distinct: needs_distinct(times),
            counted_by_source: false,
            tokens_by_rank: vec![0; ranks],
            loads: vec![AttentionLoad::default(); ranks],
            arrivals: vec![Arrival::default(); ranks],
            expert_ns: vec![0; ranks],
            placement,
        })
    }

    fn measure_loads(&mut self, batch: &StepBatch<'_>) {
        for rank in 0..self.placement.ranks {
            let mut load = AttentionLoad::default();
            for entry in batch.rank(rank) {
                let length = u64::from(entry.context) + u64::from(entry.tokens);
                load.sequences += 1;
                load.new_tokens += entry.tokens;
                load.context_tokens += length;
                load.context_products += f64::from(entry.tokens) * length as f64;
            }
            self.tokens_by_rank[rank] = load.new_tokens;
            self.loads[rank] = load;
        }
    }

    /// Rows that are missing or too many after the split, over all layers (law 2): what was
    /// dispatched is tokens × top-k in every layer, what is combined must be the same.
    fn misplaced(&self, batch: &StepBatch<'_>) -> u64 {
        let dispatched = batch.tokens() * self.group.top_k as u64;
        let combined = |layer| {
            let rows = &self.tally.rows[self.placement.layer_slots(layer)];
            rows.iter().map(|rows| u64::from(*rows)).sum::<u64>()
        };
        (0..self.group.layers).map(|layer| dispatched.abs_diff(combined(layer))).sum()
    }
}

impl Backend for Replay<'_> {
    fn group(&self) -> &Group {
        &self.group
    }

    fn step(&mut self, batch: &StepBatch<'_>, cost: &mut StepCost) -> Result<(), SimError> {
        self.measure_loads(batch);
        self.counted_by_source = batch.phase == Phase::Prefill
            || batch.wants_layers
            || batch.wants_routing
            || self.decode_needs_distinct
            || self.exchange.is_degraded();
        if self.counted_by_source {
            self.tally.by_source(&self.placement, &self.flat, &mut self.blocks, batch);
        } else {
            self.tally.histogram(&self.placement, &self.flat, batch);
        }
        if batch.wants_layers || batch.wants_routing {
            self.volumes.fill(batch.phase, &self.placement, &self.tally);
        }
        cost.misplaced_rows = self.misplaced(batch);
        self.charge(batch, cost);
        if batch.wants_routing {
            self.push_rows(batch, cost);
        }
        Ok(())
    }
}

/// Whether the decode curve's time depends on distinct tokens beside the rows.
fn needs_distinct(times: &dyn StepTimes) -> bool {
    let curve = times.experts(Phase::Decode);
    let rows = [64; 4];
    let few = curve.rank_us(&rows, 64);
    [1, 128, 256].into_iter().any(|distinct| (curve.rank_us(&rows, distinct) - few).abs() > 0.0)
}

fn check_dimensions(routes: &Routes, map: &ExpertMap, topology: &Topology) -> Result<(), SimError> {
    let routed = (routes.layers(), usize::from(routes.experts()));
    for (place, found, expected) in [
        ("the map's layers", map.layers(), routed.0),
        ("the map's experts per layer", usize::from(map.experts), routed.1),
        ("the topology's ranks", topology.rank_count(), map.ranks()),
    ] {
        if found != expected {
            let (found, expected) = (found.to_string(), expected.to_string());
            return Err(SimError::Mismatch { place, found, expected });
        }
    }
    for (layer, ranks) in map.slots.iter().enumerate() {
        if ranks.len() != map.ranks() {
            let found = format!("{} ranks in layer {layer}", ranks.len());
            let expected = map.ranks().to_string();
            return Err(SimError::Mismatch { place: "the map", found, expected });
        }
    }
    if map.ranks() == 0 {
        let (found, expected) = ("no ranks".into(), "at least 1".into());
        return Err(SimError::Mismatch { place: "the map", found, expected });
    }
    Ok(())
}

fn link_classes(topology: &Topology) -> Vec<(f64, f64)> {
    let nodes = topology.node.len();
    let share = |node: usize| topology.outer_rate_share(NodeId(node as u16));
    let mut links = Vec::with_capacity(nodes * nodes);
    for from in 0..nodes {
        for to in 0..nodes {
            let (class, health) = match from == to {
                true => (&topology.intra, 1.0),
                false => (&topology.inter, share(from).min(share(to))),
            };
            // GB/s are 10^3 bytes per µs.
            links.push((class.alpha_us, class.beta_gb_per_s * 1e3 * health));
        }
    }
    links
}
