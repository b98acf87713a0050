//! The page: one HTML file that loads nothing and runs nothing.

mod diagnosis;
mod figures;
mod parts;
mod plans;
mod top;

pub(crate) use top::note as fact_note;

use crate::escape::text;
use crate::svg::{DEFS, STYLE};
use crate::view::{Report, TimeOrigin};

/// Layout and type of the page. Colours come with the pictures' style.
const PAGE_STYLE: &str = include_str!("html/style.css");

/// What the browser may do for the page: apply its own style, nothing else.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The report as one self-contained HTML file: no script, no request, light and dark, for screen
/// and paper. Sections without data are left out.
pub fn html(report: &Report) -> String {
    let sections = sections(report);
    let title = if report.title.is_empty() { "Evenkeel report" } else { &report.title };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{}</title>\n<style>\n{STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n\
         <svg class=\"defs ek\" aria-hidden=\"true\">{DEFS}</svg>\n<div class=\"page\">\n",
        text(title)
    );
    top::header(&mut out, report, title);
    if sections.len() > 2 {
        out.push_str("<nav aria-label=\"Contents\">");
        for s in &sections {
            out.push_str(&format!("<a href=\"#{}\">{}</a>", s.id, s.short));
        }
        out.push_str("</nav>\n");
    }
    out.push_str("</header>\n<main>\n");
    for s in &sections {
        out.push_str(&format!("<section id=\"{}\">\n<h2>{}</h2>\n", s.id, text(s.title)));
        if !s.lead.is_empty() {
            out.push_str(&format!("<p class=\"lead\">{}</p>\n", text(&s.lead)));
        }
        out.push_str(&s.body);
        out.push_str("</section>\n");
    }
    out.push_str("</main>\n");
    top::footer(&mut out, report);
    out.push_str("</div>\n</body>\n</html>\n");
    out
}

/// A section that has something to show.
struct Section {
    id: &'static str,
    title: &'static str,
    /// Its name among the contents.
    short: &'static str,
    /// How to read it.
    lead: String,
    body: String,
}

/// The sections in reading order, the empty ones left out.
fn sections(report: &Report) -> Vec<Section> {
    let times = match report.origin {
        TimeOrigin::Modelled => "Times are modelled.",
        TimeOrigin::Measured => "Times are measured.",
    };
    let section = |id, short, title, lead: &str, body| Section {
        id,
        title,
        short,
        lead: lead.to_owned(),
        body,
    };
    let all = vec![
        section("story", "Story", "What happened", "", top::story(report)),
        section(
            "experts",
            "Experts",
            "Where the tokens go",
            "Each cell is one logical expert of one layer; a ring marks the hottest expert of its \
             layer. Pictures of one unit share one scale.",
            figures::experts(report),
        ),
        section("causes", "Causes", "What made the step slow", times, diagnosis::section(report)),
        section(
            "ranks",
            "Ranks",
            "How evenly ranks are loaded",
            "One column per layer, one dot per rank. The large dot is the highest rank of its layer, \
             with its number; the bar is the mean.",
            figures::ranks(report),
        ),
        section(
            "step",
            "Step",
            "One slow step, taken apart",
            &format!(
                "Ranks of a layer start and end it together: what is hatched is waiting, and the \
                 rank that all wait for is the one that waits least. {times}"
            ),
            figures::step(report),
        ),
        section(
            "latency",
            "Latency",
            "What requests feel",
            &format!(
                "Quantile curves: each further nine of the tail gets the same room. A curve should \
                 pass its SLO at the percentile in bold. {times}"
            ),
            figures::latency(report),
        ),
        section(
            "plans",
            "Plans",
            "What each plan costs and brings",
            &format!(
                "Predictions are made on the planning window, not on what judges them. {times}"
            ),
            plans::prices(report),
        ),
        section(
            "gate",
            "Gate",
            "The comparisons that decided",
            &format!(
                "Both maps replay the same held-out requests. The bar is the interval of the \
                 change, each metric on a scale of its own; the dashed line is the limit that it \
                 must not cross. {times}"
            ),
            plans::comparisons(report),
        ),
        section(
            "counter",
            "Other situations",
            "Where the answer is another",
            "The same tool, other situations.",
            plans::counter_incidents(report),
        ),
        section("more", "Tables", "Further tables", "", plans::extra_tables(report)),
        section("method", "Method", "Model, assumptions, provenance", "", plans::method(report)),
    ];
    all.into_iter().filter(|s| !s.body.is_empty()).collect()
}
