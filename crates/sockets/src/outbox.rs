//! What a connection has queued: ranges of objects by reference, owned bytes by copy, in their order.
//!
//! Objects stay in the thread's [`Versions`], one hold a range, until the kernel has taken the range's last byte. Owned bytes
//! stand in one buffer with the quota as its bound. Both queues keep their memory when they run empty, so a connection that
//! answers request after request allocates nothing.

use app::{Content, Held, ObjectId, Range, SENDV_RANGES, Versions};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// Slices that one system call is offered at most.
pub(crate) const SLICES: usize = 64;
/// Bytes that one system call is offered at most: what bounds how long one connection's turn holds up the others.
const OFFER_BYTES: usize = 512 << 10;

#[derive(Clone, Copy)]
enum Piece {
    /// the next so many bytes of the owned buffer
    Owned {
        bytes: usize,
    },
    Object {
        held: Held,
        object: ObjectId,
        start: usize,
        bytes: usize,
    },
}

impl Piece {
    fn bytes(&self) -> usize {
        match self {
            Piece::Owned { bytes } | Piece::Object { bytes, .. } => *bytes,
        }
    }
}

/// Bounds of one connection's queue.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) owned_bytes: usize,
    pub(crate) ranges: usize,
}

/// One connection's queue.
#[derive(Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// bytes of all pieces
    bytes: u64,
    /// the owned pieces' bytes, from `owned_at` on
    owned: Vec<u8>,
    owned_at: usize,
}

/// What a system call is offered: the slices, and whether they are all there is.
pub(crate) type Slices<'a> = ArrayVec<IoSlice<'a>, SLICES>;

impl Outbox {
    /// With memory for what most answers take.
    pub(crate) fn ready() -> Outbox {
        Outbox { pieces: VecDeque::with_capacity(16), owned: Vec::with_capacity(1024), ..Outbox::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes queued.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Owned bytes queued.
    pub(crate) fn owned_bytes(&self) -> usize {
        self.owned.len() - self.owned_at
    }

    /// Whether it has memory worth keeping.
    pub(crate) fn has_memory(&self) -> bool {
        self.owned.capacity() > 0 || self.pieces.capacity() > 0
    }

    /// Queues ranges, all of them valid, as far as the bounds allow; the bytes taken.
    pub(crate) fn queue(&mut self, ranges: &[Range<'_>], bounds: Bounds, versions: &mut Versions) -> u64 {
        let before = self.bytes;
        for range in ranges.iter().take(SENDV_RANGES) {
            let taken = match *range {
                Range::Object { content, object, start, bytes } => {
                    self.queue_object(content, object, start as usize, bytes as usize, bounds, versions)
                }
                Range::Owned(bytes) => self.queue_owned(bytes, bounds),
            };
            self.bytes += taken as u64;
            if (taken as u64) < range.bytes() {
                break;
            }
        }
        self.bytes - before
    }

    fn queue_object(
        &mut self,
        content: &Arc<Content>,
        object: ObjectId,
        start: usize,
        bytes: usize,
        bounds: Bounds,
        versions: &mut Versions,
    ) -> usize {
        if bytes == 0 || self.pieces.len() >= bounds.ranges {
            return 0;
        }
        let Some(held) = versions.hold(content) else { return 0 };
        self.pieces.push_back(Piece::Object { held, object, start, bytes });
        bytes
    }

    fn queue_owned(&mut self, bytes: &[u8], bounds: Bounds) -> usize {
        let taken = bytes.len().min(bounds.owned_bytes.saturating_sub(self.owned_bytes()));
        if taken == 0 {
            return 0;
        }
        let full = self.pieces.len() >= bounds.ranges;
        match self.pieces.back_mut() {
            // the buffer's end is that piece's end, so they are one
            Some(Piece::Owned { bytes }) => *bytes += taken,
            _ if full => return 0,
            _ => self.pieces.push_back(Piece::Owned { bytes: taken }),
        }
        if self.owned_at > 0 && self.owned.len() + taken > bounds.owned_bytes {
            self.owned.drain(..self.owned_at);
            self.owned_at = 0;
        }
        self.owned.extend_from_slice(&bytes[..taken]);
        taken
    }

    /// The first bytes of the queue, as many as one call is offered; at least one while there are any.
    pub(crate) fn slices<'a>(&'a self, versions: &'a Versions) -> Slices<'a> {
        let mut slices = Slices::new();
        let (mut owned_at, mut left) = (self.owned_at, OFFER_BYTES);
        for piece in self.pieces.iter().take(SLICES) {
            let all = match *piece {
                Piece::Owned { bytes } => {
                    let from = owned_at;
                    owned_at += bytes;
                    &self.owned[from..owned_at]
                }
                Piece::Object { held, object, start, bytes } => {
                    &versions.content(held).bytes(object)[start..start + bytes]
                }
            };
            let offered = &all[..all.len().min(left)];
            left -= offered.len();
            slices.push(IoSlice::new(offered));
            if left == 0 {
                break;
            }
        }
        slices
    }

    /// The kernel took the first `taken` bytes.
    pub(crate) fn advance(&mut self, taken: usize, versions: &mut Versions) {
        let mut left = taken;
        while left > 0 {
            let Some(first) = self.pieces.front_mut() else { break };
            let part = left.min(first.bytes());
            match first {
                Piece::Owned { bytes } => {
                    *bytes -= part;
                    self.owned_at += part;
                }
                Piece::Object { start, bytes, .. } => {
                    *bytes -= part;
                    *start += part;
                }
            }
            left -= part;
            self.bytes -= part as u64;
            if first.bytes() == 0
                && let Some(Piece::Object { held, .. }) = self.pieces.pop_front()
            {
                versions.release(held);
            }
        }
        debug_assert_eq!(left, 0, "the kernel took more than it was offered");
        if self.owned_at == self.owned.len() {
            self.owned.clear();
            self.owned_at = 0;
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, versions: &mut Versions) {
        for piece in self.pieces.drain(..) {
            if let Piece::Object { held, .. } = piece {
                versions.release(held);
            }
        }
        self.owned.clear();
        (self.owned_at, self.bytes) = (0, 0);
    }

    /// Has what is queued of versions whose time to drain is over go on as what the next ones share of it; whether they share it all.
    pub(crate) fn carry_over(&mut self, versions: &mut Versions) -> bool {
        self.pieces.iter_mut().all(|piece| {
            let Piece::Object { held, object, .. } = piece else { return true };
            if !versions.is_expired(*held) {
                return true;
            }
            let Some(carried) = versions.carry(*held, *object) else { return false };
            (*held, *object) = carried;
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::ContentBuilder;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { owned_bytes: 40, ranges: 5 };

    #[derive(Clone, Debug)]
    enum Step {
        Object { second: bool, start: usize, bytes: usize },
        Owned(Vec<u8>),
        Take(usize),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (any::<bool>(), 0usize..100, 0usize..100).prop_map(|(second, start, bytes)| Step::Object { second, start, bytes }),
            4 => prop::collection::vec(any::<u8>(), 0..30).prop_map(Step::Owned),
            6 => (0usize..120).prop_map(Step::Take),
            1 => Just(Step::Clear),
        ]
    }

    fn content(seed: u8) -> Arc<Content> {
        let mut builder = ContentBuilder::new();
        builder.add(&(0..200).map(|n| seed.wrapping_add(n)).collect::<Vec<u8>>());
        builder.finish()
    }

    proptest! {
        /// Against a plain vector of bytes: what is queued comes out, in order, whatever portions are taken.
        #[test]
        fn bytes_come_out_as_they_went_in(steps in prop::collection::vec(step(), 1..80)) {
            let contents = [content(1), content(77)];
            let (mut outbox, mut versions, mut twin) = (Outbox::default(), Versions::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Object { second, start, bytes } => {
                        let content = &contents[usize::from(second)];
                        let object = Range::Object { content, object: ObjectId(0), start: start as u64, bytes: bytes as u64 };
                        let taken = outbox.queue(&[object], BOUNDS, &mut versions) as usize;
                        prop_assert!(taken == bytes || (taken == 0 && outbox.pieces.len() == BOUNDS.ranges));
                        twin.extend_from_slice(&content.bytes(ObjectId(0))[start..start + taken]);
                    }
                    Step::Owned(bytes) => {
                        let room = BOUNDS.owned_bytes - outbox.owned_bytes();
                        let taken = outbox.queue(&[Range::Owned(&bytes)], BOUNDS, &mut versions) as usize;
                        prop_assert!(taken == bytes.len().min(room) || (taken == 0 && outbox.pieces.len() == BOUNDS.ranges));
                        twin.extend_from_slice(&bytes[..taken]);
                    }
                    Step::Take(most) => {
                        let offered: Vec<u8> = outbox.slices(&versions).iter().flat_map(|slice| slice.to_vec()).collect();
                        prop_assert_eq!(&offered, &twin);
                        let taken = most.min(offered.len());
                        outbox.advance(taken, &mut versions);
                        twin.drain(..taken);
                    }
                    Step::Clear => {
                        outbox.clear(&mut versions);
                        twin.clear();
                    }
                }
                prop_assert_eq!((outbox.bytes(), outbox.is_empty()), (twin.len() as u64, twin.is_empty()));
                prop_assert!(outbox.owned.len() <= BOUNDS.owned_bytes);
            }
            outbox.clear(&mut versions);
            // every hold was given back
            contents.iter().for_each(|content| content.expire());
            prop_assert!(!versions.sweep());
            prop_assert!(contents.iter().all(|content| Arc::strong_count(content) == 1));
        }
    }

    #[test]
    fn ranges_of_one_call_stop_at_the_first_that_does_not_fit() {
        let (mut outbox, mut versions, content) = (Outbox::default(), Versions::new(), content(0));
        let object = Range::Object { content: &content, object: ObjectId(0), start: 10, bytes: 20 };
        let long = [b'x'; 50];
        assert_eq!(outbox.queue(&[object, Range::Owned(&long), object], BOUNDS, &mut versions), 20 + 40);
        assert_eq!(outbox.slices(&versions).len(), 2);
        let seventeen = [object; SENDV_RANGES + 1];
        outbox.clear(&mut versions);
        let wide = Bounds { owned_bytes: 0, ranges: 100 };
        assert_eq!(outbox.queue(&seventeen, wide, &mut versions), SENDV_RANGES as u64 * 20);
    }

    #[test]
    fn one_call_is_offered_a_bounded_part() {
        let mut builder = ContentBuilder::new();
        let object = builder.add(&vec![1; OFFER_BYTES + 7]);
        let content = builder.finish();
        let (mut outbox, mut versions) = (Outbox::default(), Versions::new());
        let range = Range::Object { content: &content, object, start: 0, bytes: OFFER_BYTES as u64 + 7 };
        outbox.queue(&[Range::Owned(b"head"), range], BOUNDS, &mut versions);
        let offered: usize = outbox.slices(&versions).iter().map(|slice| slice.len()).sum();
        assert_eq!(offered, OFFER_BYTES);
        outbox.advance(offered, &mut versions);
        assert_eq!(outbox.slices(&versions).iter().map(|slice| slice.len()).sum::<usize>(), 11);
    }
}
