//! Rebuilds the loads that the published expert tables were measured under.
//!
//! The tables name a distribution, not the counts. The generator of the benchmark (aiconfigurator,
//! Apache-2.0; described in its collector): draw one value per expert from a power law with
//! exponent α truncated to `[1, 0.8·T]` (`[0.01, 2]` where `T·k ≤ E`), scale to `T·k`, round, cap at
//! T, spread the remainder one by one over the ranks to their least loaded experts, cut the
//! experts into contiguous ranks, time the rank with most rows. The draws themselves are lost, so
//! a cost is averaged over several draws, never taken at the average load.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_types::{hash3, unit_f64};

/// How a benchmark spread its tokens over the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// Every expert the same, as far as integers allow.
    Balanced,
    /// Truncated power law with this exponent.
    PowerLaw(f64),
}

impl Spread {
    /// Reads a table's `distribution` cell; a suffix `_eplb` is ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix("_eplb").unwrap_or(text);
        match text {
            "balanced" | "uniform" => Some(Self::Balanced),
            _ => text.strip_prefix("power_law_")?.parse().ok().map(Self::PowerLaw),
        }
    }
}

/// The counts of a measured case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadCase {
    /// Tokens over all ranks.
    pub tokens: u32,
    /// Routed experts.
    pub experts: u32,
    /// Experts per token.
    pub top_k: u32,
    /// Ranks, each with `experts / ranks` contiguous experts.
    pub ranks: u32,
    /// How tokens are spread.
    pub spread: Spread,
}

/// Load of the rank that a benchmark times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLoad {
    /// Token rows of each of its experts.
    pub rows: Vec<u32>,
    /// Distinct tokens that it receives.
    pub distinct_tokens: u32,
}

impl LoadCase {
    /// True where rounding makes the power law unusable: fewer choices than experts.
    #[must_use]
    pub fn degenerate(&self) -> bool {
        matches!(self.spread, Spread::PowerLaw(_)) && self.tokens * self.top_k <= self.experts
    }

    /// Rows of every expert in one draw.
    #[must_use]
    pub fn counts(&self, draw: u64) -> Vec<u32> {
        match self.spread {
            Spread::Balanced => self.balanced(),
            Spread::PowerLaw(alpha) => self.power_law(alpha, draw),
        }
    }

    /// Load of the rank with most rows in one draw.
    #[must_use]
    pub fn hottest(&self, draw: u64) -> RankLoad {
        let counts = self.counts(draw);
        let local = (self.experts / self.ranks.max(1)).max(1) as usize;
        let total = |chunk: &[u32]| chunk.iter().map(|m| u64::from(*m)).sum::<u64>();
        let hottest = counts
            .chunks(local)
            .enumerate()
            .max_by_key(|(i, chunk)| (total(chunk), Reverse(*i)))
            .map_or(0, |(i, _)| i);
        let range = hottest * local..((hottest + 1) * local).min(counts.len());
        RankLoad {
            distinct_tokens: self.distinct(&counts, range.clone()),
            rows: counts[range].to_vec(),
        }
    }

    /// Load of the rank with most rows after the benchmark's balancer: copies go one by one to the
    /// expert with most rows per copy until there are `slots`, rows are split evenly, and slots
    /// are packed heaviest first onto the least loaded rank with room.
    #[must_use]
    pub fn hottest_after_balancing(&self, draw: u64, slots: u32) -> RankLoad {
        let counts = self.counts(draw);
        let mut copies = vec![1_u32; counts.len()];
        for _ in self.experts..slots {
            let per_copy = |e: &usize| f64::from(counts[*e]) / f64::from(copies[*e]);
            let most = (0..counts.len()).max_by(|a, b| per_copy(a).total_cmp(&per_copy(b)));
            let Some(most) = most else { break };
            copies[most] += 1;
        }
        let mut pieces: Vec<u32> = counts
            .iter()
            .zip(&copies)
            .flat_map(|(&m, &n)| (0..n).map(move |i| m / n + u32::from(i < m % n)))
            .collect();
        pieces.sort_unstable_by(|a, b| b.cmp(a));
        let room = (slots / self.ranks.max(1)).max(1) as usize;
        let mut ranks: Vec<(u64, Vec<u32>)> = vec![(0, Vec::new()); self.ranks.max(1) as usize];
        let mut open: BinaryHeap<Reverse<(u64, usize)>> =
            (0..ranks.len()).map(|rank| Reverse((0, rank))).collect();
        for piece in pieces {
            let Some(Reverse((sum, rank))) = open.pop() else { break };
            ranks[rank].0 = sum + u64::from(piece);
            ranks[rank].1.push(piece);
            if ranks[rank].1.len() < room {
                open.push(Reverse((ranks[rank].0, rank)));
            }
        }
        // The first of equals is timed: packing heaviest first gives it the fewest active experts.
        let most = ranks.iter().map(|(sum, _)| *sum).max().unwrap_or(0);
        let (sum, rows) = ranks.into_iter().find(|(sum, _)| *sum == most).unwrap_or_default();
        // Which tokens share a rank is not recorded; independent choices are assumed.
        let tokens = f64::from(self.tokens);
        let missed: f64 = rows.iter().map(|m| (1.0 - f64::from(*m) / tokens).max(0.0)).product();
        let distinct = (tokens * (1.0 - missed)).round() as u64;
        RankLoad { distinct_tokens: distinct.min(sum) as u32, rows }
    }

    /// Token t's i-th expert is `t + i·stride`, `stride = ⌈E / k⌉`, wrapped; fewer tokens than a
    /// stride are spread evenly over it.
    fn balanced(&self) -> Vec<u32> {
        let (tokens, experts) = (u64::from(self.tokens), u64::from(self.experts));
        let stride = experts.div_ceil(u64::from(self.top_k.max(1)));
        let laps = if tokens >= stride { tokens / experts } else { 0 };
        let mut counts = vec![(laps * u64::from(self.top_k)) as u32; self.experts as usize];
        for i in 0..u64::from(self.top_k) {
            for token in laps * experts..tokens {
                let first = if tokens >= stride { token } else { token * stride / tokens };
                counts[((first + i * stride) % experts) as usize] += 1;
            }
        }
        counts
    }

    fn power_law(&self, alpha: f64, draw: u64) -> Vec<u32> {
        let (tokens, choices) = (f64::from(self.tokens), self.tokens * self.top_k);
        let (low, high) = if choices > self.experts { (1.0, 0.8 * tokens) } else { (0.01, 2.0) };
        let seed = hash3(
            u64::from(self.tokens) << 32 | u64::from(self.experts),
            u64::from(self.ranks) << 32 | u64::from(self.top_k),
            alpha.to_bits(),
        );
        let (a, b) = (power(low, 1.0 - alpha), power(high, 1.0 - alpha));
        let values: Vec<f64> = (0..u64::from(self.experts))
            .map(|e| power((b - a) * unit_f64(hash3(seed, draw, e)) + a, 1.0 / (1.0 - alpha)))
            .collect();
        let scale = f64::from(choices) / values.iter().sum::<f64>();
        let mut counts: Vec<u32> =
            values.iter().map(|v| ((v * scale).round() as u32).min(self.tokens)).collect();
        self.spread_remainder(&mut counts, i64::from(choices));
        counts
    }

    /// Adds to the least loaded expert of each rank in turn, or takes from the most loaded, until
    /// the sum is right.
    fn spread_remainder(&self, counts: &mut [u32], choices: i64) {
        let mut missing = choices - counts.iter().map(|m| i64::from(*m)).sum::<i64>();
        let local = (self.experts / self.ranks.max(1)).max(1) as usize;
        while missing != 0 {
            let before = missing;
            for rank in counts.chunks_mut(local) {
                let chosen = if missing > 0 {
                    rank.iter_mut().filter(|m| **m < self.tokens).min()
                } else if missing < 0 {
                    rank.iter_mut().filter(|m| **m > 0).max()
                } else {
                    None
                };
                let Some(chosen) = chosen else { continue };
                if missing > 0 {
                    *chosen += 1;
                } else {
                    *chosen -= 1;
                }
                missing -= missing.signum();
            }
            if missing == before {
                break;
            }
        }
    }

    /// Distinct tokens of the experts in `range`: experts are laid by descending count one after
    /// another over `k` columns of T tokens, so each holds an interval of tokens, wrapped.
    fn distinct(&self, counts: &[u32], range: std::ops::Range<usize>) -> u32 {
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|e| Reverse(counts[*e]));
        let tokens = u64::from(self.tokens.max(1));
        let mut intervals = Vec::new();
        let mut at = 0_u64;
        for expert in order {
            let rows = u64::from(counts[expert]);
            if rows > 0 && range.contains(&expert) {
                let start = at % tokens;
                let end = start + rows;
                intervals.push((start, end.min(tokens)));
                if end > tokens {
                    intervals.push((0, end - tokens));
                }
            }
            at += rows;
        }
        intervals.sort_unstable();
        let (mut covered, mut reach) = (0, 0);
        for (start, end) in intervals {
            covered += end.saturating_sub(start.max(reach));
            reach = reach.max(end);
        }
        covered as u32
    }
}

fn power(base: f64, exponent: f64) -> f64 {
    (base.ln() * exponent).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn balanced_is_balanced() {
        let case =
            LoadCase { tokens: 4, experts: 256, top_k: 8, ranks: 4, spread: Spread::Balanced };
        assert_eq!(case.counts(0).iter().filter(|m| **m > 0).count(), 32);
        assert_eq!(case.hottest(0).rows.iter().sum::<u32>(), 8);
        let case = LoadCase { tokens: 4096, ..case };
        assert!(case.counts(0).iter().all(|m| *m == 128));
        assert_eq!(case.hottest(0).distinct_tokens, 4096);
    }

    #[test]
    fn distributions_are_read() {
        assert_eq!(Spread::parse("power_law_1.01_eplb"), Some(Spread::PowerLaw(1.01)));
        assert_eq!(Spread::parse("uniform"), Some(Spread::Balanced));
        assert_eq!(Spread::parse("zipf"), None);
    }

    proptest! {
        #[test]
        fn every_choice_is_placed(
            tokens in 1_u32..5000, ranks in 0_u32..6, k in 1_u32..9, alpha in 0.5_f64..1.5,
            draw in 0_u64..1000,
        ) {
            let case = LoadCase {
                tokens, experts: 64, top_k: k, ranks: 1 << ranks,
                spread: Spread::PowerLaw(alpha + 1e-6),
            };
            let counts = case.counts(draw);
            prop_assert_eq!(counts.iter().sum::<u32>(), tokens * k);
            prop_assert!(counts.iter().all(|m| *m <= tokens));
            let load = case.hottest(draw);
            let rows: u32 = load.rows.iter().sum();
            prop_assert!(rows * (1 << ranks) >= tokens * k);
            prop_assert!(load.distinct_tokens <= tokens.min(rows));
            prop_assert!(load.distinct_tokens * k >= rows);
        }
    }
}
