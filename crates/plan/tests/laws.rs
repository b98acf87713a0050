//! Laws that every plan keeps, whatever the loads and the machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, certify::certified, new_pairs, skewed};
use evenkeel_plan::{
    Objective, Outcome, SplitRule, Stage, check, check_transition, plan, plan_from_scratch,
};
use evenkeel_types::{ExpertMap, LayerId, RankId, RankSpeed};
use proptest::prelude::*;

fn problem() -> impl Strategy<Value = Problem> {
    let sizes = (1_u16..4, 1_u16..14, 1_u16..9, 0_usize..3, 0_u16..3);
    let choices = (any::<u64>(), 1_usize..5, prop_oneof![Just(0.0), Just(3.0), 1.0..900.0_f64]);
    (sizes, choices, any::<bool>(), any::<bool>(), 1_u32..4).prop_map(
        |((layers, experts, ranks, spare, wider), (seed, steps, mean), even, slow, staging)| {
            let slots = usize::from(experts).div_ceil(usize::from(ranks)) + spare;
            let counts = skewed(layers, experts, steps, mean, seed);
            let mut problem = Problem::new(layers, experts, ranks, slots, counts);
            problem.seed = seed;
            problem.policy.plan.balancedness_enough = 1.0;
            problem.policy.plan.gain_min_share = 0.001;
            problem.policy.plan.slots_per_rank = slots as u16 + wider;
            problem.policy.memory.staging_slots = staging;
            problem.split = if even { SplitRule::Even } else { SplitRule::Balanced };
            if slow {
                let rank = RankId((seed % u64::from(ranks)) as u16);
                problem.topology.rank_speed.push(RankSpeed { rank, speed_share: 0.7 });
            }
            problem
        },
    )
}

fn lawful(problem: &Problem, map: &ExpertMap) {
    let Problem { shape, topology, policy, live, .. } = problem;
    assert_eq!(check(map, shape, topology, policy).unwrap(), []);
    assert_eq!(check_transition(live, map, shape, topology, policy).unwrap(), []);
}

/// Plays the stages: every source holds its expert when a stage begins, no expert dies at a commit,
/// and the last commit is the new map.
fn play(live: &ExpertMap, next: &ExpertMap, stages: &[Stage], operations_max: usize) {
    let layers = 0..live.layers();
    let mut held: Vec<Vec<Vec<RankId>>> =
        layers.clone().map(|layer| live.hosts(LayerId(layer as u16))).collect();
    for stage in stages {
        assert!(stage.transfers.len() <= operations_max);
        for transfer in &stage.transfers {
            let hosts = &held[transfer.layer.index()][transfer.expert.index()];
            assert!(hosts.contains(&transfer.from) && !hosts.contains(&transfer.to));
        }
        for (layer, rank, expert) in &stage.drops {
            held[layer.index()][expert.index()].retain(|other| other != rank);
        }
        for transfer in &stage.transfers {
            held[transfer.layer.index()][transfer.expert.index()].push(transfer.to);
        }
        assert!(held.iter().flatten().all(|hosts| !hosts.is_empty()));
    }
    for (layer, held) in held.iter_mut().enumerate() {
        held.iter_mut().for_each(|hosts| hosts.sort_unstable());
        assert_eq!(*held, next.hosts(LayerId(layer as u16)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn a_plan_is_lawful_bounded_and_counted(problem in problem()) {
        match plan(problem.input()).unwrap() {
            Outcome::DoNothing(nothing) => {
                let predicted = &nothing.predicted;
                prop_assert!(nothing.bound.step_us <= predicted.step_us_live * (1.0 + 1e-9));
            }
            Outcome::Plan(plan) => {
                lawful(&problem, &plan.map);
                certified(&problem.input(), &plan);
                play(&problem.live, &plan.map, &plan.price.stages, 32);
                let predicted = &plan.predicted;
                prop_assert!(plan.bound.step_us <= predicted.step_us_planned * (1.0 + 1e-9));
                prop_assert!(predicted.step_us_planned < predicted.step_us_live);
                let moves = new_pairs(&problem.live, &plan.map);
                prop_assert_eq!(plan.price.moves, moves);
                prop_assert_eq!(plan.moves.len(), moves);
                let bytes = moves as u64 * problem.shape.expert_bytes();
                prop_assert_eq!(plan.price.bytes, bytes);
                prop_assert_eq!(plan.price.bytes_by_rank.iter().sum::<u64>(), bytes);
                for made in &plan.moves {
                    let hosts = problem.live.hosts(made.layer);
                    prop_assert!(!hosts[made.expert.index()].contains(&made.to));
                    let slot = plan.map.slots[made.layer.index()][made.to.index()][made.slot.index()];
                    prop_assert_eq!(slot, Some(made.expert));
                }
                prop_assert_eq!(plan.map.parent, Some(problem.live.version));
            }
        }
    }

    #[test]
    fn planning_again_changes_little(problem in problem()) {
        let Outcome::Plan(first) = plan(problem.input()).unwrap() else { return Ok(()) };
        let again = Problem { live: first.map.clone(), ..problem };
        if let Outcome::Plan(second) = plan(again.input()).unwrap() {
            // Only what a fresh packing or another order found: never as much as at first.
            prop_assert!(second.predicted.gain_share <= first.predicted.gain_share);
            prop_assert!(second.predicted.gain_share < 0.08, "{}", second.predicted.gain_share);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(problem in problem()) {
        let text = |outcome: Outcome| match outcome {
            Outcome::Plan(plan) => format!("{:?}", plan),
            Outcome::DoNothing(nothing) => format!("{nothing:?}"),
        };
        prop_assert_eq!(text(plan(problem.input()).unwrap()), text(plan(problem.input()).unwrap()));
    }

    #[test]
    fn a_plan_from_scratch_is_lawful_and_bounded(problem in problem(), summed in any::<bool>()) {
        let mut problem = problem;
        problem.objective = if summed { Objective::SummedTokens } else { Objective::StepTime };
        let plan = plan_from_scratch(problem.input()).unwrap();
        certified(&problem.input(), &plan);
        prop_assert_eq!(check(&plan.map, &problem.shape, &problem.topology, &problem.policy).unwrap(), []);
        prop_assert!(plan.bound.step_us <= plan.predicted.step_us_planned * (1.0 + 1e-9));
        prop_assert_eq!(plan.price.moves, new_pairs(&problem.live, &plan.map));
        play(&problem.live, &plan.map, &plan.price.stages, 32);
    }
}
