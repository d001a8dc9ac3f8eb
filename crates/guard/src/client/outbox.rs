//! What a connection wants to send and has no credit or no room for: ranges of content by reference, bytes by copy, in their order.

use app::{Content, ObjectId, Range};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pieces that a connection may have.
const PIECES: usize = 256;

enum Piece {
    /// the next so many of the owned bytes
    Owned(usize),
    Object {
        content: Arc<Content>,
        object: ObjectId,
        start: usize,
        bytes: usize,
    },
}

#[derive(Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Piece>,
    owned: VecDeque<u8>,
    bytes: u64,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of it all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the caller's.
    pub(super) fn owned_bytes(&self) -> usize {
        self.owned.len()
    }

    /// Takes valid ranges as far as there is room, with at most `room` bytes of the caller's; how many bytes.
    pub(super) fn take(&mut self, ranges: &[Range<'_>], room: usize) -> u64 {
        let before = self.bytes;
        let mut room = room;
        for range in ranges {
            if range.bytes() == 0 {
                continue;
            }
            let taken = match *range {
                Range::Object { .. } if self.pieces.len() >= PIECES => 0,
                Range::Object { content, object, start, bytes } => {
                    let (content, start) = (content.clone(), start as usize);
                    self.pieces.push_back(Piece::Object { content, object, start, bytes: bytes as usize });
                    bytes
                }
                Range::Owned(bytes) => {
                    let taken = self.take_owned(&bytes[..bytes.len().min(room)]);
                    room -= taken;
                    taken as u64
                }
            };
            self.bytes += taken;
            if taken < range.bytes() {
                break;
            }
        }
        self.bytes - before
    }

    /// Whether bytes of the caller's would be taken: they need a piece, or follow others of theirs.
    pub(super) fn takes_owned(&self) -> bool {
        self.pieces.len() < PIECES || matches!(self.pieces.back(), Some(Piece::Owned(_)))
    }

    fn take_owned(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() || !self.takes_owned() {
            return 0;
        }
        match self.pieces.back_mut() {
            // they lie behind those, so both are one
            Some(Piece::Owned(before)) => *before += bytes.len(),
            _ => self.pieces.push_back(Piece::Owned(bytes.len())),
        }
        self.owned.extend(bytes);
        bytes.len()
    }

    /// Gives the first `count` bytes in parts; there must be so many.
    pub(super) fn give(&mut self, count: usize, mut put: impl FnMut(&[u8])) {
        let mut left = count;
        while left > 0 {
            let Some(first) = self.pieces.front_mut() else { break };
            let part = match first {
                Piece::Owned(bytes) => {
                    let part = left.min(*bytes);
                    let (front, back) = self.owned.as_slices();
                    let in_front = part.min(front.len());
                    put(&front[..in_front]);
                    put(&back[..part - in_front]);
                    self.owned.drain(..part);
                    *bytes -= part;
                    part
                }
                Piece::Object { content, object, start, bytes } => {
                    let part = left.min(*bytes);
                    put(&content.bytes(*object)[*start..*start + part]);
                    *start += part;
                    *bytes -= part;
                    part
                }
            };
            left -= part;
            self.bytes -= part as u64;
            if matches!(first, Piece::Owned(0) | Piece::Object { bytes: 0, .. }) {
                self.pieces.pop_front();
            }
        }
        debug_assert_eq!(left, 0, "more was asked for than there is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::ContentBuilder;
    use proptest::prelude::*;

    proptest! {
        /// Against a vector of bytes.
        #[test]
        fn bytes_come_out_as_they_went_in(steps in prop::collection::vec((0u8..3, 0usize..100, 0usize..60), 1..60)) {
            let mut builder = ContentBuilder::new();
            let text: Vec<u8> = (0..200).collect();
            let object = builder.add(&text);
            let content = builder.finish();
            let (mut outbox, mut twin) = (Outbox::default(), Vec::new());
            for (what, start, bytes) in steps {
                match what {
                    0 => {
                        let range = Range::Object { content: &content, object, start: start as u64, bytes: bytes as u64 };
                        prop_assert_eq!(outbox.take(&[range], 0), bytes as u64);
                        twin.extend_from_slice(&text[start..start + bytes]);
                    }
                    1 => {
                        let room = 40usize.saturating_sub(outbox.owned_bytes());
                        let taken = outbox.take(&[Range::Owned(&text[..bytes])], room) as usize;
                        prop_assert_eq!(taken, bytes.min(room));
                        twin.extend_from_slice(&text[..taken]);
                    }
                    _ => {
                        let count = bytes.min(twin.len());
                        let mut got = Vec::new();
                        outbox.give(count, |part| got.extend_from_slice(part));
                        prop_assert_eq!(&got[..], &twin[..count]);
                        twin.drain(..count);
                    }
                }
                prop_assert_eq!((outbox.bytes(), outbox.is_empty()), (twin.len() as u64, twin.is_empty()));
            }
            drop(outbox);
            prop_assert_eq!(Arc::strong_count(&content), 1);
        }
    }

    #[test]
    fn small_parts_of_the_callers_need_no_piece_each() {
        let mut builder = ContentBuilder::new();
        let object = builder.add(b"an object");
        let content = builder.finish();
        let range = Range::Object { content: &content, object, start: 0, bytes: 9 };
        let mut outbox = Outbox::default();
        for _ in 0..10 * PIECES {
            assert_eq!(outbox.take(&[Range::Owned(b"abc")], usize::MAX), 3);
        }
        // one piece, and one for each object
        assert_eq!((1..PIECES).map(|_| outbox.take(&[range], 0)).sum::<u64>(), 9 * (PIECES as u64 - 1));
        assert!(!outbox.takes_owned());
        assert_eq!((outbox.take(&[range], 0), outbox.take(&[Range::Owned(b"abc")], 3)), (0, 0));
        outbox.give(30 * PIECES, |_| {});
        assert!(outbox.takes_owned());
        assert_eq!(outbox.take(&[Range::Owned(b"abc")], 3), 3);
    }
}
