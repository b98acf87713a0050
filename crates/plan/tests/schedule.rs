//! A schedule that is not what it should be is refused, whoever made it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, skewed};
use evenkeel_plan::{
    Impossible, Link, Plan, Stage, TransitionViolation, check_schedule, plan_from_scratch,
};
use evenkeel_types::{ExpertId, LayerId, RankId};
use proptest::prelude::*;

fn problem() -> (Problem, Plan) {
    let mut problem = Problem::new(3, 16, 4, 5, skewed(3, 16, 4, 400.0, 7));
    problem.policy.moves.operations_per_stage_max = 6;
    problem.policy.moves.operations_per_link_max = 3;
    let plan = plan_from_scratch(problem.input()).unwrap();
    assert!(plan.price.stages.len() > 3 && plan.price.moves > 12);
    (problem, plan)
}

fn found(problem: &Problem, plan: &Plan, stages: &[Stage]) -> Vec<TransitionViolation> {
    let Problem { live, shape, topology, policy, .. } = problem;
    check_schedule(live, &plan.map, stages, shape, topology, policy).unwrap()
}

fn impossible(found: &[TransitionViolation], wanted: Impossible) -> bool {
    found.iter().any(|v| matches!(v, TransitionViolation::Impossible { why, .. } if *why == wanted))
}

#[test]
fn every_way_to_spoil_a_schedule_is_named() {
    let (problem, plan) = problem();
    let stages = &plan.price.stages;
    assert_eq!(found(&problem, &plan, stages), []);
    let after = |change: &dyn Fn(&mut Vec<Stage>)| {
        let mut stages = stages.clone();
        change(&mut stages);
        found(&problem, &plan, &stages)
    };
    // A rank that does not hold the expert when the stage begins.
    let lacking = |stage: &Stage| {
        let transfer = stage.transfers[0];
        let hosts = &problem.live.hosts(transfer.layer)[transfer.expert.index()];
        (0..4).map(RankId).find(|r| !hosts.contains(r) && *r != transfer.to)
    };
    let bad = after(&|s| s[0].transfers[0].from = lacking(&s[0]).unwrap());
    assert!(impossible(&bad, Impossible::SourceLacks), "{bad:?}");
    let bad = after(&|s| s[0].transfers[0].expert = ExpertId(99));
    assert!(impossible(&bad, Impossible::NoSuchPlace), "{bad:?}");
    let bad = after(&|s| s[0].transfers[0].layer = LayerId(3));
    assert!(impossible(&bad, Impossible::NoSuchPlace), "{bad:?}");
    let bad = after(&|s| s[0].transfers[0].from = RankId(4));
    assert!(impossible(&bad, Impossible::NoSuchPlace), "{bad:?}");
    let bad = after(&|s| {
        let twice = s[0].transfers[0];
        s[0].transfers.push(twice);
    });
    assert!(impossible(&bad, Impossible::TargetHas), "{bad:?}");
    assert!(impossible(&bad, Impossible::Overlap), "{bad:?}");
    let bad = after(&|s| s[0].drops.push((LayerId(0), RankId(0), ExpertId(99))));
    assert!(impossible(&bad, Impossible::NothingToEnd), "{bad:?}");
    let bad = after(&|s| {
        let drop = s[0].drops[0];
        s[1].drops.push(drop);
    });
    assert!(impossible(&bad, Impossible::NothingToEnd), "{bad:?}");
    for change in [
        |s: &mut Vec<Stage>| s[1].start_s = 0.0,
        |s: &mut Vec<Stage>| s[1].transfers[0].end_s -= 1e-6,
        |s: &mut Vec<Stage>| s[1].transfers[0].start_s = s[0].start_s,
        |s: &mut Vec<Stage>| s[1].time_s *= 0.99,
        |s: &mut Vec<Stage>| s[1].transfers[0].end_s = f64::NAN,
    ] {
        let bad = after(&change);
        assert!(impossible(&bad, Impossible::Time), "{bad:?}");
    }
    let bad = after(&|s| {
        s.pop();
    });
    assert!(bad.iter().any(|v| matches!(v, TransitionViolation::Unfinished { wanted: true, .. })));
    assert!(bad.iter().any(|v| matches!(v, TransitionViolation::Unfinished { wanted: false, .. })));
    let bad = after(&|s| {
        let (mut more, mut ends) = (s[1].transfers.clone(), s[1].drops.clone());
        s[0].transfers.append(&mut more);
        s[0].drops.append(&mut ends);
        let one = s[0].transfers[0];
        s[0].transfers.extend([one; 3]);
    });
    let over = |link: fn(&Option<Link>) -> bool| {
        bad.iter().any(|v| matches!(v, TransitionViolation::Operations { link: l, .. } if link(l)))
    };
    assert!(over(|link| link.is_none()) && over(|link| link.is_some()), "{bad:?}");
}

#[test]
fn the_last_copy_may_not_end_before_another_has_arrived() {
    let (problem, plan) = problem();
    let mut stages = plan.price.stages.clone();
    let layer = LayerId(0);
    let lonely = problem.live.hosts(layer).iter().position(|hosts| hosts.len() == 1).unwrap();
    let host = problem.live.hosts(layer)[lonely][0];
    let expert = ExpertId(lonely as u16);
    stages.insert(0, Stage { drops: vec![(layer, host, expert)], ..Stage::default() });
    let bad = found(&problem, &plan, &stages);
    assert!(bad.contains(&TransitionViolation::Orphan { stage: 0, layer, expert }), "{bad:?}");
}

#[test]
fn dead_ranks_memory_and_links_are_looked_at() {
    let (mut problem, plan) = problem();
    let stages = &plan.price.stages;
    problem.topology.rank_dead = vec![RankId(2)];
    let bad = found(&problem, &plan, stages);
    assert!(impossible(&bad, Impossible::SourceDead), "{bad:?}");
    assert!(impossible(&bad, Impossible::TargetDead), "{bad:?}");
    problem.topology.rank_dead.clear();
    problem.policy.moves.moves_max = 3;
    let bad = found(&problem, &plan, stages);
    assert!(bad.iter().any(|v| matches!(v, TransitionViolation::TooManyMoves { .. })), "{bad:?}");
    problem.policy.moves.moves_max = 4096;
    problem.policy.memory.kv_floor_share = 0.999;
    let bad = found(&problem, &plan, stages);
    assert!(bad.iter().any(|v| matches!(v, TransitionViolation::StageMemory { .. })), "{bad:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Stages in another order, or a transfer or an end left out: never unnoticed.
    #[test]
    fn nothing_can_be_left_out(stage in any::<prop::sample::Index>(), item in any::<prop::sample::Index>(), kind in 0..3) {
        let (problem, plan) = problem();
        let mut stages = plan.price.stages.clone();
        let at = stage.index(stages.len() - 1);
        match kind {
            0 => { let _ = stages[at].transfers.remove(item.index(plan.price.stages[at].transfers.len())); }
            1 if !stages[at].drops.is_empty() => {
                let _ = stages[at].drops.remove(item.index(plan.price.stages[at].drops.len()));
            }
            _ => stages.swap(at, at + 1),
        }
        prop_assert!(!found(&problem, &plan, &stages).is_empty());
    }
}
