//! Answers say what crosses nodes, and offer less of it only where the policy allows a loss.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, skewed};
use evenkeel_plan::affinity::{Mode, Traffic};
use evenkeel_plan::{CrossNode, Outcome, PlanInput, check_transition, plan};
use evenkeel_trace::{RecordedRequest, Routes};
use evenkeel_types::{Phase, SliceId, hash2};

/// 16 experts on four ranks of two nodes. Tokens of tenant 0 live on node 0 and choose even experts,
/// those of tenant 1 on node 1 odd ones; every fifth chooses any.
fn case(slots: usize) -> (Problem, Traffic) {
    let mut problem = Problem::new(2, 16, 4, slots, skewed(2, 16, 3, 200.0, 5));
    let node = evenkeel_types::Node { ranks: 2, ..problem.topology.node[0].clone() };
    problem.topology.node = vec![node.clone(), node];
    let ids = (0..2_u64).flat_map(|tenant| {
        (0..800).map(move |row| {
            let draw = hash2(tenant + 1, row);
            let any = row % 5 == 0;
            (if any { draw % 16 } else { draw % 8 * 2 + tenant }) as u16
        })
    });
    let requests = (0..2_u16).map(|tenant| RecordedRequest {
        request: u64::from(tenant),
        slice: SliceId(tenant),
        first_token: usize::from(tenant) * 400,
        prompt_tokens: 0,
        tokens: 400,
    });
    let routes = Routes::new(&problem.shape, requests.collect(), ids.collect()).unwrap();
    let share = [vec![1.0, 0.0], vec![0.0, 1.0]];
    let traffic = Traffic::of_routes(&routes, Phase::Decode, &share, 800, 1);
    (problem, traffic)
}

fn answer(problem: &Problem, traffic: &Traffic) -> (Outcome, CrossNode) {
    let outcome = plan(PlanInput { traffic: Some(traffic), ..problem.input() }).unwrap();
    let found = match &outcome {
        Outcome::Plan(plan) => plan.traffic.clone(),
        Outcome::DoNothing(nothing) => nothing.traffic.clone(),
    };
    (outcome, found.unwrap())
}

#[test]
fn both_numbers_come_with_plans_and_with_nothing() {
    for (enough, planned) in [(1.0, true), (0.0, false)] {
        let (mut problem, traffic) = case(5);
        problem.policy.plan.balancedness_enough = enough;
        problem.policy.plan.gain_min_share = 0.0;
        let (outcome, found) = answer(&problem, &traffic);
        assert_eq!(matches!(outcome, Outcome::Plan(_)), planned);
        assert_eq!(found.mode, Mode::LowLatency);
        // Two nodes, a map that knows nothing of tenants.
        assert!((0.3..0.7).contains(&found.live.share), "{found:?}");
        assert!(found.live.bytes_per_token > 0.0 && found.live.balancedness <= 1.0);
        assert!(found.localised.is_none());
        if !planned {
            assert_eq!(found.planned, found.live);
        }
        // The numbers change nothing of the plan.
        let plain = plan(problem.input()).unwrap();
        match (&outcome, &plain) {
            (Outcome::Plan(a), Outcome::Plan(b)) => assert_eq!(a.map, b.map),
            (Outcome::DoNothing(_), Outcome::DoNothing(_)) => {}
            _ => panic!("another outcome"),
        }
    }
}

#[test]
fn less_traffic_is_offered_within_the_loss_that_the_policy_allows() {
    let (mut problem, traffic) = case(5);
    problem.policy.plan.cross_node_loss_max_share = 0.05;
    let (_, found) = answer(&problem, &traffic);
    let other = found.localised.unwrap();
    assert!(other.crossing.share < found.planned.share * 0.7, "{:?}", other.crossing);
    assert!(other.crossing.balancedness >= found.planned.balancedness / 1.05 - 1e-9);
    let Problem { live, shape, topology, policy, .. } = &problem;
    assert_eq!(check_transition(live, &other.map, shape, topology, policy).unwrap(), []);
    assert!(other.price.moves > 0);
    // A plan may move nothing more: then nothing else is offered.
    problem.policy.moves.moves_max = 0;
    let (_, found) = answer(&problem, &traffic);
    let moves = found.localised.map_or(0, |other| other.price.moves);
    assert_eq!(moves, 0);
}

#[test]
fn traffic_of_another_machine_is_refused() {
    let (mut problem, traffic) = case(5);
    problem.topology.node.truncate(1);
    problem.topology.node[0].ranks = 4;
    let error = plan(PlanInput { traffic: Some(&traffic), ..problem.input() }).unwrap_err();
    assert!(error.to_string().contains("2 nodes in `traffic`, expected 1"), "{error}");
}
