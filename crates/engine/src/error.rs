//! Why an engine does not start, or stops.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why an engine does not start, or stops.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that is no JSON object.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// A field of a config that is absent, of another type, or not supported.
    #[error("{}: field `{field}` is {found}, expected {expected}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// What it says.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// A file that is no whole safetensors file.
    #[error("{}: {problem}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that the architecture needs and the checkpoint lacks.
    #[error("{}: tensor `{tensor}` is missing", folder.display())]
    Missing {
        /// The checkpoint.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape than the config says.
    #[error("{}: tensor `{tensor}` has shape {found:?}, config.json says {expected:?}", folder.display())]
    Shape {
        /// The checkpoint.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the config implies.
        expected: Vec<usize>,
    },
    /// A tensor stored in a type that is not supported.
    #[error("{}: tensor `{tensor}` is stored as {found}, expected F32, F16 or BF16", folder.display())]
    Dtype {
        /// The checkpoint.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A weight that is NaN or infinite.
    #[error("{}: tensor `{tensor}` holds {value} at {index}, expected finite numbers", folder.display())]
    NotFinite {
        /// The checkpoint.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the first such weight.
        index: usize,
        /// The weight.
        value: f32,
    },
    /// A map that is not for this model.
    #[error("map: {problem}")]
    Map {
        /// What does not fit.
        problem: String,
    },
    /// A request that cannot be served.
    #[error("request {job}: {problem}")]
    Request {
        /// Number of the request.
        job: u64,
        /// Why.
        problem: String,
    },
    /// The step loop refused.
    #[error(transparent)]
    Sim(#[from] evenkeel_sim::SimError),
    /// The split refused.
    #[error(transparent)]
    Split(#[from] evenkeel_split::SplitError),
}
