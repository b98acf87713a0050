//! The split by source that crosses least under a limit on every rank's rows.

/// One source node's rows of one expert, and where they may go.
#[derive(Clone, Debug)]
pub(super) struct Supply {
    /// Rank, what a row costs there, rows that go there.
    pub(super) arcs: Vec<(usize, f64, f64)>,
}

const EPSILON: f64 = 1e-9;

/// Moves rows from ranks above their limit to ranks below theirs along the cheapest paths; returns
/// whether every rank ends within its limit.
///
/// Starts from every row on its cheapest arc, where no cycle saves anything; successive cheapest
/// paths keep it so, which makes the end a minimum (Ahuja, Magnanti, Orlin, Network Flows, 9.7).
pub(super) fn relieve(supplies: &mut [Supply], load: &mut [f64], limit: &[f64]) -> bool {
    let ranks = load.len();
    let arcs: usize = supplies.iter().map(|supply| supply.arcs.len()).sum();
    for _ in 0..8 * (arcs + ranks) {
        let Some(start) = (0..ranks).find(|rank| load[*rank] > limit[*rank] + EPSILON) else {
            return true;
        };
        // Bellman–Ford over ranks; an edge is the best exchange of one supply's rows.
        let mut cost = vec![f64::INFINITY; ranks];
        let mut via: Vec<Option<(usize, usize, usize)>> = vec![None; ranks];
        cost[start] = 0.0;
        for _ in 0..ranks {
            let mut changed = false;
            for (index, supply) in supplies.iter().enumerate() {
                for (from, (rank, here, rows)) in supply.arcs.iter().enumerate() {
                    if *rows <= EPSILON || !cost[*rank].is_finite() {
                        continue;
                    }
                    for (to, (other, there, _)) in supply.arcs.iter().enumerate() {
                        let next = cost[*rank] + there - here;
                        if to != from && next + EPSILON < cost[*other] {
                            (cost[*other], via[*other]) = (next, Some((index, from, to)));
                            changed = true;
                        }
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let open = |rank: &usize| cost[*rank].is_finite() && load[*rank] + EPSILON < limit[*rank];
        let goal = (0..ranks).filter(open).min_by(|a, b| cost[*a].total_cmp(&cost[*b]));
        let Some(goal) = goal else { return false };
        let (mut path, mut at) = (Vec::new(), goal);
        while at != start && path.len() < ranks {
            let Some((index, from, to)) = via[at] else { return false };
            path.push((index, from, to));
            at = supplies[index].arcs[from].0;
        }
        let most = (load[start] - limit[start]).min(limit[goal] - load[goal]);
        let amount =
            path.iter().fold(most, |most, (i, from, _)| most.min(supplies[*i].arcs[*from].2));
        for (index, from, to) in path {
            supplies[index].arcs[from].2 -= amount;
            supplies[index].arcs[to].2 += amount;
        }
        load[start] -= amount;
        load[goal] += amount;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_relieves_at_the_least_cost() {
        // Rank 0 holds 10 rows above its limit of 6; rank 1 is free and near, rank 2 is far.
        let supply = |a: f64| Supply { arcs: vec![(0, 0.0, a), (1, 0.0, 0.0), (2, 1.0, 0.0)] };
        let mut supplies = vec![supply(6.0), supply(4.0)];
        let mut load = vec![10.0, 0.0, 0.0];
        assert!(relieve(&mut supplies, &mut load, &[6.0, 3.0, 9.0]));
        assert!((load[1] - 3.0).abs() < 1e-6 && (load[2] - 1.0).abs() < 1e-6, "{load:?}");
        let mut load = vec![10.0, 0.0, 0.0];
        let mut supplies = vec![supply(6.0), supply(4.0)];
        assert!(!relieve(&mut supplies, &mut load, &[3.0, 3.0, 3.0]));
    }
}
