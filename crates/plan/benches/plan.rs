//! `cargo bench -p evenkeel-plan`: time, quality and bytes of plans, each line one problem.
//!
//! Two kinds: decode steps of a DeepSeek-V2-Lite-like model on the fitted form of expert time, and
//! the summed-token problems of engines' planners (lognormal loads as in B1 and D2 of the peer
//! study, drawn here from another generator), beside the peer's own placement. Times are of the
//! processor, median of 3. "From contiguous" is the first plan ever made for a deployment, "after
//! drift" the next one, from the map of the first.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a bench looks at the clock, and stops at a fault"
)]

use evenkeel_cost::ExpertCoefficients;
use evenkeel_plan::{
    Objective, Outcome, Plan, PlanInput, SearchEffort, SplitRule, peer, plan, plan_from_scratch,
};
use evenkeel_split::min_max_rows;
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Topology, hash2, hash3, unit_f64};
use std::io::Write;
use std::time::Instant;

/// Standard normal by Box and Muller from two stateless draws.
fn normal(seed: u64, a: u64, b: u64) -> f64 {
    let u = unit_f64(hash3(seed, a, 2 * b)).max(1e-300);
    let v = unit_f64(hash3(seed, a, 2 * b + 1));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// `[layer][expert]` lognormal popularities, one sigma per layer from 0.5 to 1.35, shuffled.
fn popularity(layers: usize, experts: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut order: Vec<usize> = (0..layers).collect();
    order.sort_by_key(|layer| hash2(seed, *layer as u64));
    order
        .iter()
        .enumerate()
        .map(|(layer, place)| {
            let sigma = 0.5 + 0.85 * *place as f64 / layers.max(2) as f64;
            (0..experts)
                .map(|expert| (sigma * normal(seed, layer as u64, expert as u64)).exp())
                .collect()
        })
        .collect()
}

/// Steps whose counts scatter around the popularity as independent choices would.
fn steps(shape: &ModelShape, tokens: u32, count: usize, seed: u64) -> StepLoads {
    let (layers, experts) = (usize::from(shape.moe_layers), usize::from(shape.experts));
    let popularity = popularity(layers, experts, seed);
    let choices = f64::from(tokens) * f64::from(shape.top_k);
    let steps = (0..count).map(|step| {
        let mut counts = Vec::with_capacity(layers * experts);
        for (layer, weights) in popularity.iter().enumerate() {
            let sum: f64 = weights.iter().sum();
            for (expert, weight) in weights.iter().enumerate() {
                let mean = (choices * weight / sum).min(f64::from(tokens));
                let key = (step * layers + layer) as u64;
                let scatter = normal(seed + 1, key, expert as u64) * mean.sqrt();
                counts.push((mean + scatter).round().clamp(0.0, f64::from(tokens)) as u32);
            }
        }
        StepLoad { tokens, counts }
    });
    StepLoads { phase: Phase::Decode, layers, experts, steps: steps.collect() }
}

/// Time of this process so far, ms: on a CPU where Linux tells (other work on the machine does not
/// count), otherwise on the wall.
fn now_ms(start: Instant) -> f64 {
    let on_cpu = std::fs::read_to_string("/proc/self/schedstat").ok();
    let on_cpu = on_cpu.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    on_cpu.map_or_else(|| start.elapsed().as_secs_f64() * 1e3, |ns| ns / 1e6)
}

struct Problem {
    name: &'static str,
    shape: ModelShape,
    ranks: u16,
    slots: usize,
    loads: StepLoads,
    objective: Objective,
    split: SplitRule,
}

/// H20-like coefficients for DeepSeek-V2-Lite in FP8: a first tile costs its operations.
fn coefficients() -> ExpertCoefficients {
    ExpertCoefficients {
        floor_us: 11.7,
        slot_us: 0.12,
        first_us: 9.0,
        tile_rows: 64,
        further_tile_us: 8.9,
        row_us: 0.025,
        token_us: 0.0,
        host_us: 0.0,
    }
}

fn problems() -> Vec<Problem> {
    let lite = ModelShape::known("deepseek-v2-lite").expect("known");
    let v3 = ModelShape::known("deepseek-v3").expect("known");
    let k2 = ModelShape { moe_layers: 60, experts: 384, groups: None, ..v3.clone() };
    let step_time = |name, shape: &ModelShape, ranks: u16, slots, tokens| Problem {
        name,
        shape: shape.clone(),
        ranks,
        slots,
        loads: steps(shape, tokens, 64, 1),
        objective: Objective::StepTime,
        split: SplitRule::Balanced,
    };
    let summed = |name, shape: &ModelShape, ranks: u16, slots, seed| {
        let tokens = 4096 * u32::from(shape.experts) / u32::from(shape.top_k);
        Problem {
            name,
            shape: shape.clone(),
            ranks,
            slots,
            loads: steps(shape, tokens, 1, seed),
            objective: Objective::SummedTokens,
            split: SplitRule::Even,
        }
    };
    vec![
        step_time("v2-lite decode, EP16, 80 slots", &lite, 16, 5, 4096),
        step_time("v2-lite decode, EP32, 96 slots", &lite, 32, 3, 8192),
        step_time("v3 decode, EP32, 288 slots", &v3, 32, 9, 4096),
        step_time("60x384 decode, EP128, 512 slots", &k2, 128, 4, 16_384),
        step_time("60x384 decode, EP256, 1024 slots", &k2, 256, 4, 32_768),
        summed("B1-like, 58x256, EP32, 288 slots, even split", &v3, 32, 9, 1),
        summed("D2-like, 60x384, EP128, 512 slots, even split", &k2, 128, 4, 8),
    ]
}

fn balance(layers: &[f64]) -> (f64, f64) {
    let mean = layers.iter().sum::<f64>() / layers.len() as f64;
    (mean, layers.iter().copied().fold(1.0, f64::min))
}

/// Mean over layers of mean ÷ largest rank under even split over slots, duplicates counted twice.
fn even_balance(map: &ExpertMap, loads: &StepLoads) -> f64 {
    let total = loads.total();
    let layers = map.slots.iter().enumerate().map(|(layer, ranks)| {
        let mut copies = vec![0_u64; loads.experts];
        ranks.iter().flatten().flatten().for_each(|expert| copies[expert.index()] += 1);
        let rows = |rank: &Vec<Option<evenkeel_types::ExpertId>>| -> f64 {
            let held = rank.iter().flatten();
            held.map(|e| total[layer * loads.experts + e.index()] as f64 / copies[e.index()] as f64)
                .sum()
        };
        let rows: Vec<f64> = ranks.iter().map(rows).collect();
        rows.iter().sum::<f64>() / rows.len() as f64 / rows.iter().copied().fold(0.0, f64::max)
    });
    layers.sum::<f64>() / map.layers() as f64
}

/// What a run of [`plan`] came to.
struct Row {
    ms: f64,
    live_us: f64,
    planned_us: f64,
    bound_us: f64,
    balance: (f64, f64),
    moves: f64,
    map: ExpertMap,
}

impl Row {
    fn line(&self) -> String {
        format!(
            "{:.0} ms, {:.0} -> {:.0} (bound {:.0}, gap {:.2} %), balancedness {:.4} ({:.3}), \
             {:.1} moves per layer",
            self.ms,
            self.live_us,
            self.planned_us,
            self.bound_us,
            (self.planned_us / self.bound_us - 1.0) * 100.0,
            self.balance.0,
            self.balance.1,
            self.moves,
        )
    }
}

/// Plans three times from `live`.
fn run(input: PlanInput<'_>, start: Instant) -> Row {
    let mut times = Vec::new();
    let mut outcome = None;
    for _ in 0..3 {
        let before = now_ms(start);
        outcome = Some(plan(input).expect("plans"));
        times.push(now_ms(start) - before);
    }
    times.sort_by(f64::total_cmp);
    let (predicted, moves, map) = match outcome.expect("ran") {
        Outcome::Plan(plan) => (plan.predicted, plan.price.moves, plan.map),
        Outcome::DoNothing(nothing) => (nothing.predicted, 0, input.live.clone()),
    };
    Row {
        ms: times[1],
        live_us: predicted.step_us_live,
        planned_us: predicted.step_us_planned,
        bound_us: predicted.step_us_bound,
        balance: balance(&predicted.balancedness_planned),
        moves: moves as f64 / input.loads.layers as f64,
        map,
    }
}

/// The same steps after each expert's popularity drifts by exp(0.15 N).
fn drifted(loads: &StepLoads) -> StepLoads {
    let mut loads = loads.clone();
    for step in &mut loads.steps {
        for (cell, count) in step.counts.iter_mut().enumerate() {
            let factor = (0.15 * normal(99, 7, cell as u64)).exp();
            *count = (f64::from(*count) * factor).round().min(f64::from(step.tokens)) as u32;
        }
    }
    loads
}

fn split_line(out: &mut impl Write, start: Instant) {
    let v3 = ModelShape { moe_layers: 1, ..ModelShape::known("deepseek-v3").expect("known") };
    let loads = steps(&v3, 131_072, 1, 1).total();
    let map = ExpertMap::contiguous(&v3, 32, 9);
    let topology = Topology::uniform("h20", 32, 2_000_000_000_000);
    let window = steps(&v3, 131_072, 1, 1);
    let (policy, coefficients) = (Policy::default(), coefficients());
    let problem = Problem {
        name: "",
        shape: v3.clone(),
        ranks: 32,
        slots: 9,
        loads: window,
        objective: Objective::SummedTokens,
        split: SplitRule::Balanced,
    };
    let input = question(&problem, &topology, &map, &policy, &coefficients);
    let packed = plan_from_scratch(input).expect("plans").map;
    let hosts = packed.hosts(evenkeel_types::LayerId(0));
    let before = now_ms(start);
    let times = 2000;
    let mut most = 0.0_f64;
    for _ in 0..times {
        most = most
            .max(min_max_rows(std::hint::black_box(&hosts), &loads, 32).expect("splits").max_rows);
    }
    let us = (now_ms(start) - before) * 1e3 / f64::from(times);
    let mean = loads.iter().sum::<u64>() as f64 / 32.0;
    writeln!(out, "exact split, 288 slots, 32 ranks: {us:.0} µs CPU, max/mean {:.4}", most / mean)
        .expect("stdout");
}

fn question<'a>(
    problem: &'a Problem,
    topology: &'a Topology,
    live: &'a ExpertMap,
    policy: &'a Policy,
    coefficients: &'a ExpertCoefficients,
) -> PlanInput<'a> {
    PlanInput {
        shape: &problem.shape,
        topology,
        live,
        live_split: None,
        loads: &problem.loads,
        coefficients,
        exchange_us_per_row: 0.01,
        fixed_us: 3000.0,
        policy,
        seed: 1,
        objective: problem.objective,
        split: problem.split,
        effort: SearchEffort::Thorough,
        rank_extra_us: None,
        traffic: None,
    }
}

fn main() {
    let start = Instant::now();
    // `cargo bench -p evenkeel-plan -- quick` leaves the thorough search out.
    let only_quick = std::env::args().any(|argument| argument == "quick");
    let mut out = std::io::stdout().lock();
    split_line(&mut out, start);
    for problem in problems() {
        let topology = Topology::uniform("h20", problem.ranks, 2_000_000_000_000);
        let live = ExpertMap::contiguous(&problem.shape, usize::from(problem.ranks), problem.slots);
        let mut policy = Policy::default();
        policy.moves.moves_max = u32::MAX;
        policy.moves.dwell_s = 1e9;
        policy.plan.balancedness_enough = 1.0;
        policy.plan.gain_min_share = 0.0;
        if problem.objective == Objective::SummedTokens {
            policy.plan.gain_us_per_gb_min = 0.0;
        }
        let coefficients = coefficients();
        let input = question(&problem, &topology, &live, &policy, &coefficients);
        let after = drifted(&problem.loads);
        let quick = PlanInput { effort: SearchEffort::Quick, ..input };
        let quick_cold = run(quick, start);
        let live = &quick_cold.map;
        let quick_warm = run(PlanInput { live, loads: &after, ..quick }, start);
        writeln!(
            out,
            "{}\n  quick, from contiguous: {}\n  quick, after 15 % drift: {}",
            problem.name,
            quick_cold.line(),
            quick_warm.line()
        )
        .expect("stdout");
        if only_quick {
            continue;
        }
        let cold = run(input, start);
        let scratch = plan_from_scratch(input).expect("plans");
        let warm = run(PlanInput { live: &cold.map, loads: &after, ..input }, start);
        let again = plan_from_scratch(PlanInput { live: &cold.map, loads: &after, ..input });
        let again = again.expect("plans");
        let peer = ExpertMap {
            slots: (0..problem.loads.layers)
                .map(|layer| {
                    let experts = problem.loads.experts;
                    let totals = &problem.loads.total()[layer * experts..(layer + 1) * experts];
                    peer::eplb_global(totals, usize::from(problem.ranks), problem.slots)
                })
                .collect(),
            ..live.clone()
        };
        let per_layer = |plan: &Plan| plan.price.moves as f64 / problem.loads.layers as f64;
        writeln!(
            out,
            "  from contiguous: {}\n  after 15 % drift: {}\n  from scratch: {:.0}, {:.1} \
             moves per layer, balancedness {:.4}; after drift {:.0}, {:.1}\n  peer, even split: \
             balancedness {:.4}, {} duplicates",
            cold.line(),
            warm.line(),
            scratch.predicted.step_us_planned,
            per_layer(&scratch),
            balance(&scratch.predicted.balancedness_planned).0,
            again.predicted.step_us_planned,
            per_layer(&again),
            even_balance(&peer, &problem.loads),
            peer.violations().len(),
        )
        .expect("stdout");
    }
}
