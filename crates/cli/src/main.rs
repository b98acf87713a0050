//! `evenkeel`: one binary for the whole loop. Each verb loads (world), makes one pure call, and
//! presents (world); what a verb decides is decided in a library.
//!
//! Exit codes: 0 done, and a verdict, where there is one, is positive; 1 a negative finding;
//! 2 bad usage or input; 3 the environment (disk, permission, memory).

mod certificate;
mod fail;
mod load;
mod out;
mod progress;
mod replays;
mod runs;
mod setting;
mod verbs;
mod view;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Keeps Mixture-of-Experts serving with expert parallelism on an even keel.
#[derive(Debug, Parser)]
#[command(
    name = "evenkeel",
    version,
    about,
    after_help = "\
The loop:  import → inspect → diagnose → plan → check → replay → gate
Start with:  evenkeel demo
Exit codes:  0 done, verdict positive; 1 negative finding; 2 bad usage or input; 3 environment"
)]
struct Arguments {
    /// Print the result as JSON on stdout.
    #[arg(long, global = true)]
    json: bool,
    /// No progress on stderr.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(verbs::demo::Arguments),
    Init(verbs::init::Arguments),
    Import(verbs::import::Arguments),
    Inspect(verbs::inspect::Arguments),
    Diagnose(verbs::diagnose::Arguments),
    Plan(verbs::plan::Arguments),
    Check(verbs::check::Arguments),
    Survive(verbs::survive::Arguments),
    Split(verbs::split::Arguments),
    Replay(verbs::replay::Arguments),
    Gate(verbs::gate::Arguments),
    Report(verbs::report::Arguments),
    Calibrate(verbs::calibrate::Arguments),
    Bench(verbs::bench::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = out::Out::new(arguments.json, arguments.quiet);
    let result = match arguments.verb {
        Verb::Demo(verb) => verbs::demo::run(&verb, &mut out),
        Verb::Init(verb) => verbs::init::run(&verb, &mut out),
        Verb::Import(verb) => verbs::import::run(&verb, &mut out),
        Verb::Inspect(verb) => verbs::inspect::run(&verb, &mut out),
        Verb::Diagnose(verb) => verbs::diagnose::run(&verb, &mut out),
        Verb::Plan(verb) => verbs::plan::run(&verb, &mut out),
        Verb::Check(verb) => verbs::check::run(&verb, &mut out),
        Verb::Survive(verb) => verbs::survive::run(&verb, &mut out),
        Verb::Split(verb) => verbs::split::run(&verb, &mut out),
        Verb::Replay(verb) => verbs::replay::run(&verb, &mut out),
        Verb::Gate(verb) => verbs::gate::run(&verb, &mut out),
        Verb::Report(verb) => verbs::report::run(&verb, &mut out),
        Verb::Calibrate(verb) => verbs::calibrate::run(&verb, &mut out),
        Verb::Bench(verb) => verbs::bench::run(&verb, &mut out),
    };
    match result {
        Ok(fail::Finding::Positive) => ExitCode::SUCCESS,
        Ok(fail::Finding::Negative) => ExitCode::from(1),
        Err(failure) => failure.report(),
    }
}
