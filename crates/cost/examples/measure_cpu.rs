//! Measures one rank's expert layer and memory copies on this CPU, one thread.
//!
//! Prints the calibration CSV of the expert layer, or of the copies, to stdout:
//!
//! ```text
//! cargo run --release -p evenkeel-cost --example measure_cpu -- experts > cpu_experts.csv
//! cargo run --release -p evenkeel-cost --example measure_cpu -- copy > cpu_memory_copy.csv
//! ```
//!
//! Design of docs/calibration.md: activated experts × rows per expert, then skewed loads with
//! their counts. Weights rotate through a pool larger than the cache. The machine may be shared,
//! so
//! processor time is taken, the least of the repetitions, with the spread beside it (Linux).
#![expect(clippy::print_stdout, reason = "a measuring program prints its table")]
#![expect(clippy::disallowed_methods, reason = "a measuring program reads its processor time")]

use std::hint::black_box;

use evenkeel_types::{hash2, hash3, unit_f64};
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, Axis, Slice};

/// Bytes of weights to rotate through: several times a last-level cache of 32 MiB.
const POOL_BYTES: usize = 160 << 20;
const REPETITIONS: usize = 3;
/// Processor time of a repetition: 30 ticks, so that a tick's error is 3 %.
const LEAST_US: f64 = 120_000.0;
/// (hidden, width) of one expert.
const SHAPES: [(usize, usize); 3] = [(512, 256), (1024, 512), (2048, 768)];
const EXPERTS: usize = 16;
const TOP_K: usize = 4;
const ROWS: [usize; 8] = [1, 4, 8, 9, 16, 32, 64, 128];
/// Longest single case, in operations: keeps the whole design within a few minutes.
const OPS_MAX: usize = 3_000_000_000;

/// One expert's weights: gate, up (`hidden × width`), down (`width × hidden`).
struct Expert {
    gate: Array2<f32>,
    up: Array2<f32>,
    down: Array2<f32>,
}

fn filled(rows: usize, columns: usize, seed: u64) -> Array2<f32> {
    Array2::from_shape_fn((rows, columns), |(i, j)| {
        (unit_f64(hash3(seed, i as u64, j as u64)) as f32 - 0.5) * 0.1
    })
}

/// A rank's layer of one shape: a pool of experts, input rows, scratch.
struct Layer {
    pool: Vec<Expert>,
    next: usize,
    input: Array2<f32>,
    gate: Array2<f32>,
    up: Array2<f32>,
    out: Array2<f32>,
}

impl Layer {
    fn new(hidden: usize, width: usize) -> Self {
        let most = ROWS[ROWS.len() - 1] * 2;
        let experts = (POOL_BYTES / (3 * 4 * hidden * width)).max(2 * EXPERTS);
        let pool = (0..experts as u64)
            .map(|e| Expert {
                gate: filled(hidden, width, 3 * e),
                up: filled(hidden, width, 3 * e + 1),
                down: filled(width, hidden, 3 * e + 2),
            })
            .collect();
        Self {
            pool,
            next: 0,
            input: filled(most, hidden, 99),
            gate: Array2::zeros((most, width)),
            up: Array2::zeros((most, width)),
            out: Array2::zeros((most, hidden)),
        }
    }

    /// Runs a layer whose slots hold these rows; each slot takes the pool's next expert.
    fn run(&mut self, counts: &[usize]) {
        for &rows in counts {
            let expert = &self.pool[self.next];
            self.next = (self.next + 1) % self.pool.len();
            if rows == 0 {
                continue;
            }
            let first = Slice::from(..rows);
            let input = self.input.slice_axis(Axis(0), first);
            let mut gate = self.gate.slice_axis_mut(Axis(0), first);
            let mut up = self.up.slice_axis_mut(Axis(0), first);
            general_mat_mul(1.0, &input, &expert.gate, 0.0, &mut gate);
            general_mat_mul(1.0, &input, &expert.up, 0.0, &mut up);
            gate.zip_mut_with(&up, |g, u| *g = *g / (1.0 + (-*g).exp()) * *u);
            let mut out = self.out.slice_axis_mut(Axis(0), first);
            general_mat_mul(1.0, &gate, &expert.down, 0.0, &mut out);
        }
        black_box(&self.out);
    }
}

/// Time that this process has spent on a processor, µs: unlike the clock, it does not count the
/// time given to other processes of a shared machine. The kernel brings it up to date at its
/// timer's tick, some 4 ms.
fn processor_us() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ns: f64 = text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    ns / 1000.0
}

/// Least time per call over the repetitions, and the spread to the largest, µs of processor time.
/// Each repetition calls until 30 ticks have passed.
fn timed(mut work: impl FnMut()) -> (f64, f64) {
    work();
    let mut times: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let start = processor_us();
            let (mut calls, mut batch) = (0_u32, 1_u32);
            loop {
                for _ in 0..batch {
                    work();
                }
                calls += batch;
                let spent = processor_us() - start;
                if spent >= LEAST_US {
                    return spent / f64::from(calls);
                }
                // A look at the clock costs as much as a short call: look less and less often.
                batch = calls.min(1 << 16);
            }
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[REPETITIONS - 1] - times[0])
}

/// `64*2 0*14`: two slots with 64 rows, fourteen idle.
fn written(counts: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &rows in counts {
        match parts.last_mut() {
            Some((same, slots)) if *same == rows => *slots += 1,
            _ => parts.push((rows, 1)),
        }
    }
    parts.iter().map(|(rows, slots)| format!("{rows}*{slots}")).collect::<Vec<_>>().join(" ")
}

/// Equal loads over the design, then five skewed ones.
fn loads() -> Vec<Vec<usize>> {
    let mut loads = Vec::new();
    for slots in [EXPERTS, EXPERTS / 2] {
        for active in [0, 1, 2, 4, 8, 16].into_iter().filter(|a| *a <= slots) {
            let rows: &[usize] = if active == 0 { &[0] } else { &ROWS };
            for &rows in rows {
                loads.push((0..slots).map(|slot| if slot < active { rows } else { 0 }).collect());
            }
        }
    }
    for draw in 0..5 {
        let skewed = (0..EXPERTS as u64).map(|slot| {
            let value = unit_f64(hash2(draw, slot));
            (2.0_f64.powf(7.0 * value) - 1.0) as usize
        });
        loads.push(skewed.collect());
    }
    loads
}

fn experts() {
    println!("what,phase,hidden,width,experts,top_k,weights,counts,tokens,graph,time_us,spread_us");
    for (hidden, width) in SHAPES {
        let mut layer = Layer::new(hidden, width);
        for counts in loads() {
            let rows: usize = counts.iter().sum();
            if rows * 6 * hidden * width > OPS_MAX {
                continue;
            }
            let (least, spread) = timed(|| layer.run(&counts));
            println!(
                "experts,decode,{hidden},{width},{EXPERTS},{TOP_K},f32,{},{rows},yes,\
                 {least:.3},{spread:.3}",
                written(&counts)
            );
        }
    }
}

fn copies() {
    println!("bytes,time_us,spread_us");
    let pool = vec![1_u8; POOL_BYTES];
    let mut target = vec![0_u8; POOL_BYTES];
    for shift in 8..26 {
        let bytes = 1_usize << shift;
        let mut at = 0;
        let (least, spread) = timed(|| {
            at = (at + 3 * bytes) % (POOL_BYTES - bytes);
            target[at..at + bytes].copy_from_slice(&pool[at..at + bytes]);
            black_box(&target);
        });
        println!("{bytes},{least:.4},{spread:.4}");
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("copy") => copies(),
        _ => experts(),
    }
}
