//! The client as a service of the stack: connections that each have some requests under way, and some that have one at a time and ask
//! seldom, by which the latency is told that a client sees which is not itself the load.
//!
//! A connection that fails is not made again while a load runs: what fails here is counted, and the load is none. After start-up nothing is
//! allocated for a request.

use super::answer::{self, Answer, Kind};
use super::outcome::Outcome;
use super::schedule::Schedule;
use super::workload::Records;
use app::{Connection, DeadReason, Service, Streams};
use base::Instant;
use base::rng::Rng;
use std::collections::VecDeque;

/// Room for requests that the stack did not take yet.
const OUT_BYTES: usize = 64 << 10;

/// How requests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// connections that make the load
    pub(crate) connections: u32,
    /// requests under way on each of them, at most
    pub(crate) depth: u32,
    /// connections that ask seldom
    pub(crate) probes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    kind: Kind,
    record: u32,
    due: Instant,
}

#[derive(Debug)]
struct Conn {
    connection: Option<Connection>,
    stands: bool,
    failed: bool,
    flights: VecDeque<Flight>,
    /// of an answer that is not whole yet
    held: Vec<u8>,
    /// requests that the stack did not take yet
    out: Vec<u8>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// nothing
    Nothing,
    /// each record is stored, one after the other
    Stores(u32),
    /// records at random
    Records,
}

/// The client.
#[derive(Debug)]
pub(crate) struct Client {
    manner: Manner,
    pub(super) records: Records,
    pub(super) outcome: Outcome,
    pub(super) schedule: Schedule,
    pub(super) probing: Schedule,
    asks: Asks,
    rng: Rng,
    conns: Vec<Conn>,
    /// the connections that may ask, once for each request that they may have under way
    free: VecDeque<u32>,
    free_probes: VecDeque<u32>,
    under_way: u64,
}

impl Client {
    /// A client with nothing to do yet.
    pub(super) fn new(records: Records, manner: Manner, seed: u64) -> Client {
        let depth = |index: u32| if index < manner.connections { manner.depth } else { 1 };
        let conn = |index| Conn {
            connection: None,
            stands: false,
            failed: false,
            flights: VecDeque::with_capacity(depth(index) as usize),
            held: Vec::new(),
            out: Vec::new(),
        };
        Client {
            manner,
            records,
            outcome: Outcome::new(None),
            schedule: Schedule::never(),
            probing: Schedule::never(),
            asks: Asks::Nothing,
            rng: Rng::new(seed),
            conns: (0..manner.connections + manner.probes).map(conn).collect(),
            free: VecDeque::with_capacity((manner.connections * manner.depth) as usize),
            free_probes: VecDeque::with_capacity(manner.probes as usize),
            under_way: 0,
        }
    }

    /// Connections in all.
    pub(super) fn count(&self) -> u32 {
        self.conns.len() as u32
    }

    /// What became of asking for a connection.
    pub(super) fn on_asked(&mut self, index: u32, outcome: Result<Connection, String>) {
        match outcome {
            Ok(connection) => self.conns[index as usize].connection = Some(connection),
            Err(why) => self.fail(index, &why),
        }
    }

    /// A connection from `index` on that was not asked for.
    pub(super) fn unasked(&self, index: u32) -> Option<u32> {
        let is = |conn: &Conn| conn.connection.is_none() && !conn.failed;
        (index..self.count()).find(|index| is(&self.conns[*index as usize]))
    }

    /// Those that failed are to be asked for again.
    pub(super) fn renew(&mut self) {
        for conn in self.conns.iter_mut().filter(|conn| conn.failed) {
            (conn.connection, conn.failed) = (None, false);
            conn.held.clear();
            conn.out.clear();
        }
    }

    /// Connections that do not stand.
    pub(super) fn lacking(&self) -> u64 {
        self.conns.iter().filter(|conn| !conn.stands).count() as u64
    }

    /// Connections that neither stand nor failed.
    pub(super) fn pending(&self) -> usize {
        self.conns.iter().filter(|conn| !conn.stands && !conn.failed).count()
    }

    /// Counts from here on with `outcome`. What went wrong since the last one was taken is told with it.
    pub(super) fn count_anew(&mut self, outcome: Outcome) {
        let before = std::mem::replace(&mut self.outcome, outcome);
        self.outcome.inherit(before);
    }

    /// Begins to ask, or ends.
    pub(super) fn ask(&mut self, asks: Asks) {
        self.asks = asks;
        self.free.clear();
        self.free_probes.clear();
        let ready = |conns: &[Conn], index: u32| conns[index as usize].stands && !conns[index as usize].failed;
        for _ in 0..self.manner.depth {
            self.free.extend((0..self.manner.connections).filter(|index| ready(&self.conns, *index)));
        }
        if asks == Asks::Records {
            let probes = self.manner.connections..self.count();
            self.free_probes.extend(probes.filter(|index| ready(&self.conns, *index)));
        }
    }

    /// Requests without an answer.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Whether there is a connection left.
    pub(super) fn is_alive(&self) -> bool {
        self.conns.iter().any(|conn| conn.stands && !conn.failed)
    }

    /// Whether all that was to be stored was asked for.
    pub(super) fn has_stored_all(&self) -> bool {
        matches!(self.asks, Asks::Stores(record) if record >= self.records.count())
    }

    /// When [`Client::pump`] has something to do.
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        let of = |free: &VecDeque<u32>, schedule: &Schedule| {
            if free.is_empty() { Instant::MAX } else { schedule.next_at(now) }
        };
        of(&self.free, &self.schedule).min(of(&self.free_probes, &self.probing))
    }

    /// Between events: gives due requests to connections that may ask. True when it did something.
    pub(super) fn pump<C: Streams>(&mut self, now: Instant, calls: &mut C) -> bool {
        let mut busy = false;
        while !self.free.is_empty()
            && !self.has_stored_all()
            && let Some(due) = self.schedule.take(now)
            && let Some(index) = self.free.pop_front()
        {
            self.request(calls, index, due);
            busy = true;
        }
        while !self.free_probes.is_empty()
            && let Some(due) = self.probing.take(now)
            && let Some(index) = self.free_probes.pop_front()
        {
            self.request(calls, index, due);
            busy = true;
        }
        busy
    }

    /// Sends a request.
    fn request<C: Streams>(&mut self, calls: &mut C, index: u32, due: Instant) {
        let (kind, record) = match &mut self.asks {
            Asks::Nothing => return,
            Asks::Stores(next) => {
                *next += 1;
                (Kind::Set, *next - 1)
            }
            Asks::Records => match self.records.draw(&mut self.rng) {
                (record, true) => (Kind::Get, record),
                (record, false) => (Kind::Set, record),
            },
        };
        let conn = &mut self.conns[index as usize];
        if conn.failed {
            return;
        }
        conn.flights.push_back(Flight { kind, record, due });
        self.under_way += 1;
        self.outcome.sent += 1;
        answer::write_request(&self.records, kind, record, &mut conn.out);
        self.flush(calls, index);
    }

    /// Hands requests to the stack, as far as it takes them.
    fn flush<C: Streams>(&mut self, calls: &mut C, index: u32) {
        let conn = &mut self.conns[index as usize];
        let (Some(connection), false) = (conn.connection, conn.out.is_empty()) else { return };
        match calls.send(connection, &conn.out) {
            Ok(taken) if taken == conn.out.len() => conn.out.clear(),
            Ok(taken) => drop(conn.out.drain(..taken)),
            Err(error) => self.fail(index, &error.to_string()),
        }
    }

    /// A connection is of no use any more.
    #[cold]
    fn fail(&mut self, index: u32, why: &str) {
        let conn = &mut self.conns[index as usize];
        if !conn.failed {
            (conn.failed, conn.stands) = (true, false);
            self.under_way -= conn.flights.len() as u64;
            conn.flights.clear();
            self.outcome.fail(why);
        }
    }

    /// Takes what came; None when it is not what was asked for.
    #[inline]
    fn read(&mut self, now: Instant, index: u32, bytes: &[u8]) -> Option<usize> {
        let mut used = 0;
        let is_probe = index >= self.manner.connections;
        while used < bytes.len() {
            let conn = &mut self.conns[index as usize];
            let Flight { kind, record, due } = *conn.flights.front()?;
            let Some((answer, taken)) = answer::read(&self.records, kind, record, &bytes[used..]) else { break };
            conn.flights.pop_front();
            self.under_way -= 1;
            used += taken;
            let in_span = !self.schedule.is_over(now);
            let took_ns = now.saturating_since(due).as_nanos() as u64;
            self.outcome.take(answer, [due.as_nanos(), took_ns], is_probe, in_span);
            if is_probe {
                self.free_probes.push_back(index)
            } else {
                self.free.push_back(index)
            }
            if answer == Answer::Wrong {
                return None;
            }
        }
        Some(used)
    }

    /// Ends all connections.
    pub(super) fn close<C: Streams>(&mut self, calls: &mut C) {
        for connection in self.conns.iter_mut().filter_map(|conn| conn.connection.take()) {
            let _ = calls.abort(connection);
        }
    }
}

impl Service for Client {
    fn connected<C: Streams>(
        &mut self,
        _now: Instant,
        _calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        match outcome {
            Ok(connection) => {
                let conn = &mut self.conns[cookie as usize];
                (conn.connection, conn.stands) = (Some(connection), true);
                conn.out.reserve(OUT_BYTES);
            }
            Err(reason) => self.fail(cookie as u32, &format!("not connected: {reason:?}")),
        }
    }

    #[inline]
    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        self.outcome.bytes += bytes.len() as u64;
        let index = cookie as u32;
        let mut held = std::mem::take(&mut self.conns[index as usize].held);
        let used = if held.is_empty() {
            let used = self.read(now, index, bytes);
            held.extend_from_slice(&bytes[used.unwrap_or(bytes.len())..]);
            used
        } else {
            held.extend_from_slice(bytes);
            let used = self.read(now, index, &held);
            held.drain(..used.unwrap_or(held.len()));
            used
        };
        self.conns[index as usize].held = held;
        if used.is_none() {
            let _ = calls.abort(connection);
            self.fail(index, "a wrong answer");
        }
        self.pump(now, calls);
    }

    fn eof<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        self.fail(cookie as u32, "the server ended a connection");
        let _ = calls.close(connection);
    }

    fn sent<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _connection: Connection,
        cookie: u64,
        _bytes: usize,
        _room: usize,
    ) {
        self.flush(calls, cookie as u32);
    }

    fn dead(&mut self, _now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        // one that failed may have a successor by now
        if let Some(conn) = self.conns.get_mut(cookie as usize)
            && conn.connection.take_if(|known| *known == connection).is_some()
        {
            self.fail(cookie as u32, &format!("a connection is dead: {reason:?}"));
        }
    }
}
