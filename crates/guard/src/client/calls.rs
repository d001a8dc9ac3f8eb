//! Calls: answered from what is known here, written for the dataplane to do.

mod linger;
mod posting;

use super::budget::Budget;
use super::outbox::Outbox;
use super::outward::Outward;
use super::shared::Shared;
use crate::LINGER;
use crate::lane::Lane;
use crate::layout::{CALL_SLOTS, CREDIT_BYTES, Call, CallKind, Event, Handle, NEVER, SEND_BYTES, TRANSMIT_BYTES};
use app::{Addresses, CallError, Connection, Listener, Range, SENDV_RANGES, Streams};
use base::Instant;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Gone,
    Told,
    /// asked for, and not told of
    Asking,
    /// the same, and given up since
    GivenUp,
    Open,
    /// closed here; its death will be told
    Ended,
    /// aborted here; the same
    Aborted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Finish {
    #[default]
    Nothing,
    Shutdown,
    Close,
    /// it was waited for long enough
    Late,
}

#[derive(Default)]
pub(super) struct Conn {
    pub(super) phase: Phase,
    generation: u32,
    pub(super) cookie: u64,
    /// bytes delivered and not given back
    told: u64,
    /// bytes sent by calls and not reported
    posted: u64,
    outbox: Outbox,
    shut: bool,
    finish: Finish,
    /// what its timer is set to
    timer: Option<Instant>,
    /// how long a close waits for what was sent, while nothing of it is taken
    lingers_until: Instant,
    /// how often in a row nothing was taken since nothing could be
    excused: u8,
    /// stands in the line of those that want room
    waits: bool,
}

impl Conn {
    /// One that is asked for.
    pub(super) fn asked(generation: u32, cookie: u64) -> Conn {
        Conn { phase: Phase::Asking, generation, cookie, ..Conn::default() }
    }
}

/// The calls of one thread of an application.
pub struct Calls {
    shared: Arc<Shared>,
    owner: u16,
    conns: Vec<Conn>,
    lane: Lane,
    /// where the payload of each slot ends
    ends: Box<[u64]>,
    head: u32,
    /// what the dataplane was rung for, if it slept
    rung_to: u32,
    tail: u32,
    rung: u32,
    /// the call that was written last and nobody has seen
    last: Option<(u32, Call)>,
    /// calls for which there was no room, in front of all others
    overflow: VecDeque<posting::Late>,
    /// who wants room in the lane, in the ring or in the budget
    line: VecDeque<Connection>,
    budget: Budget,
    now: Instant,
    buffer: Vec<u8>,
    pub(super) outward: Outward,
}

impl Calls {
    pub(super) fn new(shared: Arc<Shared>) -> Calls {
        let grant = shared.grant();
        let places = grant.connections + grant.asked();
        Calls {
            owner: shared.owner(),
            conns: (0..places).map(|_| Conn::default()).collect(),
            lane: Lane::new(TRANSMIT_BYTES),
            ends: vec![0; CALL_SLOTS as usize].into(),
            head: 0,
            rung_to: 0,
            tail: 0,
            rung: 0,
            last: None,
            overflow: VecDeque::new(),
            line: VecDeque::new(),
            budget: Budget::default(),
            now: Instant::ZERO,
            buffer: vec![0; SEND_BYTES],
            outward: Outward::new(grant),
            shared,
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Goes on to a time, and never back; which it is then.
    pub(super) fn pass(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// A connection that the service may make calls for.
    fn conn(&mut self, connection: Connection) -> Result<&mut Conn, CallError> {
        match self.conns.get_mut(connection.index as usize) {
            Some(conn)
                if conn.generation == connection.generation
                    && !matches!(conn.phase, Phase::Gone | Phase::GivenUp | Phase::Aborted) =>
            {
                Ok(conn)
            }
            _ => Err(CallError::NoConnection),
        }
    }

    /// One that the service has, and has not closed.
    fn open(&mut self, connection: Connection) -> Result<&mut Conn, CallError> {
        let conn = self.conn(connection)?;
        if conn.phase == Phase::Open { Ok(conn) } else { Err(CallError::WrongState) }
    }

    /// A connection whose end was not told, whatever the service has done with it.
    pub(super) fn known(&mut self, connection: Connection) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(connection.index as usize)?;
        (conn.generation == connection.generation && conn.phase != Phase::Gone).then_some(conn)
    }

    pub(super) fn set_conn(&mut self, index: u32, conn: Conn) {
        if let Some(place) = self.conns.get_mut(index as usize) {
            *place = conn;
        }
    }

    pub(super) fn owner(&self) -> u16 {
        self.owner
    }

    pub(super) fn call(&self, kind: CallKind, connection: Connection) -> Call {
        Call::plain(kind, self.owner, Handle { index: connection.index, generation: connection.generation })
    }

    /// Asks for what an event names.
    #[inline]
    pub(super) fn foresee(&self, event: &Event) {
        self.shared.foresee_payload(event);
        if let Some(conn) = self.conns.get(event.handle.index as usize) {
            crate::map::foresee_value(conn);
        }
    }

    /// Whether something waits for room that the dataplane has made.
    pub(super) fn has_waiting(&self) -> bool {
        self.is_blocked() && self.has_taken_since(self.tail)
    }

    /// How many calls the dataplane had taken when that was looked at last.
    pub(super) fn taken(&self) -> u32 {
        self.tail
    }

    /// Whether it has taken calls since it had taken so many, so that there may be room for others.
    pub(super) fn has_taken_since(&self, taken: u32) -> bool {
        self.shared.call_tail() != taken
    }

    /// Whether something waits for room.
    pub(super) fn is_blocked(&self) -> bool {
        !self.line.is_empty() || !self.overflow.is_empty()
    }

    /// Sends for those that wanted room.
    pub(super) fn pump_waiting(&mut self) {
        if !self.is_blocked() {
            return;
        }
        self.look();
        self.publish(None);
        for _ in 0..self.line.len() {
            let Some(connection) = self.line.pop_front() else { return };
            if let Ok(conn) = self.conn(connection) {
                conn.waits = false;
                self.pump(connection);
            }
        }
    }

    /// Sends what a connection has, as far as there is credit and room.
    fn pump(&mut self, connection: Connection) {
        loop {
            let (budget, until) = (self.budget, self.now + LINGER);
            let Ok(conn) = self.conn(connection) else { return };
            if conn.outbox.is_empty() {
                break;
            }
            let credit = CREDIT_BYTES - conn.posted;
            if credit == 0 {
                // what is reported gives some back
                return;
            }
            let most = credit.min(budget.left(conn.posted)).min(SEND_BYTES as u64);
            let bytes = conn.outbox.bytes().min(most) as usize;
            let call = self.call(CallKind::Send, connection);
            let put = |shared: &Shared, conn: &mut Conn, offset: usize| {
                let mut at = offset;
                conn.outbox.give(bytes, |part| {
                    shared.set_payload(at, part);
                    at += part.len();
                });
                if conn.posted == 0 {
                    // until now the peer could take nothing
                    conn.lingers_until = until;
                }
                conn.posted += bytes as u64;
            };
            if bytes == 0 || !self.post_payload(call, bytes, put) {
                if let Ok(conn) = self.conn(connection)
                    && !std::mem::replace(&mut conn.waits, true)
                {
                    self.line.push_back(connection);
                }
                return;
            }
            self.budget.take(bytes as u64);
        }
        let Ok(conn) = self.conn(connection) else { return };
        let kind = match std::mem::take(&mut conn.finish) {
            Finish::Nothing | Finish::Late => return,
            Finish::Shutdown => CallKind::Shutdown,
            Finish::Close => CallKind::Close,
        };
        let call = self.call(kind, connection);
        self.post(call);
    }

    /// A connection that the service is asked about.
    pub(super) fn knock(&mut self, connection: Connection) {
        if let Some(conn) = self.conns.get_mut(connection.index as usize) {
            *conn = Conn { phase: Phase::Told, generation: connection.generation, ..Conn::default() };
        }
    }

    pub(super) fn reject_unanswered(&mut self, connection: Connection) {
        // answered is what it is not any more
        let _ = self.reject(connection);
    }

    pub(super) fn cookie(&mut self, connection: Connection) -> Option<u64> {
        let told = |conn: &&mut Conn| !matches!(conn.phase, Phase::Told | Phase::Asking | Phase::GivenUp);
        self.known(connection).filter(told).map(|conn| conn.cookie)
    }

    pub(super) fn is_open(&mut self, connection: Connection) -> bool {
        self.conn(connection).is_ok_and(|conn| conn.phase == Phase::Open)
    }

    /// Bytes were delivered; whether the service wants them. What comes behind a close is given back at once: the dataplane may not know of
    /// that, as it waits for what was sent before, and a peer that writes before it reads would never take this.
    pub(super) fn received(&mut self, connection: Connection, bytes: usize) -> bool {
        let Some(conn) = self.known(connection) else { return false };
        match conn.phase {
            Phase::Ended => self.give_back(connection, bytes as u64),
            _ => conn.told += bytes as u64,
        }
        self.is_open(connection)
    }

    /// Gives bytes back that were delivered, along with the call before if that was the same connection's and nobody has seen it.
    fn give_back(&mut self, connection: Connection, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (handle, done) = (Handle { index: connection.index, generation: connection.generation }, bytes as u32);
        if let Some((at, call)) = &mut self.last
            && call.handle == handle
            && names_connection(call)
            && self.overflow.is_empty()
        {
            call.done += done;
            self.shared.set_call(*at, call);
        } else {
            self.post(Call { done, ..self.call(CallKind::Done, connection) });
        }
    }

    /// The peer has taken bytes, or without any could take none yet; the room that there is, for a service that still has the connection.
    pub(super) fn sent(&mut self, connection: Connection, bytes: u64) -> Option<usize> {
        let conn = self.known(connection)?;
        let bytes = bytes.min(conn.posted);
        conn.posted -= bytes;
        self.budget.give(bytes);
        if bytes == 0 {
            self.excuse(connection);
            return None;
        }
        self.moved(connection);
        self.pump(connection);
        self.is_open(connection).then(|| self.room(connection))
    }

    pub(super) fn forget(&mut self, connection: Connection) {
        if let Some(conn) = self.known(connection) {
            let posted = conn.posted;
            *conn = Conn::default();
            self.budget.give(posted);
            self.free_place(connection.index);
        }
    }

    /// The connection's timer has gone off; whether it is one that the service has set, to this time.
    pub(super) fn timed(&mut self, connection: Connection, at_ns: u64) -> bool {
        let Ok(conn) = self.conn(connection) else { return false };
        let Some(at) = conn.timer.take_if(|at| at.as_nanos() == at_ns) else { return false };
        let is_open = conn.phase == Phase::Open;
        if !is_open {
            self.lingered(connection, at);
        }
        is_open
    }

    /// Every connection that the service has.
    pub(super) fn all(&self) -> Vec<(Connection, u64)> {
        self.named(|conn| matches!(conn.phase, Phase::Open | Phase::Ended | Phase::Aborted))
    }

    fn named(&self, of: impl Fn(&Conn) -> bool) -> Vec<(Connection, u64)> {
        let name = |(index, conn): (usize, &Conn)| {
            (Connection { index: index as u32, generation: conn.generation }, conn.cookie)
        };
        self.conns.iter().enumerate().filter(|(_, conn)| of(conn)).map(name).collect()
    }

    /// Every connection that was asked for and not told of.
    pub(super) fn all_asked(&self) -> Vec<(Connection, u64)> {
        self.named(|conn| matches!(conn.phase, Phase::Asking | Phase::GivenUp))
    }

    /// A buffer for a datagram's answer.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    pub(super) fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Answers a datagram; false without room.
    pub(super) fn reply(&mut self, handle: Handle, bytes: &[u8]) -> bool {
        self.post_bytes(Call::plain(CallKind::Reply, self.owner, handle), &[bytes])
    }

    /// Queues behind what the connection has, or sends at once.
    fn queue(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let room = self.room(connection);
        let budget = self.budget;
        let conn = self.conn(connection)?;
        let wanted: u64 = ranges.iter().map(Range::bytes).sum();
        let credit = (CREDIT_BYTES - conn.posted).min(budget.left(conn.posted)).min(SEND_BYTES as u64);
        if conn.outbox.is_empty() && wanted > 0 && wanted <= credit {
            let done = self.take_back(connection);
            let call = Call { done, ..self.call(CallKind::Send, connection) };
            let put = |shared: &Shared, conn: &mut Conn, offset: usize| {
                let mut at = offset;
                for range in ranges {
                    let bytes = match *range {
                        Range::Owned(bytes) => bytes,
                        Range::Object { content, object, start, bytes } => {
                            &content.bytes(object)[start as usize..(start + bytes) as usize]
                        }
                    };
                    shared.set_payload(at, bytes);
                    at += bytes.len();
                }
                conn.posted += wanted;
            };
            if self.post_payload(call, wanted as usize, put) {
                self.budget.take(wanted);
                return Ok(wanted);
            }
            if done > 0 {
                self.post(Call { done, ..self.call(CallKind::Done, connection) });
            }
        }
        let taken = self.conn(connection)?.outbox.take(ranges, room);
        self.pump(connection);
        Ok(taken)
    }

    /// Takes the call before back if it gives bytes of this connection back and nobody has seen it, to go along with the next; how many
    /// bytes.
    fn take_back(&mut self, connection: Connection) -> u32 {
        let handle = Handle { index: connection.index, generation: connection.generation };
        match self.last {
            Some((at, call))
                if call.kind == CallKind::Done as u8 && call.handle == handle && self.overflow.is_empty() =>
            {
                (self.head, self.last) = (at, None);
                call.done
            }
            _ => 0,
        }
    }

    fn finish(&mut self, connection: Connection, finish: Finish) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        conn.shut = true;
        conn.finish = finish;
        if conn.outbox.is_empty() {
            self.pump(connection);
        }
        Ok(())
    }
}

impl Streams for Calls {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        if conn.phase != Phase::Told {
            return Err(CallError::WrongState);
        }
        (conn.phase, conn.cookie) = (Phase::Open, cookie);
        self.post(self.call(CallKind::Accept, connection));
        Ok(())
    }

    fn reject(&mut self, connection: Connection) -> Result<(), CallError> {
        if self.conn(connection)?.phase != Phase::Told {
            return Err(CallError::WrongState);
        }
        self.forget(connection);
        self.post(self.call(CallKind::Reject, connection));
        Ok(())
    }

    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let conn = self.conn(connection)?;
        if conn.phase != Phase::Open || conn.shut {
            return Err(CallError::WrongState);
        }
        let ranges = &ranges[..ranges.len().min(SENDV_RANGES)];
        if !ranges.iter().all(Range::is_valid) {
            return Err(CallError::NoSuchRange);
        }
        self.queue(connection, ranges)
    }

    fn room(&self, connection: Connection) -> usize {
        match self.conns.get(connection.index as usize) {
            Some(conn)
                if conn.generation == connection.generation
                    && conn.phase == Phase::Open
                    && !conn.shut
                    && conn.outbox.takes_owned() =>
            {
                let used = conn.posted as usize + conn.outbox.owned_bytes();
                (CREDIT_BYTES as usize).saturating_sub(used)
            }
            _ => 0,
        }
    }

    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        let conn = self.open(connection)?;
        conn.told = conn.told.checked_sub(bytes as u64).ok_or(CallError::TooMuch)?;
        self.give_back(connection, bytes as u64);
        Ok(())
    }

    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        if self.open(connection)?.shut {
            return Err(CallError::WrongState);
        }
        self.finish(connection, Finish::Shutdown)
    }

    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        let conn = self.open(connection)?;
        conn.phase = Phase::Ended;
        let told = std::mem::take(&mut conn.told);
        self.finish(connection, Finish::Close)?;
        self.give_back(connection, told);
        self.linger(connection);
        Ok(())
    }

    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        if conn.phase == Phase::Told {
            return self.reject(connection);
        }
        let phase = if conn.phase == Phase::Asking { Phase::GivenUp } else { Phase::Aborted };
        (conn.phase, conn.outbox, conn.finish) = (phase, Outbox::default(), Finish::Nothing);
        self.post(self.call(CallKind::Abort, connection));
        Ok(())
    }

    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.open(connection)?.timer = at;
        let at = at.map_or(NEVER, Instant::as_nanos);
        self.post(Call { at, ..self.call(CallKind::Timer, connection) });
        Ok(())
    }

    fn connect(&mut self, remote: SocketAddr, local: Option<SocketAddr>, cookie: u64) -> Result<Connection, CallError> {
        self.ask(remote, local, cookie)
    }

    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        self.send_datagram(listener, ends, bytes)
    }

    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.set_alarm(cookie, at)
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calls({} of owner {})", self.head.wrapping_sub(self.tail), self.owner)
    }
}

/// Whether what a call's handle names is a connection.
fn names_connection(call: &Call) -> bool {
    let others = [CallKind::Reply, CallKind::Connect, CallKind::SendTo, CallKind::Alarm];
    others.iter().all(|kind| call.kind != *kind as u8)
}
