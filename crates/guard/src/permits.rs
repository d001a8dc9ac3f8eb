//! Whom an application may begin something with, as its operator permits it.
//!
//! The list stands in the receive file, so that the application's half answers a call at once; the trusted half has its own and judges
//! by that.

use crate::layout::PERMITS;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;

/// Peers that an application may connect to, and send datagrams to that answer nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    network: u128,
    /// how many leading bits of an address as IPv6 count
    bits: u8,
    /// None: every port
    port: Option<u16>,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
    .to_bits()
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

impl Permit {
    /// The addresses whose first `bits` are those of `network`, at one port or at all of them.
    pub fn new(network: IpAddr, bits: u8, port: Option<u16>) -> Permit {
        let bits = if network.is_ipv4() { 96 + bits.min(32) } else { bits.min(128) };
        Permit { network: number(network) & mask(bits), bits, port }
    }

    /// Whether this is one of them. An IPv4 address is in no prefix of IPv6 addresses.
    #[inline]
    pub fn allows(&self, peer: SocketAddr) -> bool {
        let is_v4 = self.bits >= 96 && Ipv6Addr::from_bits(self.network).to_ipv4_mapped().is_some();
        peer.is_ipv4() == is_v4
            && number(peer.ip()) & mask(self.bits) == self.network
            && self.port.is_none_or(|port| port == peer.port())
    }

    /// As three words: the address's halves, the high one first; the bits and above them, from bit 16 on, the port, 0 for every one.
    pub(crate) fn encode(&self) -> [u64; 3] {
        let rest = u64::from(self.bits) | u64::from(self.port.unwrap_or(0)) << 16;
        [(self.network >> 64) as u64, self.network as u64, rest]
    }

    pub(crate) fn decode([high, low, rest]: [u64; 3]) -> Permit {
        let port = (rest >> 16) as u16;
        Permit {
            network: u128::from(high) << 64 | u128::from(low),
            bits: (rest as u8).min(128),
            port: (port != 0).then_some(port),
        }
    }
}

/// What an application is granted on each of its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// most connections, of those that come and those that it asks for
    pub connections: u32,
    /// the listeners whose connections and datagrams it is told of, and that it sends datagrams from
    pub listeners: Range<u16>,
    /// whom it may begin something with; nobody if there are none
    pub permits: Vec<Permit>,
}

impl Grant {
    /// One that takes connections, and asks for none.
    pub fn new(connections: u32, listeners: Range<u16>) -> Grant {
        Grant { connections, listeners, permits: Vec::new() }
    }

    /// The same, with peers that it may begin something with: at most [`PERMITS`].
    ///
    /// # Panics
    /// When there are more.
    #[must_use]
    pub fn permitting(self, permits: Vec<Permit>) -> Grant {
        assert!(permits.len() <= PERMITS, "{} permits", permits.len());
        Grant { permits, ..self }
    }

    /// Places for connections that it asks for.
    pub(crate) fn asked(&self) -> u32 {
        if self.permits.is_empty() { 0 } else { self.connections }
    }

    pub(crate) fn allows(&self, peer: SocketAddr) -> bool {
        self.permits.iter().any(|permit| permit.allows(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_permit_is_a_prefix_of_its_family_and_a_port() {
        let permit = |ip: &str, bits, port| Permit::new(ip.parse().unwrap(), bits, port);
        for (permit, inside, outside) in [
            (permit("192.0.2.0", 24, Some(80)), "192.0.2.255:80", "192.0.2.1:81"),
            (permit("192.0.2.7", 32, None), "192.0.2.7:1", "192.0.2.6:1"),
            (permit("192.0.2.0", 25, None), "192.0.2.127:9", "192.0.2.128:9"),
            (permit("0.0.0.0", 0, None), "203.0.113.9:9", "[2001:db8::1]:9"),
            (permit("::", 0, Some(53)), "[2001:db8::1]:53", "203.0.113.9:53"),
            (permit("2001:db8::", 32, Some(53)), "[2001:db8:ffff::1]:53", "[2001:db9::1]:53"),
        ] {
            assert!(permit.allows(at(inside)), "{permit:?} {inside}");
            assert!(!permit.allows(at(outside)), "{permit:?} {outside}");
        }
        assert!(!Grant::new(5, 0..1).allows(at("127.0.0.1:80")));
        assert_eq!(Grant::new(5, 0..1).asked(), 0);
    }

    proptest! {
        #[test]
        fn permits_come_back(v4 in any::<u32>(), v6 in any::<u128>(), bits in 0u8..=128, port in prop::option::of(1u16..)) {
            for permit in [Permit::new(IpAddr::V4(v4.into()), bits, port), Permit::new(IpAddr::V6(v6.into()), bits, port)] {
                prop_assert_eq!(Permit::decode(permit.encode()), permit);
            }
        }

        #[test]
        fn anything_decodes(words in any::<[u64; 3]>(), ip in any::<u32>(), port in any::<u16>()) {
            Permit::decode(words).allows((std::net::Ipv4Addr::from(ip), port).into());
        }
    }
}
