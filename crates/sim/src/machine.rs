//! The step loop of a group as a state machine: events in, batches out, time as an argument.
//!
//! The driver hands in every event that is due ([`Machine::on`]) and then asks for work
//! ([`Machine::ready`]): arrivals of the same instant share a step.

use crate::backend::Entry;
use crate::outcome::Outcomes;
use crate::ranks::{RankState, Sequence};
use crate::{GroupConfig, Job, Role, SimError, StepBatch};
use evenkeel_trace::{RankCell, Routes};
use evenkeel_types::Phase;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The job with this index in the job list arrived.
    Arrival(usize),
    /// The step that [`Machine::ready`] gave out has ended.
    StepEnd,
}

/// A group's queues, batches and KV blocks.
///
/// **Invariants.** A step has one phase. A sequence stays on its rank. KV blocks held and free add
/// up to the configured number. No request produces more tokens than were recorded.
pub struct Machine<'a> {
    config: &'a GroupConfig,
    jobs: &'a [Job],
    routes: &'a Routes,
    sequences: Vec<Sequence>,
    ranks: Vec<RankState>,
    outcomes: Outcomes,
    prefills_in_row: u32,
    next_step: u64,
    phase: Phase,
    in_flight: bool,
    batch: Vec<Entry>,
    members: Vec<usize>,
    rank_ends: Vec<usize>,
}

impl<'a> Machine<'a> {
    /// An idle group of `ranks` ranks.
    ///
    /// # Errors
    /// A configuration out of range, or a job that this group cannot serve.
    pub fn new(
        config: &'a GroupConfig,
        ranks: usize,
        routes: &'a Routes,
        jobs: &'a [Job],
    ) -> Result<Self, SimError> {
        config.validate()?;
        if ranks == 0 {
            return Err(SimError::range("group: ranks", 0, "at least 1"));
        }
        for job in jobs {
            check_job(config, routes, job)?;
        }
        Ok(Self {
            config,
            jobs,
            routes,
            sequences: Vec::new(),
            ranks: vec![RankState::new(config); ranks],
            outcomes: Outcomes::default(),
            prefills_in_row: 0,
            next_step: 0,
            phase: Phase::Decode,
            in_flight: false,
            batch: Vec::new(),
            members: Vec::new(),
            rank_ends: Vec::new(),
        })
    }

    /// Takes an event.
    pub fn on(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Arrival(index) => self.arrive(index, now_ns),
            Event::StepEnd => self.end_step(now_ns),
        }
    }

    fn arrive(&mut self, index: usize, now_ns: u64) {
        let job = &self.jobs[index];
        let recorded = &self.routes.requests()[job.recorded];
        let outputs = recorded.output_tokens();
        let handed_over = self.config.role == Role::Decode && job.decoded == 0;
        let produced = if handed_over { 1 } else { job.decoded };
        // What runs already has fed all its tokens but the last; what is new has fed none.
        let (in_kv, target) = match produced {
            0 => (0, recorded.prompt_tokens),
            _ => (recorded.prompt_tokens + produced - 1, 0),
        };
        self.outcomes.open(job, recorded.prompt_tokens, handed_over);
        if produced >= outputs {
            self.outcomes.admit(self.sequences.len(), now_ns);
            self.outcomes.close(self.sequences.len(), now_ns);
        }
        let sequence = self.sequences.len();
        self.sequences.push(Sequence {
            job: job.job,
            recorded: job.recorded,
            first_token: recorded.first_token,
            prompt: recorded.prompt_tokens,
            outputs,
            produced,
            in_kv,
            target,
            blocks: 0,
        });
        if produced < outputs {
            let emptiest = self.ranks.iter_mut().min_by_key(|rank| rank.load());
            if let Some(rank) = emptiest {
                rank.waiting.push_back(sequence);
            }
        }
    }

    /// The next batch, where no step is in flight and a rank has work. The step starts now.
    pub fn ready(&mut self, now_ns: u64) -> Option<StepBatch<'_>> {
        if self.in_flight {
            return None;
        }
        // A decode batch can lose its only sequence to a preemption beside one that prefills:
        // then the second try is a prefill.
        let found = self.form_batch(now_ns) || self.form_batch(now_ns);
        if !found {
            return None;
        }
        self.in_flight = true;
        let step = self.next_step;
        self.next_step += 1;
        Some(StepBatch {
            step,
            phase: self.phase,
            start_ns: now_ns,
            entries: &self.batch,
            rank_ends: &self.rank_ends,
            wants_layers: false,
            wants_routing: false,
        })
    }

    fn form_batch(&mut self, now_ns: u64) -> bool {
        for rank in &mut self.ranks {
            let admitted = |index| self.outcomes.admit(index, now_ns);
            rank.admit(self.config, &mut self.sequences, admitted);
        }
        let (mut prefills, mut decodes) = (false, false);
        for &index in self.ranks.iter().flat_map(|rank| &rank.running) {
            match self.sequences[index].is_prefilling() {
                true => prefills = true,
                false => decodes = true,
            }
        }
        let turn = !decodes || self.prefills_in_row < self.config.prefill_steps_in_row_max;
        self.batch.clear();
        self.members.clear();
        self.rank_ends.clear();
        if prefills && turn {
            self.phase = Phase::Prefill;
            self.prefills_in_row += 1;
            self.batch_prefill();
        } else {
            self.phase = Phase::Decode;
            self.prefills_in_row = 0;
            self.batch_decode();
        }
        !self.batch.is_empty()
    }

    fn batch_prefill(&mut self) {
        for rank in &self.ranks {
            let mut budget = self.config.prefill_tokens_per_rank;
            for &index in &rank.running {
                let sequence = &self.sequences[index];
                let tokens = (sequence.target.saturating_sub(sequence.in_kv)).min(budget);
                if tokens > 0 {
                    self.batch.push(entry(sequence, tokens));
                    self.members.push(index);
                    budget -= tokens;
                }
            }
            self.rank_ends.push(self.batch.len());
        }
    }

    fn batch_decode(&mut self) {
        let Self { config, ranks, sequences, members, outcomes, .. } = self;
        for rank in ranks {
            let preempted = |index| outcomes.preempt(index);
            rank.grow(config, sequences, |index| members.push(index), preempted);
            self.rank_ends.push(members.len());
        }
        self.batch.extend(members.iter().map(|&index| entry(&sequences[index], 1)));
    }

    fn end_step(&mut self, now_ns: u64) {
        self.in_flight = false;
        let mut start = 0;
        for (rank, &end) in self.ranks.iter_mut().zip(&self.rank_ends) {
            let mut finished = false;
            for (entry, &index) in self.batch[start..end].iter().zip(&self.members[start..end]) {
                let sequence = &mut self.sequences[index];
                sequence.in_kv += entry.tokens;
                if sequence.is_prefilling() {
                    continue;
                }
                sequence.produced += 1;
                let last =
                    self.config.role == Role::Prefill || sequence.produced == sequence.outputs;
                self.outcomes.token(index, now_ns, last);
                if last {
                    sequence.outputs = sequence.produced;
                    finished = true;
                }
            }
            start = end;
            if finished {
                rank.retire(&mut self.sequences, |s| s.produced == s.outputs);
            }
        }
    }

    /// The outcomes so far.
    #[must_use]
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    pub(crate) fn outcomes_mut(&mut self) -> &mut Outcomes {
        &mut self.outcomes
    }

    /// Fewest KV blocks free on a rank.
    #[must_use]
    pub fn kv_blocks_free_min(&self) -> u32 {
        self.ranks.iter().map(|rank| rank.free_blocks).min().unwrap_or(0)
    }

    /// The last batch, and the blocks as they are now, rank by rank.
    pub(crate) fn rank_cells(&self, cells: &mut Vec<RankCell>) {
        cells.clear();
        let mut start = 0;
        for (rank, &end) in self.ranks.iter().zip(&self.rank_ends) {
            let entries = &self.batch[start..end];
            let tokens = entries.iter().map(|entry| entry.tokens).sum();
            cells.push(RankCell {
                sequences: entries.len() as u32,
                tokens,
                tokens_padded: tokens,
                kv_blocks_used: self.config.kv_blocks_per_rank - rank.free_blocks,
                kv_blocks_free: rank.free_blocks,
            });
            start = end;
        }
    }
}

fn entry(sequence: &Sequence, tokens: u32) -> Entry {
    Entry {
        job: sequence.job,
        recorded: sequence.recorded,
        token: sequence.first_token + sequence.in_kv as usize,
        tokens,
        context: sequence.in_kv,
    }
}

fn check_job(config: &GroupConfig, routes: &Routes, job: &Job) -> Result<(), SimError> {
    let bad = |problem: String| Err(SimError::Job { job: job.job, problem });
    let Some(recorded) = routes.requests().get(job.recorded) else {
        let recorded = routes.requests().len();
        return bad(format!("replays request {} of {recorded} recorded ones", job.recorded));
    };
    let outputs = recorded.output_tokens();
    // A decode group never sees the prompt: a recording of outputs alone will do, though the
    // prompt's KV is then missing from memory and attention.
    let prompt_needed = u32::from(config.role != Role::Decode);
    if recorded.prompt_tokens < prompt_needed || outputs == 0 {
        return bad(format!(
            "request {} was recorded with {} prompt and {outputs} output tokens, expected at least \
             {prompt_needed} and 1",
            recorded.request, recorded.prompt_tokens
        ));
    }
    if job.decoded >= outputs {
        return bad(format!("has {} of {outputs} output tokens, expected fewer", job.decoded));
    }
    if job.decoded > 0 && config.role == Role::Prefill {
        return bad("comes with output tokens into a prefill group".into());
    }
    // All tokens but the last one are fed, and each has its place.
    let kept = match config.role {
        Role::Prefill => recorded.prompt_tokens,
        Role::Mixed | Role::Decode => recorded.tokens,
    };
    let needed = config.blocks(u64::from(kept));
    if needed > u64::from(config.kv_blocks_per_rank) {
        let blocks = config.kv_blocks_per_rank;
        return Err(SimError::KvTooSmall { job: job.job, needed, blocks });
    }
    Ok(())
}
