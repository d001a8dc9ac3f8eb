//! The stream half: a table of connections with generation handles, and what the service may do with them.
//!
//! Readiness is edge-triggered. A connection that may have something to do stands in the ready queue once; a turn reads at
//! most once, writes at most once and goes to the back of the queue while there is more, so no peer holds up another. The
//! service's calls only mark and queue; what follows from them happens in the connection's turn.
//!
//! Objects go out by vectored writes from where they lie: a header and its body leave in one system call, so Nagle's
//! algorithm is off, and MSG_MORE holds a part-filled segment back only while more is queued behind it.
//!
//! Bounds: connections in all and a source, a receive window, a queue of unsent bytes and of ranges for each and a budget of
//! owned bytes for all of them, a time for closed connections to finish, and the kernel's for peers that are gone or take nothing
//! (`options`). How long an open connection may idle is the service's business (`timer_set`).

mod asking;
mod calls;
mod moves;
mod timers;
mod turns;

pub(crate) use asking::Asks;
pub(crate) use moves::Parcel;

use crate::config::Streams as Limits;
use crate::counters::Counters;
use crate::outbox::Outbox;
use crate::unasked::Unasked;
use app::{Addresses, Alarms, CallError, Connection, DeadReason, Listener, Service, Streams, Versions};
use base::Instant;
use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that one turn reads at most; also what a closed connection may still send us, a turn.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// What of a connection is watched. Urgent data is ordinary data (RFC 6093 section 6), but the kernel divides reads at it.
pub(crate) const WATCHED: Interest = Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);
/// Flushes of one cycle, each but the first for what the one before has brought about.
const FLUSHES: usize = 4;
/// Empty queues kept for reuse, and made with the table.
const SPARE_QUEUES: usize = 64;

/// Our half of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// the service writes
    No,
    /// to be sent after what is queued
    Wanted,
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// the service was not asked yet, or has not answered
    Knocked,
    /// the service asked for it; the kernel has not said yet what became of that
    Asking,
    /// the same, and it will not be; the service was not told yet
    Failed(DeadReason),
    Open,
    /// closed by the service; what is queued goes out, what comes is thrown away
    Closing,
    /// everything went out, with a FIN; waiting for the peer's
    Lingering,
}

struct Conn {
    stream: TcpStream,
    cookie: u64,
    addresses: Addresses,
    /// whose listener it came to, by [`app::PerSource`]; 0: it was asked for, or the service has no bound
    service: u8,
    phase: Phase,
    queue: Outbox,
    fin: Fin,
    /// most of `delivered`
    window_bytes: usize,
    /// bytes delivered and not given back
    delivered: usize,
    /// something was delivered at all
    used: bool,
    readable: bool,
    writable: bool,
    /// the kernel has reported the peer's end or an error, so reads go on until they show it
    hup: bool,
    /// the kernel has reported an error, which no read may come to
    broken: bool,
    /// there is urgent data, at which a read stops short, so reads go on until nothing is left
    urgent: bool,
    eof: bool,
    /// stands in the ready queue
    queued: bool,
    /// stands among those that the budget cut short
    starved: bool,
    /// the service's timer, or after `close` the end of lingering
    deadline: Option<Instant>,
    /// the earliest entry that stands in the timer heap
    heaped: Option<Instant>,
}

impl Conn {
    /// One of which nothing is known yet.
    fn new(stream: TcpStream, addresses: Addresses, window_bytes: usize) -> Conn {
        Conn {
            stream,
            cookie: 0,
            addresses,
            service: 0,
            phase: Phase::Knocked,
            queue: Outbox::default(),
            fin: Fin::No,
            window_bytes,
            delivered: 0,
            used: false,
            readable: true,
            writable: true,
            hup: false,
            broken: false,
            urgent: false,
            eof: false,
            queued: false,
            starved: false,
            deadline: None,
            heaped: None,
        }
    }

    /// Whom it is counted for.
    fn source(&self) -> (u8, IpAddr) {
        (self.service, prefix(self.addresses.peer.ip()))
    }

    /// Whether everything has gone out and our end of the stream is due.
    fn fin_is_due(&self) -> bool {
        self.queue.is_empty() && (self.fin == Fin::Wanted || self.phase == Phase::Closing)
    }

    /// Whether a turn would do something.
    fn has_work(&self) -> bool {
        match self.phase {
            Phase::Asking => return self.writable || self.hup,
            Phase::Failed(_) => return true,
            _ => {}
        }
        let writes = self.writable && !self.queue.is_empty();
        self.reads() || writes || self.fin_is_due() || self.broken
    }

    /// Whether a turn would read.
    fn reads(&self) -> bool {
        let takes = match self.phase {
            Phase::Open => self.delivered < self.window_bytes,
            // and throws it away: a peer that sends first and reads then would else never take what is queued
            Phase::Closing | Phase::Lingering => true,
            Phase::Knocked | Phase::Asking | Phase::Failed(_) => false,
        };
        takes && self.readable && !self.eof
    }
}

/// What the service is told last of a connection.
enum Last {
    Dead(Connection, u64, DeadReason),
    /// it never was one
    NotConnected(u64, DeadReason),
}

struct Slot {
    generation: u32,
    conn: Option<Conn>,
}

/// The connections of one thread.
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// connections by service and source
    sources: HashMap<(u8, IpAddr), usize>,
    timers: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    ready: VecDeque<Connection>,
    dead: VecDeque<Last>,
    /// owned bytes queued over all connections
    queued_bytes: usize,
    /// who waits for others' bytes to go, the longest first
    starved: VecDeque<Connection>,
    /// who waits for chunks that others hold
    unheld: VecDeque<Connection>,
    spare: Vec<Outbox>,
    versions: Versions,
    limits: Limits,
    counters: Arc<Counters>,
    now: Instant,
    draining: bool,
    /// what connections are asked for with
    asks: Option<Asks>,
    /// the service was told something after the last flush
    unsettled: bool,
    alarms: Alarms,
    /// datagrams that the service sends by itself
    pub(crate) unasked: Unasked,
}

impl Table {
    pub(crate) fn new(limits: Limits, counters: Arc<Counters>) -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            sources: HashMap::new(),
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
            dead: VecDeque::new(),
            queued_bytes: 0,
            starved: VecDeque::new(),
            unheld: VecDeque::new(),
            spare: (0..SPARE_QUEUES).map(|_| Outbox::ready()).collect(),
            versions: Versions::new(),
            limits,
            counters,
            now: Instant::ZERO,
            draining: false,
            asks: None,
            unsettled: false,
            alarms: Alarms::new(),
            unasked: Unasked::default(),
        }
    }

    /// One that can ask for connections and send datagrams.
    pub(crate) fn with(mut self, asks: Option<Asks>, unasked: Unasked) -> Table {
        (self.asks, self.unasked) = (asks, unasked);
        self
    }

    /// The cycle's time, for what its calls set.
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.unsettled = false;
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another connection to `listener` from `source` is within the limits; counted when not.
    pub(crate) fn admits(&self, listener: Listener, source: IpAddr) -> bool {
        if self.is_full() {
            self.counters.refused_full.add(1);
            return false;
        }
        let service = self.limits.services.service(listener);
        let most = self.limits.services.most(service).unwrap_or(self.limits.per_source);
        if self.sources.get(&(service, prefix(source))).is_some_and(|&n| n >= most) {
            self.counters.refused_source.add(1);
            return false;
        }
        true
    }

    /// Whether it has its most connections.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limits.connections
    }

    /// The place that the next connection will have, for its token.
    pub(crate) fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Takes a connection into the table, at [`Table::next_index`], and asks the service.
    pub(crate) fn knock<S: Service>(
        &mut self,
        stream: TcpStream,
        listener: Listener,
        addresses: Addresses,
        window_bytes: usize,
        service: &mut S,
    ) {
        let service_of = self.limits.services.service(listener);
        let handle = self.insert(Conn { service: service_of, ..Conn::new(stream, addresses, window_bytes) });
        service.knock(self.now, self, listener, handle, addresses);
        let _ = self.reject(handle);
    }

    /// Puts a connection at [`Table::next_index`].
    fn insert(&mut self, mut conn: Conn) -> Connection {
        conn.queue = self.spare.pop().unwrap_or_default();
        let source = conn.source();
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, conn: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.conn = Some(conn);
        let handle = Connection { index, generation: slot.generation };
        *self.sources.entry(source).or_insert(0) += 1;
        self.counters.connections.set(self.len() as u64);
        handle
    }

    /// One connection less of where it came from.
    fn forget_source(&mut self, source: (u8, IpAddr)) {
        if let Some(n) = self.sources.get_mut(&source) {
            *n -= 1;
            if *n == 0 {
                self.sources.remove(&source);
            }
        }
    }

    /// The kernel reported something about the connection at `index`.
    pub(crate) fn on_event(&mut self, index: u32, event: &Event) {
        // an event of a connection that has gone says "try" to its successor, which does no harm
        if let Some(conn) = self.slots.get_mut(index as usize).and_then(|slot| slot.conn.as_mut()) {
            let hup = event.is_read_closed() || event.is_error();
            conn.readable |= event.is_readable() || hup;
            conn.writable |= event.is_writable();
            conn.hup |= hup;
            conn.broken |= event.is_error();
            conn.urgent |= event.is_priority();
            self.make_ready(index);
        }
    }

    fn make_ready(&mut self, index: u32) {
        let Slot { generation, conn } = &mut self.slots[index as usize];
        if let Some(conn) = conn
            && !conn.queued
            && conn.has_work()
        {
            conn.queued = true;
            self.ready.push_back(Connection { index, generation: *generation });
        }
    }

    /// Whether a turn waits or a death is to be told.
    pub(crate) fn has_work(&self) -> bool {
        self.unsettled || !self.ready.is_empty() || !self.dead.is_empty() || self.feeds()
    }

    /// When the first timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        timer.into_iter().chain(self.alarms.next()).min()
    }

    /// The cycle's last event. What it queues has another turn, and what that tells another flush; at its bound the next cycle goes on.
    pub(crate) fn flush<S: Service>(&mut self, turns: usize, service: &mut S, scratch: &mut [u8]) {
        for _ in 0..FLUSHES {
            let before = (self.ready.len(), self.dead.len());
            service.flush(self.now, self);
            if (self.ready.len(), self.dead.len()) == before {
                return;
            }
            self.turn(turns, service, scratch);
        }
        self.unsettled = true;
    }

    /// At most `turns` turns of ready connections, then the timers that are due, then the dead.
    pub(crate) fn turn<S: Service>(&mut self, turns: usize, service: &mut S, scratch: &mut [u8]) {
        for _ in 0..turns {
            let Some(handle) = self.ready.pop_front() else { break };
            // one that has gone since is not the one that has its place now
            if let Ok(conn) = self.conn(handle) {
                conn.queued = false;
                self.turn_of(handle, service, scratch);
                self.make_ready(handle.index);
            }
        }
        self.fire_timers(turns, service);
        self.ring_alarms(turns, service);
        self.feed(turns, service);
        // what asks again and fails at once is told in the next cycle
        for _ in 0..self.dead.len() {
            self.tell_last(service);
        }
    }

    fn ring_alarms<S: Service>(&mut self, most: usize, service: &mut S) {
        for _ in 0..most {
            let Some(cookie) = self.alarms.pop(self.now) else { return };
            service.alarm(self.now, self, cookie);
        }
    }

    /// Tells what is to be told last of the connection that ended first.
    fn tell_last<S: Service>(&mut self, service: &mut S) {
        match self.dead.pop_front() {
            Some(Last::Dead(handle, cookie, reason)) => service.dead(self.now, handle, cookie, reason),
            Some(Last::NotConnected(cookie, reason)) => service.connected(self.now, self, cookie, Err(reason)),
            None => {}
        }
    }

    /// Whether somebody waits for what all share and of which something is left again.
    fn feeds(&self) -> bool {
        self.feeds_starved() || self.feeds_unheld()
    }

    fn feeds_starved(&self) -> bool {
        !self.starved.is_empty() && self.queued_bytes < self.limits.budget_bytes
    }

    fn feeds_unheld(&self) -> bool {
        !self.unheld.is_empty() && self.versions.chunks_left() > 0
    }

    /// Tells those who were cut short by what all share that there is room: nothing of their own may be queued, whose going would tell.
    fn feed<S: Service>(&mut self, most: usize, service: &mut S) {
        for _ in 0..most.min(self.starved.len() + self.unheld.len()) {
            let unheld = self.feeds_unheld();
            let next = match unheld {
                true => self.unheld.pop_front(),
                false if self.feeds_starved() => self.starved.pop_front(),
                false => None,
            };
            let Some(handle) = next else { return };
            let Ok(conn) = self.conn(handle) else { continue };
            conn.starved = false;
            let (open, cookie) = (conn.phase == Phase::Open, conn.cookie);
            let room = self.room(handle);
            // what is held needs no room of bytes
            if open && (room > 0 || unheld) {
                service.sent(self.now, self, handle, cookie, 0, room);
            }
            self.close_if_drained(handle);
        }
    }

    /// Removes a connection, with a reset if asked; the service hears of it if it had accepted it.
    fn end(&mut self, handle: Connection, reason: DeadReason, reset: bool) {
        if self.conn(handle).is_err() {
            return;
        }
        let slot = &mut self.slots[handle.index as usize];
        let Some(conn) = slot.conn.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(handle.index);
        if reset {
            reset_on_close(&conn.stream);
        }
        self.forget_source(conn.source());
        match conn.phase {
            Phase::Knocked => self.counters.rejected.add(1),
            Phase::Asking | Phase::Failed(_) => {
                self.counters.connects_failed.add(1);
                self.dead.push_back(Last::NotConnected(conn.cookie, reason));
            }
            Phase::Open | Phase::Closing | Phase::Lingering => {
                self.counters.ended.add(1);
                self.dead.push_back(Last::Dead(handle, conn.cookie, reason));
            }
        }
        self.queued_bytes -= conn.queue.owned_bytes();
        let mut queue = conn.queue;
        queue.clear(&mut self.versions);
        keep(&mut self.spare, queue);
        self.counters.connections.set(self.len() as u64);
        // at most one entry for each of those that are left, and as many again
        let Table { slots, starved, unheld, .. } = self;
        for waiting in [starved, unheld] {
            if waiting.len() > 2 * slots.len() {
                waiting.retain(|one| slots[one.index as usize].generation == one.generation);
            }
        }
    }

    /// Closes what is idle, now and from here on.
    pub(crate) fn drain(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            self.close_if_drained(Connection { index, generation: self.slots[index as usize].generation });
        }
    }

    /// A connection that was of use, and on which neither side owes the other anything, is idle. One that has not brought
    /// anything yet may be about to: its service's timer bounds it.
    fn close_if_drained(&mut self, handle: Connection) {
        if !self.draining {
            return;
        }
        let Ok(conn) = self.conn(handle) else { return };
        let owes_nothing = conn.queue.is_empty() && !conn.starved && conn.delivered == 0;
        if conn.phase == Phase::Open && conn.used && owes_nothing {
            // the handle was looked up above
            let _ = self.close(handle);
        }
    }

    /// Lets go of content that was replaced, and of the connections that would not finish in time with what no later version has.
    pub(crate) fn release_old_content(&mut self) {
        if !self.versions.sweep() {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            let Slot { generation, conn: Some(conn) } = &mut self.slots[index as usize] else { continue };
            if !conn.queue.carry_over(&mut self.versions) {
                let handle = Connection { index, generation: *generation };
                self.counters.drain_expired.add(1);
                self.end(handle, DeadReason::Aborted, true);
            }
        }
        self.versions.sweep();
    }

    /// Resets every connection and tells the service.
    pub(crate) fn abort_all<S: Service>(&mut self, service: &mut S) {
        for index in 0..self.slots.len() as u32 {
            let generation = self.slots[index as usize].generation;
            self.end(Connection { index, generation }, DeadReason::Aborted, true);
        }
        // what is asked for meanwhile ends with the table, without a word
        for _ in 0..self.dead.len() {
            self.tell_last(service);
        }
    }

    fn conn(&mut self, handle: Connection) -> Result<&mut Conn, CallError> {
        match self.slots.get_mut(handle.index as usize) {
            Some(slot) if slot.generation == handle.generation => slot.conn.as_mut().ok_or(CallError::NoConnection),
            _ => Err(CallError::NoConnection),
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for conn in self.slots.iter().filter_map(|slot| slot.conn.as_ref()) {
            reset_on_close(&conn.stream);
        }
        self.counters.connections.set(0);
    }
}

/// Keeps an empty queue's memory for the next connection that sends.
fn keep(spare: &mut Vec<Outbox>, queue: Outbox) {
    if queue.has_memory() && spare.len() < SPARE_QUEUES {
        spare.push(queue);
    }
}

/// Closing the stream then sends a reset and frees the connection at once.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    // it fails only for a socket that is gone already
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// What connections are counted by: an IPv4 address, an IPv6 /56.
fn prefix(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !(u128::MAX >> 56)).into()),
    }
}

#[cfg(test)]
mod tests;
