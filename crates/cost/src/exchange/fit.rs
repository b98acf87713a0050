//! Fits DeepEP low latency: one node by the knee, several nodes by a line per node count.

use super::{AnyNodes, Direction, LowLatencyCurve, NodeLine, OneNode};
use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::fit::{Param, fit_positive, hold_out};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::Table;

/// Targets of docs/cost-model.md, dispatch and combine.
const TARGETS: [f64; 2] = [0.03, 0.04];
/// The system whose rows over several nodes are its own: H200's are copies of them.
pub(super) const MULTI_NODE_SYSTEM: &str = "h100_sxm";
/// Shape of the rows over several nodes.
const LINE_SHAPE: [u32; 2] = [7168, 8];

#[derive(Clone, Debug)]
struct Point {
    nodes: u32,
    hidden: f64,
    tokens: f64,
    top_k: f64,
    experts: f64,
    measured_us: [f64; 2],
    unseen: bool,
    /// At least 4 experts per token and 64 experts: what the targets are about.
    many: bool,
}

/// Both directions of low latency on one machine, and what they stand on.
#[derive(Clone, Debug)]
pub struct LowLatencyFit {
    /// Towards the experts.
    pub dispatch: LowLatencyCurve,
    /// Back.
    pub combine: LowLatencyCurve,
    /// Basis within a node.
    pub one_node_basis: Basis,
    /// Basis over several nodes.
    pub multi_node_basis: Basis,
    /// What the fits reached.
    pub report: FitReport,
}

/// Fits one system.
///
/// # Errors
/// A missing column, an unreadable cell, or a system without rows.
pub fn fit_low_latency(table: &Table<'_>, system: &str) -> Result<LowLatencyFit, CostError> {
    let mut report = FitReport::default();
    let one = points(table, system, |nodes| nodes == 1, &mut report)?;
    let several = points(table, MULTI_NODE_SYSTEM, |nodes| nodes > 1, &mut report)?;
    let mut errors = [[0.0; 2]; 2];
    let curves = [Direction::Dispatch, Direction::Combine].map(|direction| {
        let at = index(direction);
        let (one_node, one_error) = fit_one_node(&one, direction, system, &mut report);
        let (lines, line_error) = fit_lines(&several, direction, &mut report);
        let any_nodes = fit_any(&several, direction, &one_node, &mut report);
        errors[at] = [one_error, line_error];
        LowLatencyCurve { one_node, lines, line_shape: LINE_SHAPE, any_nodes: Some(any_nodes) }
    });
    let [dispatch, combine] = curves;
    let one_node_basis =
        support(Basis::new(Origin::Fitted, errors[0][0].max(errors[1][0]), ""), &one);
    let multi = errors[0][1].max(errors[1][1]);
    let multi_node_basis = if system == MULTI_NODE_SYSTEM {
        Basis::new(Origin::Fitted, multi, "")
    } else {
        let note = "over several nodes the table repeats H100's rows";
        Basis::new(Origin::Borrowed, multi.max(0.05), note)
    };
    let multi_node_basis = support(multi_node_basis, &several);
    Ok(LowLatencyFit { dispatch, combine, one_node_basis, multi_node_basis, report })
}

fn support(basis: Basis, points: &[Point]) -> Basis {
    let range = |of: &dyn Fn(&Point) -> f64| {
        points.iter().map(of).fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)))
    };
    let (hidden, top_k, experts) =
        (range(&|p| p.hidden), range(&|p| p.top_k), range(&|p| p.experts));
    basis
        .with_support("hidden", hidden.0, hidden.1)
        .with_support("top_k", top_k.0, top_k.1)
        .with_support("experts", experts.0, experts.1)
        .with_support("node_ranks", 8.0, 8.0)
}

const fn index(direction: Direction) -> usize {
    match direction {
        Direction::Dispatch => 0,
        Direction::Combine => 1,
    }
}

const fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Dispatch => "dispatch",
        Direction::Combine => "combine",
    }
}

fn points(
    table: &Table<'_>,
    system: &str,
    nodes_wanted: impl Fn(u32) -> bool,
    report: &mut FitReport,
) -> Result<Vec<Point>, CostError> {
    let columns = table.columns([
        "system",
        "collected_with",
        "node_num",
        "hidden_size",
        "num_token",
        "num_topk",
        "num_experts",
        "dispatch_avg_t_us",
        "combine_avg_t_us",
    ])?;
    let [sys, with, nodes, hidden, tokens, top_k, experts, dispatch, combine] = columns;
    let (mut points, mut few, mut copies) = (Vec::new(), 0, 0);
    for row in table.rows().filter(|row| row.text(sys) == system) {
        let node_count: u32 = row.get(nodes)?;
        if !nodes_wanted(node_count) {
            continue;
        }
        if system != MULTI_NODE_SYSTEM && row.text(with).contains("0.5.6") {
            copies += 1;
            continue;
        }
        let (k, e) = (row.positive(top_k)?, row.positive(experts)?);
        let many = k >= 4.0 && e >= 64.0;
        few += usize::from(!many);
        let key: Vec<&str> =
            [sys, with, nodes, hidden, tokens, top_k, experts].map(|c| row.text(c)).to_vec();
        points.push(Point {
            nodes: node_count,
            hidden: row.positive(hidden)?,
            tokens: row.positive(tokens)?,
            top_k: k,
            experts: e,
            measured_us: [row.positive(dispatch)?, row.positive(combine)?],
            unseen: hold_out(&key.join(",")),
            many,
        });
    }
    report.set_aside(
        table.name(),
        few,
        "fewer than 4 experts per token or than 64 experts: fitted, but judged apart, for the \
         kernel gives each expert one multiprocessor",
    );
    report.set_aside(table.name(), copies, "copies of another system's rows");
    if points.len() < 10 {
        return Err(CostError::TooFewRows {
            curve: format!("low latency, {system}"),
            rows: points.len(),
            needed: 10,
        });
    }
    Ok(points)
}

fn one_node_of(p: &[f64]) -> OneNode {
    OneNode {
        floor_us: p[0],
        per_1000_experts_us: p[1],
        per_1000_hidden_us: p[2],
        start_us: p[3],
        bytes_per_us: p[4],
        message_us: p[5],
        sm_bytes_per_us: p[6],
        knee: p[7],
    }
}

fn predict_one(node: &OneNode, point: &Point, direction: Direction) -> f64 {
    let bytes = direction.measured_bytes(point.hidden);
    node.line(point.experts, point.hidden, point.top_k, bytes).at(point.tokens)
}

fn stats(points: &[&Point], at: usize, predict: impl Fn(&Point) -> f64) -> ErrorStats {
    ErrorStats::of(points.iter().map(|point| (predict(point), point.measured_us[at])))
}

/// Fits all constants on all rows, keeps the rate per multiprocessor, which only few experts show,
/// and fits the others again where there are many.
fn fit_node(seen: &[&Point], direction: Direction) -> OneNode {
    let at = index(direction);
    let start = [3.0, 12.0, 0.2, 6.0, 280e3, 5e-4, 1500e3].map(Param::free);
    let mut params: Vec<Param> = start.into_iter().chain([Param::within(1.4, 1.0, 8.0)]).collect();
    let fit = |params: &[Param], rows: &[&Point]| {
        let times: Vec<f64> = rows.iter().map(|point| point.measured_us[at]).collect();
        fit_positive(params, &times, 3, |p, row| predict_one(&one_node_of(p), rows[row], direction))
            .params
    };
    let rate = one_node_of(&fit(&params, seen)).sm_bytes_per_us;
    params[6] = Param::within(rate, rate, rate);
    let many: Vec<&Point> = seen.iter().copied().filter(|point| point.many).collect();
    one_node_of(&fit(&params, &many))
}

fn fit_one_node(
    points: &[Point],
    direction: Direction,
    system: &str,
    report: &mut FitReport,
) -> (OneNode, f64) {
    let at = index(direction);
    let fit = |seen: &[&Point]| fit_node(seen, direction);
    let (unseen, seen): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|p| p.unseen);
    let node = fit(&seen);
    let (many, few): (Vec<&Point>, Vec<&Point>) = unseen.iter().partition(|p| p.many);
    let judged = stats(&many, at, |point| predict_one(&node, point, direction));
    let curve = format!("low latency {}, one node, {system}", word(direction));
    report.rows.push(FitLine::new(&curve, "unseen fifth", seen.len(), &judged, Some(TARGETS[at])));
    let others = stats(&few, at, |point| predict_one(&node, point, direction));
    let group = "unseen fifth, few experts";
    report.rows.push(FitLine::new(&curve, group, seen.len(), &others, None));
    let mut hidden: Vec<f64> = points.iter().map(|point| point.hidden).collect();
    hidden.sort_by(f64::total_cmp);
    hidden.dedup();
    for out in hidden {
        let (left, kept): (Vec<&Point>, Vec<&Point>) =
            points.iter().partition(|p| (p.hidden - out).abs() < 0.5);
        let left: Vec<&Point> = left.into_iter().filter(|p| p.many).collect();
        if left.is_empty() {
            continue;
        }
        let node = fit(&kept);
        let judged = stats(&left, at, |point| predict_one(&node, point, direction));
        let group = format!("hidden {out} left out");
        report.left_out.push(FitLine::new(&curve, &group, kept.len(), &judged, None));
    }
    (node, judged.mape)
}

fn fit_lines(
    points: &[Point],
    direction: Direction,
    report: &mut FitReport,
) -> (Vec<NodeLine>, f64) {
    let at = index(direction);
    let mut counts: Vec<u32> = points.iter().map(|point| point.nodes).collect();
    counts.sort_unstable();
    counts.dedup();
    let (unseen, seen): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|p| p.unseen);
    let lines: Vec<NodeLine> = counts
        .into_iter()
        .map(|nodes| {
            let own: Vec<&&Point> = seen.iter().filter(|point| point.nodes == nodes).collect();
            let measured: Vec<f64> = own.iter().map(|point| point.measured_us[at]).collect();
            let params = [
                Param::free(22.0),
                Param::within(4.0, 0.01, 15.0),
                Param::within(6.0, 2.0, 40.0),
                Param::free(0.9),
            ];
            let of = |p: &[f64]| NodeLine {
                nodes,
                start_us: p[0],
                step_us: p[1],
                step_tokens: p[2],
                token_us: p[3],
            };
            let fitted =
                fit_positive(&params, &measured, 3, |p, row| of(p).line().at(own[row].tokens));
            of(&fitted.params)
        })
        .collect();
    let predict = |point: &Point| {
        lines.iter().find(|l| l.nodes == point.nodes).map_or(0.0, |l| l.line().at(point.tokens))
    };
    let judged = stats(&unseen, at, predict);
    let curve = format!("low latency {}, 2-8 nodes", word(direction));
    report.rows.push(FitLine::new(&curve, "unseen fifth", seen.len(), &judged, Some(TARGETS[at])));
    (lines, judged.mape)
}

/// One formula for all node counts, for those that were not measured.
fn fit_any(
    points: &[Point],
    direction: Direction,
    one_node: &OneNode,
    report: &mut FitReport,
) -> AnyNodes {
    let at = index(direction);
    let nvlink = one_node.bytes_per_us;
    let bytes = |point: &Point| point.top_k * direction.measured_bytes(point.hidden);
    let fit = |seen: &[&Point]| {
        let measured: Vec<f64> = seen.iter().map(|point| point.measured_us[at]).collect();
        let params = [14.0, 4.0, 5.0, 48e3, 0.5].map(Param::free);
        let of = |p: &[f64]| AnyNodes {
            start_us: p[0],
            per_doubling_us: p[1],
            remote_us: p[2],
            rdma_bytes_per_us: p[3],
            few_nodes_gain: p[4],
            nvlink_bytes_per_us: nvlink,
        };
        let fitted = fit_positive(&params, &measured, 3, |p, row| {
            of(p).line(f64::from(seen[row].nodes), bytes(seen[row]), 1.0).at(seen[row].tokens)
        });
        of(&fitted.params)
    };
    let predict =
        |any: &AnyNodes, p: &Point| any.line(f64::from(p.nodes), bytes(p), 1.0).at(p.tokens);
    let curve = format!("low latency {}, any number of nodes", word(direction));
    let (unseen, seen): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|p| p.unseen);
    let any = fit(&seen);
    let judged = stats(&unseen, at, |point| predict(&any, point));
    report.rows.push(FitLine::new(&curve, "unseen fifth", seen.len(), &judged, None));
    for out in [2, 4, 8] {
        let (left, kept): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|p| p.nodes == out);
        let any = fit(&kept);
        let judged = stats(&left, at, |point| predict(&any, point));
        let group = format!("{out} nodes left out");
        report.left_out.push(FitLine::new(&curve, &group, kept.len(), &judged, None));
    }
    any
}
