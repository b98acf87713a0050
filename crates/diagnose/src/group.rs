//! What would more sequences per decode group win, and what would they cost?

use crate::input::Observation;
use evenkeel_cost::{AttentionLoad, Crossing, StepModel};
use evenkeel_types::Phase;
use serde::{Deserialize, Serialize};

/// A decode group with so many sequences on each rank, balanced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LargerBatch {
    /// Sequences per rank.
    pub sequences_per_rank: u32,
    /// Modelled step, which is also the gap between two tokens of a sequence, ms.
    pub step_ms: f64,
    /// Output tokens per second and rank.
    pub tokens_per_s_per_rank: f64,
    /// Throughput over that of the first entry.
    pub throughput_ratio: f64,
    /// How much longer a token takes than in the first entry, ms.
    pub itl_cost_ms: f64,
    /// Share of the step in dispatch and return.
    pub exchange_share: f64,
}

/// Models balanced decode steps of the observed group at other batch sizes; the first entry of
/// `sequences_per_rank` is the reference (give the present size first).
///
/// Sequences hold `context_tokens` tokens each, choices are uniform over experts, every rank has
/// the map's mean number of slots: absolute times leave skew out, so compare them with each other.
/// Queueing and KV memory are not in it: whether so many sequences come and fit is another question.
#[must_use]
pub fn larger_batch(
    model: &StepModel,
    now: &Observation<'_>,
    context_tokens: u32,
    sequences_per_rank: &[u32],
) -> Vec<LargerBatch> {
    let mut options: Vec<LargerBatch> = Vec::with_capacity(sequences_per_rank.len());
    for &sequences in sequences_per_rank.iter().filter(|sequences| **sequences > 0) {
        let (step_us, exchange_us) = balanced_step_us(model, now, context_tokens, sequences);
        let rate = f64::from(sequences) * 1e6 / step_us;
        let (first_rate, first_ms) = options
            .first()
            .map_or((rate, step_us / 1000.0), |o| (o.tokens_per_s_per_rank, o.step_ms));
        options.push(LargerBatch {
            sequences_per_rank: sequences,
            step_ms: step_us / 1000.0,
            tokens_per_s_per_rank: rate,
            throughput_ratio: rate / first_rate,
            itl_cost_ms: step_us / 1000.0 - first_ms,
            exchange_share: exchange_us / step_us,
        });
    }
    options
}

/// A balanced decode step and the exchange in it, µs.
fn balanced_step_us(
    model: &StepModel,
    now: &Observation<'_>,
    context_tokens: u32,
    sequences: u32,
) -> (f64, f64) {
    let phase = Phase::Decode;
    let shape = &now.header.model;
    let ranks = now.topology.rank_count() as f64;
    let (experts, top_k) = (f64::from(shape.experts), f64::from(shape.top_k));
    let group_tokens = f64::from(sequences) * ranks;
    let layers = f64::from(shape.moe_layers);
    let context = u64::from(sequences) * u64::from(context_tokens);
    let load = AttentionLoad {
        sequences,
        new_tokens: sequences,
        context_tokens: context,
        context_products: context as f64,
    };
    let attention = model.attention_us(phase, &load);
    let pairs = f64::from(sequences) * top_k;
    let tokens = model.tokens_equivalent(phase, &Crossing { pairs, ..Crossing::default() });
    let exchange = (1.0 - model.overlap_share())
        * (model.dispatch_us(phase, tokens) + model.combine_us(phase, tokens));
    let slots = now.map.copies_per_rank().iter().sum::<u64>() as f64 / (ranks * layers);
    // Expected activated slots of a rank, each with its share of the rows.
    let activated =
        slots * (1.0 - (1.0 - top_k / experts).powf(group_tokens * experts / (slots * ranks)));
    let distinct = group_tokens * (1.0 - (1.0 - top_k / experts).powf(experts / ranks));
    let curve = model.experts(phase);
    let at = |active: f64| {
        let active = active.max(1.0);
        let mut rows = vec![0; slots.ceil().max(active) as usize];
        for row in rows.iter_mut().take(active as usize) {
            *row = (pairs / active).ceil() as u32;
        }
        curve.rank_us(&rows, distinct.round() as u32)
    };
    let (low, high) = (activated.floor(), activated.ceil());
    let expert = at(low) + (activated - low) * (at(high) - at(low));
    let layer = attention + model.layer_rest_us(phase, sequences) + exchange + expert;
    let step = layers * layer
        + f64::from(shape.dense_layers) * attention
        + model.step_rest_us(phase, sequences);
    (step, layers * exchange)
}
