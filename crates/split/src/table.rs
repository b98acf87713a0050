//! The static table: which copy takes which way of an expert's tokens.

use crate::{SplitError, min_max_rows_weighted};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId, hash3};

/// What cutting exact shares into [`SplitTable::WAYS`] costs in one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rounding {
    /// Rows (÷ weight) of the most loaded rank under exact shares: the optimum of this map.
    pub exact_max_rows: f64,
    /// The same under the table.
    pub table_max_rows: f64,
}

/// Shares of every expert's tokens per copy, in units of 1/[`SplitTable::WAYS`].
///
/// A token takes the way that its dispatcher counts or hashes; consecutive ways alternate between
/// the copies in proportion to their shares, so that any run of tokens is split nearly as the
/// whole. The table is a function of map and loads alone: every rank computes the same.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitTable {
    experts: usize,
    /// `[layer][expert][way]`, flat.
    ways: Vec<RankId>,
    /// Shares of all (layer, expert) pairs, one after another.
    shares: Vec<(RankId, u16)>,
    /// `[layer * experts + expert]` → first of its shares; one more entry closes the last.
    starts: Vec<u32>,
    /// `[layer]`, empty for an even table, which knows no loads.
    rounding: Vec<Rounding>,
}

impl SplitTable {
    /// Ways that an expert's tokens are cut into. A share departs by less than one way per copy:
    /// an expert with two copies by at most 0.8 % of its rows.
    pub const WAYS: usize = 64;

    /// Equal shares for all copies, which is what engines do without a table.
    ///
    /// # Errors
    /// An expert without a copy.
    pub fn even(map: &ExpertMap) -> Result<Self, SplitError> {
        let mut table = Self::empty(map);
        for layer in 0..map.layers() {
            let layer = LayerId(layer as u16);
            for (expert, hosts) in map.hosts(layer).iter().enumerate() {
                let expert = ExpertId(expert as u16);
                if hosts.is_empty() {
                    return Err(SplitError::NoHost { layer, expert });
                }
                let copies = hosts.len();
                let (whole, extra) = (Self::WAYS / copies, Self::WAYS % copies);
                // Which copies get the odd ways differs by expert: none is favoured everywhere.
                let first = phase(layer, expert) as usize % copies;
                let share = |index: usize| {
                    let odd = (index + copies - first) % copies < extra;
                    (whole + usize::from(odd)) as u16
                };
                let shares: Vec<(RankId, u16)> =
                    hosts.iter().enumerate().map(|(i, rank)| (*rank, share(i))).collect();
                table.push(layer, expert, &shares);
            }
        }
        Ok(table)
    }

    /// The exact min–max shares for `loads[layer * experts + expert]`, rounded to ways.
    ///
    /// # Errors
    /// An expert without a copy, loads of another length, or loads beyond 63-bit arithmetic.
    pub fn balanced(map: &ExpertMap, loads: &[u64]) -> Result<Self, SplitError> {
        Self::balanced_weighted(map, loads, &vec![1; map.ranks()])
    }

    /// [`SplitTable::balanced`] for ranks of unequal speed: balances `rows ÷ weight`.
    ///
    /// # Errors
    /// As [`SplitTable::balanced`], and a weight of zero or a wrong number of weights.
    pub fn balanced_weighted(
        map: &ExpertMap,
        loads: &[u64],
        weights: &[u32],
    ) -> Result<Self, SplitError> {
        let experts = usize::from(map.experts);
        let expected = map.layers() * experts;
        if loads.len() != expected {
            return Err(SplitError::Length { what: "loads", found: loads.len(), expected });
        }
        if weights.len() != map.ranks() {
            let (found, expected) = (weights.len(), map.ranks());
            return Err(SplitError::Length { what: "rank weights", found, expected });
        }
        let mut table = Self::empty(map);
        for index in 0..map.layers() {
            let layer = LayerId(index as u16);
            let hosts = map.hosts(layer);
            let loads = &loads[index * experts..(index + 1) * experts];
            let exact =
                min_max_rows_weighted(&hosts, loads, weights).map_err(|error| match error {
                    SplitError::NoHost { expert, .. } => SplitError::NoHost { layer, expert },
                    other => other,
                })?;
            table.push_layer(layer, &hosts, loads, &exact.shares, weights);
        }
        Ok(table)
    }

    /// Given shares, rounded to ways: `shares[layer][expert]` in the order of
    /// [`ExpertMap::hosts`], each expert's sum 1. `loads` and `weights` decide where odd ways go.
    ///
    /// [`SplitTable::rounding`] then compares with these shares, which need not be an optimum.
    ///
    /// # Errors
    /// As [`SplitTable::balanced_weighted`], and shares that do not fit the map's copies, or that are
    /// no shares.
    pub fn from_shares(
        map: &ExpertMap,
        loads: &[u64],
        weights: &[u32],
        shares: &[Vec<Vec<f64>>],
    ) -> Result<Self, SplitError> {
        let experts = usize::from(map.experts);
        let length = |what, found, expected| match found == expected {
            true => Ok(()),
            false => Err(SplitError::Length { what, found, expected }),
        };
        length("loads", loads.len(), map.layers() * experts)?;
        length("rank weights", weights.len(), map.ranks())?;
        length("layers of shares", shares.len(), map.layers())?;
        let mut table = Self::empty(map);
        for (index, shares) in shares.iter().enumerate() {
            let layer = LayerId(index as u16);
            let hosts = map.hosts(layer);
            length("shares of a layer", shares.len(), experts)?;
            for (expert, (hosts, shares)) in hosts.iter().zip(shares).enumerate() {
                length("shares of an expert", shares.len(), hosts.len())?;
                let sum: f64 = shares.iter().sum();
                let valid = shares.iter().all(|share| *share >= 0.0) && (sum - 1.0).abs() < 1e-6;
                if !valid {
                    return Err(SplitError::Shares { layer, expert: ExpertId(expert as u16), sum });
                }
            }
            let loads = &loads[index * experts..(index + 1) * experts];
            table.push_layer(layer, &hosts, loads, shares, weights);
        }
        Ok(table)
    }

    fn push_layer(
        &mut self,
        layer: LayerId,
        hosts: &[Vec<RankId>],
        loads: &[u64],
        exact: &[Vec<f64>],
        weights: &[u32],
    ) {
        let rounded = round(hosts, loads, exact, weights);
        let mut rows = vec![0.0; weights.len()];
        let mut exact_rows = rows.clone();
        for (expert, shares) in rounded.iter().enumerate() {
            for ((rank, ways), share) in shares.iter().zip(&exact[expert]) {
                rows[rank.index()] += loads[expert] as f64 * f64::from(*ways) / Self::WAYS as f64;
                exact_rows[rank.index()] += loads[expert] as f64 * share;
            }
            self.push(layer, ExpertId(expert as u16), shares);
        }
        let most = |rows: &[f64]| {
            let rows = rows.iter().zip(weights).map(|(rows, weight)| rows / f64::from(*weight));
            rows.fold(0.0, f64::max)
        };
        self.rounding
            .push(Rounding { exact_max_rows: most(&exact_rows), table_max_rows: most(&rows) });
    }

    /// The rank that serves a way of an expert; ways beyond [`SplitTable::WAYS`] wrap around.
    ///
    /// Layer and expert must be the map's: an id beyond them is a caller's fault and panics.
    #[must_use]
    #[inline]
    pub fn host(&self, layer: LayerId, expert: ExpertId, way: usize) -> RankId {
        self.ways[(layer.index() * self.experts + expert.index()) * Self::WAYS
            + (way & (Self::WAYS - 1))]
    }

    /// Every copy of an expert with its ways, ranks ascending. A copy may have none.
    #[must_use]
    pub fn shares(&self, layer: LayerId, expert: ExpertId) -> &[(RankId, u16)] {
        let index = layer.index() * self.experts + expert.index();
        &self.shares[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    /// `[layer]`: what rounding to ways costs; empty for an even table.
    #[must_use]
    pub fn rounding(&self) -> &[Rounding] {
        &self.rounding
    }

    fn empty(map: &ExpertMap) -> Self {
        let experts = usize::from(map.experts);
        Self {
            experts,
            ways: Vec::with_capacity(map.layers() * experts * Self::WAYS),
            shares: Vec::new(),
            starts: vec![0],
            rounding: Vec::new(),
        }
    }

    /// Appends the next (layer, expert): copies take turns, the one furthest behind its share next.
    fn push(&mut self, layer: LayerId, expert: ExpertId, shares: &[(RankId, u16)]) {
        self.shares.extend_from_slice(shares);
        self.starts.push(self.shares.len() as u32);
        if let [(rank, _)] = shares {
            // Most experts have one copy: it takes every way.
            self.ways.extend(std::iter::repeat_n(*rank, Self::WAYS));
            return;
        }
        let start = self.ways.len();
        let mut given = vec![0_i64; shares.len()];
        for way in 1..=Self::WAYS as i64 {
            let behind =
                |index: usize| i64::from(shares[index].1) * way - given[index] * Self::WAYS as i64;
            let next = (0..shares.len())
                .filter(|index| given[*index] < i64::from(shares[*index].1))
                .max_by_key(|index| (behind(*index), shares.len() - index));
            if let Some(next) = next {
                given[next] += 1;
                self.ways.push(shares[next].0);
            }
        }
        // Experts start at different points of their turn: short runs do not all favour one rank.
        let turn = phase(layer, expert) as usize % Self::WAYS;
        self.ways[start..].rotate_left(turn);
    }
}

fn phase(layer: LayerId, expert: ExpertId) -> u64 {
    hash3(0x5b11_7ab1e, u64::from(layer.0), u64::from(expert.0)) >> 32
}

/// Cuts shares into ways. Every copy gets the whole part of its share or one way more; heavy
/// experts go first, and odd ways go where rounding has taken most rows away so far.
fn round(
    hosts: &[Vec<RankId>],
    loads: &[u64],
    shares: &[Vec<f64>],
    weights: &[u32],
) -> Vec<Vec<(RankId, u16)>> {
    let total = SplitTable::WAYS as f64;
    // One copy takes every way, and rounds nothing.
    let mut order: Vec<usize> = (0..hosts.len()).filter(|e| hosts[*e].len() > 1).collect();
    order.sort_by_key(|expert| (u64::MAX - loads[*expert], *expert));
    // [rank]: rows that rounding has added so far, divided by weight.
    let mut excess = vec![0.0_f64; weights.len()];
    let mut rounded: Vec<Vec<(RankId, u16)>> = Vec::with_capacity(hosts.len());
    for ranks in hosts {
        rounded.push(ranks.iter().map(|rank| (*rank, SplitTable::WAYS as u16)).collect());
    }
    for expert in order {
        let ideal: Vec<f64> = shares[expert].iter().map(|share| share * total).collect();
        // A share of a whole number of ways may come out a hair below it.
        let mut ways: Vec<u16> = ideal.iter().map(|ways| (ways + 1e-9) as u16).collect();
        let mut left = SplitTable::WAYS - ways.iter().map(|w| usize::from(*w)).sum::<usize>();
        let way_rows = loads[expert] as f64 / total;
        let after = |index: usize, ways: u16, excess: &[f64]| {
            let rank = hosts[expert][index].index();
            excess[rank] + way_rows * (f64::from(ways) - ideal[index]) / f64::from(weights[rank])
        };
        let mut raised = vec![false; ways.len()];
        while left > 0 {
            let next = (0..ways.len()).filter(|i| !raised[*i] && ideal[*i] > 0.0).min_by(|a, b| {
                after(*a, ways[*a] + 1, &excess)
                    .total_cmp(&after(*b, ways[*b] + 1, &excess))
                    .then(a.cmp(b))
            });
            match next {
                Some(index) => {
                    ways[index] += 1;
                    raised[index] = true;
                    left -= 1;
                }
                // Only where shares fall short of one by more than rounding, which they never do.
                None => {
                    ways[0] += left as u16;
                    left = 0;
                }
            }
        }
        for index in 0..ways.len() {
            let rank = hosts[expert][index].index();
            excess[rank] = after(index, ways[index], &excess);
        }
        rounded[expert] = hosts[expert].iter().copied().zip(ways).collect();
    }
    rounded
}
