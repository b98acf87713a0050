//! Situations from the field, and limits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, skewed};
use evenkeel_plan::{
    Objective, Outcome, Plan, PlanError, Reason, SplitRule, TransitionViolation, check,
    check_transition, plan, plan_from_scratch, price,
};
use evenkeel_split::SplitTable;
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, LinkHealth, ModelShape, NodeId, Phase, Policy, RankId, RankSpeed,
    Topology, Violation,
};

fn planned(problem: &Problem) -> Plan {
    match plan(problem.input()).unwrap() {
        Outcome::Plan(plan) => *plan,
        Outcome::DoNothing(nothing) => panic!("nothing planned: {:?}", nothing.reason),
    }
}

fn reason(problem: &Problem) -> Reason {
    match plan(problem.input()).unwrap() {
        Outcome::Plan(plan) => panic!("planned {} moves", plan.price.moves),
        Outcome::DoNothing(nothing) => nothing.reason,
    }
}

/// Four ranks, 16 experts, one spare slot per rank, one hot expert in ten.
fn hot() -> Problem {
    Problem::new(3, 16, 4, 5, skewed(3, 16, 8, 400.0, 7))
}

#[test]
fn case_2_a_duplicate_on_a_rank_is_named() {
    let shape =
        ModelShape { moe_layers: 2, experts: 256, ..ModelShape::known("deepseek-v3").unwrap() };
    let topology = Topology::uniform("h100", 32, 80_000_000_000);
    let mut map = ExpertMap::contiguous(&shape, 32, 9);
    let policy = Policy::default();
    assert_eq!(check(&map, &shape, &topology, &policy).unwrap(), []);
    // Slots 252..=260 are rank 28's: expert 236 twice there, its first copy on rank 26.
    map.slots[1][28][3] = Some(ExpertId(236));
    map.slots[1][28][4] = Some(ExpertId(236));
    let found = check(&map, &shape, &topology, &policy).unwrap();
    let duplicate = found.iter().find_map(|violation| match violation {
        Violation::Duplicate { layer, rank, expert, effective_copies, listed_copies } => {
            Some((*layer, *rank, *expert, *effective_copies, *listed_copies))
        }
        _ => None,
    });
    assert_eq!(duplicate, Some((LayerId(1), RankId(28), ExpertId(236), 2, 3)));
}

#[test]
fn case_4_a_move_that_never_pays_back_is_not_made() {
    let mut problem = hot();
    problem.policy.moves.byte_rate_gb_per_s = 0.001;
    problem.policy.moves.dwell_s = 10.0;
    match reason(&problem) {
        Reason::NeverPaysBack { break_even_s, dwell_s } => assert!(break_even_s > dwell_s),
        other => panic!("{other:?}"),
    }
}

#[test]
fn case_5_balanced_enough_is_left_alone_with_the_bound() {
    let counts = vec![vec![300; 48]; 10];
    let problem = Problem::new(3, 16, 4, 4, counts);
    let Outcome::DoNothing(nothing) = plan(problem.input()).unwrap() else { panic!("planned") };
    assert!(matches!(nothing.reason, Reason::BoundTooClose { .. }), "{:?}", nothing.reason);
    assert!(nothing.bound.gain_share_max < 0.01);

    let mut problem = hot();
    problem.policy.plan.balancedness_enough = 0.1;
    let Reason::AlreadyBalanced { balancedness, .. } = reason(&problem) else { panic!("planned") };
    assert!(balancedness > 0.1 && balancedness < 0.97);
}

#[test]
fn case_12_the_plan_is_for_decode_not_for_the_sum() {
    // Prefill has 98 % of the tokens and its own hot experts.
    let (a, b) = (skewed(3, 16, 8, 400.0, 7), skewed(3, 16, 8, 20_000.0, 900));
    let mixed = a.iter().zip(&b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect());
    let decode = Problem::new(3, 16, 4, 5, a.clone());
    let summed = Problem::new(3, 16, 4, 5, mixed.collect());
    assert_eq!(decode.loads.phase, Phase::Decode);
    let (good, bad) = (planned(&decode), planned(&summed));
    // Judge both by decode alone: each map is taken as live and valued, nothing is bought.
    let value = |plan: &Plan| {
        let mut judged = Problem::new(3, 16, 4, 5, a.clone());
        judged.live = plan.map.clone();
        judged.policy.moves.moves_max = 0;
        let split = plan.split.clone();
        let mut input = judged.input();
        input.live_split = Some(&split);
        match plan_from_scratch(input) {
            Ok(plan) => plan.predicted.step_us_live,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(value(&good) < value(&bad), "{} {}", value(&good), value(&bad));
    assert!(good.predicted.step_us_live < value(&bad), "the sum's plan is worse than none");
}

#[test]
fn case_16_zero_loads_spread_copies() {
    let problem = Problem::new(2, 8, 4, 3, vec![vec![0; 16]; 3]);
    assert!(matches!(reason(&problem), Reason::BoundTooClose { .. }));
    let scratch = plan_from_scratch(problem.input()).unwrap();
    for layer in 0..2 {
        let hosts = scratch.map.hosts(LayerId(layer));
        assert!(hosts.iter().all(|ranks| (1..=2).contains(&ranks.len())), "{hosts:?}");
    }
    assert_eq!(scratch.map.violations(), []);
}

#[test]
fn case_16_costs_that_are_no_numbers_are_refused() {
    let mut problem = hot();
    problem.coefficients.row_us = f64::NAN;
    let message = plan(problem.input()).unwrap_err().to_string();
    assert!(message.contains("`row_us` is NaN"), "{message}");
    let mut problem = hot();
    problem.fixed_us = -1.0;
    assert!(plan(problem.input()).unwrap_err().to_string().contains("fixed_us"));
}

#[test]
fn case_9_no_expert_travels_over_a_degraded_link() {
    let mut problem = Problem::new(4, 32, 16, 3, skewed(4, 32, 8, 600.0, 11));
    let free = planned(&problem);
    assert!(free.price.bytes_cross_node > 0);
    problem.topology.link_health.push(LinkHealth { node: NodeId(1), rate_share: 0.6 });
    let (moves, refused, crossed) = match plan(problem.input()).unwrap() {
        Outcome::Plan(plan) => {
            let Problem { shape, topology, policy, live, .. } = &problem;
            let found = check_transition(live, &plan.map, shape, topology, policy).unwrap();
            assert_eq!(found, []);
            (plan.moves.len(), plan.refused.clone(), plan.price.bytes_cross_node)
        }
        Outcome::DoNothing(nothing) => (0, nothing.refused.clone(), 0),
    };
    assert_eq!(crossed, 0, "{moves} moves");
    assert!(!refused.is_empty());
    assert!(refused.iter().all(|refused| refused.node == NodeId(1) && refused.gain_us > 0.0));
    // The map planned without that knowledge is refused by name.
    let Problem { shape, topology, policy, live, .. } = &problem;
    let found = check_transition(live, &free.map, shape, topology, policy).unwrap();
    let named = found.iter().any(|v| matches!(v, TransitionViolation::DegradedLink { .. }));
    assert!(named && found[0].to_string().contains("60 %"), "{found:?}");
    // And a slower link takes longer.
    let slow = price(live, &free.map, shape, topology, policy).unwrap();
    assert!(slow.time_s > free.price.time_s);
}

#[test]
fn memory_is_kept_at_every_stage() {
    let mut problem = hot();
    problem.policy.plan.slots_per_rank = 7;
    problem.policy.plan.balancedness_enough = 1.0;
    problem.policy.plan.gain_us_per_gb_min = 0.0;
    let wide = planned(&problem);
    let copies = wide.map.copies_per_rank();
    assert!(copies.iter().any(|copies| *copies > 15), "empty slots are used: {copies:?}");
    assert!(wide.price.kv_bytes_lost > 0);
    // Room for exactly one more copy on each rank.
    let bytes = problem.shape.expert_bytes();
    let needed =
        evenkeel_types::MemoryPolicy::resident_bytes(&problem.shape) + (15 + 1 + 1) * bytes;
    for node in &mut problem.topology.node {
        node.hbm_bytes = (needed as f64 / 0.7) as u64 + bytes / 2;
    }
    let tight = planned(&problem);
    assert!(tight.map.copies_per_rank().iter().all(|copies| *copies <= 16));
    let Problem { shape, topology, policy, live, .. } = &problem;
    assert_eq!(check_transition(live, &tight.map, shape, topology, policy).unwrap(), []);
    let found = check_transition(live, &wide.map, shape, topology, policy).unwrap();
    assert!(!found.is_empty());
    // No memory at all: an error, not a plan.
    for node in &mut problem.topology.node {
        node.hbm_bytes = 1_000_000_000;
    }
    assert!(matches!(plan(problem.input()), Err(PlanError::Unlawful { .. })));
}

#[test]
fn the_move_cap_and_the_price_of_a_byte_hold() {
    let mut problem = hot();
    let free = planned(&problem);
    problem.policy.moves.moves_max = 3;
    let capped = planned(&problem);
    assert!(capped.price.moves <= 3 && free.price.moves > 3);
    assert!(capped.predicted.step_us_planned > free.predicted.step_us_planned);
    assert!(capped.moves.windows(2).all(|pair| pair[0].gain_us >= pair[1].gain_us));
    problem.policy.moves.moves_max = 4096;
    problem.policy.plan.gain_us_per_gb_min = 1e9;
    assert!(matches!(reason(&problem), Reason::GainTooSmall { .. }));
}

#[test]
fn gains_per_move_fall_along_the_frontier() {
    let plan = planned(&hot());
    let slopes: Vec<f64> = plan
        .frontier
        .windows(2)
        .map(|pair| {
            (pair[0].step_us - pair[1].step_us) / (pair[1].moves - pair[0].moves).max(1) as f64
        })
        .collect();
    assert!(slopes.len() > 2 && slopes.iter().all(|slope| *slope > 0.0));
    // Layers take turns, each along its own convex hull: the order is by slope.
    assert!(slopes.windows(2).all(|pair| pair[0] >= pair[1] - 1e-9), "{slopes:?}");
}

#[test]
fn a_stale_split_is_mended_without_moves() {
    let mut problem = Problem::new(1, 4, 4, 2, vec![vec![400, 100, 100, 100]; 4]);
    problem.policy.plan.gain_us_per_gb_min = 1e9;
    let stale = SplitTable::balanced(&problem.live, &[100, 400, 400, 400]).unwrap();
    let mut input = problem.input();
    input.live_split = Some(&stale);
    let Outcome::Plan(plan) = plan(input).unwrap() else { panic!("nothing planned") };
    assert_eq!(plan.price.moves, 0);
    assert!(plan.predicted.step_us_resplit < plan.predicted.step_us_live);
    assert_eq!(plan.map.slots, problem.live.slots);
    assert!(plan.break_even.seconds < 1e-9 && plan.break_even.within_dwell);
}

#[test]
fn a_slow_rank_gets_less() {
    let mut problem = Problem::new(2, 16, 4, 5, vec![vec![300; 32]; 4]);
    problem.topology.rank_speed.push(RankSpeed { rank: RankId(2), speed_share: 0.5 });
    let plan = planned(&problem);
    for layer in 0..2 {
        let mut rows = [0.0; 4];
        for expert in 0..16 {
            for (rank, ways) in plan.split.shares(LayerId(layer), ExpertId(expert)) {
                rows[rank.index()] += 300.0 * f64::from(*ways) / 64.0;
            }
        }
        let others = (rows[0] + rows[1] + rows[3]) / 3.0;
        assert!(rows[2] < 0.75 * others, "{rows:?}");
    }
}

#[test]
fn summed_tokens_beats_the_peer_without_duplicates() {
    let mut problem = Problem::new(2, 22, 4, 6, vec![skewed(2, 22, 1, 4000.0, 3).remove(0)]);
    problem.objective = Objective::SummedTokens;
    problem.split = SplitRule::Even;
    problem.policy.plan.gain_us_per_gb_min = 0.0;
    let plan = planned(&problem);
    let scratch = plan_from_scratch(problem.input()).unwrap();
    let mean = |layers: &[f64]| layers.iter().sum::<f64>() / layers.len() as f64;
    let (found, greedy) =
        (mean(&plan.predicted.balancedness_planned), mean(&scratch.predicted.balancedness_planned));
    assert!(found >= greedy && found > 0.97, "{found} {greedy}");
    assert!(plan.price.moves < scratch.price.moves);
}

#[test]
fn odd_shapes_have_plans() {
    // More ranks than experts, one rank, one expert, empty slots.
    for (layers, experts, ranks, slots) in
        [(2, 3, 8, 1), (1, 5, 1, 6), (1, 1, 4, 1), (2, 7, 3, 4), (1, 2, 2, 3)]
    {
        let counts = skewed(layers, experts, 3, 500.0, 5);
        let mut problem = Problem::new(layers, experts, ranks, slots, counts);
        problem.policy.plan.balancedness_enough = 1.0;
        let scratch = plan_from_scratch(problem.input()).unwrap();
        assert_eq!(scratch.map.violations(), []);
        plan(problem.input()).unwrap();
    }
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let mut problem = hot();
    problem.loads.steps.clear();
    assert!(plan(problem.input()).unwrap_err().to_string().contains("no decode steps"));
    let mut problem = hot();
    problem.loads.steps[1].counts.pop();
    assert!(plan(problem.input()).unwrap_err().to_string().contains("47 counts in a step"));
    let mut problem = hot();
    for slot in problem.live.slots[2].iter_mut().flatten() {
        *slot = slot.filter(|expert| expert.0 != 1);
    }
    let message = plan(problem.input()).unwrap_err().to_string();
    assert!(message.contains("layer 2: expert 1 has no copy"), "{message}");
    let mut problem = hot();
    problem.live.model_revision = "other".into();
    assert!(matches!(plan(problem.input()), Err(PlanError::Map(_))));
    let problem = hot();
    let other = ExpertMap { version: 7, parent: None, ..problem.live.clone() };
    let Problem { shape, topology, policy, live, .. } = &problem;
    let found = check_transition(live, &other, shape, topology, policy).unwrap();
    assert!(matches!(found[..], [TransitionViolation::Parent { .. }]), "{found:?}");
}
