//! Stalls: counted as events, because no percentile of token gaps sees one in a thousand steps.

use crate::sample::{NS_PER_MS, TimedGap};
use serde::{Deserialize, Serialize};

/// Most stalls listed one by one; the count goes on.
pub const STALLS_LISTED_MAX: usize = 64;

/// One time in which tokens stood still.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Start, ms from the run's start.
    pub start_ms: f64,
    /// Longest gap in it, ms.
    pub gap_ms: f64,
    /// Tokens that waited.
    pub tokens: u64,
}

/// Stalls of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stalls {
    /// Token times were recorded. Where they were not, nothing below says anything.
    pub seen: bool,
    /// Events: unions of overlapping gaps above the threshold.
    pub events: u64,
    /// Time stood still, ms, overlaps counted once.
    pub lost_ms: f64,
    /// Longest gap of all, stall or not, ms.
    pub gap_max_ms: f64,
    /// The first [`STALLS_LISTED_MAX`], by time.
    pub list: Vec<Stall>,
}

/// Unions of overlapping gaps longer than `stall_ms`.
pub(crate) fn stalls(gaps: &[TimedGap], start_ns: u64, stall_ms: f64) -> Stalls {
    let mut long: Vec<&TimedGap> =
        gaps.iter().filter(|gap| gap.gap_ns as f64 > stall_ms * NS_PER_MS).collect();
    long.sort_by_key(|gap| (gap.end_ns.saturating_sub(gap.gap_ns), gap.end_ns));
    let mut found = Stalls {
        seen: !gaps.is_empty(),
        gap_max_ms: gaps.iter().map(|gap| gap.gap_ns).max().unwrap_or(0) as f64 / NS_PER_MS,
        ..Stalls::default()
    };
    let mut open: Option<(u64, u64, Stall)> = None;
    for gap in long {
        let from = gap.end_ns.saturating_sub(gap.gap_ns);
        let gap_ms = gap.gap_ns as f64 / NS_PER_MS;
        match &mut open {
            Some((_, until, stall)) if from < *until => {
                *until = gap.end_ns.max(*until);
                stall.gap_ms = stall.gap_ms.max(gap_ms);
                stall.tokens += u64::from(gap.tokens);
            }
            _ => {
                found.close(open.take());
                let start_ms = (from as f64 - start_ns as f64) / NS_PER_MS;
                let stall = Stall { start_ms, gap_ms, tokens: u64::from(gap.tokens) };
                open = Some((from, gap.end_ns, stall));
            }
        }
    }
    found.close(open);
    found
}

impl Stalls {
    fn close(&mut self, open: Option<(u64, u64, Stall)>) {
        let Some((from, until, stall)) = open else { return };
        self.events += 1;
        self.lost_ms += (until - from) as f64 / NS_PER_MS;
        if self.list.len() < STALLS_LISTED_MAX {
            self.list.push(stall);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::SliceId;

    fn gap(end_ms: u64, gap_ms: u64, tokens: u32) -> TimedGap {
        TimedGap {
            slice: SliceId(0),
            end_ns: end_ms * 1_000_000,
            gap_ns: gap_ms * 1_000_000,
            tokens,
        }
    }

    #[test]
    fn overlapping_gaps_are_one_event_and_touching_ones_two() {
        let gaps = [gap(100, 14, 8), gap(5000, 2000, 8), gap(5010, 2500, 1), gap(7010, 2000, 8)];
        let found = stalls(&gaps, 0, 1000.0);
        assert_eq!((found.events, found.list[0].tokens), (2, 9));
        assert!((found.list[0].gap_ms - 2500.0).abs() < 1e-9);
        assert!((found.lost_ms - 4500.0).abs() < 1e-9, "{}", found.lost_ms);
    }

    #[test]
    fn without_token_times_nothing_is_seen() {
        assert!(!stalls(&[], 0, 1000.0).seen);
    }
}
