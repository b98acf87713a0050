//! Planners that pip cannot install: figures of a study of 30 November 2026, quoted.
//!
//! Same problems, same score; one machine with two cores, CPU time by `process_time`. The first four
//! are others' (the second re-typed from two C++ functions, the fourth found by evolution); the
//! reference is a plain heaviest-first packing with exchanges and 5 ms per layer, whose balance is
//! the least that is asked of the planner here.

use super::peers::Row;

/// Problems in the order of [`BALANCE`].
const PROBLEMS: [&str; 14] =
    ["A", "B1", "B2", "B3", "B4", "B5", "C1", "C2", "D1", "D2", "E1", "E2", "E3", "E4"];

const REFERENCE: &str = "reference, 5 ms/layer (quoted)";

/// Mean balance over layers.
#[rustfmt::skip]
const BALANCE: [(&str, [f64; 14]); 4] = [
    ("TensorRT-LLM (quoted)", [0.8862, 0.9946, 0.9986, 0.9852, 0.9954, 0.9982, 0.9983, 0.9983, 0.9972, 0.9731, 0.9845, 0.9645, 0.9670, 0.7812]),
    ("vllm-ascend FlashLB (quoted)", [0.8948, 0.9961, 0.9989, 0.9885, 0.9968, 0.9985, 0.9987, 0.9985, 0.9976, 0.9798, 0.9899, 0.9811, 0.9971, 0.9062]),
    ("ShinkaEvolve gemini run5 (quoted)", [0.8862, 0.9994, 0.9998, 0.9942, 0.9984, 1.0000, 1.0000, 1.0000, 0.9997, 0.9810, 0.9984, 0.9867, 0.9991, 0.7812]),
    (REFERENCE, [0.8948, 0.9998, 0.9999, 0.9992, 0.9994, 0.9999, 0.9999, 0.9999, 0.9999, 0.9978, 0.9996, 0.9879, 0.9996, 0.9216]),
];

/// CPU time of a plan, ms, on B1, C1, D2.
const CPU_MS: [(&str, [f64; 3]); 4] = [
    ("TensorRT-LLM (quoted)", [3.0, 1.4, 8.2]),
    ("vllm-ascend FlashLB (quoted)", [847.3, 112.4, 7368.6]),
    ("ShinkaEvolve gemini run5 (quoted)", [470.2, 245.5, 864.0]),
    (REFERENCE, [172.0, 4.7, 219.2]),
];

/// Balance of the reference on a problem: rounded to four digits, hence half a unit less.
pub(super) fn reference(problem: &str) -> Option<f64> {
    let index = PROBLEMS.iter().position(|id| *id == problem)?;
    let (_, balance) = BALANCE.iter().find(|(peer, _)| *peer == REFERENCE)?;
    Some(balance[index] - 0.000_05)
}

/// All quoted figures as rows of the tables.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (peer, balances) in BALANCE {
        let times = CPU_MS.iter().find(|(name, _)| *name == peer).map(|(_, times)| times);
        for (problem, balance) in PROBLEMS.iter().zip(balances) {
            let timed = ["B1", "C1", "D2"].iter().position(|id| id == problem);
            rows.push(Row {
                peer: peer.to_owned(),
                problem: (*problem).to_owned(),
                balance: Some(balance),
                cpu_ms: timed.and_then(|index| times.map(|times| times[index])),
                ..Row::default()
            });
        }
    }
    rows
}
