//! DeepEP low latency: every (token, expert) pair is a message, nothing is deduplicated.
//!
//! With `w = T·k·bytes`: on one node a knee between a floor and the bytes,
//!
//! ```text
//! t = [ (a0 + aE·E/1000 + aH·H/1000)^q + (l0 + ((w/β + T·k·γ)⁴ + (w·132/min(E,132)/β_sm)⁴)^¼)^q ]^(1/q)
//! ```
//!
//! over several nodes of the benchmark one line per node count, and for other counts
//!
//! ```text
//! t = a + b·log2(n) + c·ρ·(1 − e^(−T/34)) + w·(ρ/(β_rdma·(1 + g/n)) + (1 − ρ)/β_nvlink),   ρ = 1 − 1/n
//! ```
//!
//! g: the network's rate falls from 2 to 8 nodes, and the published figures for 16 and 32 nodes
//! continue that fall; without it they are missed by 17 %.

use super::{Direction, Fabric};
use crate::attention::knee;
use evenkeel_types::ModelShape;
use serde::{Deserialize, Serialize};

/// Streaming multiprocessors of the measured GPUs: a kernel gives each expert one.
const SMS: f64 = 132.0;
/// Tokens over which the second network stage of a larger group fills (docs/cost-model.md).
const FILL_TOKENS: f64 = 34.0;
/// Rate of the network card per rank under the measured rows, Gb/s.
const NIC_GBIT: f64 = 400.0;

/// One node: see the module's first formula. Times µs, rates bytes/µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneNode {
    /// a0.
    pub floor_us: f64,
    /// aE, per 1000 experts.
    pub per_1000_experts_us: f64,
    /// aH, per 1000 of hidden width.
    pub per_1000_hidden_us: f64,
    /// l0.
    pub start_us: f64,
    /// β.
    pub bytes_per_us: f64,
    /// γ, per message.
    pub message_us: f64,
    /// β_sm: the rate if every expert had its own multiprocessor.
    pub sm_bytes_per_us: f64,
    /// q.
    pub knee: f64,
}

/// A measured number of nodes at the benchmark's shape:
/// `t = start + step·(1 − e^(−T/step_tokens)) + token·T`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLine {
    /// Nodes of eight ranks.
    pub nodes: u32,
    /// Time of the smallest exchange, µs.
    pub start_us: f64,
    /// What comes on top above a few tokens, µs.
    pub step_us: f64,
    /// Tokens over which it comes.
    pub step_tokens: f64,
    /// Time of one more token per rank, µs.
    pub token_us: f64,
}

/// All node counts: see the module's second formula. Times µs, rates bytes/µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnyNodes {
    /// a.
    pub start_us: f64,
    /// b.
    pub per_doubling_us: f64,
    /// c.
    pub remote_us: f64,
    /// β_rdma at 400 Gb/s per rank.
    pub rdma_bytes_per_us: f64,
    /// g.
    pub few_nodes_gain: f64,
    /// β_nvlink.
    pub nvlink_bytes_per_us: f64,
}

/// One direction of the mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowLatencyCurve {
    /// One node.
    pub one_node: OneNode,
    /// Measured node counts above one, ascending; none where nothing was measured.
    pub lines: Vec<NodeLine>,
    /// Shape that the lines were measured at: hidden width and experts per token.
    pub line_shape: [u32; 2],
    /// Other node counts; none on a machine that has no network.
    pub any_nodes: Option<AnyNodes>,
}

/// Low latency at one shape and fabric: `(floor^q + (start + token·T)^q)^(1/q) + step·(1 − e^(−T/τ))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowLatencyLine {
    /// Floor of the knee, µs (0: a plain line).
    pub floor_us: f64,
    /// Start of the line, µs.
    pub start_us: f64,
    /// Slope, µs per token.
    pub token_us: f64,
    /// Exponent of the knee.
    pub knee: f64,
    /// Step, µs.
    pub step_us: f64,
    /// Tokens over which the step fills.
    pub step_tokens: f64,
}

impl LowLatencyLine {
    /// Time for so many tokens per rank, µs.
    #[must_use]
    pub fn at(&self, tokens: f64) -> f64 {
        let tokens = tokens.max(0.0);
        let step = self.step_us * (1.0 - (-tokens / self.step_tokens).exp());
        knee(self.floor_us, self.start_us + self.token_us * tokens, self.knee) + step
    }
}

impl OneNode {
    /// The curve at one shape.
    #[must_use]
    pub fn line(&self, experts: f64, hidden: f64, top_k: f64, row_bytes: f64) -> LowLatencyLine {
        let bytes = top_k * row_bytes;
        let link = bytes / self.bytes_per_us + top_k * self.message_us;
        let sm = bytes * SMS / experts.min(SMS) / self.sm_bytes_per_us;
        LowLatencyLine {
            floor_us: self.floor_us
                + self.per_1000_experts_us * experts / 1000.0
                + self.per_1000_hidden_us * hidden / 1000.0,
            start_us: self.start_us,
            token_us: knee(link, sm, 4.0),
            knee: self.knee,
            step_us: 0.0,
            step_tokens: 1.0,
        }
    }
}

impl NodeLine {
    /// The line at the benchmark's own shape.
    #[must_use]
    pub const fn line(&self) -> LowLatencyLine {
        LowLatencyLine {
            floor_us: 0.0,
            start_us: self.start_us,
            token_us: self.token_us,
            knee: 1.0,
            step_us: self.step_us,
            step_tokens: self.step_tokens,
        }
    }
}

impl AnyNodes {
    /// The curve for `nodes` (a fraction where nodes are unequal) and `bytes` per token.
    #[must_use]
    pub fn line(&self, nodes: f64, bytes: f64, nic_share: f64) -> LowLatencyLine {
        let remote = 1.0 - 1.0 / nodes.max(1.0);
        let rdma =
            self.rdma_bytes_per_us * nic_share * (1.0 + self.few_nodes_gain / nodes.max(1.0));
        LowLatencyLine {
            floor_us: 0.0,
            start_us: self.start_us + self.per_doubling_us * nodes.max(1.0).log2(),
            token_us: bytes * (remote / rdma + (1.0 - remote) / self.nvlink_bytes_per_us),
            knee: 1.0,
            step_us: self.remote_us * remote,
            step_tokens: FILL_TOKENS,
        }
    }
}

impl LowLatencyCurve {
    /// The curve for a model on a fabric, and whether it stands on a measured node count.
    ///
    /// A measured node count is scaled to other shapes by the bytes of a token, and to another
    /// network card by the remote share of them.
    #[must_use]
    pub fn line(
        &self,
        shape: &ModelShape,
        fabric: &Fabric,
        direction: Direction,
    ) -> (LowLatencyLine, bool) {
        let top_k = f64::from(shape.top_k);
        let bytes = top_k * direction.low_latency_bytes(shape);
        let (experts, hidden) = (f64::from(shape.experts), f64::from(shape.hidden));
        let one = || self.one_node.line(experts, hidden, top_k, bytes / top_k);
        if fabric.nodes < 1.0 + 1e-9 {
            return (one(), true);
        }
        let Some(any) = &self.any_nodes else { return (one(), false) };
        let nic_share = fabric.nic_gbit_per_s / NIC_GBIT;
        let general = any.line(fabric.nodes, bytes, nic_share);
        let measured =
            self.lines.iter().find(|line| (f64::from(line.nodes) - fabric.nodes).abs() < 1e-9);
        let Some(measured) = measured else { return (general, false) };
        // The measured slope against the general one at the measured shape corrects it.
        let [line_hidden, line_k] = self.line_shape.map(f64::from);
        let line_bytes = line_k * direction.measured_bytes(line_hidden);
        let at_line = any.line(fabric.nodes, line_bytes, 1.0).token_us;
        let slope = measured.token_us / at_line * general.token_us;
        (LowLatencyLine { token_us: slope, ..measured.line() }, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_falls_with_tokens(floor in 0.0_f64..50.0, start in 0.0_f64..50.0,
                                   slope in 0.0_f64..5.0, q in 1.0_f64..8.0,
                                   step in 0.0_f64..10.0, a in 0.0_f64..5000.0, b in 0.0_f64..5000.0) {
            let line = LowLatencyLine {
                floor_us: floor, start_us: start, token_us: slope, knee: q,
                step_us: step, step_tokens: 4.0,
            };
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(line.at(low) <= line.at(high) + 1e-9);
        }
    }
}
