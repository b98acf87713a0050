//! The greedy plan that engines make: replicate the heaviest, pack the heaviest first.
//!
//! Two differences to theirs: never two copies of one expert on a rank, and copies are spread
//! where loads are equal (all zero, say) instead of all given to one expert.

use crate::layer::Slots;

/// Copies per expert for so many slots: the next copy goes to the largest load per copy, at most
/// one per rank; among equals to the expert with fewest copies, then the lowest id.
pub(crate) fn replicate(loads: &[u64], slots: usize, ranks: usize) -> Vec<usize> {
    let mut copies = vec![1_usize; loads.len()];
    for _ in loads.len()..slots {
        let next = (0..loads.len()).filter(|expert| copies[*expert] < ranks).max_by(|a, b| {
            let left = u128::from(loads[*a]) * copies[*b] as u128;
            let right = u128::from(loads[*b]) * copies[*a] as u128;
            left.cmp(&right).then(copies[*b].cmp(&copies[*a])).then(b.cmp(a))
        });
        match next {
            Some(expert) => copies[expert] += 1,
            None => break,
        }
    }
    copies
}

/// Packs `copies[expert]` copies, heaviest piece first, each on the rank with least load per weight
/// that has a free slot and not yet the expert. `sizes[rank]` slots per rank.
pub(crate) fn pack(loads: &[u64], copies: &[usize], sizes: &[usize], weights: &[u32]) -> Slots {
    let piece = |expert: usize| loads[expert] as f64 / copies[expert] as f64;
    let mut order: Vec<usize> =
        (0..loads.len()).flat_map(|expert| std::iter::repeat_n(expert, copies[expert])).collect();
    order.sort_by(|a, b| piece(*b).total_cmp(&piece(*a)).then(a.cmp(b)));
    let mut held: Vec<Vec<u16>> = vec![Vec::new(); sizes.len()];
    let mut rows = vec![0.0_f64; sizes.len()];
    for expert in order {
        let id = expert as u16;
        let free = |rank: &usize| held[*rank].len() < sizes[*rank];
        let target = (0..sizes.len())
            .filter(|rank| free(rank) && !held[*rank].contains(&id))
            .min_by(|a, b| {
                let level = |rank: usize| (rows[rank] + piece(expert)) / f64::from(weights[rank]);
                level(*a)
                    .total_cmp(&level(*b))
                    .then(held[*a].len().cmp(&held[*b].len()))
                    .then(a.cmp(b))
            });
        if let Some(rank) = target {
            held[rank].push(id);
            rows[rank] += piece(expert);
        } else if let Some((open, full, place)) = detour(&held, sizes, id) {
            // Every rank with a free slot has this expert: move another there and take its slot.
            let other = std::mem::replace(&mut held[full][place], id);
            held[open].push(other);
            rows[full] += piece(expert) - piece(usize::from(other));
            rows[open] += piece(usize::from(other));
        }
        // Otherwise the copy has no place; the expert's first copy always has one, because then
        // no rank holds the expert and there are at least as many slots as pieces.
    }
    held.into_iter()
        .zip(sizes)
        .map(|(held, size)| {
            let mut slots: Vec<Option<u16>> = held.into_iter().map(Some).collect();
            slots.resize(*size, None);
            slots
        })
        .collect()
}

/// A rank with a free slot, a full rank without `expert`, and a piece there that the first lacks.
fn detour(held: &[Vec<u16>], sizes: &[usize], expert: u16) -> Option<(usize, usize, usize)> {
    let open = (0..held.len()).find(|rank| held[*rank].len() < sizes[*rank])?;
    (0..held.len()).filter(|rank| !held[*rank].contains(&expert)).find_map(|full| {
        let place = held[full].iter().position(|other| !held[open].contains(other))?;
        Some((open, full, place))
    })
}

/// Renames ranks so that contents stay where they are as far as a greedy matching sees, and puts
/// kept experts into the slots that they have. `free[rank]`: the rank may be renamed (ranks of
/// another speed or size may not).
pub(crate) fn align(next: Slots, live: &Slots, free: bool) -> Slots {
    let ranks = live.len();
    let mut assigned: Vec<usize> = (0..ranks).collect();
    if free {
        let mut overlaps = Vec::new();
        for (new, slots) in next.iter().enumerate() {
            for (old, kept) in live.iter().enumerate() {
                let both = slots.iter().flatten().filter(|e| kept.contains(&Some(**e))).count();
                overlaps.push((usize::MAX - both, usize::from(new != old), old, new));
            }
        }
        overlaps.sort_unstable();
        let (mut old_taken, mut new_taken) = (vec![false; ranks], vec![false; ranks]);
        for (_, _, old, new) in overlaps {
            if !old_taken[old] && !new_taken[new] {
                old_taken[old] = true;
                new_taken[new] = true;
                assigned[old] = new;
            }
        }
    }
    (0..ranks).map(|old| in_place(&next[assigned[old]], &live[old])).collect()
}

/// The same experts in `next.len()` slots, those that stay in the slot that they have.
fn in_place(next: &[Option<u16>], live: &[Option<u16>]) -> Vec<Option<u16>> {
    let mut slots: Vec<Option<u16>> = vec![None; next.len()];
    let mut left: Vec<u16> = Vec::new();
    for expert in next.iter().flatten() {
        match live.iter().position(|other| *other == Some(*expert)) {
            Some(slot) if slot < slots.len() && slots[slot].is_none() => {
                slots[slot] = Some(*expert);
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_loads_spread_their_copies() {
        assert_eq!(replicate(&[0; 4], 6, 3), [2, 2, 1, 1]);
        assert_eq!(replicate(&[8, 0, 0, 0], 7, 3), [3, 2, 1, 1]);
        assert_eq!(replicate(&[1, 1], 9, 3), [3, 3]);
    }

    #[test]
    fn a_crowded_pack_takes_a_detour() {
        // Two ranks of three slots, every expert twice: each rank must hold all three.
        let slots = pack(&[9, 5, 1], &[2, 2, 2], &[3, 3], &[1, 1]);
        for rank in slots {
            let mut held: Vec<u16> = rank.into_iter().flatten().collect();
            held.sort_unstable();
            assert_eq!(held, [0, 1, 2]);
        }
    }

    #[test]
    fn alignment_keeps_contents_and_slots() {
        let live = vec![vec![Some(0), Some(1)], vec![Some(2), Some(3)]];
        let next = vec![vec![Some(3), Some(2)], vec![Some(1), Some(0)]];
        assert_eq!(align(next, &live, true), live);
    }
}
