//! What a diagnosis is given, and the checks that come before any verdict.

use evenkeel_trace::{RequestRecord, StepRecord, TraceHeader};
use evenkeel_types::{ExpertMap, MapError, Phase, Topology};
use std::collections::BTreeMap;
use thiserror::Error;

/// A recorded window of one serving group.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Header of the trace.
    pub header: &'a TraceHeader,
    /// Map that the steps ran on.
    pub map: &'a ExpertMap,
    /// Machine.
    pub topology: &'a Topology,
    /// Steps in order, both phases.
    pub steps: &'a [StepRecord],
    /// Requests of the window; empty where not recorded.
    pub requests: &'a [RequestRecord],
    /// Conservation laws that the record breaks, one sentence each: any withholds the verdict.
    pub breaches: &'a [String],
}

/// How to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Phase to examine.
    pub phase: Phase,
    /// Seed of the permutation test.
    pub seed: u64,
    /// Tokens of one KV block: turns blocks in use into context.
    pub kv_block_tokens: u32,
    /// A cause that costs less than this share of the mean step is not named.
    pub cause_min_share: f64,
    /// Steps examined in depth, evenly spread over the window.
    pub steps_max: usize,
    /// Hot experts listed.
    pub hot_experts_max: usize,
    /// Share of chance assignments below which a mix shift is called one.
    pub mix_p_max: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            phase: Phase::Decode,
            seed: 0,
            kv_block_tokens: 16,
            cause_min_share: 0.02,
            steps_max: 192,
            hot_experts_max: 10,
            mix_p_max: 0.01,
        }
    }
}

/// Why there is no diagnosis at all. A record that is merely poor gives `cannot tell` instead.
#[derive(Debug, Error)]
pub enum DiagnoseError {
    /// The map is for another model or machine.
    #[error("{window}: {source}")]
    Map {
        /// `observed window` or `baseline`.
        window: &'static str,
        /// What differs.
        source: MapError,
    },
    /// A step whose arrays contradict the model or the topology.
    #[error("{window}, step {step}: {found} {what}, expected {expected}")]
    Dimension {
        /// `observed window` or `baseline`.
        window: &'static str,
        /// Step.
        step: u64,
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A step that ends before it starts.
    #[error("{window}, step {step}: ends at {end_ns} ns, before its start at {start_ns} ns")]
    Time {
        /// `observed window` or `baseline`.
        window: &'static str,
        /// Step.
        step: u64,
        /// Start.
        start_ns: u64,
        /// End.
        end_ns: u64,
    },
    /// A routing row that points outside the model or the machine.
    #[error("{window}, step {step}, layer {layer}: {what} {found}, expected below {limit}")]
    Range {
        /// `observed window` or `baseline`.
        window: &'static str,
        /// Step.
        step: u64,
        /// Layer of the row.
        layer: u16,
        /// `expert`, `rank` or `layer`.
        what: &'static str,
        /// The id.
        found: u16,
        /// First id that does not exist.
        limit: usize,
    },
    /// An option outside its range.
    #[error("option {name} is {value}, expected {expected}")]
    Option {
        /// Name.
        name: &'static str,
        /// Value.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl Options {
    pub(crate) fn validate(&self) -> Result<(), DiagnoseError> {
        let bad =
            |name, value: String, expected| Err(DiagnoseError::Option { name, value, expected });
        if !(0.0..1.0).contains(&self.cause_min_share) {
            return bad("cause_min_share", self.cause_min_share.to_string(), "a share in [0, 1)");
        }
        if !(0.0..=1.0).contains(&self.mix_p_max) {
            return bad("mix_p_max", self.mix_p_max.to_string(), "a share in [0, 1]");
        }
        if self.steps_max == 0 {
            return bad("steps_max", "0".into(), "at least 1");
        }
        if self.kv_block_tokens == 0 {
            return bad("kv_block_tokens", "0".into(), "at least 1");
        }
        Ok(())
    }
}

impl Observation<'_> {
    /// Checks every step's dimensions and ids once, so that later code may index.
    pub(crate) fn validate(&self, window: &'static str) -> Result<(), DiagnoseError> {
        let ranks = self.topology.rank_count();
        self.map
            .fits(&self.header.model, ranks)
            .map_err(|source| DiagnoseError::Map { window, source })?;
        let layers = usize::from(self.header.model.moe_layers);
        for step in self.steps {
            let bad = |what, found, expected| {
                Err(DiagnoseError::Dimension { window, step: step.step, what, found, expected })
            };
            if step.ranks.len() != ranks {
                return bad("ranks", step.ranks.len(), ranks);
            }
            if !step.cells.is_empty() && step.cells.len() != layers * ranks {
                return bad("layer cells", step.cells.len(), layers * ranks);
            }
            if step.end_ns < step.start_ns {
                let (start_ns, end_ns) = (step.start_ns, step.end_ns);
                return Err(DiagnoseError::Time { window, step: step.step, start_ns, end_ns });
            }
            self.check_ids(window, step, layers, ranks)?;
        }
        Ok(())
    }

    fn check_ids(
        &self,
        window: &'static str,
        step: &StepRecord,
        layers: usize,
        ranks: usize,
    ) -> Result<(), DiagnoseError> {
        let experts = usize::from(self.header.model.experts);
        let routing = step.routing.iter().flat_map(|row| {
            let host = row.host.unwrap_or(row.source);
            [
                (row.layer, "layer", row.layer.0, layers),
                (row.layer, "expert", row.expert.0, experts),
                (row.layer, "rank", row.source.0, ranks),
                (row.layer, "rank", host.0, ranks),
            ]
        });
        let links = step.links.iter().flat_map(|row| {
            [
                (row.layer, "layer", row.layer.0, layers),
                (row.layer, "rank", row.source.0, ranks),
                (row.layer, "rank", row.destination.0, ranks),
            ]
        });
        for (layer, what, found, limit) in routing.chain(links) {
            if usize::from(found) >= limit {
                let (step, layer) = (step.step, layer.0);
                return Err(DiagnoseError::Range { window, step, layer, what, found, limit });
            }
        }
        Ok(())
    }

    /// Steps of a phase that ran on this map, warm-up dropped: with the share dropped and whether
    /// some ran on another map.
    pub(crate) fn select(&self, phase: Phase) -> Selection<'_> {
        let of_phase: Vec<&StepRecord> =
            self.steps.iter().filter(|step| step.phase == phase).collect();
        let on_map: Vec<&StepRecord> =
            of_phase.iter().copied().filter(|step| step.map_version == self.map.version).collect();
        let warm = warm_up(&on_map);
        let kept: Vec<&StepRecord> =
            on_map.iter().zip(&warm).filter(|(_, warm)| !**warm).map(|(step, _)| *step).collect();
        Selection {
            other_map: of_phase.len() - on_map.len(),
            warm_up_share: (on_map.len() - kept.len()) as f64 / on_map.len().max(1) as f64,
            steps: kept,
        }
    }
}

/// Steps that a verdict may rest on.
pub(crate) struct Selection<'a> {
    pub(crate) steps: Vec<&'a StepRecord>,
    pub(crate) other_map: usize,
    pub(crate) warm_up_share: f64,
}

/// Passes with equal routing beyond this count are synthetic: real batches do not repeat.
const REPEATS_MIN: usize = 3;
/// A pass with fewer rows may repeat by chance.
const ROWS_MIN: u64 = 64;

/// Marks engine warm-up: passes whose rows are the same in every layer, on every rank and (where
/// recorded) for every expert as in at least two others. Where *all* passes are alike nothing is
/// marked: there would be no traffic left to speak of.
fn warm_up(steps: &[&StepRecord]) -> Vec<bool> {
    let mut seen: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
    let signatures: Vec<Vec<u32>> = steps.iter().map(|step| signature(step)).collect();
    for signature in &signatures {
        *seen.entry(signature.clone()).or_default() += 1;
    }
    let repeated = |signature: &Vec<u32>| {
        let rows: u64 = signature.iter().map(|count| u64::from(*count)).sum();
        rows >= ROWS_MIN && seen.get(signature).is_some_and(|count| *count >= REPEATS_MIN)
    };
    let marks: Vec<bool> = signatures.iter().map(repeated).collect();
    if marks.iter().all(|mark| *mark) { vec![false; steps.len()] } else { marks }
}

/// Rows by layer and rank; where spans are absent, routing rows in order.
fn signature(step: &StepRecord) -> Vec<u32> {
    if step.cells.is_empty() {
        step.routing.iter().map(|row| row.tokens).collect()
    } else {
        step.cells.iter().map(|cell| cell.rows_in).collect()
    }
}
