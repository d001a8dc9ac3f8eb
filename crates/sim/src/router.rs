//! What a router says of a packet that does not fit the next link: RFC 792 and 1191, RFC 4443 section 3.2.

use std::net::{Ipv4Addr, Ipv6Addr};
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, icmpv4, icmpv6, ipv4, ipv6};

const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);
const TTL: u8 = 64;
/// Octets of an ICMP header.
const ICMP_BYTES: usize = 8;
/// Octets behind the IPv4 header that are quoted (RFC 792).
const QUOTED_BYTES: usize = 8;
/// Octets of IPv6 packets that are quoted: the error is no longer than the least MTU.
const QUOTED6_BYTES: usize = 1280 - ipv6::HEADER_BYTES - ICMP_BYTES;
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
const PACKET_TOO_BIG: [u8; 2] = [2, 0];

/// The frame that tells the sender of `frame` so; None where a router would not (it is no packet that it understands).
pub(crate) fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let link = Link::parse(frame)?;
    let packet = &frame[link.bytes()..];
    let mtu = u16::try_from(mtu).ok()?;
    let mut answer = [&frame[6..12], &frame[..6], &frame[12..link.bytes()]].concat();
    match link.ether_type {
        EtherType::IPV4 => {
            let ip = ipv4::Ipv4::parse(packet).ok()?;
            let quoted = &packet[..packet.len().min(ip.header_bytes() + QUOTED_BYTES)];
            let mut message = [&[0; ICMP_BYTES][..], quoted].concat();
            icmpv4::write_error(&mut message, FRAGMENTATION_NEEDED);
            message[6..8].copy_from_slice(&mtu.to_be_bytes());
            let sum = wire::Sum::of(&[&[0; 4][..], &message[4..]].concat()).bytes(&FRAGMENTATION_NEEDED);
            message[2..4].copy_from_slice(&sum.checksum());
            let mut head = [0; ipv4::HEADER_BYTES];
            let payload_bytes = message.len();
            ipv4::Header { src: ROUTER, dst: ip.src(), protocol: Protocol::ICMP, ttl: TTL, payload_bytes }
                .write(&mut head);
            answer.extend(head.iter().chain(&message));
        }
        EtherType::IPV6 => {
            let ip = ipv6::Ipv6::parse(packet).ok()?;
            let quoted = &packet[..packet.len().min(QUOTED6_BYTES)];
            let mut message = [&[0; ICMP_BYTES][..], quoted].concat();
            icmpv6::write_error(&mut message, PACKET_TOO_BIG, mtu.into(), ROUTER6, ip.src());
            let mut head = [0; ipv6::HEADER_BYTES];
            let (next_header, payload_bytes) = (Protocol::ICMPV6, message.len());
            ipv6::Header { src: ROUTER6, dst: ip.src(), next_header, hop_limit: TTL, payload_bytes }.write(&mut head);
            answer.extend(head.iter().chain(&message));
        }
        _ => return None,
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_told_the_mtu() {
        let ends = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let mut head = [0; ipv4::HEADER_BYTES];
        let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        ipv4::Header { src, dst, protocol: Protocol::TCP, ttl: 9, payload_bytes: 1400 }.write(&mut head);
        let frame = [&ends[..], &[8, 0], &head, &[7; 1400]].concat();
        let told = too_big(&frame, 1000).unwrap();
        assert_eq!((&told[..6], &told[6..12]), (&ends[6..], &ends[..6]));
        let ip = ipv4::Ipv4::parse(&told[14..]).unwrap();
        let icmp = icmpv4::Icmp::parse(ip.payload()).unwrap();
        assert_eq!((ip.dst(), icmp.mtu(), icmp.quoted()), (src, Some(1000), &frame[14..14 + 28]));

        let mut head = [0; ipv6::HEADER_BYTES];
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        ipv6::Header { src, dst, next_header: Protocol::TCP, hop_limit: 9, payload_bytes: 1400 }.write(&mut head);
        let frame = [&ends[..], &[0x86, 0xdd], &head, &[7; 1400]].concat();
        let told = too_big(&frame, 1280).unwrap();
        let ip = ipv6::Ipv6::parse(&told[14..]).unwrap();
        let icmp = icmpv6::Icmp::parse(ip.payload(), ip.src(), ip.dst()).unwrap();
        assert_eq!((ip.dst(), icmp.mtu(), told.len()), (src, Some(1280), 14 + 1280));
        assert!(too_big(&frame[..13], 1280).is_none());
        assert!(too_big(&[&ends[..], &[8, 6], &[0; 40]].concat(), 1280).is_none());
    }
}
