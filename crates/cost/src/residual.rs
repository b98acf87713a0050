//! Residual tables: what a formula misses, by place, at most ±30 %.
//!
//! A table has one line per number of local slots that was measured; along a line, factors stand
//! at log-spaced row counts of the rank and are interpolated in between. Outside the measured
//! lines the factor is 1, beyond a line's ends it stays constant.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Largest correction either way, as a logarithm: ±30 %.
const LIMIT: f64 = 0.262_364_264_467_491_06;
/// A cell with fewer training rows gets no factor of its own.
const ROWS_MIN: usize = 3;

/// Corrections to a formula, empty by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualTable {
    /// Cells per doubling of the rank's rows.
    pub cells_per_octave: f64,
    /// One line per measured number of slots.
    pub lines: Vec<ResidualLine>,
}

/// Corrections along the rows at one number of slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualLine {
    /// Local slots of the rank.
    pub slots: u32,
    /// `(cell, thousandths of a natural logarithm)` in ascending order of cell; the centre of
    /// cell c lies at `2^((c + ½) / cells_per_octave)` rows.
    pub cells: Vec<(i32, i32)>,
}

/// One training row of a residual table.
#[derive(Clone, Copy, Debug)]
pub struct ResidualRow {
    /// Local slots of the rank.
    pub slots: u32,
    /// Rows on the rank.
    pub rows: f64,
    /// `ln(measured / formula)`.
    pub log_ratio: f64,
}

impl ResidualTable {
    /// Medians of the log ratios in each cell with at least three rows, pulled towards none by one
    /// row's weight and cut at ±30 %.
    #[must_use]
    pub fn fit(rows: &[ResidualRow], cells_per_octave: f64) -> Self {
        let mut cells: BTreeMap<u32, BTreeMap<i32, Vec<f64>>> = BTreeMap::new();
        for row in rows {
            let cell = (row.rows.max(1.0).log2() * cells_per_octave).floor() as i32;
            let line = cells.entry(row.slots).or_default();
            line.entry(cell).or_default().push(row.log_ratio);
        }
        let lines = cells
            .into_iter()
            .map(|(slots, line)| ResidualLine {
                slots,
                cells: line
                    .into_iter()
                    .filter(|(_, ratios)| ratios.len() >= ROWS_MIN)
                    .map(|(cell, ratios)| (cell, (1000.0 * factor_of(ratios)).round() as i32))
                    .collect(),
            })
            .filter(|line| !line.cells.is_empty())
            .collect();
        Self { cells_per_octave, lines }
    }

    /// Factor on the formula's time at a place; 1 where nothing was measured.
    #[must_use]
    pub fn factor(&self, slots: u32, rows: f64) -> f64 {
        let line = self.lines.iter().find(|l| l.slots == slots);
        line.map_or(1.0, |line| {
            let place = rows.max(1.0).log2() * self.cells_per_octave - 0.5;
            (line.at(place) / 1000.0).exp()
        })
    }

    /// True for a table without a single line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

fn factor_of(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len() as f64;
    let middle = crate::stats::quantile(&ratios, 0.5);
    (middle * count / (count + 1.0)).clamp(-LIMIT, LIMIT)
}

impl ResidualLine {
    fn at(&self, place: f64) -> f64 {
        let after = self.cells.partition_point(|(cell, _)| f64::from(*cell) <= place);
        let (Some(before), Some(next)) =
            (after.checked_sub(1).map(|i| self.cells[i]), self.cells.get(after))
        else {
            let end = if after == 0 { self.cells.first() } else { self.cells.last() };
            return end.map_or(0.0, |(_, value)| f64::from(*value));
        };
        let share = (place - f64::from(before.0)) / f64::from(next.0 - before.0);
        f64::from(before.1) + share * f64::from(next.1 - before.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: f64, log_ratio: f64, count: usize) -> Vec<ResidualRow> {
        vec![ResidualRow { slots: 8, rows, log_ratio }; count]
    }

    #[test]
    fn thin_cells_are_left_alone_and_corrections_are_bounded() {
        let mut all = rows(10.0, 0.1, 9);
        all.extend(rows(1000.0, 3.0, 5));
        all.extend(rows(100_000.0, 0.2, 2));
        let table = ResidualTable::fit(&all, 1.0);
        assert_eq!(table.lines[0].cells.len(), 2);
        assert!((table.factor(8, 2.0).ln() - 0.09).abs() < 1e-3);
        assert!((table.factor(8, 1e6) - 1.3).abs() < 1e-3);
        assert!((table.factor(4, 10.0) - 1.0).abs() < 1e-12);
        let between = table.factor(8, 100.0);
        assert!(between > 1.09 && between < 1.3, "{between}");
    }
}
