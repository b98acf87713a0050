//! Small problems for the planner's tests.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses a part and stops at a fault"
)]

use evenkeel_cost::ExpertCoefficients;
use evenkeel_plan::{Objective, PlanInput, SearchEffort, SplitRule};
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Topology, hash2, hash3, unit_f64};

pub mod certify;
pub mod random;

#[derive(Clone, Debug)]
pub struct Problem {
    pub shape: ModelShape,
    pub topology: Topology,
    pub live: ExpertMap,
    pub loads: StepLoads,
    pub coefficients: ExpertCoefficients,
    pub policy: Policy,
    pub fixed_us: f64,
    pub seed: u64,
    pub split: SplitRule,
    pub objective: Objective,
    pub effort: SearchEffort,
    pub rank_extra_us: Option<Vec<f64>>,
}

impl Problem {
    /// A lawful live map by construction: experts dealt to ranks in turn, then copies.
    pub fn new(layers: u16, experts: u16, ranks: u16, slots: usize, counts: Vec<Vec<u32>>) -> Self {
        let shape = ModelShape {
            moe_layers: layers,
            experts,
            top_k: 1,
            ..ModelShape::known("deepseek-v2-lite").unwrap()
        };
        let mut live = ExpertMap::contiguous(&shape, usize::from(ranks), slots);
        for layer in &mut live.slots {
            let mut next = 0_u16;
            for slot in 0..slots {
                for rank in layer.iter_mut() {
                    // Once round the experts, then further copies where the rank has none yet.
                    let free = (0..experts)
                        .map(|turn| evenkeel_types::ExpertId((next + turn) % experts))
                        .find(|expert| !rank[..slot].contains(&Some(*expert)));
                    rank[slot] = free;
                    next = free.map_or(next, |expert| (expert.0 + 1) % experts);
                }
            }
        }
        let steps = counts
            .into_iter()
            .map(|counts| {
                let layers = usize::from(layers).max(1);
                let tokens = counts.iter().map(|count| u64::from(*count)).sum::<u64>();
                let tokens = u32::try_from(tokens / layers as u64).unwrap_or(u32::MAX);
                StepLoad { tokens, counts }
            })
            .collect();
        let loads = StepLoads {
            phase: Phase::Decode,
            layers: usize::from(layers),
            experts: usize::from(experts),
            steps,
        };
        let mut policy = Policy::default();
        policy.moves.dwell_s = 1e6;
        Self {
            topology: Topology::uniform("h20", ranks, 96_000_000_000),
            shape,
            live,
            loads,
            coefficients: ExpertCoefficients {
                floor_us: 10.0,
                slot_us: 0.1,
                first_us: 6.0,
                tile_rows: 64,
                further_tile_us: 5.0,
                row_us: 0.02,
                token_us: 0.0,
                host_us: 0.0,
            },
            policy,
            fixed_us: 100.0,
            seed: 1,
            split: SplitRule::Balanced,
            objective: Objective::StepTime,
            effort: SearchEffort::Thorough,
            rank_extra_us: None,
        }
    }

    pub fn input(&self) -> PlanInput<'_> {
        PlanInput {
            shape: &self.shape,
            topology: &self.topology,
            live: &self.live,
            live_split: None,
            loads: &self.loads,
            coefficients: &self.coefficients,
            exchange_us_per_row: 0.01,
            fixed_us: self.fixed_us,
            policy: &self.policy,
            seed: self.seed,
            objective: self.objective,
            effort: self.effort,
            split: self.split,
            rank_extra_us: self.rank_extra_us.as_deref(),
            traffic: None,
        }
    }
}

/// Counts of some steps: a skewed popularity that differs by layer, scattered by step.
pub fn skewed(layers: u16, experts: u16, steps: usize, mean: f64, seed: u64) -> Vec<Vec<u32>> {
    let (layers, experts) = (u64::from(layers), u64::from(experts));
    (0..steps as u64)
        .map(|step| {
            (0..layers * experts)
                .map(|cell| {
                    let heat = (2.5 * unit_f64(hash2(seed, cell))).exp() / 4.5;
                    let scatter = 0.8 + 0.4 * unit_f64(hash3(seed, cell, step));
                    (mean * heat * scatter) as u32
                })
                .collect()
        })
        .collect()
}

/// Pairs of (layer, expert, rank) that `next` has and `live` has not.
pub fn new_pairs(live: &ExpertMap, next: &ExpertMap) -> usize {
    let mut new = 0;
    for layer in 0..live.layers() {
        let layer = evenkeel_types::LayerId(layer as u16);
        for (before, after) in live.hosts(layer).iter().zip(next.hosts(layer)) {
            new += after.iter().filter(|rank| !before.contains(rank)).count();
        }
    }
    new
}
