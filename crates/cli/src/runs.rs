//! Runs kept on disk between `replay` and `gate`: a manifest and one compressed file per run.

use crate::fail::Failure;
use crate::load;
use crate::out::write_file;
use evenkeel_prove::DrawOutcome;
use evenkeel_sim::Run;
use evenkeel_types::{ExpertMap, ModelShape, Slice, Topology};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;

/// Schema name of a manifest.
const SCHEMA: &str = "evenkeel.replay/1";

/// A run beyond this, uncompressed, is refused: 2 GiB is some ten million requests.
const RUN_BYTES_MAX: u64 = 2 << 30;

/// What a folder of replays holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    schema: String,
    /// Times come from cost curves.
    pub(crate) modelled: bool,
    pub(crate) seed: u64,
    pub(crate) slices: Vec<Slice>,
    pub(crate) model: Option<ModelShape>,
    pub(crate) topology: Option<Topology>,
    pub(crate) model_notes: Vec<String>,
    /// Maps replayed, the live one first.
    pub(crate) maps: Vec<ManifestMap>,
}

/// One map and its run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManifestMap {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) map: ExpertMap,
    pub(crate) draws: Vec<DrawOutcome>,
}

impl Manifest {
    pub(crate) fn new(slices: &[Slice], model_notes: Vec<String>) -> Self {
        Self {
            schema: SCHEMA.into(),
            modelled: true,
            seed: 0,
            slices: slices.to_vec(),
            model: None,
            topology: None,
            model_notes,
            maps: Vec::new(),
        }
    }

    pub(crate) fn read(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join("replay.json");
        let manifest: Self = serde_json::from_str(&load::text(&path)?)
            .map_err(|error| Failure::input(error).context(path.display()))?;
        if manifest.schema != SCHEMA {
            return Err(Failure::input(format!(
                "{}: schema is `{}`, expected `{SCHEMA}`",
                path.display(),
                manifest.schema
            )));
        }
        Ok(manifest)
    }
}

/// Writes a run, compressed.
pub(crate) fn write_run(path: &Path, run: &Run) -> Result<(), Failure> {
    let environment = |error: std::io::Error| Failure::io(path.display(), &error);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let json = serde_json::to_vec(run).map_err(Failure::environment)?;
    encoder.write_all(&json).map_err(environment)?;
    write_file(path, &encoder.finish().map_err(environment)?)
}

/// Reads a run that [`write_run`] wrote.
pub(crate) fn read_run(path: &Path) -> Result<Run, Failure> {
    let file = std::fs::File::open(path).map_err(|error| Failure::io(path.display(), &error))?;
    let mut json = Vec::new();
    GzDecoder::new(file)
        .take(RUN_BYTES_MAX + 1)
        .read_to_end(&mut json)
        .map_err(|error| Failure::input(error).context(path.display()))?;
    if json.len() as u64 > RUN_BYTES_MAX {
        return Err(Failure::input(format!("{}: larger than 2 GiB", path.display())));
    }
    serde_json::from_slice(&json).map_err(|error| Failure::input(error).context(path.display()))
}
