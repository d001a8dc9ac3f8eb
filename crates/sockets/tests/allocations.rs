//! No allocation for a datagram. A program of its own, since it replaces the allocator.

mod common;

use common::{PATIENCE, Reverse, config, start, total, until};
use sockets::Transport;
use std::net::{SocketAddr, UdpSocket};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

#[test]
fn datagrams_are_answered_without_allocating() {
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
