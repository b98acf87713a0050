//! Is a map lawful, and is the way to it?

mod replay;
mod violation;

pub use violation::{Impossible, Link, TransitionViolation};

use crate::links::Links;
use crate::schedule::schedule;
use crate::{PlanError, Stage};
use evenkeel_types::{ExpertMap, ModelShape, Policy, Topology, Violation};

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

/// Laws and limits for the way from `live` to `next`: the new map, its parent, the cap on moves,
/// and every stage of a schedule made here, as [`check_schedule`] sees it.
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
    live.fits(shape, topology.rank_count())?;
    if foreign(live) || foreign(next) {
        // An expert that does not exist cannot be scheduled; it is reported above.
        return Ok(found);
    }
    let left = live.without(&topology.rank_dead);
    let stages = schedule(&left, next, &Links::new(topology), policy, shape.expert_bytes()).stages;
    found.extend(check_schedule(live, next, &stages, shape, topology, policy)?);
    Ok(found)
}

/// Plays a schedule, whoever made it, stage by stage: sources hold what they send and are alive,
/// nothing goes to a dead rank or over a degraded link, the policy's operations per stage and link
/// hold, memory suffices while copies are in flight, every expert lives after every commit, times
/// are possible, and the last commit is `next`.
///
/// A stage's transfers are prepared beside the map in force; its ends and its arrivals take effect
/// together. What a dead rank held in `live` is gone. Nothing here is shared with the scheduler.
///
/// # Errors
/// As [`check`], for either map.
pub fn check_schedule(
    live: &ExpertMap,
    next: &ExpertMap,
    stages: &[Stage],
    shape: &ModelShape,
    topology: &Topology,
    policy: &Policy,
) -> Result<Vec<TransitionViolation>, PlanError> {
    live.fits(shape, topology.rank_count())?;
    next.fits(shape, topology.rank_count())?;
    Ok(replay::play(live, next, stages, shape, topology, policy))
}
