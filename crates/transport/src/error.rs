//! Why an exchange fails.

use std::io;
use thiserror::Error;

/// Why an exchange fails. The group cannot go on after any of these.
#[derive(Debug, Error)]
pub enum TransportError {
    /// The system refused memory or a socket.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A rank did not come in time.
    #[error("rank {rank} waited {waited_s} s for the others")]
    Lost {
        /// The rank that waited.
        rank: usize,
        /// How long.
        waited_s: u64,
    },
    /// Somebody declared the group over.
    #[error("the group was stopped")]
    Poisoned,
    /// A message is longer than the slot between two ranks.
    #[error("a message of {bytes} bytes from rank {from} to rank {to}, the slot holds {room}")]
    TooLong {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Its length.
        bytes: usize,
        /// Room.
        room: usize,
    },
    /// A region of another geometry.
    #[error("shared memory has {found} bytes, {ranks} ranks with slots of {room} need {expected}")]
    Geometry {
        /// Its size.
        found: usize,
        /// Ranks.
        ranks: usize,
        /// Bytes of a slot.
        room: usize,
        /// The size that is needed.
        expected: usize,
    },
}

impl TransportError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
