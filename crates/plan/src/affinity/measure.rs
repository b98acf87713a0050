//! What crosses nodes under a map and a split, and how even the ranks are.

use super::{Mode, Traffic};
use evenkeel_split::{SourceSplit, SplitTable};
use evenkeel_types::{ExpertId, LayerId, NodeId, Topology, hash2};
use serde::Serialize;

/// Both numbers of a map and its split: what crosses, and the slowest rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Units sent over all layers: (token, expert) rows in low latency; in normal mode tokens times
    /// the number of other nodes, which is the most that could cross.
    pub units: f64,
    /// Units that cross from one node to another.
    pub crossing: f64,
    /// `[layer]`: rows of the slowest rank over its speed.
    pub slowest_rows: Vec<f64>,
    /// `[layer]`: mean rows of a rank over its speed.
    pub mean_rows: Vec<f64>,
}

impl Reading {
    /// Share of the units that crosses, 0 where nothing is sent.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.units > 0.0 { self.crossing / self.units } else { 0.0 }
    }

    /// Bytes that cross, `row_bytes` being those of a row in dispatch and return together.
    #[must_use]
    pub fn bytes(&self, row_bytes: f64) -> f64 {
        self.crossing * row_bytes
    }

    /// Rows of the slowest rank, summed over layers.
    #[must_use]
    pub fn slowest(&self) -> f64 {
        self.slowest_rows.iter().sum()
    }

    /// Mean ÷ slowest rank, axis ranks, unit rows, layers weighted by their slowest rank.
    #[must_use]
    pub fn balancedness(&self) -> f64 {
        let slowest = self.slowest();
        if slowest > 0.0 { self.mean_rows.iter().sum::<f64>() / slowest } else { 1.0 }
    }
}

/// Counts what crosses. A token takes one way for all its experts, as dispatchers do; in low
/// latency the expectation over ways is taken instead of a draw.
#[must_use]
pub fn cross_node(
    split: &SourceSplit,
    traffic: &Traffic,
    topology: &Topology,
    mode: Mode,
) -> Reading {
    let ranks = topology.ranks();
    let nodes = traffic.nodes();
    let mut reading =
        Reading { units: 0.0, crossing: 0.0, slowest_rows: Vec::new(), mean_rows: Vec::new() };
    for layer in 0..traffic.layers {
        let id = LayerId(layer as u16);
        let rows = traffic.rows(layer);
        let mut load = vec![0.0; ranks.len()];
        for node in 0..nodes {
            for expert in 0..traffic.experts {
                let rows = rows[node * traffic.experts + expert];
                let shares = split.shares(NodeId(node as u16), id, ExpertId(expert as u16));
                for (rank, ways) in shares {
                    let part = rows * f64::from(*ways) / SplitTable::WAYS as f64;
                    load[rank.index()] += part;
                    if mode == Mode::LowLatency {
                        reading.units += part;
                        if ranks[rank.index()].node.index() != node {
                            reading.crossing += part;
                        }
                    }
                }
            }
        }
        if mode == Mode::Normal {
            visits(&mut reading, split, traffic, topology, id);
        }
        let alive = ranks.iter().filter(|rank| !rank.dead);
        let speed: f64 = alive.map(|rank| rank.speed_share).sum();
        let slowest = load.iter().zip(&ranks).map(|(load, rank)| load / rank.speed_share);
        reading.slowest_rows.push(slowest.fold(0.0, f64::max));
        reading.mean_rows.push(load.iter().sum::<f64>() / speed.max(1e-9));
    }
    reading
}

/// Counts distinct other nodes of every token in one layer.
fn visits(
    reading: &mut Reading,
    split: &SourceSplit,
    traffic: &Traffic,
    topology: &Topology,
    layer: LayerId,
) {
    let ranks = topology.ranks();
    let nodes = traffic.nodes();
    let mut seen = vec![u64::MAX; nodes];
    let mut stamp = 0_u64;
    for (node, list) in traffic.lists.iter().enumerate() {
        // [expert * WAYS + way]: node that serves it.
        let mut serving = Vec::with_capacity(traffic.experts * SplitTable::WAYS);
        for expert in 0..traffic.experts {
            for way in 0..SplitTable::WAYS {
                let expert = ExpertId(expert as u16);
                let rank = split.host(NodeId(node as u16), layer, expert, way);
                serving.push(ranks[rank.index()].node.index());
            }
        }
        for token in list {
            let way = hash2(u64::from(*token), node as u64) as usize % SplitTable::WAYS;
            for expert in traffic.choices(*token, layer.index()) {
                let at = serving[usize::from(*expert) * SplitTable::WAYS + way];
                if at != node && seen[at] != stamp {
                    seen[at] = stamp;
                    reading.crossing += 1.0;
                }
            }
            stamp += 1;
        }
        reading.units += list.len() as f64 * nodes.saturating_sub(1) as f64;
    }
}
