//! One layer under search: copies by rank, rows by rank, and what crosses, change by change.

use super::{Mode, Traffic};
use evenkeel_types::{Topology, hash3, unit_f64};

/// Slots of one layer: `[rank][slot]` → expert.
pub(super) type Slots = Vec<Vec<Option<u16>>>;

/// What a rank's rows beyond its limit weigh beside the share that crosses.
const OVERLOAD: f64 = 2.0;

/// What a layer's traffic and machine fix.
pub(super) struct Terms {
    pub(super) experts: usize,
    pub(super) nodes: usize,
    mode: Mode,
    /// `[rank]`.
    pub(super) node: Vec<usize>,
    /// `[node * experts + expert]`.
    pub(super) rows: Vec<f64>,
    /// `[from * nodes + to]`: what a unit costs, 0 on the diagonal, 1 over a healthy link.
    pub(super) cost: Vec<f64>,
    /// `[node][expert * words + word]`: tokens of the node that chose the expert.
    columns: Vec<Vec<u64>>,
    units: f64,
}

impl Terms {
    pub(super) fn new(traffic: &Traffic, topology: &Topology, mode: Mode, layer: usize) -> Self {
        let (experts, nodes) = (traffic.experts, traffic.nodes());
        let rows = traffic.rows(layer);
        let share = |node: usize| topology.outer_rate_share(evenkeel_types::NodeId(node as u16));
        let mut cost = vec![0.0; nodes * nodes];
        for from in 0..nodes {
            for to in (0..nodes).filter(|to| *to != from) {
                cost[from * nodes + to] = 1.0 / share(from).min(share(to));
            }
        }
        let mut columns = Vec::new();
        for list in traffic.lists.iter().filter(|_| mode == Mode::Normal) {
            let words = list.len().div_ceil(64);
            let mut column = vec![0_u64; experts * words];
            for (index, token) in list.iter().enumerate() {
                for expert in traffic.choices(*token, layer) {
                    column[usize::from(*expert) * words + index / 64] |= 1 << (index % 64);
                }
            }
            columns.push(column);
        }
        let units = match mode {
            Mode::LowLatency => rows.iter().sum(),
            Mode::Normal => traffic.lists.iter().map(|list| list.len() as f64).sum(),
        };
        let node = topology.ranks().iter().map(|rank| rank.node.index()).collect();
        Self { experts, nodes, mode, node, rows, cost, columns, units: f64::max(units, 1.0) }
    }

    /// The node that serves an expert for a source: its own, else the cheapest that holds it.
    pub(super) fn serving(&self, source: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
        let cost = |node: usize| self.cost[source * self.nodes + node];
        (0..self.nodes)
            .filter(|node| holds(*node))
            .min_by(|a, b| cost(*a).total_cmp(&cost(*b)).then(a.cmp(b)))
    }
}

/// A state: slots, and what follows from them when sources prefer near copies.
#[derive(Clone)]
pub(super) struct State {
    pub(super) slots: Slots,
    /// `[node * experts + expert]`: copies.
    copies: Vec<u16>,
    /// `[rank]`.
    pub(super) load: Vec<f64>,
    /// Share of the units that crosses, weighted by cost.
    pub(super) crossing: f64,
}

impl State {
    pub(super) fn new(terms: &Terms, slots: Slots) -> Self {
        let mut copies = vec![0; terms.nodes * terms.experts];
        for (rank, slots) in slots.iter().enumerate() {
            for expert in slots.iter().flatten() {
                copies[terms.node[rank] * terms.experts + usize::from(*expert)] += 1;
            }
        }
        let load = vec![0.0; slots.len()];
        let mut state = Self { slots, copies, load, crossing: 0.0 };
        for expert in 0..terms.experts {
            state.charge(terms, expert, 1.0);
        }
        state.crossing = state.count(terms);
        state
    }

    /// Copies of an expert over all nodes.
    fn copies_of(&self, terms: &Terms, expert: usize) -> u16 {
        (0..terms.nodes).map(|node| self.copies[node * terms.experts + expert]).sum()
    }

    pub(super) fn holds(&self, terms: &Terms, node: usize, expert: usize) -> bool {
        self.copies[node * terms.experts + expert] > 0
    }

    /// Adds (or takes away) an expert's rows to the ranks that serve them.
    fn charge(&mut self, terms: &Terms, expert: usize, sign: f64) {
        let mut per_copy = vec![0.0; terms.nodes];
        for source in 0..terms.nodes {
            let serving = terms.serving(source, |node| self.holds(terms, node, expert));
            if let Some(node) = serving {
                let copies = f64::from(self.copies[node * terms.experts + expert]);
                per_copy[node] += terms.rows[source * terms.experts + expert] / copies;
            }
        }
        for (rank, slots) in self.slots.iter().enumerate() {
            if slots.contains(&Some(expert as u16)) {
                self.load[rank] += sign * per_copy[terms.node[rank]];
            }
        }
    }

    /// Share of the units that crosses.
    fn count(&self, terms: &Terms) -> f64 {
        let mut crossing = 0.0;
        for source in 0..terms.nodes {
            let column = terms.columns.get(source);
            let words = column.map_or(0, |column| column.len() / terms.experts);
            let mut seen = vec![0_u64; terms.nodes * words];
            for expert in 0..terms.experts {
                let Some(node) = terms.serving(source, |node| self.holds(terms, node, expert))
                else {
                    continue;
                };
                if node == source {
                    continue;
                }
                match (terms.mode, column) {
                    (Mode::Normal, Some(column)) => {
                        let seen = &mut seen[node * words..(node + 1) * words];
                        let here = &column[expert * words..(expert + 1) * words];
                        seen.iter_mut().zip(here).for_each(|(seen, here)| *seen |= here);
                    }
                    _ => {
                        crossing += terms.rows[source * terms.experts + expert]
                            * terms.cost[source * terms.nodes + node];
                    }
                }
            }
            for node in 0..terms.nodes {
                let visits: u32 =
                    seen[node * words..(node + 1) * words].iter().map(|w| w.count_ones()).sum();
                crossing += f64::from(visits) * terms.cost[source * terms.nodes + node];
            }
        }
        crossing / terms.units
    }

    /// Puts an expert into a slot; what was there leaves.
    fn put(&mut self, terms: &Terms, rank: usize, slot: usize, expert: Option<u16>) -> Option<u16> {
        let old = self.slots[rank][slot];
        for touched in [old, expert].into_iter().flatten() {
            self.charge(terms, usize::from(touched), -1.0);
        }
        self.slots[rank][slot] = expert;
        let base = terms.node[rank] * terms.experts;
        if let Some(old) = old {
            self.copies[base + usize::from(old)] -= 1;
        }
        if let Some(new) = expert {
            self.copies[base + usize::from(new)] += 1;
        }
        for touched in [old, expert].into_iter().flatten() {
            self.charge(terms, usize::from(touched), 1.0);
        }
        old
    }

    /// Rows beyond the limits, in mean limits.
    fn overload(&self, limit: &[f64]) -> f64 {
        let mean = limit.iter().sum::<f64>() / limit.len().max(1) as f64;
        let over = self.load.iter().zip(limit).map(|(load, limit)| (load - limit).max(0.0));
        over.sum::<f64>() / mean.max(1e-9)
    }
}

/// Random changes under a falling temperature; the best state within the limits, if any was seen.
///
/// `fixed(rank, slot)` slots are left alone. A change keeps a copy of every expert and puts no
/// second copy on a rank.
pub(super) fn anneal(
    terms: &Terms,
    start: &Slots,
    limit: &[f64],
    fixed: &dyn Fn(usize, usize) -> bool,
    proposals: u32,
    seed: u64,
) -> Option<State> {
    let places: Vec<(usize, usize)> = start
        .iter()
        .enumerate()
        .flat_map(|(rank, slots)| (0..slots.len()).map(move |slot| (rank, slot)))
        .filter(|(rank, slot)| start[*rank][*slot].is_some() && !fixed(*rank, *slot))
        .collect();
    let mut state = State::new(terms, start.clone());
    let mut best: Option<State> = None;
    let mut energy = state.crossing + OVERLOAD * state.overload(limit);
    let (hot, cold) = (4e-3_f64, 4e-5_f64);
    for number in 0..u64::from(proposals) {
        let draw = |at: u64| unit_f64(hash3(seed, number, at));
        let pick = |unit: f64, count: usize| (unit * count as f64) as usize;
        let Some(&(a, i)) = places.get(pick(draw(0), places.len())) else { break };
        let Some(one) = state.slots[a][i] else { continue };
        let before = state.crossing;
        let undo: [Option<(usize, usize, Option<u16>)>; 2];
        if draw(1) < 0.3 && state.copies_of(terms, usize::from(one)) > 1 {
            let other = pick(draw(2), terms.experts) as u16;
            if state.slots[a].contains(&Some(other)) {
                continue;
            }
            undo = [Some((a, i, state.put(terms, a, i, Some(other)))), None];
        } else {
            let (b, j) = places[pick(draw(3), places.len())];
            let other = state.slots[b][j];
            if a == b
                || state.slots[b].contains(&Some(one))
                || other.is_none_or(|other| state.slots[a].contains(&Some(other)))
            {
                continue;
            }
            undo = [
                Some((b, j, state.put(terms, b, j, Some(one)))),
                Some((a, i, state.put(terms, a, i, other))),
            ];
            if terms.node[a] != terms.node[b] {
                state.crossing = f64::NAN;
            }
        }
        if undo[1].is_none() || state.crossing.is_nan() {
            state.crossing = state.count(terms);
        }
        let next = state.crossing + OVERLOAD * state.overload(limit);
        let heat = hot * (cold / hot).powf(number as f64 / f64::from(proposals));
        if next <= energy || draw(4) < ((energy - next) / heat).exp() {
            energy = next;
            let within = state.overload(limit) <= 1e-9;
            if within && best.as_ref().is_none_or(|best| state.crossing < best.crossing - 1e-12) {
                best = Some(state.clone());
            }
        } else {
            for (rank, slot, expert) in undo.into_iter().rev().flatten() {
                state.put(terms, rank, slot, expert);
            }
            state.crossing = before;
        }
    }
    best
}
