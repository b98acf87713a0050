//! Whose fault is an uneven rank load: the split's or the map's?

use crate::{SplitError, min_max_rows};
use evenkeel_types::RankId;

/// `measured = dispatch × placement`, each at least 1 (up to rounding of the measurement).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    /// Measured rows of the most loaded rank ÷ mean rows of a rank.
    pub measured: f64,
    /// Measured maximum ÷ best maximum of this map: what a better split would win.
    pub dispatch: f64,
    /// Best maximum of this map ÷ mean: what only moving weights can win.
    pub placement: f64,
}

/// Takes a measured imbalance apart, so that a dispatch fault is not cured by moving weights.
///
/// `rank_rows` are measured rows per rank, `loads` rows per expert of the same steps and layer.
/// Without rows all three are 1.
///
/// # Errors
/// As [`min_max_rows`].
pub fn gaps(hosts: &[Vec<RankId>], loads: &[u64], rank_rows: &[u64]) -> Result<Gaps, SplitError> {
    let best = min_max_rows(hosts, loads, rank_rows.len())?;
    let rows: u64 = rank_rows.iter().sum();
    let most = rank_rows.iter().copied().max().unwrap_or(0);
    if rows == 0 || best.rows == 0 {
        return Ok(Gaps { measured: 1.0, dispatch: 1.0, placement: 1.0 });
    }
    let mean = rows as f64 / rank_rows.len() as f64;
    Ok(Gaps {
        measured: most as f64 / mean,
        dispatch: most as f64 / best.max_rows,
        placement: best.max_rows / mean,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lazy_copy_is_a_dispatch_gap() {
        let hosts = [vec![RankId(0), RankId(1)]];
        let gaps = gaps(&hosts, &[100], &[90, 10]).unwrap();
        assert!((gaps.measured - 1.8).abs() < 1e-12);
        assert!((gaps.dispatch - 1.8).abs() < 1e-12);
        assert!((gaps.placement - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_missing_copy_is_a_placement_gap() {
        let hosts = [vec![RankId(0)], vec![RankId(1)]];
        let gaps = gaps(&hosts, &[90, 10], &[90, 10]).unwrap();
        assert!((gaps.dispatch - 1.0).abs() < 1e-12);
        assert!((gaps.placement - 1.8).abs() < 1e-12);
    }
}
