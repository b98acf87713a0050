//! Where does a trace live, and is what lies there whole? Parquet data sets with a checked schema.
//!
//! A trace is a folder: `trace.json` (the [`evenkeel_trace::TraceHeader`]), `maps/v<N>.json`, and
//! one Parquet file per [`Table`], each of which may be absent. [`TraceWriter`] streams records into
//! a hidden folder beside the target and renames it when it is whole; [`Trace`] opens a folder,
//! bounds what it may make the reader allocate, checks every row's order and range, runs the
//! conservation laws, and then streams steps and sums. The format is written down in
//! `docs/trace-format.md`.
//!
//! **Invariants.** Nothing half-written ever has a trace's name. No file, however damaged, makes a
//! reader panic or allocate beyond [`limits`]. Memory of reading and writing steps does not grow
//! with the trace's length.

mod cell;
mod decoder;
mod error;
mod guard;
mod header;
pub mod limits;
mod records;
mod stream;
mod table;
mod table_file;
mod table_writer;
mod thrift;
mod tokens;
mod trace;
mod verify;
mod writer;

pub use error::StoreError;
pub use evenkeel_trace::Window;
pub use stream::Steps;
pub use table::Table;
pub use trace::Trace;
pub use writer::{TraceWriter, unpack};
