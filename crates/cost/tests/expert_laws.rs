//! Laws of expert curves: more work is never cheaper, a split never raises the maximum.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test reads its files and stops where it cannot go on"
)]

use evenkeel_cost::{CostError, ExpertCurve, Origin, Profile};
use evenkeel_types::{ModelShape, Phase, WeightFormat};
use proptest::prelude::*;

/// The default curve of every built-in profile, both phases, at three shapes.
fn curves() -> Vec<ExpertCurve> {
    let mut curves = Vec::new();
    for name in Profile::BUILTIN {
        let profile = Profile::builtin(name).unwrap();
        for model in ["deepseek-v3", "deepseek-v2-lite", "qwen3-30b-a3b"] {
            let shape = ModelShape::known(model).unwrap();
            for phase in Phase::ALL {
                curves.push(profile.expert_curve(&shape, phase));
            }
        }
    }
    curves
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn more_work_is_never_cheaper(
        rows in prop::collection::vec(0_u32..700, 1..40), at in 0_usize..40, more in 1_u32..200,
        tokens in 0_u32..3000,
    ) {
        for curve in curves() {
            let before = curve.rank_us(&rows, tokens);
            let mut grown = rows.clone();
            let slot = at % rows.len();
            grown[slot] += more;
            let after = curve.rank_us(&grown, tokens);
            prop_assert!(after >= before - 1e-9, "{}: {before} then {after}", curve.name);
            prop_assert!(curve.rank_us(&rows, tokens + more) >= before - 1e-9);
            grown = rows.clone();
            grown.push(0);
            prop_assert!(curve.rank_us(&grown, tokens) >= before - 1e-9);
            prop_assert!(curve.slot_us(rows[slot] + more) >= curve.slot_us(rows[slot]));
        }
    }

    #[test]
    fn splitting_an_experts_rows_over_two_ranks_never_raises_the_maximum(
        rest in prop::collection::vec(0_u32..300, 1..16), rows in 2_u32..900, part in 1_u32..900,
        tokens in 900_u32..3000,
    ) {
        let part = part.min(rows - 1);
        for curve in curves() {
            // Both ranks have the slot; before, one of them leaves its copy idle.
            let rank = |rows: u32| {
                let mut slots = rest.clone();
                slots.push(rows);
                curve.rank_us(&slots, tokens)
            };
            let before = rank(rows).max(rank(0));
            let after = rank(part).max(rank(rows - part));
            prop_assert!(after <= before + 1e-9, "{}: {before} then {after}", curve.name);
        }
    }
}

#[test]
fn no_tokens_cost_the_floor_and_the_slots() {
    for curve in curves() {
        let c = curve.coefficients();
        let idle = c.on_host(c.floor_us + 24.0 * c.slot_us);
        assert!((curve.rank_us(&[0; 24], 0) - idle).abs() < 1e-9, "{}", curve.name);
        let half = curve.scaled(0.5);
        let work = [3, 0, 700];
        assert!((2.0 * half.rank_us(&work, 9) - curve.rank_us(&work, 9)).abs() < 1e-6);
    }
}

#[test]
fn a_basis_says_what_a_curve_stands_on() {
    let h100 = Profile::builtin("h100-sxm").unwrap();
    let v3 = ModelShape::known("deepseek-v3").unwrap();
    let own = h100.expert_curve(&v3, Phase::Decode).basis;
    assert!(own.origin == Origin::Fitted && own.error_share < 0.045, "{own:?}");
    let lite = ModelShape::known("deepseek-v2-lite").unwrap();
    let other = h100.expert_curve(&lite, Phase::Decode).basis;
    assert_eq!(other.origin, Origin::Borrowed, "bf16 from an FP8 table");
    let fp8 = ModelShape { weights: WeightFormat::Fp8Block, ..lite };
    let scaled = h100.expert_curve(&fp8, Phase::Decode).basis;
    assert!(scaled.origin == Origin::Scaled && scaled.error_share >= 0.15, "{scaled:?}");
    assert!(scaled.error_share < other.error_share);
    assert!(own.covers("slots", 8.0) && !own.covers("slots", 4000.0));
}

#[test]
fn bytes_and_rate_follow_the_weight_format() {
    let h20 = Profile::builtin("h20").unwrap();
    let lite = ModelShape::known("deepseek-v2-lite").unwrap();
    let fp8 = ModelShape { weights: WeightFormat::Fp8Block, ..lite.clone() };
    let wide = h20.expert_curve(&lite, Phase::Decode).coefficients();
    let narrow = h20.expert_curve(&fp8, Phase::Decode).coefficients();
    assert!((wide.first_us / narrow.first_us - 2.0).abs() < 1e-9);
    assert!((wide.floor_us - narrow.floor_us).abs() < 1e-12);
}

#[test]
fn profiles_survive_a_round_trip_and_foreign_ones_are_refused() {
    for name in Profile::BUILTIN {
        let profile = Profile::builtin(name).unwrap();
        let again = Profile::from_json(&profile.to_json().unwrap()).unwrap();
        assert!(again == profile, "{name}");
        let foreign =
            profile.to_json().unwrap().replace("evenkeel.profile/1", "evenkeel.profile/9");
        assert!(matches!(Profile::from_json(&foreign), Err(CostError::Schema { .. })));
    }
    let unknown = Profile::builtin("abacus").unwrap_err().to_string();
    assert!(unknown.contains("abacus") && unknown.contains("h100-sxm"), "{unknown}");
    assert!(Profile::from_json("{}").is_err());
}
