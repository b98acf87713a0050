//! What does this model answer, token by token, wherever its experts live?
//!
//! Expert-parallel inference of Mixture-of-Experts checkpoints on CPUs. A token's result does not
//! depend on the batch it shares, on the rank that ran it, or on the map: every kernel is
//! row-stable, every expert's output comes back to the token's rank and is summed there in the
//! router's order. So the outputs of two maps can be compared with `==`.
//!
//! **Invariants.** No scheduler here: batches and KV blocks are `sim`'s, the choice among copies is
//! `split`'s. The router's choice is read, never changed.

mod backend;
mod checkpoint;
mod error;
mod group;
mod model;
mod rank;
mod sampling;
mod texts;
mod worker;

pub use backend::Virtual;
pub use checkpoint::{Architecture, Checkpoint, ModelConfig, Numerics};
pub use error::EngineError;
pub use group::{LocalGroup, StepWork};
pub use model::Model;
pub use rank::{Inbox, Rank, TokenIn};
pub use sampling::{Sampled, Sampling, sample};
pub use texts::{Choose, Produced, Prompt, Share};
pub use worker::{LayerWork, Packet, Worker};
