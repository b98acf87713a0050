//! The machine as an engine drives it: requests of unknown length, stops, cancellations, blocks.

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use evenkeel_sim::{Admission, Event, GroupConfig, Machine, Role};
use evenkeel_types::{SliceId, hash3};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn config(blocks: u32) -> GroupConfig {
    GroupConfig {
        role: Role::Mixed,
        decode_sequences_per_rank: 4,
        prefill_tokens_per_rank: 7,
        prefill_steps_in_row_max: 2,
        kv_blocks_per_rank: blocks,
        kv_block_tokens: 4,
    }
}

fn request(job: u64, prompt_tokens: u32, output_tokens_max: u32, now_ns: u64) -> Admission {
    Admission {
        job,
        slice: SliceId(0),
        arrival_ns: now_ns,
        recorded: job as usize,
        first_token: 0,
        prompt_tokens,
        output_tokens_max,
        decoded: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn blocks_have_one_holder_and_all_come_back(seed: u64, ranks in 1_usize..4, blocks in 8_u32..24) {
        let config = config(blocks);
        let mut machine = Machine::new(&config, ranks).unwrap();
        let (mut now_ns, mut next, mut ended) = (0, 0_u64, 0);
        for turn in 0..200_u64 {
            now_ns += 1;
            let draw = |what: u64| hash3(seed, turn, what);
            if next < 40 && draw(0).is_multiple_of(3) {
                let request =
                    request(next, 1 + (draw(1) % 12) as u32, 1 + (draw(2) % 14) as u32, now_ns);
                request.check(&config).unwrap();
                machine.on(Event::Arrival(request), now_ns);
                next += 1;
            }
            if draw(3).is_multiple_of(17) && next > 0 {
                machine.on(Event::Cancel(draw(4) % next), now_ns);
            }
            let Some(batch) = machine.ready(now_ns) else { continue };
            let entries = batch.entries.len();
            let mut start = 0;
            for &end in batch.rank_ends {
                let mut held = BTreeSet::new();
                for entry in start..end {
                    let (table, tokens) = (batch.blocks(entry), batch.entries[entry]);
                    let needed = (tokens.context + tokens.tokens).div_ceil(4) as usize;
                    prop_assert!(table.len() >= needed, "{needed} blocks, has {table:?}");
                    for block in table {
                        prop_assert!(*block < blocks && held.insert(*block), "block {block}");
                    }
                }
                start = end;
            }
            if draw(5).is_multiple_of(5) {
                machine.on(Event::Stop(draw(6) as usize % entries), now_ns);
            }
            if draw(7).is_multiple_of(11) {
                machine.on(Event::Cancel(draw(8) % next), now_ns);
            }
            machine.on(Event::StepEnd, now_ns);
            ended += machine.outcomes_mut().take_done().len();
        }
        // Whoever is left is served to the end.
        for _ in 0..5_000 {
            now_ns += 1;
            if machine.ready(now_ns).is_none() {
                break;
            }
            machine.on(Event::StepEnd, now_ns);
        }
        ended += machine.outcomes_mut().take_done().len();
        prop_assert_eq!(ended as u64, next);
        prop_assert_eq!(machine.kv_blocks_free_min(), blocks);
    }
}

#[test]
fn a_stop_ends_a_request_with_the_token_of_the_step() {
    let config = config(8);
    let mut machine = Machine::new(&config, 1).unwrap();
    machine.on(Event::Arrival(request(7, 3, 100, 0)), 0);
    for now_ns in 1..4 {
        assert_eq!(machine.ready(now_ns).unwrap().entries.len(), 1);
        if now_ns == 3 {
            machine.on(Event::Stop(0), now_ns);
        }
        machine.on(Event::StepEnd, now_ns);
    }
    let done = machine.outcomes_mut().take_done();
    assert_eq!((done[0].job, done[0].output_tokens, done[0].finish_ns), (7, 3, Some(3)));
    assert!(machine.ready(4).is_none());
}

#[test]
fn a_cancelled_request_keeps_its_blocks_until_its_step_ends() {
    let config = config(8);
    let mut machine = Machine::new(&config, 1).unwrap();
    machine.on(Event::Arrival(request(1, 8, 100, 0)), 0);
    assert!(machine.ready(0).is_some());
    machine.on(Event::Cancel(1), 1);
    assert!(machine.kv_blocks_free_min() < 8);
    machine.on(Event::StepEnd, 2);
    assert_eq!(machine.kv_blocks_free_min(), 8);
    let done = machine.outcomes_mut().take_done();
    assert_eq!((done[0].output_tokens, done[0].finish_ns), (0, None));
}
