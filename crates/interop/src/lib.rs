//! What do other tools' records say, in our words? Foreign files in; each fault by file and place.
//!
//! - [`import_ids`]: dumps of the experts chosen per token (`.npy`, `.npz`, raw bytes) with a CSV of
//!   requests → recorded routing;
//! - [`arrivals`]: Azure's traces of when requests arrive;
//! - [`expert_counts`]: tables of how often each expert was chosen;
//! - [`load_matrices`]: tokens per layer and expert as `.npy` or `.npz`;
//! - [`load_matrix`]: one of them, or the same as CSV or JSON.
//!
//! **Invariants.** No file, however damaged, makes a reader panic or allocate beyond the bounds of
//! [`FILE_BYTES_MAX`], [`EXPANDED_BYTES_MAX`] and [`CSV_BYTES_MAX`]. What a file does not say is
//! assumed aloud, in [`Imported::notes`].

mod arrivals;
mod counts;
mod error;
mod ids;
mod import;
mod matrix;
mod matrix_text;
mod npy;
mod requests;
mod source;
mod table;

pub use arrivals::{Arrival, arrivals, arrivals_with_lengths};
pub use counts::{ExpertCounts, expert_counts};
pub use error::ImportError;
pub use import::{ImportOptions, Imported, import_ids};
pub use matrix::{LoadMatrix, load_matrices};
pub use matrix_text::load_matrix;
pub use source::{CSV_BYTES_MAX, EXPANDED_BYTES_MAX, FILE_BYTES_MAX, SourceFile};
