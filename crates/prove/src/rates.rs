//! How often is the gate wrong? Counted on pairs whose truth is known, made of real replays.

use crate::blocks::BlockLength;
use crate::error::ProveError;
use crate::gate::{Extent, judge};
use crate::input::{Design, GateInput, KvHeadroom, Pair};
use crate::interval::wilson;
use crate::sample::{Request, Sample};
use crate::verdict::{Decision, Metric, Verdict};
use evenkeel_sim::{Run, RunTotals};
use evenkeel_types::{Policy, Slice, hash2, hash3, unit_f64};
use serde::{Deserialize, Serialize};

/// Blocks of the gate that stay together in a made pair: dependence longer than the gate's own
/// block must be in the data, else the gate would be tested on what it assumes.
const SEGMENT_BLOCKS: f64 = 3.0;

/// Fewest segments of a made run: with fewer the gate only ever asks for more blocks, and a rate of
/// nothing but that says nothing.
const SEGMENTS_MIN: usize = 8;

/// Requests of a made run above which jobs are thinned by a hash of their number. Blocks of time
/// carry the evidence; a hundred thousand requests in the same blocks add cost, not information.
const REQUESTS_MAX: usize = 6000;

/// Seed of the thinning.
const THINNING: u64 = 0x7413;

/// What is counted on.
#[derive(Clone, Copy, Debug)]
pub struct RatesInput<'a> {
    /// Replays, each of the same jobs under two maps (or under one map and two chances). Several
    /// traffic seeds make the pairs more different.
    pub replays: &'a [Pair<'a>],
    /// Slices.
    pub slices: &'a [Slice],
    /// Policy.
    pub policy: &'a Policy,
    /// How the made pairs are judged.
    pub design: Design,
    /// Pairs made for each kind (nothing changed, better, worse).
    pub pairs: u32,
    /// True relative change of every token time in the "better" (−) and "worse" (+) pairs.
    pub shift_share: f64,
    /// Bootstrap replicates of each verdict.
    pub replicates: u32,
    /// Seed.
    pub seed: u64,
}

/// A counted share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Times it happened.
    pub hits: u64,
    /// Times it could have.
    pub of: u64,
    /// `hits ÷ of`.
    pub share: f64,
    /// 95 % interval (Wilson).
    pub interval: [f64; 2],
}

impl Rate {
    fn new(hits: u64, of: u64) -> Self {
        Self { hits, of, share: hits as f64 / of.max(1) as f64, interval: wilson(hits, of, 0.05) }
    }
}

/// Verdicts on pairs of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindRates {
    /// True relative change of every token time.
    pub shift_share: f64,
    /// Accepted.
    pub accept: Rate,
    /// Rejected.
    pub reject: Rate,
    /// More data asked for.
    pub need_more_data: Rate,
    /// The interval of p99 TPOT held the truth.
    pub covered: Rate,
    /// Mean half width of that interval, as a share of p99 TPOT.
    pub half_width_mean_share: f64,
}

/// The gate's error rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorRates {
    /// How the pairs were judged.
    pub design: Design,
    /// Confidence that the policy asks for; false accepts should stay below one minus it.
    pub confidence: f64,
    /// Mean requests of a made run.
    pub requests_mean: f64,
    /// Mean blocks of a made run.
    pub blocks_mean: f64,
    /// Nothing changed (A/A).
    pub same: KindRates,
    /// Every token faster by the shift.
    pub better: KindRates,
    /// Every token slower by the shift.
    pub worse: KindRates,
    /// Accepted though nothing changed. The hardest kind to refuse, so "worse" pairs are not
    /// counted in: they would only dilute it.
    pub false_accept: Rate,
    /// Rejected though better.
    pub false_reject: Rate,
    /// Accepted where better.
    pub power: Rate,
}

/// Makes pairs whose truth is known from real replays and counts the gate's verdicts.
///
/// A made run is a chain of segments of the replays, three of the gate's blocks long, drawn with
/// replacement by the seed. Paired: both sides use the same segments; which of the two replays is
/// called live is a coin per segment, after the candidate's times were scaled to the live p99, so
/// that nothing but chance is between them. Independent: each side draws its own segments from
/// the live replays. A made run is as long as its replays, at least eight segments; where that
/// would hold more than 6,000 requests, jobs are thinned. Then every token time of the candidate is scaled by 1, 1 − shift, 1 + shift.
///
/// # Errors
/// A replay that contradicts itself; no replay; a shift that is not within (0, 1).
pub fn error_rates(input: &RatesInput) -> Result<ErrorRates, ProveError> {
    let setting = |field, value, expected| Err(ProveError::Setting { field, value, expected });
    if input.replays.is_empty() {
        return setting("replays", 0.0, "at least one");
    }
    if !(input.shift_share > 0.0 && input.shift_share < 1.0) {
        return setting("shift_share", input.shift_share, "a share between 0 and 1");
    }
    let mut worlds = Vec::with_capacity(input.replays.len());
    for pair in input.replays {
        worlds.push(World::of(pair, input)?);
    }
    let mut counts = Counts::default();
    let same = kind(input, &worlds, 0.0, &mut counts);
    let better = kind(input, &worlds, -input.shift_share, &mut counts);
    let worse = kind(input, &worlds, input.shift_share, &mut counts);
    let made = counts.made.max(1) as f64;
    Ok(ErrorRates {
        design: input.design,
        confidence: input.policy.gate.confidence,
        requests_mean: counts.requests as f64 / made,
        blocks_mean: counts.blocks as f64 / made,
        false_accept: same.accept,
        false_reject: better.reject,
        power: better.accept,
        same,
        better,
        worse,
    })
}

#[derive(Default)]
struct Counts {
    made: u64,
    requests: u64,
    blocks: u64,
}

/// A replay cut into segments.
struct World {
    segment_ns: u64,
    sides: [Sample; 2],
    /// `[side][segment]`: positions of the requests, gaps and steps of a segment.
    parts: [Vec<Part>; 2],
}

#[derive(Clone, Default)]
struct Part {
    requests: Vec<usize>,
    gaps: Vec<usize>,
    steps: Vec<usize>,
}

impl World {
    fn of(pair: &Pair, input: &RatesInput) -> Result<Self, ProveError> {
        let mut live = Sample::of(pair.live, input.slices, input.policy)?;
        let mut candidate = Sample::of(pair.candidate, input.slices, input.policy)?;
        if let Some(change) = crate::gate::p99_change(Design::Paired, &live, &candidate) {
            scale(&mut candidate, 1.0 / (1.0 + change));
        }
        let length = BlockLength::of([&live, &candidate]);
        keep_ended(&mut live, &mut candidate);
        thin(&mut live, &mut candidate, &length);
        let segment_ns = (length.block_ns * SEGMENT_BLOCKS).max(1.0) as u64;
        let span = (live.end_ns - live.start_ns).max(1);
        // At least one segment; the last, incomplete one joins the one before.
        let segments = (span / segment_ns).max(1) as usize;
        let at = |sample: &Sample, ns: u64| {
            // Relative to the run's own length: the candidate's run may be shorter.
            let own = (sample.end_ns - sample.start_ns).max(1) as f64;
            let share = ns.saturating_sub(sample.start_ns) as f64 / own;
            ((share * segments as f64) as usize).min(segments - 1)
        };
        let mut parts = [vec![Part::default(); segments], vec![Part::default(); segments]];
        for (side, sample) in [&live, &candidate].into_iter().enumerate() {
            for (position, request) in sample.requests.iter().enumerate() {
                // A pair of requests stays in one segment, the live one's.
                let segment = match live.find(request.job) {
                    Some(partner) => at(&live, partner.at_ns),
                    None => at(sample, request.at_ns),
                };
                parts[side][segment].requests.push(position);
            }
            for (position, gap) in sample.gaps.iter().enumerate() {
                parts[side][at(sample, gap.end_ns)].gaps.push(position);
            }
            for (position, step) in sample.decode_steps_ns.iter().enumerate() {
                parts[side][at(sample, step.0)].steps.push(position);
            }
        }
        Ok(Self { segment_ns: span / segments as u64, sides: [live, candidate], parts })
    }
}

/// Leaves out jobs that did not end in both replays: the end of the record cut them off, in the
/// slower replay more of them, and swapping sides would read that as goodput lost.
fn keep_ended(live: &mut Sample, candidate: &mut Sample) {
    candidate.requests.retain(|request| request.finished);
    live.requests.retain(|request| request.finished && candidate.find(request.job).is_some());
    candidate.requests.retain(|request| live.find(request.job).is_some());
}

/// Keeps so many jobs, the same in both replays, that a made run stays within [`REQUESTS_MAX`].
fn thin(live: &mut Sample, candidate: &mut Sample, length: &BlockLength) {
    let blocks = (live.end_ns - live.start_ns) as f64 / length.block_ns;
    let times = (SEGMENTS_MIN as f64 * SEGMENT_BLOCKS / blocks.max(1.0)).max(1.0);
    let made = (live.requests.len() as f64 * times) as usize;
    let every = made.div_ceil(REQUESTS_MAX).max(1) as u64;
    for sample in [live, candidate] {
        sample.requests.retain(|request| hash2(THINNING, request.job).is_multiple_of(every));
    }
}

/// Scales every token time; objectives are judged again.
fn scale(sample: &mut Sample, by: f64) {
    for request in &mut sample.requests {
        request.tpot_ms = request.tpot_ms.map(|tpot| tpot * by);
        judge_again(request);
    }
    for gap in &mut sample.gaps {
        gap.gap_ns = (gap.gap_ns as f64 * by) as u64;
    }
    for step in &mut sample.decode_steps_ns {
        step.1 *= by;
    }
}

fn judge_again(request: &mut Request) {
    if request.finished {
        let late = request.ttft_ms.is_some_and(|ttft| ttft > request.slo.ttft_ms);
        let slow = request.tpot_ms.is_some_and(|tpot| tpot > request.slo.tpot_ms);
        request.good = !late && !slow;
    }
}

/// A chain of segments: which world, which segment of it, which of its replays.
type Chain = Vec<(usize, usize, usize)>;

fn chain(worlds: &[World], length: usize, seed: u64, side: Option<u64>) -> Chain {
    let draw = |at: usize, what: u64| hash3(seed, at as u64, what);
    let segment = |at: usize| {
        let stream = side.map_or(0, |side| 4 * side);
        let world = (draw(at, stream) % worlds.len() as u64) as usize;
        let segments = worlds[world].parts[0].len() as u64;
        let coin = usize::from(side.is_none() && unit_f64(draw(at, 2)) < 0.5);
        (world, (draw(at, stream + 1) % segments) as usize, coin)
    };
    (0..length).map(segment).collect()
}

/// Lays the segments of a chain one after the other.
fn lay(worlds: &[World], chain: &Chain, other: bool) -> Sample {
    let mut made = Sample {
        start_ns: 0,
        end_ns: 0,
        requests: Vec::new(),
        gaps: Vec::new(),
        decode_steps_ns: Vec::new(),
    };
    for (at, (world, segment, coin)) in chain.iter().enumerate() {
        let (world, side) = (&worlds[*world], if other { 1 - coin } else { *coin });
        let (sample, part) = (&world.sides[side], &world.parts[side][*segment]);
        let from = segment_start(sample, world, *segment);
        let shift = |ns: u64| made.end_ns + ns.saturating_sub(from).min(world.segment_ns - 1);
        for position in &part.requests {
            let request = &sample.requests[*position];
            // Jobs of the same segment keep their partner; the same job drawn twice is two jobs.
            let job = ((at as u64) << 40) | (request.job & ((1 << 40) - 1));
            made.requests.push(Request { job, at_ns: shift(request.at_ns), ..request.clone() });
        }
        for position in &part.gaps {
            let gap = sample.gaps[*position];
            made.gaps.push(crate::sample::TimedGap { end_ns: shift(gap.end_ns), ..gap });
        }
        for position in &part.steps {
            let (end_ns, duration_ns) = sample.decode_steps_ns[*position];
            made.decode_steps_ns.push((shift(end_ns), duration_ns));
        }
        made.end_ns += world.segment_ns;
    }
    made.requests.sort_by_key(|request| request.job);
    made
}

fn segment_start(sample: &Sample, world: &World, segment: usize) -> u64 {
    let share = segment as f64 / world.parts[0].len() as f64;
    sample.start_ns + ((sample.end_ns - sample.start_ns) as f64 * share) as u64
}

fn kind(input: &RatesInput, worlds: &[World], shift: f64, counts: &mut Counts) -> KindRates {
    let bare = bare_run();
    let length = worlds.iter().map(|world| world.parts[0].len()).max().unwrap_or(1);
    let length = length.max(SEGMENTS_MIN);
    let mut hits = [0_u64; 4];
    let mut width = 0.0;
    for number in 0..u64::from(input.pairs) {
        let seed = hash3(input.seed, number, (shift * 1e6) as i64 as u64);
        let (live, mut candidate) = match input.design {
            Design::Paired => {
                let both = chain(worlds, length, seed, None);
                (lay(worlds, &both, false), lay(worlds, &both, true))
            }
            Design::Independent => (
                lay(worlds, &chain(worlds, length, seed, Some(0)), false),
                lay(worlds, &chain(worlds, length, seed, Some(1)), false),
            ),
        };
        scale(&mut candidate, 1.0 + shift);
        let mut gate =
            GateInput::new(Pair { live: &bare, candidate: &bare }, input.slices, input.policy);
        gate.design = input.design;
        gate.replicates = input.replicates;
        gate.seed = seed;
        gate.sameness.map_checked = true;
        gate.kv = KvHeadroom { live_share: Some(1.0), candidate_share: Some(1.0) };
        let verdict = judge(&gate, &live, &candidate, None, Extent::Deciding);
        counts.made += 1;
        counts.requests += live.requests.len() as u64;
        counts.blocks += u64::from(verdict.resampling.blocks);
        match verdict.decision {
            Decision::Accept => hits[0] += 1,
            Decision::Reject => hits[1] += 1,
            _ => hits[2] += 1,
        }
        if let Some([low, high]) = gain_interval(&verdict) {
            hits[3] += u64::from(low <= shift && shift <= high);
            width += (high - low) / 2.0;
        }
    }
    let rate = |hits| Rate::new(hits, u64::from(input.pairs));
    KindRates {
        shift_share: shift,
        accept: rate(hits[0]),
        reject: rate(hits[1]),
        need_more_data: rate(hits[2]),
        covered: rate(hits[3]),
        half_width_mean_share: width / f64::from(input.pairs.max(1)),
    }
}

fn gain_interval(verdict: &Verdict) -> Option<[f64; 2]> {
    let gain =
        |row: &&crate::verdict::Comparison| row.metric == Metric::TpotP99 && row.slice.is_none();
    verdict.metrics.iter().find(gain).map(|row| row.interval)
}

fn bare_run() -> Run {
    Run {
        name: String::new(),
        map_digest: String::new(),
        ranks: 0,
        requests: Vec::new(),
        steps: Vec::new(),
        gaps: Vec::new(),
        totals: RunTotals::default(),
    }
}
