//! The virtual backend: real tokens of many ranks on few cores.
//!
//! Every rank's compute runs for real, one rank after another, and is measured in the thread's CPU
//! time; links take what the topology says. So a group of 8 to 32 ranks has a step time that means
//! something on a machine with two cores. Times are marked accordingly: compute measured, exchange
//! modelled.

use crate::group::{LayerWork, LocalGroup, StepToken};
use crate::rank::TokenIn;
use crate::sampling::{Sampled, Sampling, sample};
use evenkeel_sim::{Backend, Entry, Group, SimError, StepBatch, StepCost};
use evenkeel_trace::{Direction, LayerCell, LinkRow};
use evenkeel_types::{LayerId, RankId, Topology};
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

/// A text under way.
struct Text {
    prompt: Prompt,
    /// Prompt and outputs.
    tokens: Vec<u32>,
}

/// A [`LocalGroup`] under the step loop.
pub struct Virtual {
    group: LocalGroup,
    info: Group,
    topology: Topology,
    texts: BTreeMap<u64, Text>,
    produced: Vec<Produced>,
    ended: Vec<usize>,
    logits: Vec<f32>,
}

impl Virtual {
    /// A backend for a group; links are the topology's.
    ///
    /// # Errors
    /// A topology with another number of ranks.
    pub fn new(group: LocalGroup, topology: Topology) -> Result<Self, SimError> {
        let (found, expected) = (topology.rank_count(), group.info().ranks);
        if found != usize::from(expected) {
            let (found, expected) = (found.to_string(), expected.to_string());
            return Err(SimError::Mismatch { place: "the topology's ranks", found, expected });
        }
        Ok(Self {
            info: group.info().clone(),
            group,
            topology,
            texts: BTreeMap::new(),
            produced: Vec::new(),
            ended: Vec::new(),
            logits: Vec::new(),
        })
    }

    /// Makes a request's prompt known, before its first step.
    ///
    /// # Errors
    /// A prompt that is empty or holds a token beyond the vocabulary.
    pub fn open(&mut self, job: u64, prompt: Prompt) -> Result<(), SimError> {
        let bad = |problem: String| Err(SimError::Job { job, problem });
        let vocab = self.group.vocab();
        if prompt.tokens.is_empty() {
            return bad("has an empty prompt".into());
        }
        if let Some(id) = prompt.tokens.iter().find(|id| **id as usize >= vocab) {
            return bad(format!("has token {id}, the vocabulary has {vocab}"));
        }
        self.texts.insert(job, Text { tokens: prompt.tokens.clone(), prompt });
        Ok(())
    }

    /// Forgets a request and returns its tokens, prompt and outputs.
    pub fn close(&mut self, job: u64) -> Option<Vec<u32>> {
        self.texts.remove(&job).map(|text| text.tokens)
    }

    /// Takes the tokens that steps have produced since the last call.
    pub fn take_produced(&mut self) -> Vec<Produced> {
        std::mem::take(&mut self.produced)
    }

    /// Chooses the next token of every sequence whose known tokens are all fed; CPU time by rank.
    fn choose(&mut self, batch: &StepBatch<'_>) -> Vec<u64> {
        let mut times = Vec::with_capacity(batch.rank_ends.len());
        let mut start = 0;
        for (rank, &end) in batch.rank_ends.iter().enumerate() {
            let began = crate::group::cpu_ns();
            let mut row = 0;
            for index in start..end {
                let entry = batch.entries[index];
                row += entry.tokens as usize;
                let Some(text) = self.texts.get_mut(&entry.job) else { continue };
                let position = entry.context + entry.tokens;
                if position as usize != text.tokens.len() {
                    continue;
                }
                self.group.ranks_mut()[rank].logits(row - 1, &mut self.logits);
                let Prompt { sampling, tops, stop_tokens, .. } = &text.prompt;
                let token = sample(&self.logits, sampling, position, *tops);
                text.tokens.push(token.id);
                let stops = stop_tokens.contains(&token.id);
                if stops {
                    self.ended.push(index);
                }
                self.produced.push(Produced { job: entry.job, token, stops });
            }
            times.push(crate::group::cpu_ns() - began);
            start = end;
        }
        times
    }

    /// Time of a layer's exchange by the topology, ns by sending rank: a rank's messages leave one
    /// after another.
    fn link_ns(&self, layer: usize, direction: Direction) -> Vec<u64> {
        let ranks = self.topology.ranks();
        let rows = Volumes::of(&self.group, direction);
        let leaving = |from: usize| {
            let mut us = 0.0;
            for to in (0..ranks.len()).filter(|to| *to != from) {
                let bytes = rows.bytes(layer, from, to);
                if bytes == 0 {
                    continue;
                }
                let near = ranks[from].node == ranks[to].node;
                let link = if near { &self.topology.intra } else { &self.topology.inter };
                let share = |rank: usize| self.topology.outer_rate_share(ranks[rank].node);
                let health = if near { 1.0 } else { share(from).min(share(to)) };
                us += link.alpha_us + bytes as f64 / (link.beta_gb_per_s * 1e3 * health);
            }
            (us * 1e3).round() as u64
        };
        (0..ranks.len()).map(leaving).collect()
    }

    /// Adds a step's layers up: the slowest rank's compute and the slowest link, layer by layer.
    fn charge(&self, batch: &StepBatch<'_>, cost: &mut StepCost) {
        let work = self.group.work();
        let (layers, count) = (self.info.layers, usize::from(self.info.ranks));
        cost.waited_layers.resize(count, 0);
        let mut imbalance = 0.0;
        for layer in 0..layers {
            let ranks = &work.ranks[layer * count..(layer + 1) * count];
            let dispatch = self.link_ns(layer, Direction::Dispatch);
            let back = self.link_ns(layer, Direction::Return);
            let most = |of: fn(&LayerWork) -> u64| ranks.iter().map(of).max().unwrap_or(0);
            let slowest_ns = most(|work| work.expert_ns);
            cost.attention_ns += most(|work| work.attention_ns);
            cost.exchange_ns += most_of(&dispatch) + most_of(&back);
            cost.expert_slowest_ns += slowest_ns;
            cost.rest_ns += most(|work| work.combine_ns);
            cost.expert_mean_ns +=
                ranks.iter().map(|work| work.expert_ns).sum::<u64>() / count as u64;
            let slowest = ranks.iter().position(|work| work.expert_ns == slowest_ns);
            cost.waited_layers[slowest.unwrap_or(0)] += 1;
            let rows = || ranks.iter().map(|work| work.rows);
            cost.rank_rows.extend(rows());
            let (fullest, sum) = (rows().max().unwrap_or(0), rows().sum::<u32>());
            imbalance += f64::from(fullest) * count as f64 / f64::from(sum.max(1));
            if batch.wants_layers {
                self.push_cells(layer, ranks, &dispatch, &back, cost);
            }
            if batch.wants_routing {
                self.push_links(layer, Direction::Dispatch, &dispatch, cost);
                self.push_links(layer, Direction::Return, &back, cost);
            }
        }
        cost.rows_max_over_mean = imbalance / layers.max(1) as f64;
        cost.expert_choices.resize(layers * self.info.experts, 0);
        for row in &work.routing {
            let cell = row.layer.index() * self.info.experts + row.expert.index();
            cost.expert_choices[cell] += row.tokens;
        }
        let choices: u64 = work.routing.iter().map(|row| u64::from(row.tokens)).sum();
        let expected = batch.tokens() * (layers * self.info.top_k) as u64;
        cost.misplaced_rows = choices.abs_diff(expected);
        if batch.wants_routing {
            cost.routing.extend_from_slice(&work.routing);
            cost.routing.sort_by_key(|row| (row.layer, row.source, row.expert, row.host));
        }
    }

    fn push_cells(
        &self,
        layer: usize,
        ranks: &[LayerWork],
        dispatch: &[u64],
        back: &[u64],
        cost: &mut StepCost,
    ) {
        let most = |of: fn(&LayerWork) -> u64| ranks.iter().map(of).max().unwrap_or(0);
        let least = |of: fn(&LayerWork) -> u64| ranks.iter().map(of).min().unwrap_or(0);
        let due = |work: &LayerWork| work.attention_ns;
        let done = |work: &LayerWork| work.expert_ns;
        let sent = Volumes::of(&self.group, Direction::Dispatch);
        let returned = Volumes::of(&self.group, Direction::Return);
        for (rank, work) in ranks.iter().enumerate() {
            let others = || (0..ranks.len()).filter(move |other| *other != rank);
            let out = |v: &Volumes<'_>| others().map(|to| v.bytes(layer, rank, to)).sum::<u64>();
            let into =
                |v: &Volumes<'_>| others().map(|from| v.bytes(layer, from, rank)).sum::<u64>();
            cost.cells.push(LayerCell {
                attention_ns: work.attention_ns,
                router_ns: 0,
                dispatch_skew_ns: work.attention_ns - least(due),
                dispatch_wait_ns: most(due) - work.attention_ns,
                dispatch_service_ns: most_of(dispatch),
                queue_ns: 0,
                expert_ns: work.expert_ns,
                cpu_ns: work.expert_ns,
                return_skew_ns: work.expert_ns - least(done),
                return_wait_ns: most(done) - work.expert_ns,
                return_service_ns: most_of(back),
                combine_ns: work.combine_ns,
                rows_in: work.rows,
                tokens_in: work.tokens,
                experts_activated: work.activated,
                kernel: 0,
                bytes_out: out(&sent) + out(&returned),
                bytes_in: into(&sent) + into(&returned),
            });
        }
    }

    fn push_links(&self, layer: usize, direction: Direction, ns: &[u64], cost: &mut StepCost) {
        let volumes = Volumes::of(&self.group, direction);
        for (from, service_ns) in ns.iter().enumerate() {
            for to in (0..ns.len()).filter(|to| *to != from) {
                let bytes = volumes.bytes(layer, from, to);
                if bytes > 0 {
                    cost.links.push(LinkRow {
                        layer: LayerId(layer as u16),
                        direction,
                        source: RankId(from as u16),
                        destination: RankId(to as u16),
                        messages: 1,
                        bytes,
                        largest_bytes: bytes,
                        service_ns: *service_ns,
                    });
                }
            }
        }
    }
}

fn most_of(values: &[u64]) -> u64 {
    values.iter().copied().max().unwrap_or(0)
}

/// Bytes between ranks in one direction.
struct Volumes<'a> {
    rows: &'a [u32],
    ranks: usize,
    row_bytes: u64,
    back: bool,
}

impl<'a> Volumes<'a> {
    fn of(group: &'a LocalGroup, direction: Direction) -> Self {
        let [there, back] = group.row_bytes();
        let work = group.work();
        let ranks = usize::from(group.info().ranks);
        match direction {
            Direction::Dispatch => Self { rows: &work.sent, ranks, row_bytes: there, back: false },
            Direction::Return => Self { rows: &work.returned, ranks, row_bytes: back, back: true },
        }
    }

    /// Bytes that `from` sends to `to`. What comes back goes from the host to the source.
    fn bytes(&self, layer: usize, from: usize, to: usize) -> u64 {
        let (source, host) = if self.back { (to, from) } else { (from, to) };
        let rows = self.rows[(layer * self.ranks + source) * self.ranks + host];
        u64::from(rows) * self.row_bytes
    }
}

/// The tokens of a step, rank by rank.
fn tokens_of<'a>(
    texts: &'a BTreeMap<u64, Text>,
    batch: &StepBatch<'a>,
) -> Result<Vec<Vec<StepToken<'a>>>, SimError> {
    let mut ranks = Vec::with_capacity(batch.rank_ends.len());
    let mut start = 0;
    for &end in batch.rank_ends {
        let mut tokens = Vec::new();
        for index in start..end {
            let Entry { job, context, tokens: count, .. } = batch.entries[index];
            let text = texts.get(&job).ok_or_else(|| unknown(job))?;
            let blocks = batch.blocks(index);
            for position in context..context + count {
                let id = *text.tokens.get(position as usize).ok_or_else(|| unknown(job))?;
                tokens.push(StepToken { job, token: TokenIn { id, position, blocks } });
            }
        }
        ranks.push(tokens);
        start = end;
    }
    Ok(ranks)
}

fn unknown(job: u64) -> SimError {
    SimError::Job { job, problem: "is not known to the engine".into() }
}

impl Backend for Virtual {
    fn group(&self) -> &Group {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, cost: &mut StepCost) -> Result<(), SimError> {
        self.ended.clear();
        let Self { group, texts, .. } = self;
        group.step(&tokens_of(texts, batch)?, |_, _| {});
        self.charge(batch, cost);
        cost.rest_ns += most_of(&self.choose(batch));
        Ok(())
    }

    fn ended(&self) -> &[usize] {
        &self.ended
    }
}
