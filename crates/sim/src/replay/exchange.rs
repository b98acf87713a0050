//! How much the busiest rank of a layer's exchange moves.
//!
//! Exchange curves are measured on balanced routing. A layer's exchange ends with its busiest rank
//! (assumed: no measurement under skew exists), so it costs what a balanced one costs whose every
//! rank moves as much as the busiest does here.

use super::placement::Placement;
use super::tally::Tally;
use evenkeel_cost::Crossing;
use evenkeel_types::{NodeId, Phase, Topology};

/// Volumes of one replay's exchanges.
pub(super) struct Exchange {
    top_k: f64,
    /// `[from node * nodes + to node]`: what a row costs there over what it should.
    weights: Vec<f64>,
    degraded: bool,
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
        Self {
            top_k: top_k as f64,
            weights,
            degraded,
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

    /// What a layer's busiest rank moves.
    pub(super) fn crossing(
        &mut self,
        phase: Phase,
        placement: &Placement,
        tally: &Tally,
        tokens_by_rank: &[u32],
        layer: usize,
    ) -> Crossing {
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
    ) -> Crossing {
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
            for (rank, tokens) in tokens_by_rank.iter().enumerate() {
                let rows: u32 = tally.rows[placement.rank_slots(layer, rank)].iter().sum();
                self.out[rank] = f64::from(*tokens) * self.top_k;
                self.into[rank] = f64::from(rows);
            }
        }
        Crossing { pairs: self.busiest(), ..Crossing::default() }
    }

    /// Normal: a token crosses to a node once, to the rank there that has its source's place, which
    /// forwards it once to every rank that needs it.
    fn normal(&mut self, placement: &Placement, tally: &Tally, layer: usize) -> Crossing {
        self.fill_crossing(placement, tally, layer);
        let node_rows = self.busiest();
        self.fill_inside(placement, tally, layer);
        Crossing { node_rows, rank_rows: self.busiest(), ..Crossing::default() }
    }

    /// The larger direction of the busiest rank.
    fn busiest(&self) -> f64 {
        self.out.iter().chain(&self.into).copied().fold(0.0, f64::max)
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
