//! What a fit reached, on rows it did not see and on whole groups left out.

use serde::{Deserialize, Serialize};

use crate::stats::ErrorStats;

/// One line of a fit report. Errors are shares: 0.045 is 4.5 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitLine {
    /// Curve, e.g. `experts decode, deepgemm`.
    pub curve: String,
    /// Rows judged: `unseen fifth`, or the group that was left out, e.g. `EP 64 left out`.
    pub group: String,
    /// Rows that the fit saw.
    pub rows_fitted: usize,
    /// Rows judged; the fit saw none of them.
    pub rows_unseen: usize,
    /// Mean absolute relative error on them.
    pub mape: f64,
    /// 95th percentile of the absolute relative error.
    pub p95: f64,
    /// Signed mean relative error.
    pub bias: f64,
    /// Largest `mape` that counts as met; none where the figure is only reported.
    #[serde(default)]
    pub target: Option<f64>,
    /// Whether `mape` is at or below the target; true where there is none.
    pub met: bool,
}

impl FitLine {
    /// A line from the statistics of the unseen rows.
    #[must_use]
    pub fn new(
        curve: &str,
        group: &str,
        rows_fitted: usize,
        stats: &ErrorStats,
        target: Option<f64>,
    ) -> Self {
        Self {
            curve: curve.to_owned(),
            group: group.to_owned(),
            rows_fitted,
            rows_unseen: stats.rows,
            mape: stats.mape,
            p95: stats.p95,
            bias: stats.bias,
            target,
            met: target.is_none_or(|limit| stats.mape <= limit),
        }
    }
}

/// Rows of a table that no curve is fitted to or judged by, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAside {
    /// Name of the table.
    pub table: String,
    /// Rows set aside.
    pub rows: usize,
    /// Why.
    pub reason: String,
    /// True where no model could explain them from the recorded columns.
    #[serde(default)]
    pub hopeless: bool,
}

/// The report of a fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitReport {
    /// Rows held out by hash, one line per curve.
    pub rows: Vec<FitLine>,
    /// Whole groups left out, one line per group.
    pub left_out: Vec<FitLine>,
    /// Rows that were not used.
    pub set_aside: Vec<SetAside>,
    /// Places where a kernel switch makes more work cheaper; recorded, not smoothed.
    #[serde(default)]
    pub switches: Vec<String>,
}

impl FitReport {
    /// Appends another report's lines.
    pub fn extend(&mut self, other: Self) {
        let Self { rows, left_out, set_aside, switches } = other;
        self.rows.extend(rows);
        self.left_out.extend(left_out);
        self.set_aside.extend(set_aside);
        self.switches.extend(switches);
    }

    /// Records rows that were not used, where there are any.
    pub fn set_aside(&mut self, table: &str, rows: usize, reason: &str) {
        if rows > 0 {
            self.set_aside.push(SetAside {
                table: table.to_owned(),
                rows,
                reason: reason.to_owned(),
                hopeless: false,
            });
        }
    }

    /// The unseen-fifth line of a curve.
    #[must_use]
    pub fn line(&self, curve: &str) -> Option<&FitLine> {
        self.rows.iter().find(|line| line.curve == curve)
    }
}
