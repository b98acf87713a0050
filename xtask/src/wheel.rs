//! The Python wheel: built, installed into an environment of its own, and tested there.
//!
//! Rust is all that a newcomer needs, so a machine without Python 3, `venv`, pip or the index that
//! pip downloads from skips this step and says why.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the environment holds beside the wheel.
const TOOLS: [&str; 3] = ["maturin>=1.7,<2", "numpy>=1.22", "pytest>=7"];

/// Builds and tests the wheel; `Ok(Some(reason))`: skipped.
pub(crate) fn test(root: &Path) -> Result<Option<String>> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let environment = target.join("wheel-venv");
    let folder = if cfg!(windows) { "Scripts" } else { "bin" };
    let python = environment.join(folder).join("python");
    if !quiet(Command::new(&python).args(["-c", "import maturin, numpy, pytest"]))
        && let Some(reason) = prepare(&environment, &python)
    {
        return Ok(Some(reason));
    }
    let wheels = target.join("wheel");
    // The profile of the tests before it: dependencies need not be built a second time.
    run(Command::new(&python)
        .args(["-m", "maturin", "build", "--quiet", "--profile", "dev", "--locked", "--out"])
        .arg(&wheels)
        .current_dir(root))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--force-reinstall", "--no-deps", "--no-index", "--find-links"])
        .arg(&wheels)
        .arg("evenkeel"))?;
    run(Command::new(&python).args(["-m", "pytest", "-q", "-rs"]).current_dir(root))?;
    Ok(None)
}

/// Makes the environment; the reason where this machine cannot.
fn prepare(environment: &Path, python: &Path) -> Option<String> {
    let system = ["python3", "python"].into_iter().find(|name| {
        let modern = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))";
        quiet(Command::new(name).args(["-c", modern]))
    });
    let Some(system) = system else {
        return Some("no Python from 3.9 on with venv and pip".to_owned());
    };
    if !quiet(Command::new(system).args(["-m", "venv"]).arg(environment)) {
        return Some(format!("`{system} -m venv` failed"));
    }
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    match pip.args(["--retries", "1", "--timeout", "10"]).args(TOOLS).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(format!("pip could not install {}: {}", TOOLS.join(", "), last(&output)))
        }
        Err(error) => Some(format!("pip did not start: {error}")),
    }
}

fn quiet(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn last(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned()
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("failed to start `{program}`"))?;
    ensure!(status.success(), "`{program}` failed: {command:?}");
    Ok(())
}
