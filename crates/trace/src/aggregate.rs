//! Aggregation: routing rows to load matrices, link rows to size and frequency distributions,
//! recorded routing to counts by slice.
//!
//! Everything is keyed by phase (law 5) and takes rows one by one, so that memory does not grow
//! with the trace.

use crate::{Direction, LinkRow, Routes, RoutingRow};
use evenkeel_types::{Phase, RankId};
use std::collections::BTreeMap;

/// Choices of a window, per phase: by layer and expert, by layer and serving rank, by source rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadMatrix {
    /// Layers.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Ranks.
    pub ranks: usize,
    phases: [PhaseLoad; 2],
}

/// The part of a [`LoadMatrix`] that belongs to one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhaseLoad {
    /// Steps that had routing rows.
    pub steps: u64,
    /// `[layer * experts + expert]`: choices.
    pub by_expert: Vec<u64>,
    /// `[layer * ranks + rank]`: choices served by the rank's copies.
    pub by_host: Vec<u64>,
    /// `[layer * ranks + rank]`: choices of the rank's tokens.
    pub by_source: Vec<u64>,
    /// Choices of which the record does not say who served them; absent from `by_host`.
    pub unhosted: u64,
}

impl LoadMatrix {
    /// An empty matrix.
    #[must_use]
    pub fn new(layers: usize, experts: usize, ranks: usize) -> Self {
        let phase = PhaseLoad {
            steps: 0,
            by_expert: vec![0; layers * experts],
            by_host: vec![0; layers * ranks],
            by_source: vec![0; layers * ranks],
            unhosted: 0,
        };
        Self { layers, experts, ranks, phases: [phase.clone(), phase] }
    }

    /// The loads of one phase.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> &PhaseLoad {
        &self.phases[phase.index()]
    }

    /// Counts one more step with routing rows.
    pub fn add_step(&mut self, phase: Phase) {
        self.phases[phase.index()].steps += 1;
    }

    /// Adds a row. Ids must be within the matrix.
    #[inline]
    pub fn add(&mut self, phase: Phase, row: &RoutingRow) {
        let tokens = u64::from(row.tokens);
        let layer = row.layer.index();
        let load = &mut self.phases[phase.index()];
        load.by_expert[layer * self.experts + row.expert.index()] += tokens;
        load.by_source[layer * self.ranks + row.source.index()] += tokens;
        match row.host {
            Some(host) => load.by_host[layer * self.ranks + host.index()] += tokens,
            None => load.unhosted += tokens,
        }
    }
}

/// Number of buckets of a [`Log2Histogram`].
pub const LOG2_BUCKETS: usize = 65;

/// A distribution in powers of two: bucket 0 holds zeros, bucket b values in `2^(b-1) .. 2^b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log2Histogram {
    /// Weight per bucket.
    pub buckets: [u64; LOG2_BUCKETS],
}

impl Default for Log2Histogram {
    fn default() -> Self {
        Self { buckets: [0; LOG2_BUCKETS] }
    }
}

impl Log2Histogram {
    /// Adds a value with a weight.
    pub fn add(&mut self, value: u64, weight: u64) {
        self.buckets[(u64::BITS - value.leading_zeros()) as usize] += weight;
    }

    /// Total weight.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// First value of a bucket.
    #[must_use]
    pub fn floor(bucket: usize) -> u64 {
        match bucket {
            0 => 0,
            bucket => 1 << (bucket - 1).min(63),
        }
    }
}

/// A link: phase, way, sending and receiving rank.
pub type LinkKey = (Phase, Direction, RankId, RankId);

/// Traffic of one link over a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Largest message, bytes.
    pub largest_bytes: u64,
    /// Time the link was moving data, ns; 0 where the record does not say.
    pub service_ns: u64,
    /// Message sizes, bytes, weighted by messages. Within one step and layer only the mean size and
    /// the largest are recorded: the largest counts at its own size, the others at their mean.
    pub sizes: Log2Histogram,
    /// Messages per step and layer in which the link was used.
    pub frequency: Log2Histogram,
}

/// Traffic by link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkMatrix {
    /// The links that carried anything, in key order.
    pub links: BTreeMap<LinkKey, LinkTraffic>,
}

impl LinkMatrix {
    /// Adds a row.
    pub fn add(&mut self, phase: Phase, row: &LinkRow) {
        let key = (phase, row.direction, row.source, row.destination);
        let link = self.links.entry(key).or_default();
        let messages = u64::from(row.messages);
        link.messages += messages;
        link.bytes = link.bytes.saturating_add(row.bytes);
        link.largest_bytes = link.largest_bytes.max(row.largest_bytes);
        link.service_ns = link.service_ns.saturating_add(row.service_ns);
        link.frequency.add(messages, 1);
        if messages > 0 {
            link.sizes.add(row.largest_bytes, 1);
        }
        if messages > 1 {
            let rest = row.bytes.saturating_sub(row.largest_bytes);
            link.sizes.add(rest / (messages - 1), messages - 1);
        }
    }
}

/// Choices of recorded routing by slice: `[slice][layer * experts + expert]`, of the prompt tokens
/// (prefill) or the output tokens (decode) alone.
#[must_use]
pub fn counts_by_slice(routes: &Routes, slices: usize, phase: Phase) -> Vec<Vec<u64>> {
    let cells = routes.layers() * usize::from(routes.experts());
    let mut counts = vec![vec![0; cells]; slices];
    for request in routes.requests() {
        let Some(sums) = counts.get_mut(request.slice.index()) else { continue };
        let (prompt, all) = (request.prompt_tokens as usize, request.tokens as usize);
        let part = match phase {
            Phase::Prefill => 0..prompt,
            Phase::Decode => prompt..all,
        };
        let tokens = part.map(|position| request.first_token + position);
        for (sum, count) in sums.iter_mut().zip(routes.counts(tokens)) {
            *sum += count;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordedRequest;
    use evenkeel_types::{ExpertId, LayerId, ModelShape, SliceId};

    #[test]
    fn phases_are_never_added_up() {
        let mut loads = LoadMatrix::new(2, 4, 2);
        let row = |expert, host, tokens| RoutingRow {
            layer: LayerId(1),
            source: RankId(0),
            expert: ExpertId(expert),
            host,
            tokens,
        };
        loads.add(Phase::Prefill, &row(3, Some(RankId(1)), 100));
        loads.add(Phase::Decode, &row(3, None, 5));
        assert_eq!(loads.phase(Phase::Decode).by_expert[4 + 3], 5);
        assert_eq!(loads.phase(Phase::Decode).unhosted, 5);
        assert_eq!(loads.phase(Phase::Prefill).by_host, [0, 0, 0, 100]);
        assert_eq!(loads.phase(Phase::Prefill).by_source, [0, 0, 100, 0]);
    }

    #[test]
    fn link_sizes_keep_every_message() {
        let mut links = LinkMatrix::default();
        let row = LinkRow {
            layer: LayerId(0),
            direction: Direction::Dispatch,
            source: RankId(0),
            destination: RankId(1),
            messages: 5,
            bytes: 4 * 1000 + 4096,
            largest_bytes: 4096,
            service_ns: 7,
        };
        links.add(Phase::Decode, &row);
        links.add(Phase::Prefill, &row);
        assert_eq!(links.links.len(), 2);
        let key = (Phase::Decode, Direction::Dispatch, RankId(0), RankId(1));
        let link = &links.links[&key];
        assert_eq!((link.sizes.total(), link.frequency.total()), (5, 1));
        assert_eq!((link.sizes.buckets[10], link.sizes.buckets[13]), (4, 1));
        assert_eq!((Log2Histogram::floor(10), Log2Histogram::floor(0)), (512, 0));
    }

    #[test]
    fn slices_and_phases_split_recorded_tokens() {
        let shape = ModelShape {
            moe_layers: 1,
            experts: 4,
            top_k: 1,
            ..ModelShape::known("olmoe-1b-7b").unwrap()
        };
        let request = |slice, first_token| RecordedRequest {
            request: u64::from(slice),
            slice: SliceId(slice),
            first_token,
            prompt_tokens: 2,
            tokens: 3,
        };
        let ids = vec![0, 0, 1, 2, 3, 3];
        let routes = Routes::new(&shape, vec![request(0, 0), request(1, 3)], ids).unwrap();
        let decode = counts_by_slice(&routes, 2, Phase::Decode);
        assert_eq!(decode, [[0, 1, 0, 0], [0, 0, 0, 1]]);
        let prefill = counts_by_slice(&routes, 3, Phase::Prefill);
        assert_eq!(prefill, [[2, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]);
    }
}
