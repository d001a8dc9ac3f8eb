use super::*;
use proptest::prelude::*;

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An Ethernet frame with this packet, tagged or not.
fn framed(ether_type: EtherType, tag: Option<u16>, packet: &[u8]) -> Vec<u8> {
    let link = Link { dst: [2; 6], src: [4; 6], tag, ether_type };
    let mut frame = vec![0; link.bytes()];
    link.write(&mut frame);
    frame.extend_from_slice(packet);
    frame
}

fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(&fragment.to_be_bytes());
    packet.extend_from_slice(&[64, protocol.0, 0, 0]);
    packet.extend_from_slice(&src.octets());
    packet.extend_from_slice(&dst.octets());
    packet.extend_from_slice(payload);
    packet
}

fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next: Protocol, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[next.0, 64]);
    packet.extend_from_slice(&src.octets());
    packet.extend_from_slice(&dst.octets());
    packet.extend_from_slice(payload);
    packet
}

fn transport(src: u16, dst: u16) -> Vec<u8> {
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &[0; 16]].concat()
}

fn packet(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> (EtherType, Vec<u8>) {
    let payload = transport(src.port(), dst.port());
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => (EtherType::IPV4, ipv4(src, dst, protocol, 0, &payload)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => (EtherType::IPV6, ipv6(src, dst, protocol, &payload)),
        _ => panic!("two families"),
    }
}

const PAIRS: [(&str, &str); 2] = [("203.0.113.9:40000", "192.0.2.1:80"), ("[2001:db8::9]:40000", "[2001:db8::1]:80")];

#[test]
fn a_frame_is_of_the_flow_between_its_ends() {
    for (src, dst) in PAIRS.map(|(src, dst)| (socket(src), socket(dst))) {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let (ether_type, packet) = packet(protocol, src, dst);
            let flow = Flow::new(protocol, src, dst).unwrap();
            assert_eq!((flow.src(), flow.dst(), flow.protocol()), (src, dst, protocol));
            for tag in [None, Some(7)] {
                assert_eq!(Flow::of_frame(&framed(ether_type, tag, &packet)), Some(flow));
            }
        }
    }
}

#[test]
fn only_what_nics_agree_on_is_plain() {
    for (src, dst) in PAIRS.map(|(src, dst)| (socket(src), socket(dst))) {
        for (protocol, plain) in [(Protocol::TCP, true), (Protocol::UDP, true), (Protocol::ICMP, false)] {
            let (ether_type, packet) = packet(protocol, src, dst);
            for tag in [None, Some(7)] {
                let frame = framed(ether_type, tag, &packet);
                assert_eq!(is_plain(&frame), plain, "{src} {protocol:?}");
                assert_eq!(is_datagram(&frame), protocol == Protocol::UDP, "{src} {protocol:?}");
            }
            assert!(!is_plain(&framed(EtherType::ARP, None, &packet)));
            assert!(!is_plain(&framed(ether_type, None, &packet[..10])));
        }
    }
    let fragment = ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), Protocol::UDP, 0x2000, &transport(1, 2));
    assert!(!is_plain(&framed(EtherType::IPV4, None, &fragment)));
}

#[test]
fn a_pure_ack_acknowledges_and_does_nothing_else() {
    let segment = |flags: u8, payload: &[u8]| {
        let mut bytes = vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
        bytes.extend_from_slice(payload);
        bytes
    };
    let (ack, ece) = (0x10, 0x40);
    let cases = [
        (ack, &b""[..], true),
        (ack | ece, b"", true),
        (ack, b"x", false),
        (0x11, b"", false), // FIN
        (0x12, b"", false), // SYN
        (0x14, b"", false), // RST
        (0x18, b"x", false),
        (0, b"", false),
    ];
    for (flags, payload, pure) in cases {
        let segment = segment(flags, payload);
        let mut v4 = ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), Protocol::TCP, 0, &segment);
        let sum = crate::Sum::of(&v4[..20]).checksum();
        v4[10..12].copy_from_slice(&sum);
        // behind a short packet a link pads
        v4.extend_from_slice(&[0; 6]);
        assert_eq!(is_pure_ack(&framed(EtherType::IPV4, None, &v4)), pure, "{flags:#x}");
        let ends: [Ipv6Addr; 2] = ["2001:db8::9", "2001:db8::1"].map(|at| at.parse().unwrap());
        let v6 = ipv6(ends[0], ends[1], Protocol::TCP, &segment);
        assert_eq!(is_pure_ack(&framed(EtherType::IPV6, Some(7), &v6)), pure, "{flags:#x}");
        let other = ipv6(ends[0], ends[1], Protocol::UDP, &segment);
        assert!(!is_pure_ack(&framed(EtherType::IPV6, None, &other)));
    }
}

#[test]
fn an_icmp_error_is_of_the_flow_that_it_quotes() {
    let (peer, ours) = (socket("203.0.113.9:40000"), socket("192.0.2.1:80"));
    let (_, sent) = packet(Protocol::TCP, ours, peer);
    let error = [&[3, 4, 0, 0, 0, 0, 5, 0][..], &sent].concat();
    let from_router = ipv4([198, 51, 100, 1].into(), [192, 0, 2, 1].into(), Protocol::ICMP, 0, &error);
    let flow = Flow::new(Protocol::TCP, peer, ours).unwrap();
    assert_eq!(Flow::of_frame(&framed(EtherType::IPV4, None, &from_router)), Some(flow));
    // a question is of none
    let echo = ipv4([198, 51, 100, 1].into(), [192, 0, 2, 1].into(), Protocol::ICMP, 0, &[8; 40]);
    assert_eq!(Flow::of_frame(&framed(EtherType::IPV4, None, &echo)), None);

    let (peer, ours) = (socket("[2001:db8::9]:40000"), socket("[2001:db8::1]:80"));
    let (_, sent) = packet(Protocol::TCP, ours, peer);
    let error = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &sent].concat();
    let from_router = ipv6("2001:db8::f".parse().unwrap(), "2001:db8::1".parse().unwrap(), Protocol::ICMPV6, &error);
    let flow = Flow::new(Protocol::TCP, peer, ours).unwrap();
    assert_eq!(Flow::of_frame(&framed(EtherType::IPV6, None, &from_router)), Some(flow));
    let echo = ipv6("2001:db8::f".parse().unwrap(), "2001:db8::1".parse().unwrap(), Protocol::ICMPV6, &[128; 60]);
    assert_eq!(Flow::of_frame(&framed(EtherType::IPV6, None, &echo)), None);
}

#[test]
fn fragments_and_other_protocols_are_of_none() {
    let (src, dst) = ([203, 0, 113, 9].into(), [192, 0, 2, 1].into());
    for fragment in [0x2000, 0x0001] {
        let packet = ipv4(src, dst, Protocol::UDP, fragment, &transport(1, 2));
        assert_eq!(Flow::of_frame(&framed(EtherType::IPV4, None, &packet)), None);
    }
    let other = ipv4(src, dst, Protocol(47), 0, &transport(1, 2));
    assert_eq!(Flow::of_frame(&framed(EtherType::IPV4, None, &other)), None);
    assert_eq!(Flow::of_frame(&framed(EtherType::ARP, None, &[0; 28])), None);
    assert_eq!(Flow::new(Protocol::TCP, socket("192.0.2.1:1"), socket("[::1]:1")), None);
}

#[test]
fn a_mapped_address_is_of_the_same_flow() {
    let plain = Flow::new(Protocol::TCP, socket("203.0.113.9:1"), socket("192.0.2.1:2"));
    assert_eq!(Flow::new(Protocol::TCP, socket("[::ffff:203.0.113.9]:1"), socket("[::ffff:192.0.2.1]:2")), plain);
}

/// A flow for each number.
type Numbered<'a> = &'a dyn Fn(u16) -> Option<Flow>;

#[test]
fn flows_spread_evenly_whatever_of_them_differs() {
    let groups = Groups::keyed(64, [0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321]);
    let flows: [(&str, Numbered<'_>); 4] = [
        ("ports of IPv4", &|n| Flow::new(Protocol::TCP, ([203, 0, 113, 9], n).into(), socket("192.0.2.1:80"))),
        ("addresses of IPv4", &|n| {
            let [high, low] = n.to_be_bytes();
            Flow::new(Protocol::UDP, ([10, 0, high, low], 53).into(), socket("192.0.2.1:53"))
        }),
        ("ports of IPv6", &|n| Flow::new(Protocol::TCP, (Ipv6Addr::LOCALHOST, n).into(), socket("[2001:db8::1]:80"))),
        ("addresses of IPv6", &|n| {
            let src = Ipv6Addr::new(0x2001, 0xdb8, 0, n, 0, 0, 0, 1);
            Flow::new(Protocol::UDP, (src, 53).into(), socket("[2001:db8::1]:53"))
        }),
    ];
    for (what, flow) in flows {
        let mut counts = [0u32; 64];
        for n in 0..64 * 256 {
            counts[usize::from(groups.of(&flow(n).unwrap()))] += 1;
        }
        // 256 each: five standard deviations are 80
        assert!(counts.iter().all(|count| (176..336).contains(count)), "{what}: {counts:?}");
    }
}

#[test]
fn a_group_is_of_one_entry_of_the_nics_table() {
    let key = toeplitz::Key::MICROSOFT;
    let ports = Ports { udp4: false, ..Ports::ALL };
    let groups = Groups::toeplitz(4096, &key, ports);
    for (src, dst) in PAIRS.map(|(src, dst)| (socket(src), socket(dst))) {
        for (protocol, counts) in [(Protocol::TCP, true), (Protocol::UDP, src.is_ipv6())] {
            let hash = toeplitz::hash(&key, toeplitz::Input::of(src, dst, counts).unwrap().as_bytes());
            let group = u32::from(groups.of(&Flow::new(protocol, src, dst).unwrap()));
            assert_eq!((group, group % 128), (hash % 4096, hash % 128), "{src} {protocol:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), ether_type in prop_oneof![Just(0x0800u16), Just(0x86dd), any::<u16>()]) {
        let frame = framed(EtherType(ether_type), None, &bytes);
        let _ = Flow::of_frame(&frame);
        let _ = Flow::of_frame(&bytes);
    }

    #[test]
    fn the_group_is_below_the_count(bits in 0u32..17, a in any::<u64>(), b in any::<u64>(), port in any::<u16>()) {
        let groups = Groups::keyed(1 << bits, [a, b]);
        let flow = Flow::new(Protocol::TCP, ([203, 0, 113, 9], port).into(), socket("192.0.2.1:80")).unwrap();
        prop_assert!(usize::from(groups.of(&flow)) < groups.count());
        prop_assert_eq!(flow.reversed().reversed(), flow);
    }
}
