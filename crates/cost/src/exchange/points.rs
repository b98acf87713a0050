//! A measured curve kept as points: log-log between them, linear beyond.

use serde::{Deserialize, Serialize};

/// Time against size as measured points, made monotone.
///
/// Between two points the logarithm of the time is linear in the logarithm of the size; below the
/// first point the time is the first's (a launch is a launch); above the last it grows linearly by
/// the slope of the last two points, for there only the rate counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(f64, f64)>", into = "Vec<(f64, f64)>")]
pub struct LogTable {
    points: Vec<(f64, f64)>,
    logs: Vec<(f64, f64)>,
    tail_slope: f64,
}

impl From<Vec<(f64, f64)>> for LogTable {
    fn from(points: Vec<(f64, f64)>) -> Self {
        Self::new(points)
    }
}

impl From<LogTable> for Vec<(f64, f64)> {
    fn from(table: LogTable) -> Self {
        table.points
    }
}

impl LogTable {
    /// A table of `(size, time)` points. Points that are not positive and finite are left out and
    /// equal sizes are averaged. Where a time falls below an earlier one, both are replaced by
    /// their geometric mean, and so on outwards (isotonic regression): more work is never
    /// cheaper, and jitter biases the curve neither up nor down.
    #[must_use]
    pub fn new(mut points: Vec<(f64, f64)>) -> Self {
        points.retain(|&(x, y)| x.is_finite() && y.is_finite() && x > 0.0 && y > 0.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64, f64)> = Vec::with_capacity(points.len());
        for (x, y) in points {
            match merged.last_mut() {
                Some(last) if x <= last.0 => {
                    last.1 += y;
                    last.2 += 1.0;
                }
                _ => merged.push((x, y, 1.0)),
            }
        }
        let points = isotonic(merged.into_iter().map(|(x, sum, n)| (x, sum / n)).collect());
        let logs = points.iter().map(|&(x, y)| (x.ln(), y.ln())).collect();
        let tail_slope = match points.as_slice() {
            [.., (x0, y0), (x1, y1)] => (y1 - y0) / (x1 - x0),
            [(x, y)] => y / x,
            [] => 0.0,
        };
        Self { points, logs, tail_slope }
    }

    /// The points, ascending in both.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Time at a size; 0 for an empty table.
    #[must_use]
    pub fn at(&self, size: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        if size <= first.0 || !size.is_finite() {
            return first.1;
        }
        if size >= last.0 {
            return last.1 + (size - last.0) * self.tail_slope;
        }
        let above = self.points.partition_point(|&(x, _)| x <= size);
        let (x0, y0) = self.logs[above - 1];
        let (x1, y1) = self.logs[above];
        (y0 + (y1 - y0) * (size.ln() - x0) / (x1 - x0)).exp()
    }

    /// The same table with sizes multiplied by `size` and times by `time`.
    #[must_use]
    pub fn scaled(&self, size: f64, time: f64) -> Self {
        Self::new(self.points.iter().map(|&(x, y)| (x * size, y * time)).collect())
    }

    /// The same table with a fixed time added to every point.
    #[must_use]
    pub fn plus(&self, time: f64) -> Self {
        Self::new(self.points.iter().map(|&(x, y)| (x, y + time)).collect())
    }
}

/// The closest ascending times by squared error of their logarithms (pool adjacent violators).
fn isotonic(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    // Blocks of a mean logarithm and a number of points.
    let mut blocks: Vec<(f64, usize)> = Vec::with_capacity(points.len());
    for (_, y) in &points {
        let mut block = (y.ln(), 1);
        while let Some(&(mean, count)) = blocks.last() {
            if mean < block.0 {
                break;
            }
            blocks.pop();
            let sum = mean * count as f64 + block.0 * block.1 as f64;
            let together = count + block.1;
            block = (sum / together as f64, together);
        }
        blocks.push(block);
    }
    let times = blocks.iter().flat_map(|&(mean, count)| std::iter::repeat_n(mean.exp(), count));
    // A point that no violator touched keeps its exact value.
    let close = |new: f64, old: f64| if (new / old - 1.0).abs() < 1e-12 { old } else { new };
    points.into_iter().zip(times).map(|((x, old), new)| (x, close(new, old))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_power_law_is_met_between_points_and_a_line_beyond() {
        let table = LogTable::new(vec![(1.0, 2.0), (4.0, 8.0), (16.0, 32.0)]);
        assert!((table.at(2.0) - 4.0).abs() < 1e-9);
        assert!((table.at(0.1) - 2.0).abs() < 1e-12);
        assert!((table.at(32.0) - 64.0).abs() < 1e-9);
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<LogTable>(&text).unwrap(), table);
    }

    proptest! {
        #[test]
        fn never_falls(points in prop::collection::vec((0.1_f64..1e6, 0.1_f64..1e5), 1..20),
                       a in 0.0_f64..2e6, b in 0.0_f64..2e6) {
            let table = LogTable::new(points);
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(table.at(low) <= table.at(high) * (1.0 + 1e-9));
        }
    }
}
