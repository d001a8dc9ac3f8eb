//! Where connections come from: own addresses and their ports, in turn, so that a port is used again as late as possible.

use anyhow::{Context as _, Result, ensure};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The most addresses: what the steering program's table holds.
const ADDRESSES_MOST: u128 = 256;
/// Ports begin behind the system's (RFC 6335 section 6); the addresses are nobody else's.
const PORT_FIRST: u16 = 1024;
const PORTS: u64 = 65_536 - PORT_FIRST as u64;

/// An address, or a range of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    addresses: Vec<IpAddr>,
    used: u64,
}

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Sources, String> {
        parse(text).map_err(|error| format!("{error:#}"))
    }
}

fn parse(text: &str) -> Result<Sources> {
    let address = |text: &str| text.parse::<IpAddr>().with_context(|| format!("'{text}' is no address"));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (address(first)?, address(last)?);
    ensure!(first.is_ipv4() == last.is_ipv4(), "both ends of a range are of one family");
    let (from, to) = (number(first), number(last));
    ensure!(from <= to, "a range's first address comes first");
    ensure!(to - from < ADDRESSES_MOST, "{ADDRESSES_MOST} addresses are the most");
    let addresses = (from..=to).map(|number| match first {
        IpAddr::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
    });
    Ok(Sources { addresses: addresses.collect(), used: 0 })
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Sources {
    /// The addresses.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Begins elsewhere: the server may still know the first ports of a run before.
    pub(crate) fn skip(&mut self, random: u64) {
        self.used = random % (PORTS * self.addresses.len() as u64);
    }

    /// The next one with a port.
    #[inline]
    pub(super) fn next(&mut self) -> SocketAddr {
        let addresses = self.addresses.len() as u64;
        let (address, port) = (self.used % addresses, self.used / addresses % PORTS);
        self.used += 1;
        SocketAddr::new(self.addresses[address as usize], PORT_FIRST + port as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ranges_are_inclusive_and_bounded() {
        let count = |text: &str| text.parse::<Sources>().map(|sources| sources.addresses().len());
        assert_eq!(count("198.18.0.3"), Ok(1));
        assert_eq!(count("198.18.0.3-198.18.0.10"), Ok(8));
        assert_eq!(count("2001:db8::ff-2001:db8::100"), Ok(2));
        assert_eq!(count("198.18.0.0-198.18.0.255"), Ok(256));
        for wrong in
            ["", "x", "198.18.0.3-", "198.18.0.3-198.18.0.2", "198.18.0.3-2001:db8::1", "198.18.0.0-198.18.1.0"]
        {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_port_comes_twice_before_all_have_come() {
        let mut sources: Sources = "198.18.0.3-198.18.0.4".parse().unwrap();
        let seen: HashSet<SocketAddr> = (0..2 * PORTS).map(|_| sources.next()).collect();
        assert_eq!(seen.len() as u64, 2 * PORTS);
        assert!(
            seen.contains(&"198.18.0.3:1024".parse().unwrap()) && seen.contains(&"198.18.0.4:65535".parse().unwrap())
        );
        assert_eq!(sources.next(), "198.18.0.3:1024".parse().unwrap());
        sources.skip(4 * PORTS + 3);
        assert_eq!(sources.next(), "198.18.0.4:1025".parse().unwrap());
    }
}
