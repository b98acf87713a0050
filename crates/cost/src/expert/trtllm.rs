//! Fits TensorRT-LLM's wide EP table: the knee form with a kernel switch, times a residual table.
//!
//! docs/cost-model.md. The table records the tokens of the timed rank; of the regenerated draws
//! those are kept whose hottest rank comes closest to it.

use evenkeel_types::WeightFormat;

use super::rank_fit::{RankPoint, RankTerms, errors, residuals, totals};
use super::{ExpertShape, RankModel};
use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::fit::hold_out;
use crate::load_generator::{LoadCase, RankLoad, Spread};
use crate::profile::{ExpertEntry, ExpertModel};
use crate::report::{FitLine, FitReport};
use crate::residual::ResidualTable;
use crate::table::Table;

/// Draws made per row, and of these the ones kept by the recorded number of tokens.
const DRAWS: u64 = 16;
const KEPT: usize = 6;
/// Rows of a tile of the kernel above the switch; below it no rounding shows.
const TILE: u32 = 32;
/// Where the kernel is seen to switch (rows on the rank, rows per slot); the training rows choose.
const SWITCHES: [[f64; 2]; 9] = [
    [750.0, 16.0],
    [1000.0, 16.0],
    [1250.0, 16.0],
    [750.0, 22.0],
    [1000.0, 22.0],
    [1250.0, 22.0],
    [750.0, 30.0],
    [1000.0, 30.0],
    [1250.0, 30.0],
];
/// One cell per doubling of the rank's rows, pooled over hidden widths: finer cells hold too few
/// rows to beat the noise of single runs.
const CELLS_PER_OCTAVE: f64 = 1.0;
/// Targets of section 9: all rows, and at most 512 tokens on the rank.
const TARGETS: [f64; 2] = [0.055, 0.045];
/// Error stated for a hidden width that was not measured: leave hidden 3072 out gives 8–9 %.
const SCALED_ERROR: f64 = 0.1;

fn points(
    table: &Table<'_>,
    system: &str,
    report: &mut FitReport,
) -> Result<Vec<RankPoint>, CostError> {
    let columns = table.columns([
        "system",
        "collected_with",
        "num_tokens",
        "rank0_num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "num_slots",
        "moe_ep_size",
        "distribution",
        "latency",
    ])?;
    let [sys, with, tok, own, hid, wid, topk, exp, slot, ep, dist, lat] = columns;
    let mut points = Vec::new();
    let mut degenerate = 0;
    for row in table.rows().filter(|row| row.text(sys) == system) {
        let spread = Spread::parse(row.text(dist))
            .ok_or_else(|| row.refuse(dist, "`balanced` or `power_law_<exponent>`"))?;
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
        let slots: u32 = row.get(slot)?;
        let tokens = row.positive(own)?;
        let balanced_map = row.text(dist).ends_with("_eplb");
        points.push(RankPoint {
            key: [with, tok, hid, slot, exp, ep, dist].map(|c| row.text(c)).join("/"),
            group: format!("EP {}", case.ranks),
            shape: ExpertShape {
                hidden: row.get(hid)?,
                width: row.get(wid)?,
                experts: case.experts,
                top_k: case.top_k,
                weights: WeightFormat::Fp8Block,
            },
            slots: slots / case.ranks.max(1),
            tokens,
            draws: closest_draws(&case, balanced_map.then_some(slots), tokens),
            measured_us: 1000.0 * row.positive(lat)?,
        });
    }
    report.set_aside(
        table.name(),
        degenerate,
        "power law with tokens x top_k <= experts: rounding leaves zeros and the remainder falls on one rank",
    );
    Ok(points)
}

/// Totals of the draws whose hottest rank receives nearly `tokens`, rows scaled to match.
fn closest_draws(case: &LoadCase, slots: Option<u32>, tokens: f64) -> Vec<[f64; 3]> {
    let mut loads: Vec<(f64, RankLoad)> = (0..DRAWS)
        .map(|draw| {
            let load = match slots {
                Some(slots) => case.hottest_after_balancing(draw, slots),
                None => case.hottest(draw),
            };
            let ratio = tokens / f64::from(load.distinct_tokens.max(1));
            (ratio, load)
        })
        .collect();
    loads.sort_by(|a, b| a.0.ln().abs().total_cmp(&b.0.ln().abs()));
    loads
        .into_iter()
        .take(KEPT)
        .map(|(ratio, load)| {
            let [active, tiled, rows] = totals(&load, TILE);
            [active, tiled * ratio, rows * ratio]
        })
        .collect()
}

const fn terms(switch: [f64; 2]) -> RankTerms {
    RankTerms { tile_rows: TILE, switch: Some(switch), rows: true, routing: false }
}

/// The candidate switch under which the training rows are predicted best.
fn best_switch(seen: &[&RankPoint], limit: usize) -> ([f64; 2], RankModel) {
    let none = ResidualTable::default();
    SWITCHES
        .into_iter()
        .map(|at| {
            let model = terms(at).fit(seen, 1, limit);
            (errors(seen, &model, &none).mape, at, model)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(|| (SWITCHES[1], terms(SWITCHES[1]).fit(seen, 1, limit)), |(_, at, m)| (at, m))
}

/// Fits one system's wide EP curve; at most `limit` rows enter each formula fit.
///
/// # Errors
/// A malformed table, or one with fewer than 100 usable rows of that system.
pub fn fit_trtllm(
    table: &Table<'_>,
    system: &str,
    limit: usize,
) -> Result<(ExpertEntry, FitReport), CostError> {
    let mut report = FitReport::default();
    let points = points(table, system, &mut report)?;
    let curve = format!("experts, trtllm wide ep, {system}");
    let (unseen, seen): (Vec<&RankPoint>, Vec<&RankPoint>) =
        points.iter().partition(|p| hold_out(&p.key));
    if seen.len() < 100 {
        return Err(CostError::TooFewRows { curve, rows: seen.len(), needed: 100 });
    }
    let (switch, model) = best_switch(&seen, limit);
    let residual = residuals(&seen, &model, CELLS_PER_OCTAVE);
    let stats = errors(&unseen, &model, &residual);
    let line = |group: &str, stats, target| FitLine::new(&curve, group, seen.len(), stats, target);
    report.rows.push(line("unseen fifth", &stats, Some(TARGETS[0])));
    let small: Vec<&RankPoint> = unseen.iter().copied().filter(|p| p.tokens <= 512.0).collect();
    let small = errors(&small, &model, &residual);
    report.rows.push(line("unseen, at most 512 tokens on the rank", &small, Some(TARGETS[1])));
    let none = ResidualTable::default();
    let formula = errors(&unseen, &model, &none);
    report.rows.push(line("unseen, formula without residual table", &formula, None));
    let mut groups: Vec<&str> = points.iter().map(|p| p.group.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let (out, rest): (Vec<&RankPoint>, Vec<&RankPoint>) =
            points.iter().partition(|p| p.group == group);
        // A residual line belongs to one number of slots, so a left-out EP size has none.
        let model = terms(switch).fit(&rest, 1, limit);
        let stats = errors(&out, &model, &none);
        let group = format!("{group} left out");
        report.left_out.push(FitLine::new(&curve, &group, rest.len(), &stats, None));
    }
    report.switches.push(format!(
        "{curve}: another rate from {} rows on the rank or {} per slot, more rows can be cheaper",
        switch[0], switch[1]
    ));
    let mut measured: Vec<ExpertShape> = Vec::new();
    for point in &points {
        if !measured.contains(&point.shape) {
            measured.push(point.shape);
        }
    }
    let entry = ExpertEntry {
        engine: "trtllm wide ep".to_owned(),
        phase: None,
        model: ExpertModel::Rank { pooled: model, by_model: Vec::new(), residuals: vec![residual] },
        measured,
        basis: Basis::new(Origin::Fitted, stats.mape, "a kernel switch near 1000 rows per rank"),
        scaled_error_share: SCALED_ERROR,
    };
    Ok((entry, report))
}
