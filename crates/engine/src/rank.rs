//! One rank's share of a step: attention of its own sequences, its experts on everybody's rows.
//!
//! A step runs layer by layer: [`Rank::attend`] (attention, norm, router), then rows travel, then
//! [`Rank::run_experts`], then rows travel back, then [`Rank::combine`]. Who carries the rows is the
//! caller's business; nothing here knows whether ranks are processes.

use crate::checkpoint::{ModelConfig, Numerics};
use crate::model::{LayerWeights, Model, Projection};
use evenkeel_kernels::{
    AttentionShape, Choice, ExpertScratch, Isa, KvLayer, Rows, Stored, accumulate, attend, bf16,
    choose, exp, matmul, rms_norm, round_rows, run_expert,
};

/// A token that enters a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenIn<'a> {
    /// Its id.
    pub id: u32,
    /// Its position in its sequence.
    pub position: u32,
    /// KV blocks of its sequence.
    pub blocks: &'a [u32],
}

/// Rows on their way to an expert, of one layer, for one rank: `[row][hidden]`.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    /// Rows in f32; empty in the bf16 arithmetic.
    pub wide: Vec<f32>,
    /// Rows in bf16; empty in the f32 arithmetic.
    pub narrow: Vec<bf16>,
    /// `[(expert, row)]`, by expert: which rows each expert of this rank computes.
    pub work: Vec<(u16, u32)>,
}

impl Inbox {
    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        let Self { wide, narrow, work } = self;
        wide.clear();
        narrow.clear();
        work.clear();
    }
}

/// The KV of all layers, in the type that the arithmetic stores.
#[derive(Debug)]
enum Kv {
    F32(Vec<KvLayer<f32>>),
    Bf16(Vec<KvLayer<bf16>>),
}

/// One rank: its weights, its KV, and the rows of the step under way.
#[derive(Debug)]
pub struct Rank {
    model: Model,
    isa: Isa,
    kv: Kv,
    /// `[token][hidden]`: the residual stream.
    residual: Vec<f32>,
    /// `[token][hidden]`: what experts read, in f32 and, in the bf16 arithmetic, rounded.
    normed: Vec<f32>,
    narrow: Vec<bf16>,
    /// `[token][hidden]`: the shared expert's part.
    shared: Vec<f32>,
    /// `[token][top_k]`.
    choices: Vec<Choice>,
    /// `[token][experts]`: router logits, kept for comparison with a reference.
    router_logits: Vec<f32>,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    attended: Vec<f32>,
    scores: Vec<f32>,
    rows: Vec<f32>,
    narrow: Vec<bf16>,
    probabilities: Vec<f32>,
    chosen: Vec<Choice>,
    expert: ExpertScratch,
    inner: Vec<f32>,
}

impl Rank {
    /// A rank with so many KV blocks.
    #[must_use]
    pub fn new(model: Model, isa: Isa, kv_blocks: usize) -> Self {
        let config = model.checkpoint.config();
        let shape = AttentionShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        };
        let layers = config.layers;
        let kv = match model.numerics {
            Numerics::F32 => Kv::F32(vec![KvLayer::new(shape, kv_blocks); layers]),
            Numerics::Bf16 => Kv::Bf16(vec![KvLayer::new(shape, kv_blocks); layers]),
        };
        Self {
            model,
            isa,
            kv,
            residual: Vec::new(),
            normed: Vec::new(),
            narrow: Vec::new(),
            shared: Vec::new(),
            choices: Vec::new(),
            router_logits: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// The model's dimensions.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.model.checkpoint.config()
    }

    /// The model, to take experts in or give them up between steps.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Begins a step: the tokens' embeddings.
    pub fn begin(&mut self, tokens: &[TokenIn<'_>]) {
        let hidden = self.model.checkpoint.config().hidden;
        self.residual.resize(tokens.len() * hidden, 0.0);
        for (token, row) in tokens.iter().zip(self.residual.chunks_exact_mut(hidden)) {
            self.model.checkpoint.row(&self.model.embedding, token.id as usize, row);
        }
    }

    /// Attention, the norm before the experts, and the router, of one layer.
    pub fn attend(&mut self, layer: usize, tokens: &[TokenIn<'_>]) {
        let Self { model, isa, kv, scratch, .. } = self;
        let weights = &model.layers[layer];
        let config = model.checkpoint.config();
        let rows = tokens.len();
        scratch.rows.resize(self.residual.len(), 0.0);
        rms_norm(&self.residual, &weights.input_norm, config.epsilon, &mut scratch.rows);
        if model.numerics == Numerics::Bf16 {
            round_rows(&scratch.rows, &mut scratch.narrow);
        }
        let x = match model.numerics {
            Numerics::F32 => Rows::F32(&scratch.rows),
            Numerics::Bf16 => Rows::Bf16(&scratch.narrow),
        };
        let projected = |part: &Projection, width: usize, y: &mut Vec<f32>| {
            y.resize(rows * width, 0.0);
            matmul(*isa, x, model.checkpoint.view(&part.weights), y);
            if let Some(bias) = &part.bias {
                y.chunks_exact_mut(width).for_each(|row| accumulate(1.0, bias, row));
            }
            if let Some(limit) = config.clip_qkv {
                y.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
            }
        };
        projected(&weights.query, config.query_width(), &mut scratch.query);
        projected(&weights.key, config.kv_width(), &mut scratch.key);
        projected(&weights.value, config.kv_width(), &mut scratch.value);
        normalise(&weights.query_norm, config.epsilon, &mut scratch.query, &mut scratch.inner);
        normalise(&weights.key_norm, config.epsilon, &mut scratch.key, &mut scratch.inner);
        let (query_width, kv_width) = (config.query_width(), config.kv_width());
        for (row, token) in tokens.iter().enumerate() {
            let position = token.position as usize;
            model.rope.rotate(position, &mut scratch.query[row * query_width..][..query_width]);
            model.rope.rotate(position, &mut scratch.key[row * kv_width..][..kv_width]);
        }
        scratch.attended.resize(rows * query_width, 0.0);
        match kv {
            Kv::F32(kv) => attend_rows(*isa, &mut kv[layer], tokens, kv_width, scratch),
            Kv::Bf16(kv) => attend_rows(*isa, &mut kv[layer], tokens, kv_width, scratch),
        }
        scratch.inner.resize(self.residual.len(), 0.0);
        if model.numerics == Numerics::Bf16 {
            round_rows(&scratch.attended, &mut scratch.narrow);
        }
        let x = match model.numerics {
            Numerics::F32 => Rows::F32(&scratch.attended),
            Numerics::Bf16 => Rows::Bf16(&scratch.narrow),
        };
        matmul(*isa, x, model.checkpoint.view(&weights.output), &mut scratch.inner);
        accumulate(1.0, &scratch.inner, &mut self.residual);
        self.route(layer);
    }

    /// The norm before the experts, the router, and the shared expert.
    fn route(&mut self, layer: usize) {
        let Self { model, isa, scratch, .. } = self;
        let weights = &model.layers[layer];
        let config = model.checkpoint.config();
        self.normed.resize(self.residual.len(), 0.0);
        rms_norm(&self.residual, &weights.experts_norm, config.epsilon, &mut self.normed);
        if model.numerics == Numerics::Bf16 {
            round_rows(&self.normed, &mut self.narrow);
        }
        // The router decides in f32 in both arithmetics: it costs little and flips less.
        let rows = self.normed.len() / config.hidden;
        self.router_logits.resize(rows * config.experts, 0.0);
        let router = model.checkpoint.view(&weights.router);
        matmul(*isa, Rows::F32(&self.normed), router, &mut self.router_logits);
        self.choices.clear();
        for logits in self.router_logits.chunks_exact(config.experts) {
            scratch.probabilities.clear();
            scratch.probabilities.extend_from_slice(logits);
            let chosen = &mut scratch.chosen;
            choose(&mut scratch.probabilities, config.top_k, config.renormalise, chosen);
            self.choices.extend_from_slice(chosen);
        }
        self.run_shared(layer);
    }

    fn run_shared(&mut self, layer: usize) {
        let Self { model, isa, scratch, .. } = self;
        let LayerWeights { shared: Some(shared), .. } = &model.layers[layer] else { return };
        self.shared.resize(self.normed.len(), 0.0);
        let x = match model.numerics {
            Numerics::F32 => Rows::F32(&self.normed),
            Numerics::Bf16 => Rows::Bf16(&self.narrow),
        };
        let mlp = shared.mlp.view(&model.checkpoint);
        run_expert(*isa, &mlp, x, &mut scratch.expert, &mut self.shared);
        let hidden = model.checkpoint.config().hidden;
        scratch.inner.resize(self.normed.len() / hidden, 0.0);
        let gate = model.checkpoint.view(&shared.gate);
        matmul(*isa, Rows::F32(&self.normed), gate, &mut scratch.inner);
        for (row, gate) in self.shared.chunks_exact_mut(hidden).zip(&scratch.inner) {
            let open = 1.0 / (1.0 + exp(-gate));
            row.iter_mut().for_each(|value| *value *= open);
        }
    }

    /// `[token][top_k]`: the choices of the layer attended last, in the router's order.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// `[token][experts]`: router logits of the layer attended last.
    #[must_use]
    pub fn router_logits(&self) -> &[f32] {
        &self.router_logits
    }

    /// Appends a token's row, as experts read it, in the arithmetic's type.
    pub(crate) fn send(&self, token: usize, wide: &mut Vec<f32>, narrow: &mut Vec<bf16>) {
        let hidden = self.config().hidden;
        let row = token * hidden..(token + 1) * hidden;
        match self.model.numerics {
            Numerics::F32 => wide.extend_from_slice(&self.normed[row]),
            Numerics::Bf16 => narrow.extend_from_slice(&self.narrow[row]),
        }
    }

    /// Runs this rank's experts on an inbox whose work is sorted by expert. `out` becomes
    /// `[work][hidden]`: one row per piece of work. Work for an expert that this rank does not hold
    /// is returned as its index.
    ///
    /// # Errors
    /// The index of work that this rank cannot do.
    pub fn run_experts(
        &mut self,
        layer: usize,
        inbox: &Inbox,
        out: &mut Vec<f32>,
    ) -> Result<(), usize> {
        let Self { model, isa, scratch, .. } = self;
        let hidden = model.checkpoint.config().hidden;
        out.resize(inbox.work.len() * hidden, 0.0);
        let mut start = 0;
        for work in inbox.work.chunk_by(|a, b| a.0 == b.0) {
            let expert = usize::from(work[0].0);
            let Some(Some(weights)) = model.layers[layer].experts.get(expert) else {
                return Err(start);
            };
            let y = &mut out[start * hidden..][..work.len() * hidden];
            let row = |index: u32| index as usize * hidden..(index as usize + 1) * hidden;
            scratch.rows.clear();
            scratch.narrow.clear();
            let x = match model.numerics {
                Numerics::F32 => {
                    work.iter().for_each(|w| scratch.rows.extend_from_slice(&inbox.wide[row(w.1)]));
                    Rows::F32(&scratch.rows)
                }
                Numerics::Bf16 => {
                    let rows = &mut scratch.narrow;
                    work.iter().for_each(|w| rows.extend_from_slice(&inbox.narrow[row(w.1)]));
                    Rows::Bf16(rows)
                }
            };
            run_expert(*isa, &weights.view(&model.checkpoint), x, &mut scratch.expert, y);
            start += work.len();
        }
        Ok(())
    }

    /// Adds the experts' outputs to the residual stream: `output(token, k)` is the row that the
    /// `k`-th choice of a token brought back. Summed in the router's order, the shared expert last.
    pub fn combine<'a>(&mut self, layer: usize, output: impl Fn(usize, usize) -> &'a [f32]) {
        let Self { model, scratch, .. } = self;
        let config = model.checkpoint.config();
        let hidden = config.hidden;
        scratch.inner.resize(hidden, 0.0);
        for (token, row) in self.residual.chunks_exact_mut(hidden).enumerate() {
            scratch.inner.fill(0.0);
            let choices = &self.choices[token * config.top_k..][..config.top_k];
            for (k, choice) in choices.iter().enumerate() {
                accumulate(choice.weight, output(token, k), &mut scratch.inner);
            }
            if model.layers[layer].shared.is_some() {
                accumulate(1.0, &self.shared[token * hidden..][..hidden], &mut scratch.inner);
            }
            accumulate(1.0, &scratch.inner, row);
        }
    }

    /// `[token][hidden]`: the residual stream as it stands.
    #[must_use]
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Logits over the vocabulary of one token of the step. `into` is overwritten.
    pub fn logits(&mut self, token: usize, into: &mut Vec<f32>) {
        let Self { model, isa, scratch, .. } = self;
        let config = model.checkpoint.config();
        let row = &self.residual[token * config.hidden..][..config.hidden];
        scratch.inner.resize(config.hidden, 0.0);
        rms_norm(row, &model.norm, config.epsilon, &mut scratch.inner);
        into.resize(config.vocab, 0.0);
        let head = model.checkpoint.view(model.head.as_ref().unwrap_or(&model.embedding));
        if model.numerics == Numerics::Bf16 {
            round_rows(&scratch.inner, &mut scratch.narrow);
        }
        let x = match model.numerics {
            Numerics::F32 => Rows::F32(&scratch.inner),
            Numerics::Bf16 => Rows::Bf16(&scratch.narrow),
        };
        matmul(*isa, x, head, into);
    }
}

/// Norms of heads, or of whole rows: as long as the norm's weight.
fn normalise(weight: &Option<Vec<f32>>, epsilon: f32, rows: &mut Vec<f32>, spare: &mut Vec<f32>) {
    if let Some(weight) = weight {
        spare.resize(rows.len(), 0.0);
        rms_norm(rows, weight, epsilon, spare);
        std::mem::swap(rows, spare);
    }
}

/// Puts all keys and values in place, then lets every query look at those up to its own.
fn attend_rows<S: Stored>(
    isa: Isa,
    kv: &mut KvLayer<S>,
    tokens: &[TokenIn<'_>],
    kv_width: usize,
    scratch: &mut Scratch,
) {
    for (row, token) in tokens.iter().enumerate() {
        let range = row * kv_width..(row + 1) * kv_width;
        let (key, value) = (&scratch.key[range.clone()], &scratch.value[range]);
        kv.put(token.blocks, token.position as usize, key, value);
    }
    let width = scratch.query.len() / tokens.len().max(1);
    for (row, token) in tokens.iter().enumerate() {
        let range = row * width..(row + 1) * width;
        let keys = token.position as usize + 1;
        let (query, out) = (&scratch.query[range.clone()], &mut scratch.attended[range]);
        attend(isa, kv, token.blocks, keys, query, &mut scratch.scores, out);
    }
}
