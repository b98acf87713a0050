//! The operator's policy: one TOML file, every field with a default.

use crate::{
    ExpertId, ExpertMap, LayerId, ModelShape, NodeId, Rank, RankId, RestorePolicy, SurvivePolicy,
    Topology, Violation,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A service level objective. A request is good when it meets both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// Longest time from arrival to first token, ms.
    pub ttft_ms: f64,
    /// Longest time per output token after the first, ms, as a request's mean.
    pub tpot_ms: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Self { ttft_ms: 2000.0, tpot_ms: 50.0 }
    }
}

/// How memory may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryPolicy {
    /// Share of a rank's memory kept free for activations, buffers and fragmentation.
    pub hbm_reserve_share: f64,
    /// Smallest share of a rank's memory that must stay for KV blocks.
    pub kv_floor_share: f64,
    /// Slots kept empty for weights in flight while a map changes, per rank.
    pub staging_slots: u32,
}

impl Default for MemoryPolicy {
    fn default() -> Self {
        Self { hbm_reserve_share: 0.1, kv_floor_share: 0.2, staging_slots: 1 }
    }
}

impl MemoryPolicy {
    /// Bytes of a rank that are not routed experts: attention, shared experts, dense layers,
    /// embeddings. Attention data-parallel: every rank holds all of them.
    ///
    /// An estimate from the shape (attention ≈ 4 · hidden² per layer), within some 20 % of a
    /// checkpoint's; it decides how much KV is left, not whether a move is allowed by a byte.
    #[must_use]
    pub fn resident_bytes(shape: &ModelShape) -> u64 {
        let hidden = f64::from(shape.hidden);
        let layers = f64::from(shape.moe_layers) + f64::from(shape.dense_layers);
        let attention = 4.0 * hidden * hidden * layers;
        let shared = f64::from(shape.moe_layers)
            * 3.0
            * hidden
            * f64::from(shape.expert_width)
            * f64::from(shape.shared_experts);
        let dense = f64::from(shape.dense_layers) * 3.0 * hidden * f64::from(shape.dense_width);
        let embeddings = 2.0 * 2.0 * hidden * f64::from(shape.vocab);
        ((attention + shared + dense) * shape.weights.bytes_per_weight() + embeddings) as u64
    }

    /// Bytes left for KV blocks on a rank that holds `copies` expert copies over all layers.
    /// Negative where they do not fit.
    #[must_use]
    pub fn kv_bytes(&self, shape: &ModelShape, hbm_bytes: u64, copies: u64) -> i64 {
        let usable = hbm_bytes as f64 * (1.0 - self.hbm_reserve_share);
        let experts = (copies + u64::from(self.staging_slots)) as f64 * shape.expert_bytes() as f64;
        (usable - Self::resident_bytes(shape) as f64 - experts) as i64
    }

    /// Law 4 for every rank of a map, the staging slots included.
    #[must_use]
    pub fn violations(
        &self,
        map: &ExpertMap,
        shape: &ModelShape,
        topology: &Topology,
    ) -> Vec<Violation> {
        let mut found = Vec::new();
        for (rank, copies) in topology.ranks().iter().zip(map.copies_per_rank()) {
            let floor = (rank.hbm_bytes as f64 * self.kv_floor_share) as i64;
            let left = self.kv_bytes(shape, rank.hbm_bytes, copies);
            if left < floor {
                found.push(Violation::Memory {
                    rank: RankId(rank.id.0),
                    needed_bytes: (rank.hbm_bytes as i64 + floor - left) as u64,
                    hbm_bytes: rank.hbm_bytes,
                });
            }
        }
        found
    }
}

/// How fast weights may move, and when a move is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MovePolicy {
    /// Rate per rank at which expert weights may arrive while serving, GB/s.
    pub byte_rate_gb_per_s: f64,
    /// Most copies that one plan may move.
    pub moves_max: u32,
    /// Shortest life of a map, s: a move must pay for itself within it.
    pub dwell_s: f64,
    /// Most transfers in flight in one stage.
    pub operations_per_stage_max: u32,
    /// Most of them from one rank to another, and most over a node's outer links in one direction.
    pub operations_per_link_max: u32,
}

impl Default for MovePolicy {
    fn default() -> Self {
        Self {
            byte_rate_gb_per_s: 2.0,
            moves_max: 4096,
            dwell_s: 600.0,
            operations_per_stage_max: 32,
            operations_per_link_max: 8,
        }
    }
}

/// A copy that has to exist, wherever the planner puts the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Rank that holds a copy of it.
    pub rank: RankId,
}

/// When a plan is worth making, and what it may not touch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanPolicy {
    /// Balancedness (tokens per rank, worst layer) above which nothing is planned.
    pub balancedness_enough: f64,
    /// Smallest predicted gain of a step's time that makes a plan, as a share. Below some 3 %
    /// a service's own A/A noise hides a gain, and it may be the model's error.
    pub gain_min_share: f64,
    /// Smallest gain per byte that buys a further move: step time saved, µs per GB moved.
    pub gain_us_per_gb_min: f64,
    /// Slots per rank and layer, empty ones included; 0: as many as the live map has.
    pub slots_per_rank: u16,
    /// A rank holds as many copies in every layer as in layer 0: engines with one tensor for all
    /// layers need it.
    pub same_slots_per_layer: bool,
    /// All copies of an expert group ([`ModelShape::groups`]) lie on one node, layer by layer: a
    /// token that may use G groups then visits at most G nodes.
    pub groups_on_nodes: bool,
    /// Balance (rows of a layer's slowest rank) that may be given for less traffic between nodes, as
    /// a share; 0: none is offered.
    pub cross_node_loss_max_share: f64,
    /// Copies that have to exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<Pin>,
}

impl Default for PlanPolicy {
    fn default() -> Self {
        Self {
            balancedness_enough: 0.97,
            gain_min_share: 0.03,
            gain_us_per_gb_min: 4.0,
            slots_per_rank: 0,
            same_slots_per_layer: false,
            groups_on_nodes: false,
            cross_node_loss_max_share: 0.0,
            pinned: Vec::new(),
        }
    }
}

impl PlanPolicy {
    /// Constraints that a map does not meet: filled slots on dead ranks, missing pinned copies,
    /// uneven slots and split groups where the policy forbids them.
    #[must_use]
    pub fn violations(
        &self,
        map: &ExpertMap,
        shape: &ModelShape,
        topology: &Topology,
    ) -> Vec<Violation> {
        let mut found = Vec::new();
        let ranks = topology.ranks();
        for (index, slots) in map.slots.iter().enumerate() {
            let layer = LayerId(index as u16);
            for (rank, slot, expert) in map.copies(layer) {
                if ranks.get(rank.index()).is_some_and(|rank| rank.dead) {
                    found.push(Violation::DeadRank { layer, rank, slot, expert });
                }
            }
            if self.same_slots_per_layer {
                let filled = |slots: &Vec<Option<ExpertId>>| slots.iter().flatten().count();
                for (rank, (here, first)) in slots.iter().zip(&map.slots[0]).enumerate() {
                    let (copies, expected) = (filled(here), filled(first));
                    if copies != expected {
                        let rank = RankId(rank as u16);
                        found.push(Violation::UnevenSlots { layer, rank, copies, expected });
                    }
                }
            }
            if self.groups_on_nodes {
                found.extend(split_groups(map, layer, shape, &ranks));
            }
        }
        for pin in &self.pinned {
            let slots = map.slots.get(pin.layer.index());
            let slots = slots.and_then(|ranks| ranks.get(pin.rank.index()));
            if !slots.is_some_and(|slots| slots.contains(&Some(pin.expert))) {
                let Pin { layer, expert, rank } = *pin;
                found.push(Violation::NotPinned { layer, expert, rank });
            }
        }
        found
    }
}

/// The first copy off its group's node, per group.
fn split_groups(
    map: &ExpertMap,
    layer: LayerId,
    shape: &ModelShape,
    ranks: &[Rank],
) -> Vec<Violation> {
    let groups = shape.groups.map_or(1, |groups| groups.groups.max(1));
    let per_group = shape.experts.div_ceil(groups).max(1);
    let mut homes: Vec<Option<NodeId>> = vec![None; usize::from(groups)];
    let mut found: Vec<Violation> = Vec::new();
    for (rank, _, expert) in map.copies(layer) {
        let group = expert.0 / per_group;
        let Some(at) = ranks.get(rank.index()) else { continue };
        let Some(home) = homes.get_mut(usize::from(group)) else { continue };
        let node = *home.get_or_insert(at.node);
        let known =
            |v: &Violation| matches!(v, Violation::SplitGroup { group: g, .. } if *g == group);
        if node != at.node && !found.iter().any(known) {
            found.push(Violation::SplitGroup { layer, group, node, expert, rank });
        }
    }
    found
}

/// What a candidate must show before it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatePolicy {
    /// Confidence of every interval, e.g. 0.95.
    pub confidence: f64,
    /// Smallest improvement of p99 TPOT (request-weighted) to accept, as a share.
    pub tpot_p99_gain_min_share: f64,
    /// Largest loss of p99 TPOT that any slice may suffer, as a share.
    pub slice_loss_max_share: f64,
    /// Largest loss of goodput, as a share.
    pub goodput_loss_max_share: f64,
    /// Fewest requests per map below which more data is asked for.
    pub requests_min: u32,
    /// A gap between two tokens longer than this is a stall, ms.
    pub stall_ms: f64,
}

impl Default for GatePolicy {
    fn default() -> Self {
        Self {
            confidence: 0.95,
            tpot_p99_gain_min_share: 0.01,
            slice_loss_max_share: 0.02,
            goodput_loss_max_share: 0.01,
            requests_min: 400,
            stall_ms: 1000.0,
        }
    }
}

/// The whole policy file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Objective of every slice that has none of its own.
    pub slo: Slo,
    /// Objectives by tenant.
    pub slice_slo: BTreeMap<String, Slo>,
    /// Memory.
    pub memory: MemoryPolicy,
    /// Moves.
    #[serde(rename = "move")]
    pub moves: MovePolicy,
    /// Planning.
    pub plan: PlanPolicy,
    /// From where lost experts come back.
    pub restore: RestorePolicy,
    /// Gate.
    pub gate: GatePolicy,
    /// What the loss of ranks may do. Empty: nothing is promised.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub survive: Vec<SurvivePolicy>,
}

/// Why a policy is refused.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// Not TOML, or a field is unknown or of another type.
    #[error("policy: {0}")]
    Parse(#[from] toml::de::Error),
    /// A value outside its range.
    #[error("policy: `{field}` is {value}, expected {expected}")]
    Range {
        /// The field, dotted.
        field: String,
        /// What the file says.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
    /// The same pin twice.
    #[error("policy: `plan.pinned` lists {expert} on {rank} in {layer} twice, expected once")]
    PinnedTwice {
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Rank.
        rank: RankId,
    },
}

impl Policy {
    /// The commented file that `evenkeel init` writes: every field at its default.
    pub const TEMPLATE: &'static str = include_str!("policy.toml");

    /// Reads a policy file's text and validates it.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = toml::from_str(text)?;
        policy.validate()?;
        Ok(policy)
    }

    /// The objective of a tenant.
    #[must_use]
    pub fn slo_of(&self, tenant: &str) -> Slo {
        self.slice_slo.get(tenant).copied().unwrap_or(self.slo)
    }

    fn validate(&self) -> Result<(), PolicyError> {
        let mut checks: Vec<(String, f64, &'static str, bool)> = Vec::new();
        let mut share = |field: &str, value: f64| {
            let ok = (0.0..=1.0).contains(&value);
            checks.push((field.to_owned(), value, "a share from 0 to 1", ok));
        };
        share("memory.hbm_reserve_share", self.memory.hbm_reserve_share);
        share("memory.kv_floor_share", self.memory.kv_floor_share);
        share("plan.balancedness_enough", self.plan.balancedness_enough);
        share("plan.gain_min_share", self.plan.gain_min_share);
        share("plan.cross_node_loss_max_share", self.plan.cross_node_loss_max_share);
        share("gate.tpot_p99_gain_min_share", self.gate.tpot_p99_gain_min_share);
        share("gate.slice_loss_max_share", self.gate.slice_loss_max_share);
        share("gate.goodput_loss_max_share", self.gate.goodput_loss_max_share);
        let mut positive = |field: String, value: f64| {
            let ok = value.is_finite() && value > 0.0;
            checks.push((field, value, "a positive number", ok));
        };
        positive("slo.ttft_ms".into(), self.slo.ttft_ms);
        positive("slo.tpot_ms".into(), self.slo.tpot_ms);
        for (tenant, slo) in &self.slice_slo {
            positive(format!("slice_slo.{tenant}.ttft_ms"), slo.ttft_ms);
            positive(format!("slice_slo.{tenant}.tpot_ms"), slo.tpot_ms);
        }
        positive("move.byte_rate_gb_per_s".into(), self.moves.byte_rate_gb_per_s);
        positive("move.dwell_s".into(), self.moves.dwell_s);
        positive("gate.stall_ms".into(), self.gate.stall_ms);
        positive(
            "move.operations_per_stage_max".into(),
            f64::from(self.moves.operations_per_stage_max),
        );
        let per_link = f64::from(self.moves.operations_per_link_max);
        positive("move.operations_per_link_max".into(), per_link);
        positive("restore.host_gb_per_s".into(), self.restore.host_gb_per_s);
        positive("restore.disk_gb_per_s".into(), self.restore.disk_gb_per_s);
        for survive in &self.survive {
            positive(format!("survive.{}.within_s", survive.domain), survive.within_s);
        }
        let confidence = self.gate.confidence;
        let ok = confidence > 0.5 && confidence < 1.0;
        checks.push(("gate.confidence".into(), confidence, "a share between 0.5 and 1", ok));
        let per_gb = self.plan.gain_us_per_gb_min;
        let ok = per_gb.is_finite() && per_gb >= 0.0;
        checks.push(("plan.gain_us_per_gb_min".into(), per_gb, "0 or more", ok));
        for (field, value, expected, ok) in checks {
            if !ok {
                return Err(PolicyError::Range { field, value, expected });
            }
        }
        for (index, pin) in self.plan.pinned.iter().enumerate() {
            if self.plan.pinned[..index].contains(pin) {
                let Pin { layer, expert, rank } = *pin;
                return Err(PolicyError::PinnedTwice { layer, expert, rank });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_the_default() {
        assert_eq!(Policy::from_toml(Policy::TEMPLATE).unwrap(), Policy::default());
    }

    #[test]
    fn an_unknown_field_and_a_bad_share_are_refused() {
        assert!(Policy::from_toml("[slo]\nttft = 3").is_err());
        let message = Policy::from_toml("[memory]\nkv_floor_share = 1.5").unwrap_err().to_string();
        assert!(message.contains("memory.kv_floor_share"), "{message}");
    }

    #[test]
    fn pins_are_read_and_refused_twice() {
        let pin = "[[plan.pinned]]\nlayer = 0\nexpert = 5\nrank = 3\n";
        let policy = Policy::from_toml(pin).unwrap();
        let pinned = Pin { layer: LayerId(0), expert: ExpertId(5), rank: RankId(3) };
        assert_eq!(policy.plan.pinned, [pinned]);
        let message = Policy::from_toml(&pin.repeat(2)).unwrap_err().to_string();
        assert!(message.contains("expert 5 on rank 3 in layer 0 twice"), "{message}");
    }

    #[test]
    fn constraints_are_named_by_place() {
        let mut shape = ModelShape::known("olmoe-1b-7b").unwrap();
        (shape.moe_layers, shape.experts, shape.top_k) = (2, 8, 2);
        shape.groups = Some(crate::ExpertGroups { groups: 2, top_groups: 1 });
        let mut topology = Topology::uniform("h20", 16, 96_000_000_000);
        topology.node[0].ranks = 2;
        topology.node[1].ranks = 2;
        let mut map = ExpertMap::contiguous(&shape, 4, 2);
        let mut policy = PlanPolicy {
            same_slots_per_layer: true,
            groups_on_nodes: true,
            pinned: vec![Pin { layer: LayerId(1), expert: ExpertId(0), rank: RankId(0) }],
            ..PlanPolicy::default()
        };
        assert_eq!(policy.violations(&map, &shape, &topology), []);
        map.slots[1][0] = vec![None, Some(ExpertId(1))];
        map.slots[1][3].push(Some(ExpertId(0)));
        topology.rank_dead = vec![RankId(2)];
        let texts: Vec<String> =
            policy.violations(&map, &shape, &topology).iter().map(ToString::to_string).collect();
        for part in [
            "layer 1: expert 0 is pinned to rank 0",
            "layer 0, rank 2, slot 1: expert 5 is placed on a dead rank",
            "layer 1, rank 3: 3 copies, expected 2",
            "layer 1: group 0 lies on node 0, but expert 0 of it is on rank 3",
        ] {
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
        assert_eq!(texts.len(), 8, "{texts:?}");
        policy = PlanPolicy::default();
        let left = map.without(&topology.rank_dead);
        assert_eq!(policy.violations(&left, &shape, &topology), []);
    }

    #[test]
    fn memory_is_counted_with_the_floor() {
        let shape = ModelShape::known("deepseek-v2-lite").unwrap();
        let map = ExpertMap::contiguous(&shape, 16, 5);
        let memory = MemoryPolicy::default();
        let roomy = Topology::uniform("h20", 16, 96_000_000_000);
        assert_eq!(memory.violations(&map, &shape, &roomy), []);
        let tight = Topology::uniform("h20", 16, 4_000_000_000);
        assert_eq!(memory.violations(&map, &shape, &tight).len(), 16);
    }
}
