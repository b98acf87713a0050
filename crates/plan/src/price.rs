//! What a move costs, whoever planned it.

use crate::links::Links;
use crate::schedule::{Schedule, schedule};
use crate::{PlanError, Price};
use evenkeel_types::{ExpertMap, MemoryPolicy, ModelShape, Policy, Topology};

/// Prices the move from `live` to `next` at the policy's rate. Any map can be priced, a lawful one
/// or not: see [`crate::check_transition`].
///
/// # Errors
/// A map for another model or another number of ranks.
pub fn price(
    live: &ExpertMap,
    next: &ExpertMap,
    shape: &ModelShape,
    topology: &Topology,
    policy: &Policy,
) -> Result<Price, PlanError> {
    for map in [live, next] {
        map.fits(shape, topology.rank_count())?;
    }
    let links = Links::new(topology);
    let live = &live.without(&topology.rank_dead);
    let stages = schedule(live, next, &links, policy, shape.expert_bytes());
    Ok(price_of(live, next, shape, topology, policy, stages, &links))
}

pub(crate) fn price_of(
    live: &ExpertMap,
    next: &ExpertMap,
    shape: &ModelShape,
    topology: &Topology,
    policy: &Policy,
    schedule: Schedule,
    links: &Links,
) -> Price {
    let bytes = shape.expert_bytes();
    let ranks = topology.ranks();
    let mut bytes_by_rank = vec![0; ranks.len()];
    let (mut moves, mut bytes_cross_node) = (0, 0);
    for transfer in schedule.stages.iter().flat_map(|stage| &stage.transfers) {
        moves += 1;
        bytes_by_rank[transfer.to.index()] += bytes;
        if !links.same_node(transfer.from, transfer.to) {
            bytes_cross_node += bytes;
        }
    }
    let resident = MemoryPolicy::resident_bytes(shape);
    let staging = u64::from(policy.memory.staging_slots);
    let (before, after) = (live.copies_per_rank(), next.copies_per_rank());
    let memory_peak_bytes = (0..ranks.len())
        .map(|rank| {
            let held = |copies: &[u64], arriving: u64| copies[rank] + arriving.max(staging);
            let meanwhile = schedule.copies.iter().zip(&schedule.arriving);
            let peak = meanwhile
                .map(|(copies, arriving)| held(copies, arriving[rank]))
                .chain([held(&before, 0), held(&after, 0)])
                .max();
            resident + peak.unwrap_or(0) * bytes
        })
        .collect();
    let kv = |copies: &[u64]| -> i64 {
        let ranks = ranks.iter().zip(copies);
        ranks.map(|(rank, copies)| policy.memory.kv_bytes(shape, rank.hbm_bytes, *copies)).sum()
    };
    Price {
        moves,
        bytes: moves as u64 * bytes,
        bytes_by_rank,
        bytes_cross_node,
        time_s: schedule.stages.iter().map(|stage| stage.time_s).sum(),
        memory_peak_bytes,
        kv_bytes_lost: kv(&before) - kv(&after),
        stages: schedule.stages,
    }
}
