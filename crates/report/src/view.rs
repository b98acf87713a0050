//! The report as plain data: what is shown, before any thought of how.
//!
//! Everything is optional. What is empty or `None` is left out of the page, and every type reads
//! from JSON that lacks fields, so that a stored report outlives the addition of a section.

mod decision;
mod moves;
mod pictures;
mod quantiles;

pub use decision::*;
pub use moves::*;
pub use pictures::*;

use serde::{Deserialize, Serialize};

/// The schema string of a stored report.
pub const SCHEMA: &str = "evenkeel.report/1";

/// Everything a report shows. Stored as `report.json`; rendered by `html` and `markdown`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// What this report is about, as a title.
    pub title: String,
    /// Model, group, hardware and load in one line.
    pub subtitle: String,
    /// Whether times come from a cost model or from a clock; said beside every time.
    pub origin: TimeOrigin,
    /// What wrote the report, and from what. One line; no wall-clock time unless asked for.
    pub generated_note: String,
    /// The decision and why.
    pub verdict: Option<VerdictView>,
    /// The few numbers to remember.
    pub facts: Vec<Fact>,
    /// What happened, in sentences.
    pub story: Vec<Paragraph>,
    /// Shares of the traffic by slice, before and after.
    pub mix: Option<MixView>,
    /// Expert × layer pictures. Maps with the same unit share one scale.
    pub heat: Vec<HeatMap>,
    /// The experts that matter most, hottest first.
    pub hot_experts: Vec<HotExpert>,
    /// What made the step slow, in parts that add up.
    pub diagnosis: Option<DiagnosisView>,
    /// Load of every rank in every layer, one per expert map.
    pub rank_loads: Vec<RankLoads>,
    /// One slow step, by layer and rank.
    pub waterfall: Option<StepWaterfall>,
    /// Latency distributions, one panel each.
    pub distributions: Vec<Distribution>,
    /// What each plan costs and brings.
    pub prices: Vec<PlanPrice>,
    /// What no map whatsoever could save, or could at most: a sentence printed with the plans.
    pub bound_note: String,
    /// The gate's comparisons, one row each.
    pub comparisons: Vec<Comparison>,
    /// Other situations and what Evenkeel says about them.
    pub counter_incidents: Vec<CounterIncident>,
    /// Anything else in rows and columns.
    pub tables: Vec<ExtraTable>,
    /// What was assumed.
    pub assumptions: Vec<String>,
    /// The cost curves behind modelled times.
    pub model: Vec<CurveNote>,
    /// How the numbers came to be: commands, seeds, digests.
    pub provenance: Vec<Fact>,
    /// Whose data is shown, and under which licence.
    pub attribution: Vec<String>,
}

impl Default for Report {
    fn default() -> Self {
        Report {
            schema: SCHEMA.to_owned(),
            title: String::new(),
            subtitle: String::new(),
            origin: TimeOrigin::default(),
            generated_note: String::new(),
            verdict: None,
            facts: Vec::new(),
            story: Vec::new(),
            mix: None,
            heat: Vec::new(),
            hot_experts: Vec::new(),
            diagnosis: None,
            rank_loads: Vec::new(),
            waterfall: None,
            distributions: Vec::new(),
            prices: Vec::new(),
            bound_note: String::new(),
            comparisons: Vec::new(),
            counter_incidents: Vec::new(),
            tables: Vec::new(),
            assumptions: Vec::new(),
            model: Vec::new(),
            provenance: Vec::new(),
            attribution: Vec::new(),
        }
    }
}

/// Why a stored report could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not the JSON of a report.
    #[error("read report.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A report of another schema.
    #[error("report.json has schema `{found}`, expected `{SCHEMA}`")]
    Schema {
        /// What the file says, shortened.
        found: String,
    },
}

impl Report {
    /// The report as JSON, numbers that are not finite as `null`.
    ///
    /// # Errors
    /// When a value cannot be written as JSON.
    pub fn to_json(&self) -> Result<String, ReportError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Reads what [`Report::to_json`] wrote.
    ///
    /// # Errors
    /// When the text is not such JSON, or its schema is another.
    pub fn from_json(json: &str) -> Result<Report, ReportError> {
        let report: Report = serde_json::from_str(json)?;
        if report.schema != SCHEMA {
            let found = report.schema.chars().take(60).collect();
            return Err(ReportError::Schema { found });
        }
        Ok(report)
    }
}

/// Where the times of a report come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeOrigin {
    /// From a cost model. The cautious default: a time is modelled unless someone says otherwise.
    #[default]
    Modelled,
    /// From clocks of the system described.
    Measured,
}

impl TimeOrigin {
    /// The word printed beside times.
    pub fn word(self) -> &'static str {
        match self {
            TimeOrigin::Modelled => "modelled",
            TimeOrigin::Measured => "measured",
        }
    }
}

/// How a statement leans. Always shown with a mark and a word beside the colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// A positive finding.
    Good,
    /// A negative finding.
    Bad,
    /// The numbers do not decide it.
    Unsure,
    /// Neither.
    #[default]
    Neutral,
}

impl Tone {
    /// The mark that stands for the tone where colour cannot.
    pub fn mark(self) -> &'static str {
        match self {
            Tone::Good => "✓",
            Tone::Bad => "✗",
            Tone::Unsure => "?",
            Tone::Neutral => "•",
        }
    }

    /// The CSS class of the tone.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Good => "good",
            Tone::Bad => "bad",
            Tone::Unsure => "unsure",
            Tone::Neutral => "neutral",
        }
    }
}

/// A named value in words.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fact {
    /// What it is: `p99 TPOT`.
    pub name: String,
    /// The value with its unit: `24.1 ms`.
    pub value: String,
    /// The value it had, or has on the live map, where that is the point.
    pub before: Option<String>,
    /// Weighting, condition, or what to make of it.
    pub note: String,
    /// Whether the value rests on a time, so that the origin is printed with it.
    pub time: bool,
}

impl Fact {
    /// A fact that is not a time.
    pub fn new(name: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Fact {
        Fact { name: name.into(), value: value.into(), note: note.into(), ..Fact::default() }
    }

    /// A fact that rests on a time.
    pub fn time(
        name: impl Into<String>,
        value: impl Into<String>,
        note: impl Into<String>,
    ) -> Fact {
        Fact { time: true, ..Fact::new(name, value, note) }
    }

    /// The same fact with the value it replaces.
    #[must_use]
    pub fn instead_of(mut self, before: impl Into<String>) -> Fact {
        self.before = Some(before.into());
        self
    }
}

/// A piece of the story.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Paragraph {
    /// A short lead-in, printed in bold; may be empty.
    pub lead: String,
    /// The sentences.
    pub text: String,
}

impl Paragraph {
    /// A paragraph with a lead-in.
    pub fn new(lead: impl Into<String>, text: impl Into<String>) -> Paragraph {
        Paragraph { lead: lead.into(), text: text.into() }
    }
}
