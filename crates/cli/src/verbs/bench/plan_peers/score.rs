//! One scorer for all planners: balance under even split, duplicates, moves.

use super::Problem;
use evenkeel_types::ExpertId;
use serde::Serialize;

/// `[layer][rank][slot]`, as [`evenkeel_types::ExpertMap::slots`].
pub(crate) type Slots = Vec<Vec<Vec<Option<ExpertId>>>>;

/// What a map is worth on given loads, every expert's tokens split evenly over its slots.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Score {
    /// Mean ÷ largest rank, mean over layers; axis ranks, unit tokens.
    pub(crate) balance: f64,
    /// The same, worst layer.
    pub(crate) balance_worst: f64,
    /// Slots that repeat an expert of their rank, over all layers.
    pub(crate) duplicates: usize,
    /// Experts without a slot, over all layers: 0 in any valid map.
    pub(crate) missing: usize,
}

impl Score {
    /// Scores `slots` on `loads` `[layer * experts + expert]`.
    pub(crate) fn of(slots: &Slots, loads: &[u64], problem: &Problem) -> Self {
        let (mut sum, mut worst) = (0.0, f64::INFINITY);
        let (mut duplicates, mut missing) = (0, 0);
        for (layer, loads) in slots.iter().zip(loads.chunks_exact(problem.experts)) {
            let mut copies = vec![0_u32; problem.experts];
            for expert in layer.iter().flatten().flatten() {
                copies[expert.index()] += 1;
            }
            missing += copies.iter().filter(|copies| **copies == 0).count();
            let rows = |rank: &Vec<Option<ExpertId>>| -> f64 {
                let piece = |e: &ExpertId| loads[e.index()] as f64 / f64::from(copies[e.index()]);
                rank.iter().flatten().map(piece).sum()
            };
            let rows: Vec<f64> = layer.iter().map(rows).collect();
            let most = rows.iter().copied().fold(0.0, f64::max);
            let mean = rows.iter().sum::<f64>() / rows.len().max(1) as f64;
            let balance = if most > 0.0 { mean / most } else { 1.0 };
            sum += balance;
            worst = worst.min(balance);
            duplicates += layer.iter().map(|rank| repeats(rank)).sum::<usize>();
        }
        let balance = sum / slots.len().max(1) as f64;
        Self { balance, balance_worst: worst.min(1.0), duplicates, missing }
    }
}

fn repeats(rank: &[Option<ExpertId>]) -> usize {
    let mut experts: Vec<ExpertId> = rank.iter().flatten().copied().collect();
    let listed = experts.len();
    experts.sort();
    experts.dedup();
    listed - experts.len()
}

/// Weight moves from one map to another: experts present on a rank that were not there before.
pub(crate) fn moves(from: &Slots, to: &Slots) -> usize {
    let mut moves = 0;
    for (before, after) in from.iter().zip(to) {
        for (before, after) in before.iter().zip(after) {
            let mut arrived: Vec<ExpertId> =
                after.iter().flatten().filter(|e| !before.contains(&Some(**e))).copied().collect();
            arrived.sort();
            arrived.dedup();
            moves += arrived.len();
        }
    }
    moves
}

/// The map that engines start with: slot i of a layer holds expert i mod E.
pub(crate) fn start(problem: &Problem) -> Slots {
    let per_rank = problem.slots_per_rank();
    let expert = |slot: usize| Some(ExpertId((slot % problem.experts) as u16));
    let rank = |rank: usize| (rank * per_rank..(rank + 1) * per_rank).map(expert).collect();
    vec![(0..problem.ranks).map(rank).collect(); problem.layers]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ranks: &[&[u16]]) -> Slots {
        vec![ranks.iter().map(|rank| rank.iter().map(|e| Some(ExpertId(*e))).collect()).collect()]
    }

    #[test]
    fn a_map_is_scored_by_its_slots() {
        let problem = Problem {
            id: "T".into(),
            layers: 1,
            experts: 3,
            ranks: 2,
            slots: 4,
            loads: vec![60, 20, 20],
            drifted: None,
        };
        let even = ids(&[&[0, 1], &[0, 2]]);
        let score = Score::of(&even, &problem.loads, &problem);
        assert!((score.balance - 1.0).abs() < 1e-12);
        assert_eq!((score.duplicates, score.missing), (0, 0));
        let bad = ids(&[&[0, 0], &[1, 1]]);
        let score = Score::of(&bad, &problem.loads, &problem);
        assert!((score.balance - 40.0 / 60.0).abs() < 1e-12);
        assert_eq!((score.duplicates, score.missing), (2, 1));
        assert_eq!(start(&problem), ids(&[&[0, 1], &[2, 0]]));
        assert_eq!((moves(&even, &bad), moves(&bad, &even), moves(&even, &even)), (1, 3, 0));
    }
}
