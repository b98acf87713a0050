//! Seeded draws.

use evenkeel_types::{hash3, unit_f64};

/// A standard normal draw at coordinates (Box–Muller).
pub fn normal(seed: u64, a: u64, b: u64) -> f64 {
    let u = unit_f64(hash3(seed, a, 2 * b)).max(1e-300);
    let v = unit_f64(hash3(seed, a, 2 * b + 1));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Counts that add up to `total`, near `total · weight / Σ weight`, with the spread of choices.
pub fn counts(weights: &[f64], total: u32, seed: u64, at: u64) -> Vec<u32> {
    let sum: f64 = weights.iter().sum();
    let mut counts: Vec<u32> = weights
        .iter()
        .enumerate()
        .map(|(i, weight)| {
            let mean = f64::from(total) * weight / sum;
            (mean + mean.sqrt() * normal(seed, at, i as u64)).round().max(0.0) as u32
        })
        .collect();
    // The rest goes to (or comes from) the experts in turn.
    let (mut sum, mut at) = (counts.iter().sum::<u32>(), 0);
    while sum != total {
        let index = at % counts.len();
        if sum < total && weights[index] > 0.0 {
            counts[index] += 1;
            sum += 1;
        } else if sum > total && counts[index] > 0 {
            counts[index] -= 1;
            sum -= 1;
        }
        at += 1;
    }
    counts
}

/// Cuts `rows` over `parts` by shares, whole.
pub fn cut(rows: u32, shares: &[f64]) -> Vec<u32> {
    let mut left = rows;
    let mut parts: Vec<u32> = shares
        .iter()
        .map(|share| {
            let part = ((f64::from(rows) * share).round() as u32).min(left);
            left -= part;
            part
        })
        .collect();
    if let Some(last) = parts.last_mut() {
        *last += left;
    }
    parts
}
