//! Errors of composed servers, with δ fitted on half of the configurations.

use super::{NODE_RANKS, ServerParts, ServerRow, read_servers};
use crate::error::CostError;
use crate::fit::key_hash;
use crate::profile::Profile;
use crate::report::FitReport;
use crate::stats::quantile;
use crate::table::Table;
use evenkeel_types::{ModelShape, Phase, hash2};
use serde::{Deserialize, Serialize};

/// Halves tried: one alone may put the only row of a group on either side.
const SPLITS: u64 = 20;

/// Judges the servers of the table with the committed curves of two profiles: TensorRT-LLM's
/// wide EP experts, or DeepGEMM's for SGLang.
///
/// # Errors
/// A missing column or an unreadable cell.
pub fn judge_profiles(
    table: &Table<'_>,
    h100: &Profile,
    h200: &Profile,
) -> Result<(ServerReport, FitReport), CostError> {
    let rows = read_servers(table)?;
    let Some(shape) = ModelShape::known("deepseek-v3") else {
        return Ok((ServerReport::default(), rows.report));
    };
    let report = judge_servers(&rows.usable, &shape, |row| {
        let profile = match row.system.as_str() {
            "h100_sxm" => h100,
            "h200_sxm" => h200,
            _ => return None,
        };
        ServerParts::of(profile, &row.engine, &shape)
    });
    Ok((report, rows.report))
}

impl ServerParts {
    /// The parts of a profile for an engine; none where it has no curve of that engine.
    #[must_use]
    pub fn of(profile: &Profile, engine: &str, shape: &ModelShape) -> Option<Self> {
        let kernel = match engine {
            "trtllm" => "trtllm wide ep",
            "sglang" => "sglang deepgemm",
            _ => return None,
        };
        Some(Self {
            experts: profile.expert_curve_of(kernel, shape, Phase::Decode)?,
            attention: profile.attention.clone(),
            dense: profile.dense.rates,
        })
    }
}

/// Errors of a composition over a set of server rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerLine {
    /// Which rows, and with which constant.
    pub group: String,
    /// Rows judged.
    pub rows: usize,
    /// Median absolute relative error.
    pub median: f64,
    /// 90th percentile of it.
    pub p90: f64,
    /// Mean signed relative error.
    pub bias: f64,
}

impl ServerLine {
    fn new(group: &str, errors: &[f64]) -> Self {
        let mut absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        absolute.sort_by(f64::total_cmp);
        Self {
            group: group.to_owned(),
            rows: errors.len(),
            median: quantile(&absolute, 0.5),
            p90: quantile(&absolute, 0.9),
            bias: errors.iter().sum::<f64>() / errors.len().max(1) as f64,
        }
    }
}

/// δ of one engine and fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineDelta {
    /// Engine and fabric, e.g. `trtllm, one node`.
    pub group: String,
    /// Configurations that it was fitted to.
    pub configurations: usize,
    /// µs per layer.
    pub layer_us: f64,
}

/// What the composition reached on whole servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// Errors by set of rows.
    pub lines: Vec<ServerLine>,
    /// δ fitted on half of the configurations.
    pub deltas: Vec<EngineDelta>,
    /// Unseen configurations under other halves: how much the split decides.
    pub splits: Vec<ServerLine>,
}

/// One usable row with its prediction before δ.
#[derive(Clone, Debug)]
struct Compared {
    group: String,
    configuration: String,
    measured_us: f64,
    bare_us: f64,
}

impl Compared {
    fn bare_error(&self) -> f64 {
        self.bare_us / self.measured_us - 1.0
    }
}

/// Compares usable rows with their composition; `parts` gives the machine and engine of a row.
/// δ is fitted on the configurations of one half by hash and judged on the other.
#[must_use]
pub fn judge_servers(
    rows: &[ServerRow],
    shape: &ModelShape,
    parts: impl Fn(&ServerRow) -> Option<ServerParts>,
) -> ServerReport {
    let compared: Vec<Compared> = rows
        .iter()
        .filter_map(|row| {
            let bare_us = parts(row)?.tpot_us(shape, &row.load);
            let place = if row.load.ranks > NODE_RANKS { "two nodes" } else { "one node" };
            Some(Compared {
                group: format!("{}, {place}", row.engine),
                configuration: row.configuration(),
                measured_us: row.tpot_us,
                bare_us,
            })
        })
        .collect();
    let layers = f64::from(shape.moe_layers) + f64::from(shape.dense_layers);
    let mut report = ServerReport::default();
    let bare: Vec<f64> = compared.iter().map(Compared::bare_error).collect();
    report.lines.push(ServerLine::new("no constant, all usable rows", &bare));
    for group in groups(&compared) {
        let of_group = compared.iter().filter(|row| row.group == group);
        let bare: Vec<f64> = of_group.map(Compared::bare_error).collect();
        report.lines.push(ServerLine::new(&format!("no constant, {group}"), &bare));
    }
    let (errors, deltas) = split(&compared, layers, 0);
    for group in groups(&compared) {
        let own: Vec<f64> = errors.iter().filter(|e| e.0 == group).map(|e| e.1).collect();
        report.lines.push(ServerLine::new(&format!("one constant, unseen, {group}"), &own));
    }
    let all = |errors: &[(String, f64)]| errors.iter().map(|e| e.1).collect::<Vec<f64>>();
    let name = "one constant, unseen configurations";
    report.lines.push(ServerLine::new(name, &all(&errors)));
    report.deltas = deltas;
    for salt in 0..SPLITS {
        let (errors, _) = split(&compared, layers, salt);
        report.splits.push(ServerLine::new(&format!("split {salt}"), &all(&errors)));
    }
    report
}

fn groups(compared: &[Compared]) -> Vec<String> {
    let mut groups: Vec<String> = compared.iter().map(|row| row.group.clone()).collect();
    groups.sort();
    groups.dedup();
    groups
}

/// Fits δ per group on the configurations of one half, by a salted hash, and gives the errors of
/// the other half by group. A group whose half is empty keeps δ = 0.
fn split(compared: &[Compared], layers: f64, salt: u64) -> (Vec<(String, f64)>, Vec<EngineDelta>) {
    let seen = |row: &Compared| hash2(salt, key_hash(&row.configuration)).is_multiple_of(2);
    let (mut errors, mut deltas) = (Vec::new(), Vec::new());
    for group in groups(compared) {
        let (train, test): (Vec<&Compared>, Vec<&Compared>) =
            compared.iter().filter(|row| row.group == group).partition(|row| seen(row));
        let layer_us = delta(&train, layers);
        let mut configurations: Vec<&str> =
            train.iter().map(|row| row.configuration.as_str()).collect();
        configurations.sort_unstable();
        configurations.dedup();
        errors.extend(
            test.iter().map(|row| {
                (group.clone(), (row.bare_us + layers * layer_us) / row.measured_us - 1.0)
            }),
        );
        deltas.push(EngineDelta { group, configurations: configurations.len(), layer_us });
    }
    (errors, deltas)
}

/// The non-negative δ with the least sum of absolute relative errors: a weighted median.
fn delta(rows: &[&Compared], layers: f64) -> f64 {
    let mut wanted: Vec<(f64, f64)> = rows
        .iter()
        .map(|row| ((row.measured_us - row.bare_us) / layers, layers / row.measured_us))
        .collect();
    wanted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = wanted.iter().map(|w| w.1).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    for (value, weight) in wanted {
        sum += weight;
        if sum >= half {
            return value.max(0.0);
        }
    }
    0.0
}
