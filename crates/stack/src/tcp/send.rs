//! What a connection still has to say: a list of ranges, from the first byte not acknowledged to the last one queued.
//!
//! There is no send buffer. A range of an object is (version, object, offset), and any segment of it, sent for the first time
//! or again, is made from the object itself. Bytes that the service does not keep are copied once into blocks of a pool, within
//! the connection's quota. Versions are held as long as anything of them is queued.
//!
//! All connections share the pools. A part of each is kept for the first ranges of those that have next to nothing queued, so that
//! readers who take nothing cannot have all of it; whoever is refused by a pool that is empty is told when there is room ([`starved`]).
//!
//! [`starved`]: super::starved

use super::starved::Need;
use app::{Content, ObjectId, Range, Versions};
use arrayvec::ArrayVec;
use std::sync::Arc;
use wire::Sum;

const NONE: u32 = u32::MAX;
/// Bytes of a block of owned bytes.
pub const BLOCK_BYTES: usize = 2048;
/// One part in so many of each pool is kept for lists of fewer than [`FIRST_RANGES`] ranges.
const KEPT: usize = 8;
/// A head and a file, or two blocks of owned bytes.
const FIRST_RANGES: u16 = 2;
/// Owned bytes that are asked for ahead at most: beyond that the processor sees the pattern itself.
const FORESEEN_BYTES: usize = 256;

#[derive(Clone, Copy, Debug)]
enum Source {
    Object {
        held: app::Held,
        object: ObjectId,
        start: u64,
    },
    /// in this block, from its first byte on
    Block(u32),
    Free,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// position of the first byte
    position: u64,
    bytes: u64,
    source: Source,
    next: u32,
}

const _: () = assert!(size_of::<Entry>() <= 48);

impl Entry {
    fn end(&self) -> u64 {
        self.position + self.bytes
    }
}

/// A range out of its pool, on the way to another one: it holds its version by itself.
#[derive(Debug)]
pub(crate) struct Packed {
    position: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Object { content: Arc<Content>, object: ObjectId, start: u64, bytes: u64 },
    Owned(Box<[u8]>),
}

/// The rest of a range of an object.
pub(crate) struct Stretch<'q> {
    pub(crate) content: &'q Content,
    pub(crate) object: ObjectId,
    pub(crate) start: usize,
    pub(crate) bytes: u64,
}

/// A connection's ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    /// where the last segment was made from: the next one begins there or behind, but for what is sent again
    cursor: u32,
    entries: u16,
    blocks: u16,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, cursor: NONE, entries: 0, blocks: 0 }
    }
}

impl List {
    /// Nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// How many more may come out of a pool of which so many are free and so many kept.
    fn part(&self, free: usize, kept: usize) -> usize {
        let first = FIRST_RANGES.saturating_sub(self.entries);
        free.saturating_sub(kept).max(free.min(first.into()))
    }
}

/// What of each pool is kept for those who begin.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    entries: usize,
    blocks: usize,
    /// holds of chunks
    chunks: usize,
}

/// The pools of ranges and of blocks, and the versions that are held.
#[derive(Debug)]
pub(crate) struct Queue {
    entries: Vec<Entry>,
    free: u32,
    free_entries: usize,
    memory: Box<[u8]>,
    free_blocks: Vec<u32>,
    pub(crate) versions: Versions,
    kept: Kept,
    /// of a connection, at most
    entries_max: u16,
    blocks_max: u16,
}

impl Queue {
    /// Pools of so many ranges and blocks, of which one connection may have `entries_max` and `blocks_max`.
    pub(crate) fn new(entries: usize, blocks: usize, entries_max: u16, blocks_max: u16) -> Queue {
        let entry = |n: usize| Entry {
            position: 0,
            bytes: 0,
            source: Source::Free,
            next: if n + 1 < entries { n as u32 + 1 } else { NONE },
        };
        Queue {
            entries: base::huge::table(entries, entry),
            free: if entries == 0 { NONE } else { 0 },
            free_entries: entries,
            memory: base::huge::zeroed(blocks * BLOCK_BYTES).into(),
            free_blocks: (0..blocks as u32).rev().collect(),
            versions: Versions::new(),
            kept: Kept { entries: entries / KEPT, blocks: blocks / KEPT, chunks: Versions::CHUNKS_MOST / KEPT },
            entries_max,
            blocks_max,
        }
    }

    /// Ranges and blocks that somebody has.
    pub(crate) fn used(&self) -> (usize, usize) {
        let blocks = self.memory.len() / BLOCK_BYTES;
        (self.entries.len() - self.free_entries, blocks - self.free_blocks.len())
    }

    /// Asks for the first range of a list.
    #[inline]
    pub(crate) fn foresee(&self, list: &List) {
        if let Some(entry) = self.entries.get(list.head as usize) {
            super::input::foresee_block(entry);
        }
    }

    /// Asks for the first owned bytes of a list, once its first range has come.
    #[inline]
    pub(crate) fn foresee_owned(&self, list: &List) {
        if let Some(Entry { source: Source::Block(block), bytes, .. }) = self.entries.get(list.head as usize) {
            let from = *block as usize * BLOCK_BYTES;
            for line in (0..(*bytes as usize).min(FORESEEN_BYTES)).step_by(base::CACHE_LINE_BYTES) {
                base::prefetch::read(&raw const self.memory[from + line]);
            }
        }
    }

    /// Queues a range behind position `end`; how many bytes were taken, all or fewer.
    pub(crate) fn push(&mut self, list: &mut List, end: u64, range: &Range<'_>) -> u64 {
        match *range {
            Range::Object { content, object, start, bytes } => {
                if bytes == 0 || list.entries >= self.entries_max || self.entries_for(list) == 0 {
                    return 0;
                }
                if content.is_chunk() && list.part(self.versions.chunks_left(), self.kept.chunks) == 0 {
                    return 0;
                }
                let Some(held) = self.versions.hold(content) else { return 0 };
                let source = Source::Object { held, object, start };
                self.append(list, Entry { position: end, bytes, source, next: NONE });
                bytes
            }
            Range::Owned(bytes) => self.push_owned(list, end, bytes),
        }
    }

    fn push_owned(&mut self, list: &mut List, mut end: u64, bytes: &[u8]) -> u64 {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (block, at) = match self.entries.get(list.tail as usize) {
                Some(Entry { source: Source::Block(block), bytes, .. }) if *bytes < BLOCK_BYTES as u64 => {
                    (*block, *bytes as usize)
                }
                _ => {
                    let allowed = list.entries < self.entries_max && list.blocks < self.blocks_max;
                    if !allowed || self.entries_for(list) == 0 || self.blocks_for(list) == 0 {
                        break;
                    }
                    let Some(block) = self.free_blocks.pop() else { break };
                    list.blocks += 1;
                    self.append(list, Entry { position: end, bytes: 0, source: Source::Block(block), next: NONE });
                    (block, 0)
                }
            };
            let n = rest.len().min(BLOCK_BYTES - at);
            let from = block as usize * BLOCK_BYTES + at;
            self.memory[from..from + n].copy_from_slice(&rest[..n]);
            self.entries[list.tail as usize].bytes += n as u64;
            rest = &rest[n..];
            end += n as u64;
        }
        (bytes.len() - rest.len()) as u64
    }

    /// The caller saw that an entry is free.
    fn append(&mut self, list: &mut List, entry: Entry) {
        let index = self.free;
        self.free = self.entries[index as usize].next;
        self.free_entries -= 1;
        self.entries[index as usize] = entry;
        match list.tail {
            NONE => list.head = index,
            tail => self.entries[tail as usize].next = index,
        }
        list.tail = index;
        list.entries += 1;
    }

    /// What the pools have for a list, its quota left out.
    fn entries_for(&self, list: &List) -> usize {
        list.part(self.free_entries, self.kept.entries)
    }

    fn blocks_for(&self, list: &List) -> usize {
        list.part(self.free_blocks.len(), self.kept.blocks)
    }

    /// Whether a list in which nothing is queued would find what is needed. Records are another pool's.
    pub(super) fn has_some(&self, need: Need) -> bool {
        let rest = match need {
            Need::Range => true,
            Need::Chunk => self.versions.chunks_left() > 0,
            Need::Block => !self.free_blocks.is_empty(),
            Need::Record => false,
        };
        rest && self.free_entries > 0
    }

    /// Whether it is a list's own quota that leaves no room.
    pub(super) fn is_at_quota(&self, list: &List, need: Need) -> bool {
        list.entries >= self.entries_max || (need == Need::Block && list.blocks >= self.blocks_max)
    }

    /// Owned bytes that would be taken now.
    pub(crate) fn room(&self, list: &List) -> usize {
        let entries = usize::from(self.entries_max - list.entries).min(self.entries_for(list));
        let blocks = usize::from(self.blocks_max - list.blocks).min(self.blocks_for(list)).min(entries);
        let tail = match self.entries.get(list.tail as usize) {
            Some(Entry { source: Source::Block(_), bytes, .. }) => BLOCK_BYTES - *bytes as usize,
            _ => 0,
        };
        blocks * BLOCK_BYTES + tail
    }

    /// Lets go of what ends at `una` or before.
    pub(crate) fn release(&mut self, list: &mut List, una: u64) {
        while list.head != NONE {
            let index = list.head;
            let entry = self.entries[index as usize];
            if entry.end() > una {
                break;
            }
            list.head = entry.next;
            list.entries -= 1;
            if list.cursor == index {
                list.cursor = NONE;
            }
            match entry.source {
                Source::Object { held, .. } => self.versions.release(held),
                Source::Block(block) => {
                    self.free_blocks.push(block);
                    list.blocks -= 1;
                }
                Source::Free => debug_assert!(false, "a free entry in a list"),
            }
            let entry = &mut self.entries[index as usize];
            (entry.source, entry.next) = (Source::Free, self.free);
            self.free = index;
            self.free_entries += 1;
        }
        if list.head == NONE {
            list.tail = NONE;
        }
    }

    /// Lets go of everything.
    pub(crate) fn clear(&mut self, list: &mut List) {
        self.release(list, u64::MAX);
    }

    /// Takes a list out of the pools, to be put into others.
    pub(crate) fn take_out(&mut self, list: &mut List) -> Vec<Packed> {
        let mut packed = Vec::with_capacity(list.entries.into());
        let mut at = list.head;
        while let Some(entry) = self.entries.get(at as usize) {
            let bytes = match entry.source {
                Source::Object { held, object, start } => {
                    let content = self.versions.content(held).clone();
                    Bytes::Object { content, object, start, bytes: entry.bytes }
                }
                Source::Block(_) | Source::Free => Bytes::Owned(self.piece(entry, 0, entry.bytes as usize).into()),
            };
            packed.push(Packed { position: entry.position, bytes });
            at = entry.next;
        }
        self.clear(list);
        packed
    }

    /// Makes `list`, which is empty, the one that was taken out of other pools; false when there is no room for all of it. What was
    /// taken there may have all of these pools.
    pub(crate) fn put_in(&mut self, list: &mut List, packed: &[Packed]) -> bool {
        let kept = std::mem::take(&mut self.kept);
        let all = packed.iter().all(|Packed { position, bytes }| match bytes {
            Bytes::Object { content, object, start, bytes } => {
                let range = Range::Object { content, object: *object, start: *start, bytes: *bytes };
                self.push(list, *position, &range) == *bytes
            }
            Bytes::Owned(bytes) => self.put_block(list, *position, bytes),
        });
        self.kept = kept;
        if !all {
            self.clear(list);
        }
        all
    }

    /// A block of its own, as it was: what stands in one block elsewhere does here.
    fn put_block(&mut self, list: &mut List, position: u64, bytes: &[u8]) -> bool {
        if self.free == NONE || list.entries >= self.entries_max || list.blocks >= self.blocks_max {
            return false;
        }
        let Some(block) = self.free_blocks.pop() else { return false };
        let from = block as usize * BLOCK_BYTES;
        self.memory[from..from + bytes.len()].copy_from_slice(bytes);
        list.blocks += 1;
        let source = Source::Block(block);
        self.append(list, Entry { position, bytes: bytes.len() as u64, source, next: NONE });
        true
    }

    /// Has what is queued of versions whose time to drain is over go on as what the next ones share of it; whether they share it all.
    pub(crate) fn carry_over(&mut self, list: &List) -> bool {
        let Queue { entries, versions, .. } = self;
        let mut at = list.head;
        while let Some(entry) = entries.get_mut(at as usize) {
            if let Source::Object { held, object, .. } = &mut entry.source
                && versions.is_expired(*held)
            {
                let Some(carried) = versions.carry(*held, *object) else { return false };
                (*held, *object) = carried;
            }
            at = entry.next;
        }
        true
    }

    /// Lends the bytes from `position` on, all of them queued, without copying them, as pieces behind those that are in `into`:
    /// `bytes` of them, or fewer if the pieces become too many. How many.
    pub(crate) fn lend<'q, const N: usize>(
        &'q self,
        list: &mut List,
        position: u64,
        bytes: usize,
        into: &mut ArrayVec<&'q [u8], N>,
    ) -> usize {
        let mut at = self.seek(list, position);
        let mut done = 0;
        while done < bytes && !into.is_full() {
            let entry = &self.entries[at as usize];
            let skip = position + done as u64 - entry.position;
            let n = (entry.bytes - skip).min((bytes - done) as u64) as usize;
            into.push(self.piece(entry, skip, n));
            done += n;
            at = entry.next;
        }
        done
    }

    /// The object that the byte at `position` is of, which is queued; None when it is an owned one.
    #[inline]
    pub(crate) fn stretch(&self, list: &mut List, position: u64) -> Option<Stretch<'_>> {
        let entry = &self.entries[self.seek(list, position) as usize];
        let Source::Object { held, object, start } = entry.source else { return None };
        let skip = position - entry.position;
        let content = self.versions.content(held);
        Some(Stretch { content, object, start: (start + skip) as usize, bytes: entry.bytes - skip })
    }

    /// A part of one range.
    fn piece(&self, entry: &Entry, skip: u64, bytes: usize) -> &[u8] {
        match entry.source {
            Source::Object { held, object, start } => {
                let from = (start + skip) as usize;
                &self.versions.content(held).bytes(object)[from..from + bytes]
            }
            Source::Block(block) => {
                let from = block as usize * BLOCK_BYTES + skip as usize;
                &self.memory[from..from + bytes]
            }
            Source::Free => {
                debug_assert!(false, "a free entry in a list");
                &[]
            }
        }
    }

    /// The entry with the byte at `position`, which is queued.
    fn seek(&self, list: &mut List, position: u64) -> u32 {
        let from_cursor = self.entries.get(list.cursor as usize).is_some_and(|entry| entry.position <= position);
        let mut at = if from_cursor { list.cursor } else { list.head };
        while self.entries[at as usize].end() <= position {
            at = self.entries[at as usize].next;
        }
        list.cursor = at;
        at
    }

    /// Writes the bytes from `position` on, all of them queued, into `out`; their sum.
    pub(crate) fn write(&self, list: &mut List, position: u64, out: &mut [u8]) -> Sum {
        let mut at = self.seek(list, position);
        let (mut sum, mut done) = (Sum::ZERO, 0);
        while done < out.len() {
            let entry = &self.entries[at as usize];
            let skip = position + done as u64 - entry.position;
            let n = (entry.bytes - skip).min((out.len() - done) as u64) as usize;
            let piece = self.copy(entry, skip, &mut out[done..done + n]);
            sum = sum.join(if done.is_multiple_of(2) { piece } else { piece.swapped() });
            done += n;
            at = entry.next;
        }
        sum
    }

    /// Copies a part of one range; its sum, as if it began at an even offset.
    fn copy(&self, entry: &Entry, skip: u64, out: &mut [u8]) -> Sum {
        let piece = self.piece(entry, skip, out.len());
        out.copy_from_slice(piece);
        match entry.source {
            Source::Object { held, object, start } => {
                let from = (start + skip) as usize;
                Sum::ZERO.word(self.versions.content(held).sum(object, from..from + out.len()))
            }
            Source::Block(_) | Source::Free => Sum::of(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::ContentBuilder;
    use proptest::prelude::*;

    #[test]
    fn a_part_of_each_pool_is_for_who_has_next_to_nothing_queued() {
        let content = {
            let mut builder = ContentBuilder::new();
            builder.add(b"object");
            builder.finish()
        };
        let object = Range::Object { content: &content, object: ObjectId(0), start: 0, bytes: 6 };
        let block = [7; BLOCK_BYTES];
        // 64 ranges and 32 blocks, of which eight and four are kept
        for (range, all, kept) in [(object, 64, 8), (Range::Owned(&block), 32, 4)] {
            let mut queue = Queue::new(64, 32, 1000, 1000);
            let (need, mut greedy) = (Need::of(&range), List::default());
            let mut end = 0;
            while queue.push(&mut greedy, end, &range) > 0 {
                end += range.bytes();
            }
            assert_eq!(usize::from(greedy.entries), all - kept);
            assert_eq!((queue.room(&greedy), queue.is_at_quota(&greedy, need)), (0, false));
            let mut others = [List::default(); 5];
            for (n, list) in others.iter_mut().enumerate() {
                let pushed = (0..3).take_while(|n| queue.push(list, n * range.bytes(), &range) > 0).count();
                assert_eq!(pushed, (kept - 2 * n).min(2), "{n}");
                assert_eq!(queue.has_some(need), kept > 2 * (n + 1), "{n}");
                if kept == 2 * (n + 1) {
                    break;
                }
            }
            // whatever was taken elsewhere may have all of it
            let packed = queue.take_out(&mut greedy);
            others.iter_mut().for_each(|list| queue.clear(list));
            assert!(queue.put_in(&mut greedy, &packed));
            let more = queue.room(&greedy) / BLOCK_BYTES;
            assert_eq!(more, 0, "and no more than that");
            queue.clear(&mut greedy);
            queue.versions.sweep();
        }
    }

    proptest! {
        #[test]
        fn any_segment_is_a_part_of_the_stream(
            pieces in prop::collection::vec((any::<bool>(), 0u64..5000, 0u64..5000), 1..20),
            reads in prop::collection::vec((any::<u32>(), 1usize..1500, any::<bool>()), 0..30),
        ) {
            let mut builder = ContentBuilder::new();
            let bytes: Vec<u8> = (0..10_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let object = builder.add(&bytes);
            let content = builder.finish();
            let mut queue = Queue::new(12, 8, 10, 6);
            let mut list = List::default();
            let mut stream = Vec::new();
            for (owned, start, length) in pieces {
                let part = &bytes[start as usize..(start + length) as usize];
                let range = match owned {
                    true => Range::Owned(part),
                    false => Range::Object { content: &content, object, start, bytes: length },
                };
                let room = queue.room(&list);
                let taken = queue.push(&mut list, stream.len() as u64, &range);
                if owned {
                    prop_assert_eq!(taken as usize, part.len().min(room));
                }
                stream.extend_from_slice(&part[..taken as usize]);
            }
            let mut una = 0;
            for (at, length, acknowledge) in reads {
                if una == stream.len() {
                    break;
                }
                let at = una + at as usize % (stream.len() - una);
                let mut out = vec![0; length.min(stream.len() - at)];
                let sum = queue.write(&mut list, at as u64, &mut out);
                prop_assert_eq!(&out, &stream[at..at + out.len()]);
                prop_assert_eq!(sum.checksum(), Sum::of(&out).checksum());
                let mut lent = ArrayVec::<&[u8], 3>::new();
                let bytes = queue.lend(&mut list, at as u64, out.len(), &mut lent);
                prop_assert_eq!(lent.concat(), &out[..bytes]);
                prop_assert!(bytes == out.len() || lent.is_full());
                drop(lent);
                if acknowledge {
                    una = at;
                    queue.release(&mut list, una as u64);
                }
                if length % 5 == 0 {
                    // to other pools, where it is queued, and acknowledged, as before
                    let (room, used) = (queue.room(&list), queue.used());
                    let packed = queue.take_out(&mut list);
                    prop_assert_eq!(queue.used(), (0, 0));
                    let mut short = Queue::new(used.0.saturating_sub(1), 8, 10, 6);
                    prop_assert!(packed.is_empty() || !short.put_in(&mut list, &packed));
                    prop_assert_eq!(short.used(), (0, 0));
                    queue = Queue::new(12, 8, 10, 6);
                    prop_assert!(queue.put_in(&mut list, &packed));
                    prop_assert_eq!((queue.room(&list), queue.used()), (room, used));
                }
            }
            queue.clear(&mut list);
            prop_assert!(queue.used() == (0, 0) && list.head == NONE);
            content.retire();
            queue.versions.sweep();
            prop_assert_eq!(std::sync::Arc::strong_count(&content), 1);
        }
    }
}
