//! Results of the libraries as the report's view model. Used by the demonstration and by verbs that
//! leave a picture.

use evenkeel_cost::StepModel;
use evenkeel_diagnose::{Cause, CauseKind, Diagnosis};
use evenkeel_prove::{Decision, Metric, Reason, Standing, Verdict};
use evenkeel_report::{
    CauseView, Comparison, CurveNote, DiagnosisView, RankSpans, StepWaterfall, Tone, fmt,
};
use evenkeel_trace::StepRecord;
use evenkeel_types::{Phase, Slice};

/// A time in ms, or a dash.
pub(crate) fn ms_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), fmt::ms)
}

/// How a decision leans.
pub(crate) fn tone(decision: Decision) -> Tone {
    match decision {
        Decision::Accept => Tone::Good,
        Decision::Reject => Tone::Bad,
        Decision::NeedMoreData | Decision::CannotTell | Decision::Withheld => Tone::Unsure,
    }
}

/// How a requirement leans.
pub(crate) fn standing_tone(standing: Standing) -> Tone {
    match standing {
        Standing::Kept => Tone::Good,
        Standing::Broken => Tone::Bad,
        Standing::Open => Tone::Unsure,
        Standing::Shown => Tone::Neutral,
    }
}

/// The name of a slice, or of all of them.
pub(crate) fn slice_name(slices: &[Slice], slice: Option<evenkeel_types::SliceId>) -> String {
    match slice {
        None => "all".into(),
        Some(id) => slices.get(id.index()).map_or_else(|| id.to_string(), |s| s.tenant.clone()),
    }
}

/// What decided first, then p99 TPOT and goodput of all requests, then the rest, slices last.
pub(crate) fn ordered(reasons: &[Reason]) -> Vec<&Reason> {
    let mut ordered: Vec<&Reason> = reasons.iter().collect();
    ordered.sort_by_key(|reason| {
        let weight = match reason.metric {
            Metric::TpotP99 => 0,
            Metric::Goodput => 1,
            Metric::Record => 3,
            _ => 2,
        };
        (!reason.decided, reason.slice.is_some(), weight)
    });
    ordered
}

/// The gate's table.
pub(crate) fn comparison_views(verdict: &Verdict, slices: &[Slice]) -> Vec<Comparison> {
    verdict
        .metrics
        .iter()
        .map(|row| Comparison {
            metric: row.metric.to_string(),
            weighting: format!("by {}", row.weighting),
            slice: slice_name(slices, row.slice),
            unit: if row.unit == "share" { "%".into() } else { row.unit.clone() },
            time: row.unit == "ms",
            live: row.live * if row.unit == "share" { 100.0 } else { 1.0 },
            candidate: row.candidate * if row.unit == "share" { 100.0 } else { 1.0 },
            change: row.change_share,
            interval: Some((row.interval[0], row.interval[1])),
            limit: row.limit,
            higher_is_better: row.unit != "ms",
            pass: match row.standing {
                Standing::Kept => Some(true),
                Standing::Broken => Some(false),
                Standing::Open | Standing::Shown => None,
            },
            note: String::new(),
        })
        .collect()
}

/// The curves behind modelled times.
pub(crate) fn curve_notes(model: &StepModel) -> Vec<CurveNote> {
    model
        .notes()
        .into_iter()
        .map(|note| CurveNote {
            curve: note.curve.clone(),
            origin: format!("{}: {}", note.origin.word(), note.text),
            error: fmt::percent(note.error_share),
            support: if note.inside_support { "inside" } else { "outside" }.into(),
        })
        .collect()
}

/// Causes in parts that add up: from the baseline where there is one, else from the step with every
/// named cause healed.
pub(crate) fn diagnosis_view(diagnosis: &Diagnosis, slices: &[Slice]) -> DiagnosisView {
    let slowdown = &diagnosis.slowdown;
    let (baseline_label, baseline_ms, parts) = match slowdown.baseline_ms {
        Some(ms) => ("before", ms, &slowdown.since_baseline),
        None => ("without the causes below", slowdown.ideal_ms, &slowdown.parts),
    };
    // The bridge shows the rest as unexplained by itself.
    let named = parts.iter().filter(|part| part.cause != CauseKind::Unexplained);
    let mut causes: Vec<CauseView> = named
        .map(|part| {
            let view = diagnosis.cause(part.cause).map(|cause| cause_view(cause, slices));
            let kind = part.cause.to_string();
            let small = || CauseView {
                evidence: vec!["part of the change, too small to be named a cause".into()],
                ..CauseView::default()
            };
            CauseView { ms_per_step: part.ms_per_step, kind, ..view.unwrap_or_else(small) }
        })
        .collect();
    causes.sort_by(|a, b| b.ms_per_step.total_cmp(&a.ms_per_step));
    DiagnosisView {
        quantity: format!("mean {} step", diagnosis.phase),
        baseline_label: baseline_label.into(),
        baseline_ms: Some(baseline_ms),
        observed_ms: Some(slowdown.step_ms_mean),
        causes,
        ruled_out: diagnosis.notes.clone(),
    }
}

fn cause_view(cause: &Cause, slices: &[Slice]) -> CauseView {
    CauseView {
        kind: cause.kind.to_string(),
        ms_per_step: cause.ms_per_step,
        place: place(cause, slices),
        evidence: cause.evidence.iter().map(|line| line.replace('`', "")).collect(),
        remedy: cause.remedy.clone(),
    }
}

/// Where a cause sits, in words.
pub(crate) fn place(cause: &Cause, slices: &[Slice]) -> String {
    let place = &cause.place;
    let mut parts = Vec::new();
    parts.extend(place.layer.map(|layer| layer.to_string()));
    parts.extend(place.rank.map(|rank| rank.to_string()));
    parts.extend(place.node.map(|node| node.to_string()));
    parts.extend(place.peer_node.map(|node| format!("to {node}")));
    parts.extend(place.expert.map(|expert| expert.to_string()));
    parts.extend(place.kernel.as_ref().map(|kernel| format!("kernel {kernel}")));
    parts.extend(place.slice.map(|slice| slice_name(slices, Some(slice))));
    parts.extend(cause.since_step.map(|step| format!("since step {step}")));
    parts.join(", ")
}

/// The waterfall of a slow decode step: the one at the 99th percentile of duration.
pub(crate) fn waterfall(steps: &[StepRecord], ranks: usize) -> Option<StepWaterfall> {
    let mut decode: Vec<&StepRecord> =
        steps.iter().filter(|step| step.phase == Phase::Decode && !step.cells.is_empty()).collect();
    decode.sort_by_key(|step| step.end_ns - step.start_ns);
    let slow = decode.get((decode.len() * 99 / 100).min(decode.len().checked_sub(1)?))?;
    let us = |ns: u64| ns as f64 * 1e-3;
    Some(StepWaterfall {
        title: "A slow decode step, by layer and rank".into(),
        step: slow.step,
        step_us: Some(us(slow.end_ns - slow.start_ns)),
        first_layer: 0,
        layers: slow
            .cells
            .chunks(ranks)
            .map(|cells| {
                cells
                    .iter()
                    .map(|cell| RankSpans {
                        attention_us: us(cell.attention_ns),
                        wait_dispatch_us: us(cell.dispatch_wait_ns),
                        dispatch_us: us(cell.dispatch_service_ns),
                        expert_us: us(cell.expert_ns),
                        wait_return_us: us(cell.return_wait_ns),
                        return_us: us(cell.return_service_ns),
                        rest_us: us(cell.router_ns + cell.combine_ns),
                    })
                    .collect()
            })
            .collect(),
    })
}
