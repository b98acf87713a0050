//! Is the exchange slow for its bytes, and at whose links?

use crate::effects::{Against, CommonEffect, LN_MIN, RankEffect};
use crate::frame::Stage;
use crate::stats::{Level, median};
use crate::window::Window;
use evenkeel_trace::LinkRow;
use evenkeel_types::LinkClass;
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
    /// Against the profile, beyond its error or not.
    pub(crate) level: Level,
}

/// Median service per byte between nodes, the class's fixed time taken off:
/// `(source node, destination node)` → ns per byte.
pub(crate) struct PairRates {
    pairs: BTreeMap<(usize, usize), f64>,
    /// What the topology says, ns per byte.
    nominal: f64,
}

/// Rates of every ordered pair of different nodes in the examined steps.
pub(crate) fn pair_rates<'a>(
    node: &[usize],
    rows: impl Iterator<Item = &'a LinkRow>,
    class: &LinkClass,
) -> PairRates {
    let mut seen: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for row in rows.filter(|row| row.bytes > 0 && row.service_ns > 0) {
        let pair = (node[row.source.index()], node[row.destination.index()]);
        if pair.0 != pair.1 {
            let service = row.service_ns as f64;
            // At least a tenth of the time is moving bytes, whatever the class says.
            let moving = (service - 1000.0 * class.alpha_us).max(0.1 * service);
            seen.entry(pair).or_default().push(moving / row.bytes as f64);
        }
    }
    PairRates {
        pairs: seen.into_iter().map(|(pair, mut rates)| (pair, median(&mut rates))).collect(),
        nominal: 1.0 / class.beta_gb_per_s,
    }
}

/// A pair of nodes this much slower than the topology's class is slow without another norm:
/// links rarely reach their nominal rate.
const NOMINAL_RATIO_MIN: f64 = 1.4;

/// Puts the two ways together. `None` where nothing is slow.
pub(crate) fn link_effect(
    window: &Window,
    dispatch: &Way,
    back: &Way,
    rates: &PairRates,
    old_rates: Option<&PairRates>,
) -> Option<LinkEffect> {
    let located = locate(rates, old_rates);
    let of_way = |way: &Way| -> Vec<(f64, usize)> {
        // Where pairs of nodes show a slow link, what all ranks share against the profile counts,
        // but no more than the pairs themselves are slowed.
        let level = way.common.first().map(|common| common.level).or_else(|| {
            let slow = located.as_ref().filter(|_| old_rates.is_none())?;
            Some(Level { value: way.level.value.min(slow.ln), ..way.level })
        });
        (0..window.ranks)
            .map(|rank| {
                let own = way.ranks.iter().find(|effect| effect.rank == rank);
                let ln = level.map_or(0.0, |level| level.value.max(0.0))
                    + own.map_or(0.0, |effect| effect.level.value);
                let from = [level.map(|level| level.from), own.map(|effect| effect.level.from)];
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
    match located {
        Some(slow) => {
            (effect.node, effect.peer) = (Some(slow.node), slow.peer);
            effect.evidence = slow.evidence;
        }
        None => by_ranks(window, &mut effect, dispatch, back),
    }
    Some(effect)
}

/// A node whose links to other nodes are slow.
struct Located {
    node: usize,
    peer: Option<usize>,
    /// How much slower, ln.
    ln: f64,
    evidence: Vec<String>,
}

/// Locates by rates per byte: the node all of whose pairs are slower than the norm, which is the
/// same pair in the baseline, or else the pairs without that node, or with two nodes the class.
fn locate(rates: &PairRates, old: Option<&PairRates>) -> Option<Located> {
    let ln: BTreeMap<(usize, usize), f64> = rates
        .pairs
        .iter()
        .filter_map(|(pair, rate)| match old {
            Some(old) => Some((*pair, (rate / old.pairs.get(pair)?).ln())),
            None => Some((*pair, (rate / rates.nominal).ln())),
        })
        .collect();
    let mut nodes: Vec<usize> = ln.keys().flat_map(|(a, b)| [*a, *b]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut order: Vec<(&(usize, usize), &f64)> = ln.iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(b.0)));
    let evidence = order
        .iter()
        .take(4)
        .map(|(pair, _)| {
            let rate = 1.0 / rates.pairs[*pair];
            format!("node {} to node {}: {rate:.1} GB/s for the bytes moved", pair.0, pair.1)
        })
        .collect();
    if let [a, b] = nodes[..] {
        let (there, back) = (*ln.get(&(a, b))?, *ln.get(&(b, a))?);
        let least = if old.is_some() { LN_MIN } else { NOMINAL_RATIO_MIN.ln() };
        let lopsided = (there - back).abs() > 2.0 * LN_MIN;
        let (node, peer) = if there > back { (b, a) } else { (a, b) };
        let slow = if lopsided { (there - back).abs() } else { there.max(back) };
        return (lopsided || slow > least).then_some(Located {
            node,
            peer: Some(peer),
            ln: slow,
            evidence,
        });
    }
    let excess = |node: usize| -> Option<f64> {
        let without = |(a, b): &(usize, usize)| *a != node && *b != node;
        let mut others: Vec<f64> = match old {
            Some(_) => vec![0.0],
            None => ln.iter().filter(|(pair, _)| without(pair)).map(|(_, value)| *value).collect(),
        };
        let norm = (!others.is_empty()).then(|| median(&mut others))?;
        let way = |into: bool| {
            ln.iter()
                .filter(|((a, b), _)| if into { *b == node } else { *a == node })
                .map(|(_, value)| value - norm)
                .fold(f64::MAX, f64::min)
        };
        Some(way(true).max(way(false)))
    };
    let (ln, node) = nodes
        .iter()
        .filter_map(|node| Some((excess(*node)?, *node)))
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))?;
    (ln > 2.0 * LN_MIN).then_some(Located { node, peer: None, ln, evidence })
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
