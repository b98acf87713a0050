//! From counts to time: one step's layers, rank by rank.
//!
//! layer = slowest rank's attention and router + dispatch + slowest rank's experts + return. Every
//! part is rounded to whole ns once, and parts are added as integers: a record's spans add up to
//! the step exactly.

use super::Replay;
use crate::{LateRank, StepBatch, StepCost};
use evenkeel_trace::LayerCell;
use evenkeel_types::Phase;

/// Whole ns, at most five hours: no sum over the layers of a step overflows.
pub(super) fn to_ns(us: f64) -> u64 {
    ((us * 1000.0).round() as u64).min(LateRank::NS_MAX)
}

/// Arrival of one rank at dispatch.
#[derive(Clone, Copy, Default)]
pub(super) struct Arrival {
    attention_ns: u64,
    rest_ns: u64,
    late_ns: u64,
}

/// What stays the same over a step's layers.
pub(super) struct Entry {
    slowest_attention_ns: u64,
    slowest_ns: u64,
    slowest_late_ns: u64,
}

impl Replay<'_> {
    /// When each rank arrives at dispatch, and the slowest; equal in every layer but that a late
    /// rank is late in the first.
    fn arrivals(&mut self, batch: &StepBatch<'_>) -> Entry {
        let mut entry = Entry { slowest_attention_ns: 0, slowest_ns: 0, slowest_late_ns: 0 };
        for rank in 0..self.placement.ranks {
            let load = self.loads[rank];
            let slow = self.speed[rank];
            let factor = self.faults.attention_at(batch.start_ns, rank) / slow;
            let arrival = Arrival {
                attention_ns: to_ns(self.times.attention_us(batch.phase, &load) * factor),
                rest_ns: to_ns(self.times.layer_rest_us(batch.phase, load.new_tokens) / slow),
                late_ns: self.faults.late_at(batch.start_ns, rank),
            };
            let due = arrival.attention_ns + arrival.rest_ns;
            entry.slowest_attention_ns = entry.slowest_attention_ns.max(arrival.attention_ns);
            entry.slowest_ns = entry.slowest_ns.max(due);
            entry.slowest_late_ns = entry.slowest_late_ns.max(due + arrival.late_ns);
            self.arrivals[rank] = arrival;
        }
        entry
    }

    /// Charges a counted step.
    pub(super) fn charge(&mut self, batch: &StepBatch<'_>, cost: &mut StepCost) {
        let (layers, ranks) = (self.placement.layers, self.placement.ranks);
        let entry = self.arrivals(batch);
        cost.waited_layers.resize(ranks, 0);
        let mut imbalance = 0.0;
        for layer in 0..layers {
            let arrived_ns = if layer == 0 { entry.slowest_late_ns } else { entry.slowest_ns };
            let slowest_ns = self.expert_times(batch, layer, cost);
            let exchange = self.exchange_times(batch.phase, layer, arrived_ns + slowest_ns);
            cost.attention_ns += entry.slowest_attention_ns;
            cost.rest_ns += arrived_ns - entry.slowest_attention_ns;
            cost.expert_slowest_ns += slowest_ns;
            cost.exchange_ns += exchange[0] + exchange[1];
            imbalance += self.imbalance(layer, cost);
            if batch.wants_layers {
                self.push_cells(batch, layer, exchange, [arrived_ns, slowest_ns], cost);
            }
        }
        cost.rows_max_over_mean = if layers == 0 { 1.0 } else { imbalance / layers as f64 };
        let dense = entry.slowest_attention_ns as f64 * self.times.dense_layers();
        cost.attention_ns += dense.round() as u64;
        let fullest = self.tokens_by_rank.iter().copied().max().unwrap_or(0);
        cost.rest_ns += to_ns(self.times.step_rest_us(batch.phase, fullest));
    }

    /// Fills `expert_ns` of a layer and accounts for the rank that it waited for; the slowest's ns.
    fn expert_times(&mut self, batch: &StepBatch<'_>, layer: usize, cost: &mut StepCost) -> u64 {
        let (factor, _) = self.faults.kernel_at(batch.start_ns);
        let ranks = self.placement.ranks;
        let (mut slowest, mut slowest_ns, mut sum_ns) = (0, 0, 0_u64);
        for rank in 0..ranks {
            let rows = &self.tally.rows[self.placement.rank_slots(layer, rank)];
            let distinct =
                if self.counted_by_source { self.tally.distinct[layer * ranks + rank] } else { 0 };
            let us = self.times.experts(batch.phase).rank_us(rows, distinct);
            let ns = to_ns(us * factor / self.speed[rank]);
            self.expert_ns[rank] = ns;
            sum_ns += ns;
            if ns > slowest_ns {
                (slowest, slowest_ns) = (rank, ns);
            }
        }
        cost.expert_mean_ns += sum_ns / ranks as u64;
        cost.waited_layers[slowest] += 1;
        slowest_ns
    }

    /// Exposed dispatch and return of a layer, ns. A group of one rank exchanges nothing.
    fn exchange_times(&mut self, phase: Phase, layer: usize, compute_ns: u64) -> [u64; 2] {
        if self.placement.ranks == 1 {
            return [0, 0];
        }
        let Self { exchange, placement, tally, tokens_by_rank, .. } = self;
        let crossing = exchange.crossing(phase, placement, tally, tokens_by_rank, layer);
        let tokens = self.times.tokens_equivalent(phase, &crossing);
        let parts = [
            to_ns(self.times.dispatch_us(phase, tokens)),
            to_ns(self.times.combine_us(phase, tokens)),
        ];
        let whole: u64 = parts.iter().sum();
        let share = self.times.overlap_share().clamp(0.0, 1.0);
        let hidden = ((whole as f64 * share).round() as u64).min(compute_ns);
        // What is hidden is taken from dispatch and return in proportion.
        let of_dispatch = (hidden as f64 * parts[0] as f64 / whole.max(1) as f64).round() as u64;
        let of_dispatch = of_dispatch.min(parts[0]);
        [parts[0] - of_dispatch, parts[1].saturating_sub(hidden - of_dispatch)]
    }

    /// Rows of the fullest rank over the mean, and `rank_rows` and `expert_choices` of the layer.
    fn imbalance(&self, layer: usize, cost: &mut StepCost) -> f64 {
        let placement = &self.placement;
        let (mut most, mut sum) = (0_u32, 0_u32);
        for rank in 0..placement.ranks {
            let rows = self.tally.rows[placement.rank_slots(layer, rank)].iter().sum::<u32>();
            cost.rank_rows.push(rows);
            most = most.max(rows);
            sum += rows;
        }
        let choices = &mut cost.expert_choices;
        let start = choices.len();
        choices.resize(start + placement.experts, 0);
        for slot in placement.layer_slots(layer) {
            if let Some(choice) = choices.get_mut(start + usize::from(placement.expert[slot])) {
                *choice += self.tally.rows[slot];
            }
        }
        if sum == 0 { 1.0 } else { f64::from(most) * placement.ranks as f64 / f64::from(sum) }
    }

    fn push_cells(
        &self,
        batch: &StepBatch<'_>,
        layer: usize,
        exchange: [u64; 2],
        [arrived_ns, slowest_ns]: [u64; 2],
        cost: &mut StepCost,
    ) {
        let placement = &self.placement;
        let ranks = placement.ranks;
        let (_, kernel) = self.faults.kernel_at(batch.start_ns);
        let due = |rank: usize| {
            let arrival = &self.arrivals[rank];
            let late_ns = if layer == 0 { arrival.late_ns } else { 0 };
            arrival.attention_ns + arrival.rest_ns + late_ns
        };
        let first_due = (0..ranks).map(due).min().unwrap_or(0);
        let first_done = self.expert_ns.iter().copied().min().unwrap_or(0);
        for rank in 0..ranks {
            let rows = &self.tally.rows[placement.rank_slots(layer, rank)];
            let [bytes_out, bytes_in] = self.cell_bytes(batch.phase, layer, rank);
            cost.cells.push(LayerCell {
                attention_ns: self.arrivals[rank].attention_ns,
                router_ns: self.arrivals[rank].rest_ns,
                dispatch_skew_ns: due(rank) - first_due,
                dispatch_wait_ns: arrived_ns - due(rank),
                dispatch_service_ns: exchange[0],
                queue_ns: 0,
                expert_ns: self.expert_ns[rank],
                cpu_ns: 0,
                return_skew_ns: self.expert_ns[rank] - first_done,
                return_wait_ns: slowest_ns - self.expert_ns[rank],
                return_service_ns: exchange[1],
                combine_ns: 0,
                rows_in: rows.iter().sum(),
                tokens_in: self.tally.distinct[layer * ranks + rank],
                experts_activated: rows.iter().filter(|rows| **rows > 0).count() as u16,
                kernel,
                bytes_out,
                bytes_in,
            });
        }
    }

    /// Bytes that a rank sends and receives over both directions of a layer, its own rows left out.
    fn cell_bytes(&self, phase: Phase, layer: usize, rank: usize) -> [u64; 2] {
        let (mut out, mut into) = (0, 0);
        for other in (0..self.placement.ranks).filter(|other| *other != rank) {
            out += self.volumes.at(layer, rank, other);
            into += self.volumes.at(layer, other, rank);
        }
        let [dispatch, back] = self.times.row_bytes(phase);
        [out * dispatch + into * back, into * dispatch + out * back]
    }
}
