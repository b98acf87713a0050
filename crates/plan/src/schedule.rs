//! In which order may copies arrive, so that every expert lives at every moment?
//!
//! A stage prepares its copies in staging memory beside the map in force and commits them together
//! between two steps; copies that end, end there. So nothing dies while a stage is prepared, and
//! what has to hold is the map after each commit. An arrival that overwrites an expert's last copy
//! needs that expert's own arrival elsewhere in the same stage or before; such chains are kept
//! together. A ring of last copies that is longer than a stage allows is opened: one arrival is
//! committed into a staging slot beside the copy that it will replace, and the rest follows one by
//! one. Where no staging slot is free for that, the ring gets a stage of its own, beyond the
//! policy's bounds, and the memory check counts what it really needs.

mod stage;

use crate::links::Links;
use crate::{Stage, Transfer};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Policy, RankId};
use stage::{Chosen, Limits, Open};

/// A change of one rank in one layer: an arrival, an end, or one over the other.
#[derive(Clone, Copy, Debug)]
struct Step {
    layer: usize,
    rank: usize,
    add: Option<ExpertId>,
    remove: Option<ExpertId>,
    /// The arrival was committed ahead of the end, and holds a staging slot until the end.
    parked: bool,
}

/// Stages from one map to another, and what each rank holds meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    pub(crate) stages: Vec<Stage>,
    /// `[stage][rank]`: copies in slots while the stage is prepared.
    pub(crate) copies: Vec<Vec<u64>>,
    /// `[stage][rank]`: copies in staging memory: in flight, or in force beside a copy that ends
    /// later.
    pub(crate) arriving: Vec<Vec<u64>>,
    /// (stage, layer, expert) without a copy after a commit: only where a map lacks the expert.
    pub(crate) orphans: Vec<(usize, LayerId, ExpertId)>,
}

/// Plans the stages from `live` to `next`, two maps of one shape.
pub(crate) fn schedule(
    live: &ExpertMap,
    next: &ExpertMap,
    links: &Links,
    policy: &Policy,
    expert_bytes: u64,
) -> Schedule {
    let limits = Limits {
        per_rank: policy.memory.staging_slots.max(1),
        total: policy.moves.operations_per_stage_max.max(1) as usize,
        per_link: policy.moves.operations_per_link_max.max(1),
    };
    let mut open = Open::new(live, differences(live, next), links, limits);
    let mut schedule = Schedule::default();
    let mut clock_s = 0.0;
    while open.any() {
        let Chosen { steps, sources } = open.choose();
        let stage = schedule.stages.len();
        let mut arriving: Vec<u64> = open.parked.iter().map(|n| u64::from(*n)).collect();
        let in_slots = open.holders.copies.iter().zip(&arriving).map(|(all, parked)| all - parked);
        schedule.copies.push(in_slots.collect());
        let mut built = Stage { start_s: clock_s, ..Stage::default() };
        for (&(index, parks), from) in steps.iter().zip(sources) {
            let step = open.steps[index];
            let (layer, to) = (LayerId(step.layer as u16), RankId(step.rank as u16));
            arriving[step.rank] += u64::from(step.add.is_some());
            if !parks {
                built.drops.extend(step.remove.map(|expert| (layer, to, expert)));
            }
            if let (Some(expert), Some(from)) = (step.add, from) {
                let (start_s, end_s) = (clock_s, clock_s);
                built.transfers.push(Transfer { layer, expert, from, to, start_s, end_s });
            }
        }
        built.time_s = time(&mut built.transfers, clock_s, links, policy, expert_bytes);
        clock_s += built.time_s;
        schedule.arriving.push(arriving);
        open.commit(&steps);
        for &(layer, _, expert) in &built.drops {
            if open.holders.of_expert(layer.index(), expert).is_empty() {
                schedule.orphans.push((stage, layer, expert));
            }
        }
        schedule.stages.push(built);
    }
    schedule
}

/// Arrivals and ends by layer and rank, paired: an arrival takes the place of an end where it can.
/// Arrivals over ends that leave other copies behind come first among equals by order.
fn differences(live: &ExpertMap, next: &ExpertMap) -> Vec<Step> {
    let mut steps = Vec::new();
    for layer in 0..live.layers() {
        for rank in 0..live.ranks() {
            let held = |map: &ExpertMap| {
                let mut held: Vec<ExpertId> =
                    map.slots[layer][rank].iter().flatten().copied().collect();
                held.sort_unstable();
                held.dedup();
                held
            };
            let (before, after) = (held(live), held(next));
            let add: Vec<ExpertId> =
                after.iter().copied().filter(|expert| !before.contains(expert)).collect();
            let remove: Vec<ExpertId> =
                before.iter().copied().filter(|expert| !after.contains(expert)).collect();
            for index in 0..add.len().max(remove.len()) {
                steps.push(Step {
                    layer,
                    rank,
                    add: add.get(index).copied(),
                    remove: remove.get(index).copied(),
                    parked: false,
                });
            }
        }
    }
    steps
}

/// Gives every transfer of a stage its times, and returns the stage's own, s.
///
/// A rank receives one copy after another at the policy's rate; a rank that sends several at once
/// shares its link among them.
fn time(
    transfers: &mut [Transfer],
    start_s: f64,
    links: &Links,
    policy: &Policy,
    expert_bytes: u64,
) -> f64 {
    let ranks = links.node.len();
    let (mut received_s, mut sent_s) = (vec![start_s; ranks], vec![start_s; ranks]);
    let mut last_s = start_s;
    for transfer in transfers {
        let (from, to) = (transfer.from, transfer.to);
        let rate = links.gb_per_s(from, to, policy.moves.byte_rate_gb_per_s) * 1e9;
        let link = links.link_gb_per_s(from, to) * 1e9;
        transfer.start_s = received_s[to.index()].max(sent_s[from.index()]);
        transfer.end_s = transfer.start_s + expert_bytes as f64 / rate;
        received_s[to.index()] = transfer.end_s;
        sent_s[from.index()] = transfer.start_s + expert_bytes as f64 / link;
        last_s = last_s.max(transfer.end_s);
    }
    last_s - start_s
}
