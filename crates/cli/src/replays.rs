//! Replays as the verbs run them: one map after another, or parameter draws side by side.

use crate::fail::Failure;
use crate::out::Out;
use crate::progress::Progress;
use crate::setting::Setting;
use evenkeel_cost::Draw;
use evenkeel_prove::{DrawOutcome, Pair, draw_outcome};
use evenkeel_sim::{Faults, Job, Limits, NoSink, Replay, Role, Run, SinkError, StepSink, simulate};
use evenkeel_split::SplitTable;
use evenkeel_store::TraceWriter;
use evenkeel_trace::{Finish, RequestRecord, Routes, StepRecord};
use evenkeel_types::{ExpertMap, Slice};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is replayed, whatever the map.
#[derive(Clone, Copy)]
pub(crate) struct Scenario<'a> {
    pub(crate) setting: &'a Setting,
    pub(crate) routes: &'a Routes,
    pub(crate) jobs: &'a [Job],
    pub(crate) role: Role,
    pub(crate) sequences_per_rank: u32,
    pub(crate) until_ns: u64,
    pub(crate) faults: &'a Faults,
}

/// A map with the split that goes with it.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) name: String,
    pub(crate) map: ExpertMap,
    pub(crate) split: SplitTable,
}

impl Scenario<'_> {
    /// Replays one map, with progress; steps go to `sink`.
    pub(crate) fn replay(
        &self,
        placed: &Placed,
        sink: &mut dyn StepSink,
        out: &Out,
    ) -> Result<Run, Failure> {
        let title = format!("replay: {}", placed.name);
        let progress = Progress::start(out, &title, self.until_ns / 1_000_000);
        let mut moved = |at: evenkeel_sim::Progress| progress.at(at.now_ns / 1_000_000);
        self.run(placed, &self.setting.model, sink, Some(&mut moved))
    }

    fn run(
        &self,
        placed: &Placed,
        model: &evenkeel_cost::StepModel,
        sink: &mut dyn StepSink,
        progress: Option<&mut dyn FnMut(evenkeel_sim::Progress)>,
    ) -> Result<Run, Failure> {
        let group = self.setting.group(self.role, self.sequences_per_rank, &placed.map)?;
        let topology = &self.setting.topology;
        let mut backend =
            Replay::new(self.routes, &placed.map, &placed.split, model, topology, self.faults)
                .map_err(Failure::input)?;
        let limits = Limits { until_ns: self.until_ns, progress, ..Limits::default() };
        simulate(&placed.name, &group, self.routes, self.jobs, &mut backend, sink, limits)
            .map_err(|error| Failure::input(error).context(&placed.name))
    }

    /// Replays several maps, two at a time.
    pub(crate) fn replay_all(&self, placed: &[&Placed], out: &Out) -> Result<Vec<Run>, Failure> {
        let title = format!("replay {} maps on held-out requests", placed.len());
        side_by_side(out, &title, placed.len(), |index| {
            self.run(placed[index], &self.setting.model, &mut NoSink, None)
        })
    }

    /// Replays two maps under `count` draws of the model's shared parameters.
    pub(crate) fn draws(
        &self,
        live: &Placed,
        candidate: &Placed,
        slices: &[Slice],
        count: usize,
        seed: u64,
        out: &Out,
    ) -> Result<Vec<DrawOutcome>, Failure> {
        let draws = self.setting.model.draws(count, seed);
        let title = format!("model uncertainty: {} under {} draws", candidate.name, draws.len());
        side_by_side(out, &title, draws.len(), |index| {
            let model = self.setting.model.with(&draws[index]);
            let one = |placed| self.run(placed, &model, &mut NoSink, None);
            let (live, candidate) = (one(live)?, one(candidate)?);
            let pair = Pair { live: &live, candidate: &candidate };
            let name = draw_name(index, &draws[index]);
            draw_outcome(&name, pair, slices, &self.setting.policy).map_err(Failure::input)
        })
    }
}

/// Does `count` independent pieces of work on two threads; the results come back in order, so they
/// do not depend on the threads.
fn side_by_side<T: Send>(
    out: &Out,
    title: &str,
    count: usize,
    work: impl Fn(usize) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let progress = Progress::start(out, title, count as u64);
    let slots: Vec<Mutex<Option<Result<T, Failure>>>> =
        (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = slots.get(index) else { return };
            let result = work(index);
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(result);
            }
            progress.at(index as u64 + 1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(worker);
        worker();
    });
    let missing = || Failure::environment("a replay thread ended without a result");
    slots.into_iter().map(|slot| slot.into_inner().ok().flatten().ok_or_else(missing)?).collect()
}

/// Writes a run as a trace: all steps, and routing and links of one step in `every`.
pub(crate) struct Recorder<'a> {
    pub(crate) writer: &'a mut TraceWriter,
    pub(crate) every: u64,
}

impl StepSink for Recorder<'_> {
    fn wants_routing(&self, step: u64) -> bool {
        step.is_multiple_of(self.every.max(1))
    }

    fn wants_layers(&self) -> bool {
        true
    }

    fn record(&mut self, step: &StepRecord) -> Result<(), SinkError> {
        self.writer.step(step).map_err(|error| SinkError(Box::new(error)))
    }
}

/// The requests of a run as a trace keeps them.
pub(crate) fn request_records(run: &Run) -> Vec<RequestRecord> {
    run.requests
        .iter()
        .map(|request| RequestRecord {
            request: request.job,
            slice: request.slice,
            arrival_ns: request.arrival_ns,
            queue_ns: None,
            ttft_ns: request.first_token_ns.map(|at| at - request.arrival_ns),
            finish_ns: request.finish_ns.map(|at| at - request.arrival_ns),
            token_ns: Vec::new(),
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            finish: if request.finish_ns.is_some() { Finish::Stop } else { Finish::Unfinished },
            error: String::new(),
            output_digest: String::new(),
            mean_log_probability: request.mean_log_probability,
            quality_score: request.quality_score,
        })
        .collect()
}

/// A draw in words: what departs from the centre, and how far.
fn draw_name(index: usize, draw: &Draw) -> String {
    let Draw { expert_floor, expert_first, expert_row, exchange, attention, rest } = *draw;
    let parts = [
        ("expert floor", expert_floor),
        ("expert first tile", expert_first),
        ("expert rows", expert_row),
        ("exchange", exchange),
        ("attention", attention),
        ("rest", rest),
    ];
    let changed: Vec<String> = parts
        .iter()
        .filter(|(_, factor)| (factor - 1.0).abs() > 1e-9)
        .map(|(name, factor)| format!("{name} x {factor:.2}"))
        .collect();
    if changed.is_empty() { "centre".into() } else { format!("{index}: {}", changed.join(", ")) }
}
