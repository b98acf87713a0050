//! A step model resolves for every known model and profile, says what it stands on, and never
//! makes more work cheaper.

#![expect(clippy::unwrap_used, reason = "helpers of a test file")]

use evenkeel_cost::{AttentionLoad, Crossing, Origin, Profile, StepModel};
use evenkeel_types::{ModelShape, NodeId, Phase, Topology};
use proptest::prelude::*;

fn model(profile: &str, shape: &str, ranks: u16) -> StepModel {
    let profile = Profile::builtin(profile).unwrap();
    let shape = ModelShape::known(shape).unwrap();
    let topology = Topology::uniform(&profile.name, ranks, 90_000_000_000);
    StepModel::resolve(&profile, &shape, &topology).unwrap()
}

fn decode(sequences: u32, length: u64) -> AttentionLoad {
    AttentionLoad {
        sequences,
        new_tokens: sequences,
        context_tokens: u64::from(sequences) * length,
        context_products: 0.0,
    }
}

/// Prompts of `length` new tokens each.
fn prefill(sequences: u32, length: u32) -> AttentionLoad {
    let tokens = sequences * length;
    AttentionLoad {
        sequences,
        new_tokens: tokens,
        context_tokens: u64::from(tokens),
        context_products: f64::from(tokens) * f64::from(length),
    }
}

#[test]
fn every_known_model_resolves_on_every_profile() {
    for profile in Profile::BUILTIN {
        for shape in ModelShape::KNOWN {
            for ranks in [1, 4, 8, 16, 24, 32, 64, 256] {
                let model = model(profile, shape, ranks);
                for phase in Phase::ALL {
                    let load =
                        if phase == Phase::Decode { decode(8, 1000) } else { prefill(2, 500) };
                    let times = [
                        model.dispatch_us(phase, 64.0),
                        model.combine_us(phase, 64.0),
                        model.attention_us(phase, &load),
                        model.layer_rest_us(phase, 64),
                        model.step_rest_us(phase, 64),
                        model.experts(phase).rank_us(&[10; 8], 40),
                    ];
                    for time in times {
                        assert!(
                            time.is_finite() && time > 0.0,
                            "{profile} {shape} EP{ranks} {phase}: {times:?}"
                        );
                    }
                    let (out, back) = model.exchange_bytes_per_row(phase);
                    assert!(out > 0.0 && back > 0.0);
                }
                assert!(model.notes().len() >= 7, "one note per curve");
            }
        }
    }
}

#[test]
fn h20_says_what_it_borrows_and_h100_what_it_measured() {
    let note = |model: &StepModel, curve: &str| {
        model.notes().into_iter().find(|note| note.curve == curve).unwrap()
    };
    let h20 = model("h20", "deepseek-v2-lite", 16);
    let exchange = note(&h20, "decode exchange");
    assert_eq!(exchange.origin, Origin::Borrowed);
    assert!(exchange.error_share >= 0.2 && !exchange.inside_support, "{exchange:?}");
    assert!(note(&h20, "decode attention").origin == Origin::Borrowed);
    let h100 = model("h100-sxm", "deepseek-v3", 32);
    let exchange = note(&h100, "decode exchange");
    assert_eq!(exchange.origin, Origin::Fitted);
    assert!(exchange.inside_support && exchange.error_share < 0.05, "{exchange:?}");
    assert!(exchange.text.contains("assumed"), "skew is assumed and says so: {exchange:?}");
    // Three nodes were not measured.
    let odd = note(&model("h100-sxm", "deepseek-v3", 24), "decode exchange");
    assert_eq!(odd.origin, Origin::Scaled);
    assert!(!odd.inside_support && odd.text.contains("3.0 nodes"), "{odd:?}");
    // Grouped-query attention was not measured anywhere.
    let gqa = note(&model("h100-sxm", "qwen3-30b-a3b", 8), "decode attention");
    assert_eq!(gqa.origin, Origin::Borrowed);
}

#[test]
fn draws_hold_the_centre_and_both_ends_of_what_is_borrowed() {
    let model = model("h20", "deepseek-v2-lite", 16);
    let draws = model.draws(32, 1);
    assert_eq!(draws.len(), 32);
    let at = |exchange: f64| draws.iter().any(|d| (d.exchange - exchange).abs() < 1e-9);
    assert!(at(0.8) && at(1.2), "{draws:?}");
    let same = model.with(&draws[0]);
    let time = |m: &StepModel| m.dispatch_us(Phase::Decode, 100.0);
    assert!((time(&same) - time(&model)).abs() < 1e-12);
    let low = draws.iter().find(|d| (d.exchange - 0.8).abs() < 1e-9).unwrap();
    assert!((time(&model.with(low)) / time(&model) - 0.8).abs() < 1e-9);
    let row = draws.iter().position(|d| (d.expert_row - 1.0).abs() > 0.01).unwrap();
    let moved = model.with(&draws[row]);
    let experts = |m: &StepModel| m.experts(Phase::Decode).rank_us(&[100; 4], 300);
    assert!((experts(&moved) - experts(&model)).abs() > 1e-6);
}

#[test]
fn a_balanced_crossing_is_its_own_tokens() {
    let model = model("h100-sxm", "deepseek-v3", 32);
    let pairs = Crossing { pairs: 128.0 * 8.0, ..Crossing::default() };
    assert!((model.tokens_equivalent(Phase::Decode, &pairs) - 128.0).abs() < 1e-9);
    let (nodes, ranks) = model.distinct_per_token();
    let rows = Crossing { pairs: 0.0, node_rows: 4096.0 * nodes, rank_rows: 4096.0 * ranks };
    assert!((model.tokens_equivalent(Phase::Prefill, &rows) - 4096.0).abs() < 1e-6);
}

#[test]
fn chunks_of_a_prompt_see_as_many_pairs_as_the_prompt() {
    let model = model("h200-sxm", "deepseek-v3", 8);
    let whole = model.attention_us(Phase::Prefill, &prefill(1, 16_384));
    let chunks: f64 = (1..=4_u32)
        .map(|i| {
            let end = 4096 * i;
            model.attention_us(
                Phase::Prefill,
                &AttentionLoad {
                    sequences: 1,
                    new_tokens: 4096,
                    context_tokens: u64::from(end),
                    context_products: 4096.0 * f64::from(end),
                },
            )
        })
        .sum();
    assert!((chunks / whole - 1.0).abs() < 0.2, "{chunks} against {whole}");
}

#[test]
fn a_slower_card_slows_only_what_crosses_nodes() {
    let profile = Profile::builtin("h100-sxm").unwrap();
    let shape = ModelShape::known("deepseek-v3").unwrap();
    let time = |ranks: u16, gbit: f64| {
        let mut topology = Topology::uniform("h100-sxm", ranks, 80_000_000_000);
        for node in &mut topology.node {
            node.nic_gbit_per_s = gbit;
        }
        let model = StepModel::resolve(&profile, &shape, &topology).unwrap();
        [
            model.dispatch_us(Phase::Decode, 128.0),
            model.combine_us(Phase::Decode, 128.0),
            model.dispatch_us(Phase::Prefill, 4096.0),
        ]
    };
    for (slow, fast) in time(16, 200.0).into_iter().zip(time(16, 400.0)) {
        assert!(slow > 1.4 * fast && slow < 2.05 * fast, "{slow} {fast}");
    }
    for (slow, fast) in time(8, 200.0).into_iter().zip(time(8, 400.0)) {
        assert!((slow - fast).abs() < 1e-9);
    }
    // Degraded links are the caller's to count: the model does not read them.
    let mut topology = Topology::uniform("h100-sxm", 16, 80_000_000_000);
    topology.link_health.push(evenkeel_types::LinkHealth { node: NodeId(0), rate_share: 0.5 });
    let model = StepModel::resolve(&profile, &shape, &topology).unwrap();
    assert!((model.dispatch_us(Phase::Decode, 128.0) - time(16, 400.0)[0]).abs() < 1e-9);
}

/// Published for H800 over 400 Gb/s cards, 128 tokens, hidden 7168, top-8 (DeepEP
/// docs/legacy.md at dd758ca): ranks, dispatch µs, combine µs.
const PUBLISHED: [(u16, f64, f64); 5] = [
    (16, 118.0, 195.0),
    (32, 155.0, 273.0),
    (64, 173.0, 314.0),
    (128, 192.0, 369.0),
    (256, 194.0, 360.0),
];

#[test]
fn published_low_latency_is_met_within_sixteen_percent_up_to_256_ranks() {
    for (ranks, dispatch, combine) in PUBLISHED {
        let model = model("h100-sxm", "deepseek-v3", ranks);
        let errors = [
            model.dispatch_us(Phase::Decode, 128.0) / dispatch - 1.0,
            model.combine_us(Phase::Decode, 128.0) / combine - 1.0,
        ];
        println!("EP{ranks}: dispatch {:+.3}, combine {:+.3}", errors[0], errors[1]);
        assert!(errors.iter().all(|e| e.abs() <= 0.16), "EP{ranks}: {errors:?}");
    }
}

fn models() -> Vec<StepModel> {
    ["h100-sxm", "h200-sxm", "h20", "cpu"]
        .into_iter()
        .flat_map(|profile| {
            [("deepseek-v3", 64), ("deepseek-v2-lite", 16), ("mixtral-8x7b", 8)]
                .map(|(shape, ranks)| model(profile, shape, ranks))
        })
        .collect()
}

fn ordered<T: PartialOrd>(a: T, b: T) -> (T, T) {
    if a < b { (a, b) } else { (b, a) }
}

#[test]
fn more_work_is_never_cheaper() {
    let models = models();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let input =
        (0.0_f64..20_000.0, 0.0_f64..20_000.0, 1_u32..512, 1_u32..512, 1_u32..8000, 1_u32..8000);
    runner
        .run(&input, |(x, y, a, b, s, t)| {
            let (few, many) = ordered(x, y);
            let (small, large) = ordered(a, b);
            let (short, long) = ordered(s, t);
            for model in &models {
                for phase in Phase::ALL {
                    let rises = |low: f64, high: f64| low <= high * (1.0 + 1e-9);
                    prop_assert!(rises(
                        model.dispatch_us(phase, few),
                        model.dispatch_us(phase, many)
                    ));
                    prop_assert!(rises(
                        model.combine_us(phase, few),
                        model.combine_us(phase, many)
                    ));
                    prop_assert!(rises(
                        model.layer_rest_us(phase, small),
                        model.layer_rest_us(phase, large)
                    ));
                    prop_assert!(rises(
                        model.step_rest_us(phase, small),
                        model.step_rest_us(phase, large)
                    ));
                    let load = |sequences: u32, length: u32| match phase {
                        Phase::Decode => decode(sequences, u64::from(length)),
                        Phase::Prefill => prefill(sequences, length),
                    };
                    let time =
                        |sequences, length| model.attention_us(phase, &load(sequences, length));
                    prop_assert!(rises(time(small, short), time(large, short)));
                    prop_assert!(rises(time(small, short), time(small, long)));
                }
            }
            Ok(())
        })
        .unwrap();
}
