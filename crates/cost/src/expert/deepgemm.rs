//! Fits the separable form to SGLang's DeepGEMM tables (masked decode, contiguous prefill).
//!
//! docs/cost-model.md. The decode form is linear; the prefill form adds a host floor. Both are
//! fitted robustly on logarithms with the load regenerated and the cost averaged over draws.

use evenkeel_types::{Phase, WeightFormat};

use super::{ExpertShape, TileModel};
use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::fit::{Param, fit_positive, hold_out};
use crate::load_generator::{LoadCase, Spread};
use crate::profile::{ExpertEntry, ExpertModel};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::Table;

/// Draws over which a skewed row's cost is averaged.
const DRAWS: u64 = 12;
/// Rows of a DeepGEMM tile.
const TILE: u32 = 128;
/// Target of docs/cost-model.md for decode and for prefill, and for a decode EP size left out.
const TARGETS: [f64; 3] = [0.045, 0.05, 0.06];
/// Error stated for a shape other than DeepSeek-V3's (section 3).
const SCALED_ERROR: f64 = 0.15;
/// GEMM pipelines behave as if inner dimensions were this much longer (section 3: 150 to 300).
const INNER_PAD: f64 = 154.0;

/// One usable row, as means over draws of what the form is linear in.
#[derive(Clone, Debug)]
struct Point {
    key: String,
    ranks: u32,
    skewed: bool,
    slots: f64,
    active: f64,
    further_tiles: f64,
    rows: f64,
    tokens: f64,
    measured_us: f64,
}

/// Reads one system's usable rows; the rest goes to `report` with its reason.
fn points(
    table: &Table<'_>,
    system: &str,
    version: Option<&str>,
    phase: Phase,
    report: &mut FitReport,
) -> Result<(ExpertShape, Vec<Point>), CostError> {
    let columns = table.columns([
        "system",
        "collected_with",
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_ep_size",
        "distribution",
        "latency",
    ])?;
    let [sys, with, tok, hid, wid, topk, exp, ep, dist, lat] = columns;
    let mut shape = None;
    let mut points = Vec::new();
    let (mut degenerate, mut unpadded, mut other_version) = (0, 0, 0);
    for row in table.rows().filter(|row| row.text(sys) == system) {
        if version.is_some_and(|v| row.text(with) != v) {
            other_version += 1;
            continue;
        }
        let spread = Spread::parse(row.text(dist))
            .ok_or_else(|| row.refuse(dist, "`uniform` or `power_law_<exponent>`"))?;
        let case = LoadCase {
            tokens: row.get(tok)?,
            experts: row.get(exp)?,
            top_k: row.get(topk)?,
            ranks: row.get(ep)?,
            spread,
        };
        if case.degenerate() {
            degenerate += 1;
            continue;
        }
        let balanced = spread == Spread::Balanced;
        if phase == Phase::Prefill && balanced && case.tokens < UNPADDED_BELOW {
            unpadded += 1;
            continue;
        }
        shape = Some(ExpertShape {
            hidden: row.get(hid)?,
            width: row.get(wid)?,
            experts: case.experts,
            top_k: case.top_k,
            weights: WeightFormat::Fp8Block,
        });
        let key = [with, tok, ep, dist].map(|c| row.text(c)).join("/");
        points.push(Point::new(key, &case, 1000.0 * row.positive(lat)?));
    }
    let name = table.name();
    report.set_aside(name, degenerate, "power law with tokens x top_k <= experts: rounding leaves zeros and the remainder falls on one rank");
    report.set_aside(name, unpadded, "balanced prefill below 4096 global tokens: rows are not padded to tiles as the engine pads them");
    report.set_aside(name, other_version, "another engine version, whose host floor differs: a version is part of a profile's identity");
    let shape = shape.ok_or_else(|| CostError::TooFewRows {
        curve: format!("{name}, {system}"),
        rows: 0,
        needed: 20,
    })?;
    Ok((shape, points))
}

/// Balanced prefill rows with fewer global tokens are not padded to tiles.
const UNPADDED_BELOW: u32 = 4096;

impl Point {
    fn new(key: String, case: &LoadCase, measured_us: f64) -> Self {
        let skewed = case.spread != Spread::Balanced;
        let draws = if skewed { DRAWS } else { 1 };
        let mut point = Self {
            key,
            ranks: case.ranks,
            skewed,
            slots: f64::from(case.experts / case.ranks.max(1)),
            active: 0.0,
            further_tiles: 0.0,
            rows: 0.0,
            tokens: f64::from(case.tokens),
            measured_us,
        };
        let share = 1.0 / draws as f64;
        for draw in 0..draws {
            for rows in case.hottest(draw).rows {
                point.active += share * f64::from(u32::from(rows > 0));
                point.further_tiles += share * f64::from(rows.div_ceil(TILE).saturating_sub(1));
                point.rows += share * f64::from(rows);
            }
        }
        point
    }

    /// Parameters: floor, slot, first tile, further tile, row, token, host.
    fn predict(&self, p: &[f64; 7]) -> f64 {
        let [floor, slot, first, further, row, token, host] = *p;
        let gpu = floor
            + slot * self.slots
            + first * self.active
            + further * self.further_tiles
            + row * self.rows
            + token * self.tokens;
        super::ExpertCoefficients { host_us: host, ..super::ExpertCoefficients::FREE }.on_host(gpu)
    }
}

fn spread_params(phase: Phase, p: &[f64]) -> [f64; 7] {
    match phase {
        Phase::Decode => [p[0], p[1], p[2], p[3], p[4], 0.0, 0.0],
        Phase::Prefill => [p[0], 0.0, p[1], p[2], 0.0, p[3], p[4]],
    }
}

fn fit(phase: Phase, points: &[&Point]) -> [f64; 7] {
    let measured: Vec<f64> = points.iter().map(|p| p.measured_us).collect();
    let params = match phase {
        Phase::Decode => [20.0, 0.5, 12.0, 6.0, 0.015].map(Param::free),
        Phase::Prefill => [150.0, 18.0, 9.0, 0.007, 380.0].map(Param::free),
    };
    let fitted =
        fit_positive(&params, &measured, 2, |p, row| points[row].predict(&spread_params(phase, p)));
    spread_params(phase, &fitted.params)
}

fn errors<'a>(points: impl IntoIterator<Item = &'a Point>, p: &[f64; 7]) -> ErrorStats {
    ErrorStats::of(points.into_iter().map(|point| (point.predict(p), point.measured_us)))
}

/// Fits one system's DeepGEMM curve of a phase and reports on unseen rows and EP sizes left out.
///
/// # Errors
/// A malformed table, or one with fewer than 20 usable rows of that system.
pub fn fit_deepgemm(
    table: &Table<'_>,
    system: &str,
    version: Option<&str>,
    phase: Phase,
) -> Result<(ExpertEntry, FitReport), CostError> {
    let mut report = FitReport::default();
    let (shape, points) = points(table, system, version, phase, &mut report)?;
    let curve = format!("experts {phase}, sglang deepgemm, {system}");
    let (unseen, seen): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|p| hold_out(&p.key));
    if seen.len() < 20 {
        return Err(CostError::TooFewRows { curve, rows: seen.len(), needed: 20 });
    }
    let params = fit(phase, &seen);
    let target = TARGETS[usize::from(phase == Phase::Prefill)];
    let stats = errors(unseen.iter().copied(), &params);
    report.rows.push(FitLine::new(&curve, "unseen fifth", seen.len(), &stats, Some(target)));
    let balanced = errors(unseen.iter().copied().filter(|p| !p.skewed), &params);
    let limit = (phase == Phase::Decode).then_some(0.03);
    report.rows.push(FitLine::new(&curve, "unseen, balanced", seen.len(), &balanced, limit));
    let mut sizes: Vec<u32> = points.iter().map(|p| p.ranks).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let rest: Vec<&Point> = points.iter().filter(|p| p.ranks != size).collect();
        let left = errors(points.iter().filter(|p| p.ranks == size), &fit(phase, &rest));
        let limit = (phase == Phase::Decode).then_some(TARGETS[2]);
        let group = format!("EP {size} left out");
        report.left_out.push(FitLine::new(&curve, &group, rest.len(), &left, limit));
    }
    let low_high = |f: fn(&Point) -> f64| {
        points.iter().map(f).fold((f64::MAX, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)))
    };
    let (slots, rows) = (low_high(|p| p.slots), low_high(|p| p.rows));
    let basis = Basis::new(Origin::Fitted, stats.mape, "")
        .with_support("slots", slots.0, slots.1)
        .with_support("rank_rows", rows.0, rows.1);
    let model = physical(&shape, &params);
    let entry = ExpertEntry {
        engine: "sglang deepgemm".to_owned(),
        phase: Some(phase),
        model: ExpertModel::Tiles(model),
        measured: vec![shape],
        basis,
        scaled_error_share: SCALED_ERROR,
    };
    Ok((entry, report))
}

/// Turns fitted times into rates, so that other shapes can be computed.
fn physical(shape: &ExpertShape, p: &[f64; 7]) -> TileModel {
    let [floor_us, slot_us, first, further, row, token, host_us] = *p;
    let mut model = TileModel {
        weights: shape.weights,
        floor_us,
        slot_us,
        tile_rows: TILE,
        weight_bytes_per_us: shape.bytes() / first,
        first_ops_per_us: 1.0,
        further_ops_per_us: 1.0,
        inner_pad: INNER_PAD,
        row_element_us: row / f64::from(shape.hidden),
        width_share: 0.0,
        token_element_us: token / f64::from(shape.hidden),
        host_us,
    };
    // A first tile's operations are hidden behind the reading; they count once that is shorter.
    let rate = model.tile_ops(shape) / further;
    (model.first_ops_per_us, model.further_ops_per_us) = (rate, rate);
    model
}
