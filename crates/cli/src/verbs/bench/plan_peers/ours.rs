//! This planner on the problems: from scratch, and from its own map after drift.

use super::peers::Row;
use super::{Context, Problem, Score, median_cpu_ms, score};
use crate::fail::Failure;
use evenkeel_cost::ExpertCoefficients;
use evenkeel_plan::{Objective, Outcome, Plan, PlanInput, SplitRule, plan, plan_from_scratch};
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Topology};

/// Name in the tables.
pub(super) const NAME: &str = "evenkeel plan";

/// Memory of a rank: out of the picture, as it is for the peers.
const HBM_BYTES: u64 = 1 << 50;

/// What is asked, apart from loads and live map.
struct Setting {
    shape: ModelShape,
    topology: Topology,
    policy: Policy,
}

impl Setting {
    fn new(problem: &Problem) -> Result<Self, Failure> {
        let known = ModelShape::known("deepseek-v3");
        let known = known.ok_or_else(|| Failure::input("no shape `deepseek-v3`"))?;
        let (layers, experts) = (problem.layers as u16, problem.experts as u16);
        let shape = ModelShape { moe_layers: layers, experts, top_k: 1, groups: None, ..known };
        let mut topology = Topology::uniform("any", problem.ranks as u16, HBM_BYTES);
        topology.node.resize(problem.nodes, topology.node[0].clone());
        for node in &mut topology.node {
            node.ranks = (problem.ranks / problem.nodes) as u16;
        }
        let mut policy = Policy::default();
        policy.plan.slots_per_rank = problem.slots_per_rank() as u16;
        policy.plan.balancedness_enough = 1.0;
        policy.plan.gain_min_share = 0.0;
        policy.plan.gain_us_per_gb_min = 0.0;
        policy.moves.moves_max = u32::MAX;
        Ok(Self { shape, topology, policy })
    }

    fn ask<T>(
        &self,
        loads: &StepLoads,
        live: &ExpertMap,
        solve: impl FnOnce(PlanInput<'_>) -> T,
    ) -> T {
        solve(PlanInput {
            shape: &self.shape,
            topology: &self.topology,
            live,
            live_split: None,
            loads,
            coefficients: &ExpertCoefficients::FREE,
            exchange_us_per_row: 0.0,
            fixed_us: 0.0,
            policy: &self.policy,
            seed: 0,
            objective: Objective::SummedTokens,
            split: SplitRule::Even,
            rank_extra_us: None,
            traffic: None,
        })
    }
}

fn step(problem: &Problem, loads: &[u64]) -> StepLoads {
    let counts = loads.iter().map(|load| *load as u32).collect();
    StepLoads {
        phase: Phase::Prefill,
        layers: problem.layers,
        experts: problem.experts,
        steps: vec![StepLoad { tokens: 0, counts }],
    }
}

/// One row per problem.
pub(super) fn rows(context: &Context<'_>) -> Result<Vec<Row>, Failure> {
    context.problems().iter().map(|problem| row(context, problem)).collect()
}

fn row(context: &Context<'_>, problem: &Problem) -> Result<Row, Failure> {
    let _progress = context.progress(&format!("{NAME}, {}", problem.id));
    let setting = Setting::new(problem)?;
    let loads = step(problem, &problem.loads);
    let start = ExpertMap::contiguous(&setting.shape, problem.ranks, problem.slots_per_rank());
    let refused = |error| Failure::input(error).context(&problem.id);
    let (cpu_ms, first) =
        median_cpu_ms(context.runs(4), || setting.ask(&loads, &start, plan_from_scratch));
    let first: Plan = first.map_err(refused)?;
    let all = (problem.layers * problem.slots) as f64;
    let found = Score::of(&first.map.slots, &problem.loads, problem);
    let mut row = Row {
        peer: NAME.to_owned(),
        problem: problem.id.clone(),
        balance: Some(found.balance),
        balance_worst: Some(found.balance_worst),
        duplicates: Some(found.duplicates),
        missing: found.missing,
        moved_first: Some(score::moves(&score::start(problem), &first.map.slots) as f64 / all),
        cpu_ms: Some(cpu_ms),
        ..Row::default()
    };
    if let (Some(drifted), false) = (&problem.drifted, context.quick) {
        let outcome = setting.ask(&step(problem, drifted), &first.map, plan).map_err(refused)?;
        let second = match &outcome {
            Outcome::Plan(plan) => &plan.map,
            Outcome::DoNothing(_) => &first.map,
        };
        row.balance_stale = Some(Score::of(&first.map.slots, drifted, problem).balance);
        row.balance_second = Some(Score::of(&second.slots, drifted, problem).balance);
        row.moved_second = Some(score::moves(&first.map.slots, &second.slots) as f64 / all);
    }
    Ok(row)
}
