//! What a diagnosis says: the shape of the answer.

use evenkeel_types::{ExpertId, LayerId, NodeId, Phase, RankId, SliceId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The answer in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// At least one fault costs more than the noise and the model's error: see `causes`.
    CausesFound,
    /// Everything needed was recorded, and no fault stands out.
    NothingWrong,
    /// Something needed is not recorded or contradicts itself: see `missing`.
    CannotTell,
}

/// What makes a step slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// One expert makes its rank the slowest of a layer.
    HotExpert,
    /// One rank holds too much of most layers, by several experts.
    HotRank,
    /// The map is uneven, on different ranks in different layers.
    BadPlacement,
    /// The map would do, but its copies share the tokens badly.
    UnevenCopies,
    /// A node's links move equal bytes more slowly.
    SlowLink,
    /// A rank computes equal work more slowly.
    SlowRank,
    /// Expert kernels take longer for equal work on all ranks.
    FallbackKernel,
    /// More (or longer) sequences per rank than in the baseline.
    BatchShape,
    /// One rank's attention reads more KV than the others'.
    AttentionSkew,
    /// A rank arrives late at dispatch for reasons outside attention, experts and links.
    LateRank,
    /// The shares of the slices changed, and with them the experts in demand.
    MixShift,
    /// Prefill steps stand between decode steps.
    PrefillInterference,
    /// The exchange is so large a part of the step that no map helps. A finding, not a fault.
    CommunicationBound,
    /// The part of a change that no named cause accounts for.
    Unexplained,
}

impl CauseKind {
    /// Whether something is wrong, rather than merely so.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::CommunicationBound | Self::Unexplained)
    }

    /// The name in plain words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::HotExpert => "hot expert",
            Self::HotRank => "hot rank",
            Self::BadPlacement => "bad placement",
            Self::UnevenCopies => "uneven use of copies",
            Self::SlowLink => "slow link",
            Self::SlowRank => "slow rank",
            Self::FallbackKernel => "fallback kernel",
            Self::BatchShape => "changed batch shape",
            Self::AttentionSkew => "attention/KV skew",
            Self::LateRank => "late rank, before dispatch",
            Self::MixShift => "mix shift",
            Self::PrefillInterference => "prefill interference",
            Self::CommunicationBound => "bound by communication",
            Self::Unexplained => "unexplained",
        }
    }
}

impl fmt::Display for CauseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Where a cause sits. Absent: everywhere, or not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// Layer that loses most.
    pub layer: Option<LayerId>,
    /// Guilty rank.
    pub rank: Option<RankId>,
    /// Node whose outer links are slow.
    pub node: Option<NodeId>,
    /// Node at the other end, where only one pair of nodes is slow.
    pub peer_node: Option<NodeId>,
    /// Hot expert.
    pub expert: Option<ExpertId>,
    /// Kernel that ran.
    pub kernel: Option<String>,
    /// Slice whose share moved most.
    pub slice: Option<SliceId>,
}

/// One cause with its cost, its evidence and what to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// What.
    pub kind: CauseKind,
    /// Mean over the examined steps of what a step would lose less without it, ms.
    pub ms_per_step: f64,
    /// The same as a share of the observed step.
    pub share_of_step: f64,
    /// Where.
    pub place: Place,
    /// First step that shows it; absent where it was there from the first.
    pub since_step: Option<u64>,
    /// Sentences with the numbers that it rests on.
    pub evidence: Vec<String>,
    /// The one thing to do.
    pub remedy: String,
    /// Whether moving experts may cure it.
    pub remap_allowed: bool,
}

/// A named share of a slowdown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What.
    pub cause: CauseKind,
    /// Mean over the examined steps, ms.
    pub ms_per_step: f64,
    /// Mean over the slowest hundredth of them (at least one), ms.
    pub ms_at_p99: f64,
}

/// How slow, against what, and made of what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slowdown {
    /// Steps that the parts were taken from.
    pub steps_examined: usize,
    /// Median step of all steps of the phase, ms.
    pub step_ms_p50: f64,
    /// 99th percentile of all steps of the phase, ms.
    pub step_ms_p99: f64,
    /// Mean examined step, ms.
    pub step_ms_mean: f64,
    /// Mean over the slowest hundredth of the examined steps (at least one), ms.
    pub step_ms_at_p99: f64,
    /// Mean examined step with every named cause healed, ms. Chance from step to step stays in.
    pub ideal_ms: f64,
    /// Mean step of the baseline, ms.
    pub baseline_ms: Option<f64>,
    /// Shapley values over the named causes: they add up to `step_ms_mean − ideal_ms`.
    pub parts: Vec<Part>,
    /// What changed since the baseline: adds up to `step_ms_mean − baseline_ms`; what no cause
    /// accounts for is named `unexplained`. Empty without a baseline. `ms_at_p99` is 0 here.
    pub since_baseline: Vec<Part>,
}

/// An expert that is chosen far more than its layer's mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotExpert {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Share of the layer's (token, expert) rows.
    pub share_of_rows: f64,
    /// That share over `1 / experts`.
    pub times_fair: f64,
    /// Ranks that hold a copy.
    pub ranks: Vec<RankId>,
}

/// How often the group waited for a rank's experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankShare {
    /// Rank.
    pub rank: RankId,
    /// Share of (step, layer) pairs in which its experts ended last.
    pub share_of_layers: f64,
    /// Share of steps in which it ended last in more layers than any other rank.
    pub share_of_steps: f64,
    /// How long the mean rank waited for it, ms per step.
    pub waited_ms_per_step: f64,
}

/// Rows per rank of one layer, over the examined steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerBalance {
    /// Layer.
    pub layer: LayerId,
    /// Mean ÷ max of rows per rank, each step on its own, weighted by rows. 1 for an empty layer.
    pub balancedness: f64,
    /// Max ÷ mean, weighted likewise.
    pub max_over_mean: f64,
    /// Rank with most rows; absent where the layer has none.
    pub hot_rank: Option<RankId>,
}

/// The most that any map could save.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MapBound {
    /// No map saves more than this share of the mean step.
    pub share_of_step: f64,
    /// The same, ms.
    pub ms: f64,
    /// What evening out the lasting differences between ranks would save, ms: chance within a step
    /// stays, as it does under every fixed map.
    pub lasting_ms: f64,
    /// How it was computed.
    pub how: String,
}

/// `measured max ÷ mean = dispatch gap × placement gap`, in rows, Σ over layers and steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    /// Rows of the fullest rank over the mean rank's.
    pub max_over_mean: f64,
    /// Of that, what the best fixed split over this map's copies would save. 1: nothing.
    /// Absent where routing was not recorded.
    pub dispatch_gap: Option<f64>,
    /// What then remains, and only another map could save.
    pub placement_gap: Option<f64>,
}

/// A slice's share of the traffic before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceShare {
    /// Slice, in the observed trace's numbering.
    pub slice: SliceId,
    /// Tenant (and template) as recorded: escape it wherever it is shown.
    pub name: String,
    /// Share of the phase's tokens in the baseline.
    pub before: f64,
    /// Share in the observed window.
    pub after: f64,
}

/// Whether the shares of the slices changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixShift {
    /// Shares, largest change first.
    pub slices: Vec<SliceShare>,
    /// Jensen–Shannon divergence of the two mixes, bits (0 equal, 1 disjoint).
    pub jsd_bits: f64,
    /// 99th percentile of that divergence when requests are assigned to the windows by chance.
    pub jsd_chance_p99_bits: f64,
    /// Share of chance assignments at least as far apart (add-one estimate).
    pub p_value: f64,
    /// Effective requests (before, after): tokens come in requests of unequal size.
    pub effective_requests: (f64, f64),
    /// Whether the shift is beyond chance.
    pub shifted: bool,
    /// Slice whose share grew most, where shifted.
    pub moved: Option<SliceId>,
    /// Whether a slice that is in both windows changed its model or tokenizer revision.
    pub revisions_changed: bool,
}

/// Mean busy share of a rank, printed with the reason why it decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Utilisation {
    /// Mean over ranks and steps of (attention, router, experts, combine) over the step.
    pub mean_busy_share: f64,
    /// The largest rank's.
    pub max_busy_share: f64,
    /// Why it says nothing.
    pub why: String,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// In one word.
    pub verdict: Verdict,
    /// Phase that was examined.
    pub phase: Phase,
    /// What could not be told, and what record would settle it.
    pub missing: Vec<String>,
    /// Facts about the record that a reader needs, e.g. how much warm-up was dropped.
    pub notes: Vec<String>,
    /// Share of the phase's steps that were recognised as warm-up and dropped.
    pub warm_up_share: f64,
    /// How slow, and made of what.
    pub slowdown: Slowdown,
    /// Ranked by cost, faults first.
    pub causes: Vec<Cause>,
    /// Largest first, at most [`crate::Options::hot_experts_max`].
    pub hot_experts: Vec<HotExpert>,
    /// Ranks by how long the others wait for them, longest first.
    pub waited_for: Vec<RankShare>,
    /// Rows per rank, by layer.
    pub balance: Vec<LayerBalance>,
    /// What any map could save.
    pub map_bound: MapBound,
    /// Dispatch gap and placement gap.
    pub gaps: Gaps,
    /// Against the baseline's requests, where there are both.
    pub mix: Option<MixShift>,
    /// Mean utilisation.
    pub utilisation: Utilisation,
}

impl Diagnosis {
    /// Whether a plan may be made on this window: some fault is the map's, and none spoils the
    /// measurements that a plan would rest on or uses a link that must not be loaded further.
    #[must_use]
    pub fn remap_allowed(&self) -> bool {
        let forbids = |cause: &Cause| match cause.kind {
            CauseKind::SlowLink | CauseKind::FallbackKernel => true,
            CauseKind::MixShift => !cause.remap_allowed,
            _ => false,
        };
        self.causes.iter().any(|cause| cause.remap_allowed) && !self.causes.iter().any(forbids)
    }

    /// The dearest fault of a kind.
    #[must_use]
    pub fn cause(&self, kind: CauseKind) -> Option<&Cause> {
        self.causes.iter().find(|cause| cause.kind == kind)
    }
}
