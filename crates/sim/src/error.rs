//! Why a run cannot start or go on.

use evenkeel_types::{ExpertId, LayerId, RankId};
use thiserror::Error;

/// A sink did not take a record: the cause is the sink's own.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SinkError(#[from] pub Box<dyn std::error::Error + Send + Sync>);

/// Why a run is refused or stops.
#[derive(Debug, Error)]
pub enum SimError {
    /// A field of the configuration, the traffic or a fault is outside its range.
    #[error("{place} is {found}, expected {expected}")]
    Range {
        /// Struct and field.
        place: String,
        /// What was given.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A slice gets traffic but nothing of it was recorded.
    #[error(
        "traffic: slice {slice} has a share of the mix but no recorded request with an \
         output token"
    )]
    EmptySlice {
        /// Index of the slice.
        slice: usize,
    },
    /// A job that the group cannot serve.
    #[error("job {job}: {problem}")]
    Job {
        /// Its number.
        job: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A backend that cannot run a step.
    #[error("{problem}")]
    Backend {
        /// What it said.
        problem: String,
    },
    /// A request that never fits into a rank's KV blocks: it would be preempted for ever.
    #[error("job {job}: needs {needed} KV blocks, a rank has {blocks}")]
    KvTooSmall {
        /// Its number.
        job: u64,
        /// Blocks for its prompt and output.
        needed: u64,
        /// Blocks of a rank.
        blocks: u32,
    },
    /// Routing, map, split and topology do not belong together.
    #[error("replay: {place} has {found}, expected {expected}")]
    Mismatch {
        /// What does not fit.
        place: &'static str,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// Law 2: an expert that lives nowhere.
    #[error("map version {version}: {layer}, {expert} has no copy on any rank")]
    Missing {
        /// Version of the map.
        version: u64,
        /// Layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
    },
    /// The split sends an expert's tokens to a rank that has no copy of it.
    #[error("split: {layer}, {expert} is sent to {rank}, which holds no copy of it")]
    Misplaced {
        /// Layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// The rank without a copy.
        rank: RankId,
    },
    /// A backend charged more time than 64-bit nanoseconds hold.
    #[error("step {step}: the backend's time overflows")]
    Overflow {
        /// The step.
        step: u64,
    },
    /// The sink failed.
    #[error("trace sink: {0}")]
    Sink(#[from] SinkError),
}

impl SimError {
    pub(crate) fn range(
        place: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Range { place: place.into(), found: found.to_string(), expected: expected.into() }
    }
}
