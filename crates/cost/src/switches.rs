//! Finds kernel switches in a table: places where more work is much cheaper.
//!
//! An autotuner's pick or a tile switch makes a curve drop; a formula cannot follow that, so the
//! places are reported instead of smoothed (docs/cost-model.md, pitfall 7).

/// A row more than this much slower than the same curve at more tokens is beyond noise: repeated
/// runs of these tables differ by 6 % (p95 20 %).
const DROP: f64 = 1.6;

/// Indices of the points of one curve, `(tokens, µs)`, that are more than 1.6 times slower than
/// some point with more tokens.
#[must_use]
pub fn slower_than_later(curve: &[(f64, f64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..curve.len()).collect();
    order.sort_by(|a, b| curve[*b].0.total_cmp(&curve[*a].0));
    let mut fastest_later = f64::INFINITY;
    let mut found = Vec::new();
    for index in order {
        if curve[index].1 > DROP * fastest_later {
            found.push(index);
        }
        fastest_later = fastest_later.min(curve[index].1);
    }
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_pick_is_found_and_noise_is_not() {
        let curve = [(64.0, 50.0), (192.0, 430.0), (512.0, 60.0), (1024.0, 58.0), (2048.0, 90.0)];
        assert_eq!(slower_than_later(&curve), [1]);
        assert!(slower_than_later(&[(1.0, 10.0), (2.0, 9.0)]).is_empty());
    }
}
