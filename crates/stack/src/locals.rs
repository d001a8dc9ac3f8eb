//! Which addresses and ports are ours: the one table that every packet asks.
//!
//! A filter of 4096 bits answers "certainly not ours" with one load, which is all that a source address needs; sorted arrays
//! answer the rest, the last answer is kept, and nothing grows while packets flow.

use app::Listener;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const FILTER_WORDS: usize = 64;

/// An address as one number, IPv4 in its mapped form; the wire never carries mapped addresses past the stack's checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    #[inline]
    pub(crate) const fn v4(addr: Ipv4Addr) -> Key {
        Key(0xffff << 32 | addr.to_bits() as u128)
    }

    #[inline]
    pub(crate) const fn v6(addr: Ipv6Addr) -> Key {
        Key(addr.to_bits())
    }

    pub(crate) fn of(addr: IpAddr) -> Key {
        match addr.to_canonical() {
            IpAddr::V4(addr) => Key::v4(addr),
            IpAddr::V6(addr) => Key::v6(addr),
        }
    }

    /// Its bit in the filter.
    #[inline]
    fn bit(self) -> (usize, u64) {
        let mixed = ((self.0 >> 64) as u64 ^ self.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        (mixed as usize >> 6, 1 << (mixed & 63))
    }
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// own, in use; its place in the own addresses
    Own(u16),
    /// own, but not in use: looked for another holder, or held by one
    NotReady(u16),
    /// a listener names it; the kernel has it too
    Shared,
    /// the broadcast address of an own address's prefix
    Broadcast,
}

/// Where a datagram or a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<T = Listener> {
    /// to this listener
    To(T),
    /// the address is ours, the port is nobody's
    NoListener,
    /// the address is not ours
    NotOurs,
    /// the address is not ours to use now
    NotReady,
    /// a broadcast
    Broadcast,
}

/// The listeners of one transport.
#[derive(Debug)]
struct Ports<T> {
    /// sorted by address and port
    exact: Vec<(Key, u16, T)>,
    /// by IPv6 or not, and port, for any local address; sorted
    any: Vec<(bool, u16, T)>,
    last: Option<(Key, u16, Route<T>)>,
}

impl<T: Copy> Ports<T> {
    /// First mention counts.
    fn new(listeners: impl Iterator<Item = (SocketAddr, T)>) -> Ports<T> {
        let mut ports = Ports { exact: Vec::new(), any: Vec::new(), last: None };
        for (local, value) in listeners {
            let (addr, port) = (local.ip().to_canonical(), local.port());
            if addr.is_unspecified() {
                ports.any.push((addr.is_ipv6(), port, value));
            } else {
                ports.exact.push((Key::of(addr), port, value));
            }
        }
        // stable sorts, so that the first mention stays first and is the one kept
        ports.exact.sort_by_key(|(key, port, _)| (*key, *port));
        ports.exact.dedup_by_key(|(key, port, _)| (*key, *port));
        ports.any.sort_by_key(|(v6, port, _)| (*v6, *port));
        ports.any.dedup_by_key(|(v6, port, _)| (*v6, *port));
        ports
    }

    fn find(&self, key: Key, v6: bool, port: u16) -> Option<T> {
        if let Ok(at) = self.exact.binary_search_by_key(&(key, port), |(key, port, _)| (*key, *port)) {
            return Some(self.exact[at].2);
        }
        let at = self.any.binary_search_by_key(&(v6, port), |(v6, port, _)| (*v6, *port)).ok()?;
        Some(self.any[at].2)
    }

    #[inline]
    fn recall(&self, key: Key, port: u16) -> Option<Route<T>> {
        match &self.last {
            Some((last_key, last_port, route)) if *last_key == key && *last_port == port => Some(*route),
            _ => None,
        }
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Locals {
    filter: [u64; FILTER_WORDS],
    /// sorted by address
    addresses: Vec<(Key, Local)>,
    udp: Ports<Listener>,
    /// listeners with the window that they give
    tcp: Ports<(Listener, u32)>,
    steered: bool,
}

impl Locals {
    /// The table of these addresses (first mention counts) and listeners (first mention counts).
    pub(crate) fn new(
        addresses: impl Iterator<Item = (Key, Local)>,
        udp: &[crate::UdpListener],
        tcp: &[crate::TcpListener],
        steered: bool,
    ) -> Locals {
        let mut locals = Locals {
            filter: [0; FILTER_WORDS],
            addresses: addresses.collect(),
            udp: Ports::new(udp.iter().map(|entry| (entry.local, entry.listener))),
            tcp: Ports::new(tcp.iter().map(|entry| (entry.local, (entry.listener, entry.window_bytes)))),
            steered,
        };
        let named = locals.udp.exact.iter().map(|(key, ..)| *key).chain(locals.tcp.exact.iter().map(|(key, ..)| *key));
        locals.addresses.extend(named.map(|key| (key, Local::Shared)));
        // a stable sort, so that the first mention stays first and is the one kept
        locals.addresses.sort_by_key(|(key, _)| *key);
        locals.addresses.dedup_by_key(|(key, _)| *key);
        for (key, _) in &locals.addresses {
            let (word, bit) = key.bit();
            locals.filter[word] |= bit;
        }
        locals
    }

    /// What is known of an address.
    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<Local> {
        let (word, bit) = key.bit();
        if self.filter[word] & bit == 0 {
            return None;
        }
        let at = self.addresses.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.addresses[at].1)
    }

    /// Whether something of ours may have left from an address of which this is known, so that an ICMP error to it may be about that. Where
    /// the port passes only what is for local addresses, that goes for those that nobody told us of: a listener at any address answers from
    /// each of them.
    #[inline]
    pub(crate) fn may_send_from(&self, local: Option<Local>) -> bool {
        matches!(local, Some(Local::Own(_) | Local::Shared)) || local.is_none() && self.steered
    }

    /// Changes what is known of an own address.
    pub(crate) fn set(&mut self, key: Key, local: Local) {
        if let Ok(at) = self.addresses.binary_search_by_key(&key, |(key, _)| *key) {
            self.addresses[at].1 = local;
        }
        (self.udp.last, self.tcp.last) = (None, None);
    }

    /// Where a datagram to this unicast address and port goes.
    #[inline]
    pub(crate) fn route(&mut self, key: Key, v6: bool, port: u16) -> Route {
        if let Some(route) = self.udp.recall(key, port) {
            return route;
        }
        let route = self.look_up(&self.udp, key, v6, port);
        self.udp.last = Some((key, port, route));
        route
    }

    /// Where a segment to this unicast address and port goes.
    #[inline]
    pub(crate) fn route_tcp(&mut self, key: Key, v6: bool, port: u16) -> Route<(Listener, u32)> {
        if let Some(route) = self.tcp.recall(key, port) {
            return route;
        }
        let route = self.look_up(&self.tcp, key, v6, port);
        self.tcp.last = Some((key, port, route));
        route
    }

    fn look_up<T: Copy>(&self, ports: &Ports<T>, key: Key, v6: bool, port: u16) -> Route<T> {
        match self.find(key) {
            Some(Local::NotReady(_)) => return Route::NotReady,
            Some(Local::Broadcast) => return Route::Broadcast,
            None if !self.steered => return Route::NotOurs,
            _ => {}
        }
        match ports.find(key, v6, port) {
            Some(value) => Route::To(value),
            // an address that nobody told us of: only a listener makes it ours
            None if self.find(key).is_none() => Route::NotOurs,
            None => Route::NoListener,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UdpListener;

    fn key(addr: &str) -> Key {
        Key::of(addr.parse().unwrap())
    }

    fn table(steered: bool, own: &[(&str, Local)], listeners: &[&str]) -> Locals {
        let listeners: Vec<UdpListener> = listeners
            .iter()
            .enumerate()
            .map(|(n, local)| UdpListener { listener: Listener(n as u16), local: local.parse().unwrap() })
            .collect();
        Locals::new(own.iter().map(|(addr, local)| (key(addr), *local)), &listeners, &[], steered)
    }

    #[test]
    fn listeners_are_found_by_address_then_by_family() {
        let own = [("192.0.2.1", Local::Own(0)), ("192.0.2.2", Local::NotReady(1)), ("192.0.2.255", Local::Broadcast)];
        let listeners = ["192.0.2.1:53", "0.0.0.0:53", "[::]:53", "[2001:db8::1]:5353", "192.0.2.1:53"];
        for steered in [true, false] {
            let mut locals = table(steered, &own, &listeners);
            let mut route = |addr: &str, port| locals.route(key(addr), addr.contains(':'), port);
            for _ in 0..2 {
                assert_eq!(route("192.0.2.1", 53), Route::To(Listener(0)));
                assert_eq!(route("192.0.2.1", 54), Route::NoListener);
                assert_eq!(route("192.0.2.2", 53), Route::NotReady);
                assert_eq!(route("192.0.2.255", 53), Route::Broadcast);
                let elsewhere = if steered { Route::To(Listener(1)) } else { Route::NotOurs };
                assert_eq!(route("198.51.100.1", 53), elsewhere);
                assert_eq!(route("198.51.100.1", 54), Route::NotOurs);
                assert_eq!(route("2001:db8::1", 5353), Route::To(Listener(3)));
                assert_eq!(route("2001:db8::1", 53), Route::To(Listener(2)));
            }
        }
    }

    #[test]
    fn a_change_reaches_the_next_packet() {
        let mut locals = table(false, &[("192.0.2.1", Local::NotReady(0))], &["0.0.0.0:53"]);
        assert_eq!(locals.route(key("192.0.2.1"), false, 53), Route::NotReady);
        locals.set(key("192.0.2.1"), Local::Own(0));
        assert_eq!(locals.route(key("192.0.2.1"), false, 53), Route::To(Listener(0)));
    }

    #[test]
    fn hundreds_of_addresses_are_all_found() {
        let listeners: Vec<String> = (0..700).map(|n| format!("10.1.{}.{}:53", n / 256, n % 256)).collect();
        let listeners: Vec<&str> = listeners.iter().map(String::as_str).collect();
        let mut locals = table(true, &[], &listeners);
        for n in 0..700u16 {
            let addr = IpAddr::from([10, 1, (n / 256) as u8, (n % 256) as u8]);
            assert_eq!(locals.route(Key::of(addr), false, 53), Route::To(Listener(n)));
            assert_eq!(locals.find(Key::of(addr)), Some(Local::Shared));
        }
        let strangers = (0..10_000u32).filter(|n| locals.find(Key::v4(Ipv4Addr::from(0xcb00_0000 + n))).is_some());
        assert_eq!(strangers.count(), 0);
    }
}
