//! From the map in force: the change with most gain per move, again and again.
//!
//! What counts is how far ranks stand above the level that is enough: the sum of squares of the
//! excess. A change is a swap of two copies (two moves), a further copy over one that has siblings
//! or into a free slot (one), or a shift into a free slot (one). A copy that returns to a rank where
//! the map in force has it costs nothing.

use super::bins::Bins;

/// Ranks that are tried before the repair gives up.
const RANKS_TRIED: usize = 8;

/// Gain per move of a change that costs none.
const FREE: f64 = 0.25;

/// A change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Swap {
        a: u16,
        from: usize,
        b: u16,
        to: usize,
    },
    /// `expert` on `rank`, in place of `over`, or in a free slot.
    Copy {
        expert: u16,
        rank: usize,
        over: Option<u16>,
    },
    Shift {
        expert: u16,
        from: usize,
        to: usize,
    },
}

/// What a repair may do.
pub(crate) struct Terms<'a> {
    /// `[expert * ranks + rank]`: in the map in force.
    pub(crate) at_home: &'a [bool],
    /// `[expert * ranks + rank]`: a copy that has to stay.
    pub(crate) pinned: &'a [bool],
    /// `[expert * ranks + rank]`: a copy that may not come.
    pub(crate) barred: &'a [bool],
    /// Level that is enough.
    pub(crate) enough: f64,
    /// Most moves.
    pub(crate) moves_max: usize,
    /// Copies may fill free slots.
    pub(crate) may_fill: bool,
}

/// Repairs until all ranks are at most `enough`, nothing helps, or moves run out. `step` sees every
/// state after a change. Returns moves: copies that the map in force does not have.
pub(crate) fn repair(
    bins: &mut Bins<'_>,
    terms: &Terms<'_>,
    mut step: impl FnMut(&Bins<'_>),
) -> usize {
    let mut hosts = hosts_of(bins);
    let mut moves = count_moves(bins, terms);
    let slots: usize = bins.layer.sizes.iter().sum();
    let mut order: Vec<usize> = Vec::new();
    // Every change lowers the excess; the limit is a guard.
    for _ in 0..4 * slots {
        order.clear();
        order.extend((0..bins.ranks()).filter(|rank| bins.level[*rank] > terms.enough));
        order.sort_by(|a, b| bins.level[*b].total_cmp(&bins.level[*a]).then(a.cmp(b)));
        let mut best = None;
        let gains = copy_gains(bins, &hosts, terms.enough);
        for hot in order.iter().take(RANKS_TRIED) {
            let left = terms.moves_max as i32 - moves as i32;
            let top = bins.level[order[0]];
            let mut trial =
                Trial { bins, hosts: &hosts, terms, gains: &gains, left, top, best: None };
            trial.swaps(*hot);
            trial.copies(*hot);
            best = trial.best;
            if best.is_some() {
                break;
            }
        }
        let Some((_, cost, change)) = best else { break };
        apply(bins, &mut hosts, change);
        moves = (moves as i32 + cost) as usize;
        step(bins);
    }
    moves
}

fn over(level: f64, enough: f64) -> f64 {
    let over = (level - enough).max(0.0);
    over * over
}

fn hosts_of(bins: &Bins<'_>) -> Vec<Vec<u16>> {
    let mut hosts = vec![Vec::new(); bins.copies.len()];
    for rank in 0..bins.ranks() {
        bins.held(rank).iter().for_each(|expert| hosts[usize::from(*expert)].push(rank as u16));
    }
    hosts
}

fn count_moves(bins: &Bins<'_>, terms: &Terms<'_>) -> usize {
    let ranks = bins.ranks();
    let pairs = (0..ranks)
        .flat_map(|rank| bins.held(rank).iter().map(move |e| usize::from(*e) * ranks + rank));
    pairs.filter(|pair| !terms.at_home[*pair]).count()
}

/// `[expert]`: excess that goes where its copies are, were there one more.
fn copy_gains(bins: &Bins<'_>, hosts: &[Vec<u16>], enough: f64) -> Vec<f64> {
    let gain = |(expert, hosts): (usize, &Vec<u16>)| {
        let after = bins.layer.loads[expert] / f64::from(bins.copies[expert] + 1);
        let less = bins.piece[expert] - after;
        let at = |rank: &u16| {
            let (level, inverse) =
                (bins.level[usize::from(*rank)], bins.layer.inverse_speed[usize::from(*rank)]);
            over(level, enough) - over(level - less * inverse, enough)
        };
        hosts.iter().map(at).sum()
    };
    hosts.iter().enumerate().map(gain).collect()
}

fn apply(bins: &mut Bins<'_>, hosts: &mut [Vec<u16>], change: Change) {
    let mut carry = |bins: &mut Bins<'_>, expert: u16, from: usize, to: usize| {
        bins.take(from, expert);
        bins.put(to, expert);
        let list = &mut hosts[usize::from(expert)];
        list.retain(|rank| usize::from(*rank) != from);
        list.push(to as u16);
    };
    match change {
        Change::Swap { a, from, b, to } => {
            // The copy that comes takes the slot of the one that goes: both leave first.
            bins.take(to, b);
            bins.put(to, a);
            bins.take(from, a);
            bins.put(from, b);
            for (expert, from, to) in [(a, from, to), (b, to, from)] {
                let list = &mut hosts[usize::from(expert)];
                list.retain(|rank| usize::from(*rank) != from);
                list.push(to as u16);
            }
        }
        Change::Shift { expert, from, to } => carry(bins, expert, from, to),
        Change::Copy { expert, rank, over } => {
            if let Some(over) = over {
                bins.take(rank, over);
                let list = &mut hosts[usize::from(over)];
                list.retain(|other| usize::from(*other) != rank);
                bins.recount(over, bins.copies[usize::from(over)] - 1, list);
            }
            let list = &mut hosts[usize::from(expert)];
            bins.recount(expert, bins.copies[usize::from(expert)] + 1, list);
            bins.put(rank, expert);
            list.push(rank as u16);
        }
    }
}

struct Trial<'t, 'a> {
    bins: &'t Bins<'a>,
    hosts: &'t [Vec<u16>],
    terms: &'t Terms<'t>,
    /// `[expert]`: excess that a further copy takes off the ranks that have it.
    gains: &'t [f64],
    /// Moves left.
    left: i32,
    /// The highest level: no change may end above it.
    top: f64,
    /// Gain per move, moves, change.
    best: Option<(f64, i32, Change)>,
}

impl Trial<'_, '_> {
    fn over(&self, level: f64) -> f64 {
        over(level, self.terms.enough)
    }

    fn home(&self, expert: u16, rank: usize) -> bool {
        self.terms.at_home[usize::from(expert) * self.bins.ranks() + rank]
    }

    fn pinned(&self, expert: u16, rank: usize) -> bool {
        self.terms.pinned[usize::from(expert) * self.bins.ranks() + rank]
    }

    fn barred(&self, expert: u16, rank: usize) -> bool {
        self.terms.barred[usize::from(expert) * self.bins.ranks() + rank]
    }

    /// Moves that come with a copy's arrival, or go with its end.
    fn cost(&self, expert: u16, rank: usize) -> i32 {
        i32::from(!self.home(expert, rank))
    }

    /// Whether a gain at a cost is better than the best so far, and no noise.
    fn beats(&self, gain: f64, cost: i32) -> bool {
        let most = self.best.map_or(0.0, |best| best.0);
        gain > most * f64::from(cost).max(FREE)
            && gain > self.terms.enough * self.terms.enough * 1e-14
    }

    fn offer(&mut self, gain: f64, cost: i32, change: Change) {
        if cost <= self.left && self.beats(gain, cost) {
            self.best = Some((gain / f64::from(cost).max(FREE), cost, change));
        }
    }

    fn swaps(&mut self, hot: usize) {
        let (bins, top, enough) = (self.bins, self.top, self.terms.enough);
        let (inverse, high) = (bins.layer.inverse_speed, bins.level[hot]);
        for other in (0..bins.ranks()).filter(|other| *other != hot) {
            let low = bins.level[other];
            if low >= high || bins.layer.sizes[other] == 0 {
                continue;
            }
            let before = over(high, enough) + over(low, enough);
            let gain = |moved: f64| {
                let (left, come) = (high - moved * inverse[hot], low + moved * inverse[other]);
                if come > top { 0.0 } else { before - over(left, enough) - over(come, enough) }
            };
            let free = bins.room(other) > 0 && self.terms.may_fill;
            for (a, piece) in bins.held(hot).iter().zip(bins.rows(hot)) {
                let (a, piece) = (*a, *piece);
                if self.pinned(a, hot)
                    || self.barred(a, other)
                    || (bins.copies[usize::from(a)] > 1 && bins.holds(other, a))
                {
                    continue;
                }
                let there = self.cost(a, other) - self.cost(a, hot);
                if free {
                    let shift = Change::Shift { expert: a, from: hot, to: other };
                    self.offer(gain(piece), there, shift);
                }
                for (b, less) in bins.held(other).iter().zip(bins.rows(other)) {
                    let (b, moved) = (*b, piece - less);
                    if moved <= 0.0 {
                        continue;
                    }
                    // Cheap things first: most pairs gain too little, whatever else holds.
                    let cost = there + self.cost(b, hot) - self.cost(b, other);
                    let gain = gain(moved);
                    if !self.beats(gain, cost) || self.pinned(b, other) || self.barred(b, hot) {
                        continue;
                    }
                    if bins.copies[usize::from(b)] < 2 || !bins.holds(hot, b) {
                        self.offer(gain, cost, Change::Swap { a, from: hot, b, to: other });
                    }
                }
            }
        }
    }

    /// Further copies of what lies on the hot rank, and copies over what it has siblings of.
    fn copies(&mut self, hot: usize) {
        let bins = self.bins;
        for rank in (0..bins.ranks()).filter(|rank| bins.layer.sizes[*rank] > 0) {
            if rank != hot && self.terms.may_fill && bins.room(rank) > 0 {
                for expert in bins.held(hot) {
                    self.copy(*expert, rank, None, 0.0);
                }
            }
            for over in bins.held(rank) {
                if bins.copies[usize::from(*over)] < 2 || self.pinned(*over, rank) {
                    continue;
                }
                let loss = self.loss(*over, rank);
                if rank != hot {
                    for expert in bins.held(hot) {
                        self.copy(*expert, rank, Some(*over), loss);
                    }
                } else {
                    // On the hot rank itself: a copy of something lighter takes the place.
                    for expert in 0..bins.copies.len() as u16 {
                        self.copy(expert, rank, Some(*over), loss);
                    }
                }
            }
        }
    }

    /// Excess that comes to the siblings of a copy that ends.
    fn loss(&self, gone: u16, rank: usize) -> f64 {
        let bins = self.bins;
        let index = usize::from(gone);
        let more = bins.layer.loads[index] / f64::from(bins.copies[index] - 1) - bins.piece[index];
        let at = |host: &u16| {
            let (level, inverse) =
                (bins.level[usize::from(*host)], bins.layer.inverse_speed[usize::from(*host)]);
            self.over(level + more * inverse) - self.over(level)
        };
        self.hosts[index].iter().filter(|host| usize::from(**host) != rank).map(at).sum()
    }

    fn copy(&mut self, expert: u16, rank: usize, over: Option<u16>, loss: f64) {
        let bins = self.bins;
        let (index, inverse) = (usize::from(expert), bins.layer.inverse_speed);
        // What it would gain were no rank touched twice; then exactly, where that is promising.
        let arrives = bins.layer.loads[index] / f64::from(bins.copies[index] + 1);
        let leaves = over.map_or(0.0, |over| bins.piece[usize::from(over)]);
        let level = bins.level[rank];
        let estimate = self.gains[index] - loss + self.over(level)
            - self.over(level + (arrives - leaves) * inverse[rank]);
        if estimate <= 0.0
            || self.best.is_some_and(|best| estimate < best.0 && self.cost(expert, rank) > 0)
        {
            return;
        }
        if over == Some(expert) || self.barred(expert, rank) || bins.holds(rank, expert) {
            return;
        }
        let load = bins.layer.loads[index];
        let after = load / f64::from(bins.copies[index] + 1);
        // [rank]: rows that come (or go), for the few ranks that a change touches.
        let mut touched: [(usize, f64); 24] = [(usize::MAX, 0.0); 24];
        let mut count = 0;
        let mut add = |rank: usize, rows: f64| -> bool {
            if let Some(known) = touched[..count].iter_mut().find(|known| known.0 == rank) {
                known.1 += rows;
                return true;
            }
            if count == touched.len() {
                return false;
            }
            touched[count] = (rank, rows);
            count += 1;
            true
        };
        let mut fits = add(rank, after);
        for host in &self.hosts[index] {
            fits &= add(usize::from(*host), after - bins.piece[index]);
        }
        let mut cost = self.cost(expert, rank);
        if let Some(over) = over {
            let gone = usize::from(over);
            let more = bins.layer.loads[gone] / f64::from(bins.copies[gone] - 1);
            for host in &self.hosts[gone] {
                let host = usize::from(*host);
                let rows = if host == rank { -bins.piece[gone] } else { more - bins.piece[gone] };
                fits &= add(host, rows);
            }
            cost -= self.cost(over, rank);
        }
        if !fits {
            return;
        }
        let mut gain = 0.0;
        for (rank, rows) in &touched[..count] {
            let (level, after) = (bins.level[*rank], bins.level[*rank] + rows * inverse[*rank]);
            if after > self.top {
                return;
            }
            gain += self.over(level) - self.over(after);
        }
        self.offer(gain, cost, Change::Copy { expert, rank, over });
    }
}
