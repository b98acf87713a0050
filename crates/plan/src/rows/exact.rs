//! The best placement of a small layer, by branch and bound over copy counts and packings.

use super::bins::{Bins, LayerRows};

/// A level below the best by less than this share is the same.
const NOISE: f64 = 1e-12;

/// Searches all placements for one that is lower than `best`, up to `nodes` nodes.
///
/// Returns it, and whether the search was complete: then nothing is lower than the result, or than
/// `best` where there is none.
pub(crate) fn exact<'a>(layer: LayerRows<'a>, best: f64, nodes: usize) -> (Option<Bins<'a>>, bool) {
    let mut order: Vec<usize> = (0..layer.loads.len()).collect();
    order.sort_by(|a, b| layer.loads[*b].total_cmp(&layer.loads[*a]).then(a.cmp(b)));
    let mut search = Search {
        layer,
        fastest: layer.inverse_speed.iter().copied().fold(f64::INFINITY, f64::min),
        mean: layer.mean(),
        alike: layer.inverse_speed.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq()),
        order,
        copies: vec![1; layer.loads.len()],
        best,
        found: None,
        left: nodes,
        levels: Vec::new(),
        held: Vec::new(),
    };
    search.count(0, layer.slots() - layer.loads.len());
    let complete = search.left > 0;
    (search.found.map(|held| Bins::holding(layer, &held)), complete)
}

struct Search<'a> {
    layer: LayerRows<'a>,
    fastest: f64,
    mean: f64,
    alike: bool,
    /// Experts, most rows first.
    order: Vec<usize>,
    copies: Vec<u16>,
    best: f64,
    found: Option<Vec<Vec<u16>>>,
    left: usize,
    levels: Vec<f64>,
    held: Vec<Vec<u16>>,
}

impl Search<'_> {
    fn limit(&self) -> f64 {
        self.best * (1.0 - NOISE)
    }

    fn done(&self) -> bool {
        self.left == 0 || self.mean >= self.limit()
    }

    /// Chooses the copies of the experts from `place` on, `spare` of them beside the first ones.
    fn count(&mut self, place: usize, spare: usize) {
        if self.done() {
            return;
        }
        self.left -= 1;
        let Some(&expert) = self.order.get(place) else { return self.pack_all() };
        let most = (spare + 1).min(self.layer.ranks_in_use());
        for copies in 1..=most {
            let piece = self.layer.loads[expert] / copies as f64;
            // A piece that is too high alone needs more copies.
            if piece * self.fastest < self.limit() {
                self.copies[expert] = copies as u16;
                self.count(place + 1, spare + 1 - copies);
            }
        }
        self.copies[expert] = 1;
    }

    fn pack_all(&mut self) {
        let mut pieces: Vec<(f64, u16)> = Vec::new();
        for (expert, copies) in self.copies.iter().enumerate() {
            let piece = self.layer.loads[expert] / f64::from(*copies);
            pieces.extend(std::iter::repeat_n((piece, expert as u16), usize::from(*copies)));
        }
        pieces.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // Of the largest R + 1 pieces two share a rank.
        let ranks = self.layer.ranks_in_use();
        if let (Some(a), Some(b)) = (pieces.get(ranks.wrapping_sub(1)), pieces.get(ranks))
            && (a.0 + b.0) * self.fastest >= self.limit()
        {
            return;
        }
        let extra = |rank: usize| self.layer.extra.get(rank).copied().unwrap_or(0.0);
        let inverse = self.layer.inverse_speed;
        self.levels = (0..inverse.len()).map(|rank| extra(rank) * inverse[rank]).collect();
        self.held = vec![Vec::new(); inverse.len()];
        self.pack(&pieces, 0, 0);
    }

    /// Lays the pieces from `place` on; copies of one expert go to ranks in ascending order.
    fn pack(&mut self, pieces: &[(f64, u16)], place: usize, from: usize) {
        if self.done() {
            return;
        }
        self.left -= 1;
        let Some(&(piece, expert)) = pieces.get(place) else {
            self.best = self.levels.iter().copied().fold(0.0, f64::max);
            self.found = Some(self.held.clone());
            return;
        };
        let again = pieces.get(place + 1).is_some_and(|next| next.1 == expert);
        let limit = self.limit();
        for rank in from..self.levels.len() {
            let ends = self.levels[rank] + piece * self.layer.inverse_speed[rank];
            if self.held[rank].len() == self.layer.sizes[rank] || ends >= limit {
                continue;
            }
            // An empty rank is like any other empty rank before it.
            let twin = |other: usize| {
                self.held[other].is_empty()
                    && self.layer.sizes[other] == self.layer.sizes[rank]
                    && self.levels[other].total_cmp(&self.levels[rank]).is_eq()
            };
            if self.alike && self.held[rank].is_empty() && (from..rank).any(twin) {
                continue;
            }
            let before = std::mem::replace(&mut self.levels[rank], ends);
            self.held[rank].push(expert);
            self.pack(pieces, place + 1, if again { rank + 1 } else { 0 });
            self.held[rank].pop();
            self.levels[rank] = before;
            // The best may have fallen below what lies here already.
            if self.levels.iter().any(|level| *level >= self.limit()) {
                return;
            }
        }
    }
}
