//! Which faults are there, and what does each cost? Detection, naming, Shapley shares.

use crate::effects::{
    Against, Residuals, common_level, common_shift, lateness, slow_kernels, slow_ranks,
};
use crate::expect::Expectation;
use crate::frame::Stage;
use crate::heal::{
    Effects, Mask, Player, Shares, only, placement_checked_ns, placement_factors, shares,
};
use crate::input::Options;
use crate::links::{PairRates, Way, link_effect};
use crate::window::Window;

/// A window taken apart.
pub(crate) struct Attribution {
    pub(crate) effects: Effects,
    /// Named faults.
    pub(crate) players: Vec<Player>,
    /// Their shares of the slowdown.
    pub(crate) shares: Shares,
    /// What evening out lasting differences between ranks saves, ns per step, named or not.
    pub(crate) lasting_ns: f64,
    /// Named faults as a mask.
    pub(crate) mask: Mask,
    /// Sentences about what stayed undecided.
    pub(crate) undecided: Vec<String>,
}

impl Attribution {
    /// A named fault's mean cost, ns per step; 0 if it is not named.
    pub(crate) fn cost_ns(&self, player: Player) -> f64 {
        self.shares.of.iter().find(|(p, _, _)| *p == player).map_or(0.0, |(_, ns, _)| *ns)
    }
}

/// A window with the rates of its links.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) window: &'a Window,
    pub(crate) rates: &'a PairRates,
}

/// Uneven attention is not named below this ratio of the fullest rank to the mean one.
const ATTENTION_RATIO_MIN: f64 = 1.15;
/// Fewest frames whose halves can check each other.
const HALVES_MIN: usize = 8;
/// Share of what one half of a window promises that must repeat in the other half.
const REPEATS_MIN: f64 = 0.3;
/// Rows beyond fair, in standard deviations of chance, where halves cannot check each other.
const ROW_DEVIATIONS_MIN: f64 = 5.0;

/// Takes a window apart, against a baseline where there is one.
pub(crate) fn attribute(
    now: Seen<'_>,
    baseline: Option<Seen<'_>>,
    expectation: &Expectation<'_>,
    options: &Options,
) -> Attribution {
    let effects = detect(now, baseline, expectation);
    let window = now.window;
    let everything = (1 << Player::ALL.len()) - 1;
    let savings = effects.savings(window, everything);
    let mean = |mask: Mask| {
        savings.iter().map(|of_frame| of_frame[mask]).sum::<f64>() / savings.len().max(1) as f64
    };
    let step_ns = window.mean(|_, frame| frame.observed_ns);
    let least = options.cause_min_share * step_ns;
    let lasting_ns = mean(only(Player::UnevenCopies) | only(Player::Placement))
        - mean(only(Player::UnevenCopies));
    let lasting_checked_ns =
        if window.frames.len() >= HALVES_MIN { placement_checked_ns(window) } else { lasting_ns };
    let mut undecided = Vec::new();
    let mut players = Vec::new();
    for player in Player::ALL {
        let alone = mean(only(player));
        let last = mean(everything) - mean(everything & !only(player));
        let cost = alone.max(last);
        if cost < least || cost <= 0.0 {
            continue;
        }
        match undecided_words(window, player, alone, [lasting_ns, lasting_checked_ns, least]) {
            Some(words) => undecided.push(words),
            None => players.push(player),
        }
    }
    let mut found = shares(window, &savings, &players);
    // A fault may look dear only together with another: what its fair share does not carry is
    // dropped, the cheapest first, and the rest shared anew.
    while let Some((cheapest, ..)) = found
        .of
        .iter()
        .filter(|(_, ns, _)| *ns < least)
        .min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
        .copied()
    {
        players.retain(|player| *player != cheapest);
        found = shares(window, &savings, &players);
    }
    let mask = players.iter().fold(0, |mask, player| mask | only(*player));
    let shares = found;
    Attribution { effects, players, shares, lasting_ns, mask, undecided }
}

/// Why a fault of map or split is not named although it costs enough: it does not repeat from one
/// half of the window to the other. `[lasting, lasting checked, least]` in ns per step.
fn undecided_words(
    window: &Window,
    player: Player,
    alone_ns: f64,
    [lasting_ns, checked_ns, least_ns]: [f64; 3],
) -> Option<String> {
    let few = window.frames.len() < HALVES_MIN;
    match player {
        Player::UnevenCopies if window.copies_checked < REPEATS_MIN => Some(format!(
            "another split over the copies would save {:.3} ms per step in this window, but little \
             of that repeats from one half to the other: a longer window would tell",
            alone_ns / 1e6
        )),
        Player::Placement if checked_ns < least_ns.max(REPEATS_MIN * lasting_ns) => Some(format!(
            "uneven ranks cost {:.3} ms per step in this window, but of what one half of it shows \
             only {:.3} ms repeats in the other: a longer window would tell a lasting difference \
             from chance",
            lasting_ns / 1e6,
            checked_ns.max(0.0) / 1e6
        )),
        Player::Placement if few && !beyond_chance(window) => Some(format!(
            "uneven ranks in {} steps are within chance: a longer window would tell",
            window.frames.len()
        )),
        _ => None,
    }
}

/// Some rank has more rows than its layer's mean by more than counting noise.
fn beyond_chance(window: &Window) -> bool {
    (0..window.layers).any(|layer| {
        let sums: Vec<f64> = window
            .cells(layer)
            .map(|cell| window.frames.iter().map(|frame| f64::from(frame.rows[cell])).sum())
            .collect();
        let mean = sums.iter().sum::<f64>() / sums.len().max(1) as f64;
        sums.iter().any(|rows| rows - mean > ROW_DEVIATIONS_MIN * mean.sqrt() && mean > 0.0)
    })
}

fn detect(now: Seen<'_>, baseline: Option<Seen<'_>>, expectation: &Expectation<'_>) -> Effects {
    let window = now.window;
    let residuals = |stage| {
        let old = baseline.map(|old| (old.window, Residuals::of(old.window, stage, None)));
        let now = Residuals::of(window, stage, old.as_ref().map(|(_, residuals)| residuals));
        (now, old)
    };
    let (experts, old) = residuals(Stage::Expert);
    let old = old.as_ref().map(|(window, residuals)| (*window, residuals));
    let mut kernels = slow_kernels(window, &experts, old);
    if kernels.is_empty() {
        kernels = common_shift(window, &experts, old, expectation.expert_error_share());
    }
    let slow = slow_ranks(window, &experts);
    let (attention, old) = residuals(Stage::Attention);
    let old = old.as_ref().map(|(window, residuals)| (*window, residuals));
    let attention_kernels =
        common_shift(window, &attention, old, expectation.attention_error_share());
    let mut slow_attention = slow_ranks(window, &attention);
    slow_attention.retain(|effect| slow.iter().any(|slow| slow.rank == effect.rank));
    let lateness = lateness(window, &slow_attention);
    let way = |stage| {
        let (residuals, old) = residuals(stage);
        let old = old.as_ref().map(|(window, residuals)| (*window, residuals));
        Way {
            ranks: slow_ranks(window, &residuals),
            common: common_shift(window, &residuals, old, expectation.exchange_error_share()),
            level: common_level(window, &residuals),
        }
    };
    let link = link_effect(
        window,
        &way(Stage::Dispatch),
        &way(Stage::Return),
        now.rates,
        baseline.map(|old| old.rates),
    );
    Effects {
        kernels,
        attention_kernels,
        slow,
        slow_attention,
        lateness,
        link,
        attention: attention_factors(window),
        placement: placement_factors(window, |_| true),
    }
}

/// Factors that even attention out over ranks, by what the curve gives for each rank's KV.
fn attention_factors(window: &Window) -> Option<Vec<f64>> {
    let loads: Vec<f64> = (0..window.ranks)
        .map(|rank| window.mean(|_, frame| frame.expects(Stage::Attention, rank)))
        .collect();
    let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    let most = loads.iter().copied().fold(0.0, f64::max);
    if mean <= 0.0 || most < ATTENTION_RATIO_MIN * mean {
        return None;
    }
    Some(loads.iter().map(|load| if *load > 0.0 { mean / load } else { 1.0 }).collect())
}

/// What a comparison was made against, in words.
pub(crate) fn against_words(against: &Against) -> String {
    match against {
        Against::Baseline => "the baseline".to_owned(),
        Against::Earlier(Some(kernel)) => format!("kernel `{kernel}` in this window"),
        Against::Earlier(None) => "earlier steps of this window".to_owned(),
        Against::Profile => "the cost profile (no baseline was given)".to_owned(),
    }
}
