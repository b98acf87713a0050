//! What dispatch moves from each rank to each other one: rows of a trace need it, times do not.

use super::exchange::gateway;
use super::placement::Placement;
use super::tally::Tally;
use evenkeel_types::Phase;

/// `[layer][from][to]`: rows (decode) or deduplicated tokens (prefill).
#[derive(Default)]
pub(super) struct Volumes {
    ranks: usize,
    units: Vec<u32>,
}

impl Volumes {
    pub(super) fn at(&self, layer: usize, from: usize, to: usize) -> u64 {
        u64::from(self.units[(layer * self.ranks + from) * self.ranks + to])
    }

    /// Takes the volumes of a step that was counted by source.
    pub(super) fn fill(&mut self, phase: Phase, placement: &Placement, tally: &Tally) {
        self.ranks = placement.ranks;
        self.units.clear();
        self.units.resize(placement.layers * self.ranks * self.ranks, 0);
        for source in 0..self.ranks {
            match phase {
                Phase::Decode => self.rows_of(placement, tally, source),
                Phase::Prefill => self.tokens_of(placement, tally, source),
            }
        }
    }

    fn rows_of(&mut self, placement: &Placement, tally: &Tally, source: usize) {
        let rows = tally.layout.rows(tally.lane(source));
        for layer in 0..placement.layers {
            for host in 0..self.ranks {
                let sent = rows[placement.rank_slots(layer, host)].iter().sum();
                self.units[(layer * self.ranks + source) * self.ranks + host] = sent;
            }
        }
    }

    /// Both legs where they are: a token crosses once to the gateway of a node, and the gateway
    /// sends it on to each rank that needs it.
    fn tokens_of(&mut self, placement: &Placement, tally: &Tally, source: usize) {
        let (ranks, nodes) = (self.ranks, placement.nodes);
        let distinct = tally.layout.distinct(tally.lane(source));
        let crossing = tally.layout.nodes(tally.lane(source));
        let own = usize::from(placement.node[source]);
        for layer in 0..placement.layers {
            let units = &mut self.units[layer * ranks * ranks..(layer + 1) * ranks * ranks];
            for node in 0..nodes {
                let gateway = gateway(placement, source, node);
                if node != own {
                    units[source * ranks + gateway] += crossing[layer * nodes + node];
                }
                for rank in placement.node_starts[node]..placement.node_starts[node + 1] {
                    units[gateway * ranks + rank] += distinct[layer * ranks + rank];
                }
            }
        }
    }
}
