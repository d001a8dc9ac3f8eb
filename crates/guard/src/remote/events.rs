//! The producer's end of the event ring.

use crate::channel::{Channel, Place};
use crate::lane::Lane;
use crate::layout::{EVENT_SLOTS, Event, EventKind, PAYLOAD_AT, RECEIVE_BYTES, SLOT_BYTES, SLOTS_AT, control, header};
use crate::stats::{Reject, Stats};
use crate::{GROUP, PAYLOAD_AHEAD, SLOTS_AHEAD};
use rustix::thread::futex;
use std::sync::atomic::{Ordering, fence};

/// Events that were told.
#[derive(Debug)]
pub(super) struct Events {
    head: u32,
    /// what the application may see
    published: u32,
    /// what it was rung for, if it slept
    rung_to: u32,
    /// events since then that others brought about
    earned: u32,
    /// the last one that was right
    tail: u32,
    lane: Lane,
    /// where the payload of each slot ends
    ends: Box<[u64]>,
    /// the sleep that was rung for
    rung: u32,
    /// the application has taken something since this was asked
    moved: bool,
}

impl Events {
    pub(super) fn new() -> Events {
        Events {
            head: 0,
            published: 0,
            rung_to: 0,
            earned: 0,
            tail: 0,
            lane: Lane::new(RECEIVE_BYTES),
            ends: vec![0; EVENT_SLOTS as usize].into(),
            rung: 0,
            moved: false,
        }
    }

    /// Begins anew, with nobody at the other end.
    pub(super) fn reset(&mut self, channel: &Channel) {
        *self = Events::new();
        channel.receive.word(header::EVENT_HEAD_AT).store(0, Ordering::Release);
    }

    /// Puts an event with payload in; false without room.
    pub(super) fn put(&mut self, channel: &Channel, stats: &Stats, mut event: Event, payload: &[&[u8]]) -> bool {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        if self.head.wrapping_sub(self.tail) == EVENT_SLOTS {
            self.look(channel, stats);
            if self.head.wrapping_sub(self.tail) == EVENT_SLOTS {
                return false;
            }
        }
        let place = self.lane.place(length).or_else(|| {
            self.look(channel, stats);
            self.lane.place(length)
        });
        let Some(offset) = place else { return false };
        let mut at = PAYLOAD_AT + offset as usize;
        for part in payload {
            channel.receive.copy_in(at, part);
            at += part.len();
        }
        (event.offset, event.length) = (offset, length as u32);
        let slot = (self.head % EVENT_SLOTS) as usize;
        channel.receive.set_slot(SLOTS_AT + slot * SLOT_BYTES, event.encode());
        self.ends[slot] = self.lane.end();
        self.head = self.head.wrapping_add(1);
        self.earned += u32::from(earns(event.kind));
        // the same for what comes some events later
        let slot = (self.head.wrapping_add(SLOTS_AHEAD) % EVENT_SLOTS) as usize;
        channel.receive.claim(SLOTS_AT + slot * SLOT_BYTES, SLOT_BYTES);
        channel.receive.claim(PAYLOAD_AT + (offset as usize + length + PAYLOAD_AHEAD) % RECEIVE_BYTES, length);
        // on another processor it begins while the rest of the burst is told; if it sleeps it is woken behind the burst
        if channel.place != Place::Same && self.head.wrapping_sub(self.published) >= GROUP as u32 {
            self.show(channel);
        }
        true
    }

    /// Looks at how far the application is.
    pub(super) fn look(&mut self, channel: &Channel, stats: &Stats) {
        let tail = channel.transmit.word(control::EVENT_TAIL_AT).load(Ordering::Acquire);
        let taken = tail.wrapping_sub(self.tail);
        if taken == 0 {
            return;
        }
        if taken > self.published.wrapping_sub(self.tail) {
            stats.rejected(Reject::EventTail);
            return;
        }
        self.lane.free_to(self.ends[(tail.wrapping_sub(1) % EVENT_SLOTS) as usize]);
        self.tail = tail;
        self.moved = true;
    }

    /// Whether the application has something that it has not taken, as of the last look.
    pub(super) fn owes(&self) -> bool {
        self.published != self.tail
    }

    /// Whether it has taken something since [`Events::has_moved`] was asked.
    pub(super) fn moved(&self) -> bool {
        self.moved
    }

    /// Whether it has taken something since this was asked.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Lets the application see what was put in, and wakes it if it sleeps; how many events it was that earn calls.
    #[inline]
    pub(super) fn publish(&mut self, channel: &Channel, stats: &Stats) -> u32 {
        let told = self.head.wrapping_sub(self.rung_to);
        if told == 0 {
            return 0;
        }
        stats.events.add(told.into());
        self.rung_to = self.head;
        self.show(channel);
        if channel.place != Place::Same {
            self.ring(channel, stats);
        }
        std::mem::take(&mut self.earned)
    }

    #[inline]
    fn show(&mut self, channel: &Channel) {
        self.published = self.head;
        channel.receive.word(header::EVENT_HEAD_AT).store(self.head, Ordering::Release);
    }

    /// Wakes the application once for each of its sleeps.
    pub(super) fn ring(&mut self, channel: &Channel, stats: &Stats) {
        // either it sees what was published, or we see that it sleeps (layout)
        fence(Ordering::SeqCst);
        let asleep = channel.transmit.word(control::APP_ASLEEP_AT).load(Ordering::Relaxed);
        if asleep == 0 || asleep == self.rung {
            return;
        }
        self.rung = asleep;
        stats.wakes.add(1);
        let word = channel.transmit.word(control::WAKE_AT);
        word.fetch_add(1, Ordering::Relaxed);
        // nothing can be wrong with the address, and nobody there is no error
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// Whether others have brought it about. What the application itself brings about, as often as it likes, earns it nothing: alarms and
/// timers, what becomes of connections that it asks for or aborts, and that something it sent has gone, which a socket's engine says at once.
#[inline]
fn earns(kind: EventKind) -> bool {
    matches!(kind, EventKind::Knock | EventKind::Recv | EventKind::Eof | EventKind::Datagram)
}
