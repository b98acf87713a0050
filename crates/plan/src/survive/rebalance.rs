//! After every expert lives again: a few copies travel between the ranks that are left.

use super::state::{Place, State};

/// A change that relieves the slowest rank.
#[derive(Clone, Copy)]
enum Relief {
    /// Two copies change places: two transfers.
    Swap(Place, Place),
    /// A further copy of one of its experts, over a copy that has siblings: one transfer.
    Copy(u16, Place),
}

/// Changes until the layer is as balanced as `enough` says (mean ÷ slowest rank, levelled split),
/// none helps, or `transfers_max` are spent. `fixed(place)`: a copy that must stay. Returns the
/// number of transfers.
pub(super) fn rebalance(
    state: &mut State<'_>,
    enough: f64,
    transfers_max: usize,
    fixed: impl Fn(Place) -> bool,
) -> usize {
    let mut spent = 0;
    while spent < transfers_max && state.levelled() < enough {
        let Some((relief, cost)) = best(state, &fixed) else { break };
        if spent + cost > transfers_max {
            break;
        }
        match relief {
            Relief::Swap(a, b) => state.swap(a, b),
            Relief::Copy(expert, place) => state.put(expert, place),
        }
        spent += cost;
    }
    spent
}

/// The change after which the slowest of the ranks concerned is fastest, per transfer, under an
/// even split.
fn best(state: &State<'_>, fixed: &impl Fn(Place) -> bool) -> Option<(Relief, usize)> {
    let hot = state.slowest()?;
    let most = state.time(hot);
    // What must be gained to be taken, per transfer: rounding is no gain.
    let mut least = most * 1e-9;
    let mut found = None;
    let theirs: Vec<(u16, u16, f64)> = copies(state, hot).collect();
    let others = || state.ranks().filter(|rank| *rank != hot);
    for to in others() {
        for (slot, gone, _) in copies(state, to) {
            let place = (to, slot);
            if state.copies(gone) < 2 || fixed(place) || state.holds(gone, hot) {
                continue;
            }
            for &(_, expert, _) in &theirs {
                let after = after_copy(state, expert, gone, hot, to);
                if most - after > least && !state.holds(expert, to) {
                    least = most - after;
                    found = Some((Relief::Copy(expert, place), 1));
                }
            }
        }
    }
    let (rows_hot, slow_hot) = (state.rows[usize::from(hot)], state.slowness[usize::from(hot)]);
    for to in others() {
        let (rows_to, slow_to) = (state.rows[usize::from(to)], state.slowness[usize::from(to)]);
        // No swap brings two ranks below the time that they would share.
        let level = (rows_hot + rows_to) / (1.0 / slow_hot + 1.0 / slow_to);
        if (most - level) / 2.0 <= least {
            continue;
        }
        for (there, other, part_other) in copies(state, to) {
            for &(here, expert, part) in &theirs {
                let moved = part - part_other;
                let after = ((rows_hot - moved) * slow_hot).max((rows_to + moved) * slow_to);
                let gain = (most - after) / 2.0;
                if gain <= least || state.holds(expert, to) || state.holds(other, hot) {
                    continue;
                }
                if !fixed((hot, here)) && !fixed((to, there)) {
                    least = gain;
                    found = Some((Relief::Swap((hot, here), (to, there)), 2));
                }
            }
        }
    }
    found
}

/// A rank's copies: slot, expert, rows under an even split.
fn copies<'s>(state: &'s State<'_>, rank: u16) -> impl Iterator<Item = (u16, u16, f64)> + 's {
    let slots = state.slots[usize::from(rank)].iter().enumerate();
    slots.filter_map(|(slot, expert)| {
        let expert = (*expert)?;
        Some((slot as u16, expert, state.part(expert, state.copies(expert))))
    })
}

/// The slowest of the ranks concerned once `to` holds a further copy of `expert`, which `hot`
/// holds, in place of its copy of `gone`, which lives on elsewhere.
fn after_copy(state: &State<'_>, expert: u16, gone: u16, hot: u16, to: u16) -> f64 {
    let slow = |rank: u16, more: f64| {
        (state.rows[usize::from(rank)] + more) * state.slowness[usize::from(rank)]
    };
    let (now, then) = (state.copies(expert), state.copies(expert) + 1);
    let less = state.part(expert, now) - state.part(expert, then);
    let part_gone = state.part(gone, state.copies(gone));
    let more = state.part(gone, state.copies(gone) - 1) - part_gone;
    let arrives = state.part(expert, then) - part_gone;
    let mut after = slow(hot, -less).max(slow(to, arrives));
    for sibling in state.hosts[usize::from(gone)].iter().filter(|rank| **rank != to) {
        let relieved = if state.holds(expert, *sibling) { less } else { 0.0 };
        after = after.max(slow(*sibling, more - relieved));
    }
    after
}
