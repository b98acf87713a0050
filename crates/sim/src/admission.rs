//! A request as the machine sees it: how long it is, and where its tokens are recorded.

use crate::{GroupConfig, Job, Role, SimError};
use evenkeel_trace::Routes;
use evenkeel_types::SliceId;

/// A request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Its number, unique among those that the machine holds.
    pub job: u64,
    /// Slice.
    pub slice: SliceId,
    /// Arrival, ns.
    pub arrival_ns: u64,
    /// Index of the recorded request that it replays; an engine's own key otherwise.
    pub recorded: usize,
    /// Index of its first token in `Routes`; 0 where nothing is replayed.
    pub first_token: usize,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Output tokens after which it ends; a backend may end it before.
    pub output_tokens_max: u32,
    /// Output tokens that it has at its arrival.
    pub decoded: u32,
}

impl Admission {
    /// A job that replays a recorded request, and may be served by such a group.
    ///
    /// # Errors
    /// A job that names no recorded request, or that the group cannot serve.
    pub fn replaying(job: &Job, routes: &Routes, config: &GroupConfig) -> Result<Self, SimError> {
        let bad = |problem: String| Err(SimError::Job { job: job.job, problem });
        let Some(recorded) = routes.requests().get(job.recorded) else {
            let recorded = routes.requests().len();
            return bad(format!("replays request {} of {recorded} recorded ones", job.recorded));
        };
        let outputs = recorded.output_tokens();
        // A decode group never sees the prompt: a recording of outputs alone will do, though the
        // prompt's KV is then missing from memory and attention.
        let prompt_needed = u32::from(config.role != Role::Decode);
        if recorded.prompt_tokens < prompt_needed || outputs == 0 {
            return bad(format!(
                "request {} was recorded with {} prompt and {outputs} output tokens, expected at \
                 least {prompt_needed} and 1",
                recorded.request, recorded.prompt_tokens
            ));
        }
        let admission = Self {
            job: job.job,
            slice: job.slice,
            arrival_ns: job.arrival_ns,
            recorded: job.recorded,
            first_token: recorded.first_token,
            prompt_tokens: recorded.prompt_tokens,
            output_tokens_max: outputs,
            decoded: job.decoded,
        };
        admission.check(config)?;
        Ok(admission)
    }

    /// Whether a group can serve it to its last token.
    ///
    /// # Errors
    /// No output token left to produce, outputs that come into a prefill group, or more KV blocks
    /// than a rank has.
    pub fn check(&self, config: &GroupConfig) -> Result<(), SimError> {
        let Self { job, decoded, output_tokens_max: outputs, .. } = *self;
        let bad = |problem: String| Err(SimError::Job { job, problem });
        if decoded >= outputs {
            return bad(format!("has {decoded} of {outputs} output tokens, expected fewer"));
        }
        if decoded > 0 && config.role == Role::Prefill {
            return bad("comes with output tokens into a prefill group".into());
        }
        // All tokens but the last one are fed, and each has its place.
        let kept = match config.role {
            Role::Prefill => u64::from(self.prompt_tokens),
            Role::Mixed | Role::Decode => u64::from(self.prompt_tokens) + u64::from(outputs),
        };
        let (needed, blocks) = (config.blocks(kept), config.kv_blocks_per_rank);
        if needed > u64::from(blocks) {
            return Err(SimError::KvTooSmall { job, needed, blocks });
        }
        Ok(())
    }
}
