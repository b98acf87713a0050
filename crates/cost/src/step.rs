//! A step's parts for one profile, model and topology: what replay, diagnosis and proof ask.
//!
//! [`StepModel::resolve`] does every look-up; the calls are a few arithmetic operations, for a
//! replay makes some 10⁵ of them per second. All times are µs.
//!
//! ```text
//! step = Σ over MoE layers [ attention + rest + (dispatch + slowest rank's experts + combine) ]
//!      + dense_layers · attention + step_rest
//! ```

use crate::attention::{AttentionLoad, AttentionModel, AttentionShape};
use crate::basis::{Basis, Origin};
use crate::dense::RestModel;
use crate::draw::{Draw, draws};
use crate::error::CostError;
use crate::exchange::{Direction, Fabric, LogTable, LowLatencyLine, distinct};
use crate::expert::{ExpertCoefficients, ExpertCurve, ExpertForm, RankForm};
use crate::profile::Profile;
use evenkeel_types::{Attention, ModelShape, Phase, Topology};

/// What a curve of a [`StepModel`] stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveNote {
    /// Curve, e.g. `decode exchange`.
    pub curve: String,
    /// Fitted, scaled, borrowed or assumed.
    pub origin: Origin,
    /// Mean absolute relative error expected, as a share.
    pub error_share: f64,
    /// Whether the model's shape lies inside what was measured.
    pub inside_support: bool,
    /// What a reader must know, one sentence.
    pub text: String,
}

/// Rows that a rank sends or receives in one layer: the larger of the two directions, at the
/// busiest rank. Rows over a node's degraded outer links count `1 / rate_share` each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Crossing {
    /// (token, expert) rows. Decode needs only this one.
    pub pairs: f64,
    /// (token, other node) pairs: rows that cross the network in prefill.
    pub node_rows: f64,
    /// (token, rank) pairs: rows after forwarding within the node in prefill.
    pub rank_rows: f64,
}

#[derive(Clone, Debug)]
enum ExchangeCurve {
    Line(LowLatencyLine),
    Table(LogTable),
}

impl ExchangeCurve {
    fn at(&self, tokens: f64) -> f64 {
        match self {
            Self::Line(line) => line.at(tokens),
            Self::Table(table) => table.at(tokens),
        }
    }
}

/// Every time that a step of one model on one machine is made of.
#[derive(Clone, Debug)]
pub struct StepModel {
    /// By [`Phase::index`].
    experts: [ExpertCurve; 2],
    dispatch: [ExchangeCurve; 2],
    combine: [ExchangeCurve; 2],
    attention: AttentionModel,
    rest: RestModel,
    scale: Draw,
    top_k: f64,
    distinct_nodes: f64,
    distinct_ranks: f64,
    row_bytes: [(f64, f64); 2],
    overlap_share: f64,
    notes: Vec<CurveNote>,
}

impl StepModel {
    /// Resolves a profile for a model on a topology.
    ///
    /// # Errors
    /// [`CostError::Shape`] for a model shape that contradicts itself.
    pub fn resolve(
        profile: &Profile,
        shape: &ModelShape,
        topology: &Topology,
    ) -> Result<Self, CostError> {
        shape.validate()?;
        let fabric = Fabric::new(topology);
        let heads = match shape.attention {
            Attention::Mla { heads, .. } | Attention::Gqa { heads, .. } => heads,
        };
        let sizes = AttentionShape::new(shape, heads);
        let exchange = &profile.exchange;
        let mut notes = Vec::new();
        let experts = Phase::ALL.map(|phase| {
            let curve = profile.expert_curve(shape, phase);
            notes.push(note(format!("{phase} experts"), &curve.basis, &[]));
            curve
        });
        let [(dispatch_line, dispatch_known), (combine_line, combine_known)] = [
            exchange.dispatch.line(shape, &fabric, Direction::Dispatch),
            exchange.combine.line(shape, &fabric, Direction::Combine),
        ];
        notes.push(decode_note(profile, shape, &fabric, dispatch_known && combine_known));
        let normal = |direction| exchange.normal.table(shape, &fabric, direction);
        let (dispatch, combine) = match (normal(Direction::Dispatch), normal(Direction::Combine)) {
            (Some((dispatch, from)), Some((combine, to))) => {
                notes.push(prefill_note(profile, shape, &fabric, from.max(to)));
                (ExchangeCurve::Table(dispatch), ExchangeCurve::Table(combine))
            }
            _ => {
                let mut same = notes[notes.len() - 1].clone();
                same.curve = "prefill exchange".to_owned();
                same.text = format!("no normal-mode table, decode's curve; {}", same.text);
                notes.push(same);
                (ExchangeCurve::Line(dispatch_line), ExchangeCurve::Line(combine_line))
            }
        };
        notes.extend(attention_notes(profile, &sizes, shape));
        let engine = &profile.engine;
        notes.push(note("rest".to_owned(), &profile.dense.basis, &[]));
        let (distinct_nodes, distinct_ranks) = distinct(fabric.nodes, f64::from(shape.top_k));
        let bytes = (
            Direction::Dispatch.low_latency_bytes(shape),
            Direction::Combine.low_latency_bytes(shape),
        );
        Ok(Self {
            experts,
            dispatch: [dispatch, ExchangeCurve::Line(dispatch_line)],
            combine: [combine, ExchangeCurve::Line(combine_line)],
            attention: AttentionModel::new(
                &profile.attention,
                &sizes,
                &profile.dense.rates,
                engine.prefill_host_floor,
            ),
            rest: RestModel::new(&profile.dense.rates, engine, shape),
            scale: Draw::CENTRE,
            top_k: f64::from(shape.top_k),
            distinct_nodes,
            distinct_ranks: distinct_ranks.min(topology.rank_count() as f64),
            row_bytes: [bytes, bytes],
            overlap_share: engine.overlap_share.clamp(0.0, 1.0),
            notes,
        })
    }

    /// The same model with its parameters multiplied by a draw: shared uncertainty, so that two
    /// maps are compared under the same error.
    #[must_use]
    pub fn with(&self, draw: &Draw) -> Self {
        Self {
            experts: self.experts.each_ref().map(|curve| scaled_experts(curve, draw)),
            scale: self.scale.times(draw),
            ..self.clone()
        }
    }

    /// Parameter draws: the centre, then both ends of the band of every curve that is borrowed or
    /// assumed, then log-normal draws of all curves by their error, `n` in all (more where the
    /// centre and the ends alone are more).
    #[must_use]
    pub fn draws(&self, n: usize, seed: u64) -> Vec<Draw> {
        draws(&self.notes, n, seed)
    }

    /// Expert time of a rank in one layer.
    #[must_use]
    pub fn experts(&self, phase: Phase) -> &ExpertCurve {
        &self.experts[phase.index()]
    }

    /// Time of one layer's dispatch, by tokens per rank as [`Self::tokens_equivalent`] counts
    /// them.
    #[must_use]
    pub fn dispatch_us(&self, phase: Phase, tokens_equivalent: f64) -> f64 {
        self.scale.exchange * self.dispatch[phase.index()].at(tokens_equivalent)
    }

    /// Time of one layer's combine.
    #[must_use]
    pub fn combine_us(&self, phase: Phase, tokens_equivalent: f64) -> f64 {
        self.scale.exchange * self.combine[phase.index()].at(tokens_equivalent)
    }

    /// The balanced tokens per rank that would move as much as this crossing at its busiest rank.
    ///
    /// Decode: `pairs / top_k`. Prefill: rows per token that the measured, uniform traffic sends
    /// to distinct other nodes (at most four nodes reached) and to distinct ranks; the larger of
    /// the two ratios counts.
    #[must_use]
    pub fn tokens_equivalent(&self, phase: Phase, crossing: &Crossing) -> f64 {
        match phase {
            Phase::Decode => crossing.pairs / self.top_k,
            Phase::Prefill => {
                let nodes = if self.distinct_nodes > 0.0 {
                    crossing.node_rows / self.distinct_nodes
                } else {
                    0.0
                };
                nodes.max(crossing.rank_rows / self.distinct_ranks)
            }
        }
    }

    /// Distinct other nodes and distinct ranks per token behind the prefill curves.
    #[must_use]
    pub const fn distinct_per_token(&self) -> (f64, f64) {
        (self.distinct_nodes, self.distinct_ranks)
    }

    /// Attention of one layer on one rank, all heads (attention is data-parallel).
    #[must_use]
    pub fn attention_us(&self, phase: Phase, load: &AttentionLoad) -> f64 {
        let time = match phase {
            Phase::Decode => self.attention.decode_us(load),
            Phase::Prefill => self.attention.prefill_us(load),
        };
        self.scale.attention * time
    }

    /// Shared experts, gate, norms and δ of one MoE layer on one rank.
    #[must_use]
    pub fn layer_rest_us(&self, _phase: Phase, tokens: u32) -> f64 {
        self.scale.rest * self.rest.layer_us(tokens)
    }

    /// Once per step: MLPs and δ of the dense layers, lm-head, host. The attention of the dense
    /// layers is not in it: add [`Self::attention_us`] for each of them.
    #[must_use]
    pub fn step_rest_us(&self, phase: Phase, tokens: u32) -> f64 {
        self.scale.rest * self.rest.step_us(phase, tokens)
    }

    /// Layers without experts.
    #[must_use]
    pub const fn dense_layers(&self) -> f64 {
        self.rest.dense_layers()
    }

    /// Share of communication that the engine hides behind computation, in [0, 1].
    #[must_use]
    pub const fn overlap_share(&self) -> f64 {
        self.overlap_share
    }

    /// Bytes of one row, dispatch and combine.
    #[must_use]
    pub const fn exchange_bytes_per_row(&self, phase: Phase) -> (f64, f64) {
        self.row_bytes[phase.index()]
    }

    /// What every curve stands on.
    #[must_use]
    pub fn notes(&self) -> Vec<CurveNote> {
        self.notes.clone()
    }
}

fn note(curve: String, basis: &Basis, inputs: &[(&str, f64)]) -> CurveNote {
    let outside: Vec<String> = inputs
        .iter()
        .filter(|(name, value)| !basis.covers(name, *value))
        .map(|(name, value)| format!("{name} {value} was not measured"))
        .collect();
    let inside_support = outside.is_empty() && basis.origin == Origin::Fitted;
    let text = std::iter::once(basis.note.clone())
        .filter(|text| !text.is_empty())
        .chain(outside)
        .collect::<Vec<_>>()
        .join("; ");
    CurveNote { curve, origin: basis.origin, error_share: basis.error_share, inside_support, text }
}

const SKEW: &str = "skew enters as the busiest rank's rows on the balanced curve (assumed)";

fn decode_note(profile: &Profile, shape: &ModelShape, fabric: &Fabric, known: bool) -> CurveNote {
    let exchange = &profile.exchange;
    let several = fabric.nodes > 1.0 + 1e-9;
    let mut basis =
        if several { &exchange.multi_node_basis } else { &exchange.one_node_basis }.clone();
    if !known {
        let text = format!("{:.1} nodes were not measured, formula over node counts", fabric.nodes);
        basis = basis.weaker(&Basis::new(Origin::Scaled, 0.16, text));
    }
    let inputs = shape_inputs(shape, fabric);
    if inputs.iter().any(|(name, value)| !basis.covers(name, *value)) {
        basis = basis.weaker(&Basis::new(Origin::Scaled, 0.1, "scaled by bytes per token"));
    }
    basis = basis.weaker(&Basis::new(basis.origin, basis.error_share, SKEW));
    note("decode exchange".to_owned(), &basis, &inputs)
}

fn prefill_note(
    profile: &Profile,
    shape: &ModelShape,
    fabric: &Fabric,
    origin: Origin,
) -> CurveNote {
    let exchange = &profile.exchange;
    let several = fabric.nodes > 1.0 + 1e-9;
    let basis =
        if several { &exchange.normal_multi_node_basis } else { &exchange.normal_one_node_basis };
    let basis = match origin {
        Origin::Fitted => basis.clone(),
        Origin::Scaled => basis.weaker(&Basis::new(origin, 0.1, "nearest table shifted by bytes")),
        _ => {
            let text = "the 8-node dispatch rows are doubtful, combine's rate is taken";
            basis.weaker(&Basis::new(origin, 0.2, text))
        }
    };
    let basis = basis.weaker(&Basis::new(basis.origin, basis.error_share, SKEW));
    note("prefill exchange".to_owned(), &basis, &shape_inputs(shape, fabric))
}

fn shape_inputs(shape: &ModelShape, fabric: &Fabric) -> [(&'static str, f64); 4] {
    [
        ("hidden", f64::from(shape.hidden)),
        ("top_k", f64::from(shape.top_k)),
        ("experts", f64::from(shape.experts)),
        ("node_ranks", fabric.node_ranks),
    ]
}

fn attention_notes(
    profile: &Profile,
    sizes: &AttentionShape,
    shape: &ModelShape,
) -> [CurveNote; 2] {
    let inputs = [("heads", f64::from(sizes.heads)), ("hidden", f64::from(shape.hidden))];
    let attention = &profile.attention;
    [
        ("prefill attention", &attention.context_basis),
        ("decode attention", &attention.generation_basis),
    ]
    .map(|(curve, basis)| {
        let mut basis = basis.clone();
        if !sizes.latent {
            let text = "grouped-query attention with the rates of latent attention";
            basis = basis.weaker(&Basis::new(Origin::Borrowed, 0.2, text));
        } else if inputs.iter().any(|(name, value)| !basis.covers(name, *value)) {
            basis =
                basis.weaker(&Basis::new(Origin::Scaled, 0.1, "scaled by bytes and operations"));
        }
        if sizes.weight_bytes > 1.0 {
            let text = "projections in bf16: twice the bytes, half the rate of FP8";
            basis = basis.weaker(&Basis::new(Origin::Scaled, 0.1, text));
        }
        note(curve.to_owned(), &basis, &inputs)
    })
}

fn scaled_experts(curve: &ExpertCurve, draw: &Draw) -> ExpertCurve {
    let (floor, first, row) = (draw.expert_floor, draw.expert_first, draw.expert_row);
    let form = match curve.form {
        ExpertForm::Separable(c) => ExpertForm::Separable(ExpertCoefficients {
            floor_us: c.floor_us * floor,
            slot_us: c.slot_us * floor,
            host_us: c.host_us * floor,
            first_us: c.first_us * first,
            further_tile_us: c.further_tile_us * row,
            row_us: c.row_us * row,
            token_us: c.token_us * row,
            tile_rows: c.tile_rows,
        }),
        ExpertForm::Rank(form) => ExpertForm::Rank(RankForm {
            floor_us: form.floor_us * floor,
            slot_us: form.slot_us * floor,
            weight_us: form.weight_us * first,
            row_ops_us: form.row_ops_us * row,
            switch: form.switch.map(|(switch, after)| (switch, after * row)),
            row_us: form.row_us * row,
            token_us: form.token_us * row,
            power: form.power,
            tile_rows: form.tile_rows,
        }),
    };
    ExpertCurve { form, ..curve.clone() }
}
