//! Any text as a map: it parses or is refused, and what parses answers a checker's questions.
#![no_main]

use evenkeel_types::{ExpertMap, LayerId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(map) = ExpertMap::from_json(text) {
        let _ = (map.violations(), map.digest(), map.copies_per_rank(), map.hosts(LayerId(0)));
        let again = map.to_json().expect("a map in memory has a text");
        assert_eq!(ExpertMap::from_json(&again).expect("our own text"), map);
    }
});
