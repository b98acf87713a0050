//! `plan`: where each expert's weights should live, what the move costs, or "do nothing".

mod crossing;
pub(crate) mod from_loads;
mod pictures;

use super::{diagnose::phase, traces};
use crate::certificate;
use crate::fail::{Failure, Finding, Verdict};
use crate::out::{Out, write_file};
use crate::progress::Progress;
use crate::setting::{MachineArguments, Setting};
use clap::{Args, ValueEnum};
use evenkeel_plan::{
    Outcome, ParetoPoint, Plan, PlanInput, Reason, SearchEffort, pareto, plan, plan_from_scratch,
};
use evenkeel_report::{fmt, text};
use evenkeel_split::SplitTable;
use evenkeel_store::Table;
use evenkeel_trace::draw;
use evenkeel_types::{ExpertMap, Phase};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Plan a map from a trace or a load matrix: bound, moves, price, break-even, or "do nothing".
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel plan evenkeel-demo/trace-after --out next.json
  evenkeel plan my-trace --topology h20:16 --map live.json --sequences-per-rank 128 --out next.json
  evenkeel plan --loads loads.npy --ranks 32 --slots 288 --nodes 4 --out map.json --pictures plan/
  evenkeel plan --loads today.csv --map map.json --out next.json
Exit code 0: a plan was made; 1: do nothing.")]
pub(crate) struct Arguments {
    /// Trace to plan on.
    #[arg(required_unless_present = "loads", conflicts_with = "loads")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    from_loads: from_loads::LoadsArguments,
    /// Write pictures of the plan here: rank loads before and after, what each further move
    /// gains, and the schedule.
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Show what memory buys: the best maps for this many budgets of further copies, from none to
    /// what memory holds, up to the policy's slots per rank (default: twice the live map's).
    #[arg(long, value_name = "POINTS", conflicts_with = "loads")]
    pareto: Option<usize>,
    /// Map that is live; default: the trace's last; else the contiguous one.
    #[arg(long, value_name = "MAP")]
    map: Option<PathBuf>,
    /// Write the map that counts as live here, e.g. the contiguous one where none was given.
    #[arg(long, value_name = "MAP")]
    live_out: Option<PathBuf>,
    /// How the live map's copies share an expert's tokens now: evenly, as engines without a split
    /// table do, or by a table that is up to date.
    #[arg(long, value_enum, default_value = "even")]
    live_split: LiveSplit,
    /// Write the planned map here.
    #[arg(long, value_name = "MAP")]
    out: Option<PathBuf>,
    /// Write a certificate here: all that value and bound follow from, for
    /// `evenkeel check --certificate`.
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Ignore the live map and pack greedily, as engines do; for comparison.
    #[arg(long)]
    from_scratch: bool,
    /// Phase that carries the objective: decode or prefill. Never their sum.
    #[arg(long, default_value = "decode", value_parser = phase)]
    phase: Phase,
    /// Part of the trace, in steps (`100..200`) or seconds (`1.5s..3s`).
    #[arg(long, value_name = "FROM..TO")]
    window: Option<String>,
    /// Steps sampled from the window.
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Decoding sequences per rank where batches are drawn from recorded requests.
    #[arg(long, default_value_t = 64)]
    sequences_per_rank: u32,
    /// Prompt tokens per rank and step where prefill batches are drawn.
    #[arg(long, default_value_t = 4096)]
    prefill_tokens_per_rank: u32,
    /// Tenants' weights among drawn requests, e.g. `intent=1,summary=2`; default: equal.
    #[arg(long, value_name = "TENANT=WEIGHT,…")]
    mix: Option<String>,
    /// Plan although the traffic's revisions changed and a rollout is under suspicion.
    #[arg(long)]
    accept_revision: bool,
    /// Search quickly: layers are repaired by mean cost and valued step by step at a few states.
    #[arg(long)]
    quick: bool,
    /// Seed of drawn batches and of ties.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    machine: MachineArguments,
}

impl Arguments {
    fn effort(&self) -> SearchEffort {
        if self.quick { SearchEffort::Quick } else { SearchEffort::Thorough }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum LiveSplit {
    Even,
    Fresh,
}

#[derive(Serialize)]
struct Answer<'a> {
    loads_from: &'static str,
    live_split: LiveSplit,
    steps: usize,
    outcome: &'a Outcome,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pareto: Vec<ParetoPoint>,
    written: Option<&'a Path>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    match (&arguments.from_loads.loads, &arguments.trace) {
        (None, Some(trace)) => from_trace(arguments, trace, out),
        (Some(loads), _) => from_loads::run(arguments, loads, out),
        (None, None) => Err(Failure::input("a trace or --loads FILE is missing")),
    }
}

fn from_trace(arguments: &Arguments, path: &Path, out: &mut Out) -> Verdict {
    let trace = traces::open(path)?;
    if let Some(breach) = trace.breaches().first() {
        return Err(Failure::input(format!("{}: {breach}", path.display()))
            .hint("a plan on counts that are not conserved would move experts for nothing"));
    }
    refuse_rollout(&trace, arguments.accept_revision)?;
    let recorded = traces::recorded_topology(&trace);
    let setting = Setting::load(&arguments.machine, &trace.header().model, recorded)?;
    let live = match traces::live_map(&trace, arguments.map.as_deref())? {
        Some(map) => map,
        None => contiguous(&setting)?,
    };
    setting.admit(&live, "live map")?;
    if let Some(path) = &arguments.live_out {
        write_file(path, live.to_json().map_err(Failure::environment)?.as_bytes())?;
    }
    let (loads, loads_from) = loads(arguments, path, &trace, &setting)?;
    let progress = Progress::start(out, "plan", 0);
    let per_rank = loads.steps.iter().map(|step| f64::from(step.tokens)).sum::<f64>()
        / loads.steps.len().max(1) as f64
        / setting.ranks() as f64;
    let fixed_us = setting.fixed_us(arguments.phase, per_rank, 1024.0);
    let even = SplitTable::even(&live).map_err(Failure::input)?;
    let split = (arguments.live_split == LiveSplit::Even).then_some(&even);
    let traffic = crossing::traffic(&trace, &setting, arguments.phase, arguments.seed)?;
    let question = PlanInput {
        traffic: traffic.as_ref(),
        effort: arguments.effort(),
        ..setting.question(&live, split, &loads, fixed_us, arguments.seed)
    };
    let outcome = if arguments.from_scratch {
        Outcome::Plan(Box::new(plan_from_scratch(question).map_err(Failure::input)?))
    } else {
        plan(question).map_err(Failure::input)?
    };
    let pareto = match arguments.pareto {
        Some(points) => pareto(question, points).map_err(Failure::input)?,
        None => Vec::new(),
    };
    drop(progress);
    if let (Outcome::Plan(plan), Some(path)) = (&outcome, &arguments.certificate) {
        certificate::write(path, &question, plan)?;
    }
    if let (Outcome::Plan(plan), Some(folder)) = (&outcome, &arguments.pictures) {
        pictures::write(folder, &question, plan, true)?;
    }
    let written = match (&outcome, &arguments.out) {
        (Outcome::Plan(plan), Some(out)) => {
            let mut map = plan.map.clone();
            map.provenance.window = format!("{} ({loads_from})", path.display());
            let json = map.to_json().map_err(Failure::environment)?;
            write_file(out, json.as_bytes())?;
            Some(out.as_path())
        }
        _ => None,
    };
    let live_split = arguments.live_split;
    let steps = loads.steps.len();
    let answer = Answer { loads_from, live_split, steps, outcome: &outcome, pareto, written };
    out.present(&answer, || render(&answer))?;
    Ok(Finding::from_good(matches!(outcome, Outcome::Plan(_))))
}

/// A window under suspicion of a bad rollout is not planned on until the operator clears it.
fn refuse_rollout(trace: &evenkeel_store::Trace, accepted: bool) -> Result<(), Failure> {
    let slices = &trace.header().slices;
    let twice = slices.iter().enumerate().find(|(index, slice)| {
        slices[..*index].iter().any(|other| {
            other.tenant == slice.tenant
                && other.template == slice.template
                && (other.model_revision != slice.model_revision
                    || other.tokenizer_revision != slice.tokenizer_revision)
        })
    });
    match twice {
        Some((_, slice)) if !accepted => Err(Failure::input(format!(
            "tenant `{}` was served by two revisions within this trace",
            slice.tenant
        ))
        .hint("a bad rollout looks like a shift; --accept-revision plans all the same")),
        _ => Ok(()),
    }
}

fn contiguous(setting: &Setting) -> Result<ExpertMap, Failure> {
    let ranks = setting.ranks();
    let experts = usize::from(setting.shape.experts);
    let slots = usize::from(setting.policy.plan.slots_per_rank).max(experts.div_ceil(ranks));
    Ok(ExpertMap::contiguous(&setting.shape, ranks, slots))
}

fn loads(
    arguments: &Arguments,
    path: &Path,
    trace: &evenkeel_store::Trace,
    setting: &Setting,
) -> Result<(evenkeel_trace::StepLoads, &'static str), Failure> {
    let window = traces::window(arguments.window.as_deref())?;
    if trace.has(Table::Routing) {
        let loads =
            trace.loads(arguments.phase, window, arguments.steps).map_err(Failure::store)?;
        if loads.steps.is_empty() {
            return Err(Failure::input(format!(
                "{}: the window holds no {} step with routing",
                path.display(),
                arguments.phase
            ))
            .hint("--phase prefill, or another --window"));
        }
        return Ok((loads, "recorded steps"));
    }
    let routes = traces::routes(trace, path)?;
    if arguments.window.is_some() {
        return Err(Failure::input("--window: the trace has no recorded steps to choose from")
            .hint("batches are drawn from all recorded requests; leave --window out"));
    }
    let mix = traces::mix(arguments.mix.as_deref(), trace)?;
    let (ranks, steps, seed) = (setting.ranks(), arguments.steps, arguments.seed);
    let drawn = match arguments.phase {
        Phase::Decode => {
            let per_rank = arguments.sequences_per_rank as usize;
            draw::decode_loads(&routes, &mix, ranks, per_rank, steps, seed)
        }
        Phase::Prefill => {
            let per_rank = arguments.prefill_tokens_per_rank as usize;
            draw::prefill_loads(&routes, &mix, ranks, per_rank, steps, seed)
        }
    };
    Ok((drawn.map_err(Failure::input)?, "batches drawn from recorded requests"))
}

fn render(answer: &Answer<'_>) -> String {
    let split = match answer.live_split {
        LiveSplit::Even => "evenly",
        LiveSplit::Fresh => "by an up-to-date table",
    };
    let mut lines = vec![format!(
        "planned on {} steps ({}); the live map's copies share tokens {split}",
        answer.steps, answer.loads_from
    )];
    match answer.outcome {
        Outcome::Plan(plan) => lines.extend(plan_lines(plan)),
        Outcome::DoNothing(nothing) => {
            lines.push(format!("do nothing: {}", reason_line(&nothing.reason)));
            lines.push(format!(
                "bound: no map with these slots saves more than {} of the step",
                fmt::percent(nothing.bound.gain_share_max)
            ));
            if !nothing.refused.is_empty() {
                lines.push(format!("{} moves along degraded links refused", nothing.refused.len()));
            }
        }
    }
    if !answer.pareto.is_empty() {
        lines.push("what memory buys (copies beyond the live map's):".to_owned());
        lines.push(pareto_table(&answer.pareto));
    }
    let traffic = match answer.outcome {
        Outcome::Plan(plan) => &plan.traffic,
        Outcome::DoNothing(nothing) => &nothing.traffic,
    };
    lines.extend(traffic.iter().flat_map(crossing::lines));
    if let Some(path) = answer.written {
        lines.push(format!("wrote {}", path.display()));
    }
    lines.join("\n")
}

fn pareto_table(points: &[ParetoPoint]) -> String {
    let mut table =
        text::Table::new(["copies", "GiB", "step, mean", "step, p99", "KV lost", "KV tokens lost"]);
    for point in points {
        table.row([
            point.copies.to_string(),
            fmt::number(point.bytes as f64 / f64::from(1 << 30)),
            fmt::us(point.step_us),
            fmt::us(point.step_us_p99),
            fmt::bytes(point.kv_bytes_lost.max(0) as f64),
            point.kv_tokens_lost.max(0).to_string(),
        ]);
    }
    table.render(2)
}

/// A plan for a terminal.
pub(crate) fn plan_lines(plan: &Plan) -> Vec<String> {
    let Plan { predicted, price, break_even, .. } = plan;
    let worst = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let mut lines = vec![
        format!(
            "step by the planner's costs: live {}, planned {} ({} saved), bound {} (gap {})",
            fmt::us(predicted.step_us_live),
            fmt::us(predicted.step_us_planned),
            fmt::percent(predicted.gain_share),
            fmt::us(predicted.step_us_bound),
            fmt::percent(predicted.gap_share)
        ),
        format!(
            "bound: no map with these slots saves more than {} of the step; a fresh split alone saves {}",
            fmt::percent(plan.bound.gain_share_max),
            fmt::percent(1.0 - predicted.step_us_resplit / predicted.step_us_live)
        ),
        format!(
            "balancedness of the worst layer (rows per rank, mean over max): live {}, planned {}",
            fmt::number(worst(&predicted.balancedness_live)),
            fmt::number(worst(&predicted.balancedness_planned))
        ),
        format!(
            "price: {} copies, {} ({} across nodes), {} in {} stages, KV lost {}",
            price.moves,
            fmt::bytes(price.bytes as f64),
            fmt::bytes(price.bytes_cross_node as f64),
            fmt::seconds(price.time_s),
            price.stages.len(),
            fmt::bytes(price.kv_bytes_lost.max(0) as f64)
        ),
        format!(
            "break-even after {} steps, {}{}",
            fmt::number(break_even.steps),
            fmt::seconds(break_even.seconds),
            if break_even.within_dwell { "" } else { ": later than the policy's dwell" }
        ),
    ];
    if !plan.refused.is_empty() {
        lines.push(format!("{} moves along degraded links refused", plan.refused.len()));
    }
    lines.extend(plan.repaired.first().map(|broken| {
        format!(
            "{} promises broken by the fastest map found are kept by this one, the first: {broken}",
            plan.repaired.len()
        )
    }));
    lines.extend(move_lines(plan, "step time saved", fmt::us, true));
    lines
}

/// The moves that gain most, with what each gains and what it costs.
fn move_lines(plan: &Plan, gain: &str, show: fn(f64) -> String, bytes_known: bool) -> Vec<String> {
    const SHOWN: usize = 10;
    let mut lines = Vec::new();
    let mut table = text::Table::new(["layer", "expert", "from", "to", "slot", "bytes", gain]);
    for one in plan.moves.iter().take(SHOWN) {
        table.row([
            one.layer.0.to_string(),
            one.expert.0.to_string(),
            one.from.to_string(),
            one.to.to_string(),
            one.slot.0.to_string(),
            if bytes_known { fmt::bytes(one.bytes as f64) } else { "–".to_owned() },
            show(one.gain_us),
        ]);
    }
    if !plan.moves.is_empty() {
        lines.push(table.render(2));
    }
    if plan.moves.len() > SHOWN {
        lines.push(format!("  and {} more (--json lists all)", plan.moves.len() - SHOWN));
    }
    lines
}

/// Why nothing is to be done, in words.
pub(crate) fn reason_line(reason: &Reason) -> String {
    match reason {
        Reason::BoundTooClose { bound_gain_share, gain_min_share } => format!(
            "no map saves more than {} of the step, {} is asked for",
            fmt::percent(*bound_gain_share),
            fmt::percent(*gain_min_share)
        ),
        Reason::AlreadyBalanced { balancedness, layer, enough } => format!(
            "balancedness (rows per rank, mean over max) of the worst layer ({layer}) is {}, {} is enough",
            fmt::number(*balancedness),
            fmt::number(*enough)
        ),
        Reason::GainTooSmall { gain_share, gain_min_share } => format!(
            "the best map found saves {} of the step, {} is asked for",
            fmt::percent(*gain_share),
            fmt::percent(*gain_min_share)
        ),
        Reason::BreaksPromise { broken, more, slots_missing } => format!(
            "the best map found breaks a promise that the live one keeps: {broken}{}; \
             {slots_missing} more slots in a layer, and memory for them, would keep both",
            if *more > 0 { format!(" (and {more} more)") } else { String::new() }
        ),
        Reason::AllRefused => "every move that would gain crosses a degraded link".into(),
        Reason::NeverPaysBack { break_even_s, dwell_s } => format!(
            "the move pays back after {}, a map is expected to live {}",
            fmt::seconds(*break_even_s),
            fmt::seconds(*dwell_s)
        ),
    }
}
