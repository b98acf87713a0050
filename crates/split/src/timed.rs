//! Splits by time instead of rows: a copy that is opened costs its first tile.
//!
//! In decode an expert's rows are few, and a copy's time is mostly that of reading its weights once.
//! Sharing such an expert over two ranks makes both read it. The searches here start from the
//! min–max of rows and from every expert whole, and move rows off the slowest ranks as long as the
//! slowest time falls; they give local optima, never worse than where they started.

use crate::{SplitError, StepSplitter, min_max_rows_weighted};
use evenkeel_types::RankId;

/// Shares are moved in steps of this many ways at least: what a table can express.
const WAY: f64 = 1.0 / 64.0;

/// Part of an expert's rows that a change moves, in ways; the largest first.
const MOVES: [f64; 6] = [64.0, 32.0, 16.0, 8.0, 4.0, 1.0];

/// Weight of evenness beside the time of the slowest rank: it leads on where several are equally slow.
const EVENNESS: f64 = 0.02;

/// Passes over all experts. Few change anything after the second.
const PASSES: usize = 6;

/// Shares of one layer chosen by time.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// `[expert]`: share of its rows for each of its hosts, in the order given.
    pub shares: Vec<Vec<f64>>,
    /// Mean over steps of the slowest rank's time, µs.
    pub slowest_us: f64,
    /// The same under the min–max of rows over all steps.
    pub min_max_us: f64,
    /// The same under equal shares.
    pub even_us: f64,
}

/// What a layer's split by time is measured with.
#[derive(Clone, Copy, Debug)]
pub struct TimedInput<'a> {
    /// `[expert]` → ranks that hold it.
    pub hosts: &'a [Vec<RankId>],
    /// `[expert * steps + step]`: rows of the sampled steps.
    pub rows: &'a [f64],
    /// Sampled steps.
    pub steps: usize,
    /// `[rank]`: time that no split changes (launch, slots, fixed load), before its speed, µs.
    pub base_us: &'a [f64],
    /// `[rank]`: 1 ÷ speed; 0 for a rank that nobody waits for.
    pub inverse_speed: &'a [f64],
}

/// Static shares that minimise the mean over steps of `max_rank (base + Σ cell(rows × share)) ÷ speed`.
///
/// `cell_us(rows)` is the time of one copy with so many expected rows; 0 for 0 rows. The best of
/// three starts (min–max of rows, equal shares, experts whole), each improved by moving ways of an
/// expert between two of its copies; never slower than any of the starts.
///
/// # Errors
/// As [`crate::min_max_rows`], and lists that do not fit the hosts.
pub fn timed_shares(
    input: &TimedInput<'_>,
    cell_us: impl Fn(f64) -> f64,
) -> Result<Timed, SplitError> {
    let TimedInput { hosts, rows, steps, base_us, inverse_speed } = *input;
    let ranks = base_us.len();
    let length = |what, found, expected| match found == expected {
        true => Ok(()),
        false => Err(SplitError::Length { what, found, expected }),
    };
    length("rows of steps", rows.len(), hosts.len() * steps)?;
    length("inverse speeds", inverse_speed.len(), ranks)?;
    let total = |expert: usize| rows[expert * steps..(expert + 1) * steps].iter().sum::<f64>();
    let totals: Vec<u64> = (0..hosts.len()).map(|expert| total(expert).round() as u64).collect();
    let speed = |inverse: &f64| if *inverse > 0.0 { 1000.0 / inverse } else { 1000.0 };
    let weights: Vec<u32> =
        inverse_speed.iter().map(|inverse| speed(inverse).round().max(1.0) as u32).collect();
    let min_max = min_max_rows_weighted(hosts, &totals, &weights)?.shares;
    let even: Vec<Vec<f64>> =
        hosts.iter().map(|ranks| vec![1.0 / ranks.len() as f64; ranks.len()]).collect();
    let whole = whole(hosts, &totals, &weights);
    let mut best: Option<(f64, Vec<Vec<f64>>)> = None;
    let mut starts = Vec::with_capacity(3);
    for shares in [min_max, even, whole] {
        let mut search = Search::new(*input, &cell_us, shares);
        starts.push(search.slowest_us());
        search.improve();
        let found = search.slowest_us();
        if best.as_ref().is_none_or(|(us, _)| found < *us) {
            best = Some((found, search.shares));
        }
    }
    let (slowest_us, shares) = best.unwrap_or_default();
    Ok(Timed { shares, slowest_us, min_max_us: starts[0], even_us: starts[1] })
}

/// Every expert on one copy, the heaviest first onto the emptiest of its hosts.
fn whole(hosts: &[Vec<RankId>], totals: &[u64], weights: &[u32]) -> Vec<Vec<f64>> {
    let mut order: Vec<usize> = (0..hosts.len()).collect();
    order.sort_by_key(|expert| (hosts[*expert].len() > 1, u64::MAX - totals[*expert], *expert));
    let mut load = vec![0.0_f64; weights.len()];
    let mut shares: Vec<Vec<f64>> = hosts.iter().map(|ranks| vec![0.0; ranks.len()]).collect();
    for expert in order {
        let ranks = &hosts[expert];
        let emptiest = (0..ranks.len())
            .min_by(|a, b| load[ranks[*a].index()].total_cmp(&load[ranks[*b].index()]));
        if let Some(host) = emptiest {
            let rank = ranks[host].index();
            shares[expert][host] = 1.0;
            load[rank] += totals[expert] as f64 / f64::from(weights[rank]);
        }
    }
    shares
}

/// Shares under change, with the time of every rank in every step.
struct Search<'a, F> {
    input: TimedInput<'a>,
    cell_us: &'a F,
    shares: Vec<Vec<f64>>,
    /// `[step * ranks + rank]`, µs.
    time: Vec<f64>,
}

impl<'a, F: Fn(f64) -> f64> Search<'a, F> {
    fn new(input: TimedInput<'a>, cell_us: &'a F, shares: Vec<Vec<f64>>) -> Self {
        let ranks = input.base_us.len();
        let mut time = Vec::with_capacity(ranks * input.steps);
        for _ in 0..input.steps {
            time.extend(input.base_us.iter().zip(input.inverse_speed).map(|(us, inv)| us * inv));
        }
        for (expert, hosts) in input.hosts.iter().enumerate() {
            for (rank, share) in hosts.iter().zip(&shares[expert]) {
                let rank = rank.index();
                for step in 0..input.steps {
                    let rows = input.rows[expert * input.steps + step] * share;
                    time[step * ranks + rank] += cell_us(rows) * input.inverse_speed[rank];
                }
            }
        }
        Self { input, cell_us, shares, time }
    }

    fn slowest_us(&self) -> f64 {
        let steps = self.time.chunks_exact(self.input.base_us.len().max(1));
        let sum: f64 = steps.map(|ranks| ranks.iter().copied().fold(0.0, f64::max)).sum();
        sum / self.input.steps.max(1) as f64
    }

    fn improve(&mut self) {
        for _ in 0..PASSES {
            let mut changed = false;
            for expert in 0..self.input.hosts.len() {
                let copies = self.input.hosts[expert].len();
                for from in 0..copies {
                    for to in (0..copies).filter(|to| *to != from) {
                        changed |= self.shift(expert, from, to);
                    }
                }
            }
            if !changed {
                break;
            }
        }
    }

    /// Moves the part of an expert between two copies that helps most; whether any helps.
    fn shift(&mut self, expert: usize, from: usize, to: usize) -> bool {
        let has = self.shares[expert][from];
        let mut best = (0.0_f64, 1e-9_f64);
        for ways in MOVES {
            let part = (ways * WAY).min(has);
            let gain = self.gain(expert, from, to, part);
            if part > 0.0 && gain > best.1 {
                best = (part, gain);
            }
        }
        let (part, _) = best;
        if part <= 0.0 {
            return false;
        }
        let ranks = self.input.base_us.len();
        for step in 0..self.input.steps {
            let (a, b, changed) = self.changed(expert, from, to, part, step);
            self.time[step * ranks + a] += changed.0;
            self.time[step * ranks + b] += changed.1;
        }
        self.shares[expert][from] = if part < has { has - part } else { 0.0 };
        self.shares[expert][to] += part;
        true
    }

    /// Both ranks of a change, and what it adds to their times in a step, µs.
    fn changed(
        &self,
        expert: usize,
        from: usize,
        to: usize,
        part: f64,
        step: usize,
    ) -> (usize, usize, (f64, f64)) {
        let TimedInput { hosts, rows, steps, inverse_speed, .. } = self.input;
        let rows = rows[expert * steps + step];
        let (a, b) = (hosts[expert][from].index(), hosts[expert][to].index());
        let shares = &self.shares[expert];
        let cell = |share: f64| (self.cell_us)(rows * share.max(0.0));
        let left = (cell(shares[from] - part) - cell(shares[from])) * inverse_speed[a];
        let added = (cell(shares[to] + part) - cell(shares[to])) * inverse_speed[b];
        (a, b, (left, added))
    }

    /// What a change saves: mean slowest time, and a little of the evenness that leads on where
    /// several ranks are equally slow, µs.
    fn gain(&self, expert: usize, from: usize, to: usize, part: f64) -> f64 {
        let ranks = self.input.base_us.len();
        let (mut gain, mut evener) = (0.0, 0.0);
        for step in 0..self.input.steps {
            let (a, b, (left, added)) = self.changed(expert, from, to, part, step);
            let time = &self.time[step * ranks..(step + 1) * ranks];
            let (mut others, mut sum) = (0.0_f64, 0.0);
            for (rank, time) in time.iter().enumerate() {
                sum += time;
                if rank != a && rank != b {
                    others = others.max(*time);
                }
            }
            let before = others.max(time[a]).max(time[b]);
            let after = others.max(time[a] + left).max(time[b] + added);
            let square = |us: f64| us * us;
            let uneven = square(time[a]) + square(time[b])
                - square(time[a] + left)
                - square(time[b] + added);
            gain += before - after;
            evener += uneven / sum.max(1e-9);
        }
        // Evenness alone never pays for a slower step.
        if gain < 0.0 { gain } else { (gain + EVENNESS * evener) / self.input.steps.max(1) as f64 }
    }
}

impl StepSplitter {
    /// [`StepSplitter::split`], then moves whole rows between copies as long as the slowest rank's
    /// time falls: a copy that is not worth its first tile stays closed.
    ///
    /// `cell_us(rows)` is the time of a copy, `base_us[rank]` what no split changes; both before the
    /// rank's speed, which is its weight. Returns the slowest rank's time × the largest weight ÷ its
    /// own, µs. [`StepSplitter::bound`] stays the bound on rows. Allocates per call.
    ///
    /// # Errors
    /// As [`StepSplitter::split`], and another number of base times than ranks.
    pub fn split_timed<T: Copy + Into<u64>>(
        &mut self,
        counts: &[T],
        base_us: &[f64],
        cell_us: impl Fn(u64) -> f64,
    ) -> Result<f64, SplitError> {
        let (found, expected) = (base_us.len(), self.weights.len());
        if found != expected {
            return Err(SplitError::Length { what: "base times", found, expected });
        }
        self.split(counts)?;
        let level = self.descend(base_us, &cell_us);
        let level_rows = self.rows.clone();
        for index in 0..self.multi.len() {
            self.gather(self.multi[index] as usize);
        }
        let whole = self.descend(base_us, &cell_us);
        if level <= whole {
            self.rows = level_rows;
        }
        self.rank_rows.fill(0);
        for (rank, rows) in self.host.iter().zip(&self.rows) {
            self.rank_rows[usize::from(*rank)] += rows;
        }
        Ok(level.min(whole))
    }

    /// Puts all rows of an expert on the copy that has most of them.
    fn gather(&mut self, expert: usize) {
        let edges = self.edges(expert);
        let rows: u64 = self.rows[edges.clone()].iter().sum();
        let most = edges.clone().max_by_key(|edge| (self.rows[*edge], usize::MAX - edge));
        self.rows[edges].fill(0);
        if let Some(edge) = most {
            self.rows[edge] = rows;
        }
    }

    /// Takes rows off the slowest rank as long as its time falls; that time.
    fn descend(&mut self, base_us: &[f64], cell_us: &impl Fn(u64) -> f64) -> f64 {
        let most = self.weights.iter().copied().max().unwrap_or(1);
        let slow: Vec<f64> =
            self.weights.iter().map(|own| f64::from(most) / f64::from(*own)).collect();
        let mut time: Vec<f64> = base_us.iter().zip(&slow).map(|(us, slow)| us * slow).collect();
        for (rank, rows) in self.host.iter().zip(&self.rows) {
            time[usize::from(*rank)] += cell_us(*rows) * slow[usize::from(*rank)];
        }
        // Every change lowers the larger of two times; the limit guards against endless small ones.
        for _ in 0..8 * self.host.len().max(1) {
            let slowest =
                (0..time.len()).max_by(|a, b| time[*a].total_cmp(&time[*b]).then(b.cmp(a)));
            let Some(rank) = slowest else { break };
            let Some((from, to, rows, a, b)) = self.relief(rank, &time, &slow, cell_us) else {
                break;
            };
            self.rows[from] -= rows;
            self.rows[to] += rows;
            time[rank] = a;
            time[usize::from(self.host[to])] = b;
        }
        time.into_iter().fold(0.0, f64::max)
    }

    /// The move off a rank that leaves the larger of the two times least: edges, rows, both times.
    fn relief(
        &self,
        rank: usize,
        time: &[f64],
        slow: &[f64],
        cell_us: &impl Fn(u64) -> f64,
    ) -> Option<(usize, usize, u64, f64, f64)> {
        let mut best = None;
        let mut least = time[rank] - 1e-9;
        for &expert in &self.multi {
            let edges = self.edges(expert as usize);
            let from = edges.clone().find(|edge| usize::from(self.host[*edge]) == rank);
            let Some(from) = from.filter(|edge| self.rows[*edge] > 0) else { continue };
            let has = self.rows[from];
            for to in edges.filter(|edge| *edge != from) {
                let other = usize::from(self.host[to]);
                let mut rows = has;
                while rows > 0 {
                    let left = cell_us(has - rows) - cell_us(has);
                    let added = cell_us(self.rows[to] + rows) - cell_us(self.rows[to]);
                    let a = time[rank] + left * slow[rank];
                    let b = time[other] + added * slow[other];
                    if a.max(b) < least && a < time[rank] {
                        least = a.max(b);
                        best = Some((from, to, rows, a, b));
                    }
                    // All, then three quarters, and so on: a tile's edge is met closely enough.
                    rows = rows * 3 / 4;
                }
            }
        }
        best
    }
}
