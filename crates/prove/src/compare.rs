//! One metric under both maps, with its interval.

use crate::blocks::{BlockLength, Grid, occupied_blocks, resample};
use crate::input::Design;
use crate::interval::Bootstrapped;
use crate::quantile::{Observation, PerMille, Sorted};
use crate::sample::{NS_PER_MS, Request, Sample};
use crate::verdict::{Comparison, Metric, Standing};
use evenkeel_types::SliceId;
use std::rc::Rc;

/// Unit of a request's weight, so that slices can be weighted to a common mix in integers.
const WEIGHT_ONE: u64 = 1 << 16;

/// Per-atom sums of a ratio: (numerator, denominator).
type Ratio = Vec<(f64, f64)>;

/// What is computed from one run.
enum Side {
    Quantile(Rc<Sorted>, PerMille),
    Ratio(Ratio),
}

impl Side {
    fn value(&self) -> Option<f64> {
        match self {
            Self::Quantile(sorted, per_mille) => sorted.quantile(*per_mille),
            Self::Ratio(sums) => ratio(sums.iter().map(|sum| (*sum, 1.0))),
        }
    }

    fn resampled(&self, times: &[u32]) -> Option<f64> {
        match self {
            Self::Quantile(sorted, per_mille) => sorted.resampled(*per_mille, times),
            Self::Ratio(sums) => {
                ratio(sums.iter().copied().zip(times.iter().map(|t| f64::from(*t))))
            }
        }
    }

    fn count(&self) -> u64 {
        match self {
            Self::Quantile(sorted, _) => sorted.len() as u64,
            Self::Ratio(sums) => sums.iter().map(|sum| sum.1).sum::<f64>() as u64,
        }
    }

    fn blocks(&self) -> f64 {
        match self {
            Self::Quantile(sorted, _) => occupied_blocks(sorted.held()),
            Self::Ratio(sums) => occupied_blocks(sums.iter().map(|sum| sum.1 > 0.0)),
        }
    }
}

fn ratio(sums: impl Iterator<Item = ((f64, f64), f64)>) -> Option<f64> {
    let (top, bottom) = sums
        .fold((0.0, 0.0), |(top, bottom), ((a, b), times)| (top + a * times, bottom + b * times));
    (bottom > 0.0).then(|| top / bottom)
}

/// A metric of one slice, ready to be resampled.
pub(crate) struct Statistic {
    metric: Metric,
    slice: Option<SliceId>,
    live: Side,
    candidate: Side,
    limit: Option<f64>,
}

/// What a statistic came to.
pub(crate) struct Outcome {
    /// As shown.
    pub(crate) comparison: Comparison,
    /// Blocks that carry it, in the run with fewer.
    pub(crate) blocks: f64,
}

/// Two runs laid on their grids.
pub(crate) struct Bench<'a> {
    design: Design,
    live: &'a Sample,
    candidate: &'a Sample,
    grids: [Grid; 2],
    /// `[live, candidate]`: requests with the atom they are resampled by.
    requests: [Vec<(&'a Request, u32)>; 2],
}

impl<'a> Bench<'a> {
    /// Lays two runs on blocks. Paired: the candidate's requests stand in the atoms of their
    /// partners, and its gaps at the same share of its run.
    pub(crate) fn new(
        design: Design,
        live: &'a Sample,
        candidate: &'a Sample,
        length: &BlockLength,
    ) -> Self {
        let before = length.grid(live);
        let after = match design {
            Design::Paired => Grid { atoms: before.atoms, ..length.grid(candidate) },
            Design::Independent => length.grid(candidate),
        };
        let own = live.requests.iter().map(|r| (r, before.atom(r.at_ns))).collect();
        let other = candidate.requests.iter().map(|request| {
            let partner = match design {
                Design::Paired => live.find(request.job),
                Design::Independent => None,
            };
            let atom = partner.map_or_else(|| after.atom(request.at_ns), |p| before.atom(p.at_ns));
            (request, atom)
        });
        let requests = [own, other.collect()];
        Self { design, live, candidate, grids: [before, after], requests }
    }

    /// Request of the other run, where the design pairs.
    fn partner(&self, side: usize, job: u64) -> Option<&Request> {
        match self.design {
            Design::Paired => [self.candidate, self.live][side].find(job),
            Design::Independent => None,
        }
    }

    /// A quantile over requests. Paired: over jobs that have the value in both runs.
    pub(crate) fn request_quantile(
        &self,
        metric: Metric,
        slice: Option<SliceId>,
        per_mille: PerMille,
        value: fn(&Request) -> Option<f64>,
        limit: Option<f64>,
    ) -> Statistic {
        let weights = self.weights_to_live_mix(value);
        let side = |side: usize| {
            let mine =
                self.requests[side].iter().filter(|(r, _)| slice.is_none_or(|s| s == r.slice));
            let items = mine.filter_map(|(request, atom)| {
                let value_ms = value(request)?;
                if self.design == Design::Paired {
                    self.partner(side, request.job).and_then(value)?;
                }
                let weight = match (side, slice) {
                    (1, None) => weights.get(request.slice.index()).copied().unwrap_or(WEIGHT_ONE),
                    _ => WEIGHT_ONE,
                };
                Some(Observation { value: value_ms, weight, atom: *atom })
            });
            let sorted = Sorted::new(items.collect(), self.grids[side].atoms);
            Side::Quantile(Rc::new(sorted), per_mille)
        };
        Statistic { metric, slice, live: side(0), candidate: side(1), limit }
    }

    /// Weight of a candidate request by slice: the live run's share over the candidate's.
    /// Post-stratification, so that a changed mix is not read as a changed map.
    fn weights_to_live_mix(&self, value: fn(&Request) -> Option<f64>) -> Vec<u64> {
        if self.design == Design::Paired {
            return Vec::new();
        }
        let counts = |side: usize| {
            let mut counts: Vec<f64> = Vec::new();
            for (request, _) in self.requests[side].iter().filter(|(r, _)| value(r).is_some()) {
                let at = request.slice.index();
                if counts.len() <= at {
                    counts.resize(at + 1, 0.0);
                }
                counts[at] += 1.0;
            }
            counts
        };
        let (before, after) = (counts(0), counts(1));
        let (live_all, candidate_all): (f64, f64) = (before.iter().sum(), after.iter().sum());
        let share = |at: usize| {
            let live = before.get(at).copied().unwrap_or(0.0) / live_all.max(1.0);
            let candidate = after[at] / candidate_all.max(1.0);
            if candidate > 0.0 { (live / candidate * WEIGHT_ONE as f64) as u64 } else { 0 }
        };
        (0..after.len()).map(share).collect()
    }

    /// Quantiles over token gaps.
    pub(crate) fn gap_quantiles(&self, wanted: &[(Metric, PerMille)]) -> Vec<Statistic> {
        let side = |side: usize| {
            let gaps = [&self.live.gaps, &self.candidate.gaps][side];
            let items = gaps.iter().map(|gap| Observation {
                value: gap.gap_ns as f64 / NS_PER_MS,
                weight: u64::from(gap.tokens),
                atom: self.grids[side].atom(gap.end_ns),
            });
            Rc::new(Sorted::new(items.collect(), self.grids[side].atoms))
        };
        let (live, candidate) = (side(0), side(1));
        let statistic = |(metric, per_mille): &(Metric, PerMille)| Statistic {
            metric: *metric,
            slice: None,
            live: Side::Quantile(Rc::clone(&live), *per_mille),
            candidate: Side::Quantile(Rc::clone(&candidate), *per_mille),
            limit: None,
        };
        wanted.iter().map(statistic).collect()
    }

    /// Goodput: good over due. Paired: a job that is due in either run is due in both, so that a
    /// map which lets requests starve does not lose them from the count.
    pub(crate) fn goodput(&self, slice: Option<SliceId>, limit: f64) -> Statistic {
        self.request_ratio(Metric::Goodput, slice, limit, |request, partner| {
            let due = request.is_some_and(|r| r.due) || partner.is_some_and(|r| r.due);
            due.then(|| f64::from(u8::from(request.is_some_and(|r| r.good))))
        })
    }

    /// Mean quality score. Paired: over jobs with a score in both runs.
    pub(crate) fn quality(&self, slice: Option<SliceId>, limit: f64) -> Statistic {
        let paired = self.design == Design::Paired;
        self.request_ratio(Metric::Quality, slice, limit, move |request, partner| {
            let score = request.and_then(|r| r.score)?;
            if paired {
                partner.and_then(|r| r.score)?;
            }
            Some(score)
        })
    }

    fn request_ratio(
        &self,
        metric: Metric,
        slice: Option<SliceId>,
        limit: f64,
        value: impl Fn(Option<&Request>, Option<&Request>) -> Option<f64>,
    ) -> Statistic {
        let wanted = |request: &Request| slice.is_none_or(|s| s == request.slice);
        let side = |side: usize| {
            let mut sums = vec![(0.0, 0.0); self.grids[side].atoms];
            let mut add = |atom: u32, value: Option<f64>| {
                if let Some(value) = value {
                    sums[atom as usize].0 += value;
                    sums[atom as usize].1 += 1.0;
                }
            };
            for (request, atom) in self.requests[side].iter().filter(|(r, _)| wanted(r)) {
                add(*atom, value(Some(request), self.partner(side, request.job)));
            }
            // Jobs that only the other run knows.
            for (request, atom) in self.requests[1 - side].iter().filter(|(r, _)| wanted(r)) {
                if self.design == Design::Paired && self.partner(1 - side, request.job).is_none() {
                    add(*atom, value(None, Some(request)));
                }
            }
            Side::Ratio(sums)
        };
        Statistic { metric, slice, live: side(0), candidate: side(1), limit: Some(limit) }
    }

    /// Resamples all statistics together. Those without a value on either side are left out.
    pub(crate) fn run(
        &self,
        statistics: Vec<Statistic>,
        replicates: u32,
        alpha: f64,
        seed: u64,
    ) -> Vec<Outcome> {
        let known: Vec<(Statistic, f64, f64)> = statistics
            .into_iter()
            .filter_map(|s| s.values().map(|(live, candidate)| (s, live, candidate)))
            .collect();
        let mut changes: Vec<Vec<f64>> = vec![Vec::with_capacity(replicates as usize); known.len()];
        let (mut before, mut after) = (vec![0; self.grids[0].atoms], vec![0; self.grids[1].atoms]);
        for replicate in 0..u64::from(replicates) {
            resample(&mut before, seed, replicate, 0);
            match self.design {
                Design::Paired => after.copy_from_slice(&before),
                Design::Independent => resample(&mut after, seed, replicate, 1),
            }
            for ((statistic, _, _), changes) in known.iter().zip(&mut changes) {
                let live = statistic.live.resampled(&before);
                let candidate = statistic.candidate.resampled(&after);
                if let (Some(live), Some(candidate)) = (live, candidate) {
                    changes.push(change(statistic.metric, live, candidate));
                }
            }
        }
        let rows = known.into_iter().zip(changes);
        rows.map(|((statistic, live, candidate), changes)| {
            statistic.outcome(live, candidate, changes, alpha)
        })
        .collect()
    }
}

/// Relative change of a time; the difference of a share or score. Goodput near 0 has no
/// meaningful relative change, and one due request in a hundred weighs the same everywhere.
pub(crate) fn change(metric: Metric, live: f64, candidate: f64) -> f64 {
    let difference = matches!(metric, Metric::Goodput | Metric::Quality);
    if difference || live <= 0.0 { candidate - live } else { candidate / live - 1.0 }
}

impl Statistic {
    /// Live and candidate.
    pub(crate) fn values(&self) -> Option<(f64, f64)> {
        self.live.value().zip(self.candidate.value())
    }

    fn outcome(self, live: f64, candidate: f64, changes: Vec<f64>, alpha: f64) -> Outcome {
        let blocks = self.live.blocks().min(self.candidate.blocks());
        let change_share = change(self.metric, live, candidate);
        let boot = Bootstrapped::new(change_share, changes, blocks, alpha);
        let higher_is_better = matches!(self.metric, Metric::Goodput | Metric::Quality);
        let harm_p = self.limit.map(|limit| {
            if higher_is_better { boot.p_not_below(limit) } else { boot.p_not_above(limit) }
        });
        let comparison = Comparison {
            metric: self.metric,
            slice: self.slice,
            weighting: self.metric.weighting().to_owned(),
            unit: self.metric.unit().to_owned(),
            live_count: self.live.count(),
            candidate_count: self.candidate.count(),
            live,
            candidate,
            change_share,
            interval: boot.interval(alpha),
            confidence: 1.0 - alpha,
            limit: self.limit,
            harm_p,
            standing: Standing::Shown,
        };
        Outcome { comparison, blocks }
    }
}
