//! `diagnose`: why is a step slow, how many milliseconds per cause, could any map help?

use super::traces;
use crate::fail::{Failure, Finding};
use crate::out::Out;
use crate::progress::Progress;
use crate::setting::{MachineArguments, Setting};
use crate::view::place;
use clap::Args;
use evenkeel_diagnose::{CauseKind, Diagnosis, Observation, Options, Verdict, diagnose};
use evenkeel_report::{fmt, text};
use evenkeel_store::{Trace, Window};
use evenkeel_trace::{RequestRecord, StepRecord};
use evenkeel_types::{ExpertMap, Phase, Slice, Topology};
use std::path::PathBuf;

/// Steps read into memory; more are thinned out evenly by the window.
const STEPS_MAX: usize = 20_000;

/// Name the causes of slow steps with their milliseconds, place, evidence and remedy.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel diagnose evenkeel-demo/trace-after --baseline evenkeel-demo/trace-before
Exit code 0: nothing is wrong; 1: a cause was found, or it cannot be told.")]
pub(crate) struct Arguments {
    /// Trace of the slow time.
    trace: PathBuf,
    /// Trace of a time when all was well.
    #[arg(long, value_name = "TRACE")]
    baseline: Option<PathBuf>,
    /// Part of the trace, in steps (`100..200`) or seconds (`1.5s..3s`).
    #[arg(long, value_name = "FROM..TO")]
    window: Option<String>,
    /// Part of the baseline; without --baseline, of the same trace.
    #[arg(long, value_name = "FROM..TO")]
    baseline_window: Option<String>,
    /// Phase to examine: decode or prefill.
    #[arg(long, default_value = "decode", value_parser = phase)]
    phase: Phase,
    /// Map that was live, where the trace holds none.
    #[arg(long, value_name = "MAP")]
    map: Option<PathBuf>,
    /// Seed of the permutation test of the mix.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    machine: MachineArguments,
}

pub(crate) fn phase(text: &str) -> Result<Phase, String> {
    match text {
        "decode" => Ok(Phase::Decode),
        "prefill" => Ok(Phase::Prefill),
        _ => Err("expected `decode` or `prefill`".into()),
    }
}

/// A window of a trace in memory.
struct Recording {
    trace: Trace,
    steps: Vec<StepRecord>,
    requests: Vec<RequestRecord>,
    breaches: Vec<String>,
}

impl Recording {
    fn load(trace: Trace, window: Window) -> Result<Self, Failure> {
        let mut steps = Vec::new();
        for step in trace.steps(window).map_err(Failure::store)? {
            if steps.len() == STEPS_MAX {
                return Err(Failure::input(format!(
                    "the window holds more than {STEPS_MAX} steps"
                ))
                .hint("--window takes a part of it, e.g. `--window 60s..120s`"));
            }
            steps.push(step.map_err(Failure::store)?);
        }
        let span = steps.first().zip(steps.last());
        let (from, to) = span.map_or((0, u64::MAX), |(a, b)| (a.start_ns, b.end_ns));
        let mut requests = trace.requests().map_err(Failure::store)?;
        // A request belongs to a window in which it was served.
        requests.retain(|request| {
            let end =
                request.finish_ns.map_or(u64::MAX, |ns| request.arrival_ns.saturating_add(ns));
            request.arrival_ns < to && end >= from
        });
        let breaches = trace.breaches().iter().map(ToString::to_string).collect();
        Ok(Self { trace, steps, requests, breaches })
    }

    fn observation<'a>(&'a self, map: &'a ExpertMap, topology: &'a Topology) -> Observation<'a> {
        Observation {
            header: self.trace.header(),
            map,
            topology,
            steps: &self.steps,
            requests: &self.requests,
            breaches: &self.breaches,
        }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> crate::fail::Verdict {
    let trace = traces::open(&arguments.trace)?;
    let map = traces::live_map(&trace, arguments.map.as_deref())?.ok_or_else(|| {
        Failure::input("the trace holds no map").hint("--map names the map that was live")
    })?;
    let setting = Setting::load(
        &arguments.machine,
        &trace.header().model,
        traces::recorded_topology(&trace),
    )?;
    let progress = Progress::start(out, "read the trace", 0);
    let now = Recording::load(trace, traces::window(arguments.window.as_deref())?)?;
    let baseline_window = traces::window(arguments.baseline_window.as_deref())?;
    let baseline = match (&arguments.baseline, &arguments.baseline_window) {
        (Some(dir), _) => Some(Recording::load(traces::open(dir)?, baseline_window)?),
        (None, Some(_)) => Some(Recording::load(traces::open(&arguments.trace)?, baseline_window)?),
        (None, None) => None,
    };
    drop(progress);
    let baseline_map = match &baseline {
        Some(window) => traces::live_map(&window.trace, None)?.unwrap_or_else(|| map.clone()),
        None => map.clone(),
    };
    let progress = Progress::start(out, "diagnose", 0);
    let diagnosis = diagnose(
        &now.observation(&map, &setting.topology),
        baseline.as_ref().map(|w| w.observation(&baseline_map, &setting.topology)).as_ref(),
        &setting.model,
        &setting.policy,
        &Options { phase: arguments.phase, seed: arguments.seed, ..Options::default() },
    )
    .map_err(Failure::input)?;
    drop(progress);
    let slices = &now.trace.header().slices;
    out.present(&diagnosis, || render(&diagnosis, slices))?;
    Ok(Finding::from_good(diagnosis.verdict == Verdict::NothingWrong))
}

fn render(diagnosis: &Diagnosis, slices: &[Slice]) -> String {
    let slowdown = &diagnosis.slowdown;
    let mut lines = vec![
        match diagnosis.verdict {
            Verdict::CausesFound => "causes found".to_owned(),
            Verdict::NothingWrong => "nothing wrong found".to_owned(),
            Verdict::CannotTell => "cannot tell".to_owned(),
        },
        format!(
            "{} step: p50 {}, p99 {} (step-weighted); without the causes below {}",
            diagnosis.phase,
            fmt::ms(slowdown.step_ms_p50),
            fmt::ms(slowdown.step_ms_p99),
            fmt::ms(slowdown.ideal_ms)
        ),
    ];
    lines.extend(diagnosis.missing.iter().map(|missing| format!("missing: {missing}")));
    for cause in &diagnosis.causes {
        let place = place(cause, slices);
        lines.push(format!(
            "{}: {} per step ({}){}{}",
            cause.kind,
            fmt::ms(cause.ms_per_step),
            fmt::percent(cause.share_of_step),
            if place.is_empty() { "" } else { ", at " },
            text::safe(&place, 120)
        ));
        lines.extend(cause.evidence.iter().map(|line| text::wrap(line, 100, 4)));
        lines.push(text::wrap(&format!("remedy: {}", cause.remedy), 100, 4));
    }
    if !slowdown.since_baseline.is_empty() {
        lines.push("since the baseline, per step:".into());
        for part in &slowdown.since_baseline {
            let name = if part.cause == CauseKind::Unexplained {
                "unexplained"
            } else {
                part.cause.words()
            };
            lines.push(format!("  {name}: {}", fmt::ms(part.ms_per_step)));
        }
    }
    lines.push(format!(
        "bound: no map saves more than {} of the step in expert time ({})",
        fmt::percent(diagnosis.map_bound.share_of_step),
        diagnosis.map_bound.how
    ));
    if let Some(rank) = diagnosis.waited_for.first() {
        lines.push(format!(
            "waited for: {} in {} of (step, layer) pairs",
            rank.rank,
            fmt::percent(rank.share_of_layers)
        ));
    }
    if let Some(mix) = &diagnosis.mix {
        for slice in &mix.slices {
            lines.push(format!(
                "mix: {} {} -> {}",
                text::safe(&slice.name, 40),
                fmt::percent(slice.before),
                fmt::percent(slice.after)
            ));
        }
        let changed = if mix.revisions_changed { "changed" } else { "did not change" };
        lines.push(format!("mix shift beyond chance: {}; revisions {changed}", mix.shifted));
    }
    lines.push(format!(
        "mean utilisation {}: {}",
        fmt::percent(diagnosis.utilisation.mean_busy_share),
        diagnosis.utilisation.why
    ));
    lines.extend(diagnosis.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}
