//! Everything that works element by element, or row by row in the crate's fixed order.
//!
//! No fused operations here: the same bits on every instruction set.

use crate::LANES;
use crate::portable::fold;
use half::bf16;

/// Rounds rows to bf16, to nearest even. `into` is overwritten.
pub fn round_rows(rows: &[f32], into: &mut Vec<bf16>) {
    into.clear();
    into.extend(rows.iter().map(|value| bf16::from_f32(*value)));
}

/// `e^x` in f32 for the softmax and SiLU: within 2 units in the last place over the whole range,
/// 0 below −87.3 and infinity above 88.7.
///
/// Cody and Waite's reduction to `|r| ≤ ln 2 / 2`, then the degree-6 Taylor polynomial. Plain
/// multiplications and additions, so that compilers vectorise it and no library decides its bits.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, the first exact in few bits.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 · 2²³ rounds to a whole number.
    const WHOLE: f32 = 12_582_912.0;
    let inside = x.clamp(-87.3, 88.7);
    let power = (inside * LOG2_E + WHOLE) - WHOLE;
    let r = (inside - power * LN2_HIGH) - power * LN2_LOW;
    let mut sum = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + factor;
    }
    // Two factors, because 2^128 has no f32.
    let half = (power as i32) >> 1;
    let rest = power as i32 - half;
    let two = |power: i32| f32::from_bits(((power + 127) as u32) << 23);
    let value = sum * two(half) * two(rest);
    if x < -87.3 {
        0.0
    } else if x > 88.7 {
        f32::INFINITY
    } else if x.is_nan() {
        x
    } else {
        value
    }
}

/// Sum of `f(value)` over a row in the crate's fixed order.
#[inline(always)]
pub(crate) fn row_sum(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (index, value) in row.iter().enumerate() {
        lanes[index % LANES] += f(*value);
    }
    fold(lanes)
}

/// Softmax of a row, in place: `e^(x − max) ÷ Σ`.
pub fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for value in row.iter_mut() {
        *value = exp(*value - most);
    }
    let inverse = 1.0 / row_sum(row, |value| value);
    for value in row {
        *value *= inverse;
    }
}

/// `y = x · weight ÷ √(mean(x²) + epsilon)` for rows of `weight.len()` numbers.
///
/// # Panics
/// Where lengths do not fit: a caller's fault.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "rows in and out");
    let width = weight.len();
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        let mean = row_sum(x, |value| value * value) / width as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = weight * (x * scale);
        }
    }
}

/// `gate = silu(gate) · up`, element by element, `silu(x) = x ÷ (1 + e^−x)`.
///
/// # Panics
/// Where lengths differ: a caller's fault.
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// `sum += weight · row`: one expert's contribution to a token.
///
/// # Panics
/// Where lengths differ: a caller's fault.
pub fn accumulate(weight: f32, row: &[f32], sum: &mut [f32]) {
    assert_eq!(row.len(), sum.len(), "row and sum");
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += weight * value;
    }
}

/// Rotary position embedding, halves rotated against each other (the form of Llama, Qwen, OLMoE
/// and Mixtral).
#[derive(Clone, Debug)]
pub struct Rope {
    half: usize,
    /// `[position][half]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Tables for `positions` positions of heads of `head_dim`; angles are position ÷
    /// `theta^(2i ÷ head_dim)`, in f32 as reference implementations compute them.
    #[must_use]
    pub fn new(head_dim: usize, theta: f32, positions: usize) -> Self {
        let half = head_dim / 2;
        let inverse = |i: usize| 1.0 / theta.powf((2 * i) as f32 / head_dim as f32);
        let inverse: Vec<f32> = (0..half).map(inverse).collect();
        let angles =
            || (0..positions).flat_map(|p| inverse.iter().map(move |rate| p as f32 * rate));
        Self { half, cos: angles().map(f32::cos).collect(), sin: angles().map(f32::sin).collect() }
    }

    /// Positions that the tables reach.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }

    /// Rotates every head of a row, in place.
    ///
    /// # Panics
    /// Where the position is beyond the tables, or the row is not whole heads.
    pub fn rotate(&self, position: usize, row: &mut [f32]) {
        let cos = &self.cos[position * self.half..(position + 1) * self.half];
        let sin = &self.sin[position * self.half..(position + 1) * self.half];
        assert_eq!(row.len() % (2 * self.half), 0, "whole heads");
        for head in row.chunks_exact_mut(2 * self.half) {
            let (low, high) = head.split_at_mut(self.half);
            for i in 0..self.half {
                let (a, b) = (low[i], high[i]);
                low[i] = a * cos[i] - b * sin[i];
                high[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        let mut worst = 0.0_f64;
        for step in -8720..8860 {
            let x = step as f32 / 100.0;
            let (found, true_value) = (f64::from(exp(x)), f64::from(x).exp());
            worst = worst.max(((found - true_value) / true_value).abs());
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert!(exp(-200.0).abs() < f32::MIN_POSITIVE && exp(200.0).is_infinite());
        assert!(exp(f32::NAN).is_nan() && exp(f32::NEG_INFINITY).abs() < f32::MIN_POSITIVE);
    }

    #[test]
    fn softmax_sums_to_one_and_ignores_a_shift() {
        let mut row: Vec<f32> = (0..37).map(|i| (i * 7 % 13) as f32 * 0.5).collect();
        let mut shifted: Vec<f32> = row.iter().map(|value| value + 1000.0).collect();
        softmax(&mut row);
        softmax(&mut shifted);
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(row, shifted);
    }

    #[test]
    fn a_rotation_keeps_lengths_and_position_zero() {
        let rope = Rope::new(8, 10_000.0, 50);
        let row: Vec<f32> = (0..16).map(|i| i as f32 - 4.0).collect();
        let mut same = row.clone();
        rope.rotate(0, &mut same);
        assert_eq!(row, same);
        let mut turned = row.clone();
        rope.rotate(49, &mut turned);
        let square = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>();
        assert!((square(&row) - square(&turned)).abs() < 1e-3);
        assert_eq!(rope.positions(), 50);
    }
}
