//! Level L1: the same bits for every map, group size, batch and order of arrival.

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

mod common;

use common::{Reference, Run, contiguous, folder, map_of};
use evenkeel_engine::{Checkpoint, LocalGroup, Numerics, Share};
use evenkeel_kernels::Isa;
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertMap, hash3};
use proptest::prelude::*;
use std::sync::Arc;

const NAMES: [&str; 5] = ["tiny-moe", "qwen3-moe", "qwen2-moe", "olmoe", "mixtral"];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn decode_from_the_cache_is_the_full_pass() {
    for (name, numerics) in NAMES.map(|n| [(n, Numerics::F32), (n, Numerics::Bf16)]).concat() {
        let ids = Reference::read(name).row_of_ids("input_ids", &[0]);
        let map = contiguous(name, 2);
        let mut run = Run::new(&folder(name), numerics, Isa::detect(), &map);
        let whole = run.prefill(&ids);
        for cut in [1, 15, 16, 17, 23] {
            let start = run.prefill(&ids[..cut]);
            for (position, logits) in start.logits.iter().enumerate() {
                assert_eq!(
                    bits(logits),
                    bits(&whole.logits[position]),
                    "{name} {numerics:?} {cut}"
                );
            }
            for position in cut..ids.len() {
                let found = bits(&run.feed(&ids[position..=position], position).logits[0]);
                let expected = bits(&whole.logits[position]);
                assert_eq!(found, expected, "{name} {numerics:?}: {cut}, {position}");
            }
        }
    }
}

/// Every expert on one rank at least, further copies by chance.
fn random_map(name: &str, ranks: usize, spare: usize, seed: u64) -> ExpertMap {
    let checkpoint = Checkpoint::open(&folder(name)).unwrap();
    let (layers, experts) = (checkpoint.config().layers, checkpoint.config().experts);
    let hosts = |layer: usize, expert: usize| {
        let draw = |copy: usize| hash3(seed ^ copy as u64, layer as u64, expert as u64);
        let copies = 1 + draw(0) as usize % (spare + 1);
        let mut hosts: Vec<usize> =
            (0..copies).map(|c| (draw(c + 1) >> 7) as usize % ranks).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    };
    let layer = |layer| (0..experts).map(|expert| hosts(layer, expert)).collect();
    map_of(ranks, &(0..layers).map(layer).collect::<Vec<_>>())
}

/// Serves all prompts at once, spread over ranks and cut into chunks by `seed`, and returns the
/// bits of every prompt's logits at every position.
fn serve(
    name: &str,
    numerics: Numerics,
    map: &ExpertMap,
    prompts: &[Vec<u32>],
    seed: u64,
) -> Vec<Vec<Vec<u32>>> {
    let checkpoint = Arc::new(Checkpoint::open(&folder(name)).unwrap());
    let split = SplitTable::even(map).unwrap();
    let isa = Isa::detect();
    let mut group = LocalGroup::new(&checkpoint, numerics, isa, map, &split, 32).unwrap();
    let home = |prompt: usize| hash3(seed, 1, prompt as u64) as usize % map.ranks();
    // Every prompt has four blocks of its own, in an order of its own.
    let blocks: Vec<Vec<u32>> = (0..prompts.len())
        .map(|prompt| (0..4).map(|block| (prompt * 4 + (block + prompt) % 4) as u32).collect())
        .collect();
    let mut fed = vec![0; prompts.len()];
    let mut logits = vec![Vec::new(); prompts.len()];
    for step in 0.. {
        let mut shares: Vec<Vec<Share>> = vec![Vec::new(); map.ranks()];
        let mut rows = vec![0; map.ranks()];
        let mut places = Vec::new();
        for (prompt, ids) in prompts.iter().enumerate() {
            let left = ids.len() - fed[prompt];
            let take = (hash3(seed, step + 2, prompt as u64) as usize % 9).min(left);
            if take == 0 {
                continue;
            }
            let rank = home(prompt);
            places.extend((0..take).map(|index| (prompt, rank, rows[rank] + index)));
            rows[rank] += take;
            shares[rank].push(Share {
                // Another number of the job: another way among copies, the same bits.
                job: seed ^ prompt as u64,
                context: fed[prompt] as u32,
                tokens: ids[fed[prompt]..fed[prompt] + take].to_vec(),
                blocks: blocks[prompt].clone(),
                choose: None,
            });
            fed[prompt] += take;
        }
        if places.is_empty() && fed.iter().zip(prompts).all(|(fed, ids)| *fed == ids.len()) {
            break;
        }
        group.step(&shares, |_, _| {}).unwrap();
        for (prompt, rank, token) in places {
            let mut row = Vec::new();
            group.workers_mut()[rank].rank_mut().logits(token, &mut row);
            logits[prompt].push(bits(&row));
        }
    }
    logits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn maps_batches_and_orders_do_not_show(
        which in 0_usize..5,
        ranks in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8), Just(16)],
        spare in 0_usize..3,
        narrow: bool,
        seed: u64,
    ) {
        let name = NAMES[which];
        let numerics = if narrow { Numerics::Bf16 } else { Numerics::F32 };
        let reference = Reference::read(name);
        let count = reference.shape("input_ids")[0];
        let prompts: Vec<Vec<u32>> =
            (0..count).map(|prompt| reference.row_of_ids("input_ids", &[prompt])).collect();
        let expected = serve(name, numerics, &contiguous(name, 1), &prompts, 0);
        let map = random_map(name, ranks, spare, seed);
        let found = serve(name, numerics, &map, &prompts, seed);
        prop_assert!(found == expected, "{name}: {numerics:?} on {ranks} ranks, seed {seed}");
    }
}
