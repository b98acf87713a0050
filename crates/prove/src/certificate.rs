//! A plan's certificate: the question, the answer and what is claimed of it, in one file.
//!
//! The file holds everything that value and bound follow from, so that it can be checked without
//! the trace and without trust in the planner: [`check_certificate`] derives them again from the
//! numbers alone. What it does not show is that the question is the right one; its digests say
//! which loads, map and machine were meant.

mod check;

use evenkeel_cost::ExpertCoefficients;
use evenkeel_trace::StepLoads;
use evenkeel_types::{ExpertMap, ModelShape, Pin, Policy, Topology};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Schema name that a certificate must carry.
pub const CERTIFICATE_SCHEMA: &str = "evenkeel.certificate/1";

/// What the plan minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertifiedObjective {
    /// Mean over the window's steps of the slowest rank's time, µs.
    StepTime,
    /// Rows of the fullest rank over the whole window; every value is then a number of rows, and
    /// coefficients, exchange and fixed time are not read.
    SummedTokens,
}

/// Everything that value and bound follow from, the answer left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What is minimised.
    pub objective: CertifiedObjective,
    /// The model.
    pub shape: ModelShape,
    /// The machine: speeds, memory, dead ranks.
    pub topology: Topology,
    /// The policy: memory, pins, slots.
    pub policy: Policy,
    /// Expert time.
    pub coefficients: ExpertCoefficients,
    /// Marginal exchange time of a row, µs.
    pub exchange_us_per_row: f64,
    /// The rest of a step, µs.
    pub fixed_us: f64,
    /// `[layer * ranks + rank]`: load whatever the map, before the rank's speed.
    pub rank_extra_us: Option<Vec<f64>>,
    /// `[layer][rank]`: slots of the live map, which cost their idle time under any map.
    pub slots_live: Vec<Vec<u16>>,
    /// The window.
    pub loads: StepLoads,
}

/// What is claimed of one layer, µs (rows for summed tokens).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerClaim {
    /// Value of the map under the parts.
    pub us: f64,
    /// What no map with these slots can beat.
    pub bound_us: f64,
}

/// What is claimed of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Value of the whole step, the fixed part included, µs (rows for summed tokens).
    pub step_us: f64,
    /// Its bound.
    pub bound_us: f64,
    /// Value ÷ bound − 1, 0 where the bound is 0.
    pub gap_share: f64,
    /// Per layer.
    pub layers: Vec<LayerClaim>,
}

/// Digests (SHA-256, 16 hexadecimal digits) by which a file is told from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digests {
    /// Of the window: phase, shape, tokens and counts.
    pub loads: String,
    /// Of the placement: [`ExpertMap::digest`].
    pub map: String,
    /// Of everything, these digests left out.
    pub all: String,
}

/// A plan with all that its value and bound follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// [`CERTIFICATE_SCHEMA`].
    pub schema: String,
    /// Program that made it, with its version.
    pub made_by: String,
    /// The question.
    pub question: Question,
    /// The planned map.
    pub map: ExpertMap,
    /// `[layer][copy]`, copies in rank and slot order: a copy serves its parts ÷ all parts of its
    /// expert. All 1 for an even split.
    pub parts: Vec<Vec<u32>>,
    /// What is claimed.
    pub claims: Claims,
    /// Digests of the above.
    pub digests: Digests,
}

/// Why a certificate cannot be read.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// Not JSON, or a field is missing, unknown or of another type.
    #[error("certificate: {0}")]
    Json(#[from] serde_json::Error),
    /// Another schema.
    #[error("certificate: schema is `{found}`, expected `{CERTIFICATE_SCHEMA}`")]
    Schema {
        /// What the file says.
        found: String,
    },
}

impl Certificate {
    /// Seals a question, its answer and the claims with their digests.
    ///
    /// # Errors
    /// Numbers that JSON cannot hold.
    pub fn seal(
        made_by: &str,
        question: Question,
        map: ExpertMap,
        parts: Vec<Vec<u32>>,
        claims: Claims,
    ) -> Result<Self, CertificateError> {
        let digests = Digests { loads: String::new(), map: String::new(), all: String::new() };
        let (schema, made_by) = (CERTIFICATE_SCHEMA.to_owned(), made_by.to_owned());
        let mut sealed = Self { schema, made_by, question, map, parts, claims, digests };
        sealed.digests = sealed.digests_found()?;
        Ok(sealed)
    }

    /// Reads a certificate's text. Nothing is derived yet: see [`check_certificate`].
    ///
    /// # Errors
    /// Where the text is not a certificate of this schema.
    pub fn from_json(text: &str) -> Result<Self, CertificateError> {
        let certificate: Self = serde_json::from_str(text)?;
        if certificate.schema != CERTIFICATE_SCHEMA {
            return Err(CertificateError::Schema { found: certificate.schema });
        }
        Ok(certificate)
    }

    /// The certificate as a file's text.
    ///
    /// # Errors
    /// Numbers that JSON cannot hold.
    pub fn to_json(&self) -> Result<String, CertificateError> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Digests of what the certificate holds now.
    ///
    /// # Errors
    /// Numbers that JSON cannot hold.
    pub fn digests_found(&self) -> Result<Digests, CertificateError> {
        let Self { schema, made_by, question, map, parts, claims, digests: _ } = self;
        let mut all = Sha256::new();
        for text in [
            serde_json::to_string(&(schema, made_by))?,
            serde_json::to_string(&(question, map))?,
            serde_json::to_string(&(parts, claims))?,
        ] {
            all.update(text.as_bytes());
            all.update([0]);
        }
        let mut loads = Sha256::new();
        loads.update(serde_json::to_string(&question.loads)?.as_bytes());
        Ok(Digests { loads: hex(loads), map: map.digest(), all: hex(all) })
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Relative difference that sums in another order may cause.
const TOLERANCE: f64 = 1e-9;

/// One point in which a certificate does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disagreement {
    /// `step`, `layer 3`, `rank 7`, `layer 3, expert 5`.
    pub place: String,
    /// What is claimed or demanded.
    pub field: String,
    /// What the certificate says, or what a law expects.
    pub claimed: String,
    /// What was found.
    pub found: String,
}

struct Notes(Vec<Disagreement>);

impl Notes {
    fn note(&mut self, place: String, field: &str, claimed: impl ToString, found: impl ToString) {
        let (claimed, found) = (claimed.to_string(), found.to_string());
        self.0.push(Disagreement { place, field: field.to_owned(), claimed, found });
    }

    fn same(&mut self, place: impl Fn() -> String, field: &str, claimed: f64, found: f64) {
        let slack = TOLERANCE * claimed.abs().max(found.abs()).max(1e-3);
        // Not a number: no agreement.
        if (claimed - found).abs().partial_cmp(&slack).is_none_or(std::cmp::Ordering::is_gt) {
            self.note(place(), field, claimed, found);
        }
    }
}

/// Compares digests, and derives laws, value and bound again, from the numbers alone. Empty where
/// everything agrees.
#[must_use]
pub fn check_certificate(certificate: &Certificate) -> Vec<Disagreement> {
    let mut notes = Notes(Vec::new());
    match certificate.digests_found() {
        Ok(found) if found == certificate.digests => derive_certificate(certificate),
        found => {
            let claimed = format!("{:?}", certificate.digests);
            notes.note("file".to_owned(), "digests", claimed, format!("{found:?}"));
            notes.0
        }
    }
}

/// [`check_certificate`] without the digests, e.g. of one that has just been made.
#[must_use]
pub fn derive_certificate(certificate: &Certificate) -> Vec<Disagreement> {
    let mut notes = Notes(Vec::new());
    shape(certificate, &mut notes);
    for derive in [check::laws, check::values] {
        // What is built on broken numbers says nothing.
        if notes.0.is_empty() {
            derive(certificate, &mut notes);
        }
    }
    notes.0
}

/// Lengths, and numbers that are costs.
fn shape(c: &Certificate, notes: &mut Notes) {
    let q = &c.question;
    let (layers, experts) = (usize::from(q.shape.moe_layers), usize::from(q.shape.experts));
    let ranks = q.topology.rank_count();
    let file = || "file".to_owned();
    let mut length = |field: &str, expected: usize, found: usize| {
        if expected != found {
            notes.note("file".to_owned(), field, expected, found);
        }
    };
    length("experts of the map", experts, usize::from(c.map.experts));
    length("layers of the map", layers, c.map.slots.len());
    length("layers of the loads", layers, q.loads.layers);
    length("experts of the loads", experts, q.loads.experts);
    length("layers of slots_live", layers, q.slots_live.len());
    length("layers of parts", layers, c.parts.len());
    length("layers of the claims", layers, c.claims.layers.len());
    c.map.slots.iter().for_each(|layer| length("ranks of the map", ranks, layer.len()));
    q.slots_live.iter().for_each(|layer| length("ranks of slots_live", ranks, layer.len()));
    q.loads.steps.iter().for_each(|s| length("counts of a step", layers * experts, s.counts.len()));
    for (slots, parts) in c.map.slots.iter().zip(&c.parts) {
        length("parts of a layer", slots.iter().flatten().flatten().count(), parts.len());
    }
    let extra = q.rank_extra_us.iter().flatten();
    length("rank_extra_us", q.rank_extra_us.as_ref().map_or(0, |_| layers * ranks), extra.count());
    if c.map.model != q.shape.name || c.map.model_revision != q.shape.revision {
        notes.note(file(), "model of the map", &q.shape.name, &c.map.model);
    }
    if q.loads.steps.is_empty() || q.topology.validate().is_err() {
        notes.note(file(), "steps and topology", "at least one step, a valid topology", "neither");
    }
    for (layer, (slots, live)) in c.map.slots.iter().zip(&q.slots_live).enumerate() {
        for (rank, (slots, live)) in slots.iter().zip(live).enumerate() {
            let most = usize::from((*live).max(q.policy.plan.slots_per_rank));
            if slots.len() > most {
                notes.note(format!("layer {layer}, rank {rank}"), "slots", most, slots.len());
            }
        }
    }
    let beyond = |pin: &&Pin| pin.layer.index() >= layers || pin.expert.index() >= experts;
    if let Some(pin) = q.policy.plan.pinned.iter().find(beyond) {
        notes.note(file(), "pinned", "ids of this model", format!("{}, {}", pin.layer, pin.expert));
    }
    let k = &q.coefficients;
    let costs = [k.floor_us, k.slot_us, k.first_us, k.further_tile_us, k.row_us, k.token_us];
    let costs = costs.iter().chain([&k.host_us, &q.exchange_us_per_row, &q.fixed_us]);
    let costs = costs.chain(q.rank_extra_us.iter().flatten());
    if let Some(bad) = costs.into_iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
        notes.note(file(), "costs", "0 or more", bad);
    }
}
