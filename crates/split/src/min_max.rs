//! The exact min–max split of loads over copies.

use crate::SplitError;
use crate::flow::Flow;
use evenkeel_types::{ExpertId, LayerId, RankId};

/// The best split of one layer's loads over the copies of its experts.
///
/// Not only the largest rank is least: the next largest is least given that, and so on
/// (lexicographically), so that the ranks below the maximum are as even as the map allows.
#[derive(Clone, Debug, PartialEq)]
pub struct MinMax {
    /// Rows of the most loaded rank, divided by its weight: no split of this map has less.
    pub max_rows: f64,
    /// The same as a fraction: rows of the ranks that bind …
    pub rows: u64,
    /// … and the sum of their weights (their number where all weights are 1).
    pub weight: u64,
    /// `[expert]`: share of its rows for each of its hosts, in the order given.
    pub shares: Vec<Vec<f64>>,
    /// `[rank]`: rows under these shares.
    pub rank_rows: Vec<f64>,
}

/// Splits `loads[expert]` over `hosts[expert]` so that the most loaded rank has least.
///
/// Exact by parametric maximum flow in integers: the value is the largest, over all sets U of
/// ranks, of (rows of experts that live only in U) ÷ |U|, found by Dinkelbach's iteration over
/// minimum cuts. Experts without rows are split evenly.
///
/// # Errors
/// An expert without a host, a host that is no rank, or loads beyond 63-bit arithmetic.
pub fn min_max_rows(
    hosts: &[Vec<RankId>],
    loads: &[u64],
    ranks: usize,
) -> Result<MinMax, SplitError> {
    min_max_rows_weighted(hosts, loads, &vec![1; ranks])
}

/// [`min_max_rows`] for ranks of unequal speed: minimises the largest `rows ÷ weight`.
///
/// # Errors
/// As [`min_max_rows`], and a weight of zero.
pub fn min_max_rows_weighted(
    hosts: &[Vec<RankId>],
    loads: &[u64],
    weights: &[u32],
) -> Result<MinMax, SplitError> {
    check(hosts, loads, weights)?;
    let mut levels = Levels::new(hosts, loads, weights);
    let mut top = None;
    while let Some(level) = levels.next() {
        top.get_or_insert(level);
    }
    let (rows, weight) = top.unwrap_or((0, 1));
    let mut rank_rows = vec![0.0; weights.len()];
    for ((hosts, shares), load) in hosts.iter().zip(&levels.shares).zip(loads) {
        for (rank, share) in hosts.iter().zip(shares) {
            rank_rows[rank.index()] += share * *load as f64;
        }
    }
    let max_rows = rows as f64 / weight as f64;
    Ok(MinMax { max_rows, rows, weight, shares: levels.shares, rank_rows })
}

pub(crate) fn check(
    hosts: &[Vec<RankId>],
    loads: &[u64],
    weights: &[u32],
) -> Result<(), SplitError> {
    if loads.len() != hosts.len() {
        return Err(SplitError::Length {
            what: "loads",
            found: loads.len(),
            expected: hosts.len(),
        });
    }
    for (index, ranks) in hosts.iter().enumerate() {
        let expert = ExpertId(index as u16);
        if ranks.is_empty() {
            return Err(SplitError::NoHost { layer: LayerId(0), expert });
        }
        if let Some(rank) = ranks.iter().find(|rank| rank.index() >= weights.len()) {
            return Err(SplitError::Rank { expert, rank: *rank, ranks: weights.len() });
        }
    }
    if let Some(rank) = weights.iter().position(|weight| *weight == 0) {
        return Err(SplitError::ZeroWeight { rank: RankId(rank as u16) });
    }
    let rows = loads.iter().fold(0_u64, |sum, load| sum.saturating_add(*load));
    let weight: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    match rows.checked_mul(weight.max(1)) {
        Some(product) if product < 1 << 62 => Ok(()),
        _ => Err(SplitError::TooLarge { rows, weight }),
    }
}

/// Peels off, level by level, the ranks that cannot be relieved further.
struct Levels<'a> {
    loads: &'a [u64],
    weights: &'a [u32],
    shares: Vec<Vec<f64>>,
    /// Ranks not yet fixed.
    open: Vec<bool>,
    /// `[rank]`: rows that have nowhere else to go.
    settled: Vec<u64>,
    /// Experts still to be split: id and open hosts as (rank, index among its hosts).
    experts: Vec<(usize, Vec<(usize, usize)>)>,
}

impl<'a> Levels<'a> {
    fn new(hosts: &[Vec<RankId>], loads: &'a [u64], weights: &'a [u32]) -> Self {
        let shares = hosts.iter().zip(loads).map(|(ranks, load)| {
            let share = if *load == 0 { 1.0 / ranks.len() as f64 } else { 0.0 };
            vec![share; ranks.len()]
        });
        let experts = hosts.iter().enumerate().filter(|(expert, _)| loads[*expert] > 0);
        let mut levels = Self {
            loads,
            weights,
            shares: shares.collect(),
            open: vec![true; weights.len()],
            settled: vec![0; weights.len()],
            experts: experts
                .map(|(expert, ranks)| {
                    (expert, ranks.iter().enumerate().map(|(i, r)| (r.index(), i)).collect())
                })
                .collect(),
        };
        levels.settle();
        levels
    }

    /// Gives experts with one open host to it.
    fn settle(&mut self) {
        let Self { loads, shares, settled, experts, .. } = self;
        experts.retain(|(expert, hosts)| match hosts.as_slice() {
            [(rank, index)] => {
                settled[*rank] += loads[*expert];
                shares[*expert][*index] = 1.0;
                false
            }
            _ => true,
        });
    }

    /// The next level as (rows, weight), or `None` when every rank is fixed.
    fn next(&mut self) -> Option<(u64, u64)> {
        let ranks: Vec<usize> = (0..self.open.len()).filter(|rank| self.open[*rank]).collect();
        let weight = |rank: &usize| u64::from(self.weights[*rank]);
        let all_rows = self.experts.iter().map(|(expert, _)| self.loads[*expert]).sum::<u64>()
            + ranks.iter().map(|rank| self.settled[*rank]).sum::<u64>();
        let mut level = (all_rows, ranks.iter().map(weight).sum::<u64>());
        if ranks.is_empty() {
            return None;
        }
        let mut tight: Vec<usize> = ranks.clone();
        let mut tight_experts = vec![true; self.experts.len()];
        // A rank whose settled rows alone exceed the mean is a set of its own.
        for &rank in &ranks {
            if greater((self.settled[rank], weight(&rank)), level) {
                level = (self.settled[rank], weight(&rank));
                tight = vec![rank];
                tight_experts = vec![false; self.experts.len()];
            }
        }
        let hosts: Vec<Vec<usize>> =
            self.experts.iter().map(|(_, hosts)| hosts.iter().map(|h| h.0).collect()).collect();
        // Each round has a smaller binding set, so there are at most as many rounds as ranks.
        let flow = loop {
            let supply = self.experts.iter().map(|(e, _)| self.loads[*e] * level.1).collect();
            let capacity = (0..self.open.len()).map(|rank| {
                if self.open[rank] {
                    level.0 * weight(&rank) - self.settled[rank] * level.1
                } else {
                    0
                }
            });
            let (flow, cut) = Flow::solve(&hosts, supply, capacity.collect());
            let Some(cut) = cut else { break flow };
            tight = ranks.iter().copied().filter(|rank| cut.ranks[*rank]).collect();
            tight_experts = cut.experts;
            let inside = self.experts.iter().zip(&tight_experts).filter(|(_, inside)| **inside);
            let rows = inside.map(|((expert, _), _)| self.loads[*expert]).sum::<u64>()
                + tight.iter().map(|rank| self.settled[*rank]).sum::<u64>();
            level = (rows, tight.iter().map(weight).sum());
        };
        self.fix(&flow, level.1, &tight, &tight_experts);
        Some(level)
    }

    fn fix(&mut self, flow: &Flow, scale: u64, ranks: &[usize], experts: &[bool]) {
        for &rank in ranks {
            self.open[rank] = false;
        }
        let mut rest = Vec::new();
        for (index, (expert, mut hosts)) in
            std::mem::take(&mut self.experts).into_iter().enumerate()
        {
            if experts[index] {
                let whole = self.loads[expert] as f64 * scale as f64;
                for ((_, host), (_, rows)) in hosts.iter().zip(&flow.edges[index]) {
                    self.shares[expert][*host] = *rows as f64 / whole;
                }
            } else {
                hosts.retain(|(rank, _)| self.open[*rank]);
                rest.push((expert, hosts));
            }
        }
        self.experts = rest;
        self.settle();
    }
}

/// Whether fraction `a` is greater than fraction `b`, exactly.
fn greater(a: (u64, u64), b: (u64, u64)) -> bool {
    u128::from(a.0) * u128::from(b.1) > u128::from(b.0) * u128::from(a.1)
}
