//! The placement algorithms that pip can install, on the same problems and under the same score.
//!
//! `tools/plan_peers.py` runs them as published and hands back their maps and CPU times; what a map
//! is worth is computed here, for all planners alike. Planners that pip cannot install are quoted.

use super::score::{self, Slots};
use super::{Context, Figure, Problem, Score, Target, ours, quoted};
use crate::fail::Failure;
use evenkeel_report::text;
use evenkeel_types::ExpertId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("../../../../../../tools/plan_peers.py");

/// What tools/plan_peers.py prints.
#[derive(Debug, Deserialize)]
pub(crate) struct PeersRun {
    /// Package → version.
    pub(crate) versions: BTreeMap<String, String>,
    maps: Vec<PeerMap>,
}

/// One planner on one problem.
#[derive(Debug, Deserialize)]
struct PeerMap {
    peer: String,
    problem: String,
    /// `[layer][slot]` on the loads given; empty where it failed.
    first: Vec<Vec<u16>>,
    /// The same on the drifted loads, planned with the first map in force.
    #[serde(default)]
    second: Option<Vec<Vec<u16>>>,
    /// Median CPU time of the first plan over all layers.
    #[serde(default)]
    cpu_ms: Option<f64>,
    /// Why there is no map.
    #[serde(default)]
    error: Option<String>,
}

/// What one planner reaches on one problem; `None`: failed, not asked or not known.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    /// Planner.
    pub(crate) peer: String,
    /// Problem.
    pub(crate) problem: String,
    /// On the loads given, mean over layers.
    pub(crate) balance: Option<f64>,
    /// The same, worst layer.
    pub(crate) balance_worst: Option<f64>,
    /// Slots that repeat an expert of their rank, over all layers.
    pub(crate) duplicates: Option<usize>,
    /// Experts without a slot, over all layers.
    pub(crate) missing: usize,
    /// The first map on the drifted loads, mean over layers.
    pub(crate) balance_stale: Option<f64>,
    /// The second map on the drifted loads, mean over layers.
    pub(crate) balance_second: Option<f64>,
    /// Share of all slots that move from the engine's start map to the first map.
    pub(crate) moved_first: Option<f64>,
    /// Share of all slots that move from the first map to the second.
    pub(crate) moved_second: Option<f64>,
    /// Median CPU time of the first plan, all layers, ms.
    pub(crate) cpu_ms: Option<f64>,
    /// Why there is no map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl PeersRun {
    /// Runs tools/plan_peers.py with this Python on the bundled problems.
    pub(crate) fn run(python: &Path, quick: bool) -> Result<Self, Failure> {
        let folder =
            tempfile::tempdir().map_err(|error| Failure::io("temporary folder", &error))?;
        let script = folder.path().join("plan_peers.py");
        super::problems::unpack(folder.path())?;
        crate::out::write_file(&script, SCRIPT.as_bytes())?;
        let mut command = Command::new(python);
        command.arg(&script).arg("--problems").arg(folder.path());
        command.args(["--runs", if quick { "1" } else { "5" }]);
        let output = command.stderr(Stdio::inherit()).output();
        let place = python.display();
        let output = output.map_err(|error| {
            Failure::io(&place, &error)
                .hint("python3 tools/plan_peers.py --install target/peers (several GB: torch)")
        })?;
        if !output.status.success() {
            return Err(Failure::input(format!("{place} plan_peers.py: {}", output.status)));
        }
        Self::parse(&output.stdout, "plan_peers.py")
    }

    /// Reads what the script wrote before.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let bytes = std::fs::read(file).map_err(|error| Failure::io(file.display(), &error))?;
        Self::parse(&bytes, &file.display().to_string())
    }

    fn parse(bytes: &[u8], name: &str) -> Result<Self, Failure> {
        serde_json::from_slice(bytes).map_err(|error| Failure::input(error).context(name))
    }

    fn rows(&self, problems: &[Problem]) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for map in &self.maps {
            if let Some(problem) = problems.iter().find(|problem| problem.id == map.problem) {
                rows.push(map.row(problem)?);
            }
        }
        Ok(rows)
    }
}

impl PeerMap {
    fn row(&self, problem: &Problem) -> Result<Row, Failure> {
        let Self { peer, problem: id, first, second, cpu_ms, error } = self;
        let mut row = Row {
            peer: peer.clone(),
            problem: id.clone(),
            cpu_ms: *cpu_ms,
            error: error.clone(),
            ..Row::default()
        };
        if error.is_some() {
            return Ok(row);
        }
        let first =
            slots(first, problem).map_err(|error| error.context(format!("{peer}, {id}")))?;
        let all = (problem.layers * problem.slots) as f64;
        let found = Score::of(&first, &problem.loads, problem);
        row.balance = Some(found.balance);
        row.balance_worst = Some(found.balance_worst);
        row.duplicates = Some(found.duplicates);
        row.missing = found.missing;
        row.moved_first = Some(score::moves(&score::start(problem), &first) as f64 / all);
        if let (Some(second), Some(drifted)) = (second, &problem.drifted) {
            let second = slots(second, problem)?;
            row.balance_stale = Some(Score::of(&first, drifted, problem).balance);
            row.balance_second = Some(Score::of(&second, drifted, problem).balance);
            row.moved_second = Some(score::moves(&first, &second) as f64 / all);
        }
        Ok(row)
    }
}

/// `[layer][slot]` of a peer as `[layer][rank][slot]`.
fn slots(map: &[Vec<u16>], problem: &Problem) -> Result<Slots, Failure> {
    let fits = map.len() == problem.layers
        && map.iter().all(|layer| {
            layer.len() == problem.slots
                && layer.iter().all(|expert| usize::from(*expert) < problem.experts)
        });
    if !fits {
        return Err(Failure::input(format!(
            "expected {} layers of {} slots with experts below {}",
            problem.layers, problem.slots, problem.experts
        )));
    }
    let rank = |slots: &[u16]| slots.iter().map(|expert| Some(ExpertId(*expert))).collect();
    let layer = |layer: &Vec<u16>| layer.chunks(problem.slots_per_rank()).map(rank).collect();
    Ok(map.iter().map(layer).collect())
}

/// Rows of all planners: this one, those that ran, those that are quoted.
pub(super) fn table(context: &Context<'_>) -> Result<Vec<Row>, Failure> {
    let mut rows = ours::rows(context)?;
    if let Some(run) = &context.peers {
        rows.extend(run.rows(context.problems())?);
    }
    rows.extend(quoted::rows());
    Ok(rows)
}

/// The peers that ran; what all planners reach stands in the tables below the figures.
pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let rows = context.planners()?;
    Ok(ran(context, rows).into_iter().collect())
}

/// Which peers ran, in which versions, and what failed.
fn ran(context: &Context<'_>, rows: &[Row]) -> Option<Figure> {
    let run = context.peers.as_ref()?;
    let versions: Vec<String> =
        run.versions.iter().map(|(package, version)| format!("{package} {version}")).collect();
    let failed: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            row.error.as_ref().map(|e| format!("{} on {}: {e}", row.peer, row.problem))
        })
        .collect();
    Some(Figure {
        what: "plans of peers, run here".to_owned(),
        unit: "",
        best_today: String::new(),
        target: Target::None,
        found: run.maps.len() as f64,
        note: format!("{}. Failed: {}", versions.join(", "), none_or(&failed)),
    })
}

fn none_or(list: &[String]) -> String {
    if list.is_empty() { "none".to_owned() } else { list.join("; ") }
}

/// Problems side by side, planners below each other, one table per measure.
pub(crate) fn render(rows: &[Row]) -> String {
    let percent = |share: Option<f64>| share.map(|share| format!("{:.0} %", share * 100.0));
    let four = |value: Option<f64>| value.map(|value| format!("{value:.4}"));
    let mut parts = vec![
        "planners side by side: balance on the loads given, even split, mean over layers"
            .to_owned(),
    ];
    parts.push(matrix(rows, |row| four(row.balance)));
    parts.push("slots that repeat an expert of their rank, all layers".to_owned());
    parts.push(matrix(rows, |row| row.duplicates.map(|count| count.to_string())));
    parts.push("CPU time of the plan, ms, median".to_owned());
    parts.push(matrix(rows, |row| row.cpu_ms.map(|ms| format!("{ms:.1}"))));
    parts.push("slots moved: from the start map, after drift".to_owned());
    parts.push(matrix(rows, |row| {
        let first = percent(row.moved_first)?;
        Some(percent(row.moved_second).map_or(first.clone(), |second| format!("{first}, {second}")))
    }));
    parts.push("balance after drift: the first map, planned again".to_owned());
    parts.push(matrix(rows, |row| {
        Some(format!("{}, {}", four(row.balance_stale)?, four(row.balance_second)?))
    }));
    parts.join("\n")
}

fn matrix(rows: &[Row], cell: impl Fn(&Row) -> Option<String>) -> String {
    let mut problems: Vec<&str> = rows.iter().map(|row| row.problem.as_str()).collect();
    problems.sort_unstable();
    problems.dedup();
    problems.retain(|id| rows.iter().any(|row| row.problem == *id && cell(row).is_some()));
    let mut peers: Vec<&str> = Vec::new();
    for row in rows {
        if !peers.contains(&row.peer.as_str()) {
            peers.push(&row.peer);
        }
    }
    let mut table = text::Table::new(std::iter::once("planner").chain(problems.iter().copied()));
    for peer in peers {
        let mut line = vec![peer.to_owned()];
        for problem in &problems {
            let row = rows.iter().find(|row| row.peer == peer && row.problem == *problem);
            line.push(row.and_then(&cell).unwrap_or_else(|| "–".to_owned()));
        }
        table.row(line);
    }
    table.render(2)
}
