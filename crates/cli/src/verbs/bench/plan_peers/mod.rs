//! `bench plan-peers`: the planner's and the splitter's figures, targets beside results, and the
//! placement algorithms of others in the same run.
//!
//! One file per section. A section measures and returns [`Figure`]s; what it measured with, and why
//! a target is missed, stands in the figure's note.

mod clock;
mod cross_node;
mod drift;
mod economy;
mod exact;
mod figure;
mod fitted;
mod held_out;
mod ours;
mod peers;
mod problems;
mod quoted;
mod rows;
mod score;
mod split;
mod survive;

pub(crate) use clock::{cpu_ms, median_cpu_ms};
pub(crate) use figure::{Figure, Target};
pub(crate) use peers::PeersRun;
pub(crate) use problems::Problem;
pub(crate) use score::Score;

use crate::fail::{Failure, Finding, Verdict};
use crate::out::Out;
use crate::progress::Progress;
use clap::Args;
use serde::Serialize;
use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Instant;

/// What `bench plan-peers` reads.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Fewer repetitions and problems: a look, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Run this section only; may be repeated.
    #[arg(long, value_name = "SECTION")]
    only: Vec<String>,
    /// Run the placement algorithms that pip can install, by tools/plan_peers.py with this Python
    /// (NumPy, torch and the wheels' policy modules installed: `tools/plan_peers.py --install`).
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "target/peers/bin/python")]
    peers: Option<PathBuf>,
    /// Read what tools/plan_peers.py wrote before, in place of running it.
    #[arg(long, value_name = "FILE", conflicts_with = "peers")]
    peers_json: Option<PathBuf>,
}

/// One section: its name and how it is measured.
type Section = (&'static str, fn(&Context<'_>) -> Result<Vec<Figure>, Failure>);

/// Sections in the order of the report.
const SECTIONS: &[Section] = &[
    ("rows", rows::measure),
    ("drift", drift::measure),
    ("exact", exact::measure),
    ("split", split::measure),
    ("held_out", held_out::measure),
    ("survive", survive::measure),
    ("economy", economy::measure),
    ("cross_node", cross_node::measure),
    ("peers", peers::measure),
];

/// What a section measures with.
pub(crate) struct Context<'a> {
    /// Fewer repetitions and problems.
    pub(crate) quick: bool,
    /// Maps and times of other planners, made in this run or read, if any.
    pub(crate) peers: Option<PeersRun>,
    problems: Vec<Problem>,
    /// All planners' rows, made when a section first asks.
    planners: OnceCell<Vec<peers::Row>>,
    out: &'a Out,
}

impl Context<'_> {
    /// All problems, A to E.
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The problem of this name.
    ///
    /// # Errors
    /// Where there is none.
    pub(crate) fn problem(&self, id: &str) -> Result<&Problem, Failure> {
        let found = self.problems.iter().find(|problem| problem.id == id);
        found.ok_or_else(|| Failure::input(format!("there is no problem `{id}`")))
    }

    /// What every planner reaches on every problem; this one's is measured at the first call.
    ///
    /// # Errors
    /// Where a planner's map does not fit its problem.
    pub(crate) fn planners(&self) -> Result<&[peers::Row], Failure> {
        if self.planners.get().is_none() {
            let rows = peers::table(self)?;
            return Ok(self.planners.get_or_init(|| rows));
        }
        Ok(self.planners.get().map_or(&[], Vec::as_slice))
    }

    /// How often to repeat a measurement whose median counts.
    pub(crate) fn runs(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(4) } else { full }
    }

    /// Shows what a long section is at; dropped, it is gone.
    pub(crate) fn progress(&self, what: &str) -> Progress {
        Progress::start(self.out, what, 0)
    }
}

/// What a section found.
#[derive(Serialize)]
struct Measured {
    section: &'static str,
    figures: Vec<Figure>,
    /// Why it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    wall_s: f64,
}

#[derive(Serialize)]
struct Report {
    quick: bool,
    sections: Vec<Measured>,
    /// Figures with a target, and how many of them reach it.
    targets: usize,
    reached: usize,
    /// Sections that failed.
    failed: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<peers::Row>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    for name in &arguments.only {
        if !SECTIONS.iter().any(|(section, _)| section == name) {
            let names: Vec<&str> = SECTIONS.iter().map(|(section, _)| *section).collect();
            return Err(Failure::input(format!("--only: there is no section `{name}`"))
                .hint(format!("sections: {}", names.join(", "))));
        }
    }
    let report = measure(arguments, out)?;
    out.present(&report, || render(&report))?;
    Ok(Finding::from_good(report.reached == report.targets && report.failed == 0))
}

fn measure(arguments: &Arguments, out: &Out) -> Result<Report, Failure> {
    let problems = problems::load()?;
    let peers = match (&arguments.peers, &arguments.peers_json) {
        (Some(python), _) => {
            let _progress = Progress::start(out, "other planners", 0);
            Some(PeersRun::run(python, arguments.quick)?)
        }
        (_, Some(file)) => Some(PeersRun::read(file)?),
        _ => None,
    };
    let context =
        Context { quick: arguments.quick, peers, problems, planners: OnceCell::new(), out };
    let mut sections = Vec::new();
    for &(section, work) in SECTIONS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == section) {
            continue;
        }
        let _progress = context.progress(section);
        let start = Instant::now();
        let (figures, error) = match work(&context) {
            Ok(figures) => (figures, None),
            Err(failure) => (Vec::new(), Some(failure.message().to_owned())),
        };
        sections.push(Measured { section, figures, error, wall_s: start.elapsed().as_secs_f64() });
    }
    let all = || sections.iter().flat_map(|section| &section.figures);
    Ok(Report {
        quick: context.quick,
        targets: all().filter(|figure| figure.reached().is_some()).count(),
        reached: all().filter(|figure| figure.reached() == Some(true)).count(),
        failed: sections.iter().filter(|section| section.error.is_some()).count(),
        peers: context.planners.get().cloned().unwrap_or_default(),
        sections,
    })
}

fn render(report: &Report) -> String {
    let mut lines = Vec::new();
    for measured in &report.sections {
        lines.push(format!("{} ({:.1} s)", measured.section, measured.wall_s));
        if let Some(error) = &measured.error {
            lines.push(format!("  not measured: {error}"));
        }
        lines.push(figure::render(&measured.figures));
    }
    if !report.peers.is_empty() {
        lines.push(peers::render(&report.peers));
    }
    if report.quick {
        lines.push("--quick: fewer repetitions and problems than the targets ask for.".to_owned());
    }
    lines.push(format!("{} of {} targets reached", report.reached, report.targets));
    lines.join("\n")
}
