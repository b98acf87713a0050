//! Any bytes as a table of expert counts: what is read has the size it says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(counts) = evenkeel_interop::expert_counts(bytes, "counts.csv") {
        assert_eq!(counts.counts.len(), counts.layers * counts.experts);
    }
});
