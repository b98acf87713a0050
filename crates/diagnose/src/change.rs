//! What changed since the baseline, cause by cause.

use crate::attribute::Attribution;
use crate::diagnosis::{CauseKind, MixShift, Part};
use crate::frame::Stage;
use crate::heal::Player;
use crate::input::Observation;
use crate::window::Window;
use evenkeel_types::Phase;

/// A change taken apart.
pub(crate) struct Change {
    pub(crate) parts: Vec<Part>,
    /// Growth of what the placement costs (and, where the mix shifted, the split), ns per step.
    pub(crate) placement_ns: f64,
}

/// Splits `mean step now − mean step of the baseline`. The remainder is named `unexplained`.
pub(crate) fn since_baseline(
    now: (&Window, &Attribution),
    old: (&Window, &Attribution),
    mix: Option<&MixShift>,
    placement_kind: Option<CauseKind>,
    shape_ns: f64,
) -> Change {
    let ((window, attribution), (old_window, old_attribution)) = (now, old);
    let total = window.mean(|_, f| f.observed_ns) - old_window.mean(|_, f| f.observed_ns);
    let placement = |attribution: &Attribution| {
        let named = attribution.cost_ns(Player::Placement);
        if named > 0.0 { named } else { attribution.lasting_ns.max(0.0) }
    };
    let grown = |player| attribution.cost_ns(player) - old_attribution.cost_ns(player);
    // A shifted mix outdates the split over the copies as well as the map.
    let shifted = mix.is_some_and(|mix| mix.shifted);
    let copies_ns = if shifted { grown(Player::UnevenCopies) } else { 0.0 };
    let placement_ns = placement(attribution) - placement(old_attribution) + copies_ns;
    let placement_kind = if shifted {
        CauseKind::MixShift
    } else {
        placement_kind.unwrap_or(CauseKind::BadPlacement)
    };
    let changes = [
        (CauseKind::FallbackKernel, Some(Player::Kernel), 0.0),
        (CauseKind::SlowRank, Some(Player::SlowRank), 0.0),
        (CauseKind::SlowLink, Some(Player::SlowLink), 0.0),
        (CauseKind::LateRank, Some(Player::LateRank), 0.0),
        (CauseKind::AttentionSkew, Some(Player::AttentionSkew), 0.0),
        (CauseKind::UnevenCopies, None, grown(Player::UnevenCopies) - copies_ns),
        (placement_kind, None, placement_ns),
        (CauseKind::BatchShape, None, shape_ns),
    ];
    let mut parts: Vec<Part> = changes
        .into_iter()
        .map(|(cause, player, ns)| {
            let cost = player.map_or(ns, grown);
            Part { cause, ms_per_step: cost / 1e6, ms_at_p99: 0.0 }
        })
        .filter(|part| part.ms_per_step.abs() > 0.0)
        .collect();
    parts.sort_by(|a, b| b.ms_per_step.total_cmp(&a.ms_per_step).then(a.cause.cmp(&b.cause)));
    let named: f64 = parts.iter().map(|part| part.ms_per_step).sum();
    let rest = total / 1e6 - named;
    parts.push(Part { cause: CauseKind::Unexplained, ms_per_step: rest, ms_at_p99: 0.0 });
    Change { parts, placement_ns }
}

/// What the curves give for the change of work per step, balanced over ranks, ns: each stage's
/// difference times what the stage really took in the baseline over what its curve gives.
pub(crate) fn shape_ns(now: &Window, old: &Window) -> f64 {
    [Stage::Attention, Stage::Dispatch, Stage::Expert, Stage::Return]
        .into_iter()
        .map(|stage| {
            let expected = balanced(old, stage, true);
            let ratio = if expected > 0.0 { balanced(old, stage, false) / expected } else { 0.0 };
            ratio * (balanced(now, stage, true) - expected)
        })
        .sum()
}

/// Mean over frames of Σ over layers of the mean rank's span, expected or recorded.
fn balanced(window: &Window, stage: Stage, expected: bool) -> f64 {
    window.mean(|_, frame| {
        let cells = 0..window.layers * window.ranks;
        let ns = cells
            .map(|cell| if expected { frame.expects(stage, cell) } else { frame.at(stage, cell) });
        ns.sum::<f64>() / window.ranks.max(1) as f64
    })
}

/// Time in prefill steps between decode steps, ns per decode step; 0 for another phase.
pub(crate) fn prefill_per_decode_ns(observation: &Observation<'_>, phase: Phase) -> f64 {
    if phase != Phase::Decode {
        return 0.0;
    }
    let decode = || observation.steps.iter().filter(|step| step.phase == Phase::Decode);
    let (Some(first), Some(last)) = (decode().next(), decode().next_back()) else { return 0.0 };
    let between = observation.steps.iter().filter(|step| {
        step.phase == Phase::Prefill
            && step.start_ns >= first.start_ns
            && step.end_ns <= last.end_ns
    });
    let ns: u64 = between.map(|step| step.end_ns - step.start_ns).sum();
    ns as f64 / decode().count() as f64
}
