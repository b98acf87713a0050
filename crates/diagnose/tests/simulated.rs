//! Faults injected into the simulated machine are named from its record; a healthy one is left alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a broken run is to stop the test")]

use evenkeel_cost::{Profile, StepModel};
use evenkeel_diagnose::{CauseKind, Diagnosis, Observation, Options, Verdict, diagnose};
use evenkeel_sim::{
    AttentionFault, Faults, GroupConfig, KernelFault, LateRank, Limits, MixChange, Replay, Role,
    SinkError, StepSink, TrafficSpec, draw_jobs, simulate,
};
use evenkeel_split::SplitTable;
use evenkeel_trace::{Finish, RecordedRequest, RequestRecord, Routes, StepRecord, TraceHeader};
use evenkeel_types::{
    ExpertMap, LinkHealth, ModelShape, NodeId, Policy, RankId, RankSpeed, Slice, SliceId, Topology,
    hash3, unit_f64,
};

const RANKS: u16 = 8;
const SEQUENCES: u32 = 128;
const STEPS: u64 = 48;

struct Record(Vec<StepRecord>);

impl StepSink for Record {
    fn wants_routing(&self, step: u64) -> bool {
        step.is_multiple_of(2)
    }

    fn wants_layers(&self) -> bool {
        true
    }

    fn record(&mut self, step: &StepRecord) -> Result<(), SinkError> {
        self.0.push(step.clone());
        Ok(())
    }
}

fn shape() -> ModelShape {
    let mut shape = ModelShape::known("deepseek-v2-lite").unwrap();
    (shape.moe_layers, shape.experts, shape.top_k) = (4, 32, 4);
    shape
}

/// Two nodes of four ranks.
fn topology() -> Topology {
    let mut topology = Topology::uniform("h20", RANKS, 96_000_000_000);
    let mut node = topology.node[0].clone();
    node.ranks = 4;
    topology.node = vec![node.clone(), node];
    topology
}

/// Requests of two slices: the first chooses experts evenly, the second loves expert 13 of layer 1.
/// Every request has a few favourites of its own, as real ones have.
fn routes(shape: &ModelShape) -> Routes {
    let (prompt, output, requests) = (40_u32, 80_u32, 160_u64);
    let (mut ids, mut recorded) = (Vec::new(), Vec::new());
    for request in 0..requests {
        let slice = (request % 2) as u16;
        let first_token = (request * u64::from(prompt + output)) as usize;
        recorded.push(RecordedRequest {
            request,
            slice: SliceId(slice),
            first_token,
            prompt_tokens: prompt,
            tokens: prompt + output,
        });
        for token in 0..u64::from(prompt + output) {
            for layer in 0..u64::from(shape.moe_layers) {
                ids.extend(choices(shape, request, token, layer, slice == 1));
            }
        }
    }
    Routes::new(shape, recorded, ids).unwrap()
}

fn choices(shape: &ModelShape, request: u64, token: u64, layer: u64, second: bool) -> Vec<u16> {
    let mut weights: Vec<(f64, u16)> = (0..shape.experts)
        .map(|expert| {
            let own = 0.5 + unit_f64(hash3(request, layer, u64::from(expert)));
            let loved = if second && layer == 1 && expert == 13 { 30.0 } else { 1.0 };
            let draw = unit_f64(hash3(request * 1000 + token, layer + 77, u64::from(expert)));
            // Exponential clocks: the smallest are a draw without replacement by weight.
            (-draw.max(1e-12).ln() / (own * loved), expert)
        })
        .collect();
    weights.sort_by(|a, b| a.0.total_cmp(&b.0));
    weights.iter().take(usize::from(shape.top_k)).map(|(_, expert)| *expert).collect()
}

/// A run: its record and what an observation needs beside it.
struct Run {
    header: TraceHeader,
    map: ExpertMap,
    topology: Topology,
    steps: Vec<StepRecord>,
    requests: Vec<RequestRecord>,
}

impl Run {
    /// Serves a mix on a machine with faults; the record says nothing about them.
    fn of(degraded: &Topology, faults: &Faults, mix: [f64; 2], seed: u64) -> Self {
        let (shape, topology) = (shape(), topology());
        let routes = routes(&shape);
        let map = ExpertMap::contiguous(&shape, usize::from(RANKS), 4);
        let model = model();
        let split = SplitTable::even(&map).unwrap();
        let mut replay = Replay::new(&routes, &map, &split, &model, degraded, faults).unwrap();
        let spec = TrafficSpec {
            arrivals_ns: (0..400).map(|i| i * 200_000).collect(),
            mix: vec![MixChange { from_ns: 0, share_by_slice: mix.to_vec() }],
            fill_sequences: SEQUENCES * u32::from(RANKS),
            seed,
        };
        let (jobs, _) = draw_jobs(&routes, &spec).unwrap();
        let config = GroupConfig {
            role: Role::Decode,
            decode_sequences_per_rank: SEQUENCES,
            prefill_tokens_per_rank: 1024,
            prefill_steps_in_row_max: 1,
            kv_blocks_per_rank: 100_000,
            kv_block_tokens: 16,
        };
        let mut record = Record(Vec::new());
        let limits = Limits { steps_max: STEPS, ..Limits::default() };
        let run =
            simulate("run", &config, &routes, &jobs, &mut replay, &mut record, limits).unwrap();
        let slices = vec![Slice::of_tenant("even"), Slice::of_tenant("loving")];
        let mut header = TraceHeader::new(shape, slices);
        header.kernels = faults.kernels("grouped_gemm");
        let requests = run.requests.iter().map(|outcome| RequestRecord {
            request: outcome.job,
            slice: outcome.slice,
            arrival_ns: outcome.arrival_ns,
            queue_ns: None,
            ttft_ns: None,
            finish_ns: None,
            token_ns: Vec::new(),
            prompt_tokens: outcome.prompt_tokens,
            output_tokens: outcome.output_tokens,
            finish: Finish::Unfinished,
            error: String::new(),
            output_digest: String::new(),
            mean_log_probability: None,
            quality_score: None,
        });
        Self { header, map, topology, steps: record.0, requests: requests.collect() }
    }

    fn healthy(seed: u64) -> Self {
        Self::of(&topology(), &Faults::default(), [1.0, 0.0], seed)
    }

    fn broken(degraded: &Topology, faults: &Faults) -> Self {
        Self::of(degraded, faults, [1.0, 0.0], 2)
    }

    fn observation(&self) -> Observation<'_> {
        Observation {
            header: &self.header,
            map: &self.map,
            topology: &self.topology,
            steps: &self.steps,
            requests: &self.requests,
            breaches: &[],
        }
    }

    fn mean_ms(&self) -> f64 {
        let ns: u64 = self.steps.iter().map(|step| step.end_ns - step.start_ns).sum();
        ns as f64 / self.steps.len() as f64 / 1e6
    }

    fn told(&self, baseline: Option<&Self>) -> Diagnosis {
        let old = baseline.map(Self::observation);
        let (policy, options) = (Policy::default(), Options::default());
        diagnose(&self.observation(), old.as_ref(), &model(), &policy, &options).unwrap()
    }
}

/// The healthy machine.
fn model() -> StepModel {
    StepModel::resolve(&Profile::builtin("h20").unwrap(), &shape(), &topology()).unwrap()
}

/// The one fault that is found, with and without a baseline.
fn only_cause(run: &Run, healthy: &Run, kind: CauseKind) -> Diagnosis {
    let alone = run.told(None);
    let faults = |found: &Diagnosis| -> Vec<CauseKind> {
        found.causes.iter().filter(|c| c.kind.is_fault()).map(|c| c.kind).collect()
    };
    assert_eq!(faults(&alone), [kind], "without a baseline: {alone:#?}");
    let found = run.told(Some(healthy));
    assert_eq!(faults(&found), [kind], "with a baseline: {found:#?}");
    // Same jobs, same routing, other machine: the truth is the difference of the two runs.
    let truth = run.mean_ms() - Run::healthy(2).mean_ms();
    let told = found.cause(kind).unwrap().ms_per_step;
    assert!(
        (told - truth).abs() < 0.15 * truth,
        "{told} ms told, {truth} ms injected: {:#?} {:#?}",
        found.causes,
        found.slowdown
    );
    found
}

#[test]
fn a_healthy_machine_is_left_alone() {
    let found = Run::healthy(2).told(Some(&Run::healthy(1)));
    assert_eq!(found.verdict, Verdict::NothingWrong, "{found:#?}");
    assert!(!found.mix.unwrap().shifted);
    assert!(!found.utilisation.why.is_empty());
}

#[test]
fn each_injected_fault_is_named_with_its_cost() {
    let healthy = Run::healthy(1);
    let none = Faults::default();

    let mut degraded = topology();
    degraded.link_health.push(LinkHealth { node: NodeId(1), rate_share: 0.4 });
    let found = only_cause(&Run::broken(&degraded, &none), &healthy, CauseKind::SlowLink);
    assert!(!found.remap_allowed());

    let mut degraded = topology();
    degraded.rank_speed.push(RankSpeed { rank: RankId(5), speed_share: 0.75 });
    let found = only_cause(&Run::broken(&degraded, &none), &healthy, CauseKind::SlowRank);
    assert_eq!(found.cause(CauseKind::SlowRank).unwrap().place.rank, Some(RankId(5)));

    let kernel = KernelFault { name: "naive_gemm".into(), factor: 1.6, from_ns: 40_000_000 };
    let faults = Faults { kernel: Some(kernel), ..Faults::default() };
    let found = only_cause(&Run::broken(&topology(), &faults), &healthy, CauseKind::FallbackKernel);
    let cause = found.cause(CauseKind::FallbackKernel).unwrap();
    assert_eq!(cause.place.kernel.as_deref(), Some("naive_gemm"));
    assert!(cause.since_step.is_some() && !found.remap_allowed(), "{cause:?}");

    let late = LateRank { rank: RankId(2), late_ns: 600_000, from_ns: 0 };
    let faults = Faults { late_rank: Some(late), ..Faults::default() };
    let found = only_cause(&Run::broken(&topology(), &faults), &healthy, CauseKind::LateRank);
    assert_eq!(found.cause(CauseKind::LateRank).unwrap().place.rank, Some(RankId(2)));

    let attention = AttentionFault { rank: Some(RankId(6)), factor: 3.0, from_ns: 0 };
    let faults = Faults { attention: Some(attention), ..Faults::default() };
    let found = only_cause(&Run::broken(&topology(), &faults), &healthy, CauseKind::LateRank);
    assert_eq!(found.cause(CauseKind::LateRank).unwrap().place.rank, Some(RankId(6)));
}

#[test]
fn a_mix_shift_is_told_from_a_broken_machine() {
    let (before, none) = (Run::healthy(1), Faults::default());
    let after = Run::of(&topology(), &none, [0.0, 1.0], 2);
    let found = after.told(Some(&before));
    assert_eq!(found.verdict, Verdict::CausesFound, "{found:#?}");
    let hot = found.cause(CauseKind::HotExpert).unwrap();
    let place = (hot.place.layer.unwrap().0, hot.place.expert.unwrap().0);
    assert_eq!(place, (1, 13), "{found:#?}");
    assert_eq!(found.cause(CauseKind::MixShift).unwrap().place.slice, Some(SliceId(1)));
    assert!(found.remap_allowed() && !found.mix.as_ref().unwrap().revisions_changed);
    assert_eq!(found.waited_for[0].rank, RankId(3), "{:?}", found.waited_for);
    let parts: f64 = found.slowdown.since_baseline.iter().map(|part| part.ms_per_step).sum();
    let told = found.slowdown.step_ms_mean - found.slowdown.baseline_ms.unwrap();
    assert!((parts - told).abs() < 1e-6);
}
