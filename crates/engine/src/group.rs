//! All ranks of a group in one process, one after another: the virtual backend's arithmetic.

use crate::EngineError;
use crate::checkpoint::{Checkpoint, Numerics};
use crate::model::Model;
use crate::rank::{Inbox, Rank, TokenIn};
use evenkeel_kernels::{BLOCK_TOKENS, Isa};
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, hash2};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

/// Seed of the ways that tokens take among copies.
const WAY_SEED: u64 = 0x5157_4159;

/// CPU time of a step by layer and rank, ns: measured in the thread that ran it.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// `[layer * ranks + rank]`: attention, norms and router.
    pub attention_ns: Vec<u64>,
    /// `[layer * ranks + rank]`: experts.
    pub expert_ns: Vec<u64>,
    /// `[layer * ranks + rank]`: (token, expert) rows.
    pub rows: Vec<u32>,
}

/// Ranks that share a process.
#[derive(Debug)]
pub struct LocalGroup {
    ranks: Vec<Rank>,
    split: SplitTable,
    top_k: usize,
    hidden: usize,
    layers: usize,
    inboxes: Vec<Inbox>,
    /// `[rank]`: outputs of its experts.
    outputs: Vec<Vec<f32>>,
    /// `[rank][token * top_k + k]`: rank and index of the work that computed the choice.
    returns: Vec<Vec<(u16, u32)>>,
    times: StepTimes,
}

/// One token of a step, with what decides its way among copies.
#[derive(Clone, Copy, Debug)]
pub struct StepToken<'a> {
    /// Number of its request.
    pub job: u64,
    /// The token.
    pub token: TokenIn<'a>,
}

impl LocalGroup {
    /// Loads a model for every rank of a map.
    ///
    /// # Errors
    /// A map of other dimensions or that breaks a law; a checkpoint that cannot be loaded.
    pub fn new(
        checkpoint: &Arc<Checkpoint>,
        numerics: Numerics,
        isa: Isa,
        map: &ExpertMap,
        split: SplitTable,
        kv_blocks: usize,
    ) -> Result<Self, EngineError> {
        let config = checkpoint.config();
        let bad = |problem: String| Err(EngineError::Map { problem });
        if map.layers() != config.layers || usize::from(map.experts) != config.experts {
            let (layers, experts) = (map.layers(), map.experts);
            return bad(format!(
                "{layers} layers of {experts} experts, the model has {} of {}",
                config.layers, config.experts
            ));
        }
        if let Some(violation) = map.violations().into_iter().next() {
            return bad(violation.to_string());
        }
        let rank = |rank: usize| -> Result<Rank, EngineError> {
            let holds = |layer: usize, expert: usize| {
                map.slots[layer][rank].contains(&Some(ExpertId(expert as u16)))
            };
            Ok(Rank::new(Model::load(checkpoint, numerics, holds)?, isa, kv_blocks))
        };
        let ranks: Vec<Rank> = (0..map.ranks()).map(rank).collect::<Result<_, _>>()?;
        let count = ranks.len();
        Ok(Self {
            ranks,
            split,
            top_k: config.top_k,
            hidden: config.hidden,
            layers: config.layers,
            inboxes: vec![Inbox::default(); count],
            outputs: vec![Vec::new(); count],
            returns: vec![Vec::new(); count],
            times: StepTimes::default(),
        })
    }

    /// Tokens in a KV block.
    pub const BLOCK_TOKENS: usize = BLOCK_TOKENS;

    /// The ranks.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// The ranks, to read logits.
    pub fn ranks_mut(&mut self) -> &mut [Rank] {
        &mut self.ranks
    }

    /// CPU times of the last step.
    #[must_use]
    pub fn times(&self) -> &StepTimes {
        &self.times
    }

    /// Runs all layers on `tokens[rank]`. `watch(layer, ranks)` sees every layer after its router.
    pub fn step(&mut self, tokens: &[Vec<StepToken<'_>>], mut watch: impl FnMut(usize, &[Rank])) {
        let count = self.ranks.len();
        let StepTimes { attention_ns, expert_ns, rows } = &mut self.times;
        for part in [&mut *attention_ns, expert_ns] {
            part.clear();
            part.resize(self.layers * count, 0);
        }
        rows.clear();
        let bare: Vec<Vec<TokenIn<'_>>> =
            tokens.iter().map(|list| list.iter().map(|t| t.token).collect()).collect();
        for (rank, tokens) in self.ranks.iter_mut().zip(&bare) {
            rank.begin(tokens);
        }
        for layer in 0..self.layers {
            for (index, (rank, tokens)) in self.ranks.iter_mut().zip(&bare).enumerate() {
                let start = cpu_ns();
                rank.attend(layer, tokens);
                self.times.attention_ns[layer * count + index] = cpu_ns() - start;
            }
            watch(layer, &self.ranks);
            self.dispatch(layer, tokens);
            for (index, rank) in self.ranks.iter_mut().enumerate() {
                let start = cpu_ns();
                let done = rank.run_experts(layer, &self.inboxes[index], &mut self.outputs[index]);
                // The split only names ranks whose slots hold the expert, and those were loaded.
                debug_assert_eq!(done, Ok(()), "rank {index} lacks an expert of layer {layer}");
                self.times.expert_ns[layer * count + index] = cpu_ns() - start;
                self.times.rows.push(self.inboxes[index].work.len() as u32);
            }
            let Self { ranks, outputs, returns, hidden, top_k, .. } = self;
            for (rank, returns) in ranks.iter_mut().zip(returns) {
                rank.combine(layer, |token, k| {
                    let (host, work) = returns[token * *top_k + k];
                    &outputs[usize::from(host)][work as usize * *hidden..][..*hidden]
                });
            }
        }
    }

    /// Sends every token's row once to each rank that holds one of its copies, and lists the work.
    fn dispatch(&mut self, layer: usize, tokens: &[Vec<StepToken<'_>>]) {
        let Self { ranks, split, top_k, inboxes, returns, .. } = self;
        inboxes.iter_mut().for_each(Inbox::clear);
        let mut rows = vec![0_u32; ranks.len()];
        // (expert, row, source, choice) by rank, sorted by expert once all are there.
        let mut work: Vec<Vec<(u16, u32, u16, u32)>> = vec![Vec::new(); ranks.len()];
        for (source, (rank, tokens)) in ranks.iter().zip(tokens).enumerate() {
            for (token, step_token) in tokens.iter().enumerate() {
                let position = u64::from(step_token.token.position);
                let way = hash2(WAY_SEED ^ step_token.job, position) as usize % SplitTable::WAYS;
                let mut sent: Vec<u16> = Vec::with_capacity(*top_k);
                for k in 0..*top_k {
                    let expert = rank.choices()[token * *top_k + k].expert;
                    let host = split.host(LayerId(layer as u16), ExpertId(expert), way).0;
                    if !sent.contains(&host) {
                        sent.push(host);
                        rank.send(token, &mut inboxes[usize::from(host)]);
                        rows[usize::from(host)] += 1;
                    }
                    let row = rows[usize::from(host)] - 1;
                    let choice = (token * *top_k + k) as u32;
                    work[usize::from(host)].push((expert, row, source as u16, choice));
                }
            }
        }
        for (list, tokens) in returns.iter_mut().zip(tokens) {
            list.clear();
            list.resize(tokens.len() * *top_k, (0, 0));
        }
        for (host, (mut work, inbox)) in work.into_iter().zip(inboxes).enumerate() {
            work.sort_unstable();
            for (index, (expert, row, source, choice)) in work.into_iter().enumerate() {
                inbox.work.push((expert, row));
                returns[usize::from(source)][choice as usize] = (host as u16, index as u32);
            }
        }
    }
}

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
