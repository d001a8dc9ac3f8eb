//! Answers on their way out: bytes of our own with parts of chunks between them, in the order in which they are sent.

use app::{CallError, Connection, Content, ObjectId, Range, SENDV_RANGES, Streams};
use arrayvec::ArrayVec;
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
    parts: Vec<Part>,
    /// bytes and parts that there is room for from the beginning
    room: (usize, usize),
    /// of the parts
    part_bytes: u64,
    /// what an engine has taken
    taken: u64,
}

impl Out {
    /// Nothing, with room for so many bytes and parts.
    pub(crate) fn new(bytes: usize, parts: usize) -> Out {
        let room = (bytes, parts);
        Out { bytes: Vec::with_capacity(bytes), parts: Vec::with_capacity(parts), room, part_bytes: 0, taken: 0 }
    }

    /// Takes what is here, and leaves nothing, with the same room.
    pub(crate) fn take(&mut self) -> Out {
        let (bytes, parts) = self.room;
        std::mem::replace(self, Out::new(bytes, parts))
    }

    /// Adds the first bytes of a chunk.
    pub(crate) fn chunk(&mut self, content: &Arc<Content>, bytes: usize) {
        self.parts.push(Part { behind: self.bytes.len(), content: content.clone(), bytes });
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
        self.bytes.len() as u64 + self.part_bytes - self.taken
    }

    /// Forgets everything. What grew to more than twice its room does not stay so.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        (self.part_bytes, self.taken) = (0, 0);
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
            let taken = calls.sendv(connection, &[Range::Owned(&self.bytes[self.taken as usize..])])?;
            self.taken += taken;
            return Ok(taken);
        }
        let mut ranges = ArrayVec::<Range<'_>, SENDV_RANGES>::new();
        let (mut offered, mut taken, mut skip) = (0, 0, self.taken);
        for piece in 0..=2 * self.parts.len() {
            let range = self.piece(piece);
            let skipped = skip.min(range.bytes());
            skip -= skipped;
            let Some(range) = behind(range, skipped) else { continue };
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
        self.taken += taken;
        Ok(taken)
    }

    /// Our own bytes up to a part at even numbers, a part at odd ones.
    fn piece(&self, piece: usize) -> Range<'_> {
        let n = piece / 2;
        if piece % 2 == 1 {
            let Part { content, bytes, .. } = &self.parts[n];
            return Range::Object { content, object: ObjectId(0), start: 0, bytes: *bytes as u64 };
        }
        let from = n.checked_sub(1).map_or(0, |before| self.parts[before].behind);
        Range::Owned(&self.bytes[from..self.parts.get(n).map_or(self.bytes.len(), |part| part.behind)])
    }
}

/// What of a range stands behind its first bytes, if anything does.
fn behind(range: Range<'_>, skipped: u64) -> Option<Range<'_>> {
    if skipped == range.bytes() {
        return None;
    }
    Some(match range {
        Range::Object { content, object, start, bytes } => {
            Range::Object { content, object, start: start + skipped, bytes: bytes - skipped }
        }
        Range::Owned(bytes) => Range::Owned(&bytes[skipped as usize..]),
    })
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
}
