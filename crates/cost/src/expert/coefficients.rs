//! The linear form that planners get: numbers, not a closure.

use serde::{Deserialize, Serialize};

/// Coefficients of a rank's expert time in one layer. All times in µs.
///
/// `rank = knee8(host, floor + Σ_e f(m_e) + token · R)`, R being the distinct tokens on the rank
/// and `knee8(a, b) = (a⁸ + b⁸)^(1/8)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertCoefficients {
    /// Cost of a layer's expert kernels with no work at all.
    pub floor_us: f64,
    /// Cost of one local slot, used or not.
    pub slot_us: f64,
    /// Cost of the first tile of an expert that has at least one row.
    pub first_us: f64,
    /// Rows of a tile.
    pub tile_rows: u32,
    /// Cost of each tile after the first.
    pub further_tile_us: f64,
    /// Cost of each token row, beside its tile.
    pub row_us: f64,
    /// Cost of each distinct token that the rank received.
    pub token_us: f64,
    /// Launch time of an un-graphed engine: a floor under the sum; 0 turns it off.
    pub host_us: f64,
}

impl ExpertCoefficients {
    /// No cost at all: a base to build on.
    pub const FREE: Self = Self {
        floor_us: 0.0,
        slot_us: 0.0,
        first_us: 0.0,
        tile_rows: 1,
        further_tile_us: 0.0,
        row_us: 0.0,
        token_us: 0.0,
        host_us: 0.0,
    };

    /// `f(m)`: cost of one slot that holds `rows` token rows.
    #[must_use]
    pub fn slot_us(&self, rows: u32) -> f64 {
        if rows == 0 {
            return self.slot_us;
        }
        let further = rows.div_ceil(self.tile_rows.max(1)) - 1;
        self.slot_us
            + self.first_us
            + f64::from(further) * self.further_tile_us
            + f64::from(rows) * self.row_us
    }

    /// Time of a rank whose slots hold these rows and which received that many distinct tokens.
    #[must_use]
    pub fn rank_us(&self, rows_per_slot: &[u32], distinct_tokens: u32) -> f64 {
        let sum: f64 = rows_per_slot.iter().map(|rows| self.slot_us(*rows)).sum();
        self.on_host(self.floor_us + sum + self.token_us * f64::from(distinct_tokens))
    }

    /// Applies the host floor to a sum of GPU work.
    #[must_use]
    pub fn on_host(&self, gpu_us: f64) -> f64 {
        if self.host_us <= 0.0 {
            return gpu_us;
        }
        let (low, high) = (gpu_us.min(self.host_us), gpu_us.max(self.host_us));
        high * (1.0 + (low / high).powi(8)).powf(0.125)
    }

    /// All times multiplied by `share`.
    #[must_use]
    pub fn scaled(&self, share: f64) -> Self {
        let Self {
            floor_us,
            slot_us,
            first_us,
            tile_rows,
            further_tile_us,
            row_us,
            token_us,
            host_us,
        } = *self;
        Self {
            floor_us: floor_us * share,
            slot_us: slot_us * share,
            first_us: first_us * share,
            tile_rows,
            further_tile_us: further_tile_us * share,
            row_us: row_us * share,
            token_us: token_us * share,
            host_us: host_us * share,
        }
    }
}
