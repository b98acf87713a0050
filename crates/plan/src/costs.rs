//! The time of one rank in one layer and step, as the search sees it.
//!
//! A rank's time is `(floor + slot·slots + Σ_e cell(m_e)) ÷ speed`, with the host floor of an
//! un-graphed engine above it. `m_e` is the expected number of rows of a copy: the expert's count
//! times the copy's share. A static split hands a copy ⌊m⌋ or ⌈m⌉ rows, so a cell is the linear
//! interpolation of its cost between whole rows. Then splitting an expert is never cheaper in total
//! than leaving it whole, save where a first tile costs less than a further one; the bound relies
//! on this.

use crate::{Objective, PlanInput};
use evenkeel_cost::ExpertCoefficients;

/// Coefficients of one problem.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    coefficients: ExpertCoefficients,
    /// Row, exchange of the row, and the tokens that it stands for, µs.
    row_us: f64,
    tile: f64,
    /// `[rank]`: 1 ÷ speed; 0 where the rank is dead, whose time nobody waits for.
    pub(crate) inverse_speed: Vec<f64>,
    /// `[rank]`: weights of the split.
    pub(crate) weights: Vec<u32>,
    /// Steps of the window.
    pub(crate) steps: usize,
}

impl Costs {
    pub(crate) fn new(input: &PlanInput<'_>) -> Self {
        let ranks = input.topology.ranks();
        let inverse_speed =
            ranks.iter().map(|rank| if rank.dead { 0.0 } else { 1.0 / rank.speed_share }).collect();
        let (coefficients, row_us, steps) = match input.objective {
            Objective::StepTime => {
                let alive = ranks.iter().filter(|rank| !rank.dead).count();
                let tokens = input.coefficients.token_us
                    * distinct_share(usize::from(input.shape.top_k), alive);
                let row_us = input.coefficients.row_us + input.exchange_us_per_row + tokens;
                (*input.coefficients, row_us, input.loads.steps.len())
            }
            Objective::SummedTokens => (
                ExpertCoefficients {
                    floor_us: 0.0,
                    slot_us: 0.0,
                    first_us: 0.0,
                    tile_rows: 1,
                    further_tile_us: 0.0,
                    row_us: 1.0,
                    token_us: 0.0,
                    host_us: 0.0,
                },
                1.0,
                1,
            ),
        };
        let tile = f64::from(coefficients.tile_rows.max(1));
        let weights = input.weights();
        Self { coefficients, row_us, tile, inverse_speed, weights, steps }
    }

    /// Time of a rank with so many slots and no rows, before its speed, µs.
    pub(crate) fn idle_us(&self, slots: usize) -> f64 {
        self.coefficients.floor_us + self.coefficients.slot_us * slots as f64
    }

    /// Cost of one copy's expected rows, its slot left out, before the rank's speed, µs.
    pub(crate) fn cell_us(&self, rows: f64) -> f64 {
        let c = &self.coefficients;
        let active = rows.min(1.0);
        let linear = rows * self.row_us + active * c.first_us;
        if rows <= self.tile || c.further_tile_us <= 0.0 {
            return linear;
        }
        let whole = ((rows / self.tile) as i64) as f64;
        let tiles = whole + (rows - whole * self.tile).min(1.0);
        linear + (tiles - 1.0) * c.further_tile_us
    }

    /// Adds [`Costs::cell_us`] of a share of an expert's rows, times `speed`, to every step's time.
    /// The same arithmetic without a branch or a whole number, so that it goes in vectors.
    pub(crate) fn add_cells(&self, rows: &[f64], share: f64, speed: f64, times: &mut [f64]) {
        /// Adding and taking it away rounds to whole numbers.
        const ROUND: f64 = 4_503_599_627_370_496.0;
        let c = &self.coefficients;
        let (row, first, further) = (self.row_us, c.first_us, c.further_tile_us);
        let least = |a: f64, b: f64| if a < b { a } else { b };
        if further <= 0.0 {
            for (time, rows) in times.iter_mut().zip(rows) {
                let rows = rows * share;
                *time += (rows * row + least(rows, 1.0) * first) * speed;
            }
            return;
        }
        let (tile, inverse) = (self.tile, 1.0 / self.tile);
        for (time, rows) in times.iter_mut().zip(rows) {
            let rows = rows * share;
            let tiles = rows * inverse;
            let near = (tiles + ROUND) - ROUND;
            let whole = near - if near > tiles { 1.0 } else { 0.0 };
            let further_tiles = whole + least(rows - whole * tile, 1.0) - 1.0;
            let further_tiles = if further_tiles > 0.0 { further_tiles } else { 0.0 };
            *time += (rows * row + least(rows, 1.0) * first + further_tiles * further) * speed;
        }
    }

    /// Least cost of an expert's rows however they are split over at most `copies` ranks, µs.
    pub(crate) fn least_us(&self, rows: f64, copies: usize) -> f64 {
        let c = &self.coefficients;
        let whole = self.cell_us(rows);
        let tiles = (rows / self.tile).ceil();
        let cuts = (copies as f64).min(tiles) - 1.0;
        // Only where a first tile is cheaper than a further one does a cut save anything.
        whole + (c.first_us - c.further_tile_us).min(0.0) * cuts.max(0.0)
    }

    /// Whether there is a host floor at all.
    pub(crate) fn has_host(&self) -> bool {
        self.coefficients.host_us > 0.0
    }

    /// Applies the host floor to the slowest rank's time.
    pub(crate) fn on_host(&self, slowest_us: f64) -> f64 {
        self.coefficients.on_host(slowest_us)
    }
}

/// Distinct tokens per row on a rank, were choices spread evenly: `(1 − e^(−x)) ÷ x` with
/// `x = top_k ÷ ranks` choices of a token per rank. On a hot rank the true share is lower.
fn distinct_share(top_k: usize, ranks: usize) -> f64 {
    let choices = top_k as f64 / ranks.max(1) as f64;
    (1.0 - (-choices).exp()) / choices.max(1e-9)
}

/// Counts of one layer over the window.
#[derive(Clone, Debug)]
pub(crate) struct LayerLoads {
    /// `[expert][step]`, flat.
    pub(crate) rows: Vec<f64>,
    /// `[expert]`, summed over the window.
    pub(crate) totals: Vec<u64>,
    /// `[rank]`: fixed load, as cells are.
    pub(crate) extra: Vec<f64>,
}

impl LayerLoads {
    pub(crate) fn of(input: &PlanInput<'_>, layer: usize) -> Self {
        let loads = input.loads;
        let mut totals = vec![0_u64; loads.experts];
        for step in 0..loads.steps.len() {
            for (total, count) in totals.iter_mut().zip(loads.layer(step, layer)) {
                *total += u64::from(*count);
            }
        }
        let rows = match input.objective {
            Objective::SummedTokens => totals.iter().map(|total| *total as f64).collect(),
            Objective::StepTime => {
                let steps = loads.steps.len();
                let mut rows = vec![0.0; loads.experts * steps];
                for step in 0..steps {
                    for (expert, count) in loads.layer(step, layer).iter().enumerate() {
                        rows[expert * steps + step] = f64::from(*count);
                    }
                }
                rows
            }
        };
        let ranks = input.ranks();
        let extra = match input.rank_extra_us {
            Some(extra) => extra[layer * ranks..(layer + 1) * ranks].to_vec(),
            None => vec![0.0; ranks],
        };
        Self { rows, totals, extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(first_us: f64, further_tile_us: f64) -> Costs {
        Costs {
            coefficients: ExpertCoefficients {
                floor_us: 5.0,
                slot_us: 0.5,
                first_us,
                tile_rows: 16,
                further_tile_us,
                row_us: 0.01,
                token_us: 0.0,
                host_us: 0.0,
            },
            row_us: 0.01,
            tile: 16.0,
            inverse_speed: vec![1.0; 4],
            weights: vec![1; 4],
            steps: 1,
        }
    }

    #[test]
    fn whole_rows_cost_what_the_coefficients_say() {
        let costs = costs(10.0, 3.0);
        for rows in [0, 1, 2, 15, 16, 17, 32, 33, 100] {
            let expected = costs.coefficients.slot_us(rows) - costs.coefficients.slot_us;
            let found = costs.cell_us(f64::from(rows));
            assert!((found - expected).abs() < 1e-9, "{rows}: {found} {expected}");
        }
    }

    #[test]
    fn cells_in_vectors_say_the_same() {
        let costs = costs(10.0, 3.0);
        let rows: Vec<f64> = (0..1000).map(|i| f64::from(i) * 0.25).chain([4e9]).collect();
        for share in [1.0, 0.5, 0.37, 0.0] {
            let mut times = vec![1.0; rows.len()];
            costs.add_cells(&rows, share, 2.0, &mut times);
            for (rows, time) in rows.iter().zip(times) {
                let expected = 1.0 + 2.0 * costs.cell_us(rows * share);
                assert!((time - expected).abs() <= 1e-12 * expected, "{rows} {time} {expected}");
            }
        }
    }

    #[test]
    fn no_cut_is_cheaper_than_the_least() {
        for (first, further) in [(10.0, 3.0), (3.0, 10.0), (4.0, 4.0)] {
            let costs = costs(first, further);
            for total in [0.0, 0.5, 1.0, 3.0, 16.0, 17.0, 40.0, 200.0] {
                for ways in 0..=64 {
                    let a = total * f64::from(ways) / 64.0;
                    let sum = costs.cell_us(a) + costs.cell_us(total - a);
                    assert!(sum >= costs.least_us(total, 2) - 1e-9, "{total} {ways}");
                }
            }
        }
    }
}
