//! Why no plan can be made at all.

use crate::TransitionViolation;
use crate::survive::PromiseBroken;
use evenkeel_split::SplitError;
use evenkeel_types::{ExpertId, LayerId, MapError, RankId, Violation};
use thiserror::Error;

/// Why an input is refused. "Nothing to gain" is no error: see [`crate::Outcome::DoNothing`].
#[derive(Debug, Error)]
pub enum PlanError {
    /// The live map is for another model or another number of ranks.
    #[error("plan: {0}")]
    Map(#[from] MapError),
    /// The live map breaks a law: planning from it would carry the fault on.
    #[error("plan: the live map (version {version}) breaks a law: {violation}")]
    LiveBroken {
        /// Version of the live map.
        version: u64,
        /// The first violation.
        violation: Violation,
    },
    /// The planned map would break a law, e.g. where memory is too small even for the live one.
    #[error("plan: no lawful map found: {violation}")]
    Unlawful {
        /// The first violation.
        violation: Violation,
    },
    /// The policy's constraints ask for a change that cannot be made.
    #[error("plan: the constraints ask for moves that cannot be made: {violation}")]
    NoWay {
        /// The first law or limit that the way breaks.
        violation: TransitionViolation,
    },
    /// A promise of the policy that neither the live map nor any found keeps.
    #[error(
        "plan: {broken}{}; {}",
        also(*more),
        remedy(broken, *slots_missing)
    )]
    Promise {
        /// The first promise broken, with its domain and experts.
        broken: Box<PromiseBroken>,
        /// Further ones.
        more: usize,
        /// Slots, with memory for them, that the layer that lacks most needs; 0 where only time is
        /// lacking.
        slots_missing: usize,
    },
    /// Ranks died with the only copies of experts: those have to be loaded before anything moves.
    #[error(
        "plan: {orphans} experts lived only on the ranks that are dead ({}), the first: {layer} {expert}; \
         `evenkeel survive MAP --lost rank:{}`, on the topology without `rank_dead`, gives the map that \
         restores them",
        listed(dead),
        dead.first().map_or(0, |rank| rank.0)
    )]
    Orphans {
        /// Ranks that died.
        dead: Vec<RankId>,
        /// Pairs of layer and expert that nobody holds.
        orphans: usize,
        /// Layer of the first.
        layer: LayerId,
        /// The first.
        expert: ExpertId,
    },
    /// A window without steps says nothing.
    #[error("plan: the window has no {phase} steps, expected at least 1")]
    NoSteps {
        /// Phase asked for.
        phase: &'static str,
    },
    /// Loads of another shape.
    #[error("plan: loads have {found} {what}, expected {expected}")]
    Loads {
        /// What differs.
        what: &'static str,
        /// What was found.
        found: usize,
        /// What was expected.
        expected: usize,
    },
    /// A coefficient that is no cost.
    #[error("plan: `{field}` is {value}, expected a finite number of 0 or more")]
    Coefficient {
        /// Name of the coefficient.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A fixed load that is none.
    #[error(
        "plan: `rank_extra_us` of {layer}, {rank} is {value}, expected a finite number of 0 or more"
    )]
    Extra {
        /// Layer.
        layer: LayerId,
        /// Rank.
        rank: RankId,
        /// Its value.
        value: f64,
    },
    /// A constraint of the policy that no map can meet.
    #[error("plan: policy `plan.{constraint}`: {why}")]
    Constraint {
        /// Its field.
        constraint: &'static str,
        /// What contradicts it, and where.
        why: String,
    },
    /// Fewer slots than experts.
    #[error(
        "plan: {layer}: {slots} slots of live ranks for {experts} experts: {} missing",
        experts - slots
    )]
    TooFewSlots {
        /// Layer.
        layer: LayerId,
        /// Slots that may be filled, over all ranks that live.
        slots: usize,
        /// Experts, more than slots.
        experts: usize,
    },
    /// A split that does not exist.
    #[error("plan: {0}")]
    Split(#[from] SplitError),
}

fn also(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} promises more)") }
}

/// What would let a plan keep a promise.
pub(crate) fn remedy(broken: &PromiseBroken, slots_missing: usize) -> String {
    if broken.experts.is_empty() {
        return "`restore.host_holds_experts`, faster `restore` rates or a longer `within_s` keep it"
            .to_owned();
    }
    format!(
        "up to {slots_missing} more slots in a layer on other ranks (`plan.slots_per_rank`), memory \
         for them, and `move.moves_max` enough for their copies keep it"
    )
}

fn listed(ranks: &[RankId]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
