//! Checksums that a kernel left to its device.
//!
//! A veth pair is no device that finishes them: its other end is told apart that they are good, and that is lost where a frame is
//! taken out as bytes. So what a kernel sent is finished here, before anything may injure it, and the far host can judge every
//! frame. Left alone: what carries no TCP or UDP, parts of datagrams (kernels finish those themselves), and what is wrong.

use wire::ethernet::Link;
use wire::ipv4::Ipv4;
use wire::ipv6::{self, Ipv6, walk};
use wire::tcp::{self, Tcp};
use wire::udp::{self, Udp};
use wire::{EtherType, Protocol, Sum};

/// A transport's place in a frame.
struct Transport {
    at: usize,
    bytes: usize,
    protocol: Protocol,
    pseudo: Sum,
}

/// Where the checksum stands in a TCP header (RFC 9293 section 3.1), and in a UDP header (RFC 768).
const TCP_FIELD_AT: usize = 16;
const UDP_FIELD_AT: usize = 6;

/// Finishes the checksum of a TCP segment or UDP datagram that has only its pseudo-header's sum; true when it did.
pub(super) fn complete(frame: &mut [u8]) -> bool {
    let Some(Transport { at, bytes, protocol, pseudo }) = transport(frame) else { return false };
    let segment = &mut frame[at..at + bytes];
    // the field itself holds the pseudo-header's part of the sum
    let (field_at, checksum) = match protocol {
        Protocol::TCP => match Tcp::parse(segment) {
            Ok(tcp) if tcp.verdict(pseudo) == tcp::Verdict::Partial => (TCP_FIELD_AT, Sum::of(segment).checksum()),
            _ => return false,
        },
        Protocol::UDP => match Udp::parse(segment) {
            Ok(udp) if udp.verdict(pseudo) == udp::Verdict::Partial => {
                (UDP_FIELD_AT, Sum::of(&segment[..udp.bytes()]).udp_checksum())
            }
            _ => return false,
        },
        _ => return false,
    };
    segment[field_at..field_at + 2].copy_from_slice(&checksum);
    true
}

fn transport(frame: &[u8]) -> Option<Transport> {
    let link = Link::parse(frame)?;
    let packet = &frame[link.bytes()..];
    match link.ether_type {
        EtherType::IPV4 => {
            let ip = Ipv4::parse(packet).ok().filter(|ip| !ip.is_fragment())?;
            let (at, bytes) = (link.bytes() + ip.header_bytes(), ip.payload().len());
            let pseudo = Sum::pseudo_v4(ip.src(), ip.dst(), ip.protocol(), bytes as u16);
            Some(Transport { at, bytes, protocol: ip.protocol(), pseudo })
        }
        EtherType::IPV6 => {
            let ip = Ipv6::parse(packet).ok()?;
            let upper = walk(ip.next_header(), ip.payload()).ok()?;
            let bytes = ip.payload().len() - upper.at;
            let pseudo = Sum::pseudo_v6(ip.src(), ip.dst(), upper.protocol, bytes as u32);
            let at = link.bytes() + ipv6::HEADER_BYTES + upper.at;
            Some(Transport { at, bytes, protocol: upper.protocol, pseudo })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// A frame whose transport has the checksum field that `field` makes of the pseudo-header's sum and the segment.
    fn frame(v6: bool, tcp: bool, tag: bool, payload: &[u8], partial: bool) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if tag {
            frame.extend([0x81, 0, 0, 7]);
        }
        let protocol = if tcp { Protocol::TCP } else { Protocol::UDP };
        let mut segment = vec![0, 80, 3, 4];
        if tcp {
            segment.extend([9, 9, 9, 9, 8, 8, 8, 8, 5 << 4, 0x10, 1, 1, 0, 0, 0, 0]);
        } else {
            segment.extend((payload.len() as u16 + 8).to_be_bytes());
            segment.extend([0, 0]);
        }
        segment.extend(payload);
        let len = segment.len() as u16;
        let pseudo = if v6 {
            let (src, dst): (Ipv6Addr, Ipv6Addr) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([protocol.0, 64]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
            Sum::pseudo_v6(src, dst, protocol, u32::from(len))
        } else {
            let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 77));
            let mut head = vec![0x45, 0];
            head.extend((len + 20).to_be_bytes());
            head.extend([0, 0, 0x40, 0, 64, protocol.0, 0, 0]);
            head.extend(src.octets());
            head.extend(dst.octets());
            let sum = Sum::of(&head).checksum();
            head[10..12].copy_from_slice(&sum);
            frame.extend([8, 0]);
            frame.extend(head);
            Sum::pseudo_v4(src, dst, protocol, len)
        };
        let field_at = if tcp { TCP_FIELD_AT } else { UDP_FIELD_AT };
        let whole = pseudo.join(Sum::of(&segment));
        let field = match (partial, tcp) {
            (true, _) => pseudo.partial(),
            (false, true) => whole.checksum(),
            (false, false) => whole.udp_checksum(),
        };
        segment[field_at..field_at + 2].copy_from_slice(&field);
        frame.extend(segment);
        // as short frames are padded
        frame.extend([0xee; 3]);
        frame
    }

    proptest! {
        #[test]
        fn a_partial_checksum_becomes_the_whole_one(
            v6: bool, tcp: bool, tag: bool, payload in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            let mut left = frame(v6, tcp, tag, &payload, true);
            let whole = frame(v6, tcp, tag, &payload, false);
            prop_assume!(left != whole);
            prop_assert!(complete(&mut left));
            prop_assert_eq!(&left, &whole);
            prop_assert!(!complete(&mut left), "twice");
            prop_assert_eq!(left, whole);
        }

        #[test]
        fn nothing_else_is_touched(mut bytes in prop::collection::vec(any::<u8>(), 0..120), ether_type in 0usize..4) {
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]][ether_type]);
            }
            let before = bytes.clone();
            prop_assert!(complete(&mut bytes) || bytes == before);
        }
    }

    #[test]
    fn a_wrong_checksum_stays_wrong() {
        let mut wrong = frame(false, true, false, b"payload", false);
        let last = wrong.len() - 5;
        wrong[last] ^= 1;
        let before = wrong.clone();
        assert!(!complete(&mut wrong));
        assert_eq!(wrong, before);
    }
}
