//! Fits the built-in profiles to `assets/measured-kernels/` and writes `profiles/*.json`.
//!
//! ```text
//! cargo run --release -p evenkeel-cost --example fit_profiles [NAME]…
//! ```
#![expect(clippy::print_stdout, reason = "prints the fit report")]
#![expect(clippy::disallowed_methods, reason = "reads tables and writes profiles")]

use std::error::Error;
use std::io::Read;
use std::path::Path;

use evenkeel_cost::{FitReport, Profile, Tables, fit_profile};
use flate2::read::GzDecoder;

fn load(folder: &Path) -> Result<Tables, Box<dyn Error>> {
    let mut tables = Tables::default();
    for file in Tables::FILES {
        let bytes = std::fs::read(folder.join(file))?;
        let mut text = String::new();
        if file.ends_with(".gz") {
            GzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
        } else {
            text = String::from_utf8(bytes)?;
        }
        tables.insert(file, text);
    }
    Ok(tables)
}

fn show(report: &FitReport) {
    println!("  MAPE    p95   bias  target  unseen  fitted  curve: rows judged");
    for line in report.rows.iter().chain(&report.left_out) {
        let target = line.target.map_or("     -".to_owned(), |t| format!("{:5.1}%", 100.0 * t));
        println!(
            "{:5.1}% {:5.1}% {:+5.1}% {target} {:7} {:7}  {}: {}{}",
            100.0 * line.mape,
            100.0 * line.p95,
            100.0 * line.bias,
            line.rows_unseen,
            line.rows_fitted,
            line.curve,
            line.group,
            if line.met { "" } else { "  MISSED" },
        );
    }
    for aside in &report.set_aside {
        let word = if aside.hopeless { "hopeless" } else { "set aside" };
        println!("{word}: {} rows of {}: {}", aside.rows, aside.table, aside.reason);
    }
    for switch in &report.switches {
        println!("switch: {switch}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tables = load(&root.join("../../assets/measured-kernels"))?;
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in Profile::BUILTIN {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let profile = fit_profile(name, &tables)?;
        println!("== {name}: {}", profile.identity);
        show(&profile.report);
        std::fs::write(root.join(format!("profiles/{name}.json")), profile.to_json()?)?;
    }
    Ok(())
}
