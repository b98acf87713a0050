//! Questions to the planner: summed tokens, even split, memory out of the picture.

use crate::error::{Refused, refuse};
use crate::loads::Loads;
use evenkeel_cost::ExpertCoefficients;
use evenkeel_plan::{
    LayerBound, Objective, Outcome, PlanInput, SplitRule, plan, plan_from_scratch,
};
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{
    Attention, ExpertId, ExpertMap, ModelShape, Node, Phase, Policy, RankId, Topology, WeightFormat,
};

/// `[layer][rank][slot]`.
pub(crate) type Slots = Vec<Vec<Vec<Option<ExpertId>>>>;

/// Memory of a rank in bytes: more than any map needs, because the caller chose the slots.
const HBM_BYTES: u64 = 1 << 50;

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
    /// Balance of the worst layer that is enough.
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

    pub(crate) fn topology(&self) -> Topology {
        let mut topology = Topology::uniform("any", self.ranks as u16, HBM_BYTES);
        let node = |index| Node {
            name: format!("node-{index}"),
            ranks: (self.ranks / self.nodes) as u16,
            hbm_bytes: HBM_BYTES,
            nic_gbit_per_s: 400.0,
            domain: String::new(),
        };
        topology.node = (0..self.nodes).map(node).collect();
        topology.rank_dead.clone_from(&self.dead);
        topology
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

fn policy(machine: &Machine) -> Policy {
    let mut policy = Policy::default();
    policy.memory.hbm_reserve_share = 0.0;
    policy.memory.kv_floor_share = 0.0;
    policy.plan.slots_per_rank = machine.per_rank as u16;
    policy.plan.balancedness_enough = 1.0;
    policy.plan.gain_min_share = 0.0;
    policy.plan.gain_us_per_gb_min = 0.0;
    policy
}

fn step(loads: &Loads) -> StepLoads {
    let Loads { layers, experts, ref counts, .. } = *loads;
    let step = StepLoad { tokens: 0, counts: counts.clone() };
    StepLoads { phase: Phase::Prefill, layers, experts, steps: vec![step] }
}

fn ask<T>(
    loads: &Loads,
    machine: &Machine,
    live: &ExpertMap,
    policy: &Policy,
    solve: impl FnOnce(PlanInput<'_>) -> T,
) -> T {
    let (shape, topology) = (shape(loads.layers, loads.experts), machine.topology());
    solve(PlanInput {
        shape: &shape,
        topology: &topology,
        live,
        live_split: None,
        loads: &step(loads),
        coefficients: &ExpertCoefficients::FREE,
        exchange_us_per_row: 0.0,
        fixed_us: 0.0,
        policy,
        seed: 0,
        objective: Objective::SummedTokens,
        split: SplitRule::Even,
        rank_extra_us: None,
        traffic: None,
    })
}

/// A placement from scratch without empty slots.
///
/// Where a rank has more slots than experts may use, the lightest expert of the rank is repeated:
/// tables of this form have no empty slot.
pub(crate) fn scratch(loads: &Loads, machine: &Machine) -> Result<Slots, Refused> {
    let mut slots = scratch_plan(loads, machine)?.0.slots;
    for (layer, ranks) in slots.iter_mut().enumerate() {
        let weight = loads.layer(layer);
        for rank in ranks {
            let lightest = rank
                .iter()
                .flatten()
                .copied()
                .min_by(|a, b| weight[a.index()].total_cmp(&weight[b.index()]).then(a.cmp(b)));
            for slot in rank.iter_mut().filter(|slot| slot.is_none()) {
                *slot = lightest;
            }
        }
    }
    Ok(slots)
}

/// A map from scratch and its bound per layer.
pub(crate) fn scratch_plan(
    loads: &Loads,
    machine: &Machine,
) -> Result<(ExpertMap, Vec<LayerBound>), Refused> {
    let start = start(loads, machine)?;
    let planned = ask(loads, machine, &start, &policy(machine), plan_from_scratch)?;
    Ok((planned.map, planned.bound.layers))
}

/// What no map can beat, per layer.
pub(crate) fn bound(loads: &Loads, machine: &Machine) -> Result<Vec<LayerBound>, Refused> {
    Ok(scratch_plan(loads, machine)?.1)
}

/// The map that engines start with: slot i of the living ranks holds expert i mod E, and nothing
/// where its rank holds that expert already.
pub(crate) fn start(loads: &Loads, machine: &Machine) -> Result<ExpertMap, Refused> {
    let slots = (machine.ranks - machine.dead.len()) * machine.per_rank;
    if slots < loads.experts {
        return refuse(format!(
            "slots: {slots} on living ranks for {} experts: {} missing",
            loads.experts,
            loads.experts - slots
        ));
    }
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

/// A plan from the live map.
pub(crate) fn from_live(
    loads: &Loads,
    machine: &Machine,
    live: &ExpertMap,
    wish: &Wish<'_>,
) -> Result<Outcome, Refused> {
    let mut policy = policy(machine);
    if let Some(target) = wish.target_balancedness {
        policy.plan.balancedness_enough = target;
    }
    policy.moves.moves_max = wish.moves_max.unwrap_or(u32::MAX);
    Ok(ask(loads, machine, live, &policy, plan)?)
}
