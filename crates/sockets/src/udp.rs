//! The datagram half: a burst received by one call, answered in place, sent by one call.

use crate::counters::Counters;
use crate::sys::{Batch, Received, Source};
use app::{Addresses, Datagram, Listener, Service};
use arrayvec::ArrayVec;
use base::{BURST_FRAMES, Instant};
use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// How often a burst of answers waits for room in the send queue before what is left of it is dropped.
const SEND_WAITS: u32 = 2;
const SEND_WAIT: Duration = Duration::from_millis(1);

/// Bytes of the largest datagram that leaves from an address: what the 16 bits of a length have room for beside the headers of IPv4
/// (RFC 791) and UDP. IPv6's length does not count its own (RFC 8200).
pub(crate) fn most_bytes(local: SocketAddr) -> usize {
    if local.is_ipv4() { 65_535 - 20 - 8 } else { 65_535 - 8 }
}

/// One endpoint's socket, as one thread uses it: on cache lines of its own, as [`Accepting`](crate::engine::Accepting) is.
#[repr(align(128))]
pub(crate) struct Udp {
    socket: Arc<Socket>,
    listener: Listener,
    local: SocketAddr,
    /// bound to every address, so that each datagram says which one it came to and the answer leaves from there
    wildcard: bool,
    with_control: bool,
    /// the kernel may have more: it reported some, and no receive came back short since
    pub(crate) readable: bool,
    /// datagrams received and not yet answered or dropped
    in_hand: usize,
}

impl Udp {
    pub(crate) fn new(socket: Arc<Socket>, listener: Listener, local: SocketAddr, ecn: bool) -> Udp {
        let wildcard = local.ip().is_unspecified();
        Udp { socket, listener, local, wildcard, with_control: wildcard || ecn, readable: true, in_hand: 0 }
    }

    /// What the service calls it.
    pub(crate) fn listener(&self) -> Listener {
        self.listener
    }

    /// Where it is bound.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends what is queued in `batch`, or counts why not; without waiting for room.
    pub(crate) fn send(&self, batch: &mut Batch, counters: &Counters) {
        send(self.socket.as_fd(), batch, counters, 0);
    }

    /// The service panicked: what was in hand is lost, and the socket is to be looked at again.
    pub(crate) fn recover(&mut self, counters: &Counters) {
        counters.dropped_panic.add(std::mem::take(&mut self.in_hand) as u64);
        self.readable = true;
    }

    /// Receives one burst, has it answered, and sends the answers; the number of datagrams received.
    pub(crate) fn turn<S: Service>(
        &mut self,
        now: Instant,
        limit: usize,
        batch: &mut Batch,
        service: &mut S,
        counters: &Counters,
    ) -> usize {
        let count = match batch.receive(self.socket.as_fd(), limit, self.with_control) {
            Ok(count) => count,
            Err(error) => {
                self.readable = error.kind() == io::ErrorKind::Interrupted;
                match error.kind() {
                    io::ErrorKind::WouldBlock => counters.empty_receives.add(1),
                    io::ErrorKind::Interrupted => {}
                    // a pending socket error is reported once and cleared, with datagrams perhaps behind it
                    _ => {
                        counters.receive_errors.add(1);
                        self.readable = true;
                    }
                }
                return 0;
            }
        };
        self.readable = count == limit;
        counters.batches.add(1);
        counters.received.add(count as u64);
        self.in_hand = count;
        let mut slots = ArrayVec::<(u8, Option<Source>), BURST_FRAMES>::new();
        let mut burst = ArrayVec::<Datagram<'_>, BURST_FRAMES>::new();
        for (slot, (received, buffer)) in batch.received(count).enumerate() {
            let Some(addresses) = self.addresses(&received, counters) else { continue };
            slots.push((slot as u8, self.wildcard.then(|| Source::of(addresses.local))));
            // no less than the question, whatever brought it
            let room = buffer.len().min(most_bytes(self.local).max(received.bytes));
            burst.push(Datagram::new(&mut buffer[..room], received.bytes, received.ecn, addresses));
        }
        if !burst.is_empty() {
            service.datagrams(now, self.listener, &mut burst);
        }
        let mut answers = ArrayVec::<(u8, u16, Option<Source>), BURST_FRAMES>::new();
        for (datagram, (slot, source)) in burst.iter().zip(slots) {
            match datagram.reply_bytes() {
                Some(bytes) => answers.push((slot, bytes as u16, source)),
                None => counters.unanswered.add(1),
            }
        }
        drop(burst);
        for (slot, bytes, source) in answers {
            batch.queue(usize::from(slot), usize::from(bytes), source);
        }
        send(self.socket.as_fd(), batch, counters, SEND_WAITS);
        self.in_hand = 0;
        count
    }

    /// Where a datagram came to and from, or None when it is dropped.
    #[inline]
    fn addresses(&self, received: &Received, counters: &Counters) -> Option<Addresses> {
        if received.cut {
            counters.dropped_oversize.add(1);
            return None;
        }
        match (received.peer, received.local) {
            (Some(peer), local) if peer.port() != 0 && (local.is_some() || !self.wildcard) => {
                let local = local.map_or(self.local, |local| local.end(self.local.port()));
                Some(Addresses { local, peer })
            }
            _ => {
                counters.dropped_source.add(1);
                None
            }
        }
    }
}

/// Sends every queued answer, or counts why not, waiting for room so often at most. One answer that the kernel refuses does not hold up the
/// others.
fn send(socket: BorrowedFd<'_>, batch: &mut Batch, counters: &Counters, mut waits: u32) {
    let mut at = 0;
    while at < batch.queued() {
        counters.send_calls.add(1);
        // a short count hides why the next one failed; asking again from there tells
        let error = match batch.send(socket, at) {
            Ok(taken) => {
                counters.sent.add(taken as u64);
                at += taken;
                continue;
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if waits > 0 => {
                waits -= 1;
                wait_for_room(socket);
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                counters.dropped_send_full.add((batch.queued() - at) as u64);
                return;
            }
            _ => {
                counters.dropped_send_refused.add(1);
                at += 1;
            }
        }
    }
}

fn wait_for_room(socket: BorrowedFd<'_>) {
    use rustix::event::{PollFd, PollFlags, poll};
    let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: SEND_WAIT.subsec_nanos().into() };
    // whatever it says, the next send tells
    let _ = poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_refused_answer_does_not_hold_up_the_others() {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (peer, socket) = (socket(), socket());
        let (to, local) = (peer.local_addr().unwrap(), socket.local_addr().unwrap());
        let udp = Udp::new(Arc::new(socket.into()), Listener(0), local, false);
        let (mut batch, counters) = (Batch::new(3, 65_535), Counters::default());
        batch.begin();
        // longer than IPv4 allows for a datagram: the kernel refuses that answer alone
        for (slot, bytes) in [&b"first"[..], &[0; 65_508], b"third"].into_iter().enumerate() {
            batch.put(slot, to, bytes);
            batch.queue(slot, bytes.len(), None);
        }
        udp.send(&mut batch, &counters);
        assert_eq!((counters.sent.get(), counters.dropped_send_refused.get()), (2, 1));
        let mut answer = [0; 16];
        for expected in [b"first", b"third"] {
            let n = peer.recv(&mut answer).unwrap();
            assert_eq!(&answer[..n], expected);
        }
    }
}
