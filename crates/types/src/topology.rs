//! The machine: nodes, ranks, memory, links, and what is known to be degraded.

use crate::{NodeId, RankId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Schema name that a topology file must carry.
pub const TOPOLOGY_SCHEMA: &str = "evenkeel.topology/1";

/// One node: a machine whose ranks share fast links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Name shown in reports.
    pub name: String,
    /// Ranks on this node.
    pub ranks: u16,
    /// Memory of each rank, bytes.
    pub hbm_bytes: u64,
    /// Rate of the network card of each rank, Gb/s.
    pub nic_gbit_per_s: f64,
    /// Failure domain above the node (rack, power feed); empty: the node itself.
    #[serde(default)]
    pub domain: String,
}

/// A class of links by a latency and a bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkClass {
    /// Fixed time of a transfer, µs.
    pub alpha_us: f64,
    /// Rate of a transfer per rank and direction, GB/s.
    pub beta_gb_per_s: f64,
    /// Whether the ranks of a node share this rate.
    #[serde(default)]
    pub shared: bool,
}

/// A measured departure of a node's outer links from their class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkHealth {
    /// Node whose links to other nodes are meant (both directions).
    pub node: NodeId,
    /// Share of the class's rate that is left, in (0, 1].
    pub rate_share: f64,
}

/// A measured departure of a rank's compute speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankSpeed {
    /// The rank.
    pub rank: RankId,
    /// Share of the profile's speed that it reaches, in (0, 1].
    pub speed_share: f64,
}

/// One rank, resolved from its node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// Its id.
    pub id: RankId,
    /// Node that holds it.
    pub node: NodeId,
    /// Memory, bytes.
    pub hbm_bytes: u64,
    /// Share of the profile's compute speed, 1 unless measured otherwise.
    pub speed_share: f64,
    /// Gone: it holds nothing, receives nothing and sends nothing.
    pub dead: bool,
}

/// Nodes, ranks and links of one expert-parallel group. Written as TOML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// [`TOPOLOGY_SCHEMA`].
    pub schema: String,
    /// Name shown in reports.
    pub name: String,
    /// Cost profile that fits this hardware, e.g. `h20`.
    pub hardware: String,
    /// Links within a node.
    pub intra: LinkClass,
    /// Links between nodes.
    pub inter: LinkClass,
    /// `[from][to]`: measured rate of the link between two ranks, GB/s; the diagonal is not read.
    /// Where it is there, it takes the place of the classes' rates; `inter` then says what a healthy
    /// link between nodes reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_matrix_gb_per_s: Option<Vec<Vec<f64>>>,
    /// Nodes, in rank order: the first node holds the first ranks.
    pub node: Vec<Node>,
    /// Degraded outer links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_health: Vec<LinkHealth>,
    /// Slow ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_speed: Vec<RankSpeed>,
    /// Ranks that are gone. They keep their number; no slot of theirs may be filled, and none of
    /// them can be the source of a copy, whatever a map lists there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_dead: Vec<RankId>,
}

/// Why a topology is refused.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// Not TOML, or a field is missing, unknown or of another type.
    #[error("topology: {0}")]
    Parse(#[from] toml::de::Error),
    /// Another schema.
    #[error("topology: schema is `{found}`, expected `{TOPOLOGY_SCHEMA}`")]
    Schema {
        /// What the file says.
        found: String,
    },
    /// A value outside its range.
    #[error("topology `{name}`: {place} is {value}, expected {expected}")]
    Range {
        /// Name of the topology.
        name: String,
        /// Where, e.g. `node 2 ranks`.
        place: String,
        /// What the file says.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl Topology {
    /// Ranks beyond this are refused: the largest deployments in use have 320.
    pub const RANKS_MAX: usize = 4096;

    /// Equal nodes of eight ranks (fewer where `ranks` is below eight), the commonest machine.
    ///
    /// Link constants are those of NVLink 4 and 400 Gb/s per rank; edit the file for others.
    #[must_use]
    pub fn uniform(hardware: &str, ranks: u16, hbm_bytes: u64) -> Self {
        let per_node = ranks.clamp(1, 8);
        let mut left = ranks;
        let mut node = Vec::new();
        while left > 0 {
            let here = left.min(per_node);
            node.push(Node {
                name: format!("node-{}", node.len()),
                ranks: here,
                hbm_bytes,
                nic_gbit_per_s: 400.0,
                domain: String::new(),
            });
            left -= here;
        }
        Self {
            schema: TOPOLOGY_SCHEMA.to_owned(),
            name: format!("{hardware}-ep{ranks}"),
            hardware: hardware.to_owned(),
            intra: LinkClass { alpha_us: 5.0, beta_gb_per_s: 300.0, shared: false },
            inter: LinkClass { alpha_us: 10.0, beta_gb_per_s: 50.0, shared: false },
            link_matrix_gb_per_s: None,
            node,
            link_health: Vec::new(),
            rank_speed: Vec::new(),
            rank_dead: Vec::new(),
        }
    }

    /// Reads a topology file's text and validates it.
    ///
    /// # Errors
    /// Names the field or the node that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, TopologyError> {
        let topology: Self = toml::from_str(text)?;
        topology.validate()?;
        Ok(topology)
    }

    /// The topology as a TOML file's text.
    ///
    /// # Errors
    /// Only where a float cannot be written, which [`Topology::validate`] excludes.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// Checks ranges and references.
    ///
    /// # Errors
    /// Names the first offending place.
    pub fn validate(&self) -> Result<(), TopologyError> {
        if self.schema != TOPOLOGY_SCHEMA {
            return Err(TopologyError::Schema { found: self.schema.clone() });
        }
        let bad = |place: String, value: String, expected| {
            Err(TopologyError::Range { name: self.name.clone(), place, value, expected })
        };
        let ranks = self.rank_count();
        if ranks == 0 {
            return bad("number of ranks".into(), "0".into(), "at least 1");
        }
        if ranks > Self::RANKS_MAX {
            return bad("number of ranks".into(), ranks.to_string(), "at most 4096");
        }
        for (index, node) in self.node.iter().enumerate() {
            if node.ranks == 0 {
                return bad(format!("node {index} ranks"), "0".into(), "at least 1");
            }
            if !(node.nic_gbit_per_s.is_finite() && node.nic_gbit_per_s > 0.0) {
                let value = node.nic_gbit_per_s.to_string();
                return bad(format!("node {index} nic_gbit_per_s"), value, "a positive number");
            }
        }
        for (class, link) in [("intra", self.intra), ("inter", self.inter)] {
            if !(link.beta_gb_per_s.is_finite() && link.beta_gb_per_s > 0.0) {
                let value = link.beta_gb_per_s.to_string();
                return bad(format!("{class} beta_gb_per_s"), value, "a positive number");
            }
            if !(link.alpha_us.is_finite() && link.alpha_us >= 0.0) {
                let value = link.alpha_us.to_string();
                return bad(format!("{class} alpha_us"), value, "0 or more");
            }
        }
        let matrix = self.link_matrix_gb_per_s.as_deref().unwrap_or_default();
        if self.link_matrix_gb_per_s.is_some() && matrix.len() != ranks {
            let value = format!("{} rows long", matrix.len());
            return bad("link_matrix_gb_per_s".into(), value, "a row for every rank");
        }
        for (from, row) in matrix.iter().enumerate() {
            if row.len() != ranks {
                let value = format!("{} values long", row.len());
                let place = format!("link_matrix_gb_per_s of rank {from}");
                return bad(place, value, "a value for every rank");
            }
            let wrong = |(to, rate): (usize, &f64)| {
                (to != from && !(rate.is_finite() && *rate > 0.0)).then_some((to, *rate))
            };
            if let Some((to, rate)) = row.iter().enumerate().find_map(wrong) {
                let place = format!("link_matrix_gb_per_s from rank {from} to rank {to}");
                return bad(place, rate.to_string(), "a positive number");
            }
        }
        for health in &self.link_health {
            if health.node.index() >= self.node.len() {
                return bad("link_health node".into(), health.node.0.to_string(), "a node's index");
            }
            if !(health.rate_share > 0.0 && health.rate_share <= 1.0) {
                let value = health.rate_share.to_string();
                return bad("link_health rate_share".into(), value, "a share in (0, 1]");
            }
        }
        for slow in &self.rank_speed {
            if slow.rank.index() >= ranks {
                return bad("rank_speed rank".into(), slow.rank.0.to_string(), "a rank's index");
            }
            if !(slow.speed_share > 0.0 && slow.speed_share <= 1.0) {
                let value = slow.speed_share.to_string();
                return bad("rank_speed speed_share".into(), value, "a share in (0, 1]");
            }
        }
        for (index, rank) in self.rank_dead.iter().enumerate() {
            if rank.index() >= ranks {
                return bad("rank_dead".into(), rank.0.to_string(), "a rank's index");
            }
            if self.rank_dead[..index].contains(rank) {
                return bad("rank_dead".into(), rank.0.to_string(), "each rank once");
            }
        }
        if self.rank_dead.len() == ranks {
            return bad(
                "rank_dead".into(),
                format!("all {ranks} ranks"),
                "at least one rank alive",
            );
        }
        Ok(())
    }

    /// Number of ranks over all nodes.
    #[must_use]
    pub fn rank_count(&self) -> usize {
        self.node.iter().map(|node| usize::from(node.ranks)).sum()
    }

    /// All ranks in order.
    #[must_use]
    pub fn ranks(&self) -> Vec<Rank> {
        let mut ranks = Vec::with_capacity(self.rank_count());
        for (index, node) in self.node.iter().enumerate() {
            for _ in 0..node.ranks {
                let id = RankId(ranks.len() as u16);
                let speed = self.rank_speed.iter().find(|slow| slow.rank == id);
                ranks.push(Rank {
                    id,
                    node: NodeId(index as u16),
                    hbm_bytes: node.hbm_bytes,
                    speed_share: speed.map_or(1.0, |slow| slow.speed_share),
                    dead: self.is_dead(id),
                });
            }
        }
        ranks
    }

    /// Whether a rank is gone.
    #[must_use]
    pub fn is_dead(&self, rank: RankId) -> bool {
        self.rank_dead.contains(&rank)
    }

    /// Share of its class's rate that a node's outer links reach, 1 unless measured otherwise: of a
    /// measured matrix the fastest of them counts.
    #[must_use]
    pub fn outer_rate_share(&self, node: NodeId) -> f64 {
        let Some(matrix) = &self.link_matrix_gb_per_s else { return self.health_share(node) };
        let ranks = self.ranks();
        let mut best: Option<f64> = None;
        for (from, row) in ranks.iter().zip(matrix) {
            for (to, rate) in ranks.iter().zip(row) {
                if (from.node == node) != (to.node == node) {
                    best = Some(best.map_or(*rate, |best| best.max(*rate)));
                }
            }
        }
        let measured = best.map_or(1.0, |best| (best / self.inter.beta_gb_per_s).min(1.0));
        measured * self.health_share(node)
    }

    fn health_share(&self, node: NodeId) -> f64 {
        let health = self.link_health.iter().find(|health| health.node == node);
        health.map_or(1.0, |health| health.rate_share)
    }

    /// Rate of the link from one rank to another, GB/s: as measured, else its class's; between nodes
    /// times what [`Topology::link_health`] says is left.
    #[must_use]
    pub fn link_gb_per_s(&self, from: Rank, to: Rank) -> f64 {
        let inside = from.node == to.node;
        let class = if inside { self.intra } else { self.inter };
        let matrix = self.link_matrix_gb_per_s.as_ref();
        let rate = matrix.map_or(class.beta_gb_per_s, |m| m[from.id.index()][to.id.index()]);
        if inside {
            return rate;
        }
        rate * self.health_share(from.node).min(self.health_share(to.node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_round_trip() {
        let mut topology = Topology::uniform("h20", 12, 96_000_000_000);
        topology.link_health.push(LinkHealth { node: NodeId(1), rate_share: 0.6 });
        let text = topology.to_toml().unwrap();
        assert_eq!(Topology::from_toml(&text).unwrap(), topology);
        assert_eq!(topology.ranks()[9].node, NodeId(1));
        assert!((topology.outer_rate_share(NodeId(1)) - 0.6).abs() < 1e-12);
    }

    #[test]
    fn nonsense_is_refused_by_place() {
        let mut topology = Topology::uniform("h20", 8, 1);
        topology.inter.beta_gb_per_s = f64::NAN;
        let message = topology.validate().unwrap_err().to_string();
        assert!(message.contains("inter beta_gb_per_s"), "{message}");
    }

    #[test]
    fn a_matrix_is_read_and_refused_by_pair() {
        let mut topology = Topology::uniform("h20", 16, 1);
        let node = |rank: usize| rank / 8;
        let rate = |from: usize, to: usize| if node(from) == node(to) { 250.0 } else { 25.0 };
        let matrix: Vec<Vec<f64>> =
            (0..16).map(|from| (0..16).map(|to| rate(from, to)).collect()).collect();
        topology.link_matrix_gb_per_s = Some(matrix);
        let text = topology.to_toml().unwrap();
        assert_eq!(Topology::from_toml(&text).unwrap(), topology);
        let ranks = topology.ranks();
        assert!((topology.link_gb_per_s(ranks[0], ranks[9]) - 25.0).abs() < 1e-12);
        assert!((topology.outer_rate_share(NodeId(1)) - 0.5).abs() < 1e-12);
        let refused = |change: &dyn Fn(&mut Vec<Vec<f64>>), expected: &str| {
            let mut other = topology.clone();
            change(other.link_matrix_gb_per_s.as_mut().unwrap());
            let message = other.validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        refused(&|m| m[2][5] = 0.0, "from rank 2 to rank 5 is 0, expected a positive number");
        refused(&|m| m[2][5] = f64::NAN, "from rank 2 to rank 5");
        refused(&|m| m[3].truncate(4), "of rank 3 is 4 values long");
        refused(&|m| m.truncate(4), "4 rows long");
    }

    #[test]
    fn dead_ranks_are_known_once_each_and_never_all() {
        let mut topology = Topology::uniform("h20", 2, 1);
        topology.rank_dead = vec![RankId(1)];
        assert!(topology.validate().is_ok() && topology.ranks()[1].dead);
        let text = topology.to_toml().unwrap();
        assert_eq!(Topology::from_toml(&text).unwrap(), topology);
        for (dead, expected) in
            [(vec![2], "a rank's index"), (vec![1, 1], "each rank once"), (vec![0, 1], "alive")]
        {
            topology.rank_dead = dead.into_iter().map(RankId).collect();
            let message = topology.validate().unwrap_err().to_string();
            assert!(message.contains("rank_dead") && message.contains(expected), "{message}");
        }
    }
}
