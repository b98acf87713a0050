//! How many copies, and the heaviest first onto the lowest rank.

use super::bins::{Bins, LayerRows};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A number of at least 0 as a key that orders alike, 16 bits of it given to something else.
fn key(rows: f64, low: u64) -> u64 {
    (rows.max(0.0).to_bits() & !0xffff) | low
}

/// Experts, most rows per copy first; equal ones by id.
fn heaviest_first(pieces: &[f64]) -> Vec<u16> {
    let key = |(expert, rows): (usize, &f64)| key(*rows, 0xffff - expert as u64);
    let mut keys: Vec<u64> = pieces.iter().enumerate().map(key).collect();
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys.into_iter().map(|key| 0xffff - (key & 0xffff) as u16).collect()
}

/// Copies per expert for all slots: the next copy goes to the largest piece, at most one per rank;
/// among equals to the expert with fewest copies, then the lowest id. All-zero loads therefore
/// spread their copies.
pub(crate) fn replicate(layer: &LayerRows<'_>) -> Vec<u16> {
    let experts = layer.loads.len();
    let mut copies = vec![1_u16; experts];
    let (spare, most) = (layer.slots().saturating_sub(experts), layer.ranks_in_use() as u16);
    if most < 2 || spare == 0 {
        return copies;
    }
    // An expert beyond the first `spare` never has its turn before they are cut.
    let mut heap: BinaryHeap<(u64, Reverse<u16>, Reverse<u16>)> = heaviest_first(layer.loads)
        .into_iter()
        .take(spare + 1)
        .map(|expert| (key(layer.loads[usize::from(expert)], 0), Reverse(1), Reverse(expert)))
        .collect();
    let mut left = spare;
    while left > 0
        && let Some((_, Reverse(count), Reverse(expert))) = heap.pop()
    {
        copies[usize::from(expert)] = count + 1;
        left -= 1;
        if count + 1 < most {
            let piece = layer.loads[usize::from(expert)] / f64::from(count + 1);
            heap.push((key(piece, 0), Reverse(count + 1), Reverse(expert)));
        }
    }
    // Where the first ones are on every rank, the rest of the slots goes to the others.
    for count in copies.iter_mut().filter(|count| **count < most) {
        let more = left.min(usize::from(most - *count));
        *count += more as u16;
        left -= more;
    }
    copies
}

/// Lays all copies, the largest piece first, on the lowest ranks that have room, the copies of one
/// expert on different ones.
///
/// Where fewer ranks have room than an expert has copies, another copy makes way; where even that
/// fails a further copy is left out, never a first one.
pub(crate) fn pack<'a>(layer: LayerRows<'a>, copies: Vec<u16>) -> Bins<'a> {
    let order = {
        let pieces: Vec<f64> =
            layer.loads.iter().zip(&copies).map(|(l, c)| l / f64::from(*c)).collect();
        heaviest_first(&pieces)
    };
    let mut bins = Bins::empty(layer, copies);
    // Ranks with room, lowest first; among equals the one with fewest copies.
    let entry = |bins: &Bins<'_>, rank: usize| {
        let held = bins.held(rank).len().min(15) as u64;
        Reverse(key(bins.level[rank], held << 12 | rank as u64))
    };
    let open = (0..bins.ranks()).filter(|rank| bins.room(*rank) > 0);
    let mut heap: BinaryHeap<Reverse<u64>> = open.map(|rank| entry(&bins, rank)).collect();
    let mut taken: Vec<usize> = Vec::new();
    for expert in order {
        taken.clear();
        let copies = bins.copies[usize::from(expert)];
        for _ in 0..copies {
            let Some(Reverse(key)) = heap.pop() else { break };
            taken.push((key & 0xfff) as usize);
        }
        let short = usize::from(copies) - taken.len();
        for rank in &taken {
            bins.put(*rank, expert);
            if bins.room(*rank) > 0 {
                heap.push(entry(&bins, *rank));
            }
        }
        let mut laid = taken.len() as u16;
        for _ in 0..short {
            if !detour(&mut bins, expert) {
                break;
            }
            laid += 1;
            heap = (0..bins.ranks())
                .filter(|rank| bins.room(*rank) > 0)
                .map(|rank| entry(&bins, rank))
                .collect();
        }
        if laid < copies && laid > 0 {
            let hosts = bins.hosts(expert);
            bins.recount(expert, laid, &hosts);
        }
    }
    bins
}

/// Lays an expert on a full rank that lacks it, whose other copy moves to a rank with room.
fn detour(bins: &mut Bins<'_>, expert: u16) -> bool {
    let ranks = bins.ranks();
    let full = |rank: &usize| bins.layer.sizes[*rank] > 0 && bins.room(*rank) == 0;
    for rank in (0..ranks).filter(|rank| full(rank) && !bins.holds(*rank, expert)) {
        for open in (0..ranks).filter(|rank| bins.room(*rank) > 0) {
            let other = bins.held(rank).iter().copied().find(|other| !bins.holds(open, *other));
            if let Some(other) = other {
                bins.take(rank, other);
                bins.put(open, other);
                bins.put(rank, expert);
                return true;
            }
        }
    }
    false
}
