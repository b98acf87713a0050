//! `cargo bench -p evenkeel-kernels`: an expert beside the roofline of this machine, in one run.
//!
//! One thread. The expert is 2048 × 768 (Qwen3-30B-A3B's) in bf16, one of 32 in turn so that no
//! cache holds it. The roofline of a call is the longer of two times: reading the expert's bytes at
//! the rate at which the same memory is summed (the best of one, two, four and eight streams), and
//! its multiplications at the rate of 16 independent chains of the dot instruction on registers.
//! Rounds alternate between what is compared; medians are printed, and the share of the roofline.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a bench looks at the clock and prints"
)]

use evenkeel_kernels::{
    ExpertScratch, ExpertWeights, Isa, Matrix, Rows, bf16, matmul, round_rows, run_expert,
};
use std::hint::black_box;
use std::time::Instant;

const HIDDEN: usize = 2048;
const WIDTH: usize = 768;
const EXPERTS: usize = 32;
const ROUNDS: usize = 7;

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Sums all weights as integers in `streams` streams side by side; returns bytes per second.
fn read_rate(weights: &[bf16], streams: usize) -> f64 {
    let words = weights.as_chunks::<32>().0;
    let part = words.len() / streams;
    let time = seconds(|| {
        let mut sums = [0_u16; 32];
        for index in 0..part {
            for stream in 0..streams {
                for (sum, word) in sums.iter_mut().zip(&words[stream * part + index]) {
                    *sum = sum.wrapping_add(word.to_bits());
                }
            }
        }
        black_box(sums);
    });
    (part * streams * 64) as f64 / time
}

/// Multiply-adds per second of the kernel itself on a product that lives in the first cache.
fn dot_rate(isa: Isa, x: &[bf16], w: &[bf16]) -> f64 {
    let (rows, cols, outputs) = (4, 1024, 4);
    let matrix = Matrix::bf16(&w[..outputs * cols], cols).expect("whole rows");
    let mut y = vec![0.0; rows * outputs];
    let times = 20_000;
    let time = seconds(|| {
        for _ in 0..times {
            matmul(isa, Rows::Bf16(&x[..rows * cols]), matrix, &mut y);
            black_box(&y);
        }
    });
    (rows * cols * outputs * times) as f64 / time
}

fn main() {
    let isa = Isa::detect();
    let per_expert = 3 * HIDDEN * WIDTH;
    let weights: Vec<bf16> =
        (0..EXPERTS * per_expert).map(|i| bf16::from_bits(0x3c00 | (i as u16 & 0x80ff))).collect();
    let rows_f32: Vec<f32> = (0..256 * HIDDEN).map(|i| (i % 17) as f32 * 0.01).collect();
    let mut rows = Vec::new();
    round_rows(&rows_f32, &mut rows);
    let expert = |index: usize| {
        let all = &weights[index * per_expert..(index + 1) * per_expert];
        let matrix = |part: usize, cols| {
            Matrix::bf16(&all[part * HIDDEN * WIDTH..(part + 1) * HIDDEN * WIDTH], cols)
                .expect("whole rows")
        };
        ExpertWeights { gate: matrix(0, HIDDEN), up: matrix(1, HIDDEN), down: matrix(2, WIDTH) }
    };
    let mut scratch = ExpertScratch::default();
    let batches = [1, 2, 4, 8, 16, 32, 64, 256];
    let mut times = vec![Vec::new(); batches.len()];
    let (mut reads, mut dots) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        reads.push([1, 2, 4, 8].map(|s| read_rate(&weights, s)).into_iter().fold(0.0, f64::max));
        dots.push(dot_rate(isa, &rows, &weights));
        for (batch, times) in batches.iter().zip(&mut times) {
            let mut y = vec![0.0; batch * HIDDEN];
            let experts = if *batch > 32 { 4 } else { EXPERTS };
            let time = seconds(|| {
                for index in 0..experts {
                    let x = Rows::Bf16(&rows[..batch * HIDDEN]);
                    run_expert(isa, &expert(index), x, &mut scratch, &mut y);
                    black_box(&y);
                }
            });
            times.push(time / experts as f64);
        }
    }
    let (read, dot) = (median(&mut reads), median(&mut dots));
    println!(
        "{} · read {:.1} GB/s · dot {:.1} G multiply-adds/s",
        isa.name(),
        read / 1e9,
        dot / 1e9
    );
    println!("tokens   µs per expert   of the roofline   bound by");
    for (batch, times) in batches.iter().zip(&mut times) {
        let time = median(times);
        let memory = (per_expert * 2) as f64 / read;
        let compute = (per_expert * batch) as f64 / dot;
        let bound = if memory > compute { "memory" } else { "arithmetic" };
        println!(
            "{batch:6} {:15.0} {:16.0} %   {bound}",
            time * 1e6,
            memory.max(compute) / time * 100.0
        );
    }
}
