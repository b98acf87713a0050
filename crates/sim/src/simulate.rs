//! The driver: hands events to the machine in the order of time and accounts for every step.

use crate::machine::{Event, Machine};
use crate::{
    Admission, Backend, Group, GroupConfig, Job, Limits, Progress, Run, RunTotals, SimError,
    StepBatch, StepCost, StepSink, StepSummary,
};
use evenkeel_trace::{Routes, StepRecord};
use evenkeel_types::Phase;

/// Steps between two progress calls: a call per step would cost as much as a small step.
const PROGRESS_EVERY: u64 = 64;

/// Serves the jobs on one group, to the last token or to a limit.
///
/// Jobs may come in any order; numbers must be unique. Jobs that arrive after the last step has
/// ended (a limit was reached) are left out of the outcomes; those under way have no `finish_ns`.
/// Time 0 is the run's start.
///
/// # Errors
/// A configuration or job that the group cannot serve, a backend or a sink that fails.
pub fn simulate(
    name: &str,
    config: &GroupConfig,
    routes: &Routes,
    jobs: &[Job],
    backend: &mut dyn Backend,
    sink: &mut dyn StepSink,
    limits: Limits<'_>,
) -> Result<Run, SimError> {
    config.validate()?;
    let admissions: Result<Vec<Admission>, SimError> =
        jobs.iter().map(|job| Admission::replaying(job, routes, config)).collect();
    serve(name, config, &admissions?, backend, sink, limits)
}

/// Serves requests on one group, to the last token or to a limit: [`simulate`] for a backend that
/// knows more of a request than its recording. A backend may end a request before its length.
///
/// # Errors
/// A configuration, requests that the group cannot serve, a backend or a sink that fails.
pub fn serve(
    name: &str,
    config: &GroupConfig,
    requests: &[Admission],
    backend: &mut dyn Backend,
    sink: &mut dyn StepSink,
    mut limits: Limits<'_>,
) -> Result<Run, SimError> {
    let group = backend.group().clone();
    let mut machine = Machine::new(config, usize::from(group.ranks))?;
    for request in requests {
        request.check(config)?;
    }
    let order = arrival_order(requests)?;
    let mut arrivals = order.iter().copied().peekable();
    let mut ledger = Ledger::new(name, config, &group);
    let mut cost = StepCost::default();
    let mut record = empty_record(&group);
    let mut now_ns = 0;
    loop {
        while let Some(index) = arrivals.next_if(|&index| requests[index].arrival_ns <= now_ns) {
            machine.on(Event::Arrival(requests[index]), requests[index].arrival_ns);
        }
        let steps = ledger.run.steps.len() as u64;
        if now_ns >= limits.until_ns || steps >= limits.steps_max {
            break;
        }
        let Some(mut batch) = machine.ready(now_ns) else {
            match arrivals.peek() {
                Some(&index) => now_ns = requests[index].arrival_ns,
                None => break,
            }
            continue;
        };
        let wants_steps = sink.wants_steps();
        batch.wants_layers = wants_steps && sink.wants_layers();
        batch.wants_routing = wants_steps && sink.wants_routing(batch.step);
        cost.clear();
        backend.step(&batch, &mut cost)?;
        let overflow = SimError::Overflow { step: batch.step };
        let end_ns = cost.time_ns().and_then(|time| now_ns.checked_add(time)).ok_or(overflow)?;
        ledger.step(&batch, end_ns, &cost);
        open_record(&mut record, &batch, end_ns);
        // What arrives while the step runs is queued before its sequences leave.
        while let Some(index) = arrivals.next_if(|&index| requests[index].arrival_ns <= end_ns) {
            machine.on(Event::Arrival(requests[index]), requests[index].arrival_ns);
        }
        for entry in backend.ended() {
            machine.on(Event::Stop(*entry), end_ns);
        }
        machine.on(Event::StepEnd, end_ns);
        now_ns = end_ns;
        ledger.after(&mut machine);
        if wants_steps {
            machine.rank_cells(&mut record.ranks);
            swap_rows(&mut record, &mut cost);
            sink.record(&record)?;
            swap_rows(&mut record, &mut cost);
        }
        if steps.is_multiple_of(PROGRESS_EVERY) {
            tell(&mut limits, steps + 1, now_ns, &machine, requests);
        }
    }
    let steps = ledger.run.steps.len() as u64;
    tell(&mut limits, steps, now_ns, &machine, requests);
    Ok(ledger.close(&mut machine))
}

fn tell(
    limits: &mut Limits<'_>,
    steps: u64,
    now_ns: u64,
    machine: &Machine,
    requests: &[Admission],
) {
    let finished = machine.outcomes().finished();
    if let Some(progress) = &mut limits.progress {
        progress(Progress { steps, now_ns, finished, jobs: requests.len() as u64 });
    }
}

/// Indices of the requests by arrival, equal ones by number.
fn arrival_order(requests: &[Admission]) -> Result<Vec<usize>, SimError> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&index| (requests[index].arrival_ns, requests[index].job));
    let mut numbers: Vec<u64> = requests.iter().map(|request| request.job).collect();
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SimError::Job { job: pair[0], problem: "is listed twice".into() }),
        None => Ok(order),
    }
}

fn empty_record(group: &Group) -> StepRecord {
    StepRecord {
        step: 0,
        phase: Phase::Decode,
        start_ns: 0,
        end_ns: 0,
        map_version: group.map_version,
        ranks: Vec::new(),
        cells: Vec::new(),
        routing: Vec::new(),
        links: Vec::new(),
    }
}

fn open_record(record: &mut StepRecord, batch: &StepBatch<'_>, end_ns: u64) {
    record.step = batch.step;
    record.phase = batch.phase;
    record.start_ns = batch.start_ns;
    record.end_ns = end_ns;
}

fn swap_rows(record: &mut StepRecord, cost: &mut StepCost) {
    std::mem::swap(&mut record.cells, &mut cost.cells);
    std::mem::swap(&mut record.routing, &mut cost.routing);
    std::mem::swap(&mut record.links, &mut cost.links);
}

/// Accounts of a run while it runs.
struct Ledger {
    run: Run,
    choices_per_token: u64,
}

impl Ledger {
    fn new(name: &str, config: &GroupConfig, group: &Group) -> Self {
        let ranks = usize::from(group.ranks);
        let per_phase = |cells: usize| [vec![0; cells], vec![0; cells]];
        let totals = RunTotals {
            kv_blocks_per_rank: config.kv_blocks_per_rank,
            kv_blocks_free_min: config.kv_blocks_per_rank,
            rank_rows: per_phase(group.layers * ranks),
            expert_choices: per_phase(group.layers * group.experts),
            waited_for_rank: per_phase(ranks),
            ..RunTotals::default()
        };
        let run = Run {
            name: name.to_owned(),
            map_digest: group.map_digest.clone(),
            ranks: group.ranks,
            requests: Vec::new(),
            steps: Vec::new(),
            gaps: Vec::new(),
            totals,
        };
        Self { run, choices_per_token: (group.layers * group.top_k) as u64 }
    }

    fn step(&mut self, batch: &StepBatch<'_>, end_ns: u64, cost: &StepCost) {
        let tokens = batch.tokens();
        let phase = batch.phase.index();
        let totals = &mut self.run.totals;
        totals.steps[phase] += 1;
        totals.choices[phase] += tokens * self.choices_per_token;
        totals.misplaced_rows += cost.misplaced_rows;
        add(&mut totals.rank_rows[phase], &cost.rank_rows);
        add(&mut totals.expert_choices[phase], &cost.expert_choices);
        add(&mut totals.waited_for_rank[phase], &cost.waited_layers);
        // The first of equals: the lowest rank.
        let waited = cost.waited_layers.iter().enumerate().rev().max_by_key(|(_, layers)| **layers);
        let (slowest_rank, layers) = waited.map_or((0, 0), |(rank, layers)| (rank, *layers));
        self.run.steps.push(StepSummary {
            step: batch.step,
            phase: batch.phase,
            start_ns: batch.start_ns,
            end_ns,
            sequences: batch.entries.len() as u32,
            tokens: tokens as u32,
            expert_slowest_ns: cost.expert_slowest_ns,
            expert_mean_ns: cost.expert_mean_ns,
            exchange_ns: cost.exchange_ns,
            attention_slowest_ns: cost.attention_ns,
            rest_ns: cost.rest_ns,
            slowest_rank: slowest_rank as u16,
            slowest_rank_layers: layers as u16,
            rows_max_over_mean: cost.rows_max_over_mean,
            kv_blocks_free_min: 0,
        });
    }

    /// What is known once the step's sequences have moved on.
    fn after(&mut self, machine: &mut Machine) {
        let free = machine.kv_blocks_free_min();
        let Some(step) = self.run.steps.last_mut() else { return };
        step.kv_blocks_free_min = free;
        self.run.totals.kv_blocks_free_min = self.run.totals.kv_blocks_free_min.min(free);
        machine.outcomes_mut().drain_gaps(step.step, &mut self.run.gaps);
    }

    fn close(mut self, machine: &mut Machine) -> Run {
        self.run.totals.preemptions = machine.outcomes().preemptions();
        self.run.requests = machine.outcomes_mut().take_requests();
        self.run
    }
}

fn add(sums: &mut [u64], counts: &[u32]) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += u64::from(*count);
    }
}
