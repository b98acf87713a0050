//! What a planner answers.

use crate::CrossNode;
use crate::survive::PromiseBroken;
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, NodeId, RankId, SlotId};
use serde::Serialize;

/// The answer to a planning question.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Move weights, or only refresh the split where the plan has no moves.
    Plan(Box<Plan>),
    /// Leave the live map as it is.
    DoNothing(Box<Nothing>),
}

/// A map with what it gains and what it costs.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The map: one version on, its parent the live one.
    pub map: ExpertMap,
    /// The split that goes with it.
    #[serde(skip)]
    pub split: SplitTable,
    /// What no map can beat.
    pub bound: Bound,
    /// Step times by the coefficients.
    pub predicted: Predicted,
    /// What the move costs.
    pub price: Price,
    /// When the move has paid for itself.
    pub break_even: BreakEven,
    /// Copies that arrive, the best gain first.
    pub moves: Vec<Move>,
    /// Step time after each purchase, from the live map on: fewer moves, less gain.
    pub frontier: Vec<FrontierPoint>,
    /// Moves that would have gained and were refused.
    pub refused: Vec<Refused>,
    /// Promises of the policy that the best map found broke; `map` is what repairing it made, and
    /// keeps them. Empty where nothing had to be repaired.
    pub repaired: Vec<PromiseBroken>,
    /// What crosses nodes, where the question brings traffic.
    pub traffic: Option<CrossNode>,
}

/// "Do nothing", with its reason.
#[derive(Clone, Debug, Serialize)]
pub struct Nothing {
    /// Why.
    pub reason: Reason,
    /// What no map can beat.
    pub bound: Bound,
    /// Step times; the planned ones are those of the best plan found, or of the live map.
    pub predicted: Predicted,
    /// Moves that would have gained and were refused.
    pub refused: Vec<Refused>,
    /// What crosses nodes, where the question brings traffic.
    pub traffic: Option<CrossNode>,
}

/// Why nothing is to be done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// No map, however good, saves enough: the rest of the step decides.
    BoundTooClose {
        /// Share of the step that the best imaginable map would save.
        bound_gain_share: f64,
        /// Share that the policy asks for.
        gain_min_share: f64,
    },
    /// The live map is balanced well enough.
    AlreadyBalanced {
        /// Balancedness (mean ÷ largest rank, rows of the window) of the worst layer.
        balancedness: f64,
        /// Layer that it is of.
        layer: LayerId,
        /// Balancedness that is enough.
        enough: f64,
    },
    /// The best map found saves too little.
    GainTooSmall {
        /// Share of the step that it would save.
        gain_share: f64,
        /// Share that the policy asks for.
        gain_min_share: f64,
    },
    /// Every move that would gain is refused; they are listed.
    AllRefused,
    /// The best map found breaks a promise of the policy and cannot be repaired; the live map keeps
    /// it.
    BreaksPromise {
        /// The first promise broken.
        broken: Box<PromiseBroken>,
        /// Further ones.
        more: usize,
        /// Slots, with memory for them, that the layer that lacks most needs to keep both.
        slots_missing: usize,
    },
    /// The move would not pay for itself within the map's expected life.
    NeverPaysBack {
        /// Seconds until it would.
        break_even_s: f64,
        /// The policy's dwell, s.
        dwell_s: f64,
    },
}

/// What no map with these slots can beat, step for step.
///
/// Per layer and step the larger of two: the mean over ranks of the least work that the choices
/// cause, and the largest piece of an expert when copies are cut as fine as slots allow. The split
/// is free in every step, so the bound lies below what a static table can reach.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Least possible step time, the rest of the step included, µs.
    pub step_us: f64,
    /// "No map saves more than this share of the live step."
    pub gain_share_max: f64,
    /// Per layer.
    pub layers: Vec<LayerBound>,
}

/// The bound of one layer, mean over steps, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerBound {
    /// The bound.
    pub us: f64,
    /// Part of it: work spread evenly over ranks.
    pub mean_us: f64,
    /// Part of it: the rank that holds the largest piece of an expert, and nothing else.
    pub piece_us: f64,
}

/// Predicted step times, and balance over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// Live map under the live split, µs.
    pub step_us_live: f64,
    /// Live map under a fresh split: what a new table alone saves, µs.
    pub step_us_resplit: f64,
    /// Planned map and split, µs.
    pub step_us_planned: f64,
    /// The bound, µs.
    pub step_us_bound: f64,
    /// Share of the live step saved.
    pub gain_share: f64,
    /// Planned ÷ bound − 1.
    pub gap_share: f64,
    /// `[layer]`: mean ÷ largest rank, axis ranks, unit rows of the window. Live map and split.
    pub balancedness_live: Vec<f64>,
    /// The same, planned map and split.
    pub balancedness_planned: Vec<f64>,
    /// `[layer]`: its part of the planned step, mean over steps of the slowest rank, µs.
    pub layers_us_planned: Vec<f64>,
}

/// What a move from one map to another costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// Copies that arrive on a rank that did not hold the expert. In-rank changes are free.
    pub moves: usize,
    /// Their bytes.
    pub bytes: u64,
    /// `[rank]`: bytes that arrive.
    pub bytes_by_rank: Vec<u64>,
    /// Bytes that cross from one node to another.
    pub bytes_cross_node: u64,
    /// Time of all stages at the policy's byte rate, s.
    pub time_s: f64,
    /// `[rank]`: largest use of memory by weights, at any stage, staging included.
    pub memory_peak_bytes: Vec<u64>,
    /// KV bytes that the new map takes away, summed over ranks; negative where it gives back.
    pub kv_bytes_lost: i64,
    /// The order of arrival.
    pub stages: Vec<Stage>,
}

/// Transfers that are prepared together and committed together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stage {
    /// Copies that arrive.
    pub transfers: Vec<Transfer>,
    /// Copies that end at the commit, as (layer, rank, expert).
    pub drops: Vec<(LayerId, RankId, ExpertId)>,
    /// When it begins, s after the start of the move.
    pub start_s: f64,
    /// From its begin to the last arrival, s.
    pub time_s: f64,
}

/// One copy in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transfer {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Nearest rank that holds it when the stage begins.
    pub from: RankId,
    /// Rank that receives it.
    pub to: RankId,
    /// When its first byte leaves, s after the start of the move.
    pub start_s: f64,
    /// When its last byte has arrived.
    pub end_s: f64,
}

/// When a move has paid for itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BreakEven {
    /// Steps from the start of the move, or infinite where nothing is gained.
    pub steps: f64,
    /// The same in seconds.
    pub seconds: f64,
    /// Extra time of a step while weights arrive, µs.
    pub slowdown_us: f64,
    /// Whether it lies within the policy's dwell.
    pub within_dwell: bool,
}

/// One copy that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Move {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Nearest rank that has it.
    pub from: RankId,
    /// Rank that gets it.
    pub to: RankId,
    /// Slot there.
    pub slot: SlotId,
    /// Bytes.
    pub bytes: u64,
    /// Step time saved when it was bought, shared equally among the moves bought with it, µs.
    pub gain_us: f64,
}

/// Step time after so many moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrontierPoint {
    /// Copies moved so far.
    pub moves: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Step time by the search's estimate (shares not yet rounded to ways), µs.
    pub step_us: f64,
}

/// A move that would have gained and was refused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Rank that would have got it.
    pub to: RankId,
    /// Node whose outer link is degraded.
    pub node: NodeId,
    /// Share of its rate that is left.
    pub rate_share: f64,
    /// Step time that it would have saved, µs.
    pub gain_us: f64,
}
