//! Which experts deserve the few live copies, and where such copies go.

use super::restore::Restorer;
use super::state::{Place, State};
use super::{Group, SurviveInput};
use crate::PlanError;
use evenkeel_types::{DomainKind, ExpertId, ExpertMap, LayerId};
use serde::Serialize;

/// An expert that lives in one domain only, with what a second copy elsewhere would spare.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Deserving {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Name of the only domain that holds it.
    pub domain: String,
    /// Part of the tokens that choose it in this layer.
    pub token_share: f64,
    /// Time until it serves again after that domain's loss, s; infinite where it has no room.
    pub back_s: f64,
    /// `token_share · back_s`: mean time for which a token would wait for it, s.
    pub worth_s: f64,
}

/// Every expert that lives in one domain of this kind only, the one first that a live copy helps
/// most: by the tokens that choose it and by the time that its restore takes.
///
/// All copies of a model's experts have the same size, so worth is worth per byte.
///
/// # Errors
/// As [`super::survey`].
pub fn deserving(input: &SurviveInput<'_>, kind: DomainKind) -> Result<Vec<Deserving>, PlanError> {
    let restorer = Restorer::new(input)?;
    let group = &restorer.group;
    let layers = group.map.layers();
    let totals: Vec<u64> = (0..layers).map(|l| group.layer_loads(l).iter().sum()).collect();
    let share = |layer: LayerId, expert: ExpertId| {
        let rows = group.layer_loads(layer.index())[expert.index()] as f64;
        let of_all = rows / (totals[layer.index()] as f64).max(1.0);
        (of_all * f64::from(input.shape.top_k)).min(1.0)
    };
    let mut found = Vec::new();
    for domain in restorer.domains(kind) {
        let first = restorer.first_loads(&domain);
        let back = first.loads.iter().map(|load| (load.layer, load.expert, load.end_s));
        let never = first.unrestored.iter().map(|(layer, e)| (*layer, *e, f64::INFINITY));
        for (layer, expert, back_s) in back.chain(never) {
            let token_share = share(layer, expert);
            let worth_s = if token_share > 0.0 { token_share * back_s } else { 0.0 };
            let domain = domain.name.clone();
            found.push(Deserving { layer, expert, domain, token_share, back_s, worth_s });
        }
    }
    found.sort_by(|a, b| {
        let place = |d: &Deserving| (d.layer, d.expert);
        b.worth_s.total_cmp(&a.worth_s).then(place(a).cmp(&place(b)))
    });
    Ok(found)
}

/// The map with live copies in its empty slots, as far as slots and memory go: the most deserving
/// experts first, each in another domain than its other copies, on the rank that it leaves most
/// even. Copies that were there stay on a rank of their domain.
///
/// # Errors
/// As [`super::survey`].
pub fn live_copies(input: &SurviveInput<'_>, kind: DomainKind) -> Result<ExpertMap, PlanError> {
    let wanted = deserving(input, kind)?;
    let group = Group::new(input)?;
    let domain_of = input.topology.domain_of(kind);
    let mut room = group.room.clone();
    let mut map = group.map.clone();
    let mut by_layer: Vec<Vec<u16>> = vec![Vec::new(); map.layers()];
    // Memory is spent in order of worth over all layers: who comes too late for it is left out.
    let empty = |layer: &Vec<Vec<Option<ExpertId>>>| {
        layer.iter().flatten().filter(|slot| slot.is_none()).count()
    };
    let slots: Vec<usize> = map.slots.iter().map(empty).collect();
    let mut memory: u64 =
        room.iter().zip(&group.alive).map(|(r, alive)| r * u64::from(*alive)).sum();
    for one in &wanted {
        let layer = &mut by_layer[one.layer.index()];
        if memory > 0 && layer.len() < slots[one.layer.index()] {
            layer.push(one.expert.0);
            memory -= 1;
        }
    }
    for (layer, experts) in by_layer.into_iter().enumerate() {
        let mut state = group.state(layer, &group.alive);
        for expert in experts {
            if let Some(place) = free_place(&state, expert, &domain_of, &room) {
                state.put(expert, place);
                room[usize::from(place.0)] -= 1;
            } else if let Some((moved, from, to)) = detour(&state, expert, &domain_of, &room) {
                // `moved` makes place for the expert and takes the slot that the expert cannot use.
                state.clear(from);
                state.put(moved, to);
                state.put(expert, from);
                room[usize::from(to.0)] -= 1;
            }
        }
        for (slots, after) in map.slots[layer].iter_mut().zip(state.slots) {
            for (slot, after) in slots.iter_mut().zip(after) {
                *slot = after.map(ExpertId);
            }
        }
    }
    map.digests.clear();
    (map.parent, map.version) = (Some(input.map.version), input.map.version + 1);
    map.provenance.made_by = "live copies".to_owned();
    Ok(map)
}

/// The empty slot in another domain that leaves the ranks most even.
fn free_place(state: &State<'_>, expert: u16, domain_of: &[usize], room: &[u64]) -> Option<Place> {
    let elsewhere = |rank: &u16| {
        let mut hosts = state.hosts[usize::from(expert)].iter();
        hosts.all(|host| domain_of[usize::from(*host)] != domain_of[usize::from(*rank)])
    };
    let places = empty_places(state, room).filter(|(rank, _)| elsewhere(rank));
    places.min_by(|a, b| {
        state.unevenness(expert, *a).total_cmp(&state.unevenness(expert, *b)).then(a.cmp(b))
    })
}

fn empty_places<'s>(state: &'s State<'_>, room: &'s [u64]) -> impl Iterator<Item = Place> + 's {
    state.ranks().filter(|rank| room[usize::from(*rank)] > 0).filter_map(|rank| {
        let slots = &state.slots[usize::from(rank)];
        let slot = slots.iter().position(Option::is_none)?;
        Some((rank, slot as u16))
    })
}

/// A copy of another expert that may move into an empty slot of the expert's own domain, so that
/// its place is free: (expert moved, its place, the empty slot).
fn detour(
    state: &State<'_>,
    expert: u16,
    domain_of: &[usize],
    room: &[u64],
) -> Option<(u16, Place, Place)> {
    let domain = |rank: u16| domain_of[usize::from(rank)];
    let own: Vec<usize> = state.hosts[usize::from(expert)].iter().map(|r| domain(*r)).collect();
    for to in empty_places(state, room) {
        for from in state.ranks().filter(|rank| !own.contains(&domain(*rank))) {
            for (slot, held) in state.slots[usize::from(from)].iter().enumerate() {
                let Some(held) = *held else { continue };
                let siblings = state.hosts[usize::from(held)].iter().filter(|r| **r != from);
                let apart = siblings.clone().count() > 0
                    && siblings.clone().all(|rank| domain(*rank) != domain(to.0));
                if apart && !state.holds(held, to.0) {
                    return Some((held, (from, slot as u16), to));
                }
            }
        }
    }
    None
}
