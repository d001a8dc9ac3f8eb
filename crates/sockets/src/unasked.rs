//! Datagrams that the service sends by itself: kept over the events of a cycle, sent at its end, over the sockets that questions come to.

use crate::counters::Counters;
use crate::sys::{Batch, Source};
use crate::udp::Udp;
use app::{Addresses, CallError, Listener};
use std::net::SocketAddr;

/// Datagrams that one cycle sends at most, and their bytes.
const MOST: usize = 1024;
const MOST_BYTES: usize = 1 << 20;

/// A thread's socket for datagrams.
#[derive(Clone, Copy, Debug)]
struct Endpoint {
    listener: Listener,
    local: SocketAddr,
}

/// One datagram.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// the socket's place among the thread's
    socket: usize,
    peer: SocketAddr,
    source: Option<Source>,
    bytes: usize,
}

/// Those of a cycle.
#[derive(Debug, Default)]
pub(crate) struct Unasked {
    endpoints: Vec<Endpoint>,
    datagram_bytes: usize,
    entries: Vec<Entry>,
    /// their bytes, one behind the other
    bytes: Vec<u8>,
}

impl Unasked {
    /// Over these sockets, `datagram_bytes` each at most.
    pub(crate) fn new(sockets: &[Udp], datagram_bytes: usize) -> Unasked {
        let endpoints = sockets.iter().map(|udp| Endpoint { listener: udp.listener(), local: udp.local() }).collect();
        Unasked { endpoints, datagram_bytes, ..Unasked::default() }
    }

    /// Keeps a datagram.
    pub(crate) fn push(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        app::judge_ends(Some(ends.local), ends.peer)?;
        let is_its = |at: &Endpoint| {
            let any = at.local.ip().is_unspecified() || ends.local.ip().is_unspecified();
            at.listener == listener
                && at.local.port() == ends.local.port()
                && at.local.is_ipv4() == ends.local.is_ipv4()
                && (any || at.local.ip() == ends.local.ip())
        };
        let socket = self.endpoints.iter().position(is_its).ok_or(CallError::NoSuchAddress)?;
        if bytes.len() > self.datagram_bytes {
            return Err(CallError::TooLong);
        }
        if self.entries.len() == MOST || self.bytes.len() + bytes.len() > MOST_BYTES {
            return Err(CallError::NoResources);
        }
        let wildcard = self.endpoints[socket].local.ip().is_unspecified();
        let source = (wildcard && !ends.local.ip().is_unspecified()).then(|| Source::of(ends.local));
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry { socket, peer: ends.peer, source, bytes: bytes.len() });
        Ok(())
    }

    /// Sends what was kept, a burst a call, in its order for each socket.
    pub(crate) fn send(&mut self, sockets: &[Udp], batch: &mut Batch, counters: &Counters) {
        if self.entries.is_empty() {
            return;
        }
        let mut at = 0;
        for same in self.entries.chunk_by(|a, b| a.socket == b.socket) {
            for burst in same.chunks(batch.slots()) {
                batch.begin();
                for (slot, entry) in burst.iter().enumerate() {
                    batch.put(slot, entry.peer, &self.bytes[at..at + entry.bytes]);
                    batch.queue(slot, entry.bytes, entry.source);
                    at += entry.bytes;
                }
                counters.unasked.add(burst.len() as u64);
                sockets[burst[0].socket].send(batch, counters);
            }
        }
        self.entries.clear();
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unasked(locals: &[&str]) -> Unasked {
        let endpoint = |local: &&str| Endpoint { listener: Listener(3), local: local.parse().unwrap() };
        Unasked { endpoints: locals.iter().map(endpoint).collect(), datagram_bytes: 100, ..Unasked::default() }
    }

    #[test]
    fn the_local_end_is_one_of_the_listeners() {
        let mut unasked = unasked(&["127.0.0.1:53", "0.0.0.0:54", "[::]:54"]);
        let mut push = |listener, local: &str, peer: &str| {
            let ends = Addresses { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
            unasked.push(Listener(listener), ends, b"x").map(|()| {
                let Entry { socket, source, .. } = *unasked.entries.last().unwrap();
                (socket, source)
            })
        };
        let source = Source::of("127.0.0.9:0".parse().unwrap());
        assert_eq!(push(3, "127.0.0.1:53", "192.0.2.1:9"), Ok((0, None)));
        assert_eq!(push(3, "0.0.0.0:53", "192.0.2.1:9"), Ok((0, None)));
        assert_eq!(push(3, "127.0.0.9:54", "192.0.2.1:9"), Ok((1, Some(source))));
        assert_eq!(push(3, "0.0.0.0:54", "192.0.2.1:9"), Ok((1, None)));
        assert_eq!(push(3, "[::]:54", "[2001:db8::1]:9"), Ok((2, None)));
        let source = Source::new("fe80::1".parse().unwrap(), 4);
        assert_eq!(push(3, "[fe80::1%4]:54", "[2001:db8::1]:9"), Ok((2, Some(source))));
        let no = Err(CallError::NoSuchAddress);
        for (listener, local, peer) in [
            (4, "127.0.0.1:53", "192.0.2.1:9"),
            (3, "127.0.0.2:53", "192.0.2.1:9"),
            (3, "127.0.0.1:55", "192.0.2.1:9"),
            (3, "127.0.0.1:53", "[2001:db8::1]:9"),
            (3, "127.0.0.1:53", "192.0.2.1:0"),
            (3, "127.0.0.1:53", "0.0.0.0:9"),
            (3, "127.0.0.1:53", "224.0.0.1:9"),
        ] {
            assert_eq!(push(listener, local, peer), no, "{listener} {local} {peer}");
        }
    }

    #[test]
    fn what_a_cycle_keeps_is_bounded() {
        let mut unasked = unasked(&["127.0.0.1:53"]);
        let ends = Addresses { local: "127.0.0.1:53".parse().unwrap(), peer: "192.0.2.1:9".parse().unwrap() };
        assert_eq!(unasked.push(Listener(3), ends, &[0; 101]), Err(CallError::TooLong));
        for _ in 0..MOST {
            unasked.push(Listener(3), ends, &[0; 100]).unwrap();
        }
        assert_eq!(unasked.push(Listener(3), ends, b""), Err(CallError::NoResources));
    }
}
