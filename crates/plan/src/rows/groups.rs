//! Groups of experts that stay whole on a node: each node is a problem of its own.

use super::{Effort, LayerRows, LayerSlots, place};

/// Packs a layer so that every group of experts (equal runs of ids) lies on one node, equally many
/// groups on each. `node_of[rank]` ascends. `None` where that is impossible: counts that do not
/// divide, or a node with fewer slots than experts.
#[must_use]
pub fn place_grouped(
    layer: &LayerRows<'_>,
    groups: usize,
    node_of: &[usize],
    effort: Effort,
) -> Option<LayerSlots> {
    let experts = layer.loads.len();
    let nodes = node_of.last().map_or(0, |node| node + 1);
    let divides = |whole: usize, part: usize| part > 0 && whole.is_multiple_of(part);
    if !divides(experts, groups) || !divides(groups, nodes) || node_of.len() != layer.sizes.len() {
        return None;
    }
    let size = experts / groups;
    let assigned = spread(layer, groups, nodes);
    let mut slots: LayerSlots = layer.sizes.iter().map(|size| vec![None; *size]).collect();
    for node in 0..nodes {
        let members: Vec<u16> = (0..experts as u16)
            .filter(|expert| assigned[usize::from(*expert) / size] == node)
            .collect();
        let ranks: Vec<usize> = (0..node_of.len()).filter(|rank| node_of[*rank] == node).collect();
        let of = |values: &[f64]| -> Vec<f64> {
            ranks.iter().filter_map(|rank| values.get(*rank).copied()).collect()
        };
        let loads: Vec<f64> = members.iter().map(|e| layer.loads[usize::from(*e)]).collect();
        let sizes: Vec<usize> = ranks.iter().map(|rank| layer.sizes[*rank]).collect();
        let (inverse_speed, extra) = (of(layer.inverse_speed), of(layer.extra));
        let inside = LayerRows {
            loads: &loads,
            sizes: &sizes,
            inverse_speed: &inverse_speed,
            extra: &extra,
        };
        for (rank, packed) in ranks.iter().zip(place(&inside, effort)?) {
            slots[*rank] = packed.into_iter().map(|e| e.map(|e| members[usize::from(e)])).collect();
        }
    }
    Some(slots)
}

/// `[group]` → node: the heaviest group first onto the lightest node, then exchanges of two groups
/// while the heaviest node gets lighter.
fn spread(layer: &LayerRows<'_>, groups: usize, nodes: usize) -> Vec<usize> {
    let size = layer.loads.len() / groups;
    let load: Vec<f64> = layer.loads.chunks(size).map(|group| group.iter().sum()).collect();
    let mut order: Vec<usize> = (0..groups).collect();
    order.sort_by(|a, b| load[*b].total_cmp(&load[*a]).then(a.cmp(b)));
    let (mut node_of, mut sums, mut held) = (vec![0; groups], vec![0.0_f64; nodes], vec![0; nodes]);
    for group in order {
        let open = (0..nodes).filter(|node| held[*node] < groups / nodes);
        let node = open.min_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0);
        node_of[group] = node;
        sums[node] += load[group];
        held[node] += 1;
    }
    // Each exchange lowers the heaviest node; groups are few.
    for _ in 0..groups * groups {
        let heaviest = (0..nodes).max_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0);
        let mut best = (sums[heaviest] * (1.0 - 1e-12), 0, 0);
        for a in (0..groups).filter(|group| node_of[*group] == heaviest) {
            for b in (0..groups).filter(|group| node_of[*group] != heaviest) {
                let moved = load[a] - load[b];
                let ends = (sums[heaviest] - moved).max(sums[node_of[b]] + moved);
                if ends < best.0 {
                    best = (ends, a, b);
                }
            }
        }
        let (_, a, b) = best;
        if a == b {
            break;
        }
        let moved = load[a] - load[b];
        sums[heaviest] -= moved;
        sums[node_of[b]] += moved;
        node_of.swap(a, b);
    }
    node_of
}
