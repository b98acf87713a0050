//! The stage of the demonstration: model, machine, tenants, traffic. Every number that could
//! flatter the result stands here.

use crate::fail::Failure;
use crate::setting::Setting;
use evenkeel_sim::{Job, MixChange, TrafficFacts, TrafficSpec, draw_jobs, superpose};
use evenkeel_trace::{Routes, draw};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Slice, Topology};

/// Ranks of the decode group: two nodes of eight. At 16 to 32 ranks of H20 skew costs a tenth of a
/// step and more; on faster cards with small batches it costs next to nothing (counter-incident 1).
pub(super) const RANKS: u16 = 16;

/// Sequences that a rank decodes at once.
pub(super) const SEQUENCES_PER_RANK: u32 = 256;

/// Arrivals over what the group could serve if every rank were perfectly even: no map gets so close
/// to that, so the batch stays full on every map, so maps are compared at equal batches and TPOT shows steps. A queue forms, slowly,
/// and its wait counts as TTFT. Below saturation a faster map would also run smaller batches, and
/// the same plan would look twice as good.
const ARRIVALS_OVER_BOUND: f64 = 0.97;

/// 64 experts over 16 ranks, and one spare slot per rank and layer.
pub(super) const SLOTS_PER_RANK: u16 = 5;

/// Share of the decoded tokens that the surging tenant has after the shift. Before: equal shares.
const SURGE_SHARE: f64 = 0.8;

/// Simulated time of each replay: the gate wants eight blocks of time at least, and a block lasts
/// as long as a typical request lives, or as steps stay correlated.
pub(super) const SECONDS: f64 = 40.0;

/// Simulated time of the recorded traces.
pub(super) const RECORD_SECONDS: f64 = 10.0;

/// Simulated time of a counter-incident.
pub(super) const COUNTER_SECONDS: f64 = 3.0;

/// Hardware of the incident.
pub(super) const PROFILE: &str = "h20";

/// The operator's objective for TPOT, ms. The policy file of the demonstration carries it.
pub(super) const SLO_TPOT_MS: f64 = 21.0;

/// Recorded arrivals stand for one service; this many copies of it load the group.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) jobs: Vec<Job>,
    pub(super) facts: TrafficFacts,
    pub(super) copies: u32,
}

/// Model, machine, tenants and recorded routing.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) setting: Setting,
    pub(super) slices: Vec<Slice>,
    pub(super) planning: Routes,
    pub(super) judging: Routes,
    pub(super) surge: usize,
    pub(super) seed: u64,
    pub(super) sequences_per_rank: u32,
    arrivals_ns: Vec<u64>,
}

impl Scene {
    /// Splits the recorded requests into a planning and a judging half and sets the machine.
    pub(super) fn new(
        shape: ModelShape,
        slices: Vec<Slice>,
        routes: &Routes,
        arrivals_ns: Vec<u64>,
        surge: &str,
        seed: u64,
    ) -> Result<Self, Failure> {
        let Some(surge) = slices.iter().position(|slice| slice.tenant == surge) else {
            let tenants: Vec<_> = slices.iter().map(|slice| slice.tenant.as_str()).collect();
            return Err(Failure::input(format!("--surge `{surge}`: no such tenant"))
                .hint(format!("recorded tenants: {}", tenants.join(", "))));
        };
        let (planning, judging) = draw::halves(routes, seed);
        let hbm_bytes = crate::load::hbm_bytes(PROFILE)?;
        let topology = Topology::uniform(PROFILE, RANKS, hbm_bytes);
        let mut policy = Policy::default();
        policy.slo.tpot_ms = SLO_TPOT_MS;
        policy.plan.slots_per_rank = SLOTS_PER_RANK;
        let setting = Setting::new(shape, topology, PROFILE, policy)?;
        let sequences_per_rank = SEQUENCES_PER_RANK;
        Ok(Self {
            setting,
            slices,
            planning,
            judging,
            surge,
            seed,
            sequences_per_rank,
            arrivals_ns,
        })
    }

    /// The same traffic on another machine, with another batch.
    pub(super) fn on(&self, setting: Setting, sequences_per_rank: u32) -> Self {
        Self { setting, sequences_per_rank, ..self.clone() }
    }

    /// Shares of the decoded tokens before the shift: equal.
    pub(super) fn old_mix(&self) -> Vec<f64> {
        vec![1.0 / self.slices.len() as f64; self.slices.len()]
    }

    /// Shares of the decoded tokens after it.
    pub(super) fn new_mix(&self) -> Vec<f64> {
        let others = (1.0 - SURGE_SHARE) / (self.slices.len() - 1).max(1) as f64;
        let share = |slice| if slice == self.surge { SURGE_SHARE } else { others };
        (0..self.slices.len()).map(share).collect()
    }

    /// The name of the surging tenant.
    pub(super) fn surging(&self) -> &str {
        &self.slices[self.surge].tenant
    }

    /// The map from which the first plan starts: as an engine lays it out.
    pub(super) fn contiguous(&self) -> ExpertMap {
        let slots = usize::from(SLOTS_PER_RANK);
        ExpertMap::contiguous(&self.setting.shape, usize::from(RANKS), slots)
    }

    /// Traffic whose decoded tokens have the shares of `mix`, at the rate that keeps the batch full
    /// when a step takes `step_ms` (Little's law). The rate is the recording's times a whole
    /// number of copies.
    pub(super) fn traffic(
        &self,
        routes: &Routes,
        mix: &[f64],
        step_ms: f64,
        seed: u64,
    ) -> Result<Traffic, Failure> {
        let decoded = mean_decoded(routes, self.slices.len());
        let by_request: Vec<f64> = mix.iter().zip(&decoded).map(|(m, d)| m / d.max(1.0)).collect();
        let total: f64 = by_request.iter().sum();
        let life_s = step_ms * 1e-3 / total.max(1e-9);
        let sequences = f64::from(self.sequences_per_rank) * self.setting.ranks() as f64;
        let recorded_per_s = rate_per_s(&self.arrivals_ns);
        let rate = ARRIVALS_OVER_BOUND * sequences / life_s;
        let copies = (rate / recorded_per_s).ceil().max(1.0) as u32;
        let until_ns = (SECONDS * 1e9) as u64;
        let arrivals_ns =
            superpose(&self.arrivals_ns, copies, until_ns, seed).map_err(Failure::input)?;
        let spec = TrafficSpec {
            arrivals_ns,
            mix: vec![MixChange { from_ns: 0, share_by_slice: by_request }],
            fill_sequences: sequences as u32,
            seed,
        };
        let (jobs, facts) = draw_jobs(routes, &spec).map_err(Failure::input)?;
        Ok(Traffic { jobs, facts, copies })
    }

    /// The rest of a decode step that no map changes, µs, at this scene's batch.
    pub(super) fn fixed_us(&self) -> f64 {
        let sequences = f64::from(self.sequences_per_rank);
        self.setting.fixed_us(Phase::Decode, sequences, mean_context(&self.planning))
    }
}

/// `[slice]`: output tokens of a request beyond the first, which comes with the prefill.
fn mean_decoded(routes: &Routes, slices: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); slices];
    for request in routes.requests() {
        if request.output_tokens() > 1 {
            let (tokens, count) = &mut sums[request.slice.index()];
            *tokens += f64::from(request.output_tokens() - 1);
            *count += 1.0;
        }
    }
    sums.into_iter().map(|(tokens, count)| tokens / f64::max(count, 1.0)).collect()
}

/// KV length of the mean decoded token.
pub(super) fn mean_context(routes: &Routes) -> f64 {
    let (mut context, mut tokens) = (0.0, 0.0);
    for request in routes.requests() {
        let output = f64::from(request.output_tokens());
        context += output * (f64::from(request.prompt_tokens) + output / 2.0);
        tokens += output;
    }
    context / f64::max(tokens, 1.0)
}

fn rate_per_s(arrivals_ns: &[u64]) -> f64 {
    match arrivals_ns {
        [first, .., last] if last > first => {
            (arrivals_ns.len() - 1) as f64 / ((last - first) as f64 * 1e-9)
        }
        _ => 1.0,
    }
}
