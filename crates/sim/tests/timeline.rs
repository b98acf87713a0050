//! Timelines that can be worked out by hand: constant costs, every token's time asserted.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it cannot go on")]

mod common;

use common::{Keep, config, jobs, recorded, shape};
use evenkeel_sim::{
    Constant, Gap, GroupConfig, Job, Limits, NoSink, Progress, Role, Run, SimError, simulate,
};
use evenkeel_trace::Routes;
use evenkeel_types::{Phase, SliceId};

/// Prefill steps take 100 ns + 1 per token of the fullest rank, decode steps 10 ns + 1.
fn backend(ranks: u16) -> Constant {
    Constant::new(ranks, [100, 10], [1, 1])
}

fn one_expert(lengths: &[(u32, u32)]) -> Routes {
    let tokens: u32 = lengths.iter().map(|(prompt, output)| prompt + output).sum();
    recorded(&shape(1, 1, 1), lengths, vec![0; tokens as usize])
}

fn run(config: &GroupConfig, ranks: u16, routes: &Routes, jobs: &[Job]) -> Run {
    let limits = Limits::default();
    simulate("t", config, routes, jobs, &mut backend(ranks), &mut NoSink, limits).unwrap()
}

fn failure(config: &GroupConfig, routes: &Routes, jobs: &[Job]) -> SimError {
    let limits = Limits::default();
    simulate("t", config, routes, jobs, &mut backend(1), &mut NoSink, limits).unwrap_err()
}

#[test]
fn first_token_and_gaps() {
    let routes = one_expert(&[(5, 3)]);
    let run = run(&config(Role::Mixed), 1, &routes, &jobs(&[7]));
    let request = &run.requests[0];
    assert_eq!(request.first_token_ns, Some(7 + 105));
    assert_eq!(request.finish_ns, Some(7 + 105 + 11 + 11));
    assert_eq!(request.ttft_ns(), Some(105));
    assert_eq!(request.tpot_ns(), Some(11.0));
    assert_eq!((request.output_tokens, request.largest_gap_ns), (3, 11));
    let gap = |step| Gap { step, slice: SliceId(0), gap_ns: 11, tokens: 1 };
    assert_eq!(run.gaps, [gap(1), gap(2)]);
    assert_eq!(run.totals.steps, [1, 2]);
    assert_eq!(run.totals.choices, [5, 2]);
}

#[test]
fn one_output_token_comes_with_the_prefill() {
    let run = run(&config(Role::Mixed), 1, &one_expert(&[(5, 1)]), &jobs(&[0]));
    assert_eq!(run.requests[0].finish_ns, Some(105));
    assert_eq!(run.requests[0].first_token_ns, Some(105));
    assert_eq!(run.requests[0].tpot_ns(), None);
    assert_eq!(run.totals.steps, [1, 0]);
}

#[test]
fn a_long_prompt_is_cut_into_chunks() {
    let config = GroupConfig { prefill_tokens_per_rank: 4, ..config(Role::Mixed) };
    let run = run(&config, 1, &one_expert(&[(10, 2)]), &jobs(&[0]));
    assert_eq!(run.requests[0].first_token_ns, Some(104 + 104 + 102));
    let tokens: Vec<u32> = run.steps.iter().map(|step| step.tokens).collect();
    assert_eq!(tokens, [4, 4, 2, 1]);
}

#[test]
fn two_prompts_share_a_chunk_budget() {
    let config = GroupConfig { prefill_tokens_per_rank: 8, ..config(Role::Mixed) };
    let run = run(&config, 1, &one_expert(&[(6, 1), (6, 1)]), &jobs(&[0, 0]));
    assert_eq!(run.requests[0].finish_ns, Some(108));
    assert_eq!(run.requests[1].finish_ns, Some(108 + 104));
}

#[test]
fn prefill_goes_first_but_decodes_are_let_through() {
    let config = GroupConfig {
        prefill_tokens_per_rank: 4,
        prefill_steps_in_row_max: 2,
        ..config(Role::Mixed)
    };
    // The second prompt needs five chunks; it arrives while the first request decodes.
    let run = run(&config, 1, &one_expert(&[(1, 6), (20, 1)]), &jobs(&[0, 110]));
    let phases: String =
        run.steps.iter().map(|s| if s.phase == Phase::Prefill { 'p' } else { 'd' }).collect();
    assert_eq!(phases, "pdppdppdpdd");
    // The gap over two prefill steps and one decode step.
    assert_eq!(run.requests[0].largest_gap_ns, 104 + 104 + 11);
}

#[test]
fn a_new_sequence_goes_to_the_rank_with_fewest() {
    let routes = one_expert(&[(3, 9), (3, 9), (3, 9)]);
    let mut keep = Keep::default();
    let limits = Limits::default();
    simulate(
        "t",
        &config(Role::Mixed),
        &routes,
        &jobs(&[0; 3]),
        &mut backend(2),
        &mut keep,
        limits,
    )
    .unwrap();
    let sequences = keep.records[0].ranks.iter().map(|rank| rank.sequences);
    assert_eq!(sequences.collect::<Vec<_>>(), [2, 1]);
    assert_eq!(keep.records[0].ranks[0].tokens, 6);
}

#[test]
fn the_last_admitted_is_preempted_and_recomputed() {
    let config = GroupConfig { kv_blocks_per_rank: 10, kv_block_tokens: 1, ..config(Role::Mixed) };
    let routes = one_expert(&[(4, 4), (4, 4)]);
    let mut keep = Keep::default();
    let run = simulate(
        "t",
        &config,
        &routes,
        &jobs(&[0, 0]),
        &mut backend(1),
        &mut keep,
        Limits::default(),
    )
    .unwrap();
    // Both prefill (108) and decode once (12): 5 blocks each, none free. The second is preempted,
    // the first ends alone (11 + 11); then 6 known tokens are prefilled and one is decoded.
    let [first, second] = &run.requests[..] else { panic!("two requests") };
    assert_eq!((first.preemptions, second.preemptions), (0, 1));
    assert_eq!(first.finish_ns, Some(108 + 12 + 11 + 11));
    assert_eq!(second.finish_ns, Some(142 + 106 + 11));
    assert_eq!(second.largest_gap_ns, 11 + 11 + 106);
    assert_eq!(second.output_tokens, 4);
    assert_eq!(run.totals.preemptions, 1);
    assert_eq!(run.totals.kv_blocks_free_min, 0);
    for record in &keep.records {
        assert_eq!(record.ranks[0].kv_blocks_used + record.ranks[0].kv_blocks_free, 10);
    }
    assert_eq!(keep.records.last().unwrap().ranks[0].kv_blocks_free, 10);
}

#[test]
fn a_request_that_cannot_fit_is_refused() {
    let config = GroupConfig { kv_blocks_per_rank: 3, kv_block_tokens: 4, ..config(Role::Mixed) };
    let error = failure(&config, &one_expert(&[(10, 4)]), &jobs(&[0]));
    assert_eq!(error.to_string(), "job 0: needs 4 KV blocks, a rank has 3");
}

#[test]
fn admission_waits_for_blocks_in_order() {
    // The second request needs 9 blocks of 12 while the first holds 6; the third would fit.
    let config = GroupConfig { kv_blocks_per_rank: 12, kv_block_tokens: 1, ..config(Role::Mixed) };
    let run = run(&config, 1, &one_expert(&[(5, 2), (8, 2), (2, 2)]), &jobs(&[0, 1, 2]));
    let first = |job: usize| run.requests[job].first_token_ns.unwrap();
    assert_eq!(run.requests[0].finish_ns, Some(105 + 11));
    assert_eq!(first(1), first(2));
    assert_eq!(first(1), 116 + 110);
}

#[test]
fn a_prefill_group_hands_over_with_the_first_token() {
    let run = run(&config(Role::Prefill), 1, &one_expert(&[(5, 30)]), &jobs(&[0]));
    assert_eq!(run.requests[0].finish_ns, Some(105));
    assert_eq!(run.requests[0].output_tokens, 1);
    assert_eq!(run.steps.len(), 1);
}

#[test]
fn a_decode_group_starts_with_the_prompt_in_place() {
    let routes = one_expert(&[(5, 3), (5, 1)]);
    let run = run(&config(Role::Decode), 1, &routes, &jobs(&[50, 60]));
    let request = &run.requests[0];
    assert_eq!(request.first_token_ns, Some(50));
    assert_eq!(request.finish_ns, Some(50 + 11 + 11));
    assert_eq!((request.output_tokens, run.totals.steps), (3, [0, 2]));
    // Its only token came with the hand-over.
    assert_eq!(run.requests[1].finish_ns, Some(60));
    assert_eq!(run.requests[1].output_tokens, 1);
}

#[test]
fn a_warm_request_goes_on_in_its_phase() {
    let routes = one_expert(&[(5, 9)]);
    let warm = Job { decoded: 6, ..jobs(&[0])[0] };
    let run = run(&config(Role::Mixed), 1, &routes, &[warm]);
    let request = &run.requests[0];
    assert!(request.started_warm);
    assert_eq!((request.output_tokens, request.ttft_ns()), (3, None));
    assert_eq!(request.finish_ns, Some(33));
    assert_eq!(request.tpot_ns(), Some(11.0));
    assert!(
        failure(&config(Role::Prefill), &routes, &[warm]).to_string().contains("prefill group")
    );
    let over = Job { decoded: 9, ..warm };
    assert!(failure(&config(Role::Mixed), &routes, &[over]).to_string().contains("9 of 9"));
}

#[test]
fn nothing_to_do_is_a_run() {
    let run = run(&config(Role::Mixed), 2, &one_expert(&[(5, 3)]), &[]);
    assert!(run.requests.is_empty() && run.steps.is_empty() && run.gaps.is_empty());
    assert_eq!(run.ranks, 2);
}

#[test]
fn limits_stop_between_steps_and_progress_is_told() {
    let routes = one_expert(&[(5, 30), (5, 3)]);
    let mut told = Vec::new();
    let mut progress = |progress: Progress| told.push(progress);
    let limits = Limits { until_ns: 127, progress: Some(&mut progress), ..Limits::default() };
    let jobs = jobs(&[0, 1_000_000]);
    let mut backend = backend(1);
    let config = config(Role::Mixed);
    let run = simulate("t", &config, &routes, &jobs, &mut backend, &mut NoSink, limits).unwrap();
    assert_eq!(run.steps.last().unwrap().end_ns, 127);
    assert_eq!(run.requests.len(), 1);
    assert_eq!(run.requests[0].finish_ns, None);
    assert_eq!(told.last().unwrap().steps, 3);
    let limits = Limits { steps_max: 2, ..Limits::default() };
    let run = simulate("t", &config, &routes, &jobs, &mut backend, &mut NoSink, limits).unwrap();
    assert_eq!(run.steps.len(), 2);
}

#[test]
fn wrong_jobs_and_limits_are_named() {
    let routes = one_expert(&[(5, 3), (0, 3), (3, 0)]);
    let config = config(Role::Mixed);
    let job = jobs(&[0, 0, 0]);
    assert!(failure(&config, &routes, &[job[0], job[0]]).to_string().contains("listed twice"));
    assert!(failure(&config, &routes, &[job[1]]).to_string().contains("0 prompt and 3 output"));
    assert!(failure(&config, &routes, &[job[2]]).to_string().contains("0 output"));
    let beyond = Job { recorded: 3, ..job[0] };
    assert!(failure(&config, &routes, &[beyond]).to_string().contains("request 3 of 3"));
    let zero = GroupConfig { kv_block_tokens: 0, ..config };
    assert!(failure(&zero, &routes, &job[..1]).to_string().contains("kv_block_tokens is 0"));
    let late = Job { arrival_ns: u64::MAX - 50, ..job[0] };
    assert!(failure(&config, &routes, &[late]).to_string().contains("overflows"));
}
