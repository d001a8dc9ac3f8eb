//! No allocation for a datagram, nor for a request on a stream. A program of its own, since it replaces the allocator.

mod common;

use common::objects::{HEAD, objects, version};
use common::{PATIENCE, Reverse, config, start, total, until};
use sockets::Transport;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// One test at a time: the count is the whole program's.
static ALONE: Mutex<()> = Mutex::new(());
const ROUNDS: usize = 50;
/// The test's harness is in the program, too, and allocates when it likes, but seldom.
const TRIES: usize = 10;

/// Does it until nothing was allocated meanwhile; how often that was.
fn quiet(mut work: impl FnMut()) -> usize {
    let mut seen = Vec::with_capacity(TRIES);
    for tries in 1..=TRIES {
        let before = allocations::of_process();
        work();
        seen.push(allocations::of_process() - before);
        if seen.last() == Some(&0) {
            return tries;
        }
    }
    panic!("allocations each time: {seen:?}");
}

#[test]
fn requests_are_answered_without_allocating() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (make, _, _deaths) = objects(&version(1, 300_000));
    let (running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    let mut streams: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut answers = vec![0; 2 * (HEAD.len() + 1000) + 300_000];
    let mut exchange = || {
        for stream in &mut streams {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"sbs").unwrap();
        }
        for stream in &mut streams {
            stream.read_exact(&mut answers).unwrap();
        }
    };
    for _ in 0..20 {
        exchange();
    }
    let rounds = ROUNDS * quiet(|| (0..ROUNDS).for_each(|_| exchange()));
    let bytes = (20 + rounds) * 4 * (2 * (HEAD.len() + 1000) + 300_000);
    until("all", || total(&running, |c| c.stream_sent.get()) == bytes as u64);
}

#[test]
fn datagrams_are_answered_without_allocating() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (running, address) = start(config("0.0.0.0:0", Transport::Udp), |_| Reverse);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(SocketAddr::new("127.0.0.1".parse().unwrap(), address.port())).unwrap();
    let mut answer = [0; 64];
    let exchange = |answer: &mut [u8]| {
        for _ in 0..20 {
            client.send(b"question").unwrap();
            client.send(b"silence").unwrap();
        }
        for _ in 0..20 {
            client.recv(answer).unwrap();
        }
    };
    exchange(&mut answer);
    let rounds = ROUNDS * quiet(|| (0..ROUNDS).for_each(|_| exchange(&mut answer)));
    until("all", || total(&running, |c| c.received.get()) == (1 + rounds as u64) * 40);
}
