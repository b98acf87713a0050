//! Causes that are not healed in arithmetic: mix, batch shape, prefill between steps, the exchange.

use crate::attribute::Attribution;
use crate::diagnosis::{Cause, CauseKind, Diagnosis, MixShift, Place, Slowdown};
use crate::frame::Stage;
use crate::heal::Player;
use crate::window::Window;

/// An exchange below this share of a step does not bound it.
const EXCHANGE_SHARE_MIN: f64 = 0.25;

/// A time as a share of the mean step.
fn share(ns: f64, slowdown: &Slowdown) -> f64 {
    if slowdown.step_ms_mean > 0.0 { ns / 1e6 / slowdown.step_ms_mean } else { 0.0 }
}

/// The largest changes of share, in words.
pub(crate) fn mix_words(mix: &MixShift) -> String {
    let shares = mix.slices.iter().take(3).map(|slice| {
        format!("`{}` {:.0} % to {:.0} %", slice.name, 100.0 * slice.before, 100.0 * slice.after)
    });
    shares.collect::<Vec<_>>().join(", ")
}

/// The mix shift as a cause: `ns` is the growth of what the placement costs.
pub(crate) fn mix_cause(mix: &MixShift, ns: f64, slowdown: &Slowdown) -> Cause {
    let revisions = if mix.revisions_changed {
        "a revision of the model or tokenizer changed between the windows: this may be a rollout"
    } else {
        "no model or tokenizer revision changed: the traffic moved, not the model"
    };
    let remedy = if mix.revisions_changed {
        "hold any rebalancing until the new revision is cleared"
    } else {
        "plan from the live map for the new mix, if it is expected to stay"
    };
    Cause {
        kind: CauseKind::MixShift,
        ms_per_step: ns / 1e6,
        share_of_step: share(ns, slowdown),
        place: Place { slice: mix.moved, ..Place::default() },
        since_step: None,
        evidence: vec![
            format!("share of tokens: {}", mix_words(mix)),
            format!(
                "divergence {:.4} bits, by chance at most {:.4} in 99 of 100 draws (p = {:.3}; \
                 {:.0} and {:.0} effective requests)",
                mix.jsd_bits,
                mix.jsd_chance_p99_bits,
                mix.p_value,
                mix.effective_requests.0,
                mix.effective_requests.1
            ),
            revisions.to_owned(),
            "its milliseconds are the growth of what placement and split cost, and are part of \
             their own causes"
                .to_owned(),
        ],
        remedy: remedy.to_owned(),
        remap_allowed: !mix.revisions_changed,
    }
}

/// More work per step: `ns` is what the curves give for the difference.
pub(crate) fn shape_cause(window: &Window, old: &Window, ns: f64, slowdown: &Slowdown) -> Cause {
    Cause {
        kind: CauseKind::BatchShape,
        ms_per_step: ns / 1e6,
        share_of_step: share(ns, slowdown),
        place: Place::default(),
        since_step: None,
        evidence: vec![format!(
            "sequences per rank {:.1} to {:.1}, KV tokens per rank {:.0} to {:.0}; the cost curves \
             give the difference for that",
            old.sequences_per_rank,
            window.sequences_per_rank,
            old.context_per_rank,
            window.context_per_rank
        )],
        remedy: "an expected cost of more work per step: admit less, or add ranks; no map helps"
            .to_owned(),
        remap_allowed: false,
    }
}

/// Prefill steps between decode steps: `ns` per decode step, `before` in the baseline.
pub(crate) fn prefill_cause(ns: f64, before: f64, slowdown: &Slowdown) -> Cause {
    Cause {
        kind: CauseKind::PrefillInterference,
        ms_per_step: (ns - before) / 1e6,
        share_of_step: share(ns - before, slowdown),
        place: Place::default(),
        since_step: None,
        evidence: vec![format!(
            "prefill steps between decode steps take {:.3} ms per decode step{}; this time is \
             between steps, beside the parts of a step",
            ns / 1e6,
            if before > 0.0 {
                format!(", {:.3} ms in the baseline", before / 1e6)
            } else {
                String::new()
            }
        )],
        remedy:
            "smaller prefill chunks, fewer prefill steps in a row, or a prefill group of its own"
                .to_owned(),
        remap_allowed: false,
    }
}

/// Says so where the exchange, not the experts, bounds the step.
pub(crate) fn communication_bound(
    answer: &mut Diagnosis,
    window: &Window,
    attribution: &Attribution,
) {
    let (layers, ranks) = (window.layers, window.ranks);
    let sum = |stage| window.mean(|_, f| f.over_layers(layers, ranks, |cell| f.at(stage, cell)));
    let exchange = sum(Stage::Dispatch) + sum(Stage::Return);
    let experts = sum(Stage::Expert);
    let part = share(exchange, &answer.slowdown);
    let map_helps = attribution.players.contains(&Player::Placement);
    let slow_link = attribution.players.contains(&Player::SlowLink);
    if part < EXCHANGE_SHARE_MIN || exchange <= experts || map_helps || slow_link {
        return;
    }
    answer.causes.push(Cause {
        kind: CauseKind::CommunicationBound,
        ms_per_step: exchange / 1e6,
        share_of_step: part,
        place: Place::default(),
        since_step: None,
        evidence: vec![
            format!(
                "dispatch and return take {:.0} % of a step, experts {:.0} %",
                100.0 * part,
                100.0 * share(experts, &answer.slowdown)
            ),
            format!(
                "no map saves more than {:.1} % of a step",
                100.0 * answer.map_bound.share_of_step
            ),
        ],
        remedy: "leave the map alone; more sequences per decode group would spread the exchange's \
                 fixed time over more tokens, at a longer time per token"
            .to_owned(),
        remap_allowed: false,
    });
}
