//! An operator's own measurements, as one CSV, into a profile.
//!
//! One row per measurement, the counts written down. `tools/measure_experts.py` writes the file on
//! the operator's GPUs; docs/calibration.md is the design. Columns, in any order:
//!
//! | column | meaning |
//! |---|---|
//! | `what` | `experts`, `dispatch` or `combine` |
//! | `phase` | `decode` or `prefill` |
//! | `hidden`, `width` | residual width, inner width of one expert |
//! | `experts`, `top_k` | experts per layer, experts per token |
//! | `weights` | `f32`, `bf16`, `fp8_block`, `fp8`, `int4` or `mxfp4` |
//! | `counts` | for `experts`: rows of every local slot, runs as `rows*slots` (`64*2 0*14`); else the number of nodes |
//! | `tokens` | for `experts`: distinct tokens on the rank; else tokens per rank |
//! | `graph` | `yes` where launched as a CUDA graph, else `no` |
//! | `time_us` | median time |
//! | `spread_us` | spread of the repetitions, for a reader |
//!
//! What was not measured comes from a base profile and is marked as borrowed.

use evenkeel_types::{Phase, WeightFormat};

use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::exchange::{Direction, NodeLine, OneNode};
use crate::expert::{ExpertShape, MeasuredRow, fit_measured};
use crate::fit::non_negative;
use crate::profile::{ExpertEntry, PROFILE_SCHEMA, Profile};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::{Row, Table};

/// Slots of one rank beyond this are refused; no rank holds a tenth of it.
const SLOTS_MAX: usize = 8192;

/// One measured exchange.
struct ExchangeRow {
    direction: Direction,
    nodes: u32,
    shape: ExpertShape,
    tokens: f64,
    time_us: f64,
}

/// Rows of a calibration table.
struct Rows {
    experts: Vec<MeasuredRow>,
    exchange: Vec<ExchangeRow>,
}

/// Fits an operator's CSV. Expert curves are replaced for every phase with enough rows, exchanges
/// for every node count with at least three token counts; the rest is `base`'s, marked borrowed.
///
/// # Errors
/// A missing column, a cell that cannot be read (naming line and column), or too few rows.
pub fn profile_from_csv(name: &str, text: &str, base: &Profile) -> Result<Profile, CostError> {
    let table = Table::parse(name, text)?;
    let rows = read(&table)?;
    let mut report = FitReport::default();
    let mut experts = Vec::new();
    for phase in [Phase::Decode, Phase::Prefill] {
        if rows.experts.iter().any(|r| r.phase == phase) {
            let (entry, part) = fit_measured("measured", &rows.experts, Some(phase))?;
            experts.push(entry);
            report.extend(part);
        }
    }
    if experts.is_empty() {
        return Err(CostError::TooFewRows {
            curve: format!("experts, {name}"),
            rows: 0,
            needed: 15,
        });
    }
    let note = format!("taken from profile `{}`", base.name);
    let borrowed = Basis::new(Origin::Borrowed, BORROWED_ERROR, note);
    for entry in &base.experts {
        if experts.iter().all(|own| own.phase != entry.phase) {
            let basis = entry.basis.weaker(&borrowed);
            experts.push(ExpertEntry { basis, ..entry.clone() });
        }
    }
    let mut profile = Profile {
        schema: PROFILE_SCHEMA.to_owned(),
        name: name.to_owned(),
        identity: format!("calibrated from a table of {} rows", table.len()),
        experts,
        report,
        ..base.clone()
    };
    borrow_parts(&mut profile, &borrowed);
    fit_exchanges(&mut profile, &rows.exchange);
    Ok(profile)
}

/// Error stated for curves of another machine (docs/cost-model.md).
const BORROWED_ERROR: f64 = 0.2;

fn borrow_parts(profile: &mut Profile, borrowed: &Basis) {
    let Profile { exchange, attention, dense, .. } = profile;
    for basis in [
        &mut exchange.one_node_basis,
        &mut exchange.multi_node_basis,
        &mut exchange.normal_one_node_basis,
        &mut exchange.normal_multi_node_basis,
        &mut attention.generation_basis,
        &mut attention.context_basis,
        &mut dense.basis,
    ] {
        *basis = basis.weaker(borrowed);
    }
}

/// A straight line per direction and node count, relative errors minimised.
fn fit_exchanges(profile: &mut Profile, rows: &[ExchangeRow]) {
    for direction in [Direction::Dispatch, Direction::Combine] {
        let mut counts: Vec<u32> =
            rows.iter().filter(|r| r.direction == direction).map(|r| r.nodes).collect();
        counts.sort_unstable();
        counts.dedup();
        for nodes in counts {
            let own: Vec<&ExchangeRow> =
                rows.iter().filter(|r| r.direction == direction && r.nodes == nodes).collect();
            if own.len() >= 3 {
                fit_exchange(profile, direction, nodes, &own);
            }
        }
    }
}

fn fit_exchange(profile: &mut Profile, direction: Direction, nodes: u32, rows: &[&ExchangeRow]) {
    let shape = rows[0].shape;
    let features: Vec<Vec<f64>> = rows.iter().map(|r| vec![1.0, r.tokens]).collect();
    let times: Vec<f64> = rows.iter().map(|r| r.time_us).collect();
    let weights: Vec<f64> = times.iter().map(|t| 1.0 / (t * t)).collect();
    let line = non_negative(&features, &times, &weights);
    let (start_us, token_us) = (line[0], line[1].max(1e-9));
    let stats = ErrorStats::of(rows.iter().map(|r| (start_us + token_us * r.tokens, r.time_us)));
    let word = match direction {
        Direction::Dispatch => "dispatch",
        Direction::Combine => "combine",
    };
    let curve = format!("{word}, {nodes} nodes, measured");
    let group = "all rows, none held out";
    profile.report.rows.push(FitLine::new(&curve, group, rows.len(), &stats, None));
    let basis = Basis::new(Origin::Fitted, stats.mape, "measured by the operator");
    let exchange = &mut profile.exchange;
    let curve = match direction {
        Direction::Dispatch => &mut exchange.dispatch,
        Direction::Combine => &mut exchange.combine,
    };
    let bytes = f64::from(shape.top_k) * direction.measured_bytes(f64::from(shape.hidden));
    if nodes <= 1 {
        curve.one_node = OneNode {
            floor_us: 0.0,
            per_1000_experts_us: 0.0,
            per_1000_hidden_us: 0.0,
            start_us,
            bytes_per_us: bytes / token_us,
            message_us: 0.0,
            // One shape cannot tell the processors' rate from the link's.
            sm_bytes_per_us: 1e15,
            knee: 1.0,
        };
        exchange.one_node_basis = basis;
    } else {
        let shape = [shape.hidden, shape.top_k];
        if curve.line_shape != shape {
            curve.lines.clear();
            curve.line_shape = shape;
        }
        curve.lines.retain(|line| line.nodes != nodes);
        curve.lines.push(NodeLine { nodes, start_us, step_us: 0.0, step_tokens: 1.0, token_us });
        curve.lines.sort_by_key(|line| line.nodes);
        exchange.multi_node_basis = basis;
    }
}

/// The expert rows of a calibration table.
pub(crate) fn expert_rows(table: &Table<'_>) -> Result<Vec<MeasuredRow>, CostError> {
    Ok(read(table)?.experts)
}

fn read(table: &Table<'_>) -> Result<Rows, CostError> {
    let [what, phase, hid, wid, exp, topk, weights, counts, tok, graph, time] = table.columns([
        "what", "phase", "hidden", "width", "experts", "top_k", "weights", "counts", "tokens",
        "graph", "time_us",
    ])?;
    let mut rows = Rows { experts: Vec::new(), exchange: Vec::new() };
    for row in table.rows() {
        let shape = ExpertShape {
            hidden: positive(&row, hid)?,
            width: positive(&row, wid)?,
            experts: positive(&row, exp)?,
            top_k: positive(&row, topk)?,
            weights: format(row.text(weights))
                .ok_or_else(|| row.refuse(weights, "f32, bf16, fp8_block, fp8, int4 or mxfp4"))?,
        };
        let time_us = row.positive(time)?;
        let direction = match row.text(what) {
            "experts" => None,
            "dispatch" => Some(Direction::Dispatch),
            "combine" => Some(Direction::Combine),
            _ => return Err(row.refuse(what, "experts, dispatch or combine")),
        };
        if let Some(direction) = direction {
            let tokens = row.positive(tok)?;
            let nodes = positive(&row, counts)?;
            rows.exchange.push(ExchangeRow { direction, nodes, shape, tokens, time_us });
            continue;
        }
        rows.experts.push(MeasuredRow {
            phase: match row.text(phase) {
                "decode" => Phase::Decode,
                "prefill" => Phase::Prefill,
                _ => return Err(row.refuse(phase, "decode or prefill")),
            },
            shape,
            rows: slots(row.text(counts))
                .ok_or_else(|| row.refuse(counts, "runs of `rows*slots`, at most 8192 slots"))?,
            tokens: row.get(tok)?,
            graphed: match row.text(graph) {
                "yes" => true,
                "no" => false,
                _ => return Err(row.refuse(graph, "yes or no")),
            },
            time_us,
        });
    }
    Ok(rows)
}

fn positive(row: &Row<'_, '_>, column: usize) -> Result<u32, CostError> {
    match row.get(column)? {
        0 => Err(row.refuse(column, "at least 1")),
        value => Ok(value),
    }
}

/// Reads `64*2 0*14`; a number without `*` is one slot.
fn slots(text: &str) -> Option<Vec<u32>> {
    let mut slots = Vec::new();
    for run in text.split_whitespace() {
        let (rows, count) = run.split_once('*').unwrap_or((run, "1"));
        let count: usize = count.parse().ok()?;
        if count == 0 || slots.len().checked_add(count)? > SLOTS_MAX {
            return None;
        }
        let rows: u32 = rows.parse().ok()?;
        slots.extend(std::iter::repeat_n(rows, count));
    }
    (!slots.is_empty()).then_some(slots)
}

fn format(text: &str) -> Option<WeightFormat> {
    Some(match text {
        "f32" => WeightFormat::F32,
        "bf16" => WeightFormat::Bf16,
        "fp8_block" => WeightFormat::Fp8Block,
        "fp8" => WeightFormat::Fp8,
        "int4" => WeightFormat::Int4,
        "mxfp4" => WeightFormat::Mxfp4,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "what,phase,hidden,width,experts,top_k,weights,counts,tokens,graph,time_us,spread_us\n";

    /// A table made from known coefficients.
    fn table() -> String {
        let mut text = HEADER.to_owned();
        for active in [1_u32, 2, 4, 8, 16] {
            for rows in [1_u32, 16, 64, 65, 128, 129, 256, 1024] {
                let tiles = f64::from(rows.div_ceil(64));
                let each = 15.0 + 4.0 * (tiles - 1.0) + 0.01 * f64::from(rows);
                let time = 20.0 + 0.5 * 16.0 + f64::from(active) * each;
                let idle = 16 - active;
                let counts = if idle > 0 {
                    format!("{rows}*{active} 0*{idle}")
                } else {
                    format!("{rows}*16")
                };
                text += &format!(
                    "experts,decode,4096,1536,128,8,bf16,{counts},{rows},yes,{time:.3},0\n"
                );
            }
        }
        for tokens in [1, 8, 64, 256] {
            let time = 12.0 + 0.3 * f64::from(tokens);
            text += &format!("dispatch,decode,4096,1536,128,8,bf16,2,{tokens},yes,{time:.3},0\n");
        }
        text
    }

    #[test]
    fn known_coefficients_are_recovered_with_their_tile() {
        let base = Profile::builtin("h100-sxm").unwrap();
        let profile = profile_from_csv("mine", &table(), &base).unwrap();
        let shape = ExpertShape {
            hidden: 4096,
            width: 1536,
            experts: 128,
            top_k: 8,
            weights: WeightFormat::Bf16,
        };
        let curve = profile.experts[0].curve(&shape);
        let found = curve.coefficients();
        assert_eq!(found.tile_rows, 64);
        assert!((found.first_us / 15.0 - 1.0).abs() < 0.03, "{found:?}");
        assert!((found.further_tile_us / 4.0 - 1.0).abs() < 0.05, "{found:?}");
        assert_eq!(curve.basis.origin, Origin::Fitted);
        let line = &profile.report.rows[0];
        assert!(line.group == "unseen fifth" && line.mape < 0.01, "{line:?}");
        let prefill = profile.experts.iter().find(|e| e.phase == Some(Phase::Prefill)).unwrap();
        assert_eq!(prefill.basis.origin, Origin::Borrowed);
        let nodes = profile.exchange.dispatch.lines.iter().find(|l| l.nodes == 2).unwrap();
        assert!((nodes.token_us - 0.3).abs() < 1e-3 && (nodes.start_us - 12.0).abs() < 0.01);
        assert_eq!(profile.exchange.normal_one_node_basis.origin, Origin::Borrowed);
    }

    #[test]
    fn errors_name_line_and_column() {
        let base = Profile::builtin("h100-sxm").unwrap();
        let refused = |row: &str| {
            profile_from_csv("mine", &format!("{HEADER}{row}\n"), &base).unwrap_err().to_string()
        };
        let text = refused("experts,decode,4096,1536,128,8,bf16,64*x,64,yes,10,0");
        assert!(text.contains("line 2, column `counts`: `64*x`"), "{text}");
        let text = refused("experts,decode,4096,1536,128,8,bf16,64*99999999,64,yes,10,0");
        assert!(text.contains("at most 8192 slots"), "{text}");
        let text = refused("experts,decode,4096,1536,128,8,bf16,64*2,64,yes,NaN,0");
        assert!(text.contains("column `time_us`"), "{text}");
        let text = refused("experts,decode,0,1536,128,8,bf16,64*2,64,yes,1,0");
        assert!(text.contains("column `hidden`"), "{text}");
        let text = refused("experts,decode,4096,1536,128,8,bf16,64*2,64,yes,1,0");
        assert!(text.contains("1 usable rows, expected at least 15"), "{text}");
        assert!(profile_from_csv("mine", "", &base).unwrap_err().to_string().contains("`what`"));
    }
}
