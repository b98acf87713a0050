//! One run in numbers, per slice and over all.

use crate::error::ProveError;
use crate::quantile::{Observation, Sorted};
use crate::sample::{NS_PER_MS, Request, Sample, TimedGap};
use crate::stalls::{Stalls, stalls};
use evenkeel_sim::Run;
use evenkeel_types::{Phase, Policy, Slice, SliceId};
use serde::{Deserialize, Serialize};

/// Largest difference in tokens per step between two records that are still "the same load".
pub(crate) const BATCH_DIFFERENCE_MAX_SHARE: f64 = 0.1;

/// Quantiles of a time, ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Observations (requests, or tokens where the name says ITL).
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    pub(crate) fn of(sorted: &Sorted) -> Option<Self> {
        Some(Self {
            count: sorted.total(),
            p50: sorted.quantile(500)?,
            p90: sorted.quantile(900)?,
            p99: sorted.quantile(990)?,
            p999: sorted.quantile(999)?,
            max: sorted.max()?,
        })
    }
}

/// A slice, or all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceMetrics {
    /// Slice; `None`: all requests.
    pub slice: Option<SliceId>,
    /// Tenant, and template where known. Comes from outside: escape it wherever it is shown.
    pub label: String,
    /// Requests seen.
    pub requests: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Requests whose objective is decided: ended, or missed already.
    pub due: u64,
    /// Requests that ended and met every objective of theirs.
    pub good: u64,
    /// Time per output token, request-weighted, ms. Counts tokens, never chunks.
    pub tpot_ms: Option<Spread>,
    /// Gap between tokens, token-weighted, ms. `None` where token times were not recorded.
    pub itl_ms: Option<Spread>,
    /// Time to first token, request-weighted, ms; requests that started warm have none.
    pub ttft_ms: Option<Spread>,
    /// `good ÷ due`.
    pub goodput_share: Option<f64>,
    /// `good` per second of the run.
    pub goodput_per_s: Option<f64>,
    /// Stalls that tokens of the slice waited in.
    pub stalls: Stalls,
    /// Preemptions.
    pub preemptions: u64,
    /// Mean quality score, where the record has scores.
    pub quality_score: Option<f64>,
}

/// What "utilisation" would say, and why it is not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Utilisation {
    /// Phase.
    pub phase: Phase,
    /// Share of the phase's step time in which the mean rank does not wait for another rank's
    /// experts. No verdict reads it.
    pub mean_rank_busy_share: f64,
    /// Share of step time lost to the slowest rank: `(slowest − mean) ÷ step`, all layers.
    pub lost_to_skew_share: f64,
    /// Most expert rows on a rank over the mean, averaged over layers and steps.
    pub rows_max_over_mean: f64,
    /// The warning that belongs beside the number.
    pub statement: String,
}

/// Steps of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepMetrics {
    /// Phase.
    pub phase: Phase,
    /// Real tokens.
    pub tokens: u64,
    /// Mean real tokens of a step.
    pub tokens_per_step: f64,
    /// Duration, step-weighted, ms.
    pub duration_ms: Spread,
}

/// One run in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunMetrics {
    /// Name of the run.
    pub name: String,
    /// Digest of its map.
    pub map_digest: String,
    /// Ranks.
    pub ranks: u16,
    /// Length, s.
    pub span_s: f64,
    /// All requests.
    pub overall: SliceMetrics,
    /// By slice, in slice order; slices without a request included.
    pub slices: Vec<SliceMetrics>,
    /// Steps by phase, where there are any.
    pub steps: Vec<StepMetrics>,
    /// Fewest KV blocks free on any rank over blocks of a rank, where recorded.
    pub kv_blocks_free_min_share: Option<f64>,
    /// Preemptions.
    pub preemptions: u64,
    /// Mean utilisation by phase, where expert times are known. Never evidence.
    pub utilisation: Vec<Utilisation>,
}

/// One run in numbers: what `replay` and reports print.
///
/// # Errors
/// A run that contradicts itself.
pub fn summary(run: &Run, slices: &[Slice], policy: &Policy) -> Result<RunMetrics, ProveError> {
    Ok(of_sample(run, &Sample::of(run, slices, policy)?, slices, policy))
}

pub(crate) fn of_sample(
    run: &Run,
    sample: &Sample,
    slices: &[Slice],
    policy: &Policy,
) -> RunMetrics {
    let stall_ms = policy.gate.stall_ms;
    let all = slice_metrics(None, "all requests".to_owned(), sample, stall_ms);
    let by_slice = slices.iter().enumerate().map(|(id, slice)| {
        slice_metrics(Some(SliceId(id as u16)), slice_label(slice), sample, stall_ms)
    });
    let blocks = run.totals.kv_blocks_per_rank;
    RunMetrics {
        name: run.name.clone(),
        map_digest: run.map_digest.clone(),
        ranks: run.ranks,
        span_s: sample.span_s(),
        overall: all,
        slices: by_slice.collect(),
        steps: Phase::ALL.iter().filter_map(|phase| step_metrics(run, *phase)).collect(),
        kv_blocks_free_min_share: (blocks > 0)
            .then(|| f64::from(run.totals.kv_blocks_free_min) / f64::from(blocks)),
        preemptions: run.totals.preemptions,
        utilisation: Phase::ALL.iter().filter_map(|phase| utilisation(run, *phase)).collect(),
    }
}

/// Tenant and template.
pub(crate) fn slice_label(slice: &Slice) -> String {
    if slice.template.is_empty() {
        slice.tenant.clone()
    } else {
        format!("{}/{}", slice.tenant, slice.template)
    }
}

fn spread_of(values: impl Iterator<Item = (f64, u64)>) -> Option<Spread> {
    let items = values.map(|(value, weight)| Observation { value, weight, atom: 0 });
    Spread::of(&Sorted::new(items.collect(), 1))
}

fn slice_metrics(
    slice: Option<SliceId>,
    label: String,
    sample: &Sample,
    stall_ms: f64,
) -> SliceMetrics {
    let mine = |id: SliceId| slice.is_none_or(|wanted| wanted == id);
    let requests: Vec<&Request> = sample.requests.iter().filter(|r| mine(r.slice)).collect();
    let gaps: Vec<TimedGap> = sample.gaps.iter().filter(|gap| mine(gap.slice)).copied().collect();
    let count = |keep: fn(&Request) -> bool| requests.iter().filter(|r| keep(r)).count() as u64;
    let (due, good) = (count(|r| r.due), count(|r| r.good));
    let scores: Vec<f64> = requests.iter().filter_map(|r| r.score).collect();
    let span_s = sample.span_s();
    SliceMetrics {
        slice,
        label,
        requests: requests.len() as u64,
        finished: count(|r| r.finished),
        due,
        good,
        tpot_ms: spread_of(requests.iter().filter_map(|r| r.tpot_ms).map(|v| (v, 1))),
        itl_ms: spread_of(
            gaps.iter().map(|gap| (gap.gap_ns as f64 / NS_PER_MS, u64::from(gap.tokens))),
        ),
        ttft_ms: spread_of(requests.iter().filter_map(|r| r.ttft_ms).map(|v| (v, 1))),
        goodput_share: (due > 0).then(|| good as f64 / due as f64),
        goodput_per_s: (span_s > 0.0).then(|| good as f64 / span_s),
        stalls: stalls(&gaps, sample.start_ns, stall_ms),
        preemptions: requests.iter().map(|r| u64::from(r.preemptions)).sum(),
        quality_score: (!scores.is_empty())
            .then(|| scores.iter().sum::<f64>() / scores.len() as f64),
    }
}

fn step_metrics(run: &Run, phase: Phase) -> Option<StepMetrics> {
    let steps = || run.steps.iter().filter(|step| step.phase == phase);
    let durations = steps().map(|step| ((step.end_ns - step.start_ns) as f64 / NS_PER_MS, 1));
    let duration_ms = spread_of(durations)?;
    let tokens: u64 = steps().map(|step| u64::from(step.tokens)).sum();
    let tokens_per_step = tokens as f64 / duration_ms.count as f64;
    Some(StepMetrics { phase, tokens, tokens_per_step, duration_ms })
}

fn utilisation(run: &Run, phase: Phase) -> Option<Utilisation> {
    let (mut total, mut lost, mut rows, mut steps) = (0.0, 0.0, 0.0, 0.0);
    for step in run.steps.iter().filter(|step| step.phase == phase && step.expert_slowest_ns > 0) {
        total += (step.end_ns - step.start_ns) as f64;
        lost += step.expert_slowest_ns.saturating_sub(step.expert_mean_ns) as f64;
        rows += step.rows_max_over_mean;
        steps += 1.0;
    }
    if total <= 0.0 {
        return None;
    }
    let lost_share = lost / total;
    let busy = 1.0 - lost_share;
    Some(Utilisation {
        phase,
        mean_rank_busy_share: busy,
        lost_to_skew_share: lost_share,
        rows_max_over_mean: rows / steps,
        statement: format!(
            "the mean rank looks {:.0} % busy in {phase} while {:.1} % of every step is spent \
             waiting for its slowest rank: a mean over ranks hides the one that all wait for, and \
             a wait inside an exchange kernel counts as work, so this number proves nothing",
            busy * 100.0,
            lost_share * 100.0
        ),
    })
}

/// Share of requests of one slice in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixShare {
    /// Slice.
    pub slice: SliceId,
    /// Tenant, and template where known.
    pub label: String,
    /// Share in the live run.
    pub live_share: f64,
    /// Share in the candidate's run.
    pub candidate_share: f64,
}

/// The mix of slices, by requests, in both runs: the same traffic or not?
#[must_use]
pub fn mix_of_runs(live: &Run, candidate: &Run, slices: &[Slice]) -> Vec<MixShare> {
    let share = |run: &Run, id: usize| {
        let own = run.requests.iter().filter(|request| request.slice.index() == id).count();
        own as f64 / run.requests.len().max(1) as f64
    };
    let rows = slices.iter().enumerate().map(|(id, slice)| MixShare {
        slice: SliceId(id as u16),
        label: slice_label(slice),
        live_share: share(live, id),
        candidate_share: share(candidate, id),
    });
    rows.collect()
}
