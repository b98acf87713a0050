//! Laws of packing and repair, and the exact search against an oracle.

use super::*;
use proptest::prelude::*;

fn layer<'a>(loads: &'a [f64], sizes: &'a [usize], speeds: &'a [f64]) -> LayerRows<'a> {
    LayerRows { loads, sizes, inverse_speed: speeds, extra: &[] }
}

/// Highest level of slots, every expert's rows split evenly over its copies.
fn highest(layer: &LayerRows<'_>, slots: &[Vec<Option<u16>>]) -> f64 {
    let mut copies = vec![0.0; layer.loads.len()];
    slots.iter().flatten().flatten().for_each(|e| copies[usize::from(*e)] += 1.0);
    let level = |(rank, slots): (usize, &Vec<Option<u16>>)| {
        let rows =
            slots.iter().flatten().map(|e| layer.loads[usize::from(*e)] / copies[usize::from(*e)]);
        rows.sum::<f64>() * layer.inverse_speed[rank]
    };
    slots.iter().enumerate().map(level).fold(0.0, f64::max)
}

fn check_lawful(layer: &LayerRows<'_>, slots: &[Vec<Option<u16>>]) {
    let mut seen = vec![false; layer.loads.len()];
    for (rank, slots) in slots.iter().enumerate() {
        let mut held: Vec<u16> = slots.iter().flatten().copied().collect();
        assert!(held.len() <= layer.sizes[rank], "rank {rank}: {} copies", held.len());
        held.iter().for_each(|e| seen[usize::from(*e)] = true);
        held.sort_unstable();
        let count = held.len();
        held.dedup();
        assert_eq!(held.len(), count, "rank {rank} has a copy twice");
    }
    assert!(seen.iter().all(|seen| *seen), "an expert has no copy");
}

/// Loads, sizes and inverse speeds by chance, at least as many slots as experts.
fn problems() -> impl Strategy<Value = (Vec<f64>, Vec<usize>, Vec<f64>)> {
    let loads = prop::collection::vec(prop_oneof![Just(0.0), 0.0..1e6_f64], 1..40);
    let ranks = prop::collection::vec((0_usize..9, prop_oneof![Just(1.0), 1.0..3.0_f64]), 1..12);
    (loads, ranks).prop_map(|(loads, ranks)| {
        let (mut sizes, speeds): (Vec<usize>, Vec<f64>) = ranks.into_iter().unzip();
        let short = loads.len().saturating_sub(sizes.iter().sum());
        sizes[0] += short;
        (loads, sizes, speeds)
    })
}

proptest! {
    #[test]
    fn packings_are_lawful_and_not_below_the_bound((loads, sizes, speeds) in problems(), seed: u64) {
        let layer = layer(&loads, &sizes, &speeds);
        for effort in [Effort::FAST, Effort { seed, tries: 3, ..Effort::THOROUGH }] {
            let slots = place(&layer, effort).unwrap();
            check_lawful(&layer, &slots);
            prop_assert!(highest(&layer, &slots) >= flat_bound(&layer) * (1.0 - 1e-9));
            prop_assert_eq!(&slots, &place(&layer, effort).unwrap());
        }
    }

    #[test]
    fn repairs_are_lawful_and_never_worse(
        (loads, sizes, speeds) in problems(),
        (drifted, cap) in (prop::collection::vec(0.5..1.5_f64, 40), 0_usize..30),
    ) {
        let before = layer(&loads, &sizes, &speeds);
        let live = place(&before, Effort::FAST).unwrap();
        let later: Vec<f64> = loads.iter().zip(drifted).map(|(load, by)| load * by).collect();
        let after = layer(&later, &sizes, &speeds);
        let terms =
            RepairTerms { enough: 0.98, moves_max: cap, pinned: &[], barred: &[], may_fill: true };
        let mut last = f64::INFINITY;
        let mut states = 0;
        let mut step = |slots: LayerSlots, level: f64| {
            check_lawful(&after, &slots);
            assert!((level - highest(&after, &slots)).abs() <= level * 1e-9);
            (last, states) = (level, states + 1);
        };
        let found = repair(&after, &live, &terms, Some(&mut step));
        check_lawful(&after, &found.slots);
        let mean = after.mean();
        let start = highest(&after, &live);
        let end = highest(&after, &found.slots);
        prop_assert!(end <= start.max(mean / 0.98) * (1.0 + 1e-9), "{start} → {end}");
        let new = |(rank, slots): (usize, &Vec<Option<u16>>)| {
            slots.iter().flatten().filter(|e| !live[rank].contains(&Some(**e))).count()
        };
        let moves: usize = found.slots.iter().enumerate().map(new).sum();
        prop_assert_eq!(found.moves, moves);
        prop_assert!(moves <= cap);
    }

    #[test]
    fn groups_stay_whole(loads in prop::collection::vec(1.0..100.0_f64, 24), nodes in 1_usize..4) {
        let (sizes, speeds) = (vec![13; 2 * nodes], vec![1.0; 2 * nodes]);
        let layer = layer(&loads, &sizes, &speeds);
        let node_of: Vec<usize> = (0..2 * nodes).map(|rank| rank / 2).collect();
        let slots = place_grouped(&layer, 6, &node_of, Effort::FAST).unwrap();
        check_lawful(&layer, &slots);
        for group in 0..6_u16 {
            let mut at: Vec<usize> = (0..slots.len())
                .filter(|rank| slots[*rank].iter().flatten().any(|e| e / 4 == group))
                .map(|rank| node_of[rank])
                .collect();
            at.dedup();
            prop_assert_eq!(at.len(), 1, "group {} on nodes {:?}", group, at);
        }
        let bound = grouped_bound(&layer, 6, nodes);
        prop_assert!(highest(&layer, &slots) >= bound * (1.0 - 1e-9));
    }
}

/// Lowest highest level over all placements, by trying every subset of ranks for every expert.
fn oracle(layer: &LayerRows<'_>, expert: usize, held: &mut Vec<Vec<u16>>, best: &mut f64) {
    if expert == layer.loads.len() {
        let slots: LayerSlots =
            held.iter().map(|held| held.iter().copied().map(Some).collect()).collect();
        *best = highest(layer, &slots).min(*best);
        return;
    }
    let ranks = layer.sizes.len();
    for subset in 1_usize..1 << ranks {
        let chosen = |rank: usize| subset >> rank & 1 == 1;
        if (0..ranks).any(|rank| chosen(rank) && held[rank].len() == layer.sizes[rank]) {
            continue;
        }
        (0..ranks).filter(|r| chosen(*r)).for_each(|r| held[r].push(expert as u16));
        oracle(layer, expert + 1, held, best);
        (0..ranks).filter(|r| chosen(*r)).for_each(|r| {
            held[r].pop();
        });
    }
}

#[test]
fn small_layers_are_solved_exactly() {
    for seed in 0..40_u64 {
        let draw = |what: u64| hash3(seed, 9, what);
        let ranks = 2 + draw(0) as usize % 3;
        // The oracle's cost is what limits the size: all subsets of ranks for every expert.
        let experts = 2 + draw(1) as usize % if ranks == 4 { 4 } else { 5 };
        let loads: Vec<f64> = (0..experts).map(|e| (draw(2 + e as u64) % 1000) as f64).collect();
        let least = experts.div_ceil(ranks);
        let sizes: Vec<usize> =
            (0..ranks).map(|r| least + draw(90 + r as u64) as usize % 2).collect();
        let speeds = vec![1.0; ranks];
        let layer = layer(&loads, &sizes, &speeds);
        let mut best = f64::INFINITY;
        oracle(&layer, 0, &mut vec![Vec::new(); ranks], &mut best);
        let effort = Effort { enough: 1.0, ..Effort::THOROUGH };
        let found = highest(&layer, &place(&layer, effort).unwrap());
        assert!((found - best).abs() <= best * 1e-9, "seed {seed}: {found}, the best is {best}");
    }
}

#[test]
fn published_examples() {
    // FlashLB's illustrative vector (problem E4) and DeepSeek's README (problem A).
    let e4: Vec<f64> = include_str!("../../tests/common/e4.txt")
        .split_whitespace()
        .map(|load| load.parse().unwrap())
        .collect();
    let (sizes, speeds) = (vec![2; 8], vec![1.0; 8]);
    let layer = layer(&e4, &sizes, &speeds);
    let found = layer.mean() / highest(&layer, &place(&layer, Effort::THOROUGH).unwrap());
    assert!((found - 0.9216).abs() < 1e-4, "{found}");
}

#[test]
fn odd_inputs() {
    let speeds = [1.0; 4];
    let at = |loads: &[f64], sizes: &[usize]| {
        place(&layer(loads, sizes, &speeds[..sizes.len()]), Effort::THOROUGH)
    };
    assert_eq!(at(&[1.0, 2.0], &[1]), None, "fewer slots than experts");
    assert_eq!(at(&[], &[2, 2]), Some(vec![vec![None; 2]; 2]));
    assert_eq!(at(&[1.0], &[0, 0]), None, "no rank left");
    // All zero: copies are spread, nobody gets them all (field case 16).
    let zero = at(&[0.0; 4], &[2, 2, 2]).unwrap();
    let copies = |expert: u16| zero.iter().flatten().filter(|e| **e == Some(expert)).count();
    assert_eq!((0..4).map(copies).max(), Some(2));
    // More ranks than experts, and one expert with nearly everything.
    let hot = at(&[99.0, 1.0], &[1, 1, 1, 1]).unwrap();
    assert_eq!(hot.iter().flatten().filter(|e| **e == Some(0)).count(), 3);
    // More free slots than copies that could use them: an expert is on every rank at most once.
    let full = at(&[5.0, 1.0], &[4, 4]).unwrap();
    assert_eq!(full.iter().flatten().flatten().count(), 4);
}
