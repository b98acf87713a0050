//! The text readers of maps, topologies and policies end on any text, and what they write they read.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod common;

use common::map;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Policy, Topology};
use proptest::prelude::*;

/// Applies edits to a text, as bytes; what is no longer UTF-8 is replaced.
fn edited(text: &str, edits: &[(prop::sample::Index, u8)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (at, byte) in edits {
        let at = at.index(bytes.len());
        bytes[at] = *byte;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read_map(text: &str) {
    if let Ok(map) = ExpertMap::from_json(text) {
        // Every question that a checker asks of a map must be answered for any map that parses.
        let _ = (map.violations(), map.digest(), map.copies_per_rank());
        let _ = map.hosts(LayerId(0));
        let _ = map.fits(&common::shape(), common::RANKS);
        assert_eq!(ExpertMap::from_json(&map.to_json().unwrap()).unwrap(), map);
    }
}

fn read_topology(text: &str) {
    if let Ok(topology) = Topology::from_toml(text) {
        assert_eq!(topology.ranks().len(), topology.rank_count());
        assert_eq!(Topology::from_toml(&topology.to_toml().unwrap()).unwrap(), topology);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn edited_files_end_without_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        read_map(&edited(&map(1).to_json().unwrap(), &edits));
        let topology = Topology::uniform("h20", 12, 1 << 36).to_toml().unwrap();
        read_topology(&edited(&topology, &edits));
        let policy = include_str!("../../types/src/policy.toml");
        let _ = Policy::from_toml(&edited(policy, &edits));
    }

    #[test]
    fn any_text_ends_without_panic(text in "\\PC{0,200}") {
        read_map(&text);
        read_topology(&text);
        let _ = Policy::from_toml(&text);
    }

    #[test]
    fn a_map_comes_back_as_it_was(
        slots in prop::collection::vec(
            prop::collection::vec(prop::option::of(0_u16..40), 0..5), 1..5),
    ) {
        let slots: Vec<Vec<Option<ExpertId>>> =
            slots.into_iter().map(|rank| rank.into_iter().map(|id| id.map(ExpertId)).collect()).collect();
        let map = ExpertMap { slots: vec![slots; 2], ..map(3) };
        read_map(&map.to_json().unwrap());
        prop_assert_eq!(ExpertMap::from_json(&map.to_json().unwrap()).unwrap(), map);
    }
}
