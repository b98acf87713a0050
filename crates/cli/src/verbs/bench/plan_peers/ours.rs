//! This planner on the problems: from scratch, and from its own map after drift.

use super::peers::Row;
use super::score::{self, Slots};
use super::{Context, Problem, Score, median_cpu_ms};
use crate::fail::Failure;
use evenkeel_plan::rows::{Effort, LayerRows, LayerSlots, RepairTerms, place, repair};
use evenkeel_types::ExpertId;

/// Name in the tables.
pub(super) const NAME: &str = "evenkeel";

/// Balance of a layer that a second plan has to reach, as a share of what the first one had.
const SECOND_SHARE: f64 = 0.99;

/// Equal ranks of a problem.
pub(super) struct Ranks {
    sizes: Vec<usize>,
    inverse_speed: Vec<f64>,
}

impl Ranks {
    pub(super) fn of(problem: &Problem) -> Self {
        Self {
            sizes: vec![problem.slots_per_rank(); problem.ranks],
            inverse_speed: vec![1.0; problem.ranks],
        }
    }

    fn layer<'a>(&'a self, loads: &'a [f64]) -> LayerRows<'a> {
        let Self { sizes, inverse_speed } = self;
        LayerRows { loads, sizes, inverse_speed, extra: &[] }
    }

    /// Packs every layer of `loads` (`[layer * experts + expert]`) afresh, `[layer]`.
    ///
    /// # Errors
    /// Where there are fewer slots than experts.
    pub(super) fn place(
        &self,
        loads: &[u64],
        experts: usize,
        effort: Effort,
    ) -> Result<Vec<LayerSlots>, Failure> {
        let layer = |loads: &[u64]| {
            let loads: Vec<f64> = loads.iter().map(|load| *load as f64).collect();
            let fewer = || Failure::input(format!("fewer slots than {experts} experts"));
            place(&self.layer(&loads), effort).ok_or_else(fewer)
        };
        loads.chunks_exact(experts).map(layer).collect()
    }

    /// Repairs every layer of `live` on `loads` to its share of the mean in `enough` (`[layer]`).
    pub(super) fn repair(
        &self,
        loads: &[u64],
        experts: usize,
        live: &[LayerSlots],
        enough: &[f64],
    ) -> Vec<LayerSlots> {
        let layer = |((loads, live), enough): ((&[u64], &LayerSlots), &f64)| {
            let loads: Vec<f64> = loads.iter().map(|load| *load as f64).collect();
            let terms = RepairTerms {
                enough: *enough,
                moves_max: self.sizes.iter().sum(),
                pinned: &[],
                barred: &[],
                may_fill: true,
            };
            repair(&self.layer(&loads), live, &terms, None).slots
        };
        loads.chunks_exact(experts).zip(live).zip(enough).map(layer).collect()
    }
}

/// The same map in the form that is scored.
pub(super) fn slots(map: &[LayerSlots]) -> Slots {
    let rank = |rank: &Vec<Option<u16>>| rank.iter().map(|expert| expert.map(ExpertId)).collect();
    map.iter().map(|layer| layer.iter().map(rank).collect()).collect()
}

/// `[layer]`: balance of a map on `loads`.
pub(super) fn balances(map: &Slots, loads: &[u64], problem: &Problem) -> Vec<f64> {
    let layer =
        |(slots, loads): (&Vec<_>, &[u64])| Score::of(&vec![slots.clone()], loads, problem).balance;
    map.iter().zip(loads.chunks_exact(problem.experts)).map(layer).collect()
}

/// One row per problem.
pub(super) fn rows(context: &Context<'_>) -> Result<Vec<Row>, Failure> {
    context.problems().iter().map(|problem| row(context, problem)).collect()
}

fn row(context: &Context<'_>, problem: &Problem) -> Result<Row, Failure> {
    let _progress = context.progress(&format!("{NAME}, {}", problem.id));
    let ranks = Ranks::of(problem);
    let (cpu_ms, map) = median_cpu_ms(context.runs(4), || {
        ranks.place(&problem.loads, problem.experts, Effort::THOROUGH)
    });
    let map = map.map_err(|error| error.context(&problem.id))?;
    let first = slots(&map);
    let all = (problem.layers * problem.slots) as f64;
    let found = Score::of(&first, &problem.loads, problem);
    let mut row = Row {
        peer: NAME.to_owned(),
        problem: problem.id.clone(),
        balance: Some(found.balance),
        balance_worst: Some(found.balance_worst),
        duplicates: Some(found.duplicates),
        missing: found.missing,
        moved_first: Some(score::moves(&score::start(problem), &first) as f64 / all),
        cpu_ms: Some(cpu_ms),
        ..Row::default()
    };
    if let Some(drifted) = &problem.drifted {
        let had = balances(&first, &problem.loads, problem);
        let enough: Vec<f64> = had.iter().map(|balance| balance * SECOND_SHARE).collect();
        let second = slots(&ranks.repair(drifted, problem.experts, &map, &enough));
        row.balance_stale = Some(Score::of(&first, drifted, problem).balance);
        row.balance_second = Some(Score::of(&second, drifted, problem).balance);
        row.moved_second = Some(score::moves(&first, &second) as f64 / all);
    }
    Ok(row)
}
