//! All-to-all through sockets: the portable twin.

use crate::exchange::{Exchange, Links, Timing};
use crate::{PATIENCE, TransportError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// All-to-all of ranks that have a socket to each other.
#[derive(Debug)]
pub struct SocketExchange {
    rank: usize,
    /// `[rank]`: socket to it; `None` to the own.
    peers: Vec<Option<UnixStream>>,
    links: Links,
}

impl SocketExchange {
    /// `peers[rank]` leads to that rank, `None` at the own place.
    ///
    /// # Errors
    /// A socket that takes no time limit.
    pub fn new(
        rank: usize,
        peers: Vec<Option<UnixStream>>,
        links: Links,
    ) -> Result<Self, TransportError> {
        for peer in peers.iter().flatten() {
            peer.set_read_timeout(Some(PATIENCE)).map_err(TransportError::system("socket"))?;
            peer.set_nonblocking(false).map_err(TransportError::system("socket"))?;
        }
        Ok(Self { rank, peers, links })
    }

    /// Sockets of a whole group, `[rank][peer]`, for ranks that are threads or forked processes.
    ///
    /// # Errors
    /// The system has no sockets left.
    pub fn mesh(ranks: usize) -> Result<Vec<Vec<Option<UnixStream>>>, TransportError> {
        let row = |_| (0..ranks).map(|_| None).collect();
        let mut mesh: Vec<Vec<Option<UnixStream>>> = (0..ranks).map(row).collect();
        for low in 0..ranks {
            let (upper, lower) = mesh.split_at_mut(low + 1);
            for (offset, row) in lower.iter_mut().enumerate() {
                let (left, right) = UnixStream::pair().map_err(TransportError::system("socket"))?;
                upper[low][low + 1 + offset] = Some(left);
                row[low] = Some(right);
            }
        }
        Ok(mesh)
    }

    fn failed(&self, start: Instant) -> impl Fn(std::io::Error) -> TransportError + use<> {
        let (rank, waited_s) = (self.rank, start.elapsed().as_secs());
        move |source| match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => TransportError::Lost { rank, waited_s },
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                TransportError::Poisoned
            }
            _ => TransportError::System { what: "socket", source },
        }
    }
}

impl Exchange for SocketExchange {
    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn all_to_all(
        &mut self,
        out: &[Vec<u8>],
        into: &mut [Vec<u8>],
    ) -> Result<Timing, TransportError> {
        assert!(
            out.len() == self.ranks() && into.len() == self.ranks(),
            "a message for every rank"
        );
        let start = Instant::now();
        into[self.rank].clone_from(&out[self.rank]);
        self.links.delay(self.rank, out);
        let failed = self.failed(start);
        // Pairs talk in the same order everywhere (a tournament), the lower rank first, so that
        // nobody waits for one that waits: a message longer than the socket's buffer is taken in
        // by a partner that reads.
        for round in 1..self.ranks().next_power_of_two() {
            let peer = self.rank ^ round;
            let Some(Some(stream)) = self.peers.get_mut(peer) else { continue };
            let mut header = [0; 8];
            for sends in [self.rank < peer, self.rank > peer] {
                if sends {
                    let length = (out[peer].len() as u64).to_le_bytes();
                    stream.write_all(&length).map_err(&failed)?;
                    stream.write_all(&out[peer]).map_err(&failed)?;
                } else {
                    stream.read_exact(&mut header).map_err(&failed)?;
                    into[peer].clear();
                    into[peer].resize(u64::from_le_bytes(header) as usize, 0);
                    stream.read_exact(&mut into[peer]).map_err(&failed)?;
                }
            }
        }
        // Waiting and moving cannot be told apart here: reading waits.
        Ok(Timing { wait_ns: 0, service_ns: start.elapsed().as_nanos() as u64 })
    }
}
