//! When has a move paid for itself?
//!
//! Model: weights arrive at the policy's rate beside the traffic. They take their share of the
//! link, so that the step's exchange (its marginal part, which the rows of the fullest rank set)
//! takes `1 ÷ (1 − share)` as long while the move lasts, and nothing is gained before it ends.
//! Commits fall between steps and are free. An engine that stops to move weights pays the whole of
//! [`crate::Price::time_s`] instead: compare that figure.

use crate::BreakEven;

/// A link is never given away whole.
const LINK_SHARE_MAX: f64 = 0.9;

/// Break-even of a move that lasts `time_s`, takes `link_share` of the links, in steps of
/// `step_us` with `exchange_us` of exchange, and saves `gain_us` per step.
pub(crate) fn break_even(
    time_s: f64,
    link_share: f64,
    exchange_us: f64,
    step_us: f64,
    gain_us: f64,
    dwell_s: f64,
) -> BreakEven {
    let share = link_share.clamp(0.0, LINK_SHARE_MAX);
    let slowdown_us = if time_s > 0.0 { exchange_us * share / (1.0 - share) } else { 0.0 };
    let seconds =
        if gain_us > 0.0 { time_s * (1.0 + slowdown_us / gain_us) } else { f64::INFINITY };
    let steps = if step_us > 0.0 { seconds * 1e6 / step_us } else { 0.0 };
    BreakEven { steps, seconds, slowdown_us, within_dwell: seconds <= dwell_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowdown_is_earned_back_after_the_move() {
        // 10 s at half of the links: 100 µs of exchange become 200; 50 µs saved per step later.
        let even = break_even(10.0, 0.5, 100.0, 1000.0, 50.0, 600.0);
        assert!((even.slowdown_us - 100.0).abs() < 1e-9);
        assert!((even.seconds - 30.0).abs() < 1e-9);
        assert!((even.steps - 30_000.0).abs() < 1e-6);
        assert!(even.within_dwell);
        assert!(!break_even(10.0, 0.5, 100.0, 1000.0, 0.0, 600.0).within_dwell);
    }
}
