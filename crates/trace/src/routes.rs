//! Recorded routing, token by token: what a replay draws from.

use evenkeel_types::{ExpertId, ModelShape, SliceId};
use thiserror::Error;

/// One recorded request: a run of tokens in [`Routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// Number of the request in the trace.
    pub request: u64,
    /// Slice.
    pub slice: SliceId,
    /// Index of its first token in the id array.
    pub first_token: usize,
    /// Tokens that are prompt; the rest was, or is replayed as, decoded one by one.
    pub prompt_tokens: u32,
    /// All tokens, prompt and output.
    pub tokens: u32,
}

impl RecordedRequest {
    /// Tokens that are decoded one by one.
    #[must_use]
    pub fn output_tokens(&self) -> u32 {
        self.tokens - self.prompt_tokens
    }
}

/// Experts that the router chose, `[token][layer][k]`, and the requests that the tokens belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    layers: usize,
    top_k: usize,
    experts: u16,
    requests: Vec<RecordedRequest>,
    ids: Vec<u16>,
}

/// Why recorded routing is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RoutesError {
    /// The array does not divide into tokens.
    #[error("routing ids: {found} values are not a multiple of {layers} layers x top-{top_k}")]
    Ragged {
        /// Values in the array.
        found: usize,
        /// Layers per token.
        layers: usize,
        /// Experts per token and layer.
        top_k: usize,
    },
    /// An id that the model does not have.
    #[error(
        "routing ids: token {token}, layer {layer}, choice {choice}: expert {found}, expected below {experts}"
    )]
    OutOfRange {
        /// Token index.
        token: usize,
        /// Layer.
        layer: usize,
        /// Position among the k choices.
        choice: usize,
        /// The id.
        found: u16,
        /// Experts per layer.
        experts: u16,
    },
    /// One expert twice among a token's k choices.
    #[error("routing ids: token {token}, layer {layer}: expert {expert} is chosen twice")]
    Repeated {
        /// Token index.
        token: usize,
        /// Layer.
        layer: usize,
        /// The expert.
        expert: u16,
    },
    /// A request that points outside the array or overlaps another.
    #[error("request {request}: tokens {first}..{end} {problem}")]
    Request {
        /// Number of the request.
        request: u64,
        /// First token.
        first: usize,
        /// One past its last token.
        end: usize,
        /// What is wrong.
        problem: &'static str,
    },
}

impl Routes {
    /// Checks and takes recorded routing.
    ///
    /// `ids` is `[token][layer][k]`. Requests must not overlap and must lie within the array.
    ///
    /// # Errors
    /// Names the token, layer or request that is wrong.
    pub fn new(
        shape: &ModelShape,
        requests: Vec<RecordedRequest>,
        ids: Vec<u16>,
    ) -> Result<Self, RoutesError> {
        let (layers, top_k) = (usize::from(shape.moe_layers), usize::from(shape.top_k));
        let row = layers * top_k;
        if row == 0 || !ids.len().is_multiple_of(row) {
            return Err(RoutesError::Ragged { found: ids.len(), layers, top_k });
        }
        for (index, choice) in ids.chunks_exact(top_k).enumerate() {
            check_choice(choice, index / layers, index % layers, shape.experts)?;
        }
        let routes = Self { layers, top_k, experts: shape.experts, requests, ids };
        routes.check_requests()?;
        Ok(routes)
    }

    fn check_requests(&self) -> Result<(), RoutesError> {
        let tokens = self.tokens();
        let mut spans: Vec<_> = self.requests.iter().collect();
        spans.sort_by_key(|request| request.first_token);
        let mut free = 0;
        for request in spans {
            let end = request.first_token.saturating_add(request.tokens as usize);
            let problem = if end > tokens {
                "lie outside the recorded tokens"
            } else if request.first_token < free {
                "overlap another request's"
            } else if request.prompt_tokens > request.tokens {
                "are fewer than its prompt tokens"
            } else {
                free = end;
                continue;
            };
            let (request, first) = (request.request, request.first_token);
            return Err(RoutesError::Request { request, first, end, problem });
        }
        Ok(())
    }

    /// Layers per token.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Experts per token and layer.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Experts per layer.
    #[must_use]
    pub fn experts(&self) -> u16 {
        self.experts
    }

    /// Recorded tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.ids.len() / (self.layers * self.top_k)
    }

    /// The requests, in the order given.
    #[must_use]
    pub fn requests(&self) -> &[RecordedRequest] {
        &self.requests
    }

    /// All choices of a token, `[layer][k]`.
    #[must_use]
    pub fn token(&self, token: usize) -> &[u16] {
        let row = self.layers * self.top_k;
        &self.ids[token * row..(token + 1) * row]
    }

    /// A token's choices in one layer, in router order.
    #[must_use]
    pub fn choices(&self, token: usize, layer: usize) -> &[u16] {
        let start = (token * self.layers + layer) * self.top_k;
        &self.ids[start..start + self.top_k]
    }

    /// The same tokens with only the requests that `keep` takes (planning and judging halves).
    #[must_use]
    pub fn with_requests(&self, keep: impl Fn(&RecordedRequest) -> bool) -> Self {
        let row = self.layers * self.top_k;
        let (mut requests, mut ids) = (Vec::new(), Vec::new());
        for request in self.requests.iter().filter(|request| keep(request)) {
            let start = request.first_token * row;
            let first_token = ids.len() / row;
            ids.extend_from_slice(&self.ids[start..start + request.tokens as usize * row]);
            requests.push(RecordedRequest { first_token, ..*request });
        }
        Self { requests, ids, ..*self }
    }

    /// Sums choices over tokens: `[layer * experts + expert]`.
    #[must_use]
    pub fn counts(&self, tokens: impl Iterator<Item = usize>) -> Vec<u64> {
        let experts = usize::from(self.experts);
        let mut counts = vec![0; self.layers * experts];
        for token in tokens {
            for (layer, choices) in self.token(token).chunks_exact(self.top_k).enumerate() {
                for expert in choices {
                    counts[layer * experts + usize::from(*expert)] += 1;
                }
            }
        }
        counts
    }

    /// The expert behind one choice.
    #[must_use]
    pub fn expert(&self, token: usize, layer: usize, choice: usize) -> ExpertId {
        ExpertId(self.choices(token, layer)[choice])
    }
}

fn check_choice(
    choice: &[u16],
    token: usize,
    layer: usize,
    experts: u16,
) -> Result<(), RoutesError> {
    for (position, &found) in choice.iter().enumerate() {
        if found >= experts {
            return Err(RoutesError::OutOfRange { token, layer, choice: position, found, experts });
        }
        if choice[..position].contains(&found) {
            return Err(RoutesError::Repeated { token, layer, expert: found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ModelShape {
        ModelShape {
            moe_layers: 2,
            experts: 4,
            top_k: 2,
            ..ModelShape::known("olmoe-1b-7b").unwrap()
        }
    }

    fn request(first_token: usize, tokens: u32) -> RecordedRequest {
        RecordedRequest { request: 7, slice: SliceId(0), first_token, prompt_tokens: 1, tokens }
    }

    #[test]
    fn counts_and_subsets_agree() {
        let ids = vec![0, 1, 2, 3, 1, 2, 3, 0];
        let routes = Routes::new(&shape(), vec![request(0, 1), request(1, 1)], ids).unwrap();
        assert_eq!(routes.counts(0..2), [1, 2, 1, 0, 1, 0, 1, 2]);
        let second = routes.with_requests(|request| request.first_token == 1);
        assert_eq!(second.tokens(), 1);
        assert_eq!(second.choices(0, 1), [3, 0]);
    }

    #[test]
    fn every_fault_is_named() {
        let new = |requests, ids| Routes::new(&shape(), requests, ids).unwrap_err();
        assert!(matches!(new(vec![], vec![0, 1, 2]), RoutesError::Ragged { .. }));
        assert!(matches!(new(vec![], vec![0, 1, 4, 3]), RoutesError::OutOfRange { layer: 1, .. }));
        assert!(matches!(new(vec![], vec![0, 1, 3, 3]), RoutesError::Repeated { expert: 3, .. }));
        let ids = vec![0, 1, 2, 3];
        assert!(matches!(new(vec![request(0, 2)], ids), RoutesError::Request { .. }));
    }
}
