//! Error statistics of predictions against measurements.

use serde::{Deserialize, Serialize};

/// Relative errors of a set of predictions, all as shares of the measured value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorStats {
    /// Rows compared.
    pub rows: usize,
    /// Mean of `|predicted / measured − 1|`.
    pub mape: f64,
    /// 95th percentile of the same.
    pub p95: f64,
    /// Median of the same.
    pub median: f64,
    /// Mean of `predicted / measured − 1`, signed.
    pub bias: f64,
}

impl ErrorStats {
    /// Statistics over `(predicted, measured)` pairs; all zero for none.
    #[must_use]
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let signed: Vec<f64> =
            pairs.into_iter().map(|(predicted, measured)| predicted / measured - 1.0).collect();
        if signed.is_empty() {
            return Self::default();
        }
        let mut absolute: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
        absolute.sort_by(f64::total_cmp);
        let count = signed.len() as f64;
        Self {
            rows: signed.len(),
            mape: absolute.iter().sum::<f64>() / count,
            p95: quantile(&absolute, 0.95),
            median: quantile(&absolute, 0.5),
            bias: signed.iter().sum::<f64>() / count,
        }
    }
}

/// Quantile of ascending values by linear interpolation; 0 for none.
#[must_use]
pub fn quantile(ascending: &[f64], share: f64) -> f64 {
    let Some(last) = ascending.len().checked_sub(1) else { return 0.0 };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let high = (low + 1).min(last);
    ascending[low] + (ascending[high] - ascending[low]) * (place - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_and_absolute_errors_differ() {
        let stats = ErrorStats::of([(110.0, 100.0), (90.0, 100.0), (100.0, 100.0)]);
        assert_eq!(stats.rows, 3);
        assert!((stats.mape - 0.2 / 3.0).abs() < 1e-12);
        assert!(stats.bias.abs() < 1e-12);
        assert!((stats.median - 0.1).abs() < 1e-12);
    }

    #[test]
    fn quantiles_interpolate() {
        assert!((quantile(&[1.0, 2.0, 3.0], 0.25) - 1.5).abs() < 1e-12);
        assert!(quantile(&[], 0.5).abs() < 1e-12);
    }
}
