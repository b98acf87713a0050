//! The exact split of one step, in whole rows, fast enough to be solved before every dispatch.
//!
//! Rows that have one host are added up. The rest start level, expert by expert, and then rows move
//! along shortest paths from ranks above the level to ranks below it. Where no path is left, the
//! ranks reached hold nothing that could leave them: rows of the set ÷ its weight is a lower bound
//! on every split, and the new level (Dinkelbach's iteration on the sets that bind).

use crate::SplitError;
use crate::min_max::check;
use evenkeel_types::RankId;

/// Sweeps of levelling before paths are searched. Exactness does not depend on it.
const SWEEPS: usize = 4;

/// No edge: the start of a path.
const NONE: u32 = u32::MAX;

/// Splits counts of one layer over the copies of its experts, step after step, without allocating.
///
/// Prepared once per map layer. The answer is a pure function of hosts, weights and counts: ranks
/// that know the same counts compute the same rows. An engine needs the counts of a step on every
/// rank before it dispatches (an all-gather of `experts` integers per layer, or tokens that all
/// ranks see).
///
/// The largest rank is the least there is in whole rows where weights are equal: ⌈LP optimum⌉.
/// Where they are not, each rank has less than one row more than its part of the LP optimum.
///
/// ```
/// use evenkeel_split::StepSplitter;
/// use evenkeel_types::RankId;
/// let hosts = [vec![RankId(0), RankId(1)], vec![RankId(1)]];
/// let mut splitter = StepSplitter::new(&hosts, &[1, 1])?;
/// splitter.split(&[9_u32, 4])?;
/// assert_eq!(splitter.rows(0), [7, 2]);
/// assert_eq!(splitter.rank_rows(), [7, 6]);
/// # Ok::<(), evenkeel_split::SplitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepSplitter {
    pub(crate) weights: Vec<u32>,
    /// `[expert]` → first of its edges; one more entry closes the last.
    pub(crate) starts: Vec<u32>,
    /// `[edge]` → rank. An edge is one copy: hosts in the order given, experts one after another.
    pub(crate) host: Vec<u16>,
    /// Experts with two or more copies.
    pub(crate) multi: Vec<u32>,
    /// `[rank]` → first entry in `at`; one more closes the last.
    at_starts: Vec<u32>,
    /// Edges of experts with two or more copies, by rank.
    at: Vec<u32>,
    /// `[edge]` → expert.
    expert: Vec<u32>,
    /// `[edge]` → rows.
    pub(crate) rows: Vec<u64>,
    /// `[rank]` → rows.
    pub(crate) rank_rows: Vec<u64>,
    /// `[rank]` → most rows at the level in force.
    cap: Vec<u64>,
    /// `[rank]` → edge that rows leave and edge that they enter, on the path that reached it.
    from: Vec<(u32, u32)>,
    seen: Vec<bool>,
    queue: Vec<u16>,
    level: (u64, u64),
}

impl StepSplitter {
    /// Prepares for `hosts[expert]` and one weight (relative speed) per rank.
    ///
    /// # Errors
    /// An expert without a host, a host that is no rank, or a weight of zero.
    pub fn new(hosts: &[Vec<RankId>], weights: &[u32]) -> Result<Self, SplitError> {
        check(hosts, &vec![0; hosts.len()], weights)?;
        let ranks = weights.len();
        let mut starts = vec![0_u32];
        let (mut host, mut expert, mut multi) = (Vec::new(), Vec::new(), Vec::new());
        for (index, list) in hosts.iter().enumerate() {
            host.extend(list.iter().map(|rank| rank.0));
            expert.extend(list.iter().map(|_| index as u32));
            starts.push(host.len() as u32);
            if list.len() > 1 {
                multi.push(index as u32);
            }
        }
        let (mut at, mut at_starts) = (Vec::new(), vec![0_u32]);
        for rank in 0..ranks {
            let here = host.iter().zip(&expert).enumerate();
            let here = here
                .filter(|(_, (h, e))| usize::from(**h) == rank && hosts[**e as usize].len() > 1);
            at.extend(here.map(|(edge, _)| edge as u32));
            at_starts.push(at.len() as u32);
        }
        Ok(Self {
            weights: weights.to_vec(),
            rows: vec![0; host.len()],
            rank_rows: vec![0; ranks],
            cap: vec![0; ranks],
            from: vec![(NONE, NONE); ranks],
            seen: vec![false; ranks],
            queue: Vec::with_capacity(ranks),
            level: (0, 1),
            starts,
            host,
            multi,
            at_starts,
            at,
            expert,
        })
    }

    /// Splits `counts[expert]`, in rows. Results are read by the methods below.
    ///
    /// # Errors
    /// Another number of counts than experts, or counts beyond 63-bit arithmetic.
    pub fn split<T: Copy + Into<u64>>(&mut self, counts: &[T]) -> Result<(), SplitError> {
        let (found, expected) = (counts.len(), self.starts.len() - 1);
        if found != expected {
            return Err(SplitError::Length { what: "counts", found, expected });
        }
        let total = counts.iter().fold(0_u64, |sum, count| sum.saturating_add((*count).into()));
        let weight: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        if total.checked_mul(weight.max(1)).is_none_or(|product| product >= 1 << 62) {
            return Err(SplitError::TooLarge { rows: total, weight });
        }
        self.rank_rows.fill(0);
        for (expert, count) in counts.iter().enumerate() {
            let edges = self.edges(expert);
            if edges.len() == 1 {
                self.rows[edges.start] = (*count).into();
                self.rank_rows[usize::from(self.host[edges.start])] += (*count).into();
            }
        }
        self.level = (total, weight.max(1));
        for (rows, weight) in self.rank_rows.iter().zip(&self.weights) {
            self.level = larger(self.level, (*rows, u64::from(*weight)));
        }
        for index in 0..self.multi.len() {
            self.pour(index, counts[self.multi[index] as usize].into(), true);
        }
        for _ in 1..SWEEPS {
            let mut changed = false;
            for index in 0..self.multi.len() {
                changed |= self.pour(index, counts[self.multi[index] as usize].into(), false);
            }
            if !changed {
                break;
            }
        }
        self.lower();
        Ok(())
    }

    /// Rows of each copy of an expert, in the order of its hosts; they sum to its count.
    ///
    /// An expert beyond the map is a caller's fault and panics.
    #[must_use]
    pub fn rows(&self, expert: usize) -> &[u64] {
        &self.rows[self.edges(expert)]
    }

    /// `[rank]`: rows of the last split.
    #[must_use]
    pub fn rank_rows(&self) -> &[u64] {
        &self.rank_rows
    }

    /// Rows and weight of the set of ranks that binds: no split of any kind, fractions of a row
    /// included, has a largest rank below `rows ÷ weight`.
    #[must_use]
    pub fn bound(&self) -> (u64, u64) {
        self.level
    }

    /// The copy that takes the `nth` row of an expert: index among its hosts, copies in order.
    ///
    /// Rows are counted over all ranks' tokens in rank order, so that no row is served twice. A row
    /// beyond the expert's count goes to its last copy.
    #[must_use]
    pub fn copy_of(&self, expert: usize, nth: u64) -> usize {
        let rows = self.rows(expert);
        let mut end = 0;
        let found = rows.iter().position(|rows| {
            end += rows;
            nth < end
        });
        found.unwrap_or(rows.len().saturating_sub(1))
    }

    pub(crate) fn edges(&self, expert: usize) -> std::ops::Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }

    /// Fills an expert's hosts from the emptiest up, the others' rows given; whether that changed
    /// the largest of them.
    fn pour(&mut self, index: usize, count: u64, first: bool) -> bool {
        let expert = self.multi[index] as usize;
        let edges = self.edges(expert);
        if first {
            self.rows[edges.clone()].fill(0);
        }
        let before = self.rows[edges.start];
        for edge in edges.clone() {
            self.rank_rows[usize::from(self.host[edge])] -= self.rows[edge];
            self.rows[edge] = 0;
        }
        let (mut base, mut weight) = (0_u64, 0_u64);
        // Hosts under water, found one by one: copies are few.
        loop {
            let next = edges.clone().filter(|edge| self.rows[*edge] == 0).min_by(|a, b| {
                let (a, b) = (self.depth(*a), self.depth(*b));
                (a.0 * b.1).cmp(&(b.0 * a.1))
            });
            let Some(edge) = next else { break };
            let (rows, here) = self.depth(edge);
            // At or above the level that the count reaches without this host.
            if weight > 0 && rows * weight >= (base + count) * here {
                break;
            }
            base += rows;
            weight += here;
            self.rows[edge] = 1;
        }
        let mut left = count;
        for edge in edges.clone() {
            if self.rows[edge] == 1 {
                let (rows, here) = self.depth(edge);
                let whole = ((base + count) * here / weight.max(1)).saturating_sub(rows).min(left);
                self.rows[edge] = whole + 1;
                left -= whole;
            }
        }
        // Fewer rows than copies are left; experts start at different copies.
        let copies = edges.len();
        for turn in 0..copies {
            let edge = edges.start + (expert + turn) % copies;
            if self.rows[edge] > 0 {
                let extra = u64::from(left > 0);
                self.rows[edge] = self.rows[edge] - 1 + extra;
                left -= extra;
                self.rank_rows[usize::from(self.host[edge])] += self.rows[edge];
            }
        }
        before.abs_diff(self.rows[edges.start]) > 1
    }

    fn depth(&self, edge: usize) -> (u64, u64) {
        let rank = usize::from(self.host[edge]);
        (self.rank_rows[rank], u64::from(self.weights[rank]))
    }

    /// Moves rows until no rank is above the level, which rises where it has to.
    fn lower(&mut self) {
        self.set_caps();
        loop {
            let over = (0..self.cap.len()).find(|rank| self.rank_rows[*rank] > self.cap[*rank]);
            let Some(over) = over else { return };
            match self.search(over) {
                Some(sink) => self.push(over, sink),
                None => {
                    let (mut rows, mut weight) = (0, 0);
                    for &rank in &self.queue {
                        rows += self.rank_rows[usize::from(rank)];
                        weight += u64::from(self.weights[usize::from(rank)]);
                    }
                    self.level = larger(self.level, (rows, weight));
                    self.set_caps();
                }
            }
        }
    }

    fn set_caps(&mut self) {
        let (rows, weight) = self.level;
        for (cap, own) in self.cap.iter_mut().zip(&self.weights) {
            *cap = (rows * u64::from(*own)).div_ceil(weight);
        }
    }

    /// The nearest rank with room that rows of `over` can reach; otherwise the queue holds all
    /// ranks that they reach.
    fn search(&mut self, over: usize) -> Option<usize> {
        self.seen.fill(false);
        self.queue.clear();
        self.seen[over] = true;
        self.from[over] = (NONE, NONE);
        self.queue.push(over as u16);
        let mut head = 0;
        while head < self.queue.len() {
            let rank = usize::from(self.queue[head]);
            head += 1;
            for place in self.at_starts[rank]..self.at_starts[rank + 1] {
                let edge = self.at[place as usize];
                if self.rows[edge as usize] == 0 {
                    continue;
                }
                for other in self.edges(self.expert[edge as usize] as usize) {
                    let to = usize::from(self.host[other]);
                    if self.seen[to] {
                        continue;
                    }
                    self.seen[to] = true;
                    self.from[to] = (edge, other as u32);
                    if self.rank_rows[to] < self.cap[to] {
                        return Some(to);
                    }
                    self.queue.push(to as u16);
                }
            }
        }
        None
    }

    fn push(&mut self, over: usize, sink: usize) {
        let excess = self.rank_rows[over] - self.cap[over];
        let mut amount = excess.min(self.cap[sink] - self.rank_rows[sink]);
        let mut rank = sink;
        while self.from[rank].0 != NONE {
            let leave = self.from[rank].0 as usize;
            amount = amount.min(self.rows[leave]);
            rank = usize::from(self.host[leave]);
        }
        self.rank_rows[over] -= amount;
        self.rank_rows[sink] += amount;
        rank = sink;
        while self.from[rank].0 != NONE {
            let (leave, enter) = self.from[rank];
            self.rows[leave as usize] -= amount;
            self.rows[enter as usize] += amount;
            rank = usize::from(self.host[leave as usize]);
        }
    }
}

/// The larger of two fractions of at most 2^62 ÷ 2^17 each way.
fn larger(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    let greater = u128::from(b.0) * u128::from(a.1) > u128::from(a.0) * u128::from(b.1);
    if greater { b } else { a }
}
