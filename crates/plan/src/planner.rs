//! From an input to an outcome.

use crate::check::{check, check_transition};
use crate::constraints::{Constraints, meet};
use crate::crossing;
use crate::frontier::{Budget, Offers, buy};
use crate::layer::{Layer, Slots, hosts_of};
use crate::promises::keep;
use crate::rows::{self, LayerRows, LayerSlots, RepairTerms};
use crate::schedule::schedule;
use crate::search::{Barred, Path, Point, Terms, arrivals, descend};
use crate::study::{Study, Value, filled, widened};
use crate::{
    Nothing, Objective, Outcome, Plan, PlanError, PlanInput, Reason, Refused, SearchEffort,
    SplitRule,
};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId, hash2};

/// A layer whose descent ends within this share of the bound is not packed afresh as well.
const CLOSE_ENOUGH: f64 = 0.01;

/// Balancedness that repairs of rows aim at, one after another: the loosest is reached with fewest
/// moves.
const ROW_TARGETS: [f64; 4] = [0.95, 0.98, 0.99, 0.999];

/// Plans from the live map.
///
/// # Errors
/// A broken or foreign live map, loads of another shape, a window without steps, costs that are
/// negative or not finite, or memory that does not hold even the live map.
pub fn plan(input: PlanInput<'_>) -> Result<Outcome, PlanError> {
    let left = input.live.without(&input.topology.rank_dead);
    let input = PlanInput { live: &left, ..input };
    input.validate()?;
    let outcome = match meet(&input)? {
        None => plan_from(input)?,
        Some(met) => obliged(input, &met)?,
    };
    let mut outcome = keep(input, outcome)?;
    crossing::read(input, &mut outcome)?;
    Ok(outcome)
}

/// Plans from a live map that breaks a constraint: from what the constraints make of it, priced
/// from the live map. Whether it pays is not asked.
fn obliged(input: PlanInput<'_>, met: &ExpertMap) -> Result<Outcome, PlanError> {
    let PlanInput { live, shape, topology, policy, .. } = input;
    if let Some(violation) = check(met, shape, topology, policy)?.into_iter().next() {
        return Err(PlanError::Unlawful { violation });
    }
    let study = Study::new(input)?;
    let child =
        |map: &ExpertMap| study.child(map.slots.iter().map(|layer| widened(layer, 0)), "plan");
    let start = child(met);
    let found = check_transition(live, &start, shape, topology, policy)?;
    if let Some(violation) = found.into_iter().next() {
        return Err(PlanError::NoWay { violation });
    }
    let moved = study.present(start.clone(), &[], Vec::new(), Vec::new())?;
    let mut left = policy.clone();
    left.moves.moves_max = left.moves.moves_max.saturating_sub(moved.price.moves as u32);
    let from = PlanInput { live: met, live_split: None, policy: &left, ..input };
    if let Outcome::Plan(more) = plan_from(from)? {
        // Both changes together may move less than one after the other, or have no way at all.
        let map = child(&more.map);
        if check_transition(live, &map, shape, topology, policy)?.is_empty() {
            let plan = study.present(map, &[], more.refused, Vec::new())?;
            return Ok(Outcome::Plan(Box::new(plan)));
        }
    }
    Ok(Outcome::Plan(Box::new(moved)))
}

fn plan_from(input: PlanInput<'_>) -> Result<Outcome, PlanError> {
    let study = Study::new(input)?;
    let policy = &input.policy.plan;
    let bound_gain_share = study.bound.gain_share_max;
    let idle = |reason| Ok(study.nothing(reason));
    if bound_gain_share < policy.gain_min_share {
        let gain_min_share = policy.gain_min_share;
        return idle(Reason::BoundTooClose { bound_gain_share, gain_min_share });
    }
    let worst = (0..study.balance_live.len())
        .min_by(|a, b| study.balance_live[*a].total_cmp(&study.balance_live[*b]));
    if let Some(layer) = worst {
        let balancedness = study.balance_live[layer];
        if balancedness >= policy.balancedness_enough {
            let (layer, enough) = (LayerId(layer as u16), policy.balancedness_enough);
            return idle(Reason::AlreadyBalanced { balancedness, layer, enough });
        }
    }
    study.buy()
}

/// A full recompute, as engines do it: the live map is ignored, except that an expert that stays on
/// its rank stays in its slot. For comparison; it buys moves that do not pay.
///
/// # Errors
/// As [`plan`], and too few slots for the experts.
pub fn plan_from_scratch(input: PlanInput<'_>) -> Result<Plan, PlanError> {
    let left = input.live.without(&input.topology.rank_dead);
    let input = PlanInput { live: &left, ..input };
    let study = Study::new(input)?;
    let map = study.scratch_map()?;
    if let Some(violation) =
        check(&map, input.shape, input.topology, input.policy)?.into_iter().next()
    {
        return Err(PlanError::Unlawful { violation });
    }
    study.present(map, &[], Vec::new(), Vec::new())
}

impl Study<'_> {
    fn nothing(&self, reason: Reason) -> Outcome {
        let predicted = self.predicted(Value {
            us: self.us_live,
            layers_us: self.layers_us_live.clone(),
            balance: self.balance_live.clone(),
        });
        let bound = self.bound.clone();
        Outcome::DoNothing(Box::new(Nothing {
            reason,
            bound,
            predicted,
            refused: Vec::new(),
            traffic: None,
        }))
    }

    fn buy(&self) -> Result<Outcome, PlanError> {
        let gb = self.input.shape.expert_bytes() as f64 / 1e9;
        let mut budget = Budget {
            transfers_max: self.input.policy.moves.moves_max as usize,
            gain_us_min: self.input.policy.plan.gain_us_per_gb_min * gb,
            room: self.room(),
        };
        let mut offers = Vec::with_capacity(self.loads.len());
        let mut refused = Vec::new();
        for layer in 0..self.loads.len() {
            let (points, barred) = self.search(layer, &self.slots[layer], &budget.room, &[])?;
            refused.extend(barred.into_iter().map(|barred| self.refused(layer, barred)));
            offers.push(Offers::new(points));
        }
        let bought =
            buy(&mut offers, &mut budget, |layer, here, room| self.further(layer, here, room))?;
        let mut map = self.map_of(&offers, "plan");
        // Chains that staging memory cannot hold, or a source that ends too early: such a layer
        // stays as it is. Every round reverts at least one layer.
        for _ in 0..offers.len() {
            let faulty = self.faulty_layers(&map)?;
            if faulty.is_empty() {
                break;
            }
            for layer in faulty {
                offers[layer].revert();
            }
            map = self.map_of(&offers, "plan");
        }
        let broken = check(&map, self.input.shape, self.input.topology, self.input.policy)?;
        if let Some(violation) = broken.into_iter().next() {
            return Err(PlanError::Unlawful { violation });
        }
        let arrivals: Vec<(usize, &Point)> =
            offers.iter().map(Offers::chosen).enumerate().collect();
        let mut plan = self.present(map, &arrivals, refused, bought)?;
        // A new split moves nothing, so moves have to earn their gain beyond it.
        let beyond_split = (self.us_resplit - plan.predicted.step_us_planned) / self.us_live;
        if !plan.moves.is_empty() && beyond_split < self.input.policy.plan.gain_min_share {
            let mut map = self.input.live.clone();
            (map.parent, map.version) = (Some(map.version), plan.map.version);
            map.provenance = plan.map.provenance;
            plan = self.present(map, &[], plan.refused, Vec::new())?;
        }
        Ok(self.decide(plan))
    }

    /// Searches a layer from the live map's slots, and from a fresh packing where that may help.
    pub(crate) fn search(
        &self,
        layer: usize,
        slots: &Slots,
        room: &[u64],
        before: &[(u16, RankId, f64)],
    ) -> Result<(Vec<Point>, Vec<Barred>), PlanError> {
        if self.input.effort == SearchEffort::Quick {
            return self.search_quickly(layer, slots, room, before);
        }
        let ranks = slots.len();
        let experts = self.input.loads.experts;
        let live = &self.slots[layer];
        let mut at_home = vec![false; experts * ranks];
        for (expert, hosts) in hosts_of(live, experts).iter().enumerate() {
            for rank in hosts {
                at_home[expert * ranks + rank.index()] = true;
            }
        }
        let constraints = Constraints::of(&self.input, layer);
        let pinned = constraints.pinned(experts);
        let off_node = constraints.off_node(slots, experts);
        let gb = self.input.shape.expert_bytes() as f64 / 1e9;
        let terms = Terms {
            at_home: &at_home,
            barred: &self.links.barred(self.input.live, LayerId(layer as u16)),
            room,
            pinned: &pinned,
            off_node: &off_node,
            filled_live: &live.iter().map(|slots| filled(slots)).collect::<Vec<_>>(),
            // A change that pays poorly may lead to one that pays well: the frontier decides.
            gain_us_min: self.input.policy.plan.gain_us_per_gb_min * gb * 0.25,
            transfers_max: self.input.policy.moves.moves_max as usize,
            seed: hash2(self.input.seed, layer as u64),
        };
        if self.input.objective == Objective::SummedTokens && self.input.split == SplitRule::Even {
            return Ok((self.row_points(layer, slots, &terms, before)?, Vec::new()));
        }
        let start =
            |slots: Slots| Layer::new(&self.costs, &self.loads[layer], self.input.split, slots);
        let Path { mut points, barred } = descend(start(slots.clone())?, &terms, before)?;
        let reached = points.last().map_or(0.0, |point| point.us);
        let close = self.bound.layers[layer].us * (1.0 + CLOSE_ENOUGH);
        if before.is_empty() && reached > close && !self.links.any_degraded() {
            let fresh = self.scratch_slots(layer, &sizes_within(live, room), true)?;
            // What a fresh packing could gain at best must pay for the bytes that it moves more.
            let moved = |slots: &Slots| {
                let pairs = slots.iter().enumerate();
                let new = pairs.map(|(rank, slots)| {
                    slots
                        .iter()
                        .flatten()
                        .filter(|e| !at_home[usize::from(**e) * ranks + rank])
                        .count()
                });
                new.sum::<usize>()
            };
            let path_moves = points.last().map_or(0, |point| point.arrivals.len());
            let more = moved(&fresh).saturating_sub(path_moves).max(1) as f64;
            let per_transfer = (reached - self.bound.layers[layer].us) / more;
            if per_transfer >= self.input.policy.plan.gain_us_per_gb_min * gb {
                let fresh = descend(start(fresh)?, &terms, &[])?.points.pop();
                points.extend(fresh.map(|point| shared_gain(point, &points)));
            }
        }
        Ok((points, barred))
    }

    /// States of a layer on the way to level rows: repairs to ever tighter levels, and a fresh
    /// packing. For rows that are split evenly this finds more, and sooner, than the descent.
    fn row_points(
        &self,
        layer: usize,
        slots: &Slots,
        terms: &Terms<'_>,
        before: &[(u16, RankId, f64)],
    ) -> Result<Vec<Point>, PlanError> {
        let loads = &self.loads[layer];
        let totals: Vec<f64> = loads.totals.iter().map(|total| *total as f64).collect();
        let sizes = sizes_within(&self.slots[layer], terms.room);
        let problem = LayerRows {
            loads: &totals,
            sizes: &sizes,
            inverse_speed: &self.costs.inverse_speed,
            extra: &loads.extra,
        };
        let barred: Vec<bool> = terms
            .barred
            .iter()
            .zip(terms.off_node)
            .map(|(link, node)| link.is_some() || *node)
            .collect();
        let start = rows::highest(&problem, slots);
        let point = |slots: LayerSlots, us: f64| {
            let arrivals = arrivals(&slots, terms, before, (start - us).max(0.0));
            Point { slots, us, arrivals }
        };
        let mut points = vec![point(slots.clone(), start)];
        for enough in ROW_TARGETS {
            let terms = RepairTerms {
                enough,
                moves_max: terms.transfers_max,
                pinned: terms.pinned,
                barred: &barred,
                may_fill: true,
            };
            let mut step = |slots: LayerSlots, us: f64| points.push(point(slots, us));
            let _ = rows::repair(&problem, slots, &terms, Some(&mut step));
        }
        if before.is_empty() && !self.links.any_degraded() {
            let fresh = self.scratch_slots(layer, &sizes, true)?;
            let us = rows::highest(&problem, &fresh);
            points.push(point(fresh, us));
        }
        Ok(points)
    }

    /// The fresh packing of one layer into `sizes[rank]` slots.
    pub(crate) fn scratch_slots(
        &self,
        layer: usize,
        sizes: &[usize],
        rename: bool,
    ) -> Result<Slots, PlanError> {
        let totals = &self.loads[layer].totals;
        let constraints = Constraints::of(&self.input, layer);
        let packed = constraints.pack_layer(totals, sizes, &self.costs.weights)?;
        let rename = rename && constraints.allow_renaming();
        let alike = sizes.windows(2).all(|pair| pair[0] == pair[1])
            && self.costs.weights.windows(2).all(|pair| pair[0] == pair[1]);
        let live = &self.slots[layer];
        let renamed = if rename && alike { rows::renamed(packed, live) } else { packed };
        Ok(rows::in_place(&renamed, live))
    }

    /// Packs every layer afresh: into all slots where memory allows, else into those that the live
    /// map fills and as many more as memory holds, one layer after another in turn.
    fn scratch_map(&self) -> Result<ExpertMap, PlanError> {
        let Self { input, .. } = self;
        let alive = |rank: usize| self.costs.inverse_speed[rank] > 0.0;
        let lengths: Vec<Vec<usize>> = self
            .slots
            .iter()
            .map(|slots| {
                let length = |(rank, slots): (usize, &Vec<_>)| {
                    if alive(rank) { slots.len().min(input.loads.experts) } else { 0 }
                };
                slots.iter().enumerate().map(length).collect()
            })
            .collect();
        let mut sizes: Vec<Vec<usize>> =
            self.slots.iter().map(|slots| slots.iter().map(|s| filled(s)).collect()).collect();
        let even = input.policy.plan.same_slots_per_layer;
        for (rank, mut room) in self.memory_room().into_iter().enumerate() {
            if even {
                // The same in every layer: what memory and the layer with fewest slots allow.
                let total: u64 = sizes.iter().map(|sizes| sizes[rank] as u64).sum::<u64>() + room;
                let fits = usize::try_from(total / sizes.len().max(1) as u64).unwrap_or(usize::MAX);
                let fewest = lengths.iter().map(|lengths| lengths[rank]).min().unwrap_or(0);
                sizes.iter_mut().for_each(|sizes| sizes[rank] = fits.min(fewest));
                continue;
            }
            let mut grows = true;
            while room > 0 && grows {
                grows = false;
                for (sizes, lengths) in sizes.iter_mut().zip(&lengths) {
                    if room > 0 && sizes[rank] < lengths[rank] {
                        (sizes[rank], room, grows) = (sizes[rank] + 1, room - 1, true);
                    }
                }
            }
        }
        let mut layers = Vec::with_capacity(sizes.len());
        for (layer, sizes) in sizes.iter().enumerate() {
            layers.push(self.scratch_slots(layer, sizes, false)?);
        }
        Ok(self.child(layers.into_iter(), "plan_from_scratch"))
    }

    /// `[rank]`: empty slots that a change may fill. None where every layer has to have the same
    /// number: changes that keep every rank's count remain.
    fn room(&self) -> Vec<u64> {
        if self.input.policy.plan.same_slots_per_layer {
            return vec![0; self.input.ranks()];
        }
        self.memory_room()
    }

    /// `[rank]`: copies that memory still holds beside the live map's.
    pub(crate) fn memory_room(&self) -> Vec<u64> {
        let Self { input, .. } = self;
        let bytes = input.shape.expert_bytes().max(1);
        let ranks = input.topology.ranks();
        let live = input.live.copies_per_rank();
        ranks
            .iter()
            .zip(live)
            .map(|(rank, copies)| {
                if rank.dead {
                    return 0;
                }
                let floor = (rank.hbm_bytes as f64 * input.policy.memory.kv_floor_share) as i64;
                let left =
                    input.policy.memory.kv_bytes(input.shape, rank.hbm_bytes, copies) - floor;
                u64::try_from(left).unwrap_or(0) / bytes
            })
            .collect()
    }

    /// Layers on whose account the way to the map breaks a law or a limit.
    fn faulty_layers(&self, map: &ExpertMap) -> Result<Vec<usize>, PlanError> {
        let Self { input, .. } = self;
        let found = check_transition(input.live, map, input.shape, input.topology, input.policy)?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = input.shape.expert_bytes();
        let stages = schedule(input.live, map, &self.links, input.policy, bytes).stages;
        let layers = found.iter().flat_map(|violation| violation.layers(&stages));
        let mut layers: Vec<usize> = layers.map(|layer| layer.index()).collect();
        layers.sort_unstable();
        layers.dedup();
        Ok(layers)
    }

    fn refused(&self, layer: usize, barred: Barred) -> Refused {
        Refused {
            layer: LayerId(layer as u16),
            expert: ExpertId(barred.expert),
            to: barred.to,
            node: barred.node,
            rate_share: self.links.rate_share[barred.node.index()],
            gain_us: barred.gain_us,
        }
    }

    /// Is the plan worth its price?
    pub(crate) fn decide(&self, plan: Plan) -> Outcome {
        let gain_share = plan.predicted.gain_share;
        let gain_min_share = self.input.policy.plan.gain_min_share;
        let reason = if gain_share < gain_min_share || gain_share <= 0.0 {
            if plan.moves.is_empty() && !plan.refused.is_empty() {
                Reason::AllRefused
            } else {
                Reason::GainTooSmall { gain_share, gain_min_share }
            }
        } else if !plan.break_even.within_dwell {
            let (break_even_s, dwell_s) =
                (plan.break_even.seconds, self.input.policy.moves.dwell_s);
            Reason::NeverPaysBack { break_even_s, dwell_s }
        } else {
            return Outcome::Plan(Box::new(plan));
        };
        let Plan { bound, predicted, refused, .. } = plan;
        Outcome::DoNothing(Box::new(Nothing { reason, bound, predicted, refused, traffic: None }))
    }
}

/// Gives every arrival of a fresh packing an equal part of what the packing gains.
pub(crate) fn shared_gain(mut point: Point, path: &[Point]) -> Point {
    let before = path.first().map_or(point.us, |first| first.us);
    let gain = (before - point.us) / point.arrivals.len().max(1) as f64;
    for arrival in &mut point.arrivals {
        arrival.2 = gain;
    }
    point
}

/// Slots per rank that may be filled: the live ones and as many more as there is room for.
pub(crate) fn sizes_within(live: &Slots, room: &[u64]) -> Vec<usize> {
    let within = |(slots, room): (&Vec<Option<u16>>, &u64)| {
        let more = usize::try_from(*room).unwrap_or(usize::MAX);
        filled(slots).saturating_add(more).min(slots.len())
    };
    live.iter().zip(room).map(within).collect()
}
