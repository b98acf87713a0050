//! Which licences and crates may be in the tree: `deny.toml`, readable by `cargo deny` too.
//!
//! Checked here from `cargo metadata`, so that a fresh machine needs no further tool.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// Fails with every package whose licence is not allowed or whose name is banned.
pub(crate) fn check(root: &Path) -> Result<()> {
    let path = root.join("deny.toml");
    let text = std::fs::read_to_string(&path).context("failed to read deny.toml")?;
    let rules: toml::Table = text.parse().context("failed to parse deny.toml")?;
    let allowed = strings(rules.get("licenses").and_then(|table| table.get("allow")), None);
    let banned = strings(rules.get("bans").and_then(|table| table.get("deny")), Some("crate"));
    ensure!(!allowed.is_empty(), "deny.toml allows no licence");

    let output = Command::new("cargo")
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("failed to run cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;

    let mut problems = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let licence = package["license"].as_str().unwrap_or_default();
        if !satisfied(licence, &allowed) {
            problems.push(format!("{name}: licence `{licence}` is not allowed"));
        }
        if banned.iter().any(|ban| ban == name) {
            problems.push(format!("{name}: banned in deny.toml"));
        }
        let source = package["source"].as_str();
        if source.is_some_and(|source| !source.starts_with("registry+")) {
            problems.push(format!("{name}: comes from {source:?}, expected the registry"));
        }
    }
    ensure!(problems.is_empty(), "deny.toml:\n  {}", problems.join("\n  "));
    Ok(())
}

fn strings(value: Option<&toml::Value>, key: Option<&str>) -> Vec<String> {
    let items = value.and_then(toml::Value::as_array).into_iter().flatten();
    items
        .filter_map(|item| key.map_or(Some(item), |key| item.get(key)))
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

/// Whether an SPDX expression can be met by the allowed licences: OR needs one side, AND all.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    expression.split(" AND ").all(|clause| {
        clause.split(" OR ").any(|licence| allowed.iter().any(|known| known == licence.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read() {
        let allowed = ["MIT".to_owned(), "Apache-2.0".to_owned(), "Unicode-3.0".to_owned()];
        for good in
            ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", ""] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }
}
