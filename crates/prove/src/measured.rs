//! A measured record as a run: the tables of a trace, without a simulator.

use evenkeel_sim::{Gap, RequestOutcome, Run, RunTotals, StepSummary};
use evenkeel_trace::{RequestRecord, StepRecord, TraceHeader};
use evenkeel_types::{Phase, SliceId};
use std::collections::BTreeMap;

/// Reads a trace's tables as a run. Steps need no layers or routing; where they have them, expert
/// times, rows per rank and choices per expert are summed too.
///
/// Token gaps come from recorded token times. A request without them gets its gaps from the decode
/// steps it lived through, where steps were recorded (a request in the batch gets its token in
/// every decode step); else it has none, and the gate says that stalls cannot be excluded.
/// Where the trace has no steps, each instant at which tokens came out stands for one. A request
/// that ended in an error counts as due and missed: it gets neither first nor last token.
#[must_use]
pub fn run_from_trace(
    name: &str,
    header: &TraceHeader,
    steps: &[StepRecord],
    requests: &[RequestRecord],
) -> Run {
    let mut run = Run {
        name: name.to_owned(),
        map_digest: header.maps.last().map(|map| map.digest.clone()).unwrap_or_default(),
        ranks: steps.iter().map(|step| step.ranks.len()).max().unwrap_or(0) as u16,
        requests: requests.iter().map(outcome).collect(),
        steps: steps.iter().map(summary_of).collect(),
        gaps: Vec::new(),
        totals: totals(steps, usize::from(header.model.experts)),
    };
    let tokens = token_gaps(requests);
    if run.steps.is_empty() {
        run.steps = instants(&tokens);
    }
    let mut gaps: BTreeMap<(u64, SliceId, u64), u32> = BTreeMap::new();
    for (end_ns, slice, gap_ns) in tokens {
        let after = run.steps.partition_point(|step| step.end_ns <= end_ns).saturating_sub(1);
        if let Some(step) = run.steps.get(after) {
            *gaps.entry((step.step, slice, gap_ns)).or_default() += 1;
        }
    }
    for (step, slice, gap_ns, tokens) in lived_gaps(steps, requests) {
        *gaps.entry((step, slice, gap_ns)).or_default() += tokens;
    }
    for ((step, slice, gap_ns), tokens) in gaps {
        run.gaps.push(Gap { step, slice, gap_ns, tokens });
    }
    run
}

fn outcome(record: &RequestRecord) -> RequestOutcome {
    let failed = record.finish == evenkeel_trace::Finish::Error;
    let at = |after_ns: Option<u64>| {
        after_ns.filter(|_| !failed).map(|after| record.arrival_ns.saturating_add(after))
    };
    let ended = record.finish != evenkeel_trace::Finish::Unfinished;
    let gaps = record.token_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    RequestOutcome {
        job: record.request,
        slice: record.slice,
        arrival_ns: record.arrival_ns,
        first_token_ns: at(record.ttft_ns.or_else(|| record.token_ns.first().copied())),
        finish_ns: at(record.finish_ns.or_else(|| record.token_ns.last().copied()))
            .filter(|_| ended),
        prompt_tokens: record.prompt_tokens,
        output_tokens: record.output_tokens,
        largest_gap_ns: gaps.max().unwrap_or(0),
        preemptions: 0,
        started_warm: false,
        mean_log_probability: record.mean_log_probability,
        quality_score: record.quality_score,
    }
}

/// (end of the gap, slice, gap) for every token but the first. Tokens that came in one chunk have
/// gaps of 0: they were produced together, and each counts.
fn token_gaps(requests: &[RequestRecord]) -> Vec<(u64, SliceId, u64)> {
    let gaps = requests.iter().flat_map(|record| {
        record.token_ns.windows(2).map(|pair| {
            let end_ns = record.arrival_ns.saturating_add(pair[1]);
            (end_ns, record.slice, pair[1].saturating_sub(pair[0]))
        })
    });
    gaps.collect()
}

fn instants(tokens: &[(u64, SliceId, u64)]) -> Vec<StepSummary> {
    let mut at: BTreeMap<u64, u32> = BTreeMap::new();
    for (end_ns, _, _) in tokens {
        *at.entry(*end_ns).or_default() += 1;
    }
    let mut before: Option<u64> = None;
    let steps = at.into_iter().enumerate().map(|(number, (end_ns, tokens))| {
        let start_ns = before.replace(end_ns).unwrap_or(end_ns);
        StepSummary { tokens, sequences: tokens, ..bare_step(number as u64, start_ns, end_ns) }
    });
    steps.collect()
}

fn bare_step(step: u64, start_ns: u64, end_ns: u64) -> StepSummary {
    StepSummary {
        step,
        phase: Phase::Decode,
        start_ns,
        end_ns,
        sequences: 0,
        tokens: 0,
        expert_slowest_ns: 0,
        expert_mean_ns: 0,
        exchange_ns: 0,
        attention_slowest_ns: 0,
        rest_ns: 0,
        slowest_rank: 0,
        slowest_rank_layers: 0,
        rows_max_over_mean: 0.0,
        kv_blocks_free_min: 0,
    }
}

/// Sums over the layers of a step, each layer as long as its slowest rank.
fn summary_of(record: &StepRecord) -> StepSummary {
    let ranks = record.ranks.len().max(1);
    let mut step = bare_step(record.step, record.start_ns, record.end_ns);
    step.phase = record.phase;
    step.sequences = record.ranks.iter().map(|rank| rank.sequences).sum();
    step.tokens = record.tokens() as u32;
    step.kv_blocks_free_min =
        record.ranks.iter().map(|rank| rank.kv_blocks_free).min().unwrap_or(0);
    let mut waited = vec![0_u16; ranks];
    let mut layers = 0.0;
    for layer in record.cells.chunks_exact(ranks) {
        let slowest = (0..ranks).max_by_key(|rank| (layer[*rank].expert_ns, ranks - rank));
        if let Some(rank) = slowest.filter(|rank| layer[*rank].expert_ns > 0) {
            step.expert_slowest_ns += layer[rank].expert_ns;
            waited[rank] += 1;
        }
        step.expert_mean_ns += layer.iter().map(|cell| cell.expert_ns).sum::<u64>() / ranks as u64;
        let exchange = layer.iter().map(|cell| cell.dispatch_service_ns + cell.return_service_ns);
        step.exchange_ns += exchange.max().unwrap_or(0);
        step.attention_slowest_ns += layer.iter().map(|cell| cell.attention_ns).max().unwrap_or(0);
        let rows: u64 = layer.iter().map(|cell| u64::from(cell.rows_in)).sum();
        let most = layer.iter().map(|cell| cell.rows_in).max().unwrap_or(0);
        if rows > 0 {
            step.rows_max_over_mean += f64::from(most) * ranks as f64 / rows as f64;
            layers += 1.0;
        }
    }
    if layers > 0.0 {
        step.rows_max_over_mean /= layers;
    }
    let most_waited = (0..ranks).max_by_key(|rank| (waited[*rank], ranks - rank)).unwrap_or(0);
    step.slowest_rank = most_waited as u16;
    step.slowest_rank_layers = waited[most_waited];
    let known = step.expert_slowest_ns + step.exchange_ns + step.attention_slowest_ns;
    step.rest_ns = record.end_ns.saturating_sub(record.start_ns).saturating_sub(known);
    step
}

fn add(sums: &mut Vec<u64>, at: usize, value: u64) {
    if sums.len() <= at {
        sums.resize(at + 1, 0);
    }
    sums[at] += value;
}

fn totals(steps: &[StepRecord], experts: usize) -> RunTotals {
    let mut totals = RunTotals::default();
    let mut free_min: Option<u32> = None;
    for step in steps {
        let (phase, ranks) = (step.phase.index(), step.ranks.len());
        totals.steps[phase] += 1;
        for rank in &step.ranks {
            let blocks = rank.kv_blocks_used.saturating_add(rank.kv_blocks_free);
            totals.kv_blocks_per_rank = totals.kv_blocks_per_rank.max(blocks);
            if blocks > 0 {
                free_min =
                    Some(free_min.map_or(rank.kv_blocks_free, |m| m.min(rank.kv_blocks_free)));
            }
        }
        for (at, cell) in step.cells.iter().enumerate() {
            add(&mut totals.rank_rows[phase], at, u64::from(cell.rows_in));
        }
        for layer in step.cells.chunks_exact(ranks.max(1)) {
            let slowest = (0..layer.len()).max_by_key(|r| (layer[*r].expert_ns, layer.len() - r));
            if let Some(rank) = slowest.filter(|rank| layer[*rank].expert_ns > 0) {
                add(&mut totals.waited_for_rank[phase], rank, 1);
            }
        }
        for row in &step.routing {
            let at = row.layer.index() * experts + row.expert.index();
            add(&mut totals.expert_choices[phase], at, u64::from(row.tokens));
            totals.choices[phase] += u64::from(row.tokens);
        }
    }
    totals.kv_blocks_free_min = free_min.unwrap_or(0);
    for choices in totals.expert_choices.iter_mut().filter(|choices| !choices.is_empty()) {
        choices.resize(choices.len().next_multiple_of(experts.max(1)), 0);
    }
    totals
}

/// (step, slice, gap, tokens) of requests without token times: from one decode step's end to the
/// next, for as many requests as were between their first and last token over the whole of it.
fn lived_gaps(steps: &[StepRecord], requests: &[RequestRecord]) -> Vec<(u64, SliceId, u64, u32)> {
    let decode: Vec<&StepRecord> =
        steps.iter().filter(|step| step.phase == Phase::Decode).collect();
    let ends: Vec<u64> = decode.iter().map(|step| step.end_ns).collect();
    let mut changes: BTreeMap<(usize, SliceId), i64> = BTreeMap::new();
    for record in requests.iter().filter(|record| record.token_ns.is_empty()) {
        let (Some(first), Some(last)) = (record.ttft_ns, record.finish_ns) else { continue };
        let first = record.arrival_ns.saturating_add(first);
        let last = record.arrival_ns.saturating_add(last);
        // The first decode end at or after the first token opens the first gap.
        let from = ends.partition_point(|end| *end < first) + 1;
        let until = ends.partition_point(|end| *end <= last);
        if from < until {
            *changes.entry((from, record.slice)).or_default() += 1;
            *changes.entry((until, record.slice)).or_default() -= 1;
        }
    }
    let mut living: BTreeMap<SliceId, i64> = BTreeMap::new();
    let mut gaps = Vec::new();
    let mut changes = changes.into_iter().peekable();
    for at in 1..decode.len() {
        while let Some(((_, slice), by)) = changes.next_if(|((from, _), _)| *from <= at) {
            *living.entry(slice).or_default() += by;
        }
        for (slice, count) in living.iter().filter(|(_, count)| **count > 0) {
            gaps.push((decode[at].step, *slice, ends[at] - ends[at - 1], *count as u32));
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_trace::{Finish, RankCell};
    use evenkeel_types::{ModelShape, Slice};

    fn header() -> TraceHeader {
        let shape = ModelShape::known("deepseek-v2-lite").unwrap();
        TraceHeader::new(shape, vec![Slice::of_tenant("a")])
    }

    fn request(number: u64, token_ns: Vec<u64>) -> RequestRecord {
        RequestRecord {
            request: number,
            slice: SliceId(0),
            arrival_ns: 1000,
            queue_ns: None,
            ttft_ns: Some(100),
            finish_ns: Some(400),
            output_tokens: 4,
            token_ns,
            prompt_tokens: 10,
            finish: Finish::Stop,
            error: String::new(),
            output_digest: String::new(),
            mean_log_probability: None,
            quality_score: None,
        }
    }

    fn step(number: u64, end_ns: u64) -> StepRecord {
        StepRecord {
            step: number,
            phase: Phase::Decode,
            start_ns: end_ns - 50,
            end_ns,
            map_version: 1,
            ranks: vec![RankCell { sequences: 1, tokens: 1, ..RankCell::default() }],
            cells: Vec::new(),
            routing: Vec::new(),
            links: Vec::new(),
        }
    }

    #[test]
    fn tokens_of_one_chunk_each_count() {
        // Two tokens at once (speculation): TPOT is per token, not per chunk.
        let run = run_from_trace("t", &header(), &[], &[request(0, vec![100, 250, 250, 400])]);
        assert_eq!(run.requests[0].tpot_ns(), Some(100.0));
        assert_eq!(run.requests[0].largest_gap_ns, 150);
        let gaps: Vec<(u64, u32)> = run.gaps.iter().map(|gap| (gap.gap_ns, gap.tokens)).collect();
        assert_eq!(gaps, [(0, 1), (150, 1), (150, 1)]);
    }

    #[test]
    fn gaps_come_from_steps_where_tokens_have_no_times() {
        let steps: Vec<_> =
            [1100, 1200, 1300, 1400, 9000].iter().zip(0..).map(|(e, n)| step(n, *e)).collect();
        let run = run_from_trace("t", &header(), &steps, &[request(0, vec![]), request(1, vec![])]);
        let gaps: Vec<(u64, u64, u32)> =
            run.gaps.iter().map(|gap| (gap.step, gap.gap_ns, gap.tokens)).collect();
        // The last step is idle time after both ended: no token waited.
        assert_eq!(gaps, [(1, 100, 2), (2, 100, 2), (3, 100, 2)]);
    }

    #[test]
    fn a_failed_request_gets_no_tokens() {
        let failed = RequestRecord { finish: Finish::Error, ..request(0, vec![100, 400]) };
        let run = run_from_trace("t", &header(), &[], &[failed]);
        assert_eq!((run.requests[0].first_token_ns, run.requests[0].finish_ns), (None, None));
    }
}
