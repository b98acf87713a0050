//! Which layer buys next: the best gain per transfer over all layers, under one cap and one memory.

use crate::PlanError;
use crate::search::Point;
use std::collections::BTreeMap;

/// States of one layer that a move may end in, and the one chosen so far.
pub(crate) struct Offers {
    points: Vec<Point>,
    /// Indices of the lower convex hull of (transfers, time), fewest transfers first.
    hull: Vec<usize>,
    /// Place in `hull`.
    at: usize,
    shut: bool,
}

impl Offers {
    /// `points` must hold a state without transfers.
    pub(crate) fn new(points: Vec<Point>) -> Self {
        let hull = hull(&points);
        Self { points, hull, at: 0, shut: false }
    }

    /// The state chosen so far.
    pub(crate) fn chosen(&self) -> &Point {
        &self.points[self.hull[self.at]]
    }

    fn next(&self) -> Option<&Point> {
        self.hull.get(self.at + 1).filter(|_| !self.shut).map(|index| &self.points[*index])
    }

    /// Gives the layer back to its first state and offers nothing more.
    pub(crate) fn revert(&mut self) {
        self.at = 0;
        self.shut = true;
    }
}

/// Points that no mixture of fewer and more transfers beats, fewest first.
fn hull(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    let moves = |index: usize| points[index].arrivals.len();
    order.sort_by(|a, b| {
        moves(*a).cmp(&moves(*b)).then(points[*a].us.total_cmp(&points[*b].us)).then(a.cmp(b))
    });
    let mut hull: Vec<usize> = Vec::new();
    for index in order {
        if hull.last().is_some_and(|last| points[index].us >= points[*last].us) {
            continue;
        }
        while let [.., first, second] = hull[..] {
            let slope = |from: usize, to: usize| {
                (points[from].us - points[to].us) / (moves(to) - moves(from)) as f64
            };
            if slope(first, second) > slope(first, index) {
                break;
            }
            hull.pop();
        }
        hull.push(index);
    }
    hull
}

/// Limits of a purchase over all layers.
pub(crate) struct Budget {
    pub(crate) transfers_max: usize,
    /// Least gain per transfer, µs.
    pub(crate) gain_us_min: f64,
    /// `[rank]`: empty slots that memory allows to be filled.
    pub(crate) room: Vec<u64>,
}

/// Buys, the best gain per transfer first. Where a rank's memory is used up the layer concerned is
/// searched again from where it stands by `again(layer, chosen point, room)`.
///
/// Returns (transfers, time saved so far, µs) after each purchase.
pub(crate) fn buy(
    offers: &mut [Offers],
    budget: &mut Budget,
    mut again: impl FnMut(usize, &Point, &[u64]) -> Result<Vec<Point>, PlanError>,
) -> Result<Vec<(usize, f64)>, PlanError> {
    // Gain per transfer as ordered bits, then the layer (the lowest first among equals).
    let mut queue: BTreeMap<(u64, usize), ()> = BTreeMap::new();
    let key = |offers: &[Offers], layer: usize| {
        let (here, next) = (offers[layer].chosen(), offers[layer].next()?);
        let transfers = next.arrivals.len().saturating_sub(here.arrivals.len()).max(1);
        let gain = (here.us - next.us) / transfers as f64;
        (gain >= budget.gain_us_min && gain > 0.0).then_some((gain.to_bits(), usize::MAX - layer))
    };
    for layer in 0..offers.len() {
        queue.extend(key(offers, layer).map(|key| (key, ())));
    }
    let mut transfers = 0;
    let mut saved_us = 0.0;
    let mut bought = Vec::new();
    // Searching a layer again only follows a rank's running out of room, at most once each.
    let mut searches = vec![0_usize; offers.len()];
    while let Some(((_, turned), ())) = queue.pop_last() {
        let layer = usize::MAX - turned;
        let Some(next) = offers[layer].next() else { continue };
        let here = offers[layer].chosen();
        let after = transfers + next.arrivals.len() - here.arrivals.len();
        let (gain_us, fits) = (here.us - next.us, room_after(&budget.room, here, next));
        if after > budget.transfers_max {
            offers[layer].shut = true;
        } else if let Some(room) = fits {
            budget.room = room;
            transfers = after;
            saved_us += gain_us;
            bought.push((transfers, saved_us));
            offers[layer].at += 1;
        } else if searches[layer] < budget.room.len() {
            searches[layer] += 1;
            let points = again(layer, here, &budget.room)?;
            offers[layer] = resume(&offers[layer], points);
        } else {
            offers[layer].shut = true;
        }
        queue.extend(key(offers, layer).map(|key| (key, ())));
    }
    Ok(bought)
}

/// The old offers up to the chosen state, then new points beyond it.
fn resume(old: &Offers, points: Vec<Point>) -> Offers {
    let mut kept: Vec<Point> =
        old.hull[..=old.at].iter().map(|index| old.points[*index].clone()).collect();
    let at = kept.len() - 1;
    let first = kept.len();
    let base = old.chosen();
    kept.extend(
        points
            .into_iter()
            .filter(|point| point.arrivals.len() > base.arrivals.len() && point.us < base.us),
    );
    let mut tail = vec![base.clone()];
    tail.extend(kept[first..].iter().cloned());
    let mut hull_of: Vec<usize> = (0..=at).collect();
    hull_of.extend(hull(&tail).into_iter().skip(1).map(|index| first + index - 1));
    Offers { points: kept, hull: hull_of, at, shut: false }
}

/// Room left after going from one state to another, `None` where a rank's does not suffice.
fn room_after(room: &[u64], here: &Point, next: &Point) -> Option<Vec<u64>> {
    let filled = |point: &Point, rank: usize| point.slots[rank].iter().flatten().count() as u64;
    (0..room.len())
        .map(|rank| (room[rank] + filled(here, rank)).checked_sub(filled(next, rank)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::RankId;

    fn points(values: &[(usize, f64)]) -> Vec<Point> {
        let arrivals = |moves| vec![(0, RankId(0), 0.0); moves];
        let point = |(moves, us): &(usize, f64)| Point {
            slots: vec![vec![Some(0); *moves]],
            us: *us,
            arrivals: arrivals(*moves),
        };
        values.iter().map(point).collect()
    }

    #[test]
    fn the_hull_skips_poor_purchases() {
        let points = points(&[(0, 10.0), (1, 9.5), (2, 6.0), (3, 6.5), (4, 5.0), (9, 4.9)]);
        assert_eq!(hull(&points), [0, 2, 4, 5]);
    }

    #[test]
    fn layers_buy_by_gain_per_transfer_under_one_cap() {
        let mut offers = vec![
            Offers::new(points(&[(0, 10.0), (2, 6.0)])),
            Offers::new(points(&[(0, 9.0), (1, 6.0), (2, 5.5)])),
        ];
        let mut budget = Budget { transfers_max: 3, gain_us_min: 0.1, room: vec![10] };
        let bought = buy(&mut offers, &mut budget, |_, _, _| Ok(Vec::new())).unwrap();
        assert_eq!(bought, [(1, 3.0), (3, 7.0)]);
        assert_eq!(offers[1].chosen().arrivals.len(), 1);
        assert_eq!(budget.room, [7]);
    }

    #[test]
    fn a_full_rank_is_searched_again_and_then_left() {
        let mut offers = vec![Offers::new(points(&[(0, 10.0), (2, 6.0)]))];
        let mut budget = Budget { transfers_max: 9, gain_us_min: 0.1, room: vec![1] };
        let again = |_: usize, _: &Point, _: &[u64]| Ok(points(&[(0, 10.0), (1, 9.0)]));
        assert_eq!(buy(&mut offers, &mut budget, again).unwrap(), [(1, 1.0)]);
    }
}
