//! What if ranks are lost?
//!
//! A failure domain is what is lost at once: a rank, a node, or what the operator names. Experts
//! whose every copy lies in it are its *orphans*: nobody can compute them until they are loaded
//! again, from a host's memory or a disk, for by definition no rank has them any more. [`survey`]
//! lists them with bytes and times and says which promise of the policy a map breaks;
//! [`Restores`] keeps a plan for every domain ready: orphans first, one copy each, so that service
//! resumes; then a few copies move between the ranks that are left, until the load is even again.
//! [`spread`] keeps copies of one expert out of one domain, [`deserving`] says which experts need a
//! second copy most, and [`live_copies`] places such copies.
//!
//! **Invariants.** A restore never overwrites the last copy of an expert, never puts two copies on
//! a rank, and never fills a slot that memory does not hold with the KV floor. A copy that is
//! overwritten ends before its slot is loaded, so that no staging memory is needed.

mod live;
mod rebalance;
mod restore;
mod spread;
mod state;
mod switch;

pub use live::{Deserving, deserving, live_copies};
pub use restore::{Load, RestorePlan, Source};
pub use spread::{Spread, spread};
pub use switch::{Restores, Switch};

use crate::PlanError;
use crate::input::weights;
use evenkeel_types::{
    Domain, DomainKind, ExpertId, ExpertMap, LayerId, ModelShape, Policy, Promise, RankId,
    SurvivePolicy, Topology, Violation,
};
use restore::Restorer;
use serde::Serialize;
use std::fmt;

/// One question about survival.
#[derive(Clone, Copy, Debug)]
pub struct SurviveInput<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// The machine; ranks that are dead already hold nothing.
    pub topology: &'a Topology,
    /// The map in force.
    pub map: &'a ExpertMap,
    /// Memory, rates and promises.
    pub policy: &'a Policy,
    /// `[layer * experts + expert]`: rows of a window; `None`: all alike.
    pub loads: Option<&'a [u64]>,
}

/// What every domain's loss would mean.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Per domain, in the order of the kinds asked for.
    pub domains: Vec<DomainSurvey>,
    /// Promises of the policy that the map breaks. Empty: it may be used.
    pub broken: Vec<PromiseBroken>,
}

/// The loss of one domain.
#[derive(Clone, Debug, Serialize)]
pub struct DomainSurvey {
    /// The domain.
    pub domain: Domain,
    /// Experts that live only there.
    pub orphans: Vec<(LayerId, ExpertId)>,
    /// Those of them for which no slot or no memory is left.
    pub unrestored: Vec<(LayerId, ExpertId)>,
    /// Bytes to load until every other expert serves again.
    pub bytes: u64,
    /// Time to load them, s: from the memory of the hosts,
    pub host_s: f64,
    /// and from the disks.
    pub disk_s: f64,
    /// Which of the two holds, by the policy.
    pub resume_s: f64,
}

/// A promise that a map does not keep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromiseBroken {
    /// The promise.
    pub promise: SurvivePolicy,
    /// The domain whose loss breaks it.
    pub domain: Domain,
    /// Experts that live only there (`live`), or that find no slot or memory (`restorable`).
    pub experts: Vec<(LayerId, ExpertId)>,
    /// Time until every expert that can be restored serves again, s.
    pub resume_s: f64,
}

/// Experts named in a sentence; the rest is counted.
const NAMED_MAX: usize = 4;

impl fmt::Display for PromiseBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, domain, experts, resume_s } = self;
        let within_s = promise.within_s;
        match promise.promise {
            Promise::Live => write!(f, "{domain}: promised `live`, but no other copy of ")?,
            Promise::Restorable if experts.is_empty() => {
                return write!(
                    f,
                    "{domain}: promised restorable in {within_s} s, but its experts are back after \
                     {resume_s:.1} s only"
                );
            }
            Promise::Restorable => write!(
                f,
                "{domain}: promised restorable in {within_s} s, but no slot or memory is left for "
            )?,
        }
        for (index, (layer, expert)) in experts.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{}{layer} {expert}", if index > 0 { ", " } else { "" })?;
        }
        match experts.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Looks at the loss of every domain of these kinds, and of those that the policy promises about.
///
/// # Errors
/// A map for another model or machine, or a broken one; loads of another length.
pub fn survey(input: &SurviveInput<'_>, kinds: &[DomainKind]) -> Result<Survey, PlanError> {
    let restorer = Restorer::new(input)?;
    let mut kinds = kinds.to_vec();
    for survive in &input.policy.survive {
        if !kinds.contains(&survive.domain) {
            kinds.push(survive.domain);
        }
    }
    let (mut domains, mut broken) = (Vec::new(), Vec::new());
    for domain in kinds.iter().flat_map(|kind| restorer.domains(*kind)) {
        let first = restorer.first_loads(&domain);
        let (host_s, disk_s) = first.times_s;
        let found = DomainSurvey {
            orphans: first.orphans,
            unrestored: first.unrestored,
            bytes: first.loads.len() as u64 * input.shape.expert_bytes(),
            host_s,
            disk_s,
            resume_s: if input.policy.restore.host_holds_experts { host_s } else { disk_s },
            domain,
        };
        broken.extend(input.policy.survive.iter().filter_map(|promise| found.breaks(promise)));
        domains.push(found);
    }
    Ok(Survey { domains, broken })
}

/// The promises of the policy that a map breaks; nothing is looked at where it promises nothing.
///
/// # Errors
/// As [`survey`].
pub fn broken_promises(input: &SurviveInput<'_>) -> Result<Vec<PromiseBroken>, PlanError> {
    if input.policy.survive.is_empty() {
        return Ok(Vec::new());
    }
    Ok(survey(input, &[])?.broken)
}

impl DomainSurvey {
    fn breaks(&self, promise: &SurvivePolicy) -> Option<PromiseBroken> {
        if promise.domain != self.domain.kind {
            return None;
        }
        let (experts, late) = match promise.promise {
            Promise::Live => (&self.orphans, false),
            Promise::Restorable => (&self.unrestored, self.resume_s > promise.within_s),
        };
        (late || !experts.is_empty()).then(|| PromiseBroken {
            promise: *promise,
            domain: self.domain.clone(),
            experts: experts.clone(),
            resume_s: self.resume_s,
        })
    }
}

/// An input looked at once: what is alive, loads as numbers, room in memory.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a> {
    input: SurviveInput<'a>,
    /// The map without what dead ranks held.
    map: ExpertMap,
    /// `[rank]`.
    alive: Vec<bool>,
    /// `[layer * experts + expert]`, rows, as integers and as floats.
    loads: Vec<u64>,
    rows: Vec<f64>,
    /// `[rank]`: weights of an exact split, and 1 ÷ speed.
    weights: Vec<u32>,
    slowness: Vec<f64>,
    /// `[rank]`: copies that memory holds beside the map's.
    room: Vec<u64>,
}

impl<'a> Group<'a> {
    fn new(input: &SurviveInput<'a>) -> Result<Self, PlanError> {
        let SurviveInput { shape, topology, map, policy, loads } = *input;
        let ranks = topology.ranks();
        map.fits(shape, ranks.len())?;
        let left = map.without(&topology.rank_dead);
        if let Some(violation) = left.violations().into_iter().find(unusable) {
            return Err(PlanError::LiveBroken { version: map.version, violation });
        }
        let expected = map.layers() * usize::from(map.experts);
        let loads = loads.map_or_else(|| vec![1; expected], <[u64]>::to_vec);
        if loads.len() != expected {
            let found = loads.len();
            return Err(PlanError::Loads { what: "loads", found, expected });
        }
        let bytes = shape.expert_bytes().max(1);
        let room = ranks.iter().zip(left.copies_per_rank()).map(|(rank, copies)| {
            let floor = (rank.hbm_bytes as f64 * policy.memory.kv_floor_share) as i64;
            let free = policy.memory.kv_bytes(shape, rank.hbm_bytes, copies) - floor;
            u64::try_from(free).unwrap_or(0) / bytes
        });
        Ok(Self {
            input: *input,
            alive: ranks.iter().map(|rank| !rank.dead).collect(),
            rows: loads.iter().map(|load| *load as f64).collect(),
            loads,
            weights: weights(topology),
            slowness: ranks.iter().map(|rank| 1.0 / rank.speed_share.max(1e-6)).collect(),
            room: room.collect(),
            map: left,
        })
    }

    fn experts(&self) -> usize {
        usize::from(self.map.experts)
    }

    fn layer_rows(&self, layer: usize) -> &[f64] {
        &self.rows[layer * self.experts()..(layer + 1) * self.experts()]
    }

    fn layer_loads(&self, layer: usize) -> &[u64] {
        &self.loads[layer * self.experts()..(layer + 1) * self.experts()]
    }

    fn state(&self, layer: usize, alive: &[bool]) -> state::State<'_> {
        state::State::new(&self.map.slots[layer], alive, self.layer_rows(layer), &self.slowness)
    }

    /// Domains of a kind, of their ranks those that live; a domain without any is left out.
    fn domains(&self, kind: DomainKind) -> Vec<Domain> {
        let mut domains = self.input.topology.domains(kind);
        for domain in &mut domains {
            domain.ranks.retain(|rank| self.alive[rank.index()]);
        }
        domains.retain(|domain| !domain.ranks.is_empty());
        domains
    }

    fn alive_without(&self, lost: &[RankId]) -> Vec<bool> {
        let kept = self.alive.iter().enumerate();
        kept.map(|(rank, alive)| *alive && !lost.contains(&RankId(rank as u16))).collect()
    }
}

/// A missing expert is an orphan already, and digests say nothing about places.
fn unusable(violation: &Violation) -> bool {
    matches!(violation, Violation::Foreign { .. } | Violation::Duplicate { .. })
}
