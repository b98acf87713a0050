//! The loss of ranks: orphans, promises, and plans that bring every expert back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at a fault")]

mod common;

use common::Problem;
use evenkeel_plan::survive::{
    RestorePlan, Restores, SurviveInput, deserving, live_copies, spread, survey,
};
use evenkeel_plan::{Stage, check};
use evenkeel_types::{
    Domain, DomainKind, ExpertId, ExpertMap, LayerId, Promise, RankId, SurvivePolicy, Topology,
    hash3, unit_f64,
};
use proptest::prelude::*;

const KINDS: [DomainKind; 3] = [DomainKind::Rank, DomainKind::Node, DomainKind::Named];

#[derive(Debug)]
struct Case {
    problem: Problem,
    loads: Vec<u64>,
}

impl Case {
    fn input(&self) -> SurviveInput<'_> {
        SurviveInput {
            shape: &self.problem.shape,
            topology: &self.problem.topology,
            map: &self.problem.live,
            policy: &self.problem.policy,
            loads: Some(&self.loads),
        }
    }
}

/// Copies that fit into a rank's memory with the KV floor, and no byte more.
fn hold_exactly(case: &mut Problem, copies: u64) {
    let (shape, memory) = (&case.shape, &case.policy.memory);
    let wanted = (evenkeel_types::MemoryPolicy::resident_bytes(shape)
        + (copies + u64::from(memory.staging_slots)) * shape.expert_bytes())
        as f64;
    let share = 1.0 - memory.hbm_reserve_share - memory.kv_floor_share;
    for node in &mut case.topology.node {
        node.hbm_bytes = (wanted / share) as u64 + 4096;
    }
}

/// Maps with copies, single experts and empty slots; machines of unequal nodes; memory that holds
/// what is there and `more` copies beside.
fn case() -> impl Strategy<Value = Case> {
    let sizes = (1_u16..4, 1_u16..20, 1_u16..10, 0_usize..4, 1_u16..4);
    let choices = (any::<u64>(), 0_u64..6, any::<bool>(), any::<bool>(), 0.3..1.0_f64);
    (sizes, choices).prop_map(
        |((layers, experts, ranks, spare, per_node), (seed, more, host, dead, enough))| {
            let slots = usize::from(experts).div_ceil(usize::from(ranks)) + spare;
            let mut problem = Problem::new(layers, experts, ranks, slots, Vec::new());
            let node = problem.topology.node[0].clone();
            problem.topology.node.clear();
            let mut left = ranks;
            while left > 0 {
                let ranks = left.min(per_node);
                let domain = ["", "feed-a", "feed-b"][problem.topology.node.len() % 3].to_owned();
                problem.topology.node.push(evenkeel_types::Node { ranks, domain, ..node.clone() });
                left -= ranks;
            }
            if dead && ranks > 1 {
                problem.topology.rank_dead.push(RankId((seed % u64::from(ranks)) as u16));
            }
            // Some copies that have siblings on living ranks end.
            let alive = problem.live.without(&problem.topology.rank_dead);
            for layer in 0..alive.layers() {
                let mut hosts = alive.hosts(LayerId(layer as u16));
                for (rank, slot, expert) in alive.copies(LayerId(layer as u16)) {
                    let key = (u64::from(rank.0) << 32) | (u64::from(slot.0) << 16);
                    let ends = unit_f64(hash3(seed, layer as u64, key)) < 0.4;
                    if ends && hosts[expert.index()].len() > 1 {
                        hosts[expert.index()].retain(|other| *other != rank);
                        problem.live.slots[layer][rank.index()][slot.index()] = None;
                    }
                }
            }
            let copies = problem.live.copies_per_rank().into_iter().max().unwrap_or(0);
            hold_exactly(&mut problem, copies + more);
            problem.policy.restore.host_holds_experts = host;
            problem.policy.plan.balancedness_enough = enough;
            let cells = u64::from(layers) * u64::from(experts);
            let load = |cell| (900.0 * unit_f64(hash3(seed, 77, cell)).powi(3)) as u64;
            let loads = (0..cells).map(load).collect();
            Case { problem, loads }
        },
    )
}

fn orphans_of(map: &ExpertMap, lost: &[RankId], dead: &[RankId]) -> Vec<(LayerId, ExpertId)> {
    let mut orphans = Vec::new();
    for layer in (0..map.layers()).map(|layer| LayerId(layer as u16)) {
        for (expert, hosts) in map.hosts(layer).iter().enumerate() {
            if hosts.iter().all(|rank| lost.contains(rank) || dead.contains(rank)) {
                orphans.push((layer, ExpertId(expert as u16)));
            }
        }
    }
    orphans
}

/// Plays the second part: sources hold what they send, nothing dies, every bound holds.
fn play(
    from: &ExpertMap,
    to: &ExpertMap,
    stages: &[Stage],
    topology: &Topology,
    policy: &evenkeel_types::Policy,
) {
    let mut held: Vec<Vec<Vec<RankId>>> =
        (0..from.layers()).map(|layer| from.hosts(LayerId(layer as u16))).collect();
    let nodes: Vec<_> = topology.ranks().iter().map(|rank| rank.node).collect();
    let missing = held.iter().flatten().filter(|hosts| hosts.is_empty()).count();
    let mut clock_s = 0.0;
    for stage in stages {
        assert!(stage.transfers.len() <= policy.moves.operations_per_stage_max as usize);
        assert!((stage.start_s - clock_s).abs() < 1e-9);
        clock_s += stage.time_s;
        for transfer in &stage.transfers {
            let hosts = &held[transfer.layer.index()][transfer.expert.index()];
            assert!(hosts.contains(&transfer.from) && !hosts.contains(&transfer.to));
            assert!(transfer.start_s >= stage.start_s && transfer.end_s <= clock_s + 1e-9);
            assert!(transfer.start_s < transfer.end_s);
            let out = |t: &&evenkeel_plan::Transfer| {
                let (a, b) = (nodes[t.from.index()], nodes[t.to.index()]);
                a != b && a == nodes[transfer.from.index()]
            };
            let out = stage.transfers.iter().filter(out).count();
            assert!(out <= policy.moves.operations_per_link_max as usize);
            let into = stage.transfers.iter().filter(|t| t.to == transfer.to).count();
            assert!(into <= policy.memory.staging_slots as usize);
        }
        for (layer, rank, expert) in &stage.drops {
            held[layer.index()][expert.index()].retain(|other| other != rank);
        }
        for transfer in &stage.transfers {
            held[transfer.layer.index()][transfer.expert.index()].push(transfer.to);
        }
        assert_eq!(held.iter().flatten().filter(|hosts| hosts.is_empty()).count(), missing);
    }
    for (layer, held) in held.iter_mut().enumerate() {
        held.iter_mut().for_each(|hosts| hosts.sort_unstable());
        assert_eq!(*held, to.hosts(LayerId(layer as u16)));
    }
}

fn holds(case: &Case, plan: &RestorePlan) {
    let Problem { shape, topology, live, policy, .. } = &case.problem;
    let lost = &plan.domain.ranks;
    assert_eq!(plan.orphans, orphans_of(live, lost, &topology.rank_dead));
    let mut back: Vec<_> = plan.loads.iter().map(|load| (load.layer, load.expert)).collect();
    back.extend(&plan.unrestored);
    back.sort_unstable();
    assert_eq!(back, plan.orphans);

    let before = live.without(&topology.rank_dead).without(lost);
    for load in &plan.loads {
        let slot = before.slots[load.layer.index()][load.to.index()][load.slot.index()];
        assert_eq!(slot, load.over);
        assert!(load.start_s < load.end_s && load.end_s <= plan.resume_s + 1e-9);
    }
    let resumed = plan.resumed(&live.without(&topology.rank_dead));
    let rebalanced = plan.rebalanced(&live.without(&topology.rank_dead));
    let mut left = topology.clone();
    left.rank_dead.extend(lost);
    for map in [&resumed, &rebalanced] {
        let found = check(map, shape, &left, policy).unwrap();
        let missing = |v: &evenkeel_types::Violation| {
            matches!(v, evenkeel_types::Violation::Missing { layer, expert }
                if plan.unrestored.contains(&(*layer, *expert)))
        };
        assert!(found.iter().all(missing), "{found:?}");
    }
    // Whoever stays lost found neither a copy to overwrite nor an empty slot that memory holds.
    let copies = resumed.copies_per_rank();
    for (layer, _) in &plan.unrestored {
        assert!(resumed.hosts(*layer).iter().all(|hosts| hosts.len() <= 1));
        for rank in topology.ranks().iter().filter(|r| !lost.contains(&r.id) && !r.dead) {
            let floor = (rank.hbm_bytes as f64 * policy.memory.kv_floor_share) as i64;
            let one_more =
                policy.memory.kv_bytes(shape, rank.hbm_bytes, copies[rank.id.index()] + 1);
            let slots = &resumed.slots[layer.index()][rank.id.index()];
            assert!(one_more < floor || slots.iter().all(Option::is_some));
        }
    }
    play(&resumed, &rebalanced, &plan.stages, topology, policy);
    let bytes = shape.expert_bytes();
    let moved: usize = plan.stages.iter().map(|stage| stage.transfers.len()).sum();
    assert_eq!(plan.bytes_from_peers, moved as u64 * bytes);
    assert_eq!(plan.bytes_from_hosts + plan.bytes_from_disks, plan.loads.len() as u64 * bytes);
    for (rank, peak) in topology.ranks().iter().zip(&plan.memory_peak_bytes) {
        let usable = (rank.hbm_bytes as f64 * (1.0 - policy.memory.hbm_reserve_share)) as u64;
        let floor = (rank.hbm_bytes as f64 * policy.memory.kv_floor_share) as u64;
        assert!(peak + floor <= usable + 1, "{rank:?} {peak}");
        assert_eq!(*peak == 0, rank.dead || lost.contains(&rank.id));
    }
    for (before, after) in plan.balancedness_resumed.iter().zip(&plan.balancedness) {
        assert!(after >= before && *after <= 1.0 + 1e-9);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_plan_is_lawful_over_the_ranks_that_are_left(case in case()) {
        let restores = Restores::precompute(&case.input(), &KINDS).unwrap();
        for plan in restores.plans() {
            holds(&case, plan);
            if !plan.unrestored.is_empty() {
                prop_assert!(restores.switch(&plan.domain.ranks).is_err());
                continue;
            }
            let switch = restores.switch(&plan.domain.ranks).unwrap().unwrap();
            for layer in (0..switch.map.layers()).map(|layer| LayerId(layer as u16)) {
                for (expert, hosts) in switch.map.hosts(layer).iter().enumerate() {
                    let shares = switch.split.shares(layer, ExpertId(expert as u16));
                    let ranks: Vec<RankId> = shares.iter().map(|(rank, _)| *rank).collect();
                    prop_assert_eq!(&ranks, hosts);
                    prop_assert!(ranks.iter().all(|rank| !plan.domain.ranks.contains(rank)));
                }
            }
            let (map, _) = restores.finish(switch.plan).unwrap();
            prop_assert_eq!(map.version, case.problem.live.version + 2);
        }
    }

    #[test]
    fn a_survey_says_what_the_plans_do(case in case()) {
        let restores = Restores::precompute(&case.input(), &[DomainKind::Rank]).unwrap();
        let survey = survey(&case.input(), &[DomainKind::Rank]).unwrap();
        prop_assert_eq!(survey.broken.len(), 0);
        for (seen, plan) in survey.domains.iter().zip(restores.plans()) {
            prop_assert_eq!(&seen.orphans, &plan.orphans);
            prop_assert_eq!(&seen.unrestored, &plan.unrestored);
            prop_assert!((seen.resume_s - plan.resume_s).abs() < 1e-12);
        }
        let live: usize = survey.domains.iter().map(|domain| domain.orphans.len()).sum();
        prop_assert_eq!(deserving(&case.input(), DomainKind::Rank).unwrap().len(), live);
    }

    #[test]
    fn live_copies_break_no_law_and_make_fewer_orphans(case in case(), kind in 0_usize..3) {
        let Problem { shape, topology, policy, live, .. } = &case.problem;
        let map = live_copies(&case.input(), KINDS[kind]).unwrap();
        prop_assert_eq!(check(&map, shape, topology, policy).unwrap().iter().filter(|v| {
            !matches!(v, evenkeel_types::Violation::Missing { .. })
        }).count(), 0);
        for domain in topology.domains(KINDS[kind]) {
            let after = orphans_of(&map, &domain.ranks, &topology.rank_dead);
            let before = orphans_of(live, &domain.ranks, &topology.rank_dead);
            prop_assert!(after.iter().all(|orphan| before.contains(orphan)));
        }
    }

    #[test]
    fn spreading_keeps_copies_counts_and_balance(case in case(), kind in 1_usize..3, loss in 0.0..0.3) {
        let Problem { shape, topology, policy, live, .. } = &case.problem;
        let found = spread(&case.input(), KINDS[kind], loss).unwrap();
        let before = live.without(&topology.rank_dead);
        prop_assert_eq!(before.copies_per_rank(), found.map.copies_per_rank());
        for layer in (0..live.layers()).map(|layer| LayerId(layer as u16)) {
            let count = |map: &ExpertMap| map.hosts(layer).iter().map(Vec::len).collect::<Vec<_>>();
            prop_assert_eq!(count(&before), count(&found.map));
        }
        let broken = check(&found.map, shape, topology, policy).unwrap();
        let missing = |v: &evenkeel_types::Violation| {
            matches!(v, evenkeel_types::Violation::Missing { .. })
        };
        prop_assert!(broken.iter().all(missing));
        let domain_of = topology.domain_of(KINDS[kind]);
        let together = |map: &ExpertMap| {
            let mut found = Vec::new();
            for layer in (0..map.layers()).map(|layer| LayerId(layer as u16)) {
                for (expert, hosts) in map.hosts(layer).iter().enumerate() {
                    let mut domains: Vec<usize> = hosts.iter().map(|r| domain_of[r.index()]).collect();
                    domains.dedup();
                    if hosts.len() > 1 && domains.len() == 1 {
                        found.push((layer, ExpertId(expert as u16)));
                    }
                }
            }
            found
        };
        prop_assert_eq!(together(&before).len(), found.together_before);
        prop_assert_eq!(together(&found.map), found.together);
        for (before, after) in found.balancedness_before.iter().zip(&found.balancedness) {
            prop_assert!(*after >= before / (1.0 + loss) - 1e-9);
        }
    }
}

/// Four ranks on two nodes, 12 experts, one copy each and two spare slots per rank.
fn small(layers: u16) -> Case {
    let mut problem = Problem::new(layers, 12, 4, 5, Vec::new());
    let node = evenkeel_types::Node { ranks: 2, ..problem.topology.node[0].clone() };
    problem.topology.node = vec![node.clone(), node];
    let loads = (0..u64::from(layers) * 12).map(|cell| 100 + cell % 12 * 10).collect();
    Case { problem, loads }
}

#[test]
fn a_promise_that_is_not_kept_names_domain_and_experts() {
    let mut case = small(2);
    let promise = |domain, promise, within_s| SurvivePolicy { domain, promise, within_s };
    case.problem.policy.survive = vec![promise(DomainKind::Rank, Promise::Live, 60.0)];
    let broken = survey(&case.input(), &[]).unwrap().broken;
    assert!(!broken.is_empty());
    let sentence = broken[0].to_string();
    assert!(sentence.starts_with("rank 0: promised `live`, but no other copy of layer 0 expert"));

    case.problem.policy.survive = vec![promise(DomainKind::Rank, Promise::Restorable, 60.0)];
    assert_eq!(survey(&case.input(), &[]).unwrap().broken, []);
    case.problem.policy.survive[0].within_s = 1e-4;
    let late = survey(&case.input(), &[]).unwrap().broken;
    assert!(late[0].experts.is_empty() && late[0].to_string().contains("are back after"));

    // No slot is left for them once a node is gone: ten slots for twelve experts.
    case.problem.policy.survive = vec![promise(DomainKind::Node, Promise::Restorable, 60.0)];
    let broken = survey(&case.input(), &[]).unwrap().broken;
    assert_eq!((broken.len(), broken[0].experts.len()), (2, 4));
    assert!(broken[1].to_string().contains("node 1: promised restorable in 60 s, but no slot"));
}

#[test]
fn live_copies_cover_every_rank_where_slots_double() {
    let case = small(2);
    let mut doubled = Problem::new(2, 12, 4, 3, Vec::new());
    doubled.topology = case.problem.topology.clone();
    for rank in doubled.live.slots.iter_mut().flatten() {
        rank.resize(6, None);
    }
    let case = Case { problem: doubled, loads: case.loads };
    for kind in [DomainKind::Rank, DomainKind::Node] {
        let map = live_copies(&case.input(), kind).unwrap();
        let input = SurviveInput { map: &map, ..case.input() };
        let seen = survey(&input, &[kind]).unwrap();
        assert!(seen.domains.iter().all(|domain| domain.orphans.is_empty()), "{kind}");
    }
}

#[test]
fn the_hottest_and_the_slowest_to_restore_deserve_a_copy_most() {
    let mut case = small(1);
    case.problem.live = ExpertMap::contiguous(&case.problem.shape, 4, 3);
    for rank in &mut case.problem.live.slots[0] {
        rank.resize(5, None);
    }
    let found = deserving(&case.input(), DomainKind::Rank).unwrap();
    assert_eq!(found.len(), 12);
    assert!(found.windows(2).all(|pair| pair[0].worth_s >= pair[1].worth_s));
    for one in &found {
        let product = one.token_share * one.back_s;
        assert!((one.worth_s - product).abs() < 1e-12);
    }
}

#[test]
fn lost_ranks_are_a_domain_of_their_own() {
    let case = small(1);
    let restores = Restores::precompute(&case.input(), &[DomainKind::Node]).unwrap();
    let ranks: Vec<&Domain> = restores.plans().iter().map(|plan| &plan.domain).collect();
    assert_eq!(ranks[1].ranks, [RankId(2), RankId(3)]);
    assert!(restores.of(&[RankId(2)]).is_none());
    assert!(restores.switch(&[RankId(2)]).unwrap().is_none());
}
