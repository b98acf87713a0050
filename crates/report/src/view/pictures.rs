//! The data behind the pictures.

use serde::{Deserialize, Serialize};

use crate::num;

/// An expert × layer picture: rows are layers, columns logical experts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatMap {
    /// What is shown: `before the shift`.
    pub title: String,
    /// Unit of the values: `× the layer's mean tokens per expert`. Maps of one unit share a scale.
    pub unit: String,
    /// Meaning of the columns; empty means `logical expert`.
    pub x_label: String,
    /// Meaning of the rows; empty means `MoE layer`.
    pub y_label: String,
    /// Number of the first row: models whose first layers are dense start above 0.
    pub first_row: u32,
    /// Values, `[layer][expert]`. Rows may differ in length.
    #[serde(deserialize_with = "num::grid")]
    pub values: Vec<Vec<f32>>,
}

/// The load of every rank in every layer under one map.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankLoads {
    /// The map and the traffic: `live map, new mix`.
    pub title: String,
    /// Unit: `tokens ÷ mean of the layer`, `expert time ÷ mean of the layer`. Pictures of one unit
    /// share a scale.
    pub unit: String,
    /// Number of the first layer.
    pub first_layer: u32,
    /// Loads, `[layer][rank]`.
    #[serde(deserialize_with = "num::grid")]
    pub values: Vec<Vec<f32>>,
}

impl RankLoads {
    /// Balancedness of each layer: mean ÷ max over ranks; NaN for a layer without load.
    pub fn balancedness(&self) -> Vec<f64> {
        self.values.iter().map(|row| balancedness(row)).collect()
    }
}

/// Mean ÷ max of the finite values; NaN where the largest is not positive.
fn balancedness(row: &[f32]) -> f64 {
    let finite: Vec<f64> = row.iter().filter(|v| v.is_finite()).map(|&v| f64::from(v)).collect();
    let max = finite.iter().copied().fold(0.0, f64::max);
    if max <= 0.0 {
        return f64::NAN;
    }
    finite.iter().sum::<f64>() / finite.len() as f64 / max
}

/// One step taken apart by layer and rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepWaterfall {
    /// Which step, and on which map: `decode step 1841, live map, new mix`.
    pub title: String,
    /// The step's number.
    pub step: u64,
    /// The whole step, µs, as recorded. Time outside the layers shows as the difference.
    pub step_us: Option<f64>,
    /// Number of the first layer.
    pub first_layer: u32,
    /// `[layer][rank]`.
    pub layers: Vec<Vec<RankSpans>>,
}

/// What one rank does in one layer, in order of time, µs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSpans {
    /// Attention, router, and whatever comes before the dispatch.
    #[serde(deserialize_with = "num::one")]
    pub attention_us: f64,
    /// Waiting for the last rank to enter the dispatch.
    #[serde(deserialize_with = "num::one")]
    pub wait_dispatch_us: f64,
    /// Sending tokens to their experts.
    #[serde(deserialize_with = "num::one")]
    pub dispatch_us: f64,
    /// The experts.
    #[serde(deserialize_with = "num::one")]
    pub expert_us: f64,
    /// Waiting for the last rank to enter the return.
    #[serde(deserialize_with = "num::one")]
    pub wait_return_us: f64,
    /// Sending results back and summing them.
    #[serde(deserialize_with = "num::one")]
    pub return_us: f64,
    /// The rest of the layer.
    #[serde(deserialize_with = "num::one")]
    pub rest_us: f64,
}

impl RankSpans {
    /// The spans in order of time; what is not finite or negative counts as 0.
    pub(crate) fn parts(&self) -> [f64; 7] {
        let RankSpans {
            attention_us,
            wait_dispatch_us,
            dispatch_us,
            expert_us,
            wait_return_us,
            return_us,
            rest_us,
        } = *self;
        [attention_us, wait_dispatch_us, dispatch_us, expert_us, wait_return_us, return_us, rest_us]
            .map(|v| if v.is_finite() { v.max(0.0) } else { 0.0 })
    }

    /// All spans together, µs.
    pub fn total_us(&self) -> f64 {
        self.parts().iter().sum()
    }
}

/// One panel of latency curves: the same slice under several maps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// What is shown and of which slice: `translation`.
    pub title: String,
    /// The quantity: `TPOT`.
    pub quantity: String,
    /// Its unit: `ms`. Panels of one quantity and unit share a scale.
    pub unit: String,
    /// `by request` or `by token`.
    pub weighting: String,
    /// One curve per map.
    pub series: Vec<Series>,
    /// The SLO in the same unit.
    pub slo: Option<f64>,
    /// The percentile that the SLO is about, 0 to 1; 0.99 where not given.
    pub slo_q: Option<f64>,
}

/// One curve.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// The map: `live`, `candidate`, `from scratch`. Curves of one name look alike in all panels.
    pub name: String,
    /// How many samples.
    pub samples: u64,
    /// The curve: quantiles, q rising.
    pub quantiles: Vec<Quantile>,
}

/// One point of a quantile curve.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantile {
    /// The share of samples not above the value, 0 to 1.
    #[serde(deserialize_with = "num::one")]
    pub q: f64,
    /// The value.
    #[serde(deserialize_with = "num::one")]
    pub value: f64,
}
