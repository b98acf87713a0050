//! Pieces that several sections use.

use crate::escape::{name, text};
use crate::svg::{Picture, num};

/// A cell of a table: ready HTML and whether it stands flush right.
pub(super) struct Cell {
    html: String,
    right: bool,
}

/// A cell of words, escaped here.
pub(super) fn words(raw: &str) -> Cell {
    Cell { html: format!("<bdi>{}</bdi>", text(raw)), right: false }
}

/// A cell that holds a number, escaped here.
pub(super) fn figure(raw: &str) -> Cell {
    Cell { html: text(raw), right: true }
}

/// A cell of ready HTML.
pub(super) fn raw(html: String) -> Cell {
    Cell { html, right: false }
}

/// A cell of ready HTML that holds a number.
pub(super) fn raw_figure(html: String) -> Cell {
    Cell { html, right: true }
}

/// A row: its class, and its cells, of which the first is its head.
pub(super) struct Row {
    pub(super) class: &'static str,
    pub(super) cells: Vec<Cell>,
}

impl Row {
    pub(super) fn new(cells: Vec<Cell>) -> Row {
        Row { class: "", cells }
    }
}

/// How wide a table is set.
#[derive(Clone, Copy)]
pub(super) enum Width {
    /// As wide as the page: for rows that a reader compares column by column.
    Full,
    /// As wide as its cells: numbers that belong together stay together.
    Cells,
}

/// A table in a box of its own that scrolls where the page is narrow. Heads are escaped here;
/// those over numbers stand flush right. The first column names its row and stands flush left. Columns of which every cell is
/// empty are left out. Empty without rows.
pub(super) fn table(width: Width, label: &str, heads: &[&str], rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let filled = |c: usize| {
        c == 0 || rows.iter().any(|r| r.cells.get(c).is_some_and(|cell| !cell.html.is_empty()))
    };
    let kept: Vec<usize> = (0..heads.len()).filter(|c| filled(*c)).collect();
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\
         <table{}><thead><tr>",
        name(label),
        if matches!(width, Width::Cells) { " class=\"cells\"" } else { "" }
    );
    for &c in &kept {
        let right = c > 0 && rows.iter().any(|r| r.cells.get(c).is_some_and(|cell| cell.right));
        let class = if right { " class=\"r\"" } else { "" };
        out.push_str(&format!("<th scope=\"col\"{class}>{}</th>", text(heads[c])));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let class = attribute("class", row.class);
        out.push_str(&format!("<tr{class}>"));
        for &c in &kept {
            let (html, right) = row.cells.get(c).map_or(("", false), |x| (&x.html, x.right));
            let class = if right { " class=\"r\"" } else { "" };
            out.push_str(&if c == 0 {
                format!("<th scope=\"row\">{html}</th>")
            } else {
                format!("<td{class}>{html}</td>")
            });
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn attribute(key: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {key}=\"{value}\"") }
}

/// A picture in a box that scrolls below `min` pixels.
pub(super) fn picture(picture: &Picture, id: &str, min: f64) -> String {
    let wide = if picture.width() > 600.0 { " class=\"wide\"" } else { "" };
    let hint = if wide.is_empty() { "" } else { "<p class=\"hint\">scrolls sideways ↔</p>" };
    let svg = picture.inline(id);
    let svg = svg.replacen("<svg ", &format!("<svg style=\"min-width:{}px\" ", num(min)), 1);
    format!(
        "<figure{wide}><div class=\"fig\" tabindex=\"0\" role=\"group\" aria-label=\"figure, scrolls sideways where narrow\">{svg}</div>{hint}</figure>\n"
    )
}

/// Content behind a summary line; empty for empty content.
pub(super) fn details(summary: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<details><summary>{}</summary>\n{content}</details>\n", text(summary))
}

/// A bar below a number: its length is a share of the column's largest.
pub(super) fn bar(share: f64, class: &str) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    format!("<span class=\"{class}\"><i style=\"width:{}%\"></i></span>", num(share * 100.0))
}

/// A list of sentences; empty for none.
pub(super) fn list(items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: Vec<String> = items.iter().map(|i| format!("<li>{}</li>", text(i))).collect();
    format!("<ul class=\"plain\">{}</ul>\n", items.join("\n"))
}
