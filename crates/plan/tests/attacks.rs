//! Attempts to make the planner emit a bad map.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, certify::certified, random::question, skewed};
use evenkeel_plan::{
    Outcome, Plan, PlanError, SearchEffort, check, check_schedule, check_transition, plan,
    plan_from_scratch,
};
use evenkeel_types::{ExpertGroups, ExpertId, LayerId, MemoryPolicy, Pin, RankId, Topology};
use proptest::prelude::*;

/// Everything that holds for any plan: laws, constraints, schedule, caps, certificate.
fn good(problem: &Problem, plan: &Plan) {
    let Problem { live, shape, topology, policy, .. } = problem;
    assert_eq!(check(&plan.map, shape, topology, policy).unwrap(), []);
    assert_eq!(plan.map.parent, Some(live.version));
    for rank in &topology.rank_dead {
        assert_eq!(plan.map.copies_per_rank()[rank.index()], 0);
    }
    assert!(plan.bound.step_us <= plan.predicted.step_us_planned * (1.0 + 1e-9));
    certified(&problem.input(), plan);
}

/// What holds besides for a plan that is to be carried out.
fn carried_out(problem: &Problem, plan: &Plan) {
    let Problem { live, shape, topology, policy, .. } = problem;
    let stages = &plan.price.stages;
    let found = check_schedule(live, &plan.map, stages, shape, topology, policy).unwrap();
    assert_eq!(found, []);
    assert_eq!(check_transition(live, &plan.map, shape, topology, policy).unwrap(), []);
    assert!(plan.price.moves <= policy.moves.moves_max as usize);
    assert_eq!(plan.moves.len(), plan.price.moves);
    // A change that constraints ask for may cost time.
    let faster = plan.predicted.step_us_planned <= plan.predicted.step_us_live * (1.0 + 1e-9);
    assert!(faster || !live_is_good(problem));
}

fn text(outcome: &Result<Outcome, PlanError>) -> String {
    match outcome {
        Ok(Outcome::Plan(plan)) => format!("{plan:?}"),
        other => format!("{other:?}"),
    }
}

/// Whether the live map, without what dead ranks held, keeps laws and constraints.
fn live_is_good(problem: &Problem) -> bool {
    let Problem { live, shape, topology, policy, .. } = problem;
    let left = live.without(&topology.rank_dead);
    check(&left, shape, topology, policy).unwrap().is_empty()
}

/// Plans with either effort, and says whether there was an answer at all.
fn attack(problem: &Problem) -> bool {
    for effort in [SearchEffort::Quick, SearchEffort::Thorough] {
        let problem = Problem { effort, ..problem.clone() };
        let outcome = plan(problem.input());
        assert_eq!(text(&outcome), text(&plan(problem.input())), "the same input, other bytes");
        match &outcome {
            Ok(Outcome::Plan(plan)) => {
                good(&problem, plan);
                carried_out(&problem, plan);
            }
            Ok(Outcome::DoNothing(nothing)) => {
                assert!(nothing.bound.step_us <= nothing.predicted.step_us_live * (1.0 + 1e-9));
            }
            Err(error) => {
                assert!(!live_is_good(&problem), "a lawful live map, and no answer: {error}");
            }
        }
    }
    if let Ok(scratch) = &plan_from_scratch(problem.input()) {
        good(problem, scratch);
    }
    plan(problem.input()).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_question_gets_a_bad_map(seed in any::<u64>()) {
        attack(&question(seed));
    }
}

/// One layer, one hot expert, nothing asked for before a move.
fn eager(layers: u16, experts: u16, ranks: u16, slots: usize) -> Problem {
    let counts = skewed(layers, experts, 3, 400.0, 11);
    let mut problem = Problem::new(layers, experts, ranks, slots, counts);
    problem.policy.plan.balancedness_enough = 1.0;
    problem.policy.plan.gain_min_share = 0.0;
    problem.policy.plan.gain_us_per_gb_min = 0.0;
    problem
}

/// Bytes of a rank on which so many copies fit by the policy, and not one more.
fn bytes_for(problem: &Problem, copies: u64) -> u64 {
    let memory = &problem.policy.memory;
    let copies = copies + u64::from(memory.staging_slots);
    let weights =
        MemoryPolicy::resident_bytes(&problem.shape) + copies * problem.shape.expert_bytes();
    (weights as f64 / (1.0 - memory.hbm_reserve_share - memory.kv_floor_share)) as u64 + 8
}

#[test]
fn memory_full_to_the_last_copy_is_never_exceeded() {
    for staging in [0, 1, 2] {
        for spare in 0..3 {
            let mut problem = eager(3, 12, 4, 4);
            problem.policy.memory.staging_slots = staging;
            problem.policy.plan.slots_per_rank = 6;
            problem.topology.node[0].hbm_bytes = bytes_for(&problem, 12 + spare);
            assert!(attack(&problem), "staging {staging}, spare {spare}");
        }
    }
    // Not even the live map fits.
    let mut problem = eager(3, 12, 4, 4);
    problem.topology.node[0].hbm_bytes = bytes_for(&problem, 11);
    let message = plan(problem.input()).unwrap_err().to_string();
    assert!(message.contains("rank 0") && message.contains("bytes needed"), "{message}");
}

#[test]
fn chains_of_last_copies_stay_alive() {
    // As many slots as experts: every change is a ring of last copies.
    for (staging, operations) in [(0, 1), (1, 1), (1, 2), (2, 32)] {
        let mut problem = eager(3, 16, 4, 4);
        problem.policy.memory.staging_slots = staging;
        problem.policy.moves.operations_per_stage_max = operations;
        assert!(attack(&problem));
    }
}

#[test]
fn caps_on_moves_hold() {
    for moves_max in [0, 1, 2] {
        let mut problem = eager(4, 16, 4, 5);
        problem.policy.moves.moves_max = moves_max;
        assert!(attack(&problem));
    }
}

#[test]
fn too_few_slots_after_a_death_are_counted() {
    let mut problem = eager(2, 16, 4, 4);
    problem.topology.rank_dead = vec![RankId(1)];
    for result in [plan(problem.input()).map(drop), plan_from_scratch(problem.input()).map(drop)] {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("layer 0") && message.contains("4 missing"), "{message}");
    }
}

#[test]
fn a_pin_on_a_dead_or_unknown_rank_is_refused() {
    let mut problem = eager(2, 16, 4, 8);
    problem.topology.rank_dead = vec![RankId(1)];
    let pin = |layer, expert, rank| Pin {
        layer: LayerId(layer),
        expert: ExpertId(expert),
        rank: RankId(rank),
    };
    for (pin, words) in [
        (pin(0, 3, 1), "layer 0, expert 3, rank 1: the rank is dead"),
        (pin(2, 3, 0), "layer 2, expert 3, rank 0: expected ids"),
        (pin(0, 16, 0), "layer 0, expert 16, rank 0: expected ids"),
        (pin(0, 3, 4), "layer 0, expert 3, rank 4: expected ids"),
    ] {
        problem.policy.plan.pinned = vec![pin];
        let message = plan(problem.input()).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
    problem.policy.plan.pinned = (0..9).map(|expert| pin(1, expert, 2)).collect();
    let message = plan(problem.input()).unwrap_err().to_string();
    assert!(message.contains("9 pinned copies on a rank with 8 slots"), "{message}");
}

#[test]
fn numbers_that_are_no_costs_are_named() {
    let problem = eager(2, 8, 4, 3);
    for (value, word) in [(f64::NAN, "NaN"), (-1.0, "-1"), (f64::INFINITY, "inf")] {
        let mut coefficients = problem.coefficients;
        coefficients.row_us = value;
        let mut input = problem.input();
        input.coefficients = &coefficients;
        let message = plan(input).unwrap_err().to_string();
        assert!(message.contains("`row_us`") && message.contains(word), "{message}");
        let mut extra = vec![0.0; 8];
        extra[6] = value;
        let mut input = problem.input();
        input.rank_extra_us = Some(&extra);
        let message = plan(input).unwrap_err().to_string();
        assert!(message.contains("layer 1, rank 2") && message.contains(word), "{message}");
    }
    let extra = vec![0.0; 7];
    let mut input = problem.input();
    input.rank_extra_us = Some(&extra);
    let message = plan(input).unwrap_err().to_string();
    assert!(message.contains("7 values of `rank_extra_us`, expected 8"), "{message}");
}

#[test]
fn extreme_loads_and_shapes_are_planned() {
    // One expert has all there is; counts at their limit; nothing at all.
    for counts in [vec![u32::MAX; 16], vec![0; 16], [vec![u32::MAX], vec![0; 15]].concat()] {
        let mut problem = Problem::new(2, 8, 4, 3, vec![counts; 2]);
        problem.policy.plan.balancedness_enough = 1.0;
        problem.policy.plan.gain_min_share = 0.0;
        assert!(attack(&problem));
    }
    // One rank; one expert; more ranks than experts; experts that no number of ranks divides.
    for (experts, ranks, slots) in
        [(5, 1, 5), (1, 1, 1), (1, 6, 1), (3, 8, 1), (7, 3, 3), (13, 5, 3)]
    {
        assert!(attack(&eager(2, experts, ranks, slots)), "{experts} {ranks} {slots}");
    }
}

#[test]
fn hundreds_of_ranks_for_six_experts_are_planned() {
    let mut problem = eager(1, 6, 1, 6);
    let ranks = 300_u16;
    problem.topology = Topology::uniform("h20", ranks, 96_000_000_000);
    problem.live.slots =
        vec![(0..ranks).map(|rank| vec![Some(ExpertId(rank % 6)), None]).collect()];
    problem.policy.moves.moves_max = 3;
    assert!(attack(&problem));
}

/// A question whose live map lacks a pinned copy, splits groups, or is uneven: the plan puts it right.
#[test]
fn constraints_that_the_live_map_breaks_are_met() {
    let pin = |layer, expert, rank| Pin {
        layer: LayerId(layer),
        expert: ExpertId(expert),
        rank: RankId(rank),
    };
    let mut problem = eager(3, 16, 4, 5);
    problem.policy.moves.moves_max = 400;
    let missing: Vec<Pin> = (0..4)
        .flat_map(|rank| (0..16).map(move |expert| (expert, rank)))
        .filter(|(e, r)| !problem.live.slots[1][usize::from(*r)].contains(&Some(ExpertId(*e))))
        .map(|(expert, rank)| pin(1, expert, rank))
        .collect();
    for few in missing.chunks(5) {
        problem.policy.plan.pinned = few.to_vec();
        assert!(attack(&problem), "{few:?}");
    }
    let mut problem = eager(3, 16, 4, 5);
    problem.topology.node[0].ranks = 2;
    let second = problem.topology.node[0].clone();
    problem.topology.node.push(second);
    problem.shape.groups = Some(ExpertGroups { groups: 4, top_groups: 2 });
    problem.policy.plan.groups_on_nodes = true;
    assert!(attack(&problem));
    problem.policy.plan.pinned = vec![pin(0, 0, 0), pin(0, 15, 3), pin(2, 7, 1)];
    assert!(attack(&problem));
    // Two ranks of two nodes pin one group: no map can meet that.
    problem.policy.plan.pinned = vec![pin(0, 0, 0), pin(0, 1, 3)];
    assert!(!attack(&problem));
    let mut problem = eager(3, 16, 4, 5);
    problem.live.slots[1][2].pop();
    problem.live.slots[2][0].push(None);
    problem.policy.plan.same_slots_per_layer = true;
    assert!(attack(&problem));
}
