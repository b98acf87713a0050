//! Fits the fused expert kernels of many models: constants per kernel, and per model within it.
//!
//! docs/cost-model.md, "fused MoE kernels of many models". A curve for a measured model uses
//! that model's constants and residual table; another shape uses the kernel's pooled constants.

use std::collections::BTreeMap;

use evenkeel_types::WeightFormat;

use super::rank_fit::{RankPoint, RankTerms, errors, residuals, totals};
use super::{ExpertShape, RankModel};
use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::fit::hold_out;
use crate::load_generator::{LoadCase, Spread};
use crate::profile::{ExpertEntry, ExpertModel};
use crate::report::{FitLine, FitReport};
use crate::residual::ResidualTable;
use crate::stats::ErrorStats;
use crate::switches::slower_than_later;
use crate::table::Table;

/// Draws over which a skewed row's cost is averaged.
const DRAWS: u64 = 4;
/// One cell per doubling (docs/cost-model.md: octaves of tokens).
const CELLS_PER_OCTAVE: f64 = 1.0;

/// A fused kernel of one engine: how its rows are marked in the table, and its tile.
#[derive(Clone, Copy, Debug)]
pub struct FusedKernel {
    /// Name of the expert entry.
    pub engine: &'static str,
    /// Column `kernel_source`.
    pub source: &'static str,
    /// Start of column `collected_with`.
    pub collected_with: &'static str,
    /// Column `moe_dtype`.
    pub dtype: &'static str,
    /// The same as a weight format.
    pub weights: WeightFormat,
    /// Rows of a tile.
    pub tile_rows: u32,
    /// Whether DeepSeek's rows went through group-limited top-k, which overrides the load.
    pub grouped_top_k: bool,
}

impl FusedKernel {
    /// The kernels of the table, block-scaled FP8 first.
    #[must_use]
    pub fn all() -> [Self; 12] {
        use WeightFormat::{Bf16, Fp8, Fp8Block, Int4, Mxfp4};
        let cutlass = "moe_torch_flow_cutlass";
        let triton = "sglang_fused_moe_triton";
        let flashinfer = "vllm_fp8moe_flashinfer_cutlass_flashinferexperts";
        let marlin = "vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts";
        let oai = "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic";
        let row = |engine, source, collected_with, (dtype, weights), tile_rows, grouped_top_k| {
            Self { engine, source, collected_with, dtype, weights, tile_rows, grouped_top_k }
        };
        let (block, fp8) = (("fp8_block", Fp8Block), ("fp8", Fp8));
        let (bf16, int4, mxfp4) = (("bfloat16", Bf16), ("int4_wo", Int4), ("w4a16_mxfp4", Mxfp4));
        [
            row("trtllm cutlass fp8_block", cutlass, "trtllm", block, 128, false),
            row("vllm flashinfer cutlass fp8_block", flashinfer, "vllm", block, 128, true),
            row(
                "vllm triton fp8_block",
                "vllm_fp8moe_triton_tritonexperts",
                "vllm",
                block,
                64,
                true,
            ),
            row("sglang triton fp8_block", triton, "sglang", block, 16, true),
            row("trtllm cutlass fp8", cutlass, "trtllm", fp8, 16, false),
            row("trtllm cutlass bf16", cutlass, "trtllm", bf16, 16, false),
            row(
                "vllm triton bf16",
                "vllm_unquantizedfusedmoe_triton_tritonexperts",
                "vllm",
                bf16,
                16,
                true,
            ),
            row("sglang triton bf16", triton, "sglang", bf16, 16, true),
            row("trtllm mxfp4", "moe_torch_flow", "trtllm", mxfp4, 16, false),
            row("sglang triton mxfp4", triton, "sglang", mxfp4, 16, false),
            row("vllm triton mxfp4", oai, "vllm", mxfp4, 16, false),
            row("vllm marlin int4", marlin, "vllm", int4, 16, true),
        ]
    }

    /// Largest errors that count as met: per-model constants; a model left out inside the range
    /// of shapes, and at its edge.
    const fn targets(&self) -> [Option<f64>; 3] {
        match self.weights {
            WeightFormat::Fp8Block => [Some(0.07), Some(0.10), Some(0.16)],
            _ => [Some(0.12), None, None],
        }
    }

    const fn terms(&self, pooled: bool) -> RankTerms {
        // Within one model the routing term cannot be told from the token term.
        RankTerms { tile_rows: self.tile_rows, switch: None, rows: true, routing: pooled }
    }
}

/// Usable rows of one kernel on one system, grouped by model.
fn points(
    table: &Table<'_>,
    system: &str,
    kernel: &FusedKernel,
    report: &mut FitReport,
) -> Result<Vec<RankPoint>, CostError> {
    let [sys, with, src, ty, tok, hid, wid, topk, exp, ep, dist, lat, name] = table.columns([
        "system",
        "collected_with",
        "kernel_source",
        "moe_dtype",
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_ep_size",
        "distribution",
        "latency",
        "model",
    ])?;
    let mut points = Vec::new();
    let mut loads: BTreeMap<String, Vec<[f64; 3]>> = BTreeMap::new();
    let (mut degenerate, mut grouped) = (0, 0);
    for row in table.rows() {
        let ours = row.text(sys) == system
            && row.text(src) == kernel.source
            && row.text(ty) == kernel.dtype
            && row.text(with).starts_with(kernel.collected_with);
        if !ours {
            continue;
        }
        let spread = Spread::parse(row.text(dist))
            .ok_or_else(|| row.refuse(dist, "`balanced` or `power_law_<exponent>`"))?;
        let case = LoadCase {
            tokens: row.get(tok)?,
            experts: row.get(exp)?,
            top_k: row.get(topk)?,
            ranks: row.get(ep)?,
            spread,
        };
        if kernel.grouped_top_k && row.text(name).starts_with("DeepSeek") {
            grouped += 1;
            continue;
        }
        if case.degenerate() {
            degenerate += 1;
            continue;
        }
        let load_key = [tok, exp, topk, ep, dist].map(|c| row.text(c)).join("/");
        let draws = loads.entry(load_key).or_insert_with(|| {
            let draws = if spread == Spread::Balanced { 1 } else { DRAWS };
            (0..draws).map(|draw| totals(&case.hottest(draw), kernel.tile_rows)).collect()
        });
        points.push(RankPoint {
            key: [with, src, ty, name, tok, ep, dist].map(|c| row.text(c)).join("/"),
            group: row.text(name).to_owned(),
            shape: ExpertShape {
                hidden: row.get(hid)?,
                width: row.get(wid)?,
                experts: case.experts,
                top_k: case.top_k,
                weights: kernel.weights,
            },
            slots: case.experts / case.ranks.max(1),
            tokens: f64::from(case.tokens),
            draws: draws.clone(),
            measured_us: 1000.0 * row.positive(lat)?,
        });
    }
    let part = format!("{}, {}, {system}", table.name(), kernel.engine);
    report.set_aside(&part, degenerate, "power law with tokens x top_k <= experts: rounding leaves zeros and the remainder falls on one rank");
    report.set_aside(
        &part,
        grouped,
        "DeepSeek rows of this engine go through group-limited top-k, which overrides the load",
    );
    Ok(points)
}

/// Constants, residual table and shape of one model within a kernel.
struct OneModel {
    shape: ExpertShape,
    model: RankModel,
    residual: ResidualTable,
}

/// Fits one kernel on one system; at most `limit` rows enter each fit. `None` where the table has
/// no rows of it.
///
/// # Errors
/// A malformed table, or a kernel with rows but fewer than 60 usable ones.
pub fn fit_fused(
    table: &Table<'_>,
    system: &str,
    kernel: &FusedKernel,
    limit: usize,
) -> Result<Option<(ExpertEntry, FitReport)>, CostError> {
    let mut report = FitReport::default();
    let points = points(table, system, kernel, &mut report)?;
    if points.is_empty() {
        return Ok(None);
    }
    let curve = format!("experts fused, {}, {system}", kernel.engine);
    let (unseen, seen): (Vec<&RankPoint>, Vec<&RankPoint>) =
        points.iter().partition(|p| hold_out(&p.key));
    if seen.len() < 60 {
        return Err(CostError::TooFewRows { curve, rows: seen.len(), needed: 60 });
    }
    let pooled = kernel.terms(true).fit(&seen, 3, limit);
    let models = fit_models(kernel, &seen, limit);
    let stats = errors_by_model(&unseen, &models);
    let line = |group: &str, stats, target| FitLine::new(&curve, group, seen.len(), stats, target);
    let group = "unseen fifth, constants per model";
    report.rows.push(line(group, &stats, kernel.targets()[0]));
    let small: Vec<&RankPoint> = unseen.iter().copied().filter(|p| p.tokens <= 512.0).collect();
    let small = errors_by_model(&small, &models);
    report.rows.push(line("unseen, at most 512 tokens", &small, None));
    let none = ResidualTable::default();
    let all = errors(&unseen, &pooled, &none);
    report.rows.push(line("unseen fifth, pooled constants", &all, None));
    leave_models_out(kernel, &curve, &points, &models, limit, &mut report);
    note_switches(&curve, &points, &mut report);
    let mut scaled: Vec<f64> = report.left_out.iter().map(|l| l.mape).collect();
    scaled.sort_by(f64::total_cmp);
    let scaled = crate::stats::quantile(&scaled, 0.5).max(all.mape);
    let entry = ExpertEntry {
        engine: kernel.engine.to_owned(),
        phase: None,
        measured: models.values().map(|m| m.shape).collect(),
        model: ExpertModel::Rank {
            pooled,
            by_model: models.values().map(|m| m.model).collect(),
            residuals: models.into_values().map(|m| m.residual).collect(),
        },
        basis: Basis::new(Origin::Fitted, stats.mape, "fused kernel, one rank, uncontended"),
        scaled_error_share: scaled,
    };
    Ok(Some((entry, report)))
}

fn fit_models<'a>(
    kernel: &FusedKernel,
    seen: &[&'a RankPoint],
    limit: usize,
) -> BTreeMap<&'a str, OneModel> {
    let mut groups: BTreeMap<&str, Vec<&RankPoint>> = BTreeMap::new();
    for &point in seen {
        groups.entry(&point.group).or_default().push(point);
    }
    groups
        .into_iter()
        .map(|(name, points)| {
            let model = kernel.terms(false).fit(&points, 2, limit);
            let residual = residuals(&points, &model, CELLS_PER_OCTAVE);
            (name, OneModel { shape: points[0].shape, model, residual })
        })
        .collect()
}

fn errors_by_model(points: &[&RankPoint], models: &BTreeMap<&str, OneModel>) -> ErrorStats {
    ErrorStats::of(points.iter().filter_map(|p| {
        let own = models.get(p.group.as_str())?;
        Some((p.corrected(&own.model, &own.residual), p.measured_us))
    }))
}

/// Refits the pooled constants without each model in turn. A model whose expert is the smallest or
/// largest lies at the edge of the range.
fn leave_models_out(
    kernel: &FusedKernel,
    curve: &str,
    points: &[RankPoint],
    models: &BTreeMap<&str, OneModel>,
    limit: usize,
    report: &mut FitReport,
) {
    if models.len() < 3 {
        return;
    }
    let bytes: Vec<f64> = models.values().map(|m| m.shape.bytes()).collect();
    let smallest = bytes.iter().copied().fold(f64::MAX, f64::min);
    let largest = bytes.iter().copied().fold(0.0, f64::max);
    let [_, inside, edge] = kernel.targets();
    for (name, model) in models {
        let (out, rest): (Vec<&RankPoint>, Vec<&RankPoint>) =
            points.iter().partition(|p| p.group == *name);
        let fitted = kernel.terms(true).fit(&rest, 1, limit);
        let stats = errors(&out, &fitted, &ResidualTable::default());
        let own = model.shape.bytes();
        let at_edge = own <= smallest || own >= largest;
        let (word, target) = if at_edge { ("edge", edge) } else { ("inside", inside) };
        let group = format!("{name} left out, {word}");
        report.left_out.push(FitLine::new(curve, &group, rest.len(), &stats, target));
    }
}

/// Counts rows that a kernel switch makes slower than a later row of the same curve.
fn note_switches(curve: &str, points: &[RankPoint], report: &mut FitReport) {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for point in points {
        let spread = point.key.rsplit('/').next().unwrap_or_default();
        let key = format!("{}, {} slots, {spread}", point.group, point.slots);
        curves.entry(key).or_default().push((point.tokens, point.measured_us));
    }
    let found: Vec<(String, usize, f64)> = curves
        .into_iter()
        .filter_map(|(key, rows)| {
            let slow = slower_than_later(&rows);
            slow.first().map(|first| (key, slow.len(), rows[*first].0))
        })
        .collect();
    let rows: usize = found.iter().map(|(_, count, _)| count).sum();
    if let Some((key, _, tokens)) = found.iter().max_by_key(|(_, count, _)| *count) {
        report.switches.push(format!(
            "{curve}: {rows} rows more than 1.6 times slower than a later row, most for {key}, \
             e.g. at {tokens} tokens"
        ));
    }
}
