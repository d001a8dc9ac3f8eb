//! What leaves unasked: over neighbours that are asked for, gateways, and the stations that questions came from.

mod common;

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

#[test]
fn a_syn_waits_for_its_neighbour() {
    let mut bench = Bench::new(with_tcp());
    let (said, sent) = bench.connect("192.0.2.2:80");
    assert_eq!((said, sent.iter().map(|frame| asked4(frame)).collect::<Vec<_>>()), (Ok(()), vec![B4]));
    let sent = bench.cycle(Some(&arp_answer(B4, THEIRS)));
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B4.into(), 80)]);
    // the next one needs not ask
    let (_, sent) = bench.connect("192.0.2.2:81");
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B4.into(), 81)]);
    let (_, sent) = bench.connect("[2001:db8::2]:80");
    assert_eq!(sent.iter().map(|frame| asked6(frame)).collect::<Vec<_>>(), [B6]);
    let sent = bench.cycle(Some(&nd_answer(B6, THEIRS)));
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B6.into(), 80)]);
    let counters = bench.stack.counters();
    assert_eq!((counters.handled(Handled::ArpHeard), counters.handled(Handled::NeighbourHeard)), (1, 1));
    assert_eq!(counters.neighbours_asked.get(), 2);
}

#[test]
fn a_neighbour_that_does_not_answer_makes_it_unreachable() {
    let mut bench = Bench::new(with_tcp());
    let (said, sent) = bench.connect("192.0.2.99:80");
    assert_eq!((said, sent.len()), (Ok(()), 1));
    let again: Vec<usize> = (0..3).map(|_| bench.pass(1000).len()).collect();
    assert_eq!(again, [1, 1, 0], "three questions");
    bench.cycle(None);
    bench.cycle(None);
    assert_eq!(bench.notes.connected, [Err(DeadReason::Unreachable)]);
    assert_eq!(bench.stack.tcp_usage().connections, 0);
    // and whoever answers unasked, or too late, is not remembered
    bench.pass(2000);
    bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, 99), THEIRS)));
    assert_eq!(bench.stack.counters().handled(Handled::ArpHeard), 0);
    let (_, sent) = bench.connect("192.0.2.99:80");
    assert_eq!(asked4(&sent[0]), Ipv4Addr::new(192, 0, 2, 99));
    bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, 50), THEIRS)));
    let (_, sent) = bench.connect("192.0.2.50:80");
    assert_eq!(asked4(&sent[0]), Ipv4Addr::new(192, 0, 2, 50));
}

/// Each thread knows neighbours of its own.
#[test]
fn a_connection_that_waits_sets_out_where_its_neighbour_is_known() {
    let [mut asks, mut knows] = [Bench::new(with_tcp()), Bench::new(with_tcp())];
    let groups = Arc::new(Groups::keyed(1, [5, 6]));
    for bench in [&mut asks, &mut knows] {
        bench.stack.set_groups(groups.clone());
    }
    assert_eq!(knows.connect("192.0.2.2:81").0, Ok(()));
    knows.cycle(Some(&arp_answer(B4, THEIRS)));
    let (_, sent) = asks.connect("192.0.2.2:80");
    assert_eq!(asked4(&sent[0]), B4);
    let departure = asks.stack.depart(asks.now, 0, &mut asks.notes);
    assert_eq!(knows.stack.arrive(knows.now, departure, &mut knows.notes).connections, 1);
    let sent = knows.cycle(None);
    assert_eq!(sent.iter().map(|frame| syn(frame)).collect::<Vec<_>>(), [(THEIRS, B4.into(), 80)]);
    // and again as any other, and not for ever
    let mut ports: Vec<u16> = knows.pass(2000).iter().map(|frame| syn(frame).2).collect();
    ports.sort_unstable();
    assert_eq!(ports, [80, 81]);
    (0..70).for_each(|_| drop(knows.pass(1000)));
    assert_eq!(knows.notes.connected, [Err(DeadReason::TimedOut); 2]);
    assert_eq!(knows.stack.tcp_usage().connections, 0);
}

#[test]
fn nobody_answers_a_connection_before_its_syn_has_left() {
    let syn = Header { src_port: 80, dst_port: 50_000, flags: Flags::SYN, window: 60_000, ..Header::default() };
    let from_peer = |header| brought(THEIRS, None, B4, header);
    for is_there in [false, true] {
        let mut bench = Bench::new(with_tcp());
        let local = Some((A4, 50_000).into());
        let (said, sent) = bench.ask(Ask::Connect((B4, 80).into(), local));
        assert_eq!((said, asked4(&sent[0])), (Ok(()), B4));
        for flags in [Flags::SYN, Flags::ACK, Flags::SYN | Flags::ACK, Flags::RST] {
            let sent = bench.cycle(Some(&from_peer(Header { flags, ..syn })));
            assert!(sent.is_empty(), "{flags:?}: {sent:?}");
        }
        if is_there {
            let sent = bench.cycle(Some(&arp_answer(B4, THEIRS)));
            assert_eq!(self::syn(&sent[0]), (THEIRS, B4.into(), 80));
            // the SYN that comes again crosses it
            let sent = bench.cycle(Some(&from_peer(syn)));
            let answer = segment(&sent[0]).unwrap();
            assert_eq!((answer.mac, answer.flags), (THEIRS, Flags::SYN | Flags::ACK));
        } else {
            (0..3).for_each(|_| drop(bench.pass(1000)));
            bench.cycle(None);
            assert_eq!(bench.notes.connected, [Err(DeadReason::Unreachable)]);
            assert_eq!(bench.stack.tcp_usage().connections, 0);
        }
    }
}

/// RFC 9293 section 3.7.1, MUST-15.
#[test]
fn a_peer_that_names_no_mss_is_sent_what_its_family_takes() {
    for (remote, neighbour, peer, most) in [
        ("192.0.2.2:80", arp_answer(B4, THEIRS), IpAddr::from(B4), 536),
        ("[2001:db8::2]:80", nd_answer(B6, THEIRS), IpAddr::from(B6), 1220),
    ] {
        let mut bench = Bench::new(with_tcp());
        assert_eq!(bench.connect(remote).0, Ok(()));
        let sent = bench.cycle(Some(&neighbour));
        let ours = segment(&sent[0]).unwrap();
        let (src_port, dst_port, ack) = (80, ours.from_port, ours.seq + 1);
        let flags = Flags::SYN | Flags::ACK;
        let header = Header { src_port, dst_port, ack, flags, window: 60_000, ..Header::default() };
        bench.cycle(Some(&brought(THEIRS, None, peer, header)));
        bench.notes.asks.push(Ask::Stream(bench.notes.connected[0].expect("a connection"), vec![b'x'; 5000]));
        let sent = bench.cycle(None);
        assert_eq!(segment(&sent[0]).map(|sent| sent.payload_bytes), Some(most), "{remote}");
    }
}

/// Another router has taken the gateway's address, with a hardware address of its own (RFC 1122 section 3.3.1.4), long after the first was
/// heard or soon.
#[test]
fn who_gets_no_answer_asks_which_station_the_gateway_is_by_now() {
    const OTHER: Mac = [2, 0, 0, 0, 0, 0xfd];
    let (router, peer) = (Ipv4Addr::new(192, 0, 2, 254), Ipv4Addr::new(198, 51, 100, 7));
    let cases = ["handshake", "data", "keepalive", "tagged"].into_iter().flat_map(|what| [(what, 5), (what, 31)]);
    for (what, age_s) in cases {
        let mut tcp = TcpConfig::default();
        let keepalive = Some(Duration::from_secs(age_s + 4));
        (tcp.times.keepalive, tcp.times.keepalive_interval) = (keepalive, Duration::from_secs(5));
        let mut bench = Bench::new(Config { gateways: vec![router.into()], tcp: Some(tcp), ..config() });
        assert_eq!(bench.connect("198.51.100.7:80").0, Ok(()));
        let sent = bench.cycle(Some(&arp_answer(router, GATEWAY)));
        let ours = segment(&sent[0]).unwrap();
        let (src_port, dst_port, seq, ack) = (80, ours.from_port, Seq::new(7), ours.seq + 1);
        let flags = Flags::SYN | Flags::ACK;
        let header = Header { src_port, dst_port, seq, ack, flags, window: 60_000, ..Header::default() };
        bench.cycle(Some(&brought(GATEWAY, None, peer, header)));
        let connection = bench.notes.connected[0].expect("a connection");
        let tag = (what == "tagged").then_some(7);
        let header = Header { seq: seq + 1, flags: Flags::ACK, ..header };
        bench.cycle(Some(&brought(GATEWAY, tag, peer, header)));
        assert!(bench.pass(1000 * age_s).is_empty());
        let mut port = 80;
        match what {
            "handshake" => {
                port = 81;
                bench.notes.asks.push(Ask::Connect((peer, port).into(), None));
            }
            "keepalive" => {}
            _ => assert_eq!(bench.stack.calls(bench.now).unwrap().send(connection, b"anybody?"), Ok(8)),
        }
        let mut stations = Vec::new();
        for _ in 0..250 {
            for frame in bench.pass(100) {
                match segment(&frame) {
                    Some(sent) if sent.to_port == port => stations.push((sent.mac, sent.tag)),
                    Some(_) => {}
                    None => {
                        assert_eq!(asked4(&frame), router);
                        bench.cycle(Some(&arp_answer(router, OTHER)));
                    }
                }
            }
        }
        let first = stations.iter().filter(|station| **station == (GATEWAY, tag)).count();
        stations.dedup();
        let asked = bench.stack.counters().neighbours_asked.get();
        if tag.is_some() {
            // what has a tag goes over a link where we ask nobody
            assert_eq!((stations, asked), (vec![(GATEWAY, tag)], 1), "{what} {age_s}");
        } else {
            // a connection that is asked for asks for what is old, too, before it has a doubt
            let questions = if (what, age_s) == ("handshake", 31) { 3 } else { 2 };
            assert_eq!((stations, asked), (vec![(GATEWAY, None), (OTHER, None)], questions), "{what} {age_s}");
            assert!(first <= 5, "{what} {age_s}: {first} before the gateway was asked for");
        }
    }
}

#[test]
fn what_is_on_no_link_goes_over_the_gateway_or_nowhere() {
    let router = Ipv4Addr::new(192, 0, 2, 254);
    let mut bench = Bench::new(Config { gateways: vec![router.into()], ..with_tcp() });
    let (_, sent) = bench.connect("198.51.100.7:80");
    assert_eq!(asked4(&sent[0]), router);
    let sent = bench.cycle(Some(&arp_answer(router, GATEWAY)));
    assert_eq!(syn(&sent[0]), (GATEWAY, Ipv4Addr::new(198, 51, 100, 7).into(), 80));
    let (said, sent) = bench.connect("[2001:db8:9::7]:80");
    assert_eq!((said, sent.len()), (Ok(()), 0));
    assert_eq!(bench.notes.connected, [Err(DeadReason::Unreachable)]);
    // to ourselves there is no way over the wire
    assert_eq!(bench.connect(&format!("{A4}:80")).0, Err(CallError::NoSuchAddress));
}

#[test]
fn an_address_that_is_not_in_use_yet_is_none_to_leave_from() {
    let claim = Claim { mode: ClaimMode::Detect, ..Claim::default() };
    let mut bench = Bench::new(Config { claim, ..with_tcp() });
    assert_eq!(bench.connect("192.0.2.2:80").0, Err(CallError::NoSuchAddress));
    for _ in 0..30 {
        bench.pass(1000);
    }
    assert_eq!(bench.connect("192.0.2.2:80").0, Ok(()));
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

/// The datagrams' twin of what holds for connections: answers that come keep nobody with a router that is gone.
#[test]
fn datagrams_go_to_the_station_that_the_gateway_is_by_now() {
    const OTHER: Mac = [2, 0, 0, 0, 0, 0xfd];
    for (ours, peer, answer) in beyond() {
        let mut bench = with_routers();
        let (from_peer, to_us) = (peer.parse().unwrap(), ours.parse().unwrap());
        assert_eq!(stations(&bench.send(ours, peer, b"one").1), []);
        assert_eq!(stations(&bench.cycle(Some(&answer(GATEWAY)))), [(GATEWAY, None)]);
        bench.cycle(Some(&told(GATEWAY, None, from_peer, to_us)));
        bench.pass(31_000);
        bench.cycle(Some(&told(GATEWAY, None, from_peer, to_us)));
        let (said, sent) = bench.send(ours, peer, b"two");
        assert_eq!((said, stations(&sent), sent.len()), (Ok(()), vec![(GATEWAY, None)], 2), "and it is asked again");
        bench.cycle(Some(&answer(OTHER)));
        assert_eq!(stations(&bench.send(ours, peer, b"three").1), [(OTHER, None)], "{peer}");
    }
}

#[test]
fn a_datagram_does_not_say_which_station_a_neighbour_is() {
    const FOREIGN: Mac = [2, 0, 0, 0, 0, 0x66];
    for (ours, peer, answer) in beyond() {
        for tag in [None, Some(7)] {
            let mut bench = with_routers();
            let (from_peer, to_us) = (peer.parse().unwrap(), ours.parse().unwrap());
            assert_eq!(bench.send(ours, peer, b"one").0, Ok(()));
            bench.cycle(Some(&answer(GATEWAY)));
            bench.cycle(Some(&told(FOREIGN, tag, from_peer, to_us)));
            assert_eq!(stations(&bench.send(ours, peer, b"two").1), [(GATEWAY, None)], "{peer} {tag:?}");
        }
    }
}

/// At an own address who has not been asked for yet is taken for where his last datagram came from, for as long as an answer to ARP would
/// be believed; at an address of the kernel's nobody can be asked.
#[test]
fn a_late_answer_finds_the_station_of_a_question_that_is_not_too_old() {
    for (ours, peer, neighbour) in [
        ("192.0.2.1:7", "192.0.2.2:9", arp_answer(B4, THEIRS)),
        ("[2001:db8::1]:7", "[2001:db8::2]:9", nd_answer(B6, THEIRS)),
    ] {
        for tag in [None, Some(7)] {
            let mut bench = Bench::new(config());
            let question = told(GATEWAY, tag, peer.parse().unwrap(), ours.parse().unwrap());
            bench.cycle(Some(&question));
            bench.pass(29_000);
            assert_eq!(stations(&bench.send(ours, peer, b"late").1), [(GATEWAY, tag)]);
            bench.pass(1_000);
            let (said, sent) = bench.send(ours, peer, b"too late");
            assert_eq!((said, stations(&sent), sent.len()), (Ok(()), vec![], 1), "asked");
            assert_eq!(stations(&bench.cycle(Some(&neighbour))), [(THEIRS, None)], "{peer} {tag:?}");
        }
    }
    let (ours, peer) = ("198.51.100.1:7", "203.0.113.5:4000");
    let mut bench = Bench::new(Config { own: Vec::new(), steered: true, ..config() });
    bench.cycle(Some(&told(GATEWAY, Some(7), peer.parse().unwrap(), ours.parse().unwrap())));
    bench.pass(3_600_000);
    assert_eq!(stations(&bench.send(ours, peer, b"much later").1), [(GATEWAY, Some(7))]);
}

#[test]
fn a_late_answer_goes_where_the_question_came_from_also_at_an_address_of_the_kernels() {
    let shared = Ipv4Addr::new(198, 51, 100, 1);
    let listen = |local: &str| UdpListener { listener: Listener(1), local: local.parse().unwrap() };
    let mut bench = Bench::new(Config { own: Vec::new(), listeners: vec![listen("198.51.100.1:7")], ..config() });
    assert_eq!(bench.send("198.51.100.1:7", "203.0.113.5:4000", b"x").0, Err(CallError::Unreachable));
    let (peer, local): (SocketAddr, SocketAddr) = ((Ipv4Addr::new(203, 0, 113, 5), 4000).into(), (shared, 7).into());
    let question = ip(peer.ip(), shared.into(), Protocol::UDP, &[], &datagram(peer, local, b"later"));
    assert_eq!(bench.cycle(Some(&link(OURS, GATEWAY, Some(7), EtherType::IPV4, &question))), Vec::<Vec<u8>>::new());
    let (said, sent) = bench.send("198.51.100.1:7", "203.0.113.5:4000", b"now");
    assert_eq!(said, Ok(()));
    assert_eq!(sent_datagram(&sent[0]), (GATEWAY, Some(7), local, peer, b"now".to_vec()));
    assert_eq!(bench.send("198.51.100.2:7", "203.0.113.5:4000", b"x").0, Err(CallError::NoSuchAddress));
    assert_eq!(bench.stack.counters().unasked.get(), 1);
}

#[test]
fn datagrams_wait_for_their_neighbour_and_are_dropped_without_one() {
    let mut bench = Bench::new(config());
    let any = "0.0.0.0:7";
    for (peer, n) in [("192.0.2.2:9", 1), ("192.0.2.2:9", 0), ("192.0.2.99:9", 1)] {
        let (said, sent) = bench.send(any, peer, peer.as_bytes());
        assert_eq!((said, sent.len()), (Ok(()), n), "{peer}");
    }
    let sent = bench.cycle(Some(&arp_answer(B4, THEIRS)));
    assert_eq!(sent.len(), 2);
    let (mac, tag, from, to, bytes) = sent_datagram(&sent[0]);
    assert_eq!((mac, tag, from, to), (THEIRS, None, (A4, 7).into(), (B4, 9).into()));
    assert_eq!(bytes, b"192.0.2.2:9");
    for _ in 0..5 {
        bench.pass(1000);
    }
    let counters = bench.stack.counters();
    assert_eq!((counters.unasked.get(), counters.unasked_lost.get()), (2, 1));
    assert_eq!(bench.send(any, "192.0.2.2:9", &[0; 1473]).0, Err(CallError::TooLong));
    assert_eq!(bench.send(any, "192.0.2.2:9", &[0; 1472]).0, Ok(()));
}

/// The answer comes to another queue than the one whose stack asked.
#[test]
fn stacks_of_one_interface_hear_for_each_other() {
    let agreement = Arc::new(Agreement::new([IpAddr::from(A4)]));
    let one = |mode| Config {
        own: vec![own(A4.into(), 24)],
        agreement: Some(agreement.clone()),
        claim: Claim { mode, ..Claim::default() },
        ..with_tcp()
    };
    let (mut first, mut second) = (Bench::new(one(ClaimMode::Announce)), Bench::new(one(ClaimMode::Silent)));
    first.pass(1);
    let (said, sent) = second.connect("192.0.2.2:80");
    assert_eq!((said, asked4(&sent[0])), (Ok(()), B4));
    first.cycle(Some(&arp_answer(B4, THEIRS)));
    assert_eq!(first.stack.counters().handled(Handled::ArpHeard), 1);
    let sent = second.pass(10);
    assert_eq!(syn(&sent[0]), (THEIRS, B4.into(), 80));

    // two that ask at once: either answer is both's, whichever of them hears it, and takes it in, first
    for (last, both_hear) in [(3, false), (4, true)] {
        let neighbour = Ipv4Addr::new(192, 0, 2, last);
        let (mut first, mut second) = (Bench::new(one(ClaimMode::Announce)), Bench::new(one(ClaimMode::Silent)));
        first.pass(1);
        second.pass(1);
        for bench in [&mut first, &mut second] {
            let (said, sent) = bench.connect(&format!("{neighbour}:80"));
            assert_eq!((said, asked4(&sent[0])), (Ok(()), neighbour));
        }
        let answer = arp_answer(neighbour, THEIRS);
        let sent = first.cycle(Some(&answer));
        assert_eq!(sent.iter().map(|frame| syn(frame).2).collect::<Vec<_>>(), [80]);
        let sent = if both_hear { second.cycle(Some(&answer)) } else { second.pass(10) };
        assert_eq!(sent.iter().map(|frame| syn(frame).2).collect::<Vec<_>>(), [80], "{both_hear}");
    }
}

#[test]
fn a_silent_neighbour_keeps_nobody_waiting_but_who_sends_to_it() {
    let mut bench = Bench::new(config());
    // somebody has asked at the other listener, and will be answered later
    let (peer, local): (SocketAddr, SocketAddr) = ((B4, 4000).into(), (A4, 53).into());
    let question = ip(peer.ip(), local.ip(), Protocol::UDP, &[], &datagram(peer, local, b"later"));
    bench.cycle(Some(&link(OURS, THEIRS, None, EtherType::IPV4, &question)));
    let counters = bench.stack.counters();
    let mut said = [0; 2];
    for n in 0..300u64 {
        let to = format!("192.0.2.{}:9", 100 + n % 100);
        said[usize::from(bench.send("0.0.0.0:7", &to, b"anybody?").0.is_err())] += 1;
    }
    assert!(said[0] >= 30 && said[1] >= 30, "{said:?}");
    let answer = Ask::Send(Listener(0), Addresses { local, peer }, b"now".to_vec());
    let (said, sent) = bench.ask(answer);
    assert_eq!(said, Ok(()));
    assert_eq!(sent.iter().map(|frame| sent_datagram(frame).4).collect::<Vec<_>>(), [b"now"]);
    assert_eq!((counters.unasked.get(), counters.unasked_lost.get()), (1, 0));
    // its listener finds room for neighbours of its own, too
    let ends = Addresses { local, peer: (Ipv4Addr::new(192, 0, 2, 3), 9).into() };
    let (said, sent) = bench.ask(Ask::Send(Listener(0), ends, b"unasked".to_vec()));
    assert_eq!((said, sent.iter().map(|frame| asked4(frame)).next_back()), (Ok(()), Some(Ipv4Addr::new(192, 0, 2, 3))));
    let sent = bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, 3), THEIRS)));
    assert_eq!(sent.iter().map(|frame| sent_datagram(frame).4).collect::<Vec<_>>(), [b"unasked"]);
}

#[test]
fn a_hardware_address_that_no_other_station_has_is_not_taken() {
    for (ours, neighbour) in [("192.0.2.1:7", IpAddr::from(B4)), ("[2001:db8::1]:7", B6.into())] {
        let peer = SocketAddr::new(neighbour, 9).to_string();
        let mut bench = Bench::new(config());
        assert_eq!(bench.send(ours, &peer, b"one").0, Ok(()));
        for mac in [[0; 6], OURS, BROADCAST, [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
            let sent = bench.cycle(Some(&answer_with(neighbour, mac, true)));
            assert!(stations(&sent).is_empty(), "{peer} {mac:x?}");
        }
        let counters = bench.stack.counters();
        assert_eq!((counters.handled(Handled::ArpHeard), counters.handled(Handled::NeighbourHeard)), (0, 0));
        assert_eq!(stations(&bench.cycle(Some(&answer_with(neighbour, THEIRS, true)))), [(THEIRS, None)]);
    }
}

#[test]
fn an_answer_in_a_vlan_is_none_to_what_was_asked_without_a_tag() {
    for (ours, neighbour) in [("192.0.2.1:7", IpAddr::from(B4)), ("[2001:db8::1]:7", B6.into())] {
        let peer = SocketAddr::new(neighbour, 9).to_string();
        for (tag, taken) in [(7, false), (0x0fff, false), (0xe007, false), (0, true), (0xe000, true)] {
            let mut bench = Bench::new(config());
            assert_eq!(bench.send(ours, &peer, b"one").0, Ok(()));
            let sent = bench.cycle(Some(&tagged(&answer_with(neighbour, THEIRS, true), tag)));
            assert_eq!(stations(&sent), vec![(THEIRS, None); usize::from(taken)], "{peer} {tag:x}");
        }
    }
    // who asks tells, but not in a VLAN
    for (tag, taken) in [(7, false), (0, true)] {
        let mut bench = Bench::new(config());
        assert_eq!(bench.send("192.0.2.1:7", "192.0.2.2:9", b"one").0, Ok(()));
        let mut packet = [0; 28];
        let arp = Arp { operation: Operation::Request, sender_mac: THEIRS, sender: B4, target_mac: [0; 6], target: A4 };
        arp.write(&mut packet);
        let sent = bench.cycle(Some(&link(BROADCAST, THEIRS, Some(tag), EtherType::ARP, &packet)));
        assert_eq!(sent.len(), 1 + usize::from(taken), "the request is answered");
    }
}

/// RFC 4861 section 7.2.5: who answers in another's place, as a proxy does, does not take the place of who has answered himself.
#[test]
fn an_advertisement_without_the_override_flag_changes_no_neighbour_that_is_known() {
    const PROXY: Mac = [2, 0, 0, 0, 0, 0x99];
    let (ours, peer) = ("[2001:db8::1]:7", "[2001:db8::2]:9");
    let mut bench = Bench::new(config());
    assert_eq!(bench.send(ours, peer, b"one").0, Ok(()));
    // who is known by nothing else is known by this
    assert_eq!(stations(&bench.cycle(Some(&answer_with(B6.into(), PROXY, false)))), [(PROXY, None)]);
    bench.pass(31_000);
    assert_eq!(bench.send(ours, peer, b"two").0, Ok(()));
    bench.cycle(Some(&answer_with(B6.into(), THEIRS, false)));
    assert_eq!(stations(&bench.send(ours, peer, b"three").1), [(PROXY, None)]);
    bench.cycle(Some(&answer_with(B6.into(), THEIRS, true)));
    assert_eq!(stations(&bench.send(ours, peer, b"four").1), [(THEIRS, None)]);
    // and so it is with the next question
    bench.pass(31_000);
    assert_eq!(bench.send(ours, peer, b"five").0, Ok(()));
    bench.cycle(Some(&answer_with(B6.into(), PROXY, false)));
    assert_eq!(stations(&bench.send(ours, peer, b"six").1), [(THEIRS, None)]);
}

/// RFC 1122 section 2.3.2.1: one question a second for each address, and whoever asks for many takes nothing from who asks for one.
#[test]
fn who_sends_to_many_that_are_silent_keeps_nobody_from_his_neighbour() {
    let live = Ipv4Addr::new(192, 0, 2, 3);
    let silent = || (20..220).map(|n| SocketAddr::from((Ipv4Addr::new(192, 0, 2, n), 9)));
    let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7));
    for connects in [false, true] {
        let mut bench = Bench::new(Config { gateways: vec![ROUTER4.into()], ..with_tcp() });
        // the router has answered a while ago, and is asked again in the midst of it
        assert_eq!(bench.send("192.0.2.1:7", "198.51.100.7:9", b"early").0, Ok(()));
        bench.cycle(Some(&arp_answer(ROUTER4, GATEWAY)));
        bench.pass(31_000);
        let mut questions: Vec<(Ipv4Addr, Instant)> = Vec::new();
        // when each of the two that are there answers
        let mut answers = Vec::new();
        let mut delivered = Vec::new();
        for n in 0..400 {
            bench.now += Duration::from_millis(10);
            bench.notes.asks.extend(silent().map(|peer| match connects {
                true => Ask::Connect(peer, None),
                false => Ask::Send(Listener(1), Addresses { local, peer }, b"anybody?".to_vec()),
            }));
            if n == 100 {
                let to = |peer: &str| Addresses { local: (A4, 53).into(), peer: peer.parse().unwrap() };
                bench.notes.asks.push(Ask::Send(Listener(0), to("192.0.2.3:9"), b"near".to_vec()));
                bench.notes.asks.push(Ask::Send(Listener(0), to("198.51.100.7:9"), b"far".to_vec()));
            }
            let answer = answers.pop_if(|(at, _)| *at <= n).map(|(_, frame)| frame);
            for frame in bench.cycle(answer.as_deref()) {
                if !stations(std::slice::from_ref(&frame)).is_empty() {
                    delivered.push(sent_datagram(&frame).4);
                } else if segment(&frame).is_none() {
                    let target = asked4(&frame);
                    questions.push((target, bench.now));
                    for (who, mac, late) in [(live, THEIRS, 6), (ROUTER4, GATEWAY, 3)] {
                        if target == who {
                            answers.insert(0, (n + late, arp_answer(who, mac)));
                        }
                    }
                }
            }
        }
        delivered.sort();
        assert_eq!(delivered, [b"far".to_vec(), b"near".to_vec()], "connections: {connects}");
        let counters = bench.stack.counters();
        assert_eq!(counters.handled(Handled::ArpHeard), 3, "connections: {connects}");
        questions.sort();
        let of_one = |pair: &&[(Ipv4Addr, Instant)]| pair[0].0 == pair[1].0;
        let soon = questions.windows(2).filter(of_one).filter(|pair| pair[1].1 - pair[0].1 < Duration::from_secs(1));
        if connects {
            assert!(soon.count() < 2000 && questions.len() < 4000, "{} questions in four seconds", questions.len());
        } else {
            assert_eq!(soon.count(), 0);
        }
    }
}

/// No frame is to be had, and a listener has given all that it may, also to neighbours that answer meanwhile; the frames, and how many
/// datagrams wait.
fn without_frames(bench: &mut Bench) -> (Vec<Frame>, usize) {
    let give = |bench: &mut Bench, n: u8, most: usize| {
        let to = format!("192.0.2.{n}:9");
        (0..most).take_while(|_| bench.send("0.0.0.0:7", &to, b"x").0 == Ok(())).count()
    };
    give(bench, 2, 1);
    bench.cycle(Some(&arp_answer(B4, THEIRS)));
    let mut taken: usize = (20..60).map(|n| give(bench, n, 3)).sum();
    let mut held: Vec<Frame> = std::iter::from_fn(|| bench.port.take()).collect();
    taken += give(bench, 2, 300);
    for (neighbours, most) in [(20..40, 0), (40..60, 3)] {
        taken += neighbours.clone().map(|n| give(bench, n, most)).sum::<usize>();
        for n in neighbours {
            // one for the answer
            bench.port.give(held.pop().unwrap());
            assert_eq!(bench.cycle(Some(&arp_answer(Ipv4Addr::new(192, 0, 2, n), THEIRS))), Vec::<Vec<u8>>::new());
            held.push(bench.port.take().unwrap());
        }
    }
    (held, taken)
}

#[test]
fn neighbours_that_answer_while_no_frame_is_to_be_had_cost_nobody_his_place() {
    let mut bench = Bench::new(config());
    without_frames(&mut bench);
    let ends = Addresses { local: (A4, 53).into(), peer: (B4, 9).into() };
    assert_eq!(bench.ask(Ask::Send(Listener(0), ends, b"another's".to_vec())).0, Ok(()));
}

#[test]
fn what_has_a_neighbour_and_no_place_leaves_as_soon_as_it_has_one() {
    let mut bench = Bench::new(config());
    let (held, taken) = without_frames(&mut bench);
    assert!(taken > 64, "{taken} wait");
    held.into_iter().for_each(|frame| bench.port.give(frame));
    let mut sent = bench.cycle(None).len();
    // nothing comes any more that would have it look
    while let Some(at) = bench.due {
        bench.now = at;
        sent += bench.cycle(None).len();
    }
    assert_eq!(sent, taken);
    assert_eq!(bench.stack.counters().unasked_lost.get(), 0);
}
