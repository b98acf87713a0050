//! All-to-all through shared memory.
//!
//! Between every two ranks lie two slots, used in turn, each with a length. A rank writes its
//! messages, joins a barrier, and reads what lies for it. It may write into a slot again two
//! exchanges later: by then its reader has joined the barrier in between, and so has read it.

use crate::exchange::{Exchange, Links, Timing};
use crate::{PATIENCE, Region, TransportError};
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Byte offsets of the words at the beginning, each on a cache line of its own.
const ARRIVED: usize = 0;
const GENERATION: usize = 64;
const STOPPED: usize = 128;
const SLOTS: usize = 192;

/// Bytes before a slot's message: its length.
const HEADER: usize = 8;

/// Tries before a rank goes to sleep: what a wake-up costs anyway, and no more.
const TRIES: u32 = 64;

/// All-to-all of ranks that share memory.
#[derive(Debug)]
pub struct SharedExchange {
    region: Arc<Region>,
    rank: usize,
    ranks: usize,
    room: usize,
    turn: usize,
    patience: Duration,
    links: Links,
}

impl SharedExchange {
    /// Bytes of a region for `ranks` ranks and messages of at most `room` bytes.
    #[must_use]
    pub fn bytes(ranks: usize, room: usize) -> usize {
        SLOTS + 2 * ranks * ranks * slot_bytes(room)
    }

    /// Joins a group. All ranks must give the same numbers.
    ///
    /// # Errors
    /// A region of another size.
    pub fn new(
        region: Arc<Region>,
        rank: usize,
        ranks: usize,
        room: usize,
        links: Links,
    ) -> Result<Self, TransportError> {
        let (found, expected) = (region.len(), Self::bytes(ranks, room));
        if found < expected {
            return Err(TransportError::Geometry { found, ranks, room, expected });
        }
        Ok(Self { region, rank, ranks, room, turn: 0, patience: PATIENCE, links })
    }

    /// The same, with another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Declares the group of a region over: every rank that waits or will wait gets an error.
    pub fn poison(region: &Region) {
        region.word(STOPPED).store(1, Ordering::SeqCst);
        let generation = region.word(GENERATION);
        generation.fetch_add(1, Ordering::SeqCst);
        wake(generation);
    }

    fn slot(&self, turn: usize, from: usize, to: usize) -> usize {
        SLOTS + ((turn * self.ranks + from) * self.ranks + to) * slot_bytes(self.room)
    }

    /// Waits until all ranks have come here; ns.
    fn barrier(&self) -> Result<u64, TransportError> {
        let start = Instant::now();
        let (arrived, generation) = (self.region.word(ARRIVED), self.region.word(GENERATION));
        let before = generation.load(Ordering::SeqCst);
        self.check_stopped()?;
        if arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.ranks as u32 {
            arrived.store(0, Ordering::SeqCst);
            generation.fetch_add(1, Ordering::SeqCst);
            wake(generation);
        } else {
            self.sleep(generation, before, start)?;
        }
        self.check_stopped()?;
        Ok(start.elapsed().as_nanos() as u64)
    }

    fn sleep(
        &self,
        generation: &AtomicU32,
        before: u32,
        start: Instant,
    ) -> Result<(), TransportError> {
        for _ in 0..TRIES {
            if generation.load(Ordering::SeqCst) != before {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        while generation.load(Ordering::SeqCst) == before {
            let left = self.patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                let waited_s = start.elapsed().as_secs();
                return Err(TransportError::Lost { rank: self.rank, waited_s });
            }
            let timeout = futex::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()) as _,
            };
            // Woken, changed meanwhile, interrupted or out of time: the loop looks for itself.
            let _ = futex::wait(generation, futex::Flags::empty(), before, Some(&timeout));
        }
        Ok(())
    }

    fn check_stopped(&self) -> Result<(), TransportError> {
        match self.region.word(STOPPED).load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(TransportError::Poisoned),
        }
    }
}

fn slot_bytes(room: usize) -> usize {
    // Whole cache lines, so that neighbours do not share one.
    (HEADER + room).next_multiple_of(64)
}

fn wake(word: &AtomicU32) {
    // Nobody to wake is no fault.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

impl Exchange for SharedExchange {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_to_all(
        &mut self,
        out: &[Vec<u8>],
        into: &mut [Vec<u8>],
    ) -> Result<Timing, TransportError> {
        assert!(out.len() == self.ranks && into.len() == self.ranks, "a message for every rank");
        let start = Instant::now();
        for (to, message) in out.iter().enumerate() {
            let (from, bytes, room) = (self.rank, message.len(), self.room);
            if bytes > room {
                return Err(TransportError::TooLong { from, to, bytes, room });
            }
            let slot = self.slot(self.turn, from, to);
            self.region.write(slot, &(bytes as u64).to_le_bytes());
            self.region.write(slot + HEADER, message);
        }
        self.links.delay(self.rank, out);
        let written_ns = start.elapsed().as_nanos() as u64;
        let wait_ns = self.barrier()?;
        let start = Instant::now();
        for (from, into) in into.iter_mut().enumerate() {
            let slot = self.slot(self.turn, from, self.rank);
            let mut header = Vec::with_capacity(HEADER);
            self.region.read(slot, HEADER, &mut header);
            let length = header.try_into().map_or(0, u64::from_le_bytes) as usize;
            into.clear();
            self.region.read(slot + HEADER, length.min(self.room), into);
        }
        self.turn ^= 1;
        let read_ns = start.elapsed().as_nanos() as u64;
        Ok(Timing { wait_ns, service_ns: written_ns + read_ns })
    }
}
