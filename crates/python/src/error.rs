//! Why an argument is refused: a `ValueError` on the Python side.

use evenkeel_split::SplitError;
use evenkeel_types::MapError;
use thiserror::Error;

/// What is wrong, with the argument and the place.
#[derive(Debug, Error)]
pub(crate) enum Refused {
    /// An argument, and what was expected.
    #[error("{0}")]
    Argument(String),
    /// A map that is none, or of another shape.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A split that does not exist.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// An answer that cannot be written.
    #[error("failed to write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// A refused argument.
pub(crate) fn refuse<T>(why: String) -> Result<T, Refused> {
    Err(Refused::Argument(why))
}
