//! A peer to compare with: the placement that engines ship, in its global form.
//!
//! DeepSeek's EPLB (d52c72d) and its descendants in vLLM, SGLang and TensorRT-LLM without expert
//! groups: the next copy to the largest load per copy, then heaviest piece first onto the least
//! loaded rank with a free slot. Copies of one expert may meet on a rank, and zero loads give all
//! spare slots to expert 0, as theirs do.

use evenkeel_types::ExpertId;

/// One layer's slots `[rank][slot]` for `ranks × slots_per_rank` slots and even split.
///
/// Returns an empty layer where there are fewer slots than experts.
#[must_use]
pub fn eplb_global(
    loads: &[u64],
    ranks: usize,
    slots_per_rank: usize,
) -> Vec<Vec<Option<ExpertId>>> {
    let slots = ranks * slots_per_rank;
    if slots < loads.len() {
        return Vec::new();
    }
    let mut copies = vec![1_usize; loads.len()];
    let piece = |expert: usize, copies: &[usize]| loads[expert] as f64 / copies[expert] as f64;
    for _ in loads.len()..slots {
        let next = (0..loads.len())
            .max_by(|a, b| piece(*a, &copies).total_cmp(&piece(*b, &copies)).then(b.cmp(a)));
        if let Some(expert) = next {
            copies[expert] += 1;
        }
    }
    let mut order: Vec<usize> =
        (0..loads.len()).flat_map(|expert| std::iter::repeat_n(expert, copies[expert])).collect();
    order.sort_by(|a, b| piece(*b, &copies).total_cmp(&piece(*a, &copies)).then(a.cmp(b)));
    let mut layer = vec![Vec::with_capacity(slots_per_rank); ranks];
    let mut rows = vec![0.0_f64; ranks];
    for expert in order {
        let target = (0..ranks)
            .filter(|rank| layer[*rank].len() < slots_per_rank)
            .min_by(|a, b| rows[*a].total_cmp(&rows[*b]).then(a.cmp(b)));
        if let Some(rank) = target {
            layer[rank].push(Some(ExpertId(expert as u16)));
            rows[rank] += piece(expert, &copies);
        }
    }
    layer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_packs_the_heaviest_first() {
        let layer = eplb_global(&[90, 30, 20, 10], 2, 3);
        let ids: Vec<Vec<u16>> = layer
            .iter()
            .map(|rank| rank.iter().flatten().map(|expert| expert.0).collect())
            .collect();
        assert_eq!(ids, [vec![0, 0, 2], vec![0, 1, 3]]);
        assert!(eplb_global(&[1, 1, 1], 1, 2).is_empty());
    }
}
