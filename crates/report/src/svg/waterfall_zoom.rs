//! One layer of a step: every rank's spans as bars on a common clock.

use super::axis::Axis;
use super::{Anchor, Picture, fit};
use crate::fmt;
use crate::view::{RankSpans, StepWaterfall, TimeOrigin};

/// A part of a layer, in order of time.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) class: &'static str,
    /// Whether a rank does nothing in it; drawn hatched.
    pub(crate) waiting: bool,
}

/// The parts in the order of [`RankSpans`].
pub(crate) const PARTS: [Part; 7] = [
    Part { name: "attention, router", class: "p0", waiting: false },
    Part { name: "waiting to dispatch", class: "p1", waiting: true },
    Part { name: "dispatch", class: "p2", waiting: false },
    Part { name: "experts", class: "p3", waiting: false },
    Part { name: "waiting to return", class: "p4", waiting: true },
    Part { name: "return", class: "p5", waiting: false },
    Part { name: "rest", class: "p6", waiting: false },
];

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 76.0;
/// More ranks than this are not all drawn: the slowest are, and some of the fastest.
const MOST_ROWS: usize = 48;
const FASTEST_ROWS: usize = 8;

/// The rank with the longest expert time: the one that the others wait for. The first of equals.
pub(crate) fn awaited(layer: &[RankSpans]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (r, expert) in layer.iter().map(|s| s.parts()[3]).enumerate() {
        if expert > 0.0 && best.is_none_or(|(_, top)| expert > top) {
            best = Some((r, expert));
        }
    }
    best.map(|(r, _)| r)
}

/// What the mean rank of a layer waits, µs.
pub(crate) fn waits(layer: &[RankSpans]) -> f64 {
    let all = layer.iter().map(|s| s.parts()).map(|p| p[1] + p[4]);
    all.sum::<f64>() / layer.len().max(1) as f64
}

/// The layer whose mean rank waits longest.
fn worst_layer(step: &StepWaterfall) -> Option<usize> {
    let layers = step.layers.iter().enumerate().filter(|(_, l)| !l.is_empty());
    // `max_by` keeps the last of equals; reversed, the first.
    layers.rev().max_by(|a, b| waits(a.1).total_cmp(&waits(b.1))).map(|(l, _)| l)
}

/// The swatches of the parts, starting at a point.
pub(crate) fn parts_legend(p: &mut Picture, at: [f64; 2]) {
    let mut x = at[0];
    for part in &PARTS {
        p.rect([x, at[1], 12.0, 12.0], part.class);
        if part.waiting {
            p.rect([x, at[1], 12.0, 12.0], "hatch");
        }
        p.text([x + 17.0, at[1] + 10.0], Anchor::Start, "s m", part.name);
        x += 36.0 + part.name.chars().count() as f64 * 5.9;
    }
}

/// The picture of the layer that loses most to waiting; `None` where no layer has a rank.
pub(crate) fn zoom_picture(step: &StepWaterfall, origin: TimeOrigin) -> Option<Picture> {
    let worst = worst_layer(step)?;
    let layer = &step.layers[worst];
    let slowest = awaited(layer);
    let rows = rows(layer);
    let row_px = if rows.len() <= 16 { 19.0 } else { 13.0 };
    let number = worst as u64 + u64::from(step.first_layer);
    let bottom = TOP + rows.len() as f64 * row_px;
    let desc = describe(layer, number, rows.len());
    let title = format!("Layer {number}, the layer that loses most to waiting");
    let mut p = Picture::new(WIDTH, bottom + 40.0, &title, &desc);
    p.text([LEFT, 17.0], Anchor::Start, "t", &title);
    p.text([LEFT, 35.0], Anchor::Start, "s m", &fit(&desc, WIDTH - LEFT, 11.0));
    parts_legend(&mut p, [LEFT, 48.0]);
    let longest = layer.iter().map(RankSpans::total_us).fold(0.0, f64::max);
    let axis = Axis::new(0.0, longest, 8).until(longest);
    let x = |us: f64| LEFT + axis.at(us) * (WIDTH - LEFT - RIGHT);
    for tick in &axis.ticks {
        p.line([x(*tick), TOP, x(*tick), bottom + 4.0], "grid");
        p.text([x(*tick), bottom + 17.0], Anchor::Middle, "s m", &axis.label(*tick));
    }
    p.text(
        [(LEFT + WIDTH - RIGHT) / 2.0, bottom + 34.0],
        Anchor::Middle,
        "s m",
        &format!("µs since the layer began ({})", origin.word()),
    );
    p.text_up([13.0, (TOP + bottom) / 2.0], "s m", "rank");
    for (i, &r) in rows.iter().enumerate() {
        let y = TOP + i as f64 * row_px;
        bars(&mut p, &layer[r], [y, row_px], r, &x);
        let class = if slowest == Some(r) { "s b" } else { "s m" };
        p.text([LEFT - 7.0, y + row_px / 2.0 + 4.0], Anchor::End, class, &r.to_string());
        if slowest == Some(r) {
            let at = [x(layer[r].total_us()) + 9.0, y + row_px / 2.0 + 4.0];
            p.rect(
                [LEFT - 1.0, y + 0.5, x(layer[r].total_us()) - LEFT + 2.0, row_px - 1.0],
                "frame",
            );
            p.text(at, Anchor::Start, "b", "◀ all wait for it");
        }
    }
    Some(p)
}

/// One rank's spans.
fn bars(p: &mut Picture, span: &RankSpans, [y, h]: [f64; 2], rank: usize, x: &impl Fn(f64) -> f64) {
    let mut start = 0.0;
    for (part, us) in PARTS.iter().zip(span.parts()) {
        if us > 0.0 {
            let at = [x(start), y + 2.0, x(start + us) - x(start), h - 4.0];
            p.rect_tip(at, part.class, &format!("rank {rank}, {}: {}", part.name, fmt::us(us)));
            if part.waiting {
                p.rect(at, "hatch");
            }
            start += us;
        }
    }
}

/// The ranks to draw, in order of their number.
fn rows(layer: &[RankSpans]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..layer.len()).collect();
    if order.len() <= MOST_ROWS {
        return order;
    }
    order.sort_by(|a, b| layer[*b].parts()[3].total_cmp(&layer[*a].parts()[3]).then(a.cmp(b)));
    let mut kept = order[..MOST_ROWS - FASTEST_ROWS].to_vec();
    kept.extend(&order[order.len() - FASTEST_ROWS..]);
    kept.sort_unstable();
    kept
}

fn describe(layer: &[RankSpans], number: u64, drawn: usize) -> String {
    let experts: Vec<f64> = layer.iter().map(|s| s.parts()[3]).collect();
    let mean = experts.iter().sum::<f64>() / experts.len().max(1) as f64;
    let top = experts.iter().copied().fold(0.0, f64::max);
    let subset = if drawn < layer.len() {
        format!("; {drawn} of {} ranks shown, slowest and fastest", layer.len())
    } else {
        String::new()
    };
    match awaited(layer) {
        Some(r) => format!(
            "in layer {number}, rank {r} spends {} in its experts, the mean rank {}{subset}",
            fmt::us(top),
            fmt::us(mean)
        ),
        None => format!("layer {number} has no expert time{subset}"),
    }
}
