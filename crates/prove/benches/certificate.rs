//! `cargo bench -p evenkeel-prove --bench certificate`: processor time to derive a certificate, and
//! to compare its digests as well.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a bench looks at the clock, and stops at a fault"
)]

use evenkeel_cost::ExpertCoefficients;
use evenkeel_prove::{
    Certificate, CertifiedObjective, Claims, LayerClaim, Question, check_certificate,
    derive_certificate,
};
use evenkeel_trace::{StepLoad, StepLoads};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Topology, hash3, unit_f64};
use std::io::Write;
use std::time::Instant;

/// Processor time of this process so far, ms, on a CPU where Linux tells, otherwise on the wall.
fn now_ms(start: Instant) -> f64 {
    let on_cpu = std::fs::read_to_string("/proc/self/schedstat").ok();
    let on_cpu = on_cpu.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    on_cpu.map_or_else(|| start.elapsed().as_secs_f64() * 1e3, |ns| ns / 1e6)
}

fn median_ms(start: Instant, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let before = now_ms(start);
            (0..8).for_each(|_| work());
            (now_ms(start) - before) / 8.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[4]
}

/// A map in which experts 0.. have a second copy, and a skewed window of 64 steps.
fn certificate(layers: u16, experts: u16, ranks: u16, slots: usize) -> Certificate {
    let v3 = ModelShape::known("deepseek-v3").expect("known");
    let shape = ModelShape { moe_layers: layers, experts, groups: None, ..v3 };
    let map = ExpertMap::contiguous(&shape, usize::from(ranks), slots);
    let cells = u64::from(layers) * u64::from(experts);
    let steps = (0..64).map(|step| {
        let count = |cell| {
            let heat = (3.0 * unit_f64(hash3(1, cell, 0))).exp();
            (heat * 8.0 * unit_f64(hash3(2, cell, step))) as u32
        };
        StepLoad { tokens: 4096, counts: (0..cells).map(count).collect() }
    });
    let loads = StepLoads {
        phase: Phase::Decode,
        layers: usize::from(layers),
        experts: usize::from(experts),
        steps: steps.collect(),
    };
    let question = Question {
        objective: CertifiedObjective::StepTime,
        topology: Topology::uniform("h20", ranks, 2_000_000_000_000),
        policy: Policy::default(),
        coefficients: ExpertCoefficients {
            floor_us: 11.7,
            slot_us: 0.12,
            first_us: 9.0,
            tile_rows: 64,
            further_tile_us: 8.9,
            row_us: 0.025,
            ..ExpertCoefficients::FREE
        },
        exchange_us_per_row: 0.01,
        fixed_us: 3000.0,
        rank_extra_us: None,
        slots_live: vec![vec![slots as u16; usize::from(ranks)]; usize::from(layers)],
        shape,
        loads,
    };
    let parts = vec![vec![1; usize::from(ranks) * slots]; usize::from(layers)];
    let layers = vec![LayerClaim { us: 0.0, bound_us: 0.0 }; usize::from(layers)];
    let claims = Claims { step_us: 0.0, bound_us: 0.0, gap_share: 0.0, layers };
    Certificate::seal("bench", question, map, parts, claims).expect("seals")
}

fn main() {
    let start = Instant::now();
    let mut out = std::io::stdout().lock();
    for (name, layers, experts, ranks, slots) in [
        ("B1, 58 x 256, 32 ranks x 9", 58, 256, 32, 9),
        ("D2, 60 x 384, 128 ranks x 4", 60, 384, 128, 4),
        ("EP256, 60 x 384, 256 ranks x 4", 60, 384, 256, 4),
    ] {
        let certificate = certificate(layers, experts, ranks, slots);
        let mut found = 0;
        let derive = median_ms(start, || found = derive_certificate(&certificate).len());
        let check = median_ms(start, || found = check_certificate(&certificate).len());
        let mb = certificate.to_json().expect("json").len() as f64 / 1e6;
        writeln!(
            out,
            "{name}, 64 steps: derive {derive:.1} ms, with digests {check:.1} ms; file {mb:.1} MB, \
             {found} claims refused"
        )
        .expect("stdout");
    }
}
