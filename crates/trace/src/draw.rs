//! Batches drawn from recorded requests: what a planner eats where no steps were recorded, and the
//! split of requests into those that plan and those that judge.

use crate::{RecordedRequest, Routes, StepLoad, StepLoads};
use evenkeel_types::{Phase, hash3, unit_f64};
use thiserror::Error;

/// Steps of a sequence between two sampled steps: neighbours share nearly all of a batch.
const STRIDE: u32 = 8;

/// Why no batch can be drawn.
#[derive(Debug, Error, PartialEq)]
pub enum DrawError {
    /// A number that must be positive is 0.
    #[error("drawing batches: `{0}` is 0, expected at least 1")]
    Zero(&'static str),
    /// A weight that is none.
    #[error(
        "drawing batches: weight {weight} of slice {slice}, expected a finite number of 0 or more"
    )]
    Weight {
        /// Slice.
        slice: usize,
        /// Its weight.
        weight: f64,
    },
    /// No slice with a weight has tokens of the phase.
    #[error("drawing batches: no slice with a weight has recorded {0} tokens")]
    NoTokens(Phase),
}

/// Sampled decode steps of `ranks × sequences_per_rank` sequences.
///
/// `share_by_slice` are the slices' shares of the sequences, and so of the decoded tokens: a
/// sequence that ends is followed by another of its slice. Each starts in a random phase of its
/// output and advances a token a step, so that a batch is as correlated as the recording.
///
/// # Errors
/// Where a number is 0, a weight is none, or no slice with a weight has output tokens.
pub fn decode_loads(
    routes: &Routes,
    share_by_slice: &[f64],
    ranks: usize,
    sequences_per_rank: usize,
    steps: usize,
    seed: u64,
) -> Result<StepLoads, DrawError> {
    positive(&[("ranks", ranks), ("sequences per rank", sequences_per_rank), ("steps", steps)])?;
    let pools = Pools::new(routes, share_by_slice, Phase::Decode)?;
    let mut sequences: Vec<Sequence> = (0..(ranks * sequences_per_rank) as u64)
        .map(|number| {
            let pool = pools.pool(unit_f64(hash3(seed, number, 0)));
            // A request is found in service in proportion to its length.
            let recorded = pool.by_tokens(unit_f64(hash3(seed, number, 1)));
            let output = routes.requests()[recorded].output_tokens();
            let at = (unit_f64(hash3(seed, number, 2)) * f64::from(output)) as u32;
            Sequence { number, pool, recorded, at: at.min(output - 1), followers: 0 }
        })
        .collect();
    let mut loads = empty(routes, Phase::Decode);
    for _ in 0..steps {
        let tokens = sequences.iter().map(|sequence| {
            let request = &routes.requests()[sequence.recorded];
            request.first_token + (request.prompt_tokens + sequence.at) as usize
        });
        loads.steps.push(step(routes, tokens));
        for sequence in &mut sequences {
            sequence.advance(routes, seed);
        }
    }
    Ok(loads)
}

/// Sampled prefill steps of `tokens_per_rank` prompt tokens on each rank, prompt after prompt.
///
/// # Errors
/// As [`decode_loads`].
pub fn prefill_loads(
    routes: &Routes,
    share_by_slice: &[f64],
    ranks: usize,
    tokens_per_rank: usize,
    steps: usize,
    seed: u64,
) -> Result<StepLoads, DrawError> {
    positive(&[("ranks", ranks), ("tokens per rank", tokens_per_rank), ("steps", steps)])?;
    let pools = Pools::new(routes, share_by_slice, Phase::Prefill)?;
    let mut loads = empty(routes, Phase::Prefill);
    let (mut number, mut prompt) = (0_u64, 0..0);
    for _ in 0..steps {
        let mut tokens = Vec::with_capacity(ranks * tokens_per_rank);
        while tokens.len() < ranks * tokens_per_rank {
            if prompt.is_empty() {
                let pool = pools.pool(unit_f64(hash3(seed, number, 3)));
                let request = &routes.requests()[pool.any(hash3(seed, number, 4))];
                prompt = request.first_token..request.first_token + request.prompt_tokens as usize;
                number += 1;
            }
            tokens.extend(prompt.by_ref().take(ranks * tokens_per_rank - tokens.len()));
        }
        loads.steps.push(step(routes, tokens.into_iter()));
    }
    Ok(loads)
}

/// Steps of `tokens` tokens whose experts are drawn by popularity, for models of which only counts
/// are known (`counts[layer * experts + expert]`). A token's k choices differ; tokens and layers
/// are independent, which real ones are not.
///
/// # Errors
/// Where a number is 0 or a layer has fewer chosen experts than `top_k`.
pub fn loads_of_counts(
    counts: &[u64],
    experts: usize,
    top_k: usize,
    phase: Phase,
    tokens: u32,
    steps: usize,
    seed: u64,
) -> Result<StepLoads, DrawError> {
    positive(&[
        ("experts", experts),
        ("top-k", top_k),
        ("tokens", tokens as usize),
        ("steps", steps),
    ])?;
    let layers = counts.len() / experts;
    let chosen = |layer: &[u64]| layer.iter().filter(|count| **count > 0).count();
    if layers == 0 || counts.chunks_exact(experts).any(|layer| chosen(layer) < top_k) {
        return Err(DrawError::NoTokens(phase));
    }
    let mut loads = StepLoads { phase, layers, experts, steps: Vec::new() };
    let mut keys = Vec::with_capacity(experts);
    for step in 0..steps as u64 {
        let mut drawn = vec![0; layers * experts];
        for (layer, popularity) in counts.chunks_exact(experts).enumerate() {
            for token in 0..u64::from(tokens) {
                // Weighted draw without replacement: the k smallest exponential keys
                // (Efraimidis, Spirakis, Inf. Proc. Letters 97, 2006).
                let row = hash3(seed, step, layer as u64);
                keys.clear();
                keys.extend(popularity.iter().enumerate().filter(|(_, count)| **count > 0).map(
                    |(expert, count)| {
                        let unit = unit_f64(hash3(row, token, expert as u64));
                        (-(1.0 - unit).ln() / *count as f64, expert)
                    },
                ));
                keys.select_nth_unstable_by(top_k - 1, |a, b| a.0.total_cmp(&b.0));
                for (_, expert) in &keys[..top_k] {
                    drawn[layer * experts + expert] += 1;
                }
            }
        }
        loads.steps.push(StepLoad { tokens, counts: drawn });
    }
    Ok(loads)
}

/// Splits the requests into a planning and a judging half, slice by slice, by hash: no request is
/// in both, and each half has requests of every slice that has two.
#[must_use]
pub fn halves(routes: &Routes, seed: u64) -> (Routes, Routes) {
    let key = |request: &RecordedRequest| {
        (request.slice, hash3(seed, request.request, 5), request.first_token)
    };
    let mut order: Vec<&RecordedRequest> = routes.requests().iter().collect();
    order.sort_by_key(|request| key(request));
    let mut judging: Vec<usize> = Vec::new();
    let mut rank = 0;
    for (index, request) in order.iter().enumerate() {
        rank = if index > 0 && order[index - 1].slice == request.slice { rank + 1 } else { 0 };
        if rank % 2 == 1 {
            judging.push(request.first_token);
        }
    }
    judging.sort_unstable();
    let judges = |request: &RecordedRequest| judging.binary_search(&request.first_token).is_ok();
    (routes.with_requests(|request| !judges(request)), routes.with_requests(judges))
}

/// Output tokens of the mean request when slices have these shares of the requests.
#[must_use]
pub fn mean_output_tokens(routes: &Routes, share_by_slice: &[f64]) -> f64 {
    let (mut tokens, mut weights) = (0.0, 0.0);
    for (slice, share) in share_by_slice.iter().enumerate() {
        let of_slice = routes.requests().iter().filter(|request| request.slice.index() == slice);
        let outputs: Vec<f64> =
            of_slice.map(|request| f64::from(request.output_tokens())).collect();
        if !outputs.is_empty() {
            tokens += share * outputs.iter().sum::<f64>() / outputs.len() as f64;
            weights += share;
        }
    }
    if weights > 0.0 { tokens / weights } else { 0.0 }
}

fn positive(numbers: &[(&'static str, usize)]) -> Result<(), DrawError> {
    match numbers.iter().find(|(_, value)| *value == 0) {
        Some((name, _)) => Err(DrawError::Zero(name)),
        None => Ok(()),
    }
}

fn empty(routes: &Routes, phase: Phase) -> StepLoads {
    let experts = usize::from(routes.experts());
    StepLoads { phase, layers: routes.layers(), experts, steps: Vec::new() }
}

fn step(routes: &Routes, tokens: impl Iterator<Item = usize>) -> StepLoad {
    let mut count = 0;
    let counts = routes.counts(tokens.inspect(|_| count += 1));
    // A step of 2^32 choices of one expert does not exist.
    StepLoad { tokens: count, counts: counts.into_iter().map(|count| count as u32).collect() }
}

/// A place in the batch: sequences of one slice, one after another.
struct Sequence<'a> {
    number: u64,
    pool: &'a Pool,
    recorded: usize,
    at: u32,
    followers: u64,
}

impl Sequence<'_> {
    fn advance(&mut self, routes: &Routes, seed: u64) {
        self.at += STRIDE;
        // Bounded: each follower takes at least one token of the stride.
        while self.at >= routes.requests()[self.recorded].output_tokens() {
            self.at -= routes.requests()[self.recorded].output_tokens();
            self.followers += 1;
            self.recorded = self.pool.any(hash3(seed ^ self.number, self.followers, 6));
        }
    }
}

/// Requests of one slice that have tokens of the phase.
struct Pool {
    requests: Vec<usize>,
    /// Running sums of their tokens.
    tokens: Vec<f64>,
}

impl Pool {
    fn any(&self, draw: u64) -> usize {
        let index = (unit_f64(draw) * self.requests.len() as f64) as usize;
        self.requests[index.min(self.requests.len() - 1)]
    }

    fn by_tokens(&self, unit: f64) -> usize {
        self.requests[weighted(&self.tokens, unit)]
    }
}

struct Pools {
    pools: Vec<Pool>,
    /// Running sums of the slices' shares, in the order of `pools`.
    shares: Vec<f64>,
}

impl Pools {
    fn new(routes: &Routes, share_by_slice: &[f64], phase: Phase) -> Result<Self, DrawError> {
        let (mut pools, mut shares, mut sum) = (Vec::new(), Vec::new(), 0.0);
        for (slice, &weight) in share_by_slice.iter().enumerate() {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(DrawError::Weight { slice, weight });
            }
            let mut pool = Pool { requests: Vec::new(), tokens: Vec::new() };
            let mut tokens = 0.0;
            for (index, request) in routes.requests().iter().enumerate() {
                let here = match phase {
                    Phase::Prefill => request.prompt_tokens,
                    Phase::Decode => request.output_tokens(),
                };
                if request.slice.index() == slice && here > 0 {
                    tokens += f64::from(here);
                    pool.requests.push(index);
                    pool.tokens.push(tokens);
                }
            }
            if weight > 0.0 && !pool.requests.is_empty() {
                sum += weight;
                shares.push(sum);
                pools.push(pool);
            }
        }
        if pools.is_empty() {
            return Err(DrawError::NoTokens(phase));
        }
        Ok(Self { pools, shares })
    }

    fn pool(&self, unit: f64) -> &Pool {
        &self.pools[weighted(&self.shares, unit)]
    }
}

/// Index of the running sum that `unit` of the whole falls on.
fn weighted(sums: &[f64], unit: f64) -> usize {
    let at = unit * sums.last().copied().unwrap_or(0.0);
    sums.partition_point(|sum| *sum <= at).min(sums.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::{ModelShape, SliceId};

    /// Requests of two slices; a token's experts tell its slice.
    fn routes() -> Routes {
        let shape = ModelShape {
            moe_layers: 2,
            experts: 8,
            top_k: 2,
            ..ModelShape::known("olmoe-1b-7b").unwrap()
        };
        let (mut requests, mut ids) = (Vec::new(), Vec::new());
        for index in 0..10_u16 {
            let (slice, tokens) = (index % 2, 12 + u32::from(index));
            let first_token = ids.len() / 4;
            for token in 0..tokens {
                let base = slice * 4 + (token % 2) as u16 * 2;
                ids.extend([base, base + 1, base, base + 1]);
            }
            requests.push(RecordedRequest {
                request: u64::from(index),
                slice: SliceId(slice),
                first_token,
                prompt_tokens: 4,
                tokens,
            });
        }
        Routes::new(&shape, requests, ids).unwrap()
    }

    #[test]
    fn shares_are_those_of_the_tokens() {
        let loads = decode_loads(&routes(), &[0.8, 0.2], 4, 500, 8, 1).unwrap();
        for step in 0..8 {
            let layer = loads.layer(step, 1);
            let first: u32 = layer[..4].iter().sum();
            assert_eq!(layer.iter().sum::<u32>(), 4 * 500 * 2);
            assert!((f64::from(first) / 4000.0 - 0.8).abs() < 0.03, "{first}");
        }
        assert_eq!(loads, decode_loads(&routes(), &[0.8, 0.2], 4, 500, 8, 1).unwrap());
    }

    #[test]
    fn prefill_steps_are_full() {
        let loads = prefill_loads(&routes(), &[1.0, 0.0], 2, 33, 5, 1).unwrap();
        assert!(loads.steps.iter().all(|step| step.tokens == 66));
        assert!(loads.total()[4..8].iter().all(|count| *count == 0));
    }

    #[test]
    fn halves_are_disjoint_and_have_every_slice() {
        let (planning, judging) = halves(&routes(), 3);
        let numbers = |routes: &Routes| -> Vec<u64> {
            routes.requests().iter().map(|request| request.request).collect()
        };
        let (a, b) = (numbers(&planning), numbers(&judging));
        assert_eq!(a.len() + b.len(), 10);
        assert!(a.iter().all(|number| !b.contains(number)));
        for half in [&planning, &judging] {
            assert!((0..2).all(|s| half.requests().iter().any(|r| r.slice == SliceId(s))));
        }
    }

    #[test]
    fn popularity_is_followed() {
        let loads = loads_of_counts(&[6, 1, 1, 0], 4, 2, Phase::Decode, 1000, 4, 9).unwrap();
        let total = loads.total();
        assert_eq!(total.iter().sum::<u64>(), 8000);
        assert_eq!(total[3], 0);
        assert!(2 * total[0] > 3 * total[1], "{total:?}");
        assert!(loads_of_counts(&[6, 0, 0, 0], 4, 2, Phase::Decode, 10, 1, 9).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        let bad =
            |shares: &[f64], ranks| decode_loads(&routes(), shares, ranks, 1, 1, 1).unwrap_err();
        assert_eq!(bad(&[1.0], 0), DrawError::Zero("ranks"));
        assert!(matches!(bad(&[f64::NAN], 1), DrawError::Weight { slice: 0, .. }));
        assert_eq!(bad(&[0.0, 0.0], 1), DrawError::NoTokens(Phase::Decode));
    }
}
