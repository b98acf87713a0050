//! The gate's error rates on fresh pairs: every run served anew under its own seed, nothing
//! resampled. The table in `docs/gate.md` is this program's output.
//!
//! `cargo run --release -p evenkeel-prove --example fresh_pairs`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement prints its table and stops where it cannot go on"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use evenkeel_prove::{Decision, Design, GateInput, KvHeadroom, Metric, Pair, Verdict, gate};
use evenkeel_types::{Policy, Slice};
use support::{Side, Tenant, Traffic, serve};

const PAIRS: u64 = 500;

fn traffic(requests: u64, seed: u64) -> Traffic {
    let tenant = |name: &str, share| Tenant { name: name.into(), share, score: None };
    Traffic {
        requests,
        arrival_ms: 27.0,
        places: 64,
        output_tokens: [40, 120],
        prompt_tokens: 512,
        burst: 1,
        tenants: vec![tenant("a", 0.5), tenant("b", 0.3), tenant("c", 0.2)],
        seed,
    }
}

fn side(scale: f64, seed: u64) -> Side {
    Side {
        decode_ms: 14.0 * scale,
        prefill_ms: 4.0 * scale,
        expert_mean_ms: 0.0,
        rows_max_over_mean: 1.0,
        noise: 0.05,
        own_noise: 0.03,
        slow: Vec::new(),
        stall_every_steps: 0,
        stall_ms: 0.0,
        stalls_max: 0,
        misplaced_rows: 0,
        score_factor: 1.0,
        seed,
    }
}

fn judge(requests: u64, design: Design, pair: u64, scale: f64) -> Verdict {
    let slices: Vec<Slice> = ["a", "b", "c"].iter().map(|name| Slice::of_tenant(name)).collect();
    let policy = Policy::default();
    let other = if design == Design::Paired { 1000 + pair } else { 9000 + pair };
    let live = serve("live", &traffic(requests, 1000 + pair), &side(1.0, pair));
    let candidate = serve("candidate", &traffic(requests, other), &side(scale, 5000 + pair));
    let mut input = GateInput::new(Pair { live: &live, candidate: &candidate }, &slices, &policy);
    input.design = design;
    input.replicates = 400;
    input.seed = pair;
    input.sameness.map_checked = true;
    input.kv = KvHeadroom { live_share: Some(1.0), candidate_share: Some(1.0) };
    gate(&input).unwrap()
}

fn main() {
    println!("{PAIRS} pairs of each kind");
    for requests in [1500, 4000] {
        for design in [Design::Paired, Design::Independent] {
            let mut blocks = 0;
            let mut words = String::new();
            for (name, scale) in [("same", 1.0), ("5 % better", 0.95), ("5 % worse", 1.05)] {
                let (mut accepted, mut rejected, mut held) = (0, 0, 0);
                for pair in 0..PAIRS {
                    let verdict = judge(requests, design, pair, scale);
                    accepted += u32::from(verdict.decision == Decision::Accept);
                    rejected += u32::from(verdict.decision == Decision::Reject);
                    let all = |row: &&evenkeel_prove::Comparison| {
                        row.metric == Metric::TpotP99 && row.slice.is_none()
                    };
                    let [low, high] = verdict.metrics.iter().find(all).unwrap().interval;
                    held += u32::from(low <= 0.0 && 0.0 <= high);
                    blocks += u64::from(verdict.resampling.blocks);
                }
                words += &format!("; {name}: accepted {accepted}, rejected {rejected}");
                if name == "same" {
                    words += &format!(", interval holds 0 in {held}");
                }
            }
            println!("{design:?}, {requests} requests, {} blocks{words}", blocks / (3 * PAIRS));
        }
    }
}
