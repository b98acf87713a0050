//! Writes a report of synthetic data, to look at the page and its pictures:
//! `cargo run -p evenkeel-report --example sample -- OUT_DIR`.

#[path = "build.rs"]
mod build;

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::args().nth(1).unwrap_or_else(|| "sample-report".to_owned()));
    fs::create_dir_all(&out)?;
    let report = build::sample(7);
    fs::write(out.join("report.html"), evenkeel_report::html(&report))?;
    fs::write(out.join("report.md"), evenkeel_report::markdown(&report))?;
    let json = report.to_json().map_err(io::Error::other)?;
    fs::write(out.join("report.json"), json)?;
    let mut pictures: Vec<String> = Vec::new();
    pictures.extend(report.heat.iter().filter_map(evenkeel_report::svg_heat_map));
    pictures.extend(report.rank_loads.iter().filter_map(evenkeel_report::svg_rank_loads));
    let step = report.waterfall.iter();
    pictures.extend(step.flat_map(|s| evenkeel_report::svg_waterfall(s, report.origin)));
    let panels = report.distributions.iter();
    pictures.extend(panels.filter_map(|d| evenkeel_report::svg_distribution(d, report.origin)));
    for (i, svg) in pictures.iter().enumerate() {
        fs::write(out.join(format!("picture-{i:02}.svg")), svg)?;
    }
    Ok(())
}
