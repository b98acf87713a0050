//! What must hold for every pair of runs.

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

mod support;

use evenkeel_prove::{
    Decision, Design, GateInput, Metric, OutputMatch, Pair, RatesInput, SamenessLevel, Standing,
    draw_outcome, error_rates, gate, mix_of_runs, summary,
};
use evenkeel_types::Policy;
use proptest::prelude::*;
use support::{Case, Side, Tenant, Traffic, serve};

fn traffic(requests: u64, seed: u64) -> Traffic {
    let tenant = |name: &str, share| Tenant { name: name.into(), share, score: None };
    Traffic {
        requests,
        arrival_ms: 27.0,
        places: 64,
        output_tokens: [40, 120],
        prompt_tokens: 512,
        burst: 1,
        tenants: vec![tenant("a", 0.6), tenant("b", 0.4)],
        seed,
    }
}

fn side(decode_ms: f64, seed: u64) -> Side {
    Side {
        decode_ms,
        prefill_ms: 4.0,
        expert_mean_ms: 0.0,
        rows_max_over_mean: 1.0,
        noise: 0.05,
        own_noise: 0.01,
        slow: Vec::new(),
        stall_every_steps: 0,
        stall_ms: 0.0,
        stalls_max: 0,
        misplaced_rows: 0,
        score_factor: 1.0,
        seed,
    }
}

fn case(requests: u64, live: Side, candidate: Side) -> Case {
    Case {
        about: String::new(),
        traffic: traffic(requests, 7),
        candidate_traffic: None,
        live,
        candidate,
        gate: support::Evidence::default(),
        policy: Policy::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Case 12: whatever prefill gains, decode's p99 decides.
    #[test]
    fn no_gain_of_prefill_buys_a_loss_of_decode(loss in 0.06_f64..0.5, prefill in 0.1_f64..0.9) {
        let mut faster_prefill = side(14.0 * (1.0 + loss), 2);
        faster_prefill.prefill_ms = 0.4 * prefill;
        let mut live = side(14.0, 1);
        live.prefill_ms = 0.4;
        let verdict = case(1200, live, faster_prefill).verdict();
        prop_assert_eq!(verdict.decision, Decision::Reject);
        prop_assert!(verdict.reasons[0].decided);
    }

    /// A candidate that is the live run is never accepted, and never "cannot tell".
    #[test]
    fn nothing_is_never_a_gain(seed in 0_u64..1000, noise in 0.0_f64..0.2) {
        let mut own = side(14.0, seed);
        own.own_noise = noise;
        let verdict = case(900, own.clone(), own).verdict();
        prop_assert_eq!(verdict.decision, Decision::Reject, "{:#?}", verdict.reasons);
    }

    /// More stalls are never accepted, however fast the rest.
    #[test]
    fn a_stall_is_never_bought(gain in 0.05_f64..0.6, stalls in 1_u64..5) {
        let mut candidate = side(14.0 * (1.0 - gain), 2);
        (candidate.stall_every_steps, candidate.stall_ms, candidate.stalls_max) = (400, 1500.0, stalls);
        let verdict = case(900, side(14.0, 1), candidate).verdict();
        prop_assert_eq!(verdict.decision, Decision::Reject);
        let stalls_decided =
            verdict.reasons.iter().any(|r| r.decided && r.metric == Metric::Stalls);
        prop_assert!(stalls_decided);
    }
}

#[test]
fn the_same_input_and_seed_give_the_same_verdict() {
    let pair = case(900, side(14.0, 1), side(13.0, 2));
    assert_eq!(pair.verdict(), pair.verdict());
}

#[test]
fn a_later_look_asks_for_more() {
    let mut pair = case(1500, side(14.0, 1), side(13.0, 2));
    let width = |case: &Case| {
        let verdict = case.verdict();
        let row = verdict.metrics.iter().find(|row| row.metric == Metric::TpotP99).unwrap();
        (row.interval[1] - row.interval[0], verdict.resampling.alpha)
    };
    let (once, alpha) = width(&pair);
    pair.gate.look = 8;
    let (eighth, spent) = width(&pair);
    assert!(eighth > once && spent < alpha / 50.0, "{once} {eighth} {spent}");
}

#[test]
fn errors_name_what_contradicts_itself() {
    let pair = case(50, side(14.0, 1), side(14.0, 2));
    let (live, candidate) = pair.runs();
    let (slices, policy) = (pair.slices(), Policy::default());
    let message = |change: &dyn Fn(&mut evenkeel_sim::Run)| {
        let mut broken = candidate.clone();
        change(&mut broken);
        let input = GateInput::new(Pair { live: &live, candidate: &broken }, &slices, &policy);
        gate(&input).unwrap_err().to_string()
    };
    assert!(message(&|run| run.requests[3].slice.0 = 9).contains("request 3: slice 9"));
    assert!(message(&|run| run.requests[3].job = 2).contains("request 2: listed twice"));
    assert!(message(&|run| run.requests[3].finish_ns = Some(0)).contains("last token lies before"));
    assert!(message(&|run| run.requests[3].quality_score = Some(f64::NAN)).contains("NaN"));
    assert!(message(&|run| run.steps[5].step = 0).contains("does not rise"));
    assert!(message(&|run| run.gaps[5].step = u64::MAX).contains("no row"));
    let apart = &|run: &mut evenkeel_sim::Run| {
        run.requests.iter_mut().for_each(|request| request.job += 1000);
    };
    assert!(message(apart).contains("share no request"));
}

#[test]
fn nothing_at_all_is_too_little_data() {
    let pair = case(0, side(14.0, 1), side(14.0, 2));
    let verdict = pair.verdict();
    assert_eq!(verdict.decision, Decision::NeedMoreData);
    assert!(verdict.metrics.is_empty());
}

#[test]
fn a_map_that_starves_requests_loses_goodput() {
    // The candidate drops a tenth of the jobs: faster for the rest, and no percentile shows it.
    let pair = case(1500, side(14.0, 1), side(12.5, 2));
    let (live, mut candidate) = pair.runs();
    for request in candidate.requests.iter_mut().filter(|request| request.job % 10 == 0) {
        (request.finish_ns, request.first_token_ns) = (None, None);
    }
    let (slices, policy) = (pair.slices(), Policy::default());
    let input = GateInput::new(Pair { live: &live, candidate: &candidate }, &slices, &policy);
    let verdict = gate(&input).unwrap();
    assert_eq!(verdict.decision, Decision::Reject);
    let goodput = verdict.metrics.iter().find(|row| row.metric == Metric::Goodput).unwrap();
    assert_eq!(goodput.standing, Standing::Broken);
    assert!((goodput.change_share + 0.1).abs() < 0.005, "{goodput:?}");
}

#[test]
fn output_digests_give_their_level() {
    let pair = case(600, side(14.0, 1), side(14.0, 1));
    let (live, candidate) = pair.runs();
    let (slices, policy) = (pair.slices(), Policy::default());
    let levels = |different, aa_different| {
        let mut input =
            GateInput::new(Pair { live: &live, candidate: &candidate }, &slices, &policy);
        input.sameness.map_checked = true;
        input.sameness.outputs =
            Some(OutputMatch { compared: 500, different, aa_compared: 500, aa_different });
        gate(&input).unwrap().sameness.levels
    };
    use SamenessLevel::{L0, L1, L2};
    assert_eq!(levels(0, 0), [L0, L1, L2]);
    assert_eq!(levels(40, 50), [L0, L2]);
    assert_eq!(levels(90, 50), [L0]);
}

#[test]
fn draws_and_summaries_agree_with_the_gate() {
    let pair = case(900, side(14.0, 1), side(13.0, 2));
    let (live, candidate) = pair.runs();
    let (slices, policy) = (pair.slices(), Policy::default());
    let runs = Pair { live: &live, candidate: &candidate };
    let draw = draw_outcome("nominal", runs, &slices, &policy).unwrap();
    let verdict = gate(&GateInput::new(runs, &slices, &policy)).unwrap();
    let gain = verdict.metrics.iter().find(|row| row.metric == Metric::TpotP99).unwrap();
    assert_eq!(draw.change_share, Some(gain.change_share));
    let metrics = summary(&live, &slices, &policy).unwrap();
    assert_eq!(metrics, verdict.runs.live);
    assert_eq!(metrics.overall.requests, 900);
    let tokens: u64 = live.gaps.iter().map(|gap| u64::from(gap.tokens)).sum();
    assert_eq!(metrics.overall.itl_ms.unwrap().count, tokens);
    let mix = mix_of_runs(&live, &candidate, &slices);
    assert!((mix[0].live_share - 0.6).abs() < 0.06, "{mix:?}");
}

#[test]
fn a_changed_mix_between_records_is_not_read_as_a_changed_map() {
    // Tenant b's steps are slower on any map; the second record holds twice as much of it.
    let mut live = side(14.0, 1);
    live.slow = vec![("b".into(), 1.6)];
    let mut other = traffic(6000, 8);
    let mut mine = traffic(6000, 7);
    (mine.burst, other.burst) = (60, 60);
    (other.tenants[0].share, other.tenants[1].share) = (0.3, 0.7);
    let (before, after) = (serve("before", &mine, &live), serve("after", &other, &live));
    let policy = Policy::default();
    let slices = case(0, live.clone(), live).slices();
    let mut input = GateInput::new(Pair { live: &before, candidate: &after }, &slices, &policy);
    input.design = Design::Independent;
    let verdict = gate(&input).unwrap();
    let p99 = |slice: usize| {
        let rows = verdict.metrics.iter().filter(|row| row.metric == Metric::TpotP99);
        rows.clone()
            .find(|row| row.slice.is_none_or(|id| slice > 0 && id.index() == slice - 1))
            .unwrap()
            .change_share
    };
    assert!(p99(0).abs() < 0.04, "{}", p99(0));
}

#[test]
fn error_rates_stay_within_the_allowance() {
    let replays: Vec<_> = (0..3)
        .map(|seed| {
            let traffic = traffic(1800, 100 + seed);
            (serve("a", &traffic, &side(14.0, seed)), serve("b", &traffic, &side(14.0, 50 + seed)))
        })
        .collect();
    let pairs: Vec<Pair> =
        replays.iter().map(|(live, candidate)| Pair { live, candidate }).collect();
    let (slices, policy) = (case(0, side(14.0, 1), side(14.0, 1)).slices(), Policy::default());
    for design in [Design::Paired, Design::Independent] {
        let input = RatesInput {
            replays: &pairs,
            slices: &slices,
            policy: &policy,
            design,
            pairs: 40,
            shift_share: 0.05,
            replicates: 200,
            seed: 11,
        };
        let rates = error_rates(&input).unwrap();
        assert!(rates.false_accept.interval[0] <= 0.05, "{rates:#?}");
        assert!(rates.false_reject.interval[0] <= 0.05, "{rates:#?}");
        assert_eq!(rates, error_rates(&input).unwrap());
        if design == Design::Paired {
            assert!(rates.power.share > 0.8, "{rates:#?}");
            assert!(rates.worse.reject.share > 0.8, "{rates:#?}");
        }
    }
}
