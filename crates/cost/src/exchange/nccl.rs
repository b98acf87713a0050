//! NCCL collectives of one node: a table per operation and number of ranks, a formula beside it.
//!
//! `t = [f^q + (l0 + bytes/β + s·√MB)^q]^(1/q)` where no table reaches (docs/cost-model.md).

use super::points::LogTable;
use crate::attention::knee;
use serde::{Deserialize, Serialize};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with everyone's part.
    AllGather,
    /// Every rank ends with the sum.
    AllReduce,
    /// Every rank ends with its part of the sum.
    ReduceScatter,
    /// Every rank sends a part to every other.
    AllToAll,
}

impl Collective {
    /// The operation by its name in the tables.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "all_gather" => Some(Self::AllGather),
            "all_reduce" => Some(Self::AllReduce),
            "reduce_scatter" => Some(Self::ReduceScatter),
            "alltoall" => Some(Self::AllToAll),
            _ => None,
        }
    }

    /// Name in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::AllGather => "all-gather",
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }
}

/// The formula's constants. Times µs, rate bytes/µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveForm {
    /// f.
    pub floor_us: f64,
    /// l0.
    pub start_us: f64,
    /// β, over the whole buffer.
    pub bytes_per_us: f64,
    /// s, per square root of 10⁶ bytes.
    pub root_us: f64,
    /// q.
    pub knee: f64,
}

impl CollectiveForm {
    /// Time for a buffer, µs.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let bytes = bytes.max(0.0);
        let line = self.start_us + bytes / self.bytes_per_us + self.root_us * (bytes / 1e6).sqrt();
        knee(self.floor_us, line, self.knee)
    }
}

/// One operation on so many ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCurve {
    /// The operation.
    pub operation: Collective,
    /// Ranks, all on one node.
    pub ranks: u32,
    /// µs by bytes of the whole buffer.
    pub table: LogTable,
    /// Where the table does not reach.
    pub form: CollectiveForm,
}

impl CollectiveCurve {
    /// Time for a buffer of `bytes`, µs: the table inside its range, the formula's growth beyond.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        match self.table.points().last() {
            Some(&(last, time)) if bytes > last => time * self.form.at(bytes) / self.form.at(last),
            Some(_) => self.table.at(bytes),
            None => self.form.at(bytes),
        }
    }
}

/// Collectives of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collectives {
    /// NCCL version that the times belong to: another one moves them by 6 % in the median.
    pub version: String,
    /// Curves by operation and ranks.
    pub curves: Vec<CollectiveCurve>,
}

impl Collectives {
    /// Time of a collective, µs: the curve of the nearest measured number of ranks, by its
    /// logarithm; none where the operation was not measured.
    #[must_use]
    pub fn at(&self, operation: Collective, ranks: u32, bytes: f64) -> Option<f64> {
        let away =
            |c: &CollectiveCurve| (f64::from(c.ranks).ln() - f64::from(ranks.max(1)).ln()).abs();
        self.curves
            .iter()
            .filter(|c| c.operation == operation)
            .min_by(|a, b| away(a).total_cmp(&away(b)))
            .map(|curve| curve.at(bytes))
    }
}
