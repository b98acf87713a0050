//! Set-up and tests in one command: `cargo xtask test`.
//!
//! Steps, in the order in which they fail cheapest: format, tidy rules, licences, lints, tests,
//! documentation, the Python wheel where there is a Python. `cargo xtask tidy` runs the rules of the
//! house alone.
#![expect(clippy::print_stderr, reason = "a command-line tool reports on stderr")]

mod licences;
mod tidy;
mod wheel;

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

fn main() -> Result<()> {
    let verb = std::env::args().nth(1).unwrap_or_default();
    let root = root()?;
    match verb.as_str() {
        "test" => test(&root),
        "wheel" => python(&root),
        "tidy" => tidy::check(&root).and_then(|()| licences::check(&root)),
        _ => bail!("usage: cargo xtask test | tidy | wheel"),
    }
}

/// The workspace folder: the parent of this package's.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).context("xtask lies in no workspace")
}

fn test(root: &Path) -> Result<()> {
    let start = Instant::now();
    install(root)?;
    run(root, "cargo fmt --all --check")?;
    step("tidy", || tidy::check(root))?;
    step("licences", || licences::check(root))?;
    run(root, "cargo clippy --locked --workspace --all-targets -- -D warnings")?;
    if probe("cargo nextest --version") {
        run(root, "cargo nextest run --locked --workspace --no-fail-fast")?;
        run(root, "cargo test --locked --workspace --doc --quiet")?;
    } else {
        run(root, "cargo test --locked --workspace --quiet")?;
    }
    run(root, "cargo doc --locked --workspace --no-deps --quiet")?;
    python(root)?;
    eprintln!("xtask: all passed in {} s", start.elapsed().as_secs());
    Ok(())
}

fn python(root: &Path) -> Result<()> {
    step("Python wheel", || {
        if let Some(reason) = wheel::test(root)? {
            eprintln!("xtask: Python wheel: skipped: {reason}");
        }
        Ok(())
    })
}

/// Adds the toolchain's own formatter and linter where a minimal install lacks them.
fn install(root: &Path) -> Result<()> {
    for (tool, component) in
        [("cargo fmt --version", "rustfmt"), ("cargo clippy --version", "clippy")]
    {
        if !probe(tool) {
            run(root, &format!("rustup component add {component}"))?;
        }
    }
    Ok(())
}

fn probe(command: &str) -> bool {
    let mut words = command.split(' ');
    let Some(program) = words.next() else { return false };
    Command::new(program).args(words).output().is_ok_and(|output| output.status.success())
}

fn run(root: &Path, command: &str) -> Result<()> {
    step(command, || {
        let mut words = command.split(' ');
        let program = words.next().context("empty command")?;
        let status = Command::new(program)
            .args(words)
            .current_dir(root)
            .env("RUSTDOCFLAGS", "-D warnings")
            .status()
            .with_context(|| format!("failed to start `{program}`"))?;
        ensure!(status.success(), "`{command}` failed");
        Ok(())
    })
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("xtask: {name}");
    let start = Instant::now();
    work()?;
    eprintln!("xtask: {name}: {} s", start.elapsed().as_secs());
    Ok(())
}
