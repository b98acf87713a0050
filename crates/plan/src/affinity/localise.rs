//! Less traffic between nodes at a stated loss of balance.

use super::flow::{Supply, relieve};
use super::layer::{Slots, State, Terms, anneal};
use super::{Mode, Reading, Traffic, cross_node};
use evenkeel_split::{SourceSplit, SplitError, SplitTable};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Pin, RankId, Topology, hash2};

/// How slow a layer's slowest rank may get.
#[derive(Clone, Copy, Debug)]
pub enum Limit<'a> {
    /// So much slower than under the given map and split, as a share.
    Loss(f64),
    /// `[layer]`: rows of a rank over its speed.
    Rows(&'a [f64]),
}

/// What [`localise`] reads.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The map to start from, lawful.
    pub map: &'a ExpertMap,
    /// The split in force.
    pub split: &'a SplitTable,
    /// The machine: nodes, speeds, health of outer links. Dead ranks hold nothing and get nothing.
    pub topology: &'a Topology,
    /// Sampled tokens of one phase.
    pub traffic: &'a Traffic,
    /// How the fabric carries them.
    pub mode: Mode,
    /// What balance may be given for less traffic.
    pub limit: Limit<'a>,
    /// Copies that stay where they are.
    pub pinned: &'a [Pin],
    /// Changes tried per layer; 0: only the split may change.
    pub proposals: u32,
    /// Seed of the search.
    pub seed: u64,
}

/// What [`localise`] answers.
#[derive(Clone, Debug)]
pub struct Localised {
    /// The map: the same slots filled as before.
    pub map: ExpertMap,
    /// Shares by the node that a token comes from.
    pub split: SourceSplit,
    /// The given map and split.
    pub before: Reading,
    /// This map and split.
    pub after: Reading,
    /// Copies on ranks that did not hold the expert before.
    pub arrivals: usize,
}

/// `[node][expert]` → shares in the order of the expert's holders.
type Shares = Vec<Vec<Vec<f64>>>;

/// Changes map and split so that less crosses nodes. In every layer where that would make the
/// slowest rank slower than the limit, or would not help, map and split stay as they were.
///
/// # Errors
/// An expert without a copy, or a split of another map.
pub fn localise(question: Question<'_>) -> Result<Localised, SplitError> {
    let Question { map, split, topology, traffic, mode, .. } = question;
    let nodes = traffic.nodes();
    let given = SourceSplit::of_table(map, split, nodes)?;
    let before = cross_node(&given, traffic, topology, mode);
    let mut planned = map.clone();
    let mut shares: Vec<Option<Shares>> = Vec::with_capacity(map.layers());
    for layer in 0..map.layers() {
        let most = match question.limit {
            Limit::Loss(loss) => before.slowest_rows[layer] * (1.0 + loss),
            Limit::Rows(rows) => rows[layer],
        };
        let found = improve(&question, layer, most);
        if let Some((slots, _)) = &found {
            planned.slots[layer] =
                slots.iter().map(|slots| slots.iter().map(|e| e.map(ExpertId)).collect()).collect();
        }
        shares.push(found.map(|(_, shares)| shares));
    }
    let split = assemble(&planned, split, &shares, nodes)?;
    let after = cross_node(&split, traffic, topology, mode);
    let arrivals = arrivals(map, &planned);
    Ok(Localised { map: planned, split, before, after, arrivals })
}

fn assemble(
    map: &ExpertMap,
    table: &SplitTable,
    shares: &[Option<Shares>],
    nodes: usize,
) -> Result<SourceSplit, SplitError> {
    SourceSplit::new(map, nodes, |node, layer, expert| match &shares[layer.index()] {
        Some(shares) => shares[node.index()][expert.index()].clone(),
        None => table.shares(layer, expert).iter().map(|(_, ways)| f64::from(*ways)).collect(),
    })
}

/// The better of a new split alone and new slots with their split, judged after rounding; `None`
/// where neither crosses less within the limit.
fn improve(question: &Question<'_>, layer: usize, most: f64) -> Option<(Slots, Shares)> {
    let Question { map, split, topology, traffic, mode, .. } = *question;
    let id = LayerId(layer as u16);
    let terms = Terms::new(traffic, topology, mode, layer);
    let slots: Slots = map.slots[layer]
        .iter()
        .map(|slots| slots.iter().map(|expert| expert.map(|expert| expert.0)).collect())
        .collect();
    let one = traffic.of_layer(layer);
    let mut map = ExpertMap { slots: vec![map.slots[layer].clone()], ..map.clone() };
    map.digests.clear();
    let same = SourceSplit::new(&map, traffic.nodes(), |_, _, expert| {
        split.shares(id, expert).iter().map(|(_, ways)| f64::from(*ways)).collect()
    });
    let mut least = cross_node(&same.ok()?, &one, topology, mode).crossing;
    let limit: Vec<f64> = topology.ranks().iter().map(|rank| most * rank.speed_share).collect();
    let fixed = |rank: usize, slot: usize| {
        question.pinned.iter().any(|pin| {
            pin.layer == id
                && pin.rank == RankId(rank as u16)
                && slots[rank][slot] == Some(pin.expert.0)
        })
    };
    let seed = hash2(question.seed, layer as u64);
    let annealed = anneal(&terms, &slots, &limit, &fixed, question.proposals, seed);
    let mut best = None;
    for candidate in [Some(slots.clone()), annealed.map(|state| state.slots)].into_iter().flatten()
    {
        for tighter in [1.0, 0.998, 0.99] {
            let limit: Vec<f64> = limit.iter().map(|limit| limit * tighter).collect();
            let Some(shares) = split_within(&terms, &candidate, &limit) else { continue };
            map.slots[0] = candidate
                .iter()
                .map(|slots| slots.iter().map(|e| e.map(ExpertId)).collect())
                .collect();
            let rounded = SourceSplit::new(&map, traffic.nodes(), |node, _, expert| {
                shares[node.index()][expert.index()].clone()
            });
            let Ok(rounded) = rounded else { continue };
            let reading = cross_node(&rounded, &one, topology, mode);
            if reading.slowest() <= most && reading.crossing < least {
                least = reading.crossing;
                best = Some((candidate.clone(), shares));
            }
        }
    }
    best
}

/// The split by source that crosses least within the limits.
fn split_within(terms: &Terms, slots: &Slots, limit: &[f64]) -> Option<Shares> {
    let state = State::new(terms, slots.clone());
    let mut supplies = Vec::new();
    let mut load = vec![0.0; slots.len()];
    for source in 0..terms.nodes {
        for expert in 0..terms.experts {
            let hosts: Vec<usize> =
                (0..slots.len()).filter(|r| slots[*r].contains(&Some(expert as u16))).collect();
            let near = terms.serving(source, |node| state.holds(terms, node, expert))?;
            let takers = hosts.iter().filter(|rank| terms.node[**rank] == near).count();
            let rows = terms.rows[source * terms.experts + expert];
            let arcs = hosts.iter().map(|rank| {
                let here = terms.node[*rank] == near;
                let part = if here { rows / takers as f64 } else { 0.0 };
                load[*rank] += part;
                (*rank, terms.cost[source * terms.nodes + terms.node[*rank]], part)
            });
            supplies.push(Supply { arcs: arcs.collect() });
        }
    }
    if !relieve(&mut supplies, &mut load, limit) {
        return None;
    }
    let mut flat = supplies.into_iter().enumerate().map(|(index, supply)| {
        let rows = terms.rows[index];
        let arcs = supply.arcs.into_iter();
        // An expert without rows shares as its nearest copies would.
        arcs.map(|(_, cost, part)| if rows > 0.0 { part / rows } else { 1.0 / (1.0 + cost) })
            .collect()
    });
    Some((0..terms.nodes).map(|_| flat.by_ref().take(terms.experts).collect()).collect())
}

fn arrivals(from: &ExpertMap, to: &ExpertMap) -> usize {
    let mut count = 0;
    for layer in 0..to.layers() {
        for (rank, slots) in to.slots[layer].iter().enumerate() {
            let there = &from.slots[layer][rank];
            count += slots.iter().filter(|e| e.is_some() && !there.contains(e)).count();
        }
    }
    count
}
