//! The memory curve: budgets are kept, more memory is never slower, maps are lawful.

#![allow(clippy::unwrap_used, reason = "a test stops at a fault")]

mod common;

use common::{Problem, skewed};
use evenkeel_plan::{Outcome, check, pareto, plan};
use evenkeel_types::{ExpertMap, Topology};
use proptest::prelude::*;

fn problem(same: bool, seed: u64) -> Problem {
    let mut counts = skewed(4, 16, 24, 40.0, seed);
    // One expert a layer that no rank should serve alone.
    for step in &mut counts {
        step.iter_mut().step_by(16).for_each(|hot| *hot += 400);
    }
    let mut problem = Problem::new(4, 16, 4, 4, counts);
    problem.policy.plan.same_slots_per_layer = same;
    problem.policy.plan.slots_per_rank = 6;
    problem.policy.plan.gain_us_per_gb_min = 0.0;
    problem
}

fn copies(map: &ExpertMap) -> u64 {
    map.copies_per_rank().iter().sum()
}

#[test]
fn copies_where_they_pay_beat_the_same_number_everywhere() {
    // Layer 0 has a hot expert, the others are even: copies elsewhere buy nothing.
    let mut counts = problem(false, 1).loads.steps;
    for step in &mut counts {
        step.counts[16..].fill(40);
    }
    let counts: Vec<Vec<u32>> = counts.into_iter().map(|step| step.counts).collect();
    let question = |same| Problem {
        policy: problem(same, 1).policy,
        ..Problem::new(4, 16, 4, 4, counts.clone())
    };
    let (uneven, even) = (question(false), question(true));
    let (paid, even) = (pareto(uneven.input(), 12).unwrap(), pareto(even.input(), 12).unwrap());
    let uniform = even.last().unwrap();
    assert!(uniform.copies >= 16, "{}", uniform.copies);
    assert!(uniform.copies_by_layer.windows(2).all(|pair| pair[0] == pair[1]));
    let cheap = paid.iter().find(|point| point.step_us <= uniform.step_us).unwrap();
    assert!(2 * cheap.copies <= uniform.copies, "{} {}", cheap.copies, uniform.copies);
    assert_eq!(cheap.copies_by_layer[1..], [0, 0, 0]);
}

#[test]
fn memory_ends_the_curve() {
    let mut problem = problem(false, 3);
    let held = problem.live.copies_per_rank()[0] + 3;
    let memory = &problem.policy.memory;
    // Memory of a rank that leaves room for three copies above the floor of KV.
    let hbm = (1..4_000)
        .map(|step| step * 10_000_000)
        .find(|hbm| {
            let floor = (*hbm as f64 * memory.kv_floor_share) as i64;
            memory.kv_bytes(&problem.shape, *hbm, held) >= floor
        })
        .unwrap();
    problem.topology = Topology::uniform("h20", 4, hbm);
    let points = pareto(problem.input(), 9).unwrap();
    let last = points.last().unwrap();
    assert!(last.copies > 0 && last.copies <= 4 * 3, "{}", last.copies);
    assert_eq!(last.kv_bytes_lost as u64, last.bytes);
    let tokens = last.kv_bytes_lost / problem.shape.kv_bytes_per_token() as i64;
    assert_eq!(last.kv_tokens_lost, tokens);
}

#[test]
fn a_curve_starts_where_a_plan_without_memory_ends() {
    let mut problem = problem(false, 5);
    let first = pareto(problem.input(), 5).unwrap().remove(0);
    assert_eq!((first.budget_per_rank, first.copies), (0, 0));
    problem.policy.plan.slots_per_rank = 4;
    problem.policy.plan.gain_min_share = 0.0;
    let Outcome::Plan(plan) = plan(problem.input()).unwrap() else { panic!("no plan") };
    let planned = plan.predicted.step_us_planned;
    assert!((first.step_us - planned).abs() < 0.02 * planned, "{} {planned}", first.step_us);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn budgets_are_kept_and_more_is_faster(seed in 0_u64..1000, same: bool, n in 1_usize..7) {
        let problem = problem(same, seed);
        let points = pareto(problem.input(), n).unwrap();
        prop_assert!(!points.is_empty() && points.len() <= n);
        let live = problem.live.copies_per_rank();
        for point in &points {
            let found = check(&point.map, &problem.shape, &problem.topology, &problem.policy);
            prop_assert_eq!(found.unwrap(), []);
            prop_assert_eq!(point.copies, copies(&point.map) - live.iter().sum::<u64>());
            for (now, live) in point.map.copies_per_rank().iter().zip(&live) {
                prop_assert!(*now <= live + point.budget_per_rank);
            }
            prop_assert!(point.step_us_p99 >= point.step_us - 1e-9);
        }
        for pair in points.windows(2) {
            prop_assert!(pair[0].step_us > pair[1].step_us);
            prop_assert!(pair[0].copies != pair[1].copies);
        }
    }
}
