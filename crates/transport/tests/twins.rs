//! Shared memory and sockets bring the same bytes, and every wait has an end.

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use evenkeel_transport::{Exchange, Links, Region, SharedExchange, SocketExchange, TransportError};
use proptest::prelude::*;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const ROOM: usize = 300_000;

fn shared(ranks: usize) -> (Arc<Region>, Vec<Box<dyn Exchange>>) {
    let region = Arc::new(Region::new(SharedExchange::bytes(ranks, ROOM)).unwrap());
    let join = |rank| {
        let region = Arc::clone(&region);
        Box::new(SharedExchange::new(region, rank, ranks, ROOM, Links::default()).unwrap())
            as Box<dyn Exchange>
    };
    let group = (0..ranks).map(join).collect();
    (region, group)
}

fn sockets(ranks: usize) -> Vec<Box<dyn Exchange>> {
    let mesh = SocketExchange::mesh(ranks).unwrap();
    let join = |(rank, peers)| {
        Box::new(SocketExchange::new(rank, peers, Links::default()).unwrap()) as Box<dyn Exchange>
    };
    mesh.into_iter().enumerate().map(join).collect()
}

/// The message of a round between two ranks.
fn message(round: usize, from: usize, to: usize, longest: usize) -> Vec<u8> {
    let length = (round * 7919 + from * 104_729 + to * 1_299_709) % (longest + 1);
    (0..length).map(|i| (i * 31 + round + from * 3 + to * 5) as u8).collect()
}

/// Lets all ranks exchange for some rounds; every rank checks what it gets.
fn exchange(group: Vec<Box<dyn Exchange>>, rounds: usize, longest: usize) {
    let run = |(rank, mut exchange): (usize, Box<dyn Exchange>)| {
        thread::spawn(move || {
            let ranks = exchange.ranks();
            let mut into = vec![Vec::new(); ranks];
            for round in 0..rounds {
                let out: Vec<Vec<u8>> =
                    (0..ranks).map(|to| message(round, rank, to, longest)).collect();
                exchange.all_to_all(&out, &mut into).unwrap();
                for (from, found) in into.iter().enumerate() {
                    assert!(
                        *found == message(round, from, rank, longest),
                        "{round}: {from} → {rank}"
                    );
                }
            }
        })
    };
    let threads: Vec<_> = group.into_iter().enumerate().map(run).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn both_bring_everything(ranks in 1_usize..7, rounds in 1_usize..30, longest in 0_usize..3000) {
        exchange(shared(ranks).1, rounds, longest);
        exchange(sockets(ranks), rounds, longest);
    }
}

#[test]
fn messages_longer_than_a_sockets_buffer_pass() {
    exchange(shared(3).1, 3, ROOM);
    exchange(sockets(3), 3, ROOM);
}

#[test]
fn a_stopped_group_wakes_those_that_wait() {
    let (region, mut group) = shared(3);
    let mut waiting = group.remove(0);
    let thread = thread::spawn(move || {
        waiting.all_to_all(&vec![Vec::new(); 3], &mut vec![Vec::new(); 3]).unwrap_err()
    });
    thread::sleep(Duration::from_millis(30));
    SharedExchange::poison(&region);
    assert!(matches!(thread.join().unwrap(), TransportError::Poisoned));
    let late = group[0].all_to_all(&vec![Vec::new(); 3], &mut vec![Vec::new(); 3]);
    assert!(matches!(late, Err(TransportError::Poisoned)));
}

#[test]
fn a_rank_that_does_not_come_is_lost() {
    let region = Arc::new(Region::new(SharedExchange::bytes(2, 64)).unwrap());
    let alone = SharedExchange::new(region, 0, 2, 64, Links::default()).unwrap();
    let mut alone = alone.with_patience(Duration::from_millis(20));
    let failed = alone.all_to_all(&vec![vec![1]; 2], &mut vec![Vec::new(); 2]);
    assert!(matches!(failed, Err(TransportError::Lost { rank: 0, .. })));
}

#[test]
fn a_socket_whose_other_end_died_ends_the_wait() {
    let mut mesh = SocketExchange::mesh(2).unwrap();
    let mine = SocketExchange::new(0, mesh.remove(0), Links::default());
    drop(mesh);
    let failed = mine.unwrap().all_to_all(&vec![vec![1]; 2], &mut vec![Vec::new(); 2]);
    assert!(matches!(failed, Err(TransportError::Poisoned)));
}

#[test]
fn what_does_not_fit_is_named() {
    let (_, mut group) = shared(1);
    let failed = group[0].all_to_all(&[vec![0; ROOM + 1]], &mut [Vec::new()]).unwrap_err();
    assert!(failed.to_string().contains("300001"), "{failed}");
    let small = Arc::new(Region::new(100).unwrap());
    let failed = SharedExchange::new(small, 0, 4, 64, Links::default()).unwrap_err();
    assert!(matches!(failed, TransportError::Geometry { found: 100, .. }));
}

#[test]
fn declared_links_take_their_time() {
    let links = Links { to: vec![(0.0, 0.0), (20_000.0, 0.0)] };
    let mut mesh = SocketExchange::mesh(2).unwrap();
    let other = mesh.remove(1);
    let mut slow = SocketExchange::new(0, mesh.remove(0), links).unwrap();
    let mut other = SocketExchange::new(1, other, Links::default()).unwrap();
    let thread = thread::spawn(move || {
        other.all_to_all(&vec![vec![1]; 2], &mut vec![Vec::new(); 2]).unwrap()
    });
    let timing = slow.all_to_all(&vec![vec![1]; 2], &mut vec![Vec::new(); 2]).unwrap();
    thread.join().unwrap();
    assert!(timing.service_ns >= 20_000_000);
}
