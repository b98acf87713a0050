//! What would the step have taken without this fault? Counterfactual recomposition, step by step.

use crate::balance::best_split_ns;
use crate::effects::{CommonEffect, Lateness, RankEffect};
use crate::frame::{Frame, Stage};
use crate::links::LinkEffect;
use crate::stats::{PLAYERS_MAX, mean, shapley};
use crate::window::Window;

/// A fault that can be healed in arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Player {
    Kernel,
    SlowRank,
    SlowLink,
    LateRank,
    AttentionSkew,
    UnevenCopies,
    Placement,
}

impl Player {
    pub(crate) const ALL: [Self; 7] = [
        Self::Kernel,
        Self::SlowRank,
        Self::SlowLink,
        Self::LateRank,
        Self::AttentionSkew,
        Self::UnevenCopies,
        Self::Placement,
    ];
}
const _: () = assert!(Player::ALL.len() <= PLAYERS_MAX);

/// Everything that was found, as factors on spans.
pub(crate) struct Effects {
    /// Shifts of expert time on all ranks.
    pub(crate) kernels: Vec<CommonEffect>,
    /// Shifts of attention time on all ranks.
    pub(crate) attention_kernels: Vec<CommonEffect>,
    /// Ranks whose experts are slow.
    pub(crate) slow: Vec<RankEffect>,
    /// The same ranks' attention, where that is slow too.
    pub(crate) slow_attention: Vec<RankEffect>,
    /// Late ranks.
    pub(crate) lateness: Lateness,
    /// Slow links.
    pub(crate) link: Option<LinkEffect>,
    /// `[rank]` → factor that evens the ranks' lasting attention load out.
    pub(crate) attention: Option<Vec<f64>>,
    /// `[layer * ranks + rank]` → factor that evens lasting expert time out.
    pub(crate) placement: Vec<f64>,
}

/// A set of healed faults.
pub(crate) type Mask = usize;

const fn has(mask: Mask, player: Player) -> bool {
    mask & (1 << player as usize) != 0
}

/// Mask with one player.
pub(crate) const fn only(player: Player) -> Mask {
    1 << player as usize
}

/// Masks that can change expert time, time before dispatch, and exchange.
const EXPERT: Mask = only(Player::Kernel)
    | only(Player::SlowRank)
    | only(Player::UnevenCopies)
    | only(Player::Placement);
const BEFORE: Mask = only(Player::SlowRank) | only(Player::LateRank) | only(Player::AttentionSkew);
const EXCHANGE: Mask = only(Player::SlowLink);

impl Effects {
    fn active(effects: &[RankEffect], rank: usize, index: usize) -> Option<&RankEffect> {
        effects.iter().find(|effect| effect.rank == rank && index >= effect.level.from)
    }

    /// A cell's expert time with the faults of a mask healed.
    pub(crate) fn expert(&self, window: &Window, index: usize, cell: usize, mask: Mask) -> f64 {
        let frame = &window.frames[index];
        let mut ns = frame.at(Stage::Expert, cell);
        let rank = cell % window.ranks;
        if has(mask, Player::Kernel) {
            let effect = self.kernels.iter().find(|effect| {
                index >= effect.level.from
                    && effect.kernel.is_none_or(|kernel| frame.kernel.get(cell) == Some(&kernel))
            });
            ns /= effect.map_or(1.0, |effect| effect.level.value.exp());
        }
        if has(mask, Player::SlowRank)
            && let Some(effect) = Self::active(&self.slow, rank, index)
        {
            ns /= effect.level.value.exp();
        }
        if has(mask, Player::UnevenCopies)
            && let Some(share) = &frame.split_share
        {
            ns *= share[cell];
        }
        if has(mask, Player::Placement) {
            ns *= self.placement[cell];
        }
        ns
    }

    fn is_late(&self, rank: usize, mask: Mask) -> bool {
        has(mask, Player::LateRank) && self.lateness.late.iter().any(|late| late.rank == rank)
    }

    /// A rank's factor on attention and router where it computes slowly.
    fn slow_factor(&self, rank: usize, index: usize, mask: Mask) -> f64 {
        let effect = Self::active(&self.slow_attention, rank, index);
        effect.filter(|_| has(mask, Player::SlowRank)).map_or(1.0, |e| e.level.value.exp())
    }

    fn attention(&self, window: &Window, index: usize, cell: usize, mask: Mask) -> f64 {
        let rank = cell % window.ranks;
        let mut attention = window.frames[index].at(Stage::Attention, cell);
        if self.is_late(rank, mask) {
            attention -= self.lateness.attention[index][cell];
        }
        attention /= self.slow_factor(rank, index, mask);
        if has(mask, Player::Kernel) {
            let effect = self.attention_kernels.iter().find(|e| index >= e.level.from);
            attention /= effect.map_or(1.0, |effect| effect.level.value.exp());
        }
        match &self.attention {
            Some(factors) if has(mask, Player::AttentionSkew) => attention * factors[rank],
            _ => attention,
        }
    }

    /// What precedes dispatch in one layer.
    fn before(&self, window: &Window, index: usize, cell: usize, mask: Mask) -> f64 {
        let frame = &window.frames[index];
        let rank = cell % window.ranks;
        let mut other = frame.at(Stage::Router, cell) / self.slow_factor(rank, index, mask)
            + frame.at(Stage::Host, cell);
        if self.is_late(rank, mask) {
            other -= self.lateness.excess[index][cell] - self.lateness.attention[index][cell];
        }
        self.attention(window, index, cell, mask) + other.max(0.0)
    }

    fn exchange(
        &self,
        frame: &Frame,
        index: usize,
        cell: usize,
        rank: usize,
        mask: Mask,
        stage: Stage,
    ) -> f64 {
        let ns = frame.at(stage, cell);
        match &self.link {
            Some(link) if has(mask, Player::SlowLink) => ns / link.factor(stage, rank, index),
            _ => ns,
        }
    }

    /// The composed step, ns, without what no span records.
    fn compose(&self, window: &Window, index: usize, mask: Mask, parts: &mut Parts) -> f64 {
        let frame = &window.frames[index];
        let (layers, ranks) = (window.layers, window.ranks);
        let expert = parts.expert[mask & EXPERT].unwrap_or_else(|| {
            frame.over_layers(layers, ranks, |cell| self.expert(window, index, cell, mask))
        });
        let before = parts.before[mask & BEFORE].unwrap_or_else(|| {
            // Dense layers have attention too, and no spans: theirs is a MoE layer's.
            let attention = |cell: usize| self.attention(window, index, cell, mask);
            window.dense_share * frame.over_layers(layers, ranks, attention)
                + frame.over_layers(layers, ranks, |cell| self.before(window, index, cell, mask))
        });
        let exchange = parts.exchange[mask & EXCHANGE].unwrap_or_else(|| {
            let sum = |stage| {
                frame.over_layers(layers, ranks, |cell| {
                    self.exchange(frame, index, cell, cell % ranks, mask, stage)
                })
            };
            sum(Stage::Dispatch) + sum(Stage::Return)
        });
        parts.expert[mask & EXPERT] = Some(expert);
        parts.before[mask & BEFORE] = Some(before);
        parts.exchange[mask & EXCHANGE] = Some(exchange);
        expert + before + exchange
    }

    /// `[frame][mask]`: time saved by healing a set of faults, ns. Masks with a player outside
    /// `players` are left at 0.
    pub(crate) fn savings(&self, window: &Window, players: Mask) -> Vec<Vec<f64>> {
        (0..window.frames.len())
            .map(|index| {
                let mut parts = Parts::default();
                let as_is = self.compose(window, index, 0, &mut parts);
                (0..1 << Player::ALL.len())
                    .map(|mask| {
                        if mask & !players == 0 {
                            as_is - self.compose(window, index, mask, &mut parts)
                        } else {
                            0.0
                        }
                    })
                    .collect()
            })
            .collect()
    }
}

/// Parts of one frame's composition by mask, each computed once.
struct Parts {
    expert: Vec<Option<f64>>,
    before: Vec<Option<f64>>,
    exchange: Vec<Option<f64>>,
}

impl Default for Parts {
    fn default() -> Self {
        let none = || vec![None; 1 << Player::ALL.len()];
        Self { expert: none(), before: none(), exchange: none() }
    }
}

/// Shapley values of the named players, mean over frames and over the slowest hundredth, ns.
pub(crate) struct Shares {
    pub(crate) of: Vec<(Player, f64, f64)>,
    /// Everything healed: mean saving, ns.
    pub(crate) all: f64,
}

/// Splits the saving of healing all `players` over them.
pub(crate) fn shares(window: &Window, savings: &[Vec<f64>], players: &[Player]) -> Shares {
    let slow = slowest(window);
    let worth = |frames: &[usize]| -> Vec<f64> {
        (0..1 << players.len())
            .map(|coalition: usize| {
                let mask = players
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| coalition & (1 << bit) != 0)
                    .fold(0, |mask, (_, player)| mask | only(*player));
                let saved: Vec<f64> = frames.iter().map(|index| savings[*index][mask]).collect();
                mean(&saved)
            })
            .collect()
    };
    let everything: Vec<usize> = (0..window.frames.len()).collect();
    let (overall, at_p99) = (worth(&everything), worth(&slow));
    let (means, tails) = (shapley(players.len(), &overall), shapley(players.len(), &at_p99));
    Shares {
        of: players.iter().zip(means.iter().zip(&tails)).map(|(p, (m, t))| (*p, *m, *t)).collect(),
        all: overall.last().copied().unwrap_or(0.0),
    }
}

/// Frames of the slowest hundredth, at least one.
pub(crate) fn slowest(window: &Window) -> Vec<usize> {
    let mut order: Vec<usize> = (0..window.frames.len()).collect();
    let observed = |index: usize| window.frames[index].observed_ns;
    order.sort_by(|a, b| observed(*b).total_cmp(&observed(*a)).then(a.cmp(b)));
    order.truncate(window.frames.len().div_ceil(100));
    order
}

/// Factors that even out what lasts: mean rank over own mean, by cell, under the best split.
pub(crate) fn placement_factors(window: &Window, keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let sums = crate::balance::lasting(window, keep);
    let mut factors = vec![1.0; sums.len()];
    for layer in 0..window.layers {
        let cells = window.cells(layer);
        let mean = sums[cells.clone()].iter().sum::<f64>() / window.ranks as f64;
        for cell in cells.filter(|cell| sums[*cell] > 0.0) {
            factors[cell] = mean / sums[cell];
        }
    }
    factors
}

/// Time that evening lasting differences out saves per step, ns, where the factors come from the
/// other half of the frames: chance in one half does not repeat in the other.
pub(crate) fn placement_checked_ns(window: &Window) -> f64 {
    let n = window.frames.len();
    let halves =
        [placement_factors(window, |i| i >= n / 2), placement_factors(window, |i| i < n / 2)];
    let saved = |index: usize| -> f64 {
        let frame = &window.frames[index];
        let factors = &halves[usize::from(index >= n / 2)];
        let scale = |cell: usize| {
            let expected = frame.expects(Stage::Expert, cell);
            if expected > 0.0 { best_split_ns(frame, cell) / expected } else { 1.0 }
        };
        let ns = |cell: usize| frame.at(Stage::Expert, cell) * scale(cell);
        frame.over_layers(window.layers, window.ranks, ns)
            - frame.over_layers(window.layers, window.ranks, |cell| ns(cell) * factors[cell])
    };
    (0..n).map(saved).sum::<f64>() / n.max(1) as f64
}
