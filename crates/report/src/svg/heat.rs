//! Expert × layer heat maps.

use super::axis::{HeatScale, LEVELS, stride};
use super::{Anchor, Picture, fit, num};
use crate::fmt;
use crate::view::HeatMap;

/// Beyond this many cells a picture no longer tells every value: the page would outgrow its use.
const TIP_CELLS: usize = 6_000;
/// From this many columns on, a map takes the full width of the page.
const WIDE_COLUMNS: usize = 96;
const LEFT: f64 = 44.0;
const TOP: f64 = 30.0;

/// One picture per map that has values; maps with the same unit share one scale.
pub(crate) fn heat_maps(maps: &[HeatMap]) -> Vec<Picture> {
    let full = maps.iter().filter(|m| m.values.iter().any(|row| !row.is_empty()));
    full.map(|map| {
        let same = maps.iter().filter(|m| m.unit == map.unit);
        let values = same.flat_map(|m| m.values.iter().flatten()).map(|&v| f64::from(v));
        picture(map, &HeatScale::covering(values))
    })
    .collect()
}

fn picture(map: &HeatMap, scale: &HeatScale) -> Picture {
    let rows = map.values.len();
    let columns = map.values.iter().map(Vec::len).max().unwrap_or(0);
    let width = if columns > WIDE_COLUMNS { 1080.0 } else { 540.0 };
    let cell = [(width - LEFT - 8.0) / columns as f64, cell_height(rows)];
    let bottom = TOP + cell[1] * rows as f64;
    let desc = describe(map);
    let mut p = Picture::new(width, bottom + 78.0, &map.title, &desc);
    p.text([LEFT, 17.0], Anchor::Start, "t", &fit(&map.title, width - LEFT, 13.5));
    if rows * columns <= TIP_CELLS {
        tell_cells(&mut p, map, scale, cell);
    } else {
        paint_cells(&mut p, &map.values, scale, [LEFT, TOP], cell);
    }
    mark_hottest(&mut p, map, cell);
    axes(&mut p, map, [rows, columns], cell, bottom);
    legend(&mut p, map, scale, bottom + 44.0);
    p
}

fn cell_height(rows: usize) -> f64 {
    match rows {
        0..=8 => 18.0,
        9..=32 => 11.0,
        33..=64 => 8.0,
        _ => (512.0 / rows as f64).max(2.0),
    }
}

/// Every cell with its value as a tip.
fn tell_cells(p: &mut Picture, map: &HeatMap, scale: &HeatScale, cell: [f64; 2]) {
    for (r, row) in map.values.iter().enumerate() {
        for (c, &value) in row.iter().enumerate() {
            let value = f64::from(value);
            let at = [LEFT + c as f64 * cell[0], TOP + r as f64 * cell[1], cell[0], cell[1]];
            let tip = format!(
                "layer {}, expert {c}: {}",
                r as u64 + u64::from(map.first_row),
                fmt::number(value)
            );
            match scale.level(value) {
                Some(level) => p.rect_tip(at, LEVEL_CLASS[level], &tip),
                None => p.rect_tip(at, "hx", &tip),
            }
        }
    }
}

/// One path per colour: as small as a picture of many cells can be.
pub(super) fn paint_cells(
    p: &mut Picture,
    rows: &[Vec<f32>],
    scale: &HeatScale,
    [left, top]: [f64; 2],
    cell: [f64; 2],
) {
    for (level, class) in LEVEL_CLASS.iter().enumerate() {
        let mut data = String::new();
        for (r, row) in rows.iter().enumerate() {
            let y = num(top + r as f64 * cell[1]);
            let mut c = 0;
            while c < row.len() {
                let from = c;
                while c < row.len() && scale.level(f64::from(row[c])) == Some(level) {
                    c += 1;
                }
                if c > from {
                    let (x, w) = (left + from as f64 * cell[0], (c - from) as f64 * cell[0]);
                    let (h, w) = (num(cell[1]), num(w));
                    data.push_str(&format!("M{} {y}h{w}v{h}h-{w}z", num(x)));
                } else {
                    c += 1;
                }
            }
        }
        if !data.is_empty() {
            p.path(&data, class);
        }
    }
}

/// A ring in the hottest cell of each row: what the colour says, said without it.
fn mark_hottest(p: &mut Picture, map: &HeatMap, cell: [f64; 2]) {
    let radius = (cell[1] * 0.24).clamp(1.4, 3.0);
    for (r, row) in map.values.iter().enumerate() {
        if let Some((c, _)) = hottest(row) {
            let x = LEFT + (c as f64 + 0.5) * cell[0];
            p.circle([x, TOP + (r as f64 + 0.5) * cell[1]], radius, "ring", "");
        }
    }
}

/// Column and value of the largest finite value, the first of equals; `None` where none is
/// positive.
pub(crate) fn hottest(row: &[f32]) -> Option<(usize, f32)> {
    let mut best: Option<(usize, f32)> = None;
    for (c, &v) in row.iter().enumerate() {
        if v.is_finite() && v > 0.0 && best.is_none_or(|(_, top)| v > top) {
            best = Some((c, v));
        }
    }
    best
}

fn axes(p: &mut Picture, map: &HeatMap, size: [usize; 2], cell: [f64; 2], bottom: f64) {
    let [rows, columns] = size;
    let every = stride(rows, (rows as f64 * cell[1] / 16.0) as usize);
    for r in (0..rows).step_by(every) {
        let label = (r as u64 + u64::from(map.first_row)).to_string();
        p.text([LEFT - 6.0, TOP + (r as f64 + 0.5) * cell[1] + 4.0], Anchor::End, "s m", &label);
    }
    let every = stride(columns, (columns as f64 * cell[0] / 34.0) as usize);
    for c in (0..columns).step_by(every) {
        let x = LEFT + (c as f64 + 0.5) * cell[0];
        p.line([x, bottom, x, bottom + 4.0], "axis");
        p.text([x, bottom + 15.0], Anchor::Middle, "s m", &c.to_string());
    }
    let or = |label: &str, default: &str| {
        if label.is_empty() { default.to_owned() } else { label.to_owned() }
    };
    let middle = LEFT + columns as f64 * cell[0] / 2.0;
    p.text([middle, bottom + 30.0], Anchor::Middle, "s m", &or(&map.x_label, "logical expert"));
    p.text_up([12.0, TOP + rows as f64 * cell[1] / 2.0], "s m", &or(&map.y_label, "MoE layer"));
}

fn legend(p: &mut Picture, map: &HeatMap, scale: &HeatScale, y: f64) {
    let step = 34.0;
    for (level, class) in LEVEL_CLASS.iter().enumerate() {
        p.rect([LEFT + level as f64 * step, y, step, 9.0], class);
    }
    for (i, bound) in scale.bounds().iter().enumerate() {
        let x = LEFT + i as f64 * step;
        p.text([x, y + 21.0], Anchor::Middle, "xs m", &short(*bound));
    }
    let x = LEFT + LEVELS as f64 * step + 14.0;
    let room = p.width() - x;
    let (first, second) = split(&map.unit, (room / 5.6) as usize);
    p.text([x, y + 8.0], Anchor::Start, "xs m", &first);
    p.text([x, y + 20.0], Anchor::Start, "xs m", &fit(&second, room, 9.5));
}

/// Two lines of a text, broken at the last space that lets the first fit.
fn split(text: &str, room: usize) -> (String, String) {
    let clean = crate::escape::clean(text, 200);
    if clean.chars().count() <= room {
        return (clean, String::new());
    }
    let head: String = clean.chars().take(room + 1).collect();
    let at = head.rfind(' ').unwrap_or(head.len());
    (clean[..at].to_owned(), clean[at..].trim_start().to_owned())
}

/// A bound with two significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v < 1e-9 => "0".to_owned(),
        v if v < 0.0995 => format!("{value:.3}"),
        v if v < 0.995 => format!("{value:.2}"),
        v if v < 9.95 => format!("{value:.1}"),
        _ => fmt::number(value),
    }
}

/// What a screen reader says of the picture: the hottest cells in words.
fn describe(map: &HeatMap) -> String {
    let rows = map.values.iter().enumerate();
    let mut tops: Vec<(usize, usize, f32)> =
        rows.filter_map(|(r, row)| hottest(row).map(|(c, v)| (r, c, v))).collect();
    tops.sort_by(|a, b| b.2.total_cmp(&a.2));
    let named: Vec<String> = tops
        .iter()
        .take(3)
        .map(|(r, c, v)| {
            let layer = *r as u64 + u64::from(map.first_row);
            format!("layer {layer} expert {c}: {}", fmt::number(f64::from(*v)))
        })
        .collect();
    format!("Heat map, {}. Hottest: {}.", map.unit, named.join("; "))
}

/// Classes of the levels.
pub(crate) const LEVEL_CLASS: [&str; LEVELS] =
    ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
