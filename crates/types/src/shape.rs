//! The shape of a model: everything that bytes and operations follow from.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number format of expert weights as they are kept on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// 32-bit float (CPU engine).
    F32,
    /// bfloat16.
    Bf16,
    /// 8-bit float with one scale per 128 × 128 block.
    Fp8Block,
    /// 8-bit float with one scale per tensor.
    Fp8,
    /// 4-bit integer, group scales.
    Int4,
    /// 4-bit microscaling float, one scale byte per 32 values.
    Mxfp4,
}

impl WeightFormat {
    /// Bytes per weight, scales left out.
    #[must_use]
    pub const fn bytes_per_weight(self) -> f64 {
        match self {
            Self::F32 => 4.0,
            Self::Bf16 => 2.0,
            Self::Fp8Block | Self::Fp8 => 1.0,
            Self::Int4 => 0.5,
            Self::Mxfp4 => 0.5 + 1.0 / 32.0,
        }
    }
}

/// The attention of a layer, as far as KV bytes and time follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Attention {
    /// Multi-head latent attention: one compressed KV vector per token and layer.
    Mla {
        /// Query heads of the model (attention data-parallel: all on each rank).
        heads: u32,
        /// Rank of the compressed KV, 512 in the DeepSeek family.
        kv_lora_rank: u32,
        /// Rotary part kept beside it, 64 in the DeepSeek family.
        rope_dim: u32,
    },
    /// Grouped-query attention.
    Gqa {
        /// Query heads.
        heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Width of a head.
        head_dim: u32,
    },
}

/// Group-limited routing: the router first picks groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroups {
    /// Number of groups that the experts of a layer are cut into.
    pub groups: u16,
    /// Groups that a token may use.
    pub top_groups: u16,
}

/// Shape of a Mixture-of-Experts model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Model name, e.g. `deepseek-v2-lite`.
    pub name: String,
    /// Revision of the weights. Maps of another revision are refused.
    pub revision: String,
    /// Revision of the tokenizer, empty where unknown.
    #[serde(default)]
    pub tokenizer_revision: String,
    /// Layers with routed experts.
    pub moe_layers: u16,
    /// Layers without.
    pub dense_layers: u16,
    /// Routed experts per MoE layer.
    pub experts: u16,
    /// Routed experts per token.
    pub top_k: u8,
    /// Experts that every token uses; they are not placed.
    pub shared_experts: u8,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Inner width of one routed expert.
    pub expert_width: u32,
    /// Inner width of the MLP of a dense layer (0 where there is none).
    pub dense_width: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// Format of the routed experts' weights.
    pub weights: WeightFormat,
    /// Attention of every layer.
    pub attention: Attention,
    /// Bytes of one KV element (1 for FP8, 2 for bf16).
    pub kv_element_bytes: u8,
    /// Group-limited routing, where the model has it.
    #[serde(default)]
    pub groups: Option<ExpertGroups>,
}

/// Why a shape is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ShapeError {
    /// A count that must be positive is zero.
    #[error("model shape `{model}`: field `{field}` is 0, expected at least 1")]
    Zero {
        /// Name of the shape.
        model: String,
        /// The offending field.
        field: &'static str,
    },
    /// More experts per token than experts.
    #[error("model shape `{model}`: top_k is {top_k} but a layer has {experts} experts")]
    TopK {
        /// Name of the shape.
        model: String,
        /// Experts per token.
        top_k: u8,
        /// Experts per layer.
        experts: u16,
    },
    /// A count beyond what ids and buffers are sized for.
    #[error("model shape `{model}`: field `{field}` is {value}, expected at most {limit}")]
    TooLarge {
        /// Name of the shape.
        model: String,
        /// The offending field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The largest value taken.
        limit: u64,
    },
}

impl ModelShape {
    /// Layers beyond this are refused: no model has a tenth of it, and buffers are sized by it.
    pub const LAYERS_MAX: u16 = 1024;
    /// Experts per layer beyond this are refused; the largest model known has 512.
    pub const EXPERTS_MAX: u16 = 8192;
    /// Experts per token beyond this are refused; the largest known is 22.
    pub const TOP_K_MAX: u8 = 64;

    /// Checks that the counts make sense together.
    ///
    /// # Errors
    /// Names the first field that is zero, too large, or contradicts another.
    pub fn validate(&self) -> Result<(), ShapeError> {
        let zero = |field| ShapeError::Zero { model: self.name.clone(), field };
        for (field, value) in [
            ("moe_layers", u32::from(self.moe_layers)),
            ("experts", u32::from(self.experts)),
            ("top_k", u32::from(self.top_k)),
            ("hidden", self.hidden),
            ("expert_width", self.expert_width),
        ] {
            if value == 0 {
                return Err(zero(field));
            }
        }
        for (field, value, limit) in [
            ("moe_layers", u64::from(self.moe_layers), u64::from(Self::LAYERS_MAX)),
            ("experts", u64::from(self.experts), u64::from(Self::EXPERTS_MAX)),
            ("top_k", u64::from(self.top_k), u64::from(Self::TOP_K_MAX)),
            ("hidden", u64::from(self.hidden), 1 << 20),
            ("expert_width", u64::from(self.expert_width), 1 << 20),
        ] {
            if value > limit {
                return Err(ShapeError::TooLarge { model: self.name.clone(), field, value, limit });
            }
        }
        if u16::from(self.top_k) > self.experts {
            return Err(ShapeError::TopK {
                model: self.name.clone(),
                top_k: self.top_k,
                experts: self.experts,
            });
        }
        Ok(())
    }

    /// Bytes of one routed expert: three matrices of `hidden × expert_width`, scales left out.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        (3.0 * f64::from(self.hidden)
            * f64::from(self.expert_width)
            * self.weights.bytes_per_weight()) as u64
    }

    /// Operations of one token row through one routed expert: `6 · hidden · expert_width`.
    #[must_use]
    pub fn expert_flops_per_row(&self) -> f64 {
        6.0 * f64::from(self.hidden) * f64::from(self.expert_width)
    }

    /// Bytes of KV that one token occupies over all layers.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> u64 {
        let elements = match self.attention {
            Attention::Mla { kv_lora_rank, rope_dim, .. } => kv_lora_rank + rope_dim,
            Attention::Gqa { kv_heads, head_dim, .. } => 2 * kv_heads * head_dim,
        };
        u64::from(elements)
            * u64::from(self.kv_element_bytes)
            * (u64::from(self.moe_layers) + u64::from(self.dense_layers))
    }

    /// Names accepted by [`ModelShape::known`].
    pub const KNOWN: [&'static str; 6] = [
        "deepseek-v2-lite",
        "deepseek-v3",
        "gpt-oss-20b",
        "mixtral-8x7b",
        "olmoe-1b-7b",
        "qwen3-30b-a3b",
    ];

    /// The shape of a well-known model by name, from its published configuration.
    #[must_use]
    pub fn known(name: &str) -> Option<Self> {
        let mla = |heads| Attention::Mla { heads, kv_lora_rank: 512, rope_dim: 64 };
        let gqa = |heads, kv_heads, head_dim| Attention::Gqa { heads, kv_heads, head_dim };
        let base = Self {
            name: name.to_owned(),
            revision: "main".to_owned(),
            tokenizer_revision: String::new(),
            moe_layers: 0,
            dense_layers: 0,
            experts: 0,
            top_k: 0,
            shared_experts: 0,
            hidden: 0,
            expert_width: 0,
            dense_width: 0,
            vocab: 0,
            weights: WeightFormat::Bf16,
            attention: mla(16),
            kv_element_bytes: 2,
            groups: None,
        };
        Some(match name {
            "deepseek-v2-lite" => Self {
                moe_layers: 26,
                dense_layers: 1,
                experts: 64,
                top_k: 6,
                shared_experts: 2,
                hidden: 2048,
                expert_width: 1408,
                dense_width: 10_944,
                vocab: 102_400,
                ..base
            },
            "deepseek-v3" => Self {
                moe_layers: 58,
                dense_layers: 3,
                experts: 256,
                top_k: 8,
                shared_experts: 1,
                hidden: 7168,
                expert_width: 2048,
                dense_width: 18_432,
                vocab: 129_280,
                weights: WeightFormat::Fp8Block,
                attention: mla(128),
                groups: Some(ExpertGroups { groups: 8, top_groups: 4 }),
                ..base
            },
            "gpt-oss-20b" => Self {
                moe_layers: 24,
                experts: 32,
                top_k: 4,
                hidden: 2880,
                expert_width: 2880,
                vocab: 201_088,
                weights: WeightFormat::Mxfp4,
                attention: gqa(64, 8, 64),
                ..base
            },
            "mixtral-8x7b" => Self {
                moe_layers: 32,
                experts: 8,
                top_k: 2,
                hidden: 4096,
                expert_width: 14_336,
                vocab: 32_000,
                attention: gqa(32, 8, 128),
                ..base
            },
            "olmoe-1b-7b" => Self {
                moe_layers: 16,
                experts: 64,
                top_k: 8,
                hidden: 2048,
                expert_width: 1024,
                vocab: 50_304,
                attention: gqa(16, 16, 128),
                ..base
            },
            "qwen3-30b-a3b" => Self {
                moe_layers: 48,
                experts: 128,
                top_k: 8,
                hidden: 2048,
                expert_width: 768,
                vocab: 151_936,
                attention: gqa(32, 4, 128),
                ..base
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_shapes_are_valid_and_named() {
        for name in ModelShape::KNOWN {
            let shape = ModelShape::known(name).unwrap();
            assert_eq!(shape.name, name);
            shape.validate().unwrap();
        }
        assert!(ModelShape::known("nothing").is_none());
    }

    #[test]
    fn deepseek_v3_expert_is_44_megabytes() {
        let shape = ModelShape::known("deepseek-v3").unwrap();
        assert_eq!(shape.expert_bytes(), 44_040_192);
        assert_eq!(shape.kv_bytes_per_token(), 576 * 2 * 61);
    }
}
