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
    intra_gb_per_s: f64,
    inter_gb_per_s: f64,
}

impl Links {
    pub(crate) fn new(topology: &Topology) -> Self {
        let nodes = topology.node.len();
        Self {
            node: topology.ranks().iter().map(|rank| rank.node).collect(),
            rate_share: (0..nodes).map(|n| topology.outer_rate_share(NodeId(n as u16))).collect(),
            intra_gb_per_s: topology.intra.beta_gb_per_s,
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
        if self.same_node(from, to) {
            return self.intra_gb_per_s;
        }
        let share = |rank: RankId| self.rate_share[self.node[rank.index()].index()];
        self.inter_gb_per_s * share(from).min(share(to))
    }

    /// The best of several holders to fetch a copy from: same node, then healthy links, then the
    /// holder that has sent least so far, then the lowest rank.
    pub(crate) fn nearest(
        &self,
        holders: &[RankId],
        to: RankId,
        sent: impl Fn(RankId) -> u64,
    ) -> Option<RankId> {
        holders.iter().copied().min_by_key(|from| {
            let far = !self.same_node(*from, to);
            (far, self.degraded(*from, to).is_some(), sent(*from), *from)
        })
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
