//! What no map with these slots can go below.

use super::{Mode, Traffic};
use evenkeel_types::{ExpertMap, LayerId, Topology};

/// How many choices of a token the bound of normal mode follows one by one.
const DEPTH: usize = 3;

/// Least share of [`super::Reading::units`] that crosses under any map with as many filled slots
/// per node and layer as this one, whatever its balance and however it splits.
///
/// Low latency: a first copy serves at best the node that sends most to the expert, and each
/// further copy at best one more node; the further copies go to the largest rows that are left.
///
/// Normal: a token stays on its node only if the node holds all its `k` choices. Of the tokens that
/// chose `p` given experts, those that stay number at most `1/(k−p)` of the sum, over the `S−p` best
/// further experts `x`, of those that chose `x` too and stay. Applied from no expert given down to
/// `DEPTH` of them, counts of tokens at the bottom.
#[must_use]
pub fn bound(map: &ExpertMap, traffic: &Traffic, topology: &Topology, mode: Mode) -> f64 {
    let nodes = traffic.nodes();
    let (mut units, mut crossing) = (0.0, 0.0);
    for layer in 0..traffic.layers {
        let mut slots = vec![0_usize; nodes];
        for (rank, _, _) in map.copies(LayerId(layer as u16)) {
            slots[topology.ranks()[rank.index()].node.index()] += 1;
        }
        match mode {
            Mode::LowLatency => {
                let rows = traffic.rows(layer);
                let total: f64 = rows.iter().sum();
                let (mut served, mut further) = (0.0, Vec::new());
                for expert in 0..traffic.experts {
                    let of = |node: usize| rows[node * traffic.experts + expert];
                    let mut by_node: Vec<f64> = (0..nodes).map(of).collect();
                    by_node.sort_by(|a, b| b.total_cmp(a));
                    served += by_node[0];
                    further.extend_from_slice(&by_node[1..]);
                }
                let more = slots.iter().sum::<usize>().saturating_sub(traffic.experts);
                further.sort_by(|a, b| b.total_cmp(a));
                served += further.iter().take(more).sum::<f64>();
                units += total;
                crossing += (total - served).max(0.0);
            }
            Mode::Normal => {
                for (node, list) in traffic.lists.iter().enumerate() {
                    let mut tokens = Vec::with_capacity(list.len() * traffic.top_k);
                    for token in list {
                        tokens.extend_from_slice(traffic.choices(*token, layer));
                    }
                    let stay = stay_at_most(&tokens, traffic, slots[node], 0);
                    units += list.len() as f64 * nodes.saturating_sub(1) as f64;
                    crossing += (list.len() as f64 - stay).max(0.0);
                }
            }
        }
    }
    if units > 0.0 { crossing / units } else { 0.0 }
}

/// Most tokens that can stay, `given` experts of each being known to be there. `tokens` lists the
/// others, `top_k − given` of them per token.
fn stay_at_most(tokens: &[u16], traffic: &Traffic, slots: usize, given: usize) -> f64 {
    let (left, experts) = (traffic.top_k - given, traffic.experts);
    if left == 0 || slots <= given {
        return 0.0;
    }
    let count = (tokens.len() / left) as f64;
    let mut stay = vec![0.0; experts];
    if given == DEPTH || left == 1 {
        for expert in tokens {
            stay[usize::from(*expert)] += 1.0;
        }
    } else {
        let mut with: Vec<Vec<u16>> = vec![Vec::new(); experts];
        for token in tokens.chunks_exact(left) {
            for expert in token {
                let others = token.iter().copied().filter(|other| other != expert);
                with[usize::from(*expert)].extend(others);
            }
        }
        for (stay, with) in stay.iter_mut().zip(&with) {
            *stay = stay_at_most(with, traffic, slots, given + 1);
        }
    }
    stay.sort_by(|a, b| b.total_cmp(a));
    (stay.iter().take(slots - given).sum::<f64>() / left as f64).min(count)
}
