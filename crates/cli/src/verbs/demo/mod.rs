//! `demo`: the whole loop on real routing, in one command, ending in a page to show around.

pub(crate) mod assets;
pub(crate) mod counter;
mod decision;
mod incident;
mod scene;
mod view;

use crate::fail::{Failure, Finding, Verdict};
use crate::out::{Out, write_file, write_json};
use clap::Args;
use decision::Decided;
use evenkeel_prove::{Design, Pair, RatesInput, error_rates};
use scene::Scene;
use std::path::{Path, PathBuf};

/// Run an incident on bundled real routing: record, diagnose, plan, prove, gate, report.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel demo --seed 3 --surge summary --out evenkeel-demo
Leaves traces, maps, decision.json and report.html in the folder.
Exit code 0: a candidate map is accepted (modelled); 1: none is.")]
pub(crate) struct Arguments {
    /// Seed of every draw: which requests plan and which judge, arrivals, clones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tenant whose share of the decoded tokens rises from a third to four fifths.
    #[arg(long, default_value = "translation")]
    surge: String,
    /// Folder to leave the results in; it is replaced if it came from an earlier demo.
    #[arg(long, default_value = "evenkeel-demo")]
    out: PathBuf,
}

/// Marks a folder as made by the demonstration, and so as one that the next may replace.
const MARK: &str = ".made-by-evenkeel-demo";

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    // Everything that can be refused is looked at before an earlier demonstration is replaced.
    let probe = tempfile::tempdir().map_err(|error| Failure::io("temporary folder", &error))?;
    let recorded = assets::recorded(&probe.path().join("recorded"))?;
    let scene = Scene::new(
        recorded.shape,
        recorded.slices,
        &recorded.routes,
        assets::arrivals_ns()?,
        &arguments.surge,
        arguments.seed,
    )?;
    prepare(&arguments.out)?;
    assets::recorded(&arguments.out.join("recorded"))?;
    let incident = incident::run(&scene, &arguments.out, out)?;
    let counters = counter::run(&scene, &arguments.out.join("counter"), out)?;
    let decided = Decided::of(&scene, &incident, &counters);
    leave(&arguments.out, &scene, &incident, &counters, &decided)?;
    out.present(&decided, || decided.text(&arguments.out))?;
    Ok(Finding::from_good(incident.chosen.is_some()))
}

/// Batch of the gate's bench: thousands of requests per run, so that thousands of verdicts take
/// minutes.
const BENCH_SEQUENCES_PER_RANK: u32 = 8;

/// The gate's error rates, paired and independent, on replays of this stage under four seeds.
pub(crate) fn gate_error_rates(
    pairs: u32,
    seed: u64,
    out: &Out,
) -> Result<Vec<evenkeel_prove::ErrorRates>, Failure> {
    let dir = tempfile::tempdir().map_err(|error| Failure::io("temporary folder", &error))?;
    let recorded = assets::recorded(&dir.path().join("recorded"))?;
    let arrivals = assets::arrivals_ns()?;
    let mut runs = Vec::new();
    let mut policy = None;
    for seed in seed..seed + 4 {
        let (shape, slices) = (recorded.shape.clone(), recorded.slices.clone());
        let scene =
            Scene::new(shape, slices, &recorded.routes, arrivals.clone(), "translation", seed)?;
        let scene = scene.on(scene.setting.clone(), BENCH_SEQUENCES_PER_RANK);
        runs.push(incident::two_replays(&scene, out)?);
        policy = Some(scene.setting.policy);
    }
    let replays: Vec<Pair<'_>> =
        runs.iter().map(|(live, candidate)| Pair { live, candidate }).collect();
    let policy = policy.unwrap_or_default();
    let input = |design| RatesInput {
        replays: &replays,
        slices: &recorded.slices,
        policy: &policy,
        design,
        pairs,
        shift_share: 0.05,
        replicates: 400,
        seed,
    };
    let _progress = crate::progress::Progress::start(out, "gate: error rates", 0);
    [Design::Paired, Design::Independent]
        .into_iter()
        .map(|design| error_rates(&input(design)).map_err(Failure::input))
        .collect()
}

/// Makes the folder, or empties one that an earlier demonstration made.
fn prepare(dir: &Path) -> Result<(), Failure> {
    let io = |error: std::io::Error| Failure::io(dir.display(), &error);
    if dir.exists() {
        let ours = dir.join(MARK).exists();
        let empty = dir.is_dir() && std::fs::read_dir(dir).map_err(io)?.next().is_none();
        if !ours && !empty {
            return Err(Failure::input(format!("{} exists and is not a demo's", dir.display()))
                .hint("--out names another folder"));
        }
        std::fs::remove_dir_all(dir).map_err(io)?;
    }
    std::fs::create_dir_all(dir.join("counter")).map_err(io)?;
    write_file(&dir.join(MARK), b"")
}

fn leave(
    dir: &Path,
    scene: &Scene,
    incident: &incident::Incident,
    counters: &[counter::Counter],
    decided: &Decided,
) -> Result<(), Failure> {
    for one in &incident.judged {
        let name = one.placed.name.replace([' ', ','], "-").replace("--", "-");
        let text = one.placed.map.to_json().map_err(Failure::environment)?;
        write_file(&dir.join("maps").join(format!("{name}.json")), text.as_bytes())?;
    }
    let topology = scene.setting.topology.to_toml().map_err(Failure::environment)?;
    write_file(&dir.join("topology.toml"), topology.as_bytes())?;
    write_json(&dir.join("decision.json"), decided)?;
    let report = view::report(scene, incident, counters);
    let json = report.to_json().map_err(Failure::environment)?;
    write_file(&dir.join("report.json"), json.as_bytes())?;
    write_file(&dir.join("report.html"), evenkeel_report::html(&report).as_bytes())
}
