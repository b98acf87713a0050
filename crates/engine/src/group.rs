//! All ranks of a group in one process, one after another: the virtual backend's arithmetic.

use crate::EngineError;
use crate::checkpoint::{Checkpoint, Numerics};
use crate::model::Model;
use crate::rank::{Inbox, Rank, TokenIn};
use evenkeel_kernels::{BLOCK_TOKENS, Isa};
use evenkeel_sim::Group;
use evenkeel_split::SplitTable;
use evenkeel_trace::RoutingRow;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId, hash2};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

/// Seed of the ways that tokens take among copies.
const WAY_SEED: u64 = 0x5157_4159;

/// What one rank did in one layer of a step; times are CPU times of the thread that ran it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerWork {
    /// Attention, norms and router, ns.
    pub attention_ns: u64,
    /// Experts, ns.
    pub expert_ns: u64,
    /// Weighted sum of what came back, ns.
    pub combine_ns: u64,
    /// (token, expert) rows that its experts computed.
    pub rows: u32,
    /// Distinct tokens that it received.
    pub tokens: u32,
    /// Its experts with at least one row.
    pub activated: u16,
}

/// What a step did, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct StepWork {
    /// `[layer * ranks + rank]`.
    pub ranks: Vec<LayerWork>,
    /// `[(layer * ranks + source) * ranks + host]`: token rows sent.
    pub sent: Vec<u32>,
    /// `[(layer * ranks + source) * ranks + host]`: outputs of experts that came back.
    pub returned: Vec<u32>,
    /// Who sent what to which copy, by layer, host, expert and source.
    pub routing: Vec<RoutingRow>,
}

impl StepWork {
    fn clear(&mut self, layers: usize, ranks: usize) {
        let Self { ranks: work, sent, returned, routing } = self;
        work.clear();
        work.resize(layers * ranks, LayerWork::default());
        for counts in [sent, returned] {
            counts.clear();
            counts.resize(layers * ranks * ranks, 0);
        }
        routing.clear();
    }
}

/// Ranks that share a process.
#[derive(Debug)]
pub struct LocalGroup {
    ranks: Vec<Rank>,
    split: SplitTable,
    info: Group,
    hidden: usize,
    vocab: usize,
    numerics: Numerics,
    inboxes: Vec<Inbox>,
    /// `[rank]`: outputs of its experts.
    outputs: Vec<Vec<f32>>,
    /// `[rank][token * top_k + k]`: rank and index of the work that computed the choice.
    returns: Vec<Vec<(u16, u32)>>,
    work: StepWork,
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
            info: Group {
                ranks: count as u16,
                layers: config.layers,
                experts: config.experts,
                top_k: config.top_k,
                map_version: map.version,
                map_digest: map.digest(),
            },
            hidden: config.hidden,
            vocab: config.vocab,
            numerics,
            inboxes: vec![Inbox::default(); count],
            outputs: vec![Vec::new(); count],
            returns: vec![Vec::new(); count],
            work: StepWork::default(),
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

    /// What the last step did.
    #[must_use]
    pub fn work(&self) -> &StepWork {
        &self.work
    }

    /// Dimensions.
    #[must_use]
    pub fn info(&self) -> &Group {
        &self.info
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Bytes of a token's row on its way to experts, and of an expert's output on its way back.
    #[must_use]
    pub fn row_bytes(&self) -> [u64; 2] {
        let hidden = self.hidden as u64;
        match self.numerics {
            Numerics::F32 => [4 * hidden, 4 * hidden],
            Numerics::Bf16 => [2 * hidden, 4 * hidden],
        }
    }

    /// Runs all layers on `tokens[rank]`. `watch(layer, ranks)` sees every layer after its router.
    pub fn step(&mut self, tokens: &[Vec<StepToken<'_>>], mut watch: impl FnMut(usize, &[Rank])) {
        let (layers, count, top_k) = (self.info.layers, self.ranks.len(), self.info.top_k);
        self.work.clear(layers, count);
        let bare: Vec<Vec<TokenIn<'_>>> =
            tokens.iter().map(|list| list.iter().map(|t| t.token).collect()).collect();
        for (rank, tokens) in self.ranks.iter_mut().zip(&bare) {
            rank.begin(tokens);
        }
        for layer in 0..layers {
            let here = layer * count;
            for (index, (rank, tokens)) in self.ranks.iter_mut().zip(&bare).enumerate() {
                let start = cpu_ns();
                rank.attend(layer, tokens);
                self.work.ranks[here + index].attention_ns = cpu_ns() - start;
            }
            watch(layer, &self.ranks);
            self.dispatch(layer, tokens);
            for (index, rank) in self.ranks.iter_mut().enumerate() {
                let start = cpu_ns();
                let done = rank.run_experts(layer, &self.inboxes[index], &mut self.outputs[index]);
                // The split only names ranks whose slots hold the expert, and those were loaded.
                debug_assert_eq!(done, Ok(()), "rank {index} lacks an expert of layer {layer}");
                self.work.ranks[here + index].expert_ns = cpu_ns() - start;
            }
            let Self { ranks, outputs, returns, hidden, work, .. } = self;
            for (index, (rank, returns)) in ranks.iter_mut().zip(returns).enumerate() {
                let start = cpu_ns();
                rank.combine(layer, |token, k| {
                    let (host, work) = returns[token * top_k + k];
                    &outputs[usize::from(host)][work as usize * *hidden..][..*hidden]
                });
                work.ranks[here + index].combine_ns = cpu_ns() - start;
            }
        }
    }

    /// Sends every token's row once to each rank that holds one of its copies, and lists the work.
    fn dispatch(&mut self, layer: usize, tokens: &[Vec<StepToken<'_>>]) {
        let Self { ranks, split, info, inboxes, returns, work: done, .. } = self;
        let (count, top_k) = (ranks.len(), info.top_k);
        inboxes.iter_mut().for_each(Inbox::clear);
        let mut rows = vec![0_u32; count];
        // (expert, row, source, choice) by host, sorted by expert once all are there.
        let mut work: Vec<Vec<(u16, u32, u16, u32)>> = vec![Vec::new(); count];
        for (source, (rank, tokens)) in ranks.iter().zip(tokens).enumerate() {
            let links = (layer * count + source) * count;
            for (token, step_token) in tokens.iter().enumerate() {
                let position = u64::from(step_token.token.position);
                let way = hash2(WAY_SEED ^ step_token.job, position) as usize % SplitTable::WAYS;
                let mut sent: Vec<usize> = Vec::with_capacity(top_k);
                for k in 0..top_k {
                    let expert = rank.choices()[token * top_k + k].expert;
                    let host = split.host(LayerId(layer as u16), ExpertId(expert), way).index();
                    if !sent.contains(&host) {
                        sent.push(host);
                        rank.send(token, &mut inboxes[host]);
                        rows[host] += 1;
                        done.sent[links + host] += 1;
                    }
                    done.returned[links + host] += 1;
                    let choice = (token * top_k + k) as u32;
                    work[host].push((expert, rows[host] - 1, source as u16, choice));
                }
            }
        }
        for (list, tokens) in returns.iter_mut().zip(tokens) {
            list.clear();
            list.resize(tokens.len() * top_k, (0, 0));
        }
        for (host, (mut work, inbox)) in work.into_iter().zip(inboxes).enumerate() {
            work.sort_unstable();
            let cell = &mut done.ranks[layer * count + host];
            cell.rows = work.len() as u32;
            cell.tokens = rows[host];
            cell.activated = work.chunk_by(|a, b| a.0 == b.0).count() as u16;
            // Rows come in the order of their sources, so that a source's are together.
            for run in work.chunk_by(|a, b| (a.0, a.2) == (b.0, b.2)) {
                done.routing.push(RoutingRow {
                    layer: LayerId(layer as u16),
                    source: RankId(run[0].2),
                    expert: ExpertId(run[0].0),
                    host: Some(RankId(host as u16)),
                    tokens: run.len() as u32,
                });
            }
            for (index, (expert, row, source, choice)) in work.into_iter().enumerate() {
                inbox.work.push((expert, row));
                returns[usize::from(source)][choice as usize] = (host as u16, index as u32);
            }
        }
    }
}

/// CPU time of this thread, ns.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
