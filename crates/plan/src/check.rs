//! Is a map lawful, and is the way to it?

use crate::PlanError;
use crate::links::Links;
use crate::schedule::schedule;
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, ModelShape, NodeId, Policy, RankId, Topology, Violation,
};
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

/// Laws 2, 3 and 4 for a map at rest, and the policy's constraints.
///
/// # Errors
/// A map for another model, revision or number of ranks: its laws are not looked at.
pub fn check(
    map: &ExpertMap,
    shape: &ModelShape,
    topology: &Topology,
    policy: &Policy,
) -> Result<Vec<Violation>, PlanError> {
    map.fits(shape, topology.rank_count())?;
    let mut found = map.violations();
    found.extend(policy.memory.violations(map, shape, topology));
    found.extend(policy.plan.violations(map, shape, topology));
    Ok(found)
}

/// Laws and limits for the way from `live` to `next`: the new map, its parent, every expert alive
/// and memory enough at every stage, the cap on moves, and links fit to carry weights.
///
/// # Errors
/// As [`check`], for either map.
pub fn check_transition(
    live: &ExpertMap,
    next: &ExpertMap,
    shape: &ModelShape,
    topology: &Topology,
    policy: &Policy,
) -> Result<Vec<TransitionViolation>, PlanError> {
    live.fits(shape, topology.rank_count())?;
    // What a dead rank held is gone: nothing there lives, and nothing comes from there.
    let left = live.without(&topology.rank_dead);
    let live = &left;
    let map = check(next, shape, topology, policy)?;
    let mut found: Vec<TransitionViolation> =
        map.into_iter().map(|violation| TransitionViolation::Map { violation }).collect();
    if next.parent != Some(live.version) || next.version <= live.version {
        let (version, parent) = (next.version, next.parent);
        found.push(TransitionViolation::Parent { live: live.version, version, parent });
    }
    let foreign = |map: &ExpertMap| {
        map.violations().iter().any(|found| matches!(found, Violation::Foreign { .. }))
    };
    if foreign(live) || foreign(next) {
        // An expert that does not exist cannot be scheduled; it is reported above.
        return Ok(found);
    }
    let links = Links::new(topology);
    let way = schedule(live, next, &links, policy, shape.expert_bytes());
    for (stage, layer, expert) in &way.orphans {
        let (stage, layer, expert) = (*stage, *layer, *expert);
        found.push(TransitionViolation::Orphan { stage, layer, expert });
    }
    let staging = u64::from(policy.memory.staging_slots);
    let ranks = topology.ranks();
    for (stage, (copies, arriving)) in way.copies.iter().zip(&way.arriving).enumerate() {
        for rank in &ranks {
            let (copies, arriving) = (copies[rank.id.index()], arriving[rank.id.index()]);
            let floor = (rank.hbm_bytes as f64 * policy.memory.kv_floor_share) as i64;
            let held = copies + arriving.saturating_sub(staging);
            let left = policy.memory.kv_bytes(shape, rank.hbm_bytes, held);
            if arriving > 0 && left < floor {
                let missing_bytes = (floor - left) as u64;
                let rank = rank.id;
                found.push(TransitionViolation::StageMemory {
                    stage,
                    rank,
                    copies,
                    arriving,
                    missing_bytes,
                });
            }
        }
    }
    let transfers: Vec<_> = way.stages.iter().flat_map(|stage| &stage.transfers).collect();
    let moves_max = policy.moves.moves_max;
    if transfers.len() > moves_max as usize {
        found.push(TransitionViolation::TooManyMoves { moves: transfers.len(), moves_max });
    }
    for transfer in transfers {
        if let Some(node) = links.degraded(transfer.from, transfer.to) {
            found.push(TransitionViolation::DegradedLink {
                layer: transfer.layer,
                expert: transfer.expert,
                from: transfer.from,
                to: transfer.to,
                node,
                rate_share: links.rate_share[node.index()],
            });
        }
    }
    Ok(found)
}
