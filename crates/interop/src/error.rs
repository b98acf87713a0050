//! Why a foreign record is refused.

use evenkeel_trace::RoutesError;
use evenkeel_types::ShapeError;
use std::io;
use thiserror::Error;

/// Why a foreign record is refused. Names the file and, where there is one, the line and column or
/// the array's shape.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The machine did not do it.
    #[error("{file}: {source}")]
    Io {
        /// File.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// More than a reader takes on.
    #[error("{file}: {what} exceeds {limit}")]
    Limit {
        /// File.
        file: String,
        /// Which quantity.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// A file that is not what its name says, cut off, or of an unknown kind.
    #[error("{file}: {problem}")]
    File {
        /// File.
        file: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// An array that does not fit the model.
    #[error("{file}: array is {found}, expected {expected}")]
    Array {
        /// File.
        file: String,
        /// Type and shape found.
        found: String,
        /// Type and shape expected.
        expected: String,
    },
    /// An id that is negative or beyond 16 bits.
    #[error(
        "{file}: token {token}, layer {layer}, choice {choice}: {found}, expected an expert id"
    )]
    Id {
        /// File.
        file: String,
        /// Token.
        token: usize,
        /// Layer.
        layer: usize,
        /// Position among the k choices.
        choice: usize,
        /// The value.
        found: String,
    },
    /// A CSV file without a column that is needed.
    #[error("{file}: no column {expected}; it has {found}")]
    Column {
        /// File.
        file: String,
        /// Names, any of which would do.
        expected: String,
        /// The columns present.
        found: String,
    },
    /// A field of a CSV file.
    #[error("{file}: line {line}, column `{column}`: `{found}`, expected {expected}")]
    Field {
        /// File.
        file: String,
        /// Line, counted from 1.
        line: u64,
        /// Column.
        column: String,
        /// The field.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// Ids or requests that contradict the model or each other.
    #[error("{file}: {source}")]
    Routes {
        /// File or files of the ids.
        file: String,
        /// Why.
        source: RoutesError,
    },
    /// The shape that the caller gave is refused.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An option outside its range.
    #[error("import option `{option}` is {found}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl ImportError {
    /// Whether the machine is at fault (exit code 3) and not the input (exit code 2).
    #[must_use]
    pub fn is_environment(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() != io::ErrorKind::NotFound)
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::File { .. } | Self::Array { .. } => {
                "ids are `.npy`, `.npz`, or raw `.u8` / `.u16le` (also `.gz`), [token][layer][k]".into()
            }
            Self::Column { .. } => {
                "a requests CSV has `request`, `first_token`, `n_tokens` (or `n_generated_tokens`), \
                 and where known `tenant` and `prompt_tokens`"
                    .into()
            }
            Self::Routes { .. } => {
                "check the model's number of layers, experts and top-k, and the order [token][layer][k]"
                    .into()
            }
            _ => return None,
        })
    }
}
