//! Fits NCCL collectives: rows of equal bytes are merged before any is held out.
//!
//! Neighbouring sizes jitter by 10 % and more, so a curve is the formula times part of what it
//! misses at each size; the table alone, and the formula alone, are both worse on unseen sizes.

use super::points::LogTable;
use super::{Collective, CollectiveCurve, CollectiveForm, Collectives};
use crate::error::CostError;
use crate::fit::{Param, fit_positive, hold_out};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::Table;
use std::collections::BTreeMap;

/// Targets of docs/cost-model.md: all sizes, and from 256 KB.
const TARGETS: [f64; 2] = [0.06, 0.05];
const LARGE_BYTES: f64 = 256e3;
/// Part of the logarithmic residual at a measured size that the curve follows; the rest is jitter.
const FOLLOWED: f64 = 0.6;
/// Points per octave of a curve's table.
const POINTS_PER_OCTAVE: f64 = 2.0;

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
    // Summed times and counts by operation, ranks and bytes: moving bytes does not ask for their
    // type, and some versions hold every key twice.
    let mut sums: BTreeMap<(Collective, u32), BTreeMap<u64, (f64, f64)>> = BTreeMap::new();
    let mut duplicates = 0;
    let rows = table.rows().filter(|row| row.text(sys) == system && row.text(with) == version);
    for row in rows {
        let operation = Collective::parse(row.text(op))
            .ok_or_else(|| row.refuse(op, "the name of a collective operation"))?;
        let sizes = sums.entry((operation, row.get(gpus)?)).or_default();
        let width = match row.text(dtype) {
            "half" => 2,
            "int8" => 1,
            _ => return Err(row.refuse(dtype, "`half` or `int8`")),
        };
        let bytes = width * row.get::<u64>(size)?;
        let entry = sizes.entry(bytes).or_default();
        duplicates += usize::from(entry.1 > 0.0);
        entry.0 += 1000.0 * row.positive(latency)?;
        entry.1 += 1.0;
    }
    let mut report = FitReport::default();
    report.set_aside(table.name(), duplicates, "equal bytes held twice: merged before the split");
    if sums.is_empty() {
        let curve = format!("collectives, {system} {version}");
        return Err(CostError::TooFewRows { curve, rows: 0, needed: 1 });
    }
    let mut judged = Judged::default();
    let curves = sums
        .into_iter()
        .map(|((operation, ranks), sizes)| {
            let points: Vec<(f64, f64)> =
                sizes.iter().map(|(bytes, (sum, count))| (*bytes as f64, sum / count)).collect();
            let unseen: Vec<bool> = sizes
                .keys()
                .map(|e| hold_out(&format!("{system},{version},{},{ranks},{e}", operation.word())))
                .collect();
            judged.add(&points, &unseen);
            let form = fit_form(&points);
            CollectiveCurve { operation, ranks, form, table: smoothed(&form, &points) }
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

/// Formula times the followed part of its residuals, as a table; monotone.
fn smoothed(form: &CollectiveForm, points: &[(f64, f64)]) -> LogTable {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return LogTable::default();
    };
    let factor = |bytes: f64| {
        let above = points.partition_point(|p| p.0 < bytes).clamp(1, points.len() - 1);
        let miss = |p: (f64, f64)| (p.1 / form.at(p.0)).ln();
        let (low, high) = (points[above - 1], points[above]);
        let share = ((bytes / low.0).ln() / (high.0 / low.0).ln()).clamp(0.0, 1.0);
        (FOLLOWED * (miss(low) + share * (miss(high) - miss(low)))).exp()
    };
    if points.len() < 2 {
        return LogTable::new(points.to_vec());
    }
    let steps = ((last.0 / first.0).log2() * POINTS_PER_OCTAVE).round() as u32;
    let grid = (0..=steps).map(|i| {
        let bytes = first.0 * (f64::from(i) / POINTS_PER_OCTAVE).exp2();
        let time = form.at(bytes) * factor(bytes);
        (bytes.round(), (time * 100.0).round() / 100.0)
    });
    LogTable::new(grid.collect())
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
        let table = smoothed(&form, &seen);
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
