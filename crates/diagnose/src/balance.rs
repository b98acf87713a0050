//! Rows and expert time by rank: measured, under the best split of this map, under the best map.

use crate::diagnosis::{Gaps, HotExpert, LayerBalance};
use crate::frame::{Frame, Stage};
use crate::window::Window;
use evenkeel_cost::ExpertCurve;
use evenkeel_split::min_max_rows;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId};

/// Rows per rank of each layer: every step on its own, so that ranks that take turns do not
/// cancel, and every layer on its own, so that layers do not.
pub(crate) fn layer_balance(window: &Window) -> Vec<LayerBalance> {
    (0..window.layers)
        .map(|layer| {
            let mut per_rank = vec![0_u64; window.ranks];
            let (mut rows, mut most) = (0.0, 0.0);
            for frame in &window.frames {
                let cells = &frame.rows[window.cells(layer)];
                for (sum, rows) in per_rank.iter_mut().zip(cells) {
                    *sum += u64::from(*rows);
                }
                rows += cells.iter().map(|rows| f64::from(*rows)).sum::<f64>();
                most += f64::from(cells.iter().copied().max().unwrap_or(0));
            }
            let mean = rows / window.ranks as f64;
            let fullest = per_rank
                .iter()
                .enumerate()
                .max_by_key(|(rank, rows)| (**rows, std::cmp::Reverse(*rank)));
            LayerBalance {
                layer: LayerId(layer as u16),
                balancedness: if most > 0.0 { mean / most } else { 1.0 },
                max_over_mean: if mean > 0.0 { most / mean } else { 1.0 },
                hot_rank: fullest.filter(|(_, n)| **n > 0).map(|(rank, _)| RankId(rank as u16)),
            }
        })
        .collect()
}

/// Rows by (layer, expert) over the routed frames; `None` where no frame has routing.
pub(crate) fn expert_loads(window: &Window) -> Option<Vec<u64>> {
    let mut loads: Option<Vec<u64>> = None;
    for rows in window.frames.iter().filter_map(|frame| frame.expert_rows.as_ref()) {
        let loads = loads.get_or_insert_with(|| vec![0; rows.len()]);
        for (sum, rows) in loads.iter_mut().zip(rows) {
            *sum += u64::from(*rows);
        }
    }
    loads
}

/// An expert with less than this many times the fair share is not called hot.
const TIMES_FAIR_MIN: f64 = 1.5;
/// Nor one whose rows are fewer than this many standard deviations of chance above fair.
const DEVIATIONS_MIN: f64 = 5.0;

/// Experts far above their layer's fair share, largest excess of rows first.
pub(crate) fn hot_experts(loads: &[u64], map: &ExpertMap, most: usize) -> Vec<HotExpert> {
    let experts = usize::from(map.experts);
    let mut hot: Vec<(f64, HotExpert)> = Vec::new();
    for (layer, loads) in loads.chunks_exact(experts).enumerate() {
        let total: u64 = loads.iter().sum();
        let fair = total as f64 / experts as f64;
        // A layer without rows has no hot expert, whatever zero divided by zero would say.
        if total == 0 {
            continue;
        }
        let layer = LayerId(layer as u16);
        let hosts = map.hosts(layer);
        for (expert, rows) in loads.iter().enumerate() {
            let excess = *rows as f64 - fair;
            if *rows as f64 >= TIMES_FAIR_MIN * fair && excess > DEVIATIONS_MIN * fair.sqrt() {
                let found = HotExpert {
                    layer,
                    expert: ExpertId(expert as u16),
                    share_of_rows: *rows as f64 / total as f64,
                    times_fair: *rows as f64 / fair,
                    ranks: hosts[expert].clone(),
                };
                hot.push((excess, found));
            }
        }
    }
    hot.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then((a.1.layer, a.1.expert).cmp(&(b.1.layer, b.1.expert)))
    });
    hot.into_iter().take(most).map(|(_, expert)| expert).collect()
}

/// The best fixed split of this map for a window: `[layer][expert]` → share of each host.
pub(crate) struct BestSplit {
    hosts: Vec<Vec<Vec<RankId>>>,
    shares: Vec<Vec<Vec<f64>>>,
}

impl BestSplit {
    /// Computes it for loads `[layer * experts + expert]`. `None` where an expert has no copy.
    pub(crate) fn of(map: &ExpertMap, loads: &[u64]) -> Option<Self> {
        let experts = usize::from(map.experts);
        let (mut hosts, mut shares) = (Vec::new(), Vec::new());
        for (layer, loads) in loads.chunks_exact(experts).enumerate() {
            let of_layer = map.hosts(LayerId(layer as u16));
            shares.push(min_max_rows(&of_layer, loads, map.ranks()).ok()?.shares);
            hosts.push(of_layer);
        }
        Some(Self { hosts, shares })
    }

    /// Hosts of an expert with their shares.
    pub(crate) fn shares_of(
        &self,
        layer: usize,
        expert: usize,
    ) -> impl Iterator<Item = (RankId, f64)> + '_ {
        let shares = self.shares[layer][expert].iter().copied();
        self.hosts[layer][expert].iter().copied().zip(shares)
    }

    /// Rows of every (expert, host) of a layer, whole, adding up to the expert's rows: largest
    /// remainders first.
    fn rows(&self, layer: usize, expert: usize, rows: u32) -> Vec<(RankId, u32)> {
        let hosts = &self.hosts[layer][expert];
        let exact: Vec<f64> =
            self.shares[layer][expert].iter().map(|share| share * f64::from(rows)).collect();
        let mut whole: Vec<u32> = exact.iter().map(|rows| rows.floor() as u32).collect();
        let left = rows.saturating_sub(whole.iter().sum());
        let mut order: Vec<usize> = (0..hosts.len()).collect();
        order.sort_by(|a, b| (exact[*b].fract()).total_cmp(&exact[*a].fract()).then(a.cmp(b)));
        for index in order.into_iter().take(left as usize) {
            whole[index] += 1;
        }
        hosts.iter().copied().zip(whole).collect()
    }

    /// Rows that this split takes off the fullest rank of a frame, Σ over layers.
    fn saved_rows(&self, window: &Window, frame: &Frame, map: &ExpertMap) -> f64 {
        let experts = usize::from(map.experts);
        let Some(rows) = frame.expert_rows.as_ref() else { return 0.0 };
        let none = vec![0; window.ranks];
        (0..window.layers)
            .map(|layer| {
                let by_rank =
                    self.slots(layer, &rows[layer * experts..(layer + 1) * experts], &none);
                let best = by_rank.iter().map(|rows| rows.iter().sum::<u32>()).max().unwrap_or(0);
                let fullest = frame.rows[window.cells(layer)].iter().copied().max().unwrap_or(0);
                f64::from(fullest) - f64::from(best)
            })
            .sum()
    }

    /// Rows per rank and slot of one layer of a frame: `[rank]` → rows of each filled slot.
    pub(crate) fn slots(
        &self,
        layer: usize,
        expert_rows: &[u32],
        slots: &[usize],
    ) -> Vec<Vec<u32>> {
        let mut by_rank: Vec<Vec<u32>> = vec![Vec::new(); slots.len()];
        for (expert, rows) in expert_rows.iter().enumerate() {
            for (rank, rows) in self.rows(layer, expert, *rows) {
                by_rank[rank.index()].push(rows);
            }
        }
        for (rows, slots) in by_rank.iter_mut().zip(slots) {
            rows.resize((*slots).max(rows.len()), 0);
        }
        by_rank
    }
}

/// Share of the rows that the best fixed split takes off the fullest ranks which the best split of
/// one half of the frames also takes off in the other half: chance does not repeat.
pub(crate) fn copies_checked(window: &Window, map: &ExpertMap) -> f64 {
    let routed: Vec<&Frame> =
        window.frames.iter().filter(|frame| frame.expert_rows.is_some()).collect();
    let (Some(whole), true) = (window.split.as_ref(), routed.len() >= 4) else { return 1.0 };
    let (early, late) = routed.split_at(routed.len() / 2);
    let split_of = |frames: &[&Frame]| {
        let mut loads = vec![0_u64; window.layers * usize::from(map.experts)];
        for rows in frames.iter().filter_map(|frame| frame.expert_rows.as_ref()) {
            loads.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += u64::from(*rows));
        }
        BestSplit::of(map, &loads)
    };
    let (Some(of_early), Some(of_late)) = (split_of(early), split_of(late)) else { return 1.0 };
    let saved = |frames: &[&Frame], split: &BestSplit| -> f64 {
        frames.iter().map(|frame| split.saved_rows(window, frame, map)).sum()
    };
    let promised = saved(&routed, whole);
    let kept = saved(late, &of_early) + saved(early, &of_late);
    if promised > 0.0 { kept / promised } else { 1.0 }
}

/// The gaps over all frames with routing, in rows: Σ max ÷ Σ mean, taken apart.
pub(crate) fn gaps(window: &Window, split: Option<&BestSplit>, map: &ExpertMap) -> Gaps {
    let experts = usize::from(map.experts);
    let slots = vec![0; window.ranks];
    let (mut most, mut mean) = (0.0, 0.0);
    let (mut routed_most, mut routed_best, mut routed_mean) = (0.0, 0.0, 0.0);
    for frame in &window.frames {
        for layer in 0..window.layers {
            let cells = &frame.rows[window.cells(layer)];
            let total: f64 = cells.iter().map(|rows| f64::from(*rows)).sum();
            let fullest = f64::from(cells.iter().copied().max().unwrap_or(0));
            most += fullest;
            mean += total / window.ranks as f64;
            let (Some(split), Some(rows)) = (split, frame.expert_rows.as_ref()) else { continue };
            let rows = &rows[layer * experts..(layer + 1) * experts];
            let by_rank = split.slots(layer, rows, &slots);
            let best = by_rank.iter().map(|rows| rows.iter().sum::<u32>()).max().unwrap_or(0);
            routed_most += fullest;
            // The measured split may beat a fixed one by luck of a step; the gap is at least 1.
            routed_best += f64::from(best).min(fullest);
            routed_mean += total / window.ranks as f64;
        }
    }
    let max_over_mean = if mean > 0.0 { most / mean } else { 1.0 };
    let dispatch = (routed_best > 0.0).then(|| routed_most / routed_best);
    let placement = (routed_best > 0.0 && routed_mean > 0.0).then(|| routed_best / routed_mean);
    Gaps {
        // Where routing was sampled, the three belong to the sampled steps: their product holds.
        max_over_mean: match (dispatch, placement) {
            (Some(dispatch), Some(placement)) => dispatch * placement,
            _ => max_over_mean,
        },
        dispatch_gap: dispatch,
        placement_gap: placement,
    }
}

/// Least time of the slowest rank in one layer under any map with as many slots, µs.
///
/// A copy costs at least one first tile for each activated expert, so the bound rests on tiles,
/// not on summed rows: the mean rank of "every activated expert on one copy", idle slots and
/// tokens spread evenly. By convexity of the curve no map's slowest rank is faster.
pub(crate) fn bound_us(
    curve: &ExpertCurve,
    expert_rows: &[u32],
    ranks: usize,
    slots_per_rank: f64,
    tokens: u32,
) -> f64 {
    let coefficients = curve.coefficients();
    let ranks_f = ranks as f64;
    let mut plain = curve.clone();
    plain.residual = evenkeel_cost::ResidualTable::default();
    let token_share = tokens / ranks.max(1) as u32;
    let floor = plain.rank_us(&[], 0);
    let all = plain.rank_us(expert_rows, token_share) - floor;
    let idle = (slots_per_rank - expert_rows.len() as f64 / ranks_f) * coefficients.slot_us;
    let spread_tokens = coefficients.token_us * f64::from(tokens) / ranks_f * (1.0 - 1.0 / ranks_f);
    let bound = floor + all / ranks_f + idle.max(0.0) + spread_tokens;
    if curve.residual.is_empty() {
        return bound;
    }
    let slots = slots_per_rank.round() as u32;
    let rows = expert_rows.iter().map(|rows| f64::from(*rows)).sum::<f64>();
    let rows_share = rows / ranks_f;
    bound * curve.residual.factor(slots, rows_share)
}

/// Lasting differences: `[layer * ranks + rank]` → mean expected expert time over the frames
/// `keep` takes, under the best split.
pub(crate) fn lasting(window: &Window, keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let mut sums = vec![0.0; window.layers * window.ranks];
    for (index, frame) in window.frames.iter().enumerate() {
        if keep(index) {
            for (cell, sum) in sums.iter_mut().enumerate() {
                *sum += best_split_ns(frame, cell);
            }
        }
    }
    sums
}

/// Expected expert time of a cell if the copies of this map were used as the best split does.
pub(crate) fn best_split_ns(frame: &Frame, cell: usize) -> f64 {
    let share = frame.split_share.as_ref().map_or(1.0, |share| share[cell]);
    frame.expects(Stage::Expert, cell) * share
}
