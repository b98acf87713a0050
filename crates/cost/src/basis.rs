//! What a number stands on: fitted, scaled, borrowed or assumed, and how far it may be off.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a curve comes from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Fitted to measurements of this hardware and this shape.
    Fitted,
    /// Fitted on this hardware, scaled to another shape by physics.
    Scaled,
    /// Taken from other hardware or another weight format.
    Borrowed,
    /// Written down without a measurement.
    Assumed,
}

impl Origin {
    /// One lower-case word, as printed in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Scaled => "scaled",
            Self::Borrowed => "borrowed",
            Self::Assumed => "assumed",
        }
    }
}

/// The basis of a prediction. Verdicts carry the worst basis of what they used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Basis {
    /// Where the curve comes from.
    pub origin: Origin,
    /// Mean absolute relative error expected of one prediction, as a share (0.045 = 4.5 %).
    pub error_share: f64,
    /// Range of each named input over which the curve was fitted, inclusive.
    #[serde(default)]
    pub support: BTreeMap<String, [f64; 2]>,
    /// What a reader of a verdict must know, one sentence.
    #[serde(default)]
    pub note: String,
}

impl Basis {
    /// A basis without support ranges.
    #[must_use]
    pub fn new(origin: Origin, error_share: f64, note: impl Into<String>) -> Self {
        Self { origin, error_share, support: BTreeMap::new(), note: note.into() }
    }

    /// The same basis with the range of one input added.
    #[must_use]
    pub fn with_support(mut self, input: &str, low: f64, high: f64) -> Self {
        self.support.insert(input.to_owned(), [low, high]);
        self
    }

    /// True where `value` lies inside the fitted range of `input`, or the range is not recorded.
    #[must_use]
    pub fn covers(&self, input: &str, value: f64) -> bool {
        self.support.get(input).is_none_or(|[low, high]| (*low..=*high).contains(&value))
    }

    /// The weaker of two: the later origin and the larger error, with both notes.
    ///
    /// Ranges are kept where only one side has them and intersected where both do.
    #[must_use]
    pub fn weaker(&self, other: &Self) -> Self {
        let mut support = self.support.clone();
        for (input, [low, high]) in &other.support {
            support
                .entry(input.clone())
                .and_modify(|range| *range = [range[0].max(*low), range[1].min(*high)])
                .or_insert([*low, *high]);
        }
        let note = match (self.note.as_str(), other.note.as_str()) {
            (a, b) if a.is_empty() || a == b => b.to_owned(),
            (a, "") => a.to_owned(),
            (a, b) => format!("{a}; {b}"),
        };
        Self {
            origin: self.origin.max(other.origin),
            error_share: self.error_share.max(other.error_share),
            support,
            note,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weaker_basis_wins_and_ranges_shrink() {
        let a = Basis::new(Origin::Fitted, 0.04, "a").with_support("rows", 1.0, 100.0);
        let b = Basis::new(Origin::Borrowed, 0.2, "b").with_support("rows", 10.0, 500.0);
        let both = a.weaker(&b);
        assert_eq!(both.origin, Origin::Borrowed);
        assert!((both.error_share - 0.2).abs() < 1e-12);
        assert!(both.covers("rows", 50.0) && !both.covers("rows", 5.0));
        assert!(both.covers("slots", 1e9));
        assert_eq!(both.note, "a; b");
    }
}
