//! What a step's parts take: the face that cost curves show to the replay.

use evenkeel_cost::{AttentionLoad, Crossing, ExpertCurve, StepModel};
use evenkeel_types::Phase;

/// Times of the parts of a step, µs; a layer's parts are for one MoE layer. [`StepModel`] is the
/// fitted one; tests bring curves that can be added up by hand.
pub trait StepTimes {
    /// Attention of one rank in one layer.
    fn attention_us(&self, phase: Phase, load: &AttentionLoad) -> f64;

    /// Layers without experts: their attention is paid once per step and layer.
    fn dense_layers(&self) -> f64;

    /// Router, norms and shared experts of one rank in one layer.
    fn layer_rest_us(&self, phase: Phase, tokens: u32) -> f64;

    /// Once per step: dense layers without their attention, head, host; by the fullest rank.
    fn step_rest_us(&self, phase: Phase, tokens: u32) -> f64;

    /// Tokens per rank of the balanced exchange that moves as much as this one's busiest rank.
    fn tokens_equivalent(&self, phase: Phase, crossing: &Crossing) -> f64;

    /// Dispatch of one layer.
    fn dispatch_us(&self, phase: Phase, tokens_equivalent: f64) -> f64;

    /// Return of one layer.
    fn combine_us(&self, phase: Phase, tokens_equivalent: f64) -> f64;

    /// Expert time of a rank.
    fn experts(&self, phase: Phase) -> &ExpertCurve;

    /// Share of a layer's exchange that compute hides, 0 to 1.
    fn overlap_share(&self) -> f64;

    /// Bytes of one row in dispatch and in return.
    fn row_bytes(&self, phase: Phase) -> [u64; 2];
}

impl StepTimes for StepModel {
    fn attention_us(&self, phase: Phase, load: &AttentionLoad) -> f64 {
        self.attention_us(phase, load)
    }

    fn dense_layers(&self) -> f64 {
        self.dense_layers()
    }

    fn layer_rest_us(&self, phase: Phase, tokens: u32) -> f64 {
        self.layer_rest_us(phase, tokens)
    }

    fn step_rest_us(&self, phase: Phase, tokens: u32) -> f64 {
        self.step_rest_us(phase, tokens)
    }

    fn tokens_equivalent(&self, phase: Phase, crossing: &Crossing) -> f64 {
        self.tokens_equivalent(phase, crossing)
    }

    fn dispatch_us(&self, phase: Phase, tokens_equivalent: f64) -> f64 {
        self.dispatch_us(phase, tokens_equivalent)
    }

    fn combine_us(&self, phase: Phase, tokens_equivalent: f64) -> f64 {
        self.combine_us(phase, tokens_equivalent)
    }

    fn experts(&self, phase: Phase) -> &ExpertCurve {
        self.experts(phase)
    }

    fn overlap_share(&self) -> f64 {
        self.overlap_share()
    }

    fn row_bytes(&self, phase: Phase) -> [u64; 2] {
        let (dispatch, back) = self.exchange_bytes_per_row(phase);
        [dispatch.round() as u64, back.round() as u64]
    }
}
