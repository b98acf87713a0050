//! Data-driven cases: `cases/diagnose/<name>/input.toml` in, `expected.toml` out.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of tests read cases, and a broken case is to stop the test"
)]

mod sketch;

use evenkeel_diagnose::{CauseKind, Diagnosis, Verdict, diagnose};
use evenkeel_types::Policy;
use serde::Deserialize;
use sketch::{Faults, Sketch};
use std::path::{Path, PathBuf};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    verdict: Verdict,
    /// Causes in order, faults first; no others may be there.
    #[serde(default)]
    cause: Vec<ExpectedCause>,
    remap_allowed: bool,
    /// Words that must occur in `missing`.
    #[serde(default)]
    missing: Vec<String>,
    /// Words that must occur in `notes`.
    #[serde(default)]
    notes: Vec<String>,
    /// The parts must add up to the injected cost within this share.
    cost_within: Option<f64>,
    hot_expert: Option<(u16, u16)>,
    #[serde(default)]
    no_hot_experts: bool,
    max_over_mean: Option<f64>,
    hot_rank: Option<u16>,
    waited_for: Option<u16>,
    map_bound_share_below: Option<f64>,
    mix_shifted: Option<bool>,
    revisions_changed: Option<bool>,
    warm_up_share: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedCause {
    kind: CauseKind,
    layer: Option<u16>,
    rank: Option<u16>,
    node: Option<u16>,
    expert: Option<u16>,
    kernel: Option<String>,
    slice: Option<u16>,
    since_step: Option<u64>,
    /// `since_step` must be absent.
    #[serde(default)]
    from_the_start: bool,
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/diagnose")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap();
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(sketch: &Sketch) -> Diagnosis {
    let now = sketch.expand(&sketch.now, 1);
    let baseline = sketch.baseline.as_ref().map(|window| sketch.expand(window, 2));
    let baseline = baseline.as_ref().map(sketch::Scene::observation);
    let model = sketch.model();
    let policy = Policy::default();
    diagnose(&now.observation(), baseline.as_ref(), &model, &policy, &sketch.options()).unwrap()
}

/// The answer in the few lines that a broken case needs.
fn summary(found: &Diagnosis) -> String {
    let s = &found.slowdown;
    let mut lines = vec![format!(
        "{:?}: step {:.4} ms, ideal {:.4}, baseline {:?}, map bound {:.4}, lasting {:.4} ms, gaps {:?}",
        found.verdict,
        s.step_ms_mean,
        s.ideal_ms,
        s.baseline_ms,
        found.map_bound.share_of_step,
        found.map_bound.lasting_ms,
        found.gaps
    )];
    lines.extend(found.causes.iter().map(|cause| {
        format!(
            "{:?} {:.4} ms since {:?} at {:?}: {}",
            cause.kind,
            cause.ms_per_step,
            cause.since_step,
            cause.place,
            cause.evidence.join("; ")
        )
    }));
    lines.extend(found.missing.iter().map(|line| format!("missing: {line}")));
    lines.extend(found.notes.iter().map(|line| format!("note: {line}")));
    lines.extend(found.mix.iter().map(|mix| format!("{mix:?}")));
    lines.join("\n")
}

fn mean_ms(scene: &sketch::Scene) -> f64 {
    let ns: u64 = scene.steps.iter().map(|step| step.end_ns - step.start_ns).sum();
    ns as f64 / scene.steps.len() as f64 / 1e6
}

fn check(directory: &Path) {
    let name = directory.file_name().unwrap().to_string_lossy().into_owned();
    let sketch: Sketch = read(&directory.join("input.toml"));
    let expected: Expected = read(&directory.join("expected.toml"));
    let found = run(&sketch);
    let context =
        || format!("{name} (seed {}): {}\n{}", sketch.seed, sketch.about, summary(&found));
    assert_eq!(found.verdict, expected.verdict, "{}", context());
    let kinds: Vec<CauseKind> = found.causes.iter().map(|cause| cause.kind).collect();
    let wanted: Vec<CauseKind> = expected.cause.iter().map(|cause| cause.kind).collect();
    assert_eq!(kinds, wanted, "{}", context());
    for (cause, want) in found.causes.iter().zip(&expected.cause) {
        let place = &cause.place;
        let checks = [
            (want.layer, place.layer.map(|id| id.0), "layer"),
            (want.rank, place.rank.map(|id| id.0), "rank"),
            (want.node, place.node.map(|id| id.0), "node"),
            (want.expert, place.expert.map(|id| id.0), "expert"),
            (want.slice, place.slice.map(|id| id.0), "slice"),
        ];
        for (want, found, what) in checks {
            assert!(want.is_none() || want == found, "{what} {found:?}; {}", context());
        }
        assert!(want.kernel.is_none() || want.kernel == place.kernel, "{}", context());
        assert!(want.since_step.is_none() || want.since_step == cause.since_step, "{}", context());
        assert!(!want.from_the_start || cause.since_step.is_none(), "{}", context());
        assert!(!cause.evidence.is_empty() && !cause.remedy.is_empty(), "{}", context());
    }
    assert_eq!(found.remap_allowed(), expected.remap_allowed, "{}", context());
    for word in &expected.missing {
        assert!(found.missing.iter().any(|line| line.contains(word)), "`{word}`: {}", context());
    }
    for word in &expected.notes {
        assert!(found.notes.iter().any(|line| line.contains(word)), "`{word}`: {}", context());
    }
    check_figures(&expected, &found, &context);
    adds_up(&found, &context);
    if let Some(share) = expected.cost_within {
        let mut healthy = sketch.now.clone();
        healthy.faults = Faults::default();
        healthy.copy_share.clear();
        let truth = mean_ms(&sketch.expand(&sketch.now, 1)) - mean_ms(&sketch.expand(&healthy, 1));
        let told = found.slowdown.step_ms_mean - found.slowdown.ideal_ms;
        assert!((told - truth).abs() <= share * truth, "{told} for {truth} ms; {}", context());
    }
}

fn check_figures(expected: &Expected, found: &Diagnosis, context: &dyn Fn() -> String) {
    if let Some((layer, expert)) = expected.hot_expert {
        let first = found.hot_experts.first().map(|hot| (hot.layer.0, hot.expert.0));
        assert_eq!(first, Some((layer, expert)), "{}", context());
    }
    assert!(!expected.no_hot_experts || found.hot_experts.is_empty(), "{}", context());
    if let Some(ratio) = expected.max_over_mean {
        for balance in &found.balance {
            assert!((balance.max_over_mean - ratio).abs() < 0.001, "{}", context());
            assert!((balance.balancedness - 1.0 / ratio).abs() < 0.001, "{}", context());
        }
    }
    if let Some(rank) = expected.hot_rank {
        let right = |b: &evenkeel_diagnose::LayerBalance| b.hot_rank.map(|r| r.0) == Some(rank);
        assert!(found.balance.iter().all(right), "{}", context());
    }
    if let Some(rank) = expected.waited_for {
        assert_eq!(found.waited_for[0].rank.0, rank, "{}", context());
    }
    if let Some(share) = expected.map_bound_share_below {
        assert!(found.map_bound.share_of_step < share, "{}", context());
    }
    if let Some(shifted) = expected.mix_shifted {
        assert_eq!(found.mix.as_ref().unwrap().shifted, shifted, "{}", context());
    }
    if let Some(changed) = expected.revisions_changed {
        assert_eq!(found.mix.as_ref().unwrap().revisions_changed, changed, "{}", context());
    }
    if let Some(share) = expected.warm_up_share {
        assert!((found.warm_up_share - share).abs() < 0.01, "{}", context());
    }
}

fn adds_up(found: &Diagnosis, context: &dyn Fn() -> String) {
    let slowdown = &found.slowdown;
    let parts: f64 = slowdown.parts.iter().map(|part| part.ms_per_step).sum();
    let told = slowdown.step_ms_mean - slowdown.ideal_ms;
    assert!((parts - told).abs() < 1e-6, "{parts} for {told}; {}", context());
    if let Some(baseline) = slowdown.baseline_ms {
        let parts: f64 = slowdown.since_baseline.iter().map(|part| part.ms_per_step).sum();
        let told = slowdown.step_ms_mean - baseline;
        assert!((parts - told).abs() < 1e-6, "{parts} for {told}; {}", context());
    }
    if let (Some(dispatch), Some(placement)) = (found.gaps.dispatch_gap, found.gaps.placement_gap) {
        assert!((dispatch * placement - found.gaps.max_over_mean).abs() < 1e-9, "{}", context());
    }
}

#[test]
fn every_case_gets_its_verdict() {
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(cases()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.is_dir());
    names.sort();
    assert!(names.len() >= 10, "{} cases", names.len());
    // All broken cases are told at once; each has printed why.
    let broken: Vec<&PathBuf> = names
        .iter()
        .filter(|directory| std::panic::catch_unwind(|| check(directory)).is_err())
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}
