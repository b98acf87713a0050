//! The one operation, and declared delays of links.

use crate::TransportError;
use std::time::Duration;

/// Where the time of an exchange went, ns of the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Waiting for the other ranks.
    pub wait_ns: u64,
    /// Moving bytes, declared delays included.
    pub service_ns: u64,
}

/// All ranks hand in a message for every rank, and get everybody's for themselves.
pub trait Exchange: Send {
    /// Ranks of the group.
    fn ranks(&self) -> usize;

    /// `out[rank]` goes to that rank; `into[rank]` becomes what came from it. The own message takes
    /// the same way. All ranks must call alike, the same number of times.
    ///
    /// # Errors
    /// A rank that is lost, a group that was stopped, a message that is too long.
    fn all_to_all(
        &mut self,
        out: &[Vec<u8>],
        into: &mut [Vec<u8>],
    ) -> Result<Timing, TransportError>;
}

/// Declared slowness of the links that leave a rank, on top of the machine's own: the only network
/// that a single machine has. Its use has to be stamped into every trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Links {
    /// `[destination rank]`: fixed delay of a message, µs, and rate, bytes per µs (0: unlimited).
    pub to: Vec<(f64, f64)>,
}

impl Links {
    /// Sleeps as long as the declared links need for these messages, one after another.
    pub(crate) fn delay(&self, own: usize, out: &[Vec<u8>]) {
        let mut us = 0.0;
        for (rank, (message, (alpha_us, rate))) in out.iter().zip(&self.to).enumerate() {
            if rank != own && !message.is_empty() {
                us += alpha_us + if *rate > 0.0 { message.len() as f64 / rate } else { 0.0 };
            }
        }
        if us > 0.0 {
            std::thread::sleep(Duration::from_nanos((us * 1e3) as u64));
        }
    }
}
