//! Moves after every load has drifted by exp(0.15 N), from this planner's map in force.

use super::ours::{self, Ranks};
use super::{Context, Figure, Problem, Score, Target, median_cpu_ms, score};
use crate::fail::Failure;
use evenkeel_plan::rows::{Effort, LayerSlots};

/// Loss of balance against a plan from scratch that few moves may cost.
const WITHIN: f64 = 0.99;

/// Moves to a stated balance on B1 and D2, share of slots moved on B1, C2, D1.
pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let mut figures = to_balance(
        context,
        ("B1", 0.99, 30.0, Some(30.0)),
        "275 per layer (full plan), 30.4 (reference), quoted",
    )?;
    figures.extend(to_balance(context, ("D2", 0.98, 100.0, None), "")?);
    for id in ["B1", "C2", "D1"] {
        figures.extend(near_scratch(context, id)?);
    }
    Ok(figures)
}

/// Drifted loads, and the map that was planned before.
fn before<'a>(
    problem: &'a Problem,
    ranks: &Ranks,
) -> Result<(&'a [u64], Vec<LayerSlots>), Failure> {
    let missing = || Failure::input(format!("problem {}: no drifted loads", problem.id));
    let drifted = problem.drifted.as_deref().ok_or_else(missing)?;
    Ok((drifted, ranks.place(&problem.loads, problem.experts, Effort::THOROUGH)?))
}

fn to_balance(
    context: &Context<'_>,
    (id, enough, moves_max, ms_max): (&str, f64, f64, Option<f64>),
    best_today: &str,
) -> Result<Vec<Figure>, Failure> {
    let problem = context.problem(id)?;
    let ranks = Ranks::of(problem);
    let (drifted, live) = before(problem, &ranks)?;
    let enough_of = vec![enough; problem.layers];
    let (ms, map) = median_cpu_ms(context.runs(9), || {
        ranks.repair(drifted, problem.experts, &live, &enough_of)
    });
    let (live, map) = (ours::slots(&live), ours::slots(&map));
    let stale = Score::of(&live, drifted, problem);
    let found = Score::of(&map, drifted, problem);
    let short = ours::balances(&map, drifted, problem)
        .iter()
        .filter(|balance| **balance < enough - 1e-9)
        .count();
    let figure = |what: &str, unit, target, found, note| Figure {
        what: format!("{what}, {id} to {enough}"),
        unit,
        best_today: best_today.to_owned(),
        target,
        found,
        note,
    };
    Ok(vec![
        figure(
            "moves per layer",
            "moves",
            Target::AtMost(moves_max),
            score::moves(&live, &map) as f64 / problem.layers as f64,
            format!(
                "balance {:.4} before, {:.4} after, worst layer {:.4}",
                stale.balance, found.balance, found.balance_worst
            ),
        ),
        figure(
            "layers that stay below",
            "",
            Target::AtMost(0.0),
            short as f64,
            format!("of {}", problem.layers),
        ),
        figure(
            "CPU time, all layers",
            "ms",
            ms_max.map_or(Target::None, Target::AtMost),
            ms,
            String::new(),
        ),
    ])
}

fn near_scratch(context: &Context<'_>, id: &str) -> Result<[Figure; 2], Failure> {
    let problem = context.problem(id)?;
    let ranks = Ranks::of(problem);
    let (drifted, live) = before(problem, &ranks)?;
    let scratch = ours::slots(&ranks.place(drifted, problem.experts, Effort::THOROUGH)?);
    // The repair is not told the balance of a plan from scratch: nothing is above 1.
    let map = ranks.repair(drifted, problem.experts, &live, &vec![WITHIN; problem.layers]);
    let (live, map) = (ours::slots(&live), ours::slots(&map));
    let all = (problem.layers * problem.slots) as f64;
    let (from_scratch, found) =
        (Score::of(&scratch, drifted, problem), Score::of(&map, drifted, problem));
    let best_today = "70 to 99 % (peers, quoted)";
    Ok([
        Figure {
            what: format!("slots moved, {id}"),
            unit: "share",
            best_today: best_today.to_owned(),
            target: Target::AtMost(0.12),
            found: score::moves(&live, &map) as f64 / all,
            note: format!(
                "balance {:.4}; from scratch {:.4} with {:.0} % of the slots moved",
                found.balance,
                from_scratch.balance,
                score::moves(&live, &scratch) as f64 / all * 100.0
            ),
        },
        Figure {
            what: format!("balance ÷ balance from scratch, {id}"),
            unit: "ratio",
            best_today: String::new(),
            target: Target::AtLeast(WITHIN),
            found: found.balance / from_scratch.balance,
            note: String::new(),
        },
    ])
}
