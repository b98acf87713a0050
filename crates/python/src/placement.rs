//! Questions to the planner: summed tokens, even split, memory out of the picture.

use crate::error::{Refused, refuse};
use crate::loads::Loads;
use crate::report::balancedness;
use evenkeel_plan::rows::{self, Effort, LayerRows, LayerSlots};
use evenkeel_types::{Attention, ExpertId, ExpertMap, ModelShape, RankId, Topology, WeightFormat};

/// `[layer][rank][slot]`.
pub(crate) type Slots = Vec<Vec<Vec<Option<ExpertId>>>>;

/// Effort of the drop-in for a function that engines call on the way: near the limit in tens of
/// milliseconds for a model.
pub(crate) const DROP_IN: Effort = Effort { enough: 0.9998, tries: 2, ..Effort::THOROUGH };

/// Ranks and slots.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Ranks, contiguous over the nodes.
    pub(crate) ranks: usize,
    /// Slots of each rank.
    pub(crate) per_rank: usize,
    /// Nodes of equally many ranks.
    pub(crate) nodes: usize,
    /// Ranks that are gone.
    pub(crate) dead: Vec<RankId>,
}

/// What else is asked of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// Expert groups to keep whole on a node.
    pub(crate) groups: Option<usize>,
    /// The map in force, as a map file's text; `None`: plan from scratch.
    pub(crate) live: Option<&'a str>,
    /// Most copies that may move.
    pub(crate) moves_max: Option<u32>,
    /// Balance of a layer that is enough.
    pub(crate) target_balancedness: Option<f64>,
}

impl Machine {
    /// `slots` over all ranks.
    pub(crate) fn new(ranks: usize, slots: usize, nodes: usize) -> Result<Self, Refused> {
        if ranks == 0 || ranks > Topology::RANKS_MAX {
            return refuse(format!("ranks: {ranks}, expected 1 to {}", Topology::RANKS_MAX));
        }
        if nodes == 0 || !ranks.is_multiple_of(nodes) {
            return refuse(format!("nodes: {nodes}, expected a divisor of the {ranks} ranks"));
        }
        if slots == 0 || !slots.is_multiple_of(ranks) {
            return refuse(format!("slots: {slots}, expected a multiple of the {ranks} ranks"));
        }
        if slots / ranks > usize::from(u16::MAX) {
            return refuse(format!("slots: {} per rank, expected at most 65535", slots / ranks));
        }
        Ok(Self { ranks, per_rank: slots / ranks, nodes, dead: Vec::new() })
    }

    /// The same with these ranks gone.
    pub(crate) fn without(mut self, dead: &[usize]) -> Result<Self, Refused> {
        if let Some(rank) = dead.iter().find(|rank| **rank >= self.ranks) {
            return refuse(format!("dead_ranks: rank {rank}, expected ranks below {}", self.ranks));
        }
        self.dead = dead.iter().map(|rank| RankId(*rank as u16)).collect();
        self.dead.sort();
        self.dead.dedup();
        Ok(self)
    }

    /// Ranks of equal speed: `[rank]` → slots, none on a dead one.
    pub(crate) fn ranks(&self) -> Ranks {
        let alive = |rank| !self.dead.contains(&RankId(rank as u16));
        let slots = |rank| if alive(rank) { self.per_rank } else { 0 };
        Ranks { sizes: (0..self.ranks).map(slots).collect(), inverse_speed: vec![1.0; self.ranks] }
    }
}

/// Slots and speeds, as the planner takes them.
pub(crate) struct Ranks {
    sizes: Vec<usize>,
    inverse_speed: Vec<f64>,
}

impl Ranks {
    /// The problem of one layer, `loads` by expert.
    pub(crate) fn layer<'a>(&'a self, loads: &'a [f64]) -> LayerRows<'a> {
        let Self { sizes, inverse_speed } = self;
        LayerRows { loads, sizes, inverse_speed, extra: &[] }
    }
}

/// A model of which only layers and experts matter here.
pub(crate) fn shape(layers: usize, experts: usize) -> ModelShape {
    ModelShape {
        name: "loads".to_owned(),
        revision: String::new(),
        tokenizer_revision: String::new(),
        moe_layers: layers as u16,
        dense_layers: 0,
        experts: experts as u16,
        top_k: 1,
        shared_experts: 0,
        hidden: 1,
        expert_width: 1,
        dense_width: 0,
        vocab: 1,
        weights: WeightFormat::Bf16,
        attention: Attention::Gqa { heads: 1, kv_heads: 1, head_dim: 1 },
        kv_element_bytes: 2,
        groups: None,
    }
}

/// The planner's slots, every rank with as many as the machine has.
pub(crate) fn named(slots: LayerSlots, per_rank: usize) -> Vec<Vec<Option<ExpertId>>> {
    let rank = |rank: Vec<Option<u16>>| {
        let mut slots: Vec<_> = rank.into_iter().map(|expert| expert.map(ExpertId)).collect();
        slots.resize(per_rank.max(slots.len()), None);
        slots
    };
    slots.into_iter().map(rank).collect()
}

/// A placement from scratch; with `groups`, every group of consecutive experts whole on a node, as
/// many on each, as DeepSeek's hierarchical policy keeps them.
pub(crate) fn scratch(
    loads: &Loads,
    machine: &Machine,
    groups: Option<usize>,
    effort: Effort,
) -> Result<Slots, Refused> {
    let (experts, nodes) = (loads.experts, machine.nodes);
    if let Some(groups) = groups {
        if groups == 0 || !experts.is_multiple_of(groups) {
            return refuse(format!(
                "num_groups: {groups}, expected a divisor of the {experts} experts"
            ));
        }
        if !groups.is_multiple_of(nodes) {
            return refuse(format!(
                "num_groups: {groups}, expected a multiple of the {nodes} nodes"
            ));
        }
    }
    enough_slots(loads, machine)?;
    let ranks = machine.ranks();
    let node_of: Vec<usize> =
        (0..machine.ranks).map(|rank| rank / (machine.ranks / nodes)).collect();
    let layer = |layer| {
        let weight = loads.rows(layer);
        let rows = ranks.layer(&weight);
        let placed = match groups {
            Some(groups) => rows::place_grouped(&rows, groups, &node_of, effort),
            None => rows::place(&rows, effort),
        };
        let Some(slots) = placed else {
            return refuse(format!("slots: too few on a node for its share of {experts} experts"));
        };
        Ok(named(slots, machine.per_rank))
    };
    (0..loads.layers).map(layer).collect()
}

/// The same without empty slots, because tables of DeepSeek's form have none: one gets a copy of the
/// expert whose piece is smallest among those that its rank (with groups: its node's) does not hold,
/// or where there is none the rank's lightest again.
pub(crate) fn full(
    loads: &Loads,
    machine: &Machine,
    groups: Option<usize>,
) -> Result<Slots, Refused> {
    let mut slots = scratch(loads, machine, groups, DROP_IN)?;
    if slots.iter().flatten().flatten().all(Option::is_some) {
        return Ok(slots);
    }
    // The exact search may leave slots empty, and to fill them costs balance: a map without it may
    // be the better one.
    let mut other = scratch(loads, machine, groups, Effort { exact_nodes: 0, ..DROP_IN })?;
    fill(&mut slots, loads, machine, groups);
    fill(&mut other, loads, machine, groups);
    let balances = [balancedness(&slots, loads, machine), balancedness(&other, loads, machine)];
    for (layer, other) in other.into_iter().enumerate() {
        if balances[1][layer] > balances[0][layer] {
            slots[layer] = other;
        }
    }
    Ok(slots)
}

fn fill(slots: &mut Slots, loads: &Loads, machine: &Machine, groups: Option<usize>) {
    let per_node = machine.ranks / if groups.is_some() { machine.nodes } else { 1 };
    for (layer, ranks) in slots.iter_mut().enumerate() {
        let weight = loads.layer(layer);
        let mut copies = vec![0_u32; loads.experts];
        ranks.iter().flatten().flatten().for_each(|expert| copies[expert.index()] += 1);
        for node in ranks.chunks_mut(per_node) {
            let mut own: Vec<ExpertId> = node.iter().flatten().flatten().copied().collect();
            own.sort();
            own.dedup();
            for rank in node {
                while let Some(slot) = rank.iter().position(Option::is_none) {
                    let piece = |e: &ExpertId| {
                        let held = rank.contains(&Some(*e));
                        (held, weight[e.index()] / f64::from(copies[e.index()] + 1))
                    };
                    let key = own.iter().map(|expert| (piece(expert), *expert));
                    let best = key.min_by(|((a, b), _), ((c, d), _)| a.cmp(c).then(b.total_cmp(d)));
                    let Some((_, expert)) = best else { break };
                    copies[expert.index()] += 1;
                    rank[slot] = Some(expert);
                }
            }
        }
    }
}

/// `[layer]`: balancedness that no map can beat, with groups whole on a node where asked.
pub(crate) fn bound(loads: &Loads, machine: &Machine, groups: Option<usize>) -> Vec<f64> {
    let ranks = machine.ranks();
    let layer = |layer| {
        let weight = loads.rows(layer);
        let rows = ranks.layer(&weight);
        let least = match groups {
            Some(groups) => rows::grouped_bound(&rows, groups, machine.nodes),
            None => rows::flat_bound(&rows),
        };
        if least > 0.0 { (rows.mean() / least).min(1.0) } else { 1.0 }
    };
    (0..loads.layers).map(layer).collect()
}

fn enough_slots(loads: &Loads, machine: &Machine) -> Result<(), Refused> {
    let slots = (machine.ranks - machine.dead.len()) * machine.per_rank;
    if slots >= loads.experts {
        return Ok(());
    }
    refuse(format!(
        "slots: {slots} on living ranks for {} experts: {} missing",
        loads.experts,
        loads.experts - slots
    ))
}

/// The map that engines start with: slot i of the living ranks holds expert i mod E, and nothing
/// where its rank holds that expert already.
pub(crate) fn start(loads: &Loads, machine: &Machine) -> Result<ExpertMap, Refused> {
    enough_slots(loads, machine)?;
    let mut map = ExpertMap::contiguous(&shape(loads.layers, loads.experts), machine.ranks, 0);
    let mut layer = vec![vec![None; machine.per_rank]; machine.ranks];
    let mut next = 0;
    for (rank, slots) in layer.iter_mut().enumerate() {
        if machine.dead.contains(&RankId(rank as u16)) {
            continue;
        }
        for (slot, held) in slots.iter_mut().enumerate() {
            *held = (slot < loads.experts).then_some(ExpertId((next % loads.experts) as u16));
            next += 1;
        }
    }
    map.slots = vec![layer; loads.layers];
    Ok(map)
}
