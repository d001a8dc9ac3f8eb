//! What was sent and is not acknowledged: one record for each run of segments that went out together, in a pool that all
//! connections share.
//!
//! A record is outstanding, lost, or held by the peer (SACK, RFC 2018). What the network still carries (RFC 6675's pipe) is
//! what is outstanding: a range that was sent again counts once. Records are split where a SACK block or a retransmission
//! ends inside one, and joined again where neighbours are alike. The list of a connection is in order of the stream and
//! without holes, from the first byte not acknowledged to the next one to be sent.
//!
//! A list has a share of the pool ([`Records::share`]), the smaller the less of it is free. A list that has all of it is as exact as
//! before where it is cut in segments, and less so in time: what is sent then is part of the last record that is like it, which has the
//! newer time of both and remembers the older one ([`Record::first_at`]). Whether a record is lost is judged by the newer, what its
//! delivery tells by the older, so that losses are found late then, but never early; no round trip is measured by it. Small segments
//! may be in it, too, so its segments are told by bytes: of what it has, blocks count for whole segments' worth, and it is sent again in
//! full segments.
//!
//! So the pool cannot be spent by few: whoever has nothing in flight has a record as long as there is any, and whoever has something goes
//! on with that. A SACK block that cannot be noted is not, so its bytes may be sent once more than needed, and a long list that is to be
//! repaired when hardly anything is free becomes one record, all of which is sent again ([`Records::fold`]).
//!
//! No peer can have the pool run dry by what it says it holds: a block counts for the whole segments in it, so that blocks of a
//! byte each make no records, and records are made for blocks only while enough of the pool is free for everybody's new data.
//!
//! Nor can one make its list longer than [`LIST_MOST`] records, by blocks or by when it acknowledges what, which each of its
//! acknowledgements would walk through: only what is sent again between two that are held has one more.

mod record;

pub(crate) use record::{Fate, Record};

use base::Instant;

/// No record.
pub(crate) const NONE: u32 = u32::MAX;

/// From so many records of one connection on none is cut for a SACK block of its peer's. They are 512 holes at a time, as one segment
/// in a hundred lost leaves them in 75 MB of full segments, and 32 KiB, which the first-level cache holds.
const LIST_MOST: u32 = 1024;
/// From so many on new data have none, which leaves as many to be cut. A path of half a second takes them where it is paced, a record
/// each millisecond.
const OWN_MOST: u32 = 512;
/// Records of a list while no more than half of the pool is free, and more than three eighths.
const HALF_MOST: u32 = 16;
/// Records of a list while less is free, and more than a quarter, which is left to first ones and to repairs. So many are repaired as
/// they are, whatever is free.
const QUARTER_MOST: u32 = 4;
/// Blocks that are known to be noted: as many as a peer with timestamps tells at a time (RFC 2018 section 3).
const KNOWN_BLOCKS: usize = 3;

/// A connection's records: the ends of its list, and sums over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Board {
    head: u32,
    tail: u32,
    /// in the list
    records: u32,
    /// bytes of all
    pub(crate) bytes: u32,
    /// bytes that the peer holds
    pub(crate) sacked: u32,
    /// bytes taken for lost
    pub(crate) lost: u32,
    /// blocks of which nothing is left to be noted, the newest first
    known: [(u64, u64); KNOWN_BLOCKS],
}

impl Default for Board {
    fn default() -> Board {
        Board { head: NONE, tail: NONE, records: 0, bytes: 0, sacked: 0, lost: 0, known: [(0, 0); KNOWN_BLOCKS] }
    }
}

impl Board {
    /// Bytes that the network carries: RFC 6675's pipe.
    pub(crate) fn pipe(&self) -> u32 {
        self.bytes - self.sacked - self.lost
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Of so many bytes something else is known from now on.
    fn leave(&mut self, fate: Fate, bytes: u32) {
        match fate {
            Fate::Outstanding => {}
            Fate::Lost => self.lost -= bytes,
            Fate::Sacked => {
                self.sacked -= bytes;
                self.known = [(0, 0); KNOWN_BLOCKS];
            }
        }
    }
}

/// Whether something may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// it may
    May,
    /// the list is to be folded before, since what is free is for shorter ones, or nothing is
    Fold,
    /// when there is a record
    Wait,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Records {
    pool: Vec<Record>,
    free: u32,
    free_count: usize,
}

impl Records {
    pub(crate) fn new(records: usize) -> Records {
        let record = |n: usize| Record {
            start: 0,
            sent_at: Instant::ZERO,
            bytes: 0,
            next: if n + 1 < records { n as u32 + 1 } else { NONE },
            spread_ns: 0,
            segment_bytes: 1,
            tries: 0,
            fate: Fate::Outstanding,
        };
        Records {
            pool: base::huge::table(records, record),
            free: if records == 0 { NONE } else { 0 },
            free_count: records,
        }
    }

    /// Records in somebody's list.
    pub(crate) fn used(&self) -> usize {
        self.pool.len() - self.free_count
    }

    /// A record, which the caller fills.
    fn allocate(&mut self, board: &mut Board) -> Option<u32> {
        let index = self.free;
        if index == NONE {
            return None;
        }
        self.free = self.pool[index as usize].next;
        self.free_count -= 1;
        board.records += 1;
        Some(index)
    }

    fn release(&mut self, board: &mut Board, index: u32) {
        board.records -= 1;
        self.pool[index as usize].next = self.free;
        self.free = index;
        self.free_count += 1;
    }

    /// Asks for the first record of a list.
    #[inline]
    pub(crate) fn foresee(&self, board: &Board) {
        if let Some(record) = self.pool.get(board.head as usize) {
            base::prefetch::read(record);
        }
    }

    /// Records that a list may have as things are, the first one aside, for which whatever is free will do.
    fn share(&self) -> u32 {
        let (free, all) = (self.free_count, self.pool.len());
        match () {
            () if free > all / 2 => OWN_MOST,
            () if free > all * 3 / 8 => HALF_MOST,
            () if free > all / 4 => QUARTER_MOST,
            () => 1,
        }
    }

    fn has_share(&self, board: &Board) -> bool {
        board.records >= self.share()
    }

    /// Whether new data in segments of so many bytes may be noted.
    pub(crate) fn may_push(&self, board: &Board, now: Instant, segment_bytes: u16) -> bool {
        if !self.has_share(board) {
            return self.free != NONE;
        }
        let tail = self.pool.get(board.tail as usize);
        tail.is_some_and(|tail| tail.takes(&Record::fresh(now, tail.end(), 0, segment_bytes)))
    }

    /// Whether new data that may not be noted lack records of the pool; otherwise the list has as many as one may have.
    pub(crate) fn lacks_for_data(&self) -> bool {
        self.share() < OWN_MOST
    }

    /// Whether new data may have a record of their own.
    pub(crate) fn may_begin(&self, board: &Board) -> bool {
        !self.has_share(board) && self.free != NONE
    }

    /// Whether there is a record for a split.
    pub(crate) fn may_split(&self) -> bool {
        self.free != NONE
    }

    /// Whether the first `bytes` that are lost may be sent again, in segments of at most `segment_bytes`, as far as records go.
    pub(crate) fn may_resend(&self, board: &Board, now: Instant, bytes: u32, segment_bytes: u16) -> Resend {
        let (free, all) = (self.free_count, self.pool.len());
        if free > all / 8 || !self.resend_splits(board, now, bytes, segment_bytes) {
            return Resend::May;
        }
        match free {
            0 if board.records > 1 => Resend::Fold,
            0 => Resend::Wait,
            _ if board.records > QUARTER_MOST => Resend::Fold,
            _ => Resend::May,
        }
    }

    /// Whether sending them again takes a record.
    fn resend_splits(&self, board: &Board, now: Instant, bytes: u32, segment_bytes: u16) -> bool {
        let mut before = None;
        for record in self.iter(board) {
            if record.fate == Fate::Lost {
                let moved = record.resent(now, bytes, segment_bytes);
                let grows = |before: &Record| before.joins(&moved) || self.has_share(board) && before.takes(&moved);
                return bytes < record.bytes && !before.is_some_and(grows);
            }
            before = Some(record);
        }
        false
    }

    /// Whether there is a record for a split that a peer asks for by a SACK block: what everybody's new data need stays, and no list
    /// becomes long.
    fn may_note(&self, board: &Board) -> bool {
        board.records < LIST_MOST && !self.lacks_for_blocks()
    }

    /// Whether blocks that are not noted lack records of the pool; otherwise the list has as many as one may have.
    pub(crate) fn lacks_for_blocks(&self) -> bool {
        self.free_count <= self.pool.len() / 4
    }

    /// Notes that `bytes` at `start`, which follow what is in the list, were sent. False when the pool is empty.
    pub(crate) fn push(&mut self, board: &mut Board, now: Instant, start: u64, bytes: u32, segment_bytes: u16) -> bool {
        let fresh = || Record::fresh(now, start, bytes, segment_bytes);
        if board.tail != NONE && self.extend(board, board.tail, &fresh()) {
            board.bytes += bytes;
            return true;
        }
        let Some(index) = self.allocate(board) else { return false };
        self.pool[index as usize] = fresh();
        match board.tail {
            NONE => board.head = index,
            tail => self.pool[tail as usize].next = index,
        }
        board.tail = index;
        board.bytes += bytes;
        true
    }

    /// Makes `next`, which follows the record at `index`, part of it, if they are alike, or alike enough where the list has its share.
    fn extend(&mut self, board: &Board, index: u32, next: &Record) -> bool {
        let record = &mut self.pool[index as usize];
        debug_assert_eq!(record.end(), next.start, "the list has no holes");
        if record.joins(next) {
            record.bytes += next.bytes;
            return true;
        }
        if !self.has_share(board) || !self.pool[index as usize].takes(next) {
            return false;
        }
        self.pool[index as usize].absorb(next);
        true
    }

    /// Forgets everything before `una`; `each` is told of each piece with what was known of it.
    pub(crate) fn acknowledge(&mut self, board: &mut Board, una: u64, mut each: impl FnMut(&Record)) {
        while board.head != NONE {
            let head = board.head;
            let record = &mut self.pool[head as usize];
            if record.start >= una {
                break;
            }
            let mut piece = *record;
            piece.bytes = (una - record.start).min(u64::from(record.bytes)) as u32;
            board.bytes -= piece.bytes;
            match piece.fate {
                Fate::Outstanding => {}
                Fate::Lost => board.lost -= piece.bytes,
                Fate::Sacked => board.sacked -= piece.bytes,
            }
            each(&piece);
            if piece.bytes < record.bytes {
                record.start += u64::from(piece.bytes);
                record.bytes -= piece.bytes;
                break;
            }
            board.head = record.next;
            self.release(board, head);
        }
        if board.head == NONE {
            board.tail = NONE;
        }
    }

    /// Notes that the peer holds `start..end`, as far as that is whole segments; `each` is told of each piece that it was not
    /// known to hold, with what was known before. What cannot be noted for want of a record is left as it was; returns false
    /// then.
    pub(crate) fn sack(&mut self, board: &mut Board, start: u64, end: u64, mut each: impl FnMut(&Record)) -> bool {
        // peers tell of a block several times (RFC 2018 section 4)
        if board.known.iter().any(|known| known.0 <= start && end <= known.1) {
            return true;
        }
        let mut at = board.head;
        let mut before = NONE;
        let (mut complete, mut entire) = (true, true);
        while at != NONE {
            let record = self.pool[at as usize];
            if record.start >= end {
                break;
            }
            if record.end() > start && record.fate != Fate::Sacked {
                let (from, bytes) = record.whole_of(start, end);
                let held = (record.start + from, record.start + from + bytes);
                entire &= held == (start.max(record.start), end.min(record.end()));
                if bytes == 0 {
                    // less than a segment of it
                } else if from > 0 {
                    // its front stays as it was; go on with its rest
                    if !self.may_note(board) || !self.split(board, at, from as u32) {
                        complete = false;
                    }
                } else if bytes < u64::from(record.bytes)
                    && !(self.may_note(board) && self.split(board, at, bytes as u32))
                {
                    complete = false;
                } else {
                    let piece = self.pool[at as usize];
                    each(&piece);
                    self.set_fate(board, at, Fate::Sacked);
                    if self.join(board, before) {
                        at = before;
                    }
                    // the one behind may be held as well
                    self.join(board, at);
                }
            }
            before = at;
            at = self.pool[at as usize].next;
        }
        if complete && entire {
            board.known.rotate_right(1);
            board.known[0] = (start, end);
        }
        complete
    }

    fn set_fate(&mut self, board: &mut Board, index: u32, fate: Fate) {
        let record = &mut self.pool[index as usize];
        board.leave(record.fate, record.bytes);
        match fate {
            Fate::Outstanding => {}
            Fate::Lost => board.lost += record.bytes,
            Fate::Sacked => board.sacked += record.bytes,
        }
        record.fate = fate;
    }

    /// Cuts a record `bytes` behind its start; false when the pool is empty.
    fn split(&mut self, board: &mut Board, index: u32, bytes: u32) -> bool {
        let record = self.pool[index as usize];
        debug_assert!(bytes > 0 && bytes < record.bytes, "a cut inside the record");
        let rest = Record { start: record.start + u64::from(bytes), bytes: record.bytes - bytes, ..record };
        let Some(new) = self.allocate(board) else { return false };
        self.pool[new as usize] = rest;
        let record = &mut self.pool[index as usize];
        record.bytes = bytes;
        record.next = new;
        if board.tail == index {
            board.tail = new;
        }
        true
    }

    /// Makes a record and the next one if they are alike; whether it did. What the peer holds is alike whenever it was sent.
    fn join(&mut self, board: &mut Board, index: u32) -> bool {
        if index == NONE {
            return false;
        }
        let record = self.pool[index as usize];
        if record.next == NONE {
            return false;
        }
        let next = self.pool[record.next as usize];
        let both_held = record.fate == Fate::Sacked && next.fate == Fate::Sacked;
        if both_held && !record.joins(&next) {
            self.pool[index as usize].absorb(&next);
        } else if !self.extend(board, index, &next) {
            return false;
        }
        self.pool[index as usize].next = next.next;
        if board.tail == record.next {
            board.tail = index;
        }
        self.release(board, record.next);
        true
    }

    /// Makes the whole list one record, all of it lost, for want of others: what the peer held of it is forgotten, as it may have
    /// thrown it away (RFC 2018 section 8), and what the network carries may arrive twice.
    pub(crate) fn fold(&mut self, board: &mut Board) {
        if board.is_empty() {
            return;
        }
        let mut whole = self.pool[board.head as usize];
        let mut at = std::mem::replace(&mut whole.next, NONE);
        while at != NONE {
            let record = self.pool[at as usize];
            whole.absorb(&record);
            self.release(board, at);
            at = record.next;
        }
        whole.fate = Fate::Lost;
        self.pool[board.head as usize] = whole;
        *board = Board {
            head: board.head,
            records: 1,
            bytes: board.bytes,
            tail: board.head,
            lost: board.bytes,
            ..Board::default()
        };
    }

    /// Calls `judge` for each outstanding record in order of the stream; those for which it says so are lost from now on. The
    /// bytes newly lost.
    pub(crate) fn lose(&mut self, board: &mut Board, mut judge: impl FnMut(&Record) -> bool) -> u32 {
        let before = board.lost;
        let (mut at, mut previous) = (board.head, NONE);
        while at != NONE {
            let record = self.pool[at as usize];
            if record.fate == Fate::Outstanding && judge(&record) {
                self.set_fate(board, at, Fate::Lost);
                if self.join(board, previous) {
                    at = previous;
                }
            }
            previous = at;
            at = self.pool[at as usize].next;
        }
        board.lost - before
    }

    /// Takes what is lost for outstanding again: it was not lost after all.
    pub(crate) fn find_again(&mut self, board: &mut Board) {
        let mut at = board.head;
        while at != NONE {
            if self.pool[at as usize].fate == Fate::Lost {
                self.set_fate(board, at, Fate::Outstanding);
            }
            at = self.pool[at as usize].next;
        }
    }

    /// Forgets what the peer said it holds: it may have thrown it away (RFC 2018 section 8).
    pub(crate) fn forget_sacks(&mut self, board: &mut Board) {
        let mut at = board.head;
        while at != NONE {
            if self.pool[at as usize].fate == Fate::Sacked {
                self.set_fate(board, at, Fate::Outstanding);
            }
            at = self.pool[at as usize].next;
        }
    }

    /// The first bytes that are lost: position, and how many of them make the next segment of at most `segment_bytes`.
    pub(crate) fn first_lost(&self, board: &Board, segment_bytes: u16) -> Option<(u64, u32)> {
        if board.lost == 0 {
            return None;
        }
        self.iter(board)
            .find(|record| record.fate == Fate::Lost)
            .map(|record| (record.start, record.bytes.min(u32::from(segment_bytes))))
    }

    /// Notes that the first `bytes` of the record that starts at `start` are sent again now; false when that needs a record and
    /// there is none, or no record starts there: nothing is to be sent then.
    pub(crate) fn resend(
        &mut self,
        board: &mut Board,
        now: Instant,
        start: u64,
        bytes: u32,
        segment_bytes: u16,
    ) -> bool {
        let (mut at, mut previous) = (board.head, NONE);
        while at != NONE && self.pool[at as usize].start < start {
            previous = at;
            at = self.pool[at as usize].next;
        }
        if at == NONE || self.pool[at as usize].start != start {
            return false;
        }
        let record = self.pool[at as usize];
        if bytes < record.bytes {
            if self.grow(board, previous, at, now, bytes, segment_bytes) {
                return true;
            }
            if !self.split(board, at, bytes) {
                return false;
            }
        }
        self.set_fate(board, at, Fate::Outstanding);
        let record = &mut self.pool[at as usize];
        (record.sent_at, record.spread_ns, record.segment_bytes) = (now, 0, segment_bytes);
        record.tries = record.tries.saturating_add(1);
        self.join(board, previous);
        true
    }

    /// Moves the first `bytes` of the record at `at` to the one before it, if that was sent again now as well, or lately where records
    /// are short.
    fn grow(
        &mut self,
        board: &mut Board,
        previous: u32,
        at: u32,
        now: Instant,
        bytes: u32,
        segment_bytes: u16,
    ) -> bool {
        if previous == NONE {
            return false;
        }
        let record = self.pool[at as usize];
        let moved = record.resent(now, bytes, segment_bytes);
        if !self.extend(board, previous, &moved) {
            return false;
        }
        board.leave(record.fate, bytes);
        let rest = &mut self.pool[at as usize];
        rest.start += u64::from(bytes);
        rest.bytes -= bytes;
        true
    }

    /// The last segment that was sent: position and bytes.
    pub(crate) fn last_segment(&self, board: &Board) -> Option<(u64, u32)> {
        (board.tail != NONE).then(|| {
            let tail = &self.pool[board.tail as usize];
            let segment = u32::from(tail.segment_bytes);
            let bytes = match tail.bytes % segment {
                0 => segment.min(tail.bytes),
                rest => rest,
            };
            (tail.end() - u64::from(bytes), bytes)
        })
    }

    /// Cuts the list so that a record starts at `start`; false when there is no record for that, or `start` is outside.
    pub(crate) fn cut_at(&mut self, board: &mut Board, start: u64) -> bool {
        let mut at = board.head;
        while at != NONE {
            let record = self.pool[at as usize];
            if record.start == start {
                return true;
            }
            if record.start < start && start < record.end() {
                return self.split(board, at, (start - record.start) as u32);
            }
            at = record.next;
        }
        false
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, board: &mut Board) {
        while board.head != NONE {
            let head = board.head;
            board.head = self.pool[head as usize].next;
            self.release(board, head);
        }
        *board = Board::default();
    }

    /// Takes a list out of the pool, to be put into another one.
    pub(crate) fn take_out(&mut self, board: &mut Board) -> Vec<Record> {
        let records = self.iter(board).copied().collect();
        self.clear(board);
        records
    }

    /// Makes `board`, which is empty, the list that was taken out of another pool; false when there is no room for it.
    pub(crate) fn put_in(&mut self, board: &mut Board, records: &[Record]) -> bool {
        if self.free_count < records.len() {
            return false;
        }
        for record in records {
            let Some(index) = self.allocate(board) else { return false };
            self.pool[index as usize] = Record { next: NONE, ..*record };
            match board.tail {
                NONE => board.head = index,
                tail => self.pool[tail as usize].next = index,
            }
            board.tail = index;
            board.bytes += record.bytes;
            match record.fate {
                Fate::Outstanding => {}
                Fate::Lost => board.lost += record.bytes,
                Fate::Sacked => board.sacked += record.bytes,
            }
        }
        true
    }

    /// In order of the stream.
    pub(crate) fn iter<'a>(&'a self, board: &Board) -> impl Iterator<Item = &'a Record> {
        let mut at = board.head;
        std::iter::from_fn(move || {
            let record = self.pool.get(at as usize)?;
            at = record.next;
            Some(record)
        })
    }

    /// Checks what must hold of a list: no holes, right sums.
    pub(crate) fn check(&self, board: &Board, una: u64, nxt: u64) {
        assert_eq!(self.iter(board).count(), board.records as usize, "records of the list");
        let (mut at, mut sacked, mut lost) = (una, 0, 0);
        for record in self.iter(board) {
            assert_eq!(record.start, at, "a hole in {record:?}");
            assert!(record.bytes > 0, "an empty record");
            at = record.end();
            match record.fate {
                Fate::Outstanding => {}
                Fate::Lost => lost += record.bytes,
                Fate::Sacked => sacked += record.bytes,
            }
        }
        assert_eq!(at, nxt, "the list ends at the next byte to be sent");
        assert_eq!((board.bytes, board.sacked, board.lost), ((nxt - una) as u32, sacked, lost), "sums");
    }
}

#[cfg(test)]
mod tests;
