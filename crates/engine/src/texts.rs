//! The texts under way: which tokens a step feeds, and what it has produced.

use crate::sampling::{Sampled, Sampling};
use evenkeel_sim::{Entry, SimError, StepBatch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a client wants continued.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its tokens, at least one.
    pub tokens: Vec<u32>,
    /// How the continuation is chosen.
    pub sampling: Sampling,
    /// Tokens that end it; they are produced and end it.
    pub stop_tokens: Vec<u32>,
    /// How many likeliest tokens are reported with each.
    pub tops: usize,
}

/// A token that a step produced.
#[derive(Clone, Debug, PartialEq)]
pub struct Produced {
    /// Request.
    pub job: u64,
    /// The token.
    pub token: Sampled,
    /// Whether it is a stop token.
    pub stops: bool,
}

/// One sequence's part of a step, as a rank gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Request: decides the way among copies.
    pub job: u64,
    /// Position of the first token.
    pub context: u32,
    /// The tokens to feed.
    pub tokens: Vec<u32>,
    /// KV blocks of the sequence.
    pub blocks: Vec<u32>,
    /// How the next token is chosen, where all known tokens are fed with this step.
    pub choose: Option<Choose>,
}

/// How a rank chooses a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choose {
    /// The rule.
    pub sampling: Sampling,
    /// How many likeliest tokens are reported.
    pub tops: usize,
}

struct Text {
    prompt: Prompt,
    /// Prompt and outputs.
    tokens: Vec<u32>,
}

/// All texts that the step loop holds.
#[derive(Default)]
pub(crate) struct Texts {
    vocab: usize,
    open: BTreeMap<u64, Text>,
    produced: Vec<Produced>,
    ended: Vec<usize>,
}

impl Texts {
    pub(crate) fn new(vocab: usize) -> Self {
        Self { vocab, ..Self::default() }
    }

    /// Makes a prompt known, before its first step.
    pub(crate) fn open(&mut self, job: u64, prompt: Prompt) -> Result<(), SimError> {
        let bad = |problem: String| Err(SimError::Job { job, problem });
        if prompt.tokens.is_empty() {
            return bad("has an empty prompt".into());
        }
        if let Some(id) = prompt.tokens.iter().find(|id| **id as usize >= self.vocab) {
            return bad(format!("has token {id}, the vocabulary has {}", self.vocab));
        }
        self.open.insert(job, Text { tokens: prompt.tokens.clone(), prompt });
        Ok(())
    }

    /// Forgets a text and returns its tokens, prompt and outputs.
    pub(crate) fn close(&mut self, job: u64) -> Option<Vec<u32>> {
        self.open.remove(&job).map(|text| text.tokens)
    }

    pub(crate) fn take_produced(&mut self) -> Vec<Produced> {
        std::mem::take(&mut self.produced)
    }

    pub(crate) fn ended(&self) -> &[usize] {
        &self.ended
    }

    /// What a step feeds, `[rank][sequence]`.
    pub(crate) fn shares(&self, batch: &StepBatch<'_>) -> Result<Vec<Vec<Share>>, SimError> {
        let mut ranks = Vec::with_capacity(batch.rank_ends.len());
        let mut start = 0;
        for &end in batch.rank_ends {
            let shares = (start..end).map(|index| self.share(batch, index));
            ranks.push(shares.collect::<Result<_, _>>()?);
            start = end;
        }
        Ok(ranks)
    }

    fn share(&self, batch: &StepBatch<'_>, index: usize) -> Result<Share, SimError> {
        let Entry { job, context, tokens, .. } = batch.entries[index];
        let unknown =
            || SimError::Job { job, problem: "feeds tokens that the engine does not know".into() };
        let text = self.open.get(&job).ok_or_else(unknown)?;
        let range = context as usize..(context + tokens) as usize;
        let all = range.end == text.tokens.len();
        let Prompt { sampling, tops, .. } = text.prompt;
        Ok(Share {
            job,
            context,
            tokens: text.tokens.get(range).ok_or_else(unknown)?.to_vec(),
            blocks: batch.blocks(index).to_vec(),
            choose: all.then_some(Choose { sampling, tops }),
        })
    }

    /// Takes in what ranks chose: `chosen[rank]` in the order of the rank's sequences that choose.
    pub(crate) fn extend(
        &mut self,
        batch: &StepBatch<'_>,
        shares: &[Vec<Share>],
        chosen: Vec<Vec<Sampled>>,
    ) {
        self.ended.clear();
        let mut first = 0;
        for ((shares, chosen), end) in shares.iter().zip(chosen).zip(batch.rank_ends) {
            let mut chosen = chosen.into_iter();
            for (index, share) in shares.iter().enumerate() {
                let text = self.open.get_mut(&share.job);
                let (Some(text), Some(_)) = (text, share.choose) else { continue };
                let Some(token) = chosen.next() else { continue };
                text.tokens.push(token.id);
                let stops = text.prompt.stop_tokens.contains(&token.id);
                if stops {
                    self.ended.push(first + index);
                }
                self.produced.push(Produced { job: share.job, token, stops });
            }
            first = *end;
        }
    }
}
