//! The application API: events up, calls down. A service is written once against this crate and runs on the dataplane's own
//! stack, on kernel sockets, or in a protected process of its own.
//!
//! Two halves. Datagrams come as bursts of [`Datagram`] slots, and the answer is written into the slot. Streams come as
//! events of [`Service`] (`knock`, `recv`, ...) with the calls of [`Streams`] to answer them. The engine owns every byte it
//! lends; a service keeps nothing of a slice beyond the call. What a service sends is ranges of immutable [`Content`], never
//! copied, or bytes of its own, copied within a quota. On the serving path a service never opens a file, reads a
//! clock, draws randomness or allocates: time comes with each event, entropy at construction.
//!
//! Other threads hand a service results over queues of its own and then make its thread begin a cycle ([`Waker`]).
//!
//! An engine of several threads may move a connection from one to another. What the service of the one keeps of it is packed
//! ([`Service::depart`]) and unpacked by that of the other ([`Service::arrive`]); nothing else is told, and nothing is lost.
//!
//! Left out so far: outgoing connections.

#![forbid(unsafe_code)]

mod content;
mod datagram;
mod stream;
mod versions;
mod waker;

pub use content::{Content, ContentBuilder, Lifetime, ObjectId, Parts, memory_bytes};
pub use datagram::{Datagram, Ecn};
pub use stream::{CallError, DeadReason, Range, SENDV_RANGES, Streams};
pub use versions::{Held, Versions};
pub use waker::Waker;

use base::Instant;
use std::any::Any;
use std::net::SocketAddr;

/// What a service keeps of a connection, on the way to the instance of another thread.
pub type Luggage = Box<dyn Any + Send>;

/// Which of the configured listeners an event belongs to: its index in the configuration's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener(pub u16);

/// A connection's handle: index and generation, made by the engine and checked by it on every call. A handle that outlived
/// its connection gives an error, never another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// place in the engine's table
    pub index: u32,
    /// how often the place was used before
    pub generation: u32,
}

/// A service: bytes in, answers out. One instance a thread; instances share read-only tables by
/// [`base::publish`](base::publish), never a lock.
///
/// The stream half has defaults that reject every connection, so a datagram service implements [`Service::datagrams`] alone
/// and the reverse.
pub trait Service {
    /// The start of a cycle, before its first event: the moment to take newly published tables. `now` is the cycle's time.
    fn cycle(&mut self, now: Instant) {
        let _ = now;
    }

    /// Once, before every other event: what makes the thread of this service begin a cycle. The engine makes it for each life of
    /// the service anew.
    fn begin(&mut self, waker: &Waker) {
        let _ = waker;
    }

    /// In each cycle that a [`Waker`] began, and in others: the moment to take what other threads have left. It is not told who
    /// left what: a service that hands work to others knows where they put it, and so the engine keeps no queue for it.
    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        let _ = (now, calls);
    }

    /// Datagrams that arrived together at one listener, 1 to 64. For each the service writes the answer over the question and
    /// calls [`Datagram::reply`], or leaves it unanswered.
    fn datagrams(&mut self, now: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        let _ = (now, listener, burst);
    }

    /// A handshake is complete: answer with [`Streams::accept`] or [`Streams::reject`]; doing neither rejects.
    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        let _ = (now, listener, addresses);
        let _ = calls.reject(connection);
    }

    /// A connection that was asked for: it is there, or why it will not be.
    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let _ = (now, calls, cookie, outcome);
    }

    /// Bytes have arrived. They count against the receive window until [`Streams::recv_done`].
    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let _ = (now, calls, connection, cookie, bytes);
    }

    /// The peer has finished sending; writing goes on.
    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let _ = (now, cookie);
        let _ = calls.close(connection);
    }

    /// `bytes` more were taken by the peer (on kernel sockets: by the kernel); `room` bytes may be queued now.
    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        room: usize,
    ) {
        let _ = (now, calls, connection, cookie, bytes, room);
    }

    /// The connection is gone, with everything queued released. The last event of a connection that was accepted.
    fn dead(&mut self, now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        let _ = (now, connection, cookie, reason);
    }

    /// The time set by [`Streams::timer_set`] has come; never early.
    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let _ = (now, calls, connection, cookie);
    }

    /// Whether its connections may be moved to the instance of another thread: [`Service::depart`] and [`Service::arrive`] are
    /// there. Asked only where there are connections, so who has datagrams alone, and keeps nothing of a peer, need not say so.
    fn can_move(&self) -> bool {
        false
    }

    /// The connection goes to another thread: what is kept of it is packed, and forgotten here. No event of it follows, and its
    /// handle is void. It may be one that was closed and whose end was not told yet, or one that was asked for and is not there
    /// yet. Its timer, what it queued and what it did not give back go with it. Only called if [`Service::can_move`].
    fn depart(&mut self, now: Instant, connection: Connection, cookie: u64) -> Luggage {
        let _ = (now, connection, cookie);
        Box::new(())
    }

    /// The connection comes from another thread, where [`Service::depart`] packed this: events go on as if it had always been
    /// here, under the handle and the cookie that are given now. None when there is no room for it: it is reset, and no more is
    /// told of it.
    fn arrive<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        let _ = (now, calls, connection, luggage);
        None
    }
}

/// The two ends of a connection or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// our end
    pub local: SocketAddr,
    /// the other end
    pub peer: SocketAddr,
}
