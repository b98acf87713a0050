//! The sections of pictures, each with its numbers in a table for those who cannot see it or want
//! to copy them.

use super::parts::{Row, Width, details, figure, picture, raw_figure, table, words};
use crate::fmt;
use crate::svg::{
    PARTS, Picture, Styles, awaited, distributions, heat_maps, hottest, mean_parts,
    rank_load_pictures, step_picture, zoom_picture,
};
use crate::view::{HotExpert, Report};

/// Tables under pictures stop here: beyond, the stored report is the place to look.
const TABLE_ROWS: usize = 200;

/// Pictures side by side where there is room.
fn gallery(pictures: &[Picture], id: &str, class: &str, min: f64) -> String {
    if pictures.is_empty() {
        return String::new();
    }
    let mut out = format!("<div class=\"{class}\">\n");
    for (i, p) in pictures.iter().enumerate() {
        let min = if p.width() > 600.0 { 860.0 } else { min };
        out.push_str(&picture(p, &format!("{id}{i}"), min));
    }
    out.push_str("</div>\n");
    out
}

pub(super) fn experts(report: &Report) -> String {
    let mut out = gallery(&heat_maps(&report.heat), "heat", "two", 470.0);
    out.push_str(&details("The hottest expert of each layer, as a table", &heat_table(report)));
    out.push_str(&hot_experts(&report.hot_experts));
    out
}

fn heat_table(report: &Report) -> String {
    let maps: Vec<_> = report.heat.iter().filter(|m| !m.values.is_empty()).collect();
    let Some(first) = maps.first() else { return String::new() };
    let mut heads = vec!["layer".to_owned()];
    heads.extend(maps.iter().map(|m| format!("{}, {}", m.title, m.unit)));
    let layers = maps.iter().map(|m| m.values.len()).max().unwrap_or(0).min(TABLE_ROWS);
    let rows: Vec<Row> = (0..layers)
        .map(|l| {
            let mut cells = vec![figure(&(l as u64 + u64::from(first.first_row)).to_string())];
            for m in &maps {
                let top = m.values.get(l).and_then(|row| hottest(row));
                cells.push(figure(&top.map_or(fmt::NONE.to_owned(), |(e, v)| {
                    format!("expert {e}: {}", fmt::number(f64::from(v)))
                })));
            }
            Row::new(cells)
        })
        .collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    table(Width::Cells, "hottest expert of each layer", &heads, &rows)
}

fn hot_experts(hot: &[HotExpert]) -> String {
    if hot.is_empty() {
        return String::new();
    }
    let rows: Vec<Row> = hot
        .iter()
        .take(TABLE_ROWS)
        .map(|h| {
            let copies = match h.copies_candidate {
                Some(after) => format!("{} → {after}", h.copies_live),
                None => h.copies_live.to_string(),
            };
            Row::new(vec![
                figure(&h.layer.to_string()),
                figure(&h.expert.to_string()),
                figure(&fmt::factor(h.before)),
                raw_figure(format!("<strong>{}</strong>", fmt::factor(h.after))),
                figure(&copies),
                if h.note.is_empty() { super::parts::raw(String::new()) } else { words(&h.note) },
            ])
        })
        .collect();
    let heads =
        ["layer", "expert", "before, × layer mean", "after, × layer mean", "copies", "tokens from"];
    format!("<h3>Hot experts</h3>\n{}", table(Width::Cells, "hot experts", &heads, &rows))
}

pub(super) fn ranks(report: &Report) -> String {
    let mut out = gallery(&rank_load_pictures(&report.rank_loads), "ranks", "two", 470.0);
    let maps: Vec<_> = report.rank_loads.iter().filter(|m| !m.values.is_empty()).collect();
    let Some(first) = maps.first() else { return out };
    let mut heads = vec!["layer".to_owned()];
    for m in &maps {
        heads.push(format!("{}, {}", m.title, m.unit));
        heads.push("balancedness".to_owned());
    }
    let layers = maps.iter().map(|m| m.values.len()).max().unwrap_or(0).min(TABLE_ROWS);
    let balance: Vec<Vec<f64>> = maps.iter().map(|m| m.balancedness()).collect();
    let rows: Vec<Row> = (0..layers)
        .map(|l| {
            let mut cells = vec![figure(&(l as u64 + u64::from(first.first_layer)).to_string())];
            for (m, balance) in maps.iter().zip(&balance) {
                let top = m.values.get(l).and_then(|row| hottest(row));
                cells.push(figure(&top.map_or(fmt::NONE.to_owned(), |(r, v)| {
                    format!("rank {r}: {}", fmt::number(f64::from(v)))
                })));
                let b = balance.get(l).copied().unwrap_or(f64::NAN);
                cells.push(figure(&fmt::number(b)));
            }
            Row::new(cells)
        })
        .collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    out.push_str(&details(
        "Loads as a table",
        &table(Width::Cells, "rank loads by layer", &heads, &rows),
    ));
    out
}

pub(super) fn step(report: &Report) -> String {
    let Some(step) = &report.waterfall else { return String::new() };
    let pictures: Vec<Picture> =
        [step_picture(step, report.origin), zoom_picture(step, report.origin)]
            .into_iter()
            .flatten()
            .collect();
    let mut out = gallery(&pictures, "step", "two", 860.0);
    let mut heads = vec!["layer", "awaited rank"];
    heads.extend(PARTS.iter().map(|p| p.name));
    let rows: Vec<Row> = step
        .layers
        .iter()
        .enumerate()
        .take(TABLE_ROWS)
        .map(|(l, layer)| {
            let mut cells = vec![
                figure(&(l as u64 + u64::from(step.first_layer)).to_string()),
                figure(&awaited(layer).map_or(fmt::NONE.to_owned(), |r| r.to_string())),
            ];
            cells.extend(mean_parts(step, l).map(|us| figure(&fmt::number(us))));
            Row::new(cells)
        })
        .collect();
    if !pictures.is_empty() {
        let label = format!("Parts of each layer, mean over ranks, µs ({})", report.origin.word());
        out.push_str(&details(&label, &table(Width::Cells, "parts of each layer", &heads, &rows)));
    }
    out
}

pub(super) fn latency(report: &Report) -> String {
    let panels = &report.distributions;
    let pictures = distributions(panels, &Styles::of(panels), report.origin);
    let mut out = gallery(&pictures, "latency", "three", 300.0);
    if pictures.is_empty() {
        return out;
    }
    let heads =
        ["slice", "quantity", "weighting", "map", "samples", "p50", "p90", "p99", "p99.9", "SLO"];
    let mut rows: Vec<Row> = Vec::new();
    for panel in panels {
        for s in &panel.series {
            let at = |q: f64| {
                figure(&s.at(q).map_or(fmt::NONE.to_owned(), |v| fmt::with_unit(v, &panel.unit)))
            };
            let slo = panel.slo.map_or(String::new(), |v| fmt::with_unit(v, &panel.unit));
            rows.push(Row::new(vec![
                words(&panel.title),
                words(&panel.quantity),
                words(&panel.weighting),
                words(&s.name),
                figure(&fmt::count(s.samples)),
                at(0.5),
                at(0.9),
                at(0.99),
                at(0.999),
                figure(&slo),
            ]));
        }
    }
    rows.truncate(TABLE_ROWS);
    let label = format!("Percentiles as a table ({})", report.origin.word());
    out.push_str(&details(&label, &table(Width::Cells, "percentiles", &heads, &rows)));
    out
}
