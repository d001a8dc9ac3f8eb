//! A record: where it may be cut, and what can be part of it.

use super::NONE;
use base::Instant;
use std::time::Duration;

/// What left within this time may be one record.
const SPREAD_MOST: Duration = Duration::from_secs(1);

/// What is known of a record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fate {
    /// the network carries them
    Outstanding,
    /// taken for lost, and not sent again yet
    Lost,
    /// the peer has them
    Sacked,
}

/// A run of segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// position of the first byte
    pub(crate) start: u64,
    /// when it went out last
    pub(crate) sent_at: Instant,
    pub(crate) bytes: u32,
    pub(super) next: u32,
    /// by how much earlier some of it may have gone out: zero where all went at once, in full segments
    pub(super) spread_ns: u32,
    /// of each segment but the last, which may be shorter; where they went out at several times, of the longest
    pub(crate) segment_bytes: u16,
    /// how often it was sent again
    pub(crate) tries: u8,
    pub(crate) fate: Fate,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    /// Of what goes out for the first time.
    pub(super) fn fresh(now: Instant, start: u64, bytes: u32, segment_bytes: u16) -> Record {
        Record {
            start,
            sent_at: now,
            bytes,
            next: NONE,
            spread_ns: 0,
            segment_bytes,
            tries: 0,
            fate: Fate::Outstanding,
        }
    }

    /// The first `bytes` of it, sent again now.
    pub(super) fn resent(&self, now: Instant, bytes: u32, segment_bytes: u16) -> Record {
        Record { tries: self.tries.saturating_add(1), ..Record::fresh(now, self.start, bytes, segment_bytes) }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.bytes)
    }

    /// When the first of it may have gone out.
    pub(crate) fn first_at(&self) -> Instant {
        Instant::from_nanos(self.sent_at.as_nanos().saturating_sub(u64::from(self.spread_ns)))
    }

    /// Whether it is of one moment, and of full segments but for its last.
    pub(crate) fn is_exact(&self) -> bool {
        self.spread_ns == 0
    }

    /// Whether the record may be cut `at` bytes behind its start: into pieces of a segment and more, or where a segment ends
    /// as counted from either end, since an acknowledgement may have moved the start into one. So no number of cuts makes more
    /// than two pieces for each segment's worth of bytes: at worst, a piece of a segment and one of some bytes more.
    fn may_cut(&self, at: u64) -> bool {
        let (segment, rest) = (u64::from(self.segment_bytes), u64::from(self.bytes) - at);
        match (at >= segment, rest >= segment) {
            (true, true) => true,
            (true, false) => at.is_multiple_of(segment),
            (false, true) => rest.is_multiple_of(segment),
            (false, false) => false,
        }
    }

    /// The first place from `at` on where it may be cut; its end when there is none.
    fn whole_from(&self, at: u64) -> u64 {
        if at == 0 || self.may_cut(at) {
            return at;
        }
        at.next_multiple_of(u64::from(self.segment_bytes)).min(u64::from(self.bytes))
    }

    /// The last place up to `at` where it may be cut; its start when there is none.
    fn whole_to(&self, at: u64) -> u64 {
        if at == u64::from(self.bytes) || self.may_cut(at) {
            return at;
        }
        at - at % u64::from(self.segment_bytes)
    }

    /// What a block of the stream holds of it in whole segments: from where in the record on, and how many bytes. The second end is
    /// judged by what the first cut leaves, so that none is cut for nothing.
    pub(super) fn whole_of(&self, start: u64, end: u64) -> (u64, u64) {
        let from = self.whole_from(start.saturating_sub(self.start));
        let rest = Record { start: self.start + from, bytes: self.bytes - from as u32, ..*self };
        let bytes = rest.whole_to(end.saturating_sub(rest.start).min(u64::from(rest.bytes)));
        (from, bytes)
    }

    /// Whether `next`, which follows it, can be part of it.
    pub(super) fn joins(&self, next: &Record) -> bool {
        self.fate == next.fate
            && self.sent_at == next.sent_at
            && self.spread_ns == next.spread_ns
            && self.tries == next.tries
            && self.segment_bytes == next.segment_bytes
            && (self.fate == Fate::Sacked || self.bytes.is_multiple_of(u32::from(self.segment_bytes)))
    }

    /// Whether `next`, which follows it, may be part of it where records are short: as often sent, and not long before.
    pub(super) fn takes(&self, next: &Record) -> bool {
        (self.fate, next.fate) == (Fate::Outstanding, Fate::Outstanding)
            && self.tries == next.tries
            && self.segment_bytes == next.segment_bytes
            && self.sent_at.max(next.sent_at) - self.first_at() <= SPREAD_MOST
    }

    /// Makes `next`, which follows it, part of it, whenever that was sent.
    pub(super) fn absorb(&mut self, next: &Record) {
        let first_at = self.first_at().min(next.first_at());
        self.sent_at = self.sent_at.max(next.sent_at);
        self.spread_ns = u32::try_from((self.sent_at - first_at).as_nanos()).unwrap_or(u32::MAX).max(1);
        self.tries = self.tries.max(next.tries);
        self.bytes += next.bytes;
    }
}
