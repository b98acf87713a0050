//! Descent of one layer: which change next, and what every prefix of changes is worth.

use crate::PlanError;
use crate::layer::{Change, Layer, Slots};
use crate::trial::Scratch;
use evenkeel_types::{NodeId, RankId, hash3};

/// Candidates whose split is solved exactly before one is taken.
const EXACT_TRIES: usize = 3;

/// Ranks that changes are sought for, those most steps wait for.
const GUILTY_RANKS: usize = 2;

/// Ranks that are tried before a layer is given up.
const GUILTY_RANKS_MAX: usize = 8;

/// Valuations (candidates times steps) per rank before the first that helps may end the search, and
/// in all.
const VALUED: usize = 160 * 64;
const VALUED_MAX: usize = 640 * 64;

/// A candidate whose exact gain is at least this part of its estimate is taken without trying others.
const AS_ESTIMATED: f64 = 0.9;

/// A gain below this share of the layer's time is noise.
const GAIN_SHARE_MIN: f64 = 1e-5;

/// What the search of a layer may do.
pub(crate) struct Terms<'a> {
    /// `[expert * ranks + rank]`: in the live map, so that arriving there costs nothing.
    pub(crate) at_home: &'a [bool],
    /// `[expert * ranks + rank]`: node whose degraded link bars the way.
    pub(crate) barred: &'a [Option<NodeId>],
    /// `[rank]`: empty slots that memory allows to be filled, over what the live map fills.
    pub(crate) room: &'a [u64],
    /// `[rank]`: slots that the live map fills in this layer.
    pub(crate) filled_live: &'a [usize],
    /// `[expert * ranks + rank]`: the copy has to stay.
    pub(crate) pinned: &'a [bool],
    /// `[expert * ranks + rank]`: a copy there would split its group.
    pub(crate) off_node: &'a [bool],
    /// Least gain per transfer that is worth following, µs.
    pub(crate) gain_us_min: f64,
    /// Most transfers.
    pub(crate) transfers_max: usize,
    /// Breaks ties.
    pub(crate) seed: u64,
}

/// A state on the way, with what it costs to get there from the live map.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) slots: Slots,
    /// Time of the layer, mean over steps, µs.
    pub(crate) us: f64,
    /// Pairs of (expert, rank) that the live map does not have, with the gain when they came, µs.
    pub(crate) arrivals: Vec<(u16, RankId, f64)>,
}

/// A change that was best and barred.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barred {
    pub(crate) expert: u16,
    pub(crate) to: RankId,
    pub(crate) node: NodeId,
    pub(crate) gain_us: f64,
}

/// Path of a layer's descent.
pub(crate) struct Path {
    /// From the start on; the first has no arrivals when the start is the live map.
    pub(crate) points: Vec<Point>,
    pub(crate) barred: Vec<Barred>,
}

/// Follows the best change per transfer until none is worth it. `before`: arrivals already bought.
pub(crate) fn descend(
    start: Layer<'_>,
    terms: &Terms<'_>,
    before: &[(u16, RankId, f64)],
) -> Result<Path, PlanError> {
    let ranks = start.slots.len();
    let mut here = start;
    let mut scratch = Scratch::new(ranks, here.costs.steps);
    let mut path = Path { points: Vec::new(), barred: Vec::new() };
    path.points.push(Point {
        slots: here.slots.clone(),
        us: here.worth.us,
        arrivals: arrivals(&here.slots, terms, before, 0.0),
    });
    // Each change gains at least a fixed share, so the descent ends; the limit is a guard.
    let slots: usize = here.slots.iter().map(Vec::len).sum();
    for _ in 0..2 * slots {
        let found = candidates(&here, terms, &mut scratch, &mut path.barred);
        let mut best: Option<(f64, Layer<'_>)> = None;
        for candidate in found.into_iter().take(EXACT_TRIES) {
            let next = here.apply(candidate.change)?;
            let gain = here.worth.score() - next.worth.score();
            let per_transfer = gain / candidate.transfers.max(0.25);
            let worth_it =
                gain > GAIN_SHARE_MIN * here.worth.us && per_transfer >= terms.gain_us_min;
            if worth_it && best.as_ref().is_none_or(|(most, _)| per_transfer > *most) {
                best = Some((per_transfer, next));
            }
            if per_transfer >= AS_ESTIMATED * candidate.per_transfer {
                break;
            }
        }
        let Some((_, next)) = best else { break };
        let last = path.points.last().map_or(&[][..], |point| &point.arrivals);
        let gain_us = here.worth.us - next.worth.us;
        let arrivals = arrivals(&next.slots, terms, last, gain_us);
        if arrivals.len() > terms.transfers_max {
            break;
        }
        path.points.push(Point { slots: next.slots.clone(), us: next.worth.us, arrivals });
        here = next;
    }
    Ok(path)
}

/// Pairs that are not at home, with the gain at which each came; new ones share `gain_us`.
pub(crate) fn arrivals(
    slots: &Slots,
    terms: &Terms<'_>,
    before: &[(u16, RankId, f64)],
    gain_us: f64,
) -> Vec<(u16, RankId, f64)> {
    let ranks = slots.len();
    let mut list = Vec::new();
    for (rank, slots) in slots.iter().enumerate() {
        for expert in slots.iter().flatten() {
            if !terms.at_home[usize::from(*expert) * ranks + rank] {
                let rank = RankId(rank as u16);
                let known = before.iter().find(|(e, r, _)| (e, r) == (expert, &rank));
                list.push((*expert, rank, known.map_or(f64::NAN, |known| known.2)));
            }
        }
    }
    let new = list.iter().filter(|entry| entry.2.is_nan()).count();
    for entry in &mut list {
        if entry.2.is_nan() {
            entry.2 = gain_us / new as f64;
        }
    }
    list
}

struct Candidate {
    change: Change,
    transfers: f64,
    per_transfer: f64,
}

/// Changes that relieve the ranks most waited for, by estimated gain per transfer.
fn candidates(
    layer: &Layer<'_>,
    terms: &Terms<'_>,
    scratch: &mut Scratch,
    barred: &mut Vec<Barred>,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut stopped: Option<Barred> = None;
    let before = layer.worth.score();
    scratch.next_state();
    for (place, hot) in layer.guilty().into_iter().take(GUILTY_RANKS_MAX).enumerate() {
        // Ranks that fewer steps wait for are looked at only when nothing helps the first ones,
        // and candidates that promise less only when none that promises more keeps its promise.
        if place >= GUILTY_RANKS && !found.is_empty() {
            break;
        }
        for (index, prospect) in prospects(layer, terms, hot).into_iter().enumerate() {
            if index * layer.costs.steps >= VALUED && !found.is_empty() {
                break;
            }
            let Prospect { change, transfers, bar, .. } = prospect;
            let after = layer.after(change, scratch);
            let gain = before - after.score();
            let per_transfer = gain / transfers.max(0.25);
            if gain <= GAIN_SHARE_MIN * layer.worth.us || per_transfer < terms.gain_us_min {
                continue;
            }
            if let Some((expert, to, node)) = bar {
                let gain_us = layer.worth.us - after.us;
                if gain_us > 0.0 && stopped.is_none_or(|most| gain_us > most.gain_us) {
                    stopped = Some(Barred { expert, to, node, gain_us });
                }
                continue;
            }
            found.push(Candidate { change, transfers, per_transfer });
        }
    }
    let tie = |change: &Change| {
        let (a, b) = match *change {
            Change::Copy { expert, to, slot } => (u64::from(expert), (to, slot)),
            Change::Shift { from, from_slot, to, slot }
            | Change::Swap { from, from_slot, to, slot } => {
                (u64::from(from) << 16 | u64::from(from_slot), (to, slot))
            }
        };
        hash3(terms.seed, a, u64::from(b.0) << 16 | u64::from(b.1))
    };
    found.sort_by(|a, b| {
        b.per_transfer
            .total_cmp(&a.per_transfer)
            .then_with(|| tie(&a.change).cmp(&tie(&b.change)))
            .then_with(|| a.change.cmp(&b.change))
    });
    if let Some(stopped) = stopped {
        let known = barred.iter().any(|b| b.expert == stopped.expert && b.to == stopped.to);
        if !known {
            barred.push(stopped);
        }
    }
    found
}

/// A change with what its mean over steps promises.
struct Prospect {
    change: Change,
    transfers: f64,
    bar: Option<(u16, RankId, NodeId)>,
    per_transfer: f64,
}

/// Changes that take work off a rank and could help: by the means over steps the slower of the two
/// ranks concerned becomes faster. The most promising per transfer first.
fn prospects(layer: &Layer<'_>, terms: &Terms<'_>, hot: usize) -> Vec<Prospect> {
    let mut list = Vec::new();
    let mut add = |change: Change, left: f64, arrived: f64| {
        // A little slack: what helps in most steps need not help on the mean.
        let promise = layer.mean[hot] * 1.02 - left.max(arrived);
        if promise <= 0.0 {
            return;
        }
        if let Some((transfers, bar)) = transfers(layer, terms, change) {
            let per_transfer = promise / transfers.max(0.25);
            list.push(Prospect { change, transfers, bar, per_transfer });
        }
    };
    let (from, now) = (hot as u16, layer.mean[hot]);
    let speed = |rank: usize| layer.costs.inverse_speed[rank];
    for (from_slot, expert) in layer.slots[hot].iter().enumerate() {
        let Some(expert) = *expert else { continue };
        let (from_slot, heavy) = (from_slot as u16, layer.cell_mean(expert, hot));
        if heavy <= 0.0 {
            continue;
        }
        let pinned =
            |expert: u16, rank: usize| terms.pinned[usize::from(expert) * layer.slots.len() + rank];
        let stays = pinned(expert, hot);
        for to in (0..layer.slots.len()).filter(|to| *to != hot && !layer.holds(expert, *to)) {
            let there = layer.mean[to];
            // Work that a copy would take over from a rank's present mean.
            let part = heavy * layer.part_to_give(expert);
            let given = |there: f64| ((now - there) / (speed(hot) + speed(to))).min(part);
            for (slot, other) in layer.slots[to].iter().enumerate() {
                let Some(light) = *other else {
                    if fills(layer, terms, to) < terms.room[to] {
                        let (to_id, slot) = (to as u16, slot as u16);
                        let moved = given(there);
                        let copy = Change::Copy { expert, to: to_id, slot };
                        add(copy, now - moved * speed(hot), there + moved * speed(to));
                        let shift = Change::Shift { from, from_slot, to: to_id, slot };
                        if !stays {
                            add(shift, now - heavy * speed(hot), there + heavy * speed(to));
                        }
                    }
                    // Empty slots of a rank are alike.
                    break;
                };
                if pinned(light, to) {
                    continue;
                }
                let less = layer.cell_mean(light, to);
                if layer.hosts[usize::from(light)].len() > 1 {
                    let there = there - less * speed(to);
                    let moved = given(there);
                    let copy = Change::Copy { expert, to: to as u16, slot: slot as u16 };
                    add(copy, now - moved * speed(hot), there + moved * speed(to));
                }
                if less < heavy && !stays && !layer.holds(light, hot) {
                    let (to_id, slot) = (to as u16, slot as u16);
                    let swap = Change::Swap { from, from_slot, to: to_id, slot };
                    let moved = heavy - less;
                    add(swap, now - moved * speed(hot), there + moved * speed(to));
                }
            }
        }
    }
    list.sort_by(|a, b| {
        b.per_transfer.total_cmp(&a.per_transfer).then_with(|| a.change.cmp(&b.change))
    });
    list.truncate(VALUED_MAX / layer.costs.steps + 1);
    list
}

/// Slots of a rank filled beyond what the live map fills in this layer.
fn fills(layer: &Layer<'_>, terms: &Terms<'_>, rank: usize) -> u64 {
    let filled = layer.slots[rank].iter().flatten().count();
    filled.saturating_sub(terms.filled_live[rank]) as u64
}

/// Transfers that a change causes, and what bars it; `None` where it is not allowed at all.
#[expect(clippy::type_complexity, reason = "the triple is taken apart on the next line")]
fn transfers(
    layer: &Layer<'_>,
    terms: &Terms<'_>,
    change: Change,
) -> Option<(f64, Option<(u16, RankId, NodeId)>)> {
    let ranks = layer.slots.len();
    let content = |rank: u16, slot: u16| layer.slots[usize::from(rank)][usize::from(slot)];
    let mut count = 0.0;
    let mut bar = None;
    let mut allowed = true;
    let mut arrive = |expert: u16, to: u16| {
        let index = usize::from(expert) * ranks + usize::from(to);
        allowed &= !terms.off_node[index];
        if !terms.at_home[index] {
            count += 1.0;
            if let Some(node) = terms.barred[index] {
                bar = Some((expert, RankId(to), node));
            }
        }
    };
    match change {
        Change::Copy { expert, to, .. } => arrive(expert, to),
        Change::Shift { from, from_slot, to, .. } => arrive(content(from, from_slot)?, to),
        Change::Swap { from, from_slot, to, slot } => {
            arrive(content(from, from_slot)?, to);
            arrive(content(to, slot)?, from);
        }
    }
    allowed.then_some((count, bar))
}
