//! The binary on situations as text: `cases/{cli,survive}/<name>/case.toml` says what is run in a copy of its
//! folder, and what must come out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it cannot go on")]

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What the situation is; for a reader.
    #[serde(rename = "about")]
    _about: String,
    step: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    args: Vec<String>,
    exit: i32,
    /// Each must occur in stdout.
    #[serde(default)]
    stdout: Vec<String>,
    /// Each must occur in stderr.
    #[serde(default)]
    stderr: Vec<String>,
    /// None of these may exist afterwards.
    #[serde(default)]
    absent: Vec<String>,
}

fn cases(group: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "cases", group].iter().collect()
}

fn check(folder: &Path) {
    let text = std::fs::read_to_string(folder.join("case.toml")).unwrap();
    let case: Case =
        toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let place = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, place.path().join(path.file_name().unwrap())).unwrap();
    }
    for step in &case.step {
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(&step.args)
            .arg("--quiet")
            .current_dir(place.path())
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let context = format!(
            "{}: {}\nstdout:\n{stdout}\nstderr:\n{stderr}",
            folder.display(),
            step.args.join(" ")
        );
        assert_eq!(output.status.code(), Some(step.exit), "{context}");
        for (words, said) in [(&step.stdout, &stdout), (&step.stderr, &stderr)] {
            for word in words {
                assert!(said.contains(word.as_str()), "`{word}` is missing in {context}");
            }
        }
        for name in &step.absent {
            assert!(!place.path().join(name).exists(), "{name} exists: {context}");
        }
        let left = std::fs::read_dir(place.path()).unwrap();
        let partial = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let partial: Vec<String> = partial.filter(|name| name.contains("partial")).collect();
        assert_eq!(partial, Vec::<String>::new(), "half-written: {context}");
    }
}

#[test]
fn every_case_ends_as_said() {
    let mut folders: Vec<PathBuf> = Vec::new();
    for group in ["cli", "survive"] {
        let listed = std::fs::read_dir(cases(group)).unwrap();
        folders.extend(listed.map(|entry| entry.unwrap().path()));
    }
    folders.sort();
    assert!(folders.len() >= 8, "only {} cases", folders.len());
    for folder in folders {
        check(&folder);
    }
}
