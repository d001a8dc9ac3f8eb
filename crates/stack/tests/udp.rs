//! Datagrams: answered in place, with headers that the other side accepts.

mod common;

use app::Listener;
use common::*;
use stack::{DropReason, Handled};
use wire::ethernet::{EtherType, Link};
use wire::ipv4::Ipv4;
use wire::ipv6::Ipv6;
use wire::udp::{Udp, Verdict};
use wire::{Protocol, Sum};

/// Checks a frame that answers a datagram, and gives its payload.
fn check(frame: &[u8], tag: Option<u16>, src: &str, dst: &str) -> Vec<u8> {
    let (src, dst): (std::net::SocketAddr, std::net::SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let link = Link::parse(frame).unwrap();
    assert_eq!((link.dst, link.src, link.tag), (THEIRS, OURS, tag));
    let packet = &frame[link.bytes()..];
    let udp = if src.is_ipv4() {
        assert_eq!(link.ether_type, EtherType::IPV4);
        let ip = Ipv4::parse(packet).unwrap();
        assert_eq!((ip.protocol(), ip.ttl(), ip.traffic_class()), (Protocol::UDP, 64, 0));
        assert_eq!((ip.header_bytes(), ip.is_fragment()), (20, false));
        assert_eq!(packet[4..8], [0, 0, 0x40, 0], "an atomic datagram");
        assert_eq!((src.ip(), dst.ip()), (ip.src().into(), ip.dst().into()));
        assert_eq!(packet.len(), 20 + ip.payload().len());
        Udp::parse(ip.payload()).unwrap()
    } else {
        assert_eq!(link.ether_type, EtherType::IPV6);
        let ip = Ipv6::parse(packet).unwrap();
        assert_eq!((ip.next_header(), ip.hop_limit(), ip.traffic_class()), (Protocol::UDP, 64, 0));
        assert_eq!((src.ip(), dst.ip()), (ip.src().into(), ip.dst().into()));
        assert_eq!(packet.len(), 40 + ip.payload().len());
        Udp::parse(ip.payload()).unwrap()
    };
    assert_eq!((udp.src_port(), udp.dst_port()), (src.port(), dst.port()));
    let pseudo: Sum = pseudo(src.ip(), dst.ip(), Protocol::UDP, udp.bytes());
    assert_eq!(udp.verdict(pseudo), Verdict::Good);
    udp.payload().to_vec()
}

#[test]
fn a_datagram_is_answered_over_both_families() {
    let mut host = Host::new(config());
    for payload in [&b""[..], b"x", b"odd", b"a longer question than the others, of some bytes"] {
        let answer = host.exchange_one(&query("192.0.2.2:4000", "192.0.2.1:53", payload)).unwrap();
        assert_eq!(check(&answer, None, "192.0.2.1:53", "192.0.2.2:4000"), [b"0", payload].concat());
        let answer = host.exchange_one(&query("[2001:db8::2]:4000", "[2001:db8::1]:7", payload)).unwrap();
        assert_eq!(check(&answer, None, "[2001:db8::1]:7", "[2001:db8::2]:4000"), [b"1", payload].concat());
    }
    assert_eq!(host.counts(), (vec![], vec![(Handled::Udp4Answered, 4), (Handled::Udp6Answered, 4)]));
}

#[test]
fn a_tag_ecn_padding_and_options_do_not_reach_the_answer_wrongly() {
    let mut host = Host::new(config());
    let (src, dst) = ("192.0.2.2:4000", "192.0.2.1:7");
    let udp = datagram(src.parse().unwrap(), dst.parse().unwrap(), b"question");
    for options in [&[][..], &[1, 1, 1, 0], &[148, 4, 0, 0, 1, 1, 1, 1]] {
        let mut packet = ip(B4.into(), A4.into(), Protocol::UDP, options, &udp);
        packet[1] = 3; // congestion experienced
        fix_ipv4(&mut packet);
        packet.extend([0; 17]);
        let answer = host.exchange_one(&link(OURS, THEIRS, Some(0x6005), EtherType::IPV4, &packet)).unwrap();
        assert_eq!(check(&answer, Some(0x6005), dst, src), b"1question");
    }
    let (src, dst) = ("[2001:db8::2]:4000", "[2001:db8::1]:7");
    let udp = datagram(src.parse().unwrap(), dst.parse().unwrap(), b"question");
    for headers in [&[17, 0, 1, 4, 0, 0, 0, 0][..], &[60, 0, 5, 2, 0, 0, 1, 0, 17, 0, 0, 0, 0, 0, 0, 0]] {
        let packet = ip(B6.into(), A6.into(), Protocol::HOP_BY_HOP, headers, &udp);
        let answer = host.exchange_one(&link(OURS, THEIRS, Some(9), EtherType::IPV6, &packet)).unwrap();
        assert_eq!(check(&answer, Some(9), dst, src), b"1question");
    }
}

#[test]
fn each_listener_gets_one_burst_in_order_of_arrival() {
    let mut host = Host::new(config());
    let frames: Vec<Vec<u8>> = (0..60)
        .map(|n| {
            let port = if n % 3 == 0 { 53 } else { 7 };
            query(&format!("192.0.2.2:{}", 4000 + n), &format!("192.0.2.1:{port}"), format!("{n}").as_bytes())
        })
        .collect();
    let answers = host.exchange(&frames);
    assert_eq!(host.echo.bursts, [(Listener(0), 20), (Listener(1), 40)]);
    for (n, answer) in answers.iter().enumerate() {
        let (port, listener) = if n % 3 == 0 { (53, 0) } else { (7, 1) };
        let payload = check(answer, None, &format!("192.0.2.1:{port}"), &format!("192.0.2.2:{}", 4000 + n));
        assert_eq!(payload, format!("{listener}{n}").as_bytes());
    }
}

#[test]
fn what_the_service_leaves_unanswered_goes_home_and_is_counted() {
    let mut host = Host::new(config());
    assert_eq!(host.exchange_one(&query("192.0.2.2:4000", "192.0.2.1:53", b"silence")), None);
    assert_eq!(host.exchange_one(&query("[2001:db8::2]:4000", "[2001:db8::1]:7", b"silence")), None);
    assert_eq!(host.counts(), (vec![], vec![(Handled::Udp4Unanswered, 1), (Handled::Udp6Unanswered, 1)]));
}

#[test]
fn a_datagram_that_fills_the_mtu_fits_and_its_answer_is_bounded() {
    let mut host = Host::new(config());
    for (src, dst, most) in [("192.0.2.2:4000", "192.0.2.1:7", 1472), ("[2001:db8::2]:4000", "[2001:db8::1]:7", 1452)] {
        let answer = host.exchange_one(&query(src, dst, &vec![7; most - 1])).unwrap();
        assert_eq!(check(&answer, None, dst, src).len(), most);
        // the echo has no room for its one byte more
        assert_eq!(host.exchange_one(&query(src, dst, &vec![7; most])), None);
        assert_eq!(host.exchange_one(&query(src, dst, &vec![7; most + 1])), None);
    }
    assert_eq!(host.counts().0, [(DropReason::NoRoom, 2)]);
}

#[test]
fn after_the_link_has_become_narrower_no_answer_is_larger_and_after_it_has_widened_none_is_larger_than_the_ports() {
    let mut host = Host::new(config());
    for (told, mtu) in [(1280, 1280), (9000, 1500), (576, 576)] {
        host.stack.set_mtu(host.now, told);
        // a successor does not go back to the facts of the start
        for stack in [host.stack.successor(), host.stack.successor()] {
            host.stack = stack;
            for (src, dst, headers) in
                [("192.0.2.2:4000", "192.0.2.1:7", 28), ("[2001:db8::2]:4000", "[2001:db8::1]:7", 48)]
            {
                let most = mtu - headers;
                let answer = host.exchange_one(&query(src, dst, &vec![7; most - 1])).unwrap();
                assert_eq!(check(&answer, None, dst, src).len(), most);
                assert_eq!(host.exchange_one(&query(src, dst, &vec![7; most])), None, "no room for one byte more");
            }
        }
    }
}

#[test]
fn a_partial_checksum_is_taken_on_a_virtual_link_only() {
    let (src, dst) = ("192.0.2.2:4000".parse().unwrap(), "192.0.2.1:53".parse().unwrap());
    let mut udp = datagram(src, dst, b"from a kernel");
    let partial = pseudo(B4.into(), A4.into(), Protocol::UDP, udp.len()).partial();
    udp[6..8].copy_from_slice(&partial);
    let frame = frame_to(OURS, &ip(B4.into(), A4.into(), Protocol::UDP, &[], &udp));
    let mut host = Host::new(config());
    let answer = host.exchange_one(&frame).unwrap();
    assert_eq!(check(&answer, None, "192.0.2.1:53", "192.0.2.2:4000"), b"0from a kernel");
    assert_eq!(host.counters.partial_checksums.get(), 1);
    let mut facts = port::Port::facts(&host.port).clone();
    facts.virtual_link = false;
    host.stack = stack::Stack::new(config(), &facts);
    host.counters = host.stack.counters();
    assert_eq!(host.exchange_one(&frame), None);
    assert_eq!(host.counts().0, [(DropReason::UdpChecksum, 1)]);
}
