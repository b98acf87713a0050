//! Laws that hold for every map, split and batch.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it cannot go on")]

mod common;

use common::{HandCurves, Keep, routing, shape};
use evenkeel_sim::{
    Faults, GroupConfig, Job, Limits, MixChange, NoSink, Replay, Role, TrafficSpec, draw_jobs,
    simulate,
};
use evenkeel_split::SplitTable;
use evenkeel_trace::Routes;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, ModelShape, Phase, Topology, hash3};
use proptest::prelude::*;

/// A map whose experts have one copy each at a random rank, and random further copies.
fn random_map(shape: &ModelShape, ranks: usize, spare: usize, seed: u64) -> ExpertMap {
    let mut map = ExpertMap::contiguous(shape, ranks, 0);
    for (layer, slots) in map.slots.iter_mut().enumerate() {
        for place in 0..usize::from(shape.experts) + spare {
            let draw = hash3(seed, layer as u64, place as u64);
            let expert = ExpertId((place % usize::from(shape.experts)) as u16);
            let rank = &mut slots[draw as usize % ranks];
            if !rank.contains(&Some(expert)) {
                rank.push(Some(expert));
            }
        }
    }
    map
}

#[derive(Clone, Debug)]
struct Setting {
    ranks: usize,
    spare: usize,
    seed: u64,
    chunk: u32,
    blocks: u32,
    role: Role,
}

fn settings() -> impl Strategy<Value = Setting> {
    let role = prop_oneof![Just(Role::Mixed), Just(Role::Prefill), Just(Role::Decode)];
    // Beyond 64 ranks distinct tokens are counted another way.
    let ranks = prop_oneof![8 => 1_usize..12, 1 => 65_usize..75];
    (ranks, 0_usize..8, any::<u64>(), 1_u32..300, 20_u32..60, role).prop_map(
        |(ranks, spare, seed, chunk, blocks, role)| Setting {
            ranks,
            spare,
            seed,
            chunk,
            blocks,
            role,
        },
    )
}

impl Setting {
    fn shape(&self) -> ModelShape {
        shape(2, 6, 3)
    }

    fn config(&self) -> GroupConfig {
        GroupConfig {
            role: self.role,
            decode_sequences_per_rank: 5,
            prefill_tokens_per_rank: self.chunk,
            prefill_steps_in_row_max: 2,
            kv_blocks_per_rank: self.blocks,
            kv_block_tokens: 8,
        }
    }

    fn traffic(&self, routes: &Routes) -> Vec<Job> {
        let spec = TrafficSpec {
            arrivals_ns: (0..15).map(|index| index * 100_000).collect(),
            mix: vec![MixChange { from_ns: 0, share_by_slice: vec![1.0, 2.0] }],
            fill_sequences: if self.role == Role::Prefill { 0 } else { 6 },
            seed: self.seed,
        };
        draw_jobs(routes, &spec).unwrap().0
    }
}

/// What a run should have routed: every fed token of every job once, without preemptions.
fn expected(routes: &Routes, jobs: &[Job], role: Role) -> [Vec<u64>; 2] {
    let sum = |tokens: Vec<usize>| routes.counts(tokens.into_iter());
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for job in jobs {
        let recorded = &routes.requests()[job.recorded];
        let start = recorded.first_token;
        let prompt_end = start + recorded.prompt_tokens as usize;
        if job.decoded == 0 && role != Role::Decode {
            prefill.extend(start..prompt_end);
        }
        if role != Role::Prefill {
            let from = prompt_end + (job.decoded.max(1) - 1) as usize;
            decode.extend(from..start + recorded.tokens as usize - 1);
        }
    }
    [sum(prefill), sum(decode)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_choice_is_served_once_by_a_copy(setting in settings()) {
        let shape = setting.shape();
        let routes = routing(&shape, 8, 2, 110, 12, setting.seed);
        let map = random_map(&shape, setting.ranks, setting.spare, setting.seed);
        let split = SplitTable::balanced(&map, &routes.counts(0..routes.tokens())).unwrap();
        let topology = Topology::uniform("x", setting.ranks as u16, 1);
        let curves = HandCurves::simple();
        let mut replay =
            Replay::new(&routes, &map, &split, &curves, &topology, &Faults::default()).unwrap();
        let (config, jobs) = (setting.config(), setting.traffic(&routes));
        let mut keep = Keep::default();
        let run =
            simulate("p", &config, &routes, &jobs, &mut replay, &mut keep, Limits::default())
                .unwrap();
        let quiet =
            simulate("p", &config, &routes, &jobs, &mut replay, &mut NoSink, Limits::default())
                .unwrap();
        prop_assert_eq!(&run, &quiet);
        prop_assert_eq!(run.totals.misplaced_rows, 0);
        for record in &keep.records {
            let mut sent = vec![0_u32; 2 * setting.ranks];
            for row in &record.routing {
                sent[row.layer.index() * setting.ranks + row.source.index()] += row.tokens;
                let host = row.host.unwrap();
                prop_assert!(map.hosts(row.layer)[row.expert.index()].contains(&host));
            }
            for (cell, sent) in sent.iter().enumerate() {
                prop_assert_eq!(*sent, record.ranks[cell % setting.ranks].tokens * 3);
            }
            for (rank, cell) in record.ranks.iter().enumerate() {
                prop_assert_eq!(cell.kv_blocks_used + cell.kv_blocks_free, setting.blocks);
                prop_assert!(cell.sequences <= 5, "rank {rank}");
                let limit = if record.phase == Phase::Prefill { setting.chunk } else { 5 };
                prop_assert!(cell.tokens <= limit);
            }
        }
        // Every request ends, with the tokens that were recorded and no more.
        for (request, job) in run.requests.iter().zip(&jobs) {
            let outputs = routes.requests()[job.recorded].output_tokens();
            let expected = match setting.role {
                Role::Prefill => 1,
                Role::Mixed | Role::Decode => outputs - job.decoded,
            };
            prop_assert_eq!(request.output_tokens, expected);
            prop_assert!(request.finish_ns.is_some());
        }
        prop_assert_eq!(run.requests.len(), jobs.len());
        if run.totals.preemptions == 0 {
            prop_assert_eq!(&run.totals.expert_choices, &expected(&routes, &jobs, setting.role));
        }
    }

    #[test]
    fn another_map_changes_times_and_no_request(setting in settings(), seed in any::<u64>()) {
        let shape = setting.shape();
        let routes = routing(&shape, 8, 2, 60, 8, setting.seed);
        let topology = Topology::uniform("x", setting.ranks as u16, 1);
        let curves = HandCurves::simple();
        let config = GroupConfig { kv_blocks_per_rank: 1000, ..setting.config() };
        let jobs = setting.traffic(&routes);
        let serve = |seed| {
            let map = random_map(&shape, setting.ranks, setting.spare, seed);
            let split = SplitTable::even(&map).unwrap();
            let mut replay =
                Replay::new(&routes, &map, &split, &curves, &topology, &Faults::default()).unwrap();
            simulate("p", &config, &routes, &jobs, &mut replay, &mut NoSink, Limits::default())
                .unwrap()
        };
        let (one, again, other) = (serve(setting.seed), serve(setting.seed), serve(seed));
        prop_assert_eq!(format!("{one:?}"), format!("{again:?}"));
        prop_assert_eq!(one.requests.len(), other.requests.len());
        for (a, b) in one.requests.iter().zip(&other.requests) {
            prop_assert_eq!(
                (a.job, a.slice, a.arrival_ns, a.prompt_tokens, a.output_tokens),
                (b.job, b.slice, b.arrival_ns, b.prompt_tokens, b.output_tokens)
            );
        }
        prop_assert_eq!(&one.totals.expert_choices, &other.totals.expert_choices);
        for layer in 0..2 {
            let rows = |run: &evenkeel_sim::Run| -> u64 {
                let at = LayerId(layer).index() * setting.ranks;
                run.totals.rank_rows.iter().map(|r| r[at..at + setting.ranks].iter().sum::<u64>())
                    .sum()
            };
            prop_assert_eq!(rows(&one), rows(&other));
        }
    }

    #[test]
    fn chunks_do_not_change_what_a_prompt_costs_in_rows(seed in any::<u64>(), chunk in 1_u32..200) {
        let shape = shape(2, 6, 3);
        let routes = routing(&shape, 3, 1, 170, 1, seed);
        let map = random_map(&shape, 3, 4, seed);
        let split = SplitTable::even(&map).unwrap();
        let topology = Topology::uniform("x", 3, 1);
        let curves = HandCurves::simple();
        let jobs = common::jobs(&[0, 0, 0]);
        let mut rows = Vec::new();
        for chunk in [chunk, 1000] {
            let mut replay =
                Replay::new(&routes, &map, &split, &curves, &topology, &Faults::default()).unwrap();
            let config = GroupConfig {
                prefill_tokens_per_rank: chunk,
                ..common::config(Role::Prefill)
            };
            let run =
                simulate("p", &config, &routes, &jobs, &mut replay, &mut NoSink, Limits::default())
                    .unwrap();
            rows.push(run.totals.rank_rows);
        }
        prop_assert_eq!(&rows[0], &rows[1]);
    }
}
