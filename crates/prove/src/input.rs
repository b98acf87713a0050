//! What the gate is given: two runs, and the evidence beside them.

use crate::metrics::RunMetrics;
use evenkeel_sim::Run;
use evenkeel_types::{ExpertMap, MemoryPolicy, ModelShape, Policy, Slice, Topology};
use serde::{Deserialize, Serialize};

/// Two runs to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// On the live map.
    pub live: &'a Run,
    /// On the candidate map.
    pub candidate: &'a Run,
}

/// How the two runs belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// The same jobs under common random numbers: requests are paired by job and resampled
    /// together, so what both runs share cancels.
    Paired,
    /// Two records of different traffic (before and after): resampled each on its own, requests
    /// weighted so that both runs have the live run's shares of the slices.
    Independent,
}

/// KV memory that each map leaves, as a share of memory on the tightest rank. Unknown: `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvHeadroom {
    /// Live map.
    pub live_share: Option<f64>,
    /// Candidate map.
    pub candidate_share: Option<f64>,
}

impl KvHeadroom {
    /// Headroom of two maps on a topology by [`MemoryPolicy::kv_bytes`]. Below 0 where the
    /// experts alone do not fit; `None` for a map without ranks.
    #[must_use]
    pub fn of_maps(
        live: &ExpertMap,
        candidate: &ExpertMap,
        shape: &ModelShape,
        topology: &Topology,
        memory: &MemoryPolicy,
    ) -> Self {
        let share = |map: &ExpertMap| {
            topology
                .ranks()
                .iter()
                .zip(map.copies_per_rank())
                .map(|(rank, copies)| {
                    memory.kv_bytes(shape, rank.hbm_bytes, copies) as f64 / rank.hbm_bytes as f64
                })
                .min_by(f64::total_cmp)
        };
        Self { live_share: share(live), candidate_share: share(candidate) }
    }
}

/// Outputs of the same prompts compared between two maps by digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputMatch {
    /// Requests whose outputs were compared, live against candidate.
    pub compared: u64,
    /// Of those, outputs that differ in at least one bit.
    pub different: u64,
    /// Requests compared between two runs on the live map (A/A).
    pub aa_compared: u64,
    /// Of those, outputs that differ.
    pub aa_different: u64,
}

/// Evidence for sameness beyond the runs themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sameness {
    /// The candidate map was checked against laws 2 and 3.
    pub map_checked: bool,
    /// What that check found, as sentences. Empty: nothing.
    pub map_violations: Vec<String>,
    /// Outputs compared, where they were recorded.
    pub outputs: Option<OutputMatch>,
}

impl Sameness {
    /// Checks the candidate map against laws 2 and 3.
    #[must_use]
    pub fn of_map(candidate: &ExpertMap) -> Self {
        Self {
            map_checked: true,
            map_violations: candidate.violations().iter().map(ToString::to_string).collect(),
            outputs: None,
        }
    }
}

/// p99 TPOT of one draw of the model's shared parameters, replayed on both maps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrawOutcome {
    /// Name of the draw.
    pub name: String,
    /// Relative change of p99 TPOT, candidate over live; negative is a gain. `None` where no
    /// request finished in both.
    pub change_share: Option<f64>,
}

/// Everything that the gate judges. Build it with [`GateInput::new`] and set what is known.
#[derive(Clone, Debug)]
pub struct GateInput<'a> {
    /// The two runs.
    pub pair: Pair<'a>,
    /// How they belong together.
    pub design: Design,
    /// The times come from cost curves: the verdict says `modelled`, and acceptance needs draws.
    pub modelled: bool,
    /// The same traffic under shared parameter draws ([`crate::draw_outcome`]). Empty: measured.
    pub draws: &'a [DrawOutcome],
    /// A second run on the live map, another record: its difference to the live run is what
    /// nothing but chance and time does.
    pub aa: Option<&'a Run>,
    /// Slices, indexed by `SliceId`.
    pub slices: &'a [Slice],
    /// Policy.
    pub policy: &'a Policy,
    /// Evidence for sameness.
    pub sameness: Sameness,
    /// KV memory under both maps.
    pub kv: KvHeadroom,
    /// Laws that a record breaks (law 7), as sentences: any withholds the verdict.
    pub breaches: &'a [String],
    /// What the model is known to get wrong, repeated in the verdict.
    pub model_notes: &'a [String],
    /// 0: the data are looked at once. k ≥ 1: this is the k-th look at growing data, and the
    /// error allowance is spent as α·6/(π²k²), so that all looks together stay below α.
    pub look: u32,
    /// Bootstrap replicates.
    pub replicates: u32,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl<'a> GateInput<'a> {
    /// Replicates that resolve an interval of 99 %.
    pub const REPLICATES: u32 = 2000;

    /// A paired, measured comparison looked at once, with nothing known beside the runs.
    #[must_use]
    pub fn new(pair: Pair<'a>, slices: &'a [Slice], policy: &'a Policy) -> Self {
        Self {
            pair,
            design: Design::Paired,
            modelled: false,
            draws: &[],
            aa: None,
            slices,
            policy,
            sameness: Sameness::default(),
            kv: KvHeadroom::default(),
            breaches: &[],
            model_notes: &[],
            look: 0,
            replicates: Self::REPLICATES,
            seed: 1,
        }
    }
}

/// Metrics of both runs, in the same form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BothRuns {
    /// Live.
    pub live: RunMetrics,
    /// Candidate.
    pub candidate: RunMetrics,
}
