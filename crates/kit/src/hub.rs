//! The service: a talk for every connection, told what happens.

use crate::with::{OWN_ALARM, Places, With};
use app::{Addresses, Connection, DeadReason, Listener, Service, Streams, Waker};
use base::Instant;

/// A connection's name: good as long as its talk lives, and never another one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What happens on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// it is there: accepted, or dialled and answered
    Connected,
    /// it was dialled, and will not be; the last event
    Failed(DeadReason),
    /// bytes have come: see [`With::bytes`]
    Bytes,
    /// the peer has finished sending; what it sent may still be there
    Eof,
    /// [`With::send`] had less room than was asked for, and has some now
    Room,
    /// the peer has taken everything that was sent before this mark was set
    Sent(u64),
    /// the time set by [`With::timer`] has come
    Timer,
    /// it is gone; the last event. One that both sides have finished is so once everything that came was consumed, or it is closed;
    /// its timer goes on until then
    Dead(DeadReason),
}

/// One connection's part of an application. Without [`Talk::knock`] it takes none that come, and only dials.
pub trait Talk: Sized {
    /// What all talks of a thread share.
    type Shared;

    /// Somebody connects: the talk with it, or None to refuse.
    fn knock(shared: &mut Self::Shared, listener: Listener, addresses: Addresses) -> Option<Self> {
        let _ = (shared, listener, addresses);
        None
    }

    /// Something happened on the line `me`.
    fn on(&mut self, me: Line, event: Event, with: &mut With<'_, Self>);

    /// Once at the start: what makes the thread look at [`Talk::woken`].
    fn begin(shared: &mut Self::Shared, waker: &Waker) {
        let _ = (shared, waker);
    }

    /// Once a cycle, after what other threads have done: the moment to take their results, and to dial what is wanted from the start.
    fn woken(with: &mut With<'_, Self>) {
        let _ = with;
    }

    /// The time set by [`With::alarm`] has come: a timer of no line.
    fn alarm(with: &mut With<'_, Self>, cookie: u64) {
        let _ = (with, cookie);
    }
}

/// A service made of talks.
#[derive(Debug)]
pub struct Hub<T: Talk> {
    pub(crate) places: Places<T>,
    /// what its talks share
    pub shared: T::Shared,
}

impl<T: Talk> Hub<T> {
    /// One without lines.
    pub fn new(shared: T::Shared) -> Hub<T> {
        Hub { places: Places::new(), shared }
    }

    /// Lines that there are, or are asked for.
    pub fn lines(&self) -> usize {
        self.places.len()
    }

    /// Tells a talk, which is lent to the call.
    fn tell(&mut self, now: Instant, calls: &mut dyn Streams, line: Line, event: Event) {
        let Some(mut talk) = self.places.lend(line) else { return };
        let Hub { places, shared } = self;
        talk.on(line, event, &mut With { now, calls, places, shared });
        self.places.give_back(line, talk);
    }

    /// Tells the talk of a line that is gone, and forgets it.
    fn bury(&mut self, now: Instant, calls: &mut dyn Streams, line: Line, event: Event) {
        let Some(mut talk) = self.places.remove(line) else { return };
        let Hub { places, shared } = self;
        talk.on(line, event, &mut With { now, calls, places, shared });
    }

    /// The line of an event: its cookie is the place.
    fn line(&self, cookie: u64) -> Option<Line> {
        self.places.line(u32::try_from(cookie).ok()?)
    }

    /// What is to be told beside what the engine told, until there is nothing more.
    fn settle(&mut self, now: Instant, calls: &mut dyn Streams) {
        while let Some((line, event)) = self.places.next_event() {
            match event {
                Event::Dead(_) | Event::Failed(_) => self.bury(now, calls, line, event),
                _ => self.tell(now, calls, line, event),
            }
        }
    }
}

impl<T: Talk> Service for Hub<T> {
    fn begin(&mut self, waker: &Waker) {
        T::begin(&mut self.shared, waker);
    }

    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        let Hub { places, shared } = self;
        T::woken(&mut With { now, calls, places, shared });
        self.settle(now, calls);
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        let Some(talk) = T::knock(&mut self.shared, listener, addresses) else {
            // refused by the engine only if it is gone
            let _ = calls.reject(connection);
            return;
        };
        let line = self.places.insert(talk, addresses.peer);
        if calls.accept(connection, line.index.into()).is_err() {
            self.places.remove(line);
            return;
        }
        self.places.connect(line, connection);
        self.tell(now, calls, line, Event::Connected);
        self.settle(now, calls);
    }

    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let Some(line) = self.line(cookie) else { return };
        match outcome {
            Ok(connection) => {
                self.places.connect(line, connection);
                self.tell(now, calls, line, Event::Connected);
            }
            Err(reason) => self.bury(now, calls, line, Event::Failed(reason)),
        }
        self.settle(now, calls);
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, _: Connection, cookie: u64, bytes: &[u8]) {
        let Some(line) = self.line(cookie) else { return };
        self.places.arrive(line, bytes);
        self.tell(now, calls, line, Event::Bytes);
        self.settle(now, calls);
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, _: Connection, cookie: u64) {
        let Some(line) = self.line(cookie) else { return };
        self.places.on_eof(line);
        self.tell(now, calls, line, Event::Eof);
        self.settle(now, calls);
    }

    fn sent<C: Streams>(&mut self, now: Instant, calls: &mut C, _: Connection, cookie: u64, bytes: usize, _: usize) {
        let Some(line) = self.line(cookie) else { return };
        self.places.on_sent(line, bytes);
        self.settle(now, calls);
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        // told with calls, in the same cycle's flush
        if let Some(line) = self.line(cookie) {
            self.places.on_dead(line, reason);
        }
    }

    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, _: Connection, cookie: u64) {
        let Some(line) = self.line(cookie) else { return };
        self.places.note_timer(line, None);
        self.tell(now, calls, line, Event::Timer);
        self.settle(now, calls);
    }

    fn alarm<C: Streams>(&mut self, now: Instant, calls: &mut C, cookie: u64) {
        if cookie == OWN_ALARM {
            // as many as there were: one that is set again to what has passed waits for the next ring
            for _ in 0..self.places.ring() {
                let Some(line) = self.places.next_late(now) else { break };
                self.tell(now, calls, line, Event::Timer);
            }
        } else {
            let Hub { places, shared } = self;
            T::alarm(&mut With { now, calls, places, shared }, cookie);
        }
        self.settle(now, calls);
    }

    fn flush<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        self.settle(now, calls);
        // what a talk does when it hears of room may give others something to send
        while let Some(line) = self.places.next_unflushed() {
            self.places.hand_over(line, calls);
            self.settle(now, calls);
        }
        self.places.set_alarm(calls);
    }

    fn name(&self) -> &'static str {
        std::any::type_name::<T>()
    }
}

#[cfg(test)]
mod tests;
