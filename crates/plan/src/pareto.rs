//! Memory against time: what further copies buy, bought over all layers from one budget.

use crate::check::check;
use crate::frontier::{Budget, Offers, buy};
use crate::layer::Slots;
use crate::price::price;
use crate::search::Point;
use crate::study::{Study, filled};
use crate::{PlanError, PlanInput, SplitRule};
use evenkeel_split::SplitTable;
use evenkeel_types::ExpertMap;
use serde::Serialize;

/// What one memory budget reaches.
#[derive(Clone, Debug, Serialize)]
pub struct ParetoPoint {
    /// Most copies that any rank may hold beyond the live map's, over all layers.
    pub budget_per_rank: u64,
    /// Copies beyond the live map's, over all ranks and layers; a budget that pays for nothing
    /// more is not used up.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// `[layer]`: copies beyond the live map's.
    pub copies_by_layer: Vec<u64>,
    /// Step time, mean over the sampled steps, µs; split cut into ways where it is balanced.
    pub step_us: f64,
    /// The same, 99th percentile (nearest rank: below 100 steps the slowest).
    pub step_us_p99: f64,
    /// KV bytes that the copies take, summed over ranks.
    pub kv_bytes_lost: i64,
    /// The same in tokens; 0 where the model's tokens keep no KV.
    pub kv_tokens_lost: i64,
    /// The map. A rank's slots differ by layer unless the policy forbids it.
    #[serde(skip)]
    pub map: ExpertMap,
    /// The split that goes with it.
    #[serde(skip)]
    pub split: SplitTable,
}

/// Maps for at most `points` memory budgets, from none beyond the live map's copies to what memory
/// holds, denser at the small ones.
///
/// Copies go to the layers where they save most, up to the policy's slots per rank and layer, or
/// twice the live map's where the policy names none. Where
/// [`evenkeel_types::PlanPolicy::same_slots_per_layer`] is set, every layer gets the same number.
/// Beside copies a budget buys the exchanges that pay: the first point is the live map's best
/// without more memory. Points no faster than one of a smaller budget are left out.
///
/// # Errors
/// As [`crate::plan`], and a live map that breaks the policy's constraints or the memory limit.
pub fn pareto(input: PlanInput<'_>, points: usize) -> Result<Vec<ParetoPoint>, PlanError> {
    let left = input.live.without(&input.topology.rank_dead);
    let input = PlanInput { live: &left, ..input };
    let PlanInput { live, shape, topology, policy, .. } = input;
    if let Some(violation) = check(live, shape, topology, policy)?.into_iter().next() {
        return Err(PlanError::LiveBroken { version: live.version, violation });
    }
    let mut wide = policy.clone();
    if wide.plan.slots_per_rank == 0 {
        let most = live.slots.iter().flatten().map(Vec::len).max().unwrap_or(0);
        wide.plan.slots_per_rank = (2 * most).min(usize::from(shape.experts)) as u16;
    }
    let study = Study::new(PlanInput { policy: &wide, ..input })?;
    let mut found: Vec<ParetoPoint> = Vec::new();
    let maps = if policy.plan.same_slots_per_layer {
        even(&study, points)?
    } else {
        paid(&study, points)?
    };
    for (budget_per_rank, layers) in maps {
        let point = study.pareto_point(budget_per_rank, layers)?;
        match found.last_mut() {
            Some(last) if point.step_us >= last.step_us => {}
            Some(last) if point.copies == last.copies => *last = point,
            _ => found.push(point),
        }
    }
    Ok(found)
}

/// Budgets per rank and the slots of all layers.
type Maps = Vec<(u64, Vec<Slots>)>;

/// Copies where they pay: one search per layer, one purchase per budget.
fn paid(study: &Study<'_>, points: usize) -> Result<Maps, PlanError> {
    let policy = study.input.policy;
    let limit = study.memory_room();
    let wide = |rank: usize| -> u64 {
        let empty = study.slots.iter().map(|slots| slots[rank].len() - filled(&slots[rank]));
        empty.sum::<usize>() as u64
    };
    let limit: Vec<u64> =
        limit.iter().enumerate().map(|(rank, room)| (*room).min(wide(rank))).collect();
    let mut searched = Vec::with_capacity(study.slots.len());
    for (layer, slots) in study.slots.iter().enumerate() {
        searched.push(study.search(layer, slots, &limit, &[])?.0);
    }
    let gb = study.input.shape.expert_bytes() as f64 / 1e9;
    let mut maps = Vec::new();
    for budget in budgets(limit.iter().copied().max().unwrap_or(0), points) {
        let mut offers: Vec<Offers> = searched.iter().cloned().map(Offers::new).collect();
        let mut purchase = Budget {
            transfers_max: policy.moves.moves_max as usize,
            gain_us_min: policy.plan.gain_us_per_gb_min * gb,
            room: limit.iter().map(|room| (*room).min(budget)).collect(),
        };
        buy(&mut offers, &mut purchase, |layer, here, room| study.further(layer, here, room))?;
        let chosen = offers.iter().map(|offers| offers.chosen().slots.clone());
        maps.push((budget, chosen.collect()));
    }
    Ok(maps)
}

/// The same number of further slots in every layer, packed afresh and improved.
fn even(study: &Study<'_>, points: usize) -> Result<Maps, PlanError> {
    let layers = study.slots.len().max(1) as u64;
    let alive = |rank: &usize| study.costs.inverse_speed[*rank] > 0.0;
    let most = |rank: usize| -> u64 {
        let empty = study.slots.iter().map(|slots| slots[rank].len() - filled(&slots[rank]));
        (empty.min().unwrap_or(0) as u64).min(study.memory_room()[rank] / layers)
    };
    let limit = (0..study.input.ranks()).filter(alive).map(most).min().unwrap_or(0);
    let none = vec![0; study.input.ranks()];
    let mut maps = Vec::new();
    for more in budgets(limit, points) {
        let mut chosen = Vec::with_capacity(study.slots.len());
        for (layer, live) in study.slots.iter().enumerate() {
            let start = if more == 0 {
                live.clone()
            } else {
                let size = |(rank, slots): (usize, &Vec<_>)| {
                    if alive(&rank) { filled(slots) + more as usize } else { 0 }
                };
                let sizes: Vec<usize> = live.iter().enumerate().map(size).collect();
                study.scratch_slots(layer, &sizes, true)?
            };
            let found = study.search(layer, &start, &none, &[])?.0;
            // A fresh packing of the live map's slots may be among them.
            let best = found
                .into_iter()
                .filter(|point| sizes(&point.slots) == sizes(&start))
                .min_by(|a, b| a.us.total_cmp(&b.us));
            chosen.push(best.map_or(start, |point| point.slots));
        }
        maps.push((more * layers, chosen));
    }
    Ok(maps)
}

fn sizes(slots: &Slots) -> Vec<usize> {
    slots.iter().map(|slots| filled(slots)).collect()
}

/// At most `points` numbers from 0 to `limit`, quadratically spaced.
fn budgets(limit: u64, points: usize) -> Vec<u64> {
    let last = points.saturating_sub(1).max(1) as f64;
    let place = |point: usize| (point as f64 / last).powi(2) * limit as f64;
    let mut found: Vec<u64> = (0..points).map(|point| place(point).round() as u64).collect();
    found.dedup();
    found
}

impl Study<'_> {
    /// Searches a layer on from a chosen state, within the room that is left.
    pub(crate) fn further(
        &self,
        layer: usize,
        here: &Point,
        room: &[u64],
    ) -> Result<Vec<Point>, PlanError> {
        // Room is counted from the live map: what the layer has filled already is its own.
        let own = here.slots.iter().zip(&self.slots[layer]);
        let own = own.map(|(now, live)| filled(now).saturating_sub(filled(live)) as u64);
        let room: Vec<u64> = room.iter().zip(own).map(|(left, own)| left + own).collect();
        Ok(self.search(layer, &here.slots, &room, &here.arrivals)?.0)
    }

    fn pareto_point(
        &self,
        budget_per_rank: u64,
        layers: Vec<Slots>,
    ) -> Result<ParetoPoint, PlanError> {
        let PlanInput { live, shape, topology, policy, .. } = self.input;
        let narrow = layers.into_iter().zip(&live.slots).map(|(layer, live)| {
            let rank = |(slots, live): (Vec<Option<u16>>, &Vec<_>)| narrowed(slots, live.len());
            layer.into_iter().zip(live).map(rank).collect()
        });
        let map = self.child(narrow, "pareto");
        if let Some(violation) = check(&map, shape, topology, policy)?.into_iter().next() {
            return Err(PlanError::Unlawful { violation });
        }
        let split = self.input.split_of(&map, &self.totals)?;
        let table = (self.input.split == SplitRule::Balanced).then_some(&split);
        let mut steps_us = self.steps_us(&map, table)?;
        let step_us = steps_us.iter().sum::<f64>() / steps_us.len() as f64;
        steps_us.sort_by(f64::total_cmp);
        let p99 = (steps_us.len() * 99).div_ceil(100) - 1;
        let count = |map: &ExpertMap, layer: usize| {
            map.slots[layer].iter().flatten().flatten().count() as u64
        };
        let copies_by_layer: Vec<u64> = (0..map.layers())
            .map(|layer| count(&map, layer).saturating_sub(count(live, layer)))
            .collect();
        let copies = copies_by_layer.iter().sum();
        let kv_bytes_lost = price(live, &map, shape, topology, policy)?.kv_bytes_lost;
        let per_token = i64::try_from(shape.kv_bytes_per_token()).unwrap_or(i64::MAX);
        Ok(ParetoPoint {
            budget_per_rank,
            copies,
            bytes: copies * shape.expert_bytes(),
            copies_by_layer,
            step_us,
            step_us_p99: steps_us[p99],
            kv_bytes_lost,
            kv_tokens_lost: kv_bytes_lost.checked_div(per_token).unwrap_or(0),
            map,
            split,
        })
    }
}

/// Slots without the empty ones beyond `least`: an empty slot costs time and holds nothing.
fn narrowed(slots: Vec<Option<u16>>, least: usize) -> Vec<Option<u16>> {
    let mut spare = slots.len().saturating_sub(least);
    let mut kept: Vec<Option<u16>> = slots
        .into_iter()
        .rev()
        .filter(|slot| {
            let drop = slot.is_none() && spare > 0;
            spare -= usize::from(drop);
            !drop
        })
        .collect();
    kept.reverse();
    kept
}
