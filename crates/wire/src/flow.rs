//! Flows, and the groups that they fall into.
//!
//! A flow is a protocol, two addresses and two ports, named as its packets to us have them: `src` is the peer. A group is a
//! bucket of the flow's hash, and what has one owner among the threads. ICMP errors are of the flow that they quote, so that
//! they find the connection that they are about.

use crate::ethernet::{EtherType, Link};
use crate::ipv4::Ipv4;
use crate::ipv6::{self, Ipv6};
use crate::tcp::{self, Tcp};
use crate::{Protocol, be16, toeplitz};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The most groups.
pub const MOST_GROUPS: usize = 1 << 16;
/// Bytes of an ICMP error before the packet that it quotes (RFC 792, RFC 4443 section 3).
const ICMP_ERROR_BYTES: usize = 8;

/// The two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    V4 { src: u32, dst: u32 },
    V6 { src: u128, dst: u128 },
}

/// Whose packets belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    protocol: Protocol,
    ends: Ends,
    src_port: u16,
    dst_port: u16,
}

impl Flow {
    /// The flow of packets from `src` to `dst`; None when one is IPv4 and the other IPv6. A mapped address counts as IPv4.
    #[inline]
    pub fn new(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<Flow> {
        let ends = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => v4(src, dst),
            (IpAddr::V6(src), IpAddr::V6(dst)) => v6(src, dst),
            _ => return None,
        };
        Some(Flow { protocol, ends, src_port: src.port(), dst_port: dst.port() })
    }

    /// The flow of the packet in `frame`; None where there is none to speak of: other protocols than TCP and UDP, fragments,
    /// what is cut short. Form is judged no further: whoever takes the packet does.
    #[inline]
    pub fn of_frame(frame: &[u8]) -> Option<Flow> {
        let link = Link::parse(frame)?;
        let packet = &frame[link.bytes()..];
        match link.ether_type {
            EtherType::IPV4 => Flow::of_ipv4(packet),
            EtherType::IPV6 => Flow::of_ipv6(packet),
            _ => None,
        }
    }

    #[inline]
    fn of_ipv4(packet: &[u8]) -> Option<Flow> {
        let ip = Ipv4::parse_quoted(packet).ok()?;
        if ip.is_fragment() {
            return None;
        }
        match ip.protocol() {
            Protocol::ICMP => Flow::quoted_ipv4(ip.payload()),
            protocol => Flow::of_transport(protocol, v4(ip.src(), ip.dst()), ip.payload()),
        }
    }

    #[inline]
    fn of_ipv6(packet: &[u8]) -> Option<Flow> {
        let ip = Ipv6::parse_quoted(packet).ok()?;
        let (protocol, at) = match ip.next_header() {
            protocol @ (Protocol::TCP | Protocol::UDP) => (protocol, 0),
            first => {
                let upper = ipv6::walk(first, ip.payload()).ok()?;
                (upper.protocol, upper.at)
            }
        };
        match protocol {
            Protocol::ICMPV6 => Flow::quoted_ipv6(&ip.payload()[at..]),
            protocol => Flow::of_transport(protocol, v6(ip.src(), ip.dst()), &ip.payload()[at..]),
        }
    }

    #[inline]
    fn of_transport(protocol: Protocol, ends: Ends, transport: &[u8]) -> Option<Flow> {
        if !matches!(protocol, Protocol::TCP | Protocol::UDP) || transport.len() < 4 {
            return None;
        }
        Some(Flow { protocol, ends, src_port: be16(transport, 0), dst_port: be16(transport, 2) })
    }

    /// Of an error message (RFC 792: destination unreachable, source quench, redirect, time exceeded, parameter problem).
    #[cold]
    fn quoted_ipv4(icmp: &[u8]) -> Option<Flow> {
        matches!(icmp.first(), Some(3 | 4 | 5 | 11 | 12)).then_some(())?;
        let quoted = Ipv4::parse_quoted(icmp.get(ICMP_ERROR_BYTES..)?).ok()?;
        let ends = v4(quoted.src(), quoted.dst());
        (!quoted.is_later_fragment()).then_some(())?;
        Flow::of_transport(quoted.protocol(), ends, quoted.payload()).map(Flow::reversed)
    }

    /// Of an error message (RFC 4443 section 2.1: types below 128).
    #[cold]
    fn quoted_ipv6(icmp: &[u8]) -> Option<Flow> {
        matches!(icmp.first(), Some(0..=127)).then_some(())?;
        let quoted = Ipv6::parse_quoted(icmp.get(ICMP_ERROR_BYTES..)?).ok()?;
        let upper = ipv6::walk(quoted.next_header(), quoted.payload()).ok()?;
        let ends = v6(quoted.src(), quoted.dst());
        Flow::of_transport(upper.protocol, ends, &quoted.payload()[upper.at..]).map(Flow::reversed)
    }

    /// The same flow from the other side.
    #[must_use]
    pub fn reversed(self) -> Flow {
        let ends = match self.ends {
            Ends::V4 { src, dst } => Ends::V4 { src: dst, dst: src },
            Ends::V6 { src, dst } => Ends::V6 { src: dst, dst: src },
        };
        Flow { ends, src_port: self.dst_port, dst_port: self.src_port, ..self }
    }

    /// What it is a flow of.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Who sends to us.
    pub fn src(&self) -> SocketAddr {
        match self.ends {
            Ends::V4 { src, .. } => (Ipv4Addr::from_bits(src), self.src_port).into(),
            Ends::V6 { src, .. } => (Ipv6Addr::from_bits(src), self.src_port).into(),
        }
    }

    /// Our end.
    pub fn dst(&self) -> SocketAddr {
        match self.ends {
            Ends::V4 { dst, .. } => (Ipv4Addr::from_bits(dst), self.dst_port).into(),
            Ends::V6 { dst, .. } => (Ipv6Addr::from_bits(dst), self.dst_port).into(),
        }
    }
}

#[inline]
fn v4(src: Ipv4Addr, dst: Ipv4Addr) -> Ends {
    Ends::V4 { src: src.to_bits(), dst: dst.to_bits() }
}

#[inline]
fn v6(src: Ipv6Addr, dst: Ipv6Addr) -> Ends {
    Ends::V6 { src: src.to_bits(), dst: dst.to_bits() }
}

/// Whether the packet in `frame` is itself of its [`Flow`], and in a form that NICs agree on: TCP or UDP over IPv4, or over IPv6 without
/// extension headers. An ICMP error is not: the flow is what it quotes, and a NIC hashes the error's own addresses.
pub fn is_plain(frame: &[u8]) -> bool {
    matches!(protocol_of(frame), Some(Protocol::TCP | Protocol::UDP))
}

/// Whether that packet is a whole UDP datagram.
pub fn is_datagram(frame: &[u8]) -> bool {
    protocol_of(frame) == Some(Protocol::UDP)
}

/// What a packet carries that is no fragment, and over IPv6 has no extension headers.
fn protocol_of(frame: &[u8]) -> Option<Protocol> {
    let link = Link::parse(frame)?;
    let packet = &frame[link.bytes()..];
    match link.ether_type {
        EtherType::IPV4 => Ipv4::parse_quoted(packet).ok().filter(|ip| !ip.is_fragment()).map(|ip| ip.protocol()),
        EtherType::IPV6 => Ipv6::parse_quoted(packet).ok().map(|ip| ip.next_header()),
        _ => None,
    }
}

/// Whether the packet in `frame` is a TCP segment that acknowledges and does nothing else, which may overtake what was sent before it:
/// it tells no less than those, and moves nothing that they have still to move.
pub fn is_pure_ack(frame: &[u8]) -> bool {
    let Some(link) = Link::parse(frame) else { return false };
    let packet = &frame[link.bytes()..];
    let (protocol, segment) = match link.ether_type {
        EtherType::IPV4 => match Ipv4::parse(packet) {
            Ok(ip) if !ip.is_fragment() => (ip.protocol(), ip.payload()),
            _ => return false,
        },
        EtherType::IPV6 => match Ipv6::parse(packet) {
            Ok(ip) => (ip.next_header(), ip.payload()),
            Err(_) => return false,
        },
        _ => return false,
    };
    let others = |tcp: &Tcp<'_>| tcp.flags().only(tcp::Flags::from_bits(!tcp::Flags::ECE.bits()));
    protocol == Protocol::TCP
        && Tcp::parse(segment).is_ok_and(|tcp| others(&tcp) == tcp::Flags::ACK && tcp.payload().is_empty())
}

/// Of which packets a NIC hashes the ports; of the others, addresses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// TCP over IPv4
    pub tcp4: bool,
    /// UDP over IPv4, off in many NICs at first, since fragments have none
    pub udp4: bool,
    /// TCP over IPv6
    pub tcp6: bool,
    /// UDP over IPv6
    pub udp6: bool,
}

impl Ports {
    /// All.
    pub const ALL: Ports = Ports { tcp4: true, udp4: true, tcp6: true, udp6: true };

    #[inline]
    fn count(self, flow: &Flow) -> bool {
        match (flow.ends, flow.protocol) {
            (Ends::V4 { .. }, Protocol::UDP) => self.udp4,
            (Ends::V4 { .. }, _) => self.tcp4,
            (Ends::V6 { .. }, Protocol::UDP) => self.udp6,
            (Ends::V6 { .. }, _) => self.tcp6,
        }
    }
}

/// How flows fall into groups.
#[derive(Clone, Debug)]
pub struct Groups {
    hash: Hash,
    mask: u32,
}

#[derive(Clone, Debug)]
enum Hash {
    Keyed([u64; 2]),
    Toeplitz(Arc<toeplitz::Table>, Ports),
}

impl Groups {
    /// `count` groups by a hash under a secret, so that nobody can aim at one.
    ///
    /// # Panics
    /// When `count` is not a power of two up to [`MOST_GROUPS`].
    pub fn keyed(count: usize, secret: [u64; 2]) -> Groups {
        Groups::new(count, Hash::Keyed(secret))
    }

    /// `count` groups by the hash of a NIC: all flows of a group are of one entry of its table, if that has a power of two of
    /// entries and no more than there are groups.
    ///
    /// # Panics
    /// As [`Groups::keyed`].
    pub fn toeplitz(count: usize, key: &toeplitz::Key, ports: Ports) -> Groups {
        Groups::new(count, Hash::Toeplitz(Arc::new(toeplitz::Table::new(key)), ports))
    }

    fn new(count: usize, hash: Hash) -> Groups {
        assert!(count.is_power_of_two() && count <= MOST_GROUPS, "{count} flow groups");
        Groups { hash, mask: count as u32 - 1 }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.mask as usize + 1
    }

    /// The group of a flow: its hash modulo their number.
    #[inline]
    pub fn of(&self, flow: &Flow) -> u16 {
        let hash = match &self.hash {
            Hash::Keyed(secret) => keyed(*secret, flow),
            Hash::Toeplitz(table, ports) => {
                let ports = ports.count(flow).then_some((flow.src_port, flow.dst_port));
                match flow.ends {
                    Ends::V4 { src, dst } => table.ipv4(src.to_be_bytes(), dst.to_be_bytes(), ports),
                    Ends::V6 { src, dst } => table.ipv6(src.to_be_bytes(), dst.to_be_bytes(), ports),
                }
            }
        };
        (hash & self.mask) as u16
    }
}

/// Products of which both halves count, as in folded-multiply hashes: each input bit, under the secret, reaches every bit.
#[inline]
fn keyed([a, b]: [u64; 2], flow: &Flow) -> u32 {
    let ports = u64::from(flow.src_port) << 16 | u64::from(flow.dst_port);
    let mixed = match flow.ends {
        Ends::V4 { src, dst } => fold(a ^ (u64::from(src) << 32 | u64::from(dst)), b ^ ports),
        Ends::V6 { src, dst } => {
            let from = fold(a ^ src as u64, b ^ (src >> 64) as u64);
            let to = fold(b ^ dst as u64, a ^ (dst >> 64) as u64);
            fold(from ^ a, to ^ b ^ ports)
        }
    };
    // once more, so that two flows whose first products agree in the low bits do not share a group for it
    (fold(mixed ^ b, a | 1) >> 16) as u32
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
