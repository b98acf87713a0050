//! From router logits to a token's experts.

use crate::elementwise::softmax;

/// One chosen expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Logical expert.
    pub expert: u16,
    /// Its weight in the token's sum.
    pub weight: f32,
}

/// Softmax over all experts, then the `top_k` largest, largest first; of equal probabilities the
/// lowest id. `renormalise` divides the weights by their sum. `logits` becomes the probabilities;
/// `into` is overwritten.
///
/// NaN counts as the smallest: a choice is made of whatever comes.
pub fn choose(logits: &mut [f32], top_k: usize, renormalise: bool, into: &mut Vec<Choice>) {
    softmax(logits);
    into.clear();
    for (expert, probability) in logits.iter().enumerate() {
        let probability = if probability.is_nan() { -1.0 } else { *probability };
        let place = into.partition_point(|choice| choice.weight >= probability);
        if place < top_k {
            into.truncate(top_k.saturating_sub(1).max(place));
            into.insert(place, Choice { expert: expert as u16, weight: probability });
        }
    }
    for choice in into.iter_mut() {
        choice.weight = choice.weight.max(0.0);
    }
    if renormalise {
        // In the order of choice, so that the sum has one order too.
        let sum: f32 = into.iter().map(|choice| choice.weight).sum();
        for choice in into {
            choice.weight /= sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_probabilities_go_to_the_lowest_id() {
        let mut chosen = Vec::new();
        choose(&mut [1.0, 3.0, 3.0, 3.0, 2.0], 3, true, &mut chosen);
        let ids: Vec<u16> = chosen.iter().map(|choice| choice.expert).collect();
        assert_eq!(ids, [1, 2, 3]);
        assert!(chosen.iter().all(|choice| (choice.weight - 1.0 / 3.0).abs() < 1e-6));
    }

    #[test]
    fn it_is_a_sorted_prefix() {
        let logits: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 * 0.1).collect();
        let mut chosen = Vec::new();
        choose(&mut logits.clone(), 8, false, &mut chosen);
        let mut all: Vec<(u16, f32)> =
            logits.iter().enumerate().map(|(i, l)| (i as u16, *l)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let ids: Vec<u16> = chosen.iter().map(|choice| choice.expert).collect();
        assert_eq!(ids, all[..8].iter().map(|(id, _)| *id).collect::<Vec<_>>());
    }
}
