//! The virtual backend: real tokens of many ranks on few cores.
//!
//! Every rank's compute runs for real, one rank after another, and is measured in the thread's CPU
//! time; links take what the topology says. So a group of 8 to 32 ranks has a step time that means
//! something on a machine with two cores. Times are marked accordingly: compute measured, exchange
//! modelled.

use crate::EngineError;
use crate::group::LocalGroup;
use crate::texts::{Produced, Prompt, Texts};
use crate::worker::{LayerWork, cpu_ns};
use evenkeel_sim::{Backend, Group, SimError, StepBatch, StepCost};
use evenkeel_trace::{Direction, LayerCell, LinkRow};
use evenkeel_types::{LayerId, RankId, Topology};

/// A [`LocalGroup`] under the step loop.
pub struct Virtual {
    group: LocalGroup,
    info: Group,
    topology: Topology,
    texts: Texts,
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
        let texts = Texts::new(group.vocab());
        Ok(Self { info: group.info().clone(), group, topology, texts })
    }

    /// Makes a request's prompt known, before its first step.
    ///
    /// # Errors
    /// A prompt that is empty or holds a token beyond the vocabulary.
    pub fn open(&mut self, job: u64, prompt: Prompt) -> Result<(), SimError> {
        self.texts.open(job, prompt)
    }

    /// Forgets a request and returns its tokens, prompt and outputs.
    pub fn close(&mut self, job: u64) -> Option<Vec<u32>> {
        self.texts.close(job)
    }

    /// Takes the tokens that steps have produced since the last call.
    pub fn take_produced(&mut self) -> Vec<Produced> {
        self.texts.take_produced()
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

impl Backend for Virtual {
    fn group(&self) -> &Group {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, cost: &mut StepCost) -> Result<(), SimError> {
        let shares = self.texts.shares(batch)?;
        let failed = |error: EngineError| SimError::Backend { problem: error.to_string() };
        self.group.step(&shares, |_, _| {}).map_err(failed)?;
        self.charge(batch, cost);
        let mut slowest_ns = 0;
        let mut chosen = Vec::with_capacity(shares.len());
        for (worker, shares) in self.group.workers_mut().iter_mut().zip(&shares) {
            let start = cpu_ns();
            chosen.push(worker.choose(shares));
            slowest_ns = slowest_ns.max(cpu_ns() - start);
        }
        cost.rest_ns += slowest_ns;
        self.texts.extend(batch, &shares, chosen);
        Ok(())
    }

    fn ended(&self) -> &[usize] {
        self.texts.ended()
    }
}
