//! `gate`: is the candidate better, and is that settled? From replays, or from measured records.

use super::traces;
use crate::fail::{Failure, Finding};
use crate::load;
use crate::out::Out;
use crate::progress::Progress;
use crate::runs::{Manifest, read_run};
use crate::view::{ordered, slice_name};
use clap::Args;
use evenkeel_prove::{
    Design, GateInput, KvHeadroom, Pair, Sameness, Standing, Verdict, gate, run_from_trace,
};
use evenkeel_report::{fmt, text};
use evenkeel_sim::Run;
use evenkeel_store::{Trace, Window};
use evenkeel_trace::TimeOrigin;
use evenkeel_types::{Policy, Slice};
use std::path::{Path, PathBuf};

/// Accept, reject, or need more data: p99 TPOT and goodput within SLO, KV headroom, sameness.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel gate proof --candidate next          after `evenkeel replay … --out proof`
  evenkeel gate --before trace-a --after trace-b  measured records
Exit code 0: accept; 1: reject, need more data, cannot tell or withheld (--json says which).")]
pub(crate) struct Arguments {
    /// Folder that `evenkeel replay --out` left.
    #[arg(required_unless_present = "before")]
    replays: Option<PathBuf>,
    /// Which replayed map is the candidate, by name; default: the second.
    #[arg(long)]
    candidate: Option<String>,
    /// Record of serving on the live map.
    #[arg(long, value_name = "TRACE", requires = "after", conflicts_with = "replays")]
    before: Option<PathBuf>,
    /// Record of serving on the candidate map.
    #[arg(long, value_name = "TRACE", requires = "before")]
    after: Option<PathBuf>,
    /// The records hold the same requests in the same order: compare them pairwise.
    #[arg(long, requires = "before")]
    paired: bool,
    /// This is the K-th look at growing data; peeking is paid for.
    #[arg(long, value_name = "K", default_value_t = 0)]
    look: u32,
    /// Policy file.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> crate::fail::Verdict {
    let policy = load::policy(arguments.policy.as_deref())?;
    let (verdict, slices) = match (&arguments.replays, &arguments.before, &arguments.after) {
        (Some(dir), _, _) => replayed(arguments, dir, &policy, out)?,
        (None, Some(before), Some(after)) => measured(arguments, before, after, &policy, out)?,
        _ => return Err(Failure::input("give a folder of replays, or --before and --after")),
    };
    out.present(&verdict, || render(&verdict, &slices))?;
    Ok(Finding::from_good(verdict.decision.is_positive()))
}

fn replayed(
    arguments: &Arguments,
    dir: &Path,
    policy: &Policy,
    out: &Out,
) -> Result<(Verdict, Vec<Slice>), Failure> {
    let manifest = Manifest::read(dir)?;
    let names: Vec<&str> = manifest.maps.iter().map(|map| map.name.as_str()).collect();
    let Some((live, others)) = manifest.maps.split_first() else {
        return Err(Failure::input(format!("{}: holds no run", dir.display())));
    };
    let candidate = match &arguments.candidate {
        Some(name) => others.iter().find(|map| &map.name == name),
        None => others.first(),
    };
    let candidate = candidate.ok_or_else(|| {
        Failure::input(format!("{}: no such candidate", dir.display()))
            .hint(format!("replayed maps, the live one first: {}", names.join(", ")))
    })?;
    let progress = Progress::start(out, "gate", 0);
    let live_run = read_run(&dir.join(&live.file))?;
    let candidate_run = read_run(&dir.join(&candidate.file))?;
    let pair = Pair { live: &live_run, candidate: &candidate_run };
    let mut input = GateInput::new(pair, &manifest.slices, policy);
    input.modelled = manifest.modelled;
    input.draws = &candidate.draws;
    input.sameness = Sameness::of_map(&candidate.map);
    if let (Some(shape), Some(topology)) = (&manifest.model, &manifest.topology) {
        input.kv = KvHeadroom::of_maps(&live.map, &candidate.map, shape, topology, &policy.memory);
    }
    input.model_notes = &manifest.model_notes;
    input.look = arguments.look;
    input.seed = arguments.seed;
    let verdict = gate(&input).map_err(Failure::input)?;
    drop(progress);
    Ok((verdict, manifest.slices))
}

/// A record as a run, with what the gate must know about it.
struct Record {
    trace: Trace,
    run: Run,
    breaches: Vec<String>,
}

impl Record {
    fn read(dir: &Path) -> Result<Self, Failure> {
        let trace = traces::open(dir)?;
        let steps = trace.steps(Window::All).map_err(Failure::store)?;
        let steps = steps.collect::<Result<Vec<_>, _>>().map_err(Failure::store)?;
        let requests = trace.requests().map_err(Failure::store)?;
        if requests.is_empty() {
            return Err(Failure::input(format!("{}: has no requests", dir.display()))
                .hint("the gate judges requests: record the table `requests`"));
        }
        let name = dir.display().to_string();
        let run = run_from_trace(&name, trace.header(), &steps, &requests);
        let breaches = trace.breaches().iter().map(|breach| format!("{name}: {breach}")).collect();
        Ok(Self { trace, run, breaches })
    }
}

fn measured(
    arguments: &Arguments,
    before: &Path,
    after: &Path,
    policy: &Policy,
    out: &Out,
) -> Result<(Verdict, Vec<Slice>), Failure> {
    let progress = Progress::start(out, "gate", 0);
    let (live, candidate) = (Record::read(before)?, Record::read(after)?);
    let slices = live.trace.header().slices.clone();
    if candidate.trace.header().slices != slices {
        return Err(Failure::input(format!(
            "{} and {} list different slices",
            before.display(),
            after.display()
        ))
        .hint("both records must name tenants and revisions in the same order"));
    }
    let mut breaches = live.breaches.clone();
    breaches.extend(candidate.breaches.iter().cloned());
    let mut input =
        GateInput::new(Pair { live: &live.run, candidate: &candidate.run }, &slices, policy);
    input.design = if arguments.paired { Design::Paired } else { Design::Independent };
    let times = |record: &Record| record.trace.header().times;
    input.modelled = [&live, &candidate].iter().any(|record| times(record) != TimeOrigin::Measured);
    if let Some(map) = traces::live_map(&candidate.trace, None)? {
        input.sameness = Sameness::of_map(&map);
        if let (Some(old), Some(topology)) =
            (traces::live_map(&live.trace, None)?, traces::recorded_topology(&live.trace))
        {
            let shape = &live.trace.header().model;
            input.kv = KvHeadroom::of_maps(&old, &map, shape, topology, &policy.memory);
        }
    }
    input.breaches = &breaches;
    input.look = arguments.look;
    input.seed = arguments.seed;
    let verdict = gate(&input).map_err(Failure::input)?;
    drop(progress);
    Ok((verdict, slices))
}

fn render(verdict: &Verdict, slices: &[Slice]) -> String {
    let mut lines = vec![format!("verdict: {}", verdict.label)];
    for reason in ordered(&verdict.reasons) {
        let mark = if reason.decided { "decided" } else { "       " };
        let slice = text::safe(&slice_name(slices, reason.slice), 30);
        lines.push(format!("  {mark}  [{slice}] {}", reason.statement));
    }
    let mut table = text::Table::new([
        "metric",
        "by",
        "slice",
        "live",
        "candidate",
        "change",
        "interval",
        "limit",
        "",
    ]);
    for row in &verdict.metrics {
        table.row([
            row.metric.to_string(),
            row.weighting.clone(),
            text::safe(&slice_name(slices, row.slice), 24),
            fmt::with_unit(row.live, &row.unit),
            fmt::with_unit(row.candidate, &row.unit),
            fmt::change(row.change_share),
            format!("{} to {}", fmt::change(row.interval[0]), fmt::change(row.interval[1])),
            row.limit.map_or("–".into(), fmt::change),
            match row.standing {
                Standing::Kept => "kept",
                Standing::Broken => "BROKEN",
                Standing::Open => "open",
                Standing::Shown => "",
            }
            .into(),
        ]);
    }
    lines.push(table.render(0));
    let levels: Vec<String> =
        verdict.sameness.levels.iter().map(|level| format!("{level:?}")).collect();
    lines.push(format!("sameness: {} ({})", levels.join(", "), verdict.sameness.statement));
    lines.extend(verdict.notes.iter().map(|note| text::wrap(&format!("note: {note}"), 100, 0)));
    lines.join("\n")
}
