//! What was sent and is not acknowledged: one record for each run of segments that went out together, in a pool that all
//! connections share.
//!
//! A record is outstanding, lost, or held by the peer (SACK, RFC 2018). What the network still carries (RFC 6675's pipe) is
//! what is outstanding: a range that was sent again counts once. Records are split where a SACK block or a retransmission
//! ends inside one, and joined again where neighbours are alike. The list of a connection is in order of the stream and
//! without holes, from the first byte not acknowledged to the next one to be sent.
//!
//! When the pool runs dry nothing breaks: new data waits for a record ([`Records::may_push`] keeps a reserve for splits), and
//! a SACK block that cannot be noted is not, so its bytes may be sent once more than needed.
//!
//! No peer can have the pool run dry by what it says it holds: a block counts for the whole segments in it, so that blocks of a
//! byte each make no records, and records are made for blocks only while enough of the pool is free for everybody's new data.
//!
//! Nor can one cut its list into more than [`NOTED_MOST`] records so, which each of its acknowledgements would walk through.

use base::Instant;

/// No record.
pub(crate) const NONE: u32 = u32::MAX;

/// From so many records of one connection on none is cut for a SACK block of its peer's. They are 512 holes at a time, as one segment
/// in a hundred lost leaves them in 75 MB of full segments, and 32 KiB, which the first-level cache holds.
const NOTED_MOST: u32 = 1024;

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
    next: u32,
    /// of each segment but the last, which may be shorter
    pub(crate) segment_bytes: u16,
    /// how often it was sent again
    pub(crate) tries: u8,
    pub(crate) fate: Fate,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.bytes)
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
    fn whole_of(&self, start: u64, end: u64) -> (u64, u64) {
        let from = self.whole_from(start.saturating_sub(self.start));
        let rest = Record { start: self.start + from, bytes: self.bytes - from as u32, ..*self };
        let bytes = rest.whole_to(end.saturating_sub(rest.start).min(u64::from(rest.bytes)));
        (from, bytes)
    }

    /// Whether `next`, which follows it, can be part of it.
    fn joins(&self, next: &Record) -> bool {
        self.fate == next.fate
            && self.sent_at == next.sent_at
            && self.tries == next.tries
            && self.segment_bytes == next.segment_bytes
            && (self.fate == Fate::Sacked || self.bytes.is_multiple_of(u32::from(self.segment_bytes)))
    }
}

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
}

impl Default for Board {
    fn default() -> Board {
        Board { head: NONE, tail: NONE, records: 0, bytes: 0, sacked: 0, lost: 0 }
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

    fn allocate(&mut self, board: &mut Board, record: Record) -> Option<u32> {
        let index = self.free;
        if index == NONE {
            return None;
        }
        self.free = self.pool[index as usize].next;
        self.free_count -= 1;
        board.records += 1;
        self.pool[index as usize] = record;
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

    /// Whether there is a record for new data without touching the reserve that splits need.
    pub(crate) fn may_push(&self) -> bool {
        self.free_count > self.pool.len() / 8
    }

    /// Whether there is a record for a split.
    pub(crate) fn may_split(&self) -> bool {
        self.free != NONE
    }

    /// Whether there is a record for a split that a peer asks for by a SACK block: what everybody's new data need stays, and no list
    /// becomes long.
    fn may_note(&self, board: &Board) -> bool {
        board.records < NOTED_MOST && self.free_count > self.pool.len() / 4
    }

    /// Notes that `bytes` at `start`, which follow what is in the list, were sent. False when the pool is empty.
    pub(crate) fn push(&mut self, board: &mut Board, now: Instant, start: u64, bytes: u32, segment_bytes: u16) -> bool {
        let fresh = Record { start, sent_at: now, bytes, next: NONE, segment_bytes, tries: 0, fate: Fate::Outstanding };
        if board.tail != NONE {
            let tail = &mut self.pool[board.tail as usize];
            debug_assert_eq!(tail.end(), start, "the list has no holes");
            if tail.joins(&fresh) {
                tail.bytes += bytes;
                board.bytes += bytes;
                return true;
            }
        }
        let Some(index) = self.allocate(board, fresh) else { return false };
        match board.tail {
            NONE => board.head = index,
            tail => self.pool[tail as usize].next = index,
        }
        board.tail = index;
        board.bytes += bytes;
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
        let mut at = board.head;
        let mut before = NONE;
        let mut complete = true;
        while at != NONE {
            let record = self.pool[at as usize];
            if record.start >= end {
                break;
            }
            if record.end() > start && record.fate != Fate::Sacked {
                let (from, bytes) = record.whole_of(start, end);
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
        complete
    }

    fn set_fate(&mut self, board: &mut Board, index: u32, fate: Fate) {
        let record = &mut self.pool[index as usize];
        match record.fate {
            Fate::Outstanding => {}
            Fate::Lost => board.lost -= record.bytes,
            Fate::Sacked => board.sacked -= record.bytes,
        }
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
        let Some(new) = self.allocate(board, rest) else { return false };
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
        if !both_held && !record.joins(&next) {
            return false;
        }
        let joined = &mut self.pool[index as usize];
        joined.bytes += next.bytes;
        joined.next = next.next;
        if board.tail == record.next {
            board.tail = index;
        }
        self.release(board, record.next);
        true
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
        (record.sent_at, record.segment_bytes) = (now, segment_bytes);
        record.tries = record.tries.saturating_add(1);
        self.join(board, previous);
        true
    }

    /// Moves the first `bytes` of the record at `at` to the one before it, if that was sent again now as well.
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
        let tries = record.tries.saturating_add(1);
        let moved = Record { bytes, sent_at: now, tries, segment_bytes, fate: Fate::Outstanding, ..record };
        if !self.pool[previous as usize].joins(&moved) {
            return false;
        }
        self.pool[previous as usize].bytes += bytes;
        match record.fate {
            Fate::Outstanding => {}
            Fate::Lost => board.lost -= bytes,
            Fate::Sacked => board.sacked -= bytes,
        }
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
            let Some(index) = self.allocate(board, Record { next: NONE, ..*record }) else { return false };
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
