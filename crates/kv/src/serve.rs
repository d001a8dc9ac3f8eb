//! The service: bytes of connections in, answers out, one [`Server`] a thread, one [`Shared`] for all of them.
//!
//! Most commands come whole and are read where they arrived; one in pieces, or one that waits for answers before it, is kept in a buffer
//! of a bounded pool. Answers of one event go out together. A client that sends on without reading finds its receive window closed:
//! nothing more is done for it until it has taken what it was answered. Connections may move between the servers of one store.

use app::{
    Addresses, Bound, Buffers, Claim, Coming, Connection, Datagram, DeadReason, KeptAway, Listener, Luggage, Places,
    Service, Streams,
};
use base::Instant;
use base::counter::{Figure, Report};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::out::Out;
use crate::stats::{Baseline, DropReason, Stats};
use crate::store::memory::CHUNK_BYTES;
use crate::store::{Foreseen, Home, Limits, Store};
use crate::text::{self, State};
use ahead::Ahead;
use client::{Client, Mode, NONE, PackedOut, Pendings};

mod ahead;
mod client;
mod datagrams;
#[cfg(test)]
mod tests;
mod work;

/// The receive window that an engine should give each connection: what its buffer holds.
pub const WINDOW_BYTES: usize = 32 << 10;
/// Octets of answers that may be on their way before the next command is looked at.
const UNSENT_MOST_BYTES: u64 = 64 << 10;
/// Pieces of answers that may be on their way then. Engines bound the ranges of a connection, by 128 or more.
const UNSENT_MOST_PIECES: u32 = 64;
/// Answers are handed to the engine when there are so many octets or pieces of them, or nothing more to do.
const TOGETHER_BYTES: u64 = 16 << 10;
const TOGETHER_PIECES: usize = 16;
/// Own bytes that a command's answers take, or nearly so.
const ROOM_LEAST_BYTES: usize = 8 << 10;
/// Own bytes of answers that are kept together.
const OUT_BYTES: usize = 32 << 10;
/// How often a part of the store is looked through for what has died.
const SWEEP_EVERY: Duration = Duration::from_millis(10);
/// So many freed pages of large values, of 64 KiB, are worth a walk through the allocator's heaps.
const TENDED_PAGES: u64 = 64;
/// The first octet of the binary protocol's requests.
const BINARY_REQUEST: u8 = 0x80;

/// What an operator can set for the servers of one engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// connections at a time, over all threads
    pub connections: Bound,
    /// commands in pieces that are kept at a time, over all threads, 32 KiB each
    pub buffers: Bound,
    /// answers, over all threads, that engines took in part
    pub pendings: Bound,
    /// how long a connection may be without a command; None is for ever
    pub idle: Option<Duration>,
    /// how long a client may take nothing of its answers, or send nothing of a command that it has begun
    pub stuck: Duration,
    /// which of those that work side by side this one is
    pub thread: usize,
    /// the wall clock, which may be set while the server serves
    pub clock: Arc<Clock>,
    /// the ports it listens on: a datagram from one of them may come from another such server
    pub ports: Vec<u16>,
}

impl Options {
    /// For servers of their own, on so many threads.
    #[must_use]
    pub fn among(mut self, threads: usize) -> Options {
        for bound in [&mut self.connections, &mut self.buffers, &mut self.pendings] {
            *bound = bound.among(threads);
        }
        self
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: Bound::new(16_384),
            buffers: Bound::new(16_384),
            pendings: Bound::new(1024),
            idle: None,
            stuck: Duration::from_secs(60),
            thread: 0,
            clock: Arc::default(),
            ports: Vec::new(),
        }
    }
}

/// What the servers of all threads share: the items, and each other's counters.
pub struct Shared {
    store: Store,
    stats: Mutex<Vec<Arc<Stats>>>,
    pub(crate) baseline: Mutex<Baseline>,
    /// pages of chunks that were freed when the allocator was last told
    tended: AtomicU64,
}

impl Shared {
    /// An empty store.
    pub fn new(limits: Limits) -> Shared {
        let (stats, baseline, tended) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Shared { store: Store::new(limits), stats, baseline, tended }
    }

    /// Has the allocator give back what large values have left to small ones, when there is enough of it. Now and then, from a thread that
    /// may wait; nothing else returns that memory to the kernel.
    pub fn tend(&self) {
        let freed: u64 = (0..self.store.shards()).map(|n| self.store.shard(n).memory().freed_chunks()).sum();
        if freed >= self.tended.load(Ordering::Relaxed) + TENDED_PAGES {
            self.tended.store(freed, Ordering::Relaxed);
            base::heap::give_back();
        }
    }

    /// A block of counters for one thread, which `stats` adds up with all others.
    pub fn stats(&self) -> Arc<Stats> {
        let stats = Arc::<Stats>::default();
        self.all().push(stats.clone());
        stats
    }

    /// The counters of all threads.
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Arc<Stats>>> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.store)
    }
}

impl Report for Shared {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let limits = self.store.limits();
        let mut gauge = |name, help, value| show(Figure { name, help, gauge: true, labels: &[], value });
        gauge("kv_memory_limit_bytes", "memory for items", limits.memory_bytes);
        gauge("kv_shards", "parts of the store with a lock each", self.store.shards() as u64);
        for figures in self.store.figures() {
            gauge("kv_items", "items stored now", figures.items.get());
            gauge("kv_item_bytes", "bytes of items now: headers, keys and values", figures.bytes.get());
        }
        let mut count = |name, help, value| show(Figure { name, help, gauge: false, labels: &[], value });
        for figures in self.store.figures() {
            count("kv_stored_total", "values stored", figures.stored.get());
            count("kv_evictions_total", "items that went while they were alive", figures.evictions.get());
            let unfetched = figures.evicted_unfetched.get();
            count("kv_evicted_unfetched_total", "items that went and were never asked for", unfetched);
            count("kv_expired_total", "items whose time was over", figures.expired.get());
            count("kv_flushed_total", "items found after a flush_all", figures.flushed.get());
            count("kv_pages_moved_total", "pages given to another size of items", figures.pages_moved.get());
            count("kv_resets_total", "times that a panic emptied a part of the store", figures.reset.get());
        }
    }
}

/// The service of one thread.
pub struct Server {
    clients: Vec<Client>,
    places: Places,
    buffers: Buffers,
    core: Core,
    ahead: Ahead,
    /// where the keys of connections stand that are accepted here
    home: Home,
    swept: Instant,
    sweep_at: usize,
}

/// What one connection's bytes need, apart from the connection's own state.
struct Core {
    shared: Arc<Shared>,
    options: Options,
    out: Out,
    pendings: Pendings,
    stats: Arc<Stats>,
    /// most likely the hash of the key that the next command asks for; where it is not, that costs time and nothing else
    foreseen: Option<NonZeroU64>,
}

/// A connection that was ended; nothing more is done with it.
struct Aborted;

impl Server {
    /// A server that counts in `stats`, a block of [`Shared::stats`].
    pub fn new(shared: Arc<Shared>, options: Options, stats: Arc<Stats>) -> Server {
        let parts = TOGETHER_PIECES + (shared.store.limits().item_bytes as usize).div_ceil(CHUNK_BYTES);
        Server {
            home: shared.store.home(options.thread),
            clients: options.connections.vec(),
            places: Places::new(options.connections.clone()),
            buffers: Buffers::new(options.buffers.clone(), WINDOW_BYTES),
            ahead: Ahead::default(),
            core: Core {
                out: Out::new(OUT_BYTES, parts),
                pendings: Pendings::new(options.pendings.clone(), OUT_BYTES, parts),
                shared,
                options,
                stats,
                foreseen: None,
            },
            swept: Instant::ZERO,
            sweep_at: 0,
        }
    }

    fn client(&mut self, cookie: u64) -> Option<&mut Client> {
        self.clients.get_mut(cookie as usize).filter(|client| client.used)
    }

    /// Puts a client at a place.
    fn settle_in(&mut self, place: u32, client: Client) {
        match self.clients.get_mut(place as usize) {
            Some(free) => *free = client,
            // places are numbered as they are needed
            None => self.clients.push(client),
        }
        self.core.stats.open.add(1);
    }

    /// Empties the place of a connection that is gone, or goes, of all that it has.
    fn clear(&mut self, place: u32) {
        let client = &mut self.clients[place as usize];
        self.core.pendings.give(client);
        self.buffers.give(&mut client.kept);
        *client = Client::default();
        let open = &self.core.stats.open;
        open.set(open.get() - 1);
    }

    /// Frees the place of a connection that is gone, with all that it has.
    fn vacate(&mut self, place: u32) {
        self.clear(place);
        self.places.give(place);
    }

    /// Works on the bytes that are kept for a connection; whether anything was done.
    fn work_held<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
    ) -> Result<bool, Aborted> {
        let client = &mut self.clients[cookie as usize];
        let held = self.buffers.octets(client.kept);
        let used = self.core.work(now, calls, connection, client, held)?;
        self.buffers.consume(&mut client.kept, used);
        if used > 0 {
            self.core.give_back(calls, connection, client, used)?;
        }
        Ok(used > 0)
    }

    /// Takes bytes that have arrived: works on them where they are, or behind those that are kept.
    fn take<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        mut bytes: &[u8],
    ) -> Result<(), Aborted> {
        loop {
            let client = &mut self.clients[cookie as usize];
            if !client.kept.has_buffer() {
                let used = self.core.work(now, calls, connection, client, bytes)?;
                self.core.give_back(calls, connection, client, used)?;
                bytes = &bytes[used..];
                if bytes.is_empty() {
                    return Ok(());
                }
                if !self.buffers.take(&mut client.kept) {
                    return self.core.refuse(calls, connection, client, bytes.len());
                }
                bytes = self.buffers.append(&mut client.kept, bytes);
                if bytes.is_empty() {
                    // what was just worked on needs more
                    return Ok(());
                }
            }
            let client = &mut self.clients[cookie as usize];
            let rest = self.buffers.append(&mut client.kept, bytes);
            let appended = rest.len() < bytes.len();
            bytes = rest;
            let worked = self.work_held(now, calls, connection, cookie)?;
            if bytes.is_empty() {
                return Ok(());
            }
            if !appended && !worked {
                // full, and it waits: the engine's window is wider than it should be
                let client = &mut self.clients[cookie as usize];
                return Err(self.core.abort(calls, connection, client, DropReason::Overflow));
            }
        }
    }

    /// Bytes of a connection have come.
    #[inline]
    fn receive<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        if client.closing {
            let _ = self.core.give_back(calls, connection, client, bytes.len());
            return;
        }
        // whoever has answers to take gets no time for them by sending more
        client.has_news |= client.mode != Mode::Sending;
        if client.fresh {
            client.fresh = false;
            if bytes.first() == Some(&BINARY_REQUEST) {
                self.core.abort(calls, connection, client, DropReason::Binary);
                return;
            }
        }
        if self.take(now, calls, connection, cookie, bytes).is_ok() {
            self.core.settle(now, calls, connection, &mut self.clients[cookie as usize]);
        }
    }

    /// Goes on where an answer, or what waits behind it, had to wait.
    fn go_on<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let client = &mut self.clients[cookie as usize];
        if client.pending != NONE && self.core.flush_pending(calls, connection, client).is_err() {
            return;
        }
        if self.core.can_go_on(calls, connection, client) {
            if self.work_held(now, calls, connection, cookie).is_err() {
                return;
            }
            let client = &mut self.clients[cookie as usize];
            self.core.finish_if_done(calls, connection, client);
        }
        let client = &mut self.clients[cookie as usize];
        if client.closing {
            self.core.wind_up(calls, connection, client);
        }
        self.core.settle(now, calls, connection, client);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // after a panic its connections are gone without a word; what they were filling is the store's again
        for client in self.clients.iter_mut().filter(|client| client.used) {
            text::forget(&self.core.shared.store, &mut client.state);
            let open = &self.core.stats.open;
            open.set(open.get().wrapping_sub(1));
        }
    }
}

/// A connection out of its server.
struct Packed {
    /// its places mean nothing
    client: Client,
    claim: Option<Claim>,
    held: Option<KeptAway>,
    pending: Option<PackedOut>,
    /// whose memory a large value that is on its way is given back to, should nobody take this
    shared: Arc<Shared>,
}

impl Drop for Packed {
    fn drop(&mut self) {
        text::forget(&self.shared.store, &mut self.client.state);
    }
}

impl Service for Server {
    fn cycle(&mut self, now: Instant) {
        if now.saturating_since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.sweep_at = self.sweep_at.wrapping_add(1);
            self.core.shared.store.sweep(self.sweep_at, Clock::second(now));
        }
    }

    fn datagrams(&mut self, now: Instant, _listener: Listener, burst: &mut [Datagram<'_>]) {
        let home = self.home;
        for datagram in burst {
            let answered = match datagrams::refused(&self.core.options.ports, datagram.addresses.peer.port()) {
                None => datagrams::answer(self.core.world(now, home), datagram),
                Some(reason) => Err(reason),
            };
            let stats = &self.core.stats;
            match answered {
                Ok(()) => stats.datagrams.add(1),
                Err(reason) => stats.dropped(reason),
            }
        }
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        let Some(place) = self.places.take() else {
            self.core.stats.dropped(DropReason::Full);
            let _ = calls.reject(connection);
            return;
        };
        if calls.accept(connection, u64::from(place)).is_err() {
            self.places.give(place);
            return;
        }
        self.settle_in(place, Client { used: true, home: self.home, ..Client::default() });
        self.core.stats.connections.add(1);
        self.core.settle(now, calls, connection, &mut self.clients[place as usize]);
    }

    fn foresees(&self) -> bool {
        true
    }

    fn foresee(&mut self, coming: &[Coming<'_>]) {
        let store = &self.core.shared.store;
        self.ahead.begin();
        for (request, Coming { cookie, bytes }) in coming.iter().enumerate() {
            let Some(client) = self.clients.get(*cookie as usize) else { continue };
            if !matches!(client.state, State::Line) || client.kept.bytes() > 0 {
                continue;
            }
            for key in text::keys_at_a_glance(bytes).take(self.ahead.room()) {
                let hash = store.hash(key);
                self.ahead.push(request, Foreseen { shard: store.number(client.home, hash), hash });
            }
        }
        self.ahead.ask(store);
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        self.core.stats.bytes_in.add(bytes.len() as u64);
        self.core.foreseen = self.ahead.come();
        self.receive(now, calls, connection, cookie, bytes);
        self.ahead.ask(&self.core.shared.store);
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        client.finished = true;
        // there may be room again of which nobody was told
        if self.core.can_go_on(calls, connection, client) && self.work_held(now, calls, connection, cookie).is_err() {
            return;
        }
        let client = &mut self.clients[cookie as usize];
        self.core.finish_if_done(calls, connection, client);
        self.core.settle(now, calls, connection, client);
    }

    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        _room: usize,
    ) {
        let Some(client) = self.client(cookie) else { return };
        client.unsent_bytes = client.unsent_bytes.saturating_sub(bytes as u64);
        client.has_news = true;
        if client.unsent_bytes == 0 {
            client.unsent_pieces = 0;
        }
        self.go_on(now, calls, connection, cookie);
    }

    fn dead(&mut self, _now: Instant, _connection: Connection, cookie: u64, _reason: DeadReason) {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        text::forget(&self.core.shared.store, &mut client.state);
        self.vacate(cookie as u32);
    }

    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        client.armed = Instant::MAX;
        if client.closed {
            return;
        }
        if now >= client.deadline {
            match client.mode {
                Mode::Idle => {
                    self.core.stats.idle_closed.add(1);
                    self.core.finish(calls, connection, client);
                }
                Mode::Partial => {
                    self.core.abort(calls, connection, client, DropReason::SlowWriter);
                }
                Mode::Sending => {
                    self.core.abort(calls, connection, client, DropReason::SlowReader);
                }
            }
        }
        self.core.settle(now, calls, connection, client);
    }

    fn can_move(&self) -> bool {
        true
    }

    fn depart(&mut self, _now: Instant, _connection: Connection, cookie: u64) -> Luggage {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else {
            return Box::new(());
        };
        let (held, pending) = (self.buffers.take_out(&mut client.kept), self.core.pendings.take_out(client));
        let moved = std::mem::take(client);
        self.clear(cookie as u32);
        let claim = Some(self.places.depart(cookie as u32));
        Box::new(Packed { client: moved, claim, held, pending, shared: self.core.shared.clone() })
    }

    fn arrive<C: Streams>(
        &mut self,
        _now: Instant,
        _calls: &mut C,
        _connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        let mut packed = luggage.downcast::<Packed>().ok()?;
        let Some(place) = packed.claim.take().and_then(|claim| self.places.arrive(claim)) else {
            self.core.stats.dropped(DropReason::Full);
            return None;
        };
        self.settle_in(place, std::mem::take(&mut packed.client));
        let ours = &mut self.clients[place as usize];
        let lacks = if !packed.held.take().is_none_or(|held| self.buffers.put_in(&mut ours.kept, held)) {
            Some(DropReason::NoBuffer)
        } else if !packed.pending.take().is_none_or(|pending| self.core.pendings.put_in(ours, pending)) {
            Some(DropReason::NoPending)
        } else {
            None
        };
        if let Some(reason) = lacks {
            self.core.stats.dropped(reason);
            text::forget(&self.core.shared.store, &mut ours.state);
            self.vacate(place);
            return None;
        }
        Some(u64::from(place))
    }
}
