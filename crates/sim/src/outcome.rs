//! What becomes of each request, token by token.

use crate::{Admission, Gap, RequestOutcome};
use evenkeel_types::SliceId;

/// Outcomes of a machine's requests; those under way lie in the place of their sequence.
#[derive(Default)]
pub struct Outcomes {
    open: Vec<Option<Open>>,
    done: Vec<RequestOutcome>,
    gaps: Vec<(SliceId, u64, u32)>,
    finished: u64,
    preemptions: u64,
}

/// A request under way.
struct Open {
    outcome: RequestOutcome,
    last_token_ns: Option<u64>,
    handed_over: bool,
}

impl Outcomes {
    pub(crate) fn open(&mut self, sequence: usize, request: &Admission, handed_over: bool) {
        if self.open.len() <= sequence {
            self.open.resize_with(sequence + 1, || None);
        }
        let outcome = RequestOutcome {
            job: request.job,
            slice: request.slice,
            arrival_ns: request.arrival_ns,
            first_token_ns: None,
            finish_ns: None,
            prompt_tokens: request.prompt_tokens,
            output_tokens: u32::from(handed_over),
            largest_gap_ns: 0,
            preemptions: 0,
            started_warm: request.decoded > 0,
            mean_log_probability: None,
            quality_score: None,
        };
        self.open[sequence] = Some(Open { outcome, last_token_ns: None, handed_over });
    }

    fn at(&mut self, sequence: usize) -> Option<&mut Open> {
        self.open.get_mut(sequence)?.as_mut()
    }

    /// A sequence joins its rank's batch. One that is handed over brings its first token along: its
    /// place here was reserved before its prefill began, so what it waited for the place counts
    /// as time to first token, and its first gap is the step that follows.
    pub(crate) fn admit(&mut self, sequence: usize, now_ns: u64) {
        let Some(open) = self.at(sequence) else { return };
        if open.handed_over && open.outcome.first_token_ns.is_none() {
            open.outcome.first_token_ns = Some(now_ns);
            open.last_token_ns = Some(now_ns);
        }
    }

    /// A request has its last token.
    pub(crate) fn close(&mut self, sequence: usize, now_ns: u64) {
        if let Some(mut open) = self.open.get_mut(sequence).and_then(Option::take) {
            open.outcome.finish_ns = Some(now_ns);
            self.done.push(open.outcome);
            self.finished += 1;
        }
    }

    /// A request is given up: it has an outcome, and no finish.
    pub(crate) fn abandon(&mut self, sequence: usize) {
        if let Some(open) = self.open.get_mut(sequence).and_then(Option::take) {
            self.done.push(open.outcome);
        }
    }

    pub(crate) fn token(&mut self, sequence: usize, now_ns: u64, last: bool) {
        let Some(open) = self.at(sequence) else { return };
        open.outcome.output_tokens += 1;
        open.outcome.first_token_ns.get_or_insert(now_ns);
        if let Some(before) = open.last_token_ns.replace(now_ns) {
            let gap_ns = now_ns - before;
            open.outcome.largest_gap_ns = open.outcome.largest_gap_ns.max(gap_ns);
            let slice = open.outcome.slice;
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
        self.preemptions += 1;
        if let Some(open) = self.at(sequence) {
            open.outcome.preemptions += 1;
        }
    }

    /// Moves the gaps of the step that just ended to `gaps`, by slice and length.
    pub(crate) fn drain_gaps(&mut self, step: u64, gaps: &mut Vec<Gap>) {
        self.gaps.sort_unstable();
        let found = self.gaps.drain(..);
        gaps.extend(found.map(|(slice, gap_ns, tokens)| Gap { step, slice, gap_ns, tokens }));
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

    /// Takes what has become of requests that have left.
    pub fn take_done(&mut self) -> Vec<RequestOutcome> {
        std::mem::take(&mut self.done)
    }

    /// Takes all, those under way too, by number.
    pub(crate) fn take_requests(&mut self) -> Vec<RequestOutcome> {
        let mut requests = self.take_done();
        requests.extend(self.open.drain(..).flatten().map(|open| open.outcome));
        requests.sort_by_key(|request| request.job);
        requests
    }
}
