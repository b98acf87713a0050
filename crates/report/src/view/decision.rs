//! Verdict, causes, prices, comparisons: what was decided and by which numbers.

use serde::{Deserialize, Serialize};

use super::{Fact, Tone};
use crate::num;

/// The verdict at the top of the page.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VerdictView {
    /// The verdict's own words: `accept (modelled)`.
    pub label: String,
    /// How it leans.
    pub tone: Tone,
    /// One sentence that a colleague can repeat.
    pub headline: String,
    /// What decided, most weighty first.
    pub reasons: Vec<ReasonView>,
}

/// One reason of a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReasonView {
    /// How it leans.
    pub tone: Tone,
    /// The reason, with its numbers.
    pub text: String,
}

impl ReasonView {
    /// A reason.
    pub fn new(tone: Tone, text: impl Into<String>) -> ReasonView {
        ReasonView { tone, text: text.into() }
    }
}

/// What made a step slow: from a baseline, through causes, to what was observed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiagnosisView {
    /// What is decomposed: `mean decode step` (a time in ms).
    pub quantity: String,
    /// What the baseline is: `same batch, every rank at the mean`.
    pub baseline_label: String,
    /// The baseline, ms.
    pub baseline_ms: Option<f64>,
    /// What was observed, ms. What baseline and causes leave over is shown as unexplained.
    pub observed_ms: Option<f64>,
    /// The causes, largest first.
    pub causes: Vec<CauseView>,
    /// What was examined and excluded, one sentence each.
    pub ruled_out: Vec<String>,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseView {
    /// Its kind: `mix shift`, `hot expert`, `slow link`.
    pub kind: String,
    /// What it adds to the step, ms; NaN where it cannot be told.
    #[serde(deserialize_with = "num::one")]
    pub ms_per_step: f64,
    /// Layer, rank, link, expert or slice.
    pub place: String,
    /// What supports it, one sentence each.
    pub evidence: Vec<String>,
    /// What to do about it.
    pub remedy: String,
}

/// One hot expert.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HotExpert {
    /// MoE layer.
    pub layer: u32,
    /// Logical expert.
    pub expert: u32,
    /// Its tokens over the layer's mean per expert, before.
    #[serde(deserialize_with = "num::one")]
    pub before: f64,
    /// The same, after.
    #[serde(deserialize_with = "num::one")]
    pub after: f64,
    /// Copies on the live map.
    pub copies_live: u32,
    /// Copies on the candidate map, where there is one.
    pub copies_candidate: Option<u32>,
    /// Which slices its tokens come from, or which ranks hold it.
    pub note: String,
}

/// Shares of traffic by slice.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MixView {
    /// What is shared out: `decoded tokens`.
    pub unit: String,
    /// Name of the first window.
    pub before_label: String,
    /// Name of the second window.
    pub after_label: String,
    /// One per slice.
    pub slices: Vec<SliceShare>,
    /// What follows, for instance that revisions did not change.
    pub note: String,
}

/// One slice's share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SliceShare {
    /// The slice's name.
    pub slice: String,
    /// Share before, 0 to 1.
    #[serde(deserialize_with = "num::one")]
    pub before: f64,
    /// Share after, 0 to 1.
    #[serde(deserialize_with = "num::one")]
    pub after: f64,
}

/// What a plan costs and brings. Numbers that were not computed stay `None`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanPrice {
    /// Its name: `from the live map`, `from scratch, greedy`, `do nothing`.
    pub name: String,
    /// Whether this is the plan that the verdict is about.
    pub chosen: bool,
    /// Slots rewritten.
    pub moves: Option<u64>,
    /// Rewritten slots over all slots, 0 to 1.
    pub slot_share: Option<f64>,
    /// Weight bytes sent.
    pub bytes: Option<f64>,
    /// Time of the move at the allowed rate, s.
    pub seconds: Option<f64>,
    /// What that rate is: `2 GB/s per rank`.
    pub rate_note: String,
    /// Predicted change of the step on planning data, as a share; negative is faster.
    pub step_change: Option<f64>,
    /// What is left between this plan and the bound over all maps, as a share of the step.
    pub bound_gap: Option<f64>,
    /// Steps until the saved time exceeds the cost of moving.
    pub break_even_steps: Option<f64>,
    /// The same in seconds.
    pub break_even_s: Option<f64>,
    /// KV capacity given up, as a share; 0 where none.
    pub kv_lost: Option<f64>,
    /// Anything else, such as why it was refused.
    pub note: String,
}

/// One comparison of the gate: a metric on the live and on the candidate map.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// `TPOT p99`, `goodput`, `KV headroom`.
    pub metric: String,
    /// `by request`, `by token`; empty where it has none.
    pub weighting: String,
    /// The slice, `all` for everything.
    pub slice: String,
    /// Unit of both values: `ms`, `req/s`, `%`.
    pub unit: String,
    /// Whether the value rests on a time, so that the origin is printed with it.
    pub time: bool,
    /// On the live map.
    #[serde(deserialize_with = "num::one")]
    pub live: f64,
    /// On the candidate.
    #[serde(deserialize_with = "num::one")]
    pub candidate: f64,
    /// Change as a share of the live value.
    #[serde(deserialize_with = "num::one")]
    pub change: f64,
    /// Confidence interval of the change.
    #[serde(deserialize_with = "num::pair")]
    pub interval: Option<(f64, f64)>,
    /// The largest (or, where higher is better, smallest) change that passes.
    pub limit: Option<f64>,
    /// Whether a higher value is the better one.
    pub higher_is_better: bool,
    /// `Some(true)` passes, `Some(false)` fails, `None` cannot be told.
    pub pass: Option<bool>,
    /// Why, where the numbers alone do not say it.
    pub note: String,
}

/// Another situation and what Evenkeel says about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterIncident {
    /// The situation.
    pub title: String,
    /// What was found, a few lines.
    pub lines: Vec<String>,
    /// The verdict in its own words: `do nothing`.
    pub verdict: String,
    /// How it leans.
    pub tone: Tone,
}

/// Any other table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtraTable {
    /// Its title.
    pub title: String,
    /// What to make of it.
    pub note: String,
    /// Column heads, units included.
    pub head: Vec<String>,
    /// Rows of cells. Cells that read as numbers are set flush right.
    pub rows: Vec<Vec<String>>,
}

/// One cost curve: what it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CurveNote {
    /// What it predicts.
    pub curve: String,
    /// `fitted`, `scaled`, `borrowed`, and from what.
    pub origin: String,
    /// Its error on rows it did not see.
    pub error: String,
    /// The range of the measurements, and whether this report stays inside.
    pub support: String,
}

impl From<(&str, &str)> for Fact {
    fn from((name, value): (&str, &str)) -> Fact {
        Fact::new(name, value, "")
    }
}
