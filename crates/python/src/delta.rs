//! From a live map: the moves that gain most, layer by layer, under one cap.

use crate::error::{Refused, refuse};
use crate::loads::Loads;
use crate::placement::{Machine, Slots, Wish, named};
use crate::report::balancedness;
use evenkeel_plan::Reason;
use evenkeel_plan::rows::{Effort, LayerRows, LayerSlots, RepairTerms, flat_bound, repair};
use evenkeel_types::{ExpertMap, LayerId, RankId};
use serde_json::{Value, json};

/// What becomes of a live map.
pub(crate) struct Changed {
    /// Slots, the live map's where there is a reason.
    pub(crate) slots: Slots,
    /// One object per copy that arrives.
    pub(crate) moves: Vec<Value>,
    /// Why nothing is to be done.
    pub(crate) reason: Option<Value>,
}

/// A state of a layer on the way from the live map.
struct State {
    moves: usize,
    /// Rows of the highest rank, in the unit of [`Loads::rows`].
    level: f64,
    slots: LayerSlots,
}

/// The plan from the live map: every layer repaired until it is balanced enough (the wish's target,
/// else as a plan from scratch would be) or as far as the cap on moves allows.
pub(crate) fn from_live(
    loads: &Loads,
    machine: &Machine,
    live: &ExpertMap,
    wish: &Wish<'_>,
) -> Result<Changed, Refused> {
    let enough = wish.target_balancedness.unwrap_or(Effort::THOROUGH.enough);
    let mut ways = Vec::with_capacity(loads.layers);
    for layer in 0..loads.layers {
        let home = living(live, layer, machine)?;
        ways.push((states(loads, machine, layer, &home, enough), home));
    }
    let chosen = choose(&ways, wish.moves_max)?;
    let slots: Slots = ways
        .iter()
        .zip(&chosen)
        .map(|((states, _), at)| named(states[*at].slots.clone(), machine.per_rank))
        .collect();
    let mut moves = Vec::new();
    for (layer, ((states, home), at)) in ways.iter().zip(&chosen).enumerate() {
        let unit = unit(loads, layer);
        let gain = (states[0].level - states[*at].level) / unit;
        moves.extend(arrivals(layer, home, &states[*at], machine, gain));
    }
    let gain = |entry: &(f64, Value)| entry.0;
    moves.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    let moves: Vec<Value> = moves.into_iter().map(|(_, entry)| entry).collect();
    // A map that only leaves dead ranks is another map, though nothing moves.
    let reason = if moves.is_empty() && slots == live.slots {
        Some(serde_json::to_value(nothing(live, loads, machine, enough))?)
    } else {
        None
    };
    Ok(Changed { slots, moves, reason })
}

/// Why no copy moves.
fn nothing(live: &ExpertMap, loads: &Loads, machine: &Machine, enough: f64) -> Reason {
    let balances = balancedness(&live.slots, loads, machine);
    let worst = balances.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    match worst {
        Some((layer, balancedness)) if *balancedness >= enough => Reason::AlreadyBalanced {
            balancedness: *balancedness,
            layer: LayerId(layer as u16),
            enough,
        },
        _ => Reason::GainTooSmall { gain_share: 0.0, gain_min_share: 0.0 },
    }
}

/// [`Loads::rows`] per unit of weight.
fn unit(loads: &Loads, layer: usize) -> f64 {
    let most = |loads: &[f64]| loads.iter().copied().fold(0.0, f64::max);
    let weight = most(loads.layer(layer));
    if weight > 0.0 { most(&loads.rows(layer)) / weight } else { 1.0 }
}

/// Slots of a live layer, those of dead ranks empty.
fn living(live: &ExpertMap, layer: usize, machine: &Machine) -> Result<LayerSlots, Refused> {
    let mut ranks = Vec::with_capacity(machine.ranks);
    for (rank, held) in live.slots[layer].iter().enumerate() {
        let dead = machine.dead.contains(&RankId(rank as u16));
        let mut slots: Vec<Option<u16>> =
            held.iter().map(|expert| expert.map(|expert| expert.0).filter(|_| !dead)).collect();
        if slots.iter().flatten().count() > machine.per_rank {
            return refuse(format!(
                "live: layer {layer}, rank {rank} holds more than {} copies",
                machine.per_rank
            ));
        }
        // Copies keep their slots where they can.
        if slots.len() > machine.per_rank {
            slots.retain(Option::is_some);
        }
        slots.resize(machine.per_rank, None);
        ranks.push(slots);
    }
    Ok(ranks)
}

/// The live layer, with a copy of every expert that dead ranks took, then every state of its repair
/// that is lower than all before it.
fn states(
    loads: &Loads,
    machine: &Machine,
    layer: usize,
    home: &LayerSlots,
    enough: f64,
) -> Vec<State> {
    let (ranks, weight) = (machine.ranks(), loads.rows(layer));
    let rows = ranks.layer(&weight);
    let whole = revived(home, &weight, machine);
    let state = |slots: LayerSlots, level| State { moves: moved(home, &slots), level, slots };
    let mut found = vec![state(whole.clone(), highest(&rows, &whole))];
    // What no map reaches is not worth moves.
    let bound = flat_bound(&rows);
    let reachable = if bound > 0.0 { (rows.mean() / bound).min(1.0) } else { 1.0 };
    let terms = RepairTerms {
        enough: enough.min(reachable),
        moves_max: machine.ranks * machine.per_rank,
        pinned: &[],
        barred: &[],
        may_fill: true,
    };
    let mut step = |slots: LayerSlots, level: f64| {
        if found.last().is_none_or(|last| level < last.level * (1.0 - 1e-9)) {
            found.push(state(slots, level));
        }
    };
    let _ = repair(&rows, &whole, &terms, Some(&mut step));
    found
}

/// Rows of the highest rank.
fn highest(rows: &LayerRows<'_>, slots: &LayerSlots) -> f64 {
    let mut copies = vec![0.0; rows.loads.len()];
    slots.iter().flatten().flatten().for_each(|expert| copies[usize::from(*expert)] += 1.0);
    let piece = |e: &u16| rows.loads[usize::from(*e)] / copies[usize::from(*e)];
    slots.iter().map(|rank| rank.iter().flatten().map(piece).sum()).fold(0.0, f64::max)
}

/// Copies on ranks that do not have them at home.
fn moved(home: &LayerSlots, slots: &LayerSlots) -> usize {
    let new = |(home, slots): (&Vec<Option<u16>>, &Vec<Option<u16>>)| {
        slots.iter().flatten().filter(|expert| !home.contains(&Some(**expert))).count()
    };
    home.iter().zip(slots).map(new).sum()
}

/// A copy of every expert that has none, the heaviest first: in a free slot of the lowest rank that
/// lives, else over the smallest copy that has a sibling.
fn revived(home: &LayerSlots, weight: &[f64], machine: &Machine) -> LayerSlots {
    let mut slots = home.clone();
    let mut copies = vec![0_u32; weight.len()];
    slots.iter().flatten().flatten().for_each(|expert| copies[usize::from(*expert)] += 1);
    let mut lost: Vec<usize> = (0..weight.len()).filter(|expert| copies[*expert] == 0).collect();
    lost.sort_by(|a, b| weight[*b].total_cmp(&weight[*a]).then(a.cmp(b)));
    let alive = |rank: usize| !machine.dead.contains(&RankId(rank as u16));
    for expert in lost {
        let piece = |e: &u16| weight[usize::from(*e)] / f64::from(copies[usize::from(*e)].max(1));
        let rows = |rank: &usize| slots[*rank].iter().flatten().map(piece).sum::<f64>();
        let free = (0..slots.len())
            .filter(|rank| alive(*rank))
            .filter_map(|rank| Some((rank, slots[rank].iter().position(Option::is_none)?)))
            .min_by(|a, b| rows(&a.0).total_cmp(&rows(&b.0)));
        let spare = || {
            let places = (0..slots.len())
                .flat_map(|rank| (0..slots[rank].len()).map(move |slot| (rank, slot)));
            let held = places.filter_map(|(rank, slot)| Some((rank, slot, slots[rank][slot]?)));
            held.filter(|(_, _, expert)| copies[usize::from(*expert)] > 1)
                .min_by(|a, b| piece(&a.2).total_cmp(&piece(&b.2)))
                .map(|(rank, slot, _)| (rank, slot))
        };
        // Living slots are at least as many as experts, so one of the two exists.
        let Some((rank, slot)) = free.or_else(spare) else { continue };
        if let Some(over) = slots[rank][slot].replace(expert as u16) {
            copies[usize::from(over)] -= 1;
        }
        copies[expert] = 1;
    }
    slots
}

/// `[layer]`: the state to go to. Without a cap the last; under one, again and again the further
/// state of some layer that lowers its highest rank most per move.
fn choose(
    ways: &[(Vec<State>, LayerSlots)],
    moves_max: Option<u32>,
) -> Result<Vec<usize>, Refused> {
    let Some(cap) = moves_max.map(|cap| cap as usize) else {
        return Ok(ways.iter().map(|(states, _)| states.len() - 1).collect());
    };
    let mut at = vec![0; ways.len()];
    let mut spent: usize = ways.iter().map(|(states, _)| states[0].moves).sum();
    if spent > cap {
        return refuse(format!(
            "moves_max: {cap}, expected at least {spent} for the experts that dead ranks took"
        ));
    }
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (layer, (states, _)) in ways.iter().enumerate() {
            let from = &states[at[layer]];
            for (index, to) in states.iter().enumerate().skip(at[layer] + 1) {
                if spent + to.moves > cap + from.moves {
                    continue;
                }
                let price = to.moves.saturating_sub(from.moves) as f64;
                let rate = (from.level - to.level) / price;
                if best.is_none_or(|(other, _, _)| rate > other) {
                    best = Some((rate, layer, index));
                }
            }
        }
        let Some((_, layer, index)) = best else { return Ok(at) };
        let states = &ways[layer].0;
        spent = spent + states[index].moves - states[at[layer]].moves;
        at[layer] = index;
    }
}

/// The copies that a layer gets, each with its source: a rank of the target's node where one has
/// it, else the first. `gain` of the layer is shared equally.
fn arrivals(
    layer: usize,
    home: &LayerSlots,
    state: &State,
    machine: &Machine,
    gain: f64,
) -> Vec<(f64, Value)> {
    let node = |rank: usize| rank / (machine.ranks / machine.nodes);
    let gain = gain / state.moves.max(1) as f64;
    let mut moves = Vec::with_capacity(state.moves);
    for (target, slots) in state.slots.iter().enumerate() {
        for (slot, expert) in slots.iter().enumerate() {
            let Some(expert) = expert else { continue };
            if home[target].contains(&Some(*expert)) {
                continue;
            }
            let hosts = (0..home.len()).filter(|rank| home[*rank].contains(&Some(*expert)));
            // -1 where only dead ranks had it: its weights come from elsewhere.
            let source = hosts.min_by_key(|rank| (node(*rank) != node(target), *rank));
            let source = source.map_or(-1, |rank| rank as i64);
            let entry = json!({
                "layer": layer, "expert": expert, "source": source, "target": target,
                "slot": slot, "gain": gain,
            });
            moves.push((gain, entry));
        }
    }
    moves
}
