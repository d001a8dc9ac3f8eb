//! Room for payload in a ring of bytes: each piece lies whole, and pieces are freed in the order in which they were placed.

/// A producer's account of a ring of bytes. Positions count up without end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    head: u64,
    tail: u64,
    bytes: u64,
}

impl Lane {
    pub(crate) fn new(bytes: usize) -> Lane {
        assert!(bytes.is_power_of_two(), "a lane of {bytes} bytes");
        Lane { head: 0, tail: 0, bytes: bytes as u64 }
    }

    /// Room for a piece of `length`: where it begins; None when there is none now.
    #[inline]
    pub(crate) fn place(&mut self, length: usize) -> Option<u32> {
        let length = length as u64;
        let at = self.head & (self.bytes - 1);
        // what does not fit before the end begins at the front again
        let skipped = if at + length > self.bytes { self.bytes - at } else { 0 };
        if self.head + skipped + length > self.tail + self.bytes {
            return None;
        }
        let begin = self.head + skipped;
        self.head = begin + length;
        Some((begin & (self.bytes - 1)) as u32)
    }

    /// Whether a piece of `length` has room.
    #[inline]
    pub(crate) fn has_place(self, length: usize) -> bool {
        // of a copy
        let mut lane = self;
        lane.place(length).is_some()
    }

    /// Where what was placed ends: what [`Lane::free_to`] takes.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.head
    }

    /// Everything up to `end` may be placed over.
    #[inline]
    pub(crate) fn free_to(&mut self, end: u64) {
        debug_assert!(self.tail <= end && end <= self.head, "{end} in {self:?}");
        self.tail = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Against a map of bytes: no piece overlaps another that is not freed, and an empty lane takes any piece of half of it.
        #[test]
        fn pieces_never_overlap(steps in prop::collection::vec((0usize..40, any::<bool>()), 1..200)) {
            let mut lane = Lane::new(64);
            let mut pieces = VecDeque::<(usize, usize, u64)>::new();
            for (length, frees) in steps {
                if frees && let Some((.., end)) = pieces.pop_front() {
                    lane.free_to(end);
                }
                let empty = pieces.is_empty();
                // and what has room has it for less
                prop_assert!(!lane.has_place(length) || (0..length).all(|less| lane.has_place(less)));
                prop_assert_eq!(lane.has_place(length), { lane }.place(length).is_some());
                match lane.place(length) {
                    Some(at) => {
                        let at = at as usize;
                        prop_assert!(at + length <= 64);
                        prop_assert!(pieces.iter().all(|(from, bytes, _)| at + length <= *from || from + bytes <= at || length == 0));
                        pieces.push_back((at, length, lane.end()));
                    }
                    None => prop_assert!(!empty || length > 32),
                }
            }
        }
    }
}
