//! What a step's parts take: the face that cost curves show to the replay.

use evenkeel_cost::ExpertCurve;
use evenkeel_types::Phase;

/// What one rank's attention has to do in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionWork {
    /// Sequences.
    pub sequences: u32,
    /// New tokens over all sequences.
    pub new_tokens: u32,
    /// Σ over sequences of the KV length attended to, new tokens included.
    pub context_tokens: u64,
    /// Σ over sequences of new tokens × KV length.
    pub context_products: f64,
}

/// Times of the parts of a step, µs. A layer's parts are for one MoE layer.
pub trait StepTimes {
    /// Attention of one rank in one layer.
    fn attention_us(&self, phase: Phase, work: &AttentionWork) -> f64;

    /// Router, norms and shared experts of one rank in one layer.
    fn layer_rest_us(&self, phase: Phase, tokens: u32) -> f64;

    /// Dispatch of one layer, as a balanced one with so many tokens per rank.
    fn dispatch_us(&self, phase: Phase, tokens_per_rank: f64) -> f64;

    /// Return of one layer, alike.
    fn combine_us(&self, phase: Phase, tokens_per_rank: f64) -> f64;

    /// Dense layers, head and host work of a step whose fullest rank does this work.
    fn step_rest_us(&self, phase: Phase, fullest: &AttentionWork) -> f64;

    /// Expert time of a rank.
    fn experts(&self, phase: Phase) -> &ExpertCurve;

    /// Share of a layer's exchange that compute hides, at most as long as the compute: 0 to 1.
    fn overlap_share(&self, phase: Phase) -> f64;

    /// Bytes of one row in dispatch and in return.
    fn row_bytes(&self) -> [u64; 2];
}
