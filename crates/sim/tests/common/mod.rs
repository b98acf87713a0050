//! Hand-made curves and synthetic routing for tests and benchmarks.

#![allow(dead_code, missing_docs, reason = "each test and benchmark uses its own part")]
#![allow(clippy::unwrap_used, reason = "a fixture stops where it cannot be made")]

use evenkeel_cost::{AttentionLoad, Basis, Crossing, ExpertCoefficients, ExpertCurve, Origin};
use evenkeel_sim::{GroupConfig, Job, Role, SinkError, StepSink, StepTimes};
use evenkeel_trace::{RecordedRequest, Routes, StepRecord};
use evenkeel_types::{ModelShape, Phase, SliceId, hash3, unit_f64};

/// Curves that can be added up by hand.
pub struct HandCurves {
    pub attention_us: f64,
    pub attention_us_per_context: f64,
    pub layer_rest_us: f64,
    pub dispatch_us_per_token: f64,
    pub combine_us_per_token: f64,
    pub step_rest_us: f64,
    pub experts: ExpertCurve,
    pub overlap_share: f64,
    pub top_k: f64,
}

impl HandCurves {
    /// 10 µs of attention, 2 µs of router, 0.5 and 1 µs per exchanged token, 100 µs per step, and
    /// experts of 5 µs + 10 µs per active expert + 1 µs per row.
    pub fn simple() -> Self {
        let coefficients = ExpertCoefficients {
            floor_us: 5.0,
            slot_us: 0.0,
            first_us: 10.0,
            tile_rows: 64,
            further_tile_us: 0.0,
            row_us: 1.0,
            token_us: 0.0,
            host_us: 0.0,
        };
        Self::with(coefficients)
    }

    pub fn with(coefficients: ExpertCoefficients) -> Self {
        let basis = Basis::new(Origin::Assumed, 0.0, "by hand");
        Self {
            attention_us: 10.0,
            attention_us_per_context: 0.0,
            layer_rest_us: 2.0,
            dispatch_us_per_token: 0.5,
            combine_us_per_token: 1.0,
            step_rest_us: 100.0,
            experts: ExpertCurve::separable("by hand", coefficients, basis),
            overlap_share: 0.0,
            top_k: 1.0,
        }
    }
}

impl StepTimes for HandCurves {
    fn attention_us(&self, _: Phase, load: &AttentionLoad) -> f64 {
        self.attention_us + self.attention_us_per_context * load.context_tokens as f64
    }

    fn dense_layers(&self) -> f64 {
        0.0
    }

    /// Decode: rows by top-k. Prefill: what crosses weighs four times what is forwarded.
    fn tokens_equivalent(&self, phase: Phase, crossing: &Crossing) -> f64 {
        match phase {
            Phase::Decode => crossing.pairs / self.top_k,
            Phase::Prefill => (4.0 * crossing.node_rows).max(crossing.rank_rows),
        }
    }

    fn layer_rest_us(&self, _: Phase, _: u32) -> f64 {
        self.layer_rest_us
    }

    fn dispatch_us(&self, _: Phase, tokens: f64) -> f64 {
        self.dispatch_us_per_token * tokens
    }

    fn combine_us(&self, _: Phase, tokens: f64) -> f64 {
        self.combine_us_per_token * tokens
    }

    fn step_rest_us(&self, _: Phase, _: u32) -> f64 {
        self.step_rest_us
    }

    fn experts(&self, _: Phase) -> &ExpertCurve {
        &self.experts
    }

    fn overlap_share(&self) -> f64 {
        self.overlap_share
    }

    fn row_bytes(&self, _: Phase) -> [u64; 2] {
        [100, 200]
    }
}

/// A shape with these dimensions.
pub fn shape(layers: u16, experts: u16, top_k: u8) -> ModelShape {
    ModelShape {
        moe_layers: layers,
        experts,
        top_k,
        groups: None,
        ..ModelShape::known("deepseek-v2-lite").unwrap()
    }
}

/// Recorded requests of `prompt + output` tokens in `slices` slices, whose experts are drawn from a
/// skewed popularity that differs by layer and slice.
pub fn routing(
    shape: &ModelShape,
    requests: usize,
    slices: u16,
    prompt: u32,
    output: u32,
    seed: u64,
) -> Routes {
    let tokens = (prompt + output) as usize;
    let (layers, experts) = (u64::from(shape.moe_layers), u64::from(shape.experts));
    let mut ids = Vec::new();
    let mut recorded = Vec::new();
    for request in 0..requests {
        let slice = (request % usize::from(slices)) as u16;
        recorded.push(RecordedRequest {
            request: request as u64,
            slice: SliceId(slice),
            first_token: request * tokens,
            prompt_tokens: prompt,
            tokens: prompt + output,
        });
        for token in 0..tokens {
            let token = (request * tokens + token) as u64;
            for layer in 0..layers {
                let start = ids.len();
                let mut draw = 0;
                while ids.len() - start < usize::from(shape.top_k) {
                    let unit = unit_f64(hash3(seed, token * layers + layer, draw));
                    draw += 1;
                    // Squaring prefers low numbers; the shift makes them others by layer and slice.
                    let rank = (unit * unit * experts as f64) as u64;
                    let expert = ((rank + layer * 7 + u64::from(slice) * 13) % experts) as u16;
                    if !ids[start..].contains(&expert) {
                        ids.push(expert);
                    }
                }
            }
        }
    }
    Routes::new(shape, recorded, ids).unwrap()
}

/// Recorded requests with these (prompt, output) tokens in slice 0; the ids are `ids[token][..]`
/// over all layers and choices.
pub fn recorded(shape: &ModelShape, lengths: &[(u32, u32)], ids: Vec<u16>) -> Routes {
    let mut first_token = 0;
    let mut requests = Vec::new();
    for (index, &(prompt_tokens, output)) in lengths.iter().enumerate() {
        let tokens = prompt_tokens + output;
        let (request, slice) = (index as u64, SliceId(0));
        requests.push(RecordedRequest { request, slice, first_token, prompt_tokens, tokens });
        first_token += tokens as usize;
    }
    Routes::new(shape, requests, ids).unwrap()
}

/// Jobs that replay the recorded requests in order, with these arrivals.
pub fn jobs(arrivals_ns: &[u64]) -> Vec<Job> {
    let job = |(index, &arrival_ns): (usize, &u64)| Job {
        job: index as u64,
        slice: SliceId(0),
        recorded: index,
        arrival_ns,
        decoded: 0,
    };
    arrivals_ns.iter().enumerate().map(job).collect()
}

/// Roomy limits.
pub fn config(role: Role) -> GroupConfig {
    GroupConfig {
        role,
        decode_sequences_per_rank: 64,
        prefill_tokens_per_rank: 1024,
        prefill_steps_in_row_max: 4,
        kv_blocks_per_rank: 4096,
        kv_block_tokens: 16,
    }
}

/// Keeps every record whole.
#[derive(Default)]
pub struct Keep {
    pub records: Vec<StepRecord>,
}

impl StepSink for Keep {
    fn wants_routing(&self, _step: u64) -> bool {
        true
    }

    fn wants_layers(&self) -> bool {
        true
    }

    fn record(&mut self, step: &StepRecord) -> Result<(), SinkError> {
        self.records.push(step.clone());
        Ok(())
    }
}
