//! Which requests arrive when: real arrivals, a mix of slices, recorded requests drawn by hash.
//!
//! Every draw is a function of the seed and the job's number alone, so two runs on different maps
//! serve the same jobs (common random numbers).

use crate::SimError;
use evenkeel_trace::Routes;
use evenkeel_types::{SliceId, hash3, unit_f64};
use serde::{Deserialize, Serialize};

/// One request of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its number, unique in the run.
    pub job: u64,
    /// Slice.
    pub slice: SliceId,
    /// Index into `Routes::requests`: whose tokens it replays.
    pub recorded: usize,
    /// Arrival, ns.
    pub arrival_ns: u64,
    /// Output tokens that it has at its arrival (a batch filled in the middle of its outputs).
    pub decoded: u32,
}

/// From when on which share of the arrivals each slice has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixChange {
    /// From when, ns.
    pub from_ns: u64,
    /// `[slice]`: weight of the slice, 0 or more; they need not add up to 1.
    pub share_by_slice: Vec<f64>,
}

/// The traffic of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Arrivals, ns, ascending.
    pub arrivals_ns: Vec<u64>,
    /// The mix over time, ascending; the first entry also holds before its time.
    pub mix: Vec<MixChange>,
    /// Sequences that run already at time 0, each in a random phase of its output.
    pub fill_sequences: u32,
    /// Seed of every draw.
    pub seed: u64,
}

/// What the traffic stands on. Shown beside every verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficFacts {
    /// Jobs, filled ones included.
    pub jobs: u64,
    /// Jobs that run already at time 0.
    pub filled: u64,
    /// Different recorded requests among them.
    pub distinct_requests: u64,
    /// Jobs per distinct recorded request.
    pub cloning_factor: f64,
    /// `[slice]`: recorded requests that could be drawn.
    pub recorded_by_slice: Vec<u64>,
    /// `[slice]`: distinct recorded requests among the jobs.
    pub distinct_by_slice: Vec<u64>,
    /// `[slice]`: jobs.
    pub jobs_by_slice: Vec<u64>,
    /// Arrivals over the time between the first and the last, 1/s; 0 below two arrivals.
    pub arrivals_per_s: f64,
    /// Prompt tokens per job, mean.
    pub prompt_tokens_mean: f64,
    /// Output tokens per job, mean (the whole output, also of filled jobs).
    pub output_tokens_mean: f64,
    /// Seed.
    pub seed: u64,
}

/// What a draw is for: keeps the draws of one job apart.
#[derive(Clone, Copy)]
enum Draw {
    Slice = 1,
    Request = 2,
    Resident = 3,
    Phase = 4,
}

/// Recorded requests of each slice that can be replayed: with an output token.
struct Pools {
    by_slice: Vec<Vec<usize>>,
}

impl Pools {
    fn of(routes: &Routes) -> Self {
        let mut by_slice: Vec<Vec<usize>> = Vec::new();
        for (index, request) in routes.requests().iter().enumerate() {
            let slice = request.slice.index();
            if by_slice.len() <= slice {
                by_slice.resize(slice + 1, Vec::new());
            }
            if request.output_tokens() > 0 {
                by_slice[slice].push(index);
            }
        }
        Self { by_slice }
    }
}

/// Draws the jobs of a run.
///
/// Jobs `0..fill_sequences` run at time 0: a recorded request with the probability of being found
/// in service (its slice's share × its output tokens that are decoded), in a uniform phase of its
/// output. Then one job per arrival: a slice by the mix of that time, a recorded request of the
/// slice uniformly.
///
/// # Errors
/// Unsorted times, weights that are no weights, a slice with traffic and nothing recorded.
pub fn draw_jobs(
    routes: &Routes,
    spec: &TrafficSpec,
) -> Result<(Vec<Job>, TrafficFacts), SimError> {
    let pools = Pools::of(routes);
    check(spec, &pools)?;
    let mut jobs = Vec::with_capacity(spec.fill_sequences as usize + spec.arrivals_ns.len());
    fill(routes, spec, &pools, &mut jobs)?;
    let mut change = 0;
    for &arrival_ns in &spec.arrivals_ns {
        while spec.mix.get(change + 1).is_some_and(|next| next.from_ns <= arrival_ns) {
            change += 1;
        }
        let job = jobs.len() as u64;
        let mix = &spec.mix[change].share_by_slice;
        let slice = weighted(&running_sum(mix.iter().copied()), draw(spec.seed, job, Draw::Slice));
        let pool = &pools.by_slice[slice];
        let pick = (draw(spec.seed, job, Draw::Request) * pool.len() as f64) as usize;
        let recorded = pool[pick.min(pool.len() - 1)];
        jobs.push(Job { job, slice: SliceId(slice as u16), recorded, arrival_ns, decoded: 0 });
    }
    let facts = facts(routes, spec, &pools, &jobs);
    Ok((jobs, facts))
}

fn draw(seed: u64, job: u64, what: Draw) -> f64 {
    unit_f64(hash3(seed, job, what as u64))
}

fn running_sum(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect()
}

/// Index of the weight that `unit` of the whole falls on; never one of weight 0.
fn weighted(sums: &[f64], unit: f64) -> usize {
    let whole = sums.last().copied().unwrap_or(0.0);
    let at = unit * whole;
    // Where rounding lifts `at` to the whole, the last weight above 0 takes it.
    let index = sums.partition_point(|sum| *sum <= at);
    if index < sums.len() { index } else { sums.partition_point(|sum| *sum < whole) }
}

fn check(spec: &TrafficSpec, pools: &Pools) -> Result<(), SimError> {
    if !spec.arrivals_ns.is_sorted() {
        return Err(SimError::range("traffic: arrivals_ns", "unsorted", "ascending times"));
    }
    if !spec.mix.is_sorted_by_key(|change| change.from_ns) {
        return Err(SimError::range("traffic: mix", "unsorted", "ascending from_ns"));
    }
    let wanted = !spec.arrivals_ns.is_empty() || spec.fill_sequences > 0;
    if spec.mix.is_empty() && wanted {
        return Err(SimError::range("traffic: mix", "empty", "at least one entry"));
    }
    for (index, change) in spec.mix.iter().enumerate() {
        let place = || format!("traffic: mix {index} share_by_slice");
        for (slice, &share) in change.share_by_slice.iter().enumerate() {
            if !(share.is_finite() && share >= 0.0) {
                return Err(SimError::range(place(), share, "finite weights, 0 or more"));
            }
            if share > 0.0 && pools.by_slice.get(slice).is_none_or(Vec::is_empty) {
                return Err(SimError::EmptySlice { slice });
            }
        }
        let sum: f64 = change.share_by_slice.iter().sum();
        if !(sum.is_finite() && sum > 0.0) {
            return Err(SimError::range(place(), sum, "weights with a positive sum"));
        }
    }
    Ok(())
}

fn fill(
    routes: &Routes,
    spec: &TrafficSpec,
    pools: &Pools,
    jobs: &mut Vec<Job>,
) -> Result<(), SimError> {
    if spec.fill_sequences == 0 {
        return Ok(());
    }
    let mut residents = Vec::new();
    let mut weights = Vec::new();
    for (slice, &share) in spec.mix[0].share_by_slice.iter().enumerate() {
        let Some(pool) = pools.by_slice.get(slice) else { continue };
        for &recorded in pool {
            // The first output token comes with the prefill: the rest is decoded.
            let decoded = routes.requests()[recorded].output_tokens() - 1;
            if decoded > 0 && share > 0.0 {
                residents.push((slice, recorded));
                weights.push(share / pool.len() as f64 * f64::from(decoded));
            }
        }
    }
    if residents.is_empty() {
        let expected = "0, or recorded requests with at least 2 output tokens";
        return Err(SimError::range("traffic: fill_sequences", spec.fill_sequences, expected));
    }
    let sums = running_sum(weights.into_iter());
    for job in 0..u64::from(spec.fill_sequences) {
        let (slice, recorded) = residents[weighted(&sums, draw(spec.seed, job, Draw::Resident))];
        let decoded = routes.requests()[recorded].output_tokens() - 1;
        let phase = (draw(spec.seed, job, Draw::Phase) * f64::from(decoded)) as u32;
        let decoded = 1 + phase.min(decoded - 1);
        jobs.push(Job { job, slice: SliceId(slice as u16), recorded, arrival_ns: 0, decoded });
    }
    Ok(())
}

fn facts(routes: &Routes, spec: &TrafficSpec, pools: &Pools, jobs: &[Job]) -> TrafficFacts {
    let slices = pools.by_slice.len();
    let mut distinct_by_slice = vec![0; slices];
    let mut jobs_by_slice = vec![0; slices];
    let mut seen = vec![false; routes.requests().len()];
    let (mut prompt, mut output) = (0_u64, 0_u64);
    for job in jobs {
        let recorded = &routes.requests()[job.recorded];
        prompt += u64::from(recorded.prompt_tokens);
        output += u64::from(recorded.output_tokens());
        jobs_by_slice[job.slice.index()] += 1;
        if !std::mem::replace(&mut seen[job.recorded], true) {
            distinct_by_slice[job.slice.index()] += 1;
        }
    }
    let distinct_requests: u64 = distinct_by_slice.iter().sum();
    let per = |sum: u64, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
    let count = jobs.len() as u64;
    let arrivals_per_s = match spec.arrivals_ns.as_slice() {
        [first, .., last] if last > first => {
            (spec.arrivals_ns.len() - 1) as f64 / ((last - first) as f64 * 1e-9)
        }
        _ => 0.0,
    };
    TrafficFacts {
        jobs: count,
        filled: u64::from(spec.fill_sequences),
        distinct_requests,
        cloning_factor: per(count, distinct_requests),
        recorded_by_slice: pools.by_slice.iter().map(|pool| pool.len() as u64).collect(),
        distinct_by_slice,
        jobs_by_slice,
        arrivals_per_s,
        prompt_tokens_mean: per(prompt, count),
        output_tokens_mean: per(output, count),
        seed: spec.seed,
    }
}
