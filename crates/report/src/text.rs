//! Building blocks of terminal output: aligned tables, bars, sparklines, heat rows.
//!
//! No colour and no cursor movement; control characters from traces never reach the terminal.
//! Everything returns strings, so that the caller decides where they go.

use crate::escape::clean;
use crate::fmt::plain;
use crate::view::Tone;

/// Cells are cut at this width: a table that wraps is no table.
const CELL_CHARS: usize = 60;
/// Blocks of eight heights, empty first.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Bars of eight widths, empty first.
const EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// The same for terminals without Unicode, by rising ink.
const ASCII: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '#', '@'];

/// Which characters a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Glyphs {
    /// Block elements.
    #[default]
    Unicode,
    /// ASCII only.
    Ascii,
}

/// A name from a trace, fit for a terminal: one line, no control characters, cut at `max`
/// characters.
pub fn safe(name: &str, max: usize) -> String {
    plain(&clean(name, max)).replace(['\n', '\t'], " ")
}

/// A table with aligned columns. Columns whose cells all read as numbers are set flush right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new<S: AsRef<str>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { head: cells(head), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty, surplus ones get a column without a head.
    pub fn row<S: AsRef<str>>(&mut self, row: impl IntoIterator<Item = S>) -> &mut Table {
        self.rows.push(cells(row));
        self
    }

    /// The table, one line per row, each indented by `indent` spaces and ended by a newline.
    /// Empty without rows.
    pub fn render(&self, indent: usize) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, c: usize| row.get(c).cloned().unwrap_or_default();
        let widths: Vec<usize> =
            (0..columns).map(|c| all().map(|r| width(&cell(r, c))).max().unwrap_or(0)).collect();
        let right: Vec<bool> =
            (0..columns).map(|c| self.rows.iter().all(|r| numeric(&cell(r, c)))).collect();
        let line = |row: &Vec<String>| {
            let mut out = " ".repeat(indent);
            for c in 0..columns {
                if c > 0 {
                    out.push_str("  ");
                }
                out.push_str(&pad(&cell(row, c), widths[c], right[c]));
            }
            format!("{}\n", out.trim_end())
        };
        let mut out = String::new();
        if self.head.iter().any(|h| !h.is_empty()) {
            out.push_str(&line(&self.head));
            let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
            out.push_str(&line(&rule));
        }
        self.rows.iter().for_each(|row| out.push_str(&line(row)));
        out
    }
}

/// Names and values in two columns, one pair per line.
pub fn pairs<K: AsRef<str>, V: AsRef<str>>(pairs: &[(K, V)], indent: usize) -> String {
    let keys: Vec<String> = pairs.iter().map(|(k, _)| safe(k.as_ref(), CELL_CHARS)).collect();
    let widest = keys.iter().map(|k| width(k)).max().unwrap_or(0);
    let mut out = String::new();
    for (key, (_, value)) in keys.iter().zip(pairs) {
        let value = safe(value.as_ref(), 400);
        out.push_str(&format!("{}{}  {value}\n", " ".repeat(indent), pad(key, widest, false)));
    }
    out
}

/// A verdict as a line: mark and words, readable without colour.
pub fn verdict(tone: Tone, label: &str, glyphs: Glyphs) -> String {
    let mark = match (glyphs, tone) {
        (Glyphs::Unicode, _) => tone.mark(),
        (Glyphs::Ascii, Tone::Good) => "[ok]",
        (Glyphs::Ascii, Tone::Bad) => "[no]",
        (Glyphs::Ascii, Tone::Unsure) => "[??]",
        (Glyphs::Ascii, Tone::Neutral) => "[--]",
    };
    format!("{mark} {}", safe(label, 200))
}

/// A bar of `cells` characters that is full at `share` = 1. Not finite or negative is empty.
pub fn bar(share: f64, cells: usize, glyphs: Glyphs) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * cells as f64 * 8.0).round() as usize;
    if glyphs == Glyphs::Ascii {
        let full = (eighths + 4) / 8;
        return "#".repeat(full) + &" ".repeat(cells.saturating_sub(full));
    }
    let mut out = "█".repeat(eighths / 8);
    if eighths / 8 < cells {
        out.push(EIGHTHS[eighths % 8]);
        out.push_str(&" ".repeat(cells - eighths / 8 - 1));
    }
    out
}

/// One character per value, between the smallest and the largest finite one; `?` where a value is
/// not finite.
pub fn sparkline(values: &[f64], glyphs: Glyphs) -> String {
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    // The lowest value still leaves a mark: an empty cell would read as no value.
    let level =
        |v: f64| if high > low { 1 + ((v - low) / (high - low) * 7.0).round() as usize } else { 1 };
    values.iter().map(|&v| if v.is_finite() { glyph(level(v), glyphs) } else { '?' }).collect()
}

/// One character per value on a fixed scale, empty at or below `low` and full at or above `high`,
/// so that rows printed under each other compare; `?` where a value is not finite. More than
/// `cells` values share cells, each showing the largest of its share.
pub fn heat_row(values: &[f64], low: f64, high: f64, cells: usize, glyphs: Glyphs) -> String {
    let cells = cells.clamp(1, values.len().max(1));
    let mut out = String::new();
    for cell in 0..cells {
        let (from, to) = (cell * values.len() / cells, (cell + 1) * values.len() / cells);
        let Some(share) = values.get(from..to).filter(|s| !s.is_empty()) else { continue };
        let top = share.iter().copied().filter(|v| v.is_finite()).fold(f64::NAN, f64::max);
        if top.is_nan() {
            out.push('?');
            continue;
        }
        let at = if high > low { ((top - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        out.push(glyph((at * 8.0).round() as usize, glyphs));
    }
    out
}

/// Text broken at spaces so that no line is longer than `columns`, each indented by `indent`
/// spaces and ended by a newline. Longer words stay whole.
pub fn wrap(text: &str, columns: usize, indent: usize) -> String {
    let mut out = String::new();
    for paragraph in text.lines() {
        let mut line = " ".repeat(indent);
        let mut empty = true;
        for word in safe(paragraph, 4_000).split(' ').filter(|w| !w.is_empty()) {
            if !empty && width(&line) + 1 + width(word) > columns {
                out.push_str(&line);
                out.push('\n');
                line = " ".repeat(indent);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn glyph(level: usize, glyphs: Glyphs) -> char {
    match glyphs {
        Glyphs::Unicode => BLOCKS[level.min(8)],
        Glyphs::Ascii => ASCII[level.min(8)],
    }
}

fn cells<S: AsRef<str>>(row: impl IntoIterator<Item = S>) -> Vec<String> {
    row.into_iter().map(|c| safe(c.as_ref(), CELL_CHARS)).collect()
}

/// Columns that a string takes: wide East Asian characters take two, combining marks none.
fn width(text: &str) -> usize {
    text.chars()
        .map(|c| match c {
            '\u{300}'..='\u{36f}' => 0,
            '\u{1100}'..='\u{115f}'
            | '\u{2e80}'..='\u{a4cf}'
            | '\u{ac00}'..='\u{d7a3}'
            | '\u{f900}'..='\u{faff}'
            | '\u{fe30}'..='\u{fe6f}'
            | '\u{ff00}'..='\u{ff60}'
            | '\u{1f300}'..='\u{1faff}'
            | '\u{20000}'..='\u{3fffd}' => 2,
            _ => 1,
        })
        .sum()
}

fn pad(cell: &str, to: usize, right: bool) -> String {
    let fill = " ".repeat(to.saturating_sub(width(cell)));
    if right { format!("{fill}{cell}") } else { format!("{cell}{fill}") }
}

/// Whether a cell reads as a number with an optional unit, or as none.
pub(crate) fn numeric(cell: &str) -> bool {
    let cell = cell.trim();
    cell.is_empty()
        || cell == crate::fmt::NONE
        || cell
            .trim_start_matches(['+', '-', '\u{2212}', '<', '≤', '≥', '±', '~', ' '])
            .starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_align_right_and_names_left() {
        let mut table = Table::new(["plan", "moves", "bytes"]);
        table.row(["live", "0", "0 B"]).row(["greedy \u{1b}[31m中", "1\u{202f}204", "10.4 GB"]);
        let want = "  plan            moves    bytes\n  \
                    --------------  -----  -------\n  \
                    live                0      0 B\n  \
                    greedy \u{fffd}[31m中  1 204  10.4 GB\n";
        assert_eq!(table.render(2), want);
        assert_eq!(Table::new(["a"]).render(0), "");
    }

    #[test]
    fn ragged_rows_are_squared() {
        let mut table = Table::new(["a"]);
        table.row(["x", "y"]).row(Vec::<String>::new());
        assert_eq!(table.render(0), "a\n-  -\nx  y\n\n");
    }

    #[test]
    fn bars_are_as_wide_as_asked() {
        for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
            for share in [0.0, 0.03, 0.5, 0.99, 1.0, 7.0, -1.0, f64::NAN] {
                assert_eq!(bar(share, 10, glyphs).chars().count(), 10, "{share}");
            }
        }
        assert_eq!(bar(0.5, 4, Glyphs::Unicode), "██  ");
        assert_eq!(bar(0.5, 4, Glyphs::Ascii), "##  ");
        assert_eq!(bar(1.0, 0, Glyphs::Unicode), "");
    }

    #[test]
    fn heat_shows_each_value_or_the_largest_of_a_cell() {
        assert_eq!(sparkline(&[0.0, 0.5, 1.0, f64::NAN], Glyphs::Unicode), "▁▅█?");
        assert_eq!(sparkline(&[3.0], Glyphs::Unicode), "▁");
        assert_eq!(heat_row(&[0.0, 1.0, 0.0, 0.0], 0.0, 1.0, 2, Glyphs::Ascii), "@ ");
        assert_eq!(heat_row(&[f64::NAN], 0.0, 1.0, 9, Glyphs::Unicode), "?");
        assert_eq!(heat_row(&[], 0.0, 1.0, 9, Glyphs::Unicode), "");
        assert_eq!(heat_row(&[1.0], 1.0, 1.0, 9, Glyphs::Unicode), " ");
    }

    #[test]
    fn wrapped_lines_keep_their_indent() {
        assert_eq!(wrap("one two three", 9, 2), "  one two\n  three\n");
        assert_eq!(wrap("unbreakable", 4, 0), "unbreakable\n");
        assert_eq!(pairs(&[("a", "1"), ("bcd", "2")], 1), " a    1\n bcd  2\n");
        assert_eq!(
            verdict(Tone::Good, "accept (modelled)", Glyphs::Ascii),
            "[ok] accept (modelled)"
        );
    }
}
