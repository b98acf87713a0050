//! Time of one attention module on one rank: latent (MLA) as measured, grouped-query as scaled.
//!
//! Forms of the MLA module with h heads, B sequences, KV length S, N = B·S new tokens in prefill:
//!
//! ```text
//! decode   t = call + c·B + ‖w/bw, 2·B·w/Rp‖₃ + B·S·‖kv bytes/bw_kv, ops/Ra‖₃ + l·log2(1 + S/64)
//! prefill  t = s·B + knee_q(host, call + 2·N·w/Rp + B·S²·ops/Ra + n·N)
//! ```
//!
//! w: weights of query up-projection, absorption (or KV up-projection) and output projection. The
//! benchmark skips the down-projection, so it is added as a plain product. The prefill's time per
//! sequence stands outside the knee: it is host work that GPU work does not hide (inside it, the
//! unseen error is about one point higher).

mod fit;

use crate::basis::{Basis, Origin};
use crate::dense::{DenseRates, norm3};
use evenkeel_types::{Attention, ModelShape, WeightFormat};
pub use fit::fit_attention;
use serde::{Deserialize, Serialize};

/// What one rank's attention has to do in one step: data-parallel ranks differ by their KV, not
/// by their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionLoad {
    /// Sequences in the step.
    pub sequences: u32,
    /// New tokens over all sequences (decode: one per sequence without speculation).
    pub new_tokens: u32,
    /// Sum over sequences of the KV length that they attend to, new tokens included.
    pub context_tokens: u64,
    /// Sum over sequences of `new tokens · KV length`. Used for prefill, and for decode where it
    /// exceeds `context_tokens` (several new tokens per sequence).
    pub context_products: f64,
}

/// Constants of the module in decode. Times µs, rates bytes/µs and operations/µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationCurve {
    /// Fixed time of a call, µs.
    pub call_us: f64,
    /// Time of one more sequence, µs.
    pub sequence_us: f64,
    /// Rate at which projection weights are read, bytes/µs.
    pub weight_bytes_per_us: f64,
    /// Rate of the projections in FP8, operations/µs.
    pub projection_ops_per_us: f64,
    /// Rate at which KV is read, bytes/µs.
    pub kv_bytes_per_us: f64,
    /// Rate of attention itself, operations/µs.
    pub attention_ops_per_us: f64,
    /// Time per doubling of the KV length beyond 64 tokens, µs.
    pub length_us: f64,
}

/// Constants of the module in prefill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextCurve {
    /// Launch time of the un-graphed path, µs: a floor, not GPU time.
    pub host_us: f64,
    /// Fixed GPU time of a call, µs.
    pub call_us: f64,
    /// Time of one more sequence, µs.
    pub sequence_us: f64,
    /// Rate of the projections in FP8, operations/µs.
    pub projection_ops_per_us: f64,
    /// Rate of attention itself, operations/µs.
    pub attention_ops_per_us: f64,
    /// Time of one more token beside the rates (rope, quantisation, copies), µs.
    pub token_us: f64,
    /// Exponent of the knee between host floor and GPU time.
    pub knee: f64,
}

/// Attention of one hardware profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionProfile {
    /// Kernel that the constants stand for, e.g. `fa3`.
    pub kernel: String,
    /// Decode.
    pub generation: GenerationCurve,
    /// What the decode constants stand on.
    pub generation_basis: Basis,
    /// Prefill.
    pub context: ContextCurve,
    /// What the prefill constants stand on.
    pub context_basis: Basis,
}

impl AttentionProfile {
    /// The same module on other hardware: memory rates multiplied by `bytes`, the attention rate
    /// by `ops`, the projection rate replaced; fixed times kept. The basis becomes `borrowed` with
    /// at least `error_share`.
    #[must_use]
    pub fn borrowed(&self, to: &Borrowed<'_>) -> Self {
        let borrow =
            |basis: &Basis| basis.weaker(&Basis::new(Origin::Borrowed, to.error_share, to.note));
        let (generation, context) = (self.generation, self.context);
        Self {
            kernel: self.kernel.clone(),
            generation: GenerationCurve {
                weight_bytes_per_us: generation.weight_bytes_per_us * to.bytes,
                kv_bytes_per_us: generation.kv_bytes_per_us * to.bytes,
                projection_ops_per_us: to.projection_ops_per_us,
                attention_ops_per_us: generation.attention_ops_per_us * to.ops,
                ..generation
            },
            generation_basis: borrow(&self.generation_basis),
            context: ContextCurve {
                projection_ops_per_us: to.projection_ops_per_us,
                attention_ops_per_us: context.attention_ops_per_us * to.ops,
                ..context
            },
            context_basis: borrow(&self.context_basis),
        }
    }
}

/// How another machine differs from the measured one.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a> {
    /// Memory rate as a multiple.
    pub bytes: f64,
    /// Attention rate as a multiple.
    pub ops: f64,
    /// Rate of FP8 projections, operations/µs.
    pub projection_ops_per_us: f64,
    /// Error stated.
    pub error_share: f64,
    /// Why, one sentence.
    pub note: &'a str,
}

/// Sizes of one attention module, all heads on the rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Weights of the down-projection, elements (MLA only).
    pub down_weights: f64,
    /// Weights of the module in decode, elements.
    pub decode_weights: f64,
    /// Weights of the module in prefill, elements.
    pub prefill_weights: f64,
    /// KV bytes read per token of context.
    pub kv_bytes: f64,
    /// Operations per pair of one new token and one KV token in decode (absorbed form for MLA).
    pub decode_pair_ops: f64,
    /// Operations per `S²` of a causal prompt of length S: half the pairs.
    pub prefill_pair_ops: f64,
    /// Bytes of one projection weight.
    pub weight_bytes: f64,
    /// True for latent attention, which the constants were measured on.
    pub latent: bool,
    /// Query heads.
    pub heads: u32,
}

/// Query rank of DeepSeek-V2 and V3. `ModelShape` does not carry it; the models with fewer than
/// 64 heads (V2-Lite) project the query directly.
const MLA_QUERY_RANK: f64 = 1536.0;
/// Width of an MLA head without its rotary part, and of its value.
const MLA_HEAD: f64 = 128.0;

impl AttentionShape {
    /// Sizes for `heads` query heads of the model's attention (all of them under data-parallel
    /// attention, a share of them under tensor parallelism; KV heads shrink alike, to no less
    /// than one).
    ///
    /// MLA kernels keep two bytes per KV element whatever the label says (the measured times fit
    /// 1152 bytes per token); grouped-query attention reads what the shape says.
    #[must_use]
    pub fn new(shape: &ModelShape, heads: u32) -> Self {
        let hidden = f64::from(shape.hidden);
        let h = f64::from(heads);
        // Attention of 4-bit models stays bf16.
        let weight_bytes = match shape.weights {
            WeightFormat::Fp8Block | WeightFormat::Fp8 => 1.0,
            WeightFormat::F32 => 4.0,
            WeightFormat::Bf16 | WeightFormat::Int4 | WeightFormat::Mxfp4 => 2.0,
        };
        match shape.attention {
            Attention::Mla { heads: all, kv_lora_rank, rope_dim } => {
                let (latent, rope) = (f64::from(kv_lora_rank), f64::from(rope_dim));
                let compressed = all >= 64;
                let query_in = if compressed { MLA_QUERY_RANK } else { hidden };
                let query = query_in * h * (MLA_HEAD + rope);
                let output = MLA_HEAD * h * hidden;
                let absorb = 2.0 * latent * MLA_HEAD * h;
                let query_down = if compressed { MLA_QUERY_RANK } else { 0.0 };
                Self {
                    down_weights: hidden * (query_down + latent + rope),
                    decode_weights: query + absorb + output,
                    // Keys and values are expanded by as many weights as absorption uses.
                    prefill_weights: query + absorb + output,
                    kv_bytes: 2.0 * (latent + rope),
                    decode_pair_ops: 2.0 * h * (2.0 * latent + rope),
                    prefill_pair_ops: h * (2.0 * MLA_HEAD + rope),
                    weight_bytes,
                    latent: true,
                    heads,
                }
            }
            Attention::Gqa { heads: all, kv_heads, head_dim } => {
                let width = f64::from(head_dim);
                let kv = (f64::from(kv_heads) * h / f64::from(all.max(1))).max(1.0);
                let weights = hidden * width * (2.0 * h + 2.0 * kv);
                Self {
                    down_weights: 0.0,
                    decode_weights: weights,
                    prefill_weights: weights,
                    kv_bytes: 2.0 * kv * width * f64::from(shape.kv_element_bytes),
                    decode_pair_ops: 4.0 * h * width,
                    prefill_pair_ops: 2.0 * h * width,
                    weight_bytes,
                    latent: false,
                    heads,
                }
            }
        }
    }
}

/// Attention of one layer, resolved for a profile and a shape: no look-ups left.
#[derive(Clone, Copy, Debug)]
pub struct AttentionModel {
    generation: GenerationCurve,
    context: ContextCurve,
    weight_read_us: f64,
    row_us: f64,
    kv_us: f64,
    pair_us: f64,
    prefill_token_us: f64,
    prefill_pair_us: f64,
    down_read_us: f64,
    down_row_us: f64,
    down_call_us: f64,
    host_floor: bool,
}

impl AttentionModel {
    /// Resolves constants and sizes. `host_floor`: whether prefill's launch time counts.
    #[must_use]
    pub fn new(
        profile: &AttentionProfile,
        shape: &AttentionShape,
        dense: &DenseRates,
        host_floor: bool,
    ) -> Self {
        Self::from_curves(profile.generation, profile.context, shape, dense, host_floor)
    }

    fn from_curves(
        generation: GenerationCurve,
        context: ContextCurve,
        shape: &AttentionShape,
        dense: &DenseRates,
        host_floor: bool,
    ) -> Self {
        // Projection rates were measured in FP8; bf16 runs at half of them.
        let slower = shape.weight_bytes.max(1.0);
        let down = if shape.down_weights > 0.0 { 1.0 } else { 0.0 };
        Self {
            weight_read_us: shape.decode_weights * shape.weight_bytes
                / generation.weight_bytes_per_us,
            row_us: 2.0 * shape.decode_weights * slower / generation.projection_ops_per_us,
            kv_us: shape.kv_bytes / generation.kv_bytes_per_us,
            pair_us: shape.decode_pair_ops / generation.attention_ops_per_us,
            prefill_token_us: 2.0 * shape.prefill_weights * slower / context.projection_ops_per_us
                + context.token_us,
            prefill_pair_us: shape.prefill_pair_ops / context.attention_ops_per_us,
            down_read_us: shape.down_weights * shape.weight_bytes / dense.weight_bytes_per_us,
            down_row_us: 2.0 * shape.down_weights / dense.ops_per_us(shape.weight_bytes),
            down_call_us: down * dense.call_us,
            generation,
            context,
            host_floor,
        }
    }

    /// Decode time of one layer, µs; 0 without sequences.
    ///
    /// Not below itself for more context, nor for another sequence of at least the mean length
    /// (a much shorter one may save up to `length_us`: the form knows only the mean length).
    #[must_use]
    pub fn decode_us(&self, load: &AttentionLoad) -> f64 {
        if load.sequences == 0 {
            return 0.0;
        }
        let sequences = f64::from(load.sequences);
        let rows = f64::from(load.new_tokens.max(load.sequences));
        let context = load.context_tokens as f64;
        let pairs = context.max(load.context_products);
        self.generation.call_us
            + self.generation.sequence_us * sequences
            + norm3(self.weight_read_us, self.row_us * rows)
            + norm3(self.kv_us * context, self.pair_us * pairs)
            + self.generation.length_us * (1.0 + context / (64.0 * sequences)).log2()
            + self.down_us(rows)
    }

    /// Prefill time of one layer, µs; 0 without tokens.
    ///
    /// A chunk of n tokens that ends at KV length S sees `n·S − n²/2` pairs, so the pairs of a
    /// prompt's chunks add up to the prompt's; n² is taken as if the step's tokens were spread
    /// evenly over its sequences.
    #[must_use]
    pub fn prefill_us(&self, load: &AttentionLoad) -> f64 {
        if load.new_tokens == 0 {
            return 0.0;
        }
        let sequences = f64::from(load.sequences.max(1));
        let tokens = f64::from(load.new_tokens);
        let own = tokens * tokens / sequences;
        let products = load.context_products.max(own);
        let gpu_us = self.context.call_us
            + self.prefill_token_us * tokens
            + self.prefill_pair_us * (2.0 * products - own)
            + self.down_us(tokens);
        let floor_us = if self.host_floor { self.context.host_us } else { 0.0 };
        self.context.sequence_us * sequences + knee(floor_us, gpu_us, self.context.knee)
    }

    fn down_us(&self, rows: f64) -> f64 {
        self.down_call_us + norm3(self.down_read_us, self.down_row_us * rows)
    }
}

/// `(a^q + b^q)^(1/q)`, the soft maximum of two non-negative times.
#[must_use]
pub fn knee(a: f64, b: f64, q: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low <= 0.0 {
        return high;
    }
    // Relative to the larger one, so that no power overflows.
    high * (1.0 + (low / high).powf(q)).powf(1.0 / q)
}
