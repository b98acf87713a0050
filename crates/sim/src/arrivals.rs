//! Real arrivals at another rate: many copies of a recording, each read from its own offset.
//!
//! Superposition keeps what one recording has (its gaps, its bursts, its slow drift) and stands for
//! many such services behind one group. It is smoother than any one of them: the bursts of the
//! copies do not fall together. Compressing time instead would turn minutes of drift into bursts
//! that nobody recorded.

use crate::SimError;
use evenkeel_types::hash2;

/// Most arrivals that one call makes: a day at 10,000 requests a second.
const ARRIVALS_MAX: u64 = 864_000_000;

/// Superposes `copies` of a recording over `duration_ns`, ascending: the rate is `copies` times the
/// recording's. Copy `c` starts at a hashed offset and wraps round at the end.
///
/// # Errors
/// A recording that is unsorted or spans no time, and more arrivals than memory is meant for.
pub fn superpose(
    recorded_ns: &[u64],
    copies: u32,
    duration_ns: u64,
    seed: u64,
) -> Result<Vec<u64>, SimError> {
    let (Some(first), Some(last)) = (recorded_ns.first(), recorded_ns.last()) else {
        return Err(SimError::range("arrivals", "empty", "at least two arrivals"));
    };
    if !recorded_ns.is_sorted() {
        return Err(SimError::range("arrivals", "unsorted", "ascending times"));
    }
    // The recording closes on itself with one mean gap, so that wrapping invents no burst.
    let span = (last - first) + (last - first) / (recorded_ns.len() as u64).max(1);
    if span == 0 {
        return Err(SimError::range("arrivals", "all at one time", "a recording that spans time"));
    }
    let per_copy = (duration_ns / span + 1).saturating_mul(recorded_ns.len() as u64);
    if per_copy.saturating_mul(u64::from(copies)) / (span / duration_ns.max(1) + 1) > ARRIVALS_MAX {
        return Err(SimError::range("arrivals: copies", copies, "fewer copies or a shorter run"));
    }
    let mut arrivals = Vec::new();
    for copy in 0..u64::from(copies) {
        let offset = hash2(seed, copy) % span;
        let start = recorded_ns.partition_point(|at| at - first < offset);
        let (mut lap, mut index) = (0, start);
        loop {
            if index == recorded_ns.len() {
                (lap, index) = (lap + 1, 0);
            }
            let at = lap * span + (recorded_ns[index] - first) - offset;
            if at >= duration_ns {
                break;
            }
            arrivals.push(at);
            index += 1;
        }
    }
    arrivals.sort_unstable();
    Ok(arrivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_copies_times_the_recordings() {
        let recorded: Vec<u64> = (0..1000).map(|i| 5_000 + i * 1_000_000).collect();
        let arrivals = superpose(&recorded, 50, 2_000_000_000, 7).unwrap();
        let expected = 50 * 2000;
        assert!(arrivals.len().abs_diff(expected) <= 50, "{}", arrivals.len());
        assert!(arrivals.is_sorted());
        assert_eq!(arrivals, superpose(&recorded, 50, 2_000_000_000, 7).unwrap());
        assert_ne!(arrivals, superpose(&recorded, 50, 2_000_000_000, 8).unwrap());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(superpose(&[], 1, 1, 0).is_err());
        assert!(superpose(&[5, 5], 1, 1, 0).is_err());
        assert!(superpose(&[5, 4], 1, 1, 0).is_err());
    }
}
