//! What a run of the group leaves: the judge's and the reporter's food.

use evenkeel_types::{Phase, SliceId};
use serde::{Deserialize, Serialize};

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestOutcome {
    /// Number of the job: equal in two runs for the same request (pairs are made by it).
    pub job: u64,
    /// Slice.
    pub slice: SliceId,
    /// Arrival, ns from the run's start.
    pub arrival_ns: u64,
    /// First output token, ns from the run's start. A decode group gets it with the hand-over: there
    /// it is the time at which the request got its place in the batch.
    pub first_token_ns: Option<u64>,
    /// Last output token, ns from the run's start.
    pub finish_ns: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Output tokens produced in this run, in a decode group with the one that was handed over.
    pub output_tokens: u32,
    /// Longest gap between two of its tokens, ns.
    pub largest_gap_ns: u64,
    /// Times it lost its KV blocks and had to prefill again.
    pub preemptions: u32,
    /// It filled the batch at the start in the middle of its output (random phase): its gaps
    /// count, its TTFT does not exist.
    pub started_warm: bool,
    /// Mean log-probability, where the backend knows one.
    pub mean_log_probability: Option<f64>,
    /// Task score in [0, 1], where the trace has one.
    pub quality_score: Option<f64>,
}

impl RequestOutcome {
    /// Time per output token after the first, ns. `None` before the end or below two tokens.
    #[must_use]
    pub fn tpot_ns(&self) -> Option<f64> {
        match (self.first_token_ns, self.finish_ns) {
            (Some(first), Some(last)) if self.output_tokens > 1 => {
                Some((last - first) as f64 / f64::from(self.output_tokens - 1))
            }
            _ => None,
        }
    }

    /// Time to first token, ns. `None` where it started warm or never got one.
    #[must_use]
    pub fn ttft_ns(&self) -> Option<u64> {
        let first = self.first_token_ns?;
        (!self.started_warm).then_some(first - self.arrival_ns)
    }
}

/// Tokens of one slice that came with the same gap since their predecessors (ITL is token-weighted).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// Step that ended the gap.
    pub step: u64,
    /// Slice.
    pub slice: SliceId,
    /// The gap, ns.
    pub gap_ns: u64,
    /// Tokens that had it.
    pub tokens: u32,
}

/// One step in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSummary {
    /// Number of the step.
    pub step: u64,
    /// Phase.
    pub phase: Phase,
    /// Start, ns.
    pub start_ns: u64,
    /// End, ns.
    pub end_ns: u64,
    /// Sequences over all ranks.
    pub sequences: u32,
    /// Real tokens over all ranks.
    pub tokens: u32,
    /// Σ over layers of the slowest rank's expert time, ns.
    pub expert_slowest_ns: u64,
    /// Σ over layers of the mean rank's expert time, ns: what no map can beat.
    pub expert_mean_ns: u64,
    /// Σ over layers of dispatch and return, ns.
    pub exchange_ns: u64,
    /// Σ over layers of the slowest rank's attention, ns.
    pub attention_slowest_ns: u64,
    /// Everything else, ns.
    pub rest_ns: u64,
    /// Rank that most layers of the step waited for.
    pub slowest_rank: u16,
    /// Layers that waited for it.
    pub slowest_rank_layers: u16,
    /// Most expert rows on a rank over the mean, averaged over layers (max ÷ mean).
    pub rows_max_over_mean: f64,
    /// Fewest KV blocks free on a rank after the step.
    pub kv_blocks_free_min: u32,
}

/// Sums over a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunTotals {
    /// Steps by phase, prefill first.
    pub steps: [u64; 2],
    /// (token, layer, expert) choices by phase.
    pub choices: [u64; 2],
    /// Preemptions.
    pub preemptions: u64,
    /// KV blocks of a rank.
    pub kv_blocks_per_rank: u32,
    /// Fewest KV blocks free on any rank at any step.
    pub kv_blocks_free_min: u32,
    /// `[phase][layer * ranks + rank]`: expert rows.
    pub rank_rows: [Vec<u64>; 2],
    /// `[phase][layer * experts + expert]`: choices.
    pub expert_choices: [Vec<u64>; 2],
    /// `[phase][rank]`: layers × steps that waited for the rank's experts.
    pub waited_for_rank: [Vec<u64>; 2],
    /// Rows executed by a copy that the map does not have, or not exactly once: 0 by law 2.
    pub misplaced_rows: u64,
}

/// What a run leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name shown for the run, e.g. of its map.
    pub name: String,
    /// Digest of the map it ran on.
    pub map_digest: String,
    /// Ranks of the group.
    pub ranks: u16,
    /// Requests by job number.
    pub requests: Vec<RequestOutcome>,
    /// Steps in order.
    pub steps: Vec<StepSummary>,
    /// Token gaps in step order.
    pub gaps: Vec<Gap>,
    /// Sums.
    pub totals: RunTotals,
}
