//! Copies of one expert in different failure domains, at no loss of balance beyond a stated share.

use super::state::{Place, State};
use super::{Group, SurviveInput};
use crate::PlanError;
use evenkeel_types::{DomainKind, ExpertId, ExpertMap, LayerId};
use serde::Serialize;

/// A map whose copies are apart, and what that took.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// The map, one version on.
    pub map: ExpertMap,
    /// Experts with copies in one domain only though they have several: before,
    pub together_before: usize,
    /// and after, because no swap was cheap enough.
    pub together: Vec<(LayerId, ExpertId)>,
    /// Copies that change their rank.
    pub moves: usize,
    /// `[layer]`: mean ÷ slowest rank, even split: before,
    pub balancedness_before: Vec<f64>,
    /// and after.
    pub balancedness: Vec<f64>,
}

/// Swaps copies until the copies of every expert that has several lie in two domains at least,
/// where a swap exists that slows no rank beyond `loss_share` of the layer's slowest. Among such
/// swaps the most even one is taken; pinned copies stay.
///
/// Only swaps: every rank keeps its number of copies, so memory is what it was.
///
/// # Errors
/// As [`super::survey`].
pub fn spread(
    input: &SurviveInput<'_>,
    kind: DomainKind,
    loss_share: f64,
) -> Result<Spread, PlanError> {
    let group = Group::new(input)?;
    let domain_of = input.topology.domain_of(kind);
    let (mut map, mut moves) = (group.map.clone(), 0);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (mut together_before, mut together) = (0, Vec::new());
    for layer in 0..map.layers() {
        let pins = input.policy.plan.pinned.iter().filter(|pin| pin.layer.index() == layer);
        let pins: Vec<(u16, u16)> = pins.map(|pin| (pin.expert.0, pin.rank.0)).collect();
        let mut state = group.state(layer, &group.alive);
        before.push(state.balancedness());
        let limit = state.slowest().map_or(0.0, |rank| state.time(rank)) * (1.0 + loss_share);
        let together_now = |state: &State<'_>| -> Vec<u16> {
            let hosts = state.hosts.iter().enumerate();
            hosts.filter(|(_, h)| is_together(h, &domain_of)).map(|(e, _)| e as u16).collect()
        };
        let found = together_now(&state);
        together_before += found.len();
        for expert in found {
            // A swap for another expert may have parted its copies already.
            if is_together(&state.hosts[usize::from(expert)], &domain_of)
                && let Some((from, to)) = best_swap(&state, expert, &domain_of, limit, &pins)
            {
                state.swap(from, to);
                moves += 2;
            }
        }
        let left = together_now(&state).into_iter();
        together.extend(left.map(|expert| (LayerId(layer as u16), ExpertId(expert))));
        after.push(state.balancedness());
        for (slots, now) in map.slots[layer].iter_mut().zip(state.slots) {
            for (slot, now) in slots.iter_mut().zip(now) {
                *slot = now.map(ExpertId);
            }
        }
    }
    map.digests.clear();
    (map.parent, map.version) = (Some(input.map.version), input.map.version + 1);
    map.provenance.made_by = format!("copies spread over {kind}s");
    Ok(Spread {
        map,
        together_before,
        together,
        moves,
        balancedness_before: before,
        balancedness: after,
    })
}

/// Several copies, all in one domain.
fn is_together(hosts: &[u16], domain_of: &[usize]) -> bool {
    let domain = |rank: &u16| domain_of[usize::from(*rank)];
    hosts.len() > 1 && hosts.windows(2).all(|pair| domain(&pair[0]) == domain(&pair[1]))
}

/// The swap of one of an expert's copies into another domain that leaves its two ranks most even.
fn best_swap(
    state: &State<'_>,
    expert: u16,
    domain_of: &[usize],
    limit: f64,
    pins: &[(u16, u16)],
) -> Option<(Place, Place)> {
    let domain = |rank: u16| domain_of[usize::from(rank)];
    let part = state.part(expert, state.copies(expert));
    let slow = |rank: u16, more: f64| {
        (state.rows[usize::from(rank)] + more) * state.slowness[usize::from(rank)]
    };
    let mut best: Option<(f64, Place, Place)> = None;
    for &from in &state.hosts[usize::from(expert)] {
        let slots = &state.slots[usize::from(from)];
        let Some(slot) = slots.iter().position(|held| *held == Some(expert)) else { continue };
        if pins.contains(&(expert, from)) {
            continue;
        }
        for to in state.ranks().filter(|rank| domain(*rank) != domain(from)) {
            for (there, held) in state.slots[usize::from(to)].iter().enumerate() {
                let Some(other) = *held else { continue };
                if state.holds(other, from) || pins.contains(&(other, to)) {
                    continue;
                }
                // The copy that comes back must not join its siblings in one domain.
                let mut hosts = state.hosts[usize::from(other)].clone();
                hosts.iter_mut().for_each(|rank| *rank = if *rank == to { from } else { *rank });
                if is_together(&hosts, domain_of) {
                    continue;
                }
                let moved = part - state.part(other, state.copies(other));
                let after = slow(from, -moved).max(slow(to, moved));
                let within = after <= limit;
                if within && best.as_ref().is_none_or(|(value, ..)| after < *value) {
                    best = Some((after, (from, slot as u16), (to, there as u16)));
                }
            }
        }
    }
    best.map(|(_, from, to)| (from, to))
}
