//! Plans for every domain, ready before one is lost.

use super::SurviveInput;
use super::restore::{RestorePlan, Restorer};
use crate::PlanError;
use evenkeel_split::SplitTable;
use evenkeel_types::{DomainKind, ExpertMap, RankId};

/// The plans of a map, one for every domain of the kinds asked for.
///
/// A plan holds its changes, not its maps: 256 plans for 256 ranks fit into a few megabytes.
#[derive(Clone, Debug)]
pub struct Restores {
    /// The map that they are for, without what dead ranks held.
    live: ExpertMap,
    loads: Vec<u64>,
    weights: Vec<u32>,
    /// Ordered by the ranks lost.
    plans: Vec<RestorePlan>,
}

/// What is in force once the orphans of a loss are back.
#[derive(Clone, Debug)]
pub struct Switch<'a> {
    /// The plan chosen.
    pub plan: &'a RestorePlan,
    /// Map after the first loads; until a load has ended its expert has no copy.
    pub map: ExpertMap,
    /// The exact split over it.
    pub split: SplitTable,
}

impl Restores {
    /// Works out the plan for the loss of every domain of these kinds.
    ///
    /// # Errors
    /// As [`super::survey`].
    pub fn precompute(input: &SurviveInput<'_>, kinds: &[DomainKind]) -> Result<Self, PlanError> {
        let restorer = Restorer::new(input)?;
        let domains = kinds.iter().flat_map(|kind| restorer.domains(*kind));
        let mut plans: Vec<RestorePlan> = domains.map(|domain| restorer.plan(domain)).collect();
        plans.sort_by(|a, b| a.domain.ranks.cmp(&b.domain.ranks));
        let group = restorer.group;
        Ok(Self { live: group.map, loads: group.loads, weights: group.weights, plans })
    }

    /// All plans, by the ranks lost.
    #[must_use]
    pub fn plans(&self) -> &[RestorePlan] {
        &self.plans
    }

    /// The plan for the loss of exactly these ranks (ascending).
    #[must_use]
    pub fn of(&self, lost: &[RankId]) -> Option<&RestorePlan> {
        let found = self.plans.binary_search_by(|plan| plan.domain.ranks.as_slice().cmp(lost));
        found.ok().map(|index| &self.plans[index])
    }

    /// Selects the plan for a loss and makes its map and split. `None`: no plan for these ranks.
    ///
    /// # Errors
    /// An expert that stays lost has no split.
    pub fn switch(&self, lost: &[RankId]) -> Result<Option<Switch<'_>>, PlanError> {
        let Some(plan) = self.of(lost) else { return Ok(None) };
        let map = plan.resumed(&self.live);
        let split = SplitTable::balanced_weighted(&map, &self.loads, &self.weights)?;
        Ok(Some(Switch { plan, map, split }))
    }

    /// Map and split at the end of a plan of this set.
    ///
    /// # Errors
    /// As [`Restores::switch`].
    pub fn finish(&self, plan: &RestorePlan) -> Result<(ExpertMap, SplitTable), PlanError> {
        let map = plan.rebalanced(&self.live);
        let split = SplitTable::balanced_weighted(&map, &self.loads, &self.weights)?;
        Ok((map, split))
    }
}
