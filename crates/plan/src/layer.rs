//! One layer under search: its slots, shares and times, and what a change would do to them.

use crate::costs::{Costs, LayerLoads};
use crate::{PlanError, SplitRule};
use evenkeel_split::min_max_rows_weighted;
use evenkeel_types::RankId;

/// Slots of one layer: `[rank][slot]` → expert.
pub(crate) type Slots = Vec<Vec<Option<u16>>>;

/// Weight of evenness beside the time of the slowest rank. Where several ranks are equally slow no
/// single change helps the slowest; evenness leads through such plateaus.
const EVENNESS: f64 = 0.1;

/// Ranks remembered per step, slowest first: a change rarely touches more.
const SLOWEST: usize = 4;

/// A change of one layer's slots. Every change keeps a copy of every expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// A further copy of an expert, over an empty slot or over a copy that has siblings.
    Copy { expert: u16, to: u16, slot: u16 },
    /// A copy moves into an empty slot and leaves its own empty.
    Shift { from: u16, from_slot: u16, to: u16, slot: u16 },
    /// Two copies change places.
    Swap { from: u16, from_slot: u16, to: u16, slot: u16 },
}

/// What a state is worth: lower is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Worth {
    /// Mean over steps of the slowest rank's time, µs.
    pub(crate) us: f64,
    /// Mean over steps of `Σ_r time² ÷ Σ_r time`, µs.
    evenness: f64,
}

impl Worth {
    pub(crate) fn score(&self) -> f64 {
        self.us + EVENNESS * self.evenness
    }
}

/// State of one layer.
#[derive(Clone)]
pub(crate) struct Layer<'a> {
    pub(crate) costs: &'a Costs,
    pub(crate) loads: &'a LayerLoads,
    rule: SplitRule,
    pub(crate) slots: Slots,
    /// `[expert]` → ranks, ascending.
    pub(crate) hosts: Vec<Vec<RankId>>,
    /// `[expert]` → shares, as `hosts`.
    shares: Vec<Vec<f64>>,
    /// `[expert]` → `[host * steps + step]`, µs before speed.
    cells: Vec<Vec<f64>>,
    /// `[rank * steps + step]`, µs.
    time: Vec<f64>,
    /// `[rank]`, mean over steps, µs.
    pub(crate) mean: Vec<f64>,
    /// `[rank]`, rows of the window.
    rank_rows: Vec<f64>,
    /// `[step][..SLOWEST]`, slowest first; fewer where there are fewer ranks.
    slowest: Vec<Vec<u16>>,
    /// `[step]`: what evenness is divided by. Fixed when the layer is built.
    norm: Vec<f64>,
    pub(crate) worth: Worth,
}

impl<'a> Layer<'a> {
    pub(crate) fn new(
        costs: &'a Costs,
        loads: &'a LayerLoads,
        rule: SplitRule,
        slots: Slots,
    ) -> Result<Self, PlanError> {
        let experts = loads.totals.len();
        let ranks = slots.len();
        let mut layer = Self {
            costs,
            loads,
            rule,
            slots,
            hosts: vec![Vec::new(); experts],
            shares: vec![Vec::new(); experts],
            cells: vec![Vec::new(); experts],
            time: vec![0.0; ranks * costs.steps],
            mean: vec![0.0; ranks],
            rank_rows: vec![0.0; ranks],
            slowest: vec![Vec::new(); costs.steps],
            norm: Vec::new(),
            worth: Worth { us: 0.0, evenness: 0.0 },
        };
        layer.refresh()?;
        Ok(layer)
    }

    /// Recomputes everything from the slots: hosts, the split, cells, times.
    fn refresh(&mut self) -> Result<(), PlanError> {
        let hosts = hosts_of(&self.slots, self.hosts.len());
        let shares = match self.rule {
            SplitRule::Balanced => {
                min_max_rows_weighted(&hosts, &self.loads.totals, &self.costs.weights)?.shares
            }
            SplitRule::Even => {
                hosts.iter().map(|ranks| vec![1.0 / ranks.len() as f64; ranks.len()]).collect()
            }
        };
        self.adopt(hosts, shares);
        Ok(())
    }

    /// Takes on hosts and shares, and recomputes the cells that differ.
    pub(crate) fn adopt(&mut self, hosts: Vec<Vec<RankId>>, shares: Vec<Vec<f64>>) {
        for expert in 0..hosts.len() {
            if self.hosts[expert] == hosts[expert] && same(&self.shares[expert], &shares[expert]) {
                continue;
            }
            let cells = &mut self.cells[expert];
            cells.clear();
            for share in &shares[expert] {
                cells.extend(
                    rows(self.loads, self.costs.steps, expert)
                        .iter()
                        .map(|rows| self.costs.cell_us(rows * share)),
                );
            }
        }
        self.hosts = hosts;
        self.shares = shares;
        self.retime();
    }

    fn retime(&mut self) {
        let steps = self.costs.steps;
        for (rank, slots) in self.slots.iter().enumerate() {
            let idle = self.costs.idle_us(slots.len()) * self.costs.inverse_speed[rank];
            self.time[rank * steps..(rank + 1) * steps].fill(idle);
        }
        self.rank_rows.fill(0.0);
        for (expert, hosts) in self.hosts.iter().enumerate() {
            for (index, rank) in hosts.iter().enumerate() {
                let rank = rank.index();
                let speed = self.costs.inverse_speed[rank];
                let times = &mut self.time[rank * steps..(rank + 1) * steps];
                let cells = &self.cells[expert][index * steps..(index + 1) * steps];
                for (time, cell) in times.iter_mut().zip(cells) {
                    *time += cell * speed;
                }
                self.rank_rows[rank] +=
                    self.loads.totals[expert] as f64 * self.shares[expert][index];
            }
        }
        for (rank, mean) in self.mean.iter_mut().enumerate() {
            *mean = self.time[rank * steps..(rank + 1) * steps].iter().sum::<f64>() / steps as f64;
        }
        self.rank_steps();
    }

    /// Orders the slowest ranks of every step and values the state.
    fn rank_steps(&mut self) {
        let (steps, ranks) = (self.costs.steps, self.slots.len());
        if self.norm.is_empty() {
            self.norm = (0..steps)
                .map(|step| (0..ranks).map(|r| self.time[r * steps + step]).sum::<f64>().max(1e-9))
                .collect();
        }
        let (mut us, mut evenness) = (0.0, 0.0);
        for step in 0..steps {
            let time = |rank: usize| self.time[rank * steps + step];
            let mut top: Vec<u16> = Vec::with_capacity(SLOWEST + 1);
            let mut squares = 0.0;
            for rank in 0..ranks {
                let here = time(rank);
                squares += here * here;
                let full = top.len() == SLOWEST;
                if full && top.last().is_some_and(|last| time(usize::from(*last)) >= here) {
                    continue;
                }
                let place = top.partition_point(|other| time(usize::from(*other)) >= here);
                top.insert(place, rank as u16);
                top.truncate(SLOWEST);
            }
            us += self.costs.on_host(top.first().map_or(0.0, |rank| time(usize::from(*rank))));
            evenness += squares / self.norm[step];
            self.slowest[step] = top;
        }
        self.worth = Worth { us: us / steps as f64, evenness: evenness / steps as f64 };
    }

    /// Ranks by the number of steps that wait for them, most first; only those with any.
    pub(crate) fn guilty(&self) -> Vec<usize> {
        let mut waits = vec![0_usize; self.slots.len()];
        for top in &self.slowest {
            if let Some(rank) = top.first() {
                waits[usize::from(*rank)] += 1;
            }
        }
        let mut order: Vec<usize> = (0..waits.len()).filter(|rank| waits[*rank] > 0).collect();
        order.sort_by(|a, b| {
            waits[*b].cmp(&waits[*a]).then(self.mean[*b].total_cmp(&self.mean[*a])).then(a.cmp(b))
        });
        order
    }

    /// Mean cost of a copy, µs before speed.
    pub(crate) fn cell_mean(&self, expert: u16, rank: usize) -> f64 {
        let steps = self.costs.steps;
        self.host_index(expert, rank).map_or(0.0, |index| {
            let cells = &self.cells[usize::from(expert)][index * steps..(index + 1) * steps];
            cells.iter().sum::<f64>() / steps as f64
        })
    }

    pub(crate) fn holds(&self, expert: u16, rank: usize) -> bool {
        self.host_index(expert, rank).is_some()
    }

    fn host_index(&self, expert: u16, rank: usize) -> Option<usize> {
        self.hosts[usize::from(expert)].iter().position(|host| host.index() == rank)
    }

    fn cells_of(&self, expert: u16, rank: usize) -> &[f64] {
        let steps = self.costs.steps;
        self.host_index(expert, rank)
            .map_or(&[], |i| &self.cells[usize::from(expert)][i * steps..(i + 1) * steps])
    }

    /// What the state would be worth after a change, other experts keeping their shares.
    pub(crate) fn after(&self, change: Change, scratch: &mut Scratch) -> Worth {
        scratch.begin();
        match change {
            Change::Copy { expert, to, slot } => {
                let mut freed = (to, 0.0);
                if let Some(gone) = self.slots[usize::from(to)][usize::from(slot)] {
                    freed.1 = self.rows_at(gone, usize::from(to));
                    let rest = self.hosts[usize::from(gone)].iter().map(|host| host.0);
                    let rest: Vec<u16> = rest.filter(|rank| *rank != to).collect();
                    self.resplit(gone, &rest, (to, 0.0), scratch);
                }
                let mut hosts: Vec<u16> =
                    self.hosts[usize::from(expert)].iter().map(|host| host.0).collect();
                hosts.push(to);
                self.resplit(expert, &hosts, freed, scratch);
            }
            Change::Shift { from, from_slot, to, .. } => {
                if let Some(expert) = self.slots[usize::from(from)][usize::from(from_slot)] {
                    self.carry(expert, from, to, scratch);
                }
            }
            Change::Swap { from, from_slot, to, slot } => {
                if let Some(expert) = self.slots[usize::from(from)][usize::from(from_slot)] {
                    self.carry(expert, from, to, scratch);
                }
                if let Some(expert) = self.slots[usize::from(to)][usize::from(slot)] {
                    self.carry(expert, to, from, scratch);
                }
            }
        }
        self.worth_of(scratch)
    }

    /// Moves the cells of a copy from one rank to another.
    fn carry(&self, expert: u16, from: u16, to: u16, scratch: &mut Scratch) {
        let cells = self.cells_of(expert, usize::from(from));
        scratch.add(self, usize::from(from), cells, -1.0);
        scratch.add(self, usize::from(to), cells, 1.0);
    }

    fn rows_at(&self, expert: u16, rank: usize) -> f64 {
        let index = usize::from(expert);
        self.host_index(expert, rank)
            .map_or(0.0, |host| self.loads.totals[index] as f64 * self.shares[index][host])
    }

    /// Splits an expert anew over these ranks, the other experts' rows staying where they are,
    /// but for the rows that have been freed on a rank.
    fn resplit(&self, expert: u16, ranks: &[u16], freed: (u16, f64), scratch: &mut Scratch) {
        let index = usize::from(expert);
        let total = self.loads.totals[index] as f64;
        for host in &self.hosts[index] {
            scratch.add(self, host.index(), self.cells_of(expert, host.index()), -1.0);
        }
        let shares = match self.rule {
            SplitRule::Even => vec![1.0 / ranks.len() as f64; ranks.len()],
            SplitRule::Balanced => {
                let others = ranks.iter().map(|id| {
                    let rank = usize::from(*id);
                    let gone = if *id == freed.0 { freed.1 } else { 0.0 };
                    let other = self.rank_rows[rank] - self.rows_at(expert, rank) - gone;
                    (other, f64::from(self.costs.weights[rank]))
                });
                pour(total, &others.collect::<Vec<_>>())
            }
        };
        let mut cell = std::mem::take(&mut scratch.cell);
        for (rank, share) in ranks.iter().zip(shares) {
            cell.clear();
            let rows = rows(self.loads, self.costs.steps, index);
            cell.extend(rows.iter().map(|rows| self.costs.cell_us(rows * share)));
            scratch.add(self, usize::from(*rank), &cell, 1.0);
        }
        scratch.cell = cell;
    }

    fn worth_of(&self, scratch: &Scratch) -> Worth {
        let steps = self.costs.steps;
        let (mut us, mut evenness) = (0.0, 0.0);
        for step in 0..steps {
            let known = self.slowest[step]
                .iter()
                .find(|rank| !scratch.touched(usize::from(**rank)))
                .map(|rank| self.time[usize::from(*rank) * steps + step]);
            let mut most = match known {
                Some(time) => time,
                None if self.slowest[step].len() == self.slots.len() => 0.0,
                None => (0..self.slots.len())
                    .filter(|rank| !scratch.touched(*rank))
                    .map(|rank| self.time[rank * steps + step])
                    .fold(0.0, f64::max),
            };
            let mut squares = 0.0;
            for (index, rank) in scratch.ranks.iter().enumerate() {
                let new = scratch.time[index * steps + step];
                let old = self.time[rank * steps + step];
                squares += new * new - old * old;
                most = most.max(new);
            }
            us += self.costs.on_host(most);
            evenness += squares / self.norm[step];
        }
        Worth { us: us / steps as f64, evenness: self.worth.evenness + evenness / steps as f64 }
    }

    /// The state after a change, with an exact split.
    pub(crate) fn apply(&self, change: Change) -> Result<Self, PlanError> {
        let mut next = self.clone();
        let slots = &mut next.slots;
        match change {
            Change::Copy { expert, to, slot } => {
                slots[usize::from(to)][usize::from(slot)] = Some(expert);
            }
            Change::Shift { from, from_slot, to, slot }
            | Change::Swap { from, from_slot, to, slot } => {
                let (from, from_slot) = (usize::from(from), usize::from(from_slot));
                let (to, slot) = (usize::from(to), usize::from(slot));
                let gone = slots[to][slot];
                slots[to][slot] = slots[from][from_slot];
                slots[from][from_slot] = gone;
            }
        }
        next.refresh()?;
        Ok(next)
    }

    /// Mean ÷ largest rank, rows of the window ÷ weight; 1 where there are no rows.
    pub(crate) fn balancedness(&self) -> f64 {
        let weight: f64 = self.costs.weights.iter().map(|weight| f64::from(*weight)).sum();
        let mean = self.rank_rows.iter().sum::<f64>() / weight;
        let weighted = self.rank_rows.iter().zip(&self.costs.weights);
        let most = weighted.map(|(rows, weight)| rows / f64::from(*weight)).fold(0.0, f64::max);
        if most > 0.0 { mean / most } else { 1.0 }
    }

    /// Mean over steps of the rows of the rank with most rows.
    pub(crate) fn rows_of_fullest(&self) -> f64 {
        let steps = self.costs.steps;
        let mut sum = 0.0;
        for step in 0..steps {
            let mut rank_rows = vec![0.0; self.slots.len()];
            for (expert, hosts) in self.hosts.iter().enumerate() {
                for (rank, share) in hosts.iter().zip(&self.shares[expert]) {
                    rank_rows[rank.index()] += self.loads.rows[expert * steps + step] * share;
                }
            }
            sum += rank_rows.into_iter().fold(0.0, f64::max);
        }
        sum / steps as f64
    }
}

/// Ranks that a change touches, with their new times. Reused between candidates.
pub(crate) struct Scratch {
    stamp: u32,
    mark: Vec<u32>,
    ranks: Vec<usize>,
    time: Vec<f64>,
    cell: Vec<f64>,
}

impl Scratch {
    pub(crate) fn new(ranks: usize) -> Self {
        Self {
            stamp: 0,
            mark: vec![0; ranks],
            ranks: Vec::new(),
            time: Vec::new(),
            cell: Vec::new(),
        }
    }

    fn begin(&mut self) {
        if self.stamp == u32::MAX {
            self.mark.fill(0);
            self.stamp = 0;
        }
        self.stamp += 1;
        self.ranks.clear();
        self.time.clear();
    }

    fn touched(&self, rank: usize) -> bool {
        self.mark[rank] == self.stamp
    }

    fn add(&mut self, layer: &Layer<'_>, rank: usize, cells: &[f64], sign: f64) {
        let steps = layer.costs.steps;
        let index = if self.touched(rank) {
            self.ranks.iter().position(|other| *other == rank).unwrap_or(0)
        } else {
            self.mark[rank] = self.stamp;
            self.ranks.push(rank);
            self.time.extend_from_slice(&layer.time[rank * steps..(rank + 1) * steps]);
            self.ranks.len() - 1
        };
        let factor = sign * layer.costs.inverse_speed[rank];
        for (time, cell) in self.time[index * steps..(index + 1) * steps].iter_mut().zip(cells) {
            *time += factor * cell;
        }
    }
}

fn rows(loads: &LayerLoads, steps: usize, expert: usize) -> &[f64] {
    &loads.rows[expert * steps..(expert + 1) * steps]
}

fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// `[expert]` → ranks, ascending, each once.
pub(crate) fn hosts_of(slots: &Slots, experts: usize) -> Vec<Vec<RankId>> {
    let mut hosts = vec![Vec::new(); experts];
    for (rank, slots) in slots.iter().enumerate() {
        for expert in slots.iter().flatten() {
            let ranks: &mut Vec<RankId> = &mut hosts[usize::from(*expert)];
            if ranks.last() != Some(&RankId(rank as u16)) {
                ranks.push(RankId(rank as u16));
            }
        }
    }
    hosts
}

/// Pours `total` rows over ranks that hold `(rows, weight)` already, so that the highest
/// `rows ÷ weight` is least. Returns shares.
fn pour(total: f64, ranks: &[(f64, f64)]) -> Vec<f64> {
    if total <= 0.0 {
        return vec![1.0 / ranks.len() as f64; ranks.len()];
    }
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    let level = |index: usize| ranks[index].0 / ranks[index].1;
    order.sort_by(|a, b| level(*a).total_cmp(&level(*b)).then(a.cmp(b)));
    let (mut rows, mut weight, mut height) = (total, 0.0, 0.0);
    for (place, index) in order.iter().enumerate() {
        rows += ranks[*index].0;
        weight += ranks[*index].1;
        height = rows / weight;
        if order.get(place + 1).is_none_or(|next| level(*next) >= height) {
            break;
        }
    }
    ranks.iter().map(|(rows, weight)| (height * weight - rows).max(0.0) / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pouring_levels_the_lowest() {
        let shares = pour(10.0, &[(0.0, 1.0), (4.0, 1.0), (100.0, 1.0)]);
        assert!((shares[0] - 0.7).abs() < 1e-12 && (shares[1] - 0.3).abs() < 1e-12, "{shares:?}");
        assert!(shares[2].abs() < 1e-12);
    }
}
