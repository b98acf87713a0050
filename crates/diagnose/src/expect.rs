//! What each span should take for the work that was recorded.

use crate::frame::{Frame, Stage};
use crate::input::Observation;
use evenkeel_cost::{AttentionLoad, Crossing, ExpertCurve, StepModel};
use evenkeel_trace::{RankCell, StepRecord};
use evenkeel_types::Phase;

/// The healthy machine's curves, as the diagnosis asks them.
pub(crate) struct Expectation<'a> {
    model: &'a StepModel,
    phase: Phase,
    top_k: f64,
    shape_words: String,
}

/// Services of a layer within this ratio are one time, written down for every rank.
const ONE_TIME_RATIO: f64 = 1.001;

impl<'a> Expectation<'a> {
    /// The curves of a phase for the model that was recorded.
    pub(crate) fn new(model: &'a StepModel, observation: &Observation<'_>, phase: Phase) -> Self {
        let shape = &observation.header.model;
        Self {
            model,
            phase,
            top_k: f64::from(shape.top_k),
            shape_words: format!(
                "{} experts of {} x {} in {:?} on {}",
                shape.experts,
                shape.hidden,
                shape.expert_width,
                shape.weights,
                observation.topology.hardware
            ),
        }
    }

    /// The expert curve.
    pub(crate) fn experts(&self) -> &ExpertCurve {
        self.model.experts(self.phase)
    }

    /// Expert time of a rank whose slots hold these rows, ns.
    pub(crate) fn expert_ns(&self, rows_per_slot: &[u32], distinct_tokens: u32) -> f64 {
        1000.0 * self.experts().rank_us(rows_per_slot, distinct_tokens)
    }

    /// Time of one copy that serves so many rows, ns; between whole rows, in proportion.
    pub(crate) fn copy_ns(&self, rows: f64) -> f64 {
        let (low, high) = (rows.floor(), rows.ceil());
        let at = |rows: f64| self.experts().slot_us(rows as u32);
        1000.0 * (at(low) + (rows - low) * (at(high) - at(low)))
    }

    /// Attention of one layer of a rank that holds `context` tokens of KV, ns.
    pub(crate) fn attention_ns(&self, rank: &RankCell, context: u64) -> f64 {
        if rank.tokens == 0 {
            return 0.0;
        }
        let per_sequence = context as f64 / f64::from(rank.sequences.max(1));
        let load = AttentionLoad {
            sequences: rank.sequences,
            new_tokens: rank.tokens,
            context_tokens: context,
            context_products: f64::from(rank.tokens) * per_sequence,
        };
        1000.0 * self.model.attention_us(self.phase, &load)
    }

    /// Fills the expectations of both ways of the exchange from what each rank sent and received.
    /// Where a record has one time for all ranks of a layer, that of the busiest.
    pub(crate) fn exchange(&self, step: &StepRecord, frame: &mut Frame) {
        let ranks = step.ranks.len();
        let layers = frame.bound_ns.len();
        for layer in 0..layers {
            let cells = layer * ranks..(layer + 1) * ranks;
            let tokens: Vec<f64> = cells
                .clone()
                .map(|cell| {
                    let sent = f64::from(step.ranks[cell - layer * ranks].tokens);
                    self.tokens_equivalent(sent, frame.rows[cell], frame.tokens[cell])
                })
                .collect();
            // What the engine hides behind computation is no span.
            let exposed = 1000.0 * (1.0 - self.model.overlap_share());
            let busiest = tokens.iter().copied().fold(0.0, f64::max);
            for stage in [Stage::Dispatch, Stage::Return] {
                let curve = |tokens| match stage {
                    Stage::Dispatch => exposed * self.model.dispatch_us(self.phase, tokens),
                    _ => exposed * self.model.combine_us(self.phase, tokens),
                };
                let times = cells.clone().map(|cell| frame.at(stage, cell));
                let (least, most) =
                    times.fold((f64::MAX, 0.0_f64), |(low, high), ns| (low.min(ns), high.max(ns)));
                let one_time = most <= ONE_TIME_RATIO * least;
                for (cell, tokens) in cells.clone().zip(&tokens) {
                    let at = if one_time { busiest } else { *tokens };
                    frame.expected[stage as usize][cell] = curve(at);
                }
            }
        }
    }

    fn tokens_equivalent(&self, sent_tokens: f64, rows_in: u32, tokens_in: u32) -> f64 {
        let (nodes, ranks) = self.model.distinct_per_token();
        let crossing = Crossing {
            pairs: (sent_tokens * self.top_k).max(f64::from(rows_in)),
            node_rows: sent_tokens * nodes,
            rank_rows: (sent_tokens * ranks).max(f64::from(tokens_in)),
        };
        self.model.tokens_equivalent(self.phase, &crossing)
    }

    /// Error of the expert curve, as a share.
    pub(crate) fn expert_error_share(&self) -> f64 {
        self.experts().basis.error_share
    }

    /// Error of the attention curve, as a share.
    pub(crate) fn attention_error_share(&self) -> f64 {
        self.error_share("attention")
    }

    /// Error of the exchange's curves, as a share.
    pub(crate) fn exchange_error_share(&self) -> f64 {
        self.error_share("exchange")
    }

    fn error_share(&self, part: &str) -> f64 {
        let name = format!("{} {part}", self.phase);
        let notes = self.model.notes();
        let errors = notes.iter().filter(|note| note.curve == name).map(|note| note.error_share);
        errors.fold(0.05, f64::max)
    }

    /// The key that a kernel is tuned for, in words.
    pub(crate) fn shape_words(&self) -> &str {
        &self.shape_words
    }
}
