//! What names a connection: two addresses and two ports. IPv4 takes 12 bytes and stays so in every table.

use base::sip::{Key, Tail};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A connection over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple4 {
    /// our address
    pub local: Ipv4Addr,
    /// the peer's
    pub remote: Ipv4Addr,
    /// our port
    pub local_port: u16,
    /// the peer's
    pub remote_port: u16,
}

/// A connection over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple6 {
    /// our address
    pub local: Ipv6Addr,
    /// the peer's
    pub remote: Ipv6Addr,
    /// our port
    pub local_port: u16,
    /// the peer's
    pub remote_port: u16,
}

/// A connection over either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tuple {
    /// over IPv4
    V4(Tuple4),
    /// over IPv6
    V6(Tuple6),
}

const _: () = assert!(size_of::<Tuple4>() == 12 && size_of::<Tuple6>() == 36);

impl Tuple4 {
    /// SipHash-1-3, for tables.
    #[inline(always)]
    pub fn hash13(&self, key: Key) -> u64 {
        let (words, ports) = self.words();
        key.hash13(&words, Tail::new(1, u64::from(ports), 4))
    }

    #[inline(always)]
    fn words(&self) -> ([u64; 1], u32) {
        let addresses = u64::from(self.local.to_bits()) << 32 | u64::from(self.remote.to_bits());
        ([addresses], ports(self.local_port, self.remote_port))
    }
}

impl Tuple6 {
    /// SipHash-1-3, for tables.
    #[inline(always)]
    pub fn hash13(&self, key: Key) -> u64 {
        let (words, ports) = self.words();
        key.hash13(&words, Tail::new(4, u64::from(ports), 4))
    }

    #[inline(always)]
    fn words(&self) -> ([u64; 4], u32) {
        let [local, remote] = [self.local, self.remote].map(Ipv6Addr::to_bits);
        let words = [(local >> 64) as u64, local as u64, (remote >> 64) as u64, remote as u64];
        (words, ports(self.local_port, self.remote_port))
    }
}

impl Tuple {
    /// The connection between two sockets of one family; a mapped IPv4 address counts as IPv4. `None` when the families
    /// differ.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Option<Tuple> {
        let (local_port, remote_port) = (local.port(), remote.port());
        match (local.ip().to_canonical(), remote.ip().to_canonical()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                Some(Tuple::V4(Tuple4 { local, remote, local_port, remote_port }))
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                Some(Tuple::V6(Tuple6 { local, remote, local_port, remote_port }))
            }
            _ => None,
        }
    }

    /// Our side.
    pub fn local(&self) -> SocketAddr {
        match self {
            Tuple::V4(tuple) => (tuple.local, tuple.local_port).into(),
            Tuple::V6(tuple) => (tuple.local, tuple.local_port).into(),
        }
    }

    /// The peer's side.
    pub fn remote(&self) -> SocketAddr {
        match self {
            Tuple::V4(tuple) => (tuple.remote, tuple.remote_port).into(),
            Tuple::V6(tuple) => (tuple.remote, tuple.remote_port).into(),
        }
    }

    /// Our port.
    #[inline]
    pub fn local_port(&self) -> u16 {
        match self {
            Tuple::V4(tuple) => tuple.local_port,
            Tuple::V6(tuple) => tuple.local_port,
        }
    }

    /// The peer's port.
    #[inline]
    pub fn remote_port(&self) -> u16 {
        match self {
            Tuple::V4(tuple) => tuple.remote_port,
            Tuple::V6(tuple) => tuple.remote_port,
        }
    }

    /// SipHash-1-3, for tables.
    #[inline(always)]
    pub fn hash13(&self, key: Key) -> u64 {
        match self {
            Tuple::V4(tuple) => tuple.hash13(key),
            Tuple::V6(tuple) => tuple.hash13(key),
        }
    }

    /// SipHash-2-4 of the tuple and of one word more, for what strangers see.
    #[inline]
    pub fn hash24(&self, key: Key, more: u64) -> u64 {
        match self {
            Tuple::V4(tuple) => {
                let ([addresses], ports) = tuple.words();
                key.hash24(&[more, addresses], Tail::new(2, u64::from(ports), 4))
            }
            Tuple::V6(tuple) => {
                let ([a, b, c, d], ports) = tuple.words();
                key.hash24(&[more, a, b, c, d], Tail::new(5, u64::from(ports), 4))
            }
        }
    }
}

#[inline(always)]
fn ports(local: u16, remote: u16) -> u32 {
    u32::from(local) << 16 | u32::from(remote)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn tuple(local: &str, remote: &str) -> Tuple {
        Tuple::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap()
    }

    #[test]
    fn every_part_changes_every_hash() {
        let key = Key::new(3, 4);
        let tuples = [
            tuple("192.0.2.1:80", "192.0.2.2:4000"),
            tuple("192.0.2.3:80", "192.0.2.2:4000"),
            tuple("192.0.2.1:80", "192.0.2.3:4000"),
            tuple("192.0.2.2:80", "192.0.2.1:4000"),
            tuple("192.0.2.1:81", "192.0.2.2:4000"),
            tuple("192.0.2.1:80", "192.0.2.2:4001"),
            tuple("192.0.2.1:4000", "192.0.2.2:80"),
            tuple("[2001:db8::1]:80", "[2001:db8::2]:4000"),
            tuple("[2001:db8:1::1]:80", "[2001:db8::2]:4000"),
            tuple("[2001:db8::1]:80", "[2001:db8:1::2]:4000"),
            tuple("[2001:db8::1]:80", "[2001:db8::3]:4000"),
            tuple("[2001:db8::2]:80", "[2001:db8::1]:4000"),
            tuple("[2001:db8::1]:80", "[2001:db8::2]:4001"),
        ];
        let hashes: BTreeSet<u64> =
            tuples.iter().flat_map(|tuple| [tuple.hash13(key), tuple.hash24(key, 0), tuple.hash24(key, 1)]).collect();
        assert_eq!(hashes.len(), 3 * tuples.len());
    }

    #[test]
    fn sides_come_back_and_mapped_addresses_are_ipv4() {
        let tuple = tuple("[::ffff:192.0.2.1]:80", "192.0.2.2:4000");
        assert_eq!(tuple.local(), "192.0.2.1:80".parse().unwrap());
        assert_eq!(tuple.remote(), "192.0.2.2:4000".parse().unwrap());
        assert_eq!(Tuple::new("192.0.2.1:80".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap()), None);
    }
}
