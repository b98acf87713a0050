//! What the operator promises about the loss of ranks, and from where lost experts come back.

use crate::{RankId, Topology};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A kind of failure domain: what is lost together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DomainKind {
    /// Every rank on its own.
    Rank,
    /// All ranks of a node.
    Node,
    /// All nodes that share a [`crate::Node::domain`] (rack, power feed); a node without one is
    /// its own.
    Named,
}

impl fmt::Display for DomainKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rank => "rank",
            Self::Node => "node",
            Self::Named => "domain",
        })
    }
}

/// One failure domain of a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Domain {
    /// Its kind.
    pub kind: DomainKind,
    /// Its name: `rank 3`, `node 1`, or the operator's own name.
    pub name: String,
    /// Ranks lost with it, ascending.
    pub ranks: Vec<RankId>,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == DomainKind::Named {
            return write!(f, "domain `{}`", self.name);
        }
        f.write_str(&self.name)
    }
}

impl Topology {
    /// `[rank]` → index among [`Topology::domains`] of this kind, dead ranks included.
    #[must_use]
    pub fn domain_of(&self, kind: DomainKind) -> Vec<usize> {
        let mut names: Vec<&str> = Vec::new();
        let mut named = Vec::with_capacity(self.node.len());
        for (index, node) in self.node.iter().enumerate() {
            let known = names.iter().position(|name| *name == node.domain);
            let unknown = names.len();
            named.push(match known {
                Some(place) if !node.domain.is_empty() => place,
                _ => unknown,
            });
            if named[index] == unknown {
                names.push(&node.domain);
            }
        }
        let index = |rank: &crate::Rank| match kind {
            DomainKind::Rank => rank.id.index(),
            DomainKind::Node => rank.node.index(),
            DomainKind::Named => named[rank.node.index()],
        };
        self.ranks().iter().map(index).collect()
    }

    /// All failure domains of a kind, by their first rank.
    #[must_use]
    pub fn domains(&self, kind: DomainKind) -> Vec<Domain> {
        let mut domains: Vec<Domain> = Vec::new();
        for (rank, domain) in self.ranks().iter().zip(self.domain_of(kind)) {
            if domain == domains.len() {
                let node = &self.node[rank.node.index()];
                let name = match kind {
                    DomainKind::Rank => rank.id.to_string(),
                    DomainKind::Named if !node.domain.is_empty() => node.domain.clone(),
                    DomainKind::Node | DomainKind::Named => rank.node.to_string(),
                };
                domains.push(Domain { kind, name, ranks: Vec::new() });
            }
            domains[domain].ranks.push(rank.id);
        }
        domains
    }
}

/// How a failure domain must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// Another copy of every expert serves at once: every expert lives in two domains at least.
    Live,
    /// What is lost is loaded again within [`SurvivePolicy::within_s`], by a precomputed plan.
    Restorable,
}

/// One promise: every domain of a kind survives like this. Maps that break it are refused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SurvivePolicy {
    /// Kind of failure domain.
    pub domain: DomainKind,
    /// What holds when any one of them is lost.
    pub promise: Promise,
    /// Longest time until every expert serves again, s. Only for `restorable`.
    #[serde(default = "within_default")]
    pub within_s: f64,
}

fn within_default() -> f64 {
    60.0
}

/// From where lost experts are loaded, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestorePolicy {
    /// Whether the memory of every node's host holds all experts; otherwise the disk does.
    pub host_holds_experts: bool,
    /// Rate from a host's memory into one of its ranks, GB/s; its ranks load side by side.
    pub host_gb_per_s: f64,
    /// Rate from a node's disk, shared by its ranks, GB/s.
    pub disk_gb_per_s: f64,
}

impl Default for RestorePolicy {
    fn default() -> Self {
        Self { host_holds_experts: false, host_gb_per_s: 20.0, disk_gb_per_s: 5.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, Policy};

    #[test]
    fn domains_are_ranks_nodes_or_named() {
        let mut topology = Topology::uniform("h20", 32, 1);
        topology.node[1].domain = "feed-a".into();
        topology.node[3].domain = "feed-a".into();
        assert_eq!(topology.domains(DomainKind::Rank).len(), 32);
        let nodes = topology.domains(DomainKind::Node);
        assert_eq!((nodes.len(), nodes[2].to_string()), (4, NodeId(2).to_string()));
        let named = topology.domains(DomainKind::Named);
        let names: Vec<String> = named.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["domain `node 0`", "domain `feed-a`", "domain `node 2`"]);
        assert_eq!((named[1].ranks.len(), named[1].ranks[8]), (16, RankId(24)));
        let of = topology.domain_of(DomainKind::Named);
        assert_eq!((of[0], of[8], of[16], of[31]), (0, 1, 2, 1));
    }

    #[test]
    fn promises_are_read_and_checked() {
        let text = "[[survive]]\ndomain = \"node\"\npromise = \"restorable\"\nwithin_s = 30.0\n\
                    [[survive]]\ndomain = \"rank\"\npromise = \"live\"\n";
        let policy = Policy::from_toml(text).unwrap();
        assert_eq!(
            (policy.survive[0].domain, policy.survive[1].promise),
            (DomainKind::Node, Promise::Live)
        );
        let bad = text.replace("30.0", "-1.0");
        assert!(Policy::from_toml(&bad).unwrap_err().to_string().contains("survive.node.within_s"));
        let rate = Policy::from_toml("[restore]\ndisk_gb_per_s = 0.0").unwrap_err().to_string();
        assert!(rate.contains("restore.disk_gb_per_s"), "{rate}");
    }
}
