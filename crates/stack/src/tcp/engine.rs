//! The engine: all connections of one stack, the pools that they share, and the queue of those with something to do.
//!
//! A segment is processed to its end when it arrives, its data handed to the service from the received frame; what is to be
//! sent goes out in [`Engine::poll`], when the whole burst was taken in, so that acknowledgements ride on answers. What belongs
//! to no connection block (handshakes, TIME-WAIT, strangers) is answered in the received frame.

use super::ack::Sender;
use super::active::{Active, Actives, Wider};
use super::config::{TcpConfig, TcpTimes};
use super::connection::{Connection, Flags, NONE};
use super::cookie::Cookies;
use super::counters::{Counters, Event};
use super::half_open::HalfOpens;
use super::inflight::Records;
use super::isn::Numbers;
use super::limits::{ChallengeLimit, Source, SourceLimits, Sources};
use super::members::Members;
use super::moves::Farewell;
use super::open::Held;
use super::reassembly::Blocks;
use super::send::Queue;
use super::starved::Starved;
use super::state::State;
use super::table::{Hash, Table};
use super::tick::Tick;
use super::time_wait::{Closed, Fate, Slot, TimeWait};
use super::tuple::Tuple;
use crate::outward::Outward;
use app::{DeadReason, Listener};
use base::sip::Key;
use base::wheel::Wheel;
use base::{Burst, Frame, Instant};
use port::Supply;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet::Mac;
use wire::tcp::Header;

/// What a value of the table and of the timer wheel names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// a connection block
    Connection(u32),
    /// a half-open entry
    HalfOpen(u32),
    /// an entry of TIME-WAIT
    TimeWait(Slot),
}

const HALF_OPEN: u32 = 1 << 30;
const TIME_WAIT_V4: u32 = 1 << 29;
const TIME_WAIT_V6: u32 = 1 << 31;
/// So long after our own receive queue was full a timer may expire for what was lost there: about the least timeout and a round trip.
const OVERRUN_MEMORY: Duration = Duration::from_millis(500);
/// The most connections, and the most half-open entries.
const MOST: u32 = 1 << 28;

impl Named {
    pub(super) fn value(self) -> u32 {
        match self {
            Named::Connection(index) => index,
            Named::HalfOpen(index) => HALF_OPEN | index,
            Named::TimeWait(Slot(slot)) if slot & TIME_WAIT_V6 == 0 => TIME_WAIT_V4 | slot,
            Named::TimeWait(Slot(slot)) => slot,
        }
    }

    pub(super) fn of(value: u32) -> Named {
        if value & TIME_WAIT_V6 != 0 {
            Named::TimeWait(Slot(value))
        } else if value & HALF_OPEN != 0 {
            Named::HalfOpen(value & !HALF_OPEN)
        } else if value & TIME_WAIT_V4 != 0 {
            Named::TimeWait(Slot(value & !TIME_WAIT_V4))
        } else {
            Named::Connection(value)
        }
    }
}

/// Where segments are built and put.
pub(crate) struct Outlet<'a> {
    pub(crate) supply: &'a mut dyn Supply,
    pub(crate) tx: &'a mut Burst,
    pub(crate) mac: Mac,
}

impl Outlet<'_> {
    /// A frame for one segment, when there is room for it.
    pub(super) fn frame(&mut self) -> Option<Frame> {
        if self.tx.is_full() { None } else { self.supply.frame() }
    }
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) connections: Vec<Connection>,
    pub(super) free: Vec<u32>,
    pub(super) actives: Actives,
    pub(super) records: Records,
    pub(super) queue: Queue,
    pub(super) blocks: Blocks,
    pub(super) half_opens: HalfOpens,
    pub(super) time_wait: TimeWait,
    pub(super) table: Table,
    pub(super) sources: Sources,
    pub(super) wheel: Wheel<u32>,
    /// connections with something to do, each once
    pub(super) ready: VecDeque<u32>,
    /// those that wait for room in a pool
    pub(super) starved: Starved,
    pub(super) numbers: Numbers,
    pub(super) cookies: Cookies,
    pub(super) challenges: ChallengeLimit,
    pub(super) counters: Arc<Counters>,
    pub(super) times: TcpTimes,
    pub(super) config: TcpConfig,
    /// of the link
    pub(super) mtu: usize,
    /// what goes back in the frame that is being processed
    pub(super) answer: Option<Header<'static>>,
    /// moves on with each ephemeral port
    pub(super) next_port: u32,
    /// until then an acknowledgement that is missing may well have been lost in our own receive queue
    pub(super) overrun_until: Instant,
    /// no new connections, and those that are idle are closed
    pub(super) draining: bool,
    /// every connection was reset, and what comes from another thread still is, too
    pub(super) aborting: bool,
    /// polls so far, modulo 2^32
    pub(super) polls: u32,
    /// who is in which flow group, where there are several threads
    pub(super) members: Option<Box<Members>>,
    /// resets of connections that came from another thread and found no place
    pub(super) farewells: Vec<Farewell>,
    /// connections that wait for their neighbour to be found
    pub(super) held: Vec<Held>,
    /// whence and over whom what was not asked for leaves
    pub(crate) outward: Outward,
}

impl Engine {
    /// An engine over such a port, which counts in `counters`. Everything it will ever need is allocated here.
    pub(crate) fn new(config: &TcpConfig, facts: &port::Facts, counters: Arc<Counters>, outward: Outward) -> Engine {
        // an engine before this one may have left some, with connections that nobody knows any more
        (0..counters.connections.get()).for_each(|_| counters.on(Event::Lost));
        [&counters.connections, &counters.half_open, &counters.time_wait].iter().for_each(|gauge| gauge.set(0));
        let mtu = facts.mtu.min(facts.frame_bytes - wire::ethernet::TAGGED_HEADER_BYTES);
        let limits = &config.limits;
        let (connections, half_open) = (limits.connections.min(MOST), limits.half_open.min(MOST));
        let secret = Key::new(config.secret[0], config.secret[1]);
        let per_source =
            SourceLimits { half_open: limits.half_open_per_source, established: limits.connections_per_source };
        Engine {
            connections: base::huge::vec(connections as usize),
            free: Vec::with_capacity(connections as usize),
            actives: Actives::new(limits.active as usize, config.congestion),
            records: Records::new(limits.records as usize),
            queue: Queue::new(
                limits.ranges as usize,
                limits.owned_blocks as usize,
                limits.ranges_per_connection,
                limits.owned_blocks_per_connection,
            ),
            blocks: Blocks::new(limits.blocks as usize, mtu, limits.blocks_per_connection),
            half_opens: HalfOpens::new(half_open as usize),
            time_wait: TimeWait::new(limits.time_wait, limits.time_wait, config.times.time_wait),
            table: Table::new(connections + half_open + 2 * limits.time_wait, secret),
            sources: Sources::new(connections + half_open, per_source, secret).by_service(config.per_source.clone()),
            wheel: Wheel::new((connections + half_open) as usize),
            ready: VecDeque::with_capacity(connections as usize),
            starved: Starved::new(connections as usize),
            numbers: Numbers::new(secret),
            cookies: Cookies::new(secret),
            challenges: ChallengeLimit::new(limits.challenges_per_second, secret),
            counters,
            times: config.times,
            config: config.clone(),
            mtu,
            answer: None,
            next_port: 0,
            overrun_until: Instant::ZERO,
            draining: false,
            aborting: false,
            polls: 0,
            members: None,
            farewells: Vec::new(),
            held: Vec::new(),
            outward,
        }
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Our own receive queue was full at `now`.
    #[inline]
    pub(crate) fn overrun(&mut self, now: Instant) {
        self.overrun_until = now + OVERRUN_MEMORY;
    }

    /// Whom a connection to this listener is counted for.
    #[inline]
    pub(super) fn source(&self, listener: Listener, tuple: &Tuple) -> Source {
        Source::of(self.config.per_source.service(listener), tuple.remote().ip())
    }

    /// What the tuple belongs to.
    #[inline]
    pub(super) fn find(&self, hash: Hash, tuple: &Tuple) -> Option<Named> {
        let value = self.table.find(hash, |value| match Named::of(value) {
            Named::Connection(index) => self.connections[index as usize].tuple == *tuple,
            Named::HalfOpen(index) => self.half_opens.is(index, tuple),
            Named::TimeWait(slot) => self.time_wait.is(slot, tuple),
        })?;
        Some(Named::of(value))
    }

    /// Data bytes that a full segment carries: what the peer takes and the path bears, less the options of every segment (RFC 9293
    /// section 3.7.1, RFC 6691).
    pub(super) fn segment_bytes(&self, tuple: &Tuple, peer_mss: u16, timestamps: bool) -> u16 {
        let own = self.own_mss(tuple).min(peer_mss);
        (own - if timestamps { 12 } else { 0 }).max(MSS_LEAST)
    }

    /// The MSS that we announce: the link's MTU less fixed headers (RFC 6691).
    pub(super) fn own_mss(&self, tuple: &Tuple) -> u16 {
        let headers = super::hop::ip_bytes(tuple) + wire::tcp::HEADER_BYTES;
        (self.mtu.saturating_sub(headers)).clamp(usize::from(MSS_LEAST) + 12, usize::from(u16::MAX)) as u16
    }

    /// Has the connection looked at in the next poll.
    #[inline]
    pub(super) fn wake(&mut self, index: u32) {
        let flags = &mut self.connections[index as usize].flags;
        if !flags.has(Flags::READY) {
            flags.set(Flags::READY);
            self.ready.push_back(index);
        }
    }

    /// The live connection of a handle.
    #[inline]
    pub(super) fn live(&mut self, handle: app::Connection) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(handle.index as usize)?;
        (connection.generation == handle.generation && connection.state != State::Closed).then_some(connection)
    }

    /// The sending half with what it works on, if there is one.
    #[inline]
    pub(super) fn sender(&mut self, now: Instant, index: u32) -> Option<Sender<'_>> {
        let c = &mut self.connections[index as usize];
        let a = self.actives.get(c.active)?;
        Some(Sender { now, c, a, records: &mut self.records, queue: &mut self.queue, counters: &self.counters })
    }

    /// Gives the connection what it needs to send; false when there is none to be had.
    pub(super) fn activate(&mut self, now: Instant, index: u32) -> bool {
        let c = &self.connections[index as usize];
        if c.active != NONE {
            self.actives.claim(c.active);
            return true;
        }
        let mut fresh = Active::new(self.config.congestion, c.mss);
        fresh.sent_at = now;
        if c.flags.has(Flags::LOST_HANDSHAKE) && c.snd.una == FIRST {
            fresh.congestion.on_lost_handshake(u32::from(c.mss));
        }
        fresh.wider =
            Wider::later(now, c.mss, self.segment_bytes(&c.tuple, c.peer_mss, c.flags.has(Flags::TIMESTAMPS)));
        let Some((active, loser)) = self.actives.take(index, fresh) else { return false };
        if let Some(loser) = loser {
            self.lose_block(loser);
        }
        self.connections[index as usize].active = active;
        true
    }

    /// A connection is without the block that it had lent, and so without anything that its retransmission timer could be set for:
    /// the turn that would have settled the timer finds nobody to do so.
    pub(super) fn lose_block(&mut self, index: u32) {
        let c = &mut self.connections[index as usize];
        (c.active, c.rtx_at, c.backoff) = (NONE, Tick::NONE, 0);
        c.flags.clear(Flags::PACED);
    }

    /// Where the next connection would stand, and the generation it would have; None when there is no place.
    pub(super) fn place(&self) -> Option<(u32, u32)> {
        if let Some(index) = self.free.last() {
            return Some((*index, self.connections[*index as usize].generation));
        }
        let fresh = self.connections.len();
        (fresh < self.config.limits.connections as usize).then_some((fresh as u32, 0))
    }

    /// Puts a connection block into the place that [`Engine::place`] told.
    pub(super) fn put(&mut self, index: u32, mut connection: Connection) {
        if self.free.last() == Some(&index) {
            self.free.pop();
        }
        self.enter(Named::Connection(index), &connection.tuple);
        match self.connections.get_mut(index as usize) {
            Some(place) => {
                connection.flags.take_over(Flags::LACKS, place.flags);
                *place = connection;
            }
            None => {
                connection.flags.clear(Flags::LACKS);
                self.connections.push(connection);
            }
        }
        self.counters.connections.set((self.connections.len() - self.free.len()) as u64);
    }

    /// Ends a connection: what it holds goes back at once, its place when the service was told.
    pub(super) fn kill(&mut self, index: u32, reason: DeadReason) {
        let c = &mut self.connections[index as usize];
        if c.state == State::Closed {
            return;
        }
        c.state = State::Closed;
        c.dead = Some(reason);
        let (listener, tuple) = (c.listener, c.tuple);
        let hash = self.table.hash(&tuple);
        self.table.remove(hash, Named::Connection(index).value());
        let source = self.source(listener, &tuple);
        self.sources.close(source);
        self.leave(Named::Connection(index));
        self.release_parts(index);
        let event = match reason {
            DeadReason::Closed => Event::Closed,
            DeadReason::Reset => Event::Reset,
            DeadReason::Aborted => Event::Aborted,
            DeadReason::TimedOut => Event::TimedOut,
            DeadReason::NoResources => Event::NoResources,
            DeadReason::Refused => Event::Refused,
            // not a reason of ours: applications in processes of their own are told so of calls that were refused
            DeadReason::Denied(_) => Event::NoResources,
            DeadReason::Unreachable => Event::Unreachable,
        };
        self.counters.on(event);
        self.wake(index);
    }

    /// Gives back everything but the place.
    fn release_parts(&mut self, index: u32) {
        let c = &mut self.connections[index as usize];
        self.blocks.clear(&mut c.beyond);
        if let Some(a) = self.actives.get(c.active) {
            self.records.clear(&mut a.board);
            self.queue.clear(&mut a.list);
            self.actives.release(c.active);
            c.active = NONE;
        }
        if let Some(timer) = c.timer.take() {
            self.wheel.cancel(timer);
        }
        c.timer_at = Tick::NONE;
        c.rtx_at = Tick::NONE;
        c.ack_at = Tick::NONE;
        c.idle_at = Tick::NONE;
        c.user_at = None;
    }

    /// The place may be used again.
    pub(super) fn vacate(&mut self, index: u32) {
        let c = &mut self.connections[index as usize];
        debug_assert!(c.state == State::Closed, "a place in use");
        debug_assert!(!c.flags.has(Flags::VACANT), "a place that is free is freed again");
        c.generation = c.generation.wrapping_add(1);
        c.dead = None;
        c.flags.set(Flags::VACANT);
        self.free.push(index);
        self.counters.connections.set((self.connections.len() - self.free.len()) as u64);
    }

    /// Both sides have finished and we were not the last: what is left stands in TIME-WAIT (RFC 9293 section 3.6.1).
    pub(super) fn rest(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        let hash = self.table.hash(&c.tuple);
        let closed = Closed {
            tuple: c.tuple,
            hash,
            snd_nxt: c.seq(c.snd.nxt),
            rcv_nxt: c.rcv.nxt,
            ts_recent: c.flags.has(Flags::TIMESTAMPS).then_some(c.ts_recent),
        };
        self.kill(index, DeadReason::Closed);
        let (table, members) = (&mut self.table, &mut self.members);
        let slot = self.time_wait.insert(now, &closed, |fate| forget(table, members, fate));
        self.wait_at(&closed, slot);
        self.counters.on(Event::TimeWaitBegun);
    }

    /// A connection waits in that slot of TIME-WAIT from now on.
    pub(super) fn wait_at(&mut self, closed: &Closed, slot: Slot) {
        // there is room in the table for all slots
        let _ = self.table.insert(closed.hash, Named::TimeWait(slot).value());
        self.enter(Named::TimeWait(slot), &closed.tuple);
        self.counters.time_wait.set(u64::from(self.time_wait.len()));
    }

    /// Takes a connection out of TIME-WAIT.
    pub(super) fn end_wait(&mut self, hash: Hash, slot: Slot) {
        self.table.remove(hash, Named::TimeWait(slot).value());
        self.time_wait.remove(slot);
        self.leave(Named::TimeWait(slot));
        self.counters.time_wait.set(u64::from(self.time_wait.len()));
    }

    /// Puts somebody into the list of its flow group, where there are any.
    #[inline]
    pub(super) fn enter(&mut self, named: Named, tuple: &Tuple) {
        if let Some(members) = &mut self.members {
            members.enter(named, tuple);
        }
    }

    /// Takes somebody out of it.
    #[inline]
    pub(super) fn leave(&mut self, named: Named) {
        if let Some(members) = &mut self.members {
            members.leave(named);
        }
    }

    /// Lets go of entries of TIME-WAIT whose time is over.
    pub(super) fn expire_waits(&mut self, now: Instant) {
        if self.time_wait.is_empty() {
            return;
        }
        let (table, members) = (&mut self.table, &mut self.members);
        self.time_wait.expire(now, EXPIRED_A_POLL, |fate| forget(table, members, fate));
        self.counters.time_wait.set(u64::from(self.time_wait.len()));
    }
}

/// Entries of TIME-WAIT that one poll lets go at most.
const EXPIRED_A_POLL: u32 = 64;
/// The position behind the SYN: who has more of us acknowledged has had something.
pub(super) const FIRST: u64 = 1;
/// The least segment, whatever a peer says or an ICMP error claims.
pub(super) const MSS_LEAST: u16 = 128;

/// Keeps the table, and the lists of flow groups, true to what happened in TIME-WAIT.
pub(super) fn forget(table: &mut Table, members: &mut Option<Box<Members>>, fate: Fate) {
    match fate {
        Fate::Expired(hash, slot) | Fate::Recycled(hash, slot) => {
            table.remove(hash, Named::TimeWait(slot).value());
            if let Some(members) = members {
                members.leave(Named::TimeWait(slot));
            }
        }
        Fate::Moved(hash, from, to) => {
            let (from, to) = (Named::TimeWait(from), Named::TimeWait(to));
            table.replace(hash, from.value(), to.value());
            if let Some(members) = members {
                members.relocate(from, to);
            }
        }
    }
}
