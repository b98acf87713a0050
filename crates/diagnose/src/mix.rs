//! Did the mix of slices shift, beyond what requests of unequal size do by chance?

use crate::diagnosis::{MixShift, SliceShare};
use crate::input::{Observation, Options};
use crate::stats::quantile;
use evenkeel_trace::RequestRecord;
use evenkeel_types::{Phase, SliceId, hash3};
use std::collections::{BTreeMap, BTreeSet};

/// Draws of the permutation test; fewer where there are so many requests that chance is narrow.
const PERMUTATIONS_MAX: usize = 999;
/// Bound on (requests × draws): some 0.2 s.
const PERMUTED_REQUESTS_MAX: usize = 20_000_000;
/// Requests per window below which nothing is concluded.
pub(crate) const REQUESTS_MIN: usize = 20;

/// Compares the mixes of two windows. `None` where a window has too few requests.
///
/// The null: requests, each with all of its tokens, are assigned to the windows by chance. So a
/// few long requests do not look like a shift, however many tokens they have.
pub(crate) fn mix_shift(
    now: &Observation<'_>,
    baseline: &Observation<'_>,
    options: &Options,
) -> Option<MixShift> {
    let names = SliceNames::of(now, baseline);
    let before = weights(baseline.requests, options.phase, |slice| names.baseline(slice));
    let after = weights(now.requests, options.phase, |slice| names.now(slice));
    if before.len() < REQUESTS_MIN || after.len() < REQUESTS_MIN {
        return None;
    }
    let pooled: Vec<(usize, f64)> = before.iter().chain(&after).copied().collect();
    let slices = names.names.len();
    let share_before = shares(&before, slices);
    let share_after = shares(&after, slices);
    let jsd_bits = jensen_shannon(&share_before, &share_after);
    let draws = (PERMUTED_REQUESTS_MAX / pooled.len()).clamp(99, PERMUTATIONS_MAX);
    let by_chance: Vec<f64> = (0..draws)
        .map(|draw| permuted_divergence(&pooled, before.len(), slices, options.seed, draw as u64))
        .collect();
    let as_far = by_chance.iter().filter(|chance| **chance >= jsd_bits).count();
    let p_value = (as_far + 1) as f64 / (draws + 1) as f64;
    let shifted = p_value <= options.mix_p_max && jsd_bits > 0.0;

    let mut table: Vec<SliceShare> = names
        .names
        .iter()
        .enumerate()
        .map(|(index, name)| SliceShare {
            slice: SliceId(index as u16),
            name: name.clone(),
            before: share_before[index],
            after: share_after[index],
        })
        .collect();
    let grown = table.iter().max_by(|a, b| (a.after - a.before).total_cmp(&(b.after - b.before)));
    let moved = grown.filter(|_| shifted).map(|share| share.slice);
    table.sort_by(|a, b| {
        let change = |s: &SliceShare| (s.after - s.before).abs();
        change(b).total_cmp(&change(a)).then(a.slice.cmp(&b.slice))
    });
    Some(MixShift {
        slices: table,
        jsd_bits,
        jsd_chance_p99_bits: quantile(&by_chance, 0.99),
        p_value,
        effective_requests: (effective(&before), effective(&after)),
        shifted,
        moved,
        revisions_changed: revisions_changed(now, baseline),
    })
}

/// Slices of two traces under one numbering: the observed trace's first, then what only the
/// baseline has.
struct SliceNames {
    names: Vec<String>,
    from_now: Vec<usize>,
    from_baseline: Vec<usize>,
}

impl SliceNames {
    fn of(now: &Observation<'_>, baseline: &Observation<'_>) -> Self {
        let mut index: BTreeMap<(String, String), usize> = BTreeMap::new();
        let mut names = Vec::new();
        let mut number = |observation: &Observation<'_>| -> Vec<usize> {
            let slices = observation.header.slices.iter();
            slices
                .map(|slice| {
                    let key = (slice.tenant.clone(), slice.template.clone());
                    *index.entry(key).or_insert_with(|| {
                        names.push(if slice.template.is_empty() {
                            slice.tenant.clone()
                        } else {
                            format!("{} / {}", slice.tenant, slice.template)
                        });
                        names.len() - 1
                    })
                })
                .collect()
        };
        let from_now = number(now);
        let from_baseline = number(baseline);
        Self { names, from_now, from_baseline }
    }

    fn now(&self, slice: SliceId) -> Option<usize> {
        self.from_now.get(slice.index()).copied()
    }

    fn baseline(&self, slice: SliceId) -> Option<usize> {
        self.from_baseline.get(slice.index()).copied()
    }
}

/// (slice, tokens of the phase) of every request that has any.
fn weights(
    requests: &[RequestRecord],
    phase: Phase,
    slice: impl Fn(SliceId) -> Option<usize>,
) -> Vec<(usize, f64)> {
    requests
        .iter()
        .filter_map(|request| {
            let tokens = match phase {
                Phase::Prefill => request.prompt_tokens,
                Phase::Decode => request.output_tokens,
            };
            (tokens > 0).then_some(())?;
            Some((slice(request.slice)?, f64::from(tokens)))
        })
        .collect()
}

fn shares(weights: &[(usize, f64)], slices: usize) -> Vec<f64> {
    let mut shares = vec![0.0; slices];
    for (slice, weight) in weights {
        shares[*slice] += weight;
    }
    let total: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= total);
    shares
}

/// Jensen–Shannon divergence in bits (Lin, IEEE Trans. Inf. Theory 1991).
fn jensen_shannon(p: &[f64], q: &[f64]) -> f64 {
    let term = |a: f64, m: f64| if a > 0.0 { a * (a / m).log2() } else { 0.0 };
    let sum = |(a, b): (&f64, &f64)| {
        let m = 0.5 * (a + b);
        0.5 * (term(*a, m) + term(*b, m))
    };
    p.iter().zip(q).map(sum).sum::<f64>().max(0.0)
}

fn permuted_divergence(
    pooled: &[(usize, f64)],
    before: usize,
    slices: usize,
    seed: u64,
    draw: u64,
) -> f64 {
    // A partial Fisher–Yates shuffle picks which requests are called "before".
    let mut order: Vec<u32> = (0..pooled.len() as u32).collect();
    let (mut left, mut right) = (vec![0.0; slices], vec![0.0; slices]);
    for position in 0..order.len() {
        if position < before {
            let span = (order.len() - position) as u64;
            let pick = position + (hash3(seed, draw, position as u64) % span) as usize;
            order.swap(position, pick);
        }
        let (slice, weight) = pooled[order[position] as usize];
        if position < before { left[slice] += weight } else { right[slice] += weight }
    }
    let normalise = |sums: &mut Vec<f64>| {
        let total: f64 = sums.iter().sum();
        sums.iter_mut().for_each(|sum| *sum /= total);
    };
    normalise(&mut left);
    normalise(&mut right);
    jensen_shannon(&left, &right)
}

/// Effective sample size of unequal weights: (Σw)² / Σw² (Kish).
fn effective(weights: &[(usize, f64)]) -> f64 {
    let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let squares: f64 = weights.iter().map(|(_, weight)| weight * weight).sum();
    sum * sum / squares
}

/// Whether the model, or a slice that both windows have, runs on another revision.
fn revisions_changed(now: &Observation<'_>, baseline: &Observation<'_>) -> bool {
    let (a, b) = (&now.header.model, &baseline.header.model);
    if a.revision != b.revision || a.tokenizer_revision != b.tokenizer_revision {
        return true;
    }
    let revisions = |observation: &Observation<'_>| {
        let mut by_slice: BTreeMap<(String, String), BTreeSet<(String, String)>> = BTreeMap::new();
        for slice in &observation.header.slices {
            let key = (slice.tenant.clone(), slice.template.clone());
            let revision = (slice.model_revision.clone(), slice.tokenizer_revision.clone());
            by_slice.entry(key).or_default().insert(revision);
        }
        by_slice
    };
    let old = revisions(baseline);
    revisions(now).iter().any(|(slice, new)| old.get(slice).is_some_and(|old| old != new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_equal_and_disjoint_mixes() {
        assert!(jensen_shannon(&[0.5, 0.5], &[0.5, 0.5]) < 1e-12);
        assert!((jensen_shannon(&[1.0, 0.0], &[0.0, 1.0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn one_long_request_counts_as_one() {
        let weights = [(0, 1000.0), (1, 1.0), (1, 1.0)];
        assert!(effective(&weights) < 1.1);
    }

    #[test]
    fn chance_alone_is_rarely_called_a_shift() {
        // Heavy-tailed request sizes, same mix in both halves: p-values must be near uniform.
        let mut alarms = 0;
        for trial in 0..40 {
            let pooled: Vec<(usize, f64)> = (0..120)
                .map(|i| {
                    let draw = evenkeel_types::unit_f64(hash3(trial, i, 1));
                    let slice = (hash3(trial, i, 2) % 3) as usize;
                    (slice, 1.0 / (0.002 + draw))
                })
                .collect();
            let jsd = jensen_shannon(&shares(&pooled[..60], 3), &shares(&pooled[60..], 3));
            let far = (0..199)
                .filter(|draw| permuted_divergence(&pooled, 60, 3, 5, *draw) >= jsd)
                .count();
            alarms += usize::from((far + 1) as f64 / 200.0 <= 0.05);
        }
        assert!(alarms <= 6, "{alarms} of 40 at the 5 % level");
    }
}
