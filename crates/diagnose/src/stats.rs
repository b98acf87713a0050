//! Robust summaries: a few wild cells must not move a verdict.

/// Median; 0 for an empty slice. Reorders the slice.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let (middle, odd) = (values.len() / 2, values.len() % 2 == 1);
    let (low, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if odd {
        return upper;
    }
    let lower = low.iter().copied().fold(f64::MIN, f64::max);
    0.5 * (lower + upper)
}

/// Median absolute deviation around `center`, scaled to a normal's standard deviation.
pub(crate) fn spread(values: &[f64], center: f64) -> f64 {
    let mut deviations: Vec<f64> = values.iter().map(|value| (value - center).abs()).collect();
    1.4826 * median(&mut deviations)
}

/// Mean; 0 for an empty slice.
pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The value at a share of the sorted order (nearest rank); 0 for an empty slice.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(last)).copied().unwrap_or(0.0)
}

/// A level that a series holds from some index on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    /// First index of the level; 0 where the series has one level throughout.
    pub(crate) from: usize,
    /// Median from there on.
    pub(crate) value: f64,
    /// Standard error of that median.
    pub(crate) error: f64,
}

/// Fewest steps that make a level.
const LEVEL_STEPS_MIN: usize = 4;
/// A change of level must exceed its own standard error this many times.
const CHANGE_ERRORS_MIN: f64 = 6.0;

/// The last level of a series: split where two means fit best (least squares), if the two differ
/// beyond noise and by at least `change_min`; otherwise the whole series is one level.
pub(crate) fn last_level(series: &[f64], change_min: f64) -> Level {
    let whole = level_of(series, 0);
    let n = series.len();
    if n < 2 * LEVEL_STEPS_MIN {
        return whole;
    }
    let total: f64 = series.iter().sum();
    let (mut before, mut best, mut at) = (0.0, 0.0, 0);
    for (index, value) in series.iter().enumerate().take(n - LEVEL_STEPS_MIN) {
        before += value;
        let left = (index + 1) as f64;
        let right = n as f64 - left;
        if index + 1 < LEVEL_STEPS_MIN {
            continue;
        }
        let difference = (total - before) / right - before / left;
        let gain = difference * difference * left * right / n as f64;
        if gain > best {
            (best, at) = (gain, index + 1);
        }
    }
    if at == 0 {
        return whole;
    }
    let (early, late) = (level_of(&series[..at], 0), level_of(&series[at..], at));
    let change = (late.value - early.value).abs();
    let error = early.error.hypot(late.error);
    if change >= change_min && change > CHANGE_ERRORS_MIN * error { late } else { whole }
}

fn level_of(series: &[f64], from: usize) -> Level {
    let value = median(&mut series.to_vec());
    // Standard error of a median of normal values: 1.2533 σ / √n.
    let error = 1.2533 * spread(series, value) / (series.len().max(1) as f64).sqrt();
    Level { from, value, error }
}

/// Shapley values over `players` (at most [`PLAYERS_MAX`]): what each adds, averaged over all
/// orders. `value[mask]` is the worth of the coalition; the result adds up to the worth of all.
pub(crate) fn shapley(players: usize, value: &[f64]) -> Vec<f64> {
    debug_assert_eq!(value.len(), 1 << players);
    // weight of a coalition of size s without the player: s! (n − s − 1)! / n!
    let factorial = |n: usize| (1..=n).map(|i| i as f64).product::<f64>();
    let weight: Vec<f64> = (0..players)
        .map(|size| factorial(size) * factorial(players - size - 1) / factorial(players))
        .collect();
    (0..players)
        .map(|player| {
            (0..value.len())
                .filter(|mask| mask & (1 << player) == 0)
                .map(|mask| {
                    let size = mask.count_ones() as usize;
                    weight[size] * (value[mask | 1 << player] - value[mask])
                })
                .sum()
        })
        .collect()
}

/// Coalitions double with each player; more causes at once are not told apart anyway.
pub(crate) const PLAYERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_and_quantiles() {
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!((quantile(&[1.0, 2.0, 3.0, 4.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&[1.0, 2.0, 3.0, 4.0], 0.99) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn a_step_is_found_and_noise_is_not() {
        let noise = |i: u64| 0.01 * (evenkeel_types::unit_f64(evenkeel_types::hash2(3, i)) - 0.5);
        let flat: Vec<f64> = (0..60).map(noise).collect();
        assert_eq!(last_level(&flat, 0.02).from, 0);
        let step: Vec<f64> = (0..60).map(|i| noise(i) + if i < 40 { 0.0 } else { 0.3 }).collect();
        let level = last_level(&step, 0.02);
        assert_eq!(level.from, 40);
        assert!((level.value - 0.3).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn shapley_values_add_up(worth in prop::collection::vec(-5.0..5.0_f64, 16)) {
            let mut worth = worth;
            worth[0] = 0.0;
            let sum: f64 = shapley(4, &worth).iter().sum();
            prop_assert!((sum - worth[15]).abs() < 1e-9);
        }
    }
}
