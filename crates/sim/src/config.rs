//! How one group batches and what it may hold.

use crate::SimError;
use serde::{Deserialize, Serialize};

/// What a group does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill and decode on the same ranks, in steps of one phase each.
    Mixed,
    /// Prefill alone: a request leaves with its first token (the hand-off).
    Prefill,
    /// Decode alone: a request arrives with its prompt's KV and its first token; prefill steps
    /// happen only to recompute what a preemption lost. Its place is reserved before its prefill
    /// begins elsewhere, as engines do that allocate the KV first: waiting for a place is time to
    /// first token, never a gap between tokens.
    Decode,
}

/// Batching and memory of one expert-parallel group. Every rank has the same limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// What the group does.
    pub role: Role,
    /// Most sequences that a rank runs at once (prefilling ones included).
    pub decode_sequences_per_rank: u32,
    /// Most prompt tokens of a rank in one prefill step; longer prompts are cut into chunks.
    pub prefill_tokens_per_rank: u32,
    /// Most prefill steps in a row while sequences wait to decode.
    pub prefill_steps_in_row_max: u32,
    /// KV blocks of a rank.
    pub kv_blocks_per_rank: u32,
    /// Tokens in a KV block.
    pub kv_block_tokens: u32,
}

impl GroupConfig {
    /// Checks that every limit is positive.
    ///
    /// # Errors
    /// Names the field that is 0.
    pub fn validate(&self) -> Result<(), SimError> {
        let Self {
            role: _,
            decode_sequences_per_rank,
            prefill_tokens_per_rank,
            prefill_steps_in_row_max,
            kv_blocks_per_rank,
            kv_block_tokens,
        } = *self;
        for (field, value) in [
            ("decode_sequences_per_rank", decode_sequences_per_rank),
            ("prefill_tokens_per_rank", prefill_tokens_per_rank),
            ("prefill_steps_in_row_max", prefill_steps_in_row_max),
            ("kv_blocks_per_rank", kv_blocks_per_rank),
            ("kv_block_tokens", kv_block_tokens),
        ] {
            if value == 0 {
                return Err(SimError::range(format!("group: {field}"), 0, "at least 1"));
            }
        }
        Ok(())
    }

    /// Blocks that `tokens` tokens need.
    #[must_use]
    pub(crate) fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.kv_block_tokens))
    }
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub steps: u64,
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Requests finished.
    pub finished: u64,
    /// Jobs of the run.
    pub jobs: u64,
}

/// When a run stops before all jobs are done, and who is told about it on the way.
pub struct Limits<'a> {
    /// Most steps. A run of 2^32 steps would not end in a day.
    pub steps_max: u64,
    /// No step starts at or after this time, ns.
    pub until_ns: u64,
    /// Called after every 64th step and at the end.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl Default for Limits<'_> {
    fn default() -> Self {
        Self { steps_max: 1 << 32, until_ns: u64::MAX, progress: None }
    }
}
