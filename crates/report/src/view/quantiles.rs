//! From samples to quantile curves.

use super::{Quantile, Series};

/// The quantiles kept of a distribution: even steps in the body, and as many again in each further
/// nine of the tail, because the tail is what decides.
const STEPS_PER_NINE: usize = 24;
/// Tails are drawn up to 1 − 10⁻⁵; beyond, no replay here has the samples.
const NINES: usize = 5;

impl Series {
    /// A curve from samples, one per request or one per token as the panel's weighting says.
    /// Samples that are not finite are left out. Quantiles are nearest-rank, so each is a sample;
    /// none is given beyond `1 − 1/n`.
    pub fn from_samples(name: impl Into<String>, samples: &[f64]) -> Series {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let mut quantiles = Vec::new();
        for q in grid() {
            // The slack keeps q · n from being rounded up to the next sample.
            let rank = ((q * count as f64 - 1e-9).ceil() as usize).clamp(1, count.max(1)) - 1;
            let known = q <= 1.0 - 1.0 / count as f64 + 1e-12;
            if rank < count && (known || quantiles.is_empty()) {
                quantiles.push(Quantile { q, value: sorted[rank] });
            }
        }
        Series { name: name.into(), samples: count as u64, quantiles }
    }

    /// The value at `q`, linear between the stored points; `None` outside of them.
    pub fn at(&self, q: f64) -> Option<f64> {
        let points: Vec<&Quantile> =
            self.quantiles.iter().filter(|p| p.q.is_finite() && p.value.is_finite()).collect();
        let hit = points.iter().find(|p| (p.q - q).abs() < 1e-9);
        if let Some(point) = hit {
            return Some(point.value);
        }
        let pair = points.windows(2).find(|w| w[0].q <= q && q <= w[1].q)?;
        let part = (q - pair[0].q) / (pair[1].q - pair[0].q);
        Some(pair[0].value + part * (pair[1].value - pair[0].value))
    }
}

/// The grid of quantiles: 0, then steps that shrink tenfold per nine.
fn grid() -> impl Iterator<Item = f64> {
    (0..=NINES * STEPS_PER_NINE).map(|i| {
        let nines = i as f64 / STEPS_PER_NINE as f64;
        // Whole nines are exact, so that p90, p99 and p99.9 are points of every curve.
        if i % STEPS_PER_NINE == 0 {
            1.0 - 0.1f64.powi((i / STEPS_PER_NINE) as i32)
        } else {
            1.0 - 10f64.powf(-nines)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_at_the_nearest_rank() {
        let samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let series = Series::from_samples("live", &samples);
        assert_eq!(series.samples, 1000);
        assert_eq!(series.at(0.9), Some(900.0));
        assert_eq!(series.at(0.99), Some(990.0));
        assert_eq!(series.at(0.999), Some(999.0));
        assert_eq!(series.at(0.9999), None, "a thousand samples know no p99.99");
        assert!((series.at(0.5).unwrap() - 500.0).abs() < 2.0);
    }

    #[test]
    fn empty_and_single_and_nan_samples_are_harmless() {
        assert!(Series::from_samples("x", &[]).quantiles.is_empty());
        assert!(Series::from_samples("x", &[f64::NAN]).quantiles.is_empty());
        let one = Series::from_samples("x", &[7.0, f64::INFINITY]);
        assert_eq!((one.samples, one.quantiles.len()), (1, 1));
        assert_eq!(one.at(0.99), None);
    }
}
