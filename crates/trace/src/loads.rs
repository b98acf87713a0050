//! Loads: expert choices of sampled steps, the planner's food.

use evenkeel_types::Phase;
use serde::{Deserialize, Serialize};

/// Choices of one step, summed over source ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepLoad {
    /// Real tokens of the step over all ranks.
    pub tokens: u32,
    /// `[layer * experts + expert]`: tokens that chose the expert.
    pub counts: Vec<u32>,
}

/// Choices of several steps of one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepLoads {
    /// Phase: never mixed.
    pub phase: Phase,
    /// Layers.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// The steps.
    pub steps: Vec<StepLoad>,
}

impl StepLoads {
    /// Sum over steps, `[layer * experts + expert]`.
    #[must_use]
    pub fn total(&self) -> Vec<u64> {
        let mut total = vec![0; self.layers * self.experts];
        for step in &self.steps {
            for (sum, count) in total.iter_mut().zip(&step.counts) {
                *sum += u64::from(*count);
            }
        }
        total
    }

    /// Counts of one layer of one step.
    #[must_use]
    pub fn layer(&self, step: usize, layer: usize) -> &[u32] {
        &self.steps[step].counts[layer * self.experts..(layer + 1) * self.experts]
    }
}
