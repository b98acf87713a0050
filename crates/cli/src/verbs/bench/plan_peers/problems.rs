//! Problems A to E, bundled: loads, ranks, slots.

use crate::fail::Failure;
use evenkeel_interop::{LoadMatrix, SourceFile, load_matrices};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

const LOADS: &[u8] = include_bytes!("../../../../../../assets/plan-problems/problems.npz");

const SHAPES: &str = include_str!("../../../../../../assets/plan-problems/problems.json");

/// Ranks, slots and so on of one problem, as in `problems.json`.
#[derive(Debug, Deserialize)]
struct Shape {
    ranks: usize,
    slots: usize,
    layers: usize,
    experts: usize,
}

/// One placement problem: summed tokens over the copies of a number of slots.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// `B1`, `D2`, …
    pub(crate) id: String,
    /// MoE layers.
    pub(crate) layers: usize,
    /// Logical experts per layer.
    pub(crate) experts: usize,
    /// Ranks.
    pub(crate) ranks: usize,
    /// Slots per layer over all ranks, a multiple of the ranks.
    pub(crate) slots: usize,
    /// `[layer * experts + expert]`, tokens.
    pub(crate) loads: Vec<u64>,
    /// The same after every load drifted by exp(0.15 N); B to D only.
    pub(crate) drifted: Option<Vec<u64>>,
}

impl Problem {
    /// Loads of one layer, `[expert]`.
    pub(crate) fn layer(&self, layer: usize) -> &[u64] {
        &self.loads[layer * self.experts..][..self.experts]
    }

    /// Slots of a rank in a layer.
    pub(crate) fn slots_per_rank(&self) -> usize {
        self.slots / self.ranks
    }
}

/// Writes the bundled problems to a folder, as they are.
pub(crate) fn unpack(folder: &Path) -> Result<(), Failure> {
    crate::out::write_file(&folder.join("problems.npz"), LOADS)?;
    crate::out::write_file(&folder.join("problems.json"), SHAPES.as_bytes())
}

/// Reads the bundled problems, in the order A, B1 to B5, C1, C2, D1, D2, E1 to E4.
pub(crate) fn load() -> Result<Vec<Problem>, Failure> {
    let shapes: BTreeMap<String, Shape> =
        serde_json::from_str(SHAPES).map_err(|error| Failure::input(error).context("problems"))?;
    let file = SourceFile { name: "problems.npz".to_owned(), bytes: LOADS.to_vec() };
    let matrices = load_matrices(&file).map_err(Failure::input)?;
    let find = |name: &str| matrices.iter().find(|matrix| matrix.name == name);
    let mut problems = Vec::with_capacity(shapes.len());
    for (id, Shape { ranks, slots, layers, experts }) in shapes {
        let tokens = |matrix: &LoadMatrix| {
            ((matrix.layers, matrix.experts) == (layers, experts)).then(|| matrix.tokens.clone())
        };
        let loads = find(&id).and_then(tokens).ok_or_else(|| {
            Failure::input(format!("problem {id}: expected loads of {layers} x {experts}"))
        })?;
        let drifted = find(&format!("{id}_drift15")).and_then(tokens);
        problems.push(Problem { id, layers, experts, ranks, slots, loads, drifted });
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_problems_fit_their_shapes() {
        let problems = load().unwrap();
        let ids: Vec<&str> = problems.iter().map(|problem| problem.id.as_str()).collect();
        assert_eq!(
            ids,
            ["A", "B1", "B2", "B3", "B4", "B5", "C1", "C2", "D1", "D2", "E1", "E2", "E3", "E4"]
        );
        for problem in &problems {
            assert_eq!(problem.slots % problem.ranks, 0, "{}", problem.id);
            assert_eq!(problem.drifted.is_some(), ('B'..='D').any(|c| problem.id.starts_with(c)));
        }
        assert_eq!(problems[1].loads.iter().sum::<u64>(), 60_817_418);
        assert_eq!(problems[13].loads, [600, 560, 120, 120, 20, 10, 10, 10]);
    }
}
