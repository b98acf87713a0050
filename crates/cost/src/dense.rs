//! The rest of a step: plain matrix products, gate, shared expert, dense layers, lm-head.

use crate::basis::Basis;
use evenkeel_types::{ModelShape, Phase, WeightFormat};
use serde::{Deserialize, Serialize};

/// `(a³ + b³)^⅓`: the soft maximum of a time bound by memory and one bound by compute.
#[must_use]
pub fn norm3(a: f64, b: f64) -> f64 {
    (a * a * a + b * b * b).cbrt()
}

/// Rates of plain matrix products with resident weights: `call + ‖bytes/bw, ops/rate‖₃`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseRates {
    /// Fixed time of one product inside a CUDA graph, µs.
    pub call_us: f64,
    /// Rate at which weights are read, bytes/µs.
    pub weight_bytes_per_us: f64,
    /// Rate of FP8 products, operations/µs.
    pub fp8_ops_per_us: f64,
    /// Rate of products of two-byte numbers, operations/µs.
    pub bf16_ops_per_us: f64,
}

impl DenseRates {
    /// Rate for weights of so many bytes, operations/µs.
    #[must_use]
    pub fn ops_per_us(&self, weight_bytes: f64) -> f64 {
        if weight_bytes <= 1.0 { self.fp8_ops_per_us } else { self.bf16_ops_per_us }
    }

    /// Time of `rows` through a matrix of `weights` elements, µs.
    #[must_use]
    pub fn product_us(&self, weights: f64, weight_bytes: f64, rows: f64) -> f64 {
        Product::new(self, weights, weight_bytes, 1.0).at(rows)
    }
}

/// What an engine adds to the kernels: constants per layer and step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConstants {
    /// Engine and version that the constants stand for.
    pub name: String,
    /// Router and top-k of one MoE layer, µs.
    pub gate_us: f64,
    /// δ: norms, quantisation, rope and routing of one layer, µs.
    pub layer_us: f64,
    /// Host and sampling time of one step, µs.
    pub step_us: f64,
    /// Share of communication hidden behind computation, in [0, 1].
    pub overlap_share: f64,
    /// Whether the launch time of the un-graphed prefill path counts as a floor.
    pub prefill_host_floor: bool,
}

/// Plain products and engine constants of one hardware profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseProfile {
    /// Rates.
    pub rates: DenseRates,
    /// What rates and engine constants stand on.
    pub basis: Basis,
}

/// One or more equal products, resolved.
#[derive(Clone, Copy, Debug, Default)]
struct Product {
    call_us: f64,
    read_us: f64,
    row_us: f64,
}

impl Product {
    fn new(rates: &DenseRates, weights: f64, weight_bytes: f64, calls: f64) -> Self {
        if weights <= 0.0 {
            return Self::default();
        }
        Self {
            call_us: rates.call_us * calls,
            read_us: weights * weight_bytes / rates.weight_bytes_per_us,
            row_us: 2.0 * weights / rates.ops_per_us(weight_bytes),
        }
    }

    fn at(&self, rows: f64) -> f64 {
        self.call_us + norm3(self.read_us, self.row_us * rows)
    }
}

/// Everything of a step but experts, exchanges and attention, resolved for a shape.
#[derive(Clone, Copy, Debug)]
pub struct RestModel {
    shared: Product,
    dense: Product,
    dense_layers: f64,
    lm_head: Product,
    gate_us: f64,
    layer_us: f64,
    step_us: f64,
}

impl RestModel {
    /// Resolves rates, constants and sizes. Shared experts and dense layers use the format of
    /// the routed experts' weights, 4-bit formats excepted (bf16); the lm-head is bf16.
    #[must_use]
    pub fn new(rates: &DenseRates, engine: &EngineConstants, shape: &ModelShape) -> Self {
        let bytes = match shape.weights {
            WeightFormat::Fp8Block | WeightFormat::Fp8 => 1.0,
            WeightFormat::F32 => 4.0,
            WeightFormat::Bf16 | WeightFormat::Int4 | WeightFormat::Mxfp4 => 2.0,
        };
        let hidden = f64::from(shape.hidden);
        let shared = f64::from(shape.shared_experts) * f64::from(shape.expert_width);
        let mlp = |width: f64| Product::new(rates, 3.0 * hidden * width, bytes, 2.0);
        Self {
            shared: mlp(shared),
            dense: mlp(f64::from(shape.dense_width)),
            dense_layers: f64::from(shape.dense_layers),
            lm_head: Product::new(rates, hidden * f64::from(shape.vocab), bytes.max(2.0), 1.0),
            gate_us: engine.gate_us,
            layer_us: engine.layer_us,
            step_us: engine.step_us,
        }
    }

    /// Layers without experts.
    #[must_use]
    pub const fn dense_layers(&self) -> f64 {
        self.dense_layers
    }

    /// Gate, shared experts and δ of one MoE layer on a rank with `tokens`, µs.
    #[must_use]
    pub fn layer_us(&self, tokens: u32) -> f64 {
        self.gate_us + self.layer_us + self.shared.at(f64::from(tokens))
    }

    /// Dense layers (MLP and δ; not their attention), lm-head and host of one step, µs.
    ///
    /// Prefill needs the lm-head only for the last token of a sequence, so there it counts with
    /// its weights' read alone.
    #[must_use]
    pub fn step_us(&self, phase: Phase, tokens: u32) -> f64 {
        let rows = f64::from(tokens);
        let head_rows = match phase {
            Phase::Decode => rows,
            Phase::Prefill => rows.min(1.0),
        };
        self.step_us
            + self.dense_layers * (self.layer_us + self.dense.at(rows))
            + self.lm_head.at(head_rows)
    }
}
