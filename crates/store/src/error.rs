//! Why a trace cannot be written or read.

use crate::Table;
use evenkeel_trace::RoutesError;
use evenkeel_types::{MapError, ShapeError, TopologyError};
use parquet::errors::ParquetError;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a trace cannot be written or read. Names the file, and where it has one the column, row,
/// step, layer or rank.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The machine did not do it: disk full, no permission, no such folder.
    #[error("{path}: cannot {doing}: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The folder is not there or holds no header.
    #[error("{path}: is not a trace: it has no `trace.json`")]
    NotATrace {
        /// The folder.
        path: PathBuf,
    },
    /// A trace is never written over.
    #[error("{path}: exists already")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The header is not JSON, or a field is missing, unknown or of another type.
    #[error("{path}: {source}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// Another schema version.
    #[error("{path}: schema is `{found}`, expected `{expected}`")]
    Schema {
        /// The file.
        path: PathBuf,
        /// What the file says.
        found: String,
        /// What this reader takes.
        expected: String,
    },
    /// More than a reader takes on.
    #[error("{path}: {what} is {found}, at most {limit} is read")]
    Limit {
        /// The file.
        path: PathBuf,
        /// Which quantity.
        what: String,
        /// Its value.
        found: u64,
        /// The bound.
        limit: u64,
    },
    /// Not Parquet, truncated, or inconsistent in itself.
    #[error("{path}: not readable as Parquet: {problem}")]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A column that is missing or of a type that cannot hold the value.
    #[error("{path}: column `{column}` {problem}")]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A value outside its range: negative, not a number, not whole, too large, null.
    #[error("{path}: row {row}, column `{column}`: {found}, expected {expected}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Row, counted from 0.
        row: u64,
        /// The column.
        column: String,
        /// The value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// Rows that contradict each other: unsorted, repeated, incomplete.
    #[error("{path}: row {row}: {place}: {problem}")]
    Row {
        /// The file.
        path: PathBuf,
        /// Row, counted from 0.
        row: u64,
        /// Step, layer, rank, request: the row's key.
        place: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A header field that contradicts another or the model.
    #[error("{path}: {problem}")]
    Field {
        /// The file.
        path: PathBuf,
        /// What is wrong, naming the field.
        problem: String,
    },
    /// The header's model shape is refused.
    #[error("{path}: {source}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ShapeError,
    },
    /// The header's topology is refused.
    #[error("{path}: {source}")]
    Topology {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<TopologyError>,
    },
    /// A map of the trace is refused.
    #[error("{path}: {source}")]
    Map {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<MapError>,
    },
    /// Recorded routing is refused.
    #[error("{path}: {source}")]
    Routes {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RoutesError,
    },
    /// The trace lacks a table that the question needs.
    #[error("{path}: has no table `{table}`, needed for {purpose}")]
    Missing {
        /// The trace's folder.
        path: PathBuf,
        /// The table.
        table: Table,
        /// What it is needed for.
        purpose: &'static str,
    },
}

impl StoreError {
    /// Whether the machine is at fault (exit code 3) and not the input (exit code 2).
    #[must_use]
    pub fn is_environment(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free space on the disk, or write elsewhere; nothing was left behind".into()
                }
                io::ErrorKind::PermissionDenied => {
                    "a trace is readable by its owner only: run as that user".into()
                }
                _ => return None,
            },
            Self::NotATrace { .. } => {
                "give the folder that holds `trace.json`; `evenkeel import` makes one".into()
            }
            Self::Exists { .. } => "remove it or choose another name".into(),
            Self::Schema { .. } => {
                "written by another version of Evenkeel; docs/trace-format.md says which reads what"
                    .into()
            }
            Self::Column { .. } => {
                "docs/trace-format.md lists every column and its type".into()
            }
            Self::Parquet { .. } => {
                "the file may be cut off: copy it again, or leave the table out (tables can be absent)"
                    .into()
            }
            Self::Missing { table, .. } => {
                format!("record or import the table `{table}`, or ask without it")
            }
            Self::Map { .. } => {
                "a map is for one model revision and one number of ranks; docs/map-format.md".into()
            }
            _ => return None,
        })
    }

    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source }
    }

    /// Sorts a Parquet error into the environment's (an I/O error within) and the input's.
    pub(crate) fn parquet(path: &Path, doing: &'static str) -> impl Fn(ParquetError) -> Self {
        let path = path.to_owned();
        move |error| {
            let path = path.clone();
            match io_kind(&error) {
                Some(source) => Self::Io { path, doing, source },
                None => Self::Parquet { path, problem: error.to_string() },
            }
        }
    }
}

/// The I/O error inside, if there is one that the disk caused. A premature end is the input's.
fn io_kind(error: &ParquetError) -> Option<io::Error> {
    let mut inner: Option<&(dyn Error + 'static)> = error.source();
    while let Some(source) = inner {
        if let Some(io) = source.downcast_ref::<io::Error>() {
            let foreign = [
                io::ErrorKind::UnexpectedEof,
                io::ErrorKind::InvalidData,
                io::ErrorKind::InvalidInput,
                io::ErrorKind::Other,
            ];
            return match io.raw_os_error() {
                Some(code) => Some(io::Error::from_raw_os_error(code)),
                None if foreign.contains(&io.kind()) => None,
                None => Some(io::Error::new(io.kind(), io.to_string())),
            };
        }
        inner = source.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_the_environment_and_a_cut_file_the_input() {
        let path = Path::new("steps.parquet");
        let full = ParquetError::External(Box::new(io::Error::from_raw_os_error(28)));
        let error = StoreError::parquet(path, "write rows")(full);
        assert!(error.is_environment(), "{error}");
        assert!(error.hint().is_some());
        let cut = ParquetError::External(Box::new(io::Error::from(io::ErrorKind::UnexpectedEof)));
        assert!(!StoreError::parquet(path, "read rows")(cut).is_environment());
        assert!(!StoreError::parquet(path, "x")(ParquetError::EOF("x".into())).is_environment());
    }
}
