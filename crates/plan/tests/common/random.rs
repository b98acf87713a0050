//! Random questions with everything that a machine, a policy and a live map can have.

use super::Problem;
use evenkeel_plan::{Objective, SplitRule};
use evenkeel_types::{
    ExpertGroups, ExpertId, LayerId, LinkHealth, MemoryPolicy, NodeId, Pin, RankId, RankSpeed,
    hash3, unit_f64,
};

/// Draws from one stream, named by what they are for.
pub struct Draw {
    seed: u64,
    count: u64,
}

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    /// 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        (hash3(self.seed, 77, self.count) % n.max(1) as u64) as usize
    }

    pub fn unit(&mut self) -> f64 {
        self.count += 1;
        unit_f64(hash3(self.seed, 78, self.count))
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

/// A count: nothing, few, many, or as many as a count can be.
fn count(draw: &mut Draw, kind: usize) -> u32 {
    match kind {
        0 => 0,
        1 => draw.below(4) as u32,
        2 => (300.0 * (3.0 * draw.unit()).exp()) as u32,
        3 => u32::MAX - draw.below(2) as u32,
        _ => [0, 1, 70, 4_000_000][draw.below(4)],
    }
}

/// A question of any shape. The live map is lawful apart from what dead ranks took away: uneven
/// layers, empty slots, spare copies.
pub fn question(seed: u64) -> Problem {
    let mut draw = Draw::new(seed);
    let draw = &mut draw;
    let (layers, experts) = (1 + draw.below(4), 1 + draw.below(20));
    let ranks = 1 + draw.below(8);
    let kind = draw.below(5);
    let steps = 1 + draw.below(4);
    let counts = (0..steps)
        .map(|_| (0..layers * experts).map(|_| count(draw, kind)).collect())
        .collect::<Vec<Vec<u32>>>();
    let mut problem = Problem::new(
        layers as u16,
        experts as u16,
        ranks as u16,
        1,
        vec![vec![0; layers * experts]],
    );
    problem.loads.steps =
        counts.into_iter().map(|counts| evenkeel_trace::StepLoad { tokens: 7, counts }).collect();
    live(&mut problem, draw, ranks);
    machine(&mut problem, draw, ranks);
    policy(&mut problem, draw, ranks);
    problem
}

fn live(problem: &mut Problem, draw: &mut Draw, ranks: usize) {
    let experts = problem.shape.experts;
    let uneven = draw.chance(0.5);
    let most = usize::from(experts).div_ceil(ranks) + draw.below(3);
    for layer in &mut problem.live.slots {
        for slots in layer.iter_mut() {
            let size = if uneven { draw.below(most + 2) } else { most };
            slots.clear();
            for _ in 0..size {
                let expert = ExpertId(draw.below(usize::from(experts)) as u16);
                let free = !draw.chance(0.3) && !slots.contains(&Some(expert));
                slots.push(free.then_some(expert));
            }
        }
        for expert in (0..experts).map(ExpertId) {
            if layer.iter().flatten().any(|slot| *slot == Some(expert)) {
                continue;
            }
            // Into the first empty slot from a random rank on, else a further one.
            let first = draw.below(ranks);
            let turn = (0..ranks).map(|turn| (first + turn) % ranks);
            let free = turn
                .filter_map(|rank| Some((rank, layer[rank].iter().position(Option::is_none)?)))
                .next();
            match free {
                Some((rank, slot)) => layer[rank][slot] = Some(expert),
                None => layer[first].push(Some(expert)),
            }
        }
    }
}

fn machine(problem: &mut Problem, draw: &mut Draw, ranks: usize) {
    let node = problem.topology.node[0].clone();
    let mut left = ranks;
    problem.topology.node.clear();
    while left > 0 {
        let here = 1 + draw.below(left);
        problem.topology.node.push(evenkeel_types::Node { ranks: here as u16, ..node.clone() });
        left -= here;
    }
    let dead = if draw.chance(0.4) { draw.below(ranks) } else { 0 };
    while problem.topology.rank_dead.len() < dead {
        let rank = RankId(draw.below(ranks) as u16);
        if !problem.topology.is_dead(rank) {
            problem.topology.rank_dead.push(rank);
        }
    }
    if draw.chance(0.3) {
        let rank = RankId(draw.below(ranks) as u16);
        let speed_share = 0.2 + 0.8 * draw.unit();
        problem.topology.rank_speed.push(RankSpeed { rank, speed_share });
    }
    if problem.topology.node.len() > 1 && draw.chance(0.2) {
        let node = NodeId(draw.below(problem.topology.node.len()) as u16);
        problem.topology.link_health.push(LinkHealth { node, rate_share: 0.5 });
    }
    if draw.chance(0.3) {
        let cells = problem.live.layers() * ranks;
        problem.rank_extra_us = Some((0..cells).map(|_| 50.0 * draw.unit()).collect());
    }
    problem.objective =
        if draw.chance(0.4) { Objective::SummedTokens } else { Objective::StepTime };
    problem.split = if draw.chance(0.4) { SplitRule::Even } else { SplitRule::Balanced };
    let c = &mut problem.coefficients;
    c.host_us = if draw.chance(0.2) { 30.0 } else { 0.0 };
    c.token_us = if draw.chance(0.2) { 0.01 } else { 0.0 };
    if draw.chance(0.2) {
        (c.first_us, c.further_tile_us) = (2.0, 9.0);
    }
    if draw.chance(0.1) {
        *c = evenkeel_cost::ExpertCoefficients::FREE;
    }
}

fn policy(problem: &mut Problem, draw: &mut Draw, ranks: usize) {
    let policy = &mut problem.policy;
    policy.plan.balancedness_enough = 1.0;
    policy.plan.gain_min_share = if draw.chance(0.7) { 0.0 } else { 0.03 };
    policy.plan.gain_us_per_gb_min = if draw.chance(0.5) { 0.0 } else { 4.0 };
    policy.plan.slots_per_rank = draw.below(6) as u16;
    policy.plan.same_slots_per_layer = draw.chance(0.1);
    policy.moves.moves_max = [0, 1, 2, 5, 4096, 4096][draw.below(6)];
    policy.moves.operations_per_stage_max = 1 + draw.below(32) as u32;
    policy.moves.operations_per_link_max = 1 + draw.below(8) as u32;
    policy.memory.staging_slots = draw.below(4) as u32;
    problem.seed = draw.below(1 << 20) as u64;
    let experts = problem.shape.experts;
    if draw.chance(0.15) && experts.is_multiple_of(2) {
        problem.shape.groups = Some(ExpertGroups { groups: 2, top_groups: 1 });
        policy.plan.groups_on_nodes = draw.chance(0.7);
    }
    for _ in 0..if draw.chance(0.2) { 1 + draw.below(3) } else { 0 } {
        let layer = LayerId(draw.below(problem.live.layers()) as u16);
        let rank = RankId(draw.below(ranks) as u16);
        // Half of the pins are met by the live map.
        let slots = &problem.live.slots[layer.index()][rank.index()];
        let held = slots.iter().flatten().next().copied();
        let any = ExpertId(draw.below(usize::from(experts)) as u16);
        let expert = held.filter(|_| draw.chance(0.5)).unwrap_or(any);
        let pin = Pin { layer, expert, rank };
        if !policy.plan.pinned.contains(&pin) {
            policy.plan.pinned.push(pin);
        }
    }
    // Memory for what the fullest rank holds, and 0 to 3 copies more; or plenty; by node.
    if draw.chance(0.5) {
        let most = problem.live.copies_per_rank().into_iter().max().unwrap_or(0);
        for node in &mut problem.topology.node {
            let copies = most + u64::from(policy.memory.staging_slots) + draw.below(4) as u64;
            let weights = MemoryPolicy::resident_bytes(&problem.shape)
                + copies * problem.shape.expert_bytes();
            node.hbm_bytes = (weights as f64 / 0.7) as u64 + 10;
        }
    }
}
