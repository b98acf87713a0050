//! A split that knows where a token comes from: a static table per source node.

use crate::{SplitError, SplitTable};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, NodeId, RankId};

/// Shares of every expert's tokens per copy, for each node that tokens come from, in units of
/// 1/[`SplitTable::WAYS`].
///
/// It chooses among ranks that hold the expert and nothing else, as [`SplitTable`] does; only the
/// shares may differ by the node whose rank dispatches the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSplit {
    layers: usize,
    experts: usize,
    /// `[(node * layers + layer) * experts + expert]`, ranks ascending.
    shares: Vec<Vec<(RankId, u16)>>,
}

impl SourceSplit {
    /// Rounds `shares(node, layer, expert)`, one number per holder of the expert in the order of
    /// [`ExpertMap::hosts`], to ways: whole ways first, the rest to the largest remainders.
    ///
    /// Numbers below 0 or not finite count as 0; where all are 0 the copies share evenly.
    ///
    /// # Errors
    /// An expert without a copy, or another count of shares than of holders.
    pub fn new(
        map: &ExpertMap,
        nodes: usize,
        shares: impl Fn(NodeId, LayerId, ExpertId) -> Vec<f64>,
    ) -> Result<Self, SplitError> {
        let (layers, experts) = (map.layers(), usize::from(map.experts));
        let mut rounded = Vec::with_capacity(nodes * layers * experts);
        for node in 0..nodes {
            for layer in 0..layers {
                let layer = LayerId(layer as u16);
                for (expert, hosts) in map.hosts(layer).iter().enumerate() {
                    let expert = ExpertId(expert as u16);
                    if hosts.is_empty() {
                        return Err(SplitError::NoHost { layer, expert });
                    }
                    let given = shares(NodeId(node as u16), layer, expert);
                    if given.len() != hosts.len() {
                        let (found, expected) = (given.len(), hosts.len());
                        return Err(SplitError::Length { what: "shares", found, expected });
                    }
                    rounded.push(hosts.iter().copied().zip(ways(&given)).collect());
                }
            }
        }
        Ok(Self { layers, experts, shares: rounded })
    }

    /// The same table for every node.
    ///
    /// # Errors
    /// As [`SourceSplit::new`].
    pub fn of_table(map: &ExpertMap, table: &SplitTable, nodes: usize) -> Result<Self, SplitError> {
        Self::new(map, nodes, |_, layer, expert| {
            table.shares(layer, expert).iter().map(|(_, ways)| f64::from(*ways)).collect()
        })
    }

    /// Every copy of an expert with its ways for tokens of a node, ranks ascending.
    #[must_use]
    pub fn shares(&self, node: NodeId, layer: LayerId, expert: ExpertId) -> &[(RankId, u16)] {
        &self.shares[(node.index() * self.layers + layer.index()) * self.experts + expert.index()]
    }

    /// The rank that serves a way of an expert for tokens of a node; ways beyond
    /// [`SplitTable::WAYS`] wrap around. The ways of a rank lie one after another.
    #[must_use]
    pub fn host(&self, node: NodeId, layer: LayerId, expert: ExpertId, way: usize) -> RankId {
        let shares = self.shares(node, layer, expert);
        let mut left = way % SplitTable::WAYS;
        for (rank, ways) in shares {
            match left.checked_sub(usize::from(*ways)) {
                Some(rest) => left = rest,
                None => return *rank,
            }
        }
        shares[0].0
    }
}

fn ways(shares: &[f64]) -> Vec<u16> {
    let clean = |share: &f64| if share.is_finite() { share.max(0.0) } else { 0.0 };
    let sum: f64 = shares.iter().map(clean).sum();
    let ideal: Vec<f64> = shares
        .iter()
        .map(|share| if sum > 0.0 { clean(share) / sum } else { 1.0 / shares.len() as f64 })
        .map(|share| share * SplitTable::WAYS as f64)
        .collect();
    let mut ways: Vec<u16> = ideal.iter().map(|ways| (ways + 1e-9) as u16).collect();
    let given: usize = ways.iter().map(|ways| usize::from(*ways)).sum();
    let mut order: Vec<usize> = (0..shares.len()).filter(|index| ideal[*index] > 0.0).collect();
    let rest = |index: usize| ideal[index] - f64::from(ways[index]);
    order.sort_by(|a, b| rest(*b).total_cmp(&rest(*a)).then(a.cmp(b)));
    for index in order.into_iter().cycle().take(SplitTable::WAYS.saturating_sub(given)) {
        ways[index] += 1;
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::ModelShape;

    #[test]
    fn every_way_has_a_holder_and_shares_sum_to_one() {
        let shape = ModelShape {
            moe_layers: 1,
            experts: 3,
            top_k: 1,
            ..ModelShape::known("olmoe-1b-7b").unwrap()
        };
        let map = ExpertMap::contiguous(&shape, 3, 2);
        let split = SourceSplit::new(&map, 2, |node, _, _| vec![f64::from(node.0), 2.0]).unwrap();
        for node in [NodeId(0), NodeId(1)] {
            for expert in 0..3 {
                let (layer, expert) = (LayerId(0), ExpertId(expert));
                let shares = split.shares(node, layer, expert);
                assert_eq!(shares.iter().map(|(_, ways)| ways).sum::<u16>(), 64);
                for (rank, ways) in shares {
                    let found =
                        (0..64).filter(|w| split.host(node, layer, expert, *w) == *rank).count();
                    assert_eq!(found, usize::from(*ways));
                }
            }
        }
        assert_eq!(split.shares(NodeId(0), LayerId(0), ExpertId(0))[0].1, 0);
        assert_eq!(split.shares(NodeId(1), LayerId(0), ExpertId(0))[0].1, 21);
        assert!(SourceSplit::new(&map, 1, |_, _, _| vec![1.0]).is_err());
    }
}
