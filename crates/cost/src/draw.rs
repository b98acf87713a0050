//! Draws of a step model's parameters: the error that two maps share.

use crate::basis::Origin;
use crate::step::CurveNote;
use evenkeel_types::{hash3, unit_f64};
use std::f64::consts::TAU;

/// Multipliers of a [`StepModel`](crate::StepModel)'s parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Fixed expert time: floor, slots, host.
    pub expert_floor: f64,
    /// First tile of an expert: reading its weights.
    pub expert_first: f64,
    /// Further tiles, rows and tokens.
    pub expert_row: f64,
    /// Dispatch and combine.
    pub exchange: f64,
    /// Attention.
    pub attention: f64,
    /// The rest of layer and step.
    pub rest: f64,
}

impl Draw {
    /// No change.
    pub const CENTRE: Self = Self {
        expert_floor: 1.0,
        expert_first: 1.0,
        expert_row: 1.0,
        exchange: 1.0,
        attention: 1.0,
        rest: 1.0,
    };

    /// Both multipliers, one after the other.
    #[must_use]
    pub fn times(&self, other: &Self) -> Self {
        Self {
            expert_floor: self.expert_floor * other.expert_floor,
            expert_first: self.expert_first * other.expert_first,
            expert_row: self.expert_row * other.expert_row,
            exchange: self.exchange * other.exchange,
            attention: self.attention * other.attention,
            rest: self.rest * other.rest,
        }
    }

    const fn of(group: usize, share: f64) -> Self {
        let mut draw = Self::CENTRE;
        match group {
            EXPERTS => {
                draw.expert_floor = share;
                draw.expert_first = share;
                draw.expert_row = share;
            }
            EXCHANGE => draw.exchange = share,
            ATTENTION => draw.attention = share,
            _ => draw.rest = share,
        }
        draw
    }
}

const EXPERTS: usize = 0;
const EXCHANGE: usize = 1;
const ATTENTION: usize = 2;
const REST: usize = 3;

/// Standard deviation of a normal variable over its mean absolute value: `√(π/2)`.
const SIGMA_PER_MEAN_ERROR: f64 = 1.253_314_137_315_500_3;

/// Error share of a group of curves, and whether one of them is borrowed or assumed.
fn group(notes: &[CurveNote], word: &str) -> (f64, bool) {
    notes.iter().filter(|note| note.curve.ends_with(word)).fold((0.0, false), |(error, band), n| {
        (f64::max(error, n.error_share), band || n.origin >= Origin::Borrowed)
    })
}

/// See [`StepModel::draws`](crate::StepModel::draws).
pub(crate) fn draws(notes: &[CurveNote], n: usize, seed: u64) -> Vec<Draw> {
    let groups = ["experts", "exchange", "attention", "rest"].map(|word| group(notes, word));
    let mut draws = vec![Draw::CENTRE];
    for (index, (error, band)) in groups.iter().enumerate() {
        if *band {
            draws.push(Draw::of(index, 1.0 - error.min(0.9)));
            draws.push(Draw::of(index, 1.0 + error));
        }
    }
    let mut number = 0;
    while draws.len() < n {
        let log_normal = |error: f64, place: u64| {
            let normal = normal(hash3(seed, number, 2 * place), hash3(seed, number, 2 * place + 1));
            (SIGMA_PER_MEAN_ERROR * error * normal).exp()
        };
        let experts = groups[EXPERTS].0;
        draws.push(Draw {
            expert_floor: log_normal(experts, 0),
            expert_first: log_normal(experts, 1),
            expert_row: log_normal(experts, 2),
            exchange: log_normal(groups[EXCHANGE].0, 3),
            attention: log_normal(groups[ATTENTION].0, 4),
            rest: log_normal(groups[REST].0, 5),
        });
        number += 1;
    }
    draws
}

/// A standard normal variable from two hashes (Box and Muller).
fn normal(a: u64, b: u64) -> f64 {
    let radius = (-2.0 * (1.0 - unit_f64(a)).ln()).sqrt();
    radius * (TAU * unit_f64(b)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(curve: &str, origin: Origin, error_share: f64) -> CurveNote {
        CurveNote {
            curve: curve.to_owned(),
            origin,
            error_share,
            inside_support: true,
            text: String::new(),
        }
    }

    #[test]
    fn centre_first_then_both_ends_of_borrowed_bands_then_spread_as_wide_as_the_error() {
        let notes = [
            note("decode experts", Origin::Fitted, 0.1),
            note("decode exchange", Origin::Borrowed, 0.2),
        ];
        let drawn = draws(&notes, 4003, 7);
        assert_eq!(drawn.len(), 4003);
        assert_eq!(drawn[0], Draw::CENTRE);
        assert!((drawn[1].exchange - 0.8).abs() < 1e-12);
        assert!((drawn[2].exchange - 1.2).abs() < 1e-12);
        let mean_error = drawn[3..].iter().map(|d| d.expert_row.ln().abs()).sum::<f64>() / 4000.0;
        assert!((mean_error - 0.1).abs() < 0.005, "{mean_error}");
        assert_eq!(drawn, draws(&notes, 4003, 7));
        assert!(draws(&notes, 1, 7).len() == 3);
    }
}
