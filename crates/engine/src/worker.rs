//! One rank's part of a layer: its rows out to the experts, its experts on rows that came in, and
//! what comes back.
//!
//! A [`Packet`] carries each token's row once, however many of the receiver's experts it chose, and
//! the list of work on the rows. Outputs come back in the order of that list. Whoever carries
//! packets, a loop in one process or shared memory between many, the bits are the same.

use crate::rank::{Inbox, Rank, TokenIn};
use crate::sampling::{Sampled, sample};
use crate::texts::{Choose, Share};
use evenkeel_kernels::bf16;
use evenkeel_split::SplitTable;
use evenkeel_trace::RoutingRow;
use evenkeel_types::{ExpertId, LayerId, RankId, hash2};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Seed of the ways that tokens take among copies.
const WAY_SEED: u64 = 0x5157_4159;

/// One token of a step, with what decides its way among copies.
#[derive(Clone, Copy)]
struct StepToken<'a> {
    job: u64,
    token: TokenIn<'a>,
}

/// The tokens of sequences, one after another.
fn step_tokens(shares: &[Share]) -> Vec<StepToken<'_>> {
    let mut all = Vec::with_capacity(shares.iter().map(|share| share.tokens.len()).sum());
    for Share { job, context, tokens, blocks, choose: _ } in shares {
        all.extend(tokens.iter().zip(*context..).map(|(id, position)| StepToken {
            job: *job,
            token: TokenIn { id: *id, position, blocks },
        }));
    }
    all
}

/// Rows from one rank to another, with the work on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packet {
    /// `[row][hidden]` in f32; empty in the bf16 arithmetic.
    pub(crate) wide: Vec<f32>,
    /// `[row][hidden]` in bf16; empty in the f32 arithmetic.
    pub(crate) narrow: Vec<bf16>,
    /// (expert, row), in the order of the sender's tokens and the router's choices.
    pub(crate) work: Vec<(u16, u32)>,
    /// Rows.
    pub(crate) rows: u32,
}

impl Packet {
    fn clear(&mut self) {
        let Self { wide, narrow, work, rows } = self;
        wide.clear();
        narrow.clear();
        work.clear();
        *rows = 0;
    }
}

/// What one rank did in one layer of a step; times are CPU times of the thread that ran it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// One rank with its split and what a layer leaves between dispatch and combine.
#[derive(Debug)]
pub struct Worker {
    rank: Rank,
    own: u16,
    split: SplitTable,
    top_k: usize,
    hidden: usize,
    inbox: Inbox,
    outputs: Vec<f32>,
    /// `[token * top_k + k]`: host of the choice, and its place in what that host sends back.
    returns: Vec<(u16, u32)>,
    work: LayerWork,
    routing: Vec<RoutingRow>,
    logits: Vec<f32>,
}

impl Worker {
    /// A rank of a group whose tokens take their ways by `split`.
    #[must_use]
    pub fn new(rank: Rank, own: u16, split: SplitTable) -> Self {
        let (top_k, hidden) = (rank.config().top_k, rank.config().hidden);
        Self {
            rank,
            own,
            split,
            top_k,
            hidden,
            inbox: Inbox::default(),
            outputs: Vec::new(),
            returns: Vec::new(),
            work: LayerWork::default(),
            routing: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> &Rank {
        &self.rank
    }

    /// The rank, to read logits.
    pub fn rank_mut(&mut self) -> &mut Rank {
        &mut self.rank
    }

    /// Begins a step on this rank's sequences.
    pub fn begin(&mut self, shares: &[Share]) {
        let tokens = step_tokens(shares);
        let bare: Vec<TokenIn<'_>> = tokens.iter().map(|token| token.token).collect();
        self.rank.begin(&bare);
    }

    /// Chooses the next token of every sequence whose known tokens are all fed, in their order.
    pub fn choose(&mut self, shares: &[Share]) -> Vec<Sampled> {
        let mut chosen = Vec::new();
        let mut row = 0;
        for share in shares {
            row += share.tokens.len();
            let Some(Choose { sampling, tops }) = share.choose else { continue };
            self.rank.logits(row - 1, &mut self.logits);
            let position = share.context + share.tokens.len() as u32;
            chosen.push(sample(&self.logits, &sampling, position, tops));
        }
        chosen
    }

    /// Attention and router of a layer, then a packet for every rank. Every token's row goes once to
    /// each rank that serves one of its choices.
    pub fn dispatch(&mut self, layer: usize, shares: &[Share], packets: &mut [Packet]) {
        let start = cpu_ns();
        self.work = LayerWork::default();
        let tokens = step_tokens(shares);
        let bare: Vec<TokenIn<'_>> = tokens.iter().map(|token| token.token).collect();
        self.rank.attend(layer, &bare);
        self.work.attention_ns = cpu_ns() - start;
        packets.iter_mut().for_each(Packet::clear);
        self.returns.clear();
        let mut last = vec![usize::MAX; packets.len()];
        for (token, step_token) in tokens.iter().enumerate() {
            let position = u64::from(step_token.token.position);
            let way = hash2(WAY_SEED ^ step_token.job, position) as usize % SplitTable::WAYS;
            for choice in &self.rank.choices()[token * self.top_k..][..self.top_k] {
                let expert = ExpertId(choice.expert);
                let host = self.split.host(LayerId(layer as u16), expert, way);
                let packet = &mut packets[host.index()];
                if last[host.index()] != token {
                    last[host.index()] = token;
                    self.rank.send(token, &mut packet.wide, &mut packet.narrow);
                    packet.rows += 1;
                }
                self.returns.push((host.0, packet.work.len() as u32));
                packet.work.push((choice.expert, packet.rows - 1));
            }
        }
    }

    /// Runs this rank's experts on packets, `[source]`; `outputs[source]` becomes
    /// `[work][hidden]`, in the order of the source's work.
    ///
    /// # Errors
    /// The expert that work names and this rank does not hold.
    pub fn serve(
        &mut self,
        layer: usize,
        packets: &[Packet],
        outputs: &mut [Vec<f32>],
    ) -> Result<(), ExpertId> {
        self.inbox.clear();
        self.routing.clear();
        // (expert, source, place in its list, row).
        let mut work: Vec<(u16, u16, u32, u32)> = Vec::new();
        for (source, packet) in packets.iter().enumerate() {
            let base = self.work.tokens;
            self.inbox.wide.extend_from_slice(&packet.wide);
            self.inbox.narrow.extend_from_slice(&packet.narrow);
            self.work.tokens += packet.rows;
            let list = packet.work.iter().enumerate();
            work.extend(list.map(|(i, (e, row))| (*e, source as u16, i as u32, base + row)));
        }
        work.sort_unstable();
        self.work.rows = work.len() as u32;
        self.work.activated = work.chunk_by(|a, b| a.0 == b.0).count() as u16;
        for run in work.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            self.routing.push(RoutingRow {
                layer: LayerId(layer as u16),
                source: RankId(run[0].1),
                expert: ExpertId(run[0].0),
                host: Some(RankId(self.own)),
                tokens: run.len() as u32,
            });
        }
        self.inbox.work.extend(work.iter().map(|(expert, _, _, row)| (*expert, *row)));
        let start = cpu_ns();
        let done = self.rank.run_experts(layer, &self.inbox, &mut self.outputs);
        self.work.expert_ns = cpu_ns() - start;
        done.map_err(|index| ExpertId(self.inbox.work[index].0))?;
        for (outputs, packet) in outputs.iter_mut().zip(packets) {
            outputs.resize(packet.work.len() * self.hidden, 0.0);
        }
        for ((_, source, place, _), row) in work.iter().zip(self.outputs.chunks_exact(self.hidden))
        {
            let to = *place as usize * self.hidden;
            outputs[usize::from(*source)][to..to + self.hidden].copy_from_slice(row);
        }
        Ok(())
    }

    /// Adds what came back, `[host]`, to the tokens' residual streams.
    pub fn combine(&mut self, layer: usize, returned: &[Vec<f32>]) {
        let start = cpu_ns();
        let Self { rank, returns, hidden, top_k, .. } = self;
        rank.combine(layer, |token, k| {
            let (host, place) = returns[token * *top_k + k];
            &returned[usize::from(host)][place as usize * *hidden..][..*hidden]
        });
        self.work.combine_ns = cpu_ns() - start;
    }

    /// What the layer took, and who sent what to this rank's experts.
    #[must_use]
    pub fn layer_work(&self) -> (&LayerWork, &[RoutingRow]) {
        (&self.work, &self.routing)
    }
}

/// CPU time of this thread, ns.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
