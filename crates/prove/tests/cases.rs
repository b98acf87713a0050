//! The gate on situations as text: `cases/gate/<name>/input.toml` in, `expected.toml` out.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test reads its cases from files and stops where it cannot go on"
)]

mod support;

use evenkeel_prove::{Metric, Verdict};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use support::Case;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    label: String,
    /// Metrics that decided, in any order, each named once; with the slice's name where one is.
    decided: Vec<String>,
    /// Words that the deciding statements hold.
    #[serde(default)]
    words: Vec<String>,
    /// Words that the mean utilisation's warning holds, live run, decode.
    #[serde(default)]
    utilisation: Vec<String>,
    /// Most that p99 ITL may have risen (negative: least it has fallen): what it cannot see.
    #[serde(default)]
    itl_p99_change_max_share: Option<f64>,
    /// p99 TTFT must have fallen by at least this much: the bait.
    #[serde(default)]
    ttft_p99_gain_min_share: Option<f64>,
    #[serde(default)]
    stall_events: Option<[u64; 2]>,
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    toml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn decided(verdict: &Verdict, case: &Case) -> Vec<String> {
    let name = |metric: Metric| toml::Value::try_from(metric).unwrap().as_str().unwrap().to_owned();
    let mut names: Vec<String> = verdict
        .reasons
        .iter()
        .filter(|reason| reason.decided)
        .map(|reason| match reason.slice {
            Some(id) => {
                format!("{} {}", name(reason.metric), case.traffic.tenants[id.index()].name)
            }
            None => name(reason.metric),
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

fn check(folder: &Path) {
    let case: Case = read(&folder.join("input.toml"));
    let expected: Expected = read(&folder.join("expected.toml"));
    let verdict = case.verdict();
    let all: Vec<_> = verdict.reasons.iter().map(|r| (r.decided, &r.statement)).collect();
    let context = format!("{}\n{all:#?}", folder.display());
    assert_eq!(verdict.label, expected.label, "{context}");
    let mut wanted = expected.decided.clone();
    wanted.sort();
    assert_eq!(decided(&verdict, &case), wanted, "{context}");
    let said: Vec<&str> =
        verdict.reasons.iter().filter(|r| r.decided).map(|r| r.statement.as_str()).collect();
    for word in &expected.words {
        assert!(said.iter().any(|statement| statement.contains(word)), "`{word}` in {context}");
    }
    for word in &expected.utilisation {
        let warning = &verdict.runs.live.utilisation.last().unwrap().statement;
        assert!(warning.contains(word), "`{word}` in {warning}");
    }
    let change = |metric| {
        let row = verdict.metrics.iter().find(|row| row.metric == metric && row.slice.is_none());
        row.unwrap().change_share
    };
    if let Some(limit) = expected.itl_p99_change_max_share {
        assert!(change(Metric::ItlP99) <= limit, "{} {context}", change(Metric::ItlP99));
    }
    if let Some(gain) = expected.ttft_p99_gain_min_share {
        assert!(change(Metric::TtftP99) <= -gain, "{} {context}", change(Metric::TtftP99));
    }
    if let Some(events) = expected.stall_events {
        let runs = &verdict.runs;
        assert_eq!([runs.live.overall.stalls.events, runs.candidate.overall.stalls.events], events);
    }
}

#[test]
fn every_case_gets_its_verdict() {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "cases", "gate"].iter().collect();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 10, "{} cases in {}", folders.len(), root.display());
    for folder in folders {
        println!("{}", folder.display());
        check(&folder);
    }
}
