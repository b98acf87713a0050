//! Any text as a policy.
#![no_main]

use evenkeel_types::Policy;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Policy::from_toml(text);
});
