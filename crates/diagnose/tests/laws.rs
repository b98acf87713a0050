//! Laws of a diagnosis: it does not depend on how ranks are numbered, and says what it lacks.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a broken case is to stop the test")]

mod sketch;

use evenkeel_diagnose::{
    CauseKind, DiagnoseError, Diagnosis, Options, Verdict, diagnose, larger_batch,
};
use evenkeel_types::{ExpertMap, Policy, RankId};
use proptest::prelude::*;
use sketch::{Scene, Sketch};

fn sketch(seed: u64, fault: &str) -> Sketch {
    let text = format!(
        "about = \"a group of eight\"\nseed = {seed}\nnodes = [8]\nlayers = 4\nexperts = 32\n\
         top_k = 4\nslots_per_rank = 4\n[now]\nsteps = 16\nsequences_per_rank = 128\n{fault}\n"
    );
    toml::from_str(&text).unwrap()
}

fn told(sketch: &Sketch, scene: &Scene) -> Diagnosis {
    assert!(sketch.baseline.is_none(), "{} has a baseline", sketch.about);
    let options = Options { steps_max: 16, ..sketch.options() };
    diagnose(&scene.observation(), None, &sketch.model(), &Policy::default(), &options).unwrap()
}

/// The same run with rank r called `(r + turn) mod 8` (one node, so that links stay alike).
fn turned(mut scene: Scene, turn: usize) -> Scene {
    let ranks = scene.topology.rank_count();
    let to = |rank: RankId| RankId(((rank.index() + turn) % ranks) as u16);
    for step in &mut scene.steps {
        step.ranks.rotate_right(turn);
        for cells in step.cells.chunks_mut(ranks) {
            cells.rotate_right(turn);
        }
        for row in &mut step.routing {
            row.source = to(row.source);
            row.host = row.host.map(to);
        }
    }
    for layer in &mut scene.map.slots {
        layer.rotate_right(turn);
    }
    scene
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn renumbering_ranks_renumbers_the_verdict(
        seed in 0..1000_u64,
        turn in 1..8_usize,
        rank in 0..8_usize,
        factor in 1.2..1.8_f64,
    ) {
        let sketch = sketch(seed, &format!("faults.slow_rank = [{rank}, {factor}, 0]"));
        let one = told(&sketch, &sketch.expand(&sketch.now, 1));
        let other = told(&sketch, &turned(sketch.expand(&sketch.now, 1), turn));
        prop_assert_eq!(one.causes.len(), other.causes.len());
        for (a, b) in one.causes.iter().zip(&other.causes) {
            prop_assert_eq!(a.kind, b.kind);
            prop_assert!((a.ms_per_step - b.ms_per_step).abs() < 1e-9);
            let turned = a.place.rank.map(|rank| (rank.index() + turn) % 8);
            prop_assert_eq!(turned, b.place.rank.map(RankId::index));
        }
        prop_assert_eq!(one.cause(CauseKind::SlowRank).unwrap().place.rank.unwrap().index(), rank);
    }

    #[test]
    fn parts_add_up_whatever_is_broken(
        seed in 0..1000_u64,
        kernel in 1.0..2.0_f64,
        slow in 1.0..1.6_f64,
        late in 0.0..2.0_f64,
        kv in 1.0..3.0_f64,
    ) {
        let sketch = sketch(seed, &format!(
            "hot = [[1, 5, 6.0]]\nfaults.kernel = [\"other\", {kernel}, 8]\n\
             faults.slow_rank = [2, {slow}, 0]\nfaults.late = [4, {late}, 4, \"\"]\n\
             faults.kv = [6, {kv}]"
        ));
        let found = told(&sketch, &sketch.expand(&sketch.now, 1));
        let slowdown = &found.slowdown;
        let parts: f64 = slowdown.parts.iter().map(|part| part.ms_per_step).sum();
        prop_assert!((parts - (slowdown.step_ms_mean - slowdown.ideal_ms)).abs() < 1e-6);
        prop_assert!(slowdown.ideal_ms <= slowdown.step_ms_mean + 1e-9);
        prop_assert!(found.map_bound.share_of_step >= 0.0 && found.map_bound.share_of_step < 1.0);
        let text = serde_json::to_string(&found).unwrap();
        prop_assert_eq!(text, serde_json::to_string(&told(&sketch, &sketch.expand(&sketch.now, 1))).unwrap());
    }
}

#[test]
fn healthy_windows_raise_no_alarm() {
    let mut alarms = Vec::new();
    for seed in 0..60 {
        let sketch = sketch(seed, "");
        let found = told(&sketch, &sketch.expand(&sketch.now, seed));
        if found.verdict != Verdict::NothingWrong {
            alarms.push((seed, found.causes));
        }
    }
    assert!(alarms.is_empty(), "{alarms:#?}");
}

#[test]
fn a_broken_law_withholds_the_verdict() {
    let sketch = sketch(1, "faults.slow_rank = [2, 1.5, 0]");
    let mut scene = sketch.expand(&sketch.now, 1);
    scene.breaches.push("layer 1: counts are 4 times tokens x top-k".into());
    let found = told(&sketch, &scene);
    assert_eq!(found.verdict, Verdict::CannotTell);
    assert!(found.causes.is_empty() && found.missing[0].contains("4 times"), "{found:?}");
}

#[test]
fn another_live_map_withholds_the_verdict() {
    let sketch = sketch(1, "");
    let mut scene = sketch.expand(&sketch.now, 1);
    scene.map.slots[2].rotate_right(1);
    let found = told(&sketch, &scene);
    assert_eq!(found.verdict, Verdict::CannotTell);
    assert!(found.missing.iter().any(|line| line.contains("the live map")), "{:?}", found.missing);

    let mut scene = sketch.expand(&sketch.now, 1);
    scene.map.version = 7;
    let found = told(&sketch, &scene);
    assert_eq!(found.verdict, Verdict::CannotTell);
    assert!(found.missing.iter().any(|line| line.contains("map version 7")), "{:?}", found.missing);
}

#[test]
fn poor_records_get_a_sentence_and_contradictions_an_error() {
    let sketch = sketch(3, "");
    let mut scene = sketch.expand(&sketch.now, 1);
    scene.steps.clear();
    let found = told(&sketch, &scene);
    assert_eq!(found.verdict, Verdict::CannotTell);
    assert!(found.missing.iter().any(|line| line.contains("decode steps")), "{:?}", found.missing);

    let mut scene = sketch.expand(&sketch.now, 1);
    scene.steps[3].cells.pop();
    let options = sketch.options();
    let error = diagnose(&scene.observation(), None, &sketch.model(), &Policy::default(), &options);
    assert!(matches!(error, Err(DiagnoseError::Dimension { step: 3, .. })), "{error:?}");

    let mut scene = sketch.expand(&sketch.now, 1);
    scene.steps[0].routing[0].host = Some(RankId(99));
    let error = diagnose(&scene.observation(), None, &sketch.model(), &Policy::default(), &options);
    let message = error.unwrap_err().to_string();
    assert!(message.contains("rank 99") && message.contains("layer 0"), "{message}");
}

#[test]
fn one_rank_and_one_step_are_no_reason_to_stumble() {
    let mut sketch = sketch(4, "");
    sketch.nodes = vec![1];
    sketch.slots_per_rank = 32;
    sketch.now.steps = 1;
    let scene = sketch.expand(&sketch.now, 1);
    assert_eq!(scene.map.slots.len(), ExpertMap::layers(&scene.map));
    let found = told(&sketch, &scene);
    assert_eq!(found.verdict, Verdict::NothingWrong, "{found:#?}");
}

#[test]
fn larger_groups_buy_throughput_with_latency() {
    let sketch = sketch(5, "");
    let scene = sketch.expand(&sketch.now, 1);
    let options = larger_batch(&sketch.model(), &scene.observation(), 1000, &[32, 64, 128, 256]);
    assert_eq!(options.len(), 4);
    for pair in options.windows(2) {
        assert!(pair[1].step_ms > pair[0].step_ms, "{options:#?}");
        assert!(pair[1].tokens_per_s_per_rank > pair[0].tokens_per_s_per_rank, "{options:#?}");
    }
    assert!((options[0].throughput_ratio - 1.0).abs() < 1e-12);
}
