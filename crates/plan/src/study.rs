//! Everything about a question that does not depend on the answer, and the value of any map.

use crate::bound::{layer_bound, step_bound};
use crate::costs::{Costs, LayerLoads};
use crate::layer::{Slots, hosts_of};
use crate::links::Links;
use crate::valued::{Valued, shares_of};
use crate::{Bound, Objective, PlanError, PlanInput, Predicted, SplitRule};
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap, LayerId};

/// What a map is worth under a split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Value {
    /// Step time, µs.
    pub(crate) us: f64,
    /// `[layer]`: its part of the step, µs.
    pub(crate) layers_us: Vec<f64>,
    /// `[layer]`: balancedness, rows per rank.
    pub(crate) balance: Vec<f64>,
}

/// Everything about one question that does not depend on the answer.
pub(crate) struct Study<'a> {
    pub(crate) input: PlanInput<'a>,
    pub(crate) costs: Costs,
    pub(crate) loads: Vec<LayerLoads>,
    /// `[layer * experts + expert]`, summed over the window.
    pub(crate) totals: Vec<u64>,
    pub(crate) links: Links,
    /// `[layer]`: the live slots, widened to the policy's slots per rank.
    pub(crate) slots: Vec<Slots>,
    pub(crate) fixed_us: f64,
    pub(crate) bound: Bound,
    /// The split of the live map where none was given: a fresh one, if the rule asks for a table.
    fresh: Option<SplitTable>,
    pub(crate) us_live: f64,
    pub(crate) us_resplit: f64,
    pub(crate) balance_live: Vec<f64>,
    pub(crate) layers_us_live: Vec<f64>,
}

impl<'a> Study<'a> {
    pub(crate) fn new(input: PlanInput<'a>) -> Result<Self, PlanError> {
        input.validate()?;
        let costs = Costs::new(&input);
        let loads: Vec<LayerLoads> =
            (0..input.loads.layers).map(|layer| LayerLoads::of(&input, layer)).collect();
        let totals = input.loads.total();
        let wanted = usize::from(input.policy.plan.slots_per_rank);
        let slots: Vec<Slots> =
            input.live.slots.iter().map(|layer| widened(layer, wanted)).collect();
        let fixed_us = match input.objective {
            Objective::StepTime => input.fixed_us,
            Objective::SummedTokens => 0.0,
        };
        let mut study = Self {
            input,
            costs,
            loads,
            totals,
            links: Links::new(input.topology),
            slots,
            fixed_us,
            bound: Bound { step_us: 0.0, gain_share_max: 0.0, layers: Vec::new() },
            fresh: None,
            us_live: 0.0,
            us_resplit: 0.0,
            balance_live: Vec::new(),
            layers_us_live: Vec::new(),
        };
        study.fresh = study.table(input.live, None)?;
        let fresh = study.value(input.live, study.fresh.as_ref())?;
        study.us_resplit = fresh.us;
        let live = match input.live_split {
            None => fresh,
            Some(split) => study.value(input.live, Some(split))?,
        };
        study.us_live = live.us;
        study.balance_live = live.balance;
        study.layers_us_live = live.layers_us;
        let bounds = (0..study.loads.len()).map(|layer| {
            let sizes = study.slots[layer].iter().zip(&study.costs.inverse_speed);
            let sizes = sizes.map(|(slots, speed)| if *speed > 0.0 { slots.len() } else { 0 });
            let live: Vec<usize> = input.live.slots[layer].iter().map(Vec::len).collect();
            layer_bound(&study.costs, &study.loads[layer], &live, sizes.sum())
        });
        study.bound = step_bound(bounds.collect(), fixed_us, study.us_live);
        Ok(study)
    }

    /// Step time and balancedness per layer of a map under a split table; under even shares where
    /// there is none.
    pub(crate) fn value(
        &self,
        map: &ExpertMap,
        split: Option<&SplitTable>,
    ) -> Result<Value, PlanError> {
        let mut value = Value { us: self.fixed_us, ..Value::default() };
        for layer in 0..self.loads.len() {
            let state = self.state(map, split, layer)?;
            value.us += state.us;
            value.layers_us.push(state.us);
            value.balance.push(state.balancedness());
        }
        Ok(value)
    }

    /// The table to value a map by where none is given: rounded to ways where it is balanced, as a
    /// table has to be; an even split needs none.
    fn table(
        &self,
        map: &ExpertMap,
        given: Option<&SplitTable>,
    ) -> Result<Option<SplitTable>, PlanError> {
        match (given, self.input.split) {
            (None, SplitRule::Balanced) => Ok(Some(self.input.split_of(map, &self.totals)?)),
            _ => Ok(None),
        }
    }

    fn state(
        &self,
        map: &ExpertMap,
        split: Option<&SplitTable>,
        layer: usize,
    ) -> Result<Valued<'_>, PlanError> {
        let slots = widened(&map.slots[layer], 0);
        let (costs, loads) = (&self.costs, &self.loads[layer]);
        let hosts = hosts_of(&slots, self.input.loads.experts);
        let shares = match split {
            None => shares_of(costs, loads, self.input.split, &hosts)?,
            Some(split) => (0..self.input.loads.experts)
                .map(|expert| {
                    split
                        .shares(LayerId(layer as u16), ExpertId(expert as u16))
                        .iter()
                        .map(|(_, ways)| f64::from(*ways) / SplitTable::WAYS as f64)
                        .collect()
                })
                .collect(),
        };
        Ok(Valued::new(costs, loads, &slots, hosts, shares))
    }

    /// `[step]`: time of every sampled step of a map under a split table, or under equal shares or
    /// a fresh table by the rule asked for, µs.
    pub(crate) fn steps_us(
        &self,
        map: &ExpertMap,
        split: Option<&SplitTable>,
    ) -> Result<Vec<f64>, PlanError> {
        let mut steps = vec![self.fixed_us; self.costs.steps];
        for layer in 0..self.loads.len() {
            let state = self.state(map, split, layer)?;
            steps.iter_mut().zip(&state.slowest_us).for_each(|(sum, us)| *sum += us);
        }
        Ok(steps)
    }

    /// Mean exchange time of a live step that rows cause, over all layers, µs.
    pub(crate) fn exchange_us(&self) -> Result<f64, PlanError> {
        let (map, given) = (self.input.live, self.input.live_split);
        let mut rows = 0.0;
        for layer in 0..self.loads.len() {
            rows += self.state(map, given.or(self.fresh.as_ref()), layer)?.rows_of_fullest();
        }
        let steps = match self.input.objective {
            Objective::StepTime => 1.0,
            Objective::SummedTokens => self.input.loads.steps.len() as f64,
        };
        Ok(rows / steps * self.input.exchange_us_per_row)
    }

    pub(crate) fn predicted(&self, planned: Value) -> Predicted {
        let planned_us = planned.us;
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Predicted {
            step_us_live: self.us_live,
            step_us_resplit: self.us_resplit,
            step_us_planned: planned_us,
            step_us_bound: self.bound.step_us,
            gain_share: share(self.us_live - planned_us, self.us_live),
            gap_share: share(planned_us - self.bound.step_us, self.bound.step_us),
            balancedness_live: self.balance_live.clone(),
            balancedness_planned: planned.balance,
            layers_us_planned: planned.layers_us,
        }
    }
}

/// Slots as bare ids, with empty ones up to `wanted` per rank.
pub(crate) fn widened(layer: &[Vec<Option<ExpertId>>], wanted: usize) -> Slots {
    let bare = |slots: &Vec<Option<ExpertId>>| {
        let mut slots: Vec<Option<u16>> =
            slots.iter().map(|expert| expert.map(|expert| expert.0)).collect();
        let size = slots.len().max(wanted);
        slots.resize(size, None);
        slots
    };
    layer.iter().map(bare).collect()
}

pub(crate) fn filled(slots: &[Option<u16>]) -> usize {
    slots.iter().flatten().count()
}
