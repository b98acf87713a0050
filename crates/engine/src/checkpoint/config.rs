//! `config.json`: which of the supported architectures a checkpoint is, and its dimensions.

use crate::EngineError;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3-MoE: norms on query and key heads.
    Qwen3Moe,
    /// Qwen2-MoE: biases on query, key and value; a gated shared expert.
    Qwen2Moe,
    /// OLMoE: norms over the whole query and key rows.
    Olmoe,
    /// Mixtral.
    Mixtral,
}

/// Dimensions and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Layers, all of them with experts.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Inner width of an expert.
    pub expert_width: usize,
    /// Inner width of the shared expert; 0 where there is none.
    pub shared_width: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub renormalise: bool,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Most positions.
    pub positions: usize,
    /// Base of the rotary embedding.
    pub rope_theta: f32,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Whether query, key and value have biases.
    pub attention_bias: bool,
    /// Largest magnitude of query, key and value (OLMoE's `clip_qkv`).
    pub clip_qkv: Option<f32>,
    /// Tokens that end a text.
    pub end_tokens: Vec<u32>,
}

impl ModelConfig {
    /// Reads `config.json` of a checkpoint's folder.
    ///
    /// # Errors
    /// A file that is absent or not JSON; a field that is absent, of another type, or whose value
    /// is not supported. The message names file, field and value.
    pub fn read(folder: &Path) -> Result<Self, EngineError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| EngineError::Read { path: path.clone(), source })?;
        Self::parse(&path, &text)
    }

    /// Parses the text of a `config.json`; `path` is for messages.
    ///
    /// # Errors
    /// As [`ModelConfig::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, EngineError> {
        let fields: Map<String, Value> = serde_json::from_str(text)
            .map_err(|source| EngineError::Json { path: path.to_owned(), source })?;
        Fields { path: path.to_owned(), fields }.config()
    }

    /// Numbers in a row of all query heads.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers in a row of all key (or value) heads.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

struct Fields {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Fields {
    fn config(&self) -> Result<ModelConfig, EngineError> {
        let architecture = self.architecture()?;
        let mixtral = architecture == Architecture::Mixtral;
        self.refuse("rope_scaling", |value| value.is_null(), "null: scaled positions")?;
        self.refuse("hidden_act", |value| value == "silu", "`silu`")?;
        let windowless = |value: &Value| value.is_null() || value == &Value::Bool(false);
        self.refuse("use_sliding_window", windowless, "false: sliding windows")?;
        if mixtral {
            self.refuse("sliding_window", Value::is_null, "null: sliding windows")?;
        }
        self.refuse("decoder_sparse_step", |value| value == 1, "1: layers without experts")?;
        let none = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value.is_null();
        self.refuse("mlp_only_layers", none, "[]: layers without experts")?;
        let (hidden, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        // Both names are in use, also for the same family.
        let local = mixtral || self.fields.contains_key("num_local_experts");
        let experts = self.count(if local { "num_local_experts" } else { "num_experts" })?;
        let olmoe = architecture == Architecture::Olmoe;
        let width = if mixtral || olmoe { "intermediate_size" } else { "moe_intermediate_size" };
        let shared_width = match architecture {
            Architecture::Qwen2Moe => self.count("shared_expert_intermediate_size")?,
            _ => 0,
        };
        let config = ModelConfig {
            architecture,
            layers: self.count("num_hidden_layers")?,
            hidden,
            heads,
            kv_heads: self.count_or("num_key_value_heads", heads)?,
            head_dim: self.count_or("head_dim", hidden / heads)?,
            experts,
            top_k: self.count("num_experts_per_tok")?,
            expert_width: self.count(width)?,
            shared_width,
            renormalise: mixtral || self.flag("norm_topk_prob", false)?,
            vocab: self.count("vocab_size")?,
            positions: self.count("max_position_embeddings")?,
            rope_theta: self.rope_theta()?,
            epsilon: self.number("rms_norm_eps")? as f32,
            tied: self.flag("tie_word_embeddings", false)?,
            attention_bias: match architecture {
                Architecture::Qwen2Moe => self.flag("qkv_bias", true)?,
                _ => self.flag("attention_bias", false)?,
            },
            clip_qkv: match self.fields.get("clip_qkv") {
                None | Some(Value::Null) => None,
                Some(_) => Some(self.number("clip_qkv")? as f32),
            },
            end_tokens: self.end_tokens()?,
        };
        self.check(&config)?;
        Ok(config)
    }

    fn architecture(&self) -> Result<Architecture, EngineError> {
        let expected = "one of Qwen3MoeForCausalLM, Qwen2MoeForCausalLM, OlmoeForCausalLM, \
                        MixtralForCausalLM";
        let named = self.fields.get("architectures").and_then(|list| list.get(0));
        match named.and_then(Value::as_str) {
            Some("Qwen3MoeForCausalLM") => Ok(Architecture::Qwen3Moe),
            Some("Qwen2MoeForCausalLM") => Ok(Architecture::Qwen2Moe),
            Some("OlmoeForCausalLM") => Ok(Architecture::Olmoe),
            Some("MixtralForCausalLM") => Ok(Architecture::Mixtral),
            _ => Err(self.wrong("architectures", expected)),
        }
    }

    /// Dimensions that do not fit together would fail later, and less clearly.
    fn check(&self, config: &ModelConfig) -> Result<(), EngineError> {
        if !config.heads.is_multiple_of(config.kv_heads) {
            return Err(self.wrong("num_key_value_heads", "a divisor of num_attention_heads"));
        }
        if !config.head_dim.is_multiple_of(2) {
            return Err(self.wrong("head_dim", "an even number"));
        }
        if config.top_k > config.experts {
            return Err(self.wrong("num_experts_per_tok", "at most the number of experts"));
        }
        if config.experts > usize::from(u16::MAX) || config.layers > usize::from(u16::MAX) {
            return Err(self.wrong("num_experts", "at most 65535"));
        }
        Ok(())
    }

    /// Transformers 5 keeps the base under `rope_parameters`.
    fn rope_theta(&self) -> Result<f32, EngineError> {
        if let Some(Value::Object(rope)) = self.fields.get("rope_parameters") {
            let kind = rope.get("rope_type").and_then(Value::as_str).unwrap_or("default");
            return match rope.get("rope_theta").and_then(Value::as_f64) {
                Some(theta) if kind == "default" => Ok(theta as f32),
                _ => Err(self.wrong("rope_parameters", "rope_type `default` and a rope_theta")),
            };
        }
        Ok(if self.fields.contains_key("rope_theta") {
            self.number("rope_theta")? as f32
        } else {
            10_000.0
        })
    }

    fn end_tokens(&self) -> Result<Vec<u32>, EngineError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let found = match self.fields.get("eos_token_id") {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(one) => id(one).map(|id| vec![id]),
        };
        found.ok_or_else(|| self.wrong("eos_token_id", "a token id or a list of them"))
    }

    fn refuse(
        &self,
        field: &'static str,
        supported: impl Fn(&Value) -> bool,
        expected: &'static str,
    ) -> Result<(), EngineError> {
        match self.fields.get(field) {
            Some(value) if !supported(value) => Err(self.wrong(field, expected)),
            _ => Ok(()),
        }
    }

    fn number(&self, field: &'static str) -> Result<f64, EngineError> {
        let value = self.fields.get(field).and_then(Value::as_f64);
        let positive = value.filter(|value| value.is_finite() && *value > 0.0);
        positive.ok_or_else(|| self.wrong(field, "a positive number"))
    }

    fn count(&self, field: &'static str) -> Result<usize, EngineError> {
        let value = self.fields.get(field).and_then(Value::as_u64);
        let positive = value.filter(|value| (1..1 << 31).contains(value));
        positive.map(|value| value as usize).ok_or_else(|| self.wrong(field, "a positive integer"))
    }

    fn count_or(&self, field: &'static str, default: usize) -> Result<usize, EngineError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.count(field),
        }
    }

    fn flag(&self, field: &'static str, default: bool) -> Result<bool, EngineError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(field, "true or false")),
        }
    }

    fn wrong(&self, field: &'static str, expected: &'static str) -> EngineError {
        let found = self.fields.get(field).map_or("absent".into(), Value::to_string);
        EngineError::Config { path: self.path.clone(), field, found, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = r#"{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 8,
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32, "rope_theta": 1e4, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": true,
        "tie_word_embeddings": true, "eos_token_id": 0}"#;

    #[test]
    fn a_config_is_read_and_what_is_not_supported_is_named() {
        let path = Path::new("m/config.json");
        let config = ModelConfig::parse(path, TINY).unwrap();
        assert_eq!((config.query_width(), config.kv_width(), config.top_k), (32, 16, 2));
        assert_eq!(config.end_tokens, [0]);
        let with = |from: &str, to: &str| {
            ModelConfig::parse(path, &TINY.replace(from, to)).unwrap_err().to_string()
        };
        let message = with("Qwen3MoeForCausalLM", "LlamaForCausalLM");
        assert!(message.contains("architectures") && message.contains("Llama"), "{message}");
        let message = with("\"rope_theta\": 1e4", "\"rope_scaling\": {\"factor\": 2}");
        assert!(message.contains("rope_scaling"), "{message}");
        let message = with("\"num_experts\": 4", "\"num_experts\": -4");
        assert!(message.contains("num_experts") && message.contains("-4"), "{message}");
        let message = with("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3");
        assert!(message.contains("num_key_value_heads"), "{message}");
    }
}
