//! A run as the judge sees it: requests with what they were promised, gaps with their times.

use crate::error::ProveError;
use evenkeel_sim::{RequestOutcome, Run};
use evenkeel_types::{Phase, Policy, Slice, SliceId, Slo};

/// Nanoseconds of a millisecond.
pub(crate) const NS_PER_MS: f64 = 1e6;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Number of the job.
    pub(crate) job: u64,
    /// Slice.
    pub(crate) slice: SliceId,
    /// Middle of its output (arrival where it has none): the time it is resampled by.
    pub(crate) at_ns: u64,
    /// First to last token.
    pub(crate) life_ns: Option<u64>,
    /// Time per output token.
    pub(crate) tpot_ms: Option<f64>,
    /// Time to first token.
    pub(crate) ttft_ms: Option<f64>,
    /// Its objective.
    pub(crate) slo: Slo,
    /// It ended.
    pub(crate) finished: bool,
    /// Its objective is decided: it ended, or it has missed it already.
    pub(crate) due: bool,
    /// It ended and met its objective.
    pub(crate) good: bool,
    /// Quality score.
    pub(crate) score: Option<f64>,
    /// Times it was preempted.
    pub(crate) preemptions: u32,
}

/// Tokens that came with one gap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedGap {
    /// Slice.
    pub(crate) slice: SliceId,
    /// End of the gap.
    pub(crate) end_ns: u64,
    /// The gap.
    pub(crate) gap_ns: u64,
    /// Tokens.
    pub(crate) tokens: u32,
}

/// A run, checked.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Start of the first step or earliest arrival.
    pub(crate) start_ns: u64,
    /// End of the last step or last token.
    pub(crate) end_ns: u64,
    /// Requests by job.
    pub(crate) requests: Vec<Request>,
    /// Gaps.
    pub(crate) gaps: Vec<TimedGap>,
    /// (end, duration) of each decode step, ns.
    pub(crate) decode_steps_ns: Vec<(u64, f64)>,
}

impl Sample {
    /// Reads a run.
    ///
    /// # Errors
    /// Names the request or step that contradicts itself.
    pub(crate) fn of(run: &Run, slices: &[Slice], policy: &Policy) -> Result<Self, ProveError> {
        check_steps(run)?;
        let ends = || {
            run.steps.iter().map(|step| step.end_ns).chain(
                run.requests
                    .iter()
                    .filter_map(|request| request.finish_ns.or(request.first_token_ns)),
            )
        };
        let end_ns = ends().max().unwrap_or(0);
        let starts = run.steps.iter().map(|step| step.start_ns);
        let start_ns = match starts.min() {
            Some(first) => first,
            None => run.requests.iter().map(|request| request.arrival_ns).min().unwrap_or(0),
        };
        let mut requests = Vec::with_capacity(run.requests.len());
        for outcome in &run.requests {
            check_request(run, outcome, slices.len())?;
            let slo = policy.slo_of(&slices[outcome.slice.index()].tenant);
            requests.push(request_of(outcome, slo, end_ns));
        }
        requests.sort_by_key(|request| request.job);
        if let Some(twice) = requests.windows(2).find(|pair| pair[0].job == pair[1].job) {
            return Err(ProveError::DuplicateJob { run: run.name.clone(), job: twice[0].job });
        }
        let decode = run.steps.iter().filter(|step| step.phase == Phase::Decode);
        Ok(Self {
            start_ns,
            end_ns: end_ns.max(start_ns),
            requests,
            gaps: gaps_of(run, slices.len())?,
            decode_steps_ns: decode
                .map(|step| (step.end_ns, (step.end_ns - step.start_ns) as f64))
                .collect(),
        })
    }

    /// Length, s.
    pub(crate) fn span_s(&self) -> f64 {
        (self.end_ns - self.start_ns) as f64 / 1e9
    }

    /// Position of a request in this run's list.
    pub(crate) fn find(&self, job: u64) -> Option<&Request> {
        self.requests
            .binary_search_by_key(&job, |request| request.job)
            .ok()
            .map(|i| &self.requests[i])
    }
}

fn request_of(outcome: &RequestOutcome, slo: Slo, end_ns: u64) -> Request {
    let tpot_ms = outcome.tpot_ns().map(|ns| ns / NS_PER_MS);
    let ttft_ms = outcome.ttft_ns().map(|ns| ns as f64 / NS_PER_MS);
    let finished = outcome.finish_ns.is_some();
    let late_first = match outcome.first_token_ns {
        Some(_) => ttft_ms.is_some_and(|ttft| ttft > slo.ttft_ms),
        None => {
            !outcome.started_warm
                && end_ns.saturating_sub(outcome.arrival_ns) as f64 / NS_PER_MS > slo.ttft_ms
        }
    };
    let slow = match (outcome.first_token_ns, outcome.finish_ns) {
        (Some(first), None) => {
            // The token in flight is counted as if it came now: less than the truth.
            let tokens = f64::from(outcome.output_tokens.max(1));
            end_ns.saturating_sub(first) as f64 / NS_PER_MS / tokens > slo.tpot_ms
        }
        _ => tpot_ms.is_some_and(|tpot| tpot > slo.tpot_ms),
    };
    let at_ns = match (outcome.first_token_ns, outcome.finish_ns) {
        (Some(first), Some(last)) => first + (last - first) / 2,
        (Some(first), None) => first,
        _ => outcome.arrival_ns,
    };
    Request {
        job: outcome.job,
        slice: outcome.slice,
        at_ns,
        life_ns: outcome.first_token_ns.zip(outcome.finish_ns).map(|(first, last)| last - first),
        tpot_ms,
        ttft_ms,
        slo,
        finished,
        due: finished || late_first || slow,
        good: finished && !late_first && !slow,
        score: outcome.quality_score,
        preemptions: outcome.preemptions,
    }
}

fn check_request(run: &Run, outcome: &RequestOutcome, slices: usize) -> Result<(), ProveError> {
    let (name, job) = (|| run.name.clone(), outcome.job);
    if outcome.slice.index() >= slices {
        return Err(ProveError::Slice { run: name(), job, slice: outcome.slice.0, slices });
    }
    let order = [
        (outcome.first_token_ns, "first token", Some(outcome.arrival_ns), "arrival"),
        (outcome.finish_ns, "last token", outcome.first_token_ns, "first token"),
        (outcome.finish_ns, "last token", Some(outcome.arrival_ns), "arrival"),
    ];
    for (later, later_name, earlier, earlier_name) in order {
        if let (Some(later), Some(earlier)) = (later, earlier)
            && later < earlier
        {
            return Err(ProveError::RequestTimes {
                run: name(),
                job,
                later: later_name,
                earlier: earlier_name,
            });
        }
    }
    match outcome.quality_score {
        Some(score) if !(0.0..=1.0).contains(&score) => {
            Err(ProveError::Score { run: name(), job, score })
        }
        _ => Ok(()),
    }
}

fn check_steps(run: &Run) -> Result<(), ProveError> {
    let fault = |step, what| Err(ProveError::Step { run: run.name.clone(), step, what });
    for step in &run.steps {
        if step.end_ns < step.start_ns {
            return fault(step.step, "ends before it starts, expected after");
        }
    }
    for pair in run.steps.windows(2) {
        if pair[1].step <= pair[0].step {
            return fault(pair[1].step, "number does not rise, expected steps in order");
        }
        if pair[1].end_ns < pair[0].end_ns {
            return fault(pair[1].step, "ends before the step before it, expected steps in order");
        }
    }
    Ok(())
}

fn gaps_of(run: &Run, slices: usize) -> Result<Vec<TimedGap>, ProveError> {
    let mut gaps = Vec::with_capacity(run.gaps.len());
    let mut at = 0;
    for gap in &run.gaps {
        // Gaps come in step order, so the cursor nearly always stands at the right step.
        if run.steps.get(at).is_none_or(|step| step.step != gap.step) {
            at = run.steps.binary_search_by_key(&gap.step, |step| step.step).map_err(|_| {
                let what = "has token gaps but no row, expected a step of the run";
                ProveError::Step { run: run.name.clone(), step: gap.step, what }
            })?;
        }
        if gap.slice.index() >= slices {
            let what = "has token gaps of an unknown slice";
            return Err(ProveError::Step { run: run.name.clone(), step: gap.step, what });
        }
        let end_ns = run.steps[at].end_ns;
        gaps.push(TimedGap { slice: gap.slice, end_ns, gap_ns: gap.gap_ns, tokens: gap.tokens });
    }
    Ok(gaps)
}
