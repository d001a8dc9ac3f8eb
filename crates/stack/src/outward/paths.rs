//! The station that a peer's datagram came from, remembered where the service left it unanswered: a later answer goes there, as one at
//! once would have.
//!
//! That is a guess: the station may have gone since, and whoever can send a frame can name himself. So where ARP is ours a neighbour that has
//! answered goes before it, and it counts for [`RECENT`] only. At addresses that the kernel has too nothing else is known, and the last one
//! stands until there is another.
//!
//! A table of one entry a bucket: who comes later takes the place. Somebody who floods us takes places of others with it, and then their
//! late answers are lost, as datagrams may be.

use crate::tcp::Hop;
use base::Instant;
use std::net::IpAddr;
use std::time::Duration;

const ENTRIES: usize = 1024;
/// So long a station is taken for where its peer is, if somebody else could be asked: as long as a neighbour's answer is believed.
const RECENT: Duration = super::neighbours::FRESH;

#[derive(Clone, Copy, Debug)]
struct Path {
    peer: IpAddr,
    hop: Hop,
    noted_at: Instant,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Paths {
    entries: Box<[Option<Path>]>,
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
    pub(crate) fn note(&mut self, now: Instant, peer: IpAddr, hop: Hop) {
        self.entries[Paths::place(peer)] = Some(Path { peer, hop, noted_at: now });
    }

    fn entry(&self, peer: IpAddr) -> Option<&Path> {
        self.entries[Paths::place(peer)].as_ref().filter(|path| path.peer == peer)
    }

    /// Where the peer's last datagram came from.
    pub(crate) fn find(&self, peer: IpAddr) -> Option<Hop> {
        self.entry(peer).map(|path| path.hop)
    }

    /// The same, if that was not long ago.
    pub(crate) fn find_recent(&self, now: Instant, peer: IpAddr) -> Option<Hop> {
        self.entry(peer).filter(|path| now - path.noted_at < RECENT).map(|path| path.hop)
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
            paths.note(Instant::ZERO, *peer, hop(n));
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

    #[test]
    fn a_station_is_recent_for_as_long_as_an_answer_is_believed() {
        let mut paths = Paths::new();
        let (peer, hop) = (IpAddr::from([192, 0, 2, 7]), Hop::new([2; 6], None));
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        paths.note(at(5), peer, hop);
        assert_eq!(
            [at(5), at(30_004), at(30_005)].map(|now| paths.find_recent(now, peer)),
            [Some(hop), Some(hop), None]
        );
        assert_eq!(paths.find(peer), Some(hop));
        paths.note(at(40_000), peer, hop);
        assert_eq!(paths.find_recent(at(69_999), peer), Some(hop));
    }
}
