//! Why a split is refused.

use evenkeel_types::{ExpertId, LayerId, RankId};
use thiserror::Error;

/// Why no split exists for this input.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SplitError {
    /// An expert that no rank holds: the map breaks law 2.
    #[error("split: {layer}, {expert}: no rank holds a copy, expected at least one")]
    NoHost {
        /// Layer, 0 where a single layer was given.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
    },
    /// A host outside the ranks.
    #[error("split: {expert} is hosted by {rank}, expected a rank below {ranks}")]
    Rank {
        /// The expert.
        expert: ExpertId,
        /// The host.
        rank: RankId,
        /// Number of ranks.
        ranks: usize,
    },
    /// A list whose length does not fit the map.
    #[error("split: {what} has {found} entries, expected {expected}")]
    Length {
        /// Which list.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that fits.
        expected: usize,
    },
    /// A rank weight of zero.
    #[error("split: the weight of {rank} is 0, expected at least 1 (a dead rank hosts nothing)")]
    ZeroWeight {
        /// The rank.
        rank: RankId,
    },
    /// Loads whose exact arithmetic would not fit 63 bits.
    #[error("split: {rows} rows times a weight of {weight} exceed 63 bits")]
    TooLarge {
        /// Sum of the loads, saturated.
        rows: u64,
        /// Sum of the rank weights.
        weight: u64,
    },
    /// Shares that are none.
    #[error(
        "split: {layer}, {expert}: shares sum to {sum}, expected shares of at least 0 that sum to 1"
    )]
    Shares {
        /// Layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// Their sum.
        sum: f64,
    },
}
