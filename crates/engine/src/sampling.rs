//! From logits to a token: greedy or drawn, always the same for the same request and position.

use evenkeel_types::{hash2, unit_f64};
use serde::{Deserialize, Serialize};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0: the likeliest token; above: logits are divided by it.
    pub temperature: f32,
    /// Share of probability among which is drawn, likeliest first, in (0, 1].
    pub top_p: f32,
    /// Seed of the draws. The draw at a position is a function of seed and position alone.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, seed: 0 }
    }
}

/// A token and how likely the model held it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Its natural log-probability under the model: temperature 1, all tokens.
    pub log_probability: f64,
    /// The likeliest tokens with theirs, as many as were asked for.
    pub top: Vec<(u32, f64)>,
}

/// Chooses the token at a position from its logits; ties go to the lowest id.
#[must_use]
pub fn sample(logits: &[f32], sampling: &Sampling, position: u32, tops: usize) -> Sampled {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| f64::from(logit - most).exp();
    let normaliser = logits.iter().map(|logit| weight(*logit)).sum::<f64>().ln();
    let log_probability = |id: usize| f64::from(logits[id] - most) - normaliser;
    let by_logit = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let id = if sampling.temperature > 0.0 {
        draw(logits, sampling, position, by_logit)
    } else {
        (0..logits.len()).min_by(by_logit).unwrap_or(0)
    };
    let mut top = Vec::new();
    if tops > 0 {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let tops = tops.min(order.len());
        if tops < order.len() {
            order.select_nth_unstable_by(tops - 1, by_logit);
        }
        order.truncate(tops);
        order.sort_by(by_logit);
        top = order.into_iter().map(|id| (id as u32, log_probability(id))).collect();
    }
    Sampled { id: id as u32, log_probability: log_probability(id), top }
}

/// Draws among the likeliest tokens that together have `top_p`.
fn draw(
    logits: &[f32],
    sampling: &Sampling,
    position: u32,
    by_logit: impl Fn(&usize, &usize) -> std::cmp::Ordering,
) -> usize {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(by_logit);
    let most = order.first().map_or(0.0, |id| logits[*id]);
    let weight = |id: usize| (f64::from(logits[id] - most) / f64::from(sampling.temperature)).exp();
    let sum: f64 = order.iter().map(|id| weight(*id)).sum();
    let limit = sum * f64::from(sampling.top_p).clamp(0.0, 1.0);
    let mut kept = 0.0;
    let mut count = 0;
    for id in &order {
        kept += weight(*id);
        count += 1;
        if kept >= limit {
            break;
        }
    }
    let mut left = unit_f64(hash2(sampling.seed, u64::from(position))) * kept;
    for id in &order[..count] {
        left -= weight(*id);
        if left < 0.0 {
            return *id;
        }
    }
    // Rounding can leave a crumb: the last one kept takes it.
    order.get(count.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_equals_and_says_how_likely() {
        let found = sample(&[0.0, 2.0, 2.0, 1.0], &Sampling::default(), 5, 2);
        assert_eq!(found.id, 1);
        let sum: f64 = [0.0_f64, 2.0, 2.0, 1.0].iter().map(|logit| logit.exp()).sum();
        assert!((found.log_probability - (2.0 - sum.ln())).abs() < 1e-9);
        assert_eq!(found.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn draws_follow_the_probabilities_and_repeat() {
        let logits = [1.0_f32, 0.0, -1.0];
        let sampling = Sampling { temperature: 0.5, top_p: 1.0, seed: 3 };
        let mut counts = [0; 3];
        for position in 0..20_000 {
            let id = sample(&logits, &sampling, position, 0).id;
            assert_eq!(id, sample(&logits, &sampling, position, 1).id);
            counts[id as usize] += 1;
        }
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) * 2.0).exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            let expected = (f64::from(logit) * 2.0).exp() / sum;
            assert!((f64::from(*count) / 20_000.0 - expected).abs() < 0.01, "{counts:?}");
        }
    }

    #[test]
    fn top_p_leaves_the_unlikely_out() {
        let sampling = Sampling { temperature: 1.0, top_p: 0.5, seed: 3 };
        for position in 0..500 {
            assert_eq!(sample(&[3.0, 0.0, 0.0, 0.0], &sampling, position, 0).id, 0);
        }
    }
}
