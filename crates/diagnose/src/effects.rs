//! Faults as factors: how much longer equal work took, on which rank, kernel or node, since when.
//!
//! Residuals are logarithms of (measured ÷ curve). What all cells share is the model's bias and
//! cancels in comparisons within a window or with a baseline; what a misjudged curve adds with the
//! amount of work is taken out by one slope per stage, estimated within ranks.

use crate::frame::{Frame, Stage};
use crate::stats::{Level, last_level, mean, median, spread};
use crate::window::Window;
use std::collections::BTreeMap;

/// Residuals of one stage, slope taken out. NaN where a cell did no such work.
pub(crate) struct Residuals {
    /// `[frame][cell]`.
    ln: Vec<Vec<f64>>,
    /// Change with ln(work), and the ln(work) at which it changes nothing.
    slope: f64,
    center: f64,
}

/// A departure smaller than this (3 %) is not told from a curve's shape.
pub(crate) const LN_MIN: f64 = 0.03;
/// A rank must depart this many times the spread of the other ranks.
const RANK_SPREADS_MIN: f64 = 5.0;
/// Spread of fewer ranks says nothing.
const RANKS_FOR_SPREAD: usize = 5;
/// A level must exceed its standard error this many times.
const ERRORS_MIN: f64 = 5.0;

impl Residuals {
    /// Residuals of a window; `like` another window's, with the same slope, so that the two can
    /// be compared. The exchange has one time per layer for all ranks, too few for a slope.
    pub(crate) fn of(window: &Window, stage: Stage, like: Option<&Self>) -> Self {
        let mut ln: Vec<Vec<f64>> = window
            .frames
            .iter()
            .map(|frame| {
                (0..window.layers * window.ranks)
                    .map(|cell| {
                        let (took, should) = (frame.at(stage, cell), frame.expects(stage, cell));
                        if took > 0.0 && should > 0.0 { (took / should).ln() } else { f64::NAN }
                    })
                    .collect()
            })
            .collect();
        let (slope, center) = match (like, stage) {
            (Some(like), _) => (like.slope, like.center),
            (None, Stage::Expert) => slope(window, stage, &ln),
            (None, _) => (0.0, 0.0),
        };
        for (frame, ln) in window.frames.iter().zip(&mut ln) {
            for (cell, value) in ln.iter_mut().enumerate().filter(|(_, value)| value.is_finite()) {
                *value -= slope * (frame.expects(stage, cell).ln() - center);
            }
        }
        Self { ln, slope, center }
    }

    /// Per frame: median over layers of the cross-rank (lower) median.
    fn common(&self, window: &Window) -> Vec<f64> {
        self.ln
            .iter()
            .map(|ln| {
                let mut layers: Vec<f64> = (0..window.layers)
                    .filter_map(|layer| lower_median(&ln[window.cells(layer)]))
                    .collect();
                median(&mut layers)
            })
            .collect()
    }

    /// `[rank]` → per frame: median over layers of its departure from the cross-rank median.
    fn by_rank(&self, window: &Window) -> Vec<Vec<f64>> {
        let centers: Vec<Vec<Option<f64>>> = self
            .ln
            .iter()
            .map(|ln| (0..window.layers).map(|l| lower_median(&ln[window.cells(l)])).collect())
            .collect();
        (0..window.ranks)
            .map(|rank| {
                let of_frame = |(ln, centers): (&Vec<f64>, &Vec<Option<f64>>)| {
                    let mut departures: Vec<f64> = centers
                        .iter()
                        .enumerate()
                        .filter_map(|(layer, center)| {
                            let value = ln[layer * window.ranks + rank] - (*center)?;
                            value.is_finite().then_some(value)
                        })
                        .collect();
                    median(&mut departures)
                };
                self.ln.iter().zip(&centers).map(of_frame).collect()
            })
            .collect()
    }
}

/// Change of the residual with the logarithm of the work, estimated within (frame, rank) over
/// layers, so that neither a slow rank nor a fault that begins midway looks like a slope.
/// 0 where it is not beyond noise. With the mean of ln(work).
fn slope(window: &Window, stage: Stage, ln: &[Vec<f64>]) -> (f64, f64) {
    let (mut xx, mut xy, mut yy, mut n) = (0.0, 0.0, 0.0, 0.0_f64);
    let (mut sum, mut cells) = (0.0, 0.0_f64);
    for (frame, ln) in window.frames.iter().zip(ln) {
        for rank in 0..window.ranks {
            let points: Vec<(f64, f64)> = (0..window.layers)
                .map(|layer| layer * window.ranks + rank)
                .filter(|cell| ln[*cell].is_finite())
                .map(|cell| (frame.expects(stage, cell).ln(), ln[cell]))
                .collect();
            let count = points.len() as f64;
            if points.len() < 2 {
                continue;
            }
            let (mx, my) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0, y + p.1));
            for (x, y) in points {
                let (x, y) = (x - mx / count, y - my / count);
                xx += x * x;
                xy += x * y;
                yy += y * y;
            }
            n += count - 1.0;
            sum += mx;
            cells += count;
        }
    }
    let center = sum / cells.max(1.0);
    if xx <= 1e-9 || n < 8.0 {
        return (0.0, center);
    }
    let slope = xy / xx;
    let error = ((yy - slope * xy).max(0.0) / n / xx).sqrt();
    if slope.abs() < 3.0 * error { (0.0, center) } else { (slope.clamp(-0.5, 0.5), center) }
}

/// Median of the finite values, the lower one of two: with two ranks the healthy one is the norm.
fn lower_median(values: &[f64]) -> Option<f64> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let middle = finite.len().checked_sub(1)? / 2;
    Some(*finite.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// A rank that takes `exp(ln)` times as long for equal work from a frame on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankEffect {
    pub(crate) rank: usize,
    pub(crate) level: Level,
}

/// Ranks beyond the others in one stage.
pub(crate) fn slow_ranks(window: &Window, residuals: &Residuals) -> Vec<RankEffect> {
    let levels: Vec<Level> =
        residuals.by_rank(window).iter().map(|series| last_level(series, LN_MIN)).collect();
    let values: Vec<f64> = levels.iter().map(|level| level.value).collect();
    let center = median(&mut values.clone());
    let others = if window.ranks >= RANKS_FOR_SPREAD { spread(&values, center) } else { 0.0 };
    levels
        .into_iter()
        .enumerate()
        .filter(|(_, level)| {
            level.value > LN_MIN
                && level.value > ERRORS_MIN * level.error
                && level.value - center > RANK_SPREADS_MIN * others
        })
        .map(|(rank, level)| RankEffect { rank, level })
        .collect()
}

/// What all ranks share: equal work takes `exp(level.value)` times as long.
#[derive(Clone, Debug)]
pub(crate) struct CommonEffect {
    /// Kernel whose cells are meant; `None`: all.
    pub(crate) kernel: Option<u16>,
    pub(crate) level: Level,
    /// What it is measured against.
    pub(crate) against: Against,
}

/// The norm of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// The baseline trace.
    Baseline,
    /// Another kernel, by name, or earlier steps of the same window.
    Earlier(Option<String>),
    /// The profile's curve alone.
    Profile,
}

/// Shifts of a stage that all ranks share.
///
/// Norms, best first: a baseline; the window's first kernel where several ran; the window's
/// earlier steps where the level changes; the profile, and then only beyond twice its error.
pub(crate) fn common_shift(
    window: &Window,
    residuals: &Residuals,
    baseline: Option<(&Window, &Residuals)>,
    error_share: f64,
) -> Vec<CommonEffect> {
    let series = residuals.common(window);
    if let Some((before, old)) = baseline {
        let norm = median(&mut old.common(before));
        let shifted: Vec<f64> = series.iter().map(|value| value - norm).collect();
        return accept(last_level(&shifted, LN_MIN), LN_MIN, Against::Baseline);
    }
    let level = last_level(&series, LN_MIN);
    if level.from > 0 {
        let early = median(&mut series[..level.from].to_vec());
        let change = Level { value: level.value - early, ..level };
        return accept(change, LN_MIN, Against::Earlier(None));
    }
    accept(level, (1.0 + 2.0 * error_share).ln().max(0.1), Against::Profile)
}

/// What all ranks share against the profile, beyond its error or not.
pub(crate) fn common_level(window: &Window, residuals: &Residuals) -> Level {
    last_level(&residuals.common(window), LN_MIN)
}

fn accept(level: Level, least: f64, against: Against) -> Vec<CommonEffect> {
    if level.value > least && level.value > ERRORS_MIN * level.error {
        vec![CommonEffect { kernel: None, level, against }]
    } else {
        Vec::new()
    }
}

/// Kernels that are slower than the norm for equal work, where a window ran several or another one
/// than its baseline. Empty where kernels do not differ.
pub(crate) fn slow_kernels(
    window: &Window,
    residuals: &Residuals,
    baseline: Option<(&Window, &Residuals)>,
) -> Vec<CommonEffect> {
    let now = by_kernel(window, residuals);
    let old = baseline.map(|(before, old)| (before, by_kernel(before, old)));
    // The norm: the baseline's commonest kernel, or the one that ran first.
    let norm = match &old {
        Some((before, kernels)) => kernels
            .values()
            .max_by_key(|seen| seen.values.len())
            .map(|seen| (before.kernel_name(seen.kernel), median(&mut seen.values.clone()))),
        None => now
            .values()
            .min_by_key(|seen| (seen.first, std::cmp::Reverse(seen.values.len())))
            .map(|seen| (window.kernel_name(seen.kernel), median(&mut seen.values.clone()))),
    };
    let Some((norm_name, norm)) = norm else { return Vec::new() };
    now.values()
        .filter(|seen| window.kernel_name(seen.kernel) != norm_name)
        .filter_map(|seen| {
            let value = median(&mut seen.values.clone()) - norm;
            let error = 1.2533 * spread(&seen.values, value + norm)
                / (seen.values.len().max(1) as f64).sqrt();
            let level = Level { from: seen.first, value, error };
            let against = match old {
                Some(_) => Against::Baseline,
                None => Against::Earlier(Some(norm_name.clone())),
            };
            let kernel = Some(seen.kernel);
            (value > LN_MIN && value > ERRORS_MIN * error).then_some(CommonEffect {
                kernel,
                level,
                against,
            })
        })
        .collect()
}

struct KernelSeen {
    kernel: u16,
    first: usize,
    values: Vec<f64>,
}

/// Residuals by kernel: one value per (frame, layer), the cross-rank median of its cells.
fn by_kernel(window: &Window, residuals: &Residuals) -> BTreeMap<u16, KernelSeen> {
    let mut seen: BTreeMap<u16, KernelSeen> = BTreeMap::new();
    for (index, (frame, ln)) in window.frames.iter().zip(&residuals.ln).enumerate() {
        if frame.kernel.is_empty() {
            continue;
        }
        for layer in 0..window.layers {
            let cells = window.cells(layer);
            let mut of_layer: BTreeMap<u16, Vec<f64>> = BTreeMap::new();
            for cell in cells.filter(|cell| ln[*cell].is_finite()) {
                of_layer.entry(frame.kernel[cell]).or_default().push(ln[cell]);
            }
            for (kernel, values) in of_layer {
                let entry = seen.entry(kernel).or_insert_with(|| KernelSeen {
                    kernel,
                    first: index,
                    values: Vec::new(),
                });
                entry.values.extend(lower_median(&values));
            }
        }
    }
    seen
}

/// Time before dispatch beyond what equal work takes on the other ranks.
pub(crate) struct Lateness {
    /// `[frame][cell]`, ns, ≥ 0.
    pub(crate) excess: Vec<Vec<f64>>,
    /// The part of it that is attention.
    pub(crate) attention: Vec<Vec<f64>>,
    /// Ranks that are late beyond noise, with their mean lateness per step and first frame.
    pub(crate) late: Vec<LateRank>,
}

/// A rank that arrives late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateRank {
    pub(crate) rank: usize,
    pub(crate) mean_ns: f64,
    pub(crate) from: usize,
}

/// Finds late ranks: attention beyond the curve for the rank's own KV (scaled to the other ranks),
/// router beyond theirs, and lateness without any span. A rank that `slow` says computes slowly is
/// granted that factor first.
pub(crate) fn lateness(window: &Window, slow: &[RankEffect]) -> Lateness {
    let (excess, attention): (Vec<Vec<f64>>, Vec<Vec<f64>>) = window
        .frames
        .iter()
        .enumerate()
        .map(|(index, frame)| excess_of(window, frame, index, slow))
        .unzip();
    let per_step = |rank: usize| -> Vec<f64> {
        excess
            .iter()
            .map(|cells| (0..window.layers).map(|layer| cells[layer * window.ranks + rank]).sum())
            .collect()
    };
    let series: Vec<Vec<f64>> = (0..window.ranks).map(per_step).collect();
    let means: Vec<f64> = series.iter().map(|series| mean(series)).collect();
    let center = median(&mut means.clone());
    let others = if window.ranks >= RANKS_FOR_SPREAD { spread(&means, center) } else { 0.0 };
    let step = mean(&window.frames.iter().map(|f| f.observed_ns).collect::<Vec<_>>());
    let late = means
        .iter()
        .enumerate()
        .filter(|(_, mean)| {
            **mean - center > RANK_SPREADS_MIN * others && **mean - center > 0.01 * step
        })
        .map(|(rank, mean)| LateRank {
            rank,
            mean_ns: *mean,
            from: last_level(&series[rank], 0.005 * step).from,
        })
        .collect();
    Lateness { excess, attention, late }
}

/// Lateness of one frame's cells, and the part of it that is attention, ns.
fn excess_of(
    window: &Window,
    frame: &Frame,
    index: usize,
    slow: &[RankEffect],
) -> (Vec<f64>, Vec<f64>) {
    let granted = |rank: usize| {
        let effect = slow.iter().find(|e| e.rank == rank && index >= e.level.from);
        effect.map_or(1.0, |effect| effect.level.value.exp())
    };
    let mut excess = vec![0.0; window.layers * window.ranks];
    let mut of_attention = excess.clone();
    for layer in 0..window.layers {
        let cells = window.cells(layer);
        let ratios: Vec<f64> = cells
            .clone()
            .map(|cell| {
                let (took, should) =
                    (frame.at(Stage::Attention, cell), frame.expects(Stage::Attention, cell));
                if took > 0.0 && should > 0.0 { took / should } else { f64::NAN }
            })
            .collect();
        let ratio = lower_median(&ratios);
        let routers: Vec<f64> = cells.clone().map(|cell| frame.at(Stage::Router, cell)).collect();
        let router = lower_median(&routers).unwrap_or(0.0);
        for (rank, cell) in cells.enumerate() {
            let attention = ratio.map_or(0.0, |ratio| {
                let healthy = ratio * frame.expects(Stage::Attention, cell) * granted(rank);
                (frame.at(Stage::Attention, cell) - healthy).max(0.0)
            });
            let late_router = (frame.at(Stage::Router, cell) - router * granted(rank)).max(0.0);
            of_attention[cell] = attention;
            excess[cell] = attention + late_router + frame.at(Stage::Host, cell);
        }
    }
    (excess, of_attention)
}
