//! A flow group goes from one stack to another, that of another thread, and its connections go on as if nothing had happened:
//! the same sequence numbers, windows, estimates, timers and queues.
//!
//! [`Engine::depart`] takes everything of the group out: connections with what they need to send, what is in flight and what came
//! out of order; half-open entries; TIME-WAIT, with the time that is left of it. [`Engine::arrive`] puts it in. Between the two the
//! group belongs to nobody, and its packets have to wait: that is the caller's to see to, as is the order of what the first stack
//! has sent and the second will send. Both stacks have the same clock, secret and listeners. So deadlines stay what they are,
//! initial numbers go on growing (RFC 6528), and a cookie that the one has sent is known to the other.
//!
//! What the service keeps goes along as [`app::Luggage`]. Versions of content are held by their `Arc`s on the way, owned bytes are
//! copied. A connection that has ended stays until the service was told. One that finds no room where it arrives is reset, and
//! counted; a handshake is forgotten, and its peer's next segment answered as a stranger's.
//!
//! Left out: what the stacks know of strangers (challenges sent this second), which has no connection to belong to.

use super::active::Active;
use super::calls::Calls;
use super::connection::{Connection, Flags, NONE};
use super::counters::Event;
use super::engine::{Engine, Named, Outlet, forget};
use super::half_open::HalfOpen;
use super::hop::{Hop, pseudo};
use super::inflight::{Board, Record};
use super::members::{Members, Ours};
use super::output::{lay_out, timestamps};
use super::state::State;
use super::tick::Tick;
use super::time_wait::Waiting;
use super::tuple::Tuple;
use super::{reassembly, send};
use app::{DeadReason, Luggage, Service};
use base::Instant;
use std::sync::Arc;
use wire::Sum;
use wire::flow::Groups;
use wire::tcp::{self, Header, PayloadSum};

/// A flow group on its way from one stack to another. Whoever drops it drops its connections without a word.
#[derive(Debug)]
#[must_use = "connections that do not arrive anywhere are gone without a word"]
pub struct Departure {
    group: u16,
    connections: Vec<Departed>,
    half_open: Vec<Handshake>,
    waiting: Vec<Waiting>,
    /// when the stack made its last cookie
    cookies_at: Option<Instant>,
}

const fn crosses_threads<T: Send>() {}
const _: () = crosses_threads::<Departure>();

/// What became of a flow group that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// connections that go on
    pub connections: usize,
    /// handshakes that do
    pub half_open: usize,
    /// connections that were reset and handshakes that were forgotten for want of room
    pub refused: usize,
}

/// A connection.
#[derive(Debug)]
struct Departed {
    connection: Connection,
    /// stands in the queue of those with something to do
    ready: bool,
    /// when its timer fires
    timer_at: Option<Instant>,
    sending: Option<Box<Sending>>,
    beyond: Option<reassembly::Packed>,
    luggage: Luggage,
}

/// What a connection has that has, or had, something to send.
#[derive(Debug)]
struct Sending {
    active: Active,
    /// the block was lent
    lent: bool,
    records: Vec<Record>,
    ranges: Vec<send::Packed>,
}

/// A half-open entry.
#[derive(Debug)]
struct Handshake {
    entry: HalfOpen,
    timer_at: Option<Instant>,
}

/// The reset of a connection that has no place.
#[derive(Debug)]
pub(super) struct Farewell {
    tuple: Tuple,
    hop: Hop,
    header: Header<'static>,
}

impl Departure {
    /// A group of which there is nothing.
    pub(crate) fn nothing(group: u16) -> Departure {
        Departure { group, connections: Vec::new(), half_open: Vec::new(), waiting: Vec::new(), cookies_at: None }
    }

    /// Which group it is.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Connections on their way.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}

impl Engine {
    /// Knows from now on who is in which flow group. The engine has had no packet yet.
    pub(crate) fn set_groups(&mut self, groups: Arc<Groups>) {
        assert!(self.table.is_empty(), "flow groups are told before the first packet");
        let limits = &self.config.limits;
        let (connections, half_open) = (limits.connections, limits.half_open);
        let members = Members::new(groups, connections, half_open, limits.time_wait.max(1));
        self.members = Some(Box::new(members));
    }

    /// How flows fall into groups, if that was told.
    pub(crate) fn groups(&self) -> Option<&Arc<Groups>> {
        self.members.as_ref().map(|members| members.groups())
    }

    /// Knows from now on which of them are this thread's.
    pub(crate) fn set_ours(&mut self, ours: Arc<dyn Ours>) {
        if let Some(members) = &mut self.members {
            members.set_ours(ours);
        }
    }

    /// Which are, if that was told.
    pub(crate) fn ours(&self) -> Option<&Arc<dyn Ours>> {
        self.members.as_ref().and_then(|members| members.ours())
    }

    /// Whether the group has connections, which the service would have to let go.
    pub(crate) fn has_connections(&self, group: u16) -> bool {
        let mut members = self.members.iter().flat_map(|members| members.of(group));
        members.any(|named| matches!(named, Named::Connection(_)))
    }

    /// Takes a group out. A service that cannot let its connections go has them reset.
    pub(crate) fn depart<S: Service>(&mut self, now: Instant, group: u16, service: &mut S) -> Departure {
        let mut departure = Departure::nothing(group);
        departure.cookies_at = self.cookies.made_at();
        let mut members: Vec<Named> = self.members.iter().flat_map(|members| members.of(group)).collect();
        // who came first arrives first
        members.reverse();
        let movable = service.can_move();
        let mut ready = false;
        for named in members {
            match named {
                Named::Connection(index) if movable => {
                    let departed = self.send_off(now, index, service);
                    ready |= departed.ready;
                    departure.connections.push(departed);
                }
                Named::Connection(index) => self.abort(index, DeadReason::Aborted),
                Named::HalfOpen(index) => departure.half_open.extend(self.send_off_handshake(index)),
                Named::TimeWait(slot) => {
                    if let Some(waiting) = self.time_wait.take_out(slot) {
                        self.end_wait(waiting.closed.hash, slot);
                        departure.waiting.push(waiting);
                    }
                }
            }
        }
        if ready {
            let connections = &self.connections;
            self.ready.retain(|index| connections[*index as usize].flags.has(Flags::READY));
        }
        departure
    }

    /// Takes a connection out; its place is free. The caller sees to the queue of those with something to do.
    fn send_off<S: Service>(&mut self, now: Instant, index: u32, service: &mut S) -> Departed {
        let c = &self.connections[index as usize];
        let luggage = service.depart(now, c.handle(index), c.cookie);
        let c = &mut self.connections[index as usize];
        let beyond = (!c.beyond.is_empty()).then(|| self.blocks.take_out(&mut c.beyond));
        let timer_at = c.timer.take().and_then(|timer| {
            let at = self.wheel.due_at(timer);
            self.wheel.cancel(timer);
            at
        });
        let active = std::mem::replace(&mut c.active, NONE);
        let sending = self.actives.get(active).is_some().then(|| {
            let (mut active, lent) = self.actives.take_out(active);
            let (records, ranges) = (self.records.take_out(&mut active.board), self.queue.take_out(&mut active.list));
            Box::new(Sending { active, lent, records, ranges })
        });
        let c = &mut self.connections[index as usize];
        let mut connection = c.clone();
        // there may be the record there that it waits for here
        let ready = c.flags.has(Flags::READY | Flags::LACKS_RECORD);
        connection.flags.clear(Flags::READY);
        (c.state, c.dead) = (State::Closed, None);
        c.flags.take_over(!Flags::LACKS, Flags::default());
        let hash = self.table.hash(&connection.tuple);
        self.table.remove(hash, Named::Connection(index).value());
        let source = self.source(connection.listener, &connection.tuple);
        self.sources.close(source);
        self.leave(Named::Connection(index));
        self.vacate(index);
        self.counters.moved_out.add(1);
        Departed { connection, ready, timer_at, sending, beyond, luggage }
    }

    fn send_off_handshake(&mut self, index: u32) -> Option<Handshake> {
        let entry = *self.half_opens.get(index)?;
        let timer_at = entry.timer.and_then(|timer| self.wheel.due_at(timer));
        self.drop_half_open(index);
        Some(Handshake { entry: HalfOpen { timer: None, ..entry }, timer_at })
    }

    /// Puts a group in that was taken out of another engine.
    pub(crate) fn arrive<S: Service>(&mut self, now: Instant, departure: Departure, service: &mut S) -> Arrived {
        let mut arrived = Arrived::default();
        self.cookies.expect(departure.cookies_at);
        for waiting in departure.waiting {
            self.take_waiting(now, waiting);
        }
        for handshake in departure.half_open {
            let taken = self.take_handshake(handshake);
            *(if taken { &mut arrived.half_open } else { &mut arrived.refused }) += 1;
        }
        for departed in departure.connections {
            let taken = self.take_connection(now, departed, service);
            *(if taken { &mut arrived.connections } else { &mut arrived.refused }) += 1;
        }
        self.counters.half_open.set(self.half_opens.len() as u64);
        self.counters.moved_in.add(arrived.connections as u64);
        self.counters.moves_refused.add(arrived.refused as u64);
        arrived
    }

    /// Whoever has begun something under this name here is the later one, and keeps it.
    fn take_waiting(&mut self, now: Instant, mut waiting: Waiting) {
        let tuple = waiting.closed.tuple;
        let hash = self.table.hash(&tuple);
        if self.find(hash, &tuple).is_some() {
            return;
        }
        waiting.closed.hash = hash;
        let (table, members) = (&mut self.table, &mut self.members);
        if let Some(slot) = self.time_wait.put_in(now, &waiting, |fate| forget(table, members, fate)) {
            self.wait_at(&waiting.closed, slot);
        }
    }

    fn take_handshake(&mut self, handshake: Handshake) -> bool {
        let Handshake { mut entry, timer_at } = handshake;
        let hash = self.table.hash(&entry.tuple);
        match self.find(hash, &entry.tuple) {
            Some(Named::TimeWait(slot)) => self.end_wait(hash, slot),
            Some(_) => return false,
            None => {}
        }
        let Some(index) = self.half_opens.next() else { return false };
        let source = self.source(entry.listener, &entry.tuple);
        if self.sources.admit_half(source).is_err() {
            return false;
        }
        let named = Named::HalfOpen(index);
        if self.table.insert(hash, named.value()).is_err() {
            self.sources.close_half(source);
            return false;
        }
        entry.timer = timer_at.and_then(|at| self.wheel.set(at, named.value()).ok());
        self.half_opens.insert(entry);
        self.enter(named, &entry.tuple);
        true
    }

    /// Puts a connection in and hands its luggage to the service. One that finds no room is reset; nobody is told.
    fn take_connection<S: Service>(&mut self, now: Instant, departed: Departed, service: &mut S) -> bool {
        let Departed { connection, ready, timer_at, sending, beyond, luggage } = departed;
        let Some(index) = self.take_place(&connection) else {
            self.bid_farewell(now, &connection);
            return false;
        };
        let fits = self.unpack(index, sending, beyond);
        // the other thread may not have heard yet that the link has become narrower
        self.fit_link(now, index);
        if connection.flags.has(Flags::STARVED) {
            self.starve_again(index, connection.flags);
        }
        let c = &mut self.connections[index as usize];
        if let Some(at) = timer_at {
            c.timer_at = Tick::after(at);
            // there is a place for each connection
            c.timer = self.wheel.set(at, Named::Connection(index).value()).ok();
        }
        let handle = c.handle(index);
        let cookie = match fits {
            true => service.arrive(now, &mut Calls { engine: self, now }, handle, luggage),
            false => None,
        };
        let c = &mut self.connections[index as usize];
        let Some(cookie) = cookie else {
            // who accepted it, or asked for it, is not told
            c.flags.clear(Flags::ACCEPTED | Flags::CLIENT);
            match c.state {
                State::SynSent => self.kill(index, DeadReason::NoResources),
                _ => self.abort(index, DeadReason::NoResources),
            }
            return false;
        };
        c.cookie = cookie;
        if c.state == State::SynSent && c.hop.is_unknown() {
            self.find_way(now, index);
        }
        if ready || self.draining {
            self.wake(index);
        }
        self.arm(now, index);
        if self.aborting {
            self.abort(index, DeadReason::Aborted);
        }
        true
    }

    /// A place for a connection, with everything that another thread's stack lent it left out.
    fn take_place(&mut self, connection: &Connection) -> Option<u32> {
        let tuple = connection.tuple;
        let hash = self.table.hash(&tuple);
        let (index, generation) = self.place()?;
        match self.find(hash, &tuple) {
            // what stands here under its name began while it was under way
            Some(Named::TimeWait(slot)) => self.end_wait(hash, slot),
            Some(Named::HalfOpen(half_open)) => self.drop_half_open(half_open),
            Some(Named::Connection(_)) => return None,
            None => {}
        }
        let source = self.source(connection.listener, &tuple);
        self.sources.admit(source).ok()?;
        if self.table.insert(hash, Named::Connection(index).value()).is_err() {
            self.sources.close(source);
            return None;
        }
        let fresh = Connection {
            generation,
            active: NONE,
            timer: None,
            timer_at: Tick::NONE,
            beyond: reassembly::List::default(),
            ..connection.clone()
        };
        self.put(index, fresh);
        Some(index)
    }

    /// Puts in what a connection has queued, in flight, and out of order; false when some of it finds no room.
    fn unpack(&mut self, index: u32, sending: Option<Box<Sending>>, beyond: Option<reassembly::Packed>) -> bool {
        let c = &mut self.connections[index as usize];
        if let Some(packed) = beyond
            && !self.blocks.put_in(&mut c.beyond, &packed)
        {
            return false;
        }
        let Some(sending) = sending else { return true };
        let Sending { mut active, lent, records, ranges } = *sending;
        if lent && !self.actives.has_free() {
            // nobody else loses a block for one that its owner had lent
            self.lose_block(index);
            return true;
        }
        (active.board, active.list) = (Board::default(), send::List::default());
        // nothing of it is in a burst of this engine
        active.framed_in = self.polls;
        let Some((place, loser)) = self.actives.take(index, active) else { return false };
        if let Some(loser) = loser {
            self.lose_block(loser);
        }
        self.connections[index as usize].active = place;
        let Some(a) = self.actives.get(place) else { return false };
        let fits = self.records.put_in(&mut a.board, &records) && self.queue.put_in(&mut a.list, &ranges);
        if lent {
            self.actives.lend(place);
        }
        fits
    }

    /// The reset of a connection for which there is not even a place goes out in the next poll.
    fn bid_farewell(&mut self, now: Instant, c: &Connection) {
        if c.state == State::SynSent {
            return;
        }
        let header = Header {
            src_port: c.tuple.local().port(),
            dst_port: c.tuple.remote().port(),
            seq: c.seq(c.snd.nxt),
            ack: c.rcv.nxt,
            flags: tcp::Flags::RST | tcp::Flags::ACK,
            timestamps: timestamps(c, now),
            ..Header::default()
        };
        self.farewells.push(Farewell { tuple: c.tuple, hop: c.hop, header });
    }

    /// Sends such resets; false when some have to wait.
    #[cold]
    pub(super) fn send_farewells(&mut self, out: &mut Outlet<'_>) -> bool {
        while let Some(Farewell { tuple, hop, header }) = self.farewells.last() {
            let Some(mut frame) = out.frame() else { return false };
            let bytes = header.bytes();
            let head = lay_out(&mut frame, out.mac, hop, tuple, bytes, false);
            header.write(head, pseudo(tuple, bytes), PayloadSum::Known(Sum::ZERO));
            out.tx.push(frame);
            self.counters.sent.add(1);
            self.counters.on(Event::ResetSent);
            self.farewells.pop();
        }
        true
    }
}
