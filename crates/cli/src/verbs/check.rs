//! `check`: does this map keep the laws on this machine, and the move to it as well?

use super::import;
use crate::certificate;
use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::Out;
use crate::setting;
use clap::Args;
use evenkeel_plan::survive::{PromiseBroken, SurviveInput, broken_promises};
use evenkeel_plan::{TransitionViolation, check_transition};
use evenkeel_types::{ModelShape, Violation};
use serde::Serialize;
use std::path::PathBuf;

/// Check a map against the laws: every expert lives, copies are copies, memory holds.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel check map.json --model deepseek-v2-lite --topology h20:16
  evenkeel check next.json --from live.json --topology topology.toml
  evenkeel check next.json --certificate next.certificate.json
Exit code 1: a law is broken, or a certificate does not hold.")]
pub(crate) struct Arguments {
    /// Map to check.
    #[arg(required_unless_present = "certificate")]
    map: Option<PathBuf>,
    /// Certificate of `plan --certificate`: derive its value and bound again, by code that knows
    /// nothing of the planner. With a map: that it is the map certified.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "model", "topology", "policy"])]
    certificate: Option<PathBuf>,
    /// Map that is live now: the move from it is checked at every stage.
    #[arg(long, value_name = "MAP")]
    from: Option<PathBuf>,
    /// Model, a known name or a file; default: the map's own.
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Topology file, or PROFILE:RANKS.
    #[arg(long, value_name = "FILE|PROFILE:RANKS")]
    topology: Option<String>,
    /// Policy file.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

#[derive(Serialize)]
struct Checked {
    map_version: u64,
    digest: String,
    layers: usize,
    ranks: usize,
    experts: u16,
    memory_checked: bool,
    violations: Vec<Violation>,
    /// Promises of the policy about lost ranks; looked at where the map keeps the laws.
    promises: Vec<PromiseBroken>,
    transition: Vec<TransitionViolation>,
    statements: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    if let Some(path) = &arguments.certificate {
        return certificate::check(path, arguments.map.as_deref(), out);
    }
    let Some(path) = &arguments.map else { return Err(Failure::input("no map to check")) };
    let map = load::map(path)?;
    let policy = load::policy(arguments.policy.as_deref())?;
    let topology = arguments.topology.as_deref().map(setting::topology).transpose()?;
    let name = arguments.model.as_deref().unwrap_or(&map.model);
    let shape = match &arguments.model {
        Some(model) => Some(import::shape(model)?),
        None => ModelShape::known(name),
    };
    if shape.is_none() && topology.is_some() {
        return Err(Failure::input(format!("model `{name}` is not known"))
            .hint(format!("known: {}", ModelShape::KNOWN.join(", "))));
    }
    if let (Some(shape), Some(topology)) = (&shape, &topology) {
        map.fits(shape, topology.rank_count())
            .map_err(|error| Failure::input(error).context(path.display()))?;
    }
    let mut violations = map.violations();
    let (mut transition, mut promises) = (Vec::new(), Vec::new());
    let memory_checked = shape.is_some() && topology.is_some();
    if let (Some(shape), Some(topology)) = (&shape, &topology) {
        violations.extend(policy.memory.violations(&map, shape, topology));
        violations.extend(policy.plan.violations(&map, shape, topology));
        if violations.is_empty() {
            let (map, policy) = (&map, &policy);
            let question = SurviveInput { shape, topology, map, policy, loads: None };
            promises = broken_promises(&question).map_err(Failure::input)?;
        }
        if let Some(from) = &arguments.from {
            let live = load::map(from)?;
            transition = check_transition(&live, &map, shape, topology, &policy)
                .map_err(|error| Failure::input(error).context(from.display()))?;
            transition.retain(|broken| !matches!(broken, TransitionViolation::Map { .. }));
        }
    } else if arguments.from.is_some() {
        return Err(Failure::input("--from needs --topology and a known model"));
    }
    let checked = Checked {
        map_version: map.version,
        digest: map.digest(),
        layers: map.layers(),
        ranks: map.ranks(),
        experts: map.experts,
        memory_checked,
        statements: violations
            .iter()
            .map(ToString::to_string)
            .chain(promises.iter().map(ToString::to_string))
            .chain(transition.iter().map(ToString::to_string))
            .collect(),
        violations,
        promises,
        transition,
    };
    out.present(&checked, || text(&checked))?;
    Ok(Finding::from_good(checked.statements.is_empty()))
}

fn text(checked: &Checked) -> String {
    let Checked { map_version, digest, layers, ranks, experts, .. } = checked;
    let mut text = format!(
        "map version {map_version}, digest {digest}: {layers} layers x {ranks} ranks, {experts} experts\n"
    );
    if checked.statements.is_empty() {
        text +=
            "keeps the laws: every expert lives (2), no rank holds one twice, copies are equal (3)";
        text += if checked.memory_checked {
            ", and memory holds with the KV floor\n"
        } else {
            "; memory was not checked (give --topology)\n"
        };
        return text;
    }
    for statement in &checked.statements {
        text += &format!("broken: {statement}\n");
    }
    text
}
