//! Counts of prompt tokens in blocks, made once per map: a prefill step adds blocks, not tokens.
//!
//! The way of a prompt token is drawn from its recorded request and position, not from the job, so
//! that a block's counts hold for every job that replays the request. A prompt's hundreds of
//! tokens spread over the ways by themselves; a decode step has one token per sequence and draws
//! by job.

use super::placement::{Placement, way};
use super::tally::{FlatRoutes, LaneLayout, Marks};
use crate::Entry;
use evenkeel_trace::Routes;

/// Tokens of a block: a token gives a slot at most one row, so a count stays within a byte.
const BLOCK: usize = 64;

/// Blocks of the recorded requests that have been prefilled so far.
///
/// Memory per recorded token: (slots + layers × (ranks + nodes)) ÷ 64 bytes, below the routing ids
/// themselves at any group size in use.
pub(super) struct Blocks {
    stride: usize,
    /// `[recorded]` → first token and counts, `[block][stride]`; empty until used.
    requests: Vec<Request>,
}

struct Request {
    number: u64,
    first_token: usize,
    tokens: usize,
    counts: Vec<u8>,
}

impl Blocks {
    pub(super) fn new(routes: &Routes, layout: &LaneLayout) -> Self {
        let requests = routes.requests().iter().map(|request| Request {
            number: request.request,
            first_token: request.first_token,
            tokens: request.tokens as usize,
            counts: Vec::new(),
        });
        Self { stride: layout.stride, requests: requests.collect() }
    }

    /// Adds the tokens of an entry to a lane.
    pub(super) fn add(
        &mut self,
        placement: &Placement,
        flat: &FlatRoutes,
        marks: &mut Marks,
        entry: &Entry,
        lane: &mut [u32],
    ) {
        let stride = self.stride;
        let request = &mut self.requests[entry.recorded];
        let mut next = entry.context as usize;
        let end = next + entry.tokens as usize;
        while next < end {
            if next.is_multiple_of(BLOCK) && next + BLOCK <= end {
                if request.counts.is_empty() {
                    request.count(placement, flat, marks, stride);
                }
                let block = next / BLOCK;
                let counts = &request.counts[block * stride..(block + 1) * stride];
                for (sum, count) in lane.iter_mut().zip(counts) {
                    *sum += u32::from(*count);
                }
                next += BLOCK;
            } else {
                let way = way(request.number, next as u64);
                marks.add_token::<_, true>(placement, flat, request.first_token + next, way, lane);
                next += 1;
            }
        }
    }
}

impl Request {
    fn count(
        &mut self,
        placement: &Placement,
        flat: &FlatRoutes,
        marks: &mut Marks,
        stride: usize,
    ) {
        let blocks = self.tokens / BLOCK;
        self.counts = vec![0; blocks * stride];
        for (block, counts) in self.counts.chunks_exact_mut(stride).enumerate() {
            for position in block * BLOCK..(block + 1) * BLOCK {
                let way = way(self.number, position as u64);
                marks.add_token::<_, true>(
                    placement,
                    flat,
                    self.first_token + position,
                    way,
                    counts,
                );
            }
        }
    }
}
