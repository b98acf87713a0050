//! Situations from the field as text: `cases/plan/*.toml`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reads its cases, and stops at a fault"
)]

mod common;

use common::{Problem, certify::certified};
use evenkeel_plan::survive::{Restores, SurviveInput, survey};
use evenkeel_plan::{check, plan, plan_from_scratch};
use evenkeel_types::{DomainKind, ExpertId, LayerId, RankId};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(rename = "about")]
    _about: String,
    experts: u16,
    /// `[layer][rank][slot]`, −1 for an empty slot.
    live: Vec<Vec<Vec<i32>>>,
    /// `[step][layer * experts + expert]`.
    steps: Vec<Vec<u32>>,
    /// A rank that is lost.
    lost: Option<u16>,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    orphans: Option<Vec<(u16, u16)>>,
    unrestored: Option<Vec<(u16, u16)>>,
    /// What the planner refuses with.
    plan: Option<String>,
    /// `[layer][expert]`: copies of a plan from scratch.
    copies: Option<Vec<Vec<usize>>>,
}

fn problem(case: &Case) -> Problem {
    let (layers, ranks) = (case.live.len(), case.live[0].len());
    let mut problem =
        Problem::new(layers as u16, case.experts, ranks as u16, 1, case.steps.clone());
    let expert = |id: &i32| u16::try_from(*id).ok().map(ExpertId);
    problem.live.slots = case
        .live
        .iter()
        .map(|layer| layer.iter().map(|slots| slots.iter().map(expert).collect()).collect())
        .collect();
    problem
}

fn run(case: &Case, name: &str) {
    let mut problem = problem(case);
    if let Some(lost) = case.lost {
        let totals = problem.loads.total();
        let input = SurviveInput {
            shape: &problem.shape,
            topology: &problem.topology,
            map: &problem.live,
            policy: &problem.policy,
            loads: Some(&totals),
        };
        let seen = survey(&input, &[DomainKind::Rank]).unwrap();
        let pairs = |list: &[(LayerId, ExpertId)]| -> Vec<(u16, u16)> {
            list.iter().map(|(layer, expert)| (layer.0, expert.0)).collect()
        };
        let domain = &seen.domains[usize::from(lost)];
        assert_eq!(Some(pairs(&domain.orphans)), case.expect.orphans, "{name}");
        assert_eq!(Some(pairs(&domain.unrestored)), case.expect.unrestored, "{name}");
        let restores = Restores::precompute(&input, &[DomainKind::Rank]).unwrap();
        let restore = restores.of(&[RankId(lost)]).unwrap();
        assert_eq!(pairs(&restore.unrestored), pairs(&domain.unrestored), "{name}");
        problem.topology.rank_dead.push(RankId(lost));
        if restore.unrestored.is_empty() {
            let bytes = restore.orphans.len() as u64 * problem.shape.expert_bytes();
            let loaded = restore.bytes_from_hosts + restore.bytes_from_disks;
            assert_eq!(loaded, bytes, "{name}: one copy of each orphan");
            for map in [restore.resumed(&problem.live), restore.rebalanced(&problem.live)] {
                let Problem { shape, topology, policy, .. } = &problem;
                assert_eq!(check(&map, shape, topology, policy).unwrap(), [], "{name}");
            }
        }
    }
    if let Some(words) = &case.expect.plan {
        assert_eq!(&plan(problem.input()).unwrap_err().to_string(), words, "{name}");
    }
    if let Some(copies) = &case.expect.copies {
        let plan = plan_from_scratch(problem.input()).unwrap();
        certified(&problem.input(), &plan);
        for (layer, copies) in copies.iter().enumerate() {
            let hosts = plan.map.hosts(LayerId(layer as u16));
            let found: Vec<usize> = hosts.iter().map(Vec::len).collect();
            assert_eq!(&found, copies, "{name}, layer {layer}");
        }
    }
}

#[test]
fn every_case_ends_as_said() {
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "cases", "plan"].iter().collect();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "only {} cases", files.len());
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file).unwrap();
        let case: Case = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        run(&case, &name);
    }
}
