//! Any bytes as an arrivals CSV: what is read is in order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(times) = evenkeel_interop::arrivals(bytes, "arrivals.csv") {
        assert!(times.is_sorted());
    }
});
