//! What can be wrong with the way from one map to another.

use crate::Stage;
use evenkeel_types::{ExpertId, LayerId, NodeId, RankId, Violation};
use serde::Serialize;
use std::fmt;

/// A law or a limit that the way from one map to another breaks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "transition", rename_all = "snake_case")]
pub enum TransitionViolation {
    /// The new map itself breaks a law.
    Map {
        /// Which.
        violation: Violation,
    },
    /// The new map is no child of the live one.
    Parent {
        /// Version of the live map.
        live: u64,
        /// Version of the new map.
        version: u64,
        /// Parent that it names.
        parent: Option<u64>,
    },
    /// Law 2: an expert would live nowhere after a stage's commit.
    Orphan {
        /// Stage, from 0.
        stage: usize,
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
    },
    /// Law 4: a rank's memory does not hold what a stage puts there.
    StageMemory {
        /// Stage, from 0.
        stage: usize,
        /// Rank.
        rank: RankId,
        /// Copies in force meanwhile.
        copies: u64,
        /// Copies in flight.
        arriving: u64,
        /// Bytes missing for the KV floor.
        missing_bytes: u64,
    },
    /// A transfer or an end that cannot be, as things stand when its stage begins.
    Impossible {
        /// Stage, from 0.
        stage: usize,
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Rank that would receive or end it.
        rank: RankId,
        /// Why not.
        why: Impossible,
    },
    /// A stage with more transfers than the policy allows, in all or over one link.
    Operations {
        /// Stage, from 0.
        stage: usize,
        /// The link; none: the whole stage.
        link: Option<Link>,
        /// Transfers.
        operations: usize,
        /// Limit.
        operations_max: u32,
    },
    /// The stages do not lead to the new map.
    Unfinished {
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Rank that holds it after the last stage, or should.
        rank: RankId,
        /// Whether the new map has it there.
        wanted: bool,
    },
    /// More moves than the policy allows.
    TooManyMoves {
        /// Moves.
        moves: usize,
        /// Limit.
        moves_max: u32,
    },
    /// An expert would travel over a degraded link.
    DegradedLink {
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Rank that has it.
        from: RankId,
        /// Rank that would get it.
        to: RankId,
        /// Node whose outer links are degraded.
        node: NodeId,
        /// Share of their rate that is left.
        rate_share: f64,
    },
}

impl fmt::Display for TransitionViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map { violation } => write!(f, "new map: {violation}"),
            Self::Parent { live, version, parent } => {
                let parent = parent.map_or("none".to_owned(), |parent| parent.to_string());
                write!(
                    f,
                    "new map has version {version} and parent {parent}, \
                     expected a version above {live} with parent {live}"
                )
            }
            Self::Orphan { stage, layer, expert } => {
                write!(f, "stage {stage}, {layer}: {expert} has no copy after the commit")
            }
            Self::StageMemory { stage, rank, copies, arriving, missing_bytes } => write!(
                f,
                "stage {stage}, {rank}: {copies} copies and {arriving} in flight leave \
                 {missing_bytes} bytes too few for the KV floor"
            ),
            Self::Impossible { stage, layer, expert, rank, why } => {
                write!(f, "stage {stage}, {layer}, {expert} on {rank}: {why}")
            }
            Self::Operations { stage, link, operations, operations_max } => {
                let link = link.map_or_else(String::new, |link| format!(" {link}"));
                write!(
                    f,
                    "stage {stage}: {operations} transfers{link}, the policy allows {operations_max}"
                )
            }
            Self::Unfinished { layer, expert, rank, wanted } => {
                let (now, then) = if *wanted { ("lacks", "has") } else { ("holds", "has not") };
                write!(
                    f,
                    "{layer}: after the last stage {rank} {now} {expert}, which the new map {then} there"
                )
            }
            Self::TooManyMoves { moves, moves_max } => {
                write!(f, "{moves} moves, the policy allows {moves_max}")
            }
            Self::DegradedLink { layer, expert, from, to, node, rate_share } => write!(
                f,
                "{layer}, {expert}: the move from {from} to {to} would cross the outer links of \
                 {node}, which are at {:.0} % of their rate",
                rate_share * 100.0
            ),
        }
    }
}

/// Why a transfer or an end cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Impossible {
    /// The layer, the expert or a rank does not exist.
    NoSuchPlace,
    /// The source does not hold the expert while the stage is prepared.
    SourceLacks,
    /// The source is dead.
    SourceDead,
    /// The target is dead.
    TargetDead,
    /// The target holds the expert already, or gets it twice.
    TargetHas,
    /// The rank does not hold what is to end there.
    NothingToEnd,
    /// The transfer begins before its stage, ends after it, or is faster than policy or link.
    Time,
    /// Another transfer into the rank runs at the same time.
    Overlap,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchPlace => "no such layer, expert or rank",
            Self::SourceLacks => "the source does not hold it while the stage is prepared",
            Self::SourceDead => "the source is dead",
            Self::TargetDead => "the target is dead",
            Self::TargetHas => "the target holds it already",
            Self::NothingToEnd => "the rank does not hold it, so it cannot end there",
            Self::Time => {
                "its times lie outside the stage, or are faster than policy and link allow"
            }
            Self::Overlap => "another transfer into the rank runs at the same time",
        })
    }
}

/// What several transfers of a stage share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// From one rank to another.
    Pair {
        /// Source.
        from: RankId,
        /// Target.
        to: RankId,
    },
    /// Outer links of a node, outwards.
    OutOf {
        /// The node.
        node: NodeId,
    },
    /// Outer links of a node, inwards.
    Into {
        /// The node.
        node: NodeId,
    },
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair { from, to } => write!(f, "from {from} to {to}"),
            Self::OutOf { node } => write!(f, "out of {node}"),
            Self::Into { node } => write!(f, "into {node}"),
        }
    }
}

impl TransitionViolation {
    /// Layers whose change causes the violation, given the stages; none where it is the whole map's.
    #[must_use]
    pub fn layers(&self, stages: &[Stage]) -> Vec<LayerId> {
        let arriving = |stage: &usize, into: Option<RankId>| -> Vec<LayerId> {
            let transfers = stages.get(*stage).into_iter().flat_map(|stage| &stage.transfers);
            let concerned = transfers.filter(|t| into.is_none_or(|rank| rank == t.to));
            concerned.map(|transfer| transfer.layer).collect()
        };
        match self {
            Self::Orphan { layer, .. }
            | Self::DegradedLink { layer, .. }
            | Self::Impossible { layer, .. }
            | Self::Unfinished { layer, .. } => vec![*layer],
            Self::StageMemory { stage, rank, .. } => arriving(stage, Some(*rank)),
            Self::Operations { stage, .. } => arriving(stage, None),
            Self::Map { violation } => match violation {
                Violation::Missing { layer, .. }
                | Violation::Duplicate { layer, .. }
                | Violation::Foreign { layer, .. }
                | Violation::Digest { layer, .. }
                | Violation::DeadRank { layer, .. }
                | Violation::NotPinned { layer, .. }
                | Violation::SplitGroup { layer, .. } => vec![*layer],
                Violation::UnevenSlots { layer, .. } => vec![LayerId(0), *layer],
                Violation::Memory { rank, .. } => {
                    (0..stages.len()).flat_map(|stage| arriving(&stage, Some(*rank))).collect()
                }
            },
            Self::Parent { .. } | Self::TooManyMoves { .. } => Vec::new(),
        }
    }
}
