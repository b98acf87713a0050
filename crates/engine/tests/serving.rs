//! The engine under the step loop: the same texts whatever the map, the batch and the memory.

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

mod common;

use common::{Reference, contiguous, folder};
use evenkeel_engine::{Checkpoint, LocalGroup, Numerics, Prompt, Sampling, Virtual};
use evenkeel_kernels::Isa;
use evenkeel_sim::{Admission, GroupConfig, Limits, NoSink, Role, Run, serve};
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertMap, SliceId, Topology};
use std::sync::Arc;

fn config(blocks: u32) -> GroupConfig {
    GroupConfig {
        role: Role::Mixed,
        decode_sequences_per_rank: 8,
        prefill_tokens_per_rank: 20,
        prefill_steps_in_row_max: 1,
        kv_blocks_per_rank: blocks,
        kv_block_tokens: LocalGroup::BLOCK_TOKENS as u32,
    }
}

/// Twelve requests with half a prompt each: texts, run, and the modelled links' share.
fn texts(map: &ExpertMap, blocks: u32, gap_ns: u64) -> (Vec<Vec<u32>>, Run) {
    let reference = Reference::read("tiny-moe");
    let checkpoint = Arc::new(Checkpoint::open(&folder("tiny-moe")).unwrap());
    let split = SplitTable::even(map).unwrap();
    let (numerics, isa) = (Numerics::Bf16, Isa::detect());
    let group = LocalGroup::new(&checkpoint, numerics, isa, map, &split, blocks as usize).unwrap();
    let topology = Topology::uniform("cpu", map.ranks() as u16, 1);
    let mut backend = Virtual::new(group, topology).unwrap();
    let mut requests = Vec::new();
    for job in 0..12_u64 {
        let prompt = reference.row_of_ids("input_ids", &[job as usize % 6]);
        let tokens = prompt[..8 + job as usize].to_vec();
        requests.push(Admission {
            job,
            slice: SliceId(0),
            arrival_ns: job * gap_ns,
            recorded: 0,
            first_token: 0,
            prompt_tokens: tokens.len() as u32,
            output_tokens_max: 30,
            decoded: 0,
        });
        let sampling = Sampling { temperature: 0.9, top_p: 0.95, seed: job };
        backend.open(job, Prompt { tokens, sampling, stop_tokens: vec![0], tops: 0 }).unwrap();
    }
    let run =
        serve("serving", &config(blocks), &requests, &mut backend, &mut NoSink, Limits::default())
            .unwrap();
    let texts = (0..12).map(|job| backend.close(job).unwrap()).collect();
    (texts, run)
}

#[test]
fn maps_batches_and_memory_do_not_show_in_the_texts() {
    let (expected, run) = texts(&contiguous("tiny-moe", 1), 64, 0);
    assert_eq!(run.totals.misplaced_rows, 0);
    assert!(expected.iter().any(|text| text.len() > 30));
    for (ranks, blocks, gap_ns) in [(2, 64, 0), (4, 8, 400_000), (8, 4, 50_000)] {
        let (found, run) = texts(&contiguous("tiny-moe", ranks), blocks, gap_ns);
        assert!(found == expected, "{ranks} ranks, {blocks} blocks");
        assert_eq!(run.totals.misplaced_rows, 0);
        assert_eq!(run.requests.iter().filter(|r| r.finish_ns.is_some()).count(), 12);
        for (request, text) in run.requests.iter().zip(&found) {
            assert_eq!((request.prompt_tokens + request.output_tokens) as usize, text.len());
        }
    }
    // One rank with few blocks has to take some away, and prefills again what it took.
    let (found, run) = texts(&contiguous("tiny-moe", 1), 10, 0);
    assert!(run.totals.preemptions > 0);
    assert!(found == expected, "preempted");
}

#[test]
fn a_stop_token_ends_a_text() {
    let (texts, run) = texts(&contiguous("tiny-moe", 2), 64, 0);
    for (text, request) in texts.iter().zip(&run.requests) {
        let prompt = request.prompt_tokens as usize;
        let stops = text[prompt..].iter().position(|id| *id == 0);
        assert_eq!(stops.map_or(30, |place| place + 1), request.output_tokens as usize);
    }
}
