//! The whole diagnosis, from two windows to ranked causes.

use crate::attribute::{Attribution, Seen, attribute};
use crate::balance::{gaps, hot_experts, layer_balance};
use crate::causes::{Costed, Scene, causes};
use crate::change::{prefill_per_decode_ns, shape_ns, since_baseline};
use crate::diagnosis::{Cause, Diagnosis, Gaps, MapBound, Part, Slowdown, Utilisation, Verdict};
use crate::expect::Expectation;
use crate::findings::{communication_bound, mix_cause, mix_words, prefill_cause, shape_cause};
use crate::heal::slowest;
use crate::input::{DiagnoseError, Observation, Options, Selection};
use crate::links::{PairRates, pair_rates};
use crate::mix::{REQUESTS_MIN, mix_shift};
use crate::placement::{map_bound, utilisation, waited_for};
use crate::stats::{mean, quantile};
use crate::window::Window;
use evenkeel_cost::StepModel;
use evenkeel_types::{Phase, Policy};

/// Sequences or context per rank must change by this share to be called another batch shape.
const SHAPE_CHANGE_MIN: f64 = 0.05;

/// Names what makes a window's steps slow, what each cause costs, and where it sits.
///
/// `model` is the healthy machine: build it from a topology without degraded links or ranks, or
/// their effect is taken for normal. `baseline` is an earlier window of the same group; without it
/// causes that all ranks share are told from the model's bias only where they exceed its error.
/// `policy` gives the gain below which a map is not worth changing.
///
/// # Errors
/// Where the record contradicts the map, the topology or itself. A record that lacks something
/// gives a diagnosis that says so.
pub fn diagnose(
    now: &Observation<'_>,
    baseline: Option<&Observation<'_>>,
    model: &StepModel,
    policy: &Policy,
    options: &Options,
) -> Result<Diagnosis, DiagnoseError> {
    options.validate()?;
    now.validate("observed window")?;
    if let Some(baseline) = baseline {
        baseline.validate("baseline")?;
    }
    let options = &Options {
        cause_min_share: options.cause_min_share.max(policy.plan.gain_min_share),
        ..*options
    };
    let selection = now.select(options.phase);
    let mut answer = empty(options.phase, &selection);
    withheld(now, &selection, &mut answer);
    let selected = baseline.map(|old| (old, old.select(options.phase)));
    answer.mix = baseline.and_then(|old| mix_shift(now, old, options));
    if !answer.missing.is_empty() {
        return Ok(answer);
    }

    let expectation = Expectation::new(model, now, options.phase);
    let window = Window::of(now, &selection, &expectation, options);
    let rates = rates_of(&window, now, &selection);
    let seen = Seen { window: &window, rates: &rates };
    let old = selected
        .filter(|(old, old_selection)| {
            usable(old, old_selection, window.ranks, &mut answer.missing)
        })
        .map(|(old, old_selection)| {
            let expectation = Expectation::new(model, old, options.phase);
            let window = Window::of(old, &old_selection, &expectation, options);
            let rates = rates_of(&window, old, &old_selection);
            (old, window, rates)
        });
    let old_seen = old.as_ref().map(|(_, window, rates)| Seen { window, rates });
    let attribution = attribute(seen, old_seen, &expectation, options);
    let old_attribution = old_seen.map(|old| attribute(old, None, &expectation, options));

    lacking(&mut answer, baseline.is_some());
    describe(&mut answer, now, &window, &attribution, options);
    let least_ns = options.cause_min_share * window.mean(|_, frame| frame.observed_ns);
    let costed = causes(&Scene {
        window: &window,
        attribution: &attribution,
        map: now.map,
        expectation: &expectation,
        hot: &answer.hot_experts,
        waited: &answer.waited_for,
        dispatch_gap: answer.gaps.dispatch_gap,
        least_ns,
    });
    answer.slowdown = slowdown(&window, &attribution, &costed);
    answer.causes = costed.into_iter().map(|costed| costed.cause).collect();
    if let (Some((old, old_window, _)), Some(old_attribution)) = (&old, &old_attribution) {
        against_baseline(
            &mut answer,
            options,
            (now, &window, &attribution),
            (old, old_window, old_attribution),
        );
    } else {
        let ns = prefill_per_decode_ns(now, options.phase);
        if ns > answer.slowdown.step_ms_mean * 1e6 {
            answer.causes.push(prefill_cause(ns, 0.0, &answer.slowdown));
        }
    }
    communication_bound(&mut answer, &window, &attribution);
    answer.missing.extend(attribution.undecided.iter().cloned());
    conclude(&mut answer, window.has_spans);
    Ok(answer)
}

fn empty(phase: Phase, selection: &Selection<'_>) -> Diagnosis {
    let mut notes = Vec::new();
    if selection.warm_up_share > 0.0 {
        notes.push(format!(
            "{:.1} % of the {phase} steps repeat the same routing exactly: engine warm-up, dropped",
            100.0 * selection.warm_up_share
        ));
    }
    if selection.other_map > 0 && !selection.steps.is_empty() {
        notes.push(format!(
            "{} {phase} steps ran on another map version and were left out",
            selection.other_map
        ));
    }
    Diagnosis {
        verdict: Verdict::CannotTell,
        phase,
        missing: Vec::new(),
        notes,
        warm_up_share: selection.warm_up_share,
        slowdown: Slowdown::default(),
        causes: Vec::new(),
        hot_experts: Vec::new(),
        waited_for: Vec::new(),
        balance: Vec::new(),
        map_bound: MapBound::default(),
        gaps: Gaps { max_over_mean: 1.0, dispatch_gap: None, placement_gap: None },
        mix: None,
        utilisation: Utilisation::default(),
    }
}

/// Reasons to withhold any verdict.
fn withheld(now: &Observation<'_>, selection: &Selection<'_>, answer: &mut Diagnosis) {
    for breach in now.breaches {
        answer.missing.push(format!("a record that keeps its own laws: {breach}"));
    }
    if selection.steps.is_empty() {
        answer.missing.push(if selection.other_map > 0 {
            format!(
                "steps that ran on map version {}: all {} {} steps ran on another, so the map given \
                 is not the live one",
                now.map.version, selection.other_map, answer.phase
            )
        } else {
            format!("{} steps: the record has none", answer.phase)
        });
    }
    let foreign = now.map.violations();
    if let Some(first) = foreign.first() {
        answer.missing.push(format!("a lawful map: {first}"));
    }
    if let Some(place) = misplaced(now, selection) {
        answer.missing.push(format!("the live map: {place}, where the given map has no copy"));
    }
}

/// The first routing row that ran where the map has no copy.
fn misplaced(now: &Observation<'_>, selection: &Selection<'_>) -> Option<String> {
    for step in &selection.steps {
        for row in &step.routing {
            let Some(host) = row.host else { continue };
            let slots = &now.map.slots[row.layer.index()][host.index()];
            if row.tokens > 0 && !slots.contains(&Some(row.expert)) {
                return Some(format!(
                    "step {}, {}: {} ran on {host}",
                    step.step, row.layer, row.expert
                ));
            }
        }
    }
    None
}

/// Says what a missing baseline or too few requests leave open.
fn lacking(answer: &mut Diagnosis, has_baseline: bool) {
    if !has_baseline {
        answer.missing.push(
            "a baseline: a mix shift, another batch shape, and slowness that all ranks share within \
             the cost model's error cannot be told"
                .to_owned(),
        );
    } else if answer.mix.is_none() {
        answer.missing.push(format!(
            "at least {REQUESTS_MIN} requests in each window: a mix shift cannot be told"
        ));
    }
}

fn usable(
    old: &Observation<'_>,
    selection: &Selection<'_>,
    ranks: usize,
    missing: &mut Vec<String>,
) -> bool {
    if selection.steps.is_empty() {
        missing.push(
            "steps of this phase on the baseline's map: times are not compared with it".into(),
        );
    } else if old.topology.rank_count() != ranks {
        missing.push("a baseline with as many ranks: times are not compared with it".into());
    } else if !old.breaches.is_empty() {
        missing.push(format!("a baseline that keeps its own laws: {}", old.breaches[0]));
    } else {
        return true;
    }
    false
}

fn rates_of(
    window: &Window,
    observation: &Observation<'_>,
    selection: &Selection<'_>,
) -> PairRates {
    let rows = selection.steps.iter().flat_map(|step| &step.links);
    pair_rates(&window.node, rows, &observation.topology.inter)
}

/// Fills what is measured, whatever the causes.
fn describe(
    answer: &mut Diagnosis,
    now: &Observation<'_>,
    window: &Window,
    attribution: &Attribution,
    options: &Options,
) {
    answer.balance = layer_balance(window);
    answer.waited_for = waited_for(window);
    answer.gaps = gaps(window, window.split.as_ref(), now.map);
    answer.map_bound = map_bound(window, attribution);
    answer.utilisation = utilisation(window);
    match &window.loads {
        Some(loads) => answer.hot_experts = hot_experts(loads, now.map, options.hot_experts_max),
        None => answer.missing.push(
            "routing rows with the serving copy: hot experts and the use of copies cannot be told"
                .to_owned(),
        ),
    }
    for balance in answer.balance.iter().filter(|balance| balance.hot_rank.is_none()) {
        answer.notes.push(format!("{} has no expert rows at all", balance.layer));
    }
    if window.frames.iter().any(|frame| frame.waiting_untangled) {
        answer.notes.push(
            "the record counts waiting for late ranks as dispatch time; the two were told apart"
                .to_owned(),
        );
    }
}

fn slowdown(window: &Window, attribution: &Attribution, costed: &[Costed]) -> Slowdown {
    let observed = |index: &usize| window.frames[*index].observed_ns;
    let mean_ns = window.mean(|_, frame| frame.observed_ns);
    let at_p99: Vec<f64> = slowest(window).iter().map(observed).collect();
    let mut parts: Vec<Part> = Vec::new();
    for costed in costed {
        let (ms, at_p99) = (costed.cause.ms_per_step, costed.at_p99_ns / 1e6);
        match parts.iter_mut().find(|part| part.cause == costed.cause.kind) {
            Some(part) => {
                part.ms_per_step += ms;
                part.ms_at_p99 += at_p99;
            }
            None => {
                parts.push(Part { cause: costed.cause.kind, ms_per_step: ms, ms_at_p99: at_p99 })
            }
        }
    }
    parts.sort_by(|a, b| b.ms_per_step.total_cmp(&a.ms_per_step).then(a.cause.cmp(&b.cause)));
    Slowdown {
        steps_examined: window.frames.len(),
        step_ms_p50: quantile(&window.durations, 0.5) / 1e6,
        step_ms_p99: quantile(&window.durations, 0.99) / 1e6,
        step_ms_mean: mean_ns / 1e6,
        step_ms_at_p99: mean(&at_p99) / 1e6,
        ideal_ms: (mean_ns - attribution.shares.all) / 1e6,
        baseline_ms: None,
        parts,
        since_baseline: Vec::new(),
    }
}

type Side<'a> = (&'a Observation<'a>, &'a Window, &'a Attribution);

/// What changed since the baseline, and the causes that only a baseline shows.
fn against_baseline(answer: &mut Diagnosis, options: &Options, now: Side<'_>, old: Side<'_>) {
    let (now, window, attribution) = now;
    let (old, old_window, old_attribution) = old;
    let least_ns = options.cause_min_share * answer.slowdown.step_ms_mean * 1e6;
    let shape = shape_ns(window, old_window);
    let placement_kind = answer.causes.iter().find(|cause| cause.remap_allowed).map(|c| c.kind);
    let change = since_baseline(
        (window, attribution),
        (old_window, old_attribution),
        answer.mix.as_ref(),
        placement_kind,
        shape,
    );
    answer.slowdown.baseline_ms = Some(old_window.mean(|_, frame| frame.observed_ns) / 1e6);
    answer.slowdown.since_baseline = change.parts;
    if let Some(mix) = answer.mix.as_ref().filter(|mix| mix.shifted) {
        if change.placement_ns >= least_ns {
            let found = mix_cause(mix, change.placement_ns, &answer.slowdown);
            answer.causes.push(found);
        } else {
            answer.notes.push(format!(
                "the mix shifted ({}), which changes a step by {:+.3} ms through the placement",
                mix_words(mix),
                change.placement_ns / 1e6
            ));
        }
    }
    let changed = |now: f64, old: f64| (now - old).abs() >= SHAPE_CHANGE_MIN * old;
    if shape >= least_ns
        && (changed(window.sequences_per_rank, old_window.sequences_per_rank)
            || changed(window.context_per_rank, old_window.context_per_rank))
    {
        answer.causes.push(shape_cause(window, old_window, shape, &answer.slowdown));
    }
    let prefill = prefill_per_decode_ns(now, options.phase);
    let before = prefill_per_decode_ns(old, options.phase);
    if prefill - before >= least_ns.max(0.2 * before) {
        answer.causes.push(prefill_cause(prefill, before, &answer.slowdown));
    }
}

fn conclude(answer: &mut Diagnosis, has_spans: bool) {
    answer.causes.sort_by(|a, b| {
        let key = |cause: &Cause| (!cause.kind.is_fault(), -cause.ms_per_step);
        let ((fault_a, ms_a), (fault_b, ms_b)) = (key(a), key(b));
        fault_a.cmp(&fault_b).then(ms_a.total_cmp(&ms_b)).then(a.kind.cmp(&b.kind))
    });
    if !has_spans {
        answer.missing.insert(
            0,
            "layer spans (attention, dispatch, experts, return): times are the cost model's for the \
             recorded rows, so only the placement can be judged"
                .to_owned(),
        );
    }
    answer.verdict = if !has_spans {
        Verdict::CannotTell
    } else if answer.causes.iter().any(|cause| cause.kind.is_fault()) {
        Verdict::CausesFound
    } else {
        Verdict::NothingWrong
    };
}
