//! Builds DeepEP normal's tables and says what interpolating them costs.

use super::points::LogTable;
use super::{Direction, NormalTable, NormalTables};
use crate::basis::{Basis, Origin};
use crate::error::CostError;
use crate::fit::hold_out;
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::Table;
use std::collections::BTreeMap;

/// Target of docs/cost-model.md.
const TARGET: f64 = 0.04;
/// Multiprocessors for communication that a profile keeps: the rate no longer grows beyond.
const SMS: u32 = 24;
/// Above these tokens per rank the 8-node rows jump fivefold: congestion of that cluster.
const EIGHT_NODE_TOKENS: f64 = 8192.0;

/// Nodes, multiprocessors, hidden width, experts per token, experts.
type Key = [u32; 5];

#[derive(Default)]
struct Rows {
    /// Tokens, dispatch and combine transmit µs, unseen.
    points: Vec<(f64, [f64; 2], bool)>,
    notify_us: [Vec<f64>; 2],
}

/// Normal mode of one machine, and what it stands on.
#[derive(Clone, Debug)]
pub struct NormalFit {
    /// The tables that a profile keeps.
    pub tables: NormalTables,
    /// Basis within a node.
    pub one_node_basis: Basis,
    /// Basis over several nodes.
    pub multi_node_basis: Basis,
    /// Errors on points left out of the tables.
    pub report: FitReport,
}

/// Builds the tables of one system; over several nodes those of the system that measured them.
///
/// # Errors
/// A missing column, an unreadable cell, or no rows.
pub fn fit_normal(table: &Table<'_>, system: &str) -> Result<NormalFit, CostError> {
    let mut report = FitReport::default();
    let own = super::fit::MULTI_NODE_SYSTEM == system;
    let mut rows = read(table, system, |nodes| nodes == 1 || own)?;
    let mut errors = [0.0; 2];
    for (at, several) in [false, true].into_iter().enumerate() {
        let group: Vec<&Rows> =
            rows.iter().filter(|(key, _)| (key[0] > 1) == several).map(|(_, r)| r).collect();
        if !group.is_empty() {
            errors[at] = judge(&group, system, several, &mut report);
        }
    }
    if !own {
        rows.extend(read(table, super::fit::MULTI_NODE_SYSTEM, |nodes| nodes > 1)?);
    }
    let tables: Vec<NormalTable> =
        rows.iter().filter(|(key, _)| key[1] == SMS).map(|(key, rows)| kept(key, rows)).collect();
    let doubtful = rows.iter().filter(|(key, _)| key[0] == 8).map(|(_, r)| r.points.len()).sum();
    report.set_aside(table.name(), doubtful, "8-node dispatch: independent of multiprocessors and a third of the published rate; combine's rate is taken");
    if tables.is_empty() {
        let curve = format!("normal mode, {system}");
        return Err(CostError::TooFewRows { curve, rows: 0, needed: 1 });
    }
    let multi_node_basis = if own {
        Basis::new(Origin::Fitted, errors[1], "")
    } else {
        Basis::new(Origin::Borrowed, 0.05, "over several nodes the table repeats H100's rows")
    };
    Ok(NormalFit {
        one_node_basis: support(Basis::new(Origin::Fitted, errors[0], ""), &tables, false),
        multi_node_basis: support(multi_node_basis, &tables, true),
        tables: NormalTables { sms: SMS, tables },
        report,
    })
}

fn read(
    table: &Table<'_>,
    system: &str,
    nodes_wanted: impl Fn(u32) -> bool,
) -> Result<BTreeMap<Key, Rows>, CostError> {
    let columns = table.columns([
        "system",
        "collected_with",
        "node_num",
        "dispatch_sms",
        "combine_sms",
        "hidden_size",
        "num_topk",
        "num_experts",
        "num_token",
        "dispatch_transmit_us",
        "combine_transmit_us",
        "dispatch_notify_us",
        "combine_notify_us",
    ])?;
    let [sys, with, nodes, sms, combine_sms, hidden, top_k, experts, tokens, ..] = columns;
    let [.., dispatch, combine, dispatch_notify, combine_notify] = columns;
    let mut rows: BTreeMap<Key, Rows> = BTreeMap::new();
    for row in table.rows().filter(|row| row.text(sys) == system) {
        let key: Key =
            [row.get(nodes)?, row.get(sms)?, row.get(hidden)?, row.get(top_k)?, row.get(experts)?];
        // Rows with unequal counts would belong to two tables.
        if !nodes_wanted(key[0]) || row.text(sms) != row.text(combine_sms) {
            continue;
        }
        let name =
            [sys, with, nodes, sms, hidden, top_k, experts, tokens].map(|c| row.text(c)).join(",");
        let entry = rows.entry(key).or_default();
        let times = [row.positive(dispatch)?, row.positive(combine)?];
        entry.points.push((row.positive(tokens)?, times, hold_out(&name)));
        for (at, column) in [dispatch_notify, combine_notify].into_iter().enumerate() {
            entry.notify_us[at].push(row.get(column)?);
        }
    }
    Ok(rows)
}

fn direction_table(
    rows: &Rows,
    at: usize,
    used: impl Fn(&(f64, [f64; 2], bool)) -> bool,
) -> LogTable {
    LogTable::new(rows.points.iter().filter(|p| used(p)).map(|p| (p.0, p.1[at])).collect())
}

/// Errors of interpolation on the unseen fifth; the ends of a table are never judged, for they
/// define its range. Returns the larger of the two directions' MAPE.
fn judge(groups: &[&Rows], system: &str, several: bool, report: &mut FitReport) -> f64 {
    let mut worst = 0.0_f64;
    let place = if several { "2-8 nodes" } else { "one node" };
    for (at, direction) in ["dispatch", "combine"].into_iter().enumerate() {
        let (mut pairs, mut seen) = (Vec::new(), 0);
        for rows in groups {
            let ends = rows
                .points
                .iter()
                .map(|p| p.0)
                .fold((f64::INFINITY, 0.0_f64), |e, x| (e.0.min(x), e.1.max(x)));
            let inner = |x: f64| x > ends.0 && x < ends.1;
            let table = direction_table(rows, at, |p| !p.2 || !inner(p.0));
            seen += table.points().len();
            let unseen = rows.points.iter().filter(|p| p.2 && inner(p.0));
            pairs.extend(unseen.map(|p| (table.at(p.0), p.1[at])));
        }
        let stats = ErrorStats::of(pairs);
        worst = worst.max(stats.mape);
        let curve = format!("normal {direction}, {place}, {system}");
        report.rows.push(FitLine::new(&curve, "unseen fifth", seen, &stats, Some(TARGET)));
    }
    worst
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    crate::stats::quantile(&sorted, 0.5)
}

/// The table a profile keeps. Notification enters with its median: its tail is rank skew.
fn kept(key: &Key, rows: &Rows) -> NormalTable {
    let [nodes, _, hidden, top_k, experts] = *key;
    let limit = if nodes == 8 { EIGHT_NODE_TOKENS } else { f64::INFINITY };
    let transmit = |at| direction_table(rows, at, |p| p.0 <= limit);
    let round = |table: LogTable| {
        LogTable::new(
            table.points().iter().map(|(x, y)| (*x, (y * 100.0).round() / 100.0)).collect(),
        )
    };
    let notify = rows.notify_us.each_ref().map(|values| {
        // Up to 128 tokens: above, the median is that of the skew.
        let few: Vec<f64> = rows
            .points
            .iter()
            .zip(values)
            .filter(|(p, _)| p.0 <= 128.0)
            .map(|(_, notify)| *notify)
            .collect();
        median(&few)
    });
    let combine = transmit(1);
    let (dispatch, dispatch_origin) = if nodes == 8 {
        let hidden = f64::from(hidden);
        let bytes =
            Direction::Combine.measured_bytes(hidden) / Direction::Dispatch.measured_bytes(hidden);
        (combine.scaled(bytes, 1.0), Origin::Assumed)
    } else {
        (transmit(0), Origin::Fitted)
    };
    NormalTable {
        nodes,
        hidden,
        top_k,
        experts,
        dispatch: round(dispatch.plus(notify[0])),
        dispatch_origin,
        combine: round(combine.plus(notify[1])),
    }
}

fn support(basis: Basis, tables: &[NormalTable], several: bool) -> Basis {
    let range = |of: &dyn Fn(&NormalTable) -> u32| {
        let values = tables.iter().filter(|t| (t.nodes > 1) == several).map(of);
        values
            .fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(f64::from(x)), b.max(f64::from(x))))
    };
    let (hidden, top_k, experts) =
        (range(&|t| t.hidden), range(&|t| t.top_k), range(&|t| t.experts));
    basis
        .with_support("hidden", hidden.0, hidden.1)
        .with_support("top_k", top_k.0, top_k.1)
        .with_support("experts", experts.0, experts.1)
        .with_support("node_ranks", 8.0, 8.0)
}
