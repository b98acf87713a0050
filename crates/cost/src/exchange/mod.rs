//! Time of moving rows between ranks: DeepEP's two modes, and collectives.
//!
//! Low latency serves decode, normal serves prefill; they are never mixed. No measured row is
//! under skew: a skewed exchange ends when its busiest rank has sent and received its rows, read
//! off the balanced curve at that rank's rows. That is assumed, and every note says so.

mod fit;
mod low_latency;
mod nccl;
mod nccl_fit;
mod normal;
mod normal_fit;
mod points;

pub use fit::{LowLatencyFit, fit_low_latency};
pub use low_latency::{AnyNodes, LowLatencyCurve, LowLatencyLine, NodeLine, OneNode};
pub use nccl::{Collective, CollectiveCurve, CollectiveForm, Collectives};
pub use nccl_fit::fit_collectives;
pub use normal::{NormalTable, NormalTables, distinct};
pub use normal_fit::{NormalFit, fit_normal};
pub use points::LogTable;

use crate::basis::Basis;
use evenkeel_types::{ModelShape, Topology, WeightFormat};
use serde::{Deserialize, Serialize};

/// Which half of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Rows to the experts, in the format of the weights where that is FP8.
    Dispatch,
    /// Results back, bf16.
    Combine,
}

/// Bytes of a low-latency message beside its row and scales.
const MESSAGE_HEADER_BYTES: f64 = 16.0;

impl Direction {
    /// Bytes of one row of the measured exchanges: FP8 dispatch with one f32 scale per 128
    /// values and a header, bf16 combine.
    #[must_use]
    pub fn measured_bytes(self, hidden: f64) -> f64 {
        match self {
            Self::Dispatch => hidden + hidden / 32.0 + MESSAGE_HEADER_BYTES,
            Self::Combine => 2.0 * hidden,
        }
    }

    /// Bytes of one (token, expert) row in low-latency mode.
    #[must_use]
    pub fn low_latency_bytes(self, shape: &ModelShape) -> f64 {
        let hidden = f64::from(shape.hidden);
        match (self, shape.weights) {
            (Self::Dispatch, WeightFormat::Fp8 | WeightFormat::Fp8Block) => {
                self.measured_bytes(hidden)
            }
            (_, WeightFormat::F32) => 4.0 * hidden + MESSAGE_HEADER_BYTES,
            (Self::Dispatch, _) => 2.0 * hidden + MESSAGE_HEADER_BYTES,
            (Self::Combine, _) => self.measured_bytes(hidden),
        }
    }

    /// Bytes of one row that crosses in normal mode: the same formats.
    #[must_use]
    pub fn normal_bytes(self, shape: &ModelShape) -> f64 {
        self.low_latency_bytes(shape)
    }
}

/// What an exchange sees of a topology.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Ranks of the group over ranks of its largest node: 1 on one node.
    pub nodes: f64,
    /// Ranks of the largest node.
    pub node_ranks: f64,
    /// Rate of the slowest network card per rank, Gb/s.
    pub nic_gbit_per_s: f64,
}

impl Fabric {
    /// The fabric of a topology. Degraded links are left to the caller, who counts their rows up.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let largest = topology.node.iter().map(|node| node.ranks).max().unwrap_or(1).max(1);
        let nic = topology.node.iter().map(|n| n.nic_gbit_per_s).fold(f64::INFINITY, f64::min);
        Self {
            nodes: (topology.rank_count() as f64 / f64::from(largest)).max(1.0),
            node_ranks: f64::from(largest),
            nic_gbit_per_s: if nic.is_finite() && nic > 0.0 { nic } else { 400.0 },
        }
    }
}

/// Exchanges of one hardware profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeProfile {
    /// Low latency, towards the experts.
    pub dispatch: LowLatencyCurve,
    /// Low latency, back.
    pub combine: LowLatencyCurve,
    /// What low latency stands on within a node.
    pub one_node_basis: Basis,
    /// What it stands on over several nodes.
    pub multi_node_basis: Basis,
    /// Normal mode.
    pub normal: NormalTables,
    /// What normal mode stands on within a node.
    pub normal_one_node_basis: Basis,
    /// What it stands on over several nodes.
    pub normal_multi_node_basis: Basis,
    /// NCCL.
    pub collectives: Collectives,
}
