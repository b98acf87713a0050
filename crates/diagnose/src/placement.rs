//! What is it about the map: one hot expert, one hot rank, or an uneven map?

use crate::attribute::Attribution;
use crate::balance::best_split_ns;
use crate::diagnosis::{CauseKind, MapBound, RankShare, Utilisation};
use crate::expect::Expectation;
use crate::frame::Stage;
use crate::heal::{Player, only};
use crate::window::Window;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId};

/// One kind's part of what the placement costs.
#[derive(Clone, Debug)]
pub(crate) struct PlacementPart {
    pub(crate) kind: CauseKind,
    pub(crate) share: f64,
    pub(crate) layer: usize,
    pub(crate) rank: usize,
    pub(crate) expert: Option<usize>,
    pub(crate) layers: usize,
}

/// A layer's uneven placement.
struct LayerFault {
    layer: usize,
    saved: f64,
    rank: usize,
    expert: Option<usize>,
}

/// An expert that accounts for this share of its rank's excess is the reason for it.
const EXPERT_SHARE_MIN: f64 = 0.5;
/// A rank that accounts for this share of what uneven layers cost is the reason for them.
const RANK_SHARE_MIN: f64 = 0.5;

/// Splits the placement's cost over kinds, by layers. A kind below `share_min` joins the largest.
pub(crate) fn placement_parts(
    window: &Window,
    attribution: &Attribution,
    map: &ExpertMap,
    expectation: &Expectation<'_>,
    share_min: f64,
) -> Vec<PlacementPart> {
    let faults: Vec<LayerFault> = (0..window.layers)
        .map(|layer| layer_fault(window, attribution, map, expectation, layer))
        .filter(|fault| fault.saved > 0.0)
        .collect();
    let total: f64 = faults.iter().map(|fault| fault.saved).sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let (by_expert, by_rank): (Vec<&LayerFault>, Vec<&LayerFault>) =
        faults.iter().partition(|fault| fault.expert.is_some());
    let rest: f64 = by_rank.iter().map(|fault| fault.saved).sum();
    let mut per_rank = vec![0.0; window.ranks];
    for fault in &by_rank {
        per_rank[fault.rank] += fault.saved;
    }
    let top = per_rank.iter().copied().fold(0.0, f64::max);
    let rest_kind =
        if top >= RANK_SHARE_MIN * rest { CauseKind::HotRank } else { CauseKind::BadPlacement };
    let part = |kind, faults: &[&LayerFault]| -> Option<PlacementPart> {
        let mut layers = faults.to_vec();
        if kind == CauseKind::HotRank {
            layers.retain(|fault| per_rank[fault.rank] >= top);
        }
        let worst = layers.iter().max_by(|a, b| a.saved.total_cmp(&b.saved))?;
        Some(PlacementPart {
            kind,
            share: faults.iter().map(|fault| fault.saved).sum::<f64>() / total,
            layer: worst.layer,
            rank: worst.rank,
            expert: worst.expert,
            layers: layers.len(),
        })
    };
    let parts = [part(CauseKind::HotExpert, &by_expert), part(rest_kind, &by_rank)];
    let mut parts: Vec<PlacementPart> = parts.into_iter().flatten().collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    // A kind too small to be a cause of its own counts with the main one.
    let small: f64 =
        parts.iter().filter(|part| part.share < share_min).map(|part| part.share).sum();
    if let Some(first) = parts.first_mut().filter(|first| first.share >= share_min) {
        first.share += small;
        parts.retain(|part| part.share >= share_min);
    }
    parts
}

fn layer_fault(
    window: &Window,
    attribution: &Attribution,
    map: &ExpertMap,
    expectation: &Expectation<'_>,
    layer: usize,
) -> LayerFault {
    let effects = &attribution.effects;
    let others = attribution.mask & !only(Player::Placement);
    let slowest = |index: usize, mask| {
        window
            .cells(layer)
            .map(|cell| effects.expert(window, index, cell, mask))
            .fold(0.0, f64::max)
    };
    let saved = window
        .mean(|index, _| slowest(index, others) - slowest(index, others | only(Player::Placement)));
    let of_rank: Vec<f64> = window
        .cells(layer)
        .map(|cell| window.mean(|_, frame| best_split_ns(frame, cell)))
        .collect();
    let mean = of_rank.iter().sum::<f64>() / of_rank.len().max(1) as f64;
    let rank = (0..of_rank.len())
        .max_by(|a, b| of_rank[*a].total_cmp(&of_rank[*b]).then(b.cmp(a)))
        .unwrap_or(0);
    let expert = hot_expert_of(window, map, expectation, layer, rank, of_rank[rank] - mean);
    LayerFault { layer, saved, rank, expert }
}

/// The expert on a rank whose copy alone exceeds a mean copy by most of the rank's excess.
fn hot_expert_of(
    window: &Window,
    map: &ExpertMap,
    expectation: &Expectation<'_>,
    layer: usize,
    rank: usize,
    excess_ns: f64,
) -> Option<usize> {
    let (loads, split) = (window.loads.as_ref()?, window.split.as_ref()?);
    let experts = usize::from(map.experts);
    let routed = window.frames.iter().filter(|frame| frame.expert_rows.is_some()).count();
    let loads = &loads[layer * experts..(layer + 1) * experts];
    let mut copies = Vec::new();
    for (expert, rows) in loads.iter().enumerate() {
        for (host, share) in split.shares_of(layer, expert) {
            let rows = share * *rows as f64 / routed.max(1) as f64;
            copies.push((host, expert, expectation.copy_ns(rows)));
        }
    }
    let mean = copies.iter().map(|copy| copy.2).sum::<f64>() / copies.len().max(1) as f64;
    let (_, expert, ns) = copies
        .into_iter()
        .filter(|copy| copy.0 == RankId(rank as u16))
        .max_by(|a, b| a.2.total_cmp(&b.2).then(b.1.cmp(&a.1)))?;
    (excess_ns > 0.0 && ns - mean >= EXPERT_SHARE_MIN * excess_ns && ns > 1.3 * mean)
        .then_some(expert)
}

/// Whose experts the group waits for.
pub(crate) fn waited_for(window: &Window) -> Vec<RankShare> {
    let frames = window.frames.len().max(1) as f64;
    let mut layers = vec![0.0; window.ranks];
    let mut steps = vec![0.0; window.ranks];
    let mut waited = vec![0.0; window.ranks];
    for frame in &window.frames {
        let mut of_step = vec![0_usize; window.ranks];
        for layer in 0..window.layers {
            let ns = |rank: &usize| frame.at(Stage::Expert, layer * window.ranks + rank);
            let slowest = (0..window.ranks).max_by(|a, b| ns(a).total_cmp(&ns(b)).then(b.cmp(a)));
            let Some(rank) = slowest.filter(|rank| ns(rank) > 0.0) else { continue };
            let mean = (0..window.ranks).map(|rank| ns(&rank)).sum::<f64>() / window.ranks as f64;
            of_step[rank] += 1;
            layers[rank] += 1.0 / (window.layers as f64 * frames);
            waited[rank] += (ns(&rank) - mean) / frames;
        }
        let most = (0..window.ranks).max_by_key(|rank| (of_step[*rank], std::cmp::Reverse(*rank)));
        if let Some(rank) = most.filter(|rank| of_step[*rank] > 0) {
            steps[rank] += 1.0 / frames;
        }
    }
    let mut shares: Vec<RankShare> = (0..window.ranks)
        .map(|rank| RankShare {
            rank: RankId(rank as u16),
            share_of_layers: layers[rank],
            share_of_steps: steps[rank],
            waited_ms_per_step: waited[rank] / 1e6,
        })
        .collect();
    shares.sort_by(|a, b| {
        b.waited_ms_per_step.total_cmp(&a.waited_ms_per_step).then(a.rank.cmp(&b.rank))
    });
    shares
}

/// The most that any map could save, and what evening out lasting differences would.
pub(crate) fn map_bound(window: &Window, attribution: &Attribution) -> MapBound {
    let step_ns = window.mean(|_, frame| frame.observed_ns);
    let saved = window.mean(|_, frame| {
        let bounded = |cell: usize| {
            let expected = frame.expects(Stage::Expert, cell);
            let bound = frame.bound_ns[cell / window.ranks];
            if expected > 0.0 { frame.at(Stage::Expert, cell) * bound / expected } else { 0.0 }
        };
        frame.over_layers(window.layers, window.ranks, |cell| frame.at(Stage::Expert, cell))
            - frame.over_layers(window.layers, window.ranks, bounded)
    });
    let saved = saved.max(0.0);
    let exact = if window.has_routing {
        "from the rows of every expert"
    } else {
        "from rows and activated experts per rank (routing was not recorded)"
    };
    MapBound {
        share_of_step: if step_ns > 0.0 { saved / step_ns } else { 0.0 },
        ms: saved / 1e6,
        lasting_ms: attribution.lasting_ns.max(0.0) / 1e6,
        how: format!(
            "each layer of each step with the expert time that every map needs at least on its \
             slowest rank: one first tile per activated expert, further tiles, rows and tokens \
             spread evenly over ranks, {exact}; other spans, and the exchange's volume, as recorded"
        ),
    }
}

/// Mean busy share of ranks.
pub(crate) fn utilisation(window: &Window) -> Utilisation {
    let of_rank = |rank: usize| {
        window.mean(|_, frame| {
            let stages = [Stage::Attention, Stage::Router, Stage::Expert, Stage::Combine];
            let ns: f64 = (0..window.layers)
                .map(|layer| layer * window.ranks + rank)
                .flat_map(|cell| stages.map(|stage| frame.at(stage, cell)))
                .sum();
            if frame.observed_ns > 0.0 { ns / frame.observed_ns } else { 0.0 }
        })
    };
    let busy: Vec<f64> = (0..window.ranks).map(of_rank).collect();
    let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
    let most = busy.iter().copied().fold(0.0, f64::max);
    Utilisation {
        mean_busy_share: mean,
        max_busy_share: most,
        why: format!(
            "the mean rank is busy for {:.0} % of a step and the busiest for {:.0} %: every layer \
             ends with its slowest rank, which is not the same rank in every layer, so a mean over \
             ranks or layers hides what the step waits for",
            100.0 * mean,
            100.0 * most
        ),
    }
}

/// A layer, rank and expert in words.
pub(crate) fn place_words(layer: usize, rank: usize, expert: Option<usize>) -> String {
    let (layer, rank) = (LayerId(layer as u16), RankId(rank as u16));
    match expert {
        Some(expert) => format!("{layer}, {rank}, {}", ExpertId(expert as u16)),
        None => format!("{layer}, {rank}"),
    }
}
