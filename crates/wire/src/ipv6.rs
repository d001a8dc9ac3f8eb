//! IPv6 (RFC 8200), with its extension headers as far as an end host walks them.

use crate::{Protocol, array, be16};
use std::net::Ipv6Addr;

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 40;
/// Extension headers walked at most; no packet of good will has more.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// Why bytes are not an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// they end inside the header
    Short,
    /// the version is not 6
    Version,
    /// the payload length is more than there is
    PayloadLength,
}

/// A packet whose form is sound; bytes after its payload length are left out.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    head: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// The packet at the front of `bytes`. A jumbogram (payload length 0) has an empty payload.
    ///
    /// # Errors
    /// What is wrong with its form.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Ipv6<'a>, Malformed> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed::Short)?;
        if head[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        let payload = rest.get(..usize::from(be16(head, 4))).ok_or(Malformed::PayloadLength)?;
        Ok(Ipv6 { head, payload })
    }

    /// The packet that an ICMPv6 error quotes: its payload may be cut.
    ///
    /// # Errors
    /// What is wrong with its form.
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<Ipv6<'a>, Malformed> {
        let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed::Short)?;
        if head[0] >> 4 == 6 { Ok(Ipv6 { head, payload }) } else { Err(Malformed::Version) }
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(array(self.head, 8))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(array(self.head, 24))
    }

    /// What the payload begins with.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.head[6])
    }

    /// Hops left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.head[7]
    }

    /// DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.head[0] << 4 | self.head[1] >> 4
    }

    /// What follows the fixed header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Where the extension headers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// what follows them
    pub protocol: Protocol,
    /// bytes of all extension headers
    pub at: usize,
    /// a hop-by-hop option said that routers should look (RFC 2711); MLD carries it
    pub router_alert: bool,
}

/// Why a walk over extension headers stopped. `pointer` counts from the fixed header's first byte, as ICMPv6 does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// the packet ends inside a header, or an option leaves its header
    Malformed,
    /// more headers than [`EXTENSION_HEADERS_MAX`]
    TooMany,
    /// a part of a datagram; an atomic fragment is no obstacle (RFC 6946)
    Fragment,
    /// nothing follows
    NoNextHeader,
    /// an option that is to be understood or the packet dropped without a word (RFC 8200 section 4.2, 01)
    OptionDropped,
    /// an option that is to be understood or complained about (10, and 11 where the destination is no group)
    OptionRefused {
        /// the option's place
        pointer: u32,
        /// no complaint when the packet went to a group
        unicast_only: bool,
    },
    /// a routing header that wants to go on (RFC 8200 section 4.4; type 0 is deprecated by RFC 5095)
    Routing {
        /// the routing type's place
        pointer: u32,
    },
    /// a header that no host here knows, or a hop-by-hop header that is not the first (RFC 8200 section 4)
    UnknownHeader {
        /// the next-header field's place
        pointer: u32,
    },
}

/// Whether a value names an extension header that [`walk`] walks.
#[inline]
pub const fn is_extension(protocol: Protocol) -> bool {
    matches!(protocol.0, 0 | 43 | 44 | 59 | 60)
}

/// Walks the extension headers in `payload`, the first of which is a `first`.
///
/// # Errors
/// Why the packet cannot be delivered.
pub fn walk(first: Protocol, payload: &[u8]) -> Result<Upper, Stopped> {
    let mut upper = Upper { protocol: first, at: 0, router_alert: false };
    let mut named_at = 6; // of the field that names the header looked at
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let here = upper.at;
        let head = || payload.get(here..here + 8).ok_or(Stopped::Malformed);
        let bytes = match upper.protocol {
            Protocol::HOP_BY_HOP if here != 0 => return Err(Stopped::UnknownHeader { pointer: named_at }),
            Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS => {
                let bytes = (usize::from(head()?[1]) + 1) * 8;
                let options = payload.get(here + 2..here + bytes).ok_or(Stopped::Malformed)?;
                upper.router_alert |= walk_options(options, (HEADER_BYTES + here + 2) as u32)?;
                bytes
            }
            Protocol::ROUTING => {
                let head = head()?;
                if head[3] != 0 {
                    return Err(Stopped::Routing { pointer: (HEADER_BYTES + here + 2) as u32 });
                }
                (usize::from(head[1]) + 1) * 8
            }
            Protocol::FRAGMENT => {
                if be16(head()?, 2) & 0xfff9 != 0 {
                    return Err(Stopped::Fragment);
                }
                8
            }
            Protocol::NO_NEXT_HEADER => return Err(Stopped::NoNextHeader),
            _ => return Ok(upper),
        };
        if payload.len() < here + bytes {
            return Err(Stopped::Malformed);
        }
        upper.protocol = Protocol(payload[here]);
        upper.at += bytes;
        named_at = (HEADER_BYTES + here) as u32;
    }
    Err(Stopped::TooMany)
}

/// RFC 8200 section 4.2; true when a router alert is among the options.
fn walk_options(options: &[u8], pointer: u32) -> Result<bool, Stopped> {
    let mut alert = false;
    let mut at = 0;
    while at < options.len() {
        let kind = options[at];
        if kind == 0 {
            at += 1; // Pad1
            continue;
        }
        let bytes = usize::from(*options.get(at + 1).ok_or(Stopped::Malformed)?) + 2;
        if at + bytes > options.len() {
            return Err(Stopped::Malformed);
        }
        match kind {
            1 => {} // PadN
            5 => alert = true,
            _ => match kind >> 6 {
                0 => {}
                1 => return Err(Stopped::OptionDropped),
                action => {
                    let pointer = pointer + at as u32;
                    return Err(Stopped::OptionRefused { pointer, unicast_only: action == 3 });
                }
            },
        }
        at += bytes;
    }
    Ok(alert)
}

/// A header to be written, traffic class and flow label zero.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// source address
    pub src: Ipv6Addr,
    /// destination address
    pub dst: Ipv6Addr,
    /// what the payload begins with
    pub next_header: Protocol,
    /// hops it may make
    pub hop_limit: u8,
    /// bytes after the header
    pub payload_bytes: usize,
}

impl Header {
    /// Writes the header.
    ///
    /// # Panics
    /// When the payload exceeds 65,535 bytes.
    #[inline]
    pub fn write(&self, out: &mut [u8; HEADER_BYTES]) {
        let payload = u16::try_from(self.payload_bytes).expect("an IPv6 payload above 65,535 bytes");
        out[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        out[4..6].copy_from_slice(&payload.to_be_bytes());
        out[6] = self.next_header.0;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
    }
}

/// The group in which the neighbours of `addr` look for it (RFC 4291 section 2.7.1).
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The hardware address of a group (RFC 2464 section 7).
pub fn group_mac(group: Ipv6Addr) -> crate::Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), shaped: bool) {
            if shaped && bytes.len() >= HEADER_BYTES {
                bytes[0] = 0x60;
                let payload = (bytes.len() - HEADER_BYTES) as u16;
                bytes[4..6].copy_from_slice(&payload.to_be_bytes());
            }
            if let Ok(ip) = Ipv6::parse(&bytes) {
                prop_assert_eq!(ip.payload().len(), usize::from(be16(&bytes, 4)));
                let _ = walk(ip.next_header(), ip.payload());
            }
            let _ = Ipv6::parse_quoted(&bytes);
        }

        #[test]
        fn a_walk_ends_inside_the_payload(
            first in prop::sample::select(vec![0u8, 43, 44, 60, 17]),
            mut payload in prop::collection::vec(prop::sample::select(vec![0u8, 0, 0, 1, 1, 2, 4, 5, 17, 43, 44, 60, 200]), 0..100),
        ) {
            payload.push(17);
            if let Ok(upper) = walk(Protocol(first), &payload) {
                prop_assert!(upper.at <= payload.len());
                prop_assert!(!is_extension(upper.protocol));
            }
        }
    }

    #[test]
    fn a_written_header_parses_back() {
        let (src, dst): (Ipv6Addr, Ipv6Addr) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let mut bytes = [0; 60];
        Header { src, dst, next_header: Protocol::UDP, hop_limit: 64, payload_bytes: 9 }
            .write(bytes.first_chunk_mut().unwrap());
        let ip = Ipv6::parse(&bytes).unwrap();
        assert_eq!((ip.src(), ip.dst(), ip.next_header(), ip.hop_limit()), (src, dst, Protocol::UDP, 64));
        assert_eq!((ip.payload().len(), ip.traffic_class()), (9, 0));
        bytes[0] = 0x6f;
        bytes[1] = 0x30;
        assert_eq!(Ipv6::parse(&bytes).unwrap().traffic_class(), 0xf3);
        assert_eq!(Ipv6::parse(&bytes[..48]).err(), Some(Malformed::PayloadLength));
        assert_eq!(Ipv6::parse(&bytes[..39]).err(), Some(Malformed::Short));
        bytes[0] = 0x4f;
        assert_eq!(Ipv6::parse(&bytes).err(), Some(Malformed::Version));
    }

    #[test]
    fn headers_are_walked_and_refused_as_the_rfc_says() {
        let udp = |at| Ok(Upper { protocol: Protocol::UDP, at, router_alert: false });
        let pad = [1, 4, 0, 0, 0, 0];
        let hop = |next: u8, options: [u8; 6]| [&[next, 0][..], &options].concat();
        assert_eq!(walk(Protocol::UDP, &[]), udp(0));
        assert_eq!(walk(Protocol::HOP_BY_HOP, &hop(17, pad)), udp(8));
        let both = [hop(60, pad), hop(17, [0; 6])].concat();
        assert_eq!(walk(Protocol::HOP_BY_HOP, &both), udp(16));
        let alert = Upper { protocol: Protocol::ICMPV6, at: 8, router_alert: true };
        assert_eq!(walk(Protocol::HOP_BY_HOP, &hop(58, [5, 2, 0, 0, 1, 0])), Ok(alert));
        // a hop-by-hop header comes first or not at all
        assert_eq!(walk(Protocol::DESTINATION_OPTIONS, &hop(0, pad)), Err(Stopped::UnknownHeader { pointer: 40 }));
        // the two high bits of an unknown option say what to do
        let with = |kind: u8| walk(Protocol::DESTINATION_OPTIONS, &hop(17, [kind, 4, 0, 0, 0, 0]));
        assert_eq!(with(0x1e), udp(8));
        assert_eq!(with(0x5e), Err(Stopped::OptionDropped));
        assert_eq!(with(0x9e), Err(Stopped::OptionRefused { pointer: 42, unicast_only: false }));
        assert_eq!(with(0xde), Err(Stopped::OptionRefused { pointer: 42, unicast_only: true }));
        // an option that leaves its header, a header that leaves the packet
        assert_eq!(walk(Protocol::HOP_BY_HOP, &hop(17, [1, 5, 0, 0, 0, 0])), Err(Stopped::Malformed));
        assert_eq!(walk(Protocol::HOP_BY_HOP, &[17, 1, 1, 4, 0, 0, 0, 0]), Err(Stopped::Malformed));
        // routing: used up is passed over, otherwise refused
        assert_eq!(walk(Protocol::ROUTING, &[17, 0, 0, 0, 0, 0, 0, 0]), udp(8));
        assert_eq!(walk(Protocol::ROUTING, &[17, 0, 0, 1, 0, 0, 0, 0]), Err(Stopped::Routing { pointer: 42 }));
        // an atomic fragment is whole, others are not
        assert_eq!(walk(Protocol::FRAGMENT, &[17, 0, 0, 0, 1, 2, 3, 4]), udp(8));
        assert_eq!(walk(Protocol::FRAGMENT, &[17, 0, 0, 1, 1, 2, 3, 4]), Err(Stopped::Fragment));
        assert_eq!(walk(Protocol::FRAGMENT, &[17, 0, 0, 8, 1, 2, 3, 4]), Err(Stopped::Fragment));
        assert_eq!(walk(Protocol::NO_NEXT_HEADER, &[]), Err(Stopped::NoNextHeader));
        let many = hop(60, pad).repeat(EXTENSION_HEADERS_MAX + 1);
        assert_eq!(walk(Protocol::DESTINATION_OPTIONS, &many), Err(Stopped::TooMany));
    }

    #[test]
    fn groups_of_an_address() {
        let group = solicited_node("2001:db8::1:abcd:ef01".parse().unwrap());
        assert_eq!(group, "ff02::1:ffcd:ef01".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0xcd, 0xef, 0x01]);
    }
}
