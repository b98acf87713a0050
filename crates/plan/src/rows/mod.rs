//! Rows of a whole window, split evenly over copies: the problem that engines' planners solve.
//!
//! [`place`] packs a layer afresh: copies to the largest pieces, the heaviest first onto the lowest
//! rank, then exchanges with the highest rank until none helps; with more effort it also tries other
//! copy counts, and small layers are solved exactly. [`place_near`] renames ranks so that most of a
//! map in force stays where it is. [`repair`] starts from the map in force and buys moves. None puts
//! two copies of an expert on a rank.

mod bins;
mod bound;
mod exact;
mod greedy;
mod groups;
mod polish;
mod relabel;
mod repair;

pub use bins::LayerRows;
pub use bound::{flat_bound, grouped_bound};
pub use groups::place_grouped;

#[cfg(test)]
mod tests;

use bins::Bins;
use evenkeel_types::{hash2, hash3};
use polish::{Reach, Scratch};
use repair::Terms;

/// `[rank][slot]` → expert; free slots last.
pub type LayerSlots = Vec<Vec<Option<u16>>>;

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Balancedness (mean ÷ highest rank) at which a layer is good enough.
    pub enough: f64,
    /// Further tries with other copy counts where a layer is not; 0 also leaves out exchanges of
    /// two copies at a time and the exact search.
    pub tries: usize,
    /// Nodes that the exact search of a small layer may visit; 0: none. The exact answer may leave
    /// slots empty.
    pub exact_nodes: usize,
    /// Seed of the tries.
    pub seed: u64,
}

impl Effort {
    /// Milliseconds for a whole model.
    pub const FAST: Self = Self { enough: 0.9993, tries: 0, exact_nodes: 0, seed: 1 };
    /// Within some 0.01 % of the mean where slots allow it.
    pub const THOROUGH: Self = Self { enough: 0.9999, tries: 16, exact_nodes: 400_000, seed: 1 };
}

/// Slots up to which a layer is solved exactly.
const EXACT_SLOTS: usize = 20;

/// Packs a layer afresh; `None` where there are fewer slots than experts.
#[must_use]
pub fn place(layer: &LayerRows<'_>, effort: Effort) -> Option<LayerSlots> {
    Some(packed(*layer, effort, &mut Scratch::default())?.slots())
}

fn packed<'a>(layer: LayerRows<'a>, effort: Effort, scratch: &mut Scratch) -> Option<Bins<'a>> {
    if layer.slots() < layer.loads.len() || layer.ranks_in_use() == 0 {
        return None;
    }
    let enough = layer.mean() / effort.enough;
    let thorough = effort.tries > 0;
    let reach = Reach {
        ranks: if thorough { usize::MAX } else { 6 },
        pairs: thorough,
        exchanges: if thorough { 8 * layer.slots() } else { 2 * layer.sizes.len() },
    };
    let mut best = greedy::pack(layer, greedy::replicate(&layer));
    if polish::polish(&mut best, enough, reach, scratch) || !thorough {
        return Some(best);
    }
    for index in 0..effort.tries {
        let copies = other_counts(&layer, &best, hash2(effort.seed, index as u64));
        let mut next = greedy::pack(layer, copies);
        let done = polish::polish(&mut next, enough, reach, scratch);
        if next.highest() < best.highest() {
            best = next;
        }
        if done {
            return Some(best);
        }
    }
    if layer.slots() <= EXACT_SLOTS
        && effort.exact_nodes > 0
        && let (Some(lower), _) = exact::exact(layer, best.highest(), effort.exact_nodes)
    {
        best = lower;
    }
    Some(best)
}

/// The copy counts of a packing with one to three copies given from one expert to another: from
/// where pieces are small to where they are large, by chance.
fn other_counts(layer: &LayerRows<'_>, from: &Bins<'_>, seed: u64) -> Vec<u16> {
    let mut copies = from.copies.clone();
    let most = layer.ranks_in_use() as u16;
    let piece = |copies: &[u16], e: usize| layer.loads[e] / f64::from(copies[e]);
    for turn in 0..1 + seed % 3 {
        let mut givers: Vec<usize> = (0..copies.len()).filter(|e| copies[*e] > 1).collect();
        let mut takers: Vec<usize> = (0..copies.len()).filter(|e| copies[*e] < most).collect();
        givers.sort_by(|a, b| piece(&copies, *a).total_cmp(&piece(&copies, *b)));
        takers.sort_by(|a, b| piece(&copies, *b).total_cmp(&piece(&copies, *a)));
        // Among the first few of each.
        let draw = |what: u64, of: &[usize]| {
            let first = of.len().min(12);
            (first > 0).then(|| of[hash3(seed, turn, what) as usize % first])
        };
        let (Some(giver), Some(taker)) = (draw(0, &givers), draw(1, &takers)) else { break };
        if giver != taker {
            copies[giver] -= 1;
            copies[taker] += 1;
        }
    }
    copies
}

/// Packs a layer afresh and renames alike ranks so that most copies stay where `live` has them.
#[must_use]
pub fn place_near(
    layer: &LayerRows<'_>,
    live: &[Vec<Option<u16>>],
    effort: Effort,
) -> Option<LayerSlots> {
    place(layer, effort).map(|slots| near(layer, slots, live))
}

/// Renames ranks of a packing, all of them alike, towards a map in force.
pub(crate) fn renamed(slots: LayerSlots, live: &[Vec<Option<u16>>]) -> LayerSlots {
    let (sizes, speeds) = (vec![0; slots.len()], vec![1.0; slots.len()]);
    let alike = LayerRows { loads: &[], sizes: &sizes, inverse_speed: &speeds, extra: &[] };
    near(&alike, slots, live)
}

/// Level of the highest rank, rows ÷ speed.
#[must_use]
pub fn highest(layer: &LayerRows<'_>, slots: &[Vec<Option<u16>>]) -> f64 {
    Bins::of(*layer, slots).highest()
}

/// Renames alike ranks of a packing towards a map in force.
fn near(layer: &LayerRows<'_>, slots: LayerSlots, live: &[Vec<Option<u16>>]) -> LayerSlots {
    let ranks = slots.len();
    let extra = |rank: usize| layer.extra.get(rank).copied().unwrap_or(0.0);
    let alike = |a: usize, b: usize| {
        layer.sizes[a] == layer.sizes[b]
            && layer.inverse_speed[a].total_cmp(&layer.inverse_speed[b]).is_eq()
            && extra(a).total_cmp(&extra(b)).is_eq()
    };
    // Unlike ranks keep their content: that outweighs any overlap.
    let unlike = -((layer.slots() + 1) as i64);
    let mut overlap = vec![0; ranks * ranks];
    for content in 0..ranks {
        for rank in 0..ranks {
            overlap[content * ranks + rank] = match alike(content, rank) {
                true => {
                    let kept = slots[content].iter().flatten();
                    kept.filter(|e| live[rank].contains(&Some(**e))).count() as i64
                }
                false => unlike * ranks as i64,
            };
        }
    }
    let rank_of = relabel::assign(&overlap, ranks);
    let mut renamed = vec![Vec::new(); ranks];
    for (content, slots) in slots.into_iter().enumerate() {
        renamed[rank_of[content]] = slots;
    }
    renamed
}

/// What a repair may do.
#[derive(Clone, Copy, Debug)]
pub struct RepairTerms<'a> {
    /// Balancedness (mean ÷ highest rank) that is enough.
    pub enough: f64,
    /// Most moves: copies that the map in force does not have.
    pub moves_max: usize,
    /// `[expert * ranks + rank]`: copies that have to stay; empty: none.
    pub pinned: &'a [bool],
    /// `[expert * ranks + rank]`: copies that may not come; empty: none.
    pub barred: &'a [bool],
    /// Whether free slots may be filled.
    pub may_fill: bool,
}

/// A repaired layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Repaired {
    /// Its slots; copies that stay are in the slots that they had.
    pub slots: LayerSlots,
    /// Copies that the map in force does not have.
    pub moves: usize,
    /// Mean ÷ highest rank.
    pub balancedness: f64,
}

/// Repairs a layer from the map in force. `step(slots, highest level)` sees every state on the way
/// where it is given.
#[must_use]
pub fn repair(
    layer: &LayerRows<'_>,
    live: &[Vec<Option<u16>>],
    terms: &RepairTerms<'_>,
    mut step: Option<&mut dyn FnMut(LayerSlots, f64)>,
) -> Repaired {
    repair_seen(layer, live, terms, |highest, slots| {
        if let Some(step) = &mut step {
            step(slots(), highest);
        }
    })
}

/// [`repair`], with slots of a state on the way made only where `seen(highest level, slots)` asks.
pub(crate) fn repair_seen(
    layer: &LayerRows<'_>,
    live: &[Vec<Option<u16>>],
    terms: &RepairTerms<'_>,
    mut seen: impl FnMut(f64, &dyn Fn() -> LayerSlots),
) -> Repaired {
    let ranks = live.len();
    let mut bins = Bins::of(*layer, live);
    let mut at_home = vec![false; layer.loads.len() * ranks];
    for rank in 0..ranks {
        bins.held(rank).iter().for_each(|e| at_home[usize::from(*e) * ranks + rank] = true);
    }
    let none = vec![false; at_home.len()];
    let or_none = |flags: &'_ [bool]| if flags.is_empty() { none.clone() } else { flags.to_vec() };
    let (pinned, barred) = (or_none(terms.pinned), or_none(terms.barred));
    let mean = layer.mean();
    let inner = Terms {
        at_home: &at_home,
        pinned: &pinned,
        barred: &barred,
        enough: mean / terms.enough,
        moves_max: terms.moves_max,
        may_fill: terms.may_fill,
    };
    let moves = repair::repair(&mut bins, &inner, |bins| {
        seen(bins.highest(), &|| in_place(&bins.slots(), live));
    });
    let highest = bins.highest();
    let balancedness = if highest > 0.0 { mean / highest } else { 1.0 };
    Repaired { slots: in_place(&bins.slots(), live), moves, balancedness }
}

/// The same copies, those that stay in the slots that they have.
pub(crate) fn in_place(next: &[Vec<Option<u16>>], live: &[Vec<Option<u16>>]) -> LayerSlots {
    let rank = |(next, live): (&Vec<Option<u16>>, &Vec<Option<u16>>)| {
        let mut slots: Vec<Option<u16>> = vec![None; next.len().max(live.len())];
        let mut left: Vec<u16> = Vec::new();
        for expert in next.iter().flatten() {
            match live.iter().position(|other| *other == Some(*expert)) {
                Some(slot) if slots[slot].is_none() => slots[slot] = Some(*expert),
                _ => left.push(*expert),
            }
        }
        let mut left = left.into_iter();
        for slot in &mut slots {
            if slot.is_none() {
                *slot = left.next();
            }
        }
        slots
    };
    next.iter().zip(live).map(rank).collect()
}
