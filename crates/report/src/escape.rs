//! Strings from outside, made harmless where they are written.

/// Names longer than this are cut: a tenant's name is a label, not a document.
pub(crate) const NAME_CHARS: usize = 80;
/// Sentences longer than this are cut; only a broken or hostile record writes longer ones.
const TEXT_CHARS: usize = 4_000;

/// Text for an element or a double- or single-quoted attribute, in HTML and in SVG.
pub(crate) fn text(raw: &str) -> String {
    escaped(raw, TEXT_CHARS)
}

/// The same for a name: cut at [`NAME_CHARS`].
pub(crate) fn name(raw: &str) -> String {
    escaped(raw, NAME_CHARS)
}

/// The first `max` characters, `…` in place of the rest, with what is invisible or turns the
/// direction of reading replaced by U+FFFD.
pub(crate) fn clean(raw: &str, max: usize) -> String {
    let mut out: String =
        raw.chars().take(max).map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect();
    if raw.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}

fn escaped(raw: &str, max: usize) -> String {
    let cleaned = clean(raw, max);
    let mut out = String::with_capacity(cleaned.len());
    for c in cleaned.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            // A percent sign stays with its number.
            '%' if out.ends_with(' ') && digit_before_last(&out) => {
                out.pop();
                out.push(crate::fmt::THIN);
                out.push('%');
            }
            _ => out.push(c),
        }
    }
    out
}

fn digit_before_last(text: &str) -> bool {
    text.chars().rev().nth(1).is_some_and(|c| c.is_ascii_digit())
}

/// Whether a character may be shown: no controls (XML forbids them, terminals obey them), no
/// overrides of direction, no invisible characters that make two names look alike.
fn harmless(c: char) -> bool {
    match c {
        '\n' | '\t' => true,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => false,
        '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' => false,
        '\u{e0000}'..='\u{e007f}' => false,
        _ => !c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_controls_and_direction_lose_their_power() {
        assert_eq!(text("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        assert_eq!(text("a\u{202e}b\u{0}c\u{1b}[31m"), "a\u{fffd}b\u{fffd}c\u{fffd}[31m");
        assert_eq!(text("two\nlines"), "two lines");
        assert_eq!(text("saves 2 % of 7%"), "saves 2\u{202f}% of 7%");
        assert_eq!(text("عربي 中文"), "عربي 中文");
    }

    #[test]
    fn names_are_cut_at_a_character() {
        let long = "é".repeat(1000);
        assert_eq!(name(&long).chars().count(), NAME_CHARS + 1);
        assert!(name(&long).ends_with('…'));
        assert_eq!(name("short"), "short");
    }
}
