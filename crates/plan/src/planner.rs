//! From an input to an outcome.

use crate::bound::{layer_bound, step_bound};
use crate::break_even::break_even;
use crate::check::{TransitionViolation, check, check_transition};
use crate::costs::{Costs, LayerLoads};
use crate::frontier::{Budget, Offers, buy};
use crate::layer::{Layer, Slots, hosts_of};
use crate::links::Links;
use crate::pack::{align, pack, replicate};
use crate::price::price_of;
use crate::schedule::schedule;
use crate::search::{Barred, Path, Point, Terms, descend};
use crate::{
    Bound, FrontierPoint, Move, Nothing, Objective, Outcome, Plan, PlanError, PlanInput, Predicted,
    Reason, Refused, SplitRule,
};
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Provenance, RankId, SlotId, hash2};

/// A layer whose descent ends within this share of the bound is not packed afresh as well.
const CLOSE_ENOUGH: f64 = 0.01;

/// Plans from the live map.
///
/// # Errors
/// A broken or foreign live map, loads of another shape, a window without steps, costs that are
/// negative or not finite, or memory that does not hold even the live map.
pub fn plan(input: PlanInput<'_>) -> Result<Outcome, PlanError> {
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

/// The greedy recompute that engines do: the live map is ignored, except that an expert that stays
/// on its rank stays in its slot. For comparison; it buys moves that do not pay.
///
/// # Errors
/// As [`plan`], and too few slots for the experts.
pub fn plan_from_scratch(input: PlanInput<'_>) -> Result<Plan, PlanError> {
    let study = Study::new(input)?;
    let memory_holds = |map: &ExpertMap| {
        input.policy.memory.violations(map, input.shape, input.topology).is_empty()
    };
    // Slots beyond the live map's are used where memory allows, otherwise only the live map's.
    let wide = study.scratch_map(&study.slots)?;
    let map = if memory_holds(&wide) { wide } else { study.scratch_map(&study.slots_live())? };
    if let Some(violation) =
        check(&map, input.shape, input.topology, input.policy)?.into_iter().next()
    {
        return Err(PlanError::Unlawful { violation });
    }
    study.present(map, &[], Vec::new(), Vec::new())
}

/// Everything about one question that does not depend on the answer.
struct Study<'a> {
    input: PlanInput<'a>,
    costs: Costs,
    loads: Vec<LayerLoads>,
    /// `[layer * experts + expert]`, summed over the window.
    totals: Vec<u64>,
    links: Links,
    /// `[layer]`: the live slots, widened to the policy's slots per rank.
    slots: Vec<Slots>,
    fixed_us: f64,
    bound: Bound,
    us_live: f64,
    us_resplit: f64,
    balance_live: Vec<f64>,
}

impl<'a> Study<'a> {
    fn new(input: PlanInput<'a>) -> Result<Self, PlanError> {
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
            us_live: 0.0,
            us_resplit: 0.0,
            balance_live: Vec::new(),
        };
        (study.us_resplit, study.balance_live) = study.value(input.live, None)?;
        study.us_live = study.us_resplit;
        if let Some(split) = input.live_split {
            (study.us_live, study.balance_live) = study.value(input.live, Some(split))?;
        }
        let bounds = (0..study.loads.len()).map(|layer| {
            let sizes: Vec<usize> = study.slots[layer].iter().map(Vec::len).collect();
            let live: Vec<usize> = input.live.slots[layer].iter().map(Vec::len).collect();
            layer_bound(&study.costs, &study.loads[layer], &live, sizes.iter().sum())
        });
        study.bound = step_bound(bounds.collect(), fixed_us, study.us_live);
        Ok(study)
    }

    /// Step time and balancedness per layer of a map under a split table, or under a fresh split
    /// by the rule asked for: rounded to ways where it is balanced, as a table has to be.
    fn value(
        &self,
        map: &ExpertMap,
        split: Option<&SplitTable>,
    ) -> Result<(f64, Vec<f64>), PlanError> {
        let fresh = self.table(map, split)?;
        let split = split.or(fresh.as_ref());
        let mut us = self.fixed_us;
        let mut balance = Vec::with_capacity(self.loads.len());
        for layer in 0..self.loads.len() {
            let state = self.state(map, split, layer)?;
            us += state.worth.us;
            balance.push(state.balancedness());
        }
        Ok((us, balance))
    }

    /// The table to value a map by where none is given; an even split needs none.
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
    ) -> Result<Layer<'_>, PlanError> {
        let slots = widened(&map.slots[layer], 0);
        let mut state = Layer::new(&self.costs, &self.loads[layer], self.input.split, slots)?;
        let Some(split) = split else { return Ok(state) };
        let shares = (0..self.input.loads.experts).map(|expert| {
            split
                .shares(LayerId(layer as u16), ExpertId(expert as u16))
                .iter()
                .map(|(_, ways)| f64::from(*ways) / SplitTable::WAYS as f64)
                .collect()
        });
        state.adopt(state.hosts.clone(), shares.collect());
        Ok(state)
    }

    /// Mean exchange time of a live step that rows cause, over all layers, µs.
    fn exchange_us(&self) -> Result<f64, PlanError> {
        let (map, given) = (self.input.live, self.input.live_split);
        let fresh = self.table(map, given)?;
        let mut rows = 0.0;
        for layer in 0..self.loads.len() {
            rows += self.state(map, given.or(fresh.as_ref()), layer)?.rows_of_fullest();
        }
        let steps = match self.input.objective {
            Objective::StepTime => 1.0,
            Objective::SummedTokens => self.input.loads.steps.len() as f64,
        };
        Ok(rows / steps * self.input.exchange_us_per_row)
    }

    fn predicted(&self, planned_us: f64, balancedness_planned: Vec<f64>) -> Predicted {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Predicted {
            step_us_live: self.us_live,
            step_us_resplit: self.us_resplit,
            step_us_planned: planned_us,
            step_us_bound: self.bound.step_us,
            gain_share: share(self.us_live - planned_us, self.us_live),
            gap_share: share(planned_us - self.bound.step_us, self.bound.step_us),
            balancedness_live: self.balance_live.clone(),
            balancedness_planned,
        }
    }

    fn nothing(&self, reason: Reason) -> Outcome {
        let predicted = self.predicted(self.us_live, self.balance_live.clone());
        let bound = self.bound.clone();
        Outcome::DoNothing(Box::new(Nothing { reason, bound, predicted, refused: Vec::new() }))
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
        let bought = buy(&mut offers, &mut budget, |layer, here, room| {
            // Room is counted from the live map: what the layer has filled already is its own.
            let own = here.slots.iter().zip(&self.slots[layer]);
            let own = own.map(|(now, live)| filled(now).saturating_sub(filled(live)) as u64);
            let room: Vec<u64> = room.iter().zip(own).map(|(left, own)| left + own).collect();
            Ok(self.search(layer, &here.slots, &room, &here.arrivals)?.0)
        })?;
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
        let plan = self.present(map, &arrivals, refused, bought)?;
        Ok(self.decide(plan))
    }

    /// Searches a layer from the live map's slots, and from a fresh packing where that may help.
    fn search(
        &self,
        layer: usize,
        slots: &Slots,
        room: &[u64],
        before: &[(u16, RankId, f64)],
    ) -> Result<(Vec<Point>, Vec<Barred>), PlanError> {
        let ranks = slots.len();
        let experts = self.input.loads.experts;
        let live = &self.slots[layer];
        let mut at_home = vec![false; experts * ranks];
        for (expert, hosts) in hosts_of(live, experts).iter().enumerate() {
            for rank in hosts {
                at_home[expert * ranks + rank.index()] = true;
            }
        }
        let gb = self.input.shape.expert_bytes() as f64 / 1e9;
        let terms = Terms {
            at_home: &at_home,
            barred: &self.links.barred(self.input.live, LayerId(layer as u16)),
            room,
            filled_live: &live.iter().map(|slots| filled(slots)).collect::<Vec<_>>(),
            // A change that pays poorly may lead to one that pays well: the frontier decides.
            gain_us_min: self.input.policy.plan.gain_us_per_gb_min * gb * 0.25,
            transfers_max: self.input.policy.moves.moves_max as usize,
            seed: hash2(self.input.seed, layer as u64),
        };
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

    /// The greedy packing of one layer into `sizes[rank]` slots.
    fn scratch_slots(
        &self,
        layer: usize,
        sizes: &[usize],
        rename: bool,
    ) -> Result<Slots, PlanError> {
        let totals = &self.loads[layer].totals;
        let slots: usize = sizes.iter().sum();
        if slots < totals.len() {
            return Err(PlanError::TooFewSlots { slots, experts: totals.len() });
        }
        let copies = replicate(totals, slots, sizes.len());
        let packed = pack(totals, &copies, sizes, &self.costs.weights);
        let alike = sizes.windows(2).all(|pair| pair[0] == pair[1])
            && self.costs.weights.windows(2).all(|pair| pair[0] == pair[1]);
        let mut slots = align(packed, &self.slots[layer], rename && alike);
        for (slots, live) in slots.iter_mut().zip(&self.slots[layer]) {
            slots.resize(live.len().max(slots.len()), None);
        }
        Ok(slots)
    }

    fn scratch_map(&self, room: &[Slots]) -> Result<ExpertMap, PlanError> {
        let mut layers = Vec::with_capacity(room.len());
        for (layer, slots) in room.iter().enumerate() {
            let sizes: Vec<usize> = slots.iter().map(Vec::len).collect();
            layers.push(self.scratch_slots(layer, &sizes, false)?);
        }
        Ok(self.child(layers.into_iter(), "plan_from_scratch"))
    }

    fn slots_live(&self) -> Vec<Slots> {
        self.input.live.slots.iter().map(|layer| widened(layer, 0)).collect()
    }

    /// `[rank]`: copies that memory still holds beside the live map's.
    fn room(&self) -> Vec<u64> {
        let Self { input, .. } = self;
        let bytes = input.shape.expert_bytes().max(1);
        let ranks = input.topology.ranks();
        let live = input.live.copies_per_rank();
        ranks
            .iter()
            .zip(live)
            .map(|(rank, copies)| {
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
        let mut layers = Vec::new();
        for violation in found {
            match violation {
                TransitionViolation::Orphan { layer, .. }
                | TransitionViolation::DegradedLink { layer, .. } => layers.push(layer.index()),
                TransitionViolation::StageMemory { stage, rank, .. } => {
                    let here = stages[stage].transfers.iter().filter(|t| t.to == rank);
                    layers.extend(here.map(|transfer| transfer.layer.index()));
                }
                // Of the map as a whole: judged by the caller.
                TransitionViolation::Map { .. }
                | TransitionViolation::Parent { .. }
                | TransitionViolation::TooManyMoves { .. } => {}
            }
        }
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

    fn map_of(&self, offers: &[Offers], made_by: &str) -> ExpertMap {
        self.child(offers.iter().map(|offers| offers.chosen().slots.clone()), made_by)
    }

    /// A child of the live map with these slots.
    fn child(&self, layers: impl Iterator<Item = Slots>, made_by: &str) -> ExpertMap {
        let Self { input, .. } = self;
        let steps = input.loads.steps.len();
        let tokens: u64 = input.loads.steps.iter().map(|step| u64::from(step.tokens)).sum();
        let mut provenance = Provenance {
            made_by: format!("evenkeel {made_by} {}", env!("CARGO_PKG_VERSION")),
            window: format!("{steps} {} steps, {tokens} tokens", input.phase()),
            ..Provenance::default()
        };
        let objective = match input.objective {
            Objective::StepTime => "step_time",
            Objective::SummedTokens => "summed_tokens",
        };
        for (key, value) in [("objective", objective.to_owned()), ("seed", input.seed.to_string())]
        {
            provenance.options.insert(key.to_owned(), value);
        }
        let named = |slots: Slots| -> Vec<Vec<Option<ExpertId>>> {
            slots
                .into_iter()
                .map(|rank| rank.into_iter().map(|e| e.map(ExpertId)).collect())
                .collect()
        };
        ExpertMap {
            version: input.live.version + 1,
            parent: Some(input.live.version),
            slots: layers.map(named).collect(),
            digests: Vec::new(),
            provenance,
            ..input.live.clone()
        }
    }

    /// Prices a map and lists its moves. `chosen`: where the gains of arrivals stand.
    fn present(
        &self,
        map: ExpertMap,
        chosen: &[(usize, &Point)],
        mut refused: Vec<Refused>,
        bought: Vec<(usize, f64)>,
    ) -> Result<Plan, PlanError> {
        let Self { input, .. } = self;
        let split = input.split_of(&map, &self.totals)?;
        let (planned_us, balance) =
            self.value(&map, (input.split == SplitRule::Balanced).then_some(&split))?;
        let predicted = self.predicted(planned_us, balance);
        let bytes = input.shape.expert_bytes();
        let stages = schedule(input.live, &map, &self.links, input.policy, bytes);
        let price = price_of(
            input.live,
            &map,
            input.shape,
            input.topology,
            input.policy,
            stages,
            &self.links,
        );
        let link_share = price
            .stages
            .iter()
            .flat_map(|stage| &stage.transfers)
            .map(|t| {
                let rate = input.policy.moves.byte_rate_gb_per_s;
                let link = self.links.link_gb_per_s(t.from, t.to);
                self.links.gb_per_s(t.from, t.to, rate) / link
            })
            .fold(0.0, f64::max);
        let break_even = break_even(
            price.time_s,
            link_share,
            self.exchange_us()?,
            self.us_live,
            self.us_live - planned_us,
            input.policy.moves.dwell_s,
        );
        let even_gain = (self.us_resplit - planned_us) / price.moves.max(1) as f64;
        let gain_of = |layer: LayerId, expert: ExpertId, to: RankId| {
            let point = chosen.iter().find(|(index, _)| *index == layer.index());
            let arrivals = point.map_or(&[][..], |(_, point)| &point.arrivals);
            let known = arrivals.iter().find(|(e, rank, _)| *e == expert.0 && *rank == to);
            known.map_or(even_gain, |known| known.2)
        };
        let transfers = price.stages.iter().flat_map(|stage| &stage.transfers);
        let mut moves: Vec<Move> = transfers
            .map(|t| {
                let slots = &map.slots[t.layer.index()][t.to.index()];
                let slot = slots.iter().position(|held| *held == Some(t.expert)).unwrap_or(0);
                let (layer, expert, from, to) = (t.layer, t.expert, t.from, t.to);
                let gain_us = gain_of(layer, expert, to);
                Move { layer, expert, from, to, slot: SlotId(slot as u16), bytes, gain_us }
            })
            .collect();
        moves.sort_by(|a, b| {
            b.gain_us
                .total_cmp(&a.gain_us)
                .then((a.layer, a.expert, a.to).cmp(&(b.layer, b.expert, b.to)))
        });
        refused.sort_by(|a, b| b.gain_us.total_cmp(&a.gain_us));
        let frontier = std::iter::once((0, 0.0))
            .chain(bought)
            .map(|(moves, saved_us)| FrontierPoint {
                moves,
                bytes: moves as u64 * bytes,
                step_us: self.us_resplit - saved_us,
            })
            .collect();
        let bound = self.bound.clone();
        Ok(Plan { map, split, bound, predicted, price, break_even, moves, frontier, refused })
    }

    /// Is the plan worth its price?
    fn decide(&self, plan: Plan) -> Outcome {
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
        Outcome::DoNothing(Box::new(Nothing { reason, bound, predicted, refused }))
    }
}

/// Gives every arrival of a fresh packing an equal part of what the packing gains.
fn shared_gain(mut point: Point, path: &[Point]) -> Point {
    let before = path.first().map_or(point.us, |first| first.us);
    let gain = (before - point.us) / point.arrivals.len().max(1) as f64;
    for arrival in &mut point.arrivals {
        arrival.2 = gain;
    }
    point
}

/// Slots as bare ids, with empty ones up to `wanted` per rank.
fn widened(layer: &[Vec<Option<ExpertId>>], wanted: usize) -> Slots {
    let bare = |slots: &Vec<Option<ExpertId>>| {
        let mut slots: Vec<Option<u16>> =
            slots.iter().map(|expert| expert.map(|expert| expert.0)).collect();
        let size = slots.len().max(wanted);
        slots.resize(size, None);
        slots
    };
    layer.iter().map(bare).collect()
}

fn filled(slots: &[Option<u16>]) -> usize {
    slots.iter().flatten().count()
}

/// Slots per rank that may be filled: the live ones and as many more as there is room for.
fn sizes_within(live: &Slots, room: &[u64]) -> Vec<usize> {
    let within = |(slots, room): (&Vec<Option<u16>>, &u64)| {
        let more = usize::try_from(*room).unwrap_or(usize::MAX);
        filled(slots).saturating_add(more).min(slots.len())
    };
    live.iter().zip(room).map(within).collect()
}
