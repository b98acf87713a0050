//! Is the exchange slow for its bytes, and at whose links?

use crate::effects::{Against, CommonEffect, LN_MIN, RankEffect};
use crate::frame::Stage;
use crate::stats::median;
use crate::window::Window;
use evenkeel_trace::LinkRow;
use std::collections::BTreeMap;

/// Exchange that takes longer for equal bytes.
#[derive(Clone, Debug)]
pub(crate) struct LinkEffect {
    /// Node whose outer links are slow; `None` where all are, or it cannot be told.
    pub(crate) node: Option<usize>,
    /// The other end, where only one pair of nodes is known to be slow.
    pub(crate) peer: Option<usize>,
    /// A single rank's link within its node.
    pub(crate) rank: Option<usize>,
    /// `[dispatch, return][rank]`: ln factor and first frame.
    ln: [Vec<(f64, usize)>; 2],
    /// What it is measured against; `None`: the other ranks of the same window.
    pub(crate) against: Option<Against>,
    /// Rates by pair of nodes that located it, slowest first, as sentences.
    pub(crate) evidence: Vec<String>,
}

impl LinkEffect {
    /// How many times longer than healthy.
    pub(crate) fn factor(&self, stage: Stage, rank: usize, index: usize) -> f64 {
        let way = match stage {
            Stage::Dispatch => 0,
            Stage::Return => 1,
            _ => return 1.0,
        };
        let (ln, from) = self.ln[way][rank];
        if index >= from { ln.exp() } else { 1.0 }
    }

    /// The largest factor over ways and ranks.
    pub(crate) fn largest(&self) -> f64 {
        self.ln.iter().flatten().map(|(ln, _)| ln.exp()).fold(1.0, f64::max)
    }

    /// First frame that shows it.
    pub(crate) fn from(&self) -> usize {
        let shown = self.ln.iter().flatten().filter(|(ln, _)| *ln > LN_MIN);
        shown.map(|(_, from)| *from).min().unwrap_or(0)
    }
}

/// What was found in one way of the exchange.
pub(crate) struct Way {
    pub(crate) ranks: Vec<RankEffect>,
    pub(crate) common: Vec<CommonEffect>,
}

/// Median service per byte between nodes: `(source node, destination node)` → ns per byte.
pub(crate) type PairRates = BTreeMap<(usize, usize), f64>;

/// Rates of every ordered pair of different nodes in the examined steps.
pub(crate) fn pair_rates<'a>(node: &[usize], rows: impl Iterator<Item = &'a LinkRow>) -> PairRates {
    let mut seen: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for row in rows.filter(|row| row.bytes > 0 && row.service_ns > 0) {
        let pair = (node[row.source.index()], node[row.destination.index()]);
        if pair.0 != pair.1 {
            seen.entry(pair).or_default().push(row.service_ns as f64 / row.bytes as f64);
        }
    }
    seen.into_iter().map(|(pair, mut rates)| (pair, median(&mut rates))).collect()
}

/// Puts the two ways together. `None` where nothing is slow.
pub(crate) fn link_effect(
    window: &Window,
    dispatch: &Way,
    back: &Way,
    rates: &PairRates,
    old_rates: Option<&PairRates>,
) -> Option<LinkEffect> {
    let of_way = |way: &Way| -> Vec<(f64, usize)> {
        let common = way.common.first();
        (0..window.ranks)
            .map(|rank| {
                let own = way.ranks.iter().find(|effect| effect.rank == rank);
                let ln = common.map_or(0.0, |c| c.level.value) + own.map_or(0.0, |e| e.level.value);
                let from = [common.map(|c| c.level.from), own.map(|e| e.level.from)];
                (ln, from.into_iter().flatten().min().unwrap_or(0))
            })
            .collect()
    };
    let ln = [of_way(dispatch), of_way(back)];
    if ln.iter().flatten().all(|(ln, _)| *ln <= LN_MIN) {
        return None;
    }
    let common = dispatch.common.first().or(back.common.first());
    let mut effect = LinkEffect {
        node: None,
        peer: None,
        rank: None,
        ln,
        against: common.map(|common| common.against.clone()),
        evidence: Vec::new(),
    };
    by_pairs(&mut effect, rates, old_rates);
    if effect.node.is_none() {
        by_ranks(window, &mut effect, dispatch, back);
    }
    Some(effect)
}

/// Locates by rates per byte: the node all of whose pairs are slower than the pairs without it.
fn by_pairs(effect: &mut LinkEffect, rates: &PairRates, old: Option<&PairRates>) {
    // Against a baseline each pair is its own norm; else rates are compared with each other.
    let ln: BTreeMap<(usize, usize), f64> = rates
        .iter()
        .filter_map(|(pair, rate)| match old {
            Some(old) => Some((*pair, (rate / old.get(pair)?).ln())),
            None => Some((*pair, rate.ln())),
        })
        .collect();
    let nodes: Vec<usize> = {
        let mut nodes: Vec<usize> = ln.keys().flat_map(|(a, b)| [*a, *b]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    let describe = |pair: &(usize, usize)| {
        rates.get(pair).map(|rate| {
            format!(
                "node {} to node {}: {:.1} GB/s for the bytes moved",
                pair.0,
                pair.1,
                1.0 / rate
            )
        })
    };
    if let [a, b] = nodes[..] {
        let (there, back) = (ln.get(&(a, b)), ln.get(&(b, a)));
        if let (Some(there), Some(back)) = (there, back) {
            let slow = |value: f64| old.is_some() && value > LN_MIN;
            let (node, peer) = if *there > back + LN_MIN { (b, a) } else { (a, b) };
            let lopsided = (there - back).abs() > LN_MIN;
            if lopsided || (slow(*there) && slow(*back)) {
                (effect.node, effect.peer) = (Some(node), Some(peer));
            }
            effect.evidence = [(a, b), (b, a)].iter().filter_map(describe).collect();
        }
        return;
    }
    let norm_without = |node: usize| {
        let mut others: Vec<f64> = match old {
            Some(_) => vec![0.0],
            None => ln
                .iter()
                .filter(|((a, b), _)| *a != node && *b != node)
                .map(|(_, value)| *value)
                .collect(),
        };
        (!others.is_empty()).then(|| median(&mut others))
    };
    let worst = nodes
        .iter()
        .filter_map(|node| {
            let norm = norm_without(*node)?;
            let way = |into: bool| {
                ln.iter()
                    .filter(|((a, b), _)| if into { b == node } else { a == node })
                    .map(|(_, value)| value - norm)
                    .fold(f64::MAX, f64::min)
            };
            Some((way(true).max(way(false)), *node))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    if let Some((excess, node)) = worst
        && excess > LN_MIN
    {
        effect.node = Some(node);
        let mut pairs: Vec<_> = ln.iter().collect();
        pairs.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(b.0)));
        effect.evidence = pairs.iter().take(4).filter_map(|(pair, _)| describe(pair)).collect();
    }
}

/// Locates by ranks: all ranks of one node beyond the others, or a single rank.
fn by_ranks(window: &Window, effect: &mut LinkEffect, dispatch: &Way, back: &Way) {
    let slow = |rank: usize| {
        let beyond = |way: &Way| way.ranks.iter().any(|effect| effect.rank == rank);
        beyond(dispatch) || beyond(back)
    };
    let ranks: Vec<usize> = (0..window.ranks).filter(|rank| slow(*rank)).collect();
    let nodes = window.node.iter().max().map_or(0, |last| last + 1);
    if let [only] = ranks[..] {
        (effect.rank, effect.node) = (Some(only), Some(window.node[only]));
        return;
    }
    let share = |node: usize| {
        let of_node = window.node.iter().filter(|n| **n == node).count();
        ranks.iter().filter(|rank| window.node[**rank] == node).count() as f64
            / of_node.max(1) as f64
    };
    let full: Vec<usize> = (0..nodes).filter(|node| share(*node) > 0.5).collect();
    if let [only] = full[..] {
        effect.node = Some(only);
    } else if ranks.is_empty() && nodes == 2 {
        (effect.node, effect.peer) = (Some(0), Some(1));
    } else if ranks.is_empty() && nodes == 1 {
        effect.node = Some(0);
    }
}
