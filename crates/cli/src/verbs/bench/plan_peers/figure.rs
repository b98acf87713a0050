//! A measured figure beside its target.

use evenkeel_report::{fmt, text};
use serde::Serialize;

/// What is asked of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub(crate) enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// Shown for comparison.
    None,
}

/// One measured figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// What was measured, on which problem.
    pub(crate) what: String,
    /// Unit: `balance` (mean ÷ largest rank), `ratio`, `share`, `ms`, `us`, `moves`, `GB`, …
    pub(crate) unit: &'static str,
    /// The best that others reach, with its source: `measured in this run` or `quoted`.
    pub(crate) best_today: String,
    /// What is asked.
    pub(crate) target: Target,
    /// What was found.
    pub(crate) found: f64,
    /// How it was measured; where a target is missed, why. Empty where there is nothing to say.
    pub(crate) note: String,
}

impl Figure {
    /// Whether the target is reached; `None` without a target.
    pub(crate) fn reached(&self) -> Option<bool> {
        match self.target {
            Target::AtLeast(target) => Some(self.found >= target),
            Target::AtMost(target) => Some(self.found <= target),
            Target::None => None,
        }
    }
}

/// A value in its unit: ratios near 1 need four digits where times need three in all.
pub(crate) fn value(value: f64, unit: &str) -> String {
    match unit {
        "balance" | "ratio" => format!("{value:.4}"),
        "share" => fmt::plain(&fmt::percent(value)),
        unit => fmt::plain(&fmt::with_unit(value, unit)),
    }
}

/// The table of a section's figures, and its notes.
pub(crate) fn render(figures: &[Figure]) -> String {
    let mut table = text::Table::new(["figure", "target", "found", "reached", "today's best"]);
    let mut notes = Vec::new();
    for figure in figures {
        let Figure { what, unit, best_today, target, found, note } = figure;
        let target = match target {
            Target::AtLeast(target) => format!("≥ {}", value(*target, unit)),
            Target::AtMost(target) => format!("≤ {}", value(*target, unit)),
            Target::None => String::new(),
        };
        let reached = match figure.reached() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        table.row([what.as_str(), &target, &value(*found, unit), reached, best_today]);
        if !note.is_empty() {
            notes.push(text::wrap(&format!("{what}: {note}"), 100, 4));
        }
    }
    format!("{}{}", table.render(2), notes.join("\n"))
}
