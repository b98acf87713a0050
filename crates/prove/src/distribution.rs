//! Distributions before and after: TPOT, rows per rank, choices per expert.

use crate::sample::Sample;
use evenkeel_sim::Run;
use evenkeel_types::{Phase, SliceId};
use serde::{Deserialize, Serialize};

/// Bins of a TPOT histogram.
pub const TPOT_BINS: usize = 48;

/// Histogram of request TPOT under both maps, on the same edges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpotHistogram {
    /// Slice; `None`: all requests.
    pub slice: Option<SliceId>,
    /// `TPOT_BINS + 1` edges, ms, rising; a value on an edge belongs to the bin above it, the
    /// last edge to the last bin.
    pub edges_ms: Vec<f64>,
    /// `[bin]`: requests under the live map.
    pub live: Vec<u64>,
    /// `[bin]`: requests under the candidate map.
    pub candidate: Vec<u64>,
}

/// Rows per rank under one map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankLoad {
    /// `[rank]`: the rank's share of expert rows, averaged over layers.
    pub share: Vec<f64>,
    /// Most rows on a rank over the mean, per layer, then averaged over layers.
    pub max_over_mean: f64,
    /// The same of the worst layer.
    pub max_over_mean_worst: f64,
    /// The worst layer.
    pub worst_layer: u16,
}

/// Rows per rank, before and after, in one phase. Summed over the run: no step's skew is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankLoadShift {
    /// Phase.
    pub phase: Phase,
    /// Live.
    pub live: RankLoad,
    /// Candidate.
    pub candidate: RankLoad,
    /// Total variation between both distributions over ranks, averaged over layers. `None` where
    /// the runs have different ranks.
    pub total_variation: Option<f64>,
}

/// Expert choices, before and after, in one phase: the router's doing, so a map must not move it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertChoiceShift {
    /// Phase.
    pub phase: Phase,
    /// Choices under the live map.
    pub live_choices: u64,
    /// Choices under the candidate map.
    pub candidate_choices: u64,
    /// Total variation between both distributions over experts, averaged over layers.
    pub total_variation: f64,
    /// The same of the worst layer.
    pub total_variation_worst: f64,
    /// The worst layer.
    pub worst_layer: u16,
}

/// All distributions of a verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distributions {
    /// TPOT, all requests first, then slices with any.
    pub tpot: Vec<TpotHistogram>,
    /// Rows per rank by phase, where recorded.
    pub rank_load: Vec<RankLoadShift>,
    /// Choices per expert by phase, where recorded.
    pub expert_choice: Vec<ExpertChoiceShift>,
}

pub(crate) fn distributions(
    runs: (&Run, &Run),
    samples: (&Sample, &Sample),
    slices: usize,
) -> Distributions {
    let (live, candidate) = runs;
    let ids = std::iter::once(None).chain((0..slices).map(|id| Some(SliceId(id as u16))));
    Distributions {
        tpot: ids.filter_map(|slice| tpot_histogram(slice, samples)).collect(),
        rank_load: Phase::ALL.iter().filter_map(|p| rank_load_shift(live, candidate, *p)).collect(),
        expert_choice: Phase::ALL
            .iter()
            .filter_map(|p| choice_shift(live, candidate, *p))
            .collect(),
    }
}

fn tpot_histogram(slice: Option<SliceId>, samples: (&Sample, &Sample)) -> Option<TpotHistogram> {
    let values = |sample: &Sample| -> Vec<f64> {
        let mine = sample.requests.iter().filter(|r| slice.is_none_or(|wanted| wanted == r.slice));
        mine.filter_map(|request| request.tpot_ms).collect()
    };
    let (live, candidate) = (values(samples.0), values(samples.1));
    let all = || live.iter().chain(&candidate).copied();
    let (low, high) = (all().min_by(f64::total_cmp)?, all().max_by(f64::total_cmp)?);
    let width = ((high - low) / TPOT_BINS as f64).max(f64::MIN_POSITIVE);
    let count = |values: &[f64]| {
        let mut bins = vec![0; TPOT_BINS];
        for value in values {
            bins[(((value - low) / width) as usize).min(TPOT_BINS - 1)] += 1;
        }
        bins
    };
    Some(TpotHistogram {
        slice,
        edges_ms: (0..=TPOT_BINS).map(|bin| low + width * bin as f64).collect(),
        live: count(&live),
        candidate: count(&candidate),
    })
}

/// Shares within each row of `width`; rows without any count are left out.
fn rows_of_shares(counts: &[u64], width: usize) -> Vec<(usize, Vec<f64>)> {
    if width == 0 {
        return Vec::new();
    }
    let rows = counts.chunks_exact(width).enumerate().filter_map(|(row, counts)| {
        let total: u64 = counts.iter().sum();
        (total > 0).then(|| (row, counts.iter().map(|c| *c as f64 / total as f64).collect()))
    });
    rows.collect()
}

fn total_variation(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

fn rank_load(rows: &[(usize, Vec<f64>)], ranks: usize) -> Option<RankLoad> {
    let max_over_mean = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max) * ranks as f64;
    let (worst_layer, worst) = rows
        .iter()
        .map(|(layer, shares)| (*layer, max_over_mean(shares)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(RankLoad {
        share: (0..ranks).map(|rank| mean(rows.iter().map(|(_, shares)| shares[rank]))).collect(),
        max_over_mean: mean(rows.iter().map(|(_, shares)| max_over_mean(shares))),
        max_over_mean_worst: worst,
        worst_layer: worst_layer as u16,
    })
}

fn rank_load_shift(live: &Run, candidate: &Run, phase: Phase) -> Option<RankLoadShift> {
    let rows =
        |run: &Run| rows_of_shares(&run.totals.rank_rows[phase.index()], usize::from(run.ranks));
    let (before, after) = (rows(live), rows(candidate));
    let comparable = live.ranks == candidate.ranks && before.len() == after.len();
    Some(RankLoadShift {
        phase,
        live: rank_load(&before, usize::from(live.ranks))?,
        candidate: rank_load(&after, usize::from(candidate.ranks))?,
        total_variation: comparable
            .then(|| mean(before.iter().zip(&after).map(|(a, b)| total_variation(&a.1, &b.1)))),
    })
}

fn choice_shift(live: &Run, candidate: &Run, phase: Phase) -> Option<ExpertChoiceShift> {
    let layers = |run: &Run| match usize::from(run.ranks) {
        0 => 0,
        ranks => run.totals.rank_rows[phase.index()].len() / ranks,
    };
    let (a, b) = (
        &live.totals.expert_choices[phase.index()],
        &candidate.totals.expert_choices[phase.index()],
    );
    let layer_count = layers(live);
    if layer_count == 0 || layer_count != layers(candidate) || a.len() != b.len() {
        return None;
    }
    let width = a.len() / layer_count;
    let (before, after) = (rows_of_shares(a, width), rows_of_shares(b, width));
    let both: Vec<(usize, f64)> =
        before.iter().zip(&after).map(|(x, y)| (x.0, total_variation(&x.1, &y.1))).collect();
    let (worst_layer, worst) = both.iter().copied().max_by(|x, y| x.1.total_cmp(&y.1))?;
    Some(ExpertChoiceShift {
        phase,
        live_choices: a.iter().sum(),
        candidate_choices: b.iter().sum(),
        total_variation: mean(both.iter().map(|(_, distance)| *distance)),
        total_variation_worst: worst,
        worst_layer: worst_layer as u16,
    })
}
