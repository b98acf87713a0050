//! Causes: a bridge from the baseline to what was observed, and the evidence of each step.

use super::parts::list;
use super::top::capital;
use crate::escape::{name, text};
use crate::fmt;
use crate::svg::num;
use crate::view::{CauseView, DiagnosisView, Report};

/// A remainder below this share of what is decomposed is rounding and not shown.
const ROUNDING: f64 = 5e-4;

pub(super) fn section(report: &Report) -> String {
    let Some(d) = &report.diagnosis else { return String::new() };
    let mut out = bridge(d);
    if !d.causes.is_empty() {
        out.push_str("<div class=\"cards\">\n");
        d.causes.iter().for_each(|c| cause(&mut out, d, c));
        out.push_str("</div>\n");
    }
    if !d.ruled_out.is_empty() {
        out.push_str("<h3>Examined and ruled out</h3>\n");
        out.push_str(&list(&d.ruled_out));
    }
    out
}

/// A bar of the bridge: label, from, to, class.
struct Span {
    label: String,
    from: f64,
    to: f64,
    class: &'static str,
    sum: bool,
}

/// The bars of the bridge. They add up: the last ends where the observed value does.
fn spans(d: &DiagnosisView) -> Vec<Span> {
    let (Some(base), Some(observed)) = (finite(d.baseline_ms), finite(d.observed_ms)) else {
        return Vec::new();
    };
    let label = |given: &str, default: &str| {
        if given.is_empty() { default.to_owned() } else { given.to_owned() }
    };
    let mut at = base;
    let mut all = vec![Span {
        label: label(&d.baseline_label, "baseline"),
        from: 0.0,
        to: base,
        class: "base",
        sum: true,
    }];
    for c in d.causes.iter().filter(|c| c.ms_per_step.is_finite()) {
        let to = at + c.ms_per_step;
        let class = if c.ms_per_step < 0.0 { "less" } else { "more" };
        all.push(Span { label: capital(&c.kind), from: at, to, class, sum: false });
        at = to;
    }
    if (observed - at).abs() > ROUNDING * observed.abs().max(base.abs()) {
        let label = "Unexplained".to_owned();
        all.push(Span { label, from: at, to: observed, class: "rest", sum: false });
    }
    let label = "observed".to_owned();
    all.push(Span { label, from: 0.0, to: observed, class: "base", sum: true });
    all
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite())
}

fn bridge(d: &DiagnosisView) -> String {
    let spans = spans(d);
    let low = spans.iter().map(|s| s.from.min(s.to)).fold(0.0, f64::min);
    let high = spans.iter().map(|s| s.from.max(s.to)).fold(0.0, f64::max);
    if high <= low {
        return String::new();
    }
    let at = |v: f64| (v - low) / (high - low) * 100.0;
    let mut out = format!(
        "<h3>{}, in parts that add up</h3>\n<table class=\"bridge\"><tbody>\n",
        text(&capital(if d.quantity.is_empty() { "time of a step" } else { &d.quantity }))
    );
    for s in &spans {
        let value = if s.sum { fmt::ms(s.to) } else { signed_ms(s.to - s.from) };
        out.push_str(&format!(
            "<tr{}><th scope=\"row\">{}</th><td><div class=\"track\"><i class=\"{}\" \
             style=\"left:{}%;width:{}%\"></i></div></td><td class=\"r\">{value}</td></tr>\n",
            if s.sum { " class=\"sum\"" } else { "" },
            name(&capital(&s.label)),
            s.class,
            num(at(s.from.min(s.to))),
            num(at(s.from.max(s.to)) - at(s.from.min(s.to))),
        ));
    }
    out.push_str("</tbody></table>\n");
    out
}

fn signed_ms(ms: f64) -> String {
    let text = fmt::ms(ms);
    if ms > 0.0 { format!("+{text}") } else { text }
}

fn cause(out: &mut String, d: &DiagnosisView, c: &CauseView) {
    out.push_str(&format!("<div class=\"card\"><h3>{}</h3>", name(&capital(&c.kind))));
    let slowdown = finite(d.observed_ms).zip(finite(d.baseline_ms)).map(|(o, b)| o - b);
    let share = slowdown.filter(|s| *s > 0.0).map(|s| c.ms_per_step / s).filter(|s| s.is_finite());
    let mut place: Vec<String> = Vec::new();
    if c.ms_per_step.is_finite() {
        place.push(format!("{} per step", signed_ms(c.ms_per_step)));
    }
    if let Some(share) = share {
        place.push(format!("{} of the slowdown", fmt::percent(share)));
    }
    if !c.place.is_empty() {
        place.push(c.place.clone());
    }
    if !place.is_empty() {
        out.push_str(&format!("<p class=\"place\">{}</p>", text(&place.join(" · "))));
    }
    if !c.evidence.is_empty() {
        out.push_str("<ul>");
        for e in &c.evidence {
            out.push_str(&format!("<li>{}</li>", text(e)));
        }
        out.push_str("</ul>");
    }
    if !c.remedy.is_empty() {
        out.push_str(&format!(
            "<p class=\"does\"><strong>Remedy:</strong> {}</p>",
            text(&c.remedy)
        ));
    }
    out.push_str("</div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_ends_at_what_was_observed() {
        let cause = |ms| CauseView { kind: "x".into(), ms_per_step: ms, ..CauseView::default() };
        let d = DiagnosisView {
            baseline_ms: Some(10.0),
            observed_ms: Some(13.0),
            causes: vec![cause(2.5), cause(f64::NAN), cause(-0.5)],
            ..DiagnosisView::default()
        };
        let spans = spans(&d);
        assert_eq!(spans.len(), 5, "baseline, two known causes, the rest, observed");
        for pair in spans[..4].windows(2) {
            assert!((pair[0].to - pair[1].from).abs() < 1e-12);
        }
        assert!((spans[3].to - 13.0).abs() < 1e-12);
        assert_eq!(spans[3].label, "Unexplained");
    }

    #[test]
    fn without_numbers_there_is_no_bridge() {
        assert_eq!(bridge(&DiagnosisView::default()), "");
        let d = DiagnosisView {
            observed_ms: Some(f64::NAN),
            baseline_ms: Some(1.0),
            ..DiagnosisView::default()
        };
        assert_eq!(bridge(&d), "");
    }
}
