//! What becomes of each request, token by token.

use crate::{Gap, Job, RequestOutcome};
use evenkeel_types::SliceId;

/// Outcomes of a machine's requests, in the order of their arrival.
#[derive(Default)]
pub struct Outcomes {
    requests: Vec<RequestOutcome>,
    last_token_ns: Vec<Option<u64>>,
    handed_over: Vec<bool>,
    gaps: Vec<(SliceId, u64, u32)>,
    finished: u64,
    preemptions: u64,
}

impl Outcomes {
    pub(crate) fn open(&mut self, job: &Job, prompt_tokens: u32, handed_over: bool) {
        self.last_token_ns.push(None);
        self.handed_over.push(handed_over);
        self.requests.push(RequestOutcome {
            job: job.job,
            slice: job.slice,
            arrival_ns: job.arrival_ns,
            first_token_ns: None,
            finish_ns: None,
            prompt_tokens,
            output_tokens: u32::from(handed_over),
            largest_gap_ns: 0,
            preemptions: 0,
            started_warm: job.decoded > 0,
            mean_log_probability: None,
            quality_score: None,
        });
    }

    /// A sequence joins its rank's batch. One that is handed over brings its first token along: its
    /// place here was reserved before its prefill began, so what it waited for the place counts
    /// as time to first token, and its first gap is the step that follows.
    pub(crate) fn admit(&mut self, sequence: usize, now_ns: u64) {
        let first = &mut self.requests[sequence].first_token_ns;
        if self.handed_over[sequence] && first.is_none() {
            *first = Some(now_ns);
            self.last_token_ns[sequence] = Some(now_ns);
        }
    }

    pub(crate) fn close(&mut self, sequence: usize, now_ns: u64) {
        self.requests[sequence].finish_ns = Some(now_ns);
        self.finished += 1;
    }

    pub(crate) fn token(&mut self, sequence: usize, now_ns: u64, last: bool) {
        let request = &mut self.requests[sequence];
        request.output_tokens += 1;
        request.first_token_ns.get_or_insert(now_ns);
        if let Some(before) = self.last_token_ns[sequence].replace(now_ns) {
            let gap_ns = now_ns - before;
            request.largest_gap_ns = request.largest_gap_ns.max(gap_ns);
            let slice = request.slice;
            // Nearly all tokens of a step share a handful of gaps, the last one found above all.
            match self.gaps.iter_mut().rfind(|gap| gap.0 == slice && gap.1 == gap_ns) {
                Some(gap) => gap.2 += 1,
                None => self.gaps.push((slice, gap_ns, 1)),
            }
        }
        if last {
            self.close(sequence, now_ns);
        }
    }

    pub(crate) fn preempt(&mut self, sequence: usize) {
        self.requests[sequence].preemptions += 1;
        self.preemptions += 1;
    }

    /// Moves the gaps of the step that just ended to `gaps`, by slice and length.
    pub(crate) fn drain_gaps(&mut self, step: u64, gaps: &mut Vec<Gap>) {
        self.gaps.sort_unstable();
        let found = self.gaps.drain(..);
        gaps.extend(found.map(|(slice, gap_ns, tokens)| Gap { step, slice, gap_ns, tokens }));
    }

    /// Requests that have arrived, in the order of their arrival.
    #[must_use]
    pub fn requests(&self) -> &[RequestOutcome] {
        &self.requests
    }

    /// Requests that have finished.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Preemptions.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    pub(crate) fn take_requests(&mut self) -> Vec<RequestOutcome> {
        let mut requests = std::mem::take(&mut self.requests);
        requests.sort_by_key(|request| request.job);
        requests
    }
}
