//! What a planner reads.

use crate::PlanError;
use crate::affinity::Traffic;
use crate::promises::refuse_orphans;
use evenkeel_cost::ExpertCoefficients;
use evenkeel_split::SplitTable;
use evenkeel_trace::StepLoads;
use evenkeel_types::{ExpertMap, LayerId, ModelShape, Phase, Pin, Policy, RankId, Topology};
use serde::Serialize;

/// What is minimised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Mean over the sampled steps of the slowest rank's time by the coefficients, summed over
    /// layers. µs.
    #[default]
    StepTime,
    /// Rows of the most loaded rank over the whole window, summed over layers: what engines'
    /// planners solve. Every time of the outcome is then a number of rows, the rest of the step
    /// and the coefficients are not read, and [`evenkeel_types::PlanPolicy::gain_us_per_gb_min`]
    /// counts rows.
    SummedTokens,
}

/// How rows are split over copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitRule {
    /// Exact min–max shares for the window's loads.
    #[default]
    Balanced,
    /// Equal shares: an engine without a split table.
    Even,
}

/// How long a plan may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEffort {
    /// Layers are repaired by mean cost, and only a few states of each are valued step by step.
    Quick,
    /// Every change is valued step by step.
    #[default]
    Thorough,
}

/// One planning question.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// The machine, with what is known to be degraded.
    pub topology: &'a Topology,
    /// The map in force.
    pub live: &'a ExpertMap,
    /// The split in force; `None`: [`PlanInput::split`] applied to this window, i.e. a split that
    /// is already up to date.
    pub live_split: Option<&'a SplitTable>,
    /// The planning window: sampled steps of the phase that carries the SLO.
    pub loads: &'a StepLoads,
    /// Expert time.
    pub coefficients: &'a ExpertCoefficients,
    /// Marginal exchange time per (token, expert) row into a rank and layer, dispatch and return
    /// together, µs.
    pub exchange_us_per_row: f64,
    /// The rest of a step, which no map changes, µs.
    pub fixed_us: f64,
    /// Limits and thresholds.
    pub policy: &'a Policy,
    /// Breaks ties between equal moves.
    pub seed: u64,
    /// What is minimised.
    pub objective: Objective,
    /// How rows are split over copies.
    pub split: SplitRule,
    /// How hard layers are searched.
    pub effort: SearchEffort,
    /// `[layer * ranks + rank]`: load that a rank has in a layer whatever the map, before its speed,
    /// e.g. of shared experts kept on some ranks. µs; rows in [`Objective::SummedTokens`].
    pub rank_extra_us: Option<&'a [f64]>,
    /// Sampled tokens with the nodes that they come from: the answer then says what crosses nodes.
    pub traffic: Option<&'a Traffic>,
}

impl PlanInput<'_> {
    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.topology.rank_count()
    }

    /// Name of the window's phase.
    pub(crate) fn phase(&self) -> &'static str {
        match self.loads.phase {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }

    /// Integral rank weights of a split: speeds in thousandths.
    pub(crate) fn weights(&self) -> Vec<u32> {
        weights(self.topology)
    }

    /// The split of a map by the rule asked for.
    pub(crate) fn split_of(
        &self,
        map: &ExpertMap,
        totals: &[u64],
    ) -> Result<SplitTable, PlanError> {
        Ok(match self.split {
            SplitRule::Balanced => SplitTable::balanced_weighted(map, totals, &self.weights())?,
            SplitRule::Even => SplitTable::even(map)?,
        })
    }

    /// Checks dimensions, laws of the live map, and coefficients.
    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        let Self { shape, live, loads, .. } = self;
        live.fits(shape, self.ranks())?;
        self.validate_slots()?;
        let violations = live.violations();
        refuse_orphans(&violations, &self.topology.rank_dead)?;
        if let Some(violation) = violations.into_iter().next() {
            return Err(PlanError::LiveBroken { version: live.version, violation });
        }
        let experts = usize::from(shape.experts);
        let layers = usize::from(shape.moe_layers);
        let wrong = |what, found, expected| Err(PlanError::Loads { what, found, expected });
        if loads.layers != layers {
            return wrong("layers", loads.layers, layers);
        }
        if loads.experts != experts {
            return wrong("experts", loads.experts, experts);
        }
        if loads.steps.is_empty() {
            return Err(PlanError::NoSteps { phase: self.phase() });
        }
        for step in &loads.steps {
            if step.counts.len() != layers * experts {
                return wrong("counts in a step", step.counts.len(), layers * experts);
            }
        }
        self.validate_constraints()?;
        self.validate_costs()
    }

    /// Checks that the ranks that live have a slot for every expert.
    fn validate_slots(&self) -> Result<(), PlanError> {
        let (experts, ranks) = (usize::from(self.shape.experts), self.topology.ranks());
        let wanted = usize::from(self.policy.plan.slots_per_rank);
        for (index, layer) in self.live.slots.iter().enumerate() {
            let alive = layer.iter().zip(&ranks).filter(|(_, rank)| !rank.dead);
            let slots = alive.map(|(slots, _)| slots.len().max(wanted)).sum();
            if slots < experts {
                let layer = LayerId(index as u16);
                return Err(PlanError::TooFewSlots { layer, slots, experts });
            }
        }
        Ok(())
    }

    /// Checks that the policy's constraints can be met by some map of this shape.
    fn validate_constraints(&self) -> Result<(), PlanError> {
        let Self { shape, topology, policy, live, .. } = self;
        let refused = |constraint, why| Err(PlanError::Constraint { constraint, why });
        if policy.plan.groups_on_nodes {
            let Some(groups) = shape.groups else {
                return refused("groups_on_nodes", format!("`{}` has no groups", shape.name));
            };
            if groups.groups == 0 || shape.experts % groups.groups != 0 {
                let (experts, groups) = (shape.experts, groups.groups);
                let why = format!("{experts} experts do not divide into {groups} groups");
                return refused("groups_on_nodes", why);
            }
        }
        for (index, pin) in policy.plan.pinned.iter().enumerate() {
            let Pin { layer, expert, rank } = *pin;
            let place = format!("{layer}, {expert}, {rank}");
            let there = layer.index() < live.layers()
                && expert.0 < shape.experts
                && rank.index() < self.ranks();
            if !there {
                return refused("pinned", format!("{place}: expected ids of this model and group"));
            }
            if topology.is_dead(rank) {
                return refused("pinned", format!("{place}: the rank is dead"));
            }
            let same = |other: &&Pin| other.layer == layer && other.rank == rank;
            let here = policy.plan.pinned[..=index].iter().filter(same).count();
            let wanted = usize::from(policy.plan.slots_per_rank);
            let slots = live.slots[layer.index()][rank.index()].len().max(wanted);
            if here > slots {
                let why = format!("{place}: {here} pinned copies on a rank with {slots} slots");
                return refused("pinned", why);
            }
        }
        Ok(())
    }

    fn validate_costs(&self) -> Result<(), PlanError> {
        let ExpertCoefficients {
            floor_us,
            slot_us,
            first_us,
            tile_rows: _,
            further_tile_us,
            row_us,
            token_us,
            host_us,
        } = *self.coefficients;
        for (field, value) in [
            ("floor_us", floor_us),
            ("slot_us", slot_us),
            ("first_us", first_us),
            ("further_tile_us", further_tile_us),
            ("row_us", row_us),
            ("token_us", token_us),
            ("host_us", host_us),
            ("exchange_us_per_row", self.exchange_us_per_row),
            ("fixed_us", self.fixed_us),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(PlanError::Coefficient { field, value });
            }
        }
        let Some(extra) = self.rank_extra_us else { return Ok(()) };
        let ranks = self.ranks();
        let (found, expected) = (extra.len(), self.loads.layers * ranks);
        if found != expected {
            return Err(PlanError::Loads { what: "values of `rank_extra_us`", found, expected });
        }
        match extra.iter().position(|value| !(value.is_finite() && *value >= 0.0)) {
            None => Ok(()),
            Some(index) => Err(PlanError::Extra {
                layer: LayerId((index / ranks) as u16),
                rank: RankId((index % ranks) as u16),
                value: extra[index],
            }),
        }
    }
}

/// Integral rank weights of a topology's splits: speeds in thousandths, 1 for all where equal.
pub(crate) fn weights(topology: &Topology) -> Vec<u32> {
    let ranks = topology.ranks();
    let alive: Vec<_> = ranks.iter().filter(|rank| !rank.dead).collect();
    let equal =
        alive.windows(2).all(|pair| pair[0].speed_share.total_cmp(&pair[1].speed_share).is_eq());
    ranks
        .iter()
        .map(|rank| if equal { 1 } else { (rank.speed_share * 1000.0).round().max(1.0) as u32 })
        .collect()
}
