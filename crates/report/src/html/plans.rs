//! Prices, comparisons, other situations, and what it all rests on.

use super::parts::{Cell, Row, Width, bar, figure, list, raw, raw_figure, table, words};
use super::top::{capital, note};
use crate::escape::{name, text};
use crate::fmt;
use crate::svg::num;
use crate::text::numeric;
use crate::view::{Comparison, PlanPrice, Report, TimeOrigin, Tone};

pub(super) fn prices(report: &Report) -> String {
    let most = |of: fn(&PlanPrice) -> Option<f64>| {
        let finite = report.prices.iter().filter_map(of).filter(|v| v.is_finite());
        finite.map(f64::abs).fold(0.0, f64::max)
    };
    let (bytes, change) = (most(|p| p.bytes), most(|p| p.step_change));
    let rows: Vec<Row> = report.prices.iter().map(|p| price(p, bytes, change)).collect();
    let heads = [
        "plan",
        "moves (slots)",
        "weight bytes",
        "time to move",
        "step, predicted",
        "left to the bound",
        "break-even",
        "KV given up",
    ];
    let mut out = table(Width::Full, "price of each plan", &heads, &rows);
    if !report.bound_note.is_empty() {
        out.push_str(&format!("<figcaption>{}</figcaption>\n", text(&report.bound_note)));
    }
    out
}

/// A number with a bar below it; empty where there is none.
fn barred(value: Option<f64>, most: f64, show: fn(f64) -> String) -> Cell {
    value.map_or(figure(""), |v| {
        let share = if most > 0.0 { v.abs() / most } else { 0.0 };
        raw_figure(format!("{}{}", show(v), bar(share, "bar")))
    })
}

fn price(p: &PlanPrice, bytes: f64, change: f64) -> Row {
    let mut head = format!("<bdi>{}</bdi>", name(&capital(&p.name)));
    if p.chosen {
        head.push_str("<small>the plan judged here</small>");
    }
    if !p.note.is_empty() {
        head.push_str(&format!("<small>{}</small>", text(&p.note)));
    }
    let moves = p.moves.map_or(String::new(), |m| {
        let share =
            p.slot_share.map_or(String::new(), |s| format!("<small>{}</small>", fmt::percent(s)));
        format!("{}{share}", fmt::count(m))
    });
    let time = p.seconds.map_or(String::new(), |s| {
        let rate = if p.rate_note.is_empty() {
            String::new()
        } else {
            format!("<small>{}</small>", text(&p.rate_note))
        };
        format!("{}{rate}", fmt::seconds(s))
    });
    let even = match (p.break_even_steps, p.break_even_s) {
        (Some(steps), s) => {
            let s = s.map_or(String::new(), |s| format!("<small>{}</small>", fmt::seconds(s)));
            format!("{} steps{s}", fmt::number(steps))
        }
        (None, Some(s)) => fmt::seconds(s),
        (None, None) => String::new(),
    };
    Row {
        class: if p.chosen { "chosen" } else { "" },
        cells: vec![
            raw(head),
            raw_figure(moves),
            barred(p.bytes, bytes, fmt::bytes),
            raw_figure(time),
            barred(p.step_change, change, fmt::change),
            figure(&p.bound_gap.map_or(String::new(), fmt::percent)),
            raw_figure(even),
            figure(&p.kv_lost.map_or(String::new(), fmt::percent)),
        ],
    }
}

pub(super) fn comparisons(report: &Report) -> String {
    // One scale per metric: a goodput that doubles would squeeze every latency to a dot. Limits do
    // not stretch it, for one far off would do the same.
    let reach = |metric: &str| {
        let of_metric = report.comparisons.iter().filter(|c| c.metric == metric);
        let values = of_metric.flat_map(|c| {
            let (low, high) = c.interval.unwrap_or((c.change, c.change));
            [c.change, low, high]
        });
        values.filter(|v| v.is_finite()).map(f64::abs).fold(0.0, f64::max)
    };
    let rows: Vec<Row> =
        report.comparisons.iter().map(|c| comparison(c, reach(&c.metric), report.origin)).collect();
    let heads = [
        "metric",
        "slice",
        "live",
        "candidate",
        "change",
        "interval",
        "lower | higher",
        "limit",
        "result",
    ];
    table(Width::Full, "comparisons", &heads, &rows)
}

fn comparison(c: &Comparison, reach: f64, origin: TimeOrigin) -> Row {
    let mut how: Vec<&str> = Vec::new();
    if !c.weighting.is_empty() {
        how.push(&c.weighting);
    }
    if c.time {
        how.push(origin.word());
    }
    let mut head = format!("<bdi>{}</bdi>", name(&c.metric));
    if !how.is_empty() {
        head.push_str(&format!("<small>{}</small>", text(&how.join(", "))));
    }
    let (tone, word) = match c.pass {
        Some(true) => (Tone::Good, "passes"),
        Some(false) => (Tone::Bad, "fails"),
        None if c.limit.is_none() => (Tone::Neutral, "shown"),
        None => (Tone::Unsure, "cannot tell"),
    };
    let why =
        if c.note.is_empty() { String::new() } else { format!("<small>{}</small>", text(&c.note)) };
    let interval = c.interval.map_or(String::new(), |(low, high)| {
        format!("{} … {}", fmt::change(low), fmt::change(high))
    });
    let limit = c.limit.map_or(String::new(), |l| {
        format!("{} {}", if c.higher_is_better { "≥" } else { "≤" }, fmt::change(l))
    });
    Row::new(vec![
        raw(head),
        words(&c.slice),
        figure(&fmt::with_unit(c.live, &c.unit)),
        figure(&fmt::with_unit(c.candidate, &c.unit)),
        raw_figure(format!("<strong>{}</strong>", fmt::change(c.change))),
        figure(&interval),
        raw(format!("<span class=\"iv\">{}</span>", interval_picture(c, reach))),
        figure(&limit),
        raw(format!("<span class=\"word {}\">{} {word}</span>{why}", tone.class(), tone.mark())),
    ])
}

/// The interval of a change, the change itself, zero and the limit, on one line. The numbers stand
/// beside it, so it is hidden from screen readers.
fn interval_picture(c: &Comparison, reach: f64) -> String {
    if reach <= 0.0 || !c.change.is_finite() {
        return String::new();
    }
    let x = |v: f64| num(75.0 + (v / reach).clamp(-1.0, 1.0) * 70.0);
    let mut out = "<svg class=\"ek\" viewBox=\"0 0 150 22\" aria-hidden=\"true\">\
                   <line class=\"grid\" x1=\"5\" y1=\"11\" x2=\"145\" y2=\"11\"/>\
                   <line class=\"axis\" x1=\"75\" y1=\"4\" x2=\"75\" y2=\"18\"/>"
        .to_owned();
    if let Some(limit) = c.limit.filter(|v| v.abs() <= reach) {
        let at = x(limit);
        out.push_str(&format!("<line class=\"lim\" x1=\"{at}\" y1=\"1\" x2=\"{at}\" y2=\"21\"/>"));
    }
    if let Some((low, high)) = c.interval.filter(|(l, h)| l.is_finite() && h.is_finite()) {
        let (a, b) = (x(low), x(high));
        out.push_str(&format!("<path class=\"iv\" d=\"M{a} 7v8M{b} 7v8M{a} 11H{b}\"/>"));
    }
    out.push_str(&format!("<circle class=\"d1\" cx=\"{}\" cy=\"11\" r=\"4\"/></svg>", x(c.change)));
    out
}

pub(super) fn counter_incidents(report: &Report) -> String {
    if report.counter_incidents.is_empty() {
        return String::new();
    }
    let mut out = "<div class=\"cards pair\">\n".to_owned();
    for c in &report.counter_incidents {
        out.push_str(&format!("<div class=\"card\"><h3>{}</h3>", text(&c.title)));
        for line in &c.lines {
            out.push_str(&format!("<p>{}</p>", text(line)));
        }
        if !c.verdict.is_empty() {
            out.push_str(&format!(
                "<p class=\"does out {}\"><span class=\"mark\" aria-hidden=\"true\">{}</span><span>{}</span></p>",
                c.tone.class(),
                c.tone.mark(),
                text(&capital(&c.verdict))
            ));
        }
        out.push_str("</div>\n");
    }
    out.push_str("</div>\n");
    out
}

pub(super) fn extra_tables(report: &Report) -> String {
    let mut out = String::new();
    for t in report.tables.iter().filter(|t| !t.rows.is_empty()) {
        let columns = t.rows.iter().map(Vec::len).chain([t.head.len()]).max().unwrap_or(0);
        let numbers = |c: usize| t.rows.iter().all(|r| r.get(c).is_none_or(|cell| numeric(cell)));
        let right: Vec<bool> = (0..columns).map(numbers).collect();
        let rows: Vec<Row> = t
            .rows
            .iter()
            .map(|r| {
                let cell =
                    |(c, raw): (usize, &String)| if right[c] { figure(raw) } else { words(raw) };
                Row::new(r.iter().enumerate().map(cell).collect())
            })
            .collect();
        let heads: Vec<&str> =
            (0..columns).map(|c| t.head.get(c).map_or("", String::as_str)).collect();
        out.push_str(&format!("<h3>{}</h3>\n", text(&t.title)));
        if !t.note.is_empty() {
            out.push_str(&format!("<p class=\"lead\">{}</p>\n", text(&t.note)));
        }
        out.push_str(&table(Width::Cells, &t.title, &heads, &rows));
    }
    out
}

pub(super) fn method(report: &Report) -> String {
    let mut out = String::new();
    let rows: Vec<Row> = report
        .model
        .iter()
        .map(|m| {
            Row::new(vec![words(&m.curve), words(&m.origin), words(&m.error), words(&m.support)])
        })
        .collect();
    if !rows.is_empty() {
        out.push_str("<h3>Cost curves</h3>\n");
        let heads = ["curve", "origin", "stated error", "support"];
        out.push_str(&table(Width::Full, "cost curves", &heads, &rows));
    }
    if !report.assumptions.is_empty() {
        out.push_str("<h3>Assumptions</h3>\n");
        out.push_str(&list(&report.assumptions));
    }
    if !report.provenance.is_empty() {
        out.push_str("<h3>Provenance</h3>\n<dl class=\"pairs\">\n");
        for f in &report.provenance {
            let note = note(f, report.origin);
            let note = if note.is_empty() { String::new() } else { format!(" ({})", text(&note)) };
            out.push_str(&format!("<dt>{}</dt><dd>{}{note}</dd>\n", name(&f.name), text(&f.value)));
        }
        out.push_str("</dl>\n");
    }
    out
}
