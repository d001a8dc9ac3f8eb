//! A stack at one end of a pipe and a hand that writes frames at the other.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this module")]

use app::{Datagram, Listener, Service};
use base::{Burst, Instant};
use port::pipe::{self, Pipe};
use port::{Mac, Port};
use stack::{Claim, ClaimMode, Config, Counters, DropReason, Handled, OwnAddress, Stack, UdpListener};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, Sum, ipv4, ipv6, udp};

pub const OURS: Mac = [2, 0, 0, 0, 0, 1];
pub const THEIRS: Mac = [2, 0, 0, 0, 0, 2];
pub const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const B4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Sends back what it got, with the listener's number in front; "silence" is not answered.
#[derive(Default)]
pub struct Echo {
    pub bursts: Vec<(Listener, usize)>,
}

impl Service for Echo {
    fn datagrams(&mut self, _now: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        self.bursts.push((listener, burst.len()));
        for slot in burst {
            let n = slot.question().len();
            if slot.question() != b"silence" && n < slot.capacity() {
                slot.buffer().copy_within(..n, 1);
                slot.buffer()[0] = b'0' + listener.0 as u8;
                slot.reply(n + 1);
            }
        }
    }
}

/// A stack with own addresses A4 and A6, which are in use at once, and two listeners: port 53 at A4 alone, port 7 anywhere.
pub fn config() -> Config {
    let listen = |n, local: &str| UdpListener { listener: Listener(n), local: local.parse().unwrap() };
    Config {
        own: vec![own(A4.into(), 24), own(A6.into(), 64)],
        listeners: vec![listen(0, "192.0.2.1:53"), listen(1, "0.0.0.0:7"), listen(1, "[::]:7")],
        steered: false,
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        seed: 1,
        ..Config::default()
    }
}

pub fn own(addr: IpAddr, prefix_len: u8) -> OwnAddress {
    OwnAddress { addr, prefix_len }
}

pub type Counts = (Vec<(DropReason, u64)>, Vec<(Handled, u64)>);

pub struct Host {
    pub stack: Stack,
    pub port: Pipe,
    pub peer: Pipe,
    pub echo: Echo,
    pub now: Instant,
    /// datagrams are answered in frames of the port's own, and of so many
    pub copies: Option<usize>,
    pub counters: Arc<Counters>,
}

impl Host {
    pub fn new(config: Config) -> Host {
        let (mut ours, mut theirs) = pipe::pair(&pipe::Config { frames: 256, ..pipe::Config::default() }).unwrap();
        let (port, peer) = (ours.remove(0), theirs.remove(0));
        let stack = Stack::new(config, port.facts());
        let counters = stack.counters();
        Host { stack, port, peer, echo: Echo::default(), now: Instant::ZERO, copies: None, counters }
    }

    /// Puts frames on the wire towards the stack, lets it work, and gives what it sent.
    pub fn exchange(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        for bytes in frames {
            let mut frame = self.peer.take().expect("a free frame");
            assert!(frame.fill(bytes));
            burst.push(frame);
        }
        self.peer.transmit(&mut burst);
        let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
        self.port.receive(&mut rx, 64);
        match self.copies {
            None => self.stack.input(self.now, &mut rx, &mut tx, &mut free, &mut self.echo),
            Some(most) => {
                let mut spare: Burst =
                    (0..most.min(rx.len())).map(|_| self.port.take().expect("a free frame")).collect();
                let before = spare.len();
                self.stack.input_copied(self.now, &mut rx, &mut tx, &mut free, &mut spare, &mut self.echo);
                assert_eq!(spare.len(), before);
                for frame in spare {
                    self.port.give(frame);
                }
            }
        }
        assert!(rx.is_empty());
        assert_eq!(tx.len() + free.len(), frames.len());
        self.port.transmit(&mut tx);
        for frame in free.drain(..) {
            self.port.give(frame);
        }
        self.port.flush();
        self.heard()
    }

    pub fn exchange_one(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let mut sent = self.exchange(&[frame.to_vec()]);
        assert!(sent.len() <= 1);
        sent.pop()
    }

    /// Lets `span` pass, polling whenever the stack asks for it; what it sent, and when.
    pub fn pass(&mut self, span: Duration) -> Vec<(Instant, Vec<u8>)> {
        let end = self.now + span;
        let mut sent = Vec::new();
        loop {
            let mut tx = Burst::new();
            let next = self.stack.poll(self.now, &mut self.port, &mut tx, &mut self.echo);
            self.port.transmit(&mut tx);
            sent.extend(self.heard().into_iter().map(|frame| (self.now, frame)));
            match next {
                Some(at) if at <= end => {
                    assert!(at > self.now, "asked for again at once");
                    self.now = at;
                }
                _ => break,
            }
        }
        self.now = end;
        sent
    }

    fn heard(&mut self) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        self.peer.receive(&mut burst, 64);
        let frames = burst.iter().map(|frame| frame.bytes().to_vec()).collect();
        for frame in burst.drain(..) {
            self.peer.give(frame);
        }
        self.peer.flush();
        frames
    }

    /// All drops and handled frames that are not zero.
    pub fn counts(&self) -> Counts {
        let drops = DropReason::ALL.iter().map(|r| (*r, self.counters.dropped(*r))).filter(|(_, n)| *n > 0);
        let handled = Handled::ALL.iter().map(|k| (*k, self.counters.handled(*k))).filter(|(_, n)| *n > 0);
        (drops.collect(), handled.collect())
    }

    pub fn sum(&self) -> u64 {
        let (drops, handled) = self.counts();
        drops.iter().map(|(_, n)| n).sum::<u64>() + handled.iter().map(|(_, n)| n).sum::<u64>()
    }
}

pub fn link(dst: Mac, src: Mac, tag: Option<u16>, ether_type: EtherType, packet: &[u8]) -> Vec<u8> {
    let link = Link { dst, src, tag, ether_type };
    let mut frame = vec![0; link.bytes()];
    link.write(&mut frame);
    frame.extend(packet);
    frame
}

/// The same frame with a tag.
pub fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    let link = Link::parse(frame).unwrap();
    self::link(link.dst, link.src, Some(tag), link.ether_type, &frame[link.bytes()..])
}

/// A whole IP packet; protocol and addresses as given, options or extension headers in `between`.
pub fn ip(src: IpAddr, dst: IpAddr, protocol: Protocol, between: &[u8], transport: &[u8]) -> Vec<u8> {
    let payload = [between, transport].concat();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut head = [0; 20];
            ipv4::Header { src, dst, protocol, ttl: 64, payload_bytes: payload.len() }.write(&mut head);
            head[0] += (between.len() / 4) as u8;
            let mut packet = [&head[..], &payload].concat();
            fix_ipv4(&mut packet);
            packet
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut head = [0; 40];
            let header = ipv6::Header { src, dst, next_header: protocol, hop_limit: 64, payload_bytes: payload.len() };
            header.write(&mut head);
            [&head[..], &payload].concat()
        }
        _ => panic!("two families"),
    }
}

pub fn fix_ipv4(packet: &mut [u8]) {
    let header_bytes = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let checksum = Sum::of(&packet[..header_bytes]).checksum();
    packet[10..12].copy_from_slice(&checksum);
}

pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: Protocol, bytes: usize) -> Sum {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Sum::pseudo_v4(src, dst, protocol, bytes as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Sum::pseudo_v6(src, dst, protocol, bytes as u32),
        _ => panic!("two families"),
    }
}

pub fn datagram(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut datagram = [&[0; 8][..], payload].concat();
    let sum = pseudo(src.ip(), dst.ip(), Protocol::UDP, datagram.len());
    udp::write(&mut datagram, src.port(), dst.port(), sum);
    datagram
}

pub fn frame_to(dst: Mac, packet: &[u8]) -> Vec<u8> {
    let ether_type = if packet[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
    link(dst, THEIRS, None, ether_type, packet)
}

/// A frame with a datagram, as the peer sends it.
pub fn query(src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
    let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    frame_to(OURS, &ip(src.ip(), dst.ip(), Protocol::UDP, &[], &datagram(src, dst, payload)))
}
