//! Loss of a rank or a node: plans for every rank, the switch, what is restorable and what is live.

use super::{Context, Figure, Problem, Target, cpu_ms, median_cpu_ms};
use crate::fail::Failure;
use evenkeel_cost::ExpertCoefficients;
use evenkeel_plan::survive::{
    RestorePlan, Restores, Survey, SurviveInput, live_copies, spread, survey,
};
use evenkeel_plan::{Objective, PlanInput, SearchEffort, SplitRule, plan_from_scratch};
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{DomainKind, ExpertMap, ModelShape, Phase, Policy, Topology};

const NONE: &str = "none";

/// B1 as a model on a machine: DeepSeek-V3's experts in FP8, 32 ranks of 141 GB on four nodes.
struct Scene {
    shape: ModelShape,
    topology: Topology,
    policy: Policy,
    loads: Vec<u64>,
}

impl Scene {
    fn new(problem: &Problem) -> Result<Self, Failure> {
        let known = ModelShape::known("deepseek-v3");
        let known = known.ok_or_else(|| Failure::input("`deepseek-v3` is not known"))?;
        let (layers, experts) = (problem.layers as u16, problem.experts as u16);
        let shape = ModelShape { moe_layers: layers, experts, ..known };
        let topology = Topology::uniform("h200-sxm", problem.ranks as u16, 141_000_000_000);
        let mut policy = Policy::default();
        policy.restore.host_holds_experts = true;
        Ok(Self { shape, topology, policy, loads: problem.loads.clone() })
    }

    fn input<'a>(&'a self, map: &'a ExpertMap) -> SurviveInput<'a> {
        SurviveInput {
            shape: &self.shape,
            topology: &self.topology,
            map,
            policy: &self.policy,
            loads: Some(&self.loads),
        }
    }

    /// The map for summed tokens and even split.
    fn map(&self, problem: &Problem, slots_per_rank: usize) -> Result<ExpertMap, Failure> {
        let live = ExpertMap::contiguous(&self.shape, problem.ranks, slots_per_rank);
        let counts = self.loads.iter().map(|load| u32::try_from(*load).unwrap_or(u32::MAX));
        let tokens =
            self.loads[..problem.experts].iter().sum::<u64>() / u64::from(self.shape.top_k);
        let step = StepLoad {
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            counts: counts.collect(),
        };
        let (layers, experts) = (problem.layers, problem.experts);
        let loads = StepLoads { phase: Phase::Decode, layers, experts, steps: vec![step] };
        let coefficients = ExpertCoefficients {
            floor_us: 0.0,
            slot_us: 0.0,
            first_us: 0.0,
            tile_rows: 64,
            further_tile_us: 0.0,
            row_us: 1.0,
            token_us: 0.0,
            host_us: 0.0,
        };
        let question = PlanInput {
            shape: &self.shape,
            topology: &self.topology,
            live: &live,
            live_split: None,
            loads: &loads,
            coefficients: &coefficients,
            exchange_us_per_row: 0.0,
            fixed_us: 0.0,
            policy: &self.policy,
            seed: 1,
            objective: Objective::SummedTokens,
            split: SplitRule::Even,
            effort: SearchEffort::Thorough,
            rank_extra_us: None,
            traffic: None,
        };
        Ok(plan_from_scratch(question).map_err(Failure::input)?.map)
    }
}

pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let problem = context.problem("B1")?;
    let scene = Scene::new(problem)?;
    let map = scene.map(problem, problem.slots_per_rank())?;
    let input = scene.input(&map);
    let kinds = [DomainKind::Rank];
    let (plans_ms, restores) =
        median_cpu_ms(context.runs(4), || Restores::precompute(&input, &kinds));
    let restores = restores.map_err(Failure::input)?;
    let mut figures = vec![figure(
        "N-1 plans for all 32 ranks, B1",
        "ms",
        Target::AtMost(1000.0),
        plans_ms,
        "orphans placed, copies moved, moves scheduled, balance before and after by a levelled split",
    )];
    let mut switch_ms = 0.0_f64;
    for plan in restores.plans() {
        let (ms, switch) = cpu_ms(|| restores.switch(&plan.domain.ranks));
        switch.map_err(Failure::input)?;
        switch_ms = switch_ms.max(ms);
    }
    figures.push(figure(
        "switch to a lost rank's plan, B1",
        "ms",
        Target::AtMost(10.0),
        switch_ms,
        "the slowest of 32: plan selected, map and exact split table made",
    ));
    let found = survey(&input, &kinds).map_err(Failure::input)?;
    figures.extend(restorable(restores.plans(), &found));
    figures.extend(live(&scene, problem)?);
    figures.extend(nodes(&scene, &map)?);
    figures.extend(apart(&scene, &map)?);
    Ok(figures)
}

/// What the loss of any one rank means at 12.5 % extra slots.
fn restorable(plans: &[RestorePlan], found: &Survey) -> Vec<Figure> {
    let disk_s = found.domains.iter().map(|domain| domain.disk_s).fold(0.0, f64::max);
    let most = |of: &dyn Fn(&RestorePlan) -> f64| plans.iter().map(of).fold(0.0, f64::max);
    let mean = |layers: &[f64]| layers.iter().sum::<f64>() / layers.len().max(1) as f64;
    let plans_mean = |of: &dyn Fn(&RestorePlan) -> f64| {
        plans.iter().map(of).sum::<f64>() / plans.len().max(1) as f64
    };
    let at = "12.5 % extra slots";
    let one = |what: &str, unit, found, note: &str| {
        figure(&format!("{what}, any one rank lost, {at}"), unit, Target::None, found, note)
    };
    vec![
        figure(
            &format!("experts that stay lost, any one rank lost, {at}"),
            "experts",
            Target::AtMost(0.0),
            most(&|plan| plan.unrestored.len() as f64),
            "restorable: every orphan finds a slot on the 31 ranks left",
        ),
        one("bytes from hosts", "GB", most(&|p| p.bytes_from_hosts as f64 / 1e9), "worst rank"),
        one("time to resume from hosts", "s", most(&|p| p.resume_s), "20 GB/s into each rank"),
        one(
            "time to resume from disks",
            "s",
            disk_s,
            "worst rank; 5 GB/s per node, shared by its ranks",
        ),
        one(
            "balance once resumed",
            "balance",
            plans_mean(&|p| mean(&p.balancedness_resumed)),
            "levelled split (within a thousandth of the exact one), mean over layers and ranks lost",
        ),
        one(
            "balance after copies moved",
            "balance",
            plans_mean(&|p| mean(&p.balancedness)),
            "the policy asks for 0.97",
        ),
        one(
            "bytes from peers",
            "GB",
            most(&|p| p.bytes_from_peers as f64 / 1e9),
            "worst rank; while serving, at 2 GB/s per rank",
        ),
        one("time until all is done", "s", most(&|p| p.done_s), "worst rank"),
    ]
}

/// A second copy of every expert: slots doubled.
fn live(scene: &Scene, problem: &Problem) -> Result<Vec<Figure>, Failure> {
    let mut map = scene.map(problem, problem.experts / problem.ranks)?;
    for rank in map.slots.iter_mut().flatten() {
        rank.resize(2 * problem.experts / problem.ranks, None);
    }
    let orphans = |survey: &Survey| survey.domains.iter().map(|d| d.orphans.len()).sum::<usize>();
    let mut figures = Vec::new();
    for kind in [DomainKind::Rank, DomainKind::Node] {
        let (ms, doubled) = cpu_ms(|| live_copies(&scene.input(&map), kind));
        let doubled = doubled.map_err(Failure::input)?;
        let found = survey(&scene.input(&doubled), &[kind]).map_err(Failure::input)?;
        let bytes = problem.layers * problem.experts / problem.ranks;
        let gb = bytes as f64 * scene.shape.expert_bytes() as f64 / 1e9;
        figures.push(figure(
            &format!("experts without a live copy, any one {kind} lost, 100 % extra slots"),
            "experts",
            Target::AtMost(0.0),
            orphans(&found) as f64,
            &format!("live: {gb:.1} GB more on every rank; placed in {ms:.0} ms CPU"),
        ));
    }
    Ok(figures)
}

/// The loss of a node at 12.5 % extra slots: 216 slots are left for 256 experts.
fn nodes(scene: &Scene, map: &ExpertMap) -> Result<Vec<Figure>, Failure> {
    let found = survey(&scene.input(map), &[DomainKind::Node]).map_err(Failure::input)?;
    let most = |of: &dyn Fn(&evenkeel_plan::survive::DomainSurvey) -> usize| {
        found.domains.iter().map(of).max().unwrap_or(0) as f64
    };
    Ok(vec![figure(
        "experts that stay lost, any one node lost, 12.5 % extra slots",
        "experts",
        Target::None,
        most(&|domain| domain.unrestored.len()),
        &format!(
            "of {} orphans; 24 ranks x 9 slots hold 216 of a layer's 256 experts: restoring a node \
             takes 11 slots per rank, 37.5 % extra",
            most(&|domain| domain.orphans.len())
        ),
    )])
}

/// Copies of one expert moved out of one node.
fn apart(scene: &Scene, map: &ExpertMap) -> Result<Vec<Figure>, Failure> {
    let input = scene.input(map);
    let (ms, found) = cpu_ms(|| spread(&input, DomainKind::Node, 0.001));
    let found = found.map_err(Failure::input)?;
    let mean = |layers: &[f64]| layers.iter().sum::<f64>() / layers.len().max(1) as f64;
    Ok(vec![figure(
        "experts whose copies share a node after spreading, B1",
        "experts",
        Target::None,
        found.together.len() as f64,
        &format!(
            "{} before; {} copies moved, balance {:.4} to {:.4} (at most 0.1 % of the slowest rank \
             given up), {ms:.0} ms CPU",
            found.together_before,
            found.moves,
            mean(&found.balancedness_before),
            mean(&found.balancedness)
        ),
    )])
}

fn figure(what: &str, unit: &'static str, target: Target, found: f64, note: &str) -> Figure {
    let (what, note) = (what.to_owned(), note.to_owned());
    Figure { what, unit, best_today: NONE.to_owned(), target, found, note }
}
