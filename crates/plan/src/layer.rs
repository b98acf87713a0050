//! One layer under search: its slots, shares and times, and what a change would do to them.

use crate::costs::{Costs, LayerLoads};
use crate::valued::shares_of;
use crate::{PlanError, SplitRule};
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
    pub(crate) evenness: f64,
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
    pub(crate) rule: SplitRule,
    pub(crate) slots: Slots,
    /// `[expert]` → ranks, ascending.
    pub(crate) hosts: Vec<Vec<RankId>>,
    /// `[expert]` → shares, as `hosts`.
    pub(crate) shares: Vec<Vec<f64>>,
    /// `[expert]` → `[host * steps + step]`, µs before speed.
    pub(crate) cells: Vec<Vec<f64>>,
    /// `[expert][host]`, mean over steps, µs before speed.
    cell_means: Vec<Vec<f64>>,
    /// `[rank * steps + step]`, µs.
    pub(crate) time: Vec<f64>,
    /// `[rank]`, mean over steps, µs.
    pub(crate) mean: Vec<f64>,
    /// `[rank]`, rows of the window.
    pub(crate) rank_rows: Vec<f64>,
    /// `[step][..SLOWEST]`, slowest first; fewer where there are fewer ranks.
    pub(crate) slowest: Vec<Vec<u16>>,
    /// `[step]`: what evenness is multiplied by. Fixed when the layer is built.
    pub(crate) inverse_norm: Vec<f64>,
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
            cell_means: vec![Vec::new(); experts],
            time: vec![0.0; ranks * costs.steps],
            mean: vec![0.0; ranks],
            rank_rows: vec![0.0; ranks],
            slowest: vec![Vec::new(); costs.steps],
            inverse_norm: Vec::new(),
            worth: Worth { us: 0.0, evenness: 0.0 },
        };
        layer.refresh()?;
        Ok(layer)
    }

    /// Recomputes everything from the slots: hosts, the split, cells, times.
    fn refresh(&mut self) -> Result<(), PlanError> {
        let hosts = hosts_of(&self.slots, self.hosts.len());
        let shares = shares_of(self.costs, self.loads, self.rule, &hosts)?;
        self.adopt(hosts, shares);
        Ok(())
    }

    /// Takes on hosts and shares, and recomputes the cells that differ.
    fn adopt(&mut self, hosts: Vec<Vec<RankId>>, shares: Vec<Vec<f64>>) {
        for expert in 0..hosts.len() {
            if self.hosts[expert] == hosts[expert] && same(&self.shares[expert], &shares[expert]) {
                continue;
            }
            let (cells, means) = (&mut self.cells[expert], &mut self.cell_means[expert]);
            cells.clear();
            means.clear();
            for share in &shares[expert] {
                let rows = rows(self.loads, self.costs.steps, expert);
                let mut sum = 0.0;
                cells.extend(rows.iter().map(|rows| {
                    let cell = self.costs.cell_us(rows * share);
                    sum += cell;
                    cell
                }));
                means.push(sum / self.costs.steps as f64);
            }
        }
        self.hosts = hosts;
        self.shares = shares;
        self.retime();
    }

    fn retime(&mut self) {
        let steps = self.costs.steps;
        for (rank, slots) in self.slots.iter().enumerate() {
            let idle = self.costs.idle_us(slots.len()) + self.loads.extra[rank];
            let idle = idle * self.costs.inverse_speed[rank];
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
        if self.inverse_norm.is_empty() {
            let sum = |step: usize| (0..ranks).map(|r| self.time[r * steps + step]).sum::<f64>();
            self.inverse_norm = (0..steps).map(|step| 1.0 / sum(step).max(1e-9)).collect();
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
            evenness += squares * self.inverse_norm[step];
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
        self.host_index(expert, rank)
            .map_or(0.0, |index| self.cell_means[usize::from(expert)][index])
    }

    /// Part of an expert's rows on a host that a further copy could take.
    pub(crate) fn part_to_give(&self, expert: u16) -> f64 {
        match self.rule {
            SplitRule::Balanced => 1.0,
            SplitRule::Even => 1.0 / (self.hosts[usize::from(expert)].len() + 1) as f64,
        }
    }

    pub(crate) fn holds(&self, expert: u16, rank: usize) -> bool {
        self.host_index(expert, rank).is_some()
    }

    pub(crate) fn host_index(&self, expert: u16, rank: usize) -> Option<usize> {
        self.hosts[usize::from(expert)].iter().position(|host| host.index() == rank)
    }

    pub(crate) fn cells_of(&self, expert: u16, rank: usize) -> &[f64] {
        let steps = self.costs.steps;
        self.host_index(expert, rank)
            .map_or(&[], |i| &self.cells[usize::from(expert)][i * steps..(i + 1) * steps])
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
}

pub(crate) fn rows(loads: &LayerLoads, steps: usize, expert: usize) -> &[f64] {
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
