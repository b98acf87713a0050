//! Four counter-incidents: the same loop where the right answer is not to move experts.

use super::incident::{self, bound_share, predicted};
use super::scene::{COUNTER_SECONDS, PROFILE, SEQUENCES_PER_RANK, Scene, mean_context};
use crate::fail::Failure;
use crate::load;
use crate::out::Out;
use crate::setting::Setting;
use crate::verbs::plan::reason_line;
use evenkeel_diagnose::{CauseKind, Diagnosis, larger_batch};
use evenkeel_plan::{Outcome, plan};
use evenkeel_report::fmt;
use evenkeel_sim::{Faults, KernelFault};
use evenkeel_split::SplitTable;
use evenkeel_trace::draw;
use evenkeel_types::{ExpertMap, LinkHealth, ModelShape, NodeId, Phase, Topology};
use serde::Serialize;
use std::path::Path;

/// What one counter-incident came to.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Counter {
    pub(super) title: String,
    pub(super) verdict: String,
    pub(super) lines: Vec<String>,
}

/// Small batch of counter-incident 1, sequences per rank.
const SMALL_BATCH: u32 = 64;

/// Share of its rate that node 1's outer links keep in counter-incident 2.
const LINK_SHARE: f64 = 0.6;

/// What the fallback kernel of counter-incident 3 costs: time per token 1.8 times.
const KERNEL_FACTOR: f64 = 1.8;

/// Runs all four below `dir`.
pub(super) fn run(scene: &Scene, dir: &Path, out: &Out) -> Result<Vec<Counter>, Failure> {
    Ok(vec![
        small_batch(scene, dir, out)?,
        slow_link(scene, dir, out)?,
        fallback_kernel(scene, dir, out)?,
        flat_routing(scene)?,
    ])
}

/// The same traffic on H100 at a small batch: communication and floors decide, not the map.
fn small_batch(scene: &Scene, dir: &Path, out: &Out) -> Result<Counter, Failure> {
    let profile = "h100-sxm";
    let ranks = scene.setting.ranks() as u16;
    let topology = Topology::uniform(profile, ranks, load::hbm_bytes(profile)?);
    let other = scene.on(scene.setting.on(topology, profile)?, SMALL_BATCH);
    let live = incident::live_map(&other, out)?;
    let (new, healthy) = (other.new_mix(), Faults::default());
    let dir = dir.join("trace-h100");
    let recorded = incident::record(&other, &live, &new, &healthy, COUNTER_SECONDS, &dir, 21, out)?;
    let diagnosis = incident::explain(&other, &live.map, recorded.all(), None, out)?;
    let loads = incident::loads(&recorded.trace)?;
    let outcome =
        plan(other.question(&live.map, Some(&live.split), &loads)).map_err(Failure::input)?;
    let mut lines = vec![
        format!(
            "{}: no map saves more than {} of the step in expert time, {} with the exchange",
            diagnosis
                .cause(CauseKind::CommunicationBound)
                .map_or("not called bound by communication", |_| "bound by communication"),
            fmt::percent(diagnosis.map_bound.share_of_step),
            fmt::percent(bound_share(&outcome)),
        ),
        outcome_line(&outcome),
    ];
    let observation = recorded.all().observation(&other, &live.map);
    let context = mean_context(&other.planning) as u32;
    let sizes = [SMALL_BATCH, 2 * SMALL_BATCH, 4 * SMALL_BATCH];
    for larger in larger_batch(&other.setting.model, &observation, context, &sizes).iter().skip(1) {
        lines.push(format!(
            "{} sequences per rank would give {} of the tokens/s and cost {} more per token (ITL)",
            larger.sequences_per_rank,
            fmt::factor(larger.throughput_ratio),
            fmt::ms(larger.itl_cost_ms),
        ));
    }
    Ok(Counter {
        title: format!("The same traffic on H100, {SMALL_BATCH} sequences per rank"),
        verdict: verdict_of(&outcome),
        lines,
    })
}

/// Node 1's outer links at 60 %: the culprit is a link, and no expert moves along it.
fn slow_link(scene: &Scene, dir: &Path, out: &Out) -> Result<Counter, Failure> {
    let mut topology = scene.setting.topology.clone();
    topology.link_health.push(LinkHealth { node: NodeId(1), rate_share: LINK_SHARE });
    let degraded = scene.on(scene.setting.on(topology, PROFILE)?, SEQUENCES_PER_RANK);
    let live = incident::live_map(scene, out)?;
    let (new, healthy) = (scene.new_mix(), Faults::default());
    let dir = dir.join("trace-link");
    let recorded =
        incident::record(&degraded, &live, &new, &healthy, COUNTER_SECONDS, &dir, 22, out)?;
    // The operator's topology file does not know of the fault: the record is read with the healthy
    // machine's curves, and only the plan is made with the fault found.
    let diagnosis = incident::explain(scene, &live.map, recorded.all(), None, out)?;
    let loads = incident::loads(&recorded.trace)?;
    let outcome =
        plan(degraded.question(&live.map, Some(&live.split), &loads)).map_err(Failure::input)?;
    let (refused, crossing) = match &outcome {
        Outcome::Plan(plan) => (&plan.refused, plan.price.bytes_cross_node),
        Outcome::DoNothing(nothing) => (&nothing.refused, 0),
    };
    Ok(Counter {
        title: format!("Links into node 1 at {}", fmt::percent(LINK_SHARE)),
        verdict: cause_verdict(&diagnosis, CauseKind::SlowLink),
        lines: vec![
            cause_line(&diagnosis, CauseKind::SlowLink),
            format!(
                "{} moves along that link would have gained and are refused; {} cross it in what the \
                 planner offers instead, to be judged once the link is repaired ({})",
                refused.len(),
                fmt::bytes(crossing as f64),
                outcome_line(&outcome),
            ),
        ],
    })
}

/// A fallback kernel from half-time on: named with its step, and no plan.
fn fallback_kernel(scene: &Scene, dir: &Path, out: &Out) -> Result<Counter, Failure> {
    let live = incident::live_map(scene, out)?;
    let from_ns = (COUNTER_SECONDS / 2.0 * 1e9) as u64;
    let faults = Faults {
        kernel: Some(KernelFault { name: "fallback".into(), factor: KERNEL_FACTOR, from_ns }),
        ..Faults::default()
    };
    let (old, dir) = (scene.old_mix(), dir.join("trace-kernel"));
    let recorded = incident::record(scene, &live, &old, &faults, COUNTER_SECONDS, &dir, 23, out)?;
    let (earlier, later) = recorded.cut(from_ns);
    let diagnosis = incident::explain(scene, &live.map, later, Some(earlier), out)?;
    let allowed = if diagnosis.remap_allowed() { "allowed" } else { "not allowed" };
    Ok(Counter {
        title: format!("A fallback kernel, {} per token", fmt::factor(KERNEL_FACTOR)),
        verdict: cause_verdict(&diagnosis, CauseKind::FallbackKernel),
        lines: vec![
            cause_line(&diagnosis, CauseKind::FallbackKernel),
            format!("a plan on this window is {allowed}: no map makes a kernel faster"),
        ],
    })
}

/// Mixtral's nearly flat routing: "do nothing", with the bound.
fn flat_routing(scene: &Scene) -> Result<Counter, Failure> {
    let counts = super::assets::mixtral_counts()?;
    let known = ModelShape::known("mixtral-8x7b").ok_or_else(|| Failure::input("no such shape"))?;
    let shape = ModelShape { moe_layers: counts.layers as u16, ..known };
    let topology = Topology::uniform(PROFILE, 8, load::hbm_bytes(PROFILE)?);
    let mut policy = scene.setting.policy.clone();
    policy.plan.slots_per_rank = 0; // one slot per rank, as live
    let setting = Setting::new(shape, topology, PROFILE, policy)?;
    let live = ExpertMap::contiguous(&setting.shape, 8, 1);
    let tokens = 8 * SEQUENCES_PER_RANK;
    let top_k = usize::from(setting.shape.top_k);
    let (experts, phase) = (counts.experts, Phase::Decode);
    let loads =
        draw::loads_of_counts(&counts.counts, experts, top_k, phase, tokens, 64, scene.seed)
            .map_err(Failure::input)?;
    let split = SplitTable::even(&live).map_err(Failure::input)?;
    let fixed_us = setting.fixed_us(Phase::Decode, f64::from(SEQUENCES_PER_RANK), 1024.0);
    let question = setting.question(&live, Some(&split), &loads, fixed_us, scene.seed);
    let outcome = plan(question).map_err(Failure::input)?;
    let mut roomy = setting.clone();
    roomy.policy.plan.slots_per_rank = 2;
    let question = roomy.question(&live, Some(&split), &loads, fixed_us, scene.seed);
    let wider = plan(question).map_err(Failure::input)?;
    let balance = &predicted(&outcome).balancedness_live;
    let worst = balance.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Counter {
        title: "Mixtral 8x7B: flat routing, 8 experts on 8 ranks".into(),
        verdict: verdict_of(&outcome),
        lines: vec![
            format!(
                "balancedness of the worst layer (rows per rank, mean over max) {}; no map with these \
                 slots saves more than {} of the step",
                fmt::number(worst),
                fmt::percent(bound_share(&outcome)),
            ),
            "with one slot per rank every map is the same up to order".into(),
            format!(
                "with a second slot per rank, twice the expert memory: {}",
                outcome_line(&wider)
            ),
        ],
    })
}

fn verdict_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Plan(_) => "plan made".into(),
        Outcome::DoNothing(_) => "do nothing".into(),
    }
}

/// The outcome in a sentence.
pub(super) fn outcome_line(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Plan(plan) => format!(
            "plan: {} moves, {}, step {} shorter by the planner's costs",
            plan.price.moves,
            fmt::bytes(plan.price.bytes as f64),
            fmt::percent(plan.predicted.gain_share),
        ),
        Outcome::DoNothing(nothing) => format!("do nothing: {}", reason_line(&nothing.reason)),
    }
}

fn cause_verdict(diagnosis: &Diagnosis, kind: CauseKind) -> String {
    match diagnosis.cause(kind) {
        Some(_) if diagnosis.remap_allowed() => format!("{kind}"),
        Some(_) => format!("{kind}: no plan"),
        None => format!("{kind} not found"),
    }
}

fn cause_line(diagnosis: &Diagnosis, kind: CauseKind) -> String {
    match diagnosis.cause(kind) {
        Some(cause) => {
            let since =
                cause.since_step.map(|step| format!(", since step {step}")).unwrap_or_default();
            format!(
                "{kind}: {} per step{since}; {}; {}",
                fmt::ms(cause.ms_per_step),
                cause.evidence.first().map_or("", String::as_str),
                cause.remedy
            )
        }
        None => format!("expected {kind}; the diagnosis says {:?}", diagnosis.verdict),
    }
}
