//! How much a layer's exchange moves, as tokens per rank of a balanced one.
//!
//! Exchange curves are measured on balanced routing with T tokens per rank. A layer's exchange
//! ends with its busiest rank (COST-MODEL section 4: assumed, no measurement under skew exists),
//! so it costs what a balanced one costs whose every rank moves as much as the busiest does here.

use super::placement::Placement;
use super::tally::Tally;
use evenkeel_types::{NodeId, Phase, Topology};

/// Volumes of one replay's exchanges.
pub(super) struct Exchange {
    top_k: f64,
    /// `[from node * nodes + to node]`: what a row costs there over what it should.
    weights: Vec<f64>,
    degraded: bool,
    /// Distinct remote nodes and distinct ranks of a token under uniform routing.
    balanced_nodes: f64,
    balanced_ranks: f64,
    out: Vec<f64>,
    into: Vec<f64>,
}

impl Exchange {
    pub(super) fn new(placement: &Placement, topology: &Topology, top_k: usize) -> Self {
        let nodes = placement.nodes;
        let share = |node: usize| topology.outer_rate_share(NodeId(node as u16));
        let mut weights = vec![1.0; nodes * nodes];
        for from in 0..nodes {
            for to in (0..nodes).filter(|to| *to != from) {
                weights[from * nodes + to] = 1.0 / share(from).min(share(to));
            }
        }
        let degraded = weights.iter().any(|weight| *weight > 1.0);
        let (ranks, experts) = (placement.ranks as f64, placement.experts as f64);
        let node_count = nodes as f64;
        Self {
            top_k: top_k as f64,
            weights,
            degraded,
            balanced_nodes: (node_count - 1.0) * hit(experts, experts / node_count, top_k),
            balanced_ranks: ranks * hit(experts, experts / ranks, top_k),
            out: vec![0.0; placement.ranks],
            into: vec![0.0; placement.ranks],
        }
    }

    /// Whether a link is degraded, so that counts by source are needed.
    pub(super) fn is_degraded(&self) -> bool {
        self.degraded
    }

    fn weight(&self, placement: &Placement, from_rank: usize, to_node: usize) -> f64 {
        self.weights[usize::from(placement.node[from_rank]) * placement.nodes + to_node]
    }

    /// Tokens per rank of the balanced exchange that takes as long as this layer's.
    pub(super) fn tokens(
        &mut self,
        phase: Phase,
        placement: &Placement,
        tally: &Tally,
        tokens_by_rank: &[u32],
        layer: usize,
    ) -> f64 {
        match phase {
            Phase::Decode => self.low_latency(placement, tally, tokens_by_rank, layer),
            Phase::Prefill => self.normal(placement, tally, layer),
        }
    }

    /// Low latency: every (token, expert) pair is a row, also to an expert of the own rank (the
    /// kernel copies it through the same buffers). A row over a degraded link counts for more.
    fn low_latency(
        &mut self,
        placement: &Placement,
        tally: &Tally,
        tokens_by_rank: &[u32],
        layer: usize,
    ) -> f64 {
        let ranks = placement.ranks;
        if self.degraded {
            self.out.fill(0.0);
            self.into.fill(0.0);
            for source in 0..ranks {
                let rows = tally.layout.rows(tally.lane(source));
                for host in 0..ranks {
                    let count: u32 = rows[placement.rank_slots(layer, host)].iter().sum();
                    let node = usize::from(placement.node[host]);
                    let cost = f64::from(count) * self.weight(placement, source, node);
                    self.out[source] += cost;
                    self.into[host] += cost;
                }
            }
        } else {
            for rank in 0..ranks {
                let rows: u32 = tally.rows[placement.rank_slots(layer, rank)].iter().sum();
                self.out[rank] = f64::from(tokens_by_rank[rank]) * self.top_k;
                self.into[rank] = f64::from(rows);
            }
        }
        largest(&self.out).max(largest(&self.into)) / self.top_k
    }

    /// Normal: a token crosses to a node once, to the rank there that has its source's place, which
    /// forwards it once to every rank that needs it.
    fn normal(&mut self, placement: &Placement, tally: &Tally, layer: usize) -> f64 {
        let crossing = if placement.nodes > 1 {
            self.fill_crossing(placement, tally, layer);
            largest(&self.out).max(largest(&self.into)) / self.balanced_nodes
        } else {
            0.0
        };
        self.fill_inside(placement, tally, layer);
        let inside = largest(&self.out).max(largest(&self.into)) / self.balanced_ranks;
        crossing.max(inside)
    }

    fn fill_crossing(&mut self, placement: &Placement, tally: &Tally, layer: usize) {
        self.out.fill(0.0);
        self.into.fill(0.0);
        let nodes = placement.nodes;
        for source in 0..placement.ranks {
            let pairs = tally.layout.nodes(tally.lane(source));
            let own = usize::from(placement.node[source]);
            for node in (0..nodes).filter(|node| *node != own) {
                let count = f64::from(pairs[layer * nodes + node]);
                let cost = count * self.weight(placement, source, node);
                self.out[source] += cost;
                self.into[gateway(placement, source, node)] += cost;
            }
        }
    }

    fn fill_inside(&mut self, placement: &Placement, tally: &Tally, layer: usize) {
        self.out.fill(0.0);
        let ranks = placement.ranks;
        for source in 0..ranks {
            let distinct = &tally.layout.distinct(tally.lane(source))[layer * ranks..][..ranks];
            for node in 0..placement.nodes {
                let inside = placement.node_starts[node]..placement.node_starts[node + 1];
                let copies: u32 = distinct[inside].iter().sum();
                self.out[gateway(placement, source, node)] += f64::from(copies);
            }
        }
        for (into, distinct) in self.into.iter_mut().zip(&tally.distinct[layer * ranks..]) {
            *into = f64::from(*distinct);
        }
    }
}

/// The rank of a node that takes what a source sends there: the one at the source's place. On its
/// own node that is the source itself.
pub(super) fn gateway(placement: &Placement, source: usize, node: usize) -> usize {
    let (start, end) = (placement.node_starts[node], placement.node_starts[node + 1]);
    start + usize::from(placement.place[source]) % (end - start)
}

/// Probability that at least one of `top_k` different experts is among `local` of `experts`.
fn hit(experts: f64, local: f64, top_k: usize) -> f64 {
    let missed = (0..top_k).map(|taken| {
        let left = experts - taken as f64;
        if left <= local { 0.0 } else { 1.0 - local / left }
    });
    1.0 - missed.product::<f64>()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_hits_are_counted_exactly() {
        // 2 of 4 experts chosen, 2 local: 1 - (2/4)(1/3).
        assert!((hit(4.0, 2.0, 2) - 5.0 / 6.0).abs() < 1e-12);
        assert!((hit(8.0, 8.0, 2) - 1.0).abs() < 1e-12);
    }
}
