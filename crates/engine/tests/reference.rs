//! Every architecture against tensors that the reference implementation made from the same weights
//! (`train/reference.py`).

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

mod common;

use common::{Reference, Run, best, contiguous, folder, largest};
use evenkeel_engine::Numerics;
use evenkeel_kernels::Isa;

const NAMES: [&str; 5] = ["tiny-moe", "qwen3-moe", "qwen2-moe", "olmoe", "mixtral"];

/// A choice closer to the next one than this may fall either way.
const MARGIN: f32 = 1e-4;

#[test]
fn every_layer_is_the_references() {
    for name in NAMES {
        let reference = Reference::read(name);
        let map = contiguous(name, 1);
        let mut run = Run::new(&folder(name), Numerics::F32, Isa::detect(), &map);
        let (mut router, mut weights, mut logits) = (0.0_f32, 0.0_f32, 0.0_f32);
        let [prompts, length] = reference.shape("input_ids")[..] else { unreachable!() };
        let mut compared = 0;
        for prompt in 0..prompts {
            let pass = run.prefill(&reference.row_of_ids("input_ids", &[prompt]));
            // What follows a choice that fell the other way differs for good reason.
            let mut flipped = false;
            for (layer, found) in pass.layers.iter().enumerate() {
                for position in 0..length {
                    let at = [layer, prompt, position];
                    let expected = reference.row("router_logits", &at);
                    let experts = expected.len();
                    let row = &found.router_logits[position * experts..][..experts];
                    router = router.max(if flipped { 0.0 } else { largest(row, &expected) });
                    let mut wanted = reference.row_of_ids("topk_ids", &at);
                    let chosen = &found.choices[position * wanted.len()..][..wanted.len()];
                    let mut ids: Vec<u32> = chosen.iter().map(|c| u32::from(c.expert)).collect();
                    ids.sort_unstable();
                    wanted.sort_unstable();
                    if ids != wanted {
                        let margin = reference.row("topk_margin", &[layer, prompt])[position];
                        assert!(margin <= MARGIN, "{name}: layer {layer} position {position}");
                        flipped = true;
                    } else if !flipped {
                        let mut row: Vec<f32> = chosen.iter().map(|c| c.weight).collect();
                        let mut expected = reference.row("topk_weights", &at);
                        row.sort_by(f32::total_cmp);
                        expected.sort_by(f32::total_cmp);
                        weights = weights.max(largest(&row, &expected));
                    }
                }
            }
            let known = reference.shape("logits")[1];
            for place in (0..known).filter(|_| !flipped) {
                let expected = reference.row("logits", &[prompt, place]);
                let found = &pass.logits[length - known + place];
                logits = logits.max(largest(found, &expected));
                compared += 1;
            }
        }
        println!("{name}: router {router:.1e}, weights {weights:.1e}, logits {logits:.1e}");
        assert!(compared > 0, "{name}: every prompt has a choice on the edge");
        assert!(router < 1e-4, "{name}: router logits differ by {router}");
        assert!(weights < 1e-5, "{name}: weights differ by {weights}");
        assert!(logits < 2e-4, "{name}: logits differ by {logits}");
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for name in NAMES {
        let reference = Reference::read(name);
        let map = contiguous(name, 3);
        let mut run = Run::new(&folder(name), Numerics::F32, Isa::detect(), &map);
        let (mut compared, mut all) = (0, 0);
        for prompt in 0..reference.shape("input_ids")[0] {
            let greedy = reference.row_of_ids("greedy_ids", &[prompt]);
            let margins = reference.row("greedy_margin", &[prompt]);
            let sure = margins.iter().position(|margin| *margin < 0.01).unwrap_or(greedy.len());
            (compared, all) = (compared + sure, all + greedy.len());
            let found = run.greedy(&reference.row_of_ids("input_ids", &[prompt]), greedy.len());
            assert_eq!(found[..sure], greedy[..sure], "{name}: prompt {prompt}");
        }
        assert!(compared * 4 > all, "{name}: only {compared} of {all} steps are sure");
    }
}

#[test]
fn bf16_arithmetic_stays_near() {
    // No tolerance on single logits: a router flip moves them. The likeliest token rarely changes.
    let reference = Reference::read("tiny-moe");
    let map = contiguous("tiny-moe", 2);
    let mut wide = Run::new(&folder("tiny-moe"), Numerics::F32, Isa::detect(), &map);
    let mut narrow = Run::new(&folder("tiny-moe"), Numerics::Bf16, Isa::detect(), &map);
    let (mut same, mut all) = (0, 0);
    for prompt in 0..reference.shape("input_ids")[0] {
        let ids = reference.row_of_ids("input_ids", &[prompt]);
        for (a, b) in wide.prefill(&ids).logits.iter().zip(narrow.prefill(&ids).logits) {
            same += usize::from(best(a) == best(&b));
            all += 1;
        }
    }
    assert!(same * 100 >= all * 95, "{same} of {all} likeliest tokens are the same");
}
