//! Which copies may travel where: degraded links, and the nearest source.

use evenkeel_types::{ExpertMap, LayerId, NodeId, RankId, Topology};

/// A node whose outer links reach less than this share of their rate receives and sends no weights
/// across them: the same links carry the traffic that is already late.
pub(crate) const RATE_SHARE_MIN: f64 = 0.8;

/// The topology as far as weights travel over it.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    /// `[rank]`.
    pub(crate) node: Vec<NodeId>,
    /// `[node]`: share of the rate of its outer links that is left.
    pub(crate) rate_share: Vec<f64>,
    inter_gb_per_s: f64,
    /// `[from * ranks + to]`, GB/s.
    pairs: Vec<f64>,
}

impl Links {
    pub(crate) fn new(topology: &Topology) -> Self {
        let nodes = topology.node.len();
        let ranks = topology.ranks();
        let to_all = |from| ranks.iter().map(move |to| topology.link_gb_per_s(from, *to));
        Self {
            pairs: ranks.iter().flat_map(|from| to_all(*from)).collect(),
            node: ranks.iter().map(|rank| rank.node).collect(),
            rate_share: (0..nodes).map(|n| topology.outer_rate_share(NodeId(n as u16))).collect(),
            inter_gb_per_s: topology.inter.beta_gb_per_s,
        }
    }

    /// Whether any link is too slow to carry weights.
    pub(crate) fn any_degraded(&self) -> bool {
        self.rate_share.iter().any(|share| *share < RATE_SHARE_MIN)
    }

    pub(crate) fn same_node(&self, a: RankId, b: RankId) -> bool {
        self.node[a.index()] == self.node[b.index()]
    }

    /// The degraded node between two ranks, the worse where both are.
    pub(crate) fn degraded(&self, a: RankId, b: RankId) -> Option<NodeId> {
        if self.same_node(a, b) {
            return None;
        }
        let worse = [self.node[a.index()], self.node[b.index()]]
            .into_iter()
            .min_by(|x, y| self.rate_share[x.index()].total_cmp(&self.rate_share[y.index()]))?;
        (self.rate_share[worse.index()] < RATE_SHARE_MIN).then_some(worse)
    }

    /// Rate at which a copy travels between two ranks, at most `limit`, GB/s.
    pub(crate) fn gb_per_s(&self, from: RankId, to: RankId, limit: f64) -> f64 {
        let link = self.link_gb_per_s(from, to);
        link.min(limit * (link / self.inter_gb_per_s).min(1.0)).min(limit)
    }

    /// Rate of the link between two ranks, GB/s.
    pub(crate) fn link_gb_per_s(&self, from: RankId, to: RankId) -> f64 {
        self.pairs[from.index() * self.node.len() + to.index()]
    }

    /// The best of several holders to fetch a copy from: same node, then healthy links, then links
    /// of nearly the rate of the fastest of these (measured rates scatter), then the holder that has sent least so far, then the lowest rank.
    pub(crate) fn nearest(
        &self,
        holders: &[RankId],
        to: RankId,
        sent: impl Fn(RankId) -> u64,
    ) -> Option<RankId> {
        let class = |from: RankId| (!self.same_node(from, to), self.degraded(from, to).is_some());
        let first = holders.iter().map(|from| class(*from)).min()?;
        let best = holders.iter().copied().filter(|from| class(*from) == first);
        let rate = |from: RankId| self.link_gb_per_s(from, to);
        let fastest = best.clone().map(rate).fold(0.0, f64::max);
        best.min_by_key(|from| (rate(*from) < fastest * RATE_SHARE_MIN, sent(*from), *from))
    }

    /// `[expert * ranks + rank]`: the degraded node that keeps the expert from the rank, if any.
    pub(crate) fn barred(&self, map: &ExpertMap, layer: LayerId) -> Vec<Option<NodeId>> {
        let ranks = self.node.len();
        let mut barred = vec![None; usize::from(map.experts) * ranks];
        if !self.any_degraded() {
            return barred;
        }
        for (expert, holders) in map.hosts(layer).iter().enumerate() {
            for rank in 0..ranks {
                let to = RankId(rank as u16);
                let from = self.nearest(holders, to, |_| 0);
                barred[expert * ranks + rank] = from.and_then(|from| self.degraded(from, to));
            }
        }
        barred
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::LinkHealth;

    #[test]
    fn a_measured_matrix_names_the_nearest_source() {
        let mut topology = Topology::uniform("h20", 16, 96_000_000_000);
        let rate = |from: usize, to: usize| if from / 8 == to / 8 { 300.0 } else { 50.0 };
        let mut matrix: Vec<Vec<f64>> =
            (0..16).map(|from| (0..16).map(|to| rate(from, to)).collect()).collect();
        matrix[1][9] = 10.0;
        matrix[2][9] = 48.0;
        topology.link_matrix_gb_per_s = Some(matrix);
        let links = Links::new(&topology);
        let from = [RankId(1), RankId(2), RankId(3)];
        assert_eq!(links.nearest(&from, RankId(9), |_| 0), Some(RankId(2)));
        assert_eq!(links.nearest(&from, RankId(9), |r| u64::from(r.0 == 2)), Some(RankId(3)));
        assert!((links.link_gb_per_s(RankId(1), RankId(9)) - 10.0).abs() < 1e-9);
        assert!((links.gb_per_s(RankId(1), RankId(9), 2.0) - 0.4).abs() < 1e-9);
        assert!(!links.any_degraded());
    }

    #[test]
    fn a_degraded_link_is_slow_and_barred() {
        let mut topology = Topology::uniform("h20", 16, 96_000_000_000);
        topology.link_health.push(LinkHealth { node: NodeId(1), rate_share: 0.6 });
        let links = Links::new(&topology);
        let (near, far) = (RankId(3), RankId(9));
        assert_eq!(links.degraded(near, far), Some(NodeId(1)));
        assert_eq!(links.degraded(far, RankId(15)), None);
        assert!((links.link_gb_per_s(near, far) - 30.0).abs() < 1e-9);
        assert!((links.gb_per_s(near, far, 2.0) - 1.2).abs() < 1e-9);
        assert!((links.gb_per_s(near, RankId(4), 2.0) - 2.0).abs() < 1e-9);
        assert_eq!(links.nearest(&[near, far], RankId(12), |_| 0), Some(far));
    }
}
