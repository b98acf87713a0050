//! Each requirement on its own: kept, broken or open, with the numbers in words.

use crate::blocks::BLOCKS_MIN;
use crate::compare::Outcome;
use crate::input::{Design, DrawOutcome, GateInput};
use crate::interval::{binomial_at_least, holm};
use crate::metrics::{BATCH_DIFFERENCE_MAX_SHARE, RunMetrics, slice_label};
use crate::verdict::{Comparison, Metric, Reason, SamenessLevel, SamenessReport, Standing};
use evenkeel_types::SliceId;

/// Fewest requests of a slice under each map for its p99: of fewer the p99 is the largest value.
pub const SLICE_REQUESTS_MIN: u64 = 100;

/// Largest loss of the mean quality score (scale 0 to 1) that still counts as not inferior.
pub const QUALITY_LOSS_MAX: f64 = 0.01;

/// Words for one requirement.
pub(crate) fn reason(metric: Metric, standing: Standing, statement: String) -> Reason {
    Reason { metric, slice: None, standing, statement, decided: false }
}

/// Name of a slice in a sentence.
fn named(input: &GateInput, slice: Option<SliceId>) -> String {
    match slice.and_then(|id| input.slices.get(id.index())) {
        Some(slice) => format!("slice {}", slice_label(slice)),
        None => "all requests".to_owned(),
    }
}

fn percent(share: f64) -> String {
    // Never "−0.0 %": a change that rounds to nothing has no sign.
    let rounded = (share * 1000.0).round() / 10.0 + 0.0;
    format!("{rounded:+.1} %")
}

/// A change in the unit of its metric: percent of a time, points of a share or score.
fn changed(metric: Metric, change: f64) -> String {
    match metric {
        Metric::Goodput | Metric::Quality => percent(change).replace('%', "points"),
        _ => percent(change),
    }
}

/// `p99 TPOT, slice x: 21.400 → 19.800 ms, -7.5 % [-9.0 %, -5.8 %] at 95 % (3200 and 3200
/// requests)`.
fn numbers(input: &GateInput, row: &Comparison) -> String {
    let values = match row.metric {
        Metric::Goodput | Metric::Quality => {
            format!("{:.1} → {:.1} %", row.live * 100.0, row.candidate * 100.0)
        }
        _ => format!("{:.3} → {:.3} {}", row.live, row.candidate, row.unit),
    };
    let confidence = format!("{:.3}", row.confidence * 100.0);
    format!(
        "{}, {}: {values}, {} [{}, {}] at {} % ({} and {} {}s)",
        row.metric,
        named(input, row.slice),
        changed(row.metric, row.change_share),
        changed(row.metric, row.interval[0]),
        changed(row.metric, row.interval[1]),
        confidence.trim_end_matches('0').trim_end_matches('.'),
        row.live_count,
        row.candidate_count,
        row.weighting,
    )
}

/// Decides every comparison that has a limit, and says so. Rows are changed in place.
pub(crate) fn judge_rows(input: &GateInput, rows: &mut [Outcome], alpha: f64) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for metric in [Metric::TpotP99, Metric::Goodput, Metric::Quality] {
        // Harm is claimed where *any* slice shows it: that needs Holm's correction. Acceptance
        // needs *every* slice to show no harm: an intersection of tests needs none (Berger 1982).
        let family: Vec<usize> = (0..rows.len())
            .filter(|at| {
                let row = &rows[*at].comparison;
                row.metric == metric && row.limit.is_some() && !is_gain(row)
            })
            .collect();
        let p_values: Vec<f64> =
            family.iter().map(|at| rows[*at].comparison.harm_p.unwrap_or(1.0)).collect();
        let harmed = holm(&p_values, alpha / 2.0);
        for (at, harmed) in family.into_iter().zip(harmed) {
            reasons.push(judge_harm(input, &mut rows[at], harmed));
        }
    }
    for row in rows.iter_mut().filter(|row| is_gain(&row.comparison)) {
        reasons.push(judge_gain(input, row));
    }
    reasons
}

/// Fewest blocks on which harm is named. Fewer than an acceptance needs: the intervals are stretched
/// for few blocks by their t distribution, and harm beyond even those needs no further proof.
const HARM_BLOCKS_MIN: f64 = 3.0;

fn is_gain(row: &Comparison) -> bool {
    row.metric == Metric::TpotP99 && row.slice.is_none()
}

fn judge_gain(input: &GateInput, row: &mut Outcome) -> Reason {
    let wanted = input.policy.gate.tpot_p99_gain_min_share;
    let [low, high] = row.comparison.interval;
    let change = row.comparison.change_share;
    let text = numbers(input, &row.comparison);
    let unchanged = high - low <= 0.0 && change.abs() <= 0.0;
    let worse = low > 0.0 && row.blocks >= HARM_BLOCKS_MIN;
    let (standing, words) = if row.blocks < f64::from(BLOCKS_MIN) && !unchanged && !worse {
        (Standing::Open, few_blocks(row.blocks))
    } else if change <= -wanted && high < 0.0 {
        (Standing::Kept, format!("a gain of {:.1} % or more is demanded and seen", wanted * 100.0))
    } else if low > -wanted || low >= 0.0 {
        let words = if low > 0.0 {
            "it is worse".to_owned()
        } else if unchanged {
            "no gain: nothing changed".to_owned()
        } else {
            format!(
                "no sufficient gain: at most {:.1} %, {:.1} % is demanded",
                -low * 100.0 + 0.0,
                wanted * 100.0
            )
        };
        (Standing::Broken, words)
    } else {
        let words = format!("whether a gain of {:.1} % is there is not shown yet", wanted * 100.0);
        (Standing::Open, words)
    };
    row.comparison.standing = standing;
    Reason { slice: None, ..reason(Metric::TpotP99, standing, format!("{text}: {words}")) }
}

fn few_blocks(blocks: f64) -> String {
    format!("spread over {blocks:.1} blocks of time, expected at least {BLOCKS_MIN}")
}

fn judge_harm(input: &GateInput, row: &mut Outcome, harmed: bool) -> Reason {
    let outcome = &row.comparison;
    let limit = outcome.limit.unwrap_or(0.0);
    let limit_text = changed(outcome.metric, limit);
    let [low, high] = outcome.interval;
    let kept = match outcome.metric {
        Metric::TpotP99 => high <= limit,
        _ => low >= limit,
    };
    let seen = outcome.live_count.min(outcome.candidate_count);
    let few = outcome.slice.is_some() && seen < SLICE_REQUESTS_MIN;
    let (standing, words) = if few && outcome.metric == Metric::TpotP99 {
        let words = format!("too few requests for a p99, expected {SLICE_REQUESTS_MIN}");
        (Standing::Open, words)
    } else if harmed && row.blocks >= HARM_BLOCKS_MIN {
        (Standing::Broken, format!("worse than the limit of {limit_text} for certain"))
    } else if row.blocks < f64::from(BLOCKS_MIN) {
        (Standing::Open, few_blocks(row.blocks))
    } else if kept {
        (Standing::Kept, format!("within the limit of {limit_text}"))
    } else {
        (Standing::Open, format!("a loss beyond {limit_text} is not excluded yet"))
    };
    let (metric, slice) = (outcome.metric, outcome.slice);
    let statement = format!("{}: {words}", numbers(input, outcome));
    row.comparison.standing = standing;
    Reason { slice, ..reason(metric, standing, statement) }
}

/// Enough requests, over enough blocks of time?
pub(crate) fn judge_record(input: &GateInput, requests: [u64; 2], blocks: u32) -> Reason {
    let wanted = u64::from(input.policy.gate.requests_min);
    let [live, candidate] = requests;
    let enough = live.min(candidate) >= wanted && blocks >= BLOCKS_MIN;
    let statement = format!(
        "{live} and {candidate} requests with a TPOT over {blocks} blocks of time; {wanted} \
         requests and {BLOCKS_MIN} blocks are the least"
    );
    let standing = if enough { Standing::Kept } else { Standing::Open };
    reason(Metric::Record, standing, statement)
}

/// New stalls?
pub(crate) fn judge_stalls(
    input: &GateInput,
    live: &RunMetrics,
    candidate: &RunMetrics,
    alpha: f64,
) -> Reason {
    let (before, after) = (&live.overall.stalls, &candidate.overall.stalls);
    let threshold = input.policy.gate.stall_ms;
    if !before.seen || !after.seen {
        let statement = "token times are not recorded under both maps, so a stall cannot be \
                         excluded"
            .to_owned();
        return reason(Metric::Stalls, Standing::Open, statement);
    }
    let numbers = format!(
        "gaps above {threshold:.0} ms: {} → {} events in {:.0} and {:.0} s, {:.1} → {:.1} s stood \
         still, largest gap {:.1} → {:.1} ms",
        before.events,
        after.events,
        live.span_s,
        candidate.span_s,
        before.lost_ms / 1e3,
        after.lost_ms / 1e3,
        before.gap_max_ms,
        after.gap_max_ms,
    );
    let exposure = candidate.span_s / (live.span_s + candidate.span_s).max(f64::MIN_POSITIVE);
    let more = match input.design {
        Design::Paired => after.events > before.events,
        Design::Independent => {
            after.events as f64 * live.span_s > before.events as f64 * candidate.span_s
        }
    };
    let certain = input.design == Design::Paired
        || before.events == 0
        || binomial_at_least(after.events, before.events + after.events, exposure) <= alpha / 2.0;
    let (standing, words) = match (more, certain) {
        (false, _) => (Standing::Kept, "no new stall"),
        (true, true) => (Standing::Broken, "new stalls"),
        (true, false) => (Standing::Open, "more stalls, but no more than chance may bring"),
    };
    reason(Metric::Stalls, standing, format!("{numbers}: {words}"))
}

/// KV memory against the floor.
pub(crate) fn judge_kv(input: &GateInput) -> Reason {
    let floor = input.policy.memory.kv_floor_share;
    let Some(share) = input.kv.candidate_share else {
        let statement = "KV headroom under the candidate map is not known".to_owned();
        return reason(Metric::KvHeadroom, Standing::Open, statement);
    };
    let before = input
        .kv
        .live_share
        .map_or_else(|| "unknown".to_owned(), |live| format!("{:.1} %", live * 100.0));
    let standing = if share >= floor { Standing::Kept } else { Standing::Broken };
    let statement = format!(
        "memory left for KV blocks on the tightest rank: {before} → {:.1} %, floor {:.1} %",
        share * 100.0,
        floor * 100.0
    );
    reason(Metric::KvHeadroom, standing, statement)
}

/// Sameness levels on the evidence given; L0 is demanded.
pub(crate) fn judge_sameness(
    input: &GateInput,
    rows: &[Outcome],
    alpha: f64,
) -> (Reason, SamenessReport) {
    let evidence = &input.sameness;
    let misplaced_rows = input.pair.candidate.totals.misplaced_rows;
    let exact = evidence.map_violations.is_empty() && misplaced_rows == 0;
    let mut levels = Vec::new();
    if evidence.map_checked && exact {
        levels.push(SamenessLevel::L0);
    }
    let mut words = vec![match (evidence.map_checked, exact) {
        (true, true) => "map checked, every row run by one of its copies".to_owned(),
        (false, true) => "the candidate map was not checked".to_owned(),
        (_, false) => format!(
            "{} violations of the map laws{}, {misplaced_rows} misplaced rows",
            evidence.map_violations.len(),
            evidence.map_violations.first().map(|v| format!(" (first: {v})")).unwrap_or_default()
        ),
    }];
    match &evidence.outputs {
        Some(outputs) if outputs.compared > 0 => {
            let noise = outputs.aa_different as f64 / outputs.aa_compared.max(1) as f64;
            words.push(format!(
                "{} of {} outputs differ, {} of {} between two runs on the live map",
                outputs.different, outputs.compared, outputs.aa_different, outputs.aa_compared
            ));
            if outputs.different == 0 {
                levels.push(SamenessLevel::L1);
            }
            let above = binomial_at_least(outputs.different, outputs.compared, noise);
            if outputs.aa_compared > 0 && above > alpha / 2.0 {
                levels.push(SamenessLevel::L2);
            }
        }
        _ => words.push("outputs not compared".to_owned()),
    }
    let mut scores = rows.iter().filter(|row| row.comparison.metric == Metric::Quality).peekable();
    if scores.peek().is_some() && scores.all(|row| row.comparison.standing == Standing::Kept) {
        levels.push(SamenessLevel::L3);
    }
    let standing = match (exact, evidence.map_checked) {
        (false, _) => Standing::Broken,
        (true, true) => Standing::Kept,
        (true, false) => Standing::Open,
    };
    let statement = words.join("; ");
    let report = SamenessReport {
        levels,
        map_violations: evidence.map_violations.clone(),
        misplaced_rows,
        statement: statement.clone(),
    };
    (reason(Metric::Sameness, standing, statement), report)
}

/// Does the sign of the gain hold under the model's shared uncertainty? `None` where the times
/// are measured.
pub(crate) fn judge_draws(input: &GateInput, change: Option<f64>) -> Option<Reason> {
    if input.draws.is_empty() {
        return input.modelled.then(|| {
            let statement = "no draw of the model's shared parameters was replayed, so the error \
                             of the difference is not known"
                .to_owned();
            reason(Metric::ModelDraws, Standing::Open, statement)
        });
    }
    let change = change?;
    let flips = |draw: &&DrawOutcome| draw.change_share.is_none_or(|other| opposite(change, other));
    let flipped: Vec<&DrawOutcome> = input.draws.iter().filter(flips).collect();
    let shares = || input.draws.iter().filter_map(|draw| draw.change_share);
    let range = shares().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
    let numbers = format!(
        "p99 TPOT changes by {} to {} over {} draws of the model's shared parameters",
        percent(range.0),
        percent(range.1),
        input.draws.len()
    );
    Some(match flipped.first() {
        None => reason(Metric::ModelDraws, Standing::Kept, format!("{numbers}: its sign holds")),
        Some(first) => {
            let words = format!("the sign flips in {} (first: {})", flipped.len(), first.name);
            reason(Metric::ModelDraws, Standing::Broken, format!("{numbers}: {words}"))
        }
    })
}

/// A gain on one side, none on the other.
fn opposite(a: f64, b: f64) -> bool {
    (a < 0.0) != (b < 0.0)
}

/// Can the two runs be compared? One reason for each doubt.
pub(crate) fn judge_comparability(
    input: &GateInput,
    live: &RunMetrics,
    candidate: &RunMetrics,
    choice_shift: Option<f64>,
) -> Vec<Reason> {
    let mut doubts = Vec::new();
    let mut doubt =
        |statement| doubts.push(reason(Metric::Comparability, Standing::Open, statement));
    if input.design == Design::Paired {
        if let Some(distance) = choice_shift.filter(|d| *d > crate::gate::CHOICE_SHIFT_MAX) {
            doubt(format!(
                "the routers' choices differ by {:.1} % (total variation over experts, decode): \
                 not the same traffic, or the router was overruled",
                distance * 100.0
            ));
        }
        return doubts;
    }
    for (before, after) in live.steps.iter().zip(&candidate.steps) {
        let ratio = after.tokens_per_step / before.tokens_per_step.max(f64::MIN_POSITIVE);
        if before.phase == after.phase && (ratio - 1.0).abs() > BATCH_DIFFERENCE_MAX_SHARE {
            doubt(format!(
                "{} steps hold {:.1} and {:.1} tokens: not the same load, and a smaller batch is \
                 faster on any map",
                before.phase, before.tokens_per_step, after.tokens_per_step
            ));
        }
    }
    for (before, after) in live.slices.iter().zip(&candidate.slices) {
        if (before.finished == 0) != (after.finished == 0) {
            doubt(format!("slice {} has requests under one map only", before.label));
        }
    }
    doubts
}
