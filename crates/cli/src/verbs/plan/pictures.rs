//! Pictures of a plan: rank loads before and after, what each further move gains, the schedule.

use super::from_loads::rows_even;
use crate::fail::Failure;
use crate::out::write_file;
use evenkeel_plan::{Objective, Plan, PlanInput, SplitRule};
use evenkeel_report::{
    Arrival, Frontier, HeatMap, RankLoads, Schedule, svg_frontier, svg_heat_map, svg_rank_loads,
    svg_schedule,
};
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, NodeId};
use std::path::Path;

/// Writes the pictures of a plan into a folder; the schedule only where bytes, so times, are known.
pub(crate) fn write(
    folder: &Path,
    input: &PlanInput<'_>,
    plan: &Plan,
    bytes_known: bool,
) -> Result<(), Failure> {
    let totals = input.loads.total();
    let rows = |map: &ExpertMap, split: Option<&SplitTable>| match split {
        Some(split) => rows_of(map, split, &totals),
        None => rows_even(map, &totals),
    };
    let planned_split = (input.split == SplitRule::Balanced).then_some(&plan.split);
    let both = [
        ("live map", "live", rows(input.live, input.live_split)),
        ("planned map", "planned", rows(&plan.map, planned_split)),
    ];
    let mut pictures = Vec::new();
    for (title, file, rows) in both {
        let values = in_means(&rows);
        let unit = "tokens ÷ mean of the layer".to_owned();
        let loads = RankLoads {
            title: format!("Load of every rank, {title}"),
            unit: unit.clone(),
            first_layer: 0,
            values: values.clone(),
        };
        pictures.push((format!("rank-loads-{file}.svg"), svg_rank_loads(&loads)));
        let heat = HeatMap {
            title: format!("Load by layer and rank, {title}"),
            unit,
            x_label: "rank".to_owned(),
            values,
            ..HeatMap::default()
        };
        pictures.push((format!("heat-{file}.svg"), svg_heat_map(&heat)));
    }
    pictures.push(("moves.svg".to_owned(), svg_frontier(&frontier(input, plan))));
    if bytes_known {
        pictures.push(("schedule.svg".to_owned(), svg_schedule(&schedule(input, plan))));
    }
    for (name, svg) in pictures {
        if let Some(svg) = svg {
            write_file(&folder.join(name), svg.as_bytes())?;
        }
    }
    Ok(())
}

/// `[layer][rank]`: rows by a split table.
fn rows_of(map: &ExpertMap, split: &SplitTable, totals: &[u64]) -> Vec<Vec<f64>> {
    let experts = usize::from(map.experts);
    let mut rows = vec![vec![0.0; map.ranks()]; map.layers()];
    for (index, tokens) in totals.iter().enumerate() {
        let (layer, expert) = (index / experts, index % experts);
        for (rank, ways) in split.shares(LayerId(layer as u16), ExpertId(expert as u16)) {
            rows[layer][rank.index()] +=
                *tokens as f64 * f64::from(*ways) / SplitTable::WAYS as f64;
        }
    }
    rows
}

fn in_means(rows: &[Vec<f64>]) -> Vec<Vec<f32>> {
    let share = |row: &Vec<f64>| {
        let mean = row.iter().sum::<f64>() / row.len().max(1) as f64;
        row.iter().map(|rows| if mean > 0.0 { (rows / mean) as f32 } else { 0.0 }).collect()
    };
    rows.iter().map(share).collect()
}

/// What is left of the step after each purchase.
fn frontier(input: &PlanInput<'_>, plan: &Plan) -> Frontier {
    let rows = input.objective == Objective::SummedTokens;
    Frontier {
        title: "What each further copy gains".to_owned(),
        x_label: "copies moved".to_owned(),
        y_label: if rows { "rows of the fullest ranks" } else { "step, µs" }.to_owned(),
        points: plan.frontier.iter().map(|point| (point.moves as f64, point.step_us)).collect(),
        bound: Some(plan.bound.step_us),
    }
}

fn schedule(input: &PlanInput<'_>, plan: &Plan) -> Schedule {
    let nodes: Vec<NodeId> = input.topology.ranks().iter().map(|rank| rank.node).collect();
    let mut arrivals = Vec::new();
    for (stage, one) in plan.price.stages.iter().enumerate() {
        for transfer in &one.transfers {
            let (from, to) = (transfer.from, transfer.to);
            arrivals.push(Arrival {
                stage,
                what: format!("{}, {}", transfer.layer, transfer.expert),
                from: from.0,
                to: to.0,
                crosses_nodes: nodes[from.index()] != nodes[to.index()],
                start_s: transfer.start_s,
                end_s: transfer.end_s,
            });
        }
    }
    Schedule {
        title: "Schedule of the move, by the rank that receives".to_owned(),
        stage_ends_s: plan.price.stages.iter().map(|stage| stage.start_s + stage.time_s).collect(),
        arrivals,
    }
}
