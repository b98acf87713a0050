//! Whole servers: time per output token composed from the parts, against published runs.
//!
//! ```text
//! step = 58·(moe + shared + gate) + 3·dense + 61·(attention + down-projection)
//!      + communication + lm-head + 61·δ
//! TPOT (aggregated) = step + B·prefill(isl)/osl
//! ```
//!
//! Nothing but δ (µs per layer, one per engine and fabric) is fitted to servers. B is the batch
//! of one attention group; each prefill stalls its other requests. TTFT has no target: it is
//! queueing under arrivals that nobody recorded.

mod judge;
mod rows;

pub use judge::{EngineDelta, ServerLine, ServerReport, judge_profiles, judge_servers};
pub use rows::{ServerRow, ServerRows, read_servers};

use crate::attention::{AttentionLoad, AttentionModel, AttentionProfile, AttentionShape};
use crate::dense::DenseRates;
use crate::expert::{ExpertCurve, ExpertForm};
use evenkeel_types::{Attention, ModelShape};

/// How a server's attention is spread over its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Heads cut over all ranks; the batch is that of the group.
    TensorParallel,
    /// All heads on each rank; the batch is that of one rank.
    DataParallel,
}

/// Collectives of a server, hand-set from typical values before any server row was compared.
#[derive(Clone, Copy, Debug)]
struct Links {
    reduce_us: f64,
    reduce_bytes_per_us: f64,
    gather_us: f64,
    gather_bytes_per_us: f64,
}

const ONE_NODE: Links = Links {
    reduce_us: 10.0,
    reduce_bytes_per_us: 240e3,
    gather_us: 11.0,
    gather_bytes_per_us: 425e3,
};
const TWO_NODES: Links = Links {
    reduce_us: 30.0,
    reduce_bytes_per_us: 45e3,
    gather_us: 30.0,
    gather_bytes_per_us: 45e3,
};
const GATE_US: f64 = 8.0;
/// Ranks of a node.
const NODE_RANKS: u32 = 8;

/// The parts of one machine that a server is composed from.
#[derive(Clone, Debug)]
pub struct ServerParts {
    /// Experts of the engine.
    pub experts: ExpertCurve,
    /// Attention.
    pub attention: AttentionProfile,
    /// Plain products.
    pub dense: DenseRates,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerLoad {
    /// Ranks, all of them expert-parallel.
    pub ranks: u32,
    /// How attention is spread.
    pub layout: Layout,
    /// Requests of one attention group.
    pub batch: u32,
    /// Prompt tokens of a request.
    pub prompt: u32,
    /// Output tokens of a request.
    pub output: u32,
    /// Whether the same ranks prefill.
    pub aggregated: bool,
}

/// How many standard deviations the largest of so many ranks lies above the mean (docs/cost-model.md
/// section 2): the step waits for that rank.
fn largest_of(ranks: f64) -> f64 {
    const KNOWN: [(f64, f64); 5] =
        [(1.0, 0.0), (8.0, 1.42), (16.0, 1.77), (32.0, 2.07), (64.0, 2.34)];
    let above = KNOWN.partition_point(|k| k.0 < ranks).clamp(1, KNOWN.len() - 1);
    let (low, high) = (KNOWN[above - 1], KNOWN[above]);
    let share = (ranks / low.0).log2() / (high.0 / low.0).log2();
    low.1 + (high.1 - low.1) * share
}

/// Expert time of the hottest rank under uniform routing of `tokens` over the group.
#[must_use]
pub fn hottest_rank_us(curve: &ExpertCurve, shape: &ModelShape, ranks: u32, tokens: f64) -> f64 {
    let (experts, top_k) = (f64::from(shape.experts), f64::from(shape.top_k));
    let ranks = f64::from(ranks);
    let slots = experts / ranks;
    let hit = 1.0 - (1.0 - top_k / experts).powf(tokens);
    let z = largest_of(ranks);
    let active = (slots * hit + z * (slots * hit * (1.0 - hit)).sqrt()).min(slots);
    let mean = tokens * top_k / ranks;
    let rows = (mean + z * (mean * (1.0 - 1.0 / ranks)).sqrt()).max(active);
    let received = tokens * (1.0 - (1.0 - 1.0 / ranks).powf(top_k));
    match &curve.form {
        // Rows are spread evenly over the active experts, tiles rounded up for each.
        ExpertForm::Separable(c) => {
            let tiles = (rows / active / f64::from(c.tile_rows)).ceil().max(1.0);
            c.on_host(
                c.floor_us
                    + c.slot_us * slots
                    + active * (c.first_us + (tiles - 1.0) * c.further_tile_us)
                    + c.row_us * rows
                    + c.token_us * received,
            )
        }
        ExpertForm::Rank(form) => {
            let tile = f64::from(form.tile_rows.max(1));
            let tiled = active * (rows / active / tile).ceil() * tile;
            form.totals_us(slots, active, tiled, rows, received)
        }
    }
}

impl ServerParts {
    /// Time per output token without δ, µs, and the number of layers that δ multiplies.
    #[must_use]
    pub fn tpot_us(&self, shape: &ModelShape, load: &ServerLoad) -> f64 {
        let context = f64::from(load.prompt) + f64::from(load.output) / 2.0;
        let batch = f64::from(load.batch);
        let decode = self.pass_us(shape, load, batch, |attention| {
            attention.decode_us(&AttentionLoad {
                sequences: load.batch,
                new_tokens: load.batch,
                context_tokens: (batch * context) as u64,
                context_products: 0.0,
            })
        });
        if !load.aggregated {
            return decode;
        }
        decode + batch * self.prefill_us(shape, load) / f64::from(load.output.max(1))
    }

    /// Time of one bare prefill, µs: a lower bound of TTFT.
    #[must_use]
    pub fn prefill_us(&self, shape: &ModelShape, load: &ServerLoad) -> f64 {
        let tokens = f64::from(load.prompt);
        self.pass_us(shape, load, tokens, |attention| {
            attention.prefill_us(&AttentionLoad {
                sequences: 1,
                new_tokens: load.prompt,
                context_tokens: u64::from(load.prompt),
                context_products: tokens * tokens,
            })
        })
    }

    /// One pass over all layers with `rows` tokens per attention group.
    fn pass_us(
        &self,
        shape: &ModelShape,
        load: &ServerLoad,
        rows: f64,
        attention_us: impl Fn(&AttentionModel) -> f64,
    ) -> f64 {
        let ranks = f64::from(load.ranks);
        let (cut, groups) = match load.layout {
            Layout::TensorParallel => (ranks, 1.0),
            Layout::DataParallel => (1.0, ranks),
        };
        let (Attention::Mla { heads, .. } | Attention::Gqa { heads, .. }) = shape.attention;
        let sizes = AttentionShape::new(shape, ((f64::from(heads) / cut) as u32).max(1));
        // The launch floor of the benchmark's un-graphed prefill is not the server's.
        let attention = AttentionModel::new(&self.attention, &sizes, &self.dense, false);
        let hidden = f64::from(shape.hidden);
        let bytes = shape.weights.bytes_per_weight();
        let mlp = |width: f64| {
            let (up, down) = (2.0 * hidden * width / cut, hidden * width / cut);
            self.dense.product_us(up, bytes, rows) + self.dense.product_us(down, bytes, rows)
        };
        let shared = f64::from(shape.shared_experts) * f64::from(shape.expert_width);
        let moe = hottest_rank_us(&self.experts, shape, load.ranks, rows * groups);
        let head = hidden * f64::from(shape.vocab) / cut;
        let layers = f64::from(shape.moe_layers) + f64::from(shape.dense_layers);
        f64::from(shape.moe_layers) * (moe + mlp(shared) + GATE_US)
            + f64::from(shape.dense_layers) * mlp(f64::from(shape.dense_width))
            + layers * attention_us(&attention)
            + communication_us(shape, load, rows)
            + self.dense.product_us(head, 2.0, rows.min(f64::from(load.batch)))
    }
}

/// Tensor parallelism reduces twice a layer; data-parallel attention gathers tokens before the
/// experts and scatters sums after them.
fn communication_us(shape: &ModelShape, load: &ServerLoad, rows: f64) -> f64 {
    let links = if load.ranks > NODE_RANKS { TWO_NODES } else { ONE_NODE };
    let bytes = rows * f64::from(shape.hidden) * 2.0;
    let layers = f64::from(shape.moe_layers) + f64::from(shape.dense_layers);
    match load.layout {
        Layout::TensorParallel => {
            2.0 * layers * (links.reduce_us + bytes / links.reduce_bytes_per_us)
        }
        Layout::DataParallel => {
            let all = bytes * f64::from(load.ranks);
            2.0 * f64::from(shape.moe_layers) * (links.gather_us + all / links.gather_bytes_per_us)
        }
    }
}
