//! Splits of single steps: whole rows, the least largest rank, the same every time.

#![allow(clippy::unwrap_used, reason = "a test stops at a fault")]

use evenkeel_split::{
    SplitTable, StepSplitter, TimedInput, TokensSeen, check_replica_choice, min_max_rows,
    min_max_rows_weighted, timed_shares,
};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, ModelShape, RankId};
use proptest::prelude::*;
use serde::Deserialize;

type Problem = (Vec<Vec<RankId>>, Vec<u64>, Vec<u32>);

fn problem(experts: usize, most: u64) -> impl Strategy<Value = Problem> {
    (1_usize..6).prop_flat_map(move |ranks| {
        let set = prop::collection::btree_set(0..ranks as u16, 1..=ranks);
        let hosts = prop::collection::vec(set, 1..experts).prop_map(|hosts| {
            hosts.into_iter().map(|set| set.into_iter().map(RankId).collect()).collect()
        });
        let load = prop_oneof![Just(0), 0..4_u64, 0..most];
        (hosts, Just(()), prop::collection::vec(1_u32..4, ranks)).prop_flat_map(
            move |(hosts, (), weights): (Vec<Vec<RankId>>, (), Vec<u32>)| {
                let loads = prop::collection::vec(load.clone(), hosts.len());
                (Just(hosts), loads, Just(weights))
            },
        )
    })
}

/// Least largest rank over all whole splits, by enumeration.
fn least(hosts: &[Vec<RankId>], loads: &[u64], rows: &mut [u64]) -> u64 {
    let Some(load) = loads.first().copied() else {
        return rows.iter().copied().max().unwrap_or(0);
    };
    fn share(
        hosts: &[Vec<RankId>],
        loads: &[u64],
        rows: &mut [u64],
        host: usize,
        left: u64,
    ) -> u64 {
        let rank = hosts[0][host].index();
        if host + 1 == hosts[0].len() {
            rows[rank] += left;
            let found = least(&hosts[1..], &loads[1..], rows);
            rows[rank] -= left;
            return found;
        }
        let mut best = u64::MAX;
        for here in 0..=left {
            rows[rank] += here;
            best = best.min(share(hosts, loads, rows, host + 1, left - here));
            rows[rank] -= here;
        }
        best
    }
    share(hosts, loads, rows, 0, load)
}

/// A first tile of 8 rows costs 10, a further one 3, a row 0.1.
fn cell(rows: f64) -> f64 {
    if rows <= 0.0 { 0.0 } else { 10.0 + 3.0 * ((rows / 8.0).ceil() - 1.0) + 0.1 * rows }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whole_rows_are_the_least_by_enumeration((hosts, loads, weights) in problem(5, 6)) {
        let ranks = weights.len();
        let mut splitter = StepSplitter::new(&hosts, &vec![1; ranks]).unwrap();
        splitter.split(&loads).unwrap();
        let found = splitter.rank_rows().iter().copied().max().unwrap();
        prop_assert_eq!(found, least(&hosts, &loads, &mut vec![0; ranks]));
    }

    #[test]
    fn a_step_is_whole_exact_and_repeats((hosts, loads, weights) in problem(14, 100_000)) {
        for weights in [vec![1; weights.len()], weights] {
            let exact = min_max_rows_weighted(&hosts, &loads, &weights).unwrap();
            let mut splitter = StepSplitter::new(&hosts, &weights).unwrap();
            splitter.split(&vec![7_u64; loads.len()]).unwrap();
            splitter.split(&loads).unwrap();
            let mut fresh = StepSplitter::new(&hosts, &weights).unwrap();
            fresh.split(&loads).unwrap();
            let mut rank_rows = vec![0; weights.len()];
            for (expert, ranks) in hosts.iter().enumerate() {
                prop_assert_eq!(splitter.rows(expert), fresh.rows(expert));
                prop_assert_eq!(splitter.rows(expert).iter().sum::<u64>(), loads[expert]);
                for (rank, rows) in ranks.iter().zip(splitter.rows(expert)) {
                    rank_rows[rank.index()] += rows;
                }
            }
            prop_assert_eq!(splitter.rank_rows(), rank_rows.as_slice());
            let (rows, weight) = splitter.bound();
            prop_assert!(rows as f64 / weight as f64 <= exact.max_rows * (1.0 + 1e-12));
            for (rows, weight) in rank_rows.iter().zip(&weights) {
                let own = exact.rows * u64::from(*weight);
                prop_assert!(*rows <= own.div_ceil(exact.weight), "{} {:?}", rows, exact);
            }
        }
    }

    #[test]
    fn every_row_finds_its_copy((hosts, loads, weights) in problem(8, 40)) {
        let mut splitter = StepSplitter::new(&hosts, &weights).unwrap();
        splitter.split(&loads).unwrap();
        for (expert, load) in loads.iter().enumerate() {
            let mut served = vec![0; hosts[expert].len()];
            (0..*load).for_each(|nth| served[splitter.copy_of(expert, nth)] += 1);
            prop_assert_eq!(served.as_slice(), splitter.rows(expert));
        }
    }

    #[test]
    fn time_is_never_worse_than_by_rows((hosts, loads, weights) in problem(10, 60)) {
        let ranks = weights.len();
        let base = vec![1.0; ranks];
        let mut splitter = StepSplitter::new(&hosts, &vec![1; ranks]).unwrap();
        splitter.split(&loads).unwrap();
        let time = |splitter: &StepSplitter| {
            let mut time = base.clone();
            for (expert, hosts) in hosts.iter().enumerate() {
                for (rank, rows) in hosts.iter().zip(splitter.rows(expert)) {
                    time[rank.index()] += cell(*rows as f64);
                }
            }
            time.into_iter().fold(0.0, f64::max)
        };
        let by_rows = time(&splitter);
        let us = splitter.split_timed(&loads, &base, |rows| cell(rows as f64)).unwrap();
        prop_assert!((us - time(&splitter)).abs() < 1e-6);
        prop_assert!(us <= by_rows + 1e-6);
        for (expert, load) in loads.iter().enumerate() {
            prop_assert_eq!(splitter.rows(expert).iter().sum::<u64>(), *load);
        }
        let rows: Vec<f64> = loads.iter().map(|load| *load as f64).collect();
        let speed = vec![1.0; ranks];
        let input = TimedInput {
            hosts: &hosts, rows: &rows, steps: 1, base_us: &base, inverse_speed: &speed,
        };
        let timed = timed_shares(&input, cell).unwrap();
        prop_assert!(timed.slowest_us <= timed.min_max_us.min(timed.even_us) + 1e-9);
        for shares in &timed.shares {
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(shares.iter().all(|share| (0.0..=1.0 + 1e-9).contains(share)));
        }
    }
}

#[test]
fn a_copy_not_worth_its_first_tile_stays_closed() {
    // Rows are level at 4 and 4; then both ranks read expert 0, though one has nothing else to do.
    let hosts = vec![vec![RankId(0), RankId(1)], vec![RankId(0)], vec![RankId(1)]];
    let mut splitter = StepSplitter::new(&hosts, &[1, 1]).unwrap();
    splitter.split(&[2_u64, 3, 3]).unwrap();
    assert_eq!(splitter.rows(0), [1, 1]);
    let us = splitter.split_timed(&[4_u64, 8, 0], &[0.0, 0.0], |rows| cell(rows as f64)).unwrap();
    assert_eq!(splitter.rows(0), [0, 4]);
    assert!((us - cell(8.0)).abs() < 1e-9);
}

#[test]
fn given_shares_become_a_table() {
    let shape = ModelShape {
        moe_layers: 1,
        experts: 2,
        top_k: 1,
        ..ModelShape::known("olmoe-1b-7b").unwrap()
    };
    let map = ExpertMap::contiguous(&shape, 2, 2);
    let hosts = map.hosts(LayerId(0));
    let loads = [100, 50];
    let exact = min_max_rows(&hosts, &loads, 2).unwrap();
    let table = SplitTable::from_shares(&map, &loads, &[1, 1], std::slice::from_ref(&exact.shares));
    assert_eq!(table.unwrap(), SplitTable::balanced(&map, &loads).unwrap());
    let shares = vec![vec![vec![0.25, 0.75], vec![1.0, 0.0]]];
    let table = SplitTable::from_shares(&map, &loads, &[1, 1], &shares).unwrap();
    let ways: Vec<u16> =
        table.shares(LayerId(0), ExpertId(0)).iter().map(|share| share.1).collect();
    assert_eq!(ways, [16, 48]);
    let wrong = vec![vec![vec![0.25, 0.5], vec![1.0, 0.0]]];
    let message = SplitTable::from_shares(&map, &loads, &[1, 1], &wrong).unwrap_err().to_string();
    assert!(message.contains("layer 0, expert 0: shares sum to 0.75"), "{message}");
}

#[derive(Deserialize)]
struct Case {
    name: String,
    ranks: Vec<Vec<u16>>,
    tables: Vec<Vec<u16>>,
    seen_by_all: bool,
    faults: Vec<String>,
}

#[test]
fn replica_choices_are_judged_as_the_cases_say() {
    let text = include_str!("../../../cases/split/replica-choice.json");
    let cases: Vec<Case> = serde_json::from_str(text).unwrap();
    assert!(cases.len() >= 3);
    let shape = ModelShape {
        moe_layers: 1,
        experts: 6,
        top_k: 1,
        ..ModelShape::known("olmoe-1b-7b").unwrap()
    };
    for case in cases {
        let mut map = ExpertMap::contiguous(&shape, case.ranks.len(), 3);
        map.slots[0] = case
            .ranks
            .iter()
            .map(|experts| experts.iter().map(|expert| Some(ExpertId(*expert))).collect())
            .collect();
        let tables: Vec<Vec<RankId>> =
            case.tables.iter().map(|table| table.iter().copied().map(RankId).collect()).collect();
        let seen = if case.seen_by_all { TokensSeen::ByAllRanks } else { TokensSeen::ByOneRank };
        let faults = check_replica_choice(&map, &tables, 1, seen).unwrap();
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, case.faults, "{}", case.name);
    }
    // A table that all ranks share cannot be at fault.
    let map = ExpertMap::contiguous(&shape, 2, 5);
    let table = SplitTable::even(&map).unwrap();
    let mut flat = Vec::new();
    for expert in 0..6 {
        flat.extend((0..SplitTable::WAYS).map(|way| table.host(LayerId(0), ExpertId(expert), way)));
    }
    let tables = [flat.clone(), flat];
    let faults = check_replica_choice(&map, &tables, SplitTable::WAYS, TokensSeen::ByAllRanks);
    assert!(faults.unwrap().is_empty());
}
