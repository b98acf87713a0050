//! In which order may copies arrive, so that every expert lives at every moment?
//!
//! A stage prepares its copies in staging memory beside the map in force and commits them together
//! between two steps; copies that end, end there. So nothing dies while a stage is prepared, and
//! what has to hold is the map after each commit. An arrival that overwrites an expert's last copy
//! needs that expert's own arrival elsewhere in the same stage or before; such chains are kept
//! together. A chain that needs more staging slots on a rank than the policy keeps gets a stage of
//! its own, and the memory check counts what it really needs.

use crate::links::Links;
use crate::{Stage, Transfer};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Policy, RankId};

/// A change of one rank in one layer: an arrival, an end, or one over the other.
#[derive(Clone, Copy, Debug)]
struct Step {
    layer: usize,
    rank: usize,
    add: Option<ExpertId>,
    remove: Option<ExpertId>,
}

/// Stages from one map to another, and what each rank holds meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    pub(crate) stages: Vec<Stage>,
    /// `[stage][rank]`: copies in force while the stage is prepared.
    pub(crate) copies: Vec<Vec<u64>>,
    /// `[stage][rank]`: copies in flight.
    pub(crate) arriving: Vec<Vec<u64>>,
    /// (stage, layer, expert) without a copy after a commit: only where a map lacks the expert.
    pub(crate) orphans: Vec<(usize, LayerId, ExpertId)>,
}

/// Who holds what, as stages commit.
struct Holders {
    experts: usize,
    /// `[layer * experts + expert]`.
    ranks: Vec<Vec<RankId>>,
    copies: Vec<u64>,
}

impl Holders {
    fn of(map: &ExpertMap) -> Self {
        let mut ranks = Vec::new();
        for layer in 0..map.layers() {
            ranks.extend(map.hosts(LayerId(layer as u16)));
        }
        Self { experts: usize::from(map.experts), ranks, copies: map.copies_per_rank() }
    }

    fn of_expert(&self, layer: usize, expert: ExpertId) -> &[RankId] {
        &self.ranks[layer * self.experts + expert.index()]
    }

    fn commit(&mut self, step: &Step) {
        let rank = RankId(step.rank as u16);
        if let Some(expert) = step.remove {
            self.ranks[step.layer * self.experts + expert.index()].retain(|other| *other != rank);
            self.copies[step.rank] -= 1;
        }
        if let Some(expert) = step.add {
            let ranks = &mut self.ranks[step.layer * self.experts + expert.index()];
            let place = ranks.partition_point(|other| *other < rank);
            ranks.insert(place, rank);
            self.copies[step.rank] += 1;
        }
    }
}

/// Plans the stages from `live` to `next`, two maps of one shape.
pub(crate) fn schedule(
    live: &ExpertMap,
    next: &ExpertMap,
    links: &Links,
    policy: &Policy,
    expert_bytes: u64,
) -> Schedule {
    let steps = differences(live, next);
    let ranks = live.ranks();
    // [layer * experts + expert] → steps that add it.
    let experts = usize::from(live.experts);
    let mut adds: Vec<Vec<usize>> = vec![Vec::new(); live.layers() * experts];
    for (index, step) in steps.iter().enumerate() {
        if let Some(expert) = step.add {
            adds[step.layer * experts + expert.index()].push(index);
        }
    }
    let mut done = vec![false; steps.len()];
    let mut holders = Holders::of(live);
    let mut sent = vec![0_u64; ranks];
    let mut schedule = Schedule::default();
    let mut first = 0;
    while first < steps.len() {
        let limits = Limits {
            per_rank: u64::from(policy.memory.staging_slots.max(1)),
            total: policy.moves.operations_per_stage_max.max(1) as usize,
        };
        let open = Open { steps: &steps, adds: &adds, done: &done, holders: &holders, links };
        let mut chosen = open.pick(first, limits, ranks);
        if chosen.is_empty() {
            // Every chain left is longer than a stage allows: the first goes alone, whole.
            chosen = open.chain(&[], first);
        }
        let stage = schedule.stages.len();
        let mut arriving = vec![0; ranks];
        let mut built = Stage::default();
        for &index in &chosen {
            let step = steps[index];
            let (layer, to) = (LayerId(step.layer as u16), RankId(step.rank as u16));
            arriving[step.rank] += u64::from(step.add.is_some());
            built.drops.extend(step.remove.map(|expert| (layer, to, expert)));
            let Some(expert) = step.add else { continue };
            let held = holders.of_expert(step.layer, expert);
            if let Some(from) = links.nearest(held, to, |rank| sent[rank.index()]) {
                sent[from.index()] += 1;
                built.transfers.push(Transfer { layer, expert, from, to });
            }
        }
        built.time_s = stage_time_s(&built.transfers, links, policy, expert_bytes, ranks);
        schedule.copies.push(holders.copies.clone());
        schedule.arriving.push(arriving);
        for &index in &chosen {
            done[index] = true;
            holders.commit(&steps[index]);
        }
        for &(layer, _, expert) in &built.drops {
            if holders.of_expert(layer.index(), expert).is_empty() {
                schedule.orphans.push((stage, layer, expert));
            }
        }
        schedule.stages.push(built);
        while first < steps.len() && done[first] {
            first += 1;
        }
    }
    schedule
}

#[derive(Clone, Copy)]
struct Limits {
    per_rank: u64,
    total: usize,
}

/// What is still to be done when a stage begins.
struct Open<'a> {
    steps: &'a [Step],
    adds: &'a [Vec<usize>],
    done: &'a [bool],
    holders: &'a Holders,
    links: &'a Links,
}

impl Open<'_> {
    /// Fills one stage: chains in order, as far as they fit.
    fn pick(&self, first: usize, limits: Limits, ranks: usize) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::new();
        let mut load = vec![0_u64; ranks];
        for start in first..self.steps.len() {
            if chosen.len() >= limits.total {
                break;
            }
            let step = self.steps[start];
            let full = step.add.is_some() && load[step.rank] >= limits.per_rank;
            if self.done[start] || full || chosen.contains(&start) {
                continue;
            }
            let chain = self.chain(&chosen, start);
            let mut after = load.clone();
            for &index in &chain {
                after[self.steps[index].rank] += u64::from(self.steps[index].add.is_some());
            }
            let fits = chosen.len() + chain.len() <= limits.total
                && after.iter().all(|arrivals| *arrivals <= limits.per_rank);
            if fits {
                chosen.extend(chain);
                load = after;
            }
        }
        chosen
    }

    /// A step with all arrivals that must come with it, given what the stage already has: those
    /// without which an expert would die, and those whose only healthy source would end.
    fn chain(&self, chosen: &[usize], start: usize) -> Vec<usize> {
        let mut chain = vec![start];
        let mut next = 0;
        while next < chain.len() {
            let Step { layer, remove, .. } = self.steps[chain[next]];
            next += 1;
            let Some(expert) = remove else { continue };
            let members = || {
                let members = chosen.iter().chain(&chain).map(|index| &self.steps[*index]);
                members.filter(|step| step.layer == layer)
            };
            let comes = members().filter(|step| step.add == Some(expert)).count();
            let ending: Vec<usize> =
                members().filter(|s| s.remove == Some(expert)).map(|s| s.rank).collect();
            let held = self.holders.of_expert(layer, expert);
            let waiting: Vec<usize> = self.adds[layer * self.holders.experts + expert.index()]
                .iter()
                .copied()
                .filter(|i| !self.done[*i] && !chosen.contains(i) && !chain.contains(i))
                .collect();
            if held.len() + comes <= ending.len() {
                chain.extend(waiting.first());
            }
            if self.links.any_degraded() {
                let left: Vec<RankId> =
                    held.iter().copied().filter(|rank| !ending.contains(&rank.index())).collect();
                let barred = |held: &[RankId], to: RankId| {
                    let from = self.links.nearest(held, to, |_| 0);
                    from.is_none_or(|from| self.links.degraded(from, to).is_some())
                };
                for index in waiting {
                    let to = RankId(self.steps[index].rank as u16);
                    if !chain.contains(&index) && !barred(held, to) && barred(&left, to) {
                        chain.push(index);
                    }
                }
            }
        }
        chain
    }
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
                });
            }
        }
    }
    steps
}

/// Time of the rank whose arrivals take longest.
fn stage_time_s(
    transfers: &[Transfer],
    links: &Links,
    policy: &Policy,
    expert_bytes: u64,
    ranks: usize,
) -> f64 {
    let mut time_s = vec![0.0_f64; ranks];
    for transfer in transfers {
        let rate =
            links.gb_per_s(transfer.from, transfer.to, policy.moves.byte_rate_gb_per_s) * 1e9;
        time_s[transfer.to.index()] += expert_bytes as f64 / rate;
    }
    time_s.into_iter().fold(0.0, f64::max)
}
