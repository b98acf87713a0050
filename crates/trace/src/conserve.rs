//! Conservation: what a record counts must be what the router was asked for (law 7).
//!
//! Per step, layer and phase: Σ recorded choices + dropped choices = real tokens × top-k, over the
//! group and per source rank; and where layers were recorded, rows that expert kernels computed =
//! the choices not dropped (each executed exactly once, law 2). [`Conservation`] takes one step at
//! a time and keeps only the kinds of breach it met, so its memory does not grow with the trace.

use crate::RankCell;
use evenkeel_types::{LayerId, Phase, RankId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Kinds of breach kept; further kinds are no longer told apart. A trace that breaks more laws in
/// more ways than this is foreign altogether.
pub const BREACH_KINDS_MAX: usize = 4096;

/// The law that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Law {
    /// Σ choices + dropped = tokens × top-k over the group.
    Choices,
    /// The same per source rank; looked at only where the group's sum holds.
    ChoicesOfSource,
    /// Rows computed by expert kernels = choices not dropped.
    Executed,
    /// Tokens that kernels saw ≥ real tokens.
    Padding,
}

/// What the two numbers of a breach point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Found is expected times the number of ranks: every rank counted the whole batch.
    CountedPerRank {
        /// Number of ranks.
        factor: u64,
    },
    /// Found is the padded batch × top-k.
    PaddingIncluded,
    /// Found is another whole multiple of expected.
    Multiple {
        /// Found ÷ expected.
        factor: u64,
    },
    /// Nothing was counted in a layer of a step that has counts.
    LayerMissing,
    /// More than there can be.
    Excess,
    /// Less than there must be.
    Shortfall,
}

/// One kind of breach: a law broken in one place and way, in one or more steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breach {
    /// The law.
    pub law: Law,
    /// Phase of the steps.
    pub phase: Phase,
    /// Layer, where the law is about one.
    pub layer: Option<LayerId>,
    /// Source rank, where the law is about one.
    pub rank: Option<RankId>,
    /// What the numbers point to.
    pub cause: Cause,
    /// First step concerned.
    pub first_step: u64,
    /// Number of steps concerned.
    pub steps: u64,
    /// Count found in the first of them.
    pub found: u64,
    /// Count expected there.
    pub expected: u64,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.first_step)?;
        if self.steps > 1 {
            write!(f, " and {} more", self.steps - 1)?;
        }
        write!(f, ", {}", self.phase)?;
        if let Some(layer) = self.layer {
            write!(f, ", {layer}")?;
        }
        if let Some(rank) = self.rank {
            write!(f, ", source {rank}")?;
        }
        let (what, sum) = match self.law {
            Law::Choices | Law::ChoicesOfSource => ("choices counted", "real tokens x top-k"),
            Law::Executed => ("rows executed", "choices not dropped"),
            Law::Padding => ("padded tokens", "at least the real tokens"),
        };
        write!(f, ": {} {what}, expected {} ({sum}): ", self.found, self.expected)?;
        match self.cause {
            Cause::CountedPerRank { factor } => write!(f, "factor {factor}, counted once per rank"),
            Cause::PaddingIncluded => f.write_str("padding included"),
            Cause::Multiple { factor } if self.law == Law::Executed => {
                write!(f, "factor {factor}, each choice executed {factor} times")
            }
            Cause::Multiple { factor } => write!(f, "factor {factor}"),
            Cause::LayerMissing => f.write_str("layer missing"),
            Cause::Excess if self.law == Law::Executed => f.write_str("executed more than once"),
            Cause::Excess => f.write_str("count exceeds real tokens x top-k"),
            Cause::Shortfall => f.write_str("choices missing"),
        }
    }
}

/// The counts of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepTotals<'a> {
    /// Step.
    pub step: u64,
    /// Phase.
    pub phase: Phase,
    /// `[rank]`: real and padded tokens.
    pub ranks: &'a [RankCell],
    /// `[layer * ranks + source rank]`: choices recorded; empty where the step has no routing rows.
    pub choices: &'a [u64],
    /// `[layer]`: rows executed; empty where the record does not say.
    pub executed: &'a [u64],
    /// `[layer]`: choices dropped by a capacity factor; empty where none was.
    pub dropped: &'a [u64],
}

type Key = (Law, Phase, Option<LayerId>, Option<RankId>, Cause);

/// Checks steps one by one.
#[derive(Clone, Debug)]
pub struct Conservation {
    top_k: u64,
    found: BTreeMap<Key, Breach>,
}

impl Conservation {
    /// A checker for a model that routes each token to `top_k` experts per layer.
    #[must_use]
    pub fn new(top_k: u8) -> Self {
        Self { top_k: u64::from(top_k), found: BTreeMap::new() }
    }

    /// Checks one step.
    pub fn step(&mut self, totals: &StepTotals<'_>) {
        let ranks = totals.ranks.len().max(1);
        let tokens: u64 = totals.ranks.iter().map(|rank| u64::from(rank.tokens)).sum();
        let padded: u64 = totals.ranks.iter().map(|rank| u64::from(rank.tokens_padded)).sum();
        let place = Place { step: totals.step, phase: totals.phase, layer: None, rank: None };
        for (rank, cell) in totals.ranks.iter().enumerate() {
            if cell.tokens_padded < cell.tokens {
                let place = Place { rank: Some(RankId(rank as u16)), ..place };
                let (found, expected) = (u64::from(cell.tokens_padded), u64::from(cell.tokens));
                self.note(Law::Padding, place, found, expected, Cause::Shortfall);
            }
        }
        let asked = tokens * self.top_k;
        for (layer, counts) in totals.choices.chunks_exact(ranks).enumerate() {
            let place = Place { layer: Some(LayerId(layer as u16)), ..place };
            let dropped = totals.dropped.get(layer).copied().unwrap_or(0);
            let found = counts.iter().sum::<u64>() + dropped;
            if found != asked {
                let cause = cause(found, asked, padded * self.top_k, ranks as u64);
                self.note(Law::Choices, place, found, asked, cause);
            } else if dropped == 0 {
                self.sources(place, counts, totals.ranks);
            }
        }
        for (layer, &found) in totals.executed.iter().enumerate() {
            let dropped = totals.dropped.get(layer).copied().unwrap_or(0);
            let expected = asked.saturating_sub(dropped);
            if found != expected {
                let place = Place { layer: Some(LayerId(layer as u16)), ..place };
                let cause = match cause(found, expected, padded * self.top_k, 0) {
                    Cause::LayerMissing => Cause::Shortfall,
                    cause => cause,
                };
                self.note(Law::Executed, place, found, expected, cause);
            }
        }
    }

    fn sources(&mut self, place: Place, counts: &[u64], ranks: &[RankCell]) {
        for (rank, (&found, cell)) in counts.iter().zip(ranks).enumerate() {
            let expected = u64::from(cell.tokens) * self.top_k;
            if found != expected {
                let cause = if found > expected { Cause::Excess } else { Cause::Shortfall };
                let place = Place { rank: Some(RankId(rank as u16)), ..place };
                self.note(Law::ChoicesOfSource, place, found, expected, cause);
            }
        }
    }

    fn note(&mut self, law: Law, place: Place, found: u64, expected: u64, cause: Cause) {
        let key = (law, place.phase, place.layer, place.rank, cause);
        if let Some(breach) = self.found.get_mut(&key) {
            breach.steps += 1;
        } else if self.found.len() < BREACH_KINDS_MAX {
            let breach = Breach {
                law,
                phase: place.phase,
                layer: place.layer,
                rank: place.rank,
                cause,
                first_step: place.step,
                steps: 1,
                found,
                expected,
            };
            self.found.insert(key, breach);
        }
    }

    /// The breaches met, by law, phase, layer, rank and cause.
    #[must_use]
    pub fn finish(self) -> Vec<Breach> {
        self.found.into_values().collect()
    }
}

#[derive(Clone, Copy)]
struct Place {
    step: u64,
    phase: Phase,
    layer: Option<LayerId>,
    rank: Option<RankId>,
}

fn cause(found: u64, expected: u64, padded: u64, ranks: u64) -> Cause {
    if found == 0 {
        Cause::LayerMissing
    } else if found < expected {
        Cause::Shortfall
    } else if found == padded && padded > expected {
        Cause::PaddingIncluded
    } else if expected > 0 && ranks > 1 && found == expected * ranks {
        Cause::CountedPerRank { factor: ranks }
    } else if expected > 0 && found.is_multiple_of(expected) {
        Cause::Multiple { factor: found / expected }
    } else {
        Cause::Excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranks(tokens: &[u32], padded: u32) -> Vec<RankCell> {
        let cell = |&tokens| RankCell { tokens, tokens_padded: padded, ..RankCell::default() };
        tokens.iter().map(cell).collect()
    }

    fn totals<'a>(ranks: &'a [RankCell], choices: &'a [u64]) -> StepTotals<'a> {
        let phase = Phase::Decode;
        StepTotals { step: 3, phase, ranks, choices, executed: &[], dropped: &[] }
    }

    fn breaches(top_k: u8, totals: &StepTotals<'_>) -> Vec<Breach> {
        let mut check = Conservation::new(top_k);
        check.step(totals);
        check.finish()
    }

    #[test]
    fn case_6_padding_in_the_counts_is_told() {
        // 17 real tokens padded to 256, all pads routed to the same 8 experts.
        let ranks = ranks(&[17], 256);
        let found = breaches(8, &totals(&ranks, &[256 * 8]));
        assert_eq!(found[0].cause, Cause::PaddingIncluded);
        assert_eq!(
            found[0].to_string(),
            "step 3, decode, layer 0: 2048 choices counted, expected 136 (real tokens x top-k): \
             padding included"
        );
        // Where pads cannot be told apart, the excess is still named.
        let found = breaches(8, &totals(&ranks, &[1000]));
        assert!(found[0].to_string().ends_with("count exceeds real tokens x top-k"));
        // Pads left out: nothing to say.
        assert!(breaches(8, &totals(&ranks, &[136])).is_empty());
    }

    #[test]
    fn case_7_a_load_counted_once_per_rank_is_told_with_its_factor() {
        let ranks = ranks(&[10, 12, 8, 10], 12);
        let choices = [80; 4 * 2];
        let found = breaches(2, &totals(&ranks, &choices));
        assert_eq!(found.len(), 2, "one per layer");
        assert_eq!(found[1].cause, Cause::CountedPerRank { factor: 4 });
        assert_eq!((found[1].found, found[1].expected), (320, 80));
        assert!(found[1].to_string().ends_with("factor 4, counted once per rank"), "{}", found[1]);
    }

    #[test]
    fn a_dropped_layer_a_wrong_source_and_double_execution_are_told() {
        let ranks = ranks(&[4, 6], 6);
        let found = breaches(2, &totals(&ranks, &[8, 12, 0, 0]));
        assert_eq!((found[0].layer, found[0].cause), (Some(LayerId(1)), Cause::LayerMissing));
        let found = breaches(2, &totals(&ranks, &[12, 8]));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].law, found[0].rank), (Law::ChoicesOfSource, Some(RankId(0))));
        let executed = StepTotals { executed: &[40], ..totals(&ranks, &[8, 12]) };
        let found = breaches(2, &executed);
        assert_eq!((found[0].law, found[0].cause), (Law::Executed, Cause::Multiple { factor: 2 }));
        let dropped = StepTotals { executed: &[17], dropped: &[3], ..totals(&ranks, &[8, 9]) };
        assert!(breaches(2, &dropped).is_empty());
    }

    #[test]
    fn breaches_of_one_kind_are_counted_not_listed() {
        let ranks = ranks(&[1], 1);
        let mut check = Conservation::new(1);
        for step in 0..1000 {
            check.step(&StepTotals { step, ..totals(&ranks, &[0]) });
        }
        let found = check.finish();
        assert_eq!((found.len(), found[0].steps, found[0].first_step), (1, 1000, 0));
    }

    proptest! {
        #[test]
        fn a_true_record_never_breaks_a_law(
            tokens in prop::collection::vec(0_u32..50, 1..6),
            layers in 1_usize..5,
            top_k in 1_u8..9,
            dropped in 0_u64..5,
        ) {
            let ranks = ranks(&tokens, 64);
            let mut layer: Vec<u64> =
                tokens.iter().map(|&tokens| u64::from(tokens) * u64::from(top_k)).collect();
            let total = layer.iter().sum::<u64>();
            let dropped = dropped.min(layer[0]);
            layer[0] -= dropped;
            let choices: Vec<u64> = layer.iter().copied().cycle().take(layers * layer.len()).collect();
            let (dropped, executed) = (vec![dropped; layers], vec![total - dropped; layers]);
            let totals = StepTotals {
                dropped: &dropped,
                executed: &executed,
                ..totals(&ranks, &choices)
            };
            prop_assert!(breaches(top_k, &totals).is_empty());
        }

        #[test]
        fn a_single_lost_choice_is_always_found(
            tokens in prop::collection::vec(1_u32..50, 1..6),
            top_k in 1_u8..9,
            victim in 0_usize..6,
        ) {
            let ranks = ranks(&tokens, 64);
            let mut choices: Vec<u64> =
                tokens.iter().map(|&tokens| u64::from(tokens) * u64::from(top_k)).collect();
            let victim = victim % choices.len();
            choices[victim] -= 1;
            prop_assert_eq!(breaches(top_k, &totals(&ranks, &choices)).len(), 1);
        }
    }
}
