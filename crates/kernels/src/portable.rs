//! Dot products in plain Rust, in the crate's fixed order: the twin that the SIMD is tested against.

use crate::LANES;
use half::bf16;

/// A stored weight as f32.
pub(crate) trait Weight: Copy {
    fn widen(self) -> f32;
}

impl Weight for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// Adds lanes in halves.
#[inline(always)]
pub(crate) fn fold(lanes: [f32; LANES]) -> f32 {
    let mut sums = lanes;
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

/// `x · w` in f32.
#[inline(always)]
pub(crate) fn dot_f32<W: Weight>(x: &[f32], w: &[W]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (x_whole, x_rest) = x.as_chunks::<LANES>();
    let (w_whole, w_rest) = w.as_chunks::<LANES>();
    for (x, w) in x_whole.iter().zip(w_whole) {
        for (sum, (x, w)) in lanes.iter_mut().zip(x.iter().zip(w)) {
            *sum = x.mul_add(w.widen(), *sum);
        }
    }
    if !x_rest.is_empty() {
        // The rest is filled up with zeros, as masked loads do it.
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let (x, w) = match (x_rest.get(lane), w_rest.get(lane)) {
                (Some(x), Some(w)) => (*x, w.widen()),
                _ => (0.0, 0.0),
            };
            *sum = x.mul_add(w, *sum);
        }
    }
    fold(lanes)
}

/// `x · w` of bf16 in f32: a lane takes two products of every 32, the odd one first.
#[inline(always)]
pub(crate) fn dot_bf16(x: &[bf16], w: &[bf16]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let at = |row: &[bf16], index: usize| row.get(index).map_or(0.0, |value| value.widen());
    let mut start = 0;
    while start < x.len() {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let (even, odd) = (start + 2 * lane, start + 2 * lane + 1);
            let partial = at(x, odd).mul_add(at(w, odd), *sum);
            *sum = at(x, even).mul_add(at(w, even), partial);
        }
        start += 2 * LANES;
    }
    fold(lanes)
}

/// `y[m][n] = x[m] · w[n]`, one dot product after another.
#[inline(always)]
pub(crate) fn matmul_f32<W: Weight>(x: &[f32], w: &[W], cols: usize, y: &mut [f32]) {
    let outputs = w.len() / cols;
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(outputs)) {
        for (w, y) in w.chunks_exact(cols).zip(y) {
            *y = dot_f32(x, w);
        }
    }
}

/// The same for bf16 rows.
#[inline(always)]
pub(crate) fn matmul_bf16(x: &[bf16], w: &[bf16], cols: usize, y: &mut [f32]) {
    let outputs = w.len() / cols;
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(outputs)) {
        for (w, y) in w.chunks_exact(cols).zip(y) {
            *y = dot_bf16(x, w);
        }
    }
}
