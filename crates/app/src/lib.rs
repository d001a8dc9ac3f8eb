//! The application API: events up, calls down. A service is written once against this crate and runs on the dataplane's own
//! stack, on kernel sockets, or in a protected process of its own.
//!
//! This page is the tutorial. Crate `embed` runs a service, crate `kit` keeps the books that many services keep, and `embed`'s examples
//! (`echo`, `proxy`, `lookup`, `client`) show everything below at work.
//!
//! # A service
//!
//! A [`Service`] is a value that an engine thread owns. The engine tells it what happens by calling its methods, the *events*, and lends it
//! a [`Streams`], by which it acts: the *calls*. Nothing ever waits: a call that cannot be done now says so, and an event tells when it
//! can. There is one instance a thread; instances share read-only tables by [`base::publish`](base::publish), never a lock.
//!
//! ```
//! use app::{Connection, Listener, Service, Streams, Addresses};
//! use base::Instant;
//!
//! /// Says what it thinks of every line, and hangs up.
//! struct Critic;
//!
//! impl Service for Critic {
//!     fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
//!         // the cookie is ours: it comes back with every event of this connection
//!         let _ = calls.accept(connection, 0);
//!     }
//!
//!     fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, bytes: &[u8]) {
//!         // these were dealt with: the peer may send as many more
//!         let _ = calls.recv_done(connection, bytes.len());
//!         let _ = calls.send(connection, b"I have read better.\n");
//!         let _ = calls.close(connection);
//!     }
//! }
//! ```
//!
//! # Events
//!
//! | event | when | answer it with |
//! |---|---|---|
//! | [`begin`](Service::begin) | once, first; again for each life of the service after a panic | keep the [`Waker`] for other threads |
//! | [`cycle`](Service::cycle) | a cycle begins | take newly published tables |
//! | [`datagrams`](Service::datagrams) | datagrams came together to one listener, 1 to 64 | write each answer over its question, [`Datagram::reply`]; or leave it |
//! | [`knock`](Service::knock) | a peer's handshake is complete | `accept` with a cookie, or `reject`; neither is `reject` |
//! | [`connected`](Service::connected) | what `connect` asked for is there, or will not be; once for each | send, or mind the [`DeadReason`] |
//! | [`recv`](Service::recv) | bytes have come | `recv_done` when they are dealt with, now or later |
//! | [`eof`](Service::eof) | the peer has finished sending | go on writing, then `shutdown` or `close`; the default closes |
//! | [`sent`](Service::sent) | the peer (on kernel sockets: the kernel) has taken so many more bytes, or none and others' have made room | send what found no room before |
//! | [`timer`](Service::timer), [`alarm`](Service::alarm) | a time has come: a connection's, the service's own | |
//! | [`woken`](Service::woken) | once a cycle, behind its datagrams; a cycle that a [`Waker`] began has it, too | take what other threads left |
//! | [`dead`](Service::dead) | the connection is gone | forget it; what follows for others belongs into `flush` |
//! | [`flush`](Service::flush) | the cycle's events are over | hand over output that was gathered |
//! | [`depart`](Service::depart), [`arrive`](Service::arrive) | a connection goes to another thread, comes from one | pack, unpack |
//!
//! # Calls
//!
//! | call | does | may say |
//! |---|---|---|
//! | [`accept`](Streams::accept), [`reject`](Streams::reject) | answers a knock | `NoConnection`, `WrongState` |
//! | [`connect`](Streams::connect) | asks for a connection; told by `connected` | `NoSuchAddress`, `InUse`, `Elsewhere`, `NoResources` |
//! | [`send`](Streams::send), [`sendv`](Streams::sendv) | queues bytes, or ranges of immutable [`Content`]; takes all or fewer | `NoConnection`, `WrongState`, `NoSuchRange` |
//! | [`room`](Streams::room) | how many bytes of its own `sendv` would take | 0 for whoever cannot send |
//! | [`recv_done`](Streams::recv_done) | gives received bytes back, which opens the window | `NoConnection`, `WrongState`, `TooMuch` |
//! | [`shutdown`](Streams::shutdown) | finishes writing behind what is queued; reading goes on | `NoConnection`, `WrongState` |
//! | [`close`](Streams::close) | finishes, and throws away what still comes | `NoConnection`, `WrongState` |
//! | [`abort`](Streams::abort) | resets now; gives up one that was asked for | `NoConnection` |
//! | [`timer_set`](Streams::timer_set) | sets the connection's one timer | `NoConnection`, `WrongState` |
//! | [`send_to`](Streams::send_to) | sends a datagram, asked for or not | `NoSuchAddress`, `Unreachable`, `TooLong`, `NoResources` |
//! | [`alarm_set`](Streams::alarm_set) | sets a timer of the service's own, by cookie | `NoResources` |
//!
//! A [`Connection`] is index and generation and is checked on every call: one that outlived its connection is `NoConnection`, never another
//! connection and never a panic. `WrongState` is a connection that was not accepted yet or is still being asked for, one that was
//! finished (`shutdown`) or closed. After `close` only `abort` is left. Both engines say the same; one test body holds them to it
//! (`crates/embed/tests/api.rs`).
//!
//! Why a connection ended, or never was, is the [`DeadReason`]: `Closed`, `Reset`, `Aborted` (by us), `TimedOut`, `NoResources`, and for
//! those that were asked for `Refused` (nobody listens) and `Unreachable` (no neighbour, no route).
//!
//! A protected application, in a process of its own, has the same calls and events, within limits of its own (below). Two things differ
//! beside that, since its calls reach the engine later: what only the engine can say of `connect` is told by `connected` (`Denied`), and whom
//! it may begin something with is what the operator permits (`simoom run --connect`), nobody by default; anything else is `Forbidden`.
//!
//! # Whose bytes
//!
//! The engine owns every byte that it lends: what `recv` and `datagrams` show is the received frame or buffer, and is gone when the event
//! returns. A service that has to keep some copies them. What `send` is given is copied, within a quota a connection; ranges of
//! [`Content`] are never copied, and held until the last byte is taken. Received bytes count against the window until they are given back,
//! so whoever does not give back slows its peer down: that is all there is to back pressure, and a proxy is made of it.
//!
//! # Order
//!
//! Of one connection: `knock` or `connected` first, `recv` in the order of the stream, `eof` behind the last byte, `dead` last, each once.
//! `timer` and `alarm` are never early. An event is never told during a call: what a call brings about comes later. Of one cycle:
//! `cycle` first, `woken` behind all `datagrams`, `flush` last; where what happened to connections stands to `woken` differs between engines.
//! Kernel sockets tell it behind `woken`, our own stack tells what arrived before it, and to a protected application all comes before.
//!
//! # What may take long
//!
//! Nothing. Whoever waits or computes for milliseconds in an event holds up everybody whom the thread serves. Engines measure each cycle
//! ([`Cycles`]): the longest, and how many were longer than 10 ms, are figures by thread and service, and `simoom` says it in a log line. A
//! thread that hangs loses its queue to the kernel. Files, locks and long computations belong to threads of the application's own, which
//! leave what they found in a queue and use the [`Waker`]: `kit::Background` is that. `woken` carries no value, unlike in IX: with the queue
//! at the service, which knows its type, the engine needs none for others' messages. On the serving path a service never opens a file, reads
//! a clock, draws randomness or allocates: time comes with each event, entropy at construction.
//!
//! # Limits
//!
//! [`SENDV_RANGES`] ranges a call, [`ALARMS`] alarms a thread, 64 datagrams a burst; connections, windows and quotas are the engine's
//! configuration. A datagram from `send_to` is at most what the link carries (our own stack) or the engine's buffer (kernel sockets), where
//! IPv4 carries 65,507 bytes at most and IPv6 65,527; our stack keeps 64 of a cycle and a listener, fewer while others fill the room, and of
//! those that wait for one neighbour the last three;
//! kernel sockets keep 1024 of a cycle in 2 MiB, of which no listener has more than it leaves free: half of both for one alone. Listeners are configuration as well: to bind takes privileges that a server at
//! work does not have, and every thread has to agree, so there is no call for it. Connections that a service asks for leave from own
//! addresses on our own stack.
//!
//! A protected application has datagrams of at most 32 KiB: longer questions are dropped and counted, longer ones from `send_to` are `TooLong`,
//! and an answer has no more room. A connection of its has a receive window of 64 KiB and takes 128 KiB; 1024 connections may be asked for at one
//! time, and late answers given to the last 1024 questions. Addresses come to it without their scope (RFC 4007), so on kernel sockets
//! a peer with a link-local address is answered, and cannot be connected to, nor sent to unasked.
//!
//! An engine of several threads may move a connection from one to another. What the service of the one keeps of it is packed
//! ([`Service::depart`]) and unpacked by that of the other ([`Service::arrive`]); nothing else is told, and nothing is lost. A service whose
//! [`can_move`](Service::can_move) is false keeps its connections where they are.

#![forbid(unsafe_code)]

mod alarms;
mod bound;
mod buffers;
mod content;
mod cycles;
mod datagram;
mod per_source;
mod stream;
mod versions;
mod waker;

pub use alarms::{ALARMS, Alarms};
pub use bound::{Bound, Claim, Places, Share};
pub use buffers::{Buffers, Kept, KeptAway};
pub use content::{Content, ContentBuilder, Lifetime, ObjectId, Parts, memory_bytes};
pub use cycles::{Cycles, Stopwatch};
pub use datagram::{Datagram, Ecn};
pub use per_source::PerSource;
pub use stream::{CallError, DeadReason, Range, SENDV_RANGES, Streams, judge_ends};
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

/// Bytes that a connection most likely gets next.
#[derive(Clone, Copy, Debug)]
pub struct Coming<'a> {
    /// the service's name for the connection
    pub cookie: u64,
    /// what [`Service::recv`] would be given
    pub bytes: &'a [u8],
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
    /// left what: a service that hands work to others knows where they put it, and so the engine keeps no queue for it. It comes after
    /// the datagrams of its cycle, so what those ask for beyond an answer is called for here.
    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        let _ = (now, calls);
    }

    /// Whether [`Service::woken`] would find something: asked in each cycle, and so it costs a load or two. For a service that is
    /// told of its news by memory that it shares, without a [`Waker`]'s system call.
    fn has_news(&mut self) -> bool {
        false
    }

    /// The thread is about to sleep at `now`, for want of anything to do; false has it begin another cycle instead. Who leaves news
    /// after a true wakes the thread.
    fn may_rest(&mut self, now: Instant) -> bool {
        let _ = now;
        true
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

    /// What [`Streams::connect`] asked for: the connection is there, or why it will not be. Told once for each call that succeeded.
    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let _ = (now, calls, cookie, outcome);
    }

    /// Whether [`Service::foresee`] does anything: an engine need not gather for nobody.
    fn foresees(&self) -> bool {
        false
    }

    /// What a burst brings, of up to 64 connections, before the first [`Service::recv`] of it: the moment to ask for the memory that all of it
    /// needs ([`base::prefetch`]), so that the cache misses of a burst overlap. Nothing is promised: what is told here may not come, and
    /// what comes need not have been told.
    fn foresee(&mut self, coming: &[Coming<'_>]) {
        let _ = coming;
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

    /// `bytes` more were taken by the peer (on kernel sockets: by the kernel); `room` bytes may be queued now. Whoever was refused room
    /// because connections together had used up what the engine has is told with `bytes` zero when there is some again.
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

    /// The connection is gone, with everything queued released. The last event of a connection that was accepted, or that was asked
    /// for and came about. What follows from it for others is done in [`Service::flush`] of the same cycle.
    fn dead(&mut self, now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        let _ = (now, connection, cookie, reason);
    }

    /// The time set by [`Streams::timer_set`] has come; never early.
    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let _ = (now, calls, connection, cookie);
    }

    /// The time set by [`Streams::alarm_set`] has come; never early.
    fn alarm<C: Streams>(&mut self, now: Instant, calls: &mut C, cookie: u64) {
        let _ = (now, calls, cookie);
    }

    /// The events of a cycle are over. What is sent now leaves with what they have sent, so this is where a service that gathers its
    /// output hands it over. The last event of a cycle, unless what it does brings further ones; told wherever [`Service::woken`] is.
    fn flush<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        let _ = (now, calls);
    }

    /// What it is called where a thread is said to be slow, such as in a log line.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
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
