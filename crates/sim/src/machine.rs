//! The step loop of a group as a state machine: events in, batches out, time as an argument.
//!
//! The driver hands in every event that is due ([`Machine::on`]) and then asks for work
//! ([`Machine::ready`]): arrivals of the same instant share a step.

use crate::backend::Entry;
use crate::outcome::Outcomes;
use crate::ranks::{RankState, Sequence};
use crate::{Admission, GroupConfig, Role, SimError, StepBatch};
use evenkeel_trace::RankCell;
use evenkeel_types::Phase;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived. [`Admission::check`] must have passed it.
    Arrival(Admission),
    /// The entry with this index in the batch under way has produced its sequence's last token.
    Stop(usize),
    /// Nobody waits for this job any more. Its blocks are free at once, or at the end of the step
    /// that holds it.
    Cancel(u64),
    /// The step that [`Machine::ready`] gave out has ended.
    StepEnd,
}

/// A group's queues, batches and KV blocks.
///
/// **Invariants.** A step has one phase. A sequence stays on its rank. A KV block is free or held by
/// one sequence. No request produces more tokens than its admission allows.
pub struct Machine {
    config: GroupConfig,
    /// Sequences by place; the places of those that left are in `vacant`.
    sequences: Vec<Sequence>,
    vacant: Vec<usize>,
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

impl Machine {
    /// An idle group of `ranks` ranks.
    ///
    /// # Errors
    /// A configuration out of range.
    pub fn new(config: &GroupConfig, ranks: usize) -> Result<Self, SimError> {
        config.validate()?;
        if ranks == 0 {
            return Err(SimError::range("group: ranks", 0, "at least 1"));
        }
        Ok(Self {
            config: *config,
            sequences: Vec::new(),
            vacant: Vec::new(),
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
            Event::Arrival(request) => self.arrive(&request, now_ns),
            Event::Stop(entry) => self.stop(entry),
            Event::Cancel(job) => self.cancel(job),
            Event::StepEnd => self.end_step(now_ns),
        }
    }

    fn arrive(&mut self, request: &Admission, now_ns: u64) {
        let outputs = request.output_tokens_max;
        let handed_over = self.config.role == Role::Decode && request.decoded == 0;
        let produced = if handed_over { 1 } else { request.decoded };
        // What runs already has fed all its tokens but the last; what is new has fed none.
        let (in_kv, target) = match produced {
            0 => (0, request.prompt_tokens),
            _ => (request.prompt_tokens + produced - 1, 0),
        };
        let sequence = Sequence {
            job: request.job,
            recorded: request.recorded,
            first_token: request.first_token,
            prompt: request.prompt_tokens,
            outputs,
            produced,
            in_kv,
            target,
            blocks: Vec::new(),
            cancelled: false,
        };
        let place = self.vacant.pop().unwrap_or(self.sequences.len());
        match self.sequences.get_mut(place) {
            Some(vacant) => *vacant = sequence,
            None => self.sequences.push(sequence),
        }
        self.outcomes.open(place, request, handed_over);
        if produced >= outputs {
            self.outcomes.admit(place, now_ns);
            self.outcomes.close(place, now_ns);
            self.vacant.push(place);
        } else if let Some(rank) = self.ranks.iter_mut().min_by_key(|rank| rank.load()) {
            rank.waiting.push_back(place);
        }
    }

    fn stop(&mut self, entry: usize) {
        let Some(&place) = self.members.get(entry).filter(|_| self.in_flight) else { return };
        // The token of this step is counted when the step ends.
        let sequence = &mut self.sequences[place];
        sequence.outputs = sequence.outputs.min(sequence.produced + 1);
    }

    fn cancel(&mut self, job: u64) {
        let held = self.ranks.iter().flat_map(|rank| rank.running.iter().chain(&rank.waiting));
        let found = held.copied().find(|&place| self.sequences[place].job == job);
        if let Some(place) = found {
            self.sequences[place].cancelled = true;
            if !(self.in_flight && self.members.contains(&place)) {
                self.retire();
            }
        }
    }

    /// Lets those go that are done or given up, and are in no step.
    fn retire(&mut self) {
        let Self { ranks, sequences, vacant, outcomes, members, in_flight, .. } = self;
        for rank in ranks {
            rank.retire(sequences, |place, sequence| {
                let done = sequence.produced == sequence.outputs || sequence.cancelled;
                let leaves = done && !(*in_flight && members.contains(&place));
                if leaves {
                    outcomes.abandon(place);
                    vacant.push(place);
                }
                leaves
            });
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
            tables: Tables { sequences: &self.sequences, members: &self.members },
            wants_layers: false,
            wants_routing: false,
        })
    }

    fn form_batch(&mut self, now_ns: u64) -> bool {
        for rank in &mut self.ranks {
            let admitted = |index| self.outcomes.admit(index, now_ns);
            rank.admit(&self.config, &mut self.sequences, admitted);
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
        let mut leaves = false;
        for (entry, &place) in self.batch.iter().zip(&self.members) {
            let sequence = &mut self.sequences[place];
            sequence.in_kv += entry.tokens;
            leaves |= sequence.cancelled;
            if sequence.is_prefilling() || sequence.cancelled {
                continue;
            }
            sequence.produced += 1;
            let last = self.config.role == Role::Prefill || sequence.produced == sequence.outputs;
            self.outcomes.token(place, now_ns, last);
            if last {
                sequence.outputs = sequence.produced;
                leaves = true;
            }
        }
        if leaves {
            self.retire();
        }
    }

    /// The outcomes so far.
    #[must_use]
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// The same, to take from.
    pub fn outcomes_mut(&mut self) -> &mut Outcomes {
        &mut self.outcomes
    }

    /// Fewest KV blocks free on a rank.
    #[must_use]
    pub fn kv_blocks_free_min(&self) -> u32 {
        self.ranks.iter().map(|rank| rank.free_blocks()).min().unwrap_or(0)
    }

    /// The last batch, and the blocks as they are now, rank by rank.
    pub fn rank_cells(&self, cells: &mut Vec<RankCell>) {
        cells.clear();
        let mut start = 0;
        for (rank, &end) in self.ranks.iter().zip(&self.rank_ends) {
            let entries = &self.batch[start..end];
            let tokens = entries.iter().map(|entry| entry.tokens).sum();
            cells.push(RankCell {
                sequences: entries.len() as u32,
                tokens,
                tokens_padded: tokens,
                kv_blocks_used: self.config.kv_blocks_per_rank - rank.free_blocks(),
                kv_blocks_free: rank.free_blocks(),
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

/// KV blocks of a batch's sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables<'a> {
    sequences: &'a [Sequence],
    members: &'a [usize],
}

impl<'a> Tables<'a> {
    pub(crate) fn of_entry(&self, entry: usize) -> &'a [u32] {
        &self.sequences[self.members[entry]].blocks
    }
}
