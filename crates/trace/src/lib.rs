//! What happened? The records of a serving group, the laws they must obey, and the loads they hold.
//!
//! A trace is a header ([`TraceHeader`]) and tables. In memory one engine step is one
//! [`StepRecord`]: simulator and engine emit it, the store takes it apart into the tables `steps`,
//! `layers`, `routing` and `links` and puts it together again. Recorded per-token routing (table
//! `tokens`) is [`Routes`], requests are [`RequestRecord`]s.
//!
//! **Invariants.** Prefill and decode are never added up (law 5). Nothing here computes a time or
//! a plan. A foreign record fills what it knows: absent is `None` or an empty list, never zero.

mod aggregate;
mod balance;
mod conserve;
pub mod draw;
mod header;
mod loads;
mod records;
mod routes;
mod window;

pub use aggregate::{
    LOG2_BUCKETS, LinkKey, LinkMatrix, LinkTraffic, LoadMatrix, Log2Histogram, PhaseLoad,
    counts_by_slice,
};
pub use balance::{
    Balance, HotExpert, LayerBalance, LoadError, balance_over_ranks, counts_of, hot_experts,
};
pub use conserve::{BREACH_KINDS_MAX, Breach, Cause, Conservation, Law, StepTotals};
pub use header::{MapVersion, TRACE_SCHEMA, TimeOrigin, TraceHeader};
pub use loads::{StepLoad, StepLoads};
pub use records::{
    Direction, Event, EventKind, Finish, LayerCell, LinkRow, RankCell, RequestRecord, RoutingRow,
    StepRecord,
};
pub use routes::{RecordedRequest, Routes, RoutesError};
pub use window::Window;
