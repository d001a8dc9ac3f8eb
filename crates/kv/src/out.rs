//! Answers on their way out: bytes of our own with parts of chunks between them, in the order in which they are sent.

use app::{CallError, Connection, Content, ObjectId, Range, SENDV_RANGES, Streams};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::sync::Arc;

struct Part {
    /// it stands behind so many of our own bytes
    behind: usize,
    content: Arc<Content>,
    bytes: usize,
}

/// Answers that are sent together.
pub(crate) struct Out {
    /// our own bytes
    pub(crate) bytes: Vec<u8>,
    /// those that an engine has not wholly taken; of what it has, it holds what it needs
    parts: VecDeque<Part>,
    /// bytes and parts that there is room for from the beginning
    room: (usize, usize),
    /// of the parts that are not taken yet
    part_bytes: u64,
    /// what an engine has taken of our own bytes
    own_taken: usize,
    /// and of the first part
    part_taken: usize,
}

impl Out {
    /// Nothing, with room for so many bytes and parts.
    pub(crate) fn new(bytes: usize, parts: usize) -> Out {
        let room = (bytes, parts);
        let (bytes, parts) = (Vec::with_capacity(bytes), VecDeque::with_capacity(parts));
        Out { bytes, parts, room, part_bytes: 0, own_taken: 0, part_taken: 0 }
    }

    /// Takes what is here, and leaves nothing, with the same room.
    pub(crate) fn take(&mut self) -> Out {
        let (bytes, parts) = self.room;
        std::mem::replace(self, Out::new(bytes, parts))
    }

    /// Adds the first bytes of a chunk.
    pub(crate) fn chunk(&mut self, content: &Arc<Content>, bytes: usize) {
        self.parts.push_back(Part { behind: self.bytes.len(), content: content.clone(), bytes });
        self.part_bytes += bytes as u64;
    }

    /// Whether there is nothing but bytes of our own.
    pub(crate) fn is_plain(&self) -> bool {
        self.parts.is_empty()
    }

    /// Parts of chunks.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes that are not taken yet.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.own_taken) as u64 + self.part_bytes
    }

    /// Forgets everything. What grew to more than twice its room does not stay so.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        (self.part_bytes, self.own_taken, self.part_taken) = (0, 0, 0);
        let (bytes, parts) = self.room;
        if self.bytes.capacity() > 2 * bytes || self.parts.capacity() > 2 * parts {
            self.shrink();
        }
    }

    #[cold]
    fn shrink(&mut self) {
        let (bytes, parts) = self.room;
        self.bytes.shrink_to(bytes);
        self.parts.shrink_to(parts);
    }

    /// Room for bytes and parts.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> (usize, usize) {
        (self.bytes.capacity(), self.parts.capacity())
    }

    /// Offers what is left to the engine; how many bytes it took.
    pub(crate) fn send<C: Streams>(&mut self, calls: &mut C, connection: Connection) -> Result<u64, CallError> {
        if self.is_plain() {
            let taken = calls.sendv(connection, &[Range::Owned(&self.bytes[self.own_taken..])])?;
            self.advance(taken);
            return Ok(taken);
        }
        let mut ranges = ArrayVec::<Range<'_>, SENDV_RANGES>::new();
        let (mut offered, mut taken) = (0, 0);
        for range in self.pieces() {
            offered += range.bytes();
            ranges.push(range);
            if ranges.is_full() {
                taken += calls.sendv(connection, &ranges)?;
                if taken < offered {
                    break;
                }
                ranges.clear();
            }
        }
        if !ranges.is_empty() && taken + ranges.iter().map(Range::bytes).sum::<u64>() == offered {
            taken += calls.sendv(connection, &ranges)?;
        }
        drop(ranges);
        self.advance(taken);
        Ok(taken)
    }

    /// What is left, in order: our own bytes up to a part, the part, and so on; none is empty.
    fn pieces(&self) -> impl Iterator<Item = Range<'_>> {
        let (mut from, mut part_taken) = (self.own_taken, self.part_taken as u64);
        let parts = self.parts.iter().flat_map(move |part| {
            let own = Range::Owned(&self.bytes[std::mem::replace(&mut from, part.behind)..part.behind]);
            let (start, content) = (std::mem::take(&mut part_taken), &part.content);
            [own, Range::Object { content, object: ObjectId(0), start, bytes: part.bytes as u64 - start }]
        });
        let last = self.parts.back().map_or(self.own_taken, |part| part.behind);
        parts.chain([Range::Owned(&self.bytes[last..])]).filter(|range| range.bytes() > 0)
    }

    /// So many bytes more were taken.
    fn advance(&mut self, taken: u64) {
        let mut taken = taken as usize;
        while let Some(part) = self.parts.front() {
            let own = taken.min(part.behind - self.own_taken);
            self.own_taken += own;
            taken -= own;
            let of_part = taken.min(part.bytes - self.part_taken);
            self.part_taken += of_part;
            self.part_bytes -= of_part as u64;
            taken -= of_part;
            if self.part_taken < part.bytes {
                return;
            }
            self.parts.pop_front();
            self.part_taken = 0;
        }
        self.own_taken += taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grew_is_not_kept() {
        let mut out = Out::new(1000, 10);
        let room = out.capacities();
        let content = Arc::new(app::ContentBuilder::new().finish());
        for (bytes, parts, stays) in [(1000, 10, true), (1500, 15, true), (5000, 1, false), (1, 100, false)] {
            out.bytes.resize(bytes, 0);
            (0..parts).for_each(|_| out.chunk(&content, 1));
            let grown = out.capacities();
            out.clear();
            assert_eq!(out.left(), 0);
            assert_eq!(out.capacities(), if stays { grown } else { room }, "{bytes} and {parts}");
        }
        out.bytes.push(b'x');
        assert_eq!((out.take().left(), out.left(), out.capacities()), (1, 0, room));
    }

    fn bytes_of(range: &Range<'_>) -> Vec<u8> {
        match range {
            Range::Owned(bytes) => bytes.to_vec(),
            Range::Object { content, object, start, bytes } => {
                content.bytes(*object)[*start as usize..][..*bytes as usize].to_vec()
            }
        }
    }

    #[test]
    fn what_is_left_is_what_was_not_taken_and_nothing_else_is_held() {
        let contents: Vec<Arc<Content>> = [b"first", b"secon", b"third"]
            .map(|bytes| {
                let mut builder = app::ContentBuilder::new();
                builder.add(bytes);
                builder.finish()
            })
            .into();
        // own bytes before, between and behind, or none
        for own in [["", "", "", ""], ["a", "", "bc", "d"], ["", "x", "", "yz"], ["ab", "cd", "ef", "gh"]] {
            let make = || {
                let mut out = Out::new(16, 4);
                for (own, content) in own.iter().zip(&contents) {
                    out.bytes.extend_from_slice(own.as_bytes());
                    out.chunk(content, 4);
                }
                out.bytes.extend_from_slice(own[3].as_bytes());
                out
            };
            let left = |out: &Out| out.pieces().flat_map(|range| bytes_of(&range)).collect::<Vec<u8>>();
            let whole = left(&make());
            for first in 0..=whole.len() {
                for second in 0..=whole.len() - first {
                    let mut out = make();
                    out.advance(first as u64);
                    out.advance(second as u64);
                    assert_eq!(left(&out), whole[first + second..], "{own:?}, {first} and {second}");
                    assert_eq!(out.left(), (whole.len() - first - second) as u64);
                    let held = contents.iter().filter(|content| Arc::strong_count(content) > 1).count();
                    assert_eq!(held, out.parts());
                }
            }
        }
    }
}
