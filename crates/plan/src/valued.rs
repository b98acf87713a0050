//! One layer of a map, valued: its slots, shares and times.

use crate::costs::{Costs, LayerLoads};
use crate::layer::Slots;
use crate::{PlanError, SplitRule};
use evenkeel_split::min_max_rows_weighted;
use evenkeel_types::RankId;

/// A layer under given shares.
pub(crate) struct Valued<'a> {
    costs: &'a Costs,
    loads: &'a LayerLoads,
    /// `[expert]` → ranks, ascending.
    hosts: Vec<Vec<RankId>>,
    /// `[expert]` → shares, as `hosts`.
    shares: Vec<Vec<f64>>,
    /// `[rank * steps + step]`, µs.
    time: Vec<f64>,
    /// `[rank]`, rows of the window.
    rank_rows: Vec<f64>,
    /// `[step]`: time of the slowest rank, µs.
    pub(crate) slowest_us: Vec<f64>,
    /// Their mean over steps, µs.
    pub(crate) us: f64,
}

impl<'a> Valued<'a> {
    /// Values slots under `shares`, as `hosts`: `[expert]` → ranks, ascending.
    pub(crate) fn new(
        costs: &'a Costs,
        loads: &'a LayerLoads,
        slots: &Slots,
        hosts: Vec<Vec<RankId>>,
        shares: Vec<Vec<f64>>,
    ) -> Self {
        let ranks = slots.len();
        let mut valued = Self {
            costs,
            loads,
            hosts,
            shares,
            time: vec![0.0; ranks * costs.steps],
            rank_rows: vec![0.0; ranks],
            slowest_us: vec![0.0; costs.steps],
            us: 0.0,
        };
        valued.clock(slots);
        valued
    }

    fn clock(&mut self, slots: &Slots) {
        let steps = self.costs.steps;
        for (rank, slots) in slots.iter().enumerate() {
            let idle = self.costs.idle_us(slots.len()) + self.loads.extra[rank];
            let idle = idle * self.costs.inverse_speed[rank];
            self.time[rank * steps..(rank + 1) * steps].fill(idle);
        }
        for (expert, hosts) in self.hosts.iter().enumerate() {
            let rows = &self.loads.rows[expert * steps..(expert + 1) * steps];
            for (rank, share) in hosts.iter().zip(&self.shares[expert]) {
                let rank = rank.index();
                let speed = self.costs.inverse_speed[rank];
                let times = &mut self.time[rank * steps..(rank + 1) * steps];
                self.costs.add_cells(rows, *share, speed, times);
                self.rank_rows[rank] += self.loads.totals[expert] as f64 * share;
            }
        }
        for times in self.time.chunks_exact(steps) {
            for (most, time) in self.slowest_us.iter_mut().zip(times) {
                *most = if *time > *most { *time } else { *most };
            }
        }
        self.slowest_us.iter_mut().for_each(|us| *us = self.costs.on_host(*us));
        self.us = self.slowest_us.iter().sum::<f64>() / steps as f64;
    }

    /// Mean ÷ largest rank, rows of the window ÷ weight; 1 where there are no rows.
    pub(crate) fn balancedness(&self) -> f64 {
        let alive = |rank: &usize| self.costs.inverse_speed[*rank] > 0.0;
        let weight: f64 = (0..self.rank_rows.len())
            .filter(alive)
            .map(|rank| f64::from(self.costs.weights[rank]))
            .sum();
        let mean = self.rank_rows.iter().sum::<f64>() / weight;
        let weighted = self.rank_rows.iter().zip(&self.costs.weights);
        let most = weighted.map(|(rows, weight)| rows / f64::from(*weight)).fold(0.0, f64::max);
        if most > 0.0 { mean / most } else { 1.0 }
    }

    /// Mean over steps of the rows of the rank with most rows.
    pub(crate) fn rows_of_fullest(&self) -> f64 {
        let (steps, ranks) = (self.costs.steps, self.rank_rows.len());
        let mut rank_rows = vec![0.0; ranks * steps];
        for (expert, hosts) in self.hosts.iter().enumerate() {
            let rows = &self.loads.rows[expert * steps..(expert + 1) * steps];
            for (rank, share) in hosts.iter().zip(&self.shares[expert]) {
                let sums = &mut rank_rows[rank.index() * steps..(rank.index() + 1) * steps];
                sums.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += rows * share);
            }
        }
        let mut fullest = vec![0.0_f64; steps];
        for rows in rank_rows.chunks_exact(steps) {
            fullest.iter_mut().zip(rows).for_each(|(most, rows)| *most = most.max(*rows));
        }
        fullest.iter().sum::<f64>() / steps as f64
    }
}

/// Shares by a rule, as `hosts`: `[expert]` → ranks, ascending.
pub(crate) fn shares_of(
    costs: &Costs,
    loads: &LayerLoads,
    rule: SplitRule,
    hosts: &[Vec<RankId>],
) -> Result<Vec<Vec<f64>>, PlanError> {
    Ok(match rule {
        SplitRule::Balanced => min_max_rows_weighted(hosts, &loads.totals, &costs.weights)?.shares,
        SplitRule::Even => {
            hosts.iter().map(|ranks| vec![1.0 / ranks.len() as f64; ranks.len()]).collect()
        }
    })
}
