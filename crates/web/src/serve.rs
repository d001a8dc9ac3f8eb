//! The service: bytes of connections in, ranges of prepared objects out, one [`Server`] a thread.
//!
//! Most requests come whole and are parsed in the received bytes; one in pieces, or one that waits for answers before it, is
//! kept in a buffer of a bounded pool. Answers go out in the order of requests; a client that sends on without reading finds
//! its receive window closed. All memory is allocated with the server; the site is shared and held until the next cycle's
//! start, except by an answer that the engine took in part, which holds its version until it is whole. Connections may move
//! between the servers of one site ([`moves`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use app::{Addresses, Bound, Buffers, Connection, DeadReason, Listener, Luggage, Places, Service, Streams, Waker};
use base::Instant;
use base::publish::Reader;
use base::ring::Producer;

use crate::answer::Plan;
use crate::chunks::Cache;
use crate::client::{Client, Mode};
use crate::date::{self, WallClock};
use crate::head::{HEAD_MAX_BYTES, Refusal};
use crate::log::Record;
use crate::out::Pendings;
use crate::proxy::Prefix;
use crate::site::Site;
use crate::stats::{DropReason, Stats};
use crate::streams;

/// The receive window that an engine should give each connection: what its buffer holds. A wider one lets a client that asks
/// faster than its answers go out fill the buffer, which ends the connection; this one makes it wait.
pub const WINDOW_BYTES: usize = 2 * HEAD_MAX_BYTES;
/// Octets of answers that may be on their way before the next pipelined request is looked at.
const PIPELINE_MAX_BYTES: u64 = 64 << 10;
/// Pieces of answers that may be on their way then. Engines bound the ranges of a connection, by 128 or more.
const PIPELINE_MAX_PIECES: u16 = 64;
/// Own bytes that an ordinary answer takes.
const ROOM_LEAST_BYTES: usize = 512;
/// "Date: ", the date, CRLF
const DATE_FIELD_BYTES: usize = 6 + date::DATE_BYTES + 2;

/// What an operator can set.
#[derive(Clone, Debug)]
pub struct Options {
    /// connections at a time, over all threads
    pub connections: Bound,
    /// requests in pieces that are kept at a time, over all threads, 32 KiB each
    pub buffers: Bound,
    /// answers, over all threads, that engines took in part, 16 KiB each
    pub pendings: Bound,
    /// how long a connection may be without a request
    pub idle: Duration,
    /// how long a request's head may take from its first byte
    pub head: Duration,
    /// how long a request's content may take
    pub content: Duration,
    /// how long a client may take nothing of its answers; half of it for a part of what it holds of the cache, while others wait for
    /// memory there
    pub send: Duration,
    /// the longest content of a request, which is read and thrown away
    pub content_max_bytes: u64,
    /// requests on one connection; 0 is no limit
    pub requests: u32,
    /// peers whose connections begin with a PROXY header of version 2
    pub proxies: Vec<Prefix>,
    /// peers whose X-Forwarded-For is believed
    pub forwarded: Vec<Prefix>,
    /// the wall clock, for Date and the access log
    pub wall: Arc<WallClock>,
    /// what files that are not held are read through; without it none are served
    pub cache: Option<Cache>,
    /// from the machine's entropy; keys multipart boundaries
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: Bound::new(65_536),
            buffers: Bound::new(16_384),
            pendings: Bound::new(256),
            idle: Duration::from_secs(60),
            head: Duration::from_secs(15),
            content: Duration::from_secs(30),
            send: Duration::from_secs(60),
            content_max_bytes: 1 << 20,
            requests: 0,
            proxies: Vec::new(),
            forwarded: Vec::new(),
            wall: Arc::new(WallClock::new(0)),
            cache: None,
            seed: 0,
        }
    }
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

    fn timeout(&self, mode: Mode) -> Duration {
        match mode {
            Mode::Idle => self.idle,
            Mode::Head => self.head,
            Mode::Content => self.content,
            Mode::Sending => self.send,
        }
    }
}

/// The web service of one thread.
pub struct Server {
    clients: Vec<Client>,
    places: Places,
    buffers: Buffers,
    core: Core,
}

/// What one connection's bytes need, apart from the connection's own state.
struct Core {
    site: Reader<Site>,
    options: Options,
    plan: Plan,
    pendings: Pendings,
    streams: streams::Streams,
    date: Date,
    stats: Arc<Stats>,
    log: Option<Producer<Record>>,
    boundaries: u64,
}

/// The Date field, rendered once a second.
struct Date {
    unix_s: u64,
    field: [u8; DATE_FIELD_BYTES],
}

/// A connection that was aborted; nothing more is done with it.
struct Aborted;

impl Server {
    /// A server over the site that `site` reads. Records of requests go to `log`, if there is one.
    pub fn new(site: Reader<Site>, options: Options, log: Option<Producer<Record>>) -> Server {
        Server::with_stats(site, options, log, Arc::default())
    }

    /// The same, which goes on counting in `stats`: those of a server that it takes the place of, on the same thread.
    pub fn with_stats(
        site: Reader<Site>,
        options: Options,
        log: Option<Producer<Record>>,
        stats: Arc<Stats>,
    ) -> Server {
        Server {
            clients: options.connections.vec(),
            places: Places::new(options.connections.clone()),
            buffers: Buffers::new(options.buffers.clone(), WINDOW_BYTES),
            core: Core {
                plan: Plan::new(),
                pendings: Pendings::new(options.pendings.clone()),
                streams: streams::Streams::new(options.cache.clone(), options.connections.most()),
                date: Date::new(options.wall.unix_ns(Instant::ZERO)),
                stats,
                boundaries: 0,
                site,
                options,
                log,
            },
        }
    }

    /// This thread's counters.
    pub fn stats(&self) -> Arc<Stats> {
        self.core.stats.clone()
    }

    /// The site that the next request is answered from.
    pub fn site(&self) -> &Site {
        &self.core.site
    }

    /// Puts a client at its place.
    fn settle_in(&mut self, client: Client) {
        let place = client.number as usize;
        match self.clients.get_mut(place) {
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
        self.core.streams.give(client);
        self.buffers.give(&mut client.kept);
        client.used = false;
        let open = &self.core.stats.open;
        open.set(open.get() - 1);
    }

    /// Frees the place of a connection that is gone, with all that it has.
    fn vacate(&mut self, place: u32) {
        self.clear(place);
        self.places.give(place);
    }

    /// Works on the bytes that are kept for a connection.
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

    /// Takes bytes that have arrived: parses them where they are, or behind those that are kept.
    fn take<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        mut bytes: &[u8],
    ) -> Result<(), Aborted> {
        let client = &mut self.clients[cookie as usize];
        if !client.kept.has_buffer() {
            let used = self.core.work(now, calls, connection, client, bytes)?;
            self.core.give_back(calls, connection, client, used)?;
            bytes = &bytes[used..];
            if bytes.is_empty() {
                return Ok(());
            }
            if !self.buffers.take(&mut client.kept) {
                self.core.refuse(now, calls, connection, client, Refusal::NoBuffer, bytes)?;
                return self.core.give_back(calls, connection, client, bytes.len());
            }
            bytes = self.buffers.append(&mut client.kept, bytes);
        }
        while !bytes.is_empty() {
            let client = &mut self.clients[cookie as usize];
            if !client.kept.has_buffer() {
                return self.take(now, calls, connection, cookie, bytes);
            }
            let rest = self.buffers.append(&mut client.kept, bytes);
            let appended = rest.len() < bytes.len();
            bytes = rest;
            let worked = self.work_held(now, calls, connection, cookie)?;
            if !appended && !worked {
                // full, and it waits: the engine's window is wider than it should be
                let client = &mut self.clients[cookie as usize];
                return Err(self.core.abort(calls, connection, client, DropReason::Overflow));
            }
        }
        Ok(())
    }

    /// Goes on where an answer, or what waits behind it, had to wait.
    fn go_on<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let client = &mut self.clients[cookie as usize];
        if client.has_rest() && self.core.flush(calls, connection, client).is_err() {
            return;
        }
        if self.core.can_go_on(calls, connection, client) {
            let worked = self.work_held(now, calls, connection, cookie);
            let client = &mut self.clients[cookie as usize];
            if worked.is_err() {
                return;
            }
            self.core.finish_if_done(calls, connection, client);
        }
        let client = &mut self.clients[cookie as usize];
        if client.closing {
            self.core.wind_up(calls, connection, client);
        }
        self.core.settle(now, calls, connection, client);
    }
}

impl Date {
    fn new(unix_ns: u64) -> Date {
        let mut date = Date { unix_s: u64::MAX, field: [0; DATE_FIELD_BYTES] };
        date.refresh(unix_ns);
        date
    }

    #[inline]
    fn refresh(&mut self, unix_ns: u64) {
        let unix_s = unix_ns / 1_000_000_000;
        if unix_s != self.unix_s {
            self.render(unix_s);
        }
    }

    #[cold]
    fn render(&mut self, unix_s: u64) {
        self.unix_s = unix_s;
        self.field[..6].copy_from_slice(b"Date: ");
        self.field[6..6 + date::DATE_BYTES].copy_from_slice(date::write(unix_s).as_bytes());
        self.field[6 + date::DATE_BYTES..].copy_from_slice(b"\r\n");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // after a panic its connections are gone without a word
        let gone = self.clients.iter().filter(|client| client.used).count();
        let open = &self.core.stats.open;
        open.set(open.get().wrapping_sub(gone as u64));
    }
}

impl Service for Server {
    fn begin(&mut self, waker: &Waker) {
        self.core.streams.set_waker(waker);
    }

    fn cycle(&mut self, now: Instant) {
        self.core.site.refresh();
        self.core.date.refresh(self.core.options.wall.unix_ns(now));
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        addresses: Addresses,
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
        let peer: SocketAddr = addresses.peer;
        let is_in = |prefixes: &[Prefix]| prefixes.iter().any(|prefix| prefix.contains(peer.ip()));
        let options = &self.core.options;
        let client = Client::new(place, peer, is_in(&options.proxies), is_in(&options.forwarded));
        self.settle_in(client);
        self.core.stats.connections.add(1);
        self.core.settle(now, calls, connection, &mut self.clients[place as usize]);
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        if client.closing {
            let _ = self.core.give_back(calls, connection, client, bytes.len());
            return;
        }
        client.has_news |= client.mode == Mode::Idle;
        if self.take(now, calls, connection, cookie, bytes).is_ok() {
            self.core.settle(now, calls, connection, &mut self.clients[cookie as usize]);
        }
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
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        client.unsent_bytes = client.unsent_bytes.saturating_sub(bytes as u64);
        client.pace.on_taken(now, bytes as u64, client.unsent_bytes);
        client.has_news = true;
        if client.unsent_bytes == 0 {
            client.unsent_pieces = 0;
        }
        self.go_on(now, calls, connection, cookie);
    }

    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        while let Some((number, connection, told)) = self.core.streams.told() {
            let client = &mut self.clients[number as usize];
            if client.closed {
                continue;
            }
            client.has_news = true;
            if told.is_err() {
                self.core.abort(calls, connection, client, DropReason::Changed);
                continue;
            }
            self.go_on(now, calls, connection, u64::from(number));
        }
    }

    fn dead(&mut self, _now: Instant, _connection: Connection, cookie: u64, _reason: DeadReason) {
        let Some(client) = self.clients.get_mut(cookie as usize).filter(|client| client.used) else { return };
        let place = client.number;
        self.vacate(place);
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
                Mode::Head => {
                    // what has come of it was kept (RFC 9110 section 15.5.9)
                    let held = self.buffers.octets(client.kept);
                    let _ = self.core.refuse(now, calls, connection, client, Refusal::TimedOut, held);
                }
                Mode::Content => {
                    self.core.abort(calls, connection, client, DropReason::Content);
                }
                Mode::Sending => {
                    self.core.abort(calls, connection, client, DropReason::SlowReader);
                }
            }
        } else if client.pace.is_slow(now, self.core.options.send) && self.core.streams.is_short() {
            self.core.abort(calls, connection, client, DropReason::SlowReader);
        }
        self.core.settle(now, calls, connection, client);
    }

    fn can_move(&self) -> bool {
        true
    }

    fn depart(&mut self, _now: Instant, _connection: Connection, cookie: u64) -> Luggage {
        match self.pack(cookie) {
            Some(packed) => Box::new(packed),
            None => Box::new(()),
        }
    }

    fn arrive<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        let packed = luggage.downcast::<moves::Packed>().ok()?;
        self.unpack(now, calls, connection, *packed)
    }
}

mod moves;
mod rest;
#[cfg(test)]
mod tests;
mod work;
