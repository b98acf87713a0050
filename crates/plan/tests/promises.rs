//! What `plan` answers keeps what the policy promises about the loss of ranks.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, random::question, skewed};
use evenkeel_plan::survive::{PromiseBroken, SurviveInput, broken_promises};
use evenkeel_plan::{Outcome, PlanError, Reason, check_transition, plan};
use evenkeel_types::{DomainKind, ExpertMap, Promise, RankId, SurvivePolicy};
use proptest::prelude::*;

fn broken(problem: &Problem, map: &ExpertMap) -> Vec<PromiseBroken> {
    let Problem { shape, topology, policy, .. } = problem;
    broken_promises(&SurviveInput { shape, topology, map, policy, loads: None }).unwrap()
}

fn promised(domain: DomainKind, promise: Promise) -> SurvivePolicy {
    SurvivePolicy { domain, promise, within_s: 600.0 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_answer_breaks_a_promise(seed in any::<u64>(), kind in 0_usize..3, live in any::<bool>()) {
        let mut problem = question(seed);
        let kind = [DomainKind::Rank, DomainKind::Node, DomainKind::Named][kind];
        let free = plan(problem.input());
        let promise = if live { Promise::Live } else { Promise::Restorable };
        problem.policy.survive = vec![promised(kind, promise)];
        let left = problem.live.without(&problem.topology.rank_dead);
        match plan(problem.input()) {
            Ok(Outcome::Plan(plan)) => {
                let Problem { live, shape, topology, policy, .. } = &problem;
                prop_assert_eq!(broken(&problem, &plan.map), []);
                let way = check_transition(live, &plan.map, shape, topology, policy).unwrap();
                prop_assert_eq!(way, []);
            }
            Ok(Outcome::DoNothing(_)) => prop_assert_eq!(broken(&problem, &left), []),
            Err(PlanError::Promise { broken: found, .. }) => {
                // Refused only where the live map breaks it, or must not stay.
                let must = !problem.policy.plan.violations(&left, &problem.shape, &problem.topology).is_empty();
                prop_assert!(must || !broken(&problem, &left).is_empty());
                prop_assert!(found.promise.domain == kind);
            }
            // Nothing else is refused because of a promise.
            Err(_) => prop_assert!(free.is_err()),
        }
    }
}

/// Twelve experts on four ranks of two nodes, `slots` per rank.
fn small(slots: usize) -> Problem {
    let mut problem = Problem::new(2, 12, 4, slots, skewed(2, 12, 3, 200.0, 5));
    let node = evenkeel_types::Node { ranks: 2, ..problem.topology.node[0].clone() };
    problem.topology.node = vec![node.clone(), node];
    problem.policy.plan.balancedness_enough = 1.0;
    problem.policy.plan.gain_min_share = 0.0;
    problem
}

#[test]
fn what_gain_does_not_buy_a_promise_does() {
    let mut problem = small(3);
    problem.policy.plan.slots_per_rank = 6;
    problem.policy.survive = vec![promised(DomainKind::Node, Promise::Live)];
    let Outcome::Plan(plan) = plan(problem.input()).unwrap() else { panic!("nothing done") };
    assert!(!plan.repaired.is_empty());
    assert_eq!(broken(&problem, &plan.map), []);
    assert!(plan.price.moves >= 24, "{}", plan.price.moves);
}

#[test]
fn a_promise_out_of_reach_is_refused_with_what_it_takes() {
    let mut problem = small(5);
    problem.policy.survive = vec![promised(DomainKind::Rank, Promise::Live)];
    let error = plan(problem.input()).unwrap_err();
    let PlanError::Promise { slots_missing, .. } = &error else { panic!("{error}") };
    // 20 slots, 24 copies: at least four are missing, and so many experts have one copy.
    assert!((4..=12).contains(slots_missing), "{slots_missing}");
    let text = error.to_string();
    assert!(text.contains("promised `live`, but no other copy of layer"), "{text}");
    assert!(text.contains("more slots in a layer") && text.contains("slots_per_rank"), "{text}");
}

#[test]
fn a_plan_that_would_break_a_promise_gives_way_to_the_live_map() {
    // All 24 copies are needed: any further copy of a hot expert ends the second of another.
    let mut problem = small(6);
    let live = promised(DomainKind::Rank, Promise::Live);
    assert!(matches!(plan(problem.input()).unwrap(), Outcome::Plan(_)));
    problem.policy.survive = vec![live];
    assert_eq!(broken(&problem, &problem.live), []);
    match plan(problem.input()).unwrap() {
        Outcome::Plan(plan) => assert_eq!(broken(&problem, &plan.map), []),
        Outcome::DoNothing(nothing) => match nothing.reason {
            Reason::BreaksPromise { slots_missing, .. } => assert!(slots_missing > 0),
            Reason::GainTooSmall { .. } | Reason::NeverPaysBack { .. } => {}
            other => panic!("{other:?}"),
        },
    }
}

#[test]
fn orphans_of_dead_ranks_are_counted_and_sent_to_survive() {
    let mut problem = small(3);
    problem.policy.plan.slots_per_rank = 6;
    problem.topology.rank_dead = vec![RankId(1)];
    let error = plan(problem.input()).unwrap_err();
    let PlanError::Orphans { orphans, .. } = &error else { panic!("{error}") };
    assert_eq!(*orphans, 6);
    let text = error.to_string();
    assert!(text.contains("6 experts lived only on the ranks that are dead (rank 1)"), "{text}");
    assert!(text.contains("evenkeel survive MAP --lost rank:1"), "{text}");
}
