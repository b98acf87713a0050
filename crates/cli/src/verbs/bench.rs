//! `bench`: what the tool itself can and cannot do, measured here and now.

mod plan_peers;

use crate::fail::{Failure, Finding, Verdict};
use crate::out::Out;
use clap::{Args, Subcommand};
use evenkeel_prove::{ErrorRates, KindRates, Rate};
use evenkeel_report::{fmt, text};

/// Measure the tool itself: the gate's error rates, the planner beside its peers.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel bench gate --pairs 1000 --seed 1
  evenkeel bench plan-peers --only rows")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Error rates of the gate on pairs of replays whose truth is known: the same, 5 % faster,
    /// 5 % slower.
    Gate {
        /// Pairs of each kind.
        #[arg(long, default_value_t = 1000)]
        pairs: u32,
        /// Seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The planner's and the splitter's figures beside their targets, and other planners on the
    /// same problems.
    PlanPeers(plan_peers::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    match &arguments.what {
        What::Gate { pairs, seed } => gate(*pairs, *seed, out),
        What::PlanPeers(arguments) => plan_peers::run(arguments, out),
    }
}

fn gate(pairs: u32, seed: u64, out: &mut Out) -> Verdict {
    if pairs == 0 {
        return Err(Failure::input("--pairs: expected at least 1"));
    }
    let rates = super::demo::gate_error_rates(pairs, seed, out)?;
    out.present(&rates, || render(&rates))?;
    Ok(Finding::Positive)
}

fn render(rates: &[ErrorRates]) -> String {
    let mut lines = Vec::new();
    for rates in rates {
        lines.push(format!(
            "{:?} design, confidence {}: {} requests and {} blocks per made run on average",
            rates.design,
            fmt::percent(rates.confidence),
            fmt::number(rates.requests_mean),
            fmt::number(rates.blocks_mean)
        ));
        let mut table = text::Table::new([
            "truth",
            "accept",
            "reject",
            "need more data",
            "interval holds the truth",
            "half width",
        ]);
        for kind in [&rates.same, &rates.better, &rates.worse] {
            table.row(row(kind));
        }
        lines.push(table.render(2));
        for (name, rate) in [
            ("false accept", &rates.false_accept),
            ("false reject", &rates.false_reject),
            ("power (accepted where better)", &rates.power),
        ] {
            lines.push(format!("  {name}: {}", share(rate)));
        }
    }
    lines.join("\n")
}

fn row(kind: &KindRates) -> [String; 6] {
    [
        if kind.shift_share.abs() < 1e-12 { "same".into() } else { fmt::change(kind.shift_share) },
        share(&kind.accept),
        share(&kind.reject),
        share(&kind.need_more_data),
        share(&kind.covered),
        fmt::percent(kind.half_width_mean_share),
    ]
}

fn share(rate: &Rate) -> String {
    format!(
        "{} ({} to {})",
        fmt::percent(rate.share),
        fmt::percent(rate.interval[0]),
        fmt::percent(rate.interval[1])
    )
}
