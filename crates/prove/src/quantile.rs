//! Weighted quantiles that can be taken again under block multiplicities without sorting again.

/// Per mille of a quantile: 500 the median, 990 p99, 999 p99.9.
pub(crate) type PerMille = u64;

/// One observation: value, weight, atom of time it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// Value.
    pub(crate) value: f64,
    /// Weight.
    pub(crate) weight: u64,
    /// Atom of time.
    pub(crate) atom: u32,
}

/// Observations in descending order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sorted {
    items: Vec<Observation>,
    total: u64,
    atom_weight: Vec<u64>,
}

impl Sorted {
    /// Sorts observations of `atoms` atoms of time.
    pub(crate) fn new(mut items: Vec<Observation>, atoms: usize) -> Self {
        items.retain(|item| item.weight > 0);
        items.sort_by(|a, b| b.value.total_cmp(&a.value).then(a.atom.cmp(&b.atom)));
        let mut atom_weight = vec![0; atoms];
        for item in &items {
            atom_weight[item.atom as usize] += item.weight;
        }
        let total = atom_weight.iter().sum();
        Self { items, total, atom_weight }
    }

    /// Observations, not weighted.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Sum of weights.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Largest value.
    pub(crate) fn max(&self) -> Option<f64> {
        self.items.first().map(|item| item.value)
    }

    /// `[atom]`: whether it holds anything.
    pub(crate) fn held(&self) -> impl Iterator<Item = bool> + '_ {
        self.atom_weight.iter().map(|weight| *weight > 0)
    }

    /// Smallest value that at least `per_mille` of the weight does not exceed (inverse of the
    /// empirical distribution function: always a value that occurred).
    pub(crate) fn quantile(&self, per_mille: PerMille) -> Option<f64> {
        self.walk(per_mille, self.total, |_| 1)
    }

    /// The same with every atom counted `times[atom]` times.
    pub(crate) fn resampled(&self, per_mille: PerMille, times: &[u32]) -> Option<f64> {
        let total = self.atom_weight.iter().zip(times).map(|(w, t)| w * u64::from(*t)).sum();
        self.walk(per_mille, total, |atom| times[atom as usize])
    }

    /// Walks down from the largest value: a p99 visits a hundredth of the items.
    fn walk(&self, per_mille: PerMille, total: u64, times: impl Fn(u32) -> u32) -> Option<f64> {
        if total == 0 {
            return None;
        }
        let tail = total * (1000 - per_mille);
        let mut above = 0;
        for item in &self.items {
            above += item.weight * u64::from(times(item.atom));
            if above * 1000 > tail {
                return Some(item.value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(values: &[(f64, u64, u32)], atoms: usize) -> Sorted {
        let items = values.iter().map(|&(value, weight, atom)| Observation { value, weight, atom });
        Sorted::new(items.collect(), atoms)
    }

    #[test]
    fn quantiles_of_a_hundred() {
        let values: Vec<_> = (1..=100).map(|i| (f64::from(i), 1, 0)).collect();
        let all = sorted(&values, 1);
        assert_eq!(all.quantile(990), Some(99.0));
        assert_eq!(all.quantile(500), Some(50.0));
        assert_eq!(all.quantile(999), Some(100.0));
        assert_eq!(sorted(&[], 1).quantile(500), None);
    }

    #[test]
    fn one_stall_in_a_thousand_steps_is_invisible_at_p99() {
        let mut values: Vec<_> = (0..999).map(|_| (14.0, 64, 0)).collect();
        values.push((20_000.0, 64, 0));
        let gaps = sorted(&values, 1);
        assert_eq!(gaps.quantile(990), Some(14.0));
        assert_eq!(gaps.max(), Some(20_000.0));
    }

    proptest! {
        #[test]
        fn resampling_equals_repeating(
            values in prop::collection::vec((0.0_f64..100.0, 1_u64..5, 0_u32..4), 1..60),
            times in prop::collection::vec(0_u32..4, 4),
            per_mille in 1_u64..1000,
        ) {
            let repeated: Vec<_> = values
                .iter()
                .flat_map(|item| (0..times[item.2 as usize]).map(move |_| *item))
                .collect();
            prop_assert_eq!(
                sorted(&values, 4).resampled(per_mille, &times),
                sorted(&repeated, 4).quantile(per_mille)
            );
        }
    }
}
