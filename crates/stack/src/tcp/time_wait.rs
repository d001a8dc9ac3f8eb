//! TIME-WAIT (RFC 9293 section 3.6.1) in 32 bytes a connection over IPv4 and 56 over IPv6: who it was, where both
//! streams ended, the peer's last timestamp, until when.
//!
//! Entries stand in two rings, one a family, in the order in which they came, which is nearly that in which they go:
//! memory is bounded and touched only as far as it is used, and when a ring is full the oldest entry goes early and is
//! counted. A connection is found through the caller's table ([`super::table`]), whose value an entry's [`Slot`] is;
//! [`Fate`] tells what changes there.
//!
//! What comes for such a connection is judged by [`TimeWait::judge`]. Hazards of RFC 1337: a reset does not end
//! TIME-WAIT (its fix F1), an old duplicate is answered with an acknowledgement and nothing is taken from it, and a new
//! SYN is taken only where timestamps or sequence numbers show that it is new (RFC 6191, RFC 9293 section 3.10.7.4).

use super::table::Hash;
use super::tuple::{Tuple, Tuple4, Tuple6};
use base::{Instant, Seq};
use std::time::Duration;
use wire::tcp::{Flags, Timestamps};

/// Place of an entry, below 2^25: bit 24 tells IPv6. The bits above are free for the caller's own marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

const V6: u32 = 1 << 24;
/// The most entries of one family.
const MAX_ENTRIES: u32 = 1 << 24;

/// How far before the end a peer may still be at sending again: whoever has no number and guesses hits one in four thousand.
const LAST_FLIGHT_BYTES: u32 = 1 << 20;

/// What is kept of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// who it was
    pub tuple: Tuple,
    /// the tuple's hash in the caller's table
    pub hash: Hash,
    /// the next number we would send: behind our FIN
    pub snd_nxt: Seq,
    /// the next number we expect: behind the peer's FIN
    pub rcv_nxt: Seq,
    /// TS.Recent, if timestamps were in use (RFC 7323)
    pub ts_recent: Option<u32>,
}

/// A connection on its way to another list under the same clock: it waits there until the time at which it would have ended here.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// what is kept of it
    pub closed: Closed,
    /// as in [`Entry`]
    until: u32,
}

/// What a segment says that matters here.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// its sequence number
    pub seq: Seq,
    /// control bits
    pub flags: Flags,
    /// bytes of payload
    pub payload_bytes: u32,
    /// clocks
    pub timestamps: Option<Timestamps>,
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// nothing: it tells nothing new
    Drop,
    /// nothing: a reset (RFC 1337)
    DropReset,
    /// Acknowledge: `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`, within the limit on such acknowledgements (RFC 5961 section
    /// 7). For bytes that we had, two segment lifetimes begin anew (done here)
    Acknowledge,
    /// The peer's FIN again: acknowledge; two segment lifetimes begin anew (done here)
    AcknowledgeFin,
    /// A new connection may begin. Take this entry out; our initial number must be beyond this one (RFC 6191 section 2,
    /// RFC 9293 section 3.6.1)
    Reuse {
        /// the last number that we may have used
        beyond: Seq,
    },
}

/// What happened to entries behind the caller's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// its time is over
    Expired(Hash, Slot),
    /// the ring was full
    Recycled(Hash, Slot),
    /// it stands elsewhere now
    Moved(Hash, Slot, Slot),
}

/// One entry, 20 bytes and the tuple.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    tuple: T,
    hash: Hash,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    ts_recent: u32,
    /// milliseconds modulo 2^29, and the bits below
    until: u32,
}

/// timestamps were in use
const STAMPED: u32 = 1;
/// nobody is here any more
const GONE: u32 = 2;
/// the time began anew while the entry stood where it is, so its place is no longer that of its time
const RESTARTED: u32 = 4;
/// bits that are not time
const MARK_BITS: u32 = 3;

const _: () = assert!(size_of::<Entry<Tuple4>>() <= 32 && size_of::<Entry<Tuple6>>() <= 64);

/// Milliseconds of `at`, modulo 2^29, which is six days; comparisons hold for half of that.
fn millis(at: Instant) -> u32 {
    (at.as_nanos() / 1_000_000) as u32 & (u32::MAX >> MARK_BITS)
}

/// Whether a time as in [`Entry::until`] is over at `now`, as [`millis`] gives it.
fn is_over(until: u32, now: u32) -> bool {
    (now.wrapping_sub(until >> MARK_BITS) << MARK_BITS).cast_signed() >= 0
}

/// A ring of entries; the places of those that went early are skipped when their turn comes.
#[derive(Debug)]
struct Ring<T> {
    /// grows to its capacity as it is first used, then wraps
    entries: Vec<Entry<T>>,
    capacity: u32,
    /// place of the oldest
    oldest: u32,
    /// places in use, from the oldest on, skipped ones among them
    span: u32,
    /// entries in use
    live: u32,
}

impl<T: Copy> Ring<T> {
    fn new(capacity: u32) -> Ring<T> {
        let capacity = capacity.clamp(1, MAX_ENTRIES);
        Ring { entries: base::huge::vec(capacity as usize), capacity, oldest: 0, span: 0, live: 0 }
    }

    fn is_full(&self) -> bool {
        self.span == self.capacity
    }

    /// There is room.
    fn push(&mut self, entry: Entry<T>) -> u32 {
        let at = (self.oldest + self.span) % self.capacity;
        match self.entries.get_mut(at as usize) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.span += 1;
        self.live += 1;
        at
    }

    /// Drops the oldest place.
    fn shift(&mut self) -> Option<(u32, Entry<T>)> {
        if self.span == 0 {
            return None;
        }
        let at = self.oldest;
        let entry = self.entries[at as usize];
        self.entries[at as usize].until |= GONE;
        self.oldest = (at + 1) % self.capacity;
        self.span -= 1;
        if entry.until & GONE == 0 {
            self.live -= 1;
        }
        Some((at, entry))
    }

    fn oldest(&self) -> Option<&Entry<T>> {
        if self.span == 0 { None } else { self.entries.get(self.oldest as usize) }
    }

    fn get(&self, at: u32) -> Option<&Entry<T>> {
        self.entries.get(at as usize).filter(|entry| entry.until & GONE == 0)
    }

    fn remove(&mut self, at: u32) -> bool {
        let found = self.get(at).is_some();
        if found {
            self.entries[at as usize].until |= GONE;
            self.live -= 1;
        }
        found
    }

    fn insert(&mut self, now: u32, entry: Entry<T>, family: u32, gone: &mut impl FnMut(Fate)) -> Slot {
        while self.is_full() {
            if let Some((at, oldest)) = self.shift()
                && oldest.until & GONE == 0
            {
                let slot = Slot(at | family);
                let expired = oldest.is_over(now);
                gone(if expired { Fate::Expired(oldest.hash, slot) } else { Fate::Recycled(oldest.hash, slot) });
            }
        }
        Slot(self.push(entry) | family)
    }

    /// Deals with the oldest place if its turn has come. Whether it had.
    fn expire_one(&mut self, now: u32, family: u32, gone: &mut impl FnMut(Fate)) -> bool {
        match self.oldest() {
            None => return false,
            Some(oldest) if oldest.until & (GONE | RESTARTED) == 0 && !oldest.is_over(now) => return false,
            Some(_) => {}
        }
        let Some((at, mut entry)) = self.shift() else { return false };
        let slot = Slot(at | family);
        if entry.until & GONE != 0 {
            return true;
        }
        if entry.is_over(now) {
            gone(Fate::Expired(entry.hash, slot));
        } else {
            entry.until &= !RESTARTED;
            let to = Slot(self.push(entry) | family);
            // the only entry of a ring of one stays where it is
            if to != slot {
                gone(Fate::Moved(entry.hash, slot, to));
            }
        }
        true
    }
}

/// All connections in TIME-WAIT.
#[derive(Debug)]
pub struct TimeWait {
    v4: Ring<Tuple4>,
    v6: Ring<Tuple6>,
    lifetime_ms: u32,
}

impl TimeWait {
    /// Room for so many connections over each family, at least one and at most 2^24; `lifetime` is twice the segment
    /// lifetime (RFC 9293 section 3.4.2), at most a day.
    pub fn new(capacity4: u32, capacity6: u32, lifetime: Duration) -> TimeWait {
        let lifetime_ms = lifetime.as_millis().min(86_400_000) as u32;
        TimeWait { v4: Ring::new(capacity4), v6: Ring::new(capacity6), lifetime_ms }
    }

    /// Connections in TIME-WAIT.
    pub fn len(&self) -> u32 {
        self.v4.live + self.v6.live
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a connection in; the oldest goes if there is no room, and `gone` hears of it.
    pub fn insert(&mut self, now: Instant, closed: &Closed, gone: impl FnMut(Fate)) -> Slot {
        let until = self.until(millis(now)) | if closed.ts_recent.is_some() { STAMPED } else { 0 };
        self.insert_until(now, closed, until, gone)
    }

    fn insert_until(&mut self, now: Instant, closed: &Closed, until: u32, mut gone: impl FnMut(Fate)) -> Slot {
        let now = millis(now);
        let Closed { hash, snd_nxt, rcv_nxt, .. } = *closed;
        let ts_recent = closed.ts_recent.unwrap_or(0);
        match closed.tuple {
            Tuple::V4(tuple) => {
                self.v4.insert(now, Entry { tuple, hash, snd_nxt, rcv_nxt, ts_recent, until }, 0, &mut gone)
            }
            Tuple::V6(tuple) => {
                self.v6.insert(now, Entry { tuple, hash, snd_nxt, rcv_nxt, ts_recent, until }, V6, &mut gone)
            }
        }
    }

    /// The end of a lifetime that begins now, in the form of `Entry::until`.
    fn until(&self, now: u32) -> u32 {
        now.wrapping_add(self.lifetime_ms) << MARK_BITS
    }

    /// The connection in that place.
    pub fn get(&self, slot: Slot) -> Option<Closed> {
        if slot.0 & V6 == 0 {
            self.v4.get(slot.0).map(|entry| entry.closed(Tuple::V4))
        } else {
            self.v6.get(slot.0 & !V6).map(|entry| entry.closed(Tuple::V6))
        }
    }

    /// Whether the connection in that place is this one.
    #[inline]
    pub fn is(&self, slot: Slot, tuple: &Tuple) -> bool {
        match tuple {
            Tuple::V4(tuple) => slot.0 & V6 == 0 && self.v4.get(slot.0).is_some_and(|entry| entry.tuple == *tuple),
            Tuple::V6(tuple) => {
                slot.0 & V6 != 0 && self.v6.get(slot.0 & !V6).is_some_and(|entry| entry.tuple == *tuple)
            }
        }
    }

    /// Whether the time of the connection in that place is over.
    pub fn is_over(&self, now: Instant, slot: Slot) -> bool {
        let now = millis(now);
        if slot.0 & V6 == 0 {
            self.v4.get(slot.0).is_some_and(|entry| entry.is_over(now))
        } else {
            self.v6.get(slot.0 & !V6).is_some_and(|entry| entry.is_over(now))
        }
    }

    /// Takes a connection out before its time. Whether there was one.
    pub fn remove(&mut self, slot: Slot) -> bool {
        if slot.0 & V6 == 0 { self.v4.remove(slot.0) } else { self.v6.remove(slot.0 & !V6) }
    }

    /// Takes a connection out, to go on waiting in another list.
    pub fn take_out(&mut self, slot: Slot) -> Option<Waiting> {
        let closed = self.get(slot)?;
        let until = if slot.0 & V6 == 0 {
            self.v4.entries[slot.0 as usize].until
        } else {
            self.v6.entries[(slot.0 & !V6) as usize].until
        };
        self.remove(slot);
        Some(Waiting { closed, until })
    }

    /// Takes in a connection that was taken out of another list. It stands behind those that came here before it, so its memory
    /// may be free later than its time is over. None when that is over.
    pub fn put_in(&mut self, now: Instant, waiting: &Waiting, gone: impl FnMut(Fate)) -> Option<Slot> {
        if is_over(waiting.until, millis(now)) {
            return None;
        }
        Some(self.insert_until(now, &waiting.closed, waiting.until & !RESTARTED, gone))
    }

    /// Lets go of at most `most` places whose time is over; `gone` hears of each. Whether there may be more.
    pub fn expire(&mut self, now: Instant, most: u32, mut gone: impl FnMut(Fate)) -> bool {
        let now = millis(now);
        for _ in 0..most {
            // both families advance, whichever has something
            let v4 = self.v4.expire_one(now, 0, &mut gone);
            if !(self.v6.expire_one(now, V6, &mut gone) || v4) {
                return false;
            }
        }
        true
    }

    /// Judges a segment for the connection in that place; `None` when there is none.
    pub fn judge(&mut self, now: Instant, slot: Slot, arrival: &Arrival) -> Option<Answer> {
        let until = self.until(millis(now));
        if slot.0 & V6 == 0 {
            self.v4.get(slot.0)?;
            self.v4.entries.get_mut(slot.0 as usize).map(|entry| entry.judge(until, arrival))
        } else {
            self.v6.get(slot.0 & !V6)?;
            self.v6.entries.get_mut((slot.0 & !V6) as usize).map(|entry| entry.judge(until, arrival))
        }
    }
}

impl<T: Copy> Entry<T> {
    fn closed(&self, tuple: impl FnOnce(T) -> Tuple) -> Closed {
        Closed {
            tuple: tuple(self.tuple),
            hash: self.hash,
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            ts_recent: self.stamp(),
        }
    }

    fn is_over(&self, now: u32) -> bool {
        is_over(self.until, now)
    }

    fn stamp(&self) -> Option<u32> {
        (self.until & STAMPED != 0).then_some(self.ts_recent)
    }

    /// RFC 9293 section 3.10.7.4 for TIME-WAIT, in its order.
    fn judge(&mut self, until: u32, arrival: &Arrival) -> Answer {
        let flags = arrival.flags;
        // RFC 1337 section 3, fix F1
        if flags.contains(Flags::RST) {
            return Answer::DropReset;
        }
        if flags.contains(Flags::SYN) {
            // a SYN-ACK is no request for a connection; RFC 5961 section 4 has the answer
            let new = !flags.intersects(Flags::ACK | Flags::FIN) && self.is_new(arrival);
            return if new { Answer::Reuse { beyond: self.snd_nxt } } else { Answer::Acknowledge };
        }
        if !flags.contains(Flags::ACK) {
            return Answer::Drop;
        }
        let value = arrival.timestamps.map(|clocks| clocks.value);
        if let Some(recent) = self.stamp() {
            // RFC 7323 section 3.2: every segment of such a connection has the option
            let Some(value) = value else { return Answer::Drop };
            if value.wrapping_sub(recent).cast_signed() < 0 {
                // RFC 7323 section 5.3 R1, an old duplicate; what takes up no sequence number is not answered, so that
                // two such ends cannot answer each other for ever
                let empty = arrival.payload_bytes == 0 && !flags.contains(Flags::FIN);
                return if empty { Answer::Drop } else { Answer::Acknowledge };
            }
        }
        let length = arrival.payload_bytes + flags.sequence_bytes();
        if arrival.seq == self.rcv_nxt && length == 0 {
            return Answer::Drop;
        }
        let end = arrival.seq + length;
        if length == 0 || end.gt(self.rcv_nxt) {
            return Answer::Acknowledge;
        }
        let last = flags.contains(Flags::FIN) && end == self.rcv_nxt;
        // Something that we had, again: its acknowledgement was lost. RFC 9293 restarts the time for the FIN; a peer that is still
        // at bytes before it has its FIN yet to come.
        if last || self.rcv_nxt.since(arrival.seq) <= LAST_FLIGHT_BYTES {
            self.until = until | RESTARTED | self.until & STAMPED;
        }
        if !last {
            return Answer::Acknowledge;
        }
        if let (Some(value), Some(_)) = (value, self.stamp()) {
            self.ts_recent = value;
        }
        Answer::AcknowledgeFin
    }

    /// Whether a SYN is certainly newer than the connection (RFC 6191 section 2).
    fn is_new(&self, arrival: &Arrival) -> bool {
        let beyond = arrival.seq.gt(self.rcv_nxt);
        match (self.stamp(), arrival.timestamps) {
            (Some(recent), Some(clocks)) => {
                let ahead = clocks.value.wrapping_sub(recent).cast_signed();
                ahead > 0 || ahead == 0 && beyond
            }
            // the new connection is protected by timestamps (PAWS), whatever the numbers
            (None, Some(_)) => true,
            (_, None) => beyond,
        }
    }
}

#[cfg(test)]
mod tests;
