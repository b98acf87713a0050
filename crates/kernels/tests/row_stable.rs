//! A row's bits depend on nothing but the row: not on its neighbours, its place, or the blocking.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test stops at a fault")]

use evenkeel_kernels::{
    AttentionShape, BLOCK_TOKENS, ExpertScratch, ExpertWeights, Isa, KvLayer, Matrix, Rows, Stored,
    attend, bf16, matmul, rms_norm, round_rows, run_expert,
};
use proptest::prelude::*;

/// Numbers in (−1, 1) from a linear congruence: fixed by their seed.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn narrow(values: &[f32]) -> Vec<bf16> {
    let mut into = Vec::new();
    round_rows(values, &mut into);
    into
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The product of all rows at once, and of every row alone, must have the same bits.
fn alone_and_together(isa: Isa, x: Rows<'_>, w: Matrix<'_>, rows: usize) -> Vec<f32> {
    let (cols, outputs) = (w.cols(), w.outputs());
    let mut together = vec![f32::NAN; rows * outputs];
    matmul(isa, x, w, &mut together);
    for row in 0..rows {
        let one = match x {
            Rows::F32(x) => Rows::F32(&x[row * cols..(row + 1) * cols]),
            Rows::Bf16(x) => Rows::Bf16(&x[row * cols..(row + 1) * cols]),
        };
        let mut alone = vec![f32::NAN; outputs];
        matmul(isa, one, w, &mut alone);
        assert_eq!(
            bits(&alone),
            bits(&together[row * outputs..(row + 1) * outputs]),
            "{isa:?}: row {row} of {rows}"
        );
    }
    together
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn products(rows in 1_usize..70, cols in 1_usize..100, outputs in 1_usize..14, seed: u64) {
        let x = numbers(seed, rows * cols);
        let w = numbers(seed ^ 1, outputs * cols);
        let (x_narrow, w_narrow) = (narrow(&x), narrow(&w));
        let wide = Matrix::f32(&w, cols).unwrap();
        let stored = Matrix::bf16(&w_narrow, cols).unwrap();
        let mut first: Option<[Vec<u32>; 2]> = None;
        let mut emulated: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let in_f32 = alone_and_together(isa, Rows::F32(&x), wide, rows);
            let widened = alone_and_together(isa, Rows::F32(&x), stored, rows);
            let in_bf16 = alone_and_together(isa, Rows::Bf16(&x_narrow), stored, rows);
            // The f32 arithmetic is the same on every instruction set.
            let found = [bits(&in_f32), bits(&widened)];
            prop_assert_eq!(first.get_or_insert_with(|| found.clone()), &found);
            // The bf16 arithmetic stays within its tolerance of the emulation.
            let emulated = emulated.get_or_insert_with(|| in_bf16.clone());
            for (index, (a, b)) in emulated.iter().zip(&in_bf16).enumerate() {
                let (row, output) = (index / outputs, index % outputs);
                let magnitude: f32 = (0..cols)
                    .map(|i| {
                        (x_narrow[row * cols + i].to_f32() * w_narrow[output * cols + i].to_f32()).abs()
                    })
                    .sum();
                prop_assert!((a - b).abs() <= magnitude / 65_536.0, "{a} {b} of {magnitude}");
            }
        }
    }

    #[test]
    fn products_are_right(rows in 1_usize..6, cols in 1_usize..80, outputs in 1_usize..9, seed: u64) {
        let x = numbers(seed, rows * cols);
        let w = numbers(seed ^ 1, outputs * cols);
        let mut y = vec![0.0; rows * outputs];
        matmul(Isa::detect(), Rows::F32(&x), Matrix::f32(&w, cols).unwrap(), &mut y);
        for row in 0..rows {
            for output in 0..outputs {
                let exact: f64 = (0..cols)
                    .map(|i| f64::from(x[row * cols + i]) * f64::from(w[output * cols + i]))
                    .sum();
                prop_assert!((exact - f64::from(y[row * outputs + output])).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn experts(rows in 1_usize..40, seed: u64, pick in 0_usize..40) {
        let (hidden, width) = (48, 40);
        let pick = pick % rows;
        let weights = |salt, len| narrow(&numbers(seed ^ salt, len));
        let (gate, up, down) =
            (weights(1, width * hidden), weights(2, width * hidden), weights(3, hidden * width));
        let expert = ExpertWeights {
            gate: Matrix::bf16(&gate, hidden).unwrap(),
            up: Matrix::bf16(&up, hidden).unwrap(),
            down: Matrix::bf16(&down, width).unwrap(),
        };
        let x = numbers(seed, rows * hidden);
        let x_narrow = narrow(&x);
        let mut scratch = ExpertScratch::default();
        for isa in Isa::available() {
            let one = pick * hidden..(pick + 1) * hidden;
            let mut all = vec![0.0; rows * hidden];
            let mut alone = vec![0.0; hidden];
            run_expert(isa, &expert, Rows::F32(&x), &mut scratch, &mut all);
            run_expert(isa, &expert, Rows::F32(&x[one.clone()]), &mut scratch, &mut alone);
            prop_assert_eq!(bits(&alone), bits(&all[one.clone()]));
            run_expert(isa, &expert, Rows::Bf16(&x_narrow), &mut scratch, &mut all);
            run_expert(isa, &expert, Rows::Bf16(&x_narrow[one.clone()]), &mut scratch, &mut alone);
            prop_assert_eq!(bits(&alone), bits(&all[one]));
        }
    }

    #[test]
    fn attention_does_not_see_where_blocks_lie(keys in 1_usize..80, seed: u64) {
        let shape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 24 };
        let reversed: Vec<u32> = (0..5).rev().collect();
        let ordered: Vec<u32> = (3..8).collect();
        let a = attention::<f32>(shape, keys, &reversed, seed);
        let b = attention::<f32>(shape, keys, &ordered, seed);
        prop_assert_eq!(&a, &b);
        let a = attention::<bf16>(shape, keys, &reversed, seed);
        let b = attention::<bf16>(shape, keys, &ordered, seed);
        prop_assert_eq!(a, b);
    }
}

/// Attention of the last token over `keys`; the same on every instruction set.
fn attention<S: Stored>(shape: AttentionShape, keys: usize, table: &[u32], seed: u64) -> Vec<u32> {
    let mut kv = KvLayer::<S>::new(shape, 8);
    let row = shape.kv_heads * shape.head_dim;
    // What lies beyond the last key must not matter.
    for position in 0..table.len() * BLOCK_TOKENS {
        let (key, value) = if position < keys {
            (numbers(seed ^ position as u64, row), numbers(seed ^ !(position as u64), row))
        } else {
            (vec![position as f32; row], vec![f32::MAX; row])
        };
        kv.put(table, position, &key, &value);
    }
    let query = numbers(seed, shape.heads * shape.head_dim);
    let mut scores = Vec::new();
    let mut first: Option<Vec<u32>> = None;
    for isa in Isa::available() {
        let mut out = vec![f32::NAN; query.len()];
        attend(isa, &kv, table, keys, &query, &mut scores, &mut out);
        assert_eq!(*first.get_or_insert_with(|| bits(&out)), bits(&out), "{isa:?}");
    }
    first.unwrap()
}

#[test]
fn attention_is_right() {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 8 };
    let keys = 37;
    let table = [2, 0, 1];
    let row = shape.kv_heads * shape.head_dim;
    let mut kv = KvLayer::<f32>::new(shape, 3);
    let key = |position: u64| numbers(position, row);
    let value = |position: u64| numbers(!position, row);
    for position in 0..keys {
        kv.put(&table, position, &key(position as u64), &value(position as u64));
    }
    let query = numbers(99, shape.heads * shape.head_dim);
    let mut out = vec![0.0; query.len()];
    attend(Isa::detect(), &kv, &table, keys, &query, &mut Vec::new(), &mut out);
    for head in 0..shape.heads {
        let lane = (head / 2) * shape.head_dim;
        let score = |position: usize| -> f64 {
            let key = key(position as u64);
            let dot = (0..shape.head_dim)
                .map(|d| f64::from(query[head * shape.head_dim + d]) * f64::from(key[lane + d]));
            dot.sum::<f64>() / (shape.head_dim as f64).sqrt()
        };
        let weights: Vec<f64> = (0..keys).map(|position| score(position).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..shape.head_dim {
            let exact: f64 = (0..keys)
                .map(|position| {
                    weights[position] / sum * f64::from(value(position as u64)[lane + d])
                })
                .sum();
            assert!((exact - f64::from(out[head * shape.head_dim + d])).abs() < 1e-5);
        }
    }
}

#[test]
fn norms_do_not_see_neighbours() {
    let (rows, width) = (7, 50);
    let (x, weight) = (numbers(1, rows * width), numbers(2, width));
    let mut all = vec![0.0; x.len()];
    rms_norm(&x, &weight, 1e-6, &mut all);
    for row in 0..rows {
        let mut alone = vec![0.0; width];
        rms_norm(&x[row * width..(row + 1) * width], &weight, 1e-6, &mut alone);
        assert_eq!(bits(&alone), bits(&all[row * width..(row + 1) * width]));
    }
}
