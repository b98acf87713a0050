//! Plans keep what the policy promises about the loss of ranks.
//!
//! The search buys time and knows nothing of promises; this looks at the map that it found. A map
//! that breaks a promise is repaired in its free slots, then by copies that an expert has beyond
//! two, then by leaving the layers concerned as they are. What no repair reaches is refused.

use crate::check::check_transition;
use crate::study::{Study, widened};
use crate::survive::{PromiseBroken, SurviveInput, broken_promises, live_copies, spread};
use crate::{Nothing, Outcome, PlanError, PlanInput, Reason};
use evenkeel_types::{
    DomainKind, ExpertId, ExpertMap, LayerId, Promise, RankId, SurvivePolicy, Violation,
};

/// Refuses a live map that lost experts with dead ranks: no plan can copy what nobody holds.
pub(crate) fn refuse_orphans(found: &[Violation], dead: &[RankId]) -> Result<(), PlanError> {
    let mut missing = found.iter().filter_map(|violation| match violation {
        Violation::Missing { layer, expert } => Some((*layer, *expert)),
        _ => None,
    });
    match missing.next() {
        Some((layer, expert)) if !dead.is_empty() => {
            let (dead, orphans) = (dead.to_vec(), 1 + missing.count());
            Err(PlanError::Orphans { dead, orphans, layer, expert })
        }
        _ => Ok(()),
    }
}

/// The outcome where its map keeps the policy's promises, else the best repair of it.
///
/// `input.live` holds nothing on dead ranks. A repair of a live map that breaks a promise itself is
/// not asked whether it pays; any other one is.
///
/// # Errors
/// [`PlanError::Promise`] where neither the outcome's map, nor a repair, nor the live map keeps
/// them.
pub(crate) fn keep(input: PlanInput<'_>, outcome: Outcome) -> Result<Outcome, PlanError> {
    if input.policy.survive.is_empty() {
        return Ok(outcome);
    }
    let keeper = Keeper { totals: input.loads.total(), input };
    let found = match &outcome {
        Outcome::Plan(plan) => &plan.map,
        Outcome::DoNothing(_) => input.live,
    };
    let broken = keeper.broken(found)?;
    let Some(first) = broken.first() else { return Ok(outcome) };
    let PlanInput { live, shape, topology, policy, .. } = input;
    let live_keeps = keeper.broken(live)?.is_empty();
    let may_stay = live_keeps && policy.plan.violations(live, shape, topology).is_empty();
    let study = Study::new(input)?;
    for candidate in keeper.repairs(found, &broken, live_keeps)? {
        let map = study.child(candidate.slots.iter().map(|layer| widened(layer, 0)), "plan");
        if !check_transition(live, &map, shape, topology, policy)?.is_empty()
            || !keeper.broken(&map)?.is_empty()
        {
            continue;
        }
        let refused = match &outcome {
            Outcome::Plan(plan) => plan.refused.clone(),
            Outcome::DoNothing(nothing) => nothing.refused.clone(),
        };
        let mut plan = study.present(map, &[], refused, Vec::new())?;
        plan.repaired.clone_from(&broken);
        return Ok(if may_stay { study.decide(plan) } else { Outcome::Plan(Box::new(plan)) });
    }
    let slots_missing = slots_missing(first.promise.promise, &broken, live.layers());
    let (broken, more) = (Box::new(first.clone()), broken.len() - 1);
    match outcome {
        Outcome::Plan(plan) if may_stay => {
            let reason = Reason::BreaksPromise { broken, more, slots_missing };
            let (bound, predicted, refused) = (plan.bound, plan.predicted, plan.refused);
            Ok(Outcome::DoNothing(Box::new(Nothing {
                reason,
                bound,
                predicted,
                refused,
                traffic: None,
            })))
        }
        _ => Err(PlanError::Promise { broken, more, slots_missing }),
    }
}

/// Slots that a repair would need in the layer that lacks most. Live copies add up over domains;
/// of restorable domains only one is lost at once.
fn slots_missing(promise: Promise, broken: &[PromiseBroken], layers: usize) -> usize {
    let mut missing = vec![0; layers];
    for one in broken.iter().filter(|one| one.promise.promise == promise) {
        let mut here = vec![0; layers];
        for (layer, _) in &one.experts {
            here[layer.index()] += 1;
        }
        for (missing, here) in missing.iter_mut().zip(here) {
            *missing = match promise {
                Promise::Live => *missing + here,
                Promise::Restorable => here.max(*missing),
            };
        }
    }
    missing.into_iter().max().unwrap_or(0)
}

struct Keeper<'a> {
    input: PlanInput<'a>,
    /// `[layer * experts + expert]`, rows of the window.
    totals: Vec<u64>,
}

impl Keeper<'_> {
    fn survive<'s>(&'s self, map: &'s ExpertMap) -> SurviveInput<'s> {
        let PlanInput { shape, topology, policy, .. } = self.input;
        SurviveInput { shape, topology, map, policy, loads: Some(&self.totals) }
    }

    fn broken(&self, map: &ExpertMap) -> Result<Vec<PromiseBroken>, PlanError> {
        broken_promises(&self.survive(map))
    }

    /// Maps that may keep the promises, the one that keeps most of the plan first.
    fn repairs(
        &self,
        found: &ExpertMap,
        broken: &[PromiseBroken],
        live_keeps: bool,
    ) -> Result<Vec<ExpertMap>, PlanError> {
        let live = self.input.live;
        let mut maps = vec![self.repaired(found, false)?, self.repaired(found, true)?];
        if live_keeps {
            let mut reverted = found.clone();
            for (layer, _) in broken.iter().flat_map(|broken| &broken.experts) {
                reverted.slots[layer.index()].clone_from(&live.slots[layer.index()]);
            }
            maps.push(reverted);
        } else {
            maps.extend([self.repaired(live, false)?, self.repaired(live, true)?]);
        }
        Ok(maps)
    }

    /// Parts copies that lie together, then adds live copies in free slots; `surplus` frees slots
    /// of copies that no promise needs first.
    fn repaired(&self, map: &ExpertMap, surplus: bool) -> Result<ExpertMap, PlanError> {
        let wanted = usize::from(self.input.policy.plan.slots_per_rank);
        let mut map = map.clone();
        for slots in map.slots.iter_mut().flatten() {
            slots.resize(slots.len().max(wanted), None);
        }
        let promises = &self.input.policy.survive;
        let mut kinds: Vec<DomainKind> = promises.iter().map(|promise| promise.domain).collect();
        // What lies in two of the widest domains lies in two of every narrower one.
        kinds.sort_unstable_by(|a, b| b.cmp(a));
        kinds.dedup();
        for kind in kinds {
            let live = |one: &SurvivePolicy| one.domain == kind && one.promise == Promise::Live;
            if surplus {
                self.free_surplus(&mut map, kind);
            }
            if promises.iter().any(live) {
                map = spread(&self.survive(&map), kind, f64::MAX)?.map;
            }
            map = live_copies(&self.survive(&map), kind)?;
        }
        Ok(map)
    }

    /// Ends copies of experts that live in more than two domains, those that serve fewest rows
    /// first, until every expert of one domain only may find a slot.
    fn free_surplus(&self, map: &mut ExpertMap, kind: DomainKind) {
        let domain_of = self.input.topology.domain_of(kind);
        let experts = usize::from(map.experts);
        for layer in 0..map.layers() {
            let id = LayerId(layer as u16);
            let domains = |hosts: &[RankId]| {
                let mut found: Vec<usize> =
                    hosts.iter().map(|rank| domain_of[rank.index()]).collect();
                found.sort_unstable();
                found.dedup();
                found.len()
            };
            let hosts = map.hosts(id);
            let alone = hosts.iter().filter(|hosts| domains(hosts) < 2).count();
            let alive = |rank: usize| !self.input.topology.is_dead(RankId(rank as u16));
            let slots = map.slots[layer].iter().enumerate().filter(|(rank, _)| alive(*rank));
            let empty = slots.flat_map(|(_, slots)| slots).filter(|slot| slot.is_none()).count();
            for _ in empty..alone {
                let hosts = map.hosts(id);
                let per_copy = |expert: usize| {
                    self.totals[layer * experts + expert] as f64 / hosts[expert].len() as f64
                };
                let surplus = (0..experts)
                    .filter(|expert| hosts[*expert].len() > 2 && domains(&hosts[*expert]) > 1)
                    .min_by(|a, b| per_copy(*a).total_cmp(&per_copy(*b)).then(a.cmp(b)));
                let Some(expert) = surplus else { break };
                // The copy without which the others still lie in two domains.
                let spare = hosts[expert].iter().rev().find(|rank| {
                    let rest = hosts[expert].iter().filter(|other| other != rank).copied();
                    domains(&rest.collect::<Vec<_>>()) > 1
                });
                let Some(rank) = spare else { break };
                for slot in &mut map.slots[layer][rank.index()] {
                    if *slot == Some(ExpertId(expert as u16)) {
                        *slot = None;
                    }
                }
            }
        }
    }
}
