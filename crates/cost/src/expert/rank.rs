//! The form of fused kernels: a soft knee between the rank's reading and its operations.
//!
//! It is not separable by expert; [`RankForm::coefficients`] gives planners its linear neighbour.

use serde::{Deserialize, Serialize};

use super::{ExpertCoefficients, ExpertShape};

/// A kernel switch: from so many rows on the rank another rate holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSwitch {
    /// Rows on the rank from which the second rate holds …
    pub rows: f64,
    /// … or rows per slot, whichever comes later.
    pub rows_per_slot: f64,
    /// The second rate, operations/µs.
    pub ops_per_us: f64,
}

impl RateSwitch {
    /// True where the second rate holds.
    #[must_use]
    pub fn holds(&self, rows: f64, slots: f64) -> bool {
        rows >= self.rows.max(self.rows_per_slot * slots)
    }
}

/// A fused expert kernel of one engine on one device, in physical parameters.
///
/// `t = c0 + ce·El + ((A·W/bw)^q + (rows·F/Rate)^q)^(1/q) + M·moved·(H + 1.5·I) + T·H·… + T·E·…`
/// with A experts that have rows, rows rounded up to tiles, M token rows, T tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankModel {
    /// Cost with no work, µs.
    pub floor_us: f64,
    /// Cost of a slot, µs.
    pub slot_us: f64,
    /// Rate at which weights are read, bytes/µs.
    pub weight_bytes_per_us: f64,
    /// Rate of operations, operations/µs.
    pub ops_per_us: f64,
    /// Second rate above a number of rows.
    #[serde(default)]
    pub switch: Option<RateSwitch>,
    /// Exponent of the knee between reading and operations; 1 adds them.
    pub power: f64,
    /// Rows of a tile; 1 for no rounding. With a switch, rounding holds after it.
    pub tile_rows: u32,
    /// Cost of a row, µs per element of `H + 1.5·I`.
    pub row_element_us: f64,
    /// Cost of a token, µs per element of H.
    pub token_element_us: f64,
    /// Cost of a token, µs per expert of the layer (routing).
    pub token_expert_us: f64,
}

/// [`RankModel`] at one shape. Times in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankForm {
    /// Cost with no work.
    pub floor_us: f64,
    /// Cost of a slot.
    pub slot_us: f64,
    /// Reading the weights of one expert that has rows.
    pub weight_us: f64,
    /// Operations of one row.
    pub row_ops_us: f64,
    /// Where another rate holds, and the operations of one row there.
    #[serde(default)]
    pub switch: Option<(RateSwitch, f64)>,
    /// Exponent of the knee.
    pub power: f64,
    /// Rows of a tile.
    pub tile_rows: u32,
    /// Moving one row.
    pub row_us: f64,
    /// Handling one token.
    pub token_us: f64,
}

impl RankModel {
    /// The form at a shape in the same weight format.
    #[must_use]
    pub fn at(&self, shape: &ExpertShape) -> RankForm {
        let (hidden, width) = (f64::from(shape.hidden), f64::from(shape.width));
        let row_ops_us = |rate: f64| shape.flops_per_row() / rate;
        RankForm {
            floor_us: self.floor_us,
            slot_us: self.slot_us,
            weight_us: shape.bytes() / self.weight_bytes_per_us,
            row_ops_us: row_ops_us(self.ops_per_us),
            switch: self.switch.map(|s| (s, row_ops_us(s.ops_per_us))),
            power: self.power,
            tile_rows: self.tile_rows.max(1),
            row_us: self.row_element_us * (hidden + 1.5 * width),
            token_us: self.token_element_us * hidden
                + self.token_expert_us * f64::from(shape.experts),
        }
    }
}

impl RankForm {
    /// Time from the totals of a rank: slots, experts with rows, rows rounded up to tiles, rows,
    /// tokens. Totals may be means over draws.
    #[must_use]
    pub fn totals_us(&self, slots: f64, active: f64, tiled: f64, rows: f64, tokens: f64) -> f64 {
        let work = match self.switch {
            Some((switch, after)) if switch.holds(rows, slots) => tiled * after,
            Some(_) => rows * self.row_ops_us,
            None => tiled * self.row_ops_us,
        };
        let read = active * self.weight_us;
        let (low, high) = (read.min(work), read.max(work));
        let knee = if high > 0.0 {
            high * (1.0 + (low / high).powf(self.power)).powf(1.0 / self.power)
        } else {
            0.0
        };
        self.floor_us + self.slot_us * slots + knee + self.row_us * rows + self.token_us * tokens
    }

    /// Time of a rank whose slots hold these rows and which handles that many tokens.
    #[must_use]
    pub fn rank_us(&self, rows_per_slot: &[u32], tokens: u32) -> f64 {
        let (mut active, mut tiled, mut rows) = (0_u32, 0_u64, 0_u64);
        for &m in rows_per_slot {
            active += u32::from(m > 0);
            tiled += u64::from(m.div_ceil(self.tile_rows)) * u64::from(self.tile_rows);
            rows += u64::from(m);
        }
        self.totals_us(
            rows_per_slot.len() as f64,
            f64::from(active),
            tiled as f64,
            rows as f64,
            f64::from(tokens),
        )
    }

    /// The linear neighbour: reading and operations added up, which is exact at power 1 and at
    /// most `2^(1 − 1/q)` of the knee above it elsewhere.
    #[must_use]
    pub fn coefficients(&self) -> ExpertCoefficients {
        let tile = f64::from(self.tile_rows) * self.row_ops_us;
        let tiled = self.tile_rows > 1;
        ExpertCoefficients {
            floor_us: self.floor_us,
            slot_us: self.slot_us,
            first_us: self.weight_us + if tiled { tile } else { 0.0 },
            tile_rows: self.tile_rows,
            further_tile_us: if tiled { tile } else { 0.0 },
            row_us: self.row_us + if tiled { 0.0 } else { self.row_ops_us },
            token_us: self.token_us,
            host_us: 0.0,
        }
    }

    /// All times multiplied by `share`.
    #[must_use]
    pub fn scaled(&self, share: f64) -> Self {
        Self {
            floor_us: self.floor_us * share,
            slot_us: self.slot_us * share,
            weight_us: self.weight_us * share,
            row_ops_us: self.row_ops_us * share,
            switch: self.switch.map(|(switch, after)| (switch, after * share)),
            row_us: self.row_us * share,
            token_us: self.token_us * share,
            ..*self
        }
    }
}
