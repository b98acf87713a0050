//! What can go wrong between a table of measurements and a curve.

use thiserror::Error;

/// Why a profile, a table or a fit is refused.
#[derive(Debug, Error)]
pub enum CostError {
    /// No built-in profile of that name.
    #[error("no built-in cost profile `{name}`, expected one of {known}")]
    UnknownProfile {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A profile that is not valid JSON or lacks a field.
    #[error("cost profile is not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// A profile of another schema.
    #[error("cost profile has schema `{found}`, expected `{expected}`")]
    Schema {
        /// The schema named in the file.
        found: String,
        /// The schema this version reads.
        expected: &'static str,
    },
    /// A field of a profile outside its range.
    #[error("cost profile `{profile}`: `{field}` is {value}, expected {expected}")]
    Field {
        /// Name of the profile.
        profile: String,
        /// The offending field.
        field: String,
        /// Its value.
        value: String,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// A table that a fit needs and that was not given.
    #[error("table `{table}` was not given, expected its csv text")]
    NoTable {
        /// Stem of the file.
        table: String,
    },
    /// A table without one of the columns it must have.
    #[error("table `{table}` has no column `{column}`")]
    Column {
        /// Name of the table.
        table: String,
        /// The missing column.
        column: String,
    },
    /// A cell that cannot be read.
    #[error("table `{table}`, line {line}, column `{column}`: `{found}`, expected {expected}")]
    Cell {
        /// Name of the table.
        table: String,
        /// Line in the file, the header being line 1.
        line: usize,
        /// Column of the cell.
        column: String,
        /// What stands there.
        found: String,
        /// What would have been accepted.
        expected: String,
    },
    /// Too few usable rows for the parameters of a form.
    #[error("curve `{curve}`: {rows} usable rows, expected at least {needed}")]
    TooFewRows {
        /// The curve that was to be fitted.
        curve: String,
        /// Rows left after exclusions.
        rows: usize,
        /// Rows needed.
        needed: usize,
    },
    /// A model shape that contradicts itself.
    #[error(transparent)]
    Shape(#[from] evenkeel_types::ShapeError),
}
