//! Balance and time on summed tokens, even split, from scratch.

use super::ours::{self, Ranks};
use super::peers::Row;
use super::{Context, Figure, Score, Target, median_cpu_ms, quoted};
use crate::fail::Failure;
use evenkeel_plan::rows::Effort;

/// Balance that is asked by name, beside the reference on every problem.
const ASKED: [(&str, f64); 2] = [("B1", 0.9998), ("D2", 0.9978)];

/// Problem, effort, least balance, most ms, TensorRT-LLM's ms as quoted.
const TIMED: [(&str, Effort, f64, f64, f64); 2] = [
    ("B1", Effort::FAST, 0.999, 3.0, 3.0),
    ("D2", Effort { enough: 0.992, ..Effort::FAST }, 0.99, 8.0, 8.2),
];

/// Balance on all problems, duplicates, and CPU time on B1 and D2.
pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let mut figures = balance(context.planners()?);
    for timed in TIMED {
        figures.extend(time(context, timed)?);
    }
    Ok(figures)
}

fn balance(rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows.iter().filter(|row| row.peer == ours::NAME) {
        let Some(found) = row.balance else { continue };
        let others = rows.iter().filter(|other| {
            other.problem == row.problem
                && other.peer != ours::NAME
                && !other.peer.starts_with("reference")
        });
        let best =
            others.max_by(|a, b| a.balance.unwrap_or(0.0).total_cmp(&b.balance.unwrap_or(0.0)));
        let named = |best: &Row| Some(format!("{:.4} {}", best.balance?, best.peer));
        let asked = ASKED.iter().find(|(id, _)| *id == row.problem).map(|(_, asked)| *asked);
        let least = quoted::reference(&row.problem).into_iter().chain(asked).reduce(f64::max);
        let worst = row.balance_worst.unwrap_or(0.0);
        figures.push(Figure {
            what: format!("balance, {}", row.problem),
            unit: "balance",
            best_today: best.and_then(named).unwrap_or_default(),
            target: least.map_or(Target::None, Target::AtLeast),
            found,
            note: format!("worst layer {worst:.4}, {:.1} ms CPU", row.cpu_ms.unwrap_or(0.0)),
        });
    }
    let broken =
        |row: &&Row| row.peer == ours::NAME && (row.missing > 0 || row.duplicates > Some(0));
    figures.push(Figure {
        what: "problems with a duplicate or a missing expert".to_owned(),
        unit: "",
        best_today: String::new(),
        target: Target::AtMost(0.0),
        found: rows.iter().filter(broken).count() as f64,
        note: String::new(),
    });
    figures
}

fn time(
    context: &Context<'_>,
    (id, effort, least, ms_max, tensorrt_ms): (&str, Effort, f64, f64, f64),
) -> Result<[Figure; 2], Failure> {
    let problem = context.problem(id)?;
    let ranks = Ranks::of(problem);
    let (ms, map) =
        median_cpu_ms(context.runs(21), || ranks.place(&problem.loads, problem.experts, effort));
    let score = Score::of(&ours::slots(&map?), &problem.loads, problem);
    let vllm = context.peers.as_ref().and_then(|_| {
        let rows = context.planners().ok()?;
        let row = rows.iter().find(|row| row.peer == "vLLM default global" && row.problem == id)?;
        row.cpu_ms
    });
    let vllm = vllm.map_or_else(String::new, |ms| format!("{ms:.1} ms vLLM, its maps' run; "));
    let best_today = format!("{vllm}{tensorrt_ms} ms TensorRT-LLM (quoted)");
    let balance = score.balance;
    Ok([
        Figure {
            what: format!("CPU time, {id}, balance from {least}"),
            unit: "ms",
            best_today: best_today.clone(),
            target: Target::AtMost(ms_max),
            found: ms,
            note: format!("balance {balance:.4}, worst layer {:.4}", score.balance_worst),
        },
        Figure {
            what: format!("balance in that time, {id}"),
            unit: "balance",
            best_today,
            target: Target::AtLeast(least),
            found: balance,
            note: String::new(),
        },
    ])
}
