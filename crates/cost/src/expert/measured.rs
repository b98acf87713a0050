//! Fits the separable form to an operator's own measurements, counts written down.

use evenkeel_types::Phase;

use super::{ExpertShape, TileModel};
use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::fit::{Param, fit_positive, hold_out};
use crate::profile::{ExpertEntry, ExpertModel};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;

/// Tile heights tried; the training rows choose. 1 means no rounding to tiles.
const TILES: [u32; 7] = [1, 4, 8, 16, 32, 64, 128];
/// Fewest rows of a phase: five parameters and a tile.
const ROWS_MIN: usize = 15;
/// Error of a shape that was not measured is at least this (docs/cost-model.md).
const SCALED_ERROR: f64 = 0.15;

/// One measured expert layer of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRow {
    /// Phase.
    pub phase: Phase,
    /// Shape.
    pub shape: ExpertShape,
    /// Rows of each local slot.
    pub rows: Vec<u32>,
    /// Distinct tokens on the rank.
    pub tokens: u32,
    /// Whether the kernels were launched as a graph, without a host floor.
    pub graphed: bool,
    /// Measured time.
    pub time_us: f64,
}

impl MeasuredRow {
    fn key(&self) -> String {
        let Self { phase, shape, rows, tokens, graphed, time_us: _ } = self;
        format!("{phase}/{}/{}/{rows:?}/{tokens}/{graphed}", shape.hidden, shape.width)
    }
}

/// The model of parameters: floor, slot, reading rate, operation rate, row, and host where rows
/// without a graph are present.
fn model(row: &MeasuredRow, tile_rows: u32, p: &[f64]) -> TileModel {
    TileModel {
        weights: row.shape.weights,
        floor_us: p[0],
        slot_us: p[1],
        tile_rows,
        weight_bytes_per_us: p[2],
        first_ops_per_us: p[3],
        further_ops_per_us: p[3],
        inner_pad: 0.0,
        row_element_us: p[4],
        width_share: 1.0,
        token_element_us: 0.0,
        host_us: p.get(5).copied().unwrap_or(0.0),
    }
}

fn predict(row: &MeasuredRow, tile_rows: u32, p: &[f64]) -> f64 {
    let mut coefficients = model(row, tile_rows, p).coefficients(&row.shape);
    if row.graphed {
        coefficients.host_us = 0.0;
    }
    coefficients.rank_us(&row.rows, row.tokens)
}

/// A plausible start from the rows themselves: no work gives the floor, the busiest row the rate.
fn starts(rows: &[&MeasuredRow]) -> Vec<Param> {
    let fastest = rows.iter().map(|r| r.time_us).fold(f64::MAX, f64::min);
    let read = |r: &MeasuredRow| {
        r.shape.bytes() * r.rows.iter().filter(|m| **m > 0).count() as f64 / r.time_us
    };
    let work = |r: &MeasuredRow| {
        r.shape.flops_per_row() * r.rows.iter().map(|m| f64::from(*m)).sum::<f64>() / r.time_us
    };
    let reading = rows.iter().map(|r| read(r)).fold(0.0, f64::max);
    let working = rows.iter().map(|r| work(r)).fold(0.0, f64::max);
    let busiest = rows.iter().map(|r| r.time_us).fold(0.0, f64::max);
    let mut params = vec![
        Param::within(0.5 * fastest, 1e-3 * fastest, 2.0 * fastest),
        Param::within(0.01 * fastest, 1e-6 * fastest, fastest),
        Param::free(reading.max(1e-6)),
        Param::free(working.max(1e-6)),
        Param::within(1e-9 * busiest, 1e-14 * busiest, 1e-3 * busiest),
    ];
    if rows.iter().any(|r| !r.graphed) {
        params.push(Param::within(fastest, 1e-3 * fastest, 10.0 * fastest));
    }
    params
}

fn fit(rows: &[&MeasuredRow], tile_rows: u32) -> (f64, Vec<f64>) {
    let measured: Vec<f64> = rows.iter().map(|r| r.time_us).collect();
    let fitted =
        fit_positive(&starts(rows), &measured, 3, |p, row| predict(rows[row], tile_rows, p));
    (fitted.loss, fitted.params)
}

/// Fits one phase of an operator's measurements. All rows must be of one weight format.
///
/// Where a fifth held out would leave fewer than 15 rows, all are fitted and the report says so.
///
/// # Errors
/// Fewer than 15 rows, or rows of more than one weight format.
pub fn fit_measured(
    engine: &str,
    rows: &[MeasuredRow],
    phase: Option<Phase>,
) -> Result<(ExpertEntry, FitReport), CostError> {
    let curve = match phase {
        Some(phase) => format!("experts {phase}, {engine}"),
        None => format!("experts, {engine}"),
    };
    let usable: Vec<&MeasuredRow> =
        rows.iter().filter(|r| phase.is_none_or(|p| r.phase == p)).collect();
    let first = usable.first().map(|r| r.shape.weights);
    let same = usable.iter().all(|r| Some(r.shape.weights) == first);
    if usable.len() < ROWS_MIN || !same {
        let curve = if same { curve } else { format!("{curve} (several weight formats)") };
        let rows = if same { usable.len() } else { 0 };
        return Err(CostError::TooFewRows { curve, rows, needed: ROWS_MIN });
    }
    let (mut unseen, mut seen): (Vec<&MeasuredRow>, Vec<&MeasuredRow>) =
        usable.iter().copied().partition(|r| hold_out(&r.key()));
    let blind = seen.len() >= ROWS_MIN && !unseen.is_empty();
    if !blind {
        (unseen, seen) = (usable.clone(), usable.clone());
    }
    let (tile, params) = TILES
        .into_iter()
        .map(|tile| (tile, fit(&seen, tile)))
        .min_by(|a, b| a.1.0.total_cmp(&b.1.0))
        .map_or_else(|| (1, Vec::new()), |(tile, (_, params))| (tile, params));
    let errors = |rows: &[&MeasuredRow], params: &[f64]| {
        ErrorStats::of(rows.iter().map(|r| (predict(r, tile, params), r.time_us)))
    };
    let stats = errors(&unseen, &params);
    let group = if blind { "unseen fifth" } else { "all rows, none held out" };
    let mut report = FitReport::default();
    report.rows.push(FitLine::new(&curve, group, seen.len(), &stats, None));
    let mut shapes: Vec<ExpertShape> = Vec::new();
    for row in &usable {
        if !shapes.contains(&row.shape) {
            shapes.push(row.shape);
        }
    }
    for shape in shapes.iter().filter(|_| shapes.len() > 1) {
        let (out, rest): (Vec<&MeasuredRow>, Vec<&MeasuredRow>) =
            usable.iter().copied().partition(|r| r.shape == *shape);
        if rest.len() >= ROWS_MIN {
            let left = errors(&out, &fit(&rest, tile).1);
            let group = format!("{} x {} left out", shape.hidden, shape.width);
            report.left_out.push(FitLine::new(&curve, &group, rest.len(), &left, None));
        }
    }
    let range = |f: fn(&MeasuredRow) -> f64| {
        usable
            .iter()
            .map(|r| f(r))
            .fold((f64::MAX, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)))
    };
    let slots = range(|r| r.rows.len() as f64);
    let most = range(|r| f64::from(r.rows.iter().copied().max().unwrap_or(0)));
    let worst = report.left_out.iter().map(|l| l.mape).fold(SCALED_ERROR, f64::max);
    let entry = ExpertEntry {
        engine: engine.to_owned(),
        phase,
        model: ExpertModel::Tiles(model(usable[0], tile, &params)),
        measured: shapes,
        basis: Basis::new(Origin::Fitted, stats.mape, "measured by the operator")
            .with_support("slots", slots.0, slots.1)
            .with_support("rows_per_slot", most.0, most.1),
        scaled_error_share: worst,
    };
    Ok((entry, report))
}
