//! How would this group serve that traffic? One deterministic step loop of an expert-parallel group.
//!
//! Continuous batching, chunked prefill, paged KV with preemption, attention data-parallel and
//! experts expert-parallel, every layer synchronised over the group. What a step costs comes from
//! a [`Backend`]: recorded routing under cost curves (replay), constants (tests), later an engine.
//!
//! **Invariants.** The only place where batching, KV blocks, dispatch and combine exist. No clock:
//! `now` is a state of the machine. Same jobs, configuration and seed: the same bytes out.

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

pub use arrivals::superpose;
pub use backend::{Backend, Constant, Entry, Group, StepBatch, StepCost};
pub use config::{GroupConfig, Limits, Progress, Role};
pub use error::{SimError, SinkError};
pub use faults::{AttentionFault, Faults, KernelFault, LateRank};
pub use machine::{Event, Machine};
pub use outcome::Outcomes;
pub use replay::{Replay, StepTimes};
pub use run::{Gap, RequestOutcome, Run, RunTotals, StepSummary};
pub use simulate::simulate;
pub use sink::{NoSink, StepSink};
pub use traffic::{Job, MixChange, TrafficFacts, TrafficSpec, draw_jobs};
