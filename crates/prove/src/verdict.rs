//! What the gate says, and the numbers that decided.

use crate::distribution::Distributions;
use crate::input::{BothRuns, Design, DrawOutcome, KvHeadroom};
use evenkeel_types::SliceId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Every requirement is shown to be kept.
    Accept,
    /// A requirement is shown to be broken: harm, or no sufficient gain.
    Reject,
    /// Neither is shown yet.
    NeedMoreData,
    /// The sign of the gain flips within the model's shared uncertainty.
    CannotTell,
    /// The record breaks a conservation law: nothing is said from it.
    Withheld,
}

impl Decision {
    /// The candidate may be applied (exit code 0; every other decision is 1).
    #[must_use]
    pub const fn is_positive(self) -> bool {
        matches!(self, Self::Accept)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "accept",
            Self::Reject => "reject",
            Self::NeedMoreData => "need more data",
            Self::CannotTell => "cannot tell",
            Self::Withheld => "withheld",
        })
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Median time per output token, ms.
    TpotP50,
    /// 90th percentile of time per output token, ms.
    TpotP90,
    /// 99th percentile of time per output token, ms.
    TpotP99,
    /// 99th percentile of the gap between tokens, ms.
    ItlP99,
    /// 99.9th percentile of the gap between tokens, ms.
    ItlP999,
    /// 99th percentile of time to first token, ms.
    TtftP99,
    /// Share of due requests that met every objective.
    Goodput,
    /// Mean quality score.
    Quality,
    /// Events in which service stood still.
    Stalls,
    /// Longest gap between two tokens, ms.
    MaxGap,
    /// Share of memory left for KV blocks.
    KvHeadroom,
    /// Sameness level L0.
    Sameness,
    /// Whether the two runs can be compared at all.
    Comparability,
    /// The model's shared uncertainty.
    ModelDraws,
    /// The record itself (laws, size).
    Record,
}

impl Metric {
    /// Unit of the values.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::TpotP50
            | Self::TpotP90
            | Self::TpotP99
            | Self::ItlP99
            | Self::ItlP999
            | Self::TtftP99
            | Self::MaxGap => "ms",
            Self::Stalls => "events",
            Self::Quality => "score",
            _ => "share",
        }
    }

    /// What one observation is: percentiles are meaningless without it.
    #[must_use]
    pub const fn weighting(self) -> &'static str {
        match self {
            Self::ItlP99 | Self::ItlP999 | Self::MaxGap => "token",
            Self::Stalls => "event",
            Self::KvHeadroom => "tightest rank",
            Self::Sameness | Self::Comparability | Self::ModelDraws | Self::Record => "run",
            _ => "request",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TpotP50 => "p50 TPOT",
            Self::TpotP90 => "p90 TPOT",
            Self::TpotP99 => "p99 TPOT",
            Self::ItlP99 => "p99 ITL",
            Self::ItlP999 => "p99.9 ITL",
            Self::TtftP99 => "p99 TTFT",
            Self::Goodput => "goodput",
            Self::Quality => "quality score",
            Self::Stalls => "stalls",
            Self::MaxGap => "largest gap",
            Self::KvHeadroom => "KV headroom",
            Self::Sameness => "sameness L0",
            Self::Comparability => "comparability",
            Self::ModelDraws => "model draws",
            Self::Record => "record",
        })
    }
}

/// How a comparison stands against its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The limit is shown to be kept.
    Kept,
    /// The limit is shown to be broken.
    Broken,
    /// Neither is shown.
    Open,
    /// Shown beside the others; decides nothing.
    Shown,
}

/// One metric under both maps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What.
    pub metric: Metric,
    /// Slice; `None`: all requests.
    pub slice: Option<SliceId>,
    /// What one observation is.
    pub weighting: String,
    /// Unit of `live` and `candidate`.
    pub unit: String,
    /// Observations under the live map (requests, tokens).
    pub live_count: u64,
    /// Observations under the candidate map.
    pub candidate_count: u64,
    /// Value under the live map.
    pub live: f64,
    /// Value under the candidate map.
    pub candidate: f64,
    /// `(candidate − live) ÷ live`; for goodput and scores, themselves shares, `candidate − live`.
    pub change_share: f64,
    /// Interval of `change_share` by block bootstrap.
    pub interval: [f64; 2],
    /// Confidence of the interval, this look's share of the error allowance taken off.
    pub confidence: f64,
    /// Limit on `change_share` where the metric decides: a largest one for times (below 0 where
    /// a gain is demanded), a smallest one for goodput and scores.
    pub limit: Option<f64>,
    /// Probability under "the limit is just kept" of a change at least this harmful; what Holm's
    /// correction over slices works on. `None` where nothing is claimed.
    pub harm_p: Option<f64>,
    /// How it stands.
    pub standing: Standing,
}

/// A sentence of the verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// What it is about.
    pub metric: Metric,
    /// Slice; `None`: all requests.
    pub slice: Option<SliceId>,
    /// How the requirement stands.
    pub standing: Standing,
    /// The numbers, in words.
    pub statement: String,
    /// It is among those that made the decision what it is.
    pub decided: bool,
}

/// A sameness level (see DESIGN: never "unchanged" without one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SamenessLevel {
    /// Map-exact: laws 2 and 3 hold on the map and on the record.
    L0,
    /// Bit-identical outputs.
    L1,
    /// Outputs differ no more often than between two runs on the old map.
    L2,
    /// Task score not inferior.
    L3,
}

/// Sameness as shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamenessReport {
    /// Levels that hold on the evidence given.
    pub levels: Vec<SamenessLevel>,
    /// What the map check found.
    pub map_violations: Vec<String>,
    /// Rows run by a copy that the map does not have, or not exactly once, under the candidate.
    pub misplaced_rows: u64,
    /// What was compared, in words.
    pub statement: String,
}

/// How the resampling was set up: repeat it with these numbers and get the same verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockDesign {
    /// Length of a block, ms of the live run.
    pub block_ms: f64,
    /// Whole blocks in the shorter run.
    pub blocks: u32,
    /// Block length that the autocorrelation of step times asks for, ms.
    pub autocorrelation_ms: f64,
    /// Life of a request (75th percentile of first to last token), ms: a block is never shorter.
    pub request_life_ms: f64,
    /// Replicates.
    pub replicates: u32,
    /// Confidence that the policy asks for.
    pub confidence: f64,
    /// Error allowance of this look, two-sided.
    pub alpha: f64,
    /// Which look (0: the only one).
    pub look: u32,
    /// Seed.
    pub seed: u64,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// It rests on modelled times.
    pub modelled: bool,
    /// The decision in words, `(modelled)` included where it applies.
    pub label: String,
    /// How the runs belong together.
    pub design: Design,
    /// Why: the reasons that decided first.
    pub reasons: Vec<Reason>,
    /// Every comparison.
    pub metrics: Vec<Comparison>,
    /// Draws of the model's shared parameters.
    pub draws: Vec<DrawOutcome>,
    /// Resampling.
    pub resampling: BlockDesign,
    /// Both runs on their own: quantiles, stalls, goodput per slice.
    pub runs: BothRuns,
    /// Distributions before and after.
    pub distributions: Distributions,
    /// Sameness.
    pub sameness: SamenessReport,
    /// KV memory.
    pub kv: KvHeadroom,
    /// Relative difference of p99 TPOT between two records on the live map, where given.
    pub aa_change_share: Option<f64>,
    /// What the model is known to get wrong, and what the data lack.
    pub notes: Vec<String>,
}
