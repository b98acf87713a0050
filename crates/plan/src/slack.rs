//! Maps for engines that split every step exactly.
//!
//! Under an exact per-step split a map is worth what its copies can still repair: a rank without a
//! copy that has a sibling elsewhere can give nothing away, however even its window was. The search
//! values a map by the steps themselves, solved exactly, and weighs bad steps more.

use crate::PlanError;
use evenkeel_split::StepSplitter;
use evenkeel_types::{ExpertId, RankId, hash3};

/// Power of max ÷ mean that steps are summed by: bad steps decide, as in a high percentile.
const POWER: i32 = 6;

/// One layer's slots, `[rank][slot]`.
pub type LayerSlots = Vec<Vec<Option<ExpertId>>>;

/// Improves one layer for the exact per-step split of `steps[step][expert]` rows.
///
/// From `start`, exchanges two copies or overwrites a copy that has siblings, at random by `seed`,
/// and keeps what does not worsen the sum over steps of (largest ÷ mean rank)^6; `tries` of them.
/// Deterministic. Never two copies of an expert on a rank that `start` does not already have, and
/// never the last copy overwritten.
///
/// # Errors
/// A start without a copy of some expert, or steps of another number of experts.
pub fn slack_slots(
    start: &LayerSlots,
    steps: &[Vec<u32>],
    tries: usize,
    seed: u64,
) -> Result<LayerSlots, PlanError> {
    let experts = steps.first().map_or(0, Vec::len);
    let mut slots = start.clone();
    let places: Vec<(usize, usize)> = slots
        .iter()
        .enumerate()
        .flat_map(|(rank, list)| (0..list.len()).map(move |slot| (rank, slot)))
        .collect();
    let mut best = worth(&slots, steps, f64::INFINITY)?;
    if experts == 0 || places.is_empty() {
        return Ok(slots);
    }
    for number in 0..tries as u64 {
        let draw = |what: u64, below: usize| (hash3(seed, number, what) % below as u64) as usize;
        let (a, i) = places[draw(0, places.len())];
        let (b, j) = places[draw(1, places.len())];
        let before = (slots[a][i], slots[b][j]);
        if number % 2 == 0 {
            let holds = |rank: usize, expert: Option<ExpertId>| slots[rank].contains(&expert);
            if a == b || holds(a, before.1) || holds(b, before.0) {
                continue;
            }
            slots[a][i] = before.1;
            slots[b][j] = before.0;
        } else {
            let copy = Some(ExpertId(draw(2, experts) as u16));
            let siblings = slots.iter().flatten().filter(|expert| **expert == before.0).count();
            if slots[a].contains(&copy) || (before.0.is_some() && siblings < 2) {
                continue;
            }
            slots[a][i] = copy;
        }
        let found = worth(&slots, steps, best)?;
        if found <= best {
            best = found;
        } else {
            slots[b][j] = before.1;
            slots[a][i] = before.0;
        }
    }
    Ok(slots)
}

/// Sum over steps of (largest ÷ mean rank)^6; infinite once it is beyond `enough`.
fn worth(slots: &LayerSlots, steps: &[Vec<u32>], enough: f64) -> Result<f64, PlanError> {
    let experts = steps.first().map_or(0, Vec::len);
    let mut hosts = vec![Vec::new(); experts];
    for (rank, list) in slots.iter().enumerate() {
        let rank = RankId(rank as u16);
        for expert in list.iter().flatten() {
            let ranks: &mut Vec<RankId> = match hosts.get_mut(expert.index()) {
                Some(ranks) => ranks,
                None => continue,
            };
            if ranks.last() != Some(&rank) {
                ranks.push(rank);
            }
        }
    }
    let mut splitter = StepSplitter::new(&hosts, &vec![1; slots.len()])?;
    let mut sum = 0.0;
    for counts in steps {
        splitter.split(counts)?;
        let rows: u64 = splitter.rank_rows().iter().sum();
        let most = splitter.rank_rows().iter().copied().max().unwrap_or(0);
        sum += (most as f64 * slots.len() as f64 / (rows as f64).max(1.0)).powi(POWER);
        if sum > enough {
            return Ok(f64::INFINITY);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_with_nothing_to_give_gets_something() {
        // Ranks 2 and 3 cannot relieve each other: their experts have one copy each.
        let ids = [[0, 1, 4], [1, 0, 5], [2, 6, 8], [3, 7, 9]];
        let start: LayerSlots =
            ids.iter().map(|rank| rank.iter().map(|id| Some(ExpertId(*id))).collect()).collect();
        let steps: Vec<Vec<u32>> = (0..16)
            .map(|step| (0..10).map(|expert| (hash3(1, step, expert) % 40) as u32).collect())
            .collect();
        let found = slack_slots(&start, &steps, 2000, 3).unwrap();
        assert_eq!(found, slack_slots(&start, &steps, 2000, 3).unwrap());
        let (before, after) =
            (worth(&start, &steps, f64::INFINITY), worth(&found, &steps, f64::INFINITY));
        assert!(after.unwrap() < 0.8 * before.unwrap());
        for expert in 0..10 {
            assert!(found.iter().flatten().any(|held| *held == Some(ExpertId(expert))));
        }
        for rank in &found {
            let mut held = rank.clone();
            held.sort();
            held.dedup();
            assert_eq!(held.len(), 3);
        }
    }
}
