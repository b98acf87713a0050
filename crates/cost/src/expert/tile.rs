//! The separable form in physical parameters, so that it can be moved to another shape.

use evenkeel_types::WeightFormat;
use serde::{Deserialize, Serialize};

use super::{ExpertCoefficients, ExpertShape};

/// A separable expert curve of one kernel on one device.
///
/// Rates are operations or bytes per µs (1 PF = 10^9 operations/µs, 1 TB/s = 10^6 bytes/µs).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileModel {
    /// Weight format of the measurements.
    pub weights: WeightFormat,
    /// Cost with no work, µs. Not scaled with the shape.
    pub floor_us: f64,
    /// Cost of a slot, µs. Not scaled with the shape.
    pub slot_us: f64,
    /// Rows of a tile.
    pub tile_rows: u32,
    /// Rate at which an expert's weights are read, bytes/µs.
    pub weight_bytes_per_us: f64,
    /// Rate of a first tile's operations, operations/µs.
    pub first_ops_per_us: f64,
    /// Rate of further tiles' operations, operations/µs.
    pub further_ops_per_us: f64,
    /// Inner dimensions behave as if they were this much longer (pipeline fill of a GEMM).
    pub inner_pad: f64,
    /// Cost of a row, µs per element of its `hidden + width_share · width` moved elements.
    pub row_element_us: f64,
    /// Part of the inner width that a row moves beside its hidden elements.
    pub width_share: f64,
    /// Cost of a distinct token, µs per element of hidden.
    pub token_element_us: f64,
    /// Launch floor of an un-graphed engine, µs; 0 where there is none.
    pub host_us: f64,
}

impl TileModel {
    /// Operations of a full tile, inner dimensions padded:
    /// `2 · rows · (2·I·(H + K0) + H·(I + K0))`.
    #[must_use]
    pub fn tile_ops(&self, shape: &ExpertShape) -> f64 {
        let (hidden, width) = (f64::from(shape.hidden), f64::from(shape.width));
        2.0 * f64::from(self.tile_rows)
            * (2.0 * width * (hidden + self.inner_pad) + hidden * (width + self.inner_pad))
    }

    /// Coefficients at a shape. A first tile costs the reading of the weights or a tile's
    /// operations, whichever is longer; another weight format changes bytes and rate.
    #[must_use]
    pub fn coefficients(&self, shape: &ExpertShape) -> ExpertCoefficients {
        let slowdown =
            shape.slowdown_from_fp8() / shape.with_weights(self.weights).slowdown_from_fp8();
        let ops = self.tile_ops(shape) * slowdown;
        let read_us = shape.bytes() / self.weight_bytes_per_us;
        let hidden = f64::from(shape.hidden);
        ExpertCoefficients {
            floor_us: self.floor_us,
            slot_us: self.slot_us,
            first_us: read_us.max(ops / self.first_ops_per_us),
            tile_rows: self.tile_rows,
            further_tile_us: ops / self.further_ops_per_us,
            row_us: self.row_element_us * (hidden + self.width_share * f64::from(shape.width)),
            token_us: self.token_element_us * hidden,
            host_us: self.host_us,
        }
    }
}
