//! The gate: from two runs to a decision.

use crate::blocks::BlockLength;
use crate::compare::{Bench, Outcome, Statistic, change};
use crate::distribution::distributions;
use crate::error::ProveError;
use crate::input::{BothRuns, Design, DrawOutcome, GateInput, Pair};
use crate::interval::alpha_of_look;
use crate::judge::{
    QUALITY_LOSS_MAX, judge_comparability, judge_draws, judge_kv, judge_record, judge_rows,
    judge_sameness, judge_stalls, reason,
};
use crate::metrics::of_sample;
use crate::sample::{Request, Sample};
use crate::verdict::{BlockDesign, Decision, Metric, Reason, SamenessReport, Standing, Verdict};
use evenkeel_sim::Run;
use evenkeel_types::{Phase, Policy, Slice, SliceId};

/// Largest total variation between the routers' choices of a pair, averaged over layers: the
/// same jobs under both maps choose the same experts but for the few still running at the end.
pub(crate) const CHOICE_SHIFT_MAX: f64 = 0.02;

/// Fewest replicates that an interval is read from.
const REPLICATES_MIN: u32 = 200;

/// Judges a candidate map by two runs.
///
/// # Errors
/// Runs or settings that contradict themselves. Too little data is a verdict, not an error.
pub fn gate(input: &GateInput) -> Result<Verdict, ProveError> {
    check_settings(input)?;
    let live = Sample::of(input.pair.live, input.slices, input.policy)?;
    let candidate = Sample::of(input.pair.candidate, input.slices, input.policy)?;
    let unpaired = || candidate.requests.iter().all(|request| live.find(request.job).is_none());
    let both = !live.requests.is_empty() && !candidate.requests.is_empty();
    if input.design == Design::Paired && both && unpaired() {
        return Err(ProveError::NoCommonJob {
            live: input.pair.live.name.clone(),
            candidate: input.pair.candidate.name.clone(),
        });
    }
    let aa = match input.aa {
        Some(run) => Some(Sample::of(run, input.slices, input.policy)?),
        None => None,
    };
    Ok(judge(input, &live, &candidate, aa.as_ref(), Extent::Whole))
}

fn check_settings(input: &GateInput) -> Result<(), ProveError> {
    if input.replicates < REPLICATES_MIN {
        return Err(ProveError::Setting {
            field: "replicates",
            value: f64::from(input.replicates),
            expected: "200 or more",
        });
    }
    let confidence = input.policy.gate.confidence;
    if !(confidence > 0.5 && confidence < 1.0) {
        return Err(ProveError::Setting {
            field: "gate.confidence",
            value: confidence,
            expected: "a share between 0.5 and 1",
        });
    }
    Ok(())
}

/// How much of a verdict is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything that is shown.
    Whole,
    /// Only what decides.
    Deciding,
}

/// The gate on samples already read.
pub(crate) fn judge(
    input: &GateInput,
    live: &Sample,
    candidate: &Sample,
    aa: Option<&Sample>,
    extent: Extent,
) -> Verdict {
    let length = BlockLength::of([live, candidate]);
    let blocks = length.count(live).min(length.count(candidate));
    let alpha = alpha_of_look(1.0 - input.policy.gate.confidence, input.look);
    let metrics = |run, sample| of_sample(run, sample, input.slices, input.policy);
    let runs = BothRuns {
        live: metrics(input.pair.live, live),
        candidate: metrics(input.pair.candidate, candidate),
    };
    let mut verdict = Verdict {
        decision: Decision::Withheld,
        modelled: input.modelled,
        label: String::new(),
        design: input.design,
        reasons: Vec::new(),
        metrics: Vec::new(),
        draws: input.draws.to_vec(),
        resampling: BlockDesign {
            block_ms: length.block_ms(),
            blocks,
            autocorrelation_ms: length.autocorrelation_ns / 1e6,
            request_life_ms: length.life_ns / 1e6,
            replicates: input.replicates,
            confidence: input.policy.gate.confidence,
            alpha,
            look: input.look,
            seed: input.seed,
        },
        distributions: distributions(
            (input.pair.live, input.pair.candidate),
            (live, candidate),
            input.slices.len(),
        ),
        runs,
        sameness: SamenessReport::default(),
        kv: input.kv,
        aa_change_share: None,
        notes: input.model_notes.to_vec(),
    };
    if input.breaches.is_empty() {
        let bench = Bench::new(input.design, live, candidate, &length);
        let mut statistics = deciding(input, &bench);
        if extent == Extent::Whole {
            statistics.extend(shown(&bench));
        }
        let mut rows = bench.run(statistics, input.replicates, alpha, input.seed);
        verdict.aa_change_share = aa.and_then(|aa| p99_change(Design::Independent, live, aa));
        verdict.reasons = reasons(input, &mut verdict, &mut rows, alpha);
        verdict.metrics = rows.into_iter().map(|row| row.comparison).collect();
        verdict.decision = decide(&mut verdict.reasons, &verdict.metrics, input);
    } else {
        verdict.reasons = input
            .breaches
            .iter()
            .map(|breach| Reason {
                decided: true,
                ..reason(Metric::Record, Standing::Broken, format!("a law fails: {breach}"))
            })
            .collect();
    }
    let modelled = if input.modelled { " (modelled)" } else { "" };
    verdict.label = format!("{}{modelled}", verdict.decision);
    verdict
}

fn tpot(request: &Request) -> Option<f64> {
    request.tpot_ms
}

/// Every comparison that decides.
fn deciding(input: &GateInput, bench: &Bench) -> Vec<Statistic> {
    let gate = &input.policy.gate;
    let gain = Some(-gate.tpot_p99_gain_min_share);
    let mut all = vec![
        bench.request_quantile(Metric::TpotP99, None, 990, tpot, gain),
        bench.goodput(None, -gate.goodput_loss_max_share),
        bench.quality(None, -QUALITY_LOSS_MAX),
    ];
    for slice in (0..input.slices.len()).map(|id| Some(SliceId(id as u16))) {
        let loss = Some(gate.slice_loss_max_share);
        all.push(bench.request_quantile(Metric::TpotP99, slice, 990, tpot, loss));
        all.push(bench.goodput(slice, -gate.goodput_loss_max_share));
        all.push(bench.quality(slice, -QUALITY_LOSS_MAX));
    }
    all
}

/// Every comparison that is shown beside them.
fn shown(bench: &Bench) -> Vec<Statistic> {
    let mut all = bench.gap_quantiles(&[(Metric::ItlP99, 990), (Metric::ItlP999, 999)]);
    all.push(bench.request_quantile(Metric::TpotP50, None, 500, tpot, None));
    all.push(bench.request_quantile(Metric::TpotP90, None, 900, tpot, None));
    all.push(bench.request_quantile(Metric::TtftP99, None, 990, |r| r.ttft_ms, None));
    all
}

fn reasons(
    input: &GateInput,
    verdict: &mut Verdict,
    rows: &mut [Outcome],
    alpha: f64,
) -> Vec<Reason> {
    let (live, candidate) = (&verdict.runs.live, &verdict.runs.candidate);
    let gain = rows
        .iter()
        .find(|r| r.comparison.metric == Metric::TpotP99 && r.comparison.slice.is_none());
    let gain = gain.map(|row| row.comparison.clone());
    let requests = gain.as_ref().map_or([0, 0], |row| [row.live_count, row.candidate_count]);
    let choice = verdict.distributions.expert_choice.iter().find(|c| c.phase == Phase::Decode);
    let mut all = vec![judge_record(input, requests, verdict.resampling.blocks)];
    all.extend(judge_rows(input, rows, alpha));
    all.push(judge_stalls(input, live, candidate, alpha));
    all.push(judge_kv(input));
    let (sameness, report) = judge_sameness(input, rows, alpha);
    all.push(sameness);
    let shift = choice.map(|c| c.total_variation);
    all.extend(judge_comparability(input, live, candidate, shift));
    let change = gain.map(|row| row.change_share);
    all.extend(judge_aa(input, verdict.aa_change_share, change));
    all.extend(judge_draws(input, change));
    verdict.sameness = report;
    all
}

/// Between independent records time itself changes p99; a gain must be more than that.
fn judge_aa(input: &GateInput, aa: Option<f64>, change: Option<f64>) -> Option<Reason> {
    let (aa, change) = (aa?, change?);
    if input.design == Design::Paired {
        return None;
    }
    let above = change < -aa.abs();
    let statement = format!(
        "two records on the live map differ by {:+.1} % in p99 TPOT, the candidate by {:+.1} %",
        aa * 100.0,
        change * 100.0
    );
    let standing = if above { Standing::Kept } else { Standing::Open };
    Some(reason(Metric::Comparability, standing, statement))
}

/// From requirements to the decision; marks the reasons that made it and puts them first.
fn decide(
    reasons: &mut [Reason],
    rows: &[crate::verdict::Comparison],
    input: &GateInput,
) -> Decision {
    let record_open =
        reasons.iter().any(|r| r.metric == Metric::Record && r.standing == Standing::Open);
    // On too small a record only facts break a requirement, never an interval.
    let fact =
        |metric: Metric| matches!(metric, Metric::Sameness | Metric::KvHeadroom | Metric::Stalls);
    let is_gain = |r: &Reason| r.metric == Metric::TpotP99 && r.slice.is_none();
    let broken = |r: &Reason| {
        r.standing == Standing::Broken
            && r.metric != Metric::ModelDraws
            && (fact(r.metric) || !record_open)
    };
    let draws = |r: &Reason| r.metric == Metric::ModelDraws && r.standing != Standing::Kept;
    let open = |r: &Reason| r.standing == Standing::Open && r.metric != Metric::ModelDraws;
    let harm = reasons.iter().any(|r| broken(r) && !is_gain(r));
    let no_gain = reasons.iter().any(|r| broken(r) && is_gain(r));
    let open_any = record_open || reasons.iter().any(open);
    let unsettled = reasons.iter().any(draws);
    let decision = if harm {
        Decision::Reject
    } else if no_gain && claims_a_gain(rows, input) {
        Decision::CannotTell
    } else if no_gain {
        Decision::Reject
    } else if open_any {
        Decision::NeedMoreData
    } else if unsettled {
        Decision::CannotTell
    } else {
        Decision::Accept
    };
    for reason in reasons.iter_mut() {
        reason.decided = match decision {
            Decision::Reject => broken(reason),
            Decision::NeedMoreData => open(reason),
            Decision::CannotTell => reason.metric == Metric::ModelDraws || broken(reason),
            Decision::Accept => reason.standing == Standing::Kept,
            Decision::Withheld => false,
        };
    }
    reasons.sort_by_key(|reason| !reason.decided);
    decision
}

/// The run says "worse", a draw of the model says "better by enough": the sign is not settled.
fn claims_a_gain(rows: &[crate::verdict::Comparison], input: &GateInput) -> bool {
    let wanted = input.policy.gate.tpot_p99_gain_min_share;
    let worse = rows
        .iter()
        .any(|row| row.metric == Metric::TpotP99 && row.slice.is_none() && row.change_share > 0.0);
    worse
        && input.draws.iter().any(|draw| draw.change_share.is_some_and(|c| c < 0.0 && c <= -wanted))
}

/// p99 TPOT of a pair replayed under one draw of the model's shared parameters. Keep the outcome,
/// drop the runs.
///
/// # Errors
/// Runs that contradict themselves.
pub fn draw_outcome(
    name: &str,
    pair: Pair,
    slices: &[Slice],
    policy: &Policy,
) -> Result<DrawOutcome, ProveError> {
    let read = |run: &Run| Sample::of(run, slices, policy);
    let (live, candidate) = (read(pair.live)?, read(pair.candidate)?);
    Ok(DrawOutcome {
        name: name.to_owned(),
        change_share: p99_change(Design::Paired, &live, &candidate),
    })
}

pub(crate) fn p99_change(design: Design, live: &Sample, candidate: &Sample) -> Option<f64> {
    let length = BlockLength { block_ns: 1e9, autocorrelation_ns: 0.0, life_ns: 0.0 };
    let bench = Bench::new(design, live, candidate, &length);
    let (live, candidate) =
        bench.request_quantile(Metric::TpotP99, None, 990, tpot, None).values()?;
    Some(change(Metric::TpotP99, live, candidate))
}
