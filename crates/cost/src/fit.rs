//! Fitting: robust least squares for positive parameters, and non-negative linear least squares.
//!
//! Both are deterministic. Parameters are fitted as logarithms, so they stay positive; residuals
//! are `ln(predicted / measured)` under the soft-L1 loss `2δ²(√(1 + (r/δ)²) − 1)`, so that one
//! kernel switch does not bend a whole curve.

use evenkeel_types::{hash2, hash3, unit_f64};

/// Residuals well beyond this count linearly, not squared: 10 %, twice what the tables repeat to.
const SOFT: f64 = 0.1;
/// Steps per start. Fits of these forms settle within 30.
const STEPS: usize = 60;
/// Candidates that are only evaluated, for each start that is followed.
const SCREENED: usize = 12;

/// True for the fifth of rows that no fit may see, by a hash of the row's key.
///
/// The key is what identifies the measurement (not its value, nor its place in the file), so the
/// split does not depend on row order or a random generator.
#[must_use]
pub fn hold_out(key: &str) -> bool {
    key_hash(key).is_multiple_of(5)
}

/// A 64-bit hash of a text key (FNV-1a, then mixed).
#[must_use]
pub fn key_hash(key: &str) -> u64 {
    let fnv = key.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    hash2(0x4845_4C44, fnv)
}

/// One positive parameter of a form: where the search begins and what it may become.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// First start, a plausible value.
    pub start: f64,
    /// Smallest value taken.
    pub low: f64,
    /// Largest value taken.
    pub high: f64,
}

impl Param {
    /// A parameter that may move by a factor of 10^4 either way.
    #[must_use]
    pub const fn free(start: f64) -> Self {
        Self { start, low: start * 1e-4, high: start * 1e4 }
    }

    /// A parameter kept in a range.
    #[must_use]
    pub const fn within(start: f64, low: f64, high: f64) -> Self {
        Self { start, low, high }
    }
}

/// Result of a robust fit.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// Parameters in the order given.
    pub params: Vec<f64>,
    /// Robust loss per row at the solution.
    pub loss: f64,
}

/// Fits positive parameters so that `predict(params, row)` follows `measured[row]`.
///
/// Levenberg–Marquardt on the logarithms from `starts` starts (the first is [`Param::start`], the
/// others are the best of a seeded scatter around it); the lowest loss wins. `measured` must be
/// positive; a prediction that is not positive counts as a very small one.
pub fn fit_positive(
    params: &[Param],
    measured: &[f64],
    starts: usize,
    predict: impl Fn(&[f64], usize) -> f64,
) -> Fitted {
    let search = Search { params, measured, predict };
    let mut best = search.descend(search.first_start());
    for start in search.scattered(starts.saturating_sub(1)) {
        let found = search.descend(start);
        if found.1 < best.1 {
            best = found;
        }
    }
    Fitted {
        params: best.0.iter().map(|x| x.exp()).collect(),
        loss: best.1 / measured.len().max(1) as f64,
    }
}

struct Search<'a, P> {
    params: &'a [Param],
    measured: &'a [f64],
    predict: P,
}

impl<P: Fn(&[f64], usize) -> f64> Search<'_, P> {
    fn first_start(&self) -> Vec<f64> {
        self.clamped(self.params.iter().map(|p| p.start.ln()).collect())
    }

    fn clamped(&self, mut logs: Vec<f64>) -> Vec<f64> {
        for (log, param) in logs.iter_mut().zip(self.params) {
            *log = log.clamp(param.low.ln(), param.high.ln());
        }
        logs
    }

    /// The best `count` of a seeded scatter of e^±1.5 around the first start.
    fn scattered(&self, count: usize) -> Vec<Vec<f64>> {
        let base = self.first_start();
        let mut candidates: Vec<(f64, Vec<f64>)> = (0..count * SCREENED)
            .map(|i| {
                let moved = base
                    .iter()
                    .enumerate()
                    .map(|(j, x)| x + 3.0 * (unit_f64(hash3(11, i as u64, j as u64)) - 0.5))
                    .collect();
                let moved = self.clamped(moved);
                (self.loss(&self.residuals(&moved)), moved)
            })
            .collect();
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
        candidates.into_iter().take(count).map(|(_, start)| start).collect()
    }

    fn residuals(&self, logs: &[f64]) -> Vec<f64> {
        let values: Vec<f64> = logs.iter().map(|x| x.exp()).collect();
        self.measured
            .iter()
            .enumerate()
            .map(|(row, measured)| ((self.predict)(&values, row).max(1e-12) / measured).ln())
            .collect()
    }

    fn loss(&self, residuals: &[f64]) -> f64 {
        residuals
            .iter()
            .map(|r| 2.0 * SOFT * SOFT * ((1.0 + (r / SOFT).powi(2)).sqrt() - 1.0))
            .sum()
    }

    /// Follows the loss downhill from one start.
    fn descend(&self, start: Vec<f64>) -> (Vec<f64>, f64) {
        let mut at = start;
        let mut residuals = self.residuals(&at);
        let mut loss = self.loss(&residuals);
        let mut damping = 1e-2;
        for _ in 0..STEPS {
            let (normal, gradient) = self.normal_equations(&at, &residuals);
            let mut improved = false;
            // A rejected step raises the damping tenfold; ten of those is a flat place.
            for _ in 0..10 {
                let Some(step) = damped_step(&normal, &gradient, damping) else {
                    damping *= 10.0;
                    continue;
                };
                let next = self.clamped(at.iter().zip(&step).map(|(x, d)| x - d).collect());
                let next_residuals = self.residuals(&next);
                let next_loss = self.loss(&next_residuals);
                if next_loss < loss {
                    improved = loss - next_loss > 1e-7 * loss;
                    (at, residuals, loss) = (next, next_residuals, next_loss);
                    damping = (damping * 0.2).max(1e-9);
                    break;
                }
                damping *= 10.0;
            }
            if !improved {
                break;
            }
        }
        (at, loss)
    }

    /// `JᵀWJ` and `JᵀWr` by forward differences in the logarithms.
    fn normal_equations(&self, at: &[f64], residuals: &[f64]) -> (Vec<Vec<f64>>, Vec<f64>) {
        const H: f64 = 1e-5;
        let columns: Vec<Vec<f64>> = (0..at.len())
            .map(|j| {
                let mut moved = at.to_vec();
                moved[j] += H;
                let shifted = self.residuals(&moved);
                shifted.iter().zip(residuals).map(|(a, b)| (a - b) / H).collect()
            })
            .collect();
        let weights: Vec<f64> =
            residuals.iter().map(|r| 1.0 / (1.0 + (r / SOFT).powi(2)).sqrt()).collect();
        let dot = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).zip(&weights).map(|((x, y), w)| x * y * w).sum()
        };
        let normal = columns.iter().map(|a| columns.iter().map(|b| dot(a, b)).collect()).collect();
        let gradient = columns.iter().map(|a| dot(a, residuals)).collect();
        (normal, gradient)
    }
}

fn damped_step(normal: &[Vec<f64>], gradient: &[f64], damping: f64) -> Option<Vec<f64>> {
    let mut matrix = normal.to_vec();
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] += damping * row[i] + 1e-12;
    }
    solve(matrix, gradient.to_vec())
}

/// Solves a small dense system by elimination with pivoting; `None` where it is singular.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let n = right.len();
    for column in 0..n {
        let pivot = (column..n)
            .max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        if matrix[pivot][column].abs() < 1e-300 {
            return None;
        }
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let (above, below) = matrix.split_at_mut(column + 1);
        let pivot_row = &above[column];
        for (offset, row) in below.iter_mut().enumerate() {
            let factor = row[column] / pivot_row[column];
            for (cell, pivot_cell) in row.iter_mut().zip(pivot_row).skip(column) {
                *cell -= factor * pivot_cell;
            }
            right[column + 1 + offset] -= factor * right[column];
        }
    }
    for column in (0..n).rev() {
        let known: f64 = (column + 1..n).map(|k| matrix[column][k] * right[k]).sum();
        right[column] = (right[column] - known) / matrix[column][column];
    }
    right.iter().all(|x| x.is_finite()).then_some(right)
}

/// Non-negative linear least squares: the `x ≥ 0` that minimises `Σ wᵢ(aᵢ·x − bᵢ)²`.
///
/// `rows[i]` are the features of row i, `weights[i]` its weight (use `1 / measured²` for relative
/// errors). Active set of Lawson and Hanson on the normal equations; returns zeros for no rows.
#[must_use]
pub fn non_negative(rows: &[Vec<f64>], target: &[f64], weights: &[f64]) -> Vec<f64> {
    let n = rows.first().map_or(0, Vec::len);
    let mut normal = vec![vec![0.0; n]; n];
    let mut moment = vec![0.0; n];
    for ((row, b), w) in rows.iter().zip(target).zip(weights) {
        for i in 0..n {
            moment[i] += w * row[i] * b;
            for j in 0..n {
                normal[i][j] += w * row[i] * row[j];
            }
        }
    }
    active_set(&normal, &moment)
}

fn active_set(normal: &[Vec<f64>], moment: &[f64]) -> Vec<f64> {
    let n = moment.len();
    let mut x = vec![0.0; n];
    let mut free = vec![false; n];
    // Each round frees one column; 3n rounds bound the cycling that rounding could cause.
    for _ in 0..3 * n {
        let pull = |i: usize| moment[i] - (0..n).map(|j| normal[i][j] * x[j]).sum::<f64>();
        let worst = (0..n)
            .filter(|&i| !free[i] && normal[i][i] > 0.0)
            .max_by(|&a, &b| pull(a).total_cmp(&pull(b)));
        let Some(entering) = worst.filter(|&i| pull(i) > 1e-10 * moment[i].abs()) else { break };
        free[entering] = true;
        loop {
            let chosen: Vec<usize> = (0..n).filter(|&i| free[i]).collect();
            let matrix =
                chosen.iter().map(|&i| chosen.iter().map(|&j| normal[i][j]).collect()).collect();
            let right = chosen.iter().map(|&i| moment[i]).collect();
            let Some(solution) = solve(matrix, right) else {
                free[entering] = false;
                break;
            };
            if solution.iter().all(|v| *v >= 0.0) {
                for (&i, v) in chosen.iter().zip(solution) {
                    x[i] = v;
                }
                break;
            }
            retreat(&chosen, &solution, &mut x, &mut free);
            if !free.iter().any(|f| *f) {
                break;
            }
        }
    }
    x
}

/// Moves towards `solution` until the first column reaches zero, and fixes that column there.
fn retreat(chosen: &[usize], solution: &[f64], x: &mut [f64], free: &mut [bool]) {
    let step = chosen
        .iter()
        .zip(solution)
        .filter(|(_, v)| **v < 0.0)
        .map(|(&i, v)| x[i] / (x[i] - v))
        .fold(1.0, f64::min);
    for (&i, v) in chosen.iter().zip(solution) {
        x[i] += step * (v - x[i]);
        if *v < 0.0 && x[i] <= 1e-12 {
            x[i] = 0.0;
            free[i] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_is_held_out_and_the_split_is_fixed() {
        let held = (0..5000).filter(|i| hold_out(&format!("row{i}"))).count();
        assert!((900..1100).contains(&held), "{held}");
        assert_eq!(hold_out("a,1"), hold_out("a,1"));
    }

    #[test]
    fn a_knee_is_recovered_in_spite_of_wild_rows() {
        // t = 20 + (3x)^2-norm with 0.01 x^2, five rows in a hundred off by a factor of four.
        let truth = |x: f64| 20.0 + ((3.0 * x).powi(2) + (0.01 * x * x).powi(2)).sqrt();
        let xs: Vec<f64> = (1..=100).map(|i| f64::from(i) * 10.0).collect();
        let measured: Vec<f64> = xs
            .iter()
            .enumerate()
            .map(|(i, x)| truth(*x) * if i % 20 == 7 { 4.0 } else { 1.0 })
            .collect();
        let params = [Param::free(5.0), Param::free(1.0), Param::free(0.1)];
        let fit = fit_positive(&params, &measured, 3, |p, i| {
            p[0] + ((p[1] * xs[i]).powi(2) + (p[2] * xs[i] * xs[i]).powi(2)).sqrt()
        });
        assert!((fit.params[1] / 3.0 - 1.0).abs() < 0.03, "{:?}", fit.params);
        assert!((fit.params[2] / 0.01 - 1.0).abs() < 0.03, "{:?}", fit.params);
    }

    #[test]
    fn non_negative_keeps_zeros_and_finds_the_rest() {
        let rows: Vec<Vec<f64>> =
            (0..50).map(|i| vec![1.0, f64::from(i), f64::from((i * 7) % 13)]).collect();
        let target: Vec<f64> = rows.iter().map(|r| 4.0 + 2.0 * r[1] - 0.5 * r[2]).collect();
        let weights = vec![1.0; rows.len()];
        let x = non_negative(&rows, &target, &weights);
        assert!(x[2].abs() < 1e-12, "{x:?}");
        assert!((x[1] - 2.0).abs() < 0.05, "{x:?}");
        let exact: Vec<f64> = rows.iter().map(|r| 4.0 + 2.0 * r[1] + 0.5 * r[2]).collect();
        let x = non_negative(&rows, &exact, &weights);
        assert!((x[0] - 4.0).abs() < 1e-6 && (x[2] - 0.5).abs() < 1e-6, "{x:?}");
    }
}
