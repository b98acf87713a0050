//! The operator's policy: one TOML file, every field with a default.

use crate::{ExpertMap, ModelShape, RankId, Topology, Violation};
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
}

impl Default for MovePolicy {
    fn default() -> Self {
        Self {
            byte_rate_gb_per_s: 2.0,
            moves_max: 4096,
            dwell_s: 600.0,
            operations_per_stage_max: 32,
        }
    }
}

/// When a plan is worth making.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl Default for PlanPolicy {
    fn default() -> Self {
        Self {
            balancedness_enough: 0.97,
            gain_min_share: 0.03,
            gain_us_per_gb_min: 4.0,
            slots_per_rank: 0,
        }
    }
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
    /// Gate.
    pub gate: GatePolicy,
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
