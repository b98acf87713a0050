//! Answers in the forms that the Python half hands on.

use crate::delta::{self, Changed};
use crate::error::{Refused, refuse};
use crate::loads::Loads;
use crate::placement::shape;
use crate::placement::{self, Machine, Slots, Wish};
use evenkeel_plan::rows::Effort;
use evenkeel_split::min_max_rows;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId};
use serde_json::{Value, json};

/// DeepSeek's three tables.
pub(crate) struct Tables {
    /// `[layer][slot]`: logical expert.
    pub(crate) phy2log: Vec<i64>,
    /// `[layer][expert][copies_max]`: slots of an expert, ascending, padded with -1.
    pub(crate) log2phy: Vec<i64>,
    /// `[layer][expert]`: copies.
    pub(crate) logcnt: Vec<i64>,
    /// Most copies of an expert in any layer.
    pub(crate) copies_max: usize,
}

impl Tables {
    /// Tables of a placement without empty slots.
    pub(crate) fn of(slots: &Slots, experts: usize) -> Self {
        let mut phy2log = Vec::new();
        let mut places: Vec<Vec<i64>> = Vec::with_capacity(slots.len() * experts);
        for layer in slots {
            let first = places.len();
            places.resize(first + experts, Vec::new());
            for (slot, expert) in layer.iter().flatten().enumerate() {
                let expert = expert.map_or(0, ExpertId::index);
                phy2log.push(expert as i64);
                places[first + expert].push(slot as i64);
            }
        }
        let copies_max = places.iter().map(Vec::len).max().unwrap_or(0);
        let pad = |places: &Vec<i64>| {
            let mut row = places.clone();
            row.resize(copies_max, -1);
            row
        };
        Self {
            phy2log,
            log2phy: places.iter().flat_map(pad).collect(),
            logcnt: places.iter().map(|places| places.len() as i64).collect(),
            copies_max,
        }
    }
}

/// `plan`: map, balance before and after, bound, moves, as JSON.
pub(crate) fn plan(loads: &Loads, machine: &Machine, wish: &Wish<'_>) -> Result<String, Refused> {
    let live = match wish.live {
        Some(text) => {
            let live = ExpertMap::from_json(text)?;
            live.fits(&with_model(loads, &live), machine.ranks)?;
            if let Some(broken) = live.violations().first() {
                return refuse(format!("live: breaks a law: {broken}"));
            }
            live
        }
        None => placement::start(loads, machine)?,
    };
    if let Some(target) = wish.target_balancedness
        && !(target > 0.0 && target <= 1.0)
    {
        return refuse(format!("target_balancedness: {target}, expected above 0, at most 1"));
    }
    let before = balancedness(&live.slots, loads, machine);
    if wish.groups.is_some() && (wish.live.is_some() || !machine.dead.is_empty()) {
        return refuse(
            "groups: a plan with whole groups starts from scratch with all ranks, expected no live \
             map and no dead ranks"
                .to_owned(),
        );
    }
    let Changed { slots, moves, reason } = match wish.live {
        Some(_) => delta::from_live(loads, machine, &live, wish)?,
        None => Changed {
            slots: placement::scratch(loads, machine, wish.groups, Effort::THOROUGH)?,
            moves: Vec::new(),
            reason: None,
        },
    };
    let map = match &reason {
        Some(_) => live,
        None => {
            let (version, parent) = (live.version + 1, Some(live.version));
            ExpertMap { slots, version, parent, ..live }
        }
    };
    let bound = placement::bound(loads, machine, wish.groups);
    let answer: Value = json!({
        "map": map.to_json()?,
        "slots": map.slots,
        "balancedness_before": before,
        "balancedness_after": balancedness(&map.slots, loads, machine),
        "bound": bound,
        "moves": moves,
        "reason": reason,
    });
    Ok(answer.to_string())
}

/// A map's own model, with the dimensions of these loads.
fn with_model(loads: &Loads, map: &ExpertMap) -> evenkeel_types::ModelShape {
    let mut shape = shape(loads.layers, loads.experts);
    shape.name.clone_from(&map.model);
    shape.revision.clone_from(&map.model_revision);
    shape
}

/// `[layer]`: mean ÷ largest living rank, tokens split evenly over the slots of an expert.
pub(crate) fn balancedness(slots: &Slots, loads: &Loads, machine: &Machine) -> Vec<f64> {
    let alive = |rank: &usize| !machine.dead.contains(&RankId(*rank as u16));
    let layer = |(layer, ranks): (usize, &Vec<Vec<Option<ExpertId>>>)| {
        let living: Vec<&Vec<Option<ExpertId>>> =
            ranks.iter().enumerate().filter(|(rank, _)| alive(rank)).map(|(_, s)| s).collect();
        let mut copies = vec![0_u32; loads.experts];
        for expert in living.iter().flat_map(|slots| slots.iter()).flatten() {
            copies[expert.index()] += 1;
        }
        let weight = loads.layer(layer);
        let piece = |e: &ExpertId| weight[e.index()] / f64::from(copies[e.index()]);
        let rows: Vec<f64> =
            living.iter().map(|slots| slots.iter().flatten().map(piece).sum()).collect();
        let most = rows.iter().copied().fold(0.0, f64::max);
        let mean = rows.iter().sum::<f64>() / rows.len() as f64;
        if most > 0.0 { mean / most } else { 1.0 }
    };
    slots.iter().enumerate().map(layer).collect()
}

/// `check`: one sentence per broken law of a map, and of the way to it from a live one.
pub(crate) fn check(map: &str, live: Option<&str>) -> Result<Vec<String>, Refused> {
    let map = ExpertMap::from_json(map)?;
    let mut found: Vec<String> = map.violations().iter().map(ToString::to_string).collect();
    if let Some(live) = live {
        let live = ExpertMap::from_json(live)?;
        if map.version <= live.version || map.parent != Some(live.version) {
            let parent = map.parent.map_or("none".to_owned(), |parent| parent.to_string());
            found.push(format!(
                "map has version {} and parent {parent}, expected a version above {} with parent {}",
                map.version, live.version, live.version
            ));
        }
        let size = |map: &ExpertMap| (map.layers(), map.ranks(), map.experts);
        if size(&map) != size(&live) {
            found.push(format!(
                "map has {:?} layers, ranks and experts, expected {:?} as the live map",
                size(&map),
                size(&live)
            ));
        }
    }
    Ok(found)
}

/// An exact split of a map.
pub(crate) struct Shares {
    /// `[layer][rank][slot]`: share of its expert's tokens. 0 for an empty slot and for one that
    /// repeats an expert of its rank.
    pub(crate) shares: Vec<f64>,
    /// `[layer][rank]`: load under these shares.
    pub(crate) loads: Vec<f64>,
    /// Ranks.
    pub(crate) ranks: usize,
    /// Slots of the rank that has most.
    pub(crate) per_rank: usize,
}

/// `split`: the fullest rank of every layer has least.
pub(crate) fn split(map: &str, loads: &Loads) -> Result<Shares, Refused> {
    let map = ExpertMap::from_json(map)?;
    map.fits(&with_model(loads, &map), map.ranks())?;
    let per_rank = map.slots.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let ranks = map.ranks();
    let mut shares = vec![0.0; map.layers() * ranks * per_rank];
    let mut rank_loads = Vec::with_capacity(map.layers() * ranks);
    for layer in 0..map.layers() {
        let hosts = map.hosts(LayerId(layer as u16));
        let counts: Vec<u64> = loads.counts(layer).iter().map(|count| u64::from(*count)).collect();
        let best = min_max_rows(&hosts, &counts, ranks)?;
        rank_loads.extend(best.rank_rows);
        for (rank, slots) in map.slots[layer].iter().enumerate() {
            let mut seen = Vec::with_capacity(slots.len());
            for (slot, expert) in slots.iter().enumerate() {
                let Some(expert) = expert else { continue };
                if seen.contains(expert) {
                    continue;
                }
                seen.push(*expert);
                let place = hosts[expert.index()].iter().position(|host| host.index() == rank);
                if let Some(place) = place {
                    shares[(layer * ranks + rank) * per_rank + slot] =
                        best.shares[expert.index()][place];
                }
            }
        }
    }
    Ok(Shares { shares, loads: rank_loads, ranks, per_rank })
}
