//! What a step is, and who says what it costs.

use crate::SimError;
use crate::machine::Tables;
use evenkeel_trace::{LayerCell, LinkRow, RoutingRow};
use evenkeel_types::Phase;

/// The tokens of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the job.
    pub job: u64,
    /// Index of the recorded request that it replays.
    pub recorded: usize,
    /// Index of its first token of this step in `Routes` (the tokens are consecutive).
    pub token: usize,
    /// Tokens: 1 in decode, the chunk in prefill.
    pub tokens: u32,
    /// Tokens of the sequence whose KV is in place before the step: its first token's position.
    pub context: u32,
}

/// One step of the group: its phase, and each rank's entries.
#[derive(Clone, Copy, Debug)]
pub struct StepBatch<'a> {
    /// Number of the step, from 0.
    pub step: u64,
    /// Phase of every token in it.
    pub phase: Phase,
    /// Start, ns.
    pub start_ns: u64,
    /// Entries, rank after rank.
    pub entries: &'a [Entry],
    /// `[rank]`: end of the rank's entries in `entries`.
    pub rank_ends: &'a [usize],
    /// The cost shall carry `cells`.
    pub wants_layers: bool,
    /// The cost shall carry `routing` and `links`.
    pub wants_routing: bool,
    pub(crate) tables: Tables<'a>,
}

impl<'a> StepBatch<'a> {
    /// The entries of a rank.
    #[must_use]
    pub fn rank(&self, rank: usize) -> &'a [Entry] {
        let start = if rank == 0 { 0 } else { self.rank_ends[rank - 1] };
        &self.entries[start..self.rank_ends[rank]]
    }

    /// The KV blocks of an entry's sequence, in the order of its tokens; `entry` counts over all
    /// ranks.
    #[must_use]
    pub fn blocks(&self, entry: usize) -> &'a [u32] {
        self.tables.of_entry(entry)
    }

    /// Tokens over all ranks.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.tokens)).sum()
    }
}

/// What a step cost. The step's time is the sum of the four parts, to the nanosecond.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Σ over layers of the slowest rank's attention (and what precedes the router), ns.
    pub attention_ns: u64,
    /// Σ over layers of dispatch and return, as far as nothing hides them, ns.
    pub exchange_ns: u64,
    /// Σ over layers of the slowest rank's experts, ns.
    pub expert_slowest_ns: u64,
    /// Everything else, ns.
    pub rest_ns: u64,
    /// Σ over layers of the mean rank's experts, ns. Not a part of the step's time.
    pub expert_mean_ns: u64,
    /// Most expert rows on a rank over the mean, averaged over layers; 1 where nothing is known.
    pub rows_max_over_mean: f64,
    /// `[rank]`: layers that waited for the rank's experts. Empty where nothing is known.
    pub waited_layers: Vec<u32>,
    /// `[layer * ranks + rank]`: expert rows. Empty where nothing is known.
    pub rank_rows: Vec<u32>,
    /// `[layer * experts + expert]`: choices. Empty where nothing is known.
    pub expert_choices: Vec<u32>,
    /// Rows that were lost, doubled or executed where no copy is (law 2).
    pub misplaced_rows: u64,
    /// `[layer * ranks + rank]`, where the batch wants layers.
    pub cells: Vec<LayerCell>,
    /// By layer, source, expert and host, where the batch wants routing.
    pub routing: Vec<RoutingRow>,
    /// By layer, direction, source and destination, where the batch wants routing.
    pub links: Vec<LinkRow>,
}

impl StepCost {
    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        let Self {
            attention_ns,
            exchange_ns,
            expert_slowest_ns,
            rest_ns,
            expert_mean_ns,
            rows_max_over_mean,
            waited_layers,
            rank_rows,
            expert_choices,
            misplaced_rows,
            cells,
            routing,
            links,
        } = self;
        for part in [attention_ns, exchange_ns, expert_slowest_ns, rest_ns, expert_mean_ns] {
            *part = 0;
        }
        *rows_max_over_mean = 1.0;
        *misplaced_rows = 0;
        waited_layers.clear();
        rank_rows.clear();
        expert_choices.clear();
        cells.clear();
        routing.clear();
        links.clear();
    }

    /// The step's time, ns; `None` where it overflows.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        self.attention_ns
            .checked_add(self.exchange_ns)?
            .checked_add(self.expert_slowest_ns)?
            .checked_add(self.rest_ns)
    }
}

/// What a backend serves with: the dimensions of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Ranks.
    pub ranks: u16,
    /// MoE layers.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Experts per token and layer.
    pub top_k: usize,
    /// Version of the map.
    pub map_version: u64,
    /// Digest of the map.
    pub map_digest: String,
}

/// Decides what a step costs; an engine also decides the tokens.
pub trait Backend {
    /// The dimensions that it serves with.
    fn group(&self) -> &Group;

    /// Runs one step and fills `cost`, which comes cleared.
    ///
    /// # Errors
    /// Where the batch cannot be run.
    fn step(&mut self, batch: &StepBatch<'_>, cost: &mut StepCost) -> Result<(), SimError>;

    /// Entries of the last step, by their index over all ranks, whose sequence has ended with it
    /// (a stop token): only a backend that decides the tokens knows.
    fn ended(&self) -> &[usize] {
        &[]
    }
}

/// A fixed time per step and per token of the fullest rank: for tests and hand-made timelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Dimensions.
    pub group: Group,
    /// Time of a step without tokens by phase, prefill first, ns.
    pub step_ns: [u64; 2],
    /// Time per token of the rank with most tokens by phase, prefill first, ns.
    pub token_ns: [u64; 2],
}

impl Constant {
    /// A group of `ranks` ranks with one expert in one layer.
    #[must_use]
    pub fn new(ranks: u16, step_ns: [u64; 2], token_ns: [u64; 2]) -> Self {
        let map_digest = String::from("none");
        let group = Group { ranks, layers: 1, experts: 1, top_k: 1, map_version: 0, map_digest };
        Self { group, step_ns, token_ns }
    }
}

impl Backend for Constant {
    fn group(&self) -> &Group {
        &self.group
    }

    fn step(&mut self, batch: &StepBatch<'_>, cost: &mut StepCost) -> Result<(), SimError> {
        let tokens = |rank| batch.rank(rank).iter().map(|entry| u64::from(entry.tokens)).sum();
        let most: u64 = (0..batch.rank_ends.len()).map(tokens).max().unwrap_or(0);
        let phase = batch.phase.index();
        cost.rest_ns =
            self.step_ns[phase].saturating_add(self.token_ns[phase].saturating_mul(most));
        Ok(())
    }
}
