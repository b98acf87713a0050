//! `survive`: what the loss of a rank or a node would mean for a map, and the plans for it.

use super::import;
use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::{Out, write_file, write_json};
use crate::setting;
use clap::{Args, ValueEnum};
use evenkeel_interop::load_matrices;
use evenkeel_plan::survive::{
    Deserving, RestorePlan, Restores, Source, Survey, SurviveInput, deserving, live_copies, spread,
    survey,
};
use evenkeel_report::{fmt, text};
use evenkeel_types::{DomainKind, ExpertId, ExpertMap, LayerId, RankId};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Balance that `--spread` may give up, as a share of the slowest rank's rows.
const SPREAD_LOSS_SHARE: f64 = 0.001;

/// Experts listed in the text; `--json` lists all.
const LISTED_MAX: usize = 8;

/// Show what the loss of a rank or a node means for a map, and the plan for it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel survive map.json --topology h20:32
  evenkeel survive map.json --topology topology.toml --lost rank:3 --out restore
  evenkeel survive map.json --topology h20:32 --live node --map-out safer.json
Exit code 1: a promise of the policy is broken, or an expert of the lost ranks stays lost.")]
pub(crate) struct Arguments {
    /// Map in force.
    map: PathBuf,
    /// Topology file, or PROFILE:RANKS.
    #[arg(long, value_name = "FILE|PROFILE:RANKS")]
    topology: String,
    /// Model, a known name or a file; default: the map's own.
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Policy file: promises, restore rates, memory.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Tokens per layer and expert (`.npy`, or `.npz` with one array); default: all alike.
    #[arg(long, value_name = "FILE")]
    loads: Option<PathBuf>,
    /// What is lost: `rank:3`, `node:1` or `domain:NAME`; default: a survey of all.
    #[arg(long, value_name = "KIND:NAME")]
    lost: Option<String>,
    /// Write the plan for what is lost, the map once it serves and the map at the end here.
    #[arg(long, value_name = "FOLDER", requires = "lost")]
    out: Option<PathBuf>,
    /// First move copies of one expert into different domains, at no more than 0.1 % of balance.
    #[arg(long, value_name = "KIND")]
    spread: Option<Kind>,
    /// First fill empty slots with live copies of the experts that deserve them most.
    #[arg(long, value_name = "KIND")]
    live: Option<Kind>,
    /// Write the map that `--spread` and `--live` make here.
    #[arg(long, value_name = "MAP")]
    map_out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Rank,
    Node,
    Domain,
}

impl Kind {
    fn kind(self) -> DomainKind {
        match self {
            Self::Rank => DomainKind::Rank,
            Self::Node => DomainKind::Node,
            Self::Domain => DomainKind::Named,
        }
    }
}

#[derive(Serialize)]
struct Surveyed<'a> {
    map_version: u64,
    digest: String,
    survey: &'a Survey,
    deserving: &'a [Deserving],
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let map = load::map(&arguments.map)?;
    let topology = setting::topology(&arguments.topology)?;
    let policy = load::policy(arguments.policy.as_deref())?;
    let shape = import::shape(arguments.model.as_deref().unwrap_or(&map.model))?;
    let loads = arguments.loads.as_deref().map(read_loads).transpose()?;
    let fail = |error| Failure::input(error).context(arguments.map.display());
    let whole = SurviveInput {
        shape: &shape,
        topology: &topology,
        map: &map,
        policy: &policy,
        loads: loads.as_deref(),
    };
    let apart = match arguments.spread {
        Some(kind) => spread(&whole, kind.kind(), SPREAD_LOSS_SHARE).map_err(fail)?.map,
        None => map.clone(),
    };
    let whole = SurviveInput { map: &apart, ..whole };
    let map = match arguments.live {
        Some(kind) => live_copies(&whole, kind.kind()).map_err(fail)?,
        None => apart.clone(),
    };
    if let Some(path) = &arguments.map_out {
        write_file(path, map.to_json().map_err(Failure::environment)?.as_bytes())?;
    }
    let input = SurviveInput { map: &map, ..whole };
    if let Some(lost) = &arguments.lost {
        let (kind, ranks) = domain(lost, &input)?;
        let restores = Restores::precompute(&input, &[kind]).map_err(fail)?;
        let plan = restores
            .of(&ranks)
            .ok_or_else(|| Failure::input(format!("--lost {lost}: none of its ranks is alive")))?;
        if let Some(folder) = &arguments.out {
            write_plan(folder, plan, &map.without(&topology.rank_dead))?;
        }
        out.present(plan, || plan_text(plan))?;
        return Ok(Finding::from_good(plan.unrestored.is_empty()));
    }
    let mut kinds = vec![DomainKind::Rank, DomainKind::Node];
    if topology.node.iter().any(|node| !node.domain.is_empty()) {
        kinds.push(DomainKind::Named);
    }
    let found = survey(&input, &kinds).map_err(fail)?;
    let wanted = deserving(&input, DomainKind::Rank).map_err(fail)?;
    let (map_version, digest) = (map.version, map.digest());
    let answer = Surveyed { map_version, digest, survey: &found, deserving: &wanted };
    out.present(&answer, || survey_text(&answer))?;
    Ok(Finding::from_good(found.broken.is_empty()))
}

fn read_loads(path: &Path) -> Result<Vec<u64>, Failure> {
    let fail = |error| Failure::input(error).context(path.display());
    let matrices = load_matrices(&import::source(path)?).map_err(fail)?;
    match <[_; 1]>::try_from(matrices) {
        Ok([matrix]) => Ok(matrix.tokens),
        Err(matrices) => Err(Failure::input(format!(
            "{}: {} arrays, expected one of [layers][experts]",
            path.display(),
            matrices.len()
        ))),
    }
}

/// The kind and the living ranks of `rank:3`, `node:1` or `domain:NAME`.
fn domain(lost: &str, input: &SurviveInput<'_>) -> Result<(DomainKind, Vec<RankId>), Failure> {
    let known = [("rank", DomainKind::Rank), ("node", DomainKind::Node)];
    let refused = |why: &str| Failure::input(format!("--lost {lost}: {why}"));
    let (word, name) =
        lost.split_once(':').ok_or_else(|| refused("expected rank:N, node:N or domain:NAME"))?;
    let (kind, name) = match known.iter().find(|(other, _)| *other == word) {
        Some((_, kind)) => (*kind, format!("{word} {name}")),
        None if word == "domain" => (DomainKind::Named, name.to_owned()),
        None => return Err(refused("expected rank:N, node:N or domain:NAME")),
    };
    let domains = input.topology.domains(kind);
    let found = domains.into_iter().find(|domain| domain.name == name);
    let mut ranks = found.ok_or_else(|| refused("the topology has no such domain"))?.ranks;
    ranks.retain(|rank| !input.topology.is_dead(*rank));
    Ok((kind, ranks))
}

fn write_plan(folder: &Path, plan: &RestorePlan, live: &ExpertMap) -> Result<(), Failure> {
    write_json(&folder.join("plan.json"), plan)?;
    for (name, map) in [("resumed.json", plan.resumed(live)), ("end.json", plan.rebalanced(live))] {
        let json = map.to_json().map_err(Failure::environment)?;
        write_file(&folder.join(name), json.as_bytes())?;
    }
    Ok(())
}

fn list(experts: &[(LayerId, ExpertId)]) -> String {
    let named = experts.iter().take(LISTED_MAX).map(|(layer, expert)| format!("{layer} {expert}"));
    let named = named.collect::<Vec<_>>().join(", ");
    match experts.len().saturating_sub(LISTED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn survey_text(answer: &Surveyed<'_>) -> String {
    let Surveyed { map_version, digest, survey, deserving } = answer;
    let heads = ["lost", "orphans", "stay lost", "to load", "from hosts", "from disks"];
    let mut table = text::Table::new(heads);
    for seen in &survey.domains {
        table.row([
            text::safe(&seen.domain.to_string(), 40),
            seen.orphans.len().to_string(),
            seen.unrestored.len().to_string(),
            fmt::plain(&fmt::bytes(seen.bytes as f64)),
            fmt::plain(&fmt::seconds(seen.host_s)),
            fmt::plain(&fmt::seconds(seen.disk_s)),
        ]);
    }
    let mut out = format!("map version {map_version}, digest {digest}\n{}", table.render(2));
    for one in deserving.iter().take(3) {
        out += &format!(
            "deserves a live copy: {} {} of {}, {} of tokens, back after {}\n",
            one.layer,
            one.expert,
            one.domain,
            fmt::plain(&fmt::percent(one.token_share)),
            fmt::plain(&fmt::seconds(one.back_s))
        );
    }
    out.extend(survey.broken.iter().map(|one| format!("broken: {one}\n")));
    out
}

fn plan_text(plan: &RestorePlan) -> String {
    let bytes = |bytes: u64| fmt::plain(&fmt::bytes(bytes as f64));
    let seconds = |s: f64| fmt::plain(&fmt::seconds(s));
    let mut out = format!("lost: {}\n", text::safe(&plan.domain.to_string(), 60));
    out += &format!("orphans: {}", plan.orphans.len());
    if !plan.orphans.is_empty() {
        out += &format!(" ({})", list(&plan.orphans));
    }
    out += "\n";
    if !plan.unrestored.is_empty() {
        let count = plan.unrestored.len();
        out += &format!(
            "stay lost: {count}, no slot or memory is left for {}\n",
            list(&plan.unrestored)
        );
    }
    for load in plan.loads.iter().take(LISTED_MAX) {
        let from = match load.from {
            Source::Host(node) => format!("the host of {node}"),
            Source::Disk(node) => format!("the disk of {node}"),
        };
        let over = load.over.map_or("an empty slot".to_owned(), |e| format!("a copy of {e}"));
        out += &format!(
            "load {} {} from {from} to {} {} over {over}, serves after {}\n",
            load.layer,
            load.expert,
            load.to,
            load.slot,
            seconds(load.end_s)
        );
    }
    if plan.loads.len() > LISTED_MAX {
        out += &format!("and {} more loads\n", plan.loads.len() - LISTED_MAX);
    }
    let worst = |layers: &[f64]| layers.iter().copied().fold(1.0, f64::min);
    out += &format!(
        "resumes after {}, balance of the worst layer {:.3}; done after {}, {:.3}\n",
        seconds(plan.resume_s),
        worst(&plan.balancedness_resumed),
        seconds(plan.done_s),
        worst(&plan.balancedness)
    );
    let peak = plan.memory_peak_bytes.iter().copied().max().unwrap_or(0);
    out += &format!(
        "bytes: {} from peers, {} from hosts, {} from disks; memory peak {}\n",
        bytes(plan.bytes_from_peers),
        bytes(plan.bytes_from_hosts),
        bytes(plan.bytes_from_disks),
        bytes(peak)
    );
    out
}
