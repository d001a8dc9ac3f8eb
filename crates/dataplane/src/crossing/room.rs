//! How much a thread may take from its queue, so that what it forwards is not lost between threads.
//!
//! A ring to another thread is short beside a device's. While groups move, and when a thread comes or goes, frames pile up before their owner
//! for some milliseconds; then they wait at the device, where overload belongs. A thread that is not needed forwards all that it takes, so
//! it waits for as long as that takes, and has all of its time to wait when it is needed again. One with groups of its own waits for a short time in all ([`Grace`]): whoever does not keep up for longer
//! is overloaded, and others must not wait for him; then what he cannot take is lost, and counted.
//!
//! Groups leave, and are asked for, while there is room to every thread, lest a burst of notes crowd frames out. A thread that has not made
//! room for a while is left out of that: it may hang, and the others must be able to relieve each other. It gets no groups, and what moves
//! ask of it waits, so much at most that no more groups leave before some of these are settled. What it is told of its own moves waits too:
//! no more than it asked for, gave or got. A thread that is not needed has as little time for it then as one with groups.

use super::leaving::PATIENCE;
use super::{Crossing, DEPARTURES, Note, RING_ITEMS};
use base::Instant;
use std::time::Duration;

/// Places that stay for what is forwarded a second time, when its group has moved on.
const RESERVED: usize = RING_ITEMS / 2;
/// Groups leave while there is so much room to every thread.
const DEPARTURE_ROOM: usize = RING_ITEMS / 2;
/// For so long, in all, arrivals wait for another thread: until the balance, or a thread that is added, has relieved it.
const MOST: Duration = Duration::from_millis(250);
/// Time without waiting brings back this part of itself.
const REFILL: u32 = 50;

/// Time that a thread may wait for others, which is used up and comes back.
#[derive(Debug)]
pub(super) struct Grace {
    left: Duration,
    /// since the last look that used it, whether it goes on
    at: Option<Instant>,
    waits: bool,
    /// nothing can be taken at all
    full: bool,
}

impl Grace {
    pub(super) fn new() -> Grace {
        Grace { left: MOST, at: None, waits: false, full: false }
    }

    /// Whether the thread may wait at `now`.
    fn wait(&mut self, now: Instant) -> bool {
        let passed = self.at.map_or(Duration::ZERO, |at| now.max(at) - at);
        self.left = if self.waits { self.left.saturating_sub(passed) } else { (self.left + passed / REFILL).min(MOST) };
        (self.at, self.waits) = (Some(now), true);
        !self.left.is_zero()
    }

    fn go_on(&mut self, now: Instant) {
        if self.waits {
            (self.at, self.waits) = (Some(now), false);
        }
        self.full = false;
    }
}

/// That the ring to another thread has no room for a burst of notes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortage {
    /// since when, as far as was looked
    since: Option<Instant>,
    /// for longer than is waited for it
    is_long: bool,
}

impl Crossing {
    /// Sees for how long there has been no room to others.
    #[inline]
    pub(super) fn look_at_rings(&mut self, now: Instant) {
        for (ring, shortage) in self.out.iter_mut().zip(&mut self.shortages) {
            // those who leave arrivals at the device for its sake stop just at that room
            let is_short = ring.as_mut().is_some_and(|ring| ring.room(DEPARTURE_ROOM + 1) <= DEPARTURE_ROOM);
            let since = is_short.then(|| shortage.since.unwrap_or(now));
            *shortage = Shortage { since, is_long: since.is_some_and(|since| now - since >= PATIENCE) };
        }
    }

    /// Whether a thread hangs, or has not made room for what it is sent for a while.
    pub(super) fn is_stuck(&self, thread: u16) -> bool {
        self.shortages[usize::from(thread)].is_long || self.owners.hangs(thread)
    }

    /// Whether something is to go to other threads as soon as there is room to all of them, which nobody tells.
    pub(super) fn waits_for_room(&self) -> bool {
        !self.departures.is_empty() || !self.wishes.is_empty() || !self.unsent.is_empty()
    }

    /// Whether groups may leave and be asked for.
    pub(super) fn has_room(&mut self) -> bool {
        let is_of_moves = |note: &Note| matches!(note, Note::Asked { .. } | Note::Wanted { .. });
        let waiting = self.unsent.iter().filter(|(_, note)| is_of_moves(note)).count();
        let mut rings = self.out.iter_mut().zip(&self.shortages);
        waiting < DEPARTURES
            && rings.all(|(ring, shortage)| {
                shortage.is_long || ring.as_mut().is_none_or(|ring| ring.room(DEPARTURE_ROOM) >= DEPARTURE_ROOM)
            })
    }

    /// How many of `limit` frames may be taken at devices now.
    #[inline]
    pub(crate) fn room_for_arrivals(&mut self, now: Instant, limit: usize) -> usize {
        let room = self.out.iter_mut().flatten().map(|ring| ring.room(limit + RESERVED)).min();
        if room.is_none_or(|room| room >= limit + RESERVED) && self.unsent.is_empty() {
            self.grace.go_on(now);
            return limit;
        }
        self.scarce_room(now, room.unwrap_or(0), limit)
    }

    #[cold]
    fn scarce_room(&mut self, now: Instant, room: usize, limit: usize) -> usize {
        if self.is_off_duty() && !self.shortages.iter().any(|shortage| shortage.is_long) {
            self.grace = Grace::new();
        } else if !self.grace.wait(now) {
            self.grace.full = false;
            return limit;
        }
        // frames go behind notes that wait
        let room = if self.unsent.is_empty() { room.saturating_sub(RESERVED).min(limit) } else { 0 };
        self.grace.full = room == 0;
        room
    }

    /// Whether what arrives is left at the device for now.
    pub(crate) fn leaves_arrivals(&self) -> bool {
        self.grace.full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn it_is_used_up_by_waiting_and_comes_back_slowly() {
        let mut grace = Grace::new();
        assert!(grace.wait(at(0)) && grace.wait(at(130)) && grace.wait(at(249)));
        assert!(!grace.wait(at(250)) && !grace.wait(at(1000)));
        grace.go_on(at(1000));
        assert!(grace.wait(at(1500)) && grace.wait(at(1509)));
        assert!(!grace.wait(at(1511)));
        grace.go_on(at(2000));
        // and never to more than there was
        assert!(grace.wait(at(1_000_000)) && !grace.wait(at(1_000_250)));
    }
}
