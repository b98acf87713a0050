//! The plan for the loss of one domain.

use super::rebalance::rebalance;
use super::state::{Place, State};
use super::{Group, SurviveInput};
use crate::links::Links;
use crate::schedule::schedule;
use crate::{PlanError, Stage};
use evenkeel_types::{
    Domain, DomainKind, ExpertId, ExpertMap, LayerId, MemoryPolicy, NodeId, RankId, SlotId,
};
use serde::Serialize;

/// A rank takes this much more than its equal part of the orphans, at most: the fullest rank
/// decides when service resumes, and the rest of the choice belongs to balance.
const PART_MORE: f64 = 1.25;

/// Where an expert is loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The memory of the receiving rank's host.
    Host(NodeId),
    /// The disk of the receiving rank's node.
    Disk(NodeId),
}

/// One orphan that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// From where.
    pub from: Source,
    /// Rank that gets it.
    pub to: RankId,
    /// Slot there.
    pub slot: SlotId,
    /// The copy that ends for it, which has siblings elsewhere; `None`: the slot was empty.
    pub over: Option<ExpertId>,
    /// When its first byte leaves, s after the loss.
    pub start_s: f64,
    /// When it serves.
    pub end_s: f64,
}

/// What to do when a domain is lost, worked out beforehand.
#[derive(Clone, Debug, Serialize)]
pub struct RestorePlan {
    /// What is lost.
    pub domain: Domain,
    /// Experts that lived only there.
    pub orphans: Vec<(LayerId, ExpertId)>,
    /// Those of them for which no slot or no memory is left.
    pub unrestored: Vec<(LayerId, ExpertId)>,
    /// First every orphan, one copy each, the hottest first.
    pub loads: Vec<Load>,
    /// When the last orphan serves, s after the loss.
    pub resume_s: f64,
    /// Then copies between the ranks that are left, while serving; times count from `resume_s`.
    pub stages: Vec<Stage>,
    /// When the last of them has arrived, s after the loss.
    pub done_s: f64,
    /// Bytes from ranks that are left,
    pub bytes_from_peers: u64,
    /// from the memory of hosts,
    pub bytes_from_hosts: u64,
    /// and from disks.
    pub bytes_from_disks: u64,
    /// `[rank]`: largest use of memory by weights at any moment, staging included; 0 where lost.
    pub memory_peak_bytes: Vec<u64>,
    /// `[layer]`: mean ÷ slowest rank of those left, once every orphan serves, under a split within
    /// a thousandth of the exact one and never above it; 0 where an expert stays lost.
    pub balancedness_resumed: Vec<f64>,
    /// The same at the end.
    pub balancedness: Vec<f64>,
    /// Changes of slots after `loads`: (layer, rank, slot, expert).
    #[serde(skip)]
    pub(super) changes: Vec<(LayerId, RankId, SlotId, ExpertId)>,
}

impl RestorePlan {
    /// The map once every orphan serves: what remains of `live`, and the loads.
    #[must_use]
    pub fn resumed(&self, live: &ExpertMap) -> ExpertMap {
        let loads = self.loads.iter().map(|load| (load.layer, load.to, load.slot, load.expert));
        self.child(live, live, loads)
    }

    /// The map at the end, one version on from [`RestorePlan::resumed`].
    #[must_use]
    pub fn rebalanced(&self, live: &ExpertMap) -> ExpertMap {
        let resumed = self.resumed(live);
        self.child(&resumed, &resumed, self.changes.iter().copied())
    }

    fn child(
        &self,
        of: &ExpertMap,
        parent: &ExpertMap,
        changes: impl Iterator<Item = (LayerId, RankId, SlotId, ExpertId)>,
    ) -> ExpertMap {
        let mut map = of.without(&self.domain.ranks);
        let mut changed = Vec::new();
        for (layer, rank, slot, expert) in changes {
            map.slots[layer.index()][rank.index()][slot.index()] = Some(expert);
            changed.push((layer, rank, slot));
        }
        if !map.digests.is_empty() {
            changed.sort_unstable();
            map.digests.retain(|entry| {
                changed.binary_search(&(entry.layer, entry.rank, entry.slot)).is_err()
            });
        }
        (map.parent, map.version) = (Some(parent.version), parent.version + 1);
        map.provenance.made_by = format!("restore after the loss of {}", self.domain);
        map
    }
}

/// The first part of a plan: every orphan one copy.
pub(super) struct First<'a> {
    pub(super) orphans: Vec<(LayerId, ExpertId)>,
    pub(super) unrestored: Vec<(LayerId, ExpertId)>,
    pub(super) loads: Vec<Load>,
    /// From hosts, and from disks.
    pub(super) times_s: (f64, f64),
    states: Vec<State<'a>>,
}

/// Works out plans for one map.
pub(super) struct Restorer<'a> {
    pub(super) group: Group<'a>,
    links: Links,
    /// Pinned copies.
    pinned: Vec<(LayerId, u16, u16)>,
}

impl<'a> Restorer<'a> {
    pub(super) fn new(input: &SurviveInput<'a>) -> Result<Self, PlanError> {
        let pins = &input.policy.plan.pinned;
        Ok(Self {
            group: Group::new(input)?,
            links: Links::new(input.topology),
            pinned: pins.iter().map(|pin| (pin.layer, pin.expert.0, pin.rank.0)).collect(),
        })
    }

    pub(super) fn domains(&self, kind: DomainKind) -> Vec<Domain> {
        self.group.domains(kind)
    }

    fn is_pinned(&self, layer: usize, expert: u16, rank: u16) -> bool {
        self.pinned.contains(&(LayerId(layer as u16), expert, rank))
    }

    /// Every orphan gets one copy: over an empty slot that memory holds or over a copy with
    /// siblings, where it leaves the ranks most even; no rank more than its part. Where memory ends
    /// before all are back, empty slots are kept for layers without copies to overwrite.
    pub(super) fn first_loads(&self, lost: &Domain) -> First<'_> {
        let first = self.loads(lost, false);
        if first.unrestored.is_empty() {
            return first;
        }
        let sparing = self.loads(lost, true);
        if sparing.unrestored.len() < first.unrestored.len() { sparing } else { first }
    }

    fn loads(&self, lost: &Domain, sparing: bool) -> First<'_> {
        let group = &self.group;
        let alive = group.alive_without(&lost.ranks);
        let mut states: Vec<State<'_>> =
            (0..group.map.layers()).map(|layer| group.state(layer, &alive)).collect();
        let orphans: Vec<(LayerId, ExpertId)> =
            states.iter().enumerate().flat_map(|(layer, state)| state.orphans(layer)).collect();
        let mut order: Vec<(LayerId, ExpertId)> = orphans.clone();
        let rows = |(layer, expert): &(LayerId, ExpertId)| {
            group.layer_loads(layer.index())[expert.index()]
        };
        order.sort_by(|a, b| rows(b).cmp(&rows(a)).then(a.cmp(b)));
        let left = alive.iter().filter(|alive| **alive).count().max(1);
        let part = (orphans.len() as f64 / left as f64 * PART_MORE).ceil() as u32;
        let mut desk =
            Desk { room: group.room.clone(), taken: vec![0; alive.len()], part, sparing };
        let (mut loads, mut unrestored) = (Vec::with_capacity(order.len()), Vec::new());
        for (layer, expert) in order {
            let state = &mut states[layer.index()];
            let Some(place) = self.place(state, layer, expert, &desk) else {
                unrestored.push((layer, expert));
                continue;
            };
            let over = state.at(place).map(ExpertId);
            desk.room[usize::from(place.0)] -= u64::from(over.is_none());
            desk.taken[usize::from(place.0)] += 1;
            state.put(expert.0, place);
            let (to, slot) = (RankId(place.0), SlotId(place.1));
            let node = self.links.node[to.index()];
            let restore = &group.input.policy.restore;
            let from =
                if restore.host_holds_experts { Source::Host(node) } else { Source::Disk(node) };
            let (start_s, end_s) = (0.0, 0.0);
            loads.push(Load { layer, expert, from, to, slot, over, start_s, end_s });
        }
        unrestored.sort_unstable();
        let times_s = self.time(&mut loads);
        First { orphans, unrestored, loads, times_s, states }
    }

    /// Where an orphan goes. Ranks that have had their part come last; groups of experts stay on
    /// their node where the policy says so and it is there.
    fn place(
        &self,
        state: &State<'_>,
        layer: LayerId,
        expert: ExpertId,
        desk: &Desk,
    ) -> Option<Place> {
        let policy = &self.group.input.policy.plan;
        let home = self.home(state, expert);
        let mut best: Option<((bool, bool, bool), f64, Place)> = None;
        for rank in state.ranks() {
            let full = desk.taken[usize::from(rank)] >= desk.part;
            let away = home.is_some_and(|home| home != self.links.node[usize::from(rank)]);
            for (slot, held) in state.slots[usize::from(rank)].iter().enumerate() {
                let place = (rank, slot as u16);
                let free = match held {
                    None => desk.room[usize::from(rank)] > 0,
                    Some(held) => {
                        state.copies(*held) > 1 && !self.is_pinned(layer.index(), *held, rank)
                    }
                };
                if !free {
                    continue;
                }
                let uneven = (desk.sparing || policy.same_slots_per_layer) && held.is_none();
                let class = (uneven, away, full);
                let worth = state.unevenness(expert.0, place);
                let better = best.as_ref().is_none_or(|(other, value, _)| {
                    class.cmp(other).then(worth.total_cmp(value)).is_lt()
                });
                if better {
                    best = Some((class, worth, place));
                }
            }
        }
        best.map(|(_, _, place)| place)
    }

    /// The node of an expert's group, where groups stay whole and the node is there.
    fn home(&self, state: &State<'_>, expert: ExpertId) -> Option<NodeId> {
        let input = &self.group.input;
        let groups = input.shape.groups.filter(|_| input.policy.plan.groups_on_nodes)?;
        let per_group = (state.hosts.len() / usize::from(groups.groups.max(1))).max(1);
        let first = expert.index() / per_group * per_group;
        let mates = &state.hosts[first..(first + per_group).min(state.hosts.len())];
        let host = mates.iter().flatten().next()?;
        Some(self.links.node[usize::from(*host)])
    }

    /// Gives every load its times, and returns when the last ends: from hosts, and from disks, s.
    fn time(&self, loads: &mut [Load]) -> (f64, f64) {
        let input = &self.group.input;
        let bytes = input.shape.expert_bytes() as f64 / 1e9;
        let restore = &input.policy.restore;
        let (host_s, disk_s) = (bytes / restore.host_gb_per_s, bytes / restore.disk_gb_per_s);
        let mut by_rank = vec![0.0_f64; self.group.alive.len()];
        let mut by_node = vec![0.0_f64; self.links.rate_share.len()];
        let (mut last_host_s, mut last_disk_s) = (0.0_f64, 0.0_f64);
        for load in loads {
            let rank = &mut by_rank[load.to.index()];
            let node = &mut by_node[self.links.node[load.to.index()].index()];
            (load.start_s, load.end_s) = match load.from {
                Source::Host(_) => (*rank, *rank + host_s),
                Source::Disk(_) => (*node, *node + disk_s),
            };
            *rank += host_s;
            *node += disk_s;
            last_host_s = last_host_s.max(*rank);
            last_disk_s = last_disk_s.max(*node);
        }
        (last_host_s, last_disk_s)
    }

    /// The whole plan for the loss of a domain.
    pub(super) fn plan(&self, domain: Domain) -> RestorePlan {
        let group = &self.group;
        let input = &group.input;
        let First { orphans, unrestored, loads, times_s, states } = self.first_loads(&domain);
        let on_hosts = input.policy.restore.host_holds_experts;
        let mut changes = Vec::new();
        let (mut resumed, mut balanced) = (Vec::new(), Vec::new());
        let mut transfers_left = input.policy.moves.moves_max as usize;
        for (layer, mut state) in states.into_iter().enumerate() {
            let before = state.levelled();
            resumed.push(before);
            if before >= input.policy.plan.balancedness_enough || before <= 0.0 {
                balanced.push(before);
                continue;
            }
            let (slots, was) = (state.slots.clone(), changes.len());
            let enough = input.policy.plan.balancedness_enough;
            let fixed = |(rank, slot): Place| {
                let held = slots[usize::from(rank)][usize::from(slot)];
                held.is_some_and(|expert| self.is_pinned(layer, expert, rank))
            };
            let spent = rebalance(&mut state, enough, transfers_left, fixed);
            let after = if spent > 0 { state.levelled() } else { before };
            if after <= before {
                // A levelled split had no use for it.
                balanced.push(before);
                continue;
            }
            transfers_left -= spent;
            for (rank, (old, new)) in slots.iter().zip(&state.slots).enumerate() {
                for (slot, (old, new)) in old.iter().zip(new).enumerate() {
                    if let (true, Some(expert)) = (old != new, new) {
                        let place = (RankId(rank as u16), SlotId(slot as u16));
                        changes.push((LayerId(layer as u16), place.0, place.1, ExpertId(*expert)));
                    }
                }
            }
            debug_assert!(changes.len() > was, "transfers without a change of slots");
            balanced.push(after);
        }
        let from_first = loads.len() as u64 * input.shape.expert_bytes();
        let mut plan = RestorePlan {
            domain,
            orphans,
            unrestored,
            loads,
            resume_s: if on_hosts { times_s.0 } else { times_s.1 },
            stages: Vec::new(),
            done_s: 0.0,
            bytes_from_peers: 0,
            bytes_from_hosts: if on_hosts { from_first } else { 0 },
            bytes_from_disks: if on_hosts { 0 } else { from_first },
            memory_peak_bytes: Vec::new(),
            balancedness_resumed: resumed,
            balancedness: balanced,
            changes,
        };
        self.move_copies(&mut plan);
        plan
    }

    /// Schedules the second part, and counts bytes, time and memory.
    fn move_copies(&self, plan: &mut RestorePlan) {
        let input = &self.group.input;
        let bytes = input.shape.expert_bytes();
        let (before, after) = (plan.resumed(&self.group.map), plan.rebalanced(&self.group.map));
        let way = schedule(&before, &after, &self.links, input.policy, bytes);
        let moved: usize = way.stages.iter().map(|stage| stage.transfers.len()).sum();
        plan.bytes_from_peers = moved as u64 * bytes;
        plan.done_s = plan.resume_s + way.stages.iter().map(|stage| stage.time_s).sum::<f64>();
        let resident = MemoryPolicy::resident_bytes(input.shape);
        let staging = u64::from(input.policy.memory.staging_slots);
        let mut most: Vec<u64> = before.copies_per_rank().iter().map(|c| c + staging).collect();
        for (copies, arriving) in way.copies.iter().zip(&way.arriving) {
            for (rank, most) in most.iter_mut().enumerate() {
                *most = (*most).max(copies[rank] + arriving[rank].max(staging));
            }
        }
        let alive = self.group.alive_without(&plan.domain.ranks);
        let peak = |(most, alive): (u64, bool)| if alive { resident + most * bytes } else { 0 };
        plan.memory_peak_bytes = most.into_iter().zip(alive).map(peak).collect();
        plan.stages = way.stages;
    }
}

/// What restores have taken so far.
struct Desk {
    /// `[rank]`: copies that memory still holds.
    room: Vec<u64>,
    /// `[rank]`: orphans that it loads.
    taken: Vec<u32>,
    /// Orphans that every rank may load before any takes more.
    part: u32,
    /// Empty slots come last.
    sparing: bool,
}
