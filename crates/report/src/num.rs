//! JSON has no NaN: `serde_json` writes `null` for it. These readers take it back, so that a stored
//! report with an unknown number can be rendered again.

use serde::{Deserialize, Deserializer};

/// Reads a number, `null` as NaN.
pub(crate) fn one<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads two numbers or none, `null` as NaN in a pair.
pub(crate) fn pair<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(f64, f64)>, D::Error> {
    let pair = Option::<(Option<f64>, Option<f64>)>::deserialize(from)?;
    Ok(pair.map(|(a, b)| (a.unwrap_or(f64::NAN), b.unwrap_or(f64::NAN))))
}

/// Reads a list of lists of numbers, `null` as NaN.
pub(crate) fn grid<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<f32>>, D::Error> {
    let grid = Vec::<Vec<Option<f32>>>::deserialize(from)?;
    let full = |row: Vec<Option<f32>>| row.into_iter().map(|v| v.unwrap_or(f32::NAN)).collect();
    Ok(grid.into_iter().map(full).collect())
}
