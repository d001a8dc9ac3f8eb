//! The trusted half: a service for its engine, a judge for its application.
//!
//! Events become slots of a ring. When there is no room what happened is kept by connection, a bounded amount: bytes that were
//! delivered and not given back close the peer's window, everything else is a count or a flag. Calls are copied slot by slot
//! and judged; payload is copied once before the engine sees it. Nothing here waits for the application without a bound, and no
//! value of its making is an index before it was compared.

mod allowance;
mod calls;
mod events;
mod line;
mod linger;
mod outward;
mod questions;
mod table;
mod telling;
#[cfg(test)]
mod tests;

use crate::channel::{Channel, Place, State};
use crate::layout::{self, ADDRESSES_BYTES, CALL_SLOTS, Event, EventKind, SEND_BYTES, control, header};
use crate::stats::{DropReason, Reject, Stats};
use allowance::Allowance;
use app::{Addresses, Bound, Connection, Datagram, DeadReason, Listener, Service, Streams, Waker};
use base::{Clock, Instant};
use events::Events;
use line::Line;
use outward::Outward;
use questions::Questions;
use rustix::event::Timespec;
use rustix::thread::futex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use table::{Finish, Knock, Phase, Table};

/// How long a thread looks for calls before it sleeps, after an event was told.
const LOOK_FOR: Duration = Duration::from_micros(20);
/// How often a busy thread looks at what an application on another processor has taken: the line is that one's, and one that writes there
/// without end makes each look cost some 100 ns. Who needs the room, or is about to sleep, looks at once.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Two looks at an application that are longer apart count as so long: a thread that did not run cannot say what the application did.
const LOOKS_APART_MOST: Duration = Duration::from_millis(100);
/// How long it waits for the application on the same processor, each time of a few in a cycle.
const HANDOVER_MOST: Duration = Duration::from_millis(1);
/// Behind a hand-over in which the application did not take all of its events none follows for so many times as long: it has what the
/// scheduler gives it, like any other process, and the thread's other services have the thread.
const HANDOVER_REST: u32 = 8;

/// A service's sleeps are counted from its claim's number times two to this on.
const SLEEPS_BITS: u32 = 16;

/// What an operator can set.
#[derive(Clone, Debug)]
pub struct Options {
    /// an application that takes no event for so long is unresponsive: its datagrams are dropped, what comes of connections waits
    pub unresponsive: Duration,
    /// and after so long its connections are ended, and new ones refused
    pub patience: Duration,
    /// most bytes kept for the application beside its receive area
    pub held_bytes: u64,
    /// most connections over all threads; None is what each was granted
    pub connections: Option<Bound>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            unresponsive: Duration::from_millis(10),
            patience: Duration::from_secs(1),
            held_bytes: 64 << 20,
            connections: None,
        }
    }
}

/// One thread's application.
#[derive(Debug)]
pub struct Remote {
    channel: Arc<Channel>,
    options: Options,
    stats: Arc<Stats>,
    claim: u32,
    table: Table,
    questions: Questions,
    outward: Outward,
    events: Events,
    allowance: Allowance,
    /// calls taken
    call_tail: u32,
    /// where the payload of a call most likely comes next
    next_payload: u32,
    /// connections with something that found no room, the longest waiting first
    waiting: Line,
    /// a cycle's turns were over before some had theirs, so there may be room
    cut_short: bool,
    /// connections with bytes that the engine has not taken
    deferred: Line,
    held_bytes: u64,
    unsent_bytes: u64,
    /// most of these: what the application goes by, and less in tests alone, as what it sends beyond that is lost
    pub(crate) budget_bytes: u64,
    pending_bytes: u64,
    /// what a call's payload is copied to
    scratch: Box<[u8]>,
    /// when the application last took something, or was told something and had nothing
    since: Instant,
    looked: Instant,
    /// what it has taken is looked at again
    looks_at: Instant,
    unresponsive: bool,
    /// its connections were ended for that
    given_up: bool,
    told: Instant,
    now: Instant,
    sleep: u32,
    asleep: bool,
    /// it was given the processor in this cycle
    handed_over: bool,
    /// it is not given the processor before
    waits_until: Instant,
}

impl Remote {
    /// The engine's end of a channel. One that takes the place of another has the application ended and started anew.
    pub fn new(channel: Arc<Channel>, options: Options, stats: Arc<Stats>) -> Remote {
        let claim = channel.claim();
        let granted = channel.grant.connections;
        let bound = options.connections.clone().unwrap_or_else(|| Bound::new(granted as usize));
        let table = Table::new(granted, channel.grant.asked(), bound);
        Remote {
            claim,
            questions: Questions::new(),
            outward: Outward::default(),
            events: Events::new(),
            allowance: Allowance::new(),
            call_tail: 0,
            next_payload: 0,
            waiting: Line::new(table.places()),
            cut_short: false,
            deferred: Line::new(table.places()),
            table,
            held_bytes: 0,
            unsent_bytes: 0,
            budget_bytes: layout::BUDGET_BYTES,
            pending_bytes: 0,
            scratch: vec![0; SEND_BYTES + ADDRESSES_BYTES].into(),
            since: Instant::ZERO,
            looked: Instant::ZERO,
            looks_at: Instant::ZERO,
            unresponsive: false,
            given_up: false,
            told: Instant::ZERO,
            now: Instant::ZERO,
            // not those of the service before it, which the bell was answered for
            sleep: claim << SLEEPS_BITS,
            asleep: false,
            handed_over: false,
            waits_until: Instant::ZERO,
            channel,
            options,
            stats,
        }
    }

    /// Whether the application can be told of something new.
    fn is_up(&self) -> bool {
        self.is_heard() && self.channel.is_attached()
    }

    /// Why no connection can come, for which there would be a place: one that finds no room among the events waits for it.
    fn refuses_connections(&self) -> Option<DropReason> {
        match () {
            () if !self.is_up() => Some(DropReason::Absent),
            () if self.given_up => Some(DropReason::Unresponsive),
            () => None,
        }
    }

    /// Why no datagram can be told.
    fn refuses_datagrams(&self) -> Option<DropReason> {
        match () {
            () if !self.is_up() => Some(DropReason::Absent),
            () if self.unresponsive => Some(DropReason::Unresponsive),
            // those before it come first
            () if !self.waiting.is_empty() => Some(DropReason::NoRoom),
            () => None,
        }
    }

    /// Whether there is an application whose calls count: one that has ended leaves nothing to judge, whoever still writes there, and one
    /// that began with a service before this one does not know who it talks to.
    #[inline]
    fn is_heard(&self) -> bool {
        self.channel.state() == State::Up && (self.claim == 1 || !self.channel.is_condemned())
    }

    fn set_now(&mut self, now: Instant) {
        if now > self.now {
            if self.now == Instant::ZERO {
                self.tell_zero(now);
            }
            self.now = now;
            self.allowance.pass(now);
            self.channel.receive.long(header::NOW_AT).store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// The first cycle's time was looked up a moment ago.
    #[cold]
    fn tell_zero(&self, now: Instant) {
        let zero = self.channel.receive.long(header::ZERO_AT);
        if zero.load(Ordering::Relaxed) == 0 {
            zero.store(Clock::start().zero_ns().saturating_sub(now.as_nanos()), Ordering::Relaxed);
        }
    }

    /// Frees a connection's place with all that was kept for it.
    fn forget(&mut self, index: u32) {
        if let Some(slot) = self.table.at(index) {
            self.unsent_bytes -= slot.unsent;
            self.pending_bytes -= slot.pending.len() as u64;
            self.held_bytes -= slot.waiting.as_ref().map_or(0, |waiting| waiting.bytes.len() as u64);
        }
        self.table.remove(index);
        self.count_connections();
    }

    fn count_connections(&self) {
        self.stats.connections.set(self.table.len() as u64);
        self.channel.busy.store(self.table.len() > 0, Ordering::Relaxed);
    }

    /// Ends every connection; what the application is told of it is nothing when it has ended, else their deaths.
    fn end_all<C: Streams>(&mut self, calls: &mut C, reason: DropReason) {
        for index in 0..self.table.places() {
            let Some(slot) = self.table.at(index) else { continue };
            let connection = slot.connection;
            match slot.phase {
                Phase::Dropped => continue,
                Phase::Dead => {}
                _ => {
                    self.stats.dropped(reason);
                    if reason == DropReason::Lost {
                        slot.phase = Phase::Dropped;
                        let waiting = slot.waiting.take();
                        self.held_bytes -= waiting.map_or(0, |waiting| waiting.bytes.len() as u64);
                        self.pending_bytes -= slot.pending.len() as u64;
                        slot.pending = VecDeque::new();
                    }
                    // gone means that its death is under way
                    let _ = calls.abort(connection);
                    continue;
                }
            }
            if reason == DropReason::Lost {
                self.forget(index);
            }
        }
    }

    /// The application has ended: its connections are reset and the memory begins anew.
    #[cold]
    fn clean<C: Streams>(&mut self, calls: &mut C) {
        self.stats.lost.add(1);
        self.end_all(calls, DropReason::Lost);
        self.waiting.clear();
        self.cut_short = false;
        self.deferred.clear();
        self.questions = Questions::new();
        self.clean_outward(calls);
        self.events.reset(&self.channel);
        self.allowance = Allowance::new();
        self.call_tail = 0;
        self.channel.receive.word(header::CALL_TAIL_AT).store(0, Ordering::Release);
        let words = [
            control::CALL_HEAD_AT,
            control::EVENT_TAIL_AT,
            control::APP_ASLEEP_AT,
            control::WAKE_AT,
            control::TURN_AT,
            control::ATTACHED_AT,
        ];
        words.into_iter().for_each(|at| self.channel.transmit.word(at).store(0, Ordering::Release));
        for n in 0..layout::STATUS_NUMBERS {
            self.channel.transmit.long(control::STATUS_AT + 8 * n).store(0, Ordering::Relaxed);
        }
        (self.unresponsive, self.given_up) = (false, false);
        self.channel.set_state(State::Down);
    }

    /// Lets the application see what was told; its time to take it begins when it had nothing.
    #[inline]
    fn publish(&mut self) {
        // each time, whether there is something to tell or not: a burst shows its groups before it is told
        if !self.events.owes() {
            self.since = self.now;
        }
        let earned = self.events.publish(&self.channel, &self.stats);
        self.allowance.told(earned);
    }

    /// Whether calls wait that may be judged now.
    #[inline]
    fn has_news_of_calls(&self) -> bool {
        self.allowance.calls() > 0 && self.has_calls()
    }

    /// Whether calls wait that count.
    #[inline]
    fn has_calls(&self) -> bool {
        self.is_heard() && self.channel.transmit.word(control::CALL_HEAD_AT).load(Ordering::Acquire) != self.call_tail
    }

    /// Whether it is time to look at what the application has taken. One that shares the processor has taken it by now or not.
    #[inline]
    fn is_to_look(&self) -> bool {
        self.events.owes() && (self.channel.place == Place::Same || self.now >= self.looks_at)
    }

    /// Looks at what the application has taken; whether there is something that it has not.
    fn look(&mut self) -> bool {
        if self.events.owes() {
            self.events.look(&self.channel, &self.stats);
        }
        let owes = self.events.owes();
        self.channel.owes.store(owes, Ordering::Relaxed);
        owes
    }

    /// Judges whether the application takes its events.
    fn watch<C: Streams>(&mut self, calls: &mut C) {
        let owes = self.look();
        self.looks_at = self.now + LOOK_EVERY;
        let apart = self.now - std::mem::replace(&mut self.looked, self.now);
        self.since = (self.since + apart.saturating_sub(LOOKS_APART_MOST)).min(self.now);
        if self.events.has_moved() || !owes {
            if self.unresponsive {
                self.stats.unresponsive_ns.add((self.now - self.since).as_nanos() as u64);
            }
            (self.unresponsive, self.given_up, self.since) = (false, false, self.now);
            return;
        }
        let late = self.now - self.since;
        if late >= self.options.unresponsive && !self.unresponsive {
            self.unresponsive = true;
            self.stats.unresponsive.add(1);
        }
        if late >= self.options.patience && !self.given_up {
            self.given_up = true;
            self.end_all(calls, DropReason::Stuck);
        }
    }

    /// Gives the processor to an application that shares it, until that one has taken its events; for a bounded time, and seldom where that
    /// did not do. Whether it was given.
    fn hand_over(&mut self) -> bool {
        if self.channel.place != Place::Same || !self.events.owes() || self.unresponsive {
            return false;
        }
        self.events.ring(&self.channel, &self.stats);
        // once a cycle: an engine may flush several times in one
        if self.now < self.waits_until || std::mem::replace(&mut self.handed_over, true) {
            return false;
        }
        let begun = std::time::Instant::now();
        self.wait_for_it();
        if self.events.owes() {
            // no cycle has begun since: by now so much has passed
            self.waits_until = self.now + begun.elapsed() * (1 + HANDOVER_REST);
        }
        true
    }

    fn wait_for_it(&mut self) {
        let turn = self.channel.transmit.word(control::TURN_AT);
        let most = Timespec { tv_sec: 0, tv_nsec: HANDOVER_MOST.as_nanos() as i64 };
        self.stats.handovers.add(1);
        // whatever it writes there, this ends after so many waits of a bounded time, of which only the last is waited out
        for _ in 0..4 {
            let seen = turn.load(Ordering::Acquire);
            self.events.look(&self.channel, &self.stats);
            if !self.events.owes() {
                return;
            }
            if futex::wait(turn, futex::Flags::empty(), seen, Some(&most)).is_err() {
                self.events.look(&self.channel, &self.stats);
                return;
            }
        }
    }

    fn show(&self) {
        let Stats { held_bytes, unsent_bytes, pending_bytes, .. } = &*self.stats;
        held_bytes.set(self.held_bytes);
        unsent_bytes.set(self.unsent_bytes);
        pending_bytes.set(self.pending_bytes);
    }
}

impl Service for Remote {
    fn begin(&mut self, waker: &Waker) {
        self.channel.set_waker(waker);
    }

    fn cycle(&mut self, now: Instant) {
        self.set_now(now);
        self.handed_over = false;
        if std::mem::take(&mut self.asleep) {
            self.channel.receive.word(header::DP_ASLEEP_AT).store(0, Ordering::Relaxed);
        }
        self.publish();
    }

    fn has_news(&mut self) -> bool {
        self.has_news_of_calls()
            || self.channel.state() == State::Lost
            || !self.waiting.is_empty()
            || self.outward.waits()
            || self.is_to_look()
    }

    fn may_rest(&mut self, now: Instant) -> bool {
        self.publish();
        let owes = self.look();
        if self.has_calls() || self.channel.state() == State::Lost {
            return false;
        }
        // there may be room for what found none: nobody would ring for that
        let waits = !self.waiting.is_empty() || self.outward.waits();
        if waits && (!owes || self.events.moved() || self.cut_short) {
            return false;
        }
        // one that shares the processor and is not given it has it while this thread sleeps
        let in_turn = self.channel.place == Place::Same && now >= self.waits_until;
        if owes && !self.unresponsive && (in_turn || now - self.told < LOOK_FOR) {
            return false;
        }
        self.sleep = self.sleep.wrapping_add(1).max(1);
        self.asleep = true;
        self.channel.receive.word(header::DP_ASLEEP_AT).store(self.sleep, Ordering::Relaxed);
        // either the application sees that this thread sleeps, or its call is seen here (layout)
        fence(Ordering::SeqCst);
        if self.has_calls() {
            self.asleep = false;
            self.channel.receive.word(header::DP_ASLEEP_AT).store(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        self.set_now(now);
        if self.channel.state() == State::Lost {
            self.clean(calls);
        }
        if !self.waiting.is_empty() {
            self.tell_waiting();
        }
        if self.outward.waits() {
            self.tell_outward(calls);
        }
        self.publish();
        let looks = self.is_to_look();
        if looks {
            self.channel.transmit.foresee(control::EVENT_TAIL_AT, 1);
        }
        if self.is_heard() {
            self.take_calls(calls);
        }
        self.push_deferred(calls);
        // one that was unresponsive may have been seen to take something by whoever needed the room
        if looks || self.unresponsive && !self.events.owes() {
            self.watch(calls);
        }
        self.show();
    }

    fn flush<C: Streams>(&mut self, _now: Instant, calls: &mut C) {
        self.publish();
        if self.hand_over() && self.is_heard() {
            self.take_calls(calls);
        }
    }

    fn datagrams(&mut self, now: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        self.set_now(now);
        self.told = now;
        let refused = self.refuses_datagrams();
        for datagram in burst {
            let most_bytes = datagram.capacity().min(SEND_BYTES) as u32;
            let event = Event {
                detail: datagram.ecn as u8,
                listener: listener.0,
                bytes: most_bytes.into(),
                ..Event::plain(EventKind::Datagram, self.questions.next())
            };
            let addresses = layout::encode_addresses(&datagram.addresses);
            let question = datagram.question();
            if let Some(reason) = refused {
                self.stats.dropped(reason);
            } else if question.len() > SEND_BYTES {
                self.stats.dropped(DropReason::TooLong);
            } else if !self.events.put(&self.channel, &self.stats, event, &[&addresses, question]) {
                self.stats.dropped(DropReason::NoRoom);
            } else {
                self.questions.note(listener, datagram.addresses, most_bytes);
                self.stats.received_bytes.add(question.len() as u64);
            }
        }
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        self.set_now(now);
        let place = match self.refuses_connections() {
            Some(reason) => Err(reason),
            None => self.table.insert(connection).ok_or(DropReason::Full),
        };
        let index = match place {
            Ok(index) => index,
            Err(reason) => {
                self.stats.dropped(reason);
                let _ = calls.reject(connection);
                return;
            }
        };
        self.tell_knock(index, Knock { listener, addresses: layout::encode_addresses(&addresses) });
        // accepted here, since an answer cannot be waited for; one that the application refuses is reset
        if calls.accept(connection, index.into()).is_err() {
            self.stats.dropped(DropReason::Engine);
            self.end(index, DeadReason::Reset);
        }
        self.told = now;
        self.count_connections();
    }

    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        self.set_now(now);
        self.told = now;
        self.told_connected(calls, cookie as u32, outcome);
    }

    fn alarm<C: Streams>(&mut self, now: Instant, calls: &mut C, _cookie: u64) {
        self.set_now(now);
        self.told = now;
        self.told_alarm(calls, now);
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let index = cookie as u32;
        self.told = now;
        self.stats.received_bytes.add(bytes.len() as u64);
        let Some(slot) = self.table.at(index) else { return };
        match slot.phase {
            Phase::Dead | Phase::Dropped => return,
            Phase::Ended => {
                // the engine was not told, as it has not taken all that was sent before; one that was throws away what comes itself
                let _ = calls.recv_done(connection, bytes.len());
                return;
            }
            _ => {}
        }
        if !self.tell_bytes(index, bytes) {
            self.stats.dropped(DropReason::Overrun);
            let _ = calls.abort(connection);
        }
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let index = cookie as u32;
        self.told = now;
        match self.table.at(index).map(|slot| slot.phase) {
            Some(Phase::Told | Phase::Open | Phase::Ended) => {
                let event = Event::plain(EventKind::Eof, self.table.handle(index));
                self.tell(index, event, |waiting| waiting.eof = true);
            }
            _ => {
                let _ = calls.close(connection);
            }
        }
    }

    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _connection: Connection,
        cookie: u64,
        bytes: usize,
        _room: usize,
    ) {
        let index = cookie as u32;
        self.told = now;
        let Some(slot) = self.table.at(index) else { return };
        if slot.phase == Phase::Dropped {
            return;
        }
        let bytes = slot.unsent.min(bytes as u64);
        slot.unsent -= bytes;
        if bytes > 0 {
            slot.excused = 0;
        }
        self.unsent_bytes -= bytes;
        let pending = !slot.pending.is_empty();
        let handle = self.table.handle(index);
        let is_first = pending && self.push(calls, handle);
        // without bytes it is about room alone, and the peer has taken nothing
        if bytes > 0 {
            if pending {
                self.linger(calls, handle);
            }
            self.tell_sent(handle, bytes);
        } else if is_first {
            self.offered(calls, handle);
        }
    }

    fn dead(&mut self, now: Instant, _connection: Connection, cookie: u64, reason: DeadReason) {
        self.told = now;
        self.end(cookie as u32, reason);
    }

    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, _connection: Connection, cookie: u64) {
        self.set_now(now);
        let index = cookie as u32;
        self.told = now;
        match self.table.at(index).map(|slot| (slot.phase, slot.timer_at)) {
            Some((Phase::Told | Phase::Open, bytes)) => {
                self.excuse(self.table.handle(index));
                let event = Event { bytes, ..Event::plain(EventKind::Timer, self.table.handle(index)) };
                self.tell(index, event, |waiting| waiting.timer = Some(bytes));
            }
            Some((Phase::Ended, _)) => self.lingered(calls, self.table.handle(index)),
            _ => {}
        }
    }
}

impl Remote {
    /// The engine has ended a connection.
    fn end(&mut self, index: u32, reason: DeadReason) {
        let handle = self.table.handle(index);
        let Some(slot) = self.table.at(index) else { return };
        if slot.phase == Phase::Dropped {
            return self.forget(index);
        }
        slot.phase = Phase::Dead;
        self.pending_bytes -= slot.pending.len() as u64;
        slot.pending = VecDeque::new();
        let is_late = slot.finish == Finish::Late;
        let detail = layout::reason_number(if is_late { DeadReason::TimedOut } else { reason });
        let event = Event { detail, ..Event::plain(EventKind::Dead, handle) };
        self.tell(index, event, |waiting| waiting.dead = Some(detail));
        if self.table.at(index).is_some_and(|slot| slot.waiting.is_none()) {
            self.forget(index);
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // whoever takes this one's place counts from zero
        self.stats.connections.set(0);
        (self.held_bytes, self.unsent_bytes, self.pending_bytes) = (0, 0, 0);
        self.show();
    }
}

/// Whether so many calls can be there at all.
fn is_possible(waiting: u32) -> Result<u32, Reject> {
    if waiting <= CALL_SLOTS { Ok(waiting) } else { Err(Reject::CallHead) }
}
