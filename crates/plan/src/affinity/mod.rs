//! How much traffic crosses nodes, and how little it could be at a stated loss of balance.
//!
//! Attention is data-parallel: a token starts on the rank where its request lives. In low-latency
//! mode every (token, expert) pair is sent to a rank that holds the expert; in normal mode a token
//! is sent once to every node that serves at least one of its choices. [`cross_node`] counts both,
//! [`bound`] says what no map can go below, and [`localise`] changes map and split so that less
//! crosses while no layer's slowest rank gets more than the stated share of rows beyond what it
//! had. Both numbers come with every answer: balance is never sold silently.

mod bound;
mod flow;
mod layer;
mod localise;
mod measure;
mod traffic;

pub use bound::bound;
pub use localise::{Limit, Localised, Question, localise};
pub use measure::{Reading, cross_node};
pub use traffic::{Mode, Traffic};
