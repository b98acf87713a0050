//! Time of one rank's experts in one layer, from the token rows of each of its slots.
//!
//! A rank's time is `floor + Σ_e f(m_e)`: `f(0)` is what an idle slot costs, a first tile costs
//! what reading the weights costs (or, on H20, a tile's operations), each further tile costs
//! operations, each row a little more (docs/cost-model.md).

mod activated;
mod coefficients;
mod curve;
mod deepgemm;
mod fused;
mod grouped;
mod measured;
mod rank;
mod rank_fit;
mod tile;
mod trtllm;

pub use activated::fit_activated;
pub use coefficients::ExpertCoefficients;
pub use curve::{ExpertCurve, ExpertForm};
pub use deepgemm::fit_deepgemm;
pub use fused::{FusedKernel, fit_fused};
pub use grouped::{GroupedDevice, fit_grouped};
pub use measured::{MeasuredRow, fit_measured};
pub use rank::{RankForm, RankModel, RateSwitch};
pub use tile::TileModel;
pub use trtllm::fit_trtllm;

use evenkeel_types::{ModelShape, WeightFormat};
use serde::{Deserialize, Serialize};

/// What expert time depends on in a model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertShape {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Inner width of one routed expert.
    pub width: u32,
    /// Routed experts per layer.
    pub experts: u32,
    /// Routed experts per token.
    pub top_k: u32,
    /// Format of the weights.
    pub weights: WeightFormat,
}

impl ExpertShape {
    /// Bytes of one expert's weights, scales left out.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        3.0 * f64::from(self.hidden) * f64::from(self.width) * self.weights.bytes_per_weight()
    }

    /// Operations of one token row: `6 · hidden · width`.
    #[must_use]
    pub fn flops_per_row(&self) -> f64 {
        6.0 * f64::from(self.hidden) * f64::from(self.width)
    }

    /// How much longer than in FP8 an operation takes in this format, on a GPU whose FP8 rate is
    /// twice its bf16 rate. Four-bit weights are widened to bf16 before they are multiplied.
    #[must_use]
    pub const fn slowdown_from_fp8(&self) -> f64 {
        match self.weights {
            WeightFormat::Fp8Block | WeightFormat::Fp8 => 1.0,
            WeightFormat::Bf16 | WeightFormat::Int4 | WeightFormat::Mxfp4 => 2.0,
            WeightFormat::F32 => 4.0,
        }
    }

    /// The same shape in another weight format.
    #[must_use]
    pub const fn with_weights(self, weights: WeightFormat) -> Self {
        Self { weights, ..self }
    }
}

impl From<&ModelShape> for ExpertShape {
    fn from(shape: &ModelShape) -> Self {
        Self {
            hidden: shape.hidden,
            width: shape.expert_width,
            experts: u32::from(shape.experts),
            top_k: u32::from(shape.top_k),
            weights: shape.weights,
        }
    }
}
