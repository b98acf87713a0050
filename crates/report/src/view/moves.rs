//! The data behind the pictures of a plan.

use serde::{Deserialize, Serialize};

use crate::num;

/// A curve of points with a limit that it cannot pass.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frontier {
    /// What is shown.
    pub title: String,
    /// Meaning and unit of x.
    pub x_label: String,
    /// Meaning and unit of y.
    pub y_label: String,
    /// (x, y), x rising.
    pub points: Vec<(f64, f64)>,
    /// What y cannot go below.
    pub bound: Option<f64>,
}

/// When each copy arrives.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// What is shown.
    pub title: String,
    /// End of each stage, s: copies of a stage come into force together.
    pub stage_ends_s: Vec<f64>,
    /// The copies.
    pub arrivals: Vec<Arrival>,
}

/// One copy on its way.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Arrival {
    /// Its stage.
    pub stage: usize,
    /// What is copied: `layer 3, expert 7`.
    pub what: String,
    /// Rank that sends.
    pub from: u16,
    /// Rank that receives.
    pub to: u16,
    /// Whether it leaves its node.
    pub crosses_nodes: bool,
    /// Start, s.
    #[serde(deserialize_with = "num::one")]
    pub start_s: f64,
    /// End, s.
    #[serde(deserialize_with = "num::one")]
    pub end_s: f64,
}
