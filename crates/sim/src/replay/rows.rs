//! The rows of a traced step: who sent what to which expert, and over which link.

use super::Replay;
use super::charge::to_ns;
use crate::{StepBatch, StepCost};
use evenkeel_trace::{Direction, LinkRow, RoutingRow};
use evenkeel_types::{ExpertId, LayerId, Phase, RankId};

impl Replay<'_> {
    /// Appends routing and link rows of a step that was counted by source.
    pub(super) fn push_rows(&self, batch: &StepBatch<'_>, cost: &mut StepCost) {
        for layer in 0..self.placement.layers {
            self.push_routing(layer, cost);
            for direction in [Direction::Dispatch, Direction::Return] {
                self.push_links(batch.phase, layer, direction, cost);
            }
        }
    }

    fn push_routing(&self, layer: usize, cost: &mut StepCost) {
        let placement = &self.placement;
        for source in 0..placement.ranks {
            let rows = self.tally.layout.rows(self.tally.lane(source));
            for slot in placement.layer_slots(layer) {
                if rows[slot] > 0 {
                    cost.routing.push(RoutingRow {
                        layer: LayerId(layer as u16),
                        source: RankId(source as u16),
                        expert: ExpertId(placement.expert[slot]),
                        host: Some(RankId(placement.host[slot])),
                        tokens: rows[slot],
                    });
                }
            }
        }
    }

    /// Low latency sends every row on its own; normal mode sends one message per pair of ranks.
    fn push_links(&self, phase: Phase, layer: usize, way: Direction, cost: &mut StepCost) {
        let ranks = self.placement.ranks;
        let bytes = self.times.row_bytes(phase)[usize::from(way == Direction::Return)];
        for source in 0..ranks {
            for destination in (0..ranks).filter(|rank| *rank != source) {
                let units = match way {
                    Direction::Dispatch => self.volumes.at(layer, source, destination),
                    Direction::Return => self.volumes.at(layer, destination, source),
                };
                if units == 0 {
                    continue;
                }
                let (messages, largest_bytes) = match phase {
                    Phase::Decode => (units as u32, bytes),
                    Phase::Prefill => (1, units * bytes),
                };
                cost.links.push(LinkRow {
                    layer: LayerId(layer as u16),
                    direction: way,
                    source: RankId(source as u16),
                    destination: RankId(destination as u16),
                    messages,
                    bytes: units * bytes,
                    largest_bytes,
                    service_ns: to_ns(self.link_us(source, destination, units * bytes)),
                });
            }
        }
    }

    /// Time of a transfer alone on its link by the topology's class and health, µs.
    fn link_us(&self, source: usize, destination: usize, bytes: u64) -> f64 {
        let link = &self.links[self.link_class(source, destination)];
        link.0 + bytes as f64 / link.1
    }

    fn link_class(&self, source: usize, destination: usize) -> usize {
        let (from, to) = (self.placement.node[source], self.placement.node[destination]);
        usize::from(from) * self.placement.nodes + usize::from(to)
    }
}
