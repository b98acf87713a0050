//! The replay backend against hand-made curves: times, exchanges, faults, traced rows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it cannot go on")]

mod common;

use common::{HandCurves, Keep, config, jobs, recorded, routing, shape};
use evenkeel_cost::{ExpertCoefficients, Profile, StepModel};
use evenkeel_sim::{
    AttentionFault, Faults, GroupConfig, Job, KernelFault, LateRank, Limits, NoSink, Replay, Role,
    Run, SimError, simulate,
};
use evenkeel_split::SplitTable;
use evenkeel_trace::{Direction, Routes, StepRecord};
use evenkeel_types::{
    ExpertId, ExpertMap, LinkHealth, ModelShape, NodeId, Phase, RankId, RankSpeed, Topology,
};

/// `nodes` nodes of `per_node` ranks.
fn topology(nodes: usize, per_node: u16) -> Topology {
    let mut topology = Topology::uniform("hand", per_node, 1 << 40);
    topology.node = vec![topology.node[0].clone(); nodes];
    topology
}

struct Case {
    shape: ModelShape,
    routes: Routes,
    map: ExpertMap,
    topology: Topology,
    curves: HandCurves,
    faults: Faults,
    role: Role,
}

impl Case {
    /// Skewed routing of eight requests on two nodes of two ranks, a copy to spare per rank.
    fn skewed(role: Role) -> Self {
        let shape = shape(3, 8, 2);
        let routes = routing(&shape, 8, 1, 90, 6, 3);
        let map = ExpertMap::contiguous(&shape, 4, 3);
        let mut curves = HandCurves::simple();
        curves.top_k = 2.0;
        let (topology, faults) = (topology(2, 2), Faults::default());
        Self { shape, routes, map, topology, curves, faults, role }
    }

    /// One layer, top-2, four experts on four ranks of two nodes; one sequence on rank 0 whose
    /// tokens all choose `choices`.
    fn one_token(role: Role, choices: [u16; 2]) -> Self {
        let shape = shape(1, 4, 2);
        let ids = choices.repeat(3);
        let routes = recorded(&shape, &[(1, 2)], ids);
        let map = ExpertMap::contiguous(&shape, 4, 1);
        Self { shape, routes, map, ..Self::skewed(role) }
    }

    fn jobs(&self) -> Vec<Job> {
        jobs(&vec![0; self.routes.requests().len()])
    }

    fn run(&self) -> Run {
        self.run_traced().0
    }

    fn run_traced(&self) -> (Run, Vec<StepRecord>) {
        let split = SplitTable::even(&self.map).unwrap();
        let Self { routes, map, topology, curves, faults, role, .. } = self;
        let mut replay = Replay::new(routes, map, &split, curves, topology, faults).unwrap();
        let (config, jobs) = (config(*role), self.jobs());
        let quiet =
            simulate("r", &config, routes, &jobs, &mut replay, &mut NoSink, Limits::default())
                .unwrap();
        let mut keep = Keep::default();
        let traced =
            simulate("r", &config, routes, &jobs, &mut replay, &mut keep, Limits::default())
                .unwrap();
        assert_eq!(quiet, traced, "a trace changes nothing");
        assert_eq!(quiet.totals.misplaced_rows, 0);
        (quiet, keep.records)
    }
}

#[test]
fn a_decode_step_adds_up_by_hand() {
    // Two ranks, two experts of one layer, top-1: the first sequence chooses expert 0, the other
    // two expert 1; ranks hold sequences {0, 2} and {1}.
    let shape = shape(1, 2, 1);
    let routes = recorded(&shape, &[(1, 2); 3], vec![0, 0, 0, 1, 1, 1, 1, 1, 1]);
    let case = Case {
        routes,
        map: ExpertMap::contiguous(&shape, 2, 1),
        topology: topology(1, 2),
        curves: HandCurves::simple(),
        shape,
        ..Case::skewed(Role::Decode)
    };
    let (run, records) = case.run_traced();
    assert_eq!(run.steps.len(), 1);
    let step = &run.steps[0];
    // Experts: 5 + 10 + rows; rank 0 gets 1 row, rank 1 gets 2. Rows out: 2 and 1, so two tokens.
    assert_eq!(step.attention_slowest_ns, 10_000);
    assert_eq!(step.expert_slowest_ns, 17_000);
    assert_eq!(step.expert_mean_ns, 16_500);
    assert_eq!(step.exchange_ns, 1_000 + 2_000);
    assert_eq!(step.rest_ns, 2_000 + 100_000);
    assert_eq!(step.end_ns - step.start_ns, 132_000);
    assert_eq!((step.slowest_rank, step.slowest_rank_layers), (1, 1));
    assert!((step.rows_max_over_mean - 2.0 / 1.5).abs() < 1e-12);
    let cell = records[0].cell(0, 0).unwrap();
    assert_eq!((cell.expert_ns, cell.return_skew_ns, cell.return_wait_ns), (16_000, 0, 1_000));
    // One of rank 0's two rows leaves; none comes from rank 1.
    assert_eq!((cell.bytes_out, cell.bytes_in), (100, 200));
    assert_eq!((cell.rows_in, cell.tokens_in, cell.experts_activated), (1, 1, 1));
}

#[test]
fn overlap_hides_exchange_behind_compute() {
    let mut case = Case::skewed(Role::Decode);
    let whole = case.run();
    case.curves.overlap_share = 0.5;
    let half = case.run();
    for (whole, half) in whole.steps.iter().zip(&half.steps) {
        assert!(whole.exchange_ns.abs_diff(2 * half.exchange_ns) <= 6);
        assert_eq!(whole.expert_slowest_ns, half.expert_slowest_ns);
    }
}

#[test]
fn a_record_s_spans_add_up_to_the_step() {
    for role in [Role::Mixed, Role::Prefill, Role::Decode] {
        let mut case = Case::skewed(role);
        case.curves.attention_us_per_context = 0.013;
        let (_, records) = case.run_traced();
        for record in &records {
            for rank in 0..4 {
                let layers = (0..3).map(|layer| {
                    let cell = record.cell(layer, rank).unwrap();
                    cell.attention_ns
                        + cell.router_ns
                        + cell.dispatch_wait_ns
                        + cell.dispatch_service_ns
                        + cell.expert_ns
                        + cell.return_wait_ns
                        + cell.return_service_ns
                });
                assert_eq!(layers.sum::<u64>() + 100_000, record.end_ns - record.start_ns);
            }
        }
    }
}

#[test]
fn a_fallback_kernel_slows_experts_by_its_factor_from_its_time() {
    let mut case = Case::skewed(Role::Decode);
    let healthy = case.run();
    let from_ns = healthy.steps[2].start_ns;
    let name = String::from("fallback");
    case.faults.kernel = Some(KernelFault { name, factor: 3.0, from_ns });
    let (slow, records) = case.run_traced();
    assert_eq!(healthy.steps[..2], slow.steps[..2]);
    for (healthy, slow) in healthy.steps[2..].iter().zip(&slow.steps[2..]) {
        assert_eq!(3 * healthy.expert_slowest_ns, slow.expert_slowest_ns);
        assert_eq!(healthy.exchange_ns, slow.exchange_ns);
        assert_eq!(healthy.rest_ns, slow.rest_ns);
    }
    assert_eq!((records[1].cells[0].kernel, records[2].cells[0].kernel), (0, 1));
    assert_eq!(case.faults.kernels("masked"), ["masked", "fallback"]);
}

#[test]
fn a_degraded_link_raises_the_exchange_alone() {
    for role in [Role::Decode, Role::Prefill] {
        let mut case = Case::skewed(role);
        let healthy = case.run();
        case.topology.link_health.push(LinkHealth { node: NodeId(1), rate_share: 0.5 });
        let slow = case.run();
        for (healthy, slow) in healthy.steps.iter().zip(&slow.steps) {
            assert!(slow.exchange_ns > healthy.exchange_ns, "{role:?}");
            assert!(slow.exchange_ns <= 2 * healthy.exchange_ns + 6, "{role:?}");
            assert_eq!(healthy.expert_slowest_ns, slow.expert_slowest_ns);
            assert_eq!(healthy.attention_slowest_ns, slow.attention_slowest_ns);
            assert_eq!(healthy.rest_ns, slow.rest_ns);
        }
        assert_eq!(healthy.totals, slow.totals);
    }
}

#[test]
fn a_slow_rank_is_waited_for_and_waits_least() {
    let mut case = Case::skewed(Role::Decode);
    case.topology.rank_speed.push(RankSpeed { rank: RankId(2), speed_share: 0.1 });
    let (run, records) = case.run_traced();
    assert!(run.steps.iter().all(|step| (step.slowest_rank, step.slowest_rank_layers) == (2, 3)));
    assert_eq!(run.totals.waited_for_rank[1][2], 3 * run.steps.len() as u64);
    for record in &records {
        let cell = record.cell(1, 2).unwrap();
        assert_eq!((cell.dispatch_wait_ns, cell.return_wait_ns), (0, 0));
        assert_eq!(cell.attention_ns, 100_000);
    }
}

#[test]
fn a_late_rank_and_slow_attention_are_charged_where_they_are() {
    let mut case = Case::skewed(Role::Decode);
    let healthy = case.run();
    case.faults.late_rank = Some(LateRank { rank: RankId(3), late_ns: 777, from_ns: 0 });
    let (late, records) = case.run_traced();
    assert_eq!(late.steps[0].rest_ns, healthy.steps[0].rest_ns + 777);
    let first: Vec<u64> = (0..4).map(|rank| records[0].cells[rank].dispatch_wait_ns).collect();
    assert_eq!(first, [777, 777, 777, 0]);
    assert_eq!(records[0].cells[3].dispatch_skew_ns, 777);
    assert_eq!(records[0].cells[4 + 3].dispatch_skew_ns, 0);
    case.faults = Faults::default();
    case.faults.attention = Some(AttentionFault { rank: None, factor: 2.0, from_ns: 0 });
    let slow = case.run();
    assert_eq!(slow.steps[0].attention_slowest_ns, 2 * healthy.steps[0].attention_slowest_ns);
    assert_eq!(slow.steps[0].expert_slowest_ns, healthy.steps[0].expert_slowest_ns);
}

#[test]
fn one_rank_exchanges_nothing() {
    let mut case = Case::skewed(Role::Mixed);
    case.map = ExpertMap::contiguous(&case.shape, 1, 8);
    case.topology = topology(1, 1);
    let (run, records) = case.run_traced();
    assert!(run.steps.iter().all(|step| step.exchange_ns == 0));
    assert!(run.steps.iter().all(|step| step.expert_slowest_ns == step.expert_mean_ns));
    assert!(records.iter().all(|record| record.links.is_empty()));
}

#[test]
fn one_expert_takes_every_row() {
    let shape = shape(2, 1, 1);
    let case = Case {
        routes: recorded(&shape, &[(70, 3), (5, 2)], vec![0; 160]),
        map: ExpertMap::contiguous(&shape, 2, 1),
        topology: topology(1, 2),
        shape,
        ..Case::skewed(Role::Mixed)
    };
    let run = case.run();
    assert_eq!(run.totals.expert_choices, [vec![75, 75], vec![3, 3]]);
    assert_eq!(run.totals.rank_rows[0].iter().sum::<u64>(), 150);
}

fn links(record: &StepRecord, way: Direction) -> Vec<(u16, u16, u32, u64)> {
    let links = record.links.iter().filter(|link| link.direction == way);
    links.map(|l| (l.source.0, l.destination.0, l.messages, l.bytes)).collect()
}

#[test]
fn prefill_crosses_once_per_node_and_forwards_inside() {
    let (_, records) = Case::one_token(Role::Prefill, [2, 3]).run_traced();
    assert_eq!(links(&records[0], Direction::Dispatch), [(0, 2, 1, 100), (2, 3, 1, 100)]);
    assert_eq!(links(&records[0], Direction::Return), [(2, 0, 1, 200), (3, 2, 1, 200)]);
    // Its own rank needs no link, a neighbour one.
    let (_, records) = Case::one_token(Role::Prefill, [0, 1]).run_traced();
    assert_eq!(links(&records[0], Direction::Dispatch), [(0, 1, 1, 100)]);
}

#[test]
fn decode_sends_every_pair() {
    let (_, records) = Case::one_token(Role::Decode, [2, 3]).run_traced();
    assert_eq!(records[0].phase, Phase::Decode);
    assert_eq!(links(&records[0], Direction::Dispatch), [(0, 2, 1, 100), (0, 3, 1, 100)]);
    assert_eq!(links(&records[0], Direction::Return), [(2, 0, 1, 200), (3, 0, 1, 200)]);
}

#[test]
fn distinct_tokens_count_once_where_two_experts_share_a_rank() {
    let token_us = ExpertCoefficients {
        floor_us: 0.0,
        slot_us: 0.0,
        first_us: 0.0,
        tile_rows: 64,
        further_tile_us: 0.0,
        row_us: 0.0,
        token_us: 1.0,
        host_us: 0.0,
    };
    for role in [Role::Prefill, Role::Decode] {
        let mut case = Case::one_token(role, [0, 1]);
        case.curves = HandCurves::with(token_us);
        case.map = ExpertMap::contiguous(&case.shape, 2, 2);
        case.topology = topology(1, 2);
        let run = case.run();
        assert_eq!(run.steps[0].expert_slowest_ns, 1_000, "{role:?}");
        case.map = ExpertMap::contiguous(&case.shape, 4, 1);
        case.topology = topology(2, 2);
        assert_eq!(case.run().steps[0].expert_slowest_ns, 1_000);
    }
}

#[test]
fn clones_in_decode_use_several_copies() {
    let shape = shape(1, 1, 1);
    let routes = recorded(&shape, &[(1, 3)], vec![0; 4]);
    let job = |job| Job { job, ..jobs(&[0])[0] };
    let jobs: Vec<Job> = (0..64).map(job).collect();
    let map = ExpertMap::contiguous(&shape, 2, 1);
    let split = SplitTable::even(&map).unwrap();
    let (curves, topology) = (HandCurves::simple(), topology(1, 2));
    let mut replay =
        Replay::new(&routes, &map, &split, &curves, &topology, &Faults::default()).unwrap();
    let config = config(Role::Decode);
    let run = simulate("c", &config, &routes, &jobs, &mut replay, &mut NoSink, Limits::default())
        .unwrap();
    let [first, second] = run.totals.rank_rows[1][..] else { panic!("two ranks") };
    assert_eq!(first + second, 128);
    assert!(first.min(second) > 40, "{first} {second}");
}

#[test]
fn a_step_of_more_sequences_than_a_counter_holds() {
    let shape = shape(1, 2, 1);
    let routes = recorded(&shape, &[(1, 2)], vec![0; 3]);
    let jobs: Vec<Job> = (0..70_000).map(|job| Job { job, ..jobs(&[0])[0] }).collect();
    let config = GroupConfig {
        decode_sequences_per_rank: 70_000,
        kv_blocks_per_rank: 70_000,
        ..config(Role::Decode)
    };
    for slots in [1, 2] {
        let map = ExpertMap::contiguous(&shape, 2, slots);
        let split = SplitTable::even(&map).unwrap();
        let (curves, topology) = (HandCurves::simple(), topology(1, 2));
        let mut replay =
            Replay::new(&routes, &map, &split, &curves, &topology, &Faults::default()).unwrap();
        let limits = Limits::default();
        let run = simulate("m", &config, &routes, &jobs, &mut replay, &mut NoSink, limits).unwrap();
        assert_eq!((run.steps.len(), run.totals.misplaced_rows), (1, 0));
        assert_eq!(run.totals.expert_choices[1], [70_000, 0]);
        let first = run.totals.rank_rows[1][0];
        assert!(if slots == 1 { first == 70_000 } else { first.abs_diff(35_000) < 1_000 });
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let case = Case::skewed(Role::Mixed);
    let new = |map: &ExpertMap, topology: &Topology, faults: &Faults| {
        let split = SplitTable::even(&case.map).unwrap();
        Replay::new(&case.routes, map, &split, &case.curves, topology, faults).err().unwrap()
    };
    let faults = Faults::default();
    let other = ExpertMap::contiguous(&shape(2, 8, 2), 4, 3);
    assert!(new(&other, &case.topology, &faults).to_string().contains("layers has 2, expected 3"));
    let error = new(&case.map, &topology(1, 2), &faults);
    assert!(error.to_string().contains("ranks has 2, expected 4"), "{error}");
    // Slot i holds expert i mod 8: expert 7's only copy goes, then expert 3's one of two.
    let mut missing = case.map.clone();
    missing.slots[1][2][1] = None;
    let error = new(&missing, &case.topology, &faults);
    assert!(matches!(&error, SimError::Missing { expert: ExpertId(7), .. }), "{error}");
    let mut moved = case.map.clone();
    moved.slots[0][1][0] = None;
    let error = new(&moved, &case.topology, &faults);
    assert!(matches!(&error, SimError::Misplaced { rank: RankId(1), .. }), "{error}");
    let late = Some(LateRank { rank: RankId(4), late_ns: 1, from_ns: 0 });
    let faults = Faults { late_rank: late, ..Faults::default() };
    assert!(new(&case.map, &case.topology, &faults).to_string().contains("below 4"));
}

#[test]
fn the_fitted_curves_serve_every_role() {
    let shape = shape(3, 8, 2);
    let routes = routing(&shape, 8, 1, 90, 6, 3);
    let map = ExpertMap::contiguous(&shape, 16, 1);
    let split = SplitTable::even(&map).unwrap();
    let topology = Topology::uniform("h20", 16, 96_000_000_000);
    let profile = Profile::builtin("h20").unwrap();
    let model = StepModel::resolve(&profile, &shape, &topology).unwrap();
    let mut replay =
        Replay::new(&routes, &map, &split, &model, &topology, &Faults::default()).unwrap();
    for role in [Role::Mixed, Role::Prefill, Role::Decode] {
        let jobs = jobs(&[0; 8]);
        let config = config(role);
        let run =
            simulate("f", &config, &routes, &jobs, &mut replay, &mut NoSink, Limits::default())
                .unwrap();
        assert!(run.requests.iter().all(|request| request.finish_ns.is_some()));
        for step in &run.steps {
            assert!(step.exchange_ns > 0 && step.attention_slowest_ns > 0 && step.rest_ns > 0);
            assert!(step.expert_slowest_ns >= step.expert_mean_ns && step.expert_mean_ns > 0);
        }
    }
}
