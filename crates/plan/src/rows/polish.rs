//! Exchanges between the highest rank and another, until none helps.
//!
//! An exchange takes a few copies each way. It helps when both ranks end lower than the highest was;
//! the best one comes closest to levelling the two. Sums of what each rank could give are sorted, so
//! the partner of every sum is found by walking both lists once.

use super::bins::Bins;

/// A gain below this share of the level is rounding.
const NOISE: f64 = 1e-12;

/// Copies that go one way: up to two, and their rows.
#[derive(Clone, Copy, Debug)]
struct Part {
    rows: f64,
    experts: [u16; 2],
    count: u8,
}

const NOBODY: u16 = u16::MAX;

/// An exchange with the highest rank.
#[derive(Clone, Copy)]
struct Exchange {
    other: usize,
    give: Part,
    take: Part,
}

/// How far to look for an exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reach {
    /// Ranks that are looked at before the best exchange found is taken, the lowest first.
    pub(crate) ranks: usize,
    /// Two copies may go each way, where one does not help.
    pub(crate) pairs: bool,
    /// Most exchanges.
    pub(crate) exchanges: usize,
}

/// Memory that is kept between exchanges.
#[derive(Default)]
pub(crate) struct Scratch {
    mine: Vec<Part>,
    theirs: Vec<Part>,
    /// Ranks in use by level, lowest first.
    order: Vec<u16>,
}

/// Exchanges until the highest rank is within `enough` or cannot be lowered. Returns whether
/// `enough` was reached.
pub(crate) fn polish(
    bins: &mut Bins<'_>,
    enough: f64,
    reach: Reach,
    scratch: &mut Scratch,
) -> bool {
    let mut order = std::mem::take(&mut scratch.order);
    order.clear();
    order.extend((0..bins.ranks() as u16).filter(|rank| bins.layer.sizes[usize::from(*rank)] > 0));
    order.sort_unstable_by(|a, b| {
        bins.level[usize::from(*a)].total_cmp(&bins.level[usize::from(*b)]).then(a.cmp(b))
    });
    let mut reached = false;
    for _ in 0..reach.exchanges {
        let Some(hot) = order.last().map(|rank| usize::from(*rank)) else { break };
        if bins.level[hot] <= enough {
            reached = true;
            break;
        }
        let found = best(bins, hot, false, reach.ranks, &order, scratch).or_else(|| {
            reach.pairs.then(|| best(bins, hot, true, reach.ranks, &order, scratch)).flatten()
        });
        let Some(exchange) = found else { break };
        apply(bins, hot, &exchange);
        for rank in [hot, exchange.other] {
            reorder(&mut order, rank as u16, &bins.level);
        }
    }
    scratch.order = order;
    reached || bins.highest() <= enough
}

/// Puts a rank whose level has changed back in its place.
fn reorder(order: &mut Vec<u16>, rank: u16, level: &[f64]) {
    order.retain(|other| *other != rank);
    let here = level[usize::from(rank)];
    let place = order.partition_point(|other| {
        let there = level[usize::from(*other)];
        there < here || (there.total_cmp(&here).is_eq() && *other < rank)
    });
    order.insert(place, rank);
}

fn apply(bins: &mut Bins<'_>, hot: usize, exchange: &Exchange) {
    let Exchange { other, give, take } = *exchange;
    for (part, from) in [(give, hot), (take, other)] {
        part.experts[..usize::from(part.count)].iter().for_each(|e| bins.take(from, *e));
    }
    for (part, to) in [(give, other), (take, hot)] {
        part.experts[..usize::from(part.count)].iter().for_each(|e| bins.put(to, *e));
    }
}

/// The exchange after which the higher of the two ranks is lowest; `None` where none helps.
fn best(
    bins: &Bins<'_>,
    hot: usize,
    pairs: bool,
    ranks: usize,
    order: &[u16],
    scratch: &mut Scratch,
) -> Option<Exchange> {
    let inverse = bins.layer.inverse_speed;
    let level = bins.level[hot];
    let mut best: Option<Exchange> = None;
    let mut limit = level * (1.0 - NOISE);
    let Scratch { mine, theirs, .. } = scratch;
    parts(bins, hot, pairs, mine);
    for (seen, other) in order[..order.len() - 1].iter().enumerate() {
        let other = usize::from(*other);
        // Were both level: rows are conserved, so the higher of the two cannot end lower.
        let (there, a, b) = (bins.level[other], inverse[hot], inverse[other]);
        let levelled = (level * b + there * a) / (a + b);
        if levelled >= limit {
            // With equal speeds all that follow are higher still.
            continue;
        }
        if seen >= ranks && best.is_some() {
            break;
        }
        parts(bins, other, pairs, theirs);
        let room = [bins.room(hot), bins.room(other)];
        // Rows to give that would level the two.
        let wanted = (level - levelled) / a;
        let mut from = 0;
        for give in mine.iter() {
            // Both lists ascend: the partner of a larger sum lies further on.
            while from < theirs.len() && theirs[from].rows < give.rows - wanted {
                from += 1;
            }
            for take in &theirs[from.saturating_sub(1)..(from + 1).min(theirs.len())] {
                let moved = give.rows - take.rows;
                let ends = (level - moved * a).max(there + moved * b);
                if ends < limit && allowed(bins, hot, other, give, take, room) {
                    limit = ends;
                    best = Some(Exchange { other, give: *give, take: *take });
                }
            }
        }
    }
    best
}

/// Everything that a rank could give, by rows: nothing, one copy and, with `pairs`, two.
fn parts(bins: &Bins<'_>, rank: usize, pairs: bool, into: &mut Vec<Part>) {
    into.clear();
    into.push(Part { rows: 0.0, experts: [NOBODY; 2], count: 0 });
    let (held, rows) = (bins.held(rank), bins.rows(rank));
    // Held largest first; the lists ascend.
    for place in (0..held.len()).rev() {
        let (a, of_a) = (held[place], rows[place]);
        into.push(Part { rows: of_a, experts: [a, NOBODY], count: 1 });
        if pairs {
            for (b, of_b) in held[place + 1..].iter().zip(&rows[place + 1..]) {
                into.push(Part { rows: of_a + of_b, experts: [a, *b], count: 2 });
            }
        }
    }
    if pairs {
        into.sort_unstable_by(|a, b| a.rows.total_cmp(&b.rows).then(a.experts.cmp(&b.experts)));
    }
}

/// Room on both sides, and no second copy of an expert on a rank.
fn allowed(
    bins: &Bins<'_>,
    hot: usize,
    other: usize,
    give: &Part,
    take: &Part,
    room: [usize; 2],
) -> bool {
    let [room_hot, room_other] = room;
    if usize::from(take.count) > usize::from(give.count) + room_hot
        || usize::from(give.count) > usize::from(take.count) + room_other
    {
        return false;
    }
    let twice = |part: &Part, to: usize| {
        part.experts[..usize::from(part.count)]
            .iter()
            .any(|e| bins.copies[usize::from(*e)] > 1 && bins.holds(to, *e))
    };
    !twice(give, other) && !twice(take, hot)
}
