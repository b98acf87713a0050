//! A certificate that has been touched does not hold.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::{Problem, certify::certificate, skewed};
use evenkeel_plan::{Objective, Outcome, SplitRule, plan, plan_from_scratch};
use evenkeel_prove::{Certificate, check_certificate, derive_certificate};
use evenkeel_types::{ExpertGroups, ExpertId, LayerId, Pin, RankId};
use serde_json::Value;

fn problem(objective: Objective, split: SplitRule) -> Problem {
    let mut problem = Problem::new(2, 8, 4, 3, skewed(2, 8, 3, 300.0, 5));
    problem.objective = objective;
    problem.split = split;
    problem.rank_extra_us = Some(vec![3.0; 8]);
    problem.coefficients.token_us = 0.01;
    problem.coefficients.host_us = 20.0;
    problem
}

fn made(problem: &Problem) -> Certificate {
    let plan = match plan(problem.input()).unwrap() {
        Outcome::Plan(plan) => *plan,
        Outcome::DoNothing(_) => plan_from_scratch(problem.input()).unwrap(),
    };
    let certificate = certificate(&problem.input(), &plan);
    assert_eq!(check_certificate(&certificate), []);
    certificate
}

/// The certificate with other contents, sealed as if it had been made so.
fn resealed(certificate: &Certificate, change: impl FnOnce(&mut Certificate)) -> Certificate {
    let mut changed = certificate.clone();
    change(&mut changed);
    let Certificate { made_by, question, map, parts, claims, .. } = changed;
    Certificate::seal(&made_by, question, map, parts, claims).unwrap()
}

/// Pointers of all leaves of a JSON value.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                leaves(item, &format!("{at}/{index}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                leaves(field, &format!("{at}/{name}"), found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

fn touched(leaf: &Value) -> Value {
    match leaf {
        Value::Null => Value::from(1),
        Value::Bool(on) => Value::Bool(!on),
        Value::String(text) => Value::String(format!("{text}x")),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => Value::from(whole + 1),
            None => Value::from((number.as_f64().unwrap() * (1.0 + 1e-12)).max(f64::MIN_POSITIVE)),
        },
        other => other.clone(),
    }
}

#[test]
fn any_field_that_is_touched_is_noticed() {
    for (objective, split) in [
        (Objective::StepTime, SplitRule::Balanced),
        (Objective::StepTime, SplitRule::Even),
        (Objective::SummedTokens, SplitRule::Even),
    ] {
        let text = made(&problem(objective, split)).to_json().unwrap();
        assert_eq!(check_certificate(&Certificate::from_json(&text).unwrap()), []);
        let value: Value = serde_json::from_str(&text).unwrap();
        let mut pointers = Vec::new();
        leaves(&value, "", &mut pointers);
        assert!(pointers.len() > 200);
        for pointer in pointers {
            let mut changed = value.clone();
            let leaf = changed.pointer_mut(&pointer).unwrap();
            *leaf = touched(leaf);
            let holds = Certificate::from_json(&changed.to_string())
                .is_ok_and(|changed| check_certificate(&changed).is_empty());
            assert!(!holds, "{pointer} was changed and nobody noticed");
        }
    }
}

#[test]
fn claims_are_derived_not_believed() {
    for objective in [Objective::StepTime, Objective::SummedTokens] {
        let honest = made(&problem(objective, SplitRule::Even));
        type Change = fn(&mut Certificate);
        let lies: [(&str, Change); 9] = [
            ("step_us", |c| c.claims.step_us *= 0.999_999),
            ("bound_us", |c| c.claims.bound_us *= 1.000_001),
            ("gap_share", |c| c.claims.gap_share -= 1e-6),
            ("us", |c| c.claims.layers[1].us *= 0.999_999),
            ("bound_us", |c| c.claims.layers[0].bound_us *= 1.000_001),
            ("us", |c| c.claims.layers[0].us = f64::NAN),
            ("layers of the claims", |c| c.claims.layers.truncate(1)),
            ("parts of a layer", |c| c.parts[0].truncate(3)),
            ("costs", |c| c.question.rank_extra_us = Some(vec![-1.0; 8])),
        ];
        for (field, lie) in lies {
            let mut changed = honest.clone();
            lie(&mut changed);
            let found = derive_certificate(&changed);
            assert!(found.iter().any(|d| d.field == field), "{field}: {found:?}");
        }
        // What value and bound follow from: the claims no longer fit.
        let changes: [Change; 5] = [
            |c| c.question.rank_extra_us.as_mut().unwrap().fill(4.0),
            |c| c.question.loads.steps.iter_mut().for_each(|s| s.counts[0] += 1),
            |c| c.question.slots_live.iter_mut().flatten().for_each(|slots| *slots += 9),
            |c| c.question.loads.steps[0].counts.fill(0),
            |c| c.question.topology = evenkeel_types::Topology::uniform("h20", 5, 96_000_000_000),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            // More slots alone leave rows as they are where pieces do not bind.
            if index != 2 || objective == Objective::StepTime {
                assert_ne!(check_certificate(&resealed(&honest, change)), [], "{index}");
            }
        }
    }
}

#[test]
fn broken_laws_are_named() {
    let mut problem = problem(Objective::StepTime, SplitRule::Balanced);
    problem.shape.groups = Some(ExpertGroups { groups: 2, top_groups: 1 });
    let honest = made(&problem);
    let first = honest.map.slots[1][0][0].unwrap();
    let other = (0..8).map(ExpertId).find(|e| !honest.map.slots[1][2].contains(&Some(*e))).unwrap();
    let named = |change: &dyn Fn(&mut Certificate)| {
        let found = check_certificate(&resealed(&honest, change));
        found
            .iter()
            .map(|d| format!("{}: {} {} {}\n", d.place, d.field, d.claimed, d.found))
            .collect()
    };
    let says = |text: String, words: &[&str]| {
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    };
    says(named(&|c| c.map.slots[1][0][1] = Some(first)), &["layer 1", "copies on a rank"]);
    says(named(&|c| c.map.slots[0][0][0] = Some(ExpertId(8))), &["layer 0, expert 8", "below 8"]);
    says(
        named(&|c| c.question.topology.rank_dead = vec![RankId(0)]),
        &["layer 0", "rank 0 is dead"],
    );
    says(
        named(&|c| {
            let pin = Pin { layer: LayerId(1), expert: other, rank: RankId(2) };
            c.question.policy.plan.pinned.push(pin);
        }),
        &["layer 1", "pinned to rank 2"],
    );
    says(
        named(&|c| {
            let pin = Pin { layer: LayerId(2), expert: other, rank: RankId(2) };
            c.question.policy.plan.pinned.push(pin);
        }),
        &["pinned", "ids of this model"],
    );
    says(
        named(&|c| {
            c.map.slots[1][3].push(None);
        }),
        &["layer 1, rank 3: slots 3 4"],
    );
    says(
        named(&|c| c.question.topology.node[0].hbm_bytes = 1_000_000_000),
        &["rank 0: weight bytes"],
    );
    says(named(&|c| c.parts[1].fill(0)), &["layer 1, expert 0", "parts over all copies"]);
    says(
        named(&|c| {
            c.question.policy.plan.groups_on_nodes = true;
            c.question.topology.node[0].ranks = 2;
            let second = c.question.topology.node[0].clone();
            c.question.topology.node.push(second);
        }),
        &["nodes of its group"],
    );
    says(
        named(&|c| {
            c.question.policy.plan.same_slots_per_layer = true;
            let last = c.map.slots[1][1].iter().position(|slot| slot.is_some()).unwrap();
            c.map.slots[1][1][last] = None;
            let before: usize = c.map.slots[1][0].iter().flatten().count();
            c.parts[1].remove(before);
        }),
        &["layer 1: copies per rank"],
    );
}

#[test]
fn the_derivation_is_short_and_alone() {
    let source = include_str!("../../prove/src/certificate/check.rs");
    assert!(source.lines().count() <= 200);
    assert!(!source.contains("evenkeel_plan") && !source.contains("evenkeel_split"));
}
