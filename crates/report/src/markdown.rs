//! The report in short, for a ticket or a chat.

use crate::escape::{NAME_CHARS, clean};
use crate::fmt;
use crate::view::{Report, TimeOrigin};

/// Verdict, facts, causes, prices and comparisons as Markdown. Pictures stay in the HTML.
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let title = if report.title.is_empty() { "Evenkeel report" } else { &report.title };
    out.push_str(&format!("# {}\n\n", words(title)));
    if !report.subtitle.is_empty() {
        out.push_str(&format!("{}\n\n", words(&report.subtitle)));
    }
    out.push_str(match report.origin {
        TimeOrigin::Modelled => "All times are modelled: from a cost model, not from a clock.\n\n",
        TimeOrigin::Measured => "All times are measured.\n\n",
    });
    if let Some(v) = &report.verdict {
        out.push_str(&format!("**{} {}**", v.tone.mark(), words(&v.label)));
        if !v.headline.is_empty() {
            out.push_str(&format!(": {}", words(&v.headline)));
        }
        out.push_str("\n\n");
        for r in &v.reasons {
            out.push_str(&format!("- {} {}\n", r.tone.mark(), words(&r.text)));
        }
        out.push_str(if v.reasons.is_empty() { "" } else { "\n" });
    }
    let facts = report.facts.iter().map(|f| {
        let was = f.before.as_ref().map_or(String::new(), |b| format!("{b} → "));
        vec![f.name.clone(), format!("{was}{}", f.value), crate::html::fact_note(f, report.origin)]
    });
    table(&mut out, "", &["", "value", "note"], facts.collect());
    for p in &report.story {
        let lead =
            if p.lead.is_empty() { String::new() } else { format!("**{}** ", words(&p.lead)) };
        out.push_str(&format!("{lead}{}\n\n", words(&p.text)));
    }
    causes(&mut out, report);
    prices(&mut out, report);
    comparisons(&mut out, report);
    for c in &report.counter_incidents {
        out.push_str(&format!("### {}\n\n", words(&c.title)));
        c.lines.iter().for_each(|l| out.push_str(&format!("{}\n\n", words(l))));
        if !c.verdict.is_empty() {
            out.push_str(&format!("**{} {}**\n\n", c.tone.mark(), words(&c.verdict)));
        }
    }
    list(&mut out, "Assumptions", &report.assumptions);
    list(&mut out, "Attribution", &report.attribution);
    if !report.generated_note.is_empty() {
        out.push_str(&format!("{}\n", words(&report.generated_note)));
    }
    out
}

fn causes(out: &mut String, report: &Report) {
    let Some(d) = &report.diagnosis else { return };
    let title = format!("Causes ({})", report.origin.word());
    let rows = d.causes.iter().map(|c| {
        vec![
            c.kind.clone(),
            fmt::ms(c.ms_per_step),
            c.place.clone(),
            c.evidence.join("; "),
            c.remedy.clone(),
        ]
    });
    table(out, &title, &["cause", "per step", "place", "evidence", "remedy"], rows.collect());
    list(out, "Ruled out", &d.ruled_out);
}

fn prices(out: &mut String, report: &Report) {
    let show = |v: Option<f64>, f: fn(f64) -> String| v.map_or(String::new(), f);
    let rows = report.prices.iter().map(|p| {
        vec![
            format!("{}{}", p.name, if p.chosen { " (judged)" } else { "" }),
            p.moves.map_or(String::new(), fmt::count),
            show(p.bytes, fmt::bytes),
            show(p.seconds, fmt::seconds),
            show(p.step_change, fmt::change),
            show(p.bound_gap, fmt::percent),
            show(p.break_even_steps, fmt::number),
            show(p.kv_lost, fmt::percent),
        ]
    });
    let title = format!("Plans (times {})", report.origin.word());
    let heads = [
        "plan",
        "moves",
        "bytes",
        "time",
        "step",
        "left to the bound",
        "break-even, steps",
        "KV given up",
    ];
    table(out, &title, &heads, rows.collect());
    if !report.bound_note.is_empty() {
        out.push_str(&format!("{}\n\n", words(&report.bound_note)));
    }
}

fn comparisons(out: &mut String, report: &Report) {
    let rows = report.comparisons.iter().map(|c| {
        let interval = c.interval.map_or(String::new(), |(low, high)| {
            format!("{} … {}", fmt::change(low), fmt::change(high))
        });
        let result = match c.pass {
            Some(true) => "✓ passes",
            Some(false) => "✗ fails",
            None => "? cannot tell",
        };
        vec![
            c.metric.clone(),
            c.weighting.clone(),
            c.slice.clone(),
            fmt::with_unit(c.live, &c.unit),
            fmt::with_unit(c.candidate, &c.unit),
            fmt::change(c.change),
            interval,
            c.limit.map_or(String::new(), fmt::change),
            result.to_owned(),
        ]
    });
    let title = format!("Comparisons (times {})", report.origin.word());
    let heads = [
        "metric",
        "weighting",
        "slice",
        "live",
        "candidate",
        "change",
        "interval",
        "limit",
        "result",
    ];
    table(out, &title, &heads, rows.collect());
}

/// A table under a heading; nothing without rows.
fn table(out: &mut String, title: &str, heads: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    if !title.is_empty() {
        out.push_str(&format!("## {title}\n\n"));
    }
    out.push_str(&format!("| {} |\n|{}\n", heads.join(" | "), " --- |".repeat(heads.len())));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|c| words(c)).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    out.push('\n');
}

fn list(out: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    out.push_str(&format!("## {title}\n\n"));
    items.iter().for_each(|i| out.push_str(&format!("- {}\n", words(i))));
    out.push('\n');
}

/// Text that Markdown shows as it is: markup and HTML lose their meaning, links do not form.
fn words(raw: &str) -> String {
    let mut out = String::new();
    for c in clean(raw, NAME_CHARS * 50).chars() {
        match c {
            '\n' | '\t' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' | '@' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    // Bare addresses would become links.
    out.replace("://", ":\u{2060}//").replace("www.", "www\u{2060}.")
}
