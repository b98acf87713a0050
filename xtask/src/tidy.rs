//! The rules of the house, checked as ordinary tests: dependency edges, purity, sizes, words, links.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate → crates of ours that it may depend on, beside `types`. The table of ARCHITECTURE.md.
const EDGES: [(&str, &[&str]); 16] = [
    ("types", &[]),
    ("trace", &[]),
    ("split", &[]),
    ("cost", &[]),
    ("plan", &["trace", "cost", "split"]),
    ("sim", &["trace", "cost", "split"]),
    ("diagnose", &["trace", "cost", "sim", "split"]),
    ("prove", &["trace", "cost", "sim"]),
    ("store", &["trace"]),
    ("interop", &["trace"]),
    ("kernels", &[]),
    ("transport", &[]),
    ("engine", &["trace", "sim", "split", "kernels", "transport"]),
    ("report", &["trace"]),
    ("python", &["trace", "cost", "split", "plan"]),
    (
        "cli",
        &[
            "trace", "split", "cost", "plan", "sim", "diagnose", "prove", "store", "interop",
            "report",
        ],
    ),
];

/// Crates without files, network, environment, clock and threads: each carries the same clippy.toml.
const PURE: [&str; 8] = ["types", "trace", "split", "cost", "plan", "sim", "diagnose", "prove"];

/// A file beyond this is several files.
const LINES_MAX: usize = 600;

/// The whole repository, assets included, stays a quick clone.
const REPOSITORY_BYTES_MAX: u64 = 25_000_000;

/// Words that promise later work, and traces of a particular machine.
const WORDS: [&str; 6] =
    ["todo!(", "unimplemented!(", "FIXME", "#[ignore", "simplified version", "/work/"];

/// Runs every rule and reports all breaches together.
pub(crate) fn check(root: &Path) -> Result<()> {
    let files = tracked(root)?;
    let mut problems = Vec::new();
    edges(root, &mut problems)?;
    purity(root, &mut problems)?;
    sources(root, &files, &mut problems)?;
    links(root, &files, &mut problems)?;
    size(root, &files, &mut problems);
    ensure!(problems.is_empty(), "tidy:\n  {}", problems.join("\n  "));
    Ok(())
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    let listing = output.context("failed to list files with git")?.stdout;
    let listing = String::from_utf8(listing).context("a file name is not UTF-8")?;
    Ok(listing.lines().map(PathBuf::from).filter(|path| root.join(path).is_file()).collect())
}

fn edges(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let allowed: BTreeMap<_, _> = EDGES.into_iter().collect();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let Ok(text) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let manifest: toml::Table = text.parse().with_context(|| format!("crates/{name}"))?;
        let Some(allowed) = allowed.get(name.as_str()) else {
            problems.push(format!("crates/{name} is not in the table of edges"));
            continue;
        };
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        for dependency in dependencies.into_iter().flat_map(toml::Table::keys) {
            if let Some(ours) = dependency.strip_prefix("evenkeel-")
                && ours != "types"
                && !allowed.contains(&ours)
            {
                problems.push(format!("crates/{name} may not depend on {ours}"));
            }
        }
    }
    Ok(())
}

fn purity(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let read =
        |name: &str| std::fs::read_to_string(root.join(format!("crates/{name}/clippy.toml")));
    let model = read(PURE[0]).context("failed to read crates/types/clippy.toml")?;
    for name in PURE {
        if read(name).ok().as_ref() != Some(&model) {
            problems
                .push(format!("crates/{name}/clippy.toml differs from crates/types/clippy.toml"));
        }
    }
    Ok(())
}

fn sources(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    for path in files {
        let name = path.display().to_string();
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        if !["rs", "md", "toml", "py"].contains(&kind) || name == "xtask/src/tidy.rs" {
            continue;
        }
        let text = std::fs::read_to_string(root.join(path)).with_context(|| name.clone())?;
        if kind == "rs" && text.lines().count() > LINES_MAX {
            problems.push(format!("{name} has more than {LINES_MAX} lines: split it by concept"));
        }
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = WORDS.iter().find(|word| line.contains(**word)) {
                problems.push(format!("{name}:{}: `{word}`", number + 1));
            }
        }
    }
    Ok(())
}

/// Relative links of Markdown files lead to files that exist.
fn links(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    for path in files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = std::fs::read_to_string(root.join(path))?;
        let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = file.is_empty() || file.contains("://") || file.starts_with("mailto:");
            if !outside && !folder.join(file).exists() {
                problems.push(format!("{}: link to `{target}` leads nowhere", path.display()));
            }
        }
    }
    Ok(())
}

fn size(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) {
    let length = |path: &PathBuf| std::fs::metadata(root.join(path)).map_or(0, |meta| meta.len());
    let bytes: u64 = files.iter().map(length).sum();
    if bytes > REPOSITORY_BYTES_MAX {
        problems
            .push(format!("the repository holds {bytes} bytes, at most {REPOSITORY_BYTES_MAX}"));
    }
}
