//! How would this group serve that traffic? One deterministic step loop of an expert-parallel group.
//!
//! Continuous batching, chunked prefill, paged KV with preemption, attention data-parallel and
//! experts expert-parallel, every layer synchronised over the group. What a step costs comes from
//! a [`Backend`]: recorded routing under cost curves (replay), constants (tests), later an engine.
//!
//! [`simulate`] drives a [`Machine`] (events in, batches out, time as an argument) and accounts for
//! every step in a [`Run`]. [`draw_jobs`] makes the traffic; [`StepSink`] takes the trace.
//!
//! **What is modelled.**
//! - A prompt of P recorded tokens is prefilled in chunks and yields the first output token; then
//!   the recorded output tokens are fed one by one, teacher-forced, and the last is not fed. No
//!   request decodes more tokens than were recorded.
//! - A new sequence goes to the rank with fewest sequences and stays there. KV blocks for all
//!   tokens that it knows, and for the next one, are taken at admission; a decoding sequence takes
//!   further blocks as it grows. Where none is free, the sequence admitted last on the rank loses
//!   its blocks and prefills again, prompt and outputs.
//! - A step has one phase. Prefill goes first, but at most
//!   [`GroupConfig::prefill_steps_in_row_max`] steps in a row while a sequence waits to decode.
//! - Which copy serves a token is the split's: a token takes one of its ways by a hash of job and
//!   position (decode), of recorded request and position (prefill, where a prompt's tokens spread
//!   over the ways by themselves and clones of a prompt cost the same).
//! - Decode runs in low-latency mode: every (token, expert) pair is a row, one to the own rank too,
//!   as in the measurements behind the curves. Prefill runs in normal mode: a token crosses to a
//!   node once, to the rank at its source's place, which forwards it once to each rank that needs
//!   it. An exchange costs what a balanced one costs whose every rank moves what the busiest moves
//!   here; rows over a node's degraded outer links count `1 / rate_share`.
//! - A slow rank ([`evenkeel_types::RankSpeed`]) is slow in attention, router and experts.
//! - Not modelled: tokens dropped by a capacity factor, speculative decoding, prefix caching, a map
//!   that changes during a run.
//!
//! **Invariants.** The only place where batching, KV blocks, dispatch and combine exist. No clock:
//! `now` is a state of the machine. Same jobs, configuration and seed: the same bytes out.

mod admission;
mod arrivals;
mod backend;
mod config;
mod error;
mod faults;
mod machine;
mod outcome;
mod ranks;
mod replay;
mod run;
mod simulate;
mod sink;
mod traffic;

pub use admission::Admission;
pub use arrivals::superpose;
pub use backend::{Backend, Constant, Entry, Group, StepBatch, StepCost};
pub use config::{GroupConfig, Limits, Progress, Role};
pub use error::{SimError, SinkError};
pub use faults::{AttentionFault, Faults, KernelFault, LateRank};
pub use machine::{Event, Machine};
pub use outcome::Outcomes;
pub use replay::{Replay, StepTimes};
pub use run::{Gap, RequestOutcome, Run, RunTotals, StepSummary};
pub use simulate::{serve, simulate};
pub use sink::{NoSink, StepSink};
pub use traffic::{Job, MixChange, TrafficFacts, TrafficSpec, draw_jobs};
