//! A model's weights by their place in the forward pass, as one rank needs them.

use crate::EngineError;
use crate::checkpoint::{Architecture, Checkpoint, Numerics, Weights};
use evenkeel_kernels::{ExpertWeights, Rope};
use std::sync::Arc;

/// A model with the experts that one rank holds.
#[derive(Debug)]
pub struct Model {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) numerics: Numerics,
    pub(crate) embedding: Weights,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: Vec<f32>,
    /// `None`: the embedding is the head.
    pub(crate) head: Option<Weights>,
    pub(crate) rope: Rope,
}

/// Weights of one layer.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) input_norm: Vec<f32>,
    pub(crate) query: Projection,
    pub(crate) key: Projection,
    pub(crate) value: Projection,
    pub(crate) output: Weights,
    pub(crate) query_norm: Option<Vec<f32>>,
    pub(crate) key_norm: Option<Vec<f32>>,
    pub(crate) experts_norm: Vec<f32>,
    pub(crate) router: Weights,
    /// `[expert]`: those that the rank holds.
    pub(crate) experts: Vec<Option<Swiglu>>,
    pub(crate) shared: Option<SharedExpert>,
}

/// A matrix with an optional bias.
#[derive(Debug)]
pub(crate) struct Projection {
    pub(crate) weights: Weights,
    pub(crate) bias: Option<Vec<f32>>,
}

/// The three matrices of an expert.
#[derive(Clone, Debug)]
pub(crate) struct Swiglu {
    gate: Weights,
    up: Weights,
    down: Weights,
}

impl Swiglu {
    pub(crate) fn view<'a>(&'a self, checkpoint: &'a Checkpoint) -> ExpertWeights<'a> {
        ExpertWeights {
            gate: checkpoint.view(&self.gate),
            up: checkpoint.view(&self.up),
            down: checkpoint.view(&self.down),
        }
    }
}

/// The expert that every token uses, behind a sigmoid gate.
#[derive(Debug)]
pub(crate) struct SharedExpert {
    pub(crate) mlp: Swiglu,
    /// `[1][hidden]`.
    pub(crate) gate: Weights,
}

impl Model {
    /// Loads everything but routed experts, and of those the ones for which `holds(layer, expert)`.
    ///
    /// # Errors
    /// Tensors that are missing, of another shape or type, or not finite.
    pub fn load(
        checkpoint: &Arc<Checkpoint>,
        numerics: Numerics,
        holds: impl Fn(usize, usize) -> bool,
    ) -> Result<Self, EngineError> {
        let config = checkpoint.config();
        let (hidden, vocab) = (config.hidden, config.vocab);
        let load = |name: &str, rows| checkpoint.matrix(name, rows, hidden, numerics);
        let head = match config.tied {
            true => None,
            false => Some(load("lm_head.weight", vocab)?),
        };
        let loader = Loader { checkpoint, numerics };
        let layers = (0..config.layers).map(|layer| loader.layer(layer, |e| holds(layer, e)));
        Ok(Self {
            numerics,
            embedding: load("model.embed_tokens.weight", vocab)?,
            layers: layers.collect::<Result<_, _>>()?,
            norm: checkpoint.vector("model.norm.weight", hidden)?,
            head,
            rope: Rope::new(config.head_dim, config.rope_theta, config.positions),
            checkpoint: Arc::clone(checkpoint),
        })
    }

    /// Takes another expert in, from the mapped checkpoint.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn take_expert(&mut self, layer: usize, expert: usize) -> Result<(), EngineError> {
        let loader = Loader { checkpoint: &self.checkpoint, numerics: self.numerics };
        let weights = loader.expert(layer, expert)?;
        self.layers[layer].experts[expert] = Some(weights);
        Ok(())
    }

    /// Gives an expert up.
    pub fn drop_expert(&mut self, layer: usize, expert: usize) {
        self.layers[layer].experts[expert] = None;
    }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    numerics: Numerics,
}

impl Loader<'_> {
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Weights, EngineError> {
        self.checkpoint.matrix(name, rows, cols, self.numerics)
    }

    fn layer(
        &self,
        layer: usize,
        holds: impl Fn(usize) -> bool,
    ) -> Result<LayerWeights, EngineError> {
        let config = self.checkpoint.config();
        let hidden = config.hidden;
        let (query, kv) = (config.query_width(), config.kv_width());
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        let vector = |name: &str, len| self.checkpoint.vector(&at(name), len);
        let projection = |name: &str, rows| -> Result<Projection, EngineError> {
            let bias = match config.attention_bias {
                true => Some(vector(&format!("self_attn.{name}.bias"), rows)?),
                false => None,
            };
            let weights = self.matrix(&at(&format!("self_attn.{name}.weight")), rows, hidden)?;
            Ok(Projection { weights, bias })
        };
        // Norms over each head (Qwen3) or over the whole row (OLMoE).
        let normed = |name: &str, width| match config.architecture {
            Architecture::Qwen3Moe => vector(name, config.head_dim).map(Some),
            Architecture::Olmoe => vector(name, width).map(Some),
            Architecture::Qwen2Moe | Architecture::Mixtral => Ok(None),
        };
        let router = match config.architecture {
            Architecture::Mixtral => "block_sparse_moe.gate.weight",
            _ => "mlp.gate.weight",
        };
        let shared = match config.shared_width {
            0 => None,
            width => Some(SharedExpert {
                mlp: self.swiglu(&at("mlp.shared_expert"), width)?,
                gate: self.matrix(&at("mlp.shared_expert_gate.weight"), 1, hidden)?,
            }),
        };
        let experts = (0..config.experts).map(|expert| match holds(expert) {
            true => self.expert(layer, expert).map(Some),
            false => Ok(None),
        });
        Ok(LayerWeights {
            input_norm: vector("input_layernorm.weight", hidden)?,
            query: projection("q_proj", query)?,
            key: projection("k_proj", kv)?,
            value: projection("v_proj", kv)?,
            output: self.matrix(&at("self_attn.o_proj.weight"), hidden, query)?,
            query_norm: normed("self_attn.q_norm.weight", query)?,
            key_norm: normed("self_attn.k_norm.weight", kv)?,
            experts_norm: vector("post_attention_layernorm.weight", hidden)?,
            router: self.matrix(&at(router), config.experts, hidden)?,
            experts: experts.collect::<Result<_, _>>()?,
            shared,
        })
    }

    fn expert(&self, layer: usize, expert: usize) -> Result<Swiglu, EngineError> {
        let config = self.checkpoint.config();
        if config.architecture == Architecture::Mixtral {
            let at = |part: &str| {
                format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}.weight")
            };
            let (hidden, width) = (config.hidden, config.expert_width);
            return Ok(Swiglu {
                gate: self.matrix(&at("w1"), width, hidden)?,
                up: self.matrix(&at("w3"), width, hidden)?,
                down: self.matrix(&at("w2"), hidden, width)?,
            });
        }
        self.swiglu(&format!("model.layers.{layer}.mlp.experts.{expert}"), config.expert_width)
    }

    fn swiglu(&self, prefix: &str, width: usize) -> Result<Swiglu, EngineError> {
        let hidden = self.checkpoint.config().hidden;
        Ok(Swiglu {
            gate: self.matrix(&format!("{prefix}.gate_proj.weight"), width, hidden)?,
            up: self.matrix(&format!("{prefix}.up_proj.weight"), width, hidden)?,
            down: self.matrix(&format!("{prefix}.down_proj.weight"), hidden, width)?,
        })
    }
}
