//! Fits NCCL collectives: duplicated keys are merged before any row is held out.

use super::points::LogTable;
use super::{Collective, CollectiveCurve, CollectiveForm, Collectives};
use crate::error::CostError;
use crate::fit::{Param, fit_positive, hold_out};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::Table;
use std::collections::BTreeMap;

/// Targets of COST-MODEL section 9: all sizes, and from 256 KB.
const TARGETS: [f64; 2] = [0.06, 0.05];
const LARGE_BYTES: f64 = 256e3;
/// Bytes of an element of the tables' `half`.
const ELEMENT_BYTES: f64 = 2.0;

/// Fits all operations of one system under one version, e.g. `nccl-2.29.2`.
///
/// # Errors
/// A missing column, an unreadable cell, an unknown operation, or no rows.
pub fn fit_collectives(
    table: &Table<'_>,
    system: &str,
    version: &str,
) -> Result<(Collectives, FitReport), CostError> {
    let [sys, with, dtype, gpus, size, op, latency] = table.columns([
        "system",
        "collected_with",
        "nccl_dtype",
        "num_gpus",
        "message_size",
        "op_name",
        "latency",
    ])?;
    // Summed times and counts by operation, ranks and elements.
    let mut sums: BTreeMap<(Collective, u32), BTreeMap<u64, (f64, f64)>> = BTreeMap::new();
    let mut duplicates = 0;
    let rows = table.rows().filter(|row| {
        row.text(sys) == system && row.text(with) == version && row.text(dtype) == "half"
    });
    for row in rows {
        let operation = Collective::parse(row.text(op))
            .ok_or_else(|| row.refuse(op, "the name of a collective operation"))?;
        let sizes = sums.entry((operation, row.get(gpus)?)).or_default();
        let entry = sizes.entry(row.get(size)?).or_default();
        duplicates += usize::from(entry.1 > 0.0);
        entry.0 += 1000.0 * row.positive(latency)?;
        entry.1 += 1.0;
    }
    let mut report = FitReport::default();
    report.set_aside(table.name(), duplicates, "a key held twice: merged before the split");
    if sums.is_empty() {
        let curve = format!("collectives, {system} {version}");
        return Err(CostError::TooFewRows { curve, rows: 0, needed: 1 });
    }
    let mut judged = Judged::default();
    let curves = sums
        .into_iter()
        .map(|((operation, ranks), sizes)| {
            let points: Vec<(f64, f64)> = sizes
                .iter()
                .map(|(elements, (sum, count))| (*elements as f64 * ELEMENT_BYTES, sum / count))
                .collect();
            let unseen: Vec<bool> = sizes
                .keys()
                .map(|e| hold_out(&format!("{system},{version},{},{ranks},{e}", operation.word())))
                .collect();
            judged.add(&points, &unseen);
            CollectiveCurve {
                operation,
                ranks,
                form: fit_form(&points),
                table: LogTable::new(
                    points.iter().map(|(x, y)| (*x, (y * 100.0).round() / 100.0)).collect(),
                ),
            }
        })
        .collect();
    judged.report(&format!("{system} {version}"), &mut report);
    Ok((Collectives { version: version.to_owned(), curves }, report))
}

fn fit_form(points: &[(f64, f64)]) -> CollectiveForm {
    let measured: Vec<f64> = points.iter().map(|p| p.1).collect();
    let of = |p: &[f64]| CollectiveForm {
        floor_us: p[0],
        start_us: p[1],
        bytes_per_us: p[2],
        root_us: p[3],
        knee: p[4],
    };
    let params = [
        Param::free(8.0),
        Param::free(7.0),
        Param::free(350e3),
        Param::free(6.0),
        Param::within(2.0, 1.0, 8.0),
    ];
    of(&fit_positive(&params, &measured, 2, |p, row| of(p).at(points[row].0)).params)
}

#[derive(Default)]
struct Judged {
    table: Vec<(f64, f64, f64)>,
    form: Vec<(f64, f64, f64)>,
    seen: usize,
}

impl Judged {
    fn add(&mut self, points: &[(f64, f64)], unseen: &[bool]) {
        let last = points.len().saturating_sub(1);
        let out = |i: usize| unseen[i] && i > 0 && i < last;
        let seen: Vec<(f64, f64)> =
            (0..points.len()).filter(|&i| !out(i)).map(|i| points[i]).collect();
        self.seen += seen.len();
        let form = fit_form(&seen);
        let table = LogTable::new(seen);
        for i in (0..points.len()).filter(|&i| out(i)) {
            let (bytes, time) = points[i];
            self.table.push((bytes, table.at(bytes), time));
            self.form.push((bytes, form.at(bytes), time));
        }
    }

    fn report(&self, place: &str, report: &mut FitReport) {
        let large = |rows: &[(f64, f64, f64)], from: f64| {
            ErrorStats::of(rows.iter().filter(|r| r.0 >= from).map(|r| (r.1, r.2)))
        };
        let curve = format!("collectives, {place}");
        let mut line = |curve: &str, group: &str, stats: ErrorStats, target: Option<f64>| {
            report.rows.push(FitLine::new(curve, group, self.seen, &stats, target));
        };
        line(&curve, "unseen fifth", large(&self.table, 0.0), Some(TARGETS[0]));
        let big = large(&self.table, LARGE_BYTES);
        line(&format!("{curve}, from 256 KB"), "unseen fifth", big, Some(TARGETS[1]));
        line(&format!("{curve}, by formula"), "unseen fifth", large(&self.form, 0.0), None);
    }
}
