//! Drawing jobs: common random numbers, mixes, residents of a running batch.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it cannot go on")]

mod common;

use common::{routing, shape};
use evenkeel_sim::{MixChange, TrafficSpec, draw_jobs};
use evenkeel_trace::Routes;

fn routes() -> Routes {
    routing(&shape(1, 8, 2), 30, 3, 4, 6, 1)
}

fn spec() -> TrafficSpec {
    let equal = MixChange { from_ns: 0, share_by_slice: vec![1.0, 1.0, 1.0] };
    let surge = MixChange { from_ns: 5_000, share_by_slice: vec![0.1, 0.0, 0.9] };
    TrafficSpec {
        arrivals_ns: (0..10_000).collect(),
        mix: vec![equal, surge],
        fill_sequences: 100,
        seed: 5,
    }
}

#[test]
fn the_mix_changes_the_slices_and_nothing_else() {
    let (jobs, facts) = draw_jobs(&routes(), &spec()).unwrap();
    let calm = TrafficSpec { mix: spec().mix[..1].to_vec(), ..spec() };
    let (before, _) = draw_jobs(&routes(), &calm).unwrap();
    assert_eq!(jobs[..5_100], before[..5_100]);
    let surge: Vec<usize> = jobs[5_100..].iter().map(|job| job.slice.index()).collect();
    assert!(surge.iter().all(|slice| *slice != 1));
    let share = surge.iter().filter(|slice| **slice == 2).count() as f64 / 5_000.0;
    assert!((share - 0.9).abs() < 0.02, "{share}");
    assert_eq!((facts.jobs, facts.filled, facts.distinct_requests), (10_100, 100, 30));
    assert_eq!(facts.jobs_by_slice.iter().sum::<u64>(), 10_100);
    assert!((facts.cloning_factor - 10_100.0 / 30.0).abs() < 1e-9);
    assert!((facts.arrivals_per_s - 1e9).abs() < 1.0);
}

#[test]
fn filled_jobs_are_in_the_middle_of_their_output() {
    let (jobs, _) = draw_jobs(&routes(), &spec()).unwrap();
    let mut phases = [0; 7];
    for job in &jobs[..100] {
        assert_eq!(job.arrival_ns, 0);
        phases[job.decoded as usize] += 1;
    }
    assert_eq!((phases[0], phases[6]), (0, 0));
    assert!(phases[1..6].iter().all(|count| *count > 5), "{phases:?}");
    assert!(jobs[100..].iter().all(|job| job.decoded == 0));
}

#[test]
fn every_fault_is_named() {
    let fails = |spec: TrafficSpec| draw_jobs(&routes(), &spec).unwrap_err().to_string();
    let mix = |share_by_slice: Vec<f64>| vec![MixChange { from_ns: 0, share_by_slice }];
    assert!(fails(TrafficSpec { arrivals_ns: vec![2, 1], ..spec() }).contains("arrivals_ns"));
    assert!(fails(TrafficSpec { mix: vec![], ..spec() }).contains("mix is empty"));
    assert!(fails(TrafficSpec { mix: mix(vec![0.0]), ..spec() }).contains("positive sum"));
    assert!(fails(TrafficSpec { mix: mix(vec![f64::NAN]), ..spec() }).contains("NaN"));
    assert!(fails(TrafficSpec { mix: mix(vec![1.0; 4]), ..spec() }).contains("slice 3"));
    let short = routing(&shape(1, 8, 2), 3, 1, 4, 1, 1);
    let spec = TrafficSpec { mix: mix(vec![1.0]), ..spec() };
    assert!(draw_jobs(&short, &spec).unwrap_err().to_string().contains("fill_sequences"));
    let nothing = TrafficSpec { arrivals_ns: vec![], mix: vec![], fill_sequences: 0, seed: 0 };
    let (jobs, facts) = draw_jobs(&short, &nothing).unwrap();
    assert!(jobs.is_empty() && facts.jobs == 0);
}
