//! Checks the knee form on the one table that varies activated experts directly.
//!
//! Qwen3-30B in bf16 on an RTX PRO 6000 (docs/cost-model.md): no profile is made for that device.

use evenkeel_types::WeightFormat;

use super::ExpertShape;
use super::rank_fit::{RankPoint, RankTerms, errors};
use crate::error::CostError;
use crate::fit::hold_out;
use crate::report::{FitLine, FitReport};
use crate::residual::ResidualTable;
use crate::table::Table;

const SHAPE: ExpertShape =
    ExpertShape { hidden: 2048, width: 768, experts: 128, top_k: 8, weights: WeightFormat::Bf16 };
/// Experts whose weights stay in that card's cache between repetitions.
const CACHED: f64 = 8.0;
const TILE: f64 = 16.0;
const CURVE: &str = "experts by activated, qwen3-30b bf16, rtx pro 6000";

/// Fits `tokens, activated_experts, time_us` and reports on the unseen fifth.
///
/// # Errors
/// A malformed table, or one with fewer than 20 usable rows.
pub fn fit_activated(table: &Table<'_>) -> Result<FitReport, CostError> {
    let mut report = FitReport::default();
    let [tokens, active, time] = table.columns(["tokens", "activated_experts", "time_us"])?;
    let mut points = Vec::new();
    let mut cached = 0;
    for row in table.rows() {
        let (on_rank, experts) = (row.positive(tokens)?, row.positive(active)?);
        if experts <= CACHED {
            cached += 1;
            continue;
        }
        let rows = on_rank * f64::from(SHAPE.top_k);
        let tiled = experts * (rows / experts / TILE).ceil() * TILE;
        points.push(RankPoint {
            key: [tokens, active].map(|c| row.text(c)).join("/"),
            group: String::new(),
            shape: SHAPE,
            slots: SHAPE.experts,
            tokens: on_rank,
            draws: vec![[experts, tiled, rows]],
            measured_us: row.positive(time)?,
        });
    }
    report.set_aside(
        table.name(),
        cached,
        "eight experts: 75 MB of weights stay in that card's cache between repetitions",
    );
    let (unseen, seen): (Vec<&RankPoint>, Vec<&RankPoint>) =
        points.iter().partition(|p| hold_out(&p.key));
    if seen.len() < 20 {
        return Err(CostError::TooFewRows {
            curve: CURVE.to_owned(),
            rows: seen.len(),
            needed: 20,
        });
    }
    let terms = RankTerms { tile_rows: TILE as u32, switch: None, rows: false, routing: false };
    let model = terms.fit(&seen, 3, usize::MAX);
    let stats = errors(&unseen, &model, &ResidualTable::default());
    report.rows.push(FitLine::new(CURVE, "unseen fifth", seen.len(), &stats, None));
    Ok(report)
}
