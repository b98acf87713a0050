//! Fits the knee form of fused kernels to rows whose load was regenerated.

use evenkeel_types::hash2;

use super::{ExpertShape, RankModel, RateSwitch};
use crate::fit::{Param, fit_positive};
use crate::load_generator::RankLoad;
use crate::residual::{ResidualRow, ResidualTable};
use crate::stats::ErrorStats;

/// A measured row of a fused kernel.
#[derive(Clone, Debug)]
pub(super) struct RankPoint {
    /// What identifies the measurement.
    pub key: String,
    /// Key of the group that can be left out.
    pub group: String,
    /// Model's expert shape.
    pub shape: ExpertShape,
    /// Local slots.
    pub slots: u32,
    /// Tokens that the kernel handles.
    pub tokens: f64,
    /// Active experts, rows rounded up to tiles, rows; one entry per draw.
    pub draws: Vec<[f64; 3]>,
    /// Measured time.
    pub measured_us: f64,
}

/// Active experts, tile-rounded rows and rows of a load.
pub(super) fn totals(load: &RankLoad, tile: u32) -> [f64; 3] {
    let mut totals = [0.0; 3];
    for &rows in &load.rows {
        totals[0] += f64::from(u32::from(rows > 0));
        totals[1] += f64::from(rows.div_ceil(tile) * tile);
        totals[2] += f64::from(rows);
    }
    totals
}

/// Which terms of the form a kernel has.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankTerms {
    /// Rows of a tile.
    pub tile_rows: u32,
    /// Rows, and rows per slot, at which a second rate begins.
    pub switch: Option<[f64; 2]>,
    /// Whether rows are moved at a cost of their own.
    pub rows: bool,
    /// Whether routing costs time by expert.
    pub routing: bool,
}

impl RankTerms {
    fn params(&self) -> Vec<Param> {
        let mut params = vec![
            Param::within(30.0, 1.0, 300.0),
            Param::within(0.2, 1e-3, 5.0),
            Param::within(3.5e6, 5e5, 4e7),
            Param::within(0.7e9, 2e7, 1e10),
            Param::within(1.3, 1.0, 4.0),
            Param::within(3e-6, 1e-9, 1e-4),
        ];
        if self.rows {
            params.push(Param::within(5e-6, 1e-9, 1e-4));
        }
        if self.routing {
            params.push(Param::within(5e-6, 1e-9, 1e-4));
        }
        if self.switch.is_some() {
            params.push(Param::within(0.6e9, 2e7, 1e10));
        }
        params
    }

    fn model(&self, p: &[f64]) -> RankModel {
        let mut rest = p[6..].iter().copied();
        RankModel {
            floor_us: p[0],
            slot_us: p[1],
            weight_bytes_per_us: p[2],
            ops_per_us: p[3],
            power: p[4],
            tile_rows: self.tile_rows,
            token_element_us: p[5],
            row_element_us: if self.rows { rest.next().unwrap_or(0.0) } else { 0.0 },
            token_expert_us: if self.routing { rest.next().unwrap_or(0.0) } else { 0.0 },
            switch: self.switch.zip(rest.next()).map(|([rows, rows_per_slot], ops_per_us)| {
                RateSwitch { rows, rows_per_slot, ops_per_us }
            }),
        }
    }

    /// Robust fit from `starts` starts to at most `limit` of the points (chosen by hash).
    pub(super) fn fit(&self, points: &[&RankPoint], starts: usize, limit: usize) -> RankModel {
        let thinned;
        let points = if points.len() > limit {
            thinned = thin(points, limit);
            &thinned[..]
        } else {
            points
        };
        let measured: Vec<f64> = points.iter().map(|p| p.measured_us).collect();
        let fitted = fit_positive(&self.params(), &measured, starts, |p, row| {
            points[row].predict(&self.model(p))
        });
        self.model(&fitted.params)
    }
}

/// At most about `limit` of the points, chosen by a hash of their key.
fn thin<'a>(points: &[&'a RankPoint], limit: usize) -> Vec<&'a RankPoint> {
    let share = (limit as f64 / points.len() as f64 * u32::MAX as f64) as u64;
    points
        .iter()
        .copied()
        .filter(|p| hash2(0x7468_696E, crate::fit::key_hash(&p.key)) >> 32 < share)
        .collect()
}

impl RankPoint {
    /// Mean of the formula over the draws.
    pub(super) fn predict(&self, model: &RankModel) -> f64 {
        let form = model.at(&self.shape);
        let slots = f64::from(self.slots);
        let sum: f64 = self
            .draws
            .iter()
            .map(|[active, tiled, rows]| form.totals_us(slots, *active, *tiled, *rows, self.tokens))
            .sum();
        sum / self.draws.len() as f64
    }

    /// Mean of the rows over the draws.
    fn rows(&self) -> f64 {
        self.draws.iter().map(|[_, _, rows]| rows).sum::<f64>() / self.draws.len() as f64
    }

    /// The formula times the residual table.
    pub(super) fn corrected(&self, model: &RankModel, residual: &ResidualTable) -> f64 {
        self.predict(model) * residual.factor(self.slots, self.rows())
    }
}

/// The residual table of the points under a model.
pub(super) fn residuals(
    points: &[&RankPoint],
    model: &RankModel,
    cells_per_octave: f64,
) -> ResidualTable {
    let rows: Vec<ResidualRow> = points
        .iter()
        .map(|p| ResidualRow {
            slots: p.slots,
            rows: p.rows(),
            log_ratio: (p.measured_us / p.predict(model)).ln(),
        })
        .collect();
    ResidualTable::fit(&rows, cells_per_octave)
}

/// Errors of a model with its residual table on points.
pub(super) fn errors(
    points: &[&RankPoint],
    model: &RankModel,
    residual: &ResidualTable,
) -> ErrorStats {
    ErrorStats::of(points.iter().map(|p| (p.corrected(model, residual), p.measured_us)))
}
