//! `report`: render a stored report again, as HTML, Markdown, or its pictures alone.

use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::{Out, write_file};
use clap::{Args, ValueEnum};
use evenkeel_report::{
    Report, html, markdown, svg_distribution, svg_heat_map, svg_rank_loads, svg_waterfall,
};
use serde::Serialize;
use std::path::PathBuf;

/// Render report.json as one self-contained HTML file, Markdown, or single SVG pictures.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel report evenkeel-demo --format svg --out pictures")]
pub(crate) struct Arguments {
    /// report.json, or a folder that holds it.
    report: PathBuf,
    /// Form of the result.
    #[arg(long, value_enum, default_value = "html")]
    format: Format,
    /// File to write, or folder for pictures; default: beside report.json.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Html,
    Markdown,
    Svg,
}

#[derive(Serialize)]
struct Written {
    files: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let stored = if arguments.report.is_dir() {
        arguments.report.join("report.json")
    } else {
        arguments.report.clone()
    };
    let report = Report::from_json(&load::text(&stored)?)
        .map_err(|error| Failure::input(error).context(stored.display()))?;
    let beside = |name: &str| arguments.out.clone().unwrap_or_else(|| stored.with_file_name(name));
    let files = match arguments.format {
        Format::Html => vec![(beside("report.html"), html(&report))],
        Format::Markdown => vec![(beside("report.md"), markdown(&report))],
        Format::Svg => {
            let folder = beside("pictures");
            pictures(&report).into_iter().map(|(name, svg)| (folder.join(name), svg)).collect()
        }
    };
    for (path, text) in &files {
        write_file(path, text.as_bytes())?;
    }
    let files: Vec<PathBuf> = files.into_iter().map(|(path, _)| path).collect();
    out.present(&Written { files: files.clone() }, || {
        files.iter().map(|path| format!("wrote {}\n", path.display())).collect()
    })?;
    Ok(Finding::Positive)
}

fn pictures(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let mut add = |name: String, svg: Option<String>| pictures.extend(svg.map(|svg| (name, svg)));
    for (index, heat) in report.heat.iter().enumerate() {
        add(format!("heat-{index}.svg"), svg_heat_map(heat));
    }
    for (index, loads) in report.rank_loads.iter().enumerate() {
        add(format!("rank-loads-{index}.svg"), svg_rank_loads(loads));
    }
    for (index, distribution) in report.distributions.iter().enumerate() {
        add(format!("distribution-{index}.svg"), svg_distribution(distribution, report.origin));
    }
    if let Some(waterfall) = &report.waterfall {
        for (index, svg) in svg_waterfall(waterfall, report.origin).into_iter().enumerate() {
            add(format!("waterfall-{index}.svg"), Some(svg));
        }
    }
    pictures
}
