//! Balance of loads over ranks, and the experts that carry them.
//!
//! **Balancedness** of a layer is mean ÷ max of tokens over *ranks* (1 is even, 1/ranks is one rank
//! with everything). It is taken per layer and never averaged over layers before the maximum is
//! taken: a rank that is hot in every layer would vanish (case 1).

use evenkeel_types::{ExpertId, LayerId, RankId};
use serde::Serialize;
use thiserror::Error;

/// Balance of one layer over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerBalance {
    /// Layer.
    pub layer: LayerId,
    /// Mean load of a rank.
    pub mean: f64,
    /// Load of the hottest rank.
    pub max: f64,
    /// The hottest rank; the first of equals, none where the layer has no load.
    pub hottest: Option<RankId>,
    /// Mean ÷ max over ranks; none where the layer has no load.
    pub balancedness: Option<f64>,
    /// Max ÷ mean over ranks, the straggler's ratio; none where the layer has no load.
    pub straggler_ratio: Option<f64>,
}

/// Balance of every layer over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// Layer by layer.
    pub layers: Vec<LayerBalance>,
}

impl Balance {
    /// The layer with the lowest balancedness, the first of equals; none where nothing has a load.
    #[must_use]
    pub fn worst(&self) -> Option<&LayerBalance> {
        let loaded = self.layers.iter().filter(|layer| layer.balancedness.is_some());
        loaded.min_by(|a, b| {
            let of = |layer: &LayerBalance| layer.balancedness.unwrap_or(1.0);
            of(a).total_cmp(&of(b))
        })
    }

    /// Mean of the layers' balancedness over layers with a load.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let values: Vec<f64> = self.layers.iter().filter_map(|layer| layer.balancedness).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

/// Why loads are refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum LoadError {
    /// The array is not layers × columns.
    #[error("loads: {found} values, expected {layers} layers x {columns} {axis}")]
    Dimension {
        /// Values found.
        found: usize,
        /// Layers.
        layers: usize,
        /// Columns per layer.
        columns: usize,
        /// What a column is: `ranks` or `experts`.
        axis: &'static str,
    },
    /// A load that is none.
    #[error("loads: layer {layer}, {axis} {column}: {found}, expected a count of 0 or more")]
    Value {
        /// Layer.
        layer: usize,
        /// What a column is: `rank` or `expert`.
        axis: &'static str,
        /// Column.
        column: usize,
        /// The value.
        found: f64,
    },
}

/// Balance over ranks of `loads[layer * ranks + rank]`.
///
/// # Errors
/// Where the array is of another length, or a load is not a number, negative or infinite.
pub fn balance_over_ranks(
    loads: &[f64],
    layers: usize,
    ranks: usize,
) -> Result<Balance, LoadError> {
    if loads.len() != layers * ranks || ranks == 0 {
        let (found, columns) = (loads.len(), ranks);
        return Err(LoadError::Dimension { found, layers, columns, axis: "ranks" });
    }
    check(loads, ranks, "rank")?;
    let of = |(layer, loads): (usize, &[f64])| {
        let mean = loads.iter().sum::<f64>() / ranks as f64;
        let (mut hottest, mut max) = (0, loads[0]);
        for (rank, load) in loads.iter().enumerate() {
            if *load > max {
                (hottest, max) = (rank, *load);
            }
        }
        let loaded = max > 0.0;
        LayerBalance {
            layer: LayerId(layer as u16),
            mean,
            max,
            hottest: loaded.then_some(RankId(hottest as u16)),
            balancedness: loaded.then(|| mean / max),
            straggler_ratio: loaded.then(|| max / mean),
        }
    };
    Ok(Balance { layers: loads.chunks_exact(ranks).enumerate().map(of).collect() })
}

/// Counts out of a foreign array `[layer * experts + expert]`, fractions rounded.
///
/// # Errors
/// Where the array is of another length, or a value is not a number, negative or beyond 2^53.
pub fn counts_of(values: &[f64], layers: usize, experts: usize) -> Result<Vec<u64>, LoadError> {
    if values.len() != layers * experts || experts == 0 {
        let (found, columns) = (values.len(), experts);
        return Err(LoadError::Dimension { found, layers, columns, axis: "experts" });
    }
    check(values, experts, "expert")?;
    Ok(values.iter().map(|value| value.round() as u64).collect())
}

fn check(values: &[f64], columns: usize, axis: &'static str) -> Result<(), LoadError> {
    // Beyond 2^53 whole numbers are no longer told apart: no count is that large.
    let limit = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    match values.iter().position(|value| !(0.0..=limit).contains(value)) {
        None => Ok(()),
        Some(index) => {
            let (layer, column) = (index / columns, index % columns);
            Err(LoadError::Value { layer, axis, column, found: values[index] })
        }
    }
}

/// An expert that carries much of its layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotExpert {
    /// Layer.
    pub layer: LayerId,
    /// Expert.
    pub expert: ExpertId,
    /// Choices.
    pub choices: u64,
    /// Choices ÷ mean choices of the layer's experts.
    pub over_mean: f64,
}

/// The `limit` experts that exceed their layer's mean most, hottest first.
///
/// Layers without choices have none. `counts` is `[layer * experts + expert]`.
#[must_use]
pub fn hot_experts(counts: &[u64], experts: usize, limit: usize) -> Vec<HotExpert> {
    let mut hot = Vec::new();
    for (layer, counts) in counts.chunks_exact(experts.max(1)).enumerate() {
        let mean = counts.iter().sum::<u64>() as f64 / experts as f64;
        for (expert, &choices) in counts.iter().enumerate() {
            let over_mean = choices as f64 / mean;
            if over_mean > 1.0 {
                let (layer, expert) = (LayerId(layer as u16), ExpertId(expert as u16));
                hot.push(HotExpert { layer, expert, choices, over_mean });
            }
        }
    }
    // A stable sort: equals stay in layer and expert order.
    hot.sort_by(|a, b| b.over_mean.total_cmp(&a.over_mean));
    hot.truncate(limit);
    hot
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case_1_a_constant_skew_is_not_averaged_away() {
        let balance = balance_over_ranks(&[100.0, 200.0, 100.0, 200.0], 2, 2).unwrap();
        for layer in &balance.layers {
            assert!((layer.balancedness.unwrap() - 0.75).abs() < 1e-12);
            assert!((layer.straggler_ratio.unwrap() - 4.0 / 3.0).abs() < 1e-12);
            assert_eq!(layer.hottest, Some(RankId(1)));
        }
        assert_eq!(balance.worst().unwrap().layer, LayerId(0));
        // Opposed skews: each layer is uneven though the sums over layers are even.
        let opposed = balance_over_ranks(&[100.0, 200.0, 200.0, 100.0], 2, 2).unwrap();
        assert!((opposed.mean().unwrap() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn case_16_zero_is_no_load_and_nan_or_negative_is_refused() {
        let balance = balance_over_ranks(&[0.0, 0.0, 3.0, 1.0], 2, 2).unwrap();
        assert_eq!((balance.layers[0].balancedness, balance.layers[0].hottest), (None, None));
        assert_eq!(balance.worst().unwrap().layer, LayerId(1));
        assert_eq!(balance_over_ranks(&[0.0; 4], 2, 2).unwrap().worst(), None);
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            let error = balance_over_ranks(&[1.0, 1.0, 1.0, bad], 2, 2).unwrap_err();
            assert!(error.to_string().starts_with("loads: layer 1, rank 1: "), "{error}");
            let error = counts_of(&[1.0, bad, 1.0, 1.0], 2, 2).unwrap_err();
            assert!(error.to_string().starts_with("loads: layer 0, expert 1: "), "{error}");
        }
        assert_eq!(counts_of(&[0.0, 2.4, 2.6, 0.0], 2, 2).unwrap(), [0, 2, 3, 0]);
        assert!(matches!(counts_of(&[1.0], 2, 2), Err(LoadError::Dimension { .. })));
    }

    #[test]
    fn hot_experts_come_hottest_first() {
        let hot = hot_experts(&[0, 8, 4, 4, 0, 0, 0, 0, 1, 1, 2, 0], 4, 3);
        let places: Vec<(u16, u16)> = hot.iter().map(|hot| (hot.layer.0, hot.expert.0)).collect();
        assert_eq!(places, [(0, 1), (2, 2)]);
        assert!((hot[0].over_mean - 2.0).abs() < 1e-12);
        assert!(hot_experts(&[], 4, 3).is_empty());
    }

    proptest! {
        #[test]
        fn balancedness_lies_between_one_rank_and_all(
            loads in prop::collection::vec(0.0_f64..1e6, 1..40),
        ) {
            let ranks = loads.len();
            let balance = balance_over_ranks(&loads, 1, ranks).unwrap();
            if let Some(value) = balance.layers[0].balancedness {
                prop_assert!(value <= 1.0 + 1e-12 && value >= 1.0 / ranks as f64 - 1e-12);
            }
        }
    }
}
