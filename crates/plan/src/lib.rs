//! Where should every expert's weights live?
//!
//! [`plan`] starts from the live map and buys moves by gain per byte; [`plan_from_scratch`] is the
//! greedy recompute that engines do, shown beside it with its bytes. Both minimise the expected
//! time of the slowest rank over sampled steps of one phase, never the balance of a sum over
//! phases, and both come with a [`Bound`]: the time that no map can beat. "Do nothing" is a plan
//! too, with its reason and the bound. [`check`], [`check_transition`] and [`price`] judge any map,
//! wherever it came from.
//!
//! How it works, and how far it can be trusted: `docs/planning.md`.
//!
//! **Invariants.** Every map that leaves this crate has a copy of every expert (law 2), never two
//! copies of one expert on a rank, and fits the memory of every rank at every stage of the move
//! (law 4). A planner reads the router's choices and has no way to change them (law 1). Nothing
//! here reads a clock, a file or a thread: the same input gives the same bytes.

pub mod affinity;
mod bound;
mod break_even;
mod check;
mod constraints;
mod costs;
mod crossing;
mod error;
mod frontier;
mod input;
mod layer;
mod links;
mod outcome;
mod pareto;
pub mod peer;
mod planner;
mod present;
mod price;
mod promises;
mod quick;
pub mod rows;
mod schedule;
mod search;
mod slack;
mod study;
pub mod survive;
mod trial;
mod valued;

pub use check::{Impossible, Link, TransitionViolation, check, check_schedule, check_transition};
pub use crossing::{CrossNode, Crossing, Localised};
pub use error::PlanError;
pub use input::{Objective, PlanInput, SearchEffort, SplitRule};
pub use outcome::{
    Bound, BreakEven, FrontierPoint, LayerBound, Move, Nothing, Outcome, Plan, Predicted, Price,
    Reason, Refused, Stage, Transfer,
};
pub use pareto::{ParetoPoint, pareto};
pub use planner::{plan, plan_from_scratch};
pub use price::price;
pub use slack::{LayerSlots, slack_slots};
