//! The header of a trace: the file `trace.json`.

use evenkeel_types::{ModelShape, Slice, Topology};
use serde::{Deserialize, Serialize};

/// Schema name that `trace.json` must carry. The number rises when an old reader would misread.
pub const TRACE_SCHEMA: &str = "evenkeel.trace/1";

/// Where the times in a trace come from. Every verdict that rests on times repeats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeOrigin {
    /// The trace has no times (a dump of routing alone).
    #[default]
    None,
    /// Clocks of a running engine.
    Measured,
    /// Cost curves (replay backend).
    Modelled,
    /// Measured compute with an injected link model.
    Emulated,
}

/// A map that was live during the trace. The map itself lies beside the header in `maps/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapVersion {
    /// Version of the map.
    pub version: u64,
    /// Digest of its placement ([`evenkeel_types::ExpertMap::digest`]).
    pub digest: String,
    /// First step that ran on it.
    pub from_step: u64,
}

/// Everything about a trace that is not a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHeader {
    /// [`TRACE_SCHEMA`].
    pub schema: String,
    /// Model whose routing was recorded.
    pub model: ModelShape,
    /// Machine that it ran on; absent in a dump of routing alone.
    #[serde(default)]
    pub topology: Option<Topology>,
    /// Slices, indexed by `SliceId`.
    pub slices: Vec<Slice>,
    /// Maps that were live, by first step.
    #[serde(default)]
    pub maps: Vec<MapVersion>,
    /// Names of kernels, indexed by `LayerCell::kernel`.
    #[serde(default)]
    pub kernels: Vec<String>,
    /// Where the times come from.
    #[serde(default)]
    pub times: TimeOrigin,
    /// One of every `routing_every` steps has rows in `routing` and `links`; 0: none has.
    #[serde(default)]
    pub routing_every: u32,
    /// Source, licence and assumptions, one sentence each. Shown by `inspect` and in reports.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl TraceHeader {
    /// A header with nothing but a model and slices.
    #[must_use]
    pub fn new(model: ModelShape, slices: Vec<Slice>) -> Self {
        Self {
            schema: TRACE_SCHEMA.to_owned(),
            model,
            topology: None,
            slices,
            maps: Vec::new(),
            kernels: Vec::new(),
            times: TimeOrigin::None,
            routing_every: 0,
            notes: Vec::new(),
        }
    }
}
