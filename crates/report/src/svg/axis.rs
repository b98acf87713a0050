//! Axes: round numbers for ticks, and colour levels.

/// Number of colour levels of a heat scale.
pub(crate) const LEVELS: usize = 9;

/// A linear axis with round ticks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
    decimals: usize,
}

impl Axis {
    /// An axis that covers `low..=high` with about `count` ticks. Without a finite extent it is
    /// `0..=1`.
    pub(crate) fn new(low: f64, high: f64, count: usize) -> Axis {
        let usable = low.is_finite() && high.is_finite() && low.abs() < 1e300 && high.abs() < 1e300;
        let (low, high) = if usable { (low.min(high), low.max(high)) } else { (0.0, 1.0) };
        let tiny = (high - low) <= 1e-9 * high.abs().max(low.abs());
        let (low, high) = match tiny {
            true if high.abs() < 1e-300 => (0.0, 1.0),
            true => (low - 0.5 * low.abs(), high + 0.5 * high.abs()),
            false => (low, high),
        };
        let step = nice_above((high - low) / count.max(1) as f64);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let steps = (last - first).clamp(1.0, 100.0) as usize;
        let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        // 2.5 needs one digit more than its size says.
        let odd = (step * 10f64.powi(decimals as i32)).fract().abs() > 1e-6;
        Axis {
            low: first * step,
            high: (first + steps as f64) * step,
            ticks: (0..=steps).map(|i| (first + i as f64) * step).collect(),
            decimals: decimals + usize::from(odd),
        }
    }

    /// The same axis cut off at `high`, for bars that should use the whole width.
    pub(crate) fn until(mut self, high: f64) -> Axis {
        if high.is_finite() && high > self.low && high < self.high {
            self.high = high;
            self.ticks.retain(|t| *t <= high);
        }
        self
    }

    /// Where a value lies: 0 at `low`, 1 at `high`, clamped; 0 for what is not finite.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let at = (value - self.low) / (self.high - self.low);
        if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// A tick's label.
    pub(crate) fn label(&self, tick: f64) -> String {
        if tick.abs() >= 1e6 {
            return crate::fmt::number(tick);
        }
        let text = format!("{tick:.*}", self.decimals);
        let zero = text.chars().all(|c| !('1'..='9').contains(&c));
        if zero { "0".to_owned() } else { text.replace('-', "\u{2212}") }
    }
}

/// The smallest of 1, 2, 2.5, 5 × 10ⁿ that is not below `value`.
pub(crate) fn nice_above(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let found = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| m * power >= value * (1.0 - 1e-9));
    let nice = found.unwrap_or(10.0) * power;
    if nice > 0.0 && nice.is_finite() { nice } else { 1.0 }
}

/// Every how many rows or columns to print a number, so that at most `count` stand on an axis.
pub(crate) fn stride(length: usize, count: usize) -> usize {
    let least = length.div_ceil(count.max(1)).max(1);
    [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256, 512]
        .into_iter()
        .find(|s| *s >= least)
        .unwrap_or(least)
}

/// A scale from values to [`LEVELS`] colours of steadily changing lightness.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeatScale {
    low: f64,
    high: f64,
    /// Level bounds grow with this power of their number.
    power: f64,
}

/// Routing has most cells near the mean and a few far above: levels that widen a little with the
/// value leave the mean pale and still tell the hot from the hottest.
const SKEWED: f64 = 1.3;

impl HeatScale {
    /// A scale for skewed values, from 0 where none is negative.
    pub(crate) fn covering(values: impl Iterator<Item = f64>) -> HeatScale {
        let (mut low, mut high) = (0.0f64, 0.0f64);
        for v in values.filter(|v| v.is_finite()) {
            low = low.min(v);
            high = high.max(v);
        }
        let high = if high > low { high } else { low + 1.0 };
        let step = nice_above((high - low) / 20.0);
        HeatScale { low, high: low + ((high - low) / step).ceil() * step, power: SKEWED }
    }

    /// A scale of even levels between the smallest and the largest finite value.
    pub(crate) fn spanning(values: impl Iterator<Item = f64>) -> HeatScale {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite()) {
            low = low.min(v);
            high = high.max(v);
        }
        let axis = Axis::new(low, high, 20);
        HeatScale { low: axis.low, high: axis.high, power: 1.0 }
    }

    /// The level of a value, `None` where it is not finite.
    pub(crate) fn level(&self, value: f64) -> Option<usize> {
        let at = ((value - self.low) / (self.high - self.low)).max(0.0).powf(1.0 / self.power);
        value.is_finite().then_some(((at * LEVELS as f64) as usize).min(LEVELS - 1))
    }

    /// The `LEVELS + 1` bounds of the levels.
    pub(crate) fn bounds(&self) -> Vec<f64> {
        let bound = |i: usize| (i as f64 / LEVELS as f64).powf(self.power);
        (0..=LEVELS).map(|i| self.low + bound(i) * (self.high - self.low)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_are_round() {
        let axis = Axis::new(0.0, 23.0, 5);
        assert_eq!(axis.ticks, [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(axis.label(5.0), "5");
        let axis = Axis::new(0.0, 1.0, 4);
        assert_eq!(axis.label(0.25), "0.25");
        assert_eq!(Axis::new(f64::NAN, 3.0, 5), Axis::new(0.0, 1.0, 5));
        assert_eq!(stride(64, 10), 8);
    }

    #[test]
    fn levels_follow_their_bounds() {
        let scale = HeatScale::covering([0.0, 9.0, f64::NAN].into_iter());
        assert_eq!(scale.level(f64::NAN), None);
        assert_eq!(scale.level(-1.0), Some(0));
        let bounds = scale.bounds();
        for (i, w) in bounds.windows(2).enumerate() {
            assert_eq!(scale.level((w[0] + w[1]) / 2.0), Some(i));
        }
    }

    proptest! {
        #[test]
        fn axes_cover_whatever_they_are_given(low in any::<f64>(), high in any::<f64>()) {
            let axis = Axis::new(low, high, 6);
            prop_assert!(axis.low.is_finite() && axis.high.is_finite() && axis.low < axis.high);
            prop_assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= 101);
            prop_assert!((0.0..=1.0).contains(&axis.at(low)));
        }
    }
}
