//! A schedule, played stage by stage from the live map.

use super::violation::{Impossible, Link, TransitionViolation};
use crate::links::RATE_SHARE_MIN;
use crate::{Stage, Transfer};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, ModelShape, Policy, Rank, RankId, Topology};
use std::collections::BTreeMap;

/// Relative slack of times.
const SLACK: f64 = 1e-9;

/// What stands where while stages go by.
struct Replay<'a> {
    shape: &'a ModelShape,
    topology: &'a Topology,
    policy: &'a Policy,
    ranks: Vec<Rank>,
    experts: usize,
    /// `[(layer * experts + expert) * ranks + rank]`: in force.
    holds: Vec<bool>,
    /// `[layer * experts + expert]`: ranks that hold it.
    copies_of: Vec<u32>,
    /// `[rank]`: filled slots.
    copies_on: Vec<u64>,
    found: Vec<TransitionViolation>,
}

pub(super) fn play(
    live: &ExpertMap,
    next: &ExpertMap,
    stages: &[Stage],
    shape: &ModelShape,
    topology: &Topology,
    policy: &Policy,
) -> Vec<TransitionViolation> {
    let mut replay = Replay::new(live, shape, topology, policy);
    let mut clock_s = 0.0_f64;
    for (index, stage) in stages.iter().enumerate() {
        replay.transfers(index, stage, clock_s);
        replay.operations(index, stage);
        replay.memory(index, stage);
        replay.commit(index, stage);
        clock_s = clock_s.max(stage.start_s + stage.time_s);
    }
    replay.arrived(next);
    let moves = stages.iter().map(|stage| stage.transfers.len()).sum();
    let moves_max = policy.moves.moves_max;
    if moves > moves_max as usize {
        replay.found.push(TransitionViolation::TooManyMoves { moves, moves_max });
    }
    replay.found
}

impl<'a> Replay<'a> {
    fn new(
        live: &ExpertMap,
        shape: &'a ModelShape,
        topology: &'a Topology,
        policy: &'a Policy,
    ) -> Self {
        let (ranks, experts) = (topology.ranks(), usize::from(shape.experts));
        let mut copies_on = live.copies_per_rank();
        let mut copies_of = vec![0; live.layers() * experts];
        let mut holds = vec![false; copies_of.len() * ranks.len()];
        for rank in ranks.iter().filter(|rank| rank.dead) {
            copies_on[rank.id.index()] = 0;
        }
        for layer in 0..live.layers() {
            for (rank, _, expert) in live.copies(LayerId(layer as u16)) {
                if !ranks[rank.index()].dead && expert.index() < experts {
                    let pair = layer * experts + expert.index();
                    copies_of[pair] += u32::from(!holds[pair * ranks.len() + rank.index()]);
                    holds[pair * ranks.len() + rank.index()] = true;
                }
            }
        }
        let found = Vec::new();
        Self { shape, topology, policy, ranks, experts, holds, copies_of, copies_on, found }
    }

    /// Index of a (layer, expert), where both and the rank exist.
    fn pair(&self, layer: LayerId, expert: ExpertId, rank: RankId) -> Option<usize> {
        let pair = layer.index() * self.experts + expert.index();
        let there = expert.index() < self.experts && rank.index() < self.ranks.len();
        (there && pair < self.copies_of.len()).then_some(pair)
    }

    fn impossible(
        &mut self,
        stage: usize,
        (layer, expert, rank): (LayerId, ExpertId, RankId),
        why: Impossible,
    ) {
        self.found.push(TransitionViolation::Impossible { stage, layer, expert, rank, why });
    }

    /// Sources, targets, links and times of a stage, against the map in force.
    fn transfers(&mut self, index: usize, stage: &Stage, clock_s: f64) {
        // [rank] → (start, end) of what it receives.
        let mut receives: BTreeMap<RankId, Vec<(f64, f64, LayerId, ExpertId)>> = BTreeMap::new();
        let mut coming: Vec<(LayerId, ExpertId, RankId)> = Vec::new();
        for transfer in &stage.transfers {
            let Transfer { layer, expert, from, to, start_s, end_s } = *transfer;
            let place = (layer, expert, to);
            let pair = self.pair(layer, expert, to).filter(|_| from.index() < self.ranks.len());
            let Some(pair) = pair else {
                self.impossible(index, place, Impossible::NoSuchPlace);
                continue;
            };
            let held = |rank: RankId| self.holds[pair * self.ranks.len() + rank.index()];
            let wrongs = [
                (self.ranks[from.index()].dead, Impossible::SourceDead),
                (!held(from), Impossible::SourceLacks),
                (self.ranks[to.index()].dead, Impossible::TargetDead),
                (held(to) || coming.contains(&place), Impossible::TargetHas),
                (!self.in_time(transfer, stage, clock_s), Impossible::Time),
            ];
            for (_, why) in wrongs.into_iter().filter(|(wrong, _)| *wrong) {
                self.impossible(index, place, why);
            }
            self.degraded(transfer);
            coming.push(place);
            receives.entry(to).or_default().push((start_s, end_s, layer, expert));
        }
        for (to, mut arrivals) in receives {
            arrivals.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            for two in arrivals.windows(2) {
                let (end_s, (start_s, _, layer, expert)) = (two[0].1, two[1]);
                if start_s < end_s - SLACK * end_s.abs() {
                    self.impossible(index, (layer, expert, to), Impossible::Overlap);
                }
            }
        }
    }

    /// Within its stage, the stage after the one before, and no faster than policy and link.
    fn in_time(&self, transfer: &Transfer, stage: &Stage, clock_s: f64) -> bool {
        let Transfer { from, to, start_s, end_s, .. } = *transfer;
        let (from, to) = (self.ranks[from.index()], self.ranks[to.index()]);
        let link_gb_per_s = self.topology.link_gb_per_s(from, to);
        let gb_per_s = link_gb_per_s.min(self.policy.moves.byte_rate_gb_per_s);
        let least_s = self.shape.expert_bytes() as f64 / 1e9 / gb_per_s;
        let slack_s = SLACK * (end_s.abs() + least_s);
        stage.start_s >= clock_s - slack_s
            && start_s >= stage.start_s - slack_s
            && end_s <= stage.start_s + stage.time_s + slack_s
            && end_s - start_s >= least_s - slack_s
    }

    fn degraded(&mut self, transfer: &Transfer) {
        let Transfer { layer, expert, from, to, .. } = *transfer;
        let nodes = [self.ranks[from.index()].node, self.ranks[to.index()].node];
        let share = |node| self.topology.outer_rate_share(node);
        let worse = if share(nodes[1]) < share(nodes[0]) { nodes[1] } else { nodes[0] };
        if nodes[0] != nodes[1] && share(worse) < RATE_SHARE_MIN {
            let (node, rate_share) = (worse, share(worse));
            let found =
                TransitionViolation::DegradedLink { layer, expert, from, to, node, rate_share };
            self.found.push(found);
        }
    }

    /// Transfers of a stage, in all and over each link.
    fn operations(&mut self, stage: usize, built: &Stage) {
        let mut over: BTreeMap<Option<Link>, usize> = BTreeMap::new();
        for Transfer { from, to, .. } in &built.transfers {
            *over.entry(None).or_default() += 1;
            *over.entry(Some(Link::Pair { from: *from, to: *to })).or_default() += 1;
            let node = |rank: &RankId| self.ranks.get(rank.index()).map(|rank| rank.node);
            if let (Some(out), Some(into)) = (node(from), node(to))
                && out != into
            {
                *over.entry(Some(Link::OutOf { node: out })).or_default() += 1;
                *over.entry(Some(Link::Into { node: into })).or_default() += 1;
            }
        }
        let moves = &self.policy.moves;
        for (link, operations) in over {
            let operations_max = match link {
                None => moves.operations_per_stage_max.max(1),
                Some(_) => moves.operations_per_link_max.max(1),
            };
            if operations > operations_max as usize {
                let found =
                    TransitionViolation::Operations { stage, link, operations, operations_max };
                self.found.push(found);
            }
        }
    }

    /// Copies in force and in flight together need no more than the staging slots beside a map.
    fn memory(&mut self, stage: usize, built: &Stage) {
        let mut arriving = vec![0_u64; self.ranks.len()];
        for transfer in &built.transfers {
            if let Some(count) = arriving.get_mut(transfer.to.index()) {
                *count += 1;
            }
        }
        let memory = &self.policy.memory;
        let staging = u64::from(memory.staging_slots);
        for (rank, arriving) in self.ranks.iter().zip(arriving).filter(|(_, count)| *count > 0) {
            let copies = self.copies_on[rank.id.index()];
            let held = (copies + arriving).saturating_sub(staging);
            let floor = (rank.hbm_bytes as f64 * memory.kv_floor_share) as i64;
            let left = memory.kv_bytes(self.shape, rank.hbm_bytes, held);
            if left < floor {
                let (rank, missing_bytes) = (rank.id, (floor - left) as u64);
                let found = TransitionViolation::StageMemory {
                    stage,
                    rank,
                    copies,
                    arriving,
                    missing_bytes,
                };
                self.found.push(found);
            }
        }
    }

    /// Ends and arrivals take effect; whoever ends must not have been the last.
    fn commit(&mut self, index: usize, stage: &Stage) {
        for &(layer, rank, expert) in &stage.drops {
            let held = self.pair(layer, expert, rank).map(|pair| (pair, self.cell(pair, rank)));
            match held {
                Some((pair, cell)) if self.holds[cell] => {
                    self.holds[cell] = false;
                    self.copies_of[pair] -= 1;
                    self.copies_on[rank.index()] = self.copies_on[rank.index()].saturating_sub(1);
                }
                _ => self.impossible(index, (layer, expert, rank), Impossible::NothingToEnd),
            }
        }
        for &Transfer { layer, expert, to, .. } in &stage.transfers {
            let Some(pair) = self.pair(layer, expert, to) else { continue };
            let cell = self.cell(pair, to);
            if !self.holds[cell] {
                self.holds[cell] = true;
                self.copies_of[pair] += 1;
                self.copies_on[to.index()] += 1;
            }
        }
        for &(layer, rank, expert) in &stage.drops {
            if self.pair(layer, expert, rank).is_some_and(|pair| self.copies_of[pair] == 0) {
                self.found.push(TransitionViolation::Orphan { stage: index, layer, expert });
            }
        }
    }

    fn cell(&self, pair: usize, rank: RankId) -> usize {
        pair * self.ranks.len() + rank.index()
    }

    /// After the last stage everything is where the new map has it, and nothing else is.
    fn arrived(&mut self, next: &ExpertMap) {
        let mut wants = vec![false; self.holds.len()];
        for layer in 0..next.layers() {
            for (rank, _, expert) in next.copies(LayerId(layer as u16)) {
                if let Some(pair) = self.pair(LayerId(layer as u16), expert, rank) {
                    let cell = self.cell(pair, rank);
                    wants[cell] = true;
                }
            }
        }
        for (cell, (holds, wanted)) in self.holds.iter().zip(&wants).enumerate() {
            if holds != wanted {
                let (pair, rank) = (cell / self.ranks.len(), cell % self.ranks.len());
                self.found.push(TransitionViolation::Unfinished {
                    layer: LayerId((pair / self.experts) as u16),
                    expert: ExpertId((pair % self.experts) as u16),
                    rank: RankId(rank as u16),
                    wanted: *wanted,
                });
            }
        }
    }
}
