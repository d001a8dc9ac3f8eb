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
    let before = allocations::of_process();
    for _ in 0..50 {
        exchange();
    }
    let after = allocations::of_process();
    assert_eq!(after - before, 0);
    let bytes = 70 * 4 * (2 * (HEAD.len() + 1000) + 300_000);
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
    let before = allocations::of_process();
    for _ in 0..50 {
        exchange(&mut answer);
    }
    let after = allocations::of_process();
    assert_eq!(after - before, 0);
    until("all", || total(&running, |c| c.received.get()) == 51 * 40);
}
