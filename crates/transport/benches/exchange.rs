//! `cargo bench -p evenkeel-transport`: an exchange among threads that each stand for a rank.
//!
//! Shared memory beside sockets in the same run, as many ranks as given and usually more than
//! cores: microseconds per exchange, p50 and p99 over all ranks.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a bench looks at the clock and prints"
)]

use evenkeel_transport::{Exchange, Links, Region, SharedExchange, SocketExchange};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

const ROUNDS: usize = 4000;

fn group(kind: &str, ranks: usize, block: usize) -> Vec<Box<dyn Exchange>> {
    if kind == "sockets" {
        let mesh = SocketExchange::mesh(ranks).expect("sockets");
        let join = |(rank, peers)| {
            Box::new(SocketExchange::new(rank, peers, Links::default()).expect("sockets"))
                as Box<dyn Exchange>
        };
        return mesh.into_iter().enumerate().map(join).collect();
    }
    let region = Arc::new(Region::new(SharedExchange::bytes(ranks, block)).expect("memory"));
    let join = |rank| {
        let region = Arc::clone(&region);
        Box::new(SharedExchange::new(region, rank, ranks, block, Links::default()).expect("group"))
            as Box<dyn Exchange>
    };
    (0..ranks).map(join).collect()
}

fn measure(kind: &str, ranks: usize, block: usize) -> (f64, f64) {
    let threads: Vec<_> = group(kind, ranks, block)
        .into_iter()
        .map(|mut exchange| {
            thread::spawn(move || {
                let out = vec![vec![7_u8; block]; ranks];
                let mut into = vec![Vec::new(); ranks];
                let mut times = Vec::with_capacity(ROUNDS);
                for _ in 0..ROUNDS {
                    let start = Instant::now();
                    exchange.all_to_all(&out, &mut into).expect("exchange");
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                }
                times
            })
        })
        .collect();
    let mut times: Vec<f64> =
        threads.into_iter().flat_map(|thread| thread.join().expect("rank")).collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn main() {
    println!("ranks  block      shared p50 / p99 µs      sockets p50 / p99 µs");
    for (ranks, block) in [(2, 4096), (4, 4096), (4, 65_536), (8, 4096)] {
        let shared = measure("shared", ranks, block);
        let sockets = measure("sockets", ranks, block);
        println!(
            "{ranks:5} {block:6} {:12.1} / {:9.1} {:12.1} / {:9.1}",
            shared.0, shared.1, sockets.0, sockets.1
        );
    }
}
