//! Datagrams that the service sends by itself: kept over the events of a cycle, sent at its end, over the sockets that questions come to.
//!
//! They may be lost, so none is waited for: what stands in a socket's send queue for neighbours that nobody has would hold up the thread, and
//! all that it serves, for as long as somebody goes on sending to them.
//!
//! No listener, and so no application, has more of a cycle's room than it leaves free: one alone has half of it, two a third each, and there
//! is some for whoever comes next.

use crate::counters::Counters;
use crate::sys::{Batch, Source};
use crate::udp::{Udp, most_bytes};
use app::{Addresses, CallError, Listener};
use std::net::SocketAddr;

/// Datagrams that one cycle sends at most, and their bytes.
const MOST: usize = 1024;
const MOST_BYTES: usize = 2 << 20;

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
    /// where its bytes begin
    start: usize,
    bytes: usize,
}

/// What one listener has of them.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    datagrams: usize,
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
    /// by the listener's number
    parts: Vec<Part>,
}

impl Unasked {
    /// Over these sockets, `datagram_bytes` each at most.
    pub(crate) fn new(sockets: &[Udp], datagram_bytes: usize) -> Unasked {
        let endpoint = |udp: &Udp| Endpoint { listener: udp.listener(), local: udp.local() };
        Unasked::over(sockets.iter().map(endpoint).collect(), datagram_bytes)
    }

    fn over(endpoints: Vec<Endpoint>, datagram_bytes: usize) -> Unasked {
        let numbers = endpoints.iter().map(|endpoint| usize::from(endpoint.listener.0) + 1).max().unwrap_or(0);
        Unasked { endpoints, datagram_bytes, parts: vec![Part::default(); numbers], ..Unasked::default() }
    }

    /// Whether a listener may have so many bytes more.
    fn has_room_for(&self, listener: Listener, bytes: usize) -> bool {
        let part = self.parts[usize::from(listener.0)];
        part.datagrams < MOST - self.entries.len() && part.bytes + bytes <= MOST_BYTES - self.bytes.len()
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
        if bytes.len() > self.datagram_bytes.min(most_bytes(ends.local)) {
            return Err(CallError::TooLong);
        }
        if !self.has_room_for(listener, bytes.len()) {
            return Err(CallError::NoResources);
        }
        let wildcard = self.endpoints[socket].local.ip().is_unspecified();
        let source = (wildcard && !ends.local.ip().is_unspecified()).then(|| Source::of(ends.local));
        let part = &mut self.parts[usize::from(listener.0)];
        (part.datagrams, part.bytes) = (part.datagrams + 1, part.bytes + bytes.len());
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry { socket, peer: ends.peer, source, start, bytes: bytes.len() });
        Ok(())
    }

    /// Sends what was kept, a burst a call, in its order for each socket.
    pub(crate) fn send(&mut self, sockets: &[Udp], batch: &mut Batch, counters: &Counters) {
        if self.entries.is_empty() {
            return;
        }
        // whole bursts for each socket; of those that begin at one place all but the last are empty
        self.entries.sort_unstable_by_key(|entry| (entry.socket, entry.start, entry.bytes));
        for same in self.entries.chunk_by(|a, b| a.socket == b.socket) {
            for burst in same.chunks(batch.slots()) {
                batch.begin();
                for (slot, entry) in burst.iter().enumerate() {
                    batch.put(slot, entry.peer, &self.bytes[entry.start..][..entry.bytes]);
                    batch.queue(slot, entry.bytes, entry.source);
                }
                counters.unasked.add(burst.len() as u64);
                sockets[burst[0].socket].send(batch, counters);
            }
        }
        self.entries.clear();
        self.bytes.clear();
        self.parts.fill(Part::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{SockRef, Socket};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::sync::Arc;
    use std::time::Duration;

    fn unasked(locals: &[&str]) -> Unasked {
        let endpoint = |local: &&str| Endpoint { listener: Listener(3), local: local.parse().unwrap() };
        Unasked::over(locals.iter().map(endpoint).collect(), 100)
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
    fn what_a_cycle_keeps_is_bounded_and_no_listener_has_all_of_it() {
        let local = |listener| SocketAddr::from(([127, 0, 0, 1], 50 + listener));
        let endpoint = |listener| Endpoint { listener: Listener(listener), local: local(listener) };
        for bytes in [0, 10_000] {
            let mut unasked = Unasked::over((0..3).map(endpoint).collect(), 10_000);
            let mut push = |listener, bytes| {
                let ends = Addresses { local: local(listener), peer: "192.0.2.1:9".parse().unwrap() };
                unasked.push(Listener(listener), ends, &[0; 10_001][..bytes])
            };
            assert_eq!(push(0, 10_001), Err(CallError::TooLong));
            let mut fill = |listener| {
                let taken = (0..MOST).take_while(|_| push(listener, bytes) == Ok(())).count();
                assert_eq!(push(listener, bytes), Err(CallError::NoResources));
                taken
            };
            let places = MOST_BYTES.checked_div(bytes).unwrap_or(MOST);
            assert_eq!([0, 1, 2, 0].map(&mut fill), [places.div_ceil(2), places / 4, places / 8, 0]);
        }
    }

    #[test]
    fn what_no_packet_of_the_family_carries_is_too_long() {
        for (local, peer, most) in [("127.0.0.1:53", "192.0.2.1:9", 65_507), ("[::1]:53", "[2001:db8::1]:9", 65_527)] {
            let ends = Addresses { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
            let endpoint = Endpoint { listener: Listener(3), local: ends.local };
            let mut unasked = Unasked::over(vec![endpoint], 65_535);
            assert_eq!(unasked.push(Listener(3), ends, &[0; 65_535][..most]), Ok(()));
            assert_eq!(unasked.push(Listener(3), ends, &[0; 65_535][..most + 1]), Err(CallError::TooLong));
        }
    }

    #[test]
    fn with_each_cycle_there_is_room_anew() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = udp.local_addr().unwrap();
        let udp = [Udp::new(Arc::new(udp.into()), Listener(3), local, false)];
        let mut unasked = Unasked::new(&udp, 100);
        for _ in 0..3 {
            let ends = Addresses { local, peer: local };
            let taken = (0..MOST).take_while(|_| unasked.push(Listener(3), ends, &[0; 100]).is_ok()).count();
            assert_eq!(taken, MOST / 2);
            unasked.send(&udp, &mut Batch::new(64, 100), &Counters::default());
        }
    }

    /// Sockets that take nothing more, with their peers: streams', since what is sent over loopback has left a datagram's at once.
    fn full() -> [(Socket, TcpStream); 2] {
        let mut pairs = [(); 2].map(|()| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            // the kernel makes no more of it
            SockRef::from(&socket).set_send_buffer_size(8192).unwrap();
            socket.set_nonblocking(true).unwrap();
            (socket, listener.accept().unwrap().0)
        });
        let mut fill = || pairs.iter_mut().filter_map(|(socket, _)| socket.write(&[0; 65_536]).ok()).count();
        while fill() > 0 {
            while fill() > 0 {}
            // longer than an acknowledgement is put off, which makes room
            std::thread::sleep(Duration::from_millis(250));
        }
        pairs.map(|(socket, peer)| (socket.into(), peer))
    }

    #[test]
    fn a_full_socket_is_not_waited_for() {
        let (sockets, _peers): (Vec<_>, Vec<_>) = full().into_iter().unzip();
        let local = |n| SocketAddr::from(([127, 0, 0, 1], 53 + n));
        let udp = |(n, socket)| Udp::new(Arc::new(socket), Listener(3), local(n), false);
        let udp: Vec<_> = (0u16..).zip(sockets).map(udp).collect();
        let (mut unasked, counters) = (Unasked::new(&udp, 100), Counters::default());
        for n in 0..64 {
            let ends = Addresses { local: local(n % 2), peer: "192.0.2.1:9".parse().unwrap() };
            unasked.push(Listener(3), ends, b"x").unwrap();
        }
        unasked.send(&udp, &mut Batch::new(64, 100), &counters);
        assert_eq!((counters.unasked.get(), counters.dropped_send_full.get()), (64, 64));
        // a wait would be followed by another try
        assert_eq!(counters.send_calls.get(), 2);
    }

    #[test]
    fn each_socket_sends_in_its_order() {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (peer, sockets) = (socket(), [socket(), socket()]);
        let locals = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
        let udp = |(socket, local): (UdpSocket, _)| Udp::new(Arc::new(socket.into()), Listener(3), local, false);
        let udp: Vec<_> = sockets.into_iter().zip(locals).map(udp).collect();
        let mut unasked = Unasked::new(&udp, 100);
        for n in 0..40 {
            let ends = Addresses { local: locals[n % 2], peer: peer.local_addr().unwrap() };
            // some are empty
            unasked.push(Listener(3), ends, &[n as u8; 3][..n % 3]).unwrap();
        }
        unasked.send(&udp, &mut Batch::new(8, 100), &Counters::default());
        let mut came = [Vec::new(), Vec::new()];
        for _ in 0..40 {
            let mut bytes = [0; 100];
            let (length, from) = peer.recv_from(&mut bytes).unwrap();
            came[usize::from(from == locals[1])].push(bytes[..length].to_vec());
        }
        let sent = |of: usize| (0..40).filter(|n| n % 2 == of).map(|n| vec![n as u8; n % 3]).collect::<Vec<_>>();
        assert_eq!(came, [sent(0), sent(1)]);
    }
}
