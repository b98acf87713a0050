//! What no placement with an even split can beat.

use super::bins::LayerRows;

/// Least possible level of the highest rank: the mean, or the largest piece when experts are cut as
/// fine as the slots allow, at most once per rank.
#[must_use]
pub fn flat_bound(layer: &LayerRows<'_>) -> f64 {
    let fastest = layer.inverse_speed.iter().copied().fold(f64::INFINITY, f64::min);
    let copies = super::greedy::replicate(layer);
    let pieces = layer.loads.iter().zip(&copies).map(|(load, c)| load / f64::from(*c));
    layer.mean().max(pieces.fold(0.0, f64::max) * fastest)
}

/// The same where groups of experts (equal runs of ids) stay whole on a node (equal runs of
/// ranks), as many groups on each node: the fullest node's mean, least over all ways to spread
/// the groups. Exact where groups are few (up to 16), else the largest-first spread's lower limit,
/// which is the overall mean.
#[must_use]
pub fn grouped_bound(layer: &LayerRows<'_>, groups: usize, nodes: usize) -> f64 {
    let flat = flat_bound(layer);
    let experts = layer.loads.len();
    let divides = |whole: usize, part: usize| part > 0 && whole.is_multiple_of(part);
    if !divides(experts, groups) || !divides(groups, nodes) || groups > 16 {
        return flat;
    }
    let size = experts / groups;
    let loads: Vec<f64> = layer.loads.chunks(size).map(|group| group.iter().sum()).collect();
    let speed: f64 = (0..layer.sizes.len())
        .filter(|rank| layer.sizes[*rank] > 0)
        .map(|rank| 1.0 / layer.inverse_speed[rank])
        .sum();
    let mut order = loads;
    order.sort_by(|a, b| b.total_cmp(a));
    let mut best = f64::INFINITY;
    spread(&order, &mut vec![(0.0, 0); nodes], groups / nodes, &mut best);
    flat.max(best / (speed / nodes as f64))
}

/// Least largest sum of groups over nodes with `room` groups each, by trying all.
fn spread(left: &[f64], nodes: &mut [(f64, usize)], room: usize, best: &mut f64) {
    let Some((group, rest)) = left.split_first() else {
        *best = nodes.iter().map(|node| node.0).fold(0.0, f64::max).min(*best);
        return;
    };
    for node in 0..nodes.len() {
        let (load, held) = nodes[node];
        // An empty node is like the next empty one.
        let twin =
            nodes[..node].iter().any(|other| other.1 == held && (other.0 - load).abs() <= 0.0);
        if held == room || load + group >= *best || twin {
            continue;
        }
        nodes[node] = (load + group, held + 1);
        spread(rest, nodes, room, best);
        nodes[node] = (load, held);
    }
}
