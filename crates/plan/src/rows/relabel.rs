//! Which rank takes which packed content, so that most stays where it is.

/// Assigns `[content]` → rank with the largest sum of `overlap[content * ranks + rank]`.
///
/// Hungarian method with potentials, `O(ranks³)` (Kuhn 1955, Munkres 1957; the form with shortest
/// augmenting paths).
pub(crate) fn assign(overlap: &[i64], ranks: usize) -> Vec<usize> {
    // Rows and columns count from 1; 0 stands for "none".
    let cost = |row: usize, column: usize| -overlap[(row - 1) * ranks + column - 1];
    let (mut of_row, mut of_column) = (vec![0_i64; ranks + 1], vec![0_i64; ranks + 1]);
    let mut matched = vec![0_usize; ranks + 1];
    let mut way = vec![0_usize; ranks + 1];
    for row in 1..=ranks {
        matched[0] = row;
        let mut column = 0;
        let mut least = vec![i64::MAX; ranks + 1];
        let mut used = vec![false; ranks + 1];
        while matched[column] != 0 {
            used[column] = true;
            let here = matched[column];
            let (mut step, mut next) = (i64::MAX, 0);
            for other in (1..=ranks).filter(|other| !used[*other]) {
                let slack = cost(here, other) - of_row[here] - of_column[other];
                if slack < least[other] {
                    (least[other], way[other]) = (slack, column);
                }
                if least[other] < step {
                    (step, next) = (least[other], other);
                }
            }
            for other in 0..=ranks {
                if used[other] {
                    of_row[matched[other]] += step;
                    of_column[other] -= step;
                } else if least[other] < i64::MAX {
                    least[other] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            let before = way[column];
            matched[column] = matched[before];
            column = before;
        }
    }
    let mut rank_of = vec![0; ranks];
    for (column, row) in matched.iter().enumerate().skip(1) {
        rank_of[row - 1] = column - 1;
    }
    rank_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::hash3;
    use proptest::prelude::*;

    fn best_by_trying(overlap: &[i64], ranks: usize, row: usize, free: &mut Vec<usize>) -> i64 {
        if row == ranks {
            return 0;
        }
        let mut best = i64::MIN;
        for index in 0..free.len() {
            let column = free.swap_remove(index);
            let rest = best_by_trying(overlap, ranks, row + 1, free);
            best = best.max(overlap[row * ranks + column] + rest);
            free.push(column);
            let last = free.len() - 1;
            free.swap(index, last);
        }
        best
    }

    proptest! {
        #[test]
        fn nothing_keeps_more(ranks in 1_usize..7, seed: u64) {
            let overlap: Vec<i64> = (0..ranks * ranks)
                .map(|cell| (hash3(seed, 0, cell as u64) % 10) as i64)
                .collect();
            let rank_of = assign(&overlap, ranks);
            let mut seen = rank_of.clone();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..ranks).collect::<Vec<_>>());
            let found: i64 =
                rank_of.iter().enumerate().map(|(c, rank)| overlap[c * ranks + rank]).sum();
            let best = best_by_trying(&overlap, ranks, 0, &mut (0..ranks).collect());
            prop_assert_eq!(found, best);
        }
    }
}
