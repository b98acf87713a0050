//! The quick search of a layer: repaired by mean cost, valued step by step at a few states.
//!
//! An expert weighs what its rows cost on one rank, mean over steps; a rank stands as high as its
//! mean time. [`crate::rows`] repairs the live map on these weights. States are kept where the
//! highest rank's excess over the mean has fallen by a part, each is valued as the thorough search
//! values its own, and the frontier buys among them.

use crate::PlanError;
use crate::constraints::Constraints;
use crate::layer::{Slots, hosts_of};
use crate::planner::{shared_gain, sizes_within};
use crate::rows::{Effort, LayerRows, RepairTerms, in_place, place_near, repair_seen};
use crate::search::{Barred, Point};
use crate::study::{Study, filled};
use crate::valued::{Valued, shares_of};
use evenkeel_types::{LayerId, NodeId, RankId};

/// Balancedness of mean times beyond which single steps decide.
const ENOUGH: f64 = 0.995;

/// A state is kept where the excess has fallen to this part of the last kept one's.
const KEPT_AT: f64 = 0.5;

/// States kept on the way, besides the first and the last.
const KEPT_MAX: usize = 3;

/// A repair that ends within this share of the bound is not packed afresh as well.
const CLOSE_ENOUGH: f64 = 0.01;

/// One layer under the quick search.
struct Quick<'s, 'a> {
    study: &'s Study<'a>,
    layer: usize,
    /// `[expert]`: mean cost on one rank; `[rank]`: mean load without experts. µs before speed.
    loads: Vec<f64>,
    extra: Vec<f64>,
    /// `[rank]`: slots that may be filled.
    sizes: Vec<usize>,
    /// `[expert * ranks + rank]`: in the live map.
    at_home: Vec<bool>,
    pinned: Vec<bool>,
    off_node: Vec<bool>,
    links: Vec<Option<NodeId>>,
}

impl Study<'_> {
    /// As the thorough search of a layer: states from `slots` on, and what degraded links bar.
    pub(crate) fn search_quickly(
        &self,
        layer: usize,
        slots: &Slots,
        room: &[u64],
        before: &[(u16, RankId, f64)],
    ) -> Result<(Vec<Point>, Vec<Barred>), PlanError> {
        let quick = Quick::new(self, layer, slots, room);
        let arrivals = quick.arrivals(slots, before, 0.0);
        let mut points = vec![Point { slots: slots.clone(), us: quick.us(slots)?, arrivals }];
        let barred = |links: bool| {
            let flags = quick.off_node.iter().zip(&quick.links);
            flags.map(|(off, link)| *off || (links && link.is_some())).collect::<Vec<bool>>()
        };
        for slots in quick.repaired(slots, &barred(true)) {
            let (us, last) = (quick.us(&slots)?, &points[points.len() - 1]);
            let arrivals = quick.arrivals(&slots, &last.arrivals, last.us - us);
            points.push(Point { slots, us, arrivals });
        }
        let reached = points.iter().map(|point| point.us).fold(f64::INFINITY, f64::min);
        if self.links.any_degraded() {
            let free = quick.repaired(slots, &barred(false)).pop();
            let stopped = free.map(|slots| quick.stopped(&slots, reached)).transpose()?;
            return Ok((points, stopped.unwrap_or_default()));
        }
        let gap_us = reached - self.bound.layers[layer].us;
        if before.is_empty()
            && gap_us > CLOSE_ENOUGH * self.bound.layers[layer].us
            && let Some(slots) = quick.fresh(&points, gap_us)?
        {
            let (us, arrivals) = (quick.us(&slots)?, quick.arrivals(&slots, &[], 0.0));
            points.push(shared_gain(Point { slots, us, arrivals }, &points));
        }
        Ok((points, Vec::new()))
    }
}

impl<'s, 'a> Quick<'s, 'a> {
    fn new(study: &'s Study<'a>, layer: usize, slots: &Slots, room: &[u64]) -> Self {
        let (ranks, experts) = (slots.len(), study.input.loads.experts);
        let live = &study.slots[layer];
        let mut at_home = vec![false; experts * ranks];
        for (rank, slots) in live.iter().enumerate() {
            for expert in slots.iter().flatten() {
                at_home[usize::from(*expert) * ranks + rank] = true;
            }
        }
        let costs = &study.costs;
        let mut times = vec![0.0; costs.steps];
        let weights = study.loads[layer].rows.chunks_exact(costs.steps).map(|rows| {
            times.fill(0.0);
            costs.add_cells(rows, 1.0, 1.0, &mut times);
            times.iter().sum::<f64>() / costs.steps as f64
        });
        let alive = |rank: usize| costs.inverse_speed[rank] > 0.0;
        let within = sizes_within(live, room).into_iter().enumerate();
        let extra = study.loads[layer].extra.iter().zip(live);
        let constraints = Constraints::of(&study.input, layer);
        Self {
            loads: weights.collect(),
            extra: extra.map(|(extra, slots)| costs.idle_us(slots.len()) + extra).collect(),
            sizes: within.map(|(rank, size)| if alive(rank) { size } else { 0 }).collect(),
            pinned: constraints.pinned(experts),
            off_node: constraints.off_node(slots, experts),
            links: study.links.barred(study.input.live, LayerId(layer as u16)),
            study,
            layer,
            at_home,
        }
    }

    fn weights(&self) -> LayerRows<'_> {
        LayerRows {
            loads: &self.loads,
            sizes: &self.sizes,
            inverse_speed: &self.study.costs.inverse_speed,
            extra: &self.extra,
        }
    }

    /// States of a repair that are kept, the last one included; none where nothing helps.
    fn repaired(&self, slots: &Slots, barred: &[bool]) -> Vec<Slots> {
        let layer = self.weights();
        let mean = layer.mean();
        let mut kept: Vec<Slots> = Vec::new();
        let mut last: Option<f64> = None;
        let terms = RepairTerms {
            enough: ENOUGH,
            moves_max: self.study.input.policy.moves.moves_max as usize,
            pinned: &self.pinned,
            barred,
            may_fill: true,
        };
        let found = repair_seen(&layer, slots, &terms, |highest, slots| {
            let excess = highest - mean;
            match last {
                None => last = Some(excess),
                Some(before) if excess <= before * KEPT_AT && kept.len() < KEPT_MAX => {
                    last = Some(excess);
                    kept.push(slots());
                }
                Some(_) => {}
            }
        });
        if last.is_some() && kept.last() != Some(&found.slots) {
            kept.push(found.slots);
        }
        kept
    }

    /// A fresh packing, where what it could gain at best pays for the bytes that it moves more.
    fn fresh(&self, points: &[Point], gap_us: f64) -> Result<Option<Slots>, PlanError> {
        let Self { study, layer, .. } = self;
        let live = &study.slots[*layer];
        let input = &study.input;
        let slots = if Constraints::of(input, *layer).allow_renaming() {
            match place_near(&self.weights(), live, Effort::FAST) {
                Some(slots) => in_place(&slots, live),
                None => return Ok(None),
            }
        } else {
            study.scratch_slots(*layer, &self.sizes, true)?
        };
        let count = |slots: &Slots| slots.iter().map(|slots| filled(slots)).collect::<Vec<_>>();
        if input.policy.plan.same_slots_per_layer && count(&slots) != count(live) {
            return Ok(None);
        }
        let moved = self.arrivals(&slots, &[], 0.0).len();
        let path = points.last().map_or(0, |point| point.arrivals.len());
        let more = moved.saturating_sub(path).max(1) as f64;
        let gb = input.shape.expert_bytes() as f64 / 1e9;
        Ok((gap_us / more >= input.policy.plan.gain_us_per_gb_min * gb).then_some(slots))
    }

    /// Time of the layer with these slots, mean over steps, µs.
    fn us(&self, slots: &Slots) -> Result<f64, PlanError> {
        let (costs, loads) = (&self.study.costs, &self.study.loads[self.layer]);
        let hosts = hosts_of(slots, loads.totals.len());
        let shares = shares_of(costs, loads, self.study.input.split, &hosts)?;
        Ok(Valued::new(costs, loads, slots, hosts, shares).us)
    }

    /// Pairs that are not at home, with the gain at which each came; new ones share `gain_us`.
    fn arrivals(
        &self,
        slots: &Slots,
        before: &[(u16, RankId, f64)],
        gain_us: f64,
    ) -> Vec<(u16, RankId, f64)> {
        let ranks = slots.len();
        let mut list = Vec::new();
        let mut new = Vec::new();
        for (rank, slots) in slots.iter().enumerate() {
            for expert in slots.iter().flatten() {
                if !self.at_home[usize::from(*expert) * ranks + rank] {
                    let rank = RankId(rank as u16);
                    let known = before.iter().find(|(e, r, _)| (e, r) == (expert, &rank));
                    if known.is_none() {
                        new.push(list.len());
                    }
                    list.push((*expert, rank, known.map_or(0.0, |known| known.2)));
                }
            }
        }
        let each = gain_us / new.len().max(1) as f64;
        new.into_iter().for_each(|index| list[index].2 = each);
        list
    }

    /// What degraded links bar of a state that a repair without them would reach: its arrivals over
    /// such links share what it is faster.
    fn stopped(&self, slots: &Slots, reached: f64) -> Result<Vec<Barred>, PlanError> {
        let ranks = slots.len();
        let mut barred = Vec::new();
        for (expert, to, _) in self.arrivals(slots, &[], 0.0) {
            if let Some(node) = self.links[usize::from(expert) * ranks + to.index()] {
                barred.push(Barred { expert, to, node, gain_us: 0.0 });
            }
        }
        let gain_us = (reached - self.us(slots)?) / barred.len().max(1) as f64;
        barred.iter_mut().for_each(|barred| barred.gain_us = gain_us);
        barred.retain(|barred| barred.gain_us > 0.0);
        Ok(barred)
    }
}
