//! What may go into the next stage?

use super::Step;
use crate::links::Links;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId};
use std::collections::BTreeMap;

/// Changes looked at for one stage. A stage is full after far fewer, unless what comes first is
/// stuck; then it is opened rather than put off to the end.
const LOOKED_AT_MAX: usize = 4096;

/// Bounds of a stage.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Arrivals on a rank: its staging slots.
    pub(super) per_rank: u32,
    /// Changes.
    pub(super) total: usize,
    /// Transfers from one rank to another, and out of or into one node.
    pub(super) per_link: u32,
}

/// Who holds what, as stages commit.
pub(super) struct Holders {
    experts: usize,
    /// `[layer * experts + expert]`.
    ranks: Vec<Vec<RankId>>,
    pub(super) copies: Vec<u64>,
}

impl Holders {
    fn of(map: &ExpertMap) -> Self {
        let mut ranks = Vec::new();
        for layer in 0..map.layers() {
            ranks.extend(map.hosts(LayerId(layer as u16)));
        }
        Self { experts: usize::from(map.experts), ranks, copies: map.copies_per_rank() }
    }

    pub(super) fn of_expert(&self, layer: usize, expert: ExpertId) -> &[RankId] {
        &self.ranks[layer * self.experts + expert.index()]
    }

    fn add(&mut self, layer: usize, rank: usize, expert: ExpertId) {
        let ranks = &mut self.ranks[layer * self.experts + expert.index()];
        let place = ranks.partition_point(|other| other.index() < rank);
        ranks.insert(place, RankId(rank as u16));
        self.copies[rank] += 1;
    }

    fn remove(&mut self, layer: usize, rank: usize, expert: ExpertId) {
        self.ranks[layer * self.experts + expert.index()].retain(|other| other.index() != rank);
        self.copies[rank] -= 1;
    }
}

/// A stage's changes, as (step, whether its end is put off), and where each arrival comes from.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) steps: Vec<(usize, bool)>,
    pub(super) sources: Vec<Option<RankId>>,
}

/// What a stage has taken of its bounds.
struct Taken {
    /// `[rank]`: arrivals.
    into: Vec<u32>,
    pairs: BTreeMap<(RankId, RankId), u32>,
    /// `[node]`: transfers out of it and into it.
    out_of_node: Vec<u32>,
    into_node: Vec<u32>,
}

/// What is still to be done.
pub(super) struct Open<'a> {
    pub(super) steps: Vec<Step>,
    pub(super) holders: Holders,
    /// `[layer * experts + expert]` → steps that add it.
    adds: Vec<Vec<usize>>,
    done: Vec<bool>,
    first: usize,
    /// `[rank]`: copies that every stage so far has sent.
    sent: Vec<u64>,
    /// `[rank]`: staging slots that hold a copy whose place is still taken.
    pub(super) parked: Vec<u32>,
    links: &'a Links,
    limits: Limits,
}

impl<'a> Open<'a> {
    pub(super) fn new(
        live: &ExpertMap,
        steps: Vec<Step>,
        links: &'a Links,
        limits: Limits,
    ) -> Self {
        let experts = usize::from(live.experts);
        let mut adds: Vec<Vec<usize>> = vec![Vec::new(); live.layers() * experts];
        for (index, step) in steps.iter().enumerate() {
            if let Some(expert) = step.add {
                adds[step.layer * experts + expert.index()].push(index);
            }
        }
        let ranks = live.ranks();
        Self {
            done: vec![false; steps.len()],
            steps,
            holders: Holders::of(live),
            adds,
            first: 0,
            sent: vec![0; ranks],
            parked: vec![0; ranks],
            links,
            limits,
        }
    }

    /// Whether anything is left; forgets what is done at the front.
    pub(super) fn any(&mut self) -> bool {
        while self.first < self.steps.len() && self.done[self.first] {
            self.first += 1;
        }
        self.first < self.steps.len()
    }

    /// The next stage: chains in order as far as they fit; else a ring opened; else a ring whole.
    pub(super) fn choose(&mut self) -> Chosen {
        let mut chosen = self.pick();
        if chosen.steps.is_empty() && self.pair_anew() {
            chosen = self.pick();
        }
        if !chosen.steps.is_empty() {
            return chosen;
        }
        let ring = self.chain(&[], self.first, usize::MAX).unwrap_or_default();
        if let Some(opened) = self.opened(&ring) {
            return opened;
        }
        // No bound can be kept: one stage, whole, sources by nearness alone.
        let sources = ring.iter().map(|index| self.source(*index, None)).collect();
        Chosen { steps: ring.into_iter().map(|index| (index, false)).collect(), sources }
    }

    /// Commits a stage.
    pub(super) fn commit(&mut self, steps: &[(usize, bool)]) {
        for &(index, parks) in steps {
            let step = self.steps[index];
            if let Some(expert) = step.remove
                && !parks
            {
                self.holders.remove(step.layer, step.rank, expert);
                self.parked[step.rank] -= u32::from(step.parked);
            }
            if let Some(expert) = step.add {
                self.holders.add(step.layer, step.rank, expert);
                let adds = &mut self.adds[step.layer * self.holders.experts + expert.index()];
                adds.retain(|other| *other != index);
            }
            if parks {
                self.parked[step.rank] += 1;
                (self.steps[index].add, self.steps[index].parked) = (None, true);
            }
            self.done[index] = !parks;
        }
    }

    /// Pairs the arrivals and ends of a rank anew, so that ends that may happen now go with a copy
    /// that is parked, then with arrivals. Which slot an arrival takes is free, and a ring that has
    /// been opened can so be walked to its end: a rank that sent a copy has one end to give, and
    /// only the rank that the walk began on has none to take. Returns whether anything changed.
    fn pair_anew(&mut self) -> bool {
        let mut changed = false;
        let last = self.steps.len().min(self.first + LOOKED_AT_MAX);
        let mut from = self.first;
        while from < last {
            let Step { layer, rank, .. } = self.steps[from];
            let here = |step: &Step| (step.layer, step.rank) == (layer, rank);
            let to = from + self.steps[from..].iter().take_while(|step| here(step)).count();
            let mut open: Vec<usize> = (from..to)
                .filter(|index| !self.done[*index] && self.steps[*index].remove.is_some())
                .collect();
            open.sort_by_key(|index| {
                let Step { parked, add, .. } = self.steps[*index];
                (!parked, add.is_none())
            });
            let mut removes: Vec<_> = open.iter().map(|index| self.steps[*index].remove).collect();
            let lives_on = |expert: &Option<ExpertId>| {
                expert.is_some_and(|expert| self.holders.of_expert(layer, expert).len() > 1)
            };
            removes.sort_by_key(|expert| !lives_on(expert));
            for (index, remove) in open.into_iter().zip(removes) {
                changed |= self.steps[index].remove != remove;
                self.steps[index].remove = remove;
            }
            from = to;
        }
        changed
    }

    /// Fills one stage: chains in order, as far as they fit.
    fn pick(&mut self) -> Chosen {
        let nodes = self.links.rate_share.len();
        let mut taken = Taken {
            into: self.parked.clone(),
            pairs: BTreeMap::new(),
            out_of_node: vec![0; nodes],
            into_node: vec![0; nodes],
        };
        let mut chosen: Vec<usize> = Vec::new();
        let mut sources: Vec<Option<RankId>> = Vec::new();
        let last = self.steps.len().min(self.first + LOOKED_AT_MAX);
        for start in self.first..last {
            let left = self.limits.total - chosen.len();
            if left == 0 {
                break;
            }
            let step = self.steps[start];
            let full = step.add.is_some() && taken.into[step.rank] >= self.limits.per_rank;
            if self.done[start] || full || chosen.contains(&start) {
                continue;
            }
            let Some(chain) = self.chain(&chosen, start, left) else { continue };
            if let Some(from) = self.take(&chain, &mut taken) {
                chosen.extend(chain);
                sources.extend(from);
            }
        }
        for from in sources.iter().flatten() {
            self.sent[from.index()] += 1;
        }
        Chosen { steps: chosen.into_iter().map(|index| (index, false)).collect(), sources }
    }

    /// Takes a chain's part of a stage's bounds; takes nothing where it does not fit.
    fn take(&self, chain: &[usize], taken: &mut Taken) -> Option<Vec<Option<RankId>>> {
        let mut sources = Vec::with_capacity(chain.len());
        for (place, &index) in chain.iter().enumerate() {
            let to = self.steps[index].rank;
            let adds = self.steps[index].add.is_some();
            let from = self.source(index, Some(taken));
            // An expert without any holder has no source: the map lacks it, and nothing travels.
            let lost = adds && from.is_none() && !self.held(index).is_empty();
            if lost || (adds && taken.into[to] >= self.limits.per_rank) {
                for (&index, from) in chain[..place].iter().zip(&sources) {
                    self.count(index, *from, taken, -1);
                }
                return None;
            }
            self.count(index, from, taken, 1);
            sources.push(from);
        }
        Some(sources)
    }

    fn held(&self, index: usize) -> &[RankId] {
        let step = self.steps[index];
        step.add.map_or(&[], |expert| self.holders.of_expert(step.layer, expert))
    }

    fn count(&self, index: usize, from: Option<RankId>, taken: &mut Taken, by: i32) {
        let step = self.steps[index];
        let add = |count: &mut u32| *count = count.saturating_add_signed(by);
        if step.add.is_some() {
            add(&mut taken.into[step.rank]);
        }
        let Some(from) = from else { return };
        let to = RankId(step.rank as u16);
        add(taken.pairs.entry((from, to)).or_default());
        if !self.links.same_node(from, to) {
            add(&mut taken.out_of_node[self.links.node[from.index()].index()]);
            add(&mut taken.into_node[self.links.node[to.index()].index()]);
        }
    }

    /// The nearest holder that a step's arrival may come from, over links with room left. A
    /// degraded link is taken only where there is no other.
    fn source(&self, index: usize, taken: Option<&Taken>) -> Option<RankId> {
        let to = RankId(self.steps[index].rank as u16);
        let held = self.held(index);
        let healthy = held.iter().any(|from| self.links.degraded(*from, to).is_none());
        let limit = self.limits.per_link;
        let has_room = |from: &RankId| {
            let Some(taken) = taken else { return true };
            let node = |rank: RankId| self.links.node[rank.index()].index();
            taken.pairs.get(&(*from, to)).is_none_or(|count| *count < limit)
                && (self.links.same_node(*from, to)
                    || (taken.out_of_node[node(*from)] < limit
                        && taken.into_node[node(to)] < limit))
        };
        let from: Vec<RankId> = held
            .iter()
            .copied()
            .filter(|from| !healthy || self.links.degraded(*from, to).is_none())
            .filter(has_room)
            .collect();
        self.links.nearest(&from, to, |rank| self.sent[rank.index()])
    }

    /// Opens a ring: one arrival goes into a staging slot ahead of the end beside it. A rank that
    /// the ring visits once needs no second staging slot later.
    fn opened(&self, ring: &[usize]) -> Option<Chosen> {
        if self.parked.iter().any(|parked| *parked > 0) {
            return None;
        }
        let visits = |rank: usize| ring.iter().filter(|i| self.steps[**i].rank == rank).count();
        let candidates = ring.iter().copied().filter(|index| {
            let step = self.steps[*index];
            step.add.is_some() && step.remove.is_some()
        });
        let index = candidates.min_by_key(|index| (visits(self.steps[*index].rank), *index))?;
        let sources = vec![self.source(index, None)];
        Some(Chosen { steps: vec![(index, true)], sources })
    }

    /// A step with all arrivals that must come with it, given what the stage already has: those
    /// without which an expert would die, and those whose only healthy source would end. `None`
    /// where it is longer than `longest`.
    fn chain(&self, chosen: &[usize], start: usize, longest: usize) -> Option<Vec<usize>> {
        let mut chain = vec![start];
        let mut next = 0;
        while next < chain.len() {
            if chain.len() > longest {
                return None;
            }
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
                .filter(|i| !chosen.contains(i) && !chain.contains(i))
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
        Some(chain)
    }
}
