//! Integral maximum flow from experts to the ranks that hold them.
//!
//! Shortest augmenting paths: `O(V·E²)` at worst and a handful of paths in practice, since only
//! experts with two or more copies are in the network.

use std::collections::VecDeque;

/// Experts on one side, ranks on the other, an edge where a rank holds an expert.
pub(crate) struct Flow {
    /// `[expert]` → `(rank, flow)`.
    pub(crate) edges: Vec<Vec<(usize, u64)>>,
    /// `[expert]` → what its copies have not taken.
    left: Vec<u64>,
    /// `[rank]` → capacity not used.
    spare: Vec<u64>,
}

/// What does not fit: the source side of a minimum cut.
pub(crate) struct Cut {
    /// `[expert]`: all its hosts are in the cut.
    pub(crate) experts: Vec<bool>,
    /// `[rank]`: full, and every expert that could leave it is in the cut too.
    pub(crate) ranks: Vec<bool>,
}

impl Flow {
    /// Solves the network; `None` where everything fits, otherwise a minimum cut.
    pub(crate) fn solve(
        hosts: &[Vec<usize>],
        supply: Vec<u64>,
        capacity: Vec<u64>,
    ) -> (Self, Option<Cut>) {
        let edges = hosts.iter().map(|ranks| ranks.iter().map(|&rank| (rank, 0)).collect());
        let mut flow = Self { edges: edges.collect(), left: supply, spare: capacity };
        flow.fill();
        let mut into: Vec<Vec<(usize, usize)>> = vec![Vec::new(); flow.spare.len()];
        for (expert, edges) in flow.edges.iter().enumerate() {
            for (index, &(rank, _)) in edges.iter().enumerate() {
                into[rank].push((expert, index));
            }
        }
        loop {
            if let Some(cut) = flow.augment(&into) {
                let fits = flow.left.iter().all(|left| *left == 0);
                return (flow, (!fits).then_some(cut));
            }
        }
    }

    /// A first flow: every expert gives to the emptiest of its hosts.
    fn fill(&mut self) {
        for (edges, left) in self.edges.iter_mut().zip(&mut self.left) {
            while *left > 0 {
                let Some(index) = (0..edges.len())
                    .filter(|&index| self.spare[edges[index].0] > 0)
                    .max_by_key(|&index| (self.spare[edges[index].0], usize::MAX - index))
                else {
                    break;
                };
                let push = (*left).min(self.spare[edges[index].0]);
                self.spare[edges[index].0] -= push;
                edges[index].1 += push;
                *left -= push;
            }
        }
    }

    /// Pushes along one shortest path; a cut when there is none.
    fn augment(&mut self, into: &[Vec<(usize, usize)>]) -> Option<Cut> {
        let mut seen = vec![false; self.edges.len()];
        // How a rank was reached: expert and index of its edge. How an expert was: by its flow.
        let mut rank_from: Vec<Option<(usize, usize)>> = vec![None; self.spare.len()];
        let mut expert_from: Vec<Option<(usize, usize)>> = vec![None; self.edges.len()];
        let mut queue: VecDeque<usize> = VecDeque::new();
        for (expert, left) in self.left.iter().enumerate() {
            if *left > 0 {
                seen[expert] = true;
                queue.push_back(expert);
            }
        }
        while let Some(expert) = queue.pop_front() {
            for (index, &(rank, _)) in self.edges[expert].iter().enumerate() {
                if rank_from[rank].is_some() {
                    continue;
                }
                rank_from[rank] = Some((expert, index));
                if self.spare[rank] > 0 {
                    self.push(rank, &rank_from, &expert_from);
                    return None;
                }
                for &(other, other_index) in &into[rank] {
                    if !seen[other] && self.edges[other][other_index].1 > 0 {
                        seen[other] = true;
                        expert_from[other] = Some((rank, other_index));
                        queue.push_back(other);
                    }
                }
            }
        }
        let ranks = rank_from.iter().map(Option::is_some).collect();
        Some(Cut { experts: seen, ranks })
    }

    fn push(
        &mut self,
        sink: usize,
        rank_from: &[Option<(usize, usize)>],
        expert_from: &[Option<(usize, usize)>],
    ) {
        let mut path = Vec::new();
        let mut amount = self.spare[sink];
        let mut rank = sink;
        while let Some((expert, index)) = rank_from[rank] {
            path.push((expert, index, true));
            match expert_from[expert] {
                Some((back, back_index)) => {
                    amount = amount.min(self.edges[expert][back_index].1);
                    path.push((expert, back_index, false));
                    rank = back;
                }
                None => {
                    amount = amount.min(self.left[expert]);
                    self.left[expert] -= amount;
                    break;
                }
            }
        }
        for (expert, index, forward) in path {
            let edge = &mut self.edges[expert][index].1;
            *edge = if forward { *edge + amount } else { *edge - amount };
        }
        self.spare[sink] -= amount;
    }
}
