//! The incident: a tenant surges, decode slows down, and the whole loop answers.

use super::scene::{RECORD_SECONDS, SECONDS, Scene, Traffic};
use crate::fail::Failure;
use crate::out::Out;
use crate::progress::Progress;
use crate::replays::{Placed, Recorder, Scenario, request_records};
use evenkeel_diagnose::{Diagnosis, Observation, Options, diagnose};
use evenkeel_plan::{Outcome, Plan, PlanInput, Predicted, plan, plan_from_scratch};
use evenkeel_prove::{
    DrawOutcome, GateInput, KvHeadroom, Pair, RunMetrics, Sameness, Verdict, gate, summary,
};
use evenkeel_sim::{Faults, Role, Run, TrafficFacts};
use evenkeel_split::SplitTable;
use evenkeel_store::{Trace, TraceWriter, Window};
use evenkeel_trace::{
    LoadMatrix, RequestRecord, StepLoads, StepRecord, TimeOrigin, TraceHeader, draw,
};
use evenkeel_types::{ExpertMap, Phase};
use std::path::Path;

/// Steps on which plans are made.
const PLANNING_STEPS: usize = 64;

/// One step in so many carries routing and links in the recorded traces.
const ROUTING_EVERY: u64 = 16;

/// Draws of the model's shared parameters under which both maps are replayed.
const DRAWS: usize = 8;

/// Simulated seconds of a draw: the sign of a difference needs less than its size.
const DRAW_SECONDS: f64 = 6.0;

/// A recorded window of the serving group, read back from the trace on disk.
pub(super) struct Recorded {
    pub(super) trace: Trace,
    pub(super) steps: Vec<StepRecord>,
    requests: Vec<RequestRecord>,
    breaches: Vec<String>,
    pub(super) loads: LoadMatrix,
    pub(super) metrics: RunMetrics,
    pub(super) traffic: TrafficFacts,
    pub(super) copies: u32,
}

/// One map in the comparison, with what the gate says of it against the live one.
pub(super) struct Judged {
    pub(super) placed: Placed,
    pub(super) plan: Option<Box<Plan>>,
    pub(super) run: Run,
    pub(super) metrics: RunMetrics,
    pub(super) verdict: Option<Verdict>,
}

/// Everything that the incident left.
pub(super) struct Incident {
    pub(super) before: Recorded,
    pub(super) after: Recorded,
    pub(super) live: Placed,
    pub(super) diagnosis: Diagnosis,
    pub(super) outcome: Outcome,
    /// Live map first, then the candidates.
    pub(super) judged: Vec<Judged>,
    pub(super) judging: TrafficFacts,
    pub(super) judging_copies: u32,
    pub(super) prefill: Vec<RunMetrics>,
    pub(super) chosen: Option<usize>,
}

/// Runs the whole pass; traces and maps go below `dir`.
pub(super) fn run(scene: &Scene, dir: &Path, out: &Out) -> Result<Incident, Failure> {
    let (old, new) = (scene.old_mix(), scene.new_mix());
    let live = live_map(scene, out)?;
    let healthy = Faults::default();
    let before =
        record(scene, &live, &old, &healthy, RECORD_SECONDS, &dir.join("trace-before"), 1, out)?;
    let after =
        record(scene, &live, &new, &healthy, RECORD_SECONDS, &dir.join("trace-after"), 2, out)?;
    let diagnosis = explain(scene, &live.map, after.all(), Some(before.all()), out)?;

    let loads = loads(&after.trace)?;
    let (outcome, scratch) = plans(scene, &live, &loads, out)?;
    let candidates = candidates(&live, &loads, &outcome, scratch)?;
    for placed in std::iter::once(&live).chain(candidates.iter().map(|(placed, _)| placed)) {
        scene.setting.admit(&placed.map, &placed.name)?;
    }

    let judging = scene.traffic(
        &scene.judging,
        &new,
        even_step_ms(scene, &live, &new)?,
        scene.seed ^ 0x4a55_4447,
    )?;
    let judged = judge(scene, &live, candidates, &judging, out)?;
    let chosen = choose(&judged);
    let prefill = prefill(scene, &judged, &judging, out)?;
    Ok(Incident {
        before,
        after,
        live,
        diagnosis,
        outcome,
        judged,
        judging: judging.facts,
        judging_copies: judging.copies,
        prefill,
        chosen,
    })
}

/// The map in force: planned from scratch for the old mix on the planning requests. Its copies
/// share an expert's tokens evenly, as engines do that have no split table.
pub(super) fn live_map(scene: &Scene, out: &Out) -> Result<Placed, Failure> {
    let _progress = Progress::start(out, "plan: the live map, for the old mix", 0);
    let start = scene.contiguous();
    let loads = scene.loads(&scene.old_mix(), 11)?;
    let plan = plan_from_scratch(scene.question(&start, None, &loads)).map_err(Failure::input)?;
    let mut map = plan.map;
    map.version = 7;
    map.parent = Some(6);
    map.provenance.window = "planning requests, equal shares of decoded tokens".into();
    let split = SplitTable::even(&map).map_err(Failure::input)?;
    Ok(Placed { name: "live".into(), map, split })
}

impl Scene {
    /// Sampled decode steps of the planning requests under a mix.
    pub(super) fn loads(&self, mix: &[f64], salt: u64) -> Result<StepLoads, Failure> {
        let ranks = self.setting.ranks();
        let per_rank = self.sequences_per_rank as usize;
        draw::decode_loads(&self.planning, mix, ranks, per_rank, PLANNING_STEPS, self.seed ^ salt)
            .map_err(Failure::input)
    }

    /// The planning question of this scene for a live map and a window.
    pub(super) fn question<'a>(
        &'a self,
        live: &'a ExpertMap,
        live_split: Option<&'a SplitTable>,
        loads: &'a StepLoads,
    ) -> PlanInput<'a> {
        self.setting.question(live, live_split, loads, self.fixed_us(), self.seed)
    }
}

/// Step under a mix if every rank were perfectly even, by the planner's bound, ms: sets the
/// arrival rate.
fn even_step_ms(scene: &Scene, live: &Placed, mix: &[f64]) -> Result<f64, Failure> {
    let loads = scene.loads(mix, 12)?;
    let outcome =
        plan(scene.question(&live.map, Some(&live.split), &loads)).map_err(Failure::input)?;
    Ok(predicted(&outcome).step_us_bound * 1e-3)
}

/// What an outcome predicts.
pub(super) fn predicted(outcome: &Outcome) -> &Predicted {
    match outcome {
        Outcome::Plan(plan) => &plan.predicted,
        Outcome::DoNothing(nothing) => &nothing.predicted,
    }
}

/// "No map with these slots saves more than this share of the step."
pub(super) fn bound_share(outcome: &Outcome) -> f64 {
    match outcome {
        Outcome::Plan(plan) => plan.bound.gain_share_max,
        Outcome::DoNothing(nothing) => nothing.bound.gain_share_max,
    }
}

/// Serves the planning requests under a mix on the live map and records it as a trace.
#[expect(clippy::too_many_arguments, reason = "the coordinates of one recording, all of one kind")]
pub(super) fn record(
    scene: &Scene,
    live: &Placed,
    mix: &[f64],
    faults: &Faults,
    seconds: f64,
    dir: &Path,
    salt: u64,
    out: &Out,
) -> Result<Recorded, Failure> {
    let seed = scene.seed ^ (salt << 32);
    let step_ms = even_step_ms(scene, live, mix)?;
    let traffic = scene.traffic(&scene.planning, mix, step_ms, seed)?;
    let scenario = scene.scenario(&traffic, faults, seconds);
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or("trace").to_owned();
    let (run, trace) = scenario.record(scene, live, &name, dir, out)?;
    let _progress = Progress::start(out, &format!("read back: {name}"), 0);
    let steps = trace.steps(Window::All).map_err(Failure::store)?;
    let steps = steps.collect::<Result<Vec<_>, _>>().map_err(Failure::store)?;
    let requests = trace.requests().map_err(Failure::store)?;
    let breaches = trace.breaches().iter().map(ToString::to_string).collect();
    let loads = trace.load_matrix(Window::All).map_err(Failure::store)?;
    let metrics = summary(&run, &scene.slices, &scene.setting.policy).map_err(Failure::input)?;
    let (traffic, copies) = (traffic.facts, traffic.copies);
    Ok(Recorded { trace, steps, requests, breaches, loads, metrics, traffic, copies })
}

/// A part of a recorded window.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    recorded: &'a Recorded,
    steps: &'a [StepRecord],
}

impl Recorded {
    /// All of it.
    pub(super) fn all(&self) -> Part<'_> {
        Part { recorded: self, steps: &self.steps }
    }

    /// Before and from `at_ns`.
    pub(super) fn cut(&self, at_ns: u64) -> (Part<'_>, Part<'_>) {
        let at = self.steps.partition_point(|step| step.start_ns < at_ns);
        let (earlier, later) = self.steps.split_at(at);
        (Part { recorded: self, steps: earlier }, Part { recorded: self, steps: later })
    }
}

impl<'a> Part<'a> {
    /// What the diagnosis reads, on the machine that the operator believes to have.
    pub(super) fn observation(self, scene: &'a Scene, map: &'a ExpertMap) -> Observation<'a> {
        Observation {
            header: self.recorded.trace.header(),
            map,
            topology: &scene.setting.topology,
            steps: self.steps,
            requests: &self.recorded.requests,
            breaches: &self.recorded.breaches,
        }
    }
}

impl Scene {
    /// The planning half under some traffic.
    pub(super) fn scenario<'a>(
        &'a self,
        traffic: &'a Traffic,
        faults: &'a Faults,
        seconds: f64,
    ) -> Scenario<'a> {
        Scenario {
            setting: &self.setting,
            routes: &self.planning,
            jobs: &traffic.jobs,
            role: Role::Decode,
            sequences_per_rank: self.sequences_per_rank,
            until_ns: (seconds * 1e9) as u64,
            faults,
        }
    }
}

impl Scenario<'_> {
    /// Replays one map and writes what happened as a trace.
    pub(super) fn record(
        &self,
        scene: &Scene,
        placed: &Placed,
        name: &str,
        dir: &Path,
        out: &Out,
    ) -> Result<(Run, Trace), Failure> {
        let mut header = TraceHeader::new(self.setting.shape.clone(), scene.slices.clone());
        header.topology = Some(self.setting.topology.clone());
        header.times = TimeOrigin::Modelled;
        header.routing_every = ROUTING_EVERY as u32;
        header.kernels = self.faults.kernels("grouped gemm");
        header.notes = vec![
            "Times are modelled: a replay of recorded routing under fitted cost curves.".into(),
            "Routing is teacher-forced: recorded in one pass over prompt and target.".into(),
        ];
        let mut writer = TraceWriter::create(dir, header).map_err(Failure::store)?;
        writer.map(&placed.map).map_err(Failure::store)?;
        let mut sink = Recorder { writer: &mut writer, every: ROUTING_EVERY };
        let recorded = Placed { name: name.to_owned(), ..placed.clone() };
        let run = self.replay(&recorded, &mut sink, out)?;
        writer.requests(&request_records(&run)).map_err(Failure::store)?;
        writer.finish().map_err(Failure::store)?;
        Ok((run, Trace::open(dir).map_err(Failure::store)?))
    }
}

/// Diagnoses a recorded window against a baseline.
pub(super) fn explain(
    scene: &Scene,
    map: &ExpertMap,
    now: Part<'_>,
    baseline: Option<Part<'_>>,
    out: &Out,
) -> Result<Diagnosis, Failure> {
    let _progress = Progress::start(out, "diagnose", 0);
    let observation = now.observation(scene, map);
    let baseline = baseline.map(|part| part.observation(scene, map));
    let options = Options { seed: scene.seed, kv_block_tokens: 16, ..Options::default() };
    diagnose(&observation, baseline.as_ref(), &scene.setting.model, &scene.setting.policy, &options)
        .map_err(Failure::input)
}

/// Sampled decode steps of a trace.
pub(super) fn loads(trace: &Trace) -> Result<StepLoads, Failure> {
    trace.loads(Phase::Decode, Window::All, PLANNING_STEPS).map_err(Failure::store)
}

/// The plan from the live map, and the greedy one from scratch beside it.
fn plans(
    scene: &Scene,
    live: &Placed,
    loads: &StepLoads,
    out: &Out,
) -> Result<(Outcome, Plan), Failure> {
    let _progress = Progress::start(out, "plan: from the live map, and from scratch", 0);
    let question = scene.question(&live.map, Some(&live.split), loads);
    let outcome = plan(question).map_err(Failure::input)?;
    let scratch = plan_from_scratch(question).map_err(Failure::input)?;
    Ok((outcome, scratch))
}

/// A map to compare with the live one, and the plan that it came from.
type Candidate = (Placed, Option<Box<Plan>>);

/// What is compared with the live map: a fresh split alone, the plan, the plan from scratch.
fn candidates(
    live: &Placed,
    loads: &StepLoads,
    outcome: &Outcome,
    scratch: Plan,
) -> Result<Vec<Candidate>, Failure> {
    let split = SplitTable::balanced(&live.map, &loads.total()).map_err(Failure::input)?;
    let resplit = Placed { name: "live, new split".into(), map: live.map.clone(), split };
    let mut candidates = vec![(resplit, None)];
    if let Outcome::Plan(plan) = outcome {
        let placed =
            Placed { name: "planned".into(), map: plan.map.clone(), split: plan.split.clone() };
        candidates.push((placed, Some(plan.clone())));
    }
    let placed = Placed {
        name: "from scratch".into(),
        map: scratch.map.clone(),
        split: scratch.split.clone(),
    };
    candidates.push((placed, Some(Box::new(scratch))));
    Ok(candidates)
}

/// Replays every map on held-out requests and gates each candidate against the live map.
fn judge(
    scene: &Scene,
    live: &Placed,
    candidates: Vec<Candidate>,
    traffic: &Traffic,
    out: &Out,
) -> Result<Vec<Judged>, Failure> {
    let healthy = Faults::default();
    let scenario =
        Scenario { routes: &scene.judging, ..scene.scenario(traffic, &healthy, SECONDS) };
    let short = Scenario { until_ns: (DRAW_SECONDS * 1e9) as u64, ..scenario };
    let measure =
        |run: &Run| summary(run, &scene.slices, &scene.setting.policy).map_err(Failure::input);
    let maps: Vec<&Placed> =
        std::iter::once(live).chain(candidates.iter().map(|(placed, _)| placed)).collect();
    let mut runs = scenario.replay_all(&maps, out)?.into_iter();
    let missing = || Failure::environment("a replay is missing");
    let run = runs.next().ok_or_else(missing)?;
    let (placed, metrics) = (live.clone(), measure(&run)?);
    let mut judged = vec![Judged { placed, plan: None, metrics, run, verdict: None }];
    for ((placed, plan), run) in candidates.into_iter().zip(runs) {
        let draws = short.draws(live, &placed, &scene.slices, DRAWS, scene.seed, out)?;
        let verdict = verdict(scene, (live, &judged[0].run), (&placed, &run), &draws)?;
        let metrics = measure(&run)?;
        judged.push(Judged { placed, plan, metrics, run, verdict: Some(verdict) });
    }
    Ok(judged)
}

fn verdict(
    scene: &Scene,
    live: (&Placed, &Run),
    candidate: (&Placed, &Run),
    draws: &[DrawOutcome],
) -> Result<Verdict, Failure> {
    let setting = &scene.setting;
    let notes = setting.model_notes();
    let mut input = GateInput::new(
        Pair { live: live.1, candidate: candidate.1 },
        &scene.slices,
        &setting.policy,
    );
    input.modelled = true;
    input.draws = draws;
    input.sameness = Sameness::of_map(&candidate.0.map);
    let memory = &setting.policy.memory;
    input.kv = KvHeadroom::of_maps(
        &live.0.map,
        &candidate.0.map,
        &setting.shape,
        &setting.topology,
        memory,
    );
    input.model_notes = &notes;
    input.seed = scene.seed;
    gate(&input).map_err(Failure::input)
}

/// The held-out surge on the live map and on a plan: what the gate is benched on.
pub(super) fn two_replays(scene: &Scene, out: &Out) -> Result<(Run, Run), Failure> {
    let new = scene.new_mix();
    let live = live_map(scene, out)?;
    let step_ms = even_step_ms(scene, &live, &new)?;
    let traffic = scene.traffic(&scene.judging, &new, step_ms, scene.seed)?;
    let loads = scene.loads(&new, 13)?;
    let plan = plan_from_scratch(scene.question(&live.map, Some(&live.split), &loads))
        .map_err(Failure::input)?;
    let placed = Placed { name: "from scratch".into(), map: plan.map, split: plan.split };
    let healthy = Faults::default();
    let scenario =
        Scenario { routes: &scene.judging, ..scene.scenario(&traffic, &healthy, SECONDS) };
    let mut runs = scenario.replay_all(&[&live, &placed], out)?.into_iter();
    let missing = || Failure::environment("a replay is missing");
    Ok((runs.next().ok_or_else(missing)?, runs.next().ok_or_else(missing)?))
}

/// Among accepted candidates the one that moves fewest bytes, unless another's p99 TPOT is lower by
/// more than the policy's smallest gain; `None` where none is accepted.
fn choose(judged: &[Judged]) -> Option<usize> {
    let accepted = |index: &usize| {
        judged[*index].verdict.as_ref().is_some_and(|verdict| verdict.decision.is_positive())
    };
    let p99 = |index: usize| {
        judged[index].metrics.overall.tpot_ms.map_or(f64::INFINITY, |spread| spread.p99)
    };
    let bytes = |index: usize| judged[index].plan.as_ref().map_or(0, |plan| plan.price.bytes);
    let mut order: Vec<usize> = (1..judged.len()).filter(accepted).collect();
    order.sort_by_key(|index| bytes(*index));
    order.into_iter().reduce(|cheap, dear| if p99(dear) < 0.99 * p99(cheap) { dear } else { cheap })
}

/// TTFT beside it: a prefill group of the same size under its share of the same arrivals, for the
/// live map and the chosen one. Its routing is the prompts', its transport the normal mode.
fn prefill(
    scene: &Scene,
    judged: &[Judged],
    traffic: &Traffic,
    out: &Out,
) -> Result<Vec<RunMetrics>, Failure> {
    let groups = PREFILL_GROUPS;
    let jobs: Vec<_> = traffic
        .jobs
        .iter()
        .filter(|job| job.decoded == 0 && job.job % groups == 0)
        .copied()
        .collect();
    let scenario = Scenario {
        setting: &scene.setting,
        routes: &scene.judging,
        jobs: &jobs,
        role: Role::Prefill,
        sequences_per_rank: scene.sequences_per_rank,
        until_ns: (DRAW_SECONDS * 1e9) as u64,
        faults: &Faults::default(),
    };
    let maps: Vec<&Placed> = judged.iter().map(|one| &one.placed).collect();
    let runs = scenario.replay_all(&maps, out)?;
    runs.iter()
        .map(|run| summary(run, &scene.slices, &scene.setting.policy).map_err(Failure::input))
        .collect()
}

/// Prefill groups that share the arrivals of one decode group.
pub(super) const PREFILL_GROUPS: u64 = 8;
