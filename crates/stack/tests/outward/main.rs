//! What leaves unasked: over neighbours that are asked for, gateways, and the stations that questions came from.

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod datagrams;
mod heard;

use app::{Addresses, CallError, Connection, Datagram, DeadReason, Listener, Luggage, Service, Streams};
use base::{Burst, Frame, Instant, Seq};
use common::{A4, A6, B4, B6, OURS, THEIRS, config, datagram, ip, link, own, pseudo, tagged};
use port::pipe::{self, Pipe};
use port::{Mac, Port};
use stack::{Agreement, Claim, ClaimMode, Config, Handled, Stack, TcpConfig, UdpListener};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use wire::arp::{Arp, Operation};
use wire::ethernet::{BROADCAST, EtherType, Link};
use wire::flow::Groups;
use wire::ipv4::Ipv4;
use wire::ipv6::Ipv6;
use wire::tcp::{Flags, Header, PayloadSum, Tcp};
use wire::{Protocol, Sum, icmpv6, ipv6, udp};

const GATEWAY: Mac = [2, 0, 0, 0, 0, 0xfe];

enum Ask {
    Connect(SocketAddr, Option<SocketAddr>),
    Send(Listener, Addresses, Vec<u8>),
    Stream(Connection, Vec<u8>),
}

/// Does what it is told when it is told that it may.
#[derive(Default)]
struct Notes {
    asks: Vec<Ask>,
    said: Vec<Result<(), CallError>>,
    connected: Vec<Result<Connection, DeadReason>>,
}

impl Service for Notes {
    fn woken<C: Streams>(&mut self, _: Instant, calls: &mut C) {
        for ask in std::mem::take(&mut self.asks) {
            self.said.push(match ask {
                Ask::Connect(remote, local) => calls.connect(remote, local, 1).map(drop),
                Ask::Send(listener, ends, bytes) => calls.send_to(listener, ends, &bytes),
                Ask::Stream(connection, bytes) => calls.send(connection, &bytes).map(drop),
            });
        }
    }
    fn datagrams(&mut self, _: Instant, _: Listener, _: &mut [Datagram<'_>]) {}
    fn connected<C: Streams>(&mut self, _: Instant, _: &mut C, _: u64, outcome: Result<Connection, DeadReason>) {
        self.connected.push(outcome);
    }
    fn can_move(&self) -> bool {
        true
    }
    fn arrive<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: Luggage) -> Option<u64> {
        Some(1)
    }
}

/// A stack at one end of a pipe.
struct Bench {
    stack: Stack,
    port: Pipe,
    wire: Pipe,
    notes: Notes,
    now: Instant,
    /// when it wants to be polled next
    due: Option<Instant>,
}

impl Bench {
    fn new(config: Config) -> Bench {
        let (mut ours, mut theirs) = pipe::pair(&pipe::Config { frames: 256, ..pipe::Config::default() }).unwrap();
        let (port, wire) = (ours.remove(0), theirs.remove(0));
        let stack = Stack::new(config, port.facts());
        Bench { stack, port, wire, notes: Notes::default(), now: Instant::ZERO, due: None }
    }

    /// Takes a frame, if there is one, and polls; what was sent.
    fn cycle(&mut self, frame: Option<&[u8]>) -> Vec<Vec<u8>> {
        let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
        if let Some(bytes) = frame {
            let mut frame = self.port.take().expect("a frame");
            assert!(frame.fill(bytes));
            rx.push(frame);
        }
        self.stack.input(self.now, &mut rx, &mut tx, &mut free, &mut self.notes);
        self.due = self.stack.poll(self.now, &mut self.port, &mut tx, &mut self.notes);
        free.drain(..).for_each(|frame| self.port.give(frame));
        self.port.transmit(&mut tx);
        self.port.flush();
        let mut burst = Burst::new();
        self.wire.receive(&mut burst, 64);
        let sent = burst.iter().map(|frame| frame.bytes().to_vec()).collect();
        burst.drain(..).for_each(|frame| self.wire.give(frame));
        self.wire.flush();
        sent
    }

    fn ask(&mut self, ask: Ask) -> (Result<(), CallError>, Vec<Vec<u8>>) {
        self.notes.asks.push(ask);
        let sent = self.cycle(None);
        (self.notes.said.pop().expect("a call"), sent)
    }

    fn connect(&mut self, remote: &str) -> (Result<(), CallError>, Vec<Vec<u8>>) {
        self.ask(Ask::Connect(remote.parse().unwrap(), None))
    }

    fn send(&mut self, local: &str, peer: &str, bytes: &[u8]) -> (Result<(), CallError>, Vec<Vec<u8>>) {
        let ends = Addresses { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
        self.ask(Ask::Send(Listener(1), ends, bytes.to_vec()))
    }

    fn pass(&mut self, ms: u64) -> Vec<Vec<u8>> {
        self.now += Duration::from_millis(ms);
        self.cycle(None)
    }
}

/// Own addresses in use, a listener at port 7 of any address, TCP.
fn with_tcp() -> Config {
    Config { tcp: Some(TcpConfig::default()), ..config() }
}

/// Whom an ARP request asks for.
fn asked4(frame: &[u8]) -> Ipv4Addr {
    let head = Link::parse(frame).unwrap();
    let arp = Arp::parse(&frame[head.bytes()..]).expect("an ARP packet");
    assert_eq!(
        (head.dst, head.src, arp.operation, arp.sender, arp.sender_mac),
        (BROADCAST, OURS, Operation::Request, A4, OURS)
    );
    arp.target
}

/// Whom a solicitation asks for.
fn asked6(frame: &[u8]) -> Ipv6Addr {
    let head = Link::parse(frame).unwrap();
    let ip = Ipv6::parse(&frame[head.bytes()..]).unwrap();
    let icmp = icmpv6::Icmp::parse(ip.payload(), ip.src(), ip.dst()).expect("a sound checksum");
    let neighbour = icmp.neighbour().expect("a solicitation");
    let group = ipv6::solicited_node(neighbour.target);
    assert_eq!((icmp.kind(), ip.src(), ip.dst()), (icmpv6::Kind::Solicitation, A6, group));
    assert_eq!((head.dst, neighbour.source_mac), (ipv6::group_mac(group), Some(OURS)));
    neighbour.target
}

fn arp_answer(sender: Ipv4Addr, mac: Mac) -> Vec<u8> {
    let mut packet = [0; 28];
    let arp = Arp { operation: Operation::Reply, sender_mac: mac, sender, target_mac: OURS, target: A4 };
    arp.write(&mut packet);
    link(OURS, mac, None, EtherType::ARP, &packet)
}

fn nd_answer(target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut message = [0; icmpv6::ADVERTISEMENT_BYTES];
    icmpv6::write_advertisement(&mut message, (target, A6), (target, mac), true);
    let mut packet = ip(target.into(), A6.into(), Protocol::ICMPV6, &[], &message);
    packet[7] = 255;
    link(OURS, mac, None, EtherType::IPV6, &packet)
}

/// An answer to ARP or neighbour discovery that a station brings, and which tells this hardware address.
fn answer_with(neighbour: IpAddr, mac: Mac, overrides: bool) -> Vec<u8> {
    let mut frame = match neighbour {
        IpAddr::V4(neighbour) => arp_answer(neighbour, mac),
        IpAddr::V6(neighbour) => {
            let mut frame = nd_answer(neighbour, mac);
            let message = &mut frame[54..];
            message[4] = if overrides { 0x60 } else { 0x40 };
            message[2..4].fill(0);
            let sum = pseudo(neighbour.into(), A6.into(), Protocol::ICMPV6, message.len()).bytes(message);
            let checksum = sum.checksum();
            message[2..4].copy_from_slice(&checksum);
            frame
        }
    };
    frame[6..12].copy_from_slice(&THEIRS);
    frame
}

/// A segment of ours, and where it goes.
struct Sent {
    mac: Mac,
    tag: Option<u16>,
    to: IpAddr,
    from_port: u16,
    to_port: u16,
    seq: Seq,
    flags: Flags,
    payload_bytes: usize,
}

/// None of what is no segment.
fn segment(frame: &[u8]) -> Option<Sent> {
    let head = Link::parse(frame).unwrap();
    let packet = &frame[head.bytes()..];
    let (to, segment) = match head.ether_type {
        EtherType::IPV4 => {
            let ip = Ipv4::parse(packet).unwrap();
            (IpAddr::from(ip.dst()), ip.payload())
        }
        EtherType::IPV6 => {
            let ip = Ipv6::parse(packet).unwrap();
            (ip.dst().into(), ip.payload())
        }
        _ => return None,
    };
    let tcp = Tcp::parse(segment).expect("a segment");
    let (from_port, to_port, seq, flags) = (tcp.src_port(), tcp.dst_port(), tcp.seq(), tcp.flags());
    let payload_bytes = tcp.payload().len();
    Some(Sent { mac: head.dst, tag: head.tag, to, from_port, to_port, seq, flags, payload_bytes })
}

/// Where a SYN goes: station, address, port.
fn syn(frame: &[u8]) -> (Mac, IpAddr, u16) {
    let sent = segment(frame).expect("a segment");
    assert!(sent.flags.contains(Flags::SYN));
    (sent.mac, sent.to, sent.to_port)
}

/// A segment of `peer`, as a station brings it.
fn brought(station: Mac, tag: Option<u16>, peer: impl Into<IpAddr>, header: Header<'_>) -> Vec<u8> {
    let peer = peer.into();
    let (ours, of) = if peer.is_ipv4() { (A4.into(), EtherType::IPV4) } else { (A6.into(), EtherType::IPV6) };
    let mut segment = vec![0; header.bytes()];
    let pseudo = pseudo(peer, ours, Protocol::TCP, segment.len());
    header.write(&mut segment, pseudo, PayloadSum::Known(Sum::ZERO));
    link(OURS, station, tag, of, &ip(peer, ours, Protocol::TCP, &[], &segment))
}

/// The payload of a datagram, and where it goes and comes from.
fn sent_datagram(frame: &[u8]) -> (Mac, Option<u16>, SocketAddr, SocketAddr, Vec<u8>) {
    let head = Link::parse(frame).unwrap();
    let packet = &frame[head.bytes()..];
    let (src, dst, transport): (IpAddr, IpAddr, _) = if head.ether_type == EtherType::IPV4 {
        let ip = Ipv4::parse(packet).unwrap();
        (ip.src().into(), ip.dst().into(), ip.payload())
    } else {
        let ip = Ipv6::parse(packet).unwrap();
        (ip.src().into(), ip.dst().into(), ip.payload())
    };
    let datagram = udp::Udp::parse(transport).unwrap();
    assert_eq!(datagram.verdict(pseudo(src, dst, Protocol::UDP, datagram.bytes())), udp::Verdict::Good);
    let (from, to) = (SocketAddr::new(src, datagram.src_port()), SocketAddr::new(dst, datagram.dst_port()));
    (head.dst, head.tag, from, to, datagram.payload().to_vec())
}

/// A datagram of `peer` for ours, which is not answered, as a station brings it.
fn told(station: Mac, tag: Option<u16>, peer: SocketAddr, ours: SocketAddr) -> Vec<u8> {
    let of = if peer.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    link(OURS, station, tag, of, &ip(peer.ip(), ours.ip(), Protocol::UDP, &[], &datagram(peer, ours, b"told")))
}

/// The stations that datagrams in these frames went to.
fn stations(frames: &[Vec<u8>]) -> Vec<(Mac, Option<u16>)> {
    let is_datagram = |frame: &&Vec<u8>| {
        let head = Link::parse(frame).unwrap();
        let packet = &frame[head.bytes()..];
        match head.ether_type {
            EtherType::IPV4 => packet[9] == Protocol::UDP.0,
            EtherType::IPV6 => packet[6] == Protocol::UDP.0,
            _ => false,
        }
    };
    frames.iter().filter(is_datagram).map(|frame| sent_datagram(frame)).map(|(mac, tag, ..)| (mac, tag)).collect()
}

const ROUTER4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);

/// Our end, a peer beyond the router, and what that one answers from a hardware address to who asks for it.
type Beyond = (&'static str, &'static str, fn(Mac) -> Vec<u8>);

/// One of each family.
fn beyond() -> [Beyond; 2] {
    [
        ("192.0.2.1:7", "198.51.100.7:9", |mac| arp_answer(ROUTER4, mac)),
        ("[2001:db8::1]:7", "[2001:db8:9::7]:9", |mac| nd_answer(ROUTER6, mac)),
    ]
}

fn with_routers() -> Bench {
    Bench::new(Config { gateways: vec![ROUTER4.into(), ROUTER6.into()], ..config() })
}
