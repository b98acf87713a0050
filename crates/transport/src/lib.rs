//! How do bytes get from one rank's process to another's, and from a checkpoint to all?
//!
//! [`Exchange::all_to_all`] is the one operation of an expert-parallel layer: every rank hands in a
//! message for every rank and gets everybody's for itself. [`SharedExchange`] does it through memory
//! that the ranks of a machine share, waiting on futexes; [`SocketExchange`] through sockets, for
//! any Unix. They give the same bytes.
//!
//! Ranks outnumber cores in ordinary use, so nothing here spins: a rank that waits sleeps in the
//! kernel (a pure spin costs tens of milliseconds per exchange as soon as two ranks share a core).
//! Every wait has an end: a rank that does not come within [`PATIENCE`] is lost, and so is a group
//! that somebody has [`SharedExchange::poison`]ed.
//!
//! [`Mapping`] shares a file's pages among all processes that read it: a rank touches only the
//! experts that it holds, and ranks of one machine keep one copy of what they have in common.
//!
//! **Invariants.** Shared memory is an anonymous file (memfd) that only descendants can open; no
//! name, nothing to clean up. `unsafe` is confined to the two mappings.

mod error;
mod exchange;
mod mapping;
mod region;
mod shared;
mod socket;

pub use error::TransportError;
pub use exchange::{Exchange, Links, Timing};
pub use mapping::Mapping;
pub use region::Region;
pub use shared::SharedExchange;
pub use socket::SocketExchange;

use std::time::Duration;

/// How long a rank waits for another before it counts as lost.
pub const PATIENCE: Duration = Duration::from_secs(30);
