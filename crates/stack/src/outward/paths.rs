//! The station that a peer's datagram came from, remembered where the service left it unanswered: a later answer goes there, as one at
//! once would have.
//!
//! A table of one entry a bucket: who comes later takes the place. Somebody who floods us takes places of others with it, and then their
//! late answers are lost, as datagrams may be.

use crate::tcp::Hop;
use std::net::IpAddr;

const ENTRIES: usize = 1024;

/// The table.
#[derive(Debug)]
pub(crate) struct Paths {
    entries: Box<[Option<(IpAddr, Hop)>]>,
}

impl Paths {
    pub(crate) fn new() -> Paths {
        Paths { entries: vec![None; ENTRIES].into() }
    }

    #[inline]
    fn place(peer: IpAddr) -> usize {
        let bits = match peer {
            IpAddr::V4(addr) => u64::from(addr.to_bits()),
            IpAddr::V6(addr) => (addr.to_bits() >> 64) as u64 ^ addr.to_bits() as u64,
        };
        (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
    }

    #[inline]
    pub(crate) fn note(&mut self, peer: IpAddr, hop: Hop) {
        self.entries[Paths::place(peer)] = Some((peer, hop));
    }

    pub(crate) fn find(&self, peer: IpAddr) -> Option<Hop> {
        self.entries[Paths::place(peer)].filter(|(noted, _)| *noted == peer).map(|(_, hop)| hop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_never_taken_for_another() {
        let mut paths = Paths::new();
        let peers: Vec<IpAddr> = (0..5000u32).map(|n| IpAddr::from((0x0a00_0000 + n * 77).to_be_bytes())).collect();
        let hop = |n: usize| Hop::new([2, 0, 0, 0, (n >> 8) as u8, n as u8], None);
        for (n, peer) in peers.iter().enumerate() {
            paths.note(*peer, hop(n));
            assert_eq!(paths.find(*peer), Some(hop(n)));
        }
        let found = peers.iter().enumerate().filter_map(|(n, peer)| Some((n, paths.find(*peer)?)));
        let (mut some, mut wrong) = (0, 0);
        found.for_each(|(n, found)| {
            some += 1;
            wrong += usize::from(found != hop(n));
        });
        assert!(some > ENTRIES / 2 && wrong == 0, "{some} found, {wrong} wrong");
    }
}
