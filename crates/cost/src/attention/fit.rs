//! Fits the MLA module to its two tables: one kernel of one system, all head counts.

use super::{
    AttentionLoad, AttentionModel, AttentionProfile, AttentionShape, ContextCurve, GenerationCurve,
};
use crate::basis::{Basis, Origin};
use crate::dense::DenseRates;
use crate::error::CostError;
use crate::fit::{Param, fit_positive, hold_out};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::table::Table;
use evenkeel_types::{ModelShape, Phase};

/// Targets of docs/cost-model.md, decode and prefill.
const TARGETS: [f64; 2] = [0.045, 0.06];
/// Starts of the search: the forms are smooth and the first start is near.
const STARTS: usize = 2;
/// The benchmark has no down-projection, so the rates of plain products do not matter.
const NO_DENSE: DenseRates = DenseRates {
    call_us: 0.0,
    weight_bytes_per_us: 1.0,
    fp8_ops_per_us: 1.0,
    bf16_ops_per_us: 1.0,
};

struct Point {
    heads: u32,
    shape: AttentionShape,
    load: AttentionLoad,
    measured_us: f64,
    unseen: bool,
    /// Slower by a fifth or more than a point with more of everything: the host was busy.
    episode: bool,
}

/// A point this much slower than one with more sequences, tokens and context is no kernel time.
const EPISODE: f64 = 1.2;

/// Fits decode and prefill of one kernel; errors on the fifth held out, and with each head count
/// left out.
///
/// # Errors
/// A missing column, an unreadable cell, or a kernel without rows.
pub fn fit_attention(
    generation: &Table<'_>,
    context: &Table<'_>,
    system: &str,
    kernel: &str,
) -> Result<(AttentionProfile, FitReport), CostError> {
    let mut report = FitReport::default();
    let decode = points(generation, system, kernel, Phase::Decode)?;
    let prefill = points(context, system, kernel, Phase::Prefill)?;
    let (generation, generation_basis) =
        fit_phase(&decode, Phase::Decode, system, kernel, &mut report)?;
    let (context, context_basis) =
        fit_phase(&prefill, Phase::Prefill, system, kernel, &mut report)?;
    let profile = AttentionProfile {
        kernel: kernel.to_owned(),
        generation: generation_of(&generation),
        generation_basis,
        context: context_of(&context),
        context_basis,
    };
    Ok((profile, report))
}

fn points(
    table: &Table<'_>,
    system: &str,
    kernel: &str,
    phase: Phase,
) -> Result<Vec<Point>, CostError> {
    let [sys, with, source, heads, batch, isl, step, latency] = table.columns([
        "system",
        "collected_with",
        "kernel_source",
        "num_heads",
        "batch_size",
        "isl",
        "step",
        "latency",
    ])?;
    let model = ModelShape::known("deepseek-v3").ok_or_else(|| too_few(kernel, 0))?;
    let mut points = Vec::new();
    let rows = table.rows().filter(|row| row.text(sys) == system && row.text(source) == kernel);
    for row in rows {
        let (heads, sequences): (u32, u32) = (row.get(heads)?, row.get(batch)?);
        let new: u32 = row.get(isl)?;
        let length = u64::from(new) + row.get::<u64>(step)?;
        let context_tokens = u64::from(sequences) * length;
        let key =
            format!("{system} {} {kernel} {phase} {heads} {sequences} {length}", row.text(with));
        let decode = phase == Phase::Decode;
        let new_tokens = if decode { sequences } else { sequences.saturating_mul(new) };
        points.push(Point {
            heads,
            shape: AttentionShape { down_weights: 0.0, ..AttentionShape::new(&model, heads) },
            load: AttentionLoad {
                sequences,
                new_tokens,
                context_tokens,
                context_products: if decode { 0.0 } else { f64::from(new_tokens) * length as f64 },
            },
            measured_us: 1000.0 * row.positive(latency)?,
            unseen: hold_out(&key),
            episode: false,
        });
    }
    if points.len() < 20 {
        return Err(too_few(kernel, points.len()));
    }
    let episodes: Vec<bool> =
        points.iter().map(|p| points.iter().any(|other| p.outlasts(other))).collect();
    for (point, episode) in points.iter_mut().zip(episodes) {
        point.episode = episode;
    }
    Ok(points)
}

impl Point {
    fn outlasts(&self, other: &Self) -> bool {
        self.heads == other.heads
            && self.load.sequences <= other.load.sequences
            && self.load.new_tokens <= other.load.new_tokens
            && self.load.context_tokens <= other.load.context_tokens
            && self.measured_us > EPISODE * other.measured_us
    }
}

fn too_few(kernel: &str, rows: usize) -> CostError {
    CostError::TooFewRows { curve: format!("attention, {kernel}"), rows, needed: 20 }
}

fn starts(phase: Phase) -> [Param; 7] {
    match phase {
        Phase::Decode => [28.0, 0.05, 2.1e6, 0.66e9, 2.9e6, 0.7e9, 1.7].map(Param::free),
        Phase::Prefill => {
            let [host, call, sequence, projection, attention, token] =
                [630.0, 20.0, 2.3, 1.0e9, 0.73e9, 0.01].map(Param::free);
            let knee = Param::within(1.75, 1.0, 8.0);
            [host, call, sequence, projection, attention, token, knee]
        }
    }
}

fn generation_of(p: &[f64]) -> GenerationCurve {
    GenerationCurve {
        call_us: p[0],
        sequence_us: p[1],
        weight_bytes_per_us: p[2],
        projection_ops_per_us: p[3],
        kv_bytes_per_us: p[4],
        attention_ops_per_us: p[5],
        length_us: p[6],
    }
}

fn context_of(p: &[f64]) -> ContextCurve {
    ContextCurve {
        host_us: p[0],
        call_us: p[1],
        sequence_us: p[2],
        projection_ops_per_us: p[3],
        attention_ops_per_us: p[4],
        token_us: p[5],
        knee: p[6],
    }
}

fn predict(phase: Phase, params: &[f64], point: &Point) -> f64 {
    // The other phase's constants do not enter.
    let ones = [1.0; 7];
    let (generation, context) = match phase {
        Phase::Decode => (params, &ones[..]),
        Phase::Prefill => (&ones[..], params),
    };
    let (generation, context) = (generation_of(generation), context_of(context));
    let model = AttentionModel::from_curves(generation, context, &point.shape, &NO_DENSE, true);
    match phase {
        Phase::Decode => model.decode_us(&point.load),
        Phase::Prefill => model.prefill_us(&point.load),
    }
}

fn fit_where(points: &[Point], phase: Phase, used: impl Fn(&Point) -> bool) -> (Vec<f64>, usize) {
    let seen: Vec<&Point> = points.iter().filter(|point| used(point)).collect();
    let measured: Vec<f64> = seen.iter().map(|point| point.measured_us).collect();
    let fitted =
        fit_positive(&starts(phase), &measured, STARTS, |p, row| predict(phase, p, seen[row]));
    (fitted.params, seen.len())
}

fn fit_phase(
    points: &[Point],
    phase: Phase,
    system: &str,
    kernel: &str,
    report: &mut FitReport,
) -> Result<(Vec<f64>, Basis), CostError> {
    let curve = format!("attention {phase}, {system} {kernel}");
    let judge = |params: &[f64], on: &dyn Fn(&Point) -> bool| {
        ErrorStats::of(
            points
                .iter()
                .filter(|point| on(point))
                .map(|point| (predict(phase, params, point), point.measured_us)),
        )
    };
    let (params, rows) = fit_where(points, phase, |point| !point.unseen && !point.episode);
    let stats = judge(&params, &|point| point.unseen);
    let target = match phase {
        Phase::Decode => TARGETS[0],
        Phase::Prefill => TARGETS[1],
    };
    report.rows.push(FitLine::new(&curve, "unseen fifth", rows, &stats, Some(target)));
    let quiet = judge(&params, &|point| point.unseen && !point.episode);
    let group = "unseen fifth, without host episodes";
    report.rows.push(FitLine::new(&curve, group, rows, &quiet, None));
    let episodes = points.iter().filter(|point| point.episode && !point.unseen).count();
    report.set_aside(
        &format!("mla {phase}, {system} {kernel}"),
        episodes,
        "slower by a fifth or more than a call with more work: the host was busy; not fitted, \
         but judged where unseen",
    );
    let mut heads: Vec<u32> = points.iter().map(|point| point.heads).collect();
    heads.sort_unstable();
    heads.dedup();
    for &out in &heads {
        let (params, rows) = fit_where(points, phase, |point| point.heads != out && !point.episode);
        let stats = judge(&params, &|point| point.heads == out);
        let group = format!("{out} heads left out");
        report.left_out.push(FitLine::new(&curve, &group, rows, &stats, None));
    }
    let (low, high) = (heads[0], heads[heads.len() - 1]);
    let basis = Basis::new(Origin::Fitted, stats.mape, "")
        .with_support("heads", f64::from(low), f64::from(high))
        .with_support("hidden", 7168.0, 7168.0);
    Ok((params, basis))
}
