//! `decision.json`, and the same on a terminal.

use super::counter::{Counter, outcome_line};
use super::incident::Incident;
use super::scene::{RANKS, SEQUENCES_PER_RANK, SLO_TPOT_MS, Scene};
use crate::view::{ms_or_dash, place};
use evenkeel_diagnose::Diagnosis;
use evenkeel_plan::{Outcome, Plan};
use evenkeel_prove::{Metric, Reason, RunMetrics, Verdict};
use evenkeel_report::{fmt, text};
use evenkeel_sim::TrafficFacts;
use serde::Serialize;
use std::path::Path;

/// One map with its price, its measure and its verdict.
#[derive(Serialize)]
pub(super) struct Candidate<'a> {
    name: &'a str,
    map_digest: String,
    chosen: bool,
    plan: Option<&'a Plan>,
    metrics: &'a RunMetrics,
    verdict: Option<&'a Verdict>,
}

/// The whole decision.
#[derive(Serialize)]
pub(super) struct Decided<'a> {
    schema: &'static str,
    seed: u64,
    surge: &'a str,
    label: String,
    ranks: u16,
    sequences_per_rank: u32,
    slo_tpot_ms: f64,
    before: &'a RunMetrics,
    before_traffic: &'a TrafficFacts,
    after: &'a RunMetrics,
    after_traffic: &'a TrafficFacts,
    judging_traffic: &'a TrafficFacts,
    diagnosis: &'a Diagnosis,
    outcome: &'a Outcome,
    candidates: Vec<Candidate<'a>>,
    prefill: &'a [RunMetrics],
    counter_incidents: &'a [Counter],
    #[serde(skip)]
    scene: &'a Scene,
    #[serde(skip)]
    incident: &'a Incident,
}

impl<'a> Decided<'a> {
    pub(super) fn of(scene: &'a Scene, incident: &'a Incident, counters: &'a [Counter]) -> Self {
        let label = match incident.chosen.and_then(|index| incident.judged.get(index)) {
            Some(one) => {
                let label = one.verdict.as_ref().map_or("", |verdict| verdict.label.as_str());
                format!("{label}: {}", one.placed.name)
            }
            None => "no candidate accepted (modelled)".into(),
        };
        Self {
            schema: "evenkeel.demo-decision/1",
            seed: scene.seed,
            surge: scene.surging(),
            label,
            ranks: RANKS,
            sequences_per_rank: SEQUENCES_PER_RANK,
            slo_tpot_ms: SLO_TPOT_MS,
            before: &incident.before.metrics,
            before_traffic: &incident.before.traffic,
            after: &incident.after.metrics,
            after_traffic: &incident.after.traffic,
            judging_traffic: &incident.judging,
            diagnosis: &incident.diagnosis,
            outcome: &incident.outcome,
            candidates: incident
                .judged
                .iter()
                .enumerate()
                .map(|(index, one)| Candidate {
                    name: &one.placed.name,
                    map_digest: one.placed.map.digest(),
                    chosen: incident.chosen == Some(index),
                    plan: one.plan.as_deref(),
                    metrics: &one.metrics,
                    verdict: one.verdict.as_ref(),
                })
                .collect(),
            prefill: &incident.prefill,
            counter_incidents: counters,
            scene,
            incident,
        }
    }

    /// The decision for a terminal.
    pub(super) fn text(&self, dir: &Path) -> String {
        let mut lines = vec![
            format!(
                "{} surges on {RANKS} ranks of H20, {SEQUENCES_PER_RANK} sequences per rank. All times are modelled.",
                self.surge
            ),
            String::new(),
        ];
        lines.extend(self.seen());
        lines.push(String::new());
        lines.push(self.table());
        lines.push(format!("verdict: {}", self.label));
        for one in self.incident.judged.iter().skip(1) {
            let Some(verdict) = &one.verdict else { continue };
            let of_p99 =
                |reason: &&Reason| reason.metric == Metric::TpotP99 && reason.slice.is_none();
            let decided = verdict.reasons.iter().filter(|reason| reason.decided);
            let why = decided.clone().find(of_p99).or(decided.clone().next());
            let why = why.map_or("", |reason| reason.statement.as_str());
            lines.push(format!("  {}: {}; {why}", one.placed.name, verdict.label));
        }
        lines.push(String::new());
        for counter in self.counter_incidents {
            lines.push(format!("{}: {}", counter.title, counter.verdict));
            lines.extend(counter.lines.iter().map(|line| text::wrap(line, 100, 2)));
        }
        lines.push(String::new());
        lines.push(format!("report: {}", dir.join("report.html").display()));
        lines.join("\n")
    }

    fn seen(&self) -> Vec<String> {
        let p99 =
            |metrics: &RunMetrics| ms_or_dash(metrics.overall.tpot_ms.map(|spread| spread.p99));
        let mut lines = vec![format!(
            "p99 TPOT (request-weighted): {} before, {} in the surge; SLO {}",
            p99(self.before),
            p99(self.after),
            fmt::ms(self.slo_tpot_ms)
        )];
        let diagnosis = self.diagnosis;
        lines.push(format!(
            "mean utilisation {}: {}",
            fmt::percent(diagnosis.utilisation.mean_busy_share),
            diagnosis.utilisation.why
        ));
        for cause in &diagnosis.causes {
            lines.push(format!(
                "cause: {}, {} per step ({}){}",
                cause.kind,
                fmt::ms(cause.ms_per_step),
                fmt::percent(cause.share_of_step),
                match place(cause, &self.scene.slices) {
                    place if place.is_empty() => String::new(),
                    place => format!(", at {place}"),
                }
            ));
        }
        if let Some(rank) = diagnosis.waited_for.first() {
            lines.push(format!(
                "the step waits for {} in {} of all layers",
                rank.rank,
                fmt::percent(rank.share_of_layers)
            ));
        }
        if let Some(mix) = &diagnosis.mix {
            let moved = mix.slices.first();
            let name = moved.map_or("", |slice| slice.name.as_str());
            let (before, after) = moved.map_or((0.0, 0.0), |slice| (slice.before, slice.after));
            lines.push(format!(
                "the mix shifted: {name} from {} to {} of decoded tokens; revisions {}",
                fmt::percent(before),
                fmt::percent(after),
                if mix.revisions_changed { "changed" } else { "did not change" }
            ));
        }
        lines.push(format!(
            "bound: no map saves more than {} of the step in expert time (record), {} in expert time \
             and exchange (planner)",
            fmt::percent(diagnosis.map_bound.share_of_step),
            fmt::percent(super::incident::bound_share(self.outcome))
        ));
        lines.push(outcome_line(self.outcome));
        let facts = self.judging_traffic;
        lines.push(format!(
            "judged on {} distinct recorded requests, each cloned {} times on average ({} jobs)",
            facts.distinct_requests,
            fmt::number(facts.cloning_factor),
            fmt::count(facts.jobs)
        ));
        lines
    }

    fn table(&self) -> String {
        let mut table = text::Table::new([
            "map", "moved", "p50 TPOT", "p99 TPOT", "p99 ITL", "goodput", "verdict",
        ]);
        for one in &self.incident.judged {
            let overall = &one.metrics.overall;
            table.row([
                one.placed.name.clone(),
                one.plan.as_ref().map_or("–".into(), |plan| fmt::bytes(plan.price.bytes as f64)),
                ms_or_dash(overall.tpot_ms.map(|spread| spread.p50)),
                ms_or_dash(overall.tpot_ms.map(|spread| spread.p99)),
                ms_or_dash(overall.itl_ms.map(|spread| spread.p99)),
                super::view::goodput_of(one).map_or("–".into(), |both| fmt::percent(both.1)),
                one.verdict.as_ref().map_or("(live)".into(), |verdict| verdict.label.clone()),
            ]);
        }
        table.render(0)
    }
}
