//! A few lines of TOML become a trace: curve times for drawn rows, times stated faults and noise.

mod draw;
mod record;

use evenkeel_cost::{Profile, StepModel};
use evenkeel_diagnose::{Observation, Options};
use evenkeel_trace::{RequestRecord, StepRecord, TraceHeader};
use evenkeel_types::{ExpertId, ExpertMap, ModelShape, Node, SlotId, Topology};
use serde::Deserialize;

/// A situation: a machine, a window, perhaps a baseline.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sketch {
    /// What happened, for a reader.
    pub about: String,
    #[serde(default)]
    pub seed: u64,
    #[serde(default = "h20")]
    pub profile: String,
    /// Ranks of each node.
    pub nodes: Vec<u16>,
    pub layers: u16,
    pub experts: u16,
    pub top_k: u8,
    pub slots_per_rank: usize,
    /// Standard deviation of the logarithm of every span.
    #[serde(default = "two_percent")]
    pub noise: f64,
    /// True time over the curve's, for experts, attention and exchange: no curve is right.
    #[serde(default = "bias")]
    pub bias: [f64; 3],
    /// Slots set by hand: layer, rank, slot, expert.
    #[serde(default)]
    pub slot: Vec<[u16; 4]>,
    pub now: WindowSketch,
    pub baseline: Option<WindowSketch>,
}

fn h20() -> String {
    "h20".into()
}

fn two_percent() -> f64 {
    0.02
}

fn bias() -> [f64; 3] {
    [1.1, 0.93, 1.07]
}

/// A window of decode steps.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSketch {
    pub steps: u64,
    pub sequences_per_rank: u32,
    #[serde(default = "thousand")]
    pub context: u32,
    /// Popularity of experts: (layer, expert, times the others').
    #[serde(default)]
    pub hot: Vec<(u16, u16, f64)>,
    /// Layers in which nothing is routed.
    #[serde(default)]
    pub empty_layers: Vec<u16>,
    /// First so many steps repeat one routing exactly, on other experts.
    #[serde(default)]
    pub warm_up: u64,
    /// Rows by layer and rank, instead of drawn ones; then there is no routing.
    #[serde(default)]
    pub rows: Vec<Vec<u32>>,
    #[serde(default = "yes")]
    pub routing: bool,
    #[serde(default)]
    pub links: bool,
    #[serde(default = "yes")]
    pub spans: bool,
    /// Dispatch service holds the waiting too, as a profiler of one rank sees it.
    #[serde(default)]
    pub waiting_as_service: bool,
    /// Share of an expert's rows for the copy on a rank: (layer, expert, rank, share).
    #[serde(default)]
    pub copy_share: Vec<(u16, u16, u16, f64)>,
    /// (tenant, share) of requests, and how many requests.
    #[serde(default)]
    pub mix: Vec<(String, f64)>,
    #[serde(default)]
    pub requests: u64,
    /// Model revision of every slice.
    #[serde(default)]
    pub revision: String,
    /// Prefill steps between decode steps: (one after so many decode steps, ms).
    pub prefill: Option<(u64, f64)>,
    #[serde(default)]
    pub faults: Faults,
}

fn thousand() -> u32 {
    1000
}

fn yes() -> bool {
    true
}

/// What is broken.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// (name, factor, from step).
    pub kernel: Option<(String, f64, u64)>,
    /// (rank, factor, from step).
    pub slow_rank: Option<(usize, f64, u64)>,
    /// (node, share of the rate left, from step).
    pub link: Option<(usize, f64, u64)>,
    /// (rank, ms in the first layer, from step, span: `router` or none).
    pub late: Option<(usize, f64, u64, String)>,
    /// (rank, times the context).
    pub kv: Option<(usize, f64)>,
}

/// An expanded window that owns what an observation borrows.
pub struct Scene {
    pub header: TraceHeader,
    pub map: ExpertMap,
    pub topology: Topology,
    pub steps: Vec<StepRecord>,
    pub requests: Vec<RequestRecord>,
    pub breaches: Vec<String>,
}

impl Scene {
    pub fn observation(&self) -> Observation<'_> {
        Observation {
            header: &self.header,
            map: &self.map,
            topology: &self.topology,
            steps: &self.steps,
            requests: &self.requests,
            breaches: &self.breaches,
        }
    }
}

impl Sketch {
    pub fn shape(&self) -> ModelShape {
        let mut shape = ModelShape::known("deepseek-v2-lite").unwrap();
        shape.name = "sketch".into();
        shape.dense_layers = 0;
        shape.moe_layers = self.layers;
        shape.experts = self.experts;
        shape.top_k = self.top_k;
        shape
    }

    pub fn topology(&self) -> Topology {
        let mut topology = Topology::uniform(&self.profile, 8, 96_000_000_000);
        let like = topology.node[0].clone();
        topology.node = self
            .nodes
            .iter()
            .enumerate()
            .map(|(i, ranks)| Node { name: format!("node-{i}"), ranks: *ranks, ..like.clone() })
            .collect();
        topology
    }

    pub fn model(&self) -> StepModel {
        let profile = Profile::builtin(&self.profile).unwrap();
        StepModel::resolve(&profile, &self.shape(), &self.topology()).unwrap()
    }

    pub fn map(&self) -> ExpertMap {
        let ranks = self.topology().rank_count();
        let mut map = ExpertMap::contiguous(&self.shape(), ranks, self.slots_per_rank);
        for [layer, rank, slot, expert] in &self.slot {
            map.slots[usize::from(*layer)][usize::from(*rank)][SlotId(*slot).index()] =
                Some(ExpertId(*expert));
        }
        map
    }

    /// The options of every case.
    pub fn options(&self) -> Options {
        Options { seed: self.seed, ..Options::default() }
    }

    /// Expands a window; `salt` keeps the draws of two windows apart.
    pub fn expand(&self, window: &WindowSketch, salt: u64) -> Scene {
        record::Recorder::new(self, window, salt).scene()
    }
}
