//! How fast is a replay? Choices and steps per second, against a bare histogram of the same ids.
//!
//! `cargo bench -p evenkeel-sim --bench replay`. Medians over repeated runs of the same steps, one
//! thread, per second of processor time where the kernel tells it (a busy machine does not slow it
//! down), else per second of the clock. Routing is synthetic (seeded, skewed by layer and slice); times come from hand-made
//! curves, so "modelled ÷ real" is an order of magnitude for a step of that size.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark takes time, prints its figures and stops where it cannot run"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{HandCurves, routing, shape};
use evenkeel_sim::{
    GroupConfig, Limits, MixChange, NoSink, Replay, Role, Run, SinkError, StepSink, TrafficSpec,
    draw_jobs, simulate,
};
use evenkeel_split::SplitTable;
use evenkeel_trace::{Routes, StepRecord};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Topology};
use std::hint::black_box;
use std::time::{Duration, Instant};

const REPEATS: usize = 5;
/// Passes of the bare histogram: kernels count processor time in ticks of some ms.
const PASSES: usize = 400;

/// Takes every row and forgets it.
struct Counting {
    routing: bool,
    rows: u64,
}

impl StepSink for Counting {
    fn wants_routing(&self, _step: u64) -> bool {
        self.routing
    }

    fn wants_layers(&self) -> bool {
        true
    }

    fn record(&mut self, step: &StepRecord) -> Result<(), SinkError> {
        self.rows += (step.ranks.len() + step.cells.len()) as u64;
        self.rows += (step.routing.len() + step.links.len()) as u64;
        black_box(step);
        Ok(())
    }
}

struct Case {
    name: &'static str,
    shape: ModelShape,
    ranks: u16,
    slots: usize,
    sequences: u32,
    steps: u64,
}

fn main() {
    let cases = [
        Case {
            name: "deepseek-v2-lite EP16 x 256",
            shape: shape(26, 64, 6),
            ranks: 16,
            slots: 5,
            sequences: 256,
            steps: 500,
        },
        Case {
            name: "deepseek-v3 EP32 x 256",
            shape: shape(58, 256, 8),
            ranks: 32,
            slots: 9,
            sequences: 256,
            steps: 120,
        },
    ];
    for case in &cases {
        let (requests, output) = if case.shape.experts > 64 { (24, 96) } else { (60, 200) };
        let routes = routing(&case.shape, requests, 3, 600, output, 1);
        run_case(case, &routes);
    }
}

fn run_case(case: &Case, routes: &Routes) {
    let map = ExpertMap::contiguous(&case.shape, usize::from(case.ranks), case.slots);
    let tokens: Vec<usize> = (0..routes.tokens()).collect();
    let loads = routes.counts(tokens.into_iter());
    let split = SplitTable::balanced(&map, &loads).expect("every expert has a copy");
    let topology = Topology::uniform("bench", case.ranks, 96_000_000_000);
    let curves = HandCurves::simple();
    let bare = bare_histogram(case, routes);
    println!("{}", case.name);
    println!("  bare histogram of the same ids       {:6.2} G choices/s", bare * 1e-9);
    let mut replay =
        Replay::new(routes, &map, &split, &curves, &topology, &Default::default()).expect("fits");
    for role in [Role::Decode, Role::Prefill] {
        let (config, spec) = load(case, role);
        let (jobs, _) = draw_jobs(routes, &spec).expect("traffic");
        let phase = if role == Role::Prefill { Phase::Prefill } else { Phase::Decode };
        let mut measure = |what: &str, sink: &mut dyn StepSink| {
            let mut rates = Vec::new();
            let mut last: Option<Run> = None;
            for _ in 0..REPEATS {
                let limits = Limits { steps_max: case.steps, ..Limits::default() };
                let start = Timer::start();
                let run = simulate("bench", &config, routes, &jobs, &mut replay, sink, limits)
                    .expect("runs");
                rates.push(start.seconds());
                last = Some(run);
            }
            let seconds = median(&mut rates);
            if let Some(run) = last {
                let choices = run.totals.choices[phase.index()] as f64;
                let steps = run.steps.len() as f64;
                let modelled = run.steps.last().map_or(0, |step| step.end_ns) as f64 * 1e-9;
                println!(
                    "  {what:36}  {:6.2} G choices/s {:9.1} steps/s  modelled/real {:6.1}",
                    choices / seconds * 1e-9,
                    steps / seconds,
                    modelled / seconds
                );
            }
            seconds
        };
        let name = if role == Role::Prefill { "prefill" } else { "decode" };
        measure(&format!("{name}, no trace"), &mut NoSink);
        for (what, routing) in [("steps and layers", false), ("every row", true)] {
            let mut sink = Counting { routing, rows: 0 };
            let seconds = measure(&format!("{name}, {what} for a sink"), &mut sink);
            let rows = sink.rows as f64 / REPEATS as f64;
            println!("  {:36}  {:6.2} M rows/s", "", rows / seconds * 1e-6);
        }
    }
}

fn load(case: &Case, role: Role) -> (GroupConfig, TrafficSpec) {
    let config = GroupConfig {
        role,
        decode_sequences_per_rank: case.sequences,
        prefill_tokens_per_rank: 2048,
        prefill_steps_in_row_max: 4,
        kv_blocks_per_rank: 1 << 20,
        kv_block_tokens: 64,
    };
    let sequences = u32::from(case.ranks) * case.sequences;
    let share_by_slice = vec![1.0, 1.0, 1.0];
    // Decode keeps its batch full; prefill has enough queued for its steps.
    let spec = TrafficSpec {
        arrivals_ns: vec![0; sequences as usize * if role == Role::Decode { 4 } else { 8 }],
        mix: vec![MixChange { from_ns: 0, share_by_slice }],
        fill_sequences: if role == Role::Decode { sequences } else { 0 },
        seed: 1,
    };
    (config, spec)
}

/// Choices per second of nothing but `counts[id] += 1` over the ids of as many sequences, each of
/// which moves on by one token a pass, as in decode.
fn bare_histogram(case: &Case, routes: &Routes) -> f64 {
    let width = routes.layers() * routes.top_k();
    let mut flat = Vec::new();
    for token in 0..routes.tokens() {
        for (layer, choices) in routes.token(token).chunks_exact(routes.top_k()).enumerate() {
            let base = (layer * usize::from(routes.experts())) as u16;
            flat.extend(choices.iter().map(|expert| base + expert));
        }
    }
    let batch = usize::from(case.ranks) * case.sequences as usize;
    let mut counts = Box::new([0_u16; 1 << 16]);
    let mut times = Vec::new();
    for repeat in 0..REPEATS as u64 {
        let order: Vec<usize> = (0..batch as u64)
            .map(|i| evenkeel_types::hash3(3, repeat, i) as usize % routes.tokens())
            .collect();
        let start = Timer::start();
        for pass in 0..PASSES {
            for &start in &order {
                let token = (start + pass) % routes.tokens();
                for &id in &flat[token * width..(token + 1) * width] {
                    let count = &mut counts[usize::from(id)];
                    *count = count.wrapping_add(1);
                }
            }
            black_box(&mut counts);
        }
        times.push(start.seconds() / PASSES as f64);
    }
    (batch * width) as f64 / median(&mut times)
}

/// Processor time of this thread, or the clock's.
struct Timer {
    cpu: Option<Duration>,
    wall: Instant,
}

impl Timer {
    fn start() -> Self {
        Self { cpu: cpu_time(), wall: Instant::now() }
    }

    fn seconds(&self) -> f64 {
        match (self.cpu, cpu_time()) {
            (Some(from), Some(to)) => (to - from).as_secs_f64(),
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}

fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
