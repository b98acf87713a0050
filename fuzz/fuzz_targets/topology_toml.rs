//! Any text as a topology: what parses has consistent ranks and comes back from its own text.
#![no_main]

use evenkeel_types::Topology;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(topology) = Topology::from_toml(text) {
        assert_eq!(topology.ranks().len(), topology.rank_count());
        let again = topology.to_toml().expect("a valid topology has a text");
        assert_eq!(Topology::from_toml(&again).expect("our own text"), topology);
    }
});
