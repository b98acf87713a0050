//! What no map can beat.

use crate::costs::{Costs, LayerLoads};
use crate::{Bound, LayerBound};

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
    let (mut us, mut mean_us, mut piece_us) = (0.0, 0.0, 0.0);
    for step in 0..steps {
        let rows = |expert: usize| loads.rows[expert * steps + step];
        let work: f64 = (0..experts).map(|expert| costs.least_us(rows(expert), ranks)).sum();
        let mean = costs.on_host((idle + work) / all_speed);
        let piece = largest_piece((0..experts).map(rows), spare, ranks);
        let cell = costs.cell_us(piece);
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
fn largest_piece(rows: impl Iterator<Item = f64>, spare: usize, ranks: usize) -> f64 {
    let mut whole: Vec<f64> = rows.filter(|rows| *rows > 0.0).collect();
    whole.sort_by(|a, b| b.total_cmp(a));
    // An expert below the (spare + 1)-th largest is never cut before those above it.
    whole.truncate(spare + 1);
    let mut cuts = vec![1_usize; whole.len()];
    let piece = |index: usize, cuts: &[usize]| whole[index] / cuts[index] as f64;
    let largest = |cuts: &[usize]| {
        (0..whole.len()).max_by(|a, b| piece(*a, cuts).total_cmp(&piece(*b, cuts)))
    };
    for _ in 0..spare {
        match largest(&cuts) {
            Some(index) if cuts[index] < ranks => cuts[index] += 1,
            _ => break,
        }
    }
    largest(&cuts).map_or(0.0, |index| piece(index, &cuts))
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
        let cut = |spare, ranks| largest_piece(rows.into_iter(), spare, ranks);
        assert!((cut(0, 4) - 90.0).abs() < 1e-12);
        assert!((cut(2, 4) - 30.0).abs() < 1e-12);
        assert!((cut(2, 2) - 45.0).abs() < 1e-12);
        assert!((cut(5, 4) - 22.5).abs() < 1e-12);
        assert!(largest_piece(std::iter::empty(), 3, 2).abs() < 1e-12);
    }
}
