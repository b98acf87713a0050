//! DeepEP normal: rows cross to each node once and are forwarded there to each rank once.
//!
//! No formula over nodes and multiprocessors describes it better than 13 %, so it is a table
//! (docs/cost-model.md), shifted by bytes for shapes without one.

use super::points::LogTable;
use super::{Direction, Fabric};
use crate::basis::Origin;
use evenkeel_types::ModelShape;
use serde::{Deserialize, Serialize};

/// Nodes that group-limited routing lets a token of the benchmark reach.
const BENCHMARK_NODES: f64 = 4.0;
/// Ranks of a node in the benchmark.
const BENCHMARK_RANKS: f64 = 8.0;

/// Times of both directions for one node count and shape, notification included, by tokens per
/// rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormalTable {
    /// Nodes of eight ranks.
    pub nodes: u32,
    /// Hidden width.
    pub hidden: u32,
    /// Experts per token.
    pub top_k: u32,
    /// Routed experts of a layer.
    pub experts: u32,
    /// µs by tokens per rank, FP8 rows.
    pub dispatch: LogTable,
    /// What the dispatch times stand on: those of eight nodes are combine's by bytes.
    pub dispatch_origin: Origin,
    /// µs by tokens per rank, bf16 rows.
    pub combine: LogTable,
}

/// The mode on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormalTables {
    /// Multiprocessors given to communication.
    pub sms: u32,
    /// Tables, by nodes and shape; none on a machine without them.
    pub tables: Vec<NormalTable>,
}

/// Expected distinct nodes other than its own, and distinct ranks, that a token of the benchmark
/// reaches under uniform routing over `nodes` nodes.
#[must_use]
pub fn distinct(nodes: f64, top_k: f64) -> (f64, f64) {
    let reached = nodes.min(BENCHMARK_NODES);
    let hit = reached * (1.0 - (1.0 - 1.0 / reached).powf(top_k));
    let ranks = reached * BENCHMARK_RANKS;
    (hit * (1.0 - 1.0 / nodes), ranks * (1.0 - (1.0 - 1.0 / ranks).powf(top_k)))
}

impl NormalTables {
    /// The table for a model on a fabric in one direction, sizes shifted by bytes, with what it
    /// stands on; none without tables.
    #[must_use]
    pub fn table(
        &self,
        shape: &ModelShape,
        fabric: &Fabric,
        direction: Direction,
    ) -> Option<(LogTable, Origin)> {
        let away = |t: &NormalTable| {
            let nodes = (f64::from(t.nodes).ln() - fabric.nodes.ln()).abs();
            let bytes = f64::from(t.hidden) * distinct(f64::from(t.nodes), f64::from(t.top_k)).1;
            let own = f64::from(shape.hidden) * distinct(fabric.nodes, f64::from(shape.top_k)).1;
            let experts = (f64::from(t.experts) / f64::from(shape.experts)).ln().abs();
            // The node count decides the network; then bytes; the number of experts hardly does.
            100.0 * nodes + (bytes / own).ln().abs() + 0.1 * experts
        };
        let nearest = self.tables.iter().min_by(|a, b| away(a).total_cmp(&away(b)))?;
        let top_k = f64::from(nearest.top_k);
        let (their_nodes, their_ranks) = distinct(f64::from(nearest.nodes), top_k);
        let (own_nodes, own_ranks) = distinct(fabric.nodes, f64::from(shape.top_k));
        let reach = if their_nodes > 0.0 && own_nodes > 0.0 {
            own_nodes / their_nodes * 400.0 / fabric.nic_gbit_per_s
        } else {
            own_ranks / their_ranks
        };
        let bytes = direction.normal_bytes(shape)
            / direction.measured_bytes(f64::from(nearest.hidden))
            * reach;
        let (table, origin) = match direction {
            Direction::Dispatch => (&nearest.dispatch, nearest.dispatch_origin),
            Direction::Combine => (&nearest.combine, Origin::Fitted),
        };
        let exact = (f64::from(nearest.nodes) - fabric.nodes).abs() < 1e-9
            && nearest.hidden == shape.hidden
            && nearest.top_k == u32::from(shape.top_k)
            && (bytes - 1.0).abs() < 0.05;
        let origin = if exact { origin } else { origin.max(Origin::Scaled) };
        // Twice the bytes per token is the measured curve at twice the tokens.
        Some((table.scaled(1.0 / bytes, 1.0), origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_has_no_remote_rows_and_eight_choices_reach_most_of_its_ranks() {
        let (nodes, ranks) = distinct(1.0, 8.0);
        assert!(nodes.abs() < 1e-12);
        assert!((ranks - 8.0 * (1.0 - 0.875_f64.powi(8))).abs() < 1e-9);
        let (nodes, _) = distinct(8.0, 8.0);
        assert!((nodes - 4.0 * (1.0 - 0.75_f64.powi(8)) * 0.875).abs() < 1e-9);
    }
}
