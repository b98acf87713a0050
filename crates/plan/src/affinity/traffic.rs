//! Sampled tokens with the node that they come from.

use evenkeel_trace::Routes;
use evenkeel_types::{Phase, hash3, unit_f64};
use serde::Serialize;

/// How a fabric carries activations. The phase decides: see [`Mode::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every (token, expert) pair is a row of its own.
    LowLatency,
    /// A token crosses to a node once, and is handed on inside it.
    Normal,
}

impl Mode {
    /// The mode of a phase: decode is low latency, prefill is normal.
    #[must_use]
    pub const fn of(phase: Phase) -> Self {
        match phase {
            Phase::Decode => Self::LowLatency,
            Phase::Prefill => Self::Normal,
        }
    }
}

/// Sampled tokens of one phase, `experts[k]` per layer, and the nodes whose requests they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub(crate) layers: usize,
    pub(crate) experts: usize,
    pub(super) top_k: usize,
    /// `[token][layer][k]`.
    ids: Vec<u16>,
    /// `[node]`: tokens that come from it. A token may be listed at several nodes.
    pub(crate) lists: Vec<Vec<u32>>,
}

impl Traffic {
    /// Tokens of a phase, at most `tokens_max` of them at even distances.
    ///
    /// `share[slice][node]` says where a tenant's requests live: 1 everywhere lists each token at
    /// every node, i.e. placement that knows nothing of tenants.
    #[must_use]
    pub fn of_routes(
        routes: &Routes,
        phase: Phase,
        share: &[Vec<f64>],
        tokens_max: usize,
        seed: u64,
    ) -> Self {
        let nodes = share.iter().map(Vec::len).max().unwrap_or(0);
        let mut tokens = Vec::new();
        for request in routes.requests() {
            let (from, to) = match phase {
                Phase::Prefill => (0, request.prompt_tokens),
                Phase::Decode => (request.prompt_tokens, request.tokens),
            };
            tokens.extend((from..to).map(|at| (request.first_token + at as usize, request.slice)));
        }
        let taken = tokens.len().min(tokens_max);
        let (mut ids, mut lists) = (Vec::new(), vec![Vec::new(); nodes]);
        for index in 0..taken {
            let (token, slice) = tokens[index * tokens.len() / taken];
            ids.extend_from_slice(routes.token(token));
            let Some(share) = share.get(slice.index()) else { continue };
            let most = share.iter().copied().fold(0.0, f64::max);
            for (node, share) in share.iter().enumerate() {
                if unit_f64(hash3(seed, token as u64, node as u64)) * most < *share {
                    lists[node].push(index as u32);
                }
            }
        }
        let (layers, experts) = (routes.layers(), usize::from(routes.experts()));
        Self { layers, experts, top_k: routes.top_k(), ids, lists }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.lists.len()
    }

    /// A token's choices in a layer.
    pub(super) fn choices(&self, token: u32, layer: usize) -> &[u16] {
        let start = (token as usize * self.layers + layer) * self.top_k;
        &self.ids[start..start + self.top_k]
    }

    /// One layer alone.
    pub(super) fn of_layer(&self, layer: usize) -> Self {
        let tokens = (self.ids.len() / (self.layers * self.top_k)) as u32;
        let ids = (0..tokens).flat_map(|token| self.choices(token, layer)).copied().collect();
        Self { layers: 1, ids, lists: self.lists.clone(), ..*self }
    }

    /// `[node * experts + expert]`: rows of a layer.
    #[must_use]
    pub fn rows(&self, layer: usize) -> Vec<f64> {
        let mut rows = vec![0.0; self.nodes() * self.experts];
        for (node, list) in self.lists.iter().enumerate() {
            for token in list {
                for expert in self.choices(*token, layer) {
                    rows[node * self.experts + usize::from(*expert)] += 1.0;
                }
            }
        }
        rows
    }
}
