//! A small serving group with constant costs and dependent noise: open arrivals, a bounded batch,
//! prefill steps between decode steps. It makes runs whose truth is known; the judge is what is
//! tested, not the group.

#![allow(dead_code, reason = "each test binary uses its own part")]

use evenkeel_prove::{Design, DrawOutcome, GateInput, KvHeadroom, Pair, Sameness, Verdict, gate};
use evenkeel_sim::{Gap, RequestOutcome, Run, RunTotals, StepSummary};
use evenkeel_types::{Phase, Policy, Slice, SliceId, hash2, hash3, unit_f64};
use serde::Deserialize;

/// A tenant's traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    pub name: String,
    /// Share of the requests.
    pub share: f64,
    /// Share of its answers judged right under the live map, where an evaluation scores them.
    #[serde(default)]
    pub score: Option<f64>,
}

/// Traffic of both runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    pub requests: u64,
    /// Mean time between arrivals; 0: all wait from the start.
    pub arrival_ms: f64,
    /// Sequences that decode together.
    pub places: usize,
    /// Fewest and most output tokens.
    pub output_tokens: [u32; 2],
    pub prompt_tokens: u32,
    /// Requests in a row of one tenant: how bursty the mix is.
    #[serde(default = "one")]
    pub burst: u64,
    pub tenants: Vec<Tenant>,
    pub seed: u64,
}

fn one() -> u64 {
    1
}

/// A map's costs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    pub decode_ms: f64,
    pub prefill_ms: f64,
    /// Part of a decode step that is the mean rank's experts.
    #[serde(default)]
    pub expert_mean_ms: f64,
    /// Most rows on a rank over the mean.
    #[serde(default = "even")]
    pub rows_max_over_mean: f64,
    /// Standing deviation of the slow noise of step times (correlated over some 50 steps), shared
    /// by both runs of a pair.
    #[serde(default)]
    pub noise: f64,
    /// The same, this run's own.
    #[serde(default)]
    pub own_noise: f64,
    /// Factor on a step that holds this tenant alone (between, in proportion).
    #[serde(default)]
    pub slow: Vec<(String, f64)>,
    /// Every so many steps the group stands still (0: never) ...
    #[serde(default)]
    pub stall_every_steps: u64,
    /// ... for so long ...
    #[serde(default)]
    pub stall_ms: f64,
    /// ... at most so often.
    #[serde(default)]
    pub stalls_max: u64,
    #[serde(default)]
    pub misplaced_rows: u64,
    /// Factor on the chance of a right answer.
    #[serde(default = "even")]
    pub score_factor: f64,
    /// Seed of the own noise and, where the runs are independent, of the traffic.
    #[serde(default)]
    pub seed: u64,
}

fn even() -> f64 {
    1.0
}

/// What the gate is told beside the runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evidence {
    pub independent: bool,
    pub modelled: bool,
    pub draws: Vec<f64>,
    pub map_not_checked: bool,
    pub map_violations: Vec<String>,
    pub kv_unknown: bool,
    pub kv_live_share: Option<f64>,
    pub kv_candidate_share: Option<f64>,
    pub breaches: Vec<String>,
    pub look: u32,
    pub aa: bool,
    /// Drop the token times of the candidate's record.
    pub no_token_times: bool,
}

/// A case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it is about, for the reader.
    pub about: String,
    pub traffic: Traffic,
    /// Traffic of the candidate's record where it is another one.
    #[serde(default)]
    pub candidate_traffic: Option<Traffic>,
    pub live: Side,
    pub candidate: Side,
    #[serde(default)]
    pub gate: Evidence,
    #[serde(default)]
    pub policy: Policy,
}

impl Case {
    pub fn slices(&self) -> Vec<Slice> {
        self.traffic.tenants.iter().map(|tenant| Slice::of_tenant(&tenant.name)).collect()
    }

    pub fn runs(&self) -> (Run, Run) {
        let live = serve("live", &self.traffic, &self.live);
        let traffic = self.candidate_traffic.as_ref().unwrap_or(&self.traffic);
        let mut candidate = serve("candidate", traffic, &self.candidate);
        if self.gate.no_token_times {
            candidate.gaps.clear();
        }
        (live, candidate)
    }

    pub fn verdict(&self) -> Verdict {
        let (live, candidate) = self.runs();
        let slices = self.slices();
        let evidence = &self.gate;
        let draws: Vec<DrawOutcome> = evidence
            .draws
            .iter()
            .enumerate()
            .map(|(n, change)| DrawOutcome {
                name: format!("draw {n}"),
                change_share: Some(*change),
            })
            .collect();
        let aa = evidence.aa.then(|| {
            let mut traffic = self.traffic.clone();
            traffic.seed += 1000;
            serve("live again", &traffic, &Side { seed: 77, ..self.live.clone() })
        });
        let mut input =
            GateInput::new(Pair { live: &live, candidate: &candidate }, &slices, &self.policy);
        input.design = if evidence.independent { Design::Independent } else { Design::Paired };
        input.modelled = evidence.modelled;
        input.draws = &draws;
        input.aa = aa.as_ref();
        input.sameness = Sameness {
            map_checked: !evidence.map_not_checked,
            map_violations: evidence.map_violations.clone(),
            outputs: None,
        };
        if !evidence.kv_unknown {
            input.kv = KvHeadroom {
                live_share: Some(evidence.kv_live_share.unwrap_or(0.5)),
                candidate_share: Some(evidence.kv_candidate_share.unwrap_or(0.5)),
            };
        }
        input.breaches = &evidence.breaches;
        input.look = evidence.look;
        gate(&input).unwrap()
    }
}

struct Sequence {
    job: usize,
    left: u32,
    last_ns: u64,
}

/// A slow wave through the steps, of unit variance or near it: a moving sum of 50 draws.
fn wave(seed: u64, step: u64) -> f64 {
    let draws = (0..50).map(|back| unit_f64(hash2(seed, step + back)) - 0.5);
    draws.sum::<f64>() * (12.0_f64 / 50.0).sqrt()
}

fn jobs(traffic: &Traffic) -> Vec<(RequestOutcome, u32)> {
    let mut now = 0.0;
    let draw = |job: u64, what: u64| unit_f64(hash3(traffic.seed, job, what));
    (0..traffic.requests)
        .map(|job| {
            now += -draw(job, 0).max(1e-9).ln() * traffic.arrival_ms;
            let pick = draw(job / traffic.burst, 1);
            let mut sum = 0.0;
            let slice = traffic.tenants.iter().position(|tenant| {
                sum += tenant.share;
                pick < sum
            });
            let slice = slice.unwrap_or(traffic.tenants.len() - 1);
            let [low, high] = traffic.output_tokens;
            let tokens = low + (draw(job, 2) * f64::from(high - low + 1)) as u32;
            let score = traffic.tenants[slice].score;
            let outcome = RequestOutcome {
                job,
                slice: SliceId(slice as u16),
                arrival_ns: (now * 1e6) as u64,
                first_token_ns: None,
                finish_ns: None,
                prompt_tokens: traffic.prompt_tokens,
                output_tokens: 0,
                largest_gap_ns: 0,
                preemptions: 0,
                started_warm: false,
                mean_log_probability: None,
                quality_score: score,
            };
            (outcome, tokens)
        })
        .collect()
}

/// Serves traffic on a map.
pub fn serve(name: &str, traffic: &Traffic, side: &Side) -> Run {
    let plan = jobs(traffic);
    let mut requests: Vec<RequestOutcome> =
        plan.iter().map(|(outcome, _)| outcome.clone()).collect();
    let (mut steps, mut gaps): (Vec<StepSummary>, Vec<Gap>) = (Vec::new(), Vec::new());
    let mut batch: Vec<Sequence> = Vec::new();
    let (mut next, mut now, mut stalls) = (0, 0_u64, 0);
    while next < plan.len() || !batch.is_empty() {
        if batch.is_empty() && next < plan.len() {
            now = now.max(plan[next].0.arrival_ns);
        }
        let number = steps.len() as u64;
        let waiting = plan[next..].iter().take_while(|job| job.0.arrival_ns <= now).count();
        let admitted = waiting.min(traffic.places - batch.len()).min(8);
        let start_ns = now;
        let jitter = 1.0
            + side.noise * wave(traffic.seed, number)
            + side.own_noise * wave(hash2(side.seed, 9), number);
        if admitted > 0 {
            now += (side.prefill_ms * admitted as f64 * jitter * 1e6) as u64;
            for job in next..next + admitted {
                requests[job].first_token_ns = Some(now);
                requests[job].output_tokens = 1;
                batch.push(Sequence { job, left: plan[job].1 - 1, last_ns: now });
            }
            next += admitted;
            let tokens = admitted as u32 * traffic.prompt_tokens;
            steps.push(step(number, Phase::Prefill, [start_ns, now], tokens, 0.0, side));
        } else {
            let factor = slow_factor(traffic, side, &batch, &requests);
            let mut took_ms = side.decode_ms * jitter * factor;
            let due = side.stall_every_steps > 0
                && number % side.stall_every_steps == side.stall_every_steps - 1;
            if due && stalls < side.stalls_max {
                stalls += 1;
                took_ms += side.stall_ms;
            }
            now += (took_ms * 1e6) as u64;
            steps.push(step(
                number,
                Phase::Decode,
                [start_ns, now],
                batch.len() as u32,
                jitter,
                side,
            ));
            emit(&mut batch, &mut requests, &mut gaps, number, now);
        }
        batch.retain(|sequence| {
            if sequence.left == 0 {
                requests[sequence.job].finish_ns = Some(sequence.last_ns);
            }
            sequence.left > 0
        });
    }
    score(&mut requests, traffic, side);
    let mut totals = RunTotals { misplaced_rows: side.misplaced_rows, ..RunTotals::default() };
    totals.kv_blocks_per_rank = 1000;
    totals.kv_blocks_free_min = 400;
    Run { name: name.into(), map_digest: name.into(), ranks: 16, requests, steps, gaps, totals }
}

fn slow_factor(
    traffic: &Traffic,
    side: &Side,
    batch: &[Sequence],
    requests: &[RequestOutcome],
) -> f64 {
    let mut factor = 1.0;
    for (name, by) in &side.slow {
        let id = traffic.tenants.iter().position(|tenant| tenant.name == *name).unwrap();
        let own = batch.iter().filter(|s| requests[s.job].slice.index() == id).count();
        factor += (by - 1.0) * own as f64 / batch.len() as f64;
    }
    factor
}

fn emit(
    batch: &mut [Sequence],
    requests: &mut [RequestOutcome],
    gaps: &mut Vec<Gap>,
    step: u64,
    now: u64,
) {
    let mut own: Vec<Gap> = Vec::new();
    for sequence in batch {
        let request = &mut requests[sequence.job];
        let gap_ns = now - sequence.last_ns;
        request.output_tokens += 1;
        request.largest_gap_ns = request.largest_gap_ns.max(gap_ns);
        sequence.left -= 1;
        sequence.last_ns = now;
        match own.iter_mut().find(|gap| gap.slice == request.slice && gap.gap_ns == gap_ns) {
            Some(gap) => gap.tokens += 1,
            None => own.push(Gap { step, slice: request.slice, gap_ns, tokens: 1 }),
        }
    }
    gaps.extend(own);
}

fn score(requests: &mut [RequestOutcome], traffic: &Traffic, side: &Side) {
    for request in requests {
        if let Some(chance) = request.quality_score {
            let right = unit_f64(hash3(traffic.seed, request.job, 5)) < chance * side.score_factor;
            request.quality_score = Some(f64::from(u8::from(right)));
        }
    }
}

fn step(
    step: u64,
    phase: Phase,
    times: [u64; 2],
    tokens: u32,
    jitter: f64,
    side: &Side,
) -> StepSummary {
    let mean_ns = (side.expert_mean_ms * jitter * 1e6) as u64;
    StepSummary {
        step,
        phase,
        start_ns: times[0],
        end_ns: times[1],
        sequences: tokens,
        tokens,
        expert_slowest_ns: (mean_ns as f64 * side.rows_max_over_mean) as u64,
        expert_mean_ns: mean_ns,
        exchange_ns: 0,
        attention_slowest_ns: 0,
        rest_ns: 0,
        slowest_rank: 0,
        slowest_rank_layers: 1,
        rows_max_over_mean: side.rows_max_over_mean,
        kv_blocks_free_min: 400,
    }
}
