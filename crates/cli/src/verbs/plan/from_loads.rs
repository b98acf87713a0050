//! Plans from a plain load matrix: summed tokens, even split, no trace and no curves.

use super::{Arguments, move_lines, reason_line};
use crate::fail::{Failure, Finding, Verdict};
use crate::out::{Out, write_file};
use crate::{certificate, load};
use clap::Args;
use evenkeel_cost::ExpertCoefficients;
use evenkeel_interop::{ImportError, LoadMatrix, SourceFile, load_matrix};
use evenkeel_plan::{Objective, Outcome, Plan, PlanInput, SplitRule, plan, plan_from_scratch};
use evenkeel_report::{fmt, text};
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{
    Attention, ExpertGroups, ExpertMap, ModelShape, Node, Phase, Policy, RankId, Topology,
    WeightFormat,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(next_help_heading = "Planning from a load matrix")]
pub(crate) struct LoadsArguments {
    /// Tokens per layer and expert: `.npy` or `.npz` with one array, CSV with a line per layer, or
    /// JSON. The objective is then summed tokens with an even split.
    #[arg(long, value_name = "FILE")]
    pub(super) loads: Option<PathBuf>,
    /// Ranks; default: the live map's.
    #[arg(long, requires = "loads")]
    ranks: Option<u16>,
    /// Slots of all ranks together; default: the live map's, else one per expert.
    #[arg(long, requires = "loads")]
    slots: Option<usize>,
    /// Nodes, each with an equal part of the ranks.
    #[arg(long, requires = "loads", default_value_t = 1)]
    nodes: u16,
    /// Expert groups to keep whole on a node, as group-limited routing wants.
    #[arg(long, requires = "loads")]
    groups: Option<u16>,
    /// Known model, for names and bytes.
    #[arg(long, requires = "loads")]
    model: Option<String>,
    /// Bytes of one expert's weights in one layer, where no model is named.
    #[arg(long, requires = "loads", conflicts_with = "model")]
    expert_bytes: Option<u64>,
}

/// All that a question borrows.
pub(crate) struct Problem {
    pub(crate) shape: ModelShape,
    pub(crate) topology: Topology,
    pub(crate) loads: StepLoads,
    pub(crate) policy: Policy,
}

#[derive(Serialize)]
struct Answer<'a> {
    objective: Objective,
    layers: usize,
    experts: usize,
    ranks: usize,
    slots_per_rank: usize,
    /// Whether bytes are those of a model, or unknown.
    bytes_known: bool,
    /// Whether a live map was given; without one, moves count what has to be loaded.
    from_live: bool,
    outcome: &'a Outcome,
    written: Option<&'a Path>,
}

pub(super) fn run(arguments: &Arguments, path: &Path, out: &mut Out) -> Verdict {
    let asked = &arguments.from_loads;
    let matrix = read(path)?;
    let live = arguments.map.as_deref().map(load::map).transpose()?;
    let problem = problem(arguments, &matrix, path, live.as_ref())?;
    let ranks = problem.topology.rank_count();
    let slots_per_rank = usize::from(problem.policy.plan.slots_per_rank);
    let from_live = live.is_some();
    let live = live.unwrap_or_else(|| ExpertMap::contiguous(&problem.shape, ranks, slots_per_rank));
    live.fits(&problem.shape, ranks)
        .map_err(|error| Failure::input(error).context(path.display()))?;
    let question = question(&problem, &live, arguments);
    let outcome = if from_live && !arguments.from_scratch {
        plan(question).map_err(Failure::input)?
    } else {
        Outcome::Plan(Box::new(best_from_scratch(question)?))
    };
    let bytes_known = asked.model.is_some() || asked.expert_bytes.is_some();
    let mut written = None;
    if let Outcome::Plan(plan) = &outcome {
        if let Some(path) = &arguments.certificate {
            certificate::write(path, &question, plan)?;
        }
        if let Some(folder) = &arguments.pictures {
            super::pictures::write(folder, &question, plan, bytes_known)?;
        }
        if let Some(file) = &arguments.out {
            let mut map = plan.map.clone();
            map.provenance.window = path.display().to_string();
            write_file(file, map.to_json().map_err(Failure::environment)?.as_bytes())?;
            written = Some(file.as_path());
        }
    }
    let answer = Answer {
        objective: Objective::SummedTokens,
        layers: matrix.layers,
        experts: matrix.experts,
        ranks,
        slots_per_rank,
        bytes_known,
        from_live,
        outcome: &outcome,
        written,
    };
    out.present(&answer, || render(&answer))?;
    Ok(Finding::from_good(matches!(outcome, Outcome::Plan(_))))
}

/// Reads a load matrix.
pub(crate) fn read(path: &Path) -> Result<LoadMatrix, Failure> {
    let refused = |error: ImportError| {
        if error.is_environment() { Failure::environment(error) } else { Failure::input(error) }
    };
    SourceFile::read(path).and_then(|file| load_matrix(&file)).map_err(|error| {
        refused(error).hint("a load matrix has a row of tokens per layer, a column per expert")
    })
}

/// The loads as one window: parts where a load exceeds what a step counts, exact in their sum.
pub(crate) fn window(matrix: &LoadMatrix) -> StepLoads {
    let most = matrix.tokens.iter().copied().max().unwrap_or(0);
    let parts = most.div_ceil(u64::from(u32::MAX)).max(1);
    let rows = (0..matrix.layers).map(|layer| matrix.layer(layer).iter().sum::<u64>());
    let tokens = (rows.max().unwrap_or(0) / parts).min(u64::from(u32::MAX)) as u32;
    let part = |index: u64| StepLoad {
        tokens,
        counts: matrix
            .tokens
            .iter()
            .map(|load| (load * (index + 1) / parts - load * index / parts) as u32)
            .collect(),
    };
    StepLoads {
        phase: Phase::Prefill,
        layers: matrix.layers,
        experts: matrix.experts,
        steps: (0..parts).map(part).collect(),
    }
}

fn problem(
    arguments: &Arguments,
    matrix: &LoadMatrix,
    path: &Path,
    live: Option<&ExpertMap>,
) -> Result<Problem, Failure> {
    let asked = &arguments.from_loads;
    let ranks = asked.ranks.or_else(|| live.map(|map| map.ranks() as u16));
    let ranks = ranks.filter(|ranks| *ranks > 0).ok_or_else(|| {
        Failure::input("--ranks is missing or 0").hint("give --ranks R, or the live map by --map")
    })?;
    let by_map = live.map(|map| map.slots.iter().flatten().map(Vec::len).max().unwrap_or(0));
    let slots = match (asked.slots, by_map) {
        (Some(slots), _) if !slots.is_multiple_of(usize::from(ranks)) => {
            return Err(Failure::input(format!(
                "--slots {slots}: expected a multiple of the {ranks} ranks"
            )));
        }
        (Some(slots), _) => slots / usize::from(ranks),
        (None, Some(slots)) => slots,
        (None, None) => matrix.experts.div_ceil(usize::from(ranks)),
    };
    if slots * usize::from(ranks) < matrix.experts || slots > matrix.experts {
        return Err(Failure::input(format!(
            "{slots} slots on each of {ranks} ranks: expected at least {} in all, and at most {0} \
             per rank, which has use for one copy of an expert",
            matrix.experts
        )));
    }
    let topology = topology(asked.nodes, ranks)?;
    let mut shape = shape(asked, matrix, path, live)?;
    let mut policy = load::policy(arguments.machine.policy.as_deref())?;
    policy.plan.slots_per_rank = slots as u16;
    if arguments.machine.policy.is_none() {
        // Without times there is no step to save a share of: every row counts.
        policy.plan.gain_min_share = 0.0;
        policy.plan.balancedness_enough = 1.0;
        policy.moves.dwell_s = 1e12;
        policy.memory.kv_floor_share = 0.0;
        policy.memory.hbm_reserve_share = 0.0;
        policy.plan.gain_us_per_gb_min = 0.0;
        if live.is_none() {
            policy.moves.moves_max = u32::MAX;
        }
    }
    if let Some(groups) = asked.groups {
        if groups == 0 || !matrix.experts.is_multiple_of(usize::from(groups)) {
            return Err(Failure::input(format!(
                "--groups {groups}: expected a divisor of the {} experts",
                matrix.experts
            )));
        }
        if !groups.is_multiple_of(asked.nodes) {
            return Err(Failure::input(format!(
                "--groups {groups}: expected a multiple of the {} nodes",
                asked.nodes
            )));
        }
        shape.groups = Some(ExpertGroups { groups, top_groups: groups });
        policy.plan.groups_on_nodes = asked.nodes > 1;
    }
    Ok(Problem { shape, topology, loads: window(matrix), policy })
}

fn topology(nodes: u16, ranks: u16) -> Result<Topology, Failure> {
    if nodes == 0 || !ranks.is_multiple_of(nodes) {
        return Err(Failure::input(format!(
            "--nodes {nodes}: expected a divisor of the {ranks} ranks"
        )));
    }
    let mut topology = Topology::uniform("cpu", ranks, 1 << 50);
    let node = |index| Node {
        name: format!("node-{index}"),
        ranks: ranks / nodes,
        hbm_bytes: 1 << 50,
        nic_gbit_per_s: 400.0,
        domain: String::new(),
    };
    topology.node = (0..nodes).map(node).collect();
    topology.validate().map_err(Failure::input)?;
    Ok(topology)
}

/// A model of which layers, experts and bytes of an expert are known, and nothing else counts.
fn shape(
    asked: &LoadsArguments,
    matrix: &LoadMatrix,
    path: &Path,
    live: Option<&ExpertMap>,
) -> Result<ModelShape, Failure> {
    let dimension = |what: &str, value: usize| {
        u16::try_from(value)
            .map_err(|_| Failure::input(format!("{}: {value} {what} are too many", path.display())))
    };
    let layers = dimension("layers", matrix.layers)?;
    let experts = dimension("experts", matrix.experts)?;
    if let Some(name) = &asked.model {
        let shape = ModelShape::known(name).ok_or_else(|| {
            Failure::input(format!("model `{name}` is not known"))
                .hint(format!("known: {}", ModelShape::KNOWN.join(", ")))
        })?;
        if (shape.moe_layers, shape.experts) != (layers, experts) {
            return Err(Failure::input(format!(
                "{}: {layers} layers x {experts} experts, expected {} x {} of `{name}`",
                path.display(),
                shape.moe_layers,
                shape.experts
            )));
        }
        return Ok(shape);
    }
    // Three matrices of one byte a weight: the nearest size at or above what was asked for.
    let third = asked.expert_bytes.unwrap_or(3).div_ceil(3).clamp(1, 1 << 40);
    let hidden = third.div_ceil(1 << 20);
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let shape = ModelShape {
        name: live.map_or_else(|| stem.unwrap_or_default(), |map| map.model.clone()),
        revision: live.map_or_else(|| "main".to_owned(), |map| map.model_revision.clone()),
        tokenizer_revision: String::new(),
        moe_layers: layers,
        dense_layers: 0,
        experts,
        top_k: 1,
        shared_experts: 0,
        hidden: hidden as u32,
        expert_width: third.div_ceil(hidden) as u32,
        dense_width: 0,
        vocab: 1,
        weights: WeightFormat::Fp8,
        attention: Attention::Gqa { heads: 1, kv_heads: 1, head_dim: 1 },
        kv_element_bytes: 1,
        groups: None,
    };
    shape.validate().map_err(|error| Failure::input(error).context(path.display()))?;
    Ok(shape)
}

fn question<'a>(problem: &'a Problem, live: &'a ExpertMap, arguments: &Arguments) -> PlanInput<'a> {
    PlanInput {
        shape: &problem.shape,
        topology: &problem.topology,
        live,
        live_split: None,
        loads: &problem.loads,
        coefficients: &ExpertCoefficients::FREE,
        exchange_us_per_row: 0.0,
        fixed_us: 0.0,
        policy: &problem.policy,
        seed: arguments.seed,
        objective: Objective::SummedTokens,
        split: SplitRule::Even,
        effort: arguments.effort(),
        rank_extra_us: None,
        traffic: None,
    }
}

/// The better of packing afresh and of searching on from there, moves counted from `live`.
fn best_from_scratch(question: PlanInput<'_>) -> Result<Plan, Failure> {
    let packed = plan_from_scratch(question).map_err(Failure::input);
    let searched = plan(question).map_err(Failure::input);
    match (packed, searched) {
        (Ok(packed), Ok(Outcome::Plan(searched)))
            if searched.predicted.step_us_planned <= packed.predicted.step_us_planned =>
        {
            Ok(*searched)
        }
        (Ok(packed), _) => Ok(packed),
        (Err(_), Ok(Outcome::Plan(searched))) => Ok(*searched),
        (Err(error), _) => Err(error),
    }
}

fn render(answer: &Answer<'_>) -> String {
    let Answer { layers, experts, ranks, slots_per_rank, .. } = answer;
    let mut lines = vec![format!(
        "summed tokens, even split: {layers} layers x {experts} experts on {ranks} ranks x \
         {slots_per_rank} slots"
    )];
    match answer.outcome {
        Outcome::Plan(plan) => lines.extend(plan_lines(answer, plan)),
        Outcome::DoNothing(nothing) => {
            lines.push(format!("do nothing: {}", reason_line(&nothing.reason)));
            lines.push(format!(
                "bound: no map with these slots takes more than {} off the rows of the fullest ranks",
                fmt::percent(nothing.bound.gain_share_max)
            ));
        }
    }
    lines.extend(answer.written.map(|path| format!("wrote {}", path.display())));
    lines.join("\n")
}

fn plan_lines(answer: &Answer<'_>, plan: &Plan) -> Vec<String> {
    let Plan { predicted, price, .. } = plan;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let before = if answer.from_live { "live" } else { "contiguous" };
    let mut lines = vec![
        format!(
            "balancedness (rows per rank, mean over max): {before} {} mean of layers, {} worst; \
             planned {} mean, {} worst",
            fmt::number(mean(&predicted.balancedness_live)),
            fmt::number(least(&predicted.balancedness_live)),
            fixed(mean(&predicted.balancedness_planned)),
            fixed(least(&predicted.balancedness_planned))
        ),
        format!(
            "rows of the fullest rank, summed over layers: {before} {}, planned {}, bound {} (gap {})",
            fmt::number(predicted.step_us_live),
            fmt::number(predicted.step_us_planned),
            fmt::number(predicted.step_us_bound),
            fmt::percent(predicted.gap_share)
        ),
    ];
    let bytes = |bytes: f64| {
        if answer.bytes_known { fmt::bytes(bytes) } else { "bytes unknown".to_owned() }
    };
    lines.push(format!(
        "price: {} copies arrive on a rank that {}, {}, {} stages{}",
        price.moves,
        if answer.from_live { "lacks them" } else { "a contiguous map leaves without" },
        bytes(price.bytes as f64),
        price.stages.len(),
        if answer.bytes_known {
            format!(" ({} across nodes)", fmt::bytes(price.bytes_cross_node as f64))
        } else {
            ": --model or --expert-bytes prices them".to_owned()
        }
    ));
    lines.extend(worst_layers(predicted, before));
    lines.extend(move_lines(plan, "rows saved", fmt::number, answer.bytes_known));
    lines
}

/// Four digits: plans differ in the third.
fn fixed(value: f64) -> String {
    format!("{value:.4}")
}

/// The layers that end worst balanced.
fn worst_layers(predicted: &evenkeel_plan::Predicted, before: &str) -> Vec<String> {
    const SHOWN: usize = 5;
    let planned = &predicted.balancedness_planned;
    let mut layers: Vec<usize> = (0..planned.len()).collect();
    layers.sort_by(|a, b| planned[*a].total_cmp(&planned[*b]));
    let mut table = text::Table::new(["worst layers", before, "planned"]);
    for layer in layers.into_iter().take(SHOWN) {
        table.row([
            layer.to_string(),
            fixed(predicted.balancedness_live[layer]),
            fixed(planned[layer]),
        ]);
    }
    vec![table.render(2)]
}

/// `[layer][rank]`: rows under a map with equal shares per copy.
pub(crate) fn rows_even(map: &ExpertMap, totals: &[u64]) -> Vec<Vec<f64>> {
    let experts = usize::from(map.experts);
    (0..map.layers())
        .map(|index| {
            let mut rows = vec![0.0; map.ranks()];
            let hosts = map.hosts(evenkeel_types::LayerId(index as u16));
            for (hosts, load) in hosts.iter().zip(&totals[index * experts..]) {
                for RankId(rank) in hosts {
                    rows[usize::from(*rank)] += *load as f64 / hosts.len() as f64;
                }
            }
            rows
        })
        .collect()
}
