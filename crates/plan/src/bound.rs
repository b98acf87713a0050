//! What no map can beat.

use crate::costs::{Costs, LayerLoads};
use crate::{Bound, LayerBound};

/// Halvings of the range in which a largest piece is sought, before cuts are made one by one.
const BISECTIONS: usize = 7;

/// Bound of one layer over all maps with up to `slots` slots, mean over steps; `sizes[rank]` are
/// the slots that cost their idle time in any case.
///
/// Per step, with a split that is free in every step, the slowest rank takes at least
/// - the mean over ranks: `(Σ_r (idle_r + extra_r) + Σ_e least cost of e) ÷ Σ_r speed_r`;
/// - the largest piece: with S slots for E experts and at most one copy per rank, some rank holds
///   at least `v` rows of one expert, `v` being least with `Σ_e min copies(e, v) ≤ S`.
pub(crate) fn layer_bound(
    costs: &Costs,
    loads: &LayerLoads,
    sizes: &[usize],
    slots: usize,
) -> LayerBound {
    let steps = costs.steps;
    let experts = loads.totals.len();
    // (idle time before speed, 1 ÷ speed) of the ranks that live.
    let alive: Vec<(f64, f64)> = (0..sizes.len())
        .filter(|rank| costs.inverse_speed[*rank] > 0.0)
        .map(|rank| (costs.idle_us(sizes[rank]) + loads.extra[rank], costs.inverse_speed[rank]))
        .collect();
    let ranks = alive.len();
    let all_speed: f64 = alive.iter().map(|(_, inverse)| 1.0 / inverse).sum();
    let idle: f64 = alive.iter().map(|(idle, _)| idle).sum();
    let spare = slots.saturating_sub(experts);
    let mut work = vec![0.0_f64; steps];
    for rows in loads.rows.chunks_exact(steps) {
        work.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += costs.least_us(*rows, ranks));
    }
    let (mut us, mut mean_us, mut piece_us) = (0.0, 0.0, 0.0);
    let mut whole = Vec::with_capacity(experts);
    for (step, work) in work.into_iter().enumerate() {
        whole.clear();
        whole.extend((0..experts).map(|expert| loads.rows[expert * steps + step]));
        let mean = costs.on_host((idle + work) / all_speed);
        let cell = costs.cell_us(largest_piece(&mut whole, spare, ranks));
        let alone = alive.iter().map(|(idle, inverse)| (idle + cell) * inverse);
        let piece = costs.on_host(alone.fold(f64::INFINITY, f64::min));
        mean_us += mean;
        piece_us += piece;
        us += mean.max(piece);
    }
    let steps = steps as f64;
    LayerBound { us: us / steps, mean_us: mean_us / steps, piece_us: piece_us / steps }
}

/// Least possible size of the largest piece when experts may be cut `spare` times in all, each into
/// at most `ranks` pieces. Greedy is exact: a cut of any but the largest piece changes nothing.
///
/// Where a size can be reached, greedy makes all cuts that it asks for before any other; so it
/// starts from the cuts of a size a little above the least one.
fn largest_piece(whole: &mut Vec<f64>, spare: usize, ranks: usize) -> f64 {
    whole.retain(|rows| *rows > 0.0);
    // An expert below the (spare + 1)-th largest is never cut before those above it.
    if whole.len() > spare + 1 {
        whole.select_nth_unstable_by(spare, |a, b| b.total_cmp(a));
        whole.truncate(spare + 1);
    }
    let largest_whole = whole.iter().copied().fold(0.0, f64::max);
    let most = ranks.max(1) as f64;
    let cuts_for = |size: f64| -> f64 {
        whole.iter().map(|rows| (rows / size).ceil().clamp(1.0, most) - 1.0).sum()
    };
    // No size is below what slots and ranks allow; that of the whole experts can be reached.
    let pieces = (whole.len() + spare).max(1) as f64;
    let mut below = (whole.iter().sum::<f64>() / pieces).max(largest_whole / most);
    let mut above = largest_whole;
    for _ in 0..BISECTIONS {
        let size = 0.5 * (below + above);
        if size > 0.0 && cuts_for(size) <= spare as f64 {
            above = size;
        } else {
            below = size;
        }
    }
    let start = |rows: &f64| (rows / above).ceil().clamp(1.0, most);
    let mut cuts: Vec<f64> = whole.iter().map(start).collect();
    let left = spare as f64 - cuts.iter().map(|cuts| cuts - 1.0).sum::<f64>();
    let mut pieces: Vec<f64> = whole.iter().zip(&cuts).map(|(rows, cuts)| rows / cuts).collect();
    let largest = |pieces: &[f64]| {
        let mut most = (0, 0.0_f64);
        for (index, piece) in pieces.iter().enumerate() {
            if *piece > most.1 {
                most = (index, *piece);
            }
        }
        most
    };
    for _ in 0..left.max(0.0) as usize {
        let (index, size) = largest(&pieces);
        if size <= 0.0 || cuts[index] >= most {
            return size;
        }
        cuts[index] += 1.0;
        pieces[index] = whole[index] / cuts[index];
    }
    largest(&pieces).1
}

/// Sums layers to a step.
pub(crate) fn step_bound(layers: Vec<LayerBound>, fixed_us: f64, live_us: f64) -> Bound {
    let step_us = fixed_us + layers.iter().map(|layer| layer.us).sum::<f64>();
    let gain_share_max = if live_us > 0.0 { (1.0 - step_us / live_us).max(0.0) } else { 0.0 };
    Bound { step_us, gain_share_max, layers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_where_they_are_largest() {
        let rows = [90.0, 30.0, 10.0];
        let cut = |spare, ranks| largest_piece(&mut rows.to_vec(), spare, ranks);
        assert!((cut(0, 4) - 90.0).abs() < 1e-12);
        assert!((cut(2, 4) - 30.0).abs() < 1e-12);
        assert!((cut(2, 2) - 45.0).abs() < 1e-12);
        assert!((cut(5, 4) - 22.5).abs() < 1e-12);
        assert!(largest_piece(&mut Vec::new(), 3, 2).abs() < 1e-12);
    }

    #[test]
    fn cuts_begun_by_bisection_are_those_made_one_by_one() {
        for seed in 0..300_u64 {
            let draw = |what: u64, below: u64| evenkeel_types::hash3(seed, what, 0) % below;
            let experts = 1 + draw(1, 40) as usize;
            let rows = |e: usize| (evenkeel_types::hash2(seed, e as u64) % 10_000) as f64;
            let whole: Vec<f64> = (0..experts).map(rows).collect();
            let (spare, ranks) = (draw(2, 90) as usize, 1 + draw(3, 12) as usize);
            let mut cuts = vec![1.0_f64; experts];
            for _ in 0..spare {
                let piece = |e: &usize| whole[*e] / cuts[*e];
                let most = (0..experts).max_by(|a, b| piece(a).total_cmp(&piece(b))).unwrap();
                if cuts[most] < ranks as f64 {
                    cuts[most] += 1.0;
                }
            }
            let one_by_one = (0..experts).map(|e| whole[e] / cuts[e]).fold(0.0, f64::max);
            let found = largest_piece(&mut whole.clone(), spare, ranks);
            assert!((found - one_by_one).abs() <= 1e-9 * one_by_one, "{found} {one_by_one}");
        }
    }
}
