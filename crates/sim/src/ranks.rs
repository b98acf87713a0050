//! One rank's queue, its running sequences and its KV blocks.

use crate::{GroupConfig, Role};
use std::collections::VecDeque;

/// One sequence, from arrival to its last token.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Number of the job.
    pub job: u64,
    /// Index of the recorded request that it replays.
    pub recorded: usize,
    /// Index of its first token in `Routes`.
    pub first_token: usize,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens that it will produce.
    pub outputs: u32,
    /// Output tokens that it has.
    pub produced: u32,
    /// Tokens whose KV is in place.
    pub in_kv: u32,
    /// Tokens whose KV must be in place before it decodes: above `in_kv` it is prefilling.
    pub target: u32,
    /// KV blocks that it holds, in the order of its tokens.
    pub blocks: Vec<u32>,
    /// Nobody waits for it any more: it leaves when no step holds it.
    pub cancelled: bool,
}

impl Sequence {
    /// Tokens that it would have to prefill now: prompt and all outputs so far.
    fn known_tokens(&self) -> u32 {
        self.prompt + self.produced
    }

    pub(crate) fn is_prefilling(&self) -> bool {
        self.in_kv < self.target
    }
}

/// Queue, batch and memory of one rank.
#[derive(Clone, Debug)]
pub(crate) struct RankState {
    /// Sequences without KV blocks, next first: indices into the machine's sequences.
    pub waiting: VecDeque<usize>,
    /// Sequences with KV blocks, in the order of their admission.
    pub running: Vec<usize>,
    /// Blocks that nobody holds; the last is given out next.
    free: Vec<u32>,
}

impl RankState {
    pub(crate) fn new(config: &GroupConfig) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::new(),
            free: (0..config.kv_blocks_per_rank).rev().collect(),
        }
    }

    /// Blocks that nobody holds.
    pub(crate) fn free_blocks(&self) -> u32 {
        self.free.len() as u32
    }

    /// Sequences that the rank answers for.
    pub(crate) fn load(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Admits waiting sequences in order while the batch has room and the blocks of all tokens
    /// that they know, and of the one they will produce, are free. The first that does not fit
    /// holds up the others: nobody is starved by shorter requests.
    pub(crate) fn admit(
        &mut self,
        config: &GroupConfig,
        sequences: &mut [Sequence],
        mut admitted: impl FnMut(usize),
    ) {
        while self.running.len() < config.decode_sequences_per_rank as usize {
            let Some(&next) = self.waiting.front() else { return };
            let sequence = &mut sequences[next];
            // A sequence with its KV in place has fed all its tokens but the last.
            let fed = sequence.target.max(sequence.in_kv);
            let keeps_more = config.role != Role::Prefill;
            let needed = config.blocks(u64::from(fed) + u64::from(keeps_more)) as usize;
            let Some(left) = self.free.len().checked_sub(needed) else { return };
            sequence.blocks.extend(self.free.drain(left..).rev());
            self.waiting.pop_front();
            self.running.push(next);
            admitted(next);
        }
    }

    /// Gives every decoding sequence room for one more token and lists those that have it.
    ///
    /// Where blocks run out, the sequence admitted last loses all of its own and goes to the head
    /// of the queue, to prefill again (recompute). Returns how many did.
    pub(crate) fn grow(
        &mut self,
        config: &GroupConfig,
        sequences: &mut [Sequence],
        mut ready: impl FnMut(usize),
        mut preempted: impl FnMut(usize),
    ) {
        let mut place = 0;
        while place < self.running.len() {
            let index = self.running[place];
            place += 1;
            if sequences[index].is_prefilling() {
                continue;
            }
            let held = sequences[index].blocks.len() as u64 * u64::from(config.kv_block_tokens);
            if held <= u64::from(sequences[index].in_kv) {
                while self.free.is_empty() {
                    let Some(victim) = self.running.pop() else { break };
                    self.evict(victim, sequences);
                    preempted(victim);
                }
                if place > self.running.len() {
                    return; // it was itself the last one admitted
                }
                sequences[index].blocks.extend(self.free.pop());
            }
            ready(index);
        }
    }

    fn evict(&mut self, victim: usize, sequences: &mut [Sequence]) {
        let sequence = &mut sequences[victim];
        self.free.extend(sequence.blocks.drain(..).rev());
        sequence.in_kv = 0;
        sequence.target = sequence.known_tokens();
        self.waiting.push_front(victim);
    }

    /// Takes sequences that are done out, frees their blocks and says which they were.
    pub(crate) fn retire(
        &mut self,
        sequences: &mut [Sequence],
        mut done: impl FnMut(usize, &Sequence) -> bool,
    ) {
        let free = &mut self.free;
        self.running.retain(|&index| {
            let sequence = &mut sequences[index];
            let leaves = done(index, sequence);
            if leaves {
                free.extend(sequence.blocks.drain(..).rev());
            }
            !leaves
        });
        // Only those that are given up leave the queue, and they are few.
        if self.waiting.iter().any(|&index| sequences[index].cancelled) {
            self.waiting.retain(|&index| !done(index, &sequences[index]));
        }
    }
}
