//! Laws of the pass that cuts traffic between nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its input has failed")]

use evenkeel_plan::affinity::{Limit, Mode, Question, Traffic, bound, cross_node, localise};
use evenkeel_split::{SourceSplit, SplitTable};
use evenkeel_trace::{RecordedRequest, Routes};
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, ModelShape, NodeId, Phase, Pin, RankId, SliceId, Topology, hash3,
};
use proptest::prelude::*;

fn shape(experts: u16, top_k: u8) -> ModelShape {
    let known = ModelShape::known("olmoe-1b-7b").unwrap();
    ModelShape { moe_layers: 2, experts, top_k, ..known }
}

/// Tokens whose choices lean to one of two clusters of experts.
fn routes(shape: &ModelShape, tokens: usize, seed: u64) -> Routes {
    let (experts, k) = (u64::from(shape.experts), usize::from(shape.top_k));
    let mut ids = Vec::new();
    for row in 0..(tokens * 2) as u64 {
        let mut chosen: Vec<u16> = Vec::new();
        let mut draw = 0;
        while chosen.len() < k {
            draw += 1;
            let value = hash3(seed, row, draw);
            let near = !(value >> 32).is_multiple_of(4);
            let expert =
                if near { (value % experts) / 2 * 2 + row / 2 % 2 } else { value % experts };
            let expert = (expert % experts) as u16;
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        ids.extend(chosen);
    }
    let request = RecordedRequest {
        request: 1,
        slice: SliceId(0),
        first_token: 0,
        prompt_tokens: tokens as u32 / 2,
        tokens: tokens as u32,
    };
    Routes::new(shape, vec![request], ids).unwrap()
}

fn topology(nodes: u16, per_node: u16) -> Topology {
    let mut topology = Topology::uniform("h20", nodes * 8, 96_000_000_000);
    for node in &mut topology.node {
        node.ranks = per_node;
    }
    topology
}

/// Expected and counted units by brute force over a routes object.
fn brute(
    split: &SourceSplit,
    routes: &Routes,
    topology: &Topology,
    layer: usize,
    mode: Mode,
) -> f64 {
    let ranks = topology.ranks();
    let mut crossing = 0.0;
    for token in 0..routes.requests()[0].prompt_tokens as usize {
        for node in 0..topology.node.len() {
            let mut nodes = std::collections::BTreeSet::new();
            for expert in routes.choices(token, layer) {
                let (layer, expert) = (LayerId(layer as u16), ExpertId(*expert));
                let host = split.host(NodeId(node as u16), layer, expert, 0);
                let at = ranks[host.index()].node.index();
                if at != node {
                    nodes.insert(at);
                    crossing += if mode == Mode::LowLatency { 1.0 } else { 0.0 };
                }
            }
            crossing += if mode == Mode::Normal { nodes.len() as f64 } else { 0.0 };
        }
    }
    crossing
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_stays_lawful_within_the_loss_and_above_the_bound(
        nodes in 1_u16..4,
        per_node in 1_u16..4,
        extra in 0_usize..3,
        normal in any::<bool>(),
        loss in 0.0..0.1_f64,
        seed in any::<u64>(),
    ) {
        let shape = shape(12, 3);
        let topology = topology(nodes, per_node);
        let ranks = topology.rank_count();
        let slots = (12_usize.div_ceil(ranks) + extra).min(12);
        let map = ExpertMap::contiguous(&shape, ranks, slots);
        let split = SplitTable::even(&map).unwrap();
        let routes = routes(&shape, 200, seed);
        let share = vec![vec![1.0; usize::from(nodes)]];
        let traffic = Traffic::of_routes(&routes, Phase::Prefill, &share, 1000, seed);
        let mode = if normal { Mode::Normal } else { Mode::LowLatency };
        let pinned = [Pin { layer: LayerId(0), expert: ExpertId(0), rank: RankId(0) }];
        let question = Question {
            map: &map, split: &split, topology: &topology, traffic: &traffic, mode,
            limit: Limit::Loss(loss), pinned: &pinned, proposals: 400, seed,
        };
        let found = localise(question).unwrap();
        prop_assert_eq!(found.map.violations(), vec![]);
        prop_assert!(found.map.slots[0][0].contains(&Some(ExpertId(0))));
        prop_assert_eq!(found.map.copies_per_rank(), map.copies_per_rank());
        for layer in 0..2 {
            let most = found.before.slowest_rows[layer] * (1.0 + loss) + 1e-6;
            prop_assert!(found.after.slowest_rows[layer] <= most);
            for node in 0..nodes {
                for (expert, hosts) in found.map.hosts(LayerId(layer as u16)).iter().enumerate() {
                    let shares =
                        found.split.shares(NodeId(node), LayerId(layer as u16), ExpertId(expert as u16));
                    let there: Vec<RankId> = shares.iter().map(|(rank, _)| *rank).collect();
                    prop_assert_eq!(&there, hosts);
                    prop_assert_eq!(shares.iter().map(|(_, ways)| ways).sum::<u16>(), 64);
                }
            }
        }
        prop_assert!(found.after.crossing <= found.before.crossing + 1e-6);
        prop_assert!((found.after.units - found.before.units).abs() < 1e-6);
        let least = bound(&found.map, &traffic, &topology, mode);
        prop_assert!(least <= found.after.share() + 1e-9, "{} {}", least, found.after.share());
        prop_assert_eq!(localise(question).unwrap().map, found.map);
    }

    #[test]
    fn units_are_counted_as_by_hand(per_node in 1_u16..4, normal in any::<bool>(), seed in any::<u64>()) {
        let shape = shape(12, 3);
        let topology = topology(3, per_node);
        // One copy per expert: every way leads to the same rank.
        let ranks = topology.rank_count();
        let mut map = ExpertMap::contiguous(&shape, ranks, 12_usize.div_ceil(ranks));
        for layer in &mut map.slots {
            let mut seen = std::collections::BTreeSet::new();
            for slot in layer.iter_mut().flatten() {
                if slot.is_some_and(|expert| !seen.insert(expert)) {
                    *slot = None;
                }
            }
        }
        let split = SourceSplit::of_table(&map, &SplitTable::even(&map).unwrap(), 3).unwrap();
        let routes = routes(&shape, 100, seed);
        let traffic = Traffic::of_routes(&routes, Phase::Prefill, &[vec![1.0; 3]], 1000, seed);
        let mode = if normal { Mode::Normal } else { Mode::LowLatency };
        let found = cross_node(&split, &traffic, &topology, mode);
        let by_hand: f64 = (0..2).map(|layer| brute(&split, &routes, &topology, layer, mode)).sum();
        prop_assert!((found.crossing - by_hand).abs() < 1e-6, "{} {}", found.crossing, by_hand);
    }
}

#[test]
fn a_split_by_source_keeps_traffic_at_home() {
    // Every expert on both nodes: an even split crosses half, a split by source nothing.
    let shape = shape(8, 2);
    let topology = topology(2, 1);
    let map = ExpertMap::contiguous(&shape, 2, 8);
    let split = SplitTable::even(&map).unwrap();
    let routes = routes(&shape, 400, 3);
    let traffic = Traffic::of_routes(&routes, Phase::Decode, &[vec![1.0; 2]], 1000, 3);
    for mode in [Mode::LowLatency, Mode::Normal] {
        let found = localise(Question {
            map: &map,
            split: &split,
            topology: &topology,
            traffic: &traffic,
            mode,
            limit: Limit::Loss(0.0),
            pinned: &[],
            proposals: 0,
            seed: 1,
        })
        .unwrap();
        assert!(found.before.share() > 0.45, "{}", found.before.share());
        assert!(found.after.crossing < 1e-9 && found.arrivals == 0);
    }
}
