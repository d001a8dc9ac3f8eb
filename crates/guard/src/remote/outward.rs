//! What an application begins itself: connections that it asks for, datagrams that answer none, alarms.
//!
//! Whom it may begin something with is judged here by the grant, whatever the application's half has said. An attempt that comes to
//! nothing at once takes no place: its refusal is an event, which waits here while there is no room for it.

use super::Remote;
use super::table::{Asked, Phase};
use crate::layout::{self, ADDRESSES_BYTES, ASKING, Call, Event, EventKind, Handle, NEVER, SEND_BYTES};
use crate::stats::{DropReason, Reject};
use app::{Addresses, Alarms, CallError, Connection, DeadReason, Listener, Streams};
use base::Instant;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The cookie of the one alarm of the engine's that stands for all of the application's.
const ALARM: u64 = 0;

/// What is kept of it.
#[derive(Debug, Default)]
pub(super) struct Outward {
    /// connections that the engine has not told of
    asking: u32,
    /// refusals that found no room among the events, with the event's detail
    refusals: VecDeque<(Handle, u8)>,
    /// made with the first alarm: most applications set none
    alarms: Option<Box<Alarms>>,
    /// one that has gone off and found no room among the events
    due: Option<(u64, Instant)>,
    /// what the engine's alarm is set to
    armed: Option<Instant>,
}

impl Outward {
    /// Whether something waits for room among the events.
    pub(super) fn waits(&self) -> bool {
        !self.refusals.is_empty() || self.due.is_some()
    }
}

impl Remote {
    /// Asks the engine for a connection at a place that the application has chosen.
    pub(super) fn connect<C: Streams>(&mut self, calls: &mut C, call: &Call) -> Result<(), Reject> {
        if call.length as usize != ADDRESSES_BYTES {
            return Err(Reject::Length);
        }
        let ends = self.addresses(call)?;
        let place = self.table.asked(call.handle.index);
        match place {
            Asked::Never => return Err(Reject::Index),
            Asked::Taken => return Err(Reject::State),
            Asked::Free | Asked::Leaving => {}
        }
        if self.outward.asking + self.outward.refusals.len() as u32 >= ASKING {
            return Err(Reject::Asking);
        }
        if !self.channel.grant.allows(ends.peer) {
            self.refuse(call.handle, DeadReason::Denied(CallError::Forbidden));
            return Err(Reject::Permit);
        }
        if place == Asked::Leaving || self.table.is_full() {
            self.stats.dropped(DropReason::Full);
            self.refuse(call.handle, DeadReason::NoResources);
            return Ok(());
        }
        let chosen = SocketAddr::from(([0u16; 8], 0));
        let local = (ends.local != chosen).then_some(ends.local);
        match calls.connect(ends.peer, local, call.handle.index.into()) {
            Ok(connection) => {
                self.table.claim(call.handle, connection);
                self.outward.asking += 1;
                self.stats.connects.add(1);
                self.count_connections();
            }
            Err(error) => {
                self.stats.dropped(DropReason::Engine);
                self.refuse(call.handle, DeadReason::Denied(error));
            }
        }
        Ok(())
    }

    /// The addresses in front of a call's payload.
    fn addresses(&mut self, call: &Call) -> Result<Addresses, Reject> {
        let payload = self.payload(call)?;
        let addresses = payload.first_chunk::<ADDRESSES_BYTES>().ok_or(Reject::Length)?;
        Ok(layout::decode_addresses(addresses))
    }

    /// Tells that what was asked for will not be. There is no connection, and no place for one.
    fn refuse(&mut self, handle: Handle, reason: DeadReason) {
        let detail = layout::outcome_number(Err(reason));
        let event = Event { detail, ..Event::plain(EventKind::Connected, handle) };
        if self.outward.waits() || !self.events.put(&self.channel, &self.stats, event, &[]) {
            self.outward.refusals.push_back((handle, detail));
        }
    }

    /// The engine says what became of a connection that was asked for.
    pub(super) fn told_connected<C: Streams>(
        &mut self,
        calls: &mut C,
        index: u32,
        outcome: Result<Connection, DeadReason>,
    ) {
        self.outward.asking = self.outward.asking.saturating_sub(1);
        let handle = self.table.handle(index);
        let Some(slot) = self.table.at(index) else { return };
        let detail = layout::outcome_number(outcome.map(drop));
        match (slot.phase, outcome) {
            // its application is gone
            (Phase::Dropped, Ok(connection)) => {
                let _ = calls.abort(connection);
                return;
            }
            (Phase::Dropped, Err(_)) => return self.forget(index),
            (Phase::Asking, Ok(_)) => slot.phase = Phase::Open,
            (_, Ok(_)) => {}
            (_, Err(_)) => slot.phase = Phase::Dead,
        }
        let event = Event { detail, ..Event::plain(EventKind::Connected, handle) };
        self.tell(index, event, |waiting| waiting.connected = Some(detail));
        if outcome.is_err() && self.table.at(index).is_some_and(|slot| slot.waiting.is_none()) {
            self.forget(index);
        }
    }

    /// Sends a datagram that answers none: from a listener of the application's, to whom it may begin something with.
    pub(super) fn send_to<C: Streams>(&mut self, calls: &mut C, call: &Call) -> Result<(), Reject> {
        if !(ADDRESSES_BYTES..=ADDRESSES_BYTES + SEND_BYTES).contains(&(call.length as usize)) {
            return Err(Reject::Length);
        }
        if call.handle.generation != 0 {
            return Err(Reject::NotZero);
        }
        let listener = u16::try_from(call.handle.index).map_err(|_| Reject::Listener)?;
        if !self.channel.grant.listeners.contains(&listener) {
            return Err(Reject::Listener);
        }
        let ends = self.addresses(call)?;
        if !self.channel.grant.allows(ends.peer) {
            return Err(Reject::Permit);
        }
        let bytes = &self.scratch[ADDRESSES_BYTES..call.length as usize];
        self.stats.sent_bytes.add(bytes.len() as u64);
        if calls.send_to(Listener(listener), ends, bytes).is_err() {
            self.stats.dropped(DropReason::Engine);
        }
        Ok(())
    }

    /// Sets or clears an alarm of the application's.
    pub(super) fn set_alarm<C: Streams>(&mut self, calls: &mut C, call: &Call) -> Result<(), Reject> {
        let at = (call.at != NEVER).then_some(Instant::from_nanos(call.at));
        if at.is_none() && self.outward.alarms.is_none() {
            return Ok(());
        }
        let alarms = self.outward.alarms.get_or_insert_default();
        let set = alarms.set(call.handle.cookie(), at);
        self.arm(calls);
        set.map_err(|_| Reject::Alarms)
    }

    /// Has the engine tell when the earliest alarm is due.
    fn arm<C: Streams>(&mut self, calls: &mut C) {
        let Some(alarms) = &self.outward.alarms else { return };
        self.stats.alarms.set(alarms.len() as u64);
        // while one waits for room, no other is told, and the engine would ring for it in every cycle
        let next = if self.outward.due.is_some() { None } else { alarms.next() };
        if next == self.outward.armed {
            return;
        }
        match calls.alarm_set(ALARM, next) {
            Ok(()) => self.outward.armed = next,
            Err(_) => self.stats.dropped(DropReason::Engine),
        }
    }

    /// The engine's alarm: tells those of the application's that are due, as far as there is room.
    pub(super) fn told_alarm<C: Streams>(&mut self, calls: &mut C, now: Instant) {
        self.outward.armed = None;
        self.tell_alarms(calls, now);
    }

    fn tell_alarms<C: Streams>(&mut self, calls: &mut C, now: Instant) {
        while let Some((cookie, at)) = self.next_alarm(now) {
            let event = Event { bytes: at.as_nanos(), ..Event::plain(EventKind::Alarm, Handle::of_cookie(cookie)) };
            if !self.events.put(&self.channel, &self.stats, event, &[]) {
                self.outward.due = Some((cookie, at));
                break;
            }
        }
        self.arm(calls);
    }

    fn next_alarm(&mut self, now: Instant) -> Option<(u64, Instant)> {
        self.outward.due.take().or_else(|| self.outward.alarms.as_mut()?.pop_timed(now))
    }

    /// Tells what had to wait, as far as there is room.
    pub(super) fn tell_outward<C: Streams>(&mut self, calls: &mut C) {
        while let Some(&(handle, detail)) = self.outward.refusals.front() {
            let event = Event { detail, ..Event::plain(EventKind::Connected, handle) };
            if !self.events.put(&self.channel, &self.stats, event, &[]) {
                return;
            }
            self.outward.refusals.pop_front();
        }
        if self.outward.due.is_some() {
            self.tell_alarms(calls, self.now);
        }
    }

    /// The application has ended: nothing of what it began is told any more. What the engine was asked for it still tells us of.
    pub(super) fn clean_outward<C: Streams>(&mut self, calls: &mut C) {
        if self.outward.armed.is_some() {
            // one that is not there any more is no error
            let _ = calls.alarm_set(ALARM, None);
        }
        self.stats.alarms.set(0);
        self.outward = Outward { asking: self.outward.asking, ..Outward::default() };
    }
}

#[cfg(test)]
mod tests;
