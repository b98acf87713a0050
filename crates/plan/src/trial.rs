//! What would a change do? Estimates that touch only the ranks concerned.

use crate::SplitRule;
use crate::layer::{Change, Layer, Worth, rows};

impl Layer<'_> {
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
                let at = |rank: u16, slot: u16| self.slots[usize::from(rank)][usize::from(slot)];
                if let (Some(a), Some(b)) = (at(from, from_slot), at(to, slot)) {
                    let (hot, to) = (usize::from(from), usize::from(to));
                    return self.after_swap((a, hot), (b, to), scratch);
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
            let mut most = self.slowest_but(step, |rank| scratch.touched(rank));
            let mut squares = 0.0;
            for (index, rank) in scratch.ranks.iter().enumerate() {
                let new = scratch.time[index * steps + step];
                let old = self.time[rank * steps + step];
                squares += new * new - old * old;
                most = most.max(new);
            }
            us += self.costs.on_host(most);
            evenness += squares * self.inverse_norm[step];
        }
        self.worth_from(us, evenness)
    }

    /// What a swap is worth: only two ranks change, and the slowest of the others is remembered
    /// per pair of ranks.
    fn after_swap(&self, a: (u16, usize), b: (u16, usize), scratch: &mut Scratch) -> Worth {
        let steps = self.costs.steps;
        let (hot, to) = (a.1, b.1);
        if scratch.hot != Some(hot) {
            scratch.hot = Some(hot);
            scratch.known.fill(false);
        }
        if !scratch.known[to] {
            scratch.known[to] = true;
            for step in 0..steps {
                scratch.rest[to * steps + step] = self.slowest_but(step, |r| r == hot || r == to);
            }
        }
        let rest = &scratch.rest[to * steps..(to + 1) * steps];
        let (of_a, of_b) = (self.cells_of(a.0, hot), self.cells_of(b.0, to));
        let at_hot = &self.time[hot * steps..(hot + 1) * steps];
        let at_to = &self.time[to * steps..(to + 1) * steps];
        let (speed_hot, speed_to) = (self.costs.inverse_speed[hot], self.costs.inverse_speed[to]);
        let (mut us, mut evenness) = (0.0, 0.0);
        let host = self.costs.has_host();
        for step in 0..steps {
            let moved = of_a[step] - of_b[step];
            let left = at_hot[step] - moved * speed_hot;
            let come = at_to[step] + moved * speed_to;
            let most = rest[step].max(left).max(come);
            us += if host { self.costs.on_host(most) } else { most };
            let before = at_hot[step] * at_hot[step] + at_to[step] * at_to[step];
            evenness += (left * left + come * come - before) * self.inverse_norm[step];
        }
        self.worth_from(us, evenness)
    }

    /// The slowest rank's time in a step among ranks that are not left out.
    fn slowest_but(&self, step: usize, left_out: impl Fn(usize) -> bool) -> f64 {
        let steps = self.costs.steps;
        let known = self.slowest[step].iter().find(|rank| !left_out(usize::from(**rank)));
        match known {
            Some(rank) => self.time[usize::from(*rank) * steps + step],
            None => (0..self.slots.len())
                .filter(|rank| !left_out(*rank))
                .map(|rank| self.time[rank * steps + step])
                .fold(0.0, f64::max),
        }
    }

    fn worth_from(&self, us: f64, evenness: f64) -> Worth {
        let steps = self.costs.steps as f64;
        Worth { us: us / steps, evenness: self.worth.evenness + evenness / steps }
    }
}

/// Ranks that a change touches, with their new times. Reused between candidates.
pub(crate) struct Scratch {
    stamp: u32,
    mark: Vec<u32>,
    ranks: Vec<usize>,
    time: Vec<f64>,
    cell: Vec<f64>,
    /// Rank that swaps are tried for, and per partner: is `rest` known?
    hot: Option<usize>,
    known: Vec<bool>,
    /// `[partner * steps + step]`: slowest of the other ranks, µs.
    rest: Vec<f64>,
}

impl Scratch {
    pub(crate) fn new(ranks: usize, steps: usize) -> Self {
        Self {
            stamp: 0,
            mark: vec![0; ranks],
            ranks: Vec::new(),
            time: Vec::new(),
            cell: Vec::new(),
            hot: None,
            known: vec![false; ranks],
            rest: vec![0.0; ranks * steps],
        }
    }

    /// Forgets what was remembered about a state.
    pub(crate) fn next_state(&mut self) {
        self.hot = None;
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
