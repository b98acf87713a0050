//! Which copy serves a token?
//!
//! The map says where the copies of an expert live, the split says which share of the expert's
//! tokens each of them takes. It is the cheaper decision: a new split moves no weights. A
//! [`SplitTable`] is static for a window and the same on every rank, so no rank has to ask another.
//! [`min_max_rows`] is the exact optimum for given loads; [`gaps`] tells a bad split from a bad map.
//! [`StepSplitter`] solves every step anew in whole rows, for engines whose ranks know the counts
//! before they dispatch. [`timed_shares`] counts a copy's first tile, which decides in decode.
//! [`check_replica_choice`] finds tables of an engine's ranks that run an expert twice.
//!
//! **Invariant.** A split chooses among ranks that hold the chosen expert, and nothing else: no
//! function here can change which expert a token is routed to, or lose a token.

mod choice;
mod error;
mod flow;
mod gap;
mod min_max;
mod source;
mod step;
mod table;
mod timed;

pub use choice::{ChoiceFault, TokensSeen, check_replica_choice};
pub use error::SplitError;
pub use gap::{Gaps, gaps};
pub use min_max::{MinMax, min_max_rows, min_max_rows_weighted};
pub use source::SourceSplit;
pub use step::StepSplitter;
pub use table::{Rounding, SplitTable};
pub use timed::{Timed, TimedInput, timed_shares};
