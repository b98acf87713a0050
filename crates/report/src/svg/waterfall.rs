//! One step by layer and rank: where each layer's time goes, and which rank it waits for.
//!
//! The upper half stacks the parts of each layer, averaged over ranks; ranks of a layer end
//! together, so the stack is as high as the layer is long, and what waits is what balance could
//! save. The lower half shares the axis of layers and shows every rank's expert time, the longest
//! of each layer ringed.

use super::axis::{Axis, HeatScale, stride};
use super::heat::{LEVEL_CLASS, hottest, paint_cells};
use super::waterfall_zoom::{PARTS, awaited, parts_legend, waits};
use super::{Anchor, Picture, fit};
use crate::fmt;
use crate::view::{StepWaterfall, TimeOrigin};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 84.0;
const PLOT: f64 = 180.0;
/// Cells beyond this number carry no tips.
const TIP_CELLS: usize = 6_000;

/// The picture of all layers; `None` where no layer has a rank.
pub(crate) fn step_picture(step: &StepWaterfall, origin: TimeOrigin) -> Option<Picture> {
    let ranks = step.layers.iter().map(Vec::len).max().unwrap_or(0);
    if ranks == 0 {
        return None;
    }
    let row_px = row_height(ranks);
    let grid_top = TOP + PLOT + 62.0;
    let height = grid_top + ranks as f64 * row_px + 58.0;
    let summary = summary(step, origin);
    let mut p = Picture::new(WIDTH, height, &step.title, &summary);
    p.text([LEFT, 17.0], Anchor::Start, "t", &fit(&step.title, WIDTH - LEFT, 13.5));
    p.text([LEFT, 35.0], Anchor::Start, "s m", &summary);
    parts_legend(&mut p, [LEFT, 48.0]);
    stacks(&mut p, step);
    grid(&mut p, step, ranks, grid_top);
    Some(p)
}

fn row_height(ranks: usize) -> f64 {
    match ranks {
        0..=16 => 15.0,
        17..=32 => 11.0,
        33..=64 => 7.0,
        _ => (448.0 / ranks as f64).max(1.5),
    }
}

fn column_width(step: &StepWaterfall) -> f64 {
    (WIDTH - LEFT - RIGHT) / step.layers.len().max(1) as f64
}

fn layer_number(step: &StepWaterfall, l: usize) -> u64 {
    l as u64 + u64::from(step.first_layer)
}

/// Mean over ranks of each part of a layer, µs.
pub(crate) fn mean_parts(step: &StepWaterfall, l: usize) -> [f64; PARTS.len()] {
    let mut sums = [0.0; PARTS.len()];
    let spans = &step.layers[l];
    for parts in spans.iter().map(|s| s.parts()) {
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
    }
    sums.map(|s| s / spans.len().max(1) as f64)
}

fn stacks(p: &mut Picture, step: &StepWaterfall) {
    let lengths = (0..step.layers.len()).map(|l| mean_parts(step, l).iter().sum::<f64>());
    let longest = lengths.fold(0.0, f64::max);
    let axis = Axis::new(0.0, longest, 4).until(longest * 1.04);
    let bottom = TOP + PLOT;
    for tick in &axis.ticks {
        let y = bottom - axis.at(*tick) * PLOT;
        p.line([LEFT, y, WIDTH - RIGHT, y], "grid");
        p.text([LEFT - 7.0, y + 4.0], Anchor::End, "s m", &axis.label(*tick));
    }
    p.text_up([13.0, TOP + PLOT / 2.0], "s m", "mean over ranks, µs");
    let width = column_width(step);
    for l in 0..step.layers.len() {
        let x = LEFT + l as f64 * width + width * 0.09;
        let mut end = bottom;
        for (part, us) in PARTS.iter().zip(mean_parts(step, l)) {
            let h = axis.at(us) * PLOT;
            if h <= 0.0 {
                continue;
            }
            end -= h;
            let at = [x, end, width * 0.82, h];
            let tip = format!("layer {}, {}: {}", layer_number(step, l), part.name, fmt::us(us));
            p.rect_tip(at, part.class, &tip);
            if part.waiting {
                p.rect(at, "hatch");
            }
        }
    }
    let every = stride(step.layers.len(), 40);
    for l in (0..step.layers.len()).step_by(every) {
        let x = LEFT + (l as f64 + 0.5) * width;
        let label = layer_number(step, l).to_string();
        p.text([x, bottom + 16.0], Anchor::Middle, "s m", &label);
    }
    p.text([LEFT - 7.0, bottom + 16.0], Anchor::End, "s m", "layer");
}

fn grid(p: &mut Picture, step: &StepWaterfall, ranks: usize, top: f64) {
    let row_px = row_height(ranks);
    let width = column_width(step);
    let spans = || step.layers.iter().flatten().map(|s| s.parts()[3]);
    let scale = HeatScale::spanning(spans());
    p.text([LEFT, top - 14.0], Anchor::Start, "b", "Expert time of every rank in every layer");
    p.text([WIDTH - RIGHT + 10.0, top - 14.0], Anchor::Start, "s m", "awaited in … layers");
    cells(p, step, ranks, &scale, top);
    for (l, r) in step.layers.iter().enumerate().filter_map(|(l, row)| Some((l, awaited(row)?))) {
        let y = top + (r as f64 + 0.5) * row_px;
        let radius = (row_px * 0.26).clamp(1.5, 3.4);
        p.circle([LEFT + (l as f64 + 0.5) * width, y], radius, "ring", "");
    }
    let every = stride(ranks, (ranks as f64 * row_px / 13.0) as usize);
    for r in (0..ranks).step_by(every) {
        let y = top + (r as f64 + 0.5) * row_px + 4.0;
        p.text([LEFT - 7.0, y], Anchor::End, "s m", &r.to_string());
    }
    p.text_up([13.0, top + ranks as f64 * row_px / 2.0], "s m", "rank");
    awaited_bars(p, step, ranks, top);
    grid_legend(p, &scale, top + ranks as f64 * row_px + 16.0);
}

/// The cells of the grid, with tips where they are few enough.
fn cells(p: &mut Picture, step: &StepWaterfall, ranks: usize, scale: &HeatScale, top: f64) {
    let (width, row_px) = (column_width(step), row_height(ranks));
    let expert = |l: usize, r: usize| step.layers[l].get(r).map_or(f64::NAN, |s| s.parts()[3]);
    if ranks * step.layers.len() > TIP_CELLS {
        let row = |r| (0..step.layers.len()).map(|l| expert(l, r) as f32).collect();
        let rows: Vec<Vec<f32>> = (0..ranks).map(row).collect();
        return paint_cells(p, &rows, scale, [LEFT, top], [width, row_px]);
    }
    for (l, layer) in step.layers.iter().enumerate() {
        for r in 0..layer.len() {
            let us = expert(l, r);
            let (x, y) = (LEFT + l as f64 * width, top + r as f64 * row_px);
            let at = [x + 0.5, y + 0.25, width - 1.0, row_px - 0.5];
            let tip = format!("layer {}, rank {r}: {}", layer_number(step, l), fmt::us(us));
            p.rect_tip(at, LEVEL_CLASS[scale.level(us).unwrap_or(0)], &tip);
        }
    }
}

/// How many layers wait for each rank, as bars beside the rows.
fn awaited_bars(p: &mut Picture, step: &StepWaterfall, ranks: usize, top: f64) {
    let mut counts = vec![0.0f32; ranks];
    step.layers.iter().filter_map(|l| awaited(l)).for_each(|r| counts[r] += 1.0);
    let Some((_, most)) = hottest(&counts) else { return };
    let row_px = row_height(ranks);
    for (r, &count) in counts.iter().enumerate().filter(|(_, c)| **c > 0.0) {
        let length = f64::from(count / most) * (RIGHT - 46.0);
        let y = top + r as f64 * row_px;
        let tip = format!("rank {r} is awaited in {count} of {} layers", step.layers.len());
        let x = WIDTH - RIGHT + 10.0;
        p.rect_tip([x, y + row_px * 0.15, length, row_px * 0.7], "count", &tip);
        if row_px >= 9.0 {
            let at = [x + length + 5.0, y + row_px / 2.0 + 4.0];
            p.text(at, Anchor::Start, "s", &count.to_string());
        }
    }
}

fn grid_legend(p: &mut Picture, scale: &HeatScale, y: f64) {
    let step = 46.0;
    for (level, class) in LEVEL_CLASS.iter().enumerate() {
        p.rect([LEFT + level as f64 * step, y, step, 9.0], class);
    }
    for (i, bound) in scale.bounds().iter().enumerate() {
        let x = LEFT + i as f64 * step;
        p.text([x, y + 22.0], Anchor::Middle, "xs m", &fmt::number(*bound));
    }
    let x = LEFT + LEVEL_CLASS.len() as f64 * step + 16.0;
    p.text([x, y + 8.0], Anchor::Start, "xs m", "µs in the experts of one layer");
    p.circle([x + 4.0, y + 18.0], 3.4, "ring", "");
    p.text([x + 13.0, y + 21.0], Anchor::Start, "xs m", "the rank that the layer waits for");
}

/// How long the step is, what share of it is waiting, and for whom.
fn summary(step: &StepWaterfall, origin: TimeOrigin) -> String {
    let mean: f64 = (0..step.layers.len()).map(|l| mean_parts(step, l).iter().sum::<f64>()).sum();
    let wait: f64 = step.layers.iter().map(|l| waits(l)).sum();
    let whole = step.step_us.filter(|us| us.is_finite() && *us > 0.0).unwrap_or(mean);
    let share = if whole > 0.0 { wait / whole } else { f64::NAN };
    format!(
        "step {}: {} ({}), of which the mean rank waits {}, {}",
        fmt::count(step.step),
        fmt::us(whole),
        origin.word(),
        fmt::us(wait),
        fmt::percent(share)
    )
}
