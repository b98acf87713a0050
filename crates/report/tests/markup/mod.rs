//! A small checker of markup, and nothing else: shared by the tests of the page.

use std::collections::BTreeSet;

/// Elements of HTML that have no end tag.
const VOID: [&str; 2] = ["meta", "!doctype"];

/// Checks that tags balance, attributes are quoted, entities are known, and ids are unique.
/// Returns the names of all elements.
pub fn check(markup: &str) -> Result<BTreeSet<String>, String> {
    let mut open: Vec<String> = Vec::new();
    let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = markup;
    while let Some(at) = rest.find('<') {
        text(&rest[..at])?;
        let end = tag_end(&rest[at..]).ok_or_else(|| format!("open tag: {}", head(&rest[at..])))?;
        let tag = &rest[at + 1..at + end];
        rest = &rest[at + end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            if last.as_deref() != Some(name) {
                return Err(format!("</{name}> closes {last:?}"));
            }
            continue;
        }
        let closed = tag.ends_with('/');
        let tag = tag.trim_end_matches('/');
        let (name, attributes) = tag.split_once([' ', '\n']).unwrap_or((tag, ""));
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '!');
        if name.is_empty() || !plain {
            return Err(format!("element `{}`", head(name)));
        }
        names.insert(name.to_owned());
        if name != "!doctype" {
            for (key, value) in split(attributes)? {
                text(value)?;
                if key.starts_with("on") || ["src", "srcset", "action", "xlink:href"].contains(&key)
                {
                    return Err(format!("attribute {key}"));
                }
                if key == "href" && !value.starts_with('#') {
                    return Err(format!("link to {value}"));
                }
                if key == "id" && !ids.insert(value.to_owned()) {
                    return Err(format!("id {value} twice"));
                }
            }
        }
        if !closed && !VOID.contains(&name) {
            open.push(name.to_owned());
        }
    }
    text(rest)?;
    if open.is_empty() { Ok(names) } else { Err(format!("never closed: {open:?}")) }
}

/// Offset of the `>` that ends a tag, outside of quotes.
fn tag_end(tag: &str) -> Option<usize> {
    let mut quoted = false;
    tag.char_indices().find_map(|(i, c)| {
        quoted ^= c == '"';
        (c == '>' && !quoted).then_some(i)
    })
}

fn split(mut attributes: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    while !attributes.trim().is_empty() {
        attributes = attributes.trim_start();
        let (key, rest) = attributes
            .split_once("=\"")
            .ok_or_else(|| format!("unquoted attribute: {}", head(attributes)))?;
        let (value, rest) = rest.split_once('"').ok_or("attribute without end")?;
        if all.iter().any(|(k, _)| *k == key) {
            return Err(format!("attribute {key} twice"));
        }
        all.push((key, value));
        attributes = rest;
    }
    Ok(all)
}

fn text(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        if !known.iter().any(|e| text[at..].starts_with(e)) {
            return Err(format!("entity: {}", head(&text[at..])));
        }
    }
    if text.contains(['\0', '\u{1b}', '\u{202e}']) {
        return Err(format!("control character: {}", head(text)));
    }
    Ok(())
}

fn head(text: &str) -> String {
    text.chars().take(60).collect()
}

#[test]
fn the_checker_finds_what_it_is_for() {
    assert!(check("<a href=\"#x\"><b/>t &amp; t</a>").is_ok());
    for bad in [
        "<a>",
        "<a></b>",
        "<a x=y></a>",
        "a & b",
        "<a onclick=\"\"></a>",
        "<a id=\"x\"/><b id=\"x\"/>",
    ] {
        assert!(check(bad).is_err(), "{bad}");
    }
}
