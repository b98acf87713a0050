//! Expert groups whole on a node, as DeepSeek's hierarchical policy keeps them.
//!
//! Every node gets as many groups as any other, and then each node is a placement of its own. A
//! token that may use G groups visits at most G nodes; what that costs in balance is the bound of
//! the worst node.

use crate::error::{Refused, refuse};
use crate::loads::Loads;
use crate::placement::{Machine, Slots, scratch};
use evenkeel_types::ExpertId;

/// Passes of pairwise exchange after the first assignment; the handful of groups that models have
/// settles in two or three.
const PASSES_MAX: usize = 64;

/// A placement from scratch with `groups` equal groups of consecutive experts kept whole.
pub(crate) fn grouped(loads: &Loads, machine: &Machine, groups: usize) -> Result<Slots, Refused> {
    let (experts, nodes) = (loads.experts, machine.nodes);
    if !experts.is_multiple_of(groups) {
        return refuse(format!(
            "num_groups: {groups}, expected a divisor of the {experts} experts"
        ));
    }
    if !groups.is_multiple_of(nodes) {
        return refuse(format!("num_groups: {groups}, expected a multiple of the {nodes} nodes"));
    }
    let of_group = experts / groups;
    // `[node][layer]`: experts of a node, ascending.
    let mut members: Vec<Vec<Vec<usize>>> = vec![Vec::with_capacity(loads.layers); nodes];
    for layer in 0..loads.layers {
        let sums: Vec<f64> =
            loads.layer(layer).chunks_exact(of_group).map(|group| group.iter().sum()).collect();
        for (node, groups) in assign(&sums, nodes).into_iter().enumerate() {
            let group_experts = |group| group * of_group..(group + 1) * of_group;
            members[node].push(groups.into_iter().flat_map(group_experts).collect());
        }
    }
    let mut slots: Slots = vec![Vec::with_capacity(machine.ranks); loads.layers];
    let inner = Machine {
        ranks: machine.ranks / nodes,
        per_rank: machine.per_rank,
        nodes: 1,
        dead: Vec::new(),
    };
    for own in &members {
        let all = || {
            own.iter()
                .enumerate()
                .flat_map(|(layer, experts)| experts.iter().map(move |expert| (layer, *expert)))
        };
        let part = Loads {
            layers: loads.layers,
            experts: experts / nodes,
            weight: all().map(|(layer, expert)| loads.layer(layer)[expert]).collect(),
            counts: all().map(|(layer, expert)| loads.counts(layer)[expert]).collect(),
            scale: loads.scale.clone(),
        };
        for (layer, ranks) in scratch(&part, &inner)?.into_iter().enumerate() {
            let name = |expert: ExpertId| ExpertId(own[layer][expert.index()] as u16);
            let rename =
                |rank: Vec<Option<ExpertId>>| rank.into_iter().map(|slot| slot.map(name)).collect();
            slots[layer].extend(ranks.into_iter().map(rename));
        }
    }
    Ok(slots)
}

/// Groups of each node, equally many: heaviest first onto the lightest node that has room, then
/// exchanges of two groups while the heavier of their nodes gets lighter.
fn assign(sums: &[f64], nodes: usize) -> Vec<Vec<usize>> {
    let room = sums.len() / nodes;
    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]).then(a.cmp(b)));
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); nodes];
    let total = |groups: &[usize]| groups.iter().map(|group| sums[*group]).sum::<f64>();
    for group in order {
        let open = (0..nodes).filter(|node| held[*node].len() < room);
        let node = open.min_by(|a, b| total(&held[*a]).total_cmp(&total(&held[*b])));
        held[node.unwrap_or(0)].push(group);
    }
    for _ in 0..PASSES_MAX {
        let Some((a, i, b, j)) = exchange(&held, sums) else { break };
        let (left, right) = (held[a][i], held[b][j]);
        held[a][i] = right;
        held[b][j] = left;
    }
    for groups in &mut held {
        groups.sort_unstable();
    }
    held
}

/// The exchange that lowers the larger of two nodes most.
fn exchange(held: &[Vec<usize>], sums: &[f64]) -> Option<(usize, usize, usize, usize)> {
    let total: Vec<f64> =
        held.iter().map(|groups| groups.iter().map(|group| sums[*group]).sum()).collect();
    let mut best = (0.0, None);
    for a in 0..held.len() {
        for b in a + 1..held.len() {
            for (i, left) in held[a].iter().enumerate() {
                for (j, right) in held[b].iter().enumerate() {
                    let shift = sums[*right] - sums[*left];
                    let after = (total[a] + shift).max(total[b] - shift);
                    let gain = total[a].max(total[b]) - after;
                    if gain > best.0 + 1e-9 * total[a].max(total[b]) {
                        best = (gain, Some((a, i, b, j)));
                    }
                }
            }
        }
    }
    best.1
}
