//! `calibrate`: fit a profile to measurements, and say how far the fit can be trusted.

use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::{Out, write_file};
use crate::progress::Progress;
use clap::Args;
use evenkeel_cost::{FitLine, FitReport, Profile, Tables, calibrate, fit_profile};
use evenkeel_report::{fmt, text};
use flate2::read::GzDecoder;
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A measurement table beyond this, uncompressed, is refused; the largest bundled one is 12 MB.
const TABLE_BYTES_MAX: u64 = 256 << 20;

/// Fit a cost profile: from an operator's own CSV, or refit a built-in one.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  python3 tools/measure_experts.py --out mine.csv      on the operator's GPUs
  evenkeel calibrate --csv mine.csv --name mine --out mine.json
  evenkeel calibrate --report h20                      what the built-in fits reach
  evenkeel calibrate --refit h20 --tables assets/measured-kernels --out h20.json
Exit code 1: a stated target is missed.")]
pub(crate) struct Arguments {
    /// Measurements: the columns of docs/calibration.md.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["report", "refit"])]
    csv: Option<PathBuf>,
    /// Profile to start from: what the CSV does not measure is taken over from it, marked borrowed.
    #[arg(long, value_name = "PROFILE", default_value = "h100-sxm")]
    base: String,
    /// Name of the new profile.
    #[arg(long, default_value = "calibrated")]
    name: String,
    /// Print what the fits of a built-in profile reached on rows that they did not see.
    #[arg(long, value_name = "PROFILE", conflicts_with = "refit")]
    report: Option<String>,
    /// Fit a built-in profile again from the tables.
    #[arg(long, value_name = "PROFILE", requires = "tables")]
    refit: Option<String>,
    /// Folder of measurement tables.
    #[arg(long, value_name = "DIR")]
    tables: Option<PathBuf>,
    /// Write the profile here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Calibrated<'a> {
    profile: &'a str,
    identity: &'a str,
    report: &'a FitReport,
    written: Option<&'a Path>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let progress = Progress::start(out, "fit", 0);
    let profile = match (&arguments.csv, &arguments.report, &arguments.refit) {
        (Some(csv), _, _) => {
            let base = load::profile(&arguments.base)?;
            calibrate::profile_from_csv(&arguments.name, &load::text(csv)?, &base)
                .map_err(|error| Failure::input(error).context(csv.display()))?
        }
        (None, Some(name), _) => load::profile(name)?,
        (None, None, Some(name)) => {
            let dir = arguments.tables.as_deref().unwrap_or(Path::new("assets/measured-kernels"));
            fit_profile(name, &tables(dir)?).map_err(Failure::input)?
        }
        (None, None, None) => {
            return Err(Failure::input("nothing to do").hint("give --csv, --report or --refit"));
        }
    };
    drop(progress);
    if let Some(path) = &arguments.out {
        write_file(path, profile.to_json().map_err(Failure::environment)?.as_bytes())?;
    }
    let calibrated = Calibrated {
        profile: &profile.name,
        identity: &profile.identity,
        report: &profile.report,
        written: arguments.out.as_deref(),
    };
    out.present(&calibrated, || render(&profile, arguments.out.as_deref()))?;
    let lines = profile.report.rows.iter().chain(&profile.report.left_out);
    Ok(Finding::from_good(lines.into_iter().all(|line| line.met)))
}

/// Reads every table that is there, decompressed and bounded.
pub(crate) fn tables(dir: &Path) -> Result<Tables, Failure> {
    let mut tables = Tables::default();
    for name in Tables::FILES {
        let path = dir.join(name);
        if !path.exists() {
            continue;
        }
        let file =
            std::fs::File::open(&path).map_err(|error| Failure::io(path.display(), &error))?;
        let mut text = String::new();
        let read = if name.ends_with(".gz") {
            GzDecoder::new(file).take(TABLE_BYTES_MAX + 1).read_to_string(&mut text)
        } else {
            file.take(TABLE_BYTES_MAX + 1).read_to_string(&mut text)
        };
        read.map_err(|error| Failure::input(error).context(path.display()))?;
        if text.len() as u64 > TABLE_BYTES_MAX {
            return Err(Failure::input(format!("{}: larger than 256 MiB", path.display())));
        }
        tables.insert(name, text);
    }
    Ok(tables)
}

fn render(profile: &Profile, written: Option<&Path>) -> String {
    let report = &profile.report;
    let mut lines = vec![format!("profile {}: {}", profile.name, profile.identity)];
    lines.push("on rows that the fit did not see (held out by a hash of the row's key):".into());
    lines.push(table(&report.rows));
    if !report.left_out.is_empty() {
        lines.push("whole groups left out of the fit:".into());
        lines.push(table(&report.left_out));
    }
    for aside in &report.set_aside {
        let word = if aside.hopeless { "hopeless" } else { "set aside" };
        lines.push(format!("{word}: {} rows of {}: {}", aside.rows, aside.table, aside.reason));
    }
    lines.extend(report.switches.iter().map(|switch| format!("switch: {switch}")));
    if let Some(path) = written {
        lines.push(format!("wrote {}", path.display()));
    }
    lines.join("\n")
}

fn table(lines: &[FitLine]) -> String {
    let mut table = text::Table::new([
        "curve", "group", "fitted", "unseen", "MAPE", "p95", "bias", "target", "",
    ]);
    for line in lines {
        table.row([
            line.curve.clone(),
            line.group.clone(),
            line.rows_fitted.to_string(),
            line.rows_unseen.to_string(),
            fmt::percent(line.mape),
            fmt::percent(line.p95),
            fmt::change(line.bias),
            line.target.map_or("–".into(), |target| format!("<= {}", fmt::percent(target))),
            if line.target.is_none() {
                ""
            } else if line.met {
                "met"
            } else {
                "MISSED"
            }
            .into(),
        ]);
    }
    table.render(2)
}
