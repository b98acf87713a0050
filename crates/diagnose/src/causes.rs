//! From shares to causes: kind, place, evidence, remedy.

use crate::attribute::{Attribution, against_words};
use crate::diagnosis::{Cause, CauseKind, HotExpert, Place, RankShare};
use crate::expect::Expectation;
use crate::frame::Stage;
use crate::heal::Player;
use crate::placement::{PlacementPart, place_words, placement_parts};
use crate::window::Window;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, NodeId, RankId};

/// What the sentences of a cause are made from.
pub(crate) struct Scene<'a> {
    pub(crate) window: &'a Window,
    pub(crate) attribution: &'a Attribution,
    pub(crate) map: &'a ExpertMap,
    pub(crate) expectation: &'a Expectation<'a>,
    pub(crate) hot: &'a [HotExpert],
    pub(crate) waited: &'a [RankShare],
    pub(crate) dispatch_gap: Option<f64>,
    /// Smallest cost of a cause, ns per step.
    pub(crate) least_ns: f64,
}

/// A cause and its cost in the slowest steps, ns.
pub(crate) struct Costed {
    pub(crate) cause: Cause,
    pub(crate) at_p99_ns: f64,
}

/// All causes of the named faults, each with its cost.
pub(crate) fn causes(scene: &Scene<'_>) -> Vec<Costed> {
    let step_ns = scene.window.mean(|_, frame| frame.observed_ns);
    let mut found = Vec::new();
    for (player, mean_ns, at_p99_ns) in &scene.attribution.shares.of {
        for (mut cause, share) in scene.of_player(*player, *mean_ns) {
            cause.ms_per_step = mean_ns * share / 1e6;
            cause.share_of_step = if step_ns > 0.0 { mean_ns * share / step_ns } else { 0.0 };
            found.push(Costed { cause, at_p99_ns: at_p99_ns * share });
        }
    }
    found
}

fn cause(
    kind: CauseKind,
    place: Place,
    since: Option<u64>,
    evidence: Vec<String>,
    remedy: &str,
) -> Cause {
    let remap_allowed =
        matches!(kind, CauseKind::HotExpert | CauseKind::HotRank | CauseKind::BadPlacement);
    Cause {
        kind,
        ms_per_step: 0.0,
        share_of_step: 0.0,
        place,
        since_step: since,
        evidence,
        remedy: remedy.to_owned(),
        remap_allowed,
    }
}

impl Scene<'_> {
    fn since(&self, from: usize) -> Option<u64> {
        (from > 0).then(|| self.window.frames[from].step)
    }

    fn of_player(&self, player: Player, cost_ns: f64) -> Vec<(Cause, f64)> {
        match player {
            Player::Kernel => vec![(self.kernel(), 1.0)],
            Player::SlowRank => self.slow_rank(),
            Player::SlowLink => vec![(self.slow_link(), 1.0)],
            Player::LateRank => self.late_rank(),
            Player::AttentionSkew => vec![(self.attention(), 1.0)],
            Player::UnevenCopies => vec![(self.uneven_copies(), 1.0)],
            Player::Placement => self
                .placement_parts(cost_ns)
                .into_iter()
                .map(|part| (self.placement(&part), part.share))
                .collect(),
        }
    }

    fn placement_parts(&self, cost_ns: f64) -> Vec<PlacementPart> {
        let share_min = if cost_ns > 0.0 { self.least_ns / cost_ns } else { 0.0 };
        placement_parts(self.window, self.attribution, self.map, self.expectation, share_min)
    }

    fn kernel(&self) -> Cause {
        let effects = &self.attribution.effects.kernels;
        let worst = effects.iter().max_by(|a, b| a.level.value.total_cmp(&b.level.value));
        let mut place = Place::default();
        let mut evidence = Vec::new();
        let mut since = None;
        for effect in effects {
            evidence.push(format!(
                "expert kernels take {:.2} times as long for equal work on all ranks, against {}",
                effect.level.value.exp(),
                against_words(&effect.against)
            ));
        }
        for effect in &self.attribution.effects.attention_kernels {
            evidence.push(format!(
                "attention takes {:.2} times as long for equal KV on all ranks, against {}",
                effect.level.value.exp(),
                against_words(&effect.against)
            ));
            since = self.since(effect.level.from);
            place.kernel = Some("attention".to_owned());
        }
        if let Some(worst) = worst {
            since = self.since(worst.level.from);
            let index = worst.level.from;
            let ran = worst.kernel.or_else(|| self.window.frames[index].kernel.first().copied());
            place.kernel = ran.map(|kernel| self.window.kernel_name(kernel));
            let model = self.expectation.shape_words();
            evidence.push(match (&place.kernel, worst.kernel.is_some()) {
                (Some(name), true) => format!("kernel `{name}` runs for {model}"),
                (Some(name), false) => format!(
                    "the kernel's name did not change (`{name}`, {model}): clocks, power and \
                     library versions are to be checked too"
                ),
                (None, _) => format!("kernels are not named in the record ({model})"),
            });
        }
        cause(
            CauseKind::FallbackKernel,
            place,
            since,
            evidence,
            "give the shape its tuned kernel back (build or select it for this key); no map helps: \
             every rank is slow alike",
        )
    }

    fn slow_rank(&self) -> Vec<(Cause, f64)> {
        let effects = &self.attribution.effects;
        // Shares by what each rank's healing alone takes off the excess of its own expert time.
        let lost: Vec<f64> = effects
            .slow
            .iter()
            .map(|effect| {
                self.window.mean(|index, frame| {
                    if index < effect.level.from {
                        return 0.0;
                    }
                    let cells =
                        (0..self.window.layers).map(|l| l * self.window.ranks + effect.rank);
                    let ns: f64 = cells.map(|cell| frame.at(Stage::Expert, cell)).sum();
                    ns * (1.0 - (-effect.level.value).exp())
                })
            })
            .collect();
        let total: f64 = lost.iter().sum();
        effects
            .slow
            .iter()
            .zip(&lost)
            .map(|(effect, lost)| {
                let rank = RankId(effect.rank as u16);
                let mut evidence = vec![format!(
                    "{rank} takes {:.2} times as long for equal expert work as the median rank, in \
                     all its layers and whatever experts it holds",
                    effect.level.value.exp()
                )];
                let also = effects.slow_attention.iter().find(|e| e.rank == effect.rank);
                if let Some(also) = also {
                    evidence.push(format!(
                        "its attention takes {:.2} times as long for its KV",
                        also.level.value.exp()
                    ));
                }
                let place = Place {
                    rank: Some(rank),
                    node: Some(NodeId(self.window.node[effect.rank] as u16)),
                    ..Place::default()
                };
                let remedy = "check the device (clocks, power cap, temperature, PCIe width, \
                              neighbours on the host) or take it out; moving experts off it only \
                              hides it";
                let since = self.since(effect.level.from);
                (cause(CauseKind::SlowRank, place, since, evidence, remedy), lost / total)
            })
            .collect()
    }

    fn slow_link(&self) -> Cause {
        let Some(link) = &self.attribution.effects.link else {
            return cause(CauseKind::SlowLink, Place::default(), None, Vec::new(), "");
        };
        let norm = match &link.against {
            Some(against) => against_words(against),
            None => "the other ranks".to_owned(),
        };
        let mut evidence = vec![format!(
            "the exchange takes up to {:.2} times as long for equal bytes, against {norm}",
            link.largest()
        )];
        evidence.extend(link.evidence.iter().cloned());
        let place = Place {
            node: link.node.map(|node| NodeId(node as u16)),
            peer_node: link.peer.map(|node| NodeId(node as u16)),
            rank: link.rank.map(|rank| RankId(rank as u16)),
            ..Place::default()
        };
        cause(
            CauseKind::SlowLink,
            place,
            self.since(link.from()),
            evidence,
            "repair the link (cable, port, congestion control, card) and measure again; moving \
             experts along it is refused",
        )
    }

    fn late_rank(&self) -> Vec<(Cause, f64)> {
        let lateness = &self.attribution.effects.lateness;
        let total: f64 = lateness.late.iter().map(|late| late.mean_ns).sum();
        lateness
            .late
            .iter()
            .map(|late| {
                let rank = RankId(late.rank as u16);
                let layer_ns = |layer: usize| -> f64 {
                    let cell = layer * self.window.ranks + late.rank;
                    self.window.mean(|index, _| lateness.excess[index][cell])
                };
                let worst = (0..self.window.layers)
                    .max_by(|a, b| layer_ns(*a).total_cmp(&layer_ns(*b)).then(b.cmp(a)));
                let mut evidence = vec![format!(
                    "{rank} reaches dispatch {:.3} ms per step later than equal work takes on the \
                     others; they wait for it, so it waits least",
                    late.mean_ns / 1e6
                )];
                if self.window.frames.iter().any(|frame| frame.waiting_untangled) {
                    evidence.push(
                        "the record counts that waiting as dispatch time of the other ranks: it is \
                         not the network"
                            .to_owned(),
                    );
                }
                let place = Place {
                    rank: Some(rank),
                    layer: worst.map(|layer| LayerId(layer as u16)),
                    node: Some(NodeId(self.window.node[late.rank] as u16)),
                    ..Place::default()
                };
                let remedy = "look before dispatch on that rank: router or attention kernel, host \
                              threads, garbage collection, another process; no map helps";
                let since = self.since(late.from);
                (cause(CauseKind::LateRank, place, since, evidence, remedy), late.mean_ns / total)
            })
            .collect()
    }

    fn attention(&self) -> Cause {
        let context = &self.window.context;
        let rank = (0..context.len())
            .max_by(|a, b| context[*a].total_cmp(&context[*b]).then(b.cmp(a)))
            .unwrap_or(0);
        let id = RankId(rank as u16);
        let evidence = vec![format!(
            "{id} holds {:.0} tokens of KV, the mean rank {:.0} ({:.2} times); its attention is as \
             long as that takes, and expert load is another matter",
            context[rank],
            self.window.context_per_rank,
            context[rank] / self.window.context_per_rank.max(1.0)
        )];
        let place = Place {
            rank: Some(id),
            node: Some(NodeId(self.window.node[rank] as u16)),
            ..Place::default()
        };
        cause(
            CauseKind::AttentionSkew,
            place,
            None,
            evidence,
            "place requests by KV tokens, not by their number (or move some sequences); do not \
             move experts",
        )
    }

    fn uneven_copies(&self) -> Cause {
        let mut place = Place::default();
        let mut evidence = Vec::new();
        if let Some(gap) = self.dispatch_gap {
            evidence.push(format!(
                "the fullest rank has {gap:.3} times the rows that the best fixed split over the \
                 copies of this same map would give it"
            ));
        }
        if let Some(worst) = worst_copy(self.window, self.map) {
            evidence.push(format!(
                "{}, {}: its copy on {} serves {:.0} % of the rows, the best split gives it {:.0} %",
                LayerId(worst.layer as u16),
                ExpertId(worst.expert as u16),
                worst.rank,
                100.0 * worst.measured,
                100.0 * worst.best
            ));
            place.layer = Some(LayerId(worst.layer as u16));
            place.expert = Some(ExpertId(worst.expert as u16));
            place.rank = Some(worst.rank);
        }
        cause(
            CauseKind::UnevenCopies,
            place,
            None,
            evidence,
            "change the split over the copies that are there (a table from the window's loads); no \
             weights need to move for it",
        )
    }

    fn placement(&self, part: &PlacementPart) -> Cause {
        let words = place_words(part.layer, part.rank, part.expert);
        let mut evidence = vec![format!(
            "{words}: lasting excess under the best split of this map, in {} of {} layers",
            part.layers, self.window.layers
        )];
        let hot = self.hot.iter().filter(|hot| {
            part.expert.is_none_or(|_| hot.ranks.len() == 1 || hot.layer.index() == part.layer)
        });
        if part.kind == CauseKind::HotExpert {
            evidence.extend(hot.take(3).map(|hot| {
                format!(
                    "{}, {}: {:.1} % of the rows, {:.1} times the fair share",
                    hot.layer,
                    hot.expert,
                    100.0 * hot.share_of_rows,
                    hot.times_fair
                )
            }));
        }
        if let Some(first) = self.waited.first() {
            evidence.push(format!(
                "the group waits most for {}: {:.0} % of (step, layer) pairs, {:.3} ms per step",
                first.rank,
                100.0 * first.share_of_layers,
                first.waited_ms_per_step
            ));
        }
        let place = Place {
            layer: Some(LayerId(part.layer as u16)),
            rank: Some(RankId(part.rank as u16)),
            expert: part.expert.map(|expert| ExpertId(expert as u16)),
            ..Place::default()
        };
        let remedy = match part.kind {
            CauseKind::HotExpert => {
                "another copy of the hot expert where slots allow; packing alone cannot split it"
            }
            CauseKind::HotRank => "move or swap experts of that rank; plan from the live map",
            _ => "plan from the live map: ranks are uneven in different layers",
        };
        cause(part.kind, place, None, evidence, remedy)
    }
}

/// A copy and the share of its expert's rows that it serves.
struct CopyUse {
    layer: usize,
    expert: usize,
    rank: RankId,
    measured: f64,
    best: f64,
}

/// The copy that serves most rows beyond what the best split gives it.
fn worst_copy(window: &Window, map: &ExpertMap) -> Option<CopyUse> {
    let (loads, split, used) =
        (window.loads.as_ref()?, window.split.as_ref()?, window.copy_rows.as_ref()?);
    let experts = usize::from(map.experts);
    let mut worst: Option<(f64, CopyUse)> = None;
    for (index, rows) in loads.iter().enumerate().filter(|(_, rows)| **rows > 0) {
        let (layer, expert) = (index / experts, index % experts);
        for (rank, best) in split.shares_of(layer, expert) {
            let served = used[index * window.ranks + rank.index()];
            let measured = served as f64 / *rows as f64;
            let beyond = (measured - best) * *rows as f64;
            if worst.as_ref().is_none_or(|(most, _)| beyond > *most) {
                worst = Some((beyond, CopyUse { layer, expert, rank, measured, best }));
            }
        }
    }
    worst.map(|(_, copy)| copy)
}
