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

/// Changes until the layer is as balanced as `enough` says (mean ÷ slowest rank, even split), none
/// helps, or `transfers_max` are spent. `fixed(place)`: a copy that must stay. Returns the number
/// of transfers.
pub(super) fn rebalance(
    state: &mut State<'_>,
    enough: f64,
    transfers_max: usize,
    fixed: impl Fn(Place) -> bool,
) -> usize {
    let mut spent = 0;
    while spent < transfers_max && state.balancedness() < enough {
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

/// The change after which the slowest of the ranks concerned is fastest, per transfer.
fn best(state: &State<'_>, fixed: &impl Fn(Place) -> bool) -> Option<(Relief, usize)> {
    let hot = state.slowest()?;
    let most = state.time(hot);
    let slow = |rank: u16, more: f64| {
        (state.rows[usize::from(rank)] + more) * state.slowness[usize::from(rank)]
    };
    let mut found: Option<(f64, Relief, usize)> = None;
    let mut offer = |after: f64, relief: Relief, cost: usize| {
        let gain = (most - after) / cost as f64;
        let better = found.as_ref().is_none_or(|(other, ..)| gain > *other);
        if after < most * (1.0 - 1e-9) && better {
            found = Some((gain, relief, cost));
        }
    };
    let places = |rank: u16| {
        let slots = state.slots[usize::from(rank)].iter().enumerate();
        slots.filter_map(move |(slot, expert)| expert.map(|e| ((rank, slot as u16), e)))
    };
    for to in state.ranks().filter(|rank| *rank != hot) {
        for (there, b) in places(to).filter(|(place, _)| !fixed(*place)) {
            let (copies_b, part_b) = (state.copies(b), state.part(b, state.copies(b)));
            let redundant = copies_b > 1;
            let siblings_after = state.part(b, copies_b.max(2) - 1) - part_b;
            for (here, a) in places(hot) {
                if state.holds(a, to) {
                    continue;
                }
                let part_a = state.part(a, state.copies(a));
                if !fixed(here) && part_a > part_b && !state.holds(b, hot) {
                    let moved = part_a - part_b;
                    let after = slow(hot, -moved).max(slow(to, moved));
                    offer(after, Relief::Swap(here, there), 2);
                }
                if redundant && !state.holds(b, hot) {
                    let less = part_a - state.part(a, state.copies(a) + 1);
                    let mut after = slow(hot, -less).max(slow(to, part_a - less - part_b));
                    for sibling in &state.hosts[usize::from(b)] {
                        if *sibling != to {
                            let relieved = if state.holds(a, *sibling) { less } else { 0.0 };
                            after = after.max(slow(*sibling, siblings_after - relieved));
                        }
                    }
                    offer(after, Relief::Copy(a, there), 1);
                }
            }
        }
    }
    found.map(|(_, relief, cost)| (relief, cost))
}
