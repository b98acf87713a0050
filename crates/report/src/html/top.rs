//! The top of the page: what it is about, the verdict, the numbers to remember, the story.

use super::parts::bar;
use crate::escape::{name, text};
use crate::fmt;
use crate::view::{Fact, MixView, Report, TimeOrigin, VerdictView};

/// A hull seen from ahead, level on its waterline.
const LOGO: &str = "<svg viewBox=\"0 0 26 26\" aria-hidden=\"true\" fill=\"none\" stroke=\"currentColor\" \
    stroke-width=\"2\" stroke-linecap=\"round\" stroke-linejoin=\"round\">\
    <path d=\"M4 10h18c0 6-4 9-9 9s-9-3-9-9z\"/><path d=\"M13 19v5M13 10V3\"/><path d=\"M1 14h2M23 14h2\"/></svg>";

pub(super) fn header(out: &mut String, report: &Report, title: &str) {
    out.push_str(&format!(
        "<header>\n<p class=\"brand\">{LOGO}<span>Evenkeel</span></p>\n<h1>{}</h1>\n",
        text(title)
    ));
    if !report.subtitle.is_empty() {
        out.push_str(&format!("<p class=\"sub\">{}</p>\n", text(&report.subtitle)));
    }
    out.push_str(match report.origin {
        TimeOrigin::Modelled => {
            "<p class=\"origin\"><b>Times are modelled</b>: from a cost model, not from a clock</p>\n"
        }
        TimeOrigin::Measured => "<p class=\"origin\"><b>Times are measured</b></p>\n",
    });
    if let Some(v) = &report.verdict {
        verdict(out, v);
    }
    facts(out, &report.facts, report.origin);
}

fn verdict(out: &mut String, v: &VerdictView) {
    out.push_str(&format!(
        "<div class=\"verdict {class}\" role=\"group\" aria-label=\"Verdict\">\
         <span class=\"mark\" aria-hidden=\"true\">{}</span><p class=\"label\">{}</p>",
        v.tone.mark(),
        text(&capital(&v.label)),
        class = v.tone.class(),
    ));
    if !v.headline.is_empty() {
        out.push_str(&format!("<p class=\"head\">{}</p>", text(&v.headline)));
    }
    if !v.reasons.is_empty() {
        out.push_str("<ul>");
        for r in &v.reasons {
            out.push_str(&format!(
                "<li class=\"{}\"><span class=\"mark\" aria-hidden=\"true\">{}</span><span>{}</span></li>",
                r.tone.class(),
                r.tone.mark(),
                text(&r.text)
            ));
        }
        out.push_str("</ul>");
    }
    out.push_str("</div>\n");
}

/// The first letter as a capital.
pub(super) fn capital(words: &str) -> String {
    let mut chars = words.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

fn facts(out: &mut String, facts: &[Fact], origin: TimeOrigin) {
    if facts.is_empty() {
        return;
    }
    out.push_str("<dl class=\"facts\">\n");
    for f in facts {
        let was = f
            .before
            .as_ref()
            .map_or(String::new(), |b| format!("<span class=\"was nb\">{} →</span> ", text(b)));
        out.push_str(&format!(
            "<div><dt>{}</dt><dd class=\"v\">{was}<span class=\"nb\">{}</span></dd>",
            name(&f.name),
            text(&f.value)
        ));
        let note = note(f, origin);
        if !note.is_empty() {
            out.push_str(&format!("<dd class=\"n\">{}</dd>", text(&note)));
        }
        out.push_str("</div>\n");
    }
    out.push_str("</dl>\n");
}

/// A fact's note; for times, the origin stands first.
pub(crate) fn note(fact: &Fact, origin: TimeOrigin) -> String {
    match (fact.time, fact.note.is_empty()) {
        (false, _) => fact.note.clone(),
        (true, true) => origin.word().to_owned(),
        (true, false) => format!("{}, {}", origin.word(), fact.note),
    }
}

pub(super) fn story(report: &Report) -> String {
    let mut out = String::new();
    if !report.story.is_empty() {
        out.push_str("<div class=\"story\">\n");
        for p in &report.story {
            let lead = if p.lead.is_empty() {
                String::new()
            } else {
                format!("<strong>{}</strong> ", text(&p.lead))
            };
            out.push_str(&format!("<p>{lead}{}</p>\n", text(&p.text)));
        }
        out.push_str("</div>\n");
    }
    if let Some(mix) = report.mix.as_ref().filter(|m| !m.slices.is_empty()) {
        out.push_str(&mix_bars(mix));
    }
    out
}

fn mix_bars(mix: &MixView) -> String {
    let or = |label: &str, default: &str| {
        if label.is_empty() { default.to_owned() } else { text(label) }
    };
    let unit =
        if mix.unit.is_empty() { String::new() } else { format!(", share of {}", text(&mix.unit)) };
    let mut out = format!(
        "<h3>Traffic by slice{unit}</h3>\n<p class=\"key\"><span><i class=\"was\"></i>above: {}</span>\
         <span><i></i>below: {}</span></p>\n<div class=\"scroll\"><table class=\"mix\"><tbody>\n",
        or(&mix.before_label, "before"),
        or(&mix.after_label, "after"),
    );
    for s in &mix.slices {
        out.push_str(&format!(
            "<tr><th scope=\"row\"><bdi>{}</bdi></th><td><span class=\"line\">{}<span>{}</span></span>\
             <span class=\"line\">{}<strong>{}</strong></span></td></tr>\n",
            name(&s.slice),
            bar(s.before, "bar was"),
            fmt::percent(s.before),
            bar(s.after, "bar"),
            fmt::percent(s.after),
        ));
    }
    out.push_str("</tbody></table></div>\n");
    if !mix.note.is_empty() {
        out.push_str(&format!("<figcaption>{}</figcaption>\n", text(&mix.note)));
    }
    out
}

pub(super) fn footer(out: &mut String, report: &Report) {
    if report.generated_note.is_empty() && report.attribution.is_empty() {
        return;
    }
    out.push_str("<footer>\n");
    if !report.generated_note.is_empty() {
        out.push_str(&format!("<p>{}</p>\n", text(&report.generated_note)));
    }
    for line in &report.attribution {
        out.push_str(&format!("<p>{}</p>\n", text(line)));
    }
    out.push_str("</footer>\n");
}
