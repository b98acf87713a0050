//! How do bytes get from one rank's process to another's, and from a checkpoint to all?
//!
//! [`Mapping`] shares a file's pages among all processes that read it: a rank touches only the
//! experts that it holds, and ranks of one machine keep one copy of what they have in common.

mod mapping;

pub use mapping::Mapping;
