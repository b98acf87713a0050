//! The derivation: laws, value and bound of a certificate, from its numbers alone. At most 200 lines,
//! and nothing shared with `plan` or `split`: a fault there does not repeat here.

use super::{Certificate, CertifiedObjective, Notes};
use evenkeel_cost::ExpertCoefficients;
use evenkeel_types::MemoryPolicy;

/// Every expert lives, nowhere twice, not on dead ranks; memory, pins, even slots, whole groups.
pub(super) fn laws(c: &Certificate, notes: &mut Notes) {
    let (q, plan) = (&c.question, &c.question.policy.plan);
    let (ranks, experts) = (q.topology.ranks(), usize::from(q.shape.experts));
    let groups = q.shape.groups.map_or(1, |groups| usize::from(groups.groups.max(1)));
    let (mut held, mut first) = (vec![0; ranks.len()], None);
    for layer in 0..c.map.slots.len() {
        let place = |expert: usize| format!("layer {layer}, expert {expert}");
        let (mut hosts, mut all) = (vec![Vec::new(); experts], vec![0; experts]);
        let mut here = vec![0; ranks.len()];
        for (rank, expert, parts) in copies(c, layer) {
            here[rank] += 1;
            if expert >= experts {
                notes.note(place(expert), "expert", format!("below {experts}"), expert);
            } else if hosts[expert].contains(&rank) {
                notes.note(place(expert), "copies on a rank", 1, format!("2 on rank {rank}"));
            } else if ranks[rank].dead {
                notes.note(place(expert), "rank", "alive", format!("rank {rank} is dead"));
            } else {
                hosts[expert].push(rank);
                all[expert] += u64::from(parts);
            }
        }
        let mut home = vec![None; groups];
        for (expert, hosts) in hosts.iter().enumerate() {
            if all[expert] == 0 {
                notes.note(place(expert), "parts over all copies", "1 or more", 0);
            }
            let home = &mut home[expert * groups / experts];
            let away = |r: &usize| *home.get_or_insert(ranks[*r].node) != ranks[*r].node;
            if plan.groups_on_nodes && hosts.iter().any(away) {
                notes.note(place(expert), "nodes of its group", 1, "more");
            }
        }
        for pin in plan.pinned.iter().filter(|pin| pin.layer.index() == layer) {
            if !hosts.get(pin.expert.index()).is_some_and(|h| h.contains(&pin.rank.index())) {
                notes.note(place(pin.expert.index()), "pinned to", pin.rank, "not there");
            }
        }
        let even: &mut Vec<u64> = first.get_or_insert_with(|| here.clone());
        if plan.same_slots_per_layer && *even != here {
            notes.note(format!("layer {layer}"), "copies per rank", "as in layer 0", "others");
        }
        held.iter_mut().zip(here).for_each(|(held, here)| *held += here);
    }
    let (memory, resident) = (&q.policy.memory, MemoryPolicy::resident_bytes(&q.shape) as f64);
    for (rank, held) in ranks.iter().zip(held) {
        let held = held + u64::from(memory.staging_slots);
        let weights = resident + (held * q.shape.expert_bytes()) as f64;
        let may = rank.hbm_bytes as f64 * (1.0 - memory.hbm_reserve_share - memory.kv_floor_share);
        if weights > may + 2.0 {
            notes.note(rank.id.to_string(), "weight bytes", format!("at most {may}"), weights);
        }
    }
}

/// (rank, expert, parts) of every copy of a layer.
fn copies(c: &Certificate, layer: usize) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
    let slots = c.map.slots[layer].iter().enumerate();
    let copies = slots.flat_map(|(r, s)| s.iter().flatten().map(move |e| (r, e.index())));
    copies.zip(&c.parts[layer]).map(|((rank, expert), parts)| (rank, expert, *parts))
}

/// The slowest rank of every layer, mean over steps, and what no map can beat; their sums.
pub(super) fn values(c: &Certificate, notes: &mut Notes) {
    let summed = c.question.objective == CertifiedObjective::SummedTokens;
    let fixed = if summed { 0.0 } else { c.question.fixed_us };
    let (mut value, mut bound) = (fixed, fixed);
    for (layer, claim) in c.claims.layers.iter().enumerate() {
        let (us, least_us) = layer_values(c, layer, summed);
        notes.same(|| format!("layer {layer}"), "us", claim.us, us);
        notes.same(|| format!("layer {layer}"), "bound_us", claim.bound_us, least_us);
        (value, bound) = (value + us, bound + least_us);
    }
    notes.same(|| "step".to_owned(), "step_us", c.claims.step_us, value);
    notes.same(|| "step".to_owned(), "bound_us", c.claims.bound_us, bound);
    let gap = if bound > 0.0 { value / bound - 1.0 } else { 0.0 };
    notes.same(|| "step".to_owned(), "gap_share", c.claims.gap_share, gap);
}

/// Value and bound of one layer.
fn layer_values(c: &Certificate, layer: usize, summed: bool) -> (f64, f64) {
    let (q, ranks) = (&c.question, c.question.topology.ranks());
    let alive: Vec<usize> = (0..ranks.len()).filter(|r| !ranks[*r].dead).collect();
    let speeds: f64 = alive.iter().map(|r| ranks[*r].speed_share).sum();
    let cost = Cost::of(c, alive.len());
    let idle = |r: usize, slots: usize| {
        let extra = q.rank_extra_us.as_ref().map_or(0.0, |x| x[layer * ranks.len() + r]);
        cost.k.floor_us + cost.k.slot_us * slots as f64 + extra
    };
    let now: Vec<f64> = (0..ranks.len()).map(|r| idle(r, c.map.slots[layer][r].len())).collect();
    let live = |r: usize| usize::from(q.slots_live[layer][r]);
    let factor: Vec<f64> = ranks.iter().map(|rank| 1.0 / rank.speed_share).collect();
    let mut least: Vec<_> = alive.iter().map(|r| (idle(*r, live(*r)), factor[*r])).collect();
    let idle_us: f64 = least.iter().map(|(us, _)| us).sum();
    least.dedup();
    let free = |r: &usize| live(*r).max(usize::from(q.policy.plan.slots_per_rank));
    let slots: usize = alive.iter().map(free).sum();
    let mut all = vec![0.0; q.loads.experts];
    copies(c, layer).for_each(|(_, expert, parts)| all[expert] += f64::from(parts));
    let shares: Vec<(usize, usize, f64)> =
        copies(c, layer).map(|(r, e, parts)| (r, e, f64::from(parts) / all[e])).collect();
    let (mut us, mut least_us) = (0.0, 0.0);
    let steps = q.loads.steps.chunks(if summed { q.loads.steps.len() } else { 1 });
    let count = steps.len() as f64;
    for steps in steps {
        let mut rows = vec![0.0; q.loads.experts];
        for step in steps {
            let counts = &step.counts[layer * rows.len()..];
            rows.iter_mut().zip(counts).for_each(|(row, count)| *row += f64::from(*count));
        }
        let whole: Vec<f64> = rows.iter().map(|m| cost.cell(*m)).collect();
        let mut time = now.clone();
        for (rank, e, share) in &shares {
            time[*rank] += if *share < 1.0 { cost.cell(rows[*e] * share) } else { whole[*e] };
        }
        let slowest = alive.iter().map(|r| time[*r] * factor[*r]).fold(0.0, f64::max);
        let work = idle_us + whole.iter().sum::<f64>() + cost.cuts(&rows, alive.len());
        let alone = |piece: f64| {
            let times = least.iter().map(|(idle, factor)| (idle + cost.cell(piece)) * factor);
            cost.knee(times.fold(f64::INFINITY, f64::min))
        };
        us += cost.knee(slowest);
        least_us += or_piece(cost.knee(work / speeds), &rows, slots, alive.len(), alone);
    }
    (us / count, least_us / count)
}

/// What an expert's expected rows on a rank cost, linear between whole rows.
struct Cost {
    k: ExpertCoefficients,
    row_us: f64,
}

impl Cost {
    fn of(c: &Certificate, alive: usize) -> Self {
        let q = &c.question;
        if q.objective == CertifiedObjective::SummedTokens {
            return Self { k: ExpertCoefficients::FREE, row_us: 1.0 };
        }
        // A rank sees 1 − e^−x distinct tokens per token of the step, x = choices per rank.
        let x = f64::from(q.shape.top_k) / alive as f64;
        let token_us = q.coefficients.token_us * (1.0 - (-x).exp()) / x;
        Self { k: q.coefficients, row_us: q.coefficients.row_us + q.exchange_us_per_row + token_us }
    }

    fn cell(&self, rows: f64) -> f64 {
        let tile = f64::from(self.k.tile_rows.max(1));
        let first = rows * self.row_us + rows.min(1.0) * self.k.first_us;
        if rows <= tile {
            return first;
        }
        let full = (rows / tile) as u64 as f64;
        first + (full - 1.0 + (rows - full * tile).min(1.0)) * self.k.further_tile_us
    }

    /// What cutting experts could save at most: only a first tile cheaper than a further one does.
    fn cuts(&self, rows: &[f64], ranks: usize) -> f64 {
        let saved = (self.k.first_us - self.k.further_tile_us).min(0.0);
        let tiles = |m: &f64| (m / f64::from(self.k.tile_rows.max(1))).ceil().min(ranks as f64);
        let cuts = rows.iter().filter(|_| saved < 0.0).map(|m| (tiles(m) - 1.0).max(0.0));
        saved * cuts.sum::<f64>()
    }

    /// Applies the host's launch time, `(a⁸ + b⁸)^(1/8)`.
    fn knee(&self, us: f64) -> f64 {
        let (least, most) = (self.k.host_us.min(us), self.k.host_us.max(us));
        if least > 0.0 { most * (1.0 + (least / most).powi(8)).powf(0.125) } else { most }
    }
}

/// The larger of `mean` and the time of the largest piece, were every expert cut as finely as
/// `slots` allow, into at most one piece per rank.
fn or_piece(mean: f64, rows: &[f64], slots: usize, ranks: usize, time: impl Fn(f64) -> f64) -> f64 {
    let most = rows.iter().copied().fold(0.0, f64::max);
    if most <= 0.0 || time(most) <= mean {
        return mean.max(time(most));
    }
    let pieces = |size: f64| rows.iter().map(move |m| (m / size).ceil().max(1.0));
    let (mut low, mut high) = (most / ranks as f64, most);
    for _ in 0..60 {
        let size = 0.5 * (low + high);
        if pieces(size).sum::<f64>() > slots as f64 {
            low = size;
        } else if time(size) <= mean {
            return mean;
        } else {
            high = size;
        }
    }
    let largest = rows.iter().zip(pieces(high)).map(|(m, pieces)| m / pieces).fold(0.0, f64::max);
    mean.max(time(largest))
}
