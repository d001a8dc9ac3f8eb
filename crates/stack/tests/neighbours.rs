//! ARP, neighbour discovery and echo: answers, claims, conflicts, listener reports.

mod common;

use base::Instant;
use base::counter::Report;
use common::*;
use stack::{Agreement, Claim, ClaimMode, Config, DropReason, Handled, Readiness};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use wire::arp::{self, Arp, Operation};
use wire::ethernet::{BROADCAST, EtherType, Link, Mac};
use wire::ipv6::{self, Ipv6};
use wire::{Protocol, Sum, icmpv4, icmpv6};

const OTHER: Mac = [2, 0, 0, 0, 0, 0x77];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn claiming() -> Config {
    Config { claim: Claim::default(), ..config() }
}

fn arp_frame(operation: Operation, sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr, tag: Option<u16>) -> Vec<u8> {
    let mut packet = [0; arp::BYTES];
    Arp { operation, sender_mac, sender, target_mac: [0; 6], target }.write(&mut packet);
    link(BROADCAST, sender_mac, tag, EtherType::ARP, &packet)
}

fn read_arp(frame: &[u8]) -> (Link, Arp) {
    let link = Link::parse(frame).unwrap();
    assert_eq!((link.ether_type, frame.len()), (EtherType::ARP, link.bytes() + arp::BYTES));
    (link, Arp::parse(&frame[link.bytes()..]).unwrap())
}

fn icmp6_frame(src_mac: Mac, src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[2..4].fill(0);
    let checksum = Sum::pseudo_v6(src, dst, Protocol::ICMPV6, message.len() as u32).bytes(&message).checksum();
    message[2..4].copy_from_slice(&checksum);
    let mut packet = ip(src.into(), dst.into(), Protocol::ICMPV6, &[], &message);
    packet[7] = hop_limit;
    let mac = if dst.is_multicast() { ipv6::group_mac(dst) } else { OURS };
    link(mac, src_mac, None, EtherType::IPV6, &packet)
}

fn neighbour_frame(kind: u8, src_mac: Mac, src: Ipv6Addr, dst: Ipv6Addr, target: Ipv6Addr, option: &[u8]) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), option].concat();
    icmp6_frame(src_mac, src, dst, 255, &message)
}

/// Link, addresses, hop limit and message of an ICMPv6 frame, checksum verified.
fn read_icmp6(frame: &[u8]) -> (Link, Ipv6Addr, Ipv6Addr, u8, Vec<u8>) {
    let link = Link::parse(frame).unwrap();
    let packet = Ipv6::parse(&frame[link.bytes()..]).unwrap();
    let upper = ipv6::walk(packet.next_header(), packet.payload()).unwrap();
    assert_eq!(upper.protocol, Protocol::ICMPV6);
    let message = &packet.payload()[upper.at..];
    icmpv6::Icmp::parse(message, packet.src(), packet.dst()).unwrap();
    (link, packet.src(), packet.dst(), packet.hop_limit(), message.to_vec())
}

#[test]
fn an_arp_request_is_answered_in_its_vlan() {
    let mut host = Host::new(config());
    for tag in [None, Some(0x2007)] {
        let (link, arp) = read_arp(&host.exchange_one(&arp_frame(Operation::Request, THEIRS, B4, A4, tag)).unwrap());
        assert_eq!((link.dst, link.src, link.tag), (THEIRS, OURS, tag));
        let expect = Arp { operation: Operation::Reply, sender_mac: OURS, sender: A4, target_mac: THEIRS, target: B4 };
        assert_eq!(arp, expect);
    }
    // a probe is answered too: that is how its sender learns of us (RFC 5227 section 2.1.1)
    let probe = arp_frame(Operation::Request, THEIRS, Ipv4Addr::UNSPECIFIED, A4, None);
    assert!(host.exchange_one(&probe).is_some());
    assert_eq!(host.exchange_one(&arp_frame(Operation::Reply, THEIRS, B4, A4, None)), None);
    assert_eq!(host.counts(), (vec![(DropReason::ArpNotOurs, 1)], vec![(Handled::ArpRequest, 3)]));
}

#[test]
fn an_ipv4_address_is_probed_three_times_then_announced_twice() {
    let mut host = Host::new(Config { own: vec![own(A4.into(), 24)], ..claiming() });
    let sent = host.pass(Duration::from_secs(60));
    let arps: Vec<(u64, Arp)> = sent.iter().map(|(at, frame)| (at.as_nanos() / 1_000_000, read_arp(frame).1)).collect();
    let senders: Vec<Ipv4Addr> = arps.iter().map(|(_, arp)| arp.sender).collect();
    let none = Ipv4Addr::UNSPECIFIED;
    assert_eq!(senders, [none, none, none, A4, A4]);
    assert!(sent.iter().all(|(_, frame)| frame[..6] == BROADCAST));
    assert!(arps.iter().all(|(_, arp)| (arp.operation, arp.target, arp.sender_mac) == (Operation::Request, A4, OURS)));
    let gaps: Vec<u64> = arps.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(arps[0].0 <= 1000 && gaps[..2].iter().all(|gap| (1000..=2000).contains(gap)), "{arps:?}");
    assert_eq!(gaps[2..], [2000, 2000]);
    assert_eq!(host.counters.own()[0].readiness, Readiness::Ready);
    assert_eq!(host.counters.claims_sent.get(), 5);
}

#[test]
fn an_ipv6_address_is_reported_twice_probed_and_advertised() {
    let mut host = Host::new(Config { own: vec![own(A6.into(), 64)], ..claiming() });
    let sent: Vec<Vec<u8>> = host.pass(Duration::from_secs(60)).into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(sent.len(), 5);
    for sent in [&sent[0], &sent[2]] {
        let (link, src, dst, hops, report) = read_icmp6(sent);
        assert_eq!((link.dst, src, hops, report[0]), ([0x33, 0x33, 0, 0, 0, 0x16], Ipv6Addr::UNSPECIFIED, 1, 143));
        assert_eq!((dst, report[8]), ("ff02::16".parse().unwrap(), 4));
        assert_eq!(report[12..28], ipv6::solicited_node(A6).octets());
        assert_eq!(sent[14 + 40..14 + 48], [58, 0, 5, 2, 0, 0, 1, 0], "router alert");
    }
    let (link, src, dst, hops, probe) = read_icmp6(&sent[1]);
    assert_eq!((link.dst, src, hops), ([0x33, 0x33, 0xff, 0, 0, 1], Ipv6Addr::UNSPECIFIED, 255));
    assert_eq!((dst, probe[0], &probe[8..24]), (ipv6::solicited_node(A6), 135, &A6.octets()[..]));
    for advertisement in &sent[3..] {
        let (link, src, dst, hops, message) = read_icmp6(advertisement);
        assert_eq!((link.dst, src, dst, hops), ([0x33, 0x33, 0, 0, 0, 1], A6, ALL_NODES, 255));
        assert_eq!((message[0], message[4], &message[8..24]), (136, 0x20, &A6.octets()[..]));
        assert_eq!((&message[24..26], &message[26..]), (&[2, 1][..], &OURS[..]));
    }
    assert_eq!(host.counters.claims_sent.get(), 5);
}

#[test]
fn an_address_that_another_has_is_not_used_and_that_is_reported() {
    type Claim4 = (Operation, Ipv4Addr, Ipv4Addr);
    let cases: [Claim4; 3] = [
        (Operation::Reply, A4, B4),
        (Operation::Request, A4, B4),
        // another who looks at the same time
        (Operation::Request, Ipv4Addr::UNSPECIFIED, A4),
    ];
    for (operation, sender, target) in cases {
        let mut host = Host::new(claiming());
        host.pass(Duration::from_millis(1500));
        assert_eq!(host.exchange_one(&arp_frame(operation, OTHER, sender, target, None)), None);
        host.pass(Duration::from_secs(60));
        let [four, six] = host.counters.own()[..] else { panic!("two addresses") };
        assert_eq!((four.readiness, four.conflicts, four.rival), (Readiness::Conflict, 1, Some(OTHER)));
        assert_eq!((six.readiness, six.conflicts, six.rival), (Readiness::Ready, 0, None));
        assert_eq!(host.exchange_one(&arp_frame(Operation::Request, THEIRS, B4, A4, None)), None);
        assert_eq!(host.exchange_one(&query("192.0.2.2:4000", "192.0.2.1:7", b"x")), None);
        assert_eq!(host.counts().0, [(DropReason::NotReady, 2)]);
    }
    let nobody = Ipv6Addr::UNSPECIFIED;
    let cases = [
        neighbour_frame(136, OTHER, A6, ALL_NODES, A6, &[&[2, 1][..], &OTHER].concat()),
        neighbour_frame(135, OTHER, nobody, ipv6::solicited_node(A6), A6, &[]),
    ];
    // a rival's advertisement comes from the very address
    for (n, frame) in cases.iter().enumerate() {
        let mut host = Host::new(claiming());
        host.pass(Duration::from_millis(1100));
        assert_eq!(host.exchange_one(frame), None);
        host.pass(Duration::from_secs(60));
        let six = host.counters.own()[1];
        assert_eq!((six.readiness, six.conflicts, six.rival), (Readiness::Conflict, 1, Some(OTHER)), "case {n}");
        assert_eq!(host.exchange_one(&query("[2001:db8::2]:4000", "[2001:db8::1]:7", b"x")), None);
    }
}

/// Frames by which a rival claims or probes an own address, and that address's place.
fn rivals() -> [(Vec<u8>, usize); 5] {
    let nobody = Ipv6Addr::UNSPECIFIED;
    [
        (arp_frame(Operation::Reply, OTHER, A4, B4, None), 0),
        (arp_frame(Operation::Request, OTHER, A4, A4, None), 0),
        (arp_frame(Operation::Request, OTHER, Ipv4Addr::UNSPECIFIED, A4, None), 0),
        (neighbour_frame(136, OTHER, A6, ALL_NODES, A6, &[&[2, 1][..], &OTHER].concat()), 1),
        (neighbour_frame(135, OTHER, nobody, ipv6::solicited_node(A6), A6, &[]), 1),
    ]
}

/// A station in another VLAN may have the same address: that is another link. A tag with VLAN 0 has a priority alone.
#[test]
fn what_is_claimed_in_a_vlan_is_not_claimed_here() {
    for (frame, at) in rivals() {
        for (tag, conflicts) in [(7, 0), (0xe007, 0), (0x0fff, 0), (0, 1), (0xe000, 1)] {
            let mut host = Host::new(claiming());
            host.pass(Duration::from_millis(1100));
            assert_eq!(host.exchange_one(&tagged(&frame, tag)), None);
            host.pass(Duration::from_secs(60));
            let own = host.counters.own()[at];
            let expect = if conflicts == 0 { Readiness::Ready } else { Readiness::Conflict };
            assert_eq!((own.readiness, own.conflicts), (expect, conflicts), "{frame:x?} {tag:x}");
        }
    }
    // nor is an address that is in use defended there
    for (frame, at) in rivals() {
        let mut host = Host::new(config());
        let probes = matches!(&read_probe(&frame), Some(target) if *target == host.counters.own()[at].addr);
        let answer = host.exchange_one(&tagged(&frame, 7));
        assert_eq!((answer.is_some(), host.counters.own()[at].conflicts), (probes, 0), "{frame:x?}");
    }
}

/// Whom a probe is about, which is a question, too, and answered as one.
fn read_probe(frame: &[u8]) -> Option<IpAddr> {
    match Link::parse(frame)?.ether_type {
        EtherType::ARP => {
            Some(read_arp(frame).1).filter(|arp| arp.sender.is_unspecified()).map(|arp| arp.target.into())
        }
        _ => {
            let (_, src, _, _, message) = read_icmp6(frame);
            let target: [u8; 16] = message[8..24].try_into().unwrap();
            src.is_unspecified().then(|| Ipv6Addr::from(target).into())
        }
    }
}

/// The IPv6 form of an IPv4 address is nobody's on a link: neighbour discovery says nothing about the IPv4 one.
#[test]
fn neighbour_discovery_says_nothing_of_an_ipv4_address() {
    let mapped = A4.to_ipv6_mapped();
    let frames = [
        neighbour_frame(136, OTHER, B6, ALL_NODES, mapped, &[&[2, 1][..], &OTHER].concat()),
        neighbour_frame(135, OTHER, Ipv6Addr::UNSPECIFIED, ipv6::solicited_node(mapped), mapped, &[]),
    ];
    for frame in frames {
        let mut host = Host::new(claiming());
        host.pass(Duration::from_millis(1500));
        assert_eq!(host.exchange_one(&frame), None);
        assert_eq!(host.counts().0, [(DropReason::Neighbour, 1)]);
        host.pass(Duration::from_secs(60));
        // nor is it answered for, or defended, once it is in use
        assert_eq!(host.exchange_one(&frame), None);
        let four = host.counters.own()[0];
        assert_eq!((four.readiness, four.conflicts), (Readiness::Ready, 0));
    }
}

/// Nor does an ICMPv6 error speak of what was sent over IPv4.
#[test]
fn an_icmpv6_error_about_mapped_addresses_is_foreign() {
    let (local, peer) = (SocketAddr::from((A4, 7)), SocketAddr::from((B4, 9)));
    let sent = [&[0; 40][..], &datagram(local, peer, b"answer")].concat();
    for (src, dst, foreign) in [
        (A4.to_ipv6_mapped(), B4.to_ipv6_mapped(), true),
        (A4.to_ipv6_mapped(), B6, true),
        (A6, B4.to_ipv6_mapped(), true),
        (A6, B6, false),
    ] {
        let mut quoted = sent.clone();
        let payload_bytes = sent.len() - 40;
        let header = ipv6::Header { src, dst, next_header: Protocol::UDP, hop_limit: 64, payload_bytes };
        header.write(quoted.first_chunk_mut().unwrap());
        let mut host = Host::new(config());
        let message = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
        assert_eq!(host.exchange_one(&icmp6_frame(THEIRS, B6, A6, 64, &message)), None);
        let expect = if foreign {
            (vec![(DropReason::IcmpForeign, 1)], vec![])
        } else {
            (vec![], vec![(Handled::IcmpError6, 1)])
        };
        assert_eq!(host.counts(), expect, "{src} {dst}");
    }
}

#[test]
fn a_used_address_is_defended_once_an_interval() {
    let mut host = Host::new(claiming());
    host.pass(Duration::from_secs(60));
    let claim = arp_frame(Operation::Request, OTHER, A4, A4, None);
    let (link, arp) = read_arp(&host.exchange_one(&claim).unwrap());
    assert_eq!((link.dst, link.src, arp.sender, arp.target, arp.sender_mac), (BROADCAST, OURS, A4, A4, OURS));
    assert_eq!(host.exchange_one(&claim), None);
    host.pass(Duration::from_secs(11));
    assert!(host.exchange_one(&claim).is_some());
    let claim = neighbour_frame(136, OTHER, B6, ALL_NODES, A6, &[&[2, 1][..], &OTHER].concat());
    let (link, src, dst, _, message) = read_icmp6(&host.exchange_one(&claim).unwrap());
    assert_eq!((link.src, src, dst, &message[26..32]), (OURS, A6, ALL_NODES, &OURS[..]));
    assert_eq!(host.exchange_one(&claim), None);
    let [four, six] = host.counters.own()[..] else { panic!("two addresses") };
    assert_eq!((four.readiness, four.conflicts), (Readiness::Ready, 3));
    assert_eq!((six.readiness, six.conflicts), (Readiness::Ready, 2));
}

#[test]
fn a_solicitation_is_answered_to_its_sender_or_to_all() {
    let mut host = Host::new(config());
    let option = [&[1, 1][..], &THEIRS].concat();
    for dst in [ipv6::solicited_node(A6), A6] {
        let answer = host.exchange_one(&neighbour_frame(135, THEIRS, B6, dst, A6, &option)).unwrap();
        let (link, src, dst, hops, message) = read_icmp6(&answer);
        assert_eq!((link.dst, link.src, src, dst, hops), (THEIRS, OURS, A6, B6, 255));
        assert_eq!((message[0], message[4], &message[8..24]), (136, 0x60, &A6.octets()[..]));
        assert_eq!((&message[24..26], &message[26..]), (&[2, 1][..], &OURS[..]));
    }
    let nobody = Ipv6Addr::UNSPECIFIED;
    let probe = neighbour_frame(135, THEIRS, nobody, ipv6::solicited_node(A6), A6, &[]);
    let (link, src, dst, _, message) = read_icmp6(&host.exchange_one(&probe).unwrap());
    assert_eq!((link.dst, src, dst, message[4]), ([0x33, 0x33, 0, 0, 0, 1], A6, ALL_NODES, 0x20));
    assert_eq!(host.counts(), (vec![], vec![(Handled::Solicitation, 3)]));
}

#[test]
fn a_listener_query_is_answered_in_the_time_it_allows_by_the_stack_that_got_it() {
    let (mut claims, follows) = two_queues();
    claims.pass(Duration::from_secs(60));
    let asker: Ipv6Addr = "fe80::9".parse().unwrap();
    let ask = |group: Ipv6Addr| {
        let mut query = [0; 28];
        query[0] = 130;
        query[4..6].copy_from_slice(&2000u16.to_be_bytes());
        query[8..24].copy_from_slice(&group.octets());
        let frame = icmp6_frame(THEIRS, asker, ALL_NODES, 1, &query);
        // a router alert, as real ones have (RFC 3810 section 5)
        let mut alerted = [&frame[..14 + 40], &[58, 0, 5, 2, 0, 0, 1, 0], &query].concat();
        let bytes = alerted.len();
        alerted[bytes - 28..].copy_from_slice(&frame[14 + 40..]);
        (alerted[14 + 5], alerted[14 + 6]) = (36, 0);
        alerted
    };
    let to_groups: Ipv6Addr = "ff02::16".parse().unwrap();
    for mut host in [claims, follows] {
        host.now = Instant::ZERO + Duration::from_secs(60);
        assert_eq!(host.exchange_one(&ask(Ipv6Addr::UNSPECIFIED)), None);
        let asked_at = host.now;
        let sent = host.pass(Duration::from_secs(10));
        assert_eq!(sent.len(), 1);
        assert!(sent[0].0 - asked_at <= Duration::from_secs(2));
        let (_, _, dst, _, report) = read_icmp6(&sent[0].1);
        assert_eq!((dst, report[0], report[8]), (to_groups, 143, 2));
        assert_eq!(report[12..28], ipv6::solicited_node(A6).octets());
        // about our group alone, and about one that is not ours
        assert_eq!(host.exchange_one(&ask(ipv6::solicited_node(A6))), None);
        assert_eq!(host.pass(Duration::from_secs(10)).len(), 1);
        host.exchange_one(&ask("ff02::1:ff00:9".parse().unwrap()));
        assert!(host.pass(Duration::from_secs(10)).is_empty());
        assert_eq!(host.counters.handled(Handled::ListenerQuery), 3);
    }
}

#[test]
fn an_echo_is_answered_with_its_bytes_options_left_out() {
    let mut host = Host::new(config());
    let mut message = [&[8, 0, 0, 0, 1, 2, 0, 9][..], b"abcdefg"].concat();
    let checksum = Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&checksum);
    for options in [&[][..], &[1, 1, 1, 0]] {
        let request = frame_to(OURS, &ip(B4.into(), A4.into(), Protocol::ICMP, options, &message));
        let answer = host.exchange_one(&request).unwrap();
        let packet = wire::ipv4::Ipv4::parse(&answer[14..]).unwrap();
        assert_eq!((packet.src(), packet.dst(), packet.header_bytes()), (A4, B4, 20));
        assert_eq!(icmpv4::Icmp::parse(packet.payload()).unwrap().kind(), icmpv4::Kind::EchoReply);
        assert_eq!(packet.payload()[4..], message[4..]);
    }
    let message = [&[128, 0, 0, 0, 1, 2, 0, 9][..], b"abcdefg"].concat();
    let answer = host.exchange_one(&icmp6_frame(THEIRS, B6, A6, 64, &message)).unwrap();
    let (link, src, dst, hops, reply) = read_icmp6(&answer);
    assert_eq!((link.dst, src, dst, hops), (THEIRS, A6, B6, 64));
    assert_eq!((reply[0], &reply[4..]), (129, &message[4..]));
    assert_eq!(host.counts(), (vec![], vec![(Handled::Echo4, 2), (Handled::Echo6, 1)]));
}

/// A port unreachable, or the like, about a datagram from `local` to `peer`.
fn error_about(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let sent = ip(local.ip(), peer.ip(), Protocol::UDP, &[], &datagram(local, peer, b"answer"));
    match (local.ip(), peer.ip()) {
        (IpAddr::V6(local), IpAddr::V6(peer)) => {
            let message = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &sent[..48]].concat();
            icmp6_frame(THEIRS, peer, local, 64, &message)
        }
        _ => {
            let mut message = [&[0; 8][..], &sent[..28]].concat();
            icmpv4::write_error(&mut message, icmpv4::PORT_UNREACHABLE);
            frame_to(OURS, &ip(peer.ip(), local.ip(), Protocol::ICMP, &[], &message))
        }
    }
}

#[test]
fn an_icmp_error_about_what_we_sent_is_recognised() {
    let mut host = Host::new(config());
    for (local, peer, expect) in [
        ("192.0.2.1:53", "192.0.2.2:9", Some(Handled::IcmpError4)),
        ("192.0.2.1:54", "192.0.2.2:9", None),
        ("[2001:db8::1]:7", "[2001:db8::2]:9", Some(Handled::IcmpError6)),
        ("[2001:db8::1]:8", "[2001:db8::2]:9", None),
    ] {
        let frame = error_about(local.parse().unwrap(), peer.parse().unwrap());
        let before = host.counters.dropped(DropReason::IcmpForeign);
        assert_eq!(host.exchange_one(&frame), None);
        match expect {
            Some(kind) => assert_eq!(host.counters.handled(kind), 1),
            None => assert_eq!(host.counters.dropped(DropReason::IcmpForeign), before + 1),
        }
    }
}

/// The kernel has the addresses, and a listener is at all of them: the steering program passes what quotes its port.
#[test]
fn an_icmp_error_to_an_address_that_no_listener_names_is_heard() {
    let ends = [
        ("198.51.100.1:7", "192.0.2.2:9", Handled::IcmpError4),
        ("[2001:db8:9::1]:7", "[2001:db8::2]:9", Handled::IcmpError6),
    ];
    for (local, peer, kind) in ends {
        let (local, peer): (SocketAddr, SocketAddr) = (local.parse().unwrap(), peer.parse().unwrap());
        let mut host = Host::new(Config { own: Vec::new(), steered: true, ..config() });
        assert_eq!(host.exchange_one(&error_about(local, peer)), None);
        let port = SocketAddr::new(local.ip(), 8);
        assert_eq!(host.exchange_one(&error_about(port, peer)), None);
        assert_eq!(host.counts(), (vec![(DropReason::IcmpForeign, 1)], vec![(kind, 1)]));
        // only errors: who pings such an address asks the kernel
        let ping = match (local.ip(), peer.ip()) {
            (IpAddr::V6(local), IpAddr::V6(peer)) => icmp6_frame(THEIRS, peer, local, 64, &[128, 0, 0, 0, 0, 0, 0, 0]),
            _ => frame_to(OURS, &ip(peer.ip(), local.ip(), Protocol::ICMP, &[], &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])),
        };
        assert_eq!(host.exchange_one(&ping), None);
        assert_eq!(host.counters.dropped(DropReason::NotOurs), 1);
        // nor where it is not said that the port passes only what is for local addresses
        let mut host = Host::new(Config { own: Vec::new(), ..config() });
        assert_eq!(host.exchange_one(&error_about(local, peer)), None);
        assert_eq!(host.counts(), (vec![(DropReason::NotOurs, 1)], vec![]));
    }
}

#[test]
fn a_new_configuration_keeps_what_stays_and_claims_what_is_new() {
    let mut host = Host::new(claiming());
    host.pass(Duration::from_secs(60));
    let new: Ipv4Addr = "192.0.2.50".parse().unwrap();
    host.stack.reconfigure(Config { own: vec![own(new.into(), 24), own(A4.into(), 24)], ..claiming() });
    let [first, second] = host.counters.own()[..] else { panic!("two addresses") };
    assert_eq!((first.addr, first.readiness), (new.into(), Readiness::Probing));
    assert_eq!((second.addr, second.readiness), (A4.into(), Readiness::Ready));
    assert!(host.exchange_one(&query("192.0.2.2:4000", "192.0.2.1:7", b"x")).is_some());
    assert!(host.exchange_one(&query("[2001:db8::2]:4000", "[2001:db8::1]:7", b"x")).is_none());
    let sent = host.pass(Duration::from_secs(60));
    assert_eq!(sent.len(), 5);
    assert!(host.exchange_one(&query("192.0.2.2:4000", "192.0.2.50:7", b"x")).is_some());
}

/// A port all of whose frames are in use.
struct Dry;

impl port::Supply for Dry {
    fn frame(&mut self) -> Option<base::Frame> {
        None
    }

    fn large(&mut self) -> Option<&mut dyn port::Large> {
        None
    }

    fn gather(&mut self) -> Option<&mut dyn port::Gather> {
        None
    }
}

#[test]
fn without_frames_a_claim_waits_and_loses_nothing() {
    let mut host = Host::new(Config { claim: Claim { mode: ClaimMode::Announce, ..Claim::default() }, ..config() });
    let mut tx = base::Burst::new();
    let next = host.stack.poll(host.now, &mut Dry, &mut tx, &mut host.echo).unwrap();
    assert!(tx.is_empty() && next > host.now);
    // two ARP announcements, two reports, two advertisements
    assert_eq!(host.pass(Duration::from_secs(60)).len(), 6);
    let mut silent = Host::new(config());
    assert!(silent.pass(Duration::from_secs(60)).is_empty());
}

#[test]
fn a_successor_keeps_addresses_as_far_as_they_have_come() {
    let mut host = Host::new(claiming());
    let question = query("192.0.2.2:4000", "192.0.2.1:7", b"x");
    // another has the IPv6 address; the IPv4 one is still being probed
    host.pass(Duration::from_millis(900));
    let rival = neighbour_frame(136, OTHER, A6, ALL_NODES, A6, &[&[2, 1][..], &OTHER].concat());
    assert_eq!(host.exchange_one(&rival), None);
    let replace = |host: &mut Host| host.stack = host.stack.successor();
    replace(&mut host);
    assert_eq!(host.exchange_one(&question), None);
    host.pass(Duration::from_secs(20));
    let readiness: Vec<_> = host.counters.own().iter().map(|own| own.readiness).collect();
    assert_eq!(readiness, [Readiness::Ready, Readiness::Conflict]);
    let claims = host.counters.claims_sent.get();
    replace(&mut host);
    assert!(host.exchange_one(&question).is_some(), "in use without a pause");
    assert_eq!(host.exchange_one(&query("[2001:db8::2]:4000", "[2001:db8::1]:7", b"x")), None);
    assert_eq!(host.pass(Duration::from_secs(30)), [], "nothing is claimed anew");
    assert_eq!(host.counters.claims_sent.get(), claims);
    // it defends as before
    host.exchange_one(&arp_frame(Operation::Reply, OTHER, A4, B4, None)).expect("a defence");
    replace(&mut host);
    assert_eq!(host.exchange_one(&arp_frame(Operation::Reply, OTHER, A4, B4, None)), None, "one an interval");
    assert_eq!(host.counters.own()[0].conflicts, 2);
}

/// The stacks of two queues: one claims, the other follows.
fn two_queues() -> (Host, Host) {
    let agreement = Some(Arc::new(Agreement::new([A4.into(), A6.into()])));
    let claims = Config { agreement: agreement.clone(), ..claiming() };
    (Host::new(claims), Host::new(Config { agreement, ..config() }))
}

#[test]
fn a_stack_that_follows_uses_an_address_when_the_claiming_one_does() {
    let (mut claims, mut follows) = two_queues();
    let question = query("192.0.2.2:4000", "192.0.2.1:7", b"x");
    let request = arp_frame(Operation::Request, THEIRS, B4, A4, None);
    assert!(follows.pass(Duration::from_secs(60)).is_empty());
    assert_eq!(follows.exchange(&[question.clone(), request.clone()]), Vec::<Vec<u8>>::new());
    assert_eq!(follows.counts().0, [(DropReason::NotReady, 2)]);
    claims.pass(Duration::from_secs(60));
    assert_eq!(follows.exchange(&[question, request]).len(), 2);
    assert_eq!(claims.counters.own(), follows.counters.own());
    // one of them reports, or the sum over the queues would be no state
    let states = [&claims, &follows].map(|host| {
        let mut states = Vec::new();
        host.counters.report(&mut |figure| {
            if figure.name == "own_address_state" {
                states.push(figure.value);
            }
        });
        states
    });
    assert_eq!(states, [vec![1, 1], vec![]]);
}

#[test]
fn a_rival_heard_on_another_queue_ends_the_claim() {
    let four = arp_frame(Operation::Reply, OTHER, A4, B4, None);
    let six = neighbour_frame(136, OTHER, A6, ALL_NODES, A6, &[&[2, 1][..], &OTHER].concat());
    for (frame, lost, kept) in [(four, 0, 1), (six, 1, 0)] {
        let (mut claims, mut follows) = two_queues();
        claims.pass(Duration::from_millis(900));
        assert_eq!(follows.exchange_one(&frame), None);
        claims.pass(Duration::from_secs(60));
        let own = claims.counters.own();
        assert_eq!((own[lost].readiness, own[lost].conflicts), (Readiness::Conflict, 1));
        assert_eq!((own[lost].rival, own[kept].readiness), (Some(OTHER), Readiness::Ready));
        let questions = [("192.0.2.2:4000", "192.0.2.1:7"), ("[2001:db8::2]:4000", "[2001:db8::1]:7")];
        let questions = questions.map(|(from, to)| query(from, to, b"x"));
        for host in [&mut claims, &mut follows] {
            let answered = questions.each_ref().map(|question| host.exchange_one(question).is_some());
            assert_eq!((answered[lost], answered[kept]), (false, true));
        }
    }
}

#[test]
fn an_address_that_another_had_is_looked_for_again_each_minute() {
    let four = arp_frame(Operation::Reply, OTHER, A4, B4, None);
    let six = neighbour_frame(136, OTHER, A6, ALL_NODES, A6, &[&[2, 1][..], &OTHER].concat());
    let questions = [("192.0.2.2:4000", "192.0.2.1:7"), ("[2001:db8::2]:4000", "[2001:db8::1]:7")];
    for (rival, lost) in [(four, 0), (six, 1)] {
        // heard by the stack that claims, and by one that follows
        for by in [0, 1] {
            let (claims, follows) = two_queues();
            let mut hosts = [claims, follows];
            let readiness = |hosts: &[Host]| hosts[0].counters.own()[lost].readiness;
            hosts[0].pass(Duration::from_millis(900));
            for attempt in 1..=2 {
                let heard_at = hosts[0].now;
                hosts[by].now = heard_at;
                assert_eq!(hosts[by].exchange_one(&rival), None);
                let sent = hosts[0].pass(Duration::from_secs(59));
                assert_eq!(readiness(&hosts), Readiness::Conflict, "attempt {attempt}");
                let settled_at = heard_at + Duration::from_secs(15);
                assert!(sent.iter().all(|(at, _)| *at < settled_at), "nothing is sent meanwhile");
                // what is heard between attempts is of neither
                assert_eq!(hosts[1].exchange_one(&rival), None);
                let begun = (0..50).any(|_| !hosts[0].pass(Duration::from_millis(100)).is_empty());
                assert!(begun && readiness(&hosts) == Readiness::Conflict, "until nobody was heard");
            }
            hosts[0].pass(Duration::from_secs(60));
            assert_eq!(readiness(&hosts), Readiness::Ready);
            for host in &mut hosts {
                assert!(host.exchange_one(&query(questions[lost].0, questions[lost].1, b"x")).is_some());
            }
        }
    }
}

#[test]
fn whoever_hears_a_rival_of_a_used_address_defends_it_once_an_interval() {
    let (mut claims, mut follows) = two_queues();
    claims.pass(Duration::from_secs(60));
    follows.now = claims.now;
    let claim = arp_frame(Operation::Request, OTHER, A4, A4, None);
    let (_, arp) = read_arp(&follows.exchange_one(&claim).unwrap());
    assert_eq!((arp.sender, arp.target, arp.sender_mac), (A4, A4, OURS));
    assert_eq!(claims.exchange_one(&claim), None);
    assert_eq!(follows.exchange_one(&claim), None);
    claims.pass(Duration::from_secs(11));
    assert!(claims.exchange_one(&claim).is_some());
    assert_eq!(follows.exchange_one(&claim), None);
    let own = claims.counters.own()[0];
    assert_eq!((own.readiness, own.conflicts, own.rival), (Readiness::Ready, 5, Some(OTHER)));
    claims.pass(Duration::from_secs(60));
    assert_eq!(claims.counters.own()[0].readiness, Readiness::Ready);
}

#[test]
fn a_new_hardware_address_is_announced_and_answered_with() {
    const NEW: Mac = [2, 0, 0, 0, 0, 0x55];
    let (mut claims, mut follows) = two_queues();
    claims.pass(Duration::from_secs(60));
    follows.now = claims.now;
    for host in [&mut claims, &mut follows] {
        host.stack.set_mac(NEW);
    }
    let told: Vec<Vec<u8>> = claims.pass(Duration::from_secs(60)).into_iter().map(|(_, frame)| frame).collect();
    assert!(told.len() >= 4 && told.iter().all(|frame| frame[6..12] == NEW), "{told:x?}");
    assert!(told.iter().any(|frame| frame[..6] == BROADCAST && read_arp(frame).1.sender_mac == NEW));
    assert!(follows.pass(Duration::from_secs(60)).is_empty());
    let mut question = query("192.0.2.2:4000", "192.0.2.1:7", b"x");
    for host in [&mut claims, &mut follows] {
        let (_, arp) = read_arp(&host.exchange_one(&arp_frame(Operation::Request, THEIRS, B4, A4, None)).unwrap());
        assert_eq!(arp.sender_mac, NEW);
        question[..6].copy_from_slice(&OURS);
        assert_eq!(host.exchange_one(&question), None, "the old one is another's now");
        question[..6].copy_from_slice(&NEW);
        let answer = host.exchange_one(&question).unwrap();
        assert_eq!(answer[6..12], NEW);
        // a successor does not go back to the facts of the start
        host.stack = host.stack.successor();
        assert!(host.exchange_one(&question).is_some());
    }
    assert_eq!(claims.counters.own()[0].readiness, Readiness::Ready);
}
