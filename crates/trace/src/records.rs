//! Rows: one engine step, one request, one event.

use evenkeel_types::{ExpertId, LayerId, Phase, RankId, SliceId};
use serde::{Deserialize, Serialize};

/// What one rank did in one step (table `steps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankCell {
    /// Sequences in the rank's batch.
    pub sequences: u32,
    /// Real tokens of the rank's batch.
    pub tokens: u32,
    /// Tokens that the kernels saw, padding included (≥ `tokens`).
    pub tokens_padded: u32,
    /// KV blocks in use after the step.
    pub kv_blocks_used: u32,
    /// KV blocks free after the step.
    pub kv_blocks_free: u32,
}

/// What one rank did in one layer of one step (table `layers`). Times in ns; 0 where the record
/// has no such span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCell {
    /// Attention and what precedes the router.
    pub attention_ns: u64,
    /// Router, shared expert and norms.
    pub router_ns: u64,
    /// Dispatch: how much later than the first rank this rank arrived.
    pub dispatch_skew_ns: u64,
    /// Dispatch: waiting for the last rank to arrive.
    pub dispatch_wait_ns: u64,
    /// Dispatch: moving data.
    pub dispatch_service_ns: u64,
    /// Age of the oldest token that waited at an expert of this rank.
    pub queue_ns: u64,
    /// Expert kernels.
    pub expert_ns: u64,
    /// Thread CPU time of the expert kernels (CPU engine; else 0).
    pub cpu_ns: u64,
    /// Return: how much later than the first rank this rank arrived.
    pub return_skew_ns: u64,
    /// Return: waiting for the last rank to arrive.
    pub return_wait_ns: u64,
    /// Return: moving data.
    pub return_service_ns: u64,
    /// Weighted sum of the k contributions.
    pub combine_ns: u64,
    /// (token, expert) rows that the rank's experts computed.
    pub rows_in: u32,
    /// Distinct tokens that the rank received.
    pub tokens_in: u32,
    /// Local experts with at least one row.
    pub experts_activated: u16,
    /// Kernel that ran, an index into `TraceHeader::kernels`.
    pub kernel: u16,
    /// Bytes sent in dispatch and return, to other ranks.
    pub bytes_out: u64,
    /// Bytes received in dispatch and return, from other ranks.
    pub bytes_in: u64,
}

/// Tokens that one source rank sent to one copy of an expert (table `routing`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingRow {
    /// Layer.
    pub layer: LayerId,
    /// Rank whose tokens they are.
    pub source: RankId,
    /// Logical expert that the router chose.
    pub expert: ExpertId,
    /// Rank of the copy that served them; `None` where the record does not say.
    pub host: Option<RankId>,
    /// Tokens.
    pub tokens: u32,
}

/// Way of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Activations to the experts.
    Dispatch,
    /// Contributions back to the tokens.
    Return,
}

/// Traffic of one link in one layer of one step (table `links`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRow {
    /// Layer.
    pub layer: LayerId,
    /// Way.
    pub direction: Direction,
    /// Sending rank.
    pub source: RankId,
    /// Receiving rank, another one.
    pub destination: RankId,
    /// Messages.
    pub messages: u32,
    /// Bytes over all messages.
    pub bytes: u64,
    /// Bytes of the largest message.
    pub largest_bytes: u64,
    /// Time the link was moving them, 0 where unknown.
    pub service_ns: u64,
}

/// One step of the whole expert-parallel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the step, rising.
    pub step: u64,
    /// Phase: a step of the group has one.
    pub phase: Phase,
    /// Start.
    pub start_ns: u64,
    /// End, all ranks.
    pub end_ns: u64,
    /// Map that the step ran on.
    pub map_version: u64,
    /// `[rank]`.
    pub ranks: Vec<RankCell>,
    /// `[layer * ranks + rank]`; empty where the record has no layer spans.
    pub cells: Vec<LayerCell>,
    /// Who sent what to which expert; empty where not recorded for this step.
    pub routing: Vec<RoutingRow>,
    /// Link traffic; empty where not recorded for this step.
    pub links: Vec<LinkRow>,
}

impl StepRecord {
    /// Real tokens over all ranks.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.ranks.iter().map(|rank| u64::from(rank.tokens)).sum()
    }

    /// The cell of a layer and rank, if layers were recorded.
    #[must_use]
    pub fn cell(&self, layer: usize, rank: usize) -> Option<&LayerCell> {
        let ranks = self.ranks.len();
        if rank >= ranks {
            return None;
        }
        self.cells.get(layer * ranks + rank)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// End of sequence.
    Stop,
    /// Length limit.
    Length,
    /// An error, named in `RequestRecord::error`.
    Error,
    /// Still running when the record ends.
    Unfinished,
}

/// One request (table `requests`). Times count from the trace's start.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRecord {
    /// Number of the request.
    pub request: u64,
    /// Slice.
    pub slice: SliceId,
    /// Arrival, ns.
    pub arrival_ns: u64,
    /// Time in the queue before the first step, ns.
    pub queue_ns: Option<u64>,
    /// First token, ns after arrival.
    pub ttft_ns: Option<u64>,
    /// Last token, ns after arrival.
    pub finish_ns: Option<u64>,
    /// Time of each output token, ns after arrival, where recorded.
    pub token_ns: Vec<u64>,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Output tokens (accepted ones, under speculation).
    pub output_tokens: u32,
    /// How it ended.
    pub finish: Finish,
    /// The error, empty where none.
    pub error: String,
    /// Digest of the output token ids, empty where not recorded.
    pub output_digest: String,
    /// Mean log-probability of the output tokens.
    pub mean_log_probability: Option<f64>,
    /// Task score in [0, 1], where an evaluation gave one.
    pub quality_score: Option<f64>,
}

impl RequestRecord {
    /// Time per output token after the first, ns: `(finish − ttft) / (output_tokens − 1)`.
    ///
    /// Counts tokens, not chunks, so it holds under speculation. `None` for fewer than two tokens.
    #[must_use]
    pub fn tpot_ns(&self) -> Option<f64> {
        match (self.ttft_ns, self.finish_ns) {
            (Some(first), Some(last)) if self.output_tokens > 1 && last >= first => {
                Some((last - first) as f64 / f64::from(self.output_tokens - 1))
            }
            _ => None,
        }
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Tokens dropped by a capacity factor (`value`: how many).
    TokensDropped,
    /// A map's weights are in place.
    MapPrepared,
    /// A map became live (`value`: its version).
    MapCommitted,
    /// A map was given up (`value`: its version).
    MapAborted,
    /// A rank left.
    RankLost,
    /// A rank came.
    RankJoined,
    /// Service stood still (`value`: ns).
    Stall,
    /// An admission cap changed.
    CapChanged,
    /// A model, template or tokenizer rollout.
    Rollout,
}

/// Something that happened once (table `events`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, ns.
    pub at_ns: u64,
    /// Step, where it belongs to one.
    pub step: Option<u64>,
    /// What.
    pub kind: EventKind,
    /// Phase, where it belongs to one.
    pub phase: Option<Phase>,
    /// Layer, where it belongs to one.
    pub layer: Option<LayerId>,
    /// Rank, where it belongs to one.
    pub rank: Option<RankId>,
    /// Amount, by kind.
    pub value: u64,
    /// Words.
    pub detail: String,
}
