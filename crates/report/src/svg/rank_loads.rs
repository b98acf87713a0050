//! Rank loads per layer: a column of dots per layer, the top one marked with its rank.
//!
//! Position shows the load, so that two maps compare at a glance and without colour.

use super::axis::{Axis, stride};
use super::heat::hottest;
use super::{Anchor, Picture, fit};
use crate::fmt;
use crate::view::RankLoads;

const LEFT: f64 = 46.0;
const TOP: f64 = 52.0;
const PLOT: f64 = 190.0;
/// From this many layers on, a picture takes the full width of the page.
const WIDE_LAYERS: usize = 40;
/// A column narrower than this has no room for the rank's number.
const LABEL_PX: f64 = 13.0;
/// Beyond this many dots a picture only shows ranges and tops.
const DOTS: usize = 8_000;

/// One picture per map that has loads; those of one unit share a scale.
pub(crate) fn rank_load_pictures(all: &[RankLoads]) -> Vec<Picture> {
    let full = all.iter().filter(|m| m.values.iter().any(|row| !row.is_empty()));
    full.map(|loads| {
        let same = all.iter().filter(|m| m.unit == loads.unit);
        let values = same.flat_map(|m| m.values.iter().flatten()).filter(|v| v.is_finite());
        let top = values.map(|&v| f64::from(v)).fold(0.0, f64::max);
        picture(loads, &Axis::new(0.0, if top > 0.0 { top } else { 1.0 }, 5))
    })
    .collect()
}

fn picture(loads: &RankLoads, axis: &Axis) -> Picture {
    let layers = loads.values.len();
    let width = if layers > WIDE_LAYERS { 1080.0 } else { 540.0 };
    let summary = summary(loads);
    let mut p = Picture::new(width, TOP + PLOT + 50.0, &loads.title, &summary);
    p.text([LEFT, 17.0], Anchor::Start, "t", &fit(&loads.title, width - LEFT, 13.5));
    p.text([LEFT, 34.0], Anchor::Start, "s m", &fit(&summary, width - LEFT, 11.0));
    let bottom = TOP + PLOT;
    let y = |v: f64| bottom - axis.at(v) * PLOT;
    for tick in &axis.ticks {
        p.line([LEFT, y(*tick), width - 8.0, y(*tick)], "grid");
        p.text([LEFT - 7.0, y(*tick) + 4.0], Anchor::End, "s m", &axis.label(*tick));
    }
    let step = (width - LEFT - 12.0) / layers.max(1) as f64;
    let dots = loads.values.iter().map(Vec::len).sum::<usize>() <= DOTS;
    for (l, row) in loads.values.iter().enumerate() {
        let x = LEFT + (l as f64 + 0.5) * step;
        let layer = l as u64 + u64::from(loads.first_layer);
        column(&mut p, row, (x, layer), step, dots, &y);
    }
    let every = stride(layers, ((width - LEFT) / 26.0) as usize);
    for l in (0..layers).step_by(every) {
        let x = LEFT + (l as f64 + 0.5) * step;
        let label = (l as u64 + u64::from(loads.first_layer)).to_string();
        p.text([x, bottom + 16.0], Anchor::Middle, "s m", &label);
    }
    p.text([(LEFT + width) / 2.0, bottom + 33.0], Anchor::Middle, "s m", "MoE layer");
    p.text_up([12.0, TOP + PLOT / 2.0], "s m", &fit(&loads.unit, PLOT + 30.0, 11.0));
    p
}

/// The ranks of one layer at x.
fn column(
    p: &mut Picture,
    row: &[f32],
    (x, layer): (f64, u64),
    step: f64,
    dots: bool,
    y: &impl Fn(f64) -> f64,
) {
    let finite: Vec<f64> = row.iter().filter(|v| v.is_finite()).map(|&v| f64::from(v)).collect();
    let Some((top_rank, top)) = hottest(row) else { return };
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    p.line([x, y(low), x, y(f64::from(top))], "range");
    if dots {
        for (rank, &v) in row.iter().enumerate().filter(|(r, v)| v.is_finite() && *r != top_rank) {
            let tip = format!("layer {layer}, rank {rank}: {}", fmt::number(f64::from(v)));
            p.circle([x, y(f64::from(v))], 2.2, "dot", &tip);
        }
    }
    let half = (step * 0.36).min(7.0);
    p.line([x - half, y(mean), x + half, y(mean)], "mean");
    let tip =
        format!("layer {layer}, rank {top_rank}, the highest: {}", fmt::number(f64::from(top)));
    p.circle([x, y(f64::from(top))], 3.6, "top", &tip);
    if step >= LABEL_PX {
        p.text([x, y(f64::from(top)) - 7.0], Anchor::Middle, "xs halo", &top_rank.to_string());
    }
}

/// Balancedness in words, with its axis.
fn summary(loads: &RankLoads) -> String {
    let balance = loads.balancedness();
    let known = || balance.iter().enumerate().filter(|(_, b)| b.is_finite());
    let Some((worst, low)) = known().min_by(|a, b| a.1.total_cmp(b.1)) else {
        return "no load".to_owned();
    };
    let mean = known().map(|(_, b)| b).sum::<f64>() / known().count() as f64;
    format!(
        "balancedness (mean ÷ max of ranks): {mean:.2} mean of layers, {low:.2} in layer {}",
        worst as u64 + u64::from(loads.first_layer)
    )
}
