//! The stream half: a table of connections with generation handles, and what the service may do with them.
//!
//! Readiness is edge-triggered. A connection that may have something to do stands in the ready queue once; a turn reads at
//! most once, writes at most once and goes to the back of the queue while there is more, so no peer holds up another. The
//! service's calls only mark and queue; what follows from them happens in the connection's turn.
//!
//! Bounds: connections in all and a source, a receive window, a queue of unsent bytes for each and a budget for all of them, a
//! time for closed connections to finish. How long an open connection may idle is the service's business (`timer_set`).

use crate::config::Streams as Limits;
use crate::counters::Counters;
use app::{Addresses, CallError, Connection, DeadReason, Listener, Service, Streams};
use base::Instant;
use mio::net::TcpStream;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that one turn reads at most; also what a lingering connection may still send us, a turn.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// Empty queues kept for reuse.
const SPARE_QUEUES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// the service was not asked yet, or has not answered
    Knocked,
    Open,
    /// closed by the service; what is queued goes out
    Closing,
    /// everything went out, with a FIN; waiting for the peer's
    Lingering,
}

struct Conn {
    stream: TcpStream,
    cookie: u64,
    addresses: Addresses,
    phase: Phase,
    /// bytes queued from `queue_at` on
    queue: Vec<u8>,
    queue_at: usize,
    /// bytes delivered and not given back
    delivered: usize,
    readable: bool,
    writable: bool,
    /// the kernel has reported the peer's end or an error, so reads go on until they show it
    hup: bool,
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
    fn unsent(&self) -> usize {
        self.queue.len() - self.queue_at
    }

    /// Whether a turn would do something.
    fn has_work(&self, window_bytes: usize) -> bool {
        let reads = match self.phase {
            Phase::Open => self.readable && !self.eof && self.delivered < window_bytes,
            Phase::Lingering => self.readable,
            Phase::Knocked | Phase::Closing => false,
        };
        let writes = self.writable && self.unsent() > 0;
        reads || writes || (self.phase == Phase::Closing && self.unsent() == 0)
    }
}

struct Slot {
    generation: u32,
    conn: Option<Conn>,
}

/// The connections of one thread.
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    sources: HashMap<IpAddr, usize>,
    timers: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    ready: VecDeque<u32>,
    dead: VecDeque<(Connection, u64, DeadReason)>,
    /// bytes queued over all connections
    queued_bytes: usize,
    /// who waits for others' bytes to go, the longest first
    starved: VecDeque<Connection>,
    spare: Vec<Vec<u8>>,
    limits: Limits,
    counters: Arc<Counters>,
    now: Instant,
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
            spare: Vec::new(),
            limits,
            counters,
            now: Instant::ZERO,
        }
    }

    /// The cycle's time, for what its calls set.
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another connection from `source` is within the limits; counted when not.
    pub(crate) fn admits(&self, source: IpAddr) -> bool {
        if self.len() >= self.limits.connections {
            self.counters.refused_full.add(1);
            return false;
        }
        if self.sources.get(&prefix(source)).is_some_and(|&n| n >= self.limits.per_source) {
            self.counters.refused_source.add(1);
            return false;
        }
        true
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
        service: &mut S,
    ) {
        let queue = self.spare.pop().unwrap_or_default();
        let conn = Conn {
            stream,
            cookie: 0,
            addresses,
            phase: Phase::Knocked,
            queue,
            queue_at: 0,
            delivered: 0,
            readable: true,
            writable: true,
            hup: false,
            eof: false,
            queued: false,
            starved: false,
            deadline: None,
            heaped: None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, conn: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.conn = Some(conn);
        let handle = Connection { index, generation: slot.generation };
        *self.sources.entry(prefix(addresses.peer.ip())).or_insert(0) += 1;
        self.counters.connections.set(self.len() as u64);
        service.knock(self.now, self, listener, handle, addresses);
        let _ = self.reject(handle);
    }

    /// The kernel reported something about the connection at `index`.
    pub(crate) fn on_event(&mut self, index: u32, readable: bool, writable: bool, hup: bool) {
        // an event of a connection that has gone says "try" to its successor, which does no harm
        if let Some(conn) = self.slots.get_mut(index as usize).and_then(|slot| slot.conn.as_mut()) {
            conn.readable |= readable || hup;
            conn.writable |= writable;
            conn.hup |= hup;
            self.make_ready(index);
        }
    }

    fn make_ready(&mut self, index: u32) {
        let window_bytes = self.limits.window_bytes;
        if let Some(conn) = self.slots[index as usize].conn.as_mut()
            && !conn.queued
            && conn.has_work(window_bytes)
        {
            conn.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Whether a turn waits or a death is to be told.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.dead.is_empty() || self.feeds()
    }

    /// When the first timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// At most `turns` turns of ready connections, then the timers that are due, then the dead.
    pub(crate) fn turn<S: Service>(&mut self, turns: usize, service: &mut S, scratch: &mut [u8]) {
        for _ in 0..turns {
            let Some(index) = self.ready.pop_front() else { break };
            if let Some(conn) = self.slots[index as usize].conn.as_mut() {
                conn.queued = false;
                self.turn_of(index, service, scratch);
                self.make_ready(index);
            }
        }
        self.fire_timers(turns, service);
        self.feed(turns, service);
        while let Some((handle, cookie, reason)) = self.dead.pop_front() {
            service.dead(self.now, handle, cookie, reason);
        }
    }

    /// Whether somebody waits for a budget of which something is left again.
    fn feeds(&self) -> bool {
        !self.starved.is_empty() && self.queued_bytes < self.limits.budget_bytes
    }

    /// Tells those whom the budget cut short that there is room: nothing of their own may be queued, whose going would tell.
    fn feed<S: Service>(&mut self, most: usize, service: &mut S) {
        for _ in 0..most.min(self.starved.len()) {
            if !self.feeds() {
                return;
            }
            let Some(handle) = self.starved.pop_front() else { return };
            let Ok(conn) = self.conn(handle) else { continue };
            conn.starved = false;
            let (open, cookie) = (conn.phase == Phase::Open, conn.cookie);
            let room = self.room(handle);
            if open && room > 0 {
                service.sent(self.now, self, handle, cookie, 0, room);
            }
        }
    }

    fn turn_of<S: Service>(&mut self, index: u32, service: &mut S, scratch: &mut [u8]) {
        let generation = self.slots[index as usize].generation;
        let handle = Connection { index, generation };
        self.read(handle, service, scratch);
        self.write(handle, service);
        let Ok(conn) = self.conn(handle) else { return };
        if conn.phase == Phase::Closing && conn.unsent() == 0 {
            if conn.eof || conn.stream.shutdown(Shutdown::Write).is_err() {
                self.end(handle, DeadReason::Closed, false);
            } else {
                conn.phase = Phase::Lingering;
            }
        }
    }

    fn read<S: Service>(&mut self, handle: Connection, service: &mut S, scratch: &mut [u8]) {
        let window_bytes = self.limits.window_bytes;
        let now = self.now;
        let Ok(conn) = self.conn(handle) else { return };
        let open = conn.phase == Phase::Open && !conn.eof;
        let room = if open { window_bytes.saturating_sub(conn.delivered) } else { scratch.len() };
        if !conn.readable || room == 0 || !(open || conn.phase == Phase::Lingering) {
            return;
        }
        let room = room.min(scratch.len());
        let cookie = conn.cookie;
        match conn.stream.read(&mut scratch[..room]) {
            Ok(0) if open => {
                conn.eof = true;
                service.eof(now, self, handle, cookie);
            }
            Ok(0) => self.end(handle, DeadReason::Closed, false),
            Ok(n) => {
                // a short read has emptied the socket, unless the end was already announced
                conn.readable = n == room || conn.hup;
                if open {
                    conn.delivered += n;
                    self.counters.stream_received.add(n as u64);
                    service.recv(now, self, handle, cookie, &scratch[..n]);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => conn.readable = false,
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::TimedOut => self.end(handle, DeadReason::TimedOut, false),
                _ => self.end(handle, DeadReason::Reset, false),
            },
        }
    }

    fn write<S: Service>(&mut self, handle: Connection, service: &mut S) {
        let now = self.now;
        let Ok(conn) = self.conn(handle) else { return };
        if conn.unsent() == 0 || !conn.writable {
            return;
        }
        match conn.stream.write(&conn.queue[conn.queue_at..]) {
            Ok(n) => {
                conn.queue_at += n;
                let (open, cookie, emptied) = (conn.phase == Phase::Open, conn.cookie, conn.unsent() == 0);
                if emptied {
                    conn.queue_at = 0;
                    let mut queue = std::mem::take(&mut conn.queue);
                    queue.clear();
                    self.keep(queue);
                }
                self.counters.stream_sent.add(n as u64);
                self.queued_bytes -= n;
                if open {
                    let room = self.room(handle);
                    service.sent(now, self, handle, cookie, n, room);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => conn.writable = false,
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::TimedOut => self.end(handle, DeadReason::TimedOut, false),
                _ => self.end(handle, DeadReason::Reset, false),
            },
        }
    }

    fn fire_timers<S: Service>(&mut self, most: usize, service: &mut S) {
        for _ in 0..most {
            let now = self.now;
            let Some(&Reverse((at, index, generation))) = self.timers.peek() else { return };
            if at > now {
                return;
            }
            self.timers.pop();
            let handle = Connection { index, generation };
            let Ok(conn) = self.conn(handle) else { continue };
            // an entry is the connection's own only if it is the earliest; others were superseded
            if conn.heaped != Some(at) {
                continue;
            }
            conn.heaped = None;
            match conn.deadline {
                Some(due) if due <= now => {
                    conn.deadline = None;
                    if conn.phase == Phase::Open {
                        let cookie = conn.cookie;
                        service.timer(now, self, handle, cookie);
                    } else {
                        self.counters.linger_expired.add(1);
                        self.end(handle, DeadReason::TimedOut, true);
                    }
                }
                Some(due) => self.schedule(handle, due),
                None => {}
            }
        }
    }

    fn schedule(&mut self, handle: Connection, at: Instant) {
        let Ok(conn) = self.conn(handle) else { return };
        conn.deadline = Some(at);
        if conn.heaped.is_none_or(|heaped| at < heaped) {
            conn.heaped = Some(at);
            self.timers.push(Reverse((at, handle.index, handle.generation)));
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
        let source = prefix(conn.addresses.peer.ip());
        if let Some(n) = self.sources.get_mut(&source) {
            *n -= 1;
            if *n == 0 {
                self.sources.remove(&source);
            }
        }
        if conn.phase == Phase::Knocked {
            self.counters.rejected.add(1);
        } else {
            self.counters.ended.add(1);
            self.dead.push_back((handle, conn.cookie, reason));
        }
        self.queued_bytes -= conn.unsent();
        let mut queue = conn.queue;
        queue.clear();
        self.keep(queue);
        self.counters.connections.set(self.len() as u64);
    }

    fn keep(&mut self, queue: Vec<u8>) {
        if queue.capacity() > 0 && self.spare.len() < SPARE_QUEUES {
            self.spare.push(queue);
        }
    }

    /// Resets every connection and tells the service.
    pub(crate) fn abort_all<S: Service>(&mut self, service: &mut S) {
        for index in 0..self.slots.len() as u32 {
            let generation = self.slots[index as usize].generation;
            self.end(Connection { index, generation }, DeadReason::Aborted, true);
        }
        while let Some((handle, cookie, reason)) = self.dead.pop_front() {
            service.dead(self.now, handle, cookie, reason);
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

impl Streams for Table {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        if conn.phase != Phase::Knocked {
            return Err(CallError::WrongState);
        }
        conn.phase = Phase::Open;
        conn.cookie = cookie;
        self.counters.accepted.add(1);
        self.make_ready(connection.index);
        Ok(())
    }

    fn reject(&mut self, connection: Connection) -> Result<(), CallError> {
        if self.conn(connection)?.phase != Phase::Knocked {
            return Err(CallError::WrongState);
        }
        self.end(connection, DeadReason::Aborted, true);
        Ok(())
    }

    fn send(&mut self, connection: Connection, bytes: &[u8]) -> Result<usize, CallError> {
        let most = self.limits.queue_bytes;
        if self.conn(connection)?.phase != Phase::Open {
            return Err(CallError::WrongState);
        }
        if self.conn(connection)?.queue.capacity() == 0
            && let Some(spare) = self.spare.pop()
        {
            self.conn(connection)?.queue = spare;
        }
        let budget = self.limits.budget_bytes.saturating_sub(self.queued_bytes);
        let conn = self.conn(connection)?;
        let wanted = bytes.len().min(most.saturating_sub(conn.unsent()));
        let taken = wanted.min(budget);
        let starves = taken < wanted && !conn.starved;
        conn.starved |= starves;
        if conn.queue_at > 0 && conn.queue.len() + taken > most {
            conn.queue.drain(..conn.queue_at);
            conn.queue_at = 0;
        }
        conn.queue.extend_from_slice(&bytes[..taken]);
        self.queued_bytes += taken;
        if taken < wanted {
            self.counters.budget_spent.add(1);
        }
        if starves {
            self.starved.push_back(connection);
        }
        self.make_ready(connection.index);
        Ok(taken)
    }

    fn room(&self, connection: Connection) -> usize {
        match self.slots.get(connection.index as usize) {
            Some(Slot { generation, conn: Some(conn) })
                if *generation == connection.generation && conn.phase == Phase::Open =>
            {
                let budget = self.limits.budget_bytes.saturating_sub(self.queued_bytes);
                self.limits.queue_bytes.saturating_sub(conn.unsent()).min(budget)
            }
            _ => 0,
        }
    }

    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        conn.delivered = conn.delivered.checked_sub(bytes).ok_or(CallError::TooMuch)?;
        self.make_ready(connection.index);
        Ok(())
    }

    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        let end = self.now + self.limits.linger;
        let conn = self.conn(connection)?;
        match conn.phase {
            Phase::Knocked => return Err(CallError::WrongState),
            Phase::Open => {
                conn.phase = Phase::Closing;
                self.schedule(connection, end);
                self.make_ready(connection.index);
            }
            Phase::Closing | Phase::Lingering => {}
        }
        Ok(())
    }

    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        self.conn(connection)?;
        self.end(connection, DeadReason::Aborted, true);
        Ok(())
    }

    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        if conn.phase == Phase::Open || conn.phase == Phase::Knocked {
            match at {
                Some(at) => self.schedule(connection, at),
                None => conn.deadline = None,
            }
        }
        Ok(())
    }
}
