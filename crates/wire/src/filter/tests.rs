use super::*;
use crate::{ethernet, ipv4};
use proptest::prelude::*;

fn framed(tag: Option<u16>, ether_type: EtherType, packet: &[u8]) -> Vec<u8> {
    let link = Link { dst: [2; 6], src: [4; 6], tag, ether_type };
    let mut frame = vec![0; link.bytes()];
    link.write(&mut frame);
    frame.extend(packet);
    frame
}

fn transported(src: &str, dst: &str, protocol: Protocol, tag: Option<u16>) -> Vec<u8> {
    let (src, dst): (std::net::SocketAddr, std::net::SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut transport = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    transport.extend([0; 16]);
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut head = [0; ipv4::HEADER_BYTES];
            ipv4::Header { src, dst, protocol, ttl: 1, payload_bytes: transport.len() }.write(&mut head);
            framed(tag, EtherType::IPV4, &[&head[..], &transport].concat())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut head = [0; ipv6::HEADER_BYTES];
            let header = ipv6::Header { src, dst, next_header: protocol, hop_limit: 1, payload_bytes: transport.len() };
            header.write(&mut head);
            framed(tag, EtherType::IPV6, &[&head[..], &transport].concat())
        }
        _ => panic!("two families"),
    }
}

/// One frame of each kind; the tests below name them by place.
fn frames() -> Vec<Vec<u8>> {
    let mut arp = [0; crate::arp::BYTES];
    let operation = crate::arp::Operation::Request;
    let (sender, target) = ("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
    Arp { operation, sender_mac: [4; 6], sender, target_mac: [0; 6], target }.write(&mut arp);
    vec![
        transported("192.0.2.2:4000", "192.0.2.1:53", Protocol::UDP, None),
        transported("192.0.2.1:53", "192.0.2.2:4000", Protocol::UDP, Some(0x6007)),
        transported("[2001:db8::2]:4000", "[2001:db8::1]:53", Protocol::TCP, None),
        transported("198.51.100.7:0", "192.0.2.1:0", Protocol::ICMP, None),
        transported("[fe80::1]:0", "[ff02::1]:0", Protocol::ICMPV6, None),
        framed(None, EtherType::ARP, &arp),
        framed(None, EtherType(0x88cc), &[0; 50]),
    ]
}

#[test]
fn expressions_choose_their_frames() {
    let frames = frames();
    for (text, expect) in [
        ("", &[0, 1, 2, 3, 4, 5, 6][..]),
        ("  ", &[0, 1, 2, 3, 4, 5, 6]),
        ("udp", &[0, 1]),
        ("tcp", &[2]),
        ("icmp", &[3]),
        ("icmp6", &[4]),
        ("arp", &[5]),
        ("ip", &[0, 1, 3]),
        ("ip6", &[2, 4]),
        ("vlan", &[1]),
        ("vlan 7", &[1]),
        ("vlan 8", &[]),
        ("host 192.0.2.1", &[0, 1, 3, 5]),
        ("src host 192.0.2.1", &[1]),
        ("dst host 192.0.2.1", &[0, 3, 5]),
        ("host 2001:db8::1", &[2]),
        ("net 192.0.2.0/24", &[0, 1, 3, 5]),
        ("net 192.0.2.0/31", &[0, 1, 3, 5]),
        ("src net 198.51.100.0/24", &[3]),
        ("net 2001:db8::/32", &[2]),
        ("net 0.0.0.0/0", &[0, 1, 3, 5]),
        ("net ::/0", &[2, 4]),
        ("port 53", &[0, 1, 2]),
        ("dst port 53", &[0, 2]),
        ("src port 53", &[1]),
        ("port 0", &[]),
        ("not udp", &[2, 3, 4, 5, 6]),
        ("udp and dst port 53", &[0]),
        ("udp or tcp", &[0, 1, 2]),
        // and binds closer than or
        ("arp or udp and src port 53", &[1, 5]),
        ("(arp or udp) and not vlan", &[0, 5]),
        ("!(arp||udp)&&ip", &[3]),
        ("not not arp", &[5]),
        ("not (host 192.0.2.1 or ip6)", &[6]),
    ] {
        let filter: Filter = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let chosen: Vec<usize> = (0..frames.len()).filter(|n| filter.matches(&frames[*n])).collect();
        assert_eq!(chosen, expect, "{text}");
    }
}

#[test]
fn errors_name_the_column_and_the_mend() {
    for (text, column, message) in [
        ("udp prt 53", 5, "`and` or `or` is missing before `prt`"),
        ("udp and", 8, "a test is missing here"),
        ("prt 53", 1, "`prt` is not known here"),
        ("192.0.2.1", 1, "write `host 192.0.2.1`"),
        ("udp and 53", 9, "write `port 53`"),
        ("port", 5, "a port number from 0 to 65535 is missing here"),
        ("port 65536", 6, "`65536` is not a port number"),
        ("host example.com", 6, "`example.com` is not an address"),
        ("net 192.0.2.0", 5, "`192.0.2.0` is not a prefix; write it as 192.0.2.0/24"),
        ("net 192.0.2.0/33", 5, "is not a prefix"),
        ("net 192.0.2.1/24", 5, "has bits set after the first 24"),
        ("(udp", 5, "a `)` is missing here"),
        ("udp)", 4, "this `)` closes nothing"),
        ("src udp", 5, "`src` and `dst` are followed by"),
        ("vlan 4096", 6, "`4096` is not a VLAN number"),
        ("udp & tcp", 5, "`and` or `or` is missing before `&`"),
    ] {
        let error = text.parse::<Filter>().expect_err(text);
        assert_eq!(error.column, column, "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
        assert!(error.to_string().starts_with(&format!("column {column}: ")));
    }
}

#[test]
fn nesting_is_bounded() {
    assert!(format!("{}udp", "not ".repeat(DEPTH_MAX)).parse::<Filter>().is_ok());
    assert!(format!("{}udp", "not ".repeat(DEPTH_MAX + 1)).parse::<Filter>().is_err());
    assert!("(".repeat(100_000).parse::<Filter>().is_err());
}

#[test]
fn a_later_fragment_has_no_ports_and_extension_headers_are_walked() {
    let mut fragment = transported("192.0.2.2:53", "192.0.2.1:53", Protocol::UDP, None);
    fragment[ethernet::HEADER_BYTES + 7] = 1;
    let (port, udp): (Filter, Filter) = ("port 53".parse().unwrap(), "udp".parse().unwrap());
    assert!(!port.matches(&fragment) && udp.matches(&fragment));
    let mut frame = transported("[2001:db8::2]:53", "[2001:db8::1]:53", Protocol::DESTINATION_OPTIONS, None);
    let at = ethernet::HEADER_BYTES + ipv6::HEADER_BYTES;
    frame.splice(at..at, [17, 0, 1, 4, 0, 0, 0, 0]);
    assert!(port.matches(&frame) && udp.matches(&frame));
}

proptest! {
    #[test]
    fn no_text_and_no_frame_panics(text in "[a-z0-9./:()&|! ]{0,40}", frame in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(filter) = text.parse::<Filter>() {
            let _ = filter.matches(&frame);
        }
    }

    #[test]
    fn words_in_any_order_parse_or_name_a_column(
        words in prop::collection::vec(
            prop::sample::select(vec!["udp", "and", "or", "not", "(", ")", "port", "53", "src", "host", "192.0.2.1", "vlan", "ip6"]),
            0..12,
        ),
        pick in 0usize..7,
    ) {
        let text = words.join(" ");
        match text.parse::<Filter>() {
            Ok(filter) => {
                let negated: Filter = if words.is_empty() { return Ok(()) } else { format!("not ({text})").parse().unwrap() };
                let frame = &frames()[pick];
                prop_assert_ne!(filter.matches(frame), negated.matches(frame));
            }
            Err(error) => prop_assert!((1..=text.len() + 1).contains(&error.column)),
        }
    }
}
