//! `init`: a commented policy, and a topology to edit.

use crate::fail::{Failure, Finding, Verdict};
use crate::out::{Out, write_file};
use crate::setting;
use clap::Args;
use evenkeel_types::Policy;
use serde::Serialize;
use std::path::PathBuf;

/// Write a commented policy file, and a topology to edit.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  evenkeel init --topology h20:16")]
pub(crate) struct Arguments {
    /// Folder to write into.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Also write topology.toml for PROFILE:RANKS, eight ranks a node, e.g. `h20:16`.
    #[arg(long, value_name = "PROFILE:RANKS")]
    topology: Option<String>,
    /// Overwrite files that exist.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Written {
    files: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let mut files = vec![(arguments.dir.join("evenkeel.toml"), Policy::TEMPLATE.to_owned())];
    if let Some(request) = &arguments.topology {
        files.push((arguments.dir.join("topology.toml"), topology(request)?));
    }
    for (path, _) in &files {
        if path.exists() && !arguments.force {
            return Err(
                Failure::input(format!("{} exists", path.display())).hint("--force overwrites it")
            );
        }
    }
    for (path, text) in &files {
        write_file(path, text.as_bytes())?;
    }
    let files: Vec<PathBuf> = files.into_iter().map(|(path, _)| path).collect();
    out.present(&Written { files: files.clone() }, || {
        files.iter().map(|path| format!("wrote {}\n", path.display())).collect()
    })?;
    Ok(Finding::Positive)
}

fn topology(request: &str) -> Result<String, Failure> {
    let topology = setting::topology(request)?;
    let body = topology.to_toml().map_err(Failure::environment)?;
    Ok(format!(
        "# Machine of one expert-parallel group. Ranks are numbered through the nodes in order.\n\
         # A degraded node, below the nodes:\n#   [[link_health]]\n#   node = 1\n#   rate_share = 0.6\n\
         # A slow rank:\n#   [[rank_speed]]\n#   rank = 3\n#   speed_share = 0.9\n\
         # Measured links, from rank (row) to rank, in place of the classes' rates, above the tables:\n\
         #   link_matrix_gb_per_s = [[0.0, 300.0], [300.0, 0.0]]\n\n{body}"
    ))
}
