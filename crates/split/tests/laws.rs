//! Laws of splits: nothing lost, nothing beaten, the same everywhere.

use evenkeel_split::{SplitTable, min_max_rows, min_max_rows_weighted};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, ModelShape, RankId};
use proptest::prelude::*;

/// The largest (rows that live only in U) ÷ |U| over all sets U of ranks, by enumeration.
fn by_enumeration(hosts: &[Vec<RankId>], loads: &[u64], weights: &[u32]) -> f64 {
    let mut best = 0.0_f64;
    for set in 1_u32..1 << weights.len() {
        let inside = |rank: &RankId| set >> rank.0 & 1 == 1;
        let rows: u64 = hosts
            .iter()
            .zip(loads)
            .filter(|(ranks, _)| ranks.iter().all(inside))
            .map(|(_, load)| load)
            .sum();
        let weight: u32 =
            (0..weights.len()).filter(|r| set >> r & 1 == 1).map(|r| weights[r]).sum();
        best = best.max(rows as f64 / f64::from(weight));
    }
    best
}

fn problem() -> impl Strategy<Value = (Vec<Vec<RankId>>, Vec<u64>, Vec<u32>)> {
    (1_usize..7).prop_flat_map(|ranks| {
        let hosts =
            prop::collection::vec(prop::collection::btree_set(0..ranks as u16, 1..=ranks), 1..12);
        hosts.prop_flat_map(move |hosts| {
            let hosts: Vec<Vec<RankId>> =
                hosts.into_iter().map(|set| set.into_iter().map(RankId).collect()).collect();
            let loads = prop::collection::vec(
                prop_oneof![Just(0_u64), 0..50_u64, 0..100_000_u64],
                hosts.len(),
            );
            (Just(hosts), loads, prop::collection::vec(1_u32..5, ranks))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn min_max_equals_the_largest_set((hosts, loads, weights) in problem()) {
        let split = min_max_rows_weighted(&hosts, &loads, &weights).unwrap();
        let oracle = by_enumeration(&hosts, &loads, &weights);
        prop_assert!((split.max_rows - oracle).abs() <= 1e-9 * oracle.max(1.0));
        prop_assert!((split.rows as f64 / split.weight as f64 - oracle).abs() <= 1e-9 * oracle.max(1.0));
        let most = split.rank_rows.iter().zip(&weights)
            .map(|(rows, weight)| rows / f64::from(*weight)).fold(0.0, f64::max);
        prop_assert!((most - oracle).abs() <= 1e-6 * oracle.max(1.0), "{most} {oracle}");
        for shares in &split.shares {
            prop_assert!(shares.iter().all(|share| (-1e-12..=1.0 + 1e-12).contains(share)));
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn no_shift_between_two_copies_evens_out_more((hosts, loads, _) in problem()) {
        // Lexicographic optimality: a copy that takes rows is never on a rank with more rows than
        // a sibling's.
        let ranks = hosts.iter().flatten().map(|rank| rank.index() + 1).max().unwrap_or(1);
        let split = min_max_rows(&hosts, &loads, ranks).unwrap();
        for (expert, ranks) in hosts.iter().enumerate() {
            for (a, rank_a) in ranks.iter().enumerate() {
                let rows = split.shares[expert][a] * loads[expert] as f64;
                for rank_b in ranks {
                    let gap = split.rank_rows[rank_a.index()] - split.rank_rows[rank_b.index()];
                    prop_assert!(rows < 1e-6 || gap < 1e-6 * split.max_rows.max(1.0));
                }
            }
        }
    }

    #[test]
    fn a_table_keeps_shares_within_a_way(seed in any::<u64>(), slots in 4_usize..8) {
        let shape = ModelShape { moe_layers: 3, experts: 16, ..ModelShape::known("olmoe-1b-7b").unwrap() };
        let map = ExpertMap::contiguous(&shape, 5, slots);
        let loads: Vec<u64> = (0..48).map(|i| evenkeel_types::hash2(seed, i) % 10_000).collect();
        let table = SplitTable::balanced(&map, &loads).unwrap();
        prop_assert_eq!(&table, &SplitTable::balanced(&map, &loads).unwrap());
        for table in [&table, &SplitTable::even(&map).unwrap()] {
            for layer in 0..3 {
                let layer = LayerId(layer);
                let hosts = map.hosts(layer);
                for expert in 0..16 {
                    let expert = ExpertId(expert);
                    let shares = table.shares(layer, expert);
                    let ranks: Vec<RankId> = shares.iter().map(|share| share.0).collect();
                    prop_assert_eq!(&ranks, &hosts[expert.index()]);
                    for (rank, ways) in shares {
                        let found = (0..SplitTable::WAYS)
                            .filter(|way| table.host(layer, expert, *way) == *rank).count();
                        prop_assert_eq!(found, usize::from(*ways));
                    }
                }
            }
        }
        for (layer, rounding) in table.rounding().iter().enumerate() {
            let bound: u64 = loads[layer * 16..(layer + 1) * 16].iter().sum();
            prop_assert!(rounding.table_max_rows <= rounding.exact_max_rows + bound as f64 / 64.0);
            prop_assert!(rounding.table_max_rows >= rounding.exact_max_rows * (1.0 - 1e-9));
        }
    }
}

#[test]
fn ways_alternate() {
    let shape = ModelShape {
        moe_layers: 1,
        experts: 2,
        top_k: 1,
        ..ModelShape::known("olmoe-1b-7b").unwrap()
    };
    let map = ExpertMap::contiguous(&shape, 2, 2);
    let table = SplitTable::even(&map).unwrap();
    for way in 0..SplitTable::WAYS {
        let here = table.host(LayerId(0), ExpertId(1), way);
        assert_ne!(here, table.host(LayerId(0), ExpertId(1), way + 1));
    }
}

#[test]
fn faults_are_named() {
    let shape = ModelShape {
        moe_layers: 2,
        experts: 4,
        top_k: 1,
        ..ModelShape::known("olmoe-1b-7b").unwrap()
    };
    let mut map = ExpertMap::contiguous(&shape, 2, 2);
    let message = SplitTable::balanced(&map, &[1; 7]).unwrap_err().to_string();
    assert!(message.contains("7 entries, expected 8"), "{message}");
    let message = SplitTable::balanced(&map, &[u64::MAX / 4; 8]).unwrap_err().to_string();
    assert!(message.contains("63 bits"), "{message}");
    map.slots[1][1][0] = None;
    let message = SplitTable::balanced(&map, &[1; 8]).unwrap_err().to_string();
    assert!(message.contains("layer 1, expert 2"), "{message}");
    assert!(SplitTable::even(&map).is_err());
}
