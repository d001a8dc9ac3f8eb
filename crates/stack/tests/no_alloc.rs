//! The packet path allocates nothing: datagrams, drops, ICMP, ARP, neighbour discovery and claims, over all kinds.

mod common;

use app::{Datagram, Listener, Service};
use base::{Burst, Instant};
use common::*;
use port::Port;
use stack::{Claim, Config, Limits};
use std::time::Duration;
use wire::arp::{self, Arp, Operation};
use wire::ethernet::{BROADCAST, EtherType};
use wire::{Protocol, Sum};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

struct Reverse;

impl Service for Reverse {
    fn datagrams(&mut self, _now: Instant, _listener: Listener, burst: &mut [Datagram<'_>]) {
        for slot in burst {
            let n = slot.question().len();
            slot.buffer()[..n].reverse();
            slot.reply(n);
        }
    }
}

fn frames() -> Vec<Vec<u8>> {
    let udp = datagram("192.0.2.2:9".parse().unwrap(), "192.0.2.1:7".parse().unwrap(), b"options");
    let mut echo = [8, 0, 0, 0, 1, 2, 3, 4];
    let checksum = Sum::of(&echo).checksum();
    echo[2..4].copy_from_slice(&checksum);
    let mut solicitation = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &A6.octets()].concat();
    let sum = pseudo(B6.into(), A6.into(), Protocol::ICMPV6, 24).bytes(&solicitation).checksum();
    solicitation[2..4].copy_from_slice(&sum);
    let mut solicitation = ip(B6.into(), A6.into(), Protocol::ICMPV6, &[], &solicitation);
    solicitation[7] = 255;
    let mut request = [0; arp::BYTES];
    let (operation, target_mac) = (Operation::Request, [0; 6]);
    Arp { operation, sender_mac: THEIRS, sender: B4, target_mac, target: A4 }.write(&mut request);
    let mut bad = query("192.0.2.2:4000", "192.0.2.1:53", b"bad checksum");
    bad[50] ^= 1;
    vec![
        query("192.0.2.2:4000", "192.0.2.1:53", b"question"),
        query("192.0.2.2:4000", "192.0.2.1:7", b"to the other listener"),
        query("[2001:db8::2]:4000", "[2001:db8::1]:7", b"question"),
        query("192.0.2.2:4000", "192.0.2.1:8", b"no listener"),
        query("[2001:db8::2]:4000", "[2001:db8::1]:8", b"no listener"),
        frame_to(OURS, &ip(B4.into(), A4.into(), Protocol::UDP, &[1, 1, 1, 0], &udp)),
        frame_to(OURS, &ip(B4.into(), A4.into(), Protocol::ICMP, &[], &echo)),
        frame_to(OURS, &solicitation),
        link(BROADCAST, THEIRS, None, EtherType::ARP, &request),
        bad,
        vec![0; 9],
    ]
}

#[test]
fn packets_and_claims_allocate_nothing() {
    allocate_nothing(false);
    allocate_nothing(true);
}

fn allocate_nothing(copied: bool) {
    let limits = Limits { icmp_errors_per_second: 1_000_000, icmp_errors_burst: 1000, ..Limits::default() };
    let mut host = Host::new(Config { claim: Claim::default(), limits, ..config() });
    let frames = frames();
    let (mut rx, mut tx, mut free, mut spare) = (Burst::new(), Burst::new(), Burst::new(), Burst::new());
    let mut sent = 0;
    let before = allocations::of_thread();
    for round in 0..2000u64 {
        host.now = Instant::ZERO + Duration::from_millis(10) * round as u32;
        for bytes in &frames {
            let mut frame = host.port.take().expect("a free frame");
            assert!(frame.fill(bytes));
            rx.push(frame);
        }
        if copied {
            spare.extend(std::iter::from_fn(|| host.port.take()).take(rx.len()));
            host.stack.input_copied(host.now, &mut rx, &mut tx, &mut free, &mut spare, &mut Reverse);
        } else {
            host.stack.input(host.now, &mut rx, &mut tx, &mut free, &mut Reverse);
        }
        host.stack.poll(host.now, &mut host.port, &mut tx, &mut host.echo);
        sent += tx.len();
        for frame in tx.drain(..).chain(free.drain(..)).chain(spare.drain(..)) {
            host.port.give(frame);
        }
    }
    assert_eq!(allocations::of_thread() - before, 0);
    // nine of eleven are answered once the addresses are claimed, after at most eight of the twenty seconds
    assert!(sent > 9 * 1100, "{sent} sent");
    let counted = allocations::of_thread();
    drop(std::hint::black_box(vec![0u8; 10]));
    assert_eq!(allocations::of_thread(), counted + 1, "the count counts");
}
