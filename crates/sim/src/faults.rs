//! What a replay may be told to get wrong, beside the topology's slow links and slow ranks.

use crate::SimError;
use evenkeel_types::RankId;
use serde::{Deserialize, Serialize};

/// Every rank's expert kernels slower than their curve: a fallback kernel, a bad autotuner pick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFault {
    /// Name of the kernel that runs instead.
    pub name: String,
    /// Time over that of the curve.
    pub factor: f64,
    /// From the first step that starts at or after this time, ns.
    pub from_ns: u64,
}

/// Attention slower than its curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionFault {
    /// The rank; none: all.
    pub rank: Option<RankId>,
    /// Time over that of the curve.
    pub factor: f64,
    /// From the first step that starts at or after this time, ns.
    pub from_ns: u64,
}

/// A rank that enters every step late (its host is busy): the first layer waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateRank {
    /// The rank.
    pub rank: RankId,
    /// How late, ns.
    pub late_ns: u64,
    /// From the first step that starts at or after this time, ns.
    pub from_ns: u64,
}

impl LateRank {
    /// Longest lateness, ns: nearly five hours.
    pub const NS_MAX: u64 = 1 << 44;
}

/// Faults of a replay. Slow links and slow ranks are the topology's (`link_health`, `rank_speed`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Slower expert kernels.
    pub kernel: Option<KernelFault>,
    /// Slower attention.
    pub attention: Option<AttentionFault>,
    /// A rank that is late.
    pub late_rank: Option<LateRank>,
}

impl Faults {
    /// Names of kernels for a trace's header, in the order of `LayerCell::kernel`: the curve's
    /// own, then the fault's.
    #[must_use]
    pub fn kernels(&self, healthy: &str) -> Vec<String> {
        let fallback = self.kernel.iter().map(|fault| fault.name.clone());
        std::iter::once(healthy.to_owned()).chain(fallback).collect()
    }

    pub(crate) fn validate(&self, ranks: usize) -> Result<(), SimError> {
        let Self { kernel, attention, late_rank } = self;
        let factors = [
            ("fault: kernel factor", kernel.as_ref().map(|fault| fault.factor)),
            ("fault: attention factor", attention.as_ref().map(|fault| fault.factor)),
        ];
        for (place, factor) in factors {
            if let Some(factor) = factor.filter(|factor| !(factor.is_finite() && *factor > 0.0)) {
                return Err(SimError::range(place, factor, "a positive number"));
            }
        }
        if let Some(late) = late_rank.as_ref().filter(|late| late.late_ns > LateRank::NS_MAX) {
            return Err(SimError::range("fault: late_ns", late.late_ns, "at most 2^44"));
        }
        let rank = attention.as_ref().and_then(|fault| fault.rank);
        for rank in rank.into_iter().chain(late_rank.as_ref().map(|fault| fault.rank)) {
            if rank.index() >= ranks {
                let expected = format!("a rank below {ranks}");
                return Err(SimError::range("fault: rank", rank.0, expected));
            }
        }
        Ok(())
    }

    /// Factor of the expert kernels' time, and the kernel's number.
    pub(crate) fn kernel_at(&self, now_ns: u64) -> (f64, u16) {
        match &self.kernel {
            Some(fault) if now_ns >= fault.from_ns => (fault.factor, 1),
            _ => (1.0, 0),
        }
    }

    /// Factor of a rank's attention time.
    pub(crate) fn attention_at(&self, now_ns: u64, rank: usize) -> f64 {
        match &self.attention {
            Some(fault)
                if now_ns >= fault.from_ns
                    && fault.rank.is_none_or(|slow| slow.index() == rank) =>
            {
                fault.factor
            }
            _ => 1.0,
        }
    }

    /// How late a rank enters a step, ns.
    pub(crate) fn late_at(&self, now_ns: u64, rank: usize) -> u64 {
        match &self.late_rank {
            Some(fault) if now_ns >= fault.from_ns && fault.rank.index() == rank => fault.late_ns,
            _ => 0,
        }
    }
}
