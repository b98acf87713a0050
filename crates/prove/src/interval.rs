//! Intervals from bootstrap replicates, peeking and multiplicity.

/// Replicates that must lie beyond a bound for it to be read off them; with fewer the tail is
/// continued as a normal one with the replicates' own spread on that side.
const TAIL_REPLICATES_MIN: f64 = 20.0;

/// Degrees of freedom below which the expansion of [`t_over_normal`] is not trusted.
const FREEDOM_MIN: f64 = 2.0;

/// Two-sided error allowance of a look. 0: the data are looked at once. The k-th look gets
/// α·6/(π²k²): the sum over all looks is α, so by the union bound the intervals of *all* looks
/// hold together with probability 1 − α, however often and for whatever reason one looks.
pub(crate) fn alpha_of_look(alpha: f64, look: u32) -> f64 {
    if look == 0 {
        return alpha;
    }
    let k = f64::from(look);
    alpha * 6.0 / (std::f64::consts::PI * std::f64::consts::PI * k * k)
}

/// Which hypotheses Holm's step-down procedure rejects at level `alpha` (Holm 1979): the
/// probability of one wrong rejection among all of them stays below `alpha` under any dependence.
pub(crate) fn holm(p_values: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut rejected = vec![false; p_values.len()];
    for (done, index) in order.into_iter().enumerate() {
        if p_values[index] > alpha / (p_values.len() - done) as f64 {
            break;
        }
        rejected[index] = true;
    }
    rejected
}

/// Standard normal distribution function, by the complementary error function's rational
/// Chebyshev form (Press et al., Numerical Recipes, `erfcc`: relative error below 1.2e-7).
pub(crate) fn normal_cdf(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let coefficients = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let series = coefficients.iter().fold(0.0, |sum, c| sum * t + c);
    let upper_tail = 0.5 * t * (series - z * z).exp();
    if x > 0.0 { 1.0 - upper_tail } else { upper_tail }
}

/// Standard normal quantile by bisection of [`normal_cdf`]; `p` within (0, 1).
pub(crate) fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-12.0, 12.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if normal_cdf(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// Student's t quantile over the normal one, by the expansion in 1/ν (Abramowitz & Stegun
/// 26.7.5, four terms; within 1 % for ν ≥ 2 at p = 0.975 and for ν ≥ 5 at p = 0.999).
pub(crate) fn t_over_normal(p: f64, freedom: f64) -> f64 {
    let z = normal_quantile(p);
    if z.abs() < 1e-9 {
        return 1.0;
    }
    let (z2, v) = (z * z, freedom);
    let g1 = (z2 + 1.0) / 4.0;
    let g2 = ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0;
    let g3 = (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0;
    let g4 = ((((79.0 * z2 + 776.0) * z2 + 1482.0) * z2 - 1920.0) * z2 - 945.0) / 92160.0;
    1.0 + g1 / v + g2 / (v * v) + g3 / (v * v * v) + g4 / (v * v * v * v)
}

/// A statistic and what it would have been on resampled data.
#[derive(Clone, Debug)]
pub(crate) struct Bootstrapped {
    point: f64,
    /// Replicates, rising, already stretched about the point.
    replicates: Vec<f64>,
    spread_below: f64,
    spread_above: f64,
}

impl Bootstrapped {
    /// `blocks` is how many blocks hold observations. A bootstrap over few blocks is too narrow
    /// twice over: it divides by B where an unbiased variance divides by B − 1, and it knows the
    /// variance no better than a t distribution of B − 1 degrees does. The replicates are
    /// stretched about the point by both.
    pub(crate) fn new(point: f64, mut replicates: Vec<f64>, blocks: f64, alpha: f64) -> Self {
        let freedom = (blocks - 1.0).max(FREEDOM_MIN);
        let stretch = t_over_normal(1.0 - alpha / 2.0, freedom) * (1.0 + 1.0 / freedom).sqrt();
        for value in &mut replicates {
            *value = point + stretch * (*value - point);
        }
        replicates.sort_by(f64::total_cmp);
        let spread = |keep: fn(f64) -> bool| {
            let sides = replicates.iter().map(|value| value - point).filter(|d| keep(*d));
            let (sum, count) = sides.fold((0.0, 0.0), |(s, n), d| (s + d * d, n + 1.0));
            if count > 0.0 { f64::sqrt(sum / count) } else { 0.0 }
        };
        let (spread_below, spread_above) = (spread(|d| d <= 0.0), spread(|d| d >= 0.0));
        Self { point, replicates, spread_below, spread_above }
    }

    /// Two-sided interval with error allowance `alpha`; holds the point.
    pub(crate) fn interval(&self, alpha: f64) -> [f64; 2] {
        let count = self.replicates.len() as f64;
        let tail = count * alpha / 2.0;
        let (low, high) = if tail >= TAIL_REPLICATES_MIN {
            let skip = tail.floor() as usize;
            (self.replicates[skip], self.replicates[self.replicates.len() - 1 - skip])
        } else {
            let z = normal_quantile(1.0 - alpha / 2.0);
            (self.point - z * self.spread_below, self.point + z * self.spread_above)
        };
        [low.min(self.point), high.max(self.point)]
    }

    /// Share of the replicates at or below `limit`: the one-sided p value of "not above".
    pub(crate) fn p_not_above(&self, limit: f64) -> f64 {
        let below = self.replicates.partition_point(|value| *value <= limit);
        self.tail(below, self.point - limit, self.spread_below)
    }

    /// Share of the replicates at or above `limit`: the one-sided p value of "not below".
    pub(crate) fn p_not_below(&self, limit: f64) -> f64 {
        let above = self.replicates.len() - self.replicates.partition_point(|v| *v < limit);
        self.tail(above, limit - self.point, self.spread_above)
    }

    fn tail(&self, beyond: usize, distance: f64, spread: f64) -> f64 {
        if beyond as f64 >= TAIL_REPLICATES_MIN {
            return beyond as f64 / self.replicates.len() as f64;
        }
        if spread > 0.0 {
            return normal_cdf(-distance / spread);
        }
        if distance > 0.0 { 0.0 } else { 1.0 }
    }
}

/// Probability of at least `hits` of `trials` at `share` each (exact binomial upper tail).
pub(crate) fn binomial_at_least(hits: u64, trials: u64, share: f64) -> f64 {
    if hits == 0 {
        return 1.0;
    }
    if share <= 0.0 || hits > trials {
        return 0.0;
    }
    if share >= 1.0 {
        return 1.0;
    }
    let (log_p, log_q) = (share.ln(), (1.0 - share).ln());
    let mut log_choose = 0.0;
    let mut sum = 0.0;
    for k in 0..=trials {
        if k > 0 {
            log_choose += ((trials - k + 1) as f64).ln() - (k as f64).ln();
        }
        if k >= hits {
            sum += (log_choose + k as f64 * log_p + (trials - k) as f64 * log_q).exp();
        }
    }
    sum.min(1.0)
}

/// Wilson score interval of a share (Wilson 1927): holds near 0 and 1 where ± z·s fails.
pub(crate) fn wilson(hits: u64, trials: u64, alpha: f64) -> [f64; 2] {
    if trials == 0 {
        return [0.0, 1.0];
    }
    let (n, p) = (trials as f64, hits as f64 / trials as f64);
    let z = normal_quantile(1.0 - alpha / 2.0);
    let z2 = z * z;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = z / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    [(centre - half).max(0.0), (centre + half).min(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::{hash2, unit_f64};

    #[test]
    fn quantiles_agree_with_tables() {
        assert!((normal_quantile(0.975) - 1.959_964).abs() < 1e-5);
        assert!((normal_cdf(-3.0) - 0.001_349_898).abs() < 1e-9);
        for (freedom, table) in [(3.0, 3.1824), (5.0, 2.5706), (9.0, 2.2622), (29.0, 2.0452)] {
            let t = t_over_normal(0.975, freedom) * 1.959_964;
            assert!((t / table - 1.0).abs() < 0.002, "{freedom}: {t} {table}");
        }
    }

    #[test]
    fn looks_spend_no_more_than_the_allowance() {
        let spent: f64 = (1..100_000).map(|look| alpha_of_look(0.05, look)).sum();
        assert!(spent < 0.05 && spent > 0.0499, "{spent}");
        assert!((alpha_of_look(0.05, 0) - 0.05).abs() < 1e-15);
    }

    #[test]
    fn holm_stops_at_the_first_that_stands() {
        assert_eq!(holm(&[0.04, 0.001, 0.02], 0.05), [true, true, true]);
        assert_eq!(holm(&[0.04, 0.001, 0.03], 0.05), [false, true, false]);
        assert_eq!(holm(&[], 0.05), Vec::<bool>::new());
    }

    #[test]
    fn binomial_tail_is_exact() {
        assert!((binomial_at_least(1, 1, 0.5) - 0.5).abs() < 1e-12);
        assert!((binomial_at_least(8, 10, 0.5) - 56.0 / 1024.0).abs() < 1e-12);
        assert!((wilson(50, 1000, 0.05)[1] - 0.0653).abs() < 5e-4);
    }

    #[test]
    fn an_interval_of_nothing_but_the_point_is_the_point() {
        let none = Bootstrapped::new(0.0, vec![0.0; 200], 20.0, 0.05);
        assert!(none.interval(0.05).iter().all(|end| end.abs() < 1e-12));
        assert!(none.p_not_above(-0.01) < 1e-12 && none.p_not_above(0.0) > 0.99);
    }

    #[test]
    fn far_tails_are_continued_beyond_the_replicates() {
        let draws: Vec<f64> =
            (0..500).map(|i| (0..12).map(|j| unit_f64(hash2(i, j))).sum::<f64>() - 6.0).collect();
        let boot = Bootstrapped::new(0.0, draws, 1e9, 0.05);
        let [low, high] = boot.interval(1e-4);
        assert!((low + 3.89).abs() < 0.5 && (high - 3.89).abs() < 0.5, "{low} {high}");
    }
}
