//! Lines of places: whose connection has its turn next.
//!
//! A place stands in a line once, whichever connections have it meanwhile. Handles of connections that are gone would stand there until
//! their turn came, and an application that has connections end and begin faster than turns come would have the line grow without end. So
//! whoever has a place that stands in the line already has the turn of the one before it, and who has nothing to do when its turn
//! comes is passed over.

use std::collections::VecDeque;

/// Places, each once, the one that has stood there longest first.
#[derive(Debug)]
pub(super) struct Line {
    places: VecDeque<u32>,
    /// by place, whether it stands in the line
    stands: Box<[bool]>,
}

impl Line {
    /// One in which nobody stands, for so many places.
    pub(super) fn new(places: u32) -> Line {
        Line { places: VecDeque::new(), stands: vec![false; places as usize].into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Has a place of the table stand in the line: where it stands already, or behind all others.
    pub(super) fn push(&mut self, index: u32) {
        if !std::mem::replace(&mut self.stands[index as usize], true) {
            self.places.push_back(index);
        }
    }

    pub(super) fn front(&self) -> Option<u32> {
        self.places.front().copied()
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let index = self.places.pop_front()?;
        self.stands[index as usize] = false;
        Some(index)
    }

    pub(super) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list that is searched.
        #[test]
        fn a_place_stands_there_once_and_keeps_its_turn(steps in prop::collection::vec((0u8..8, 0u32..6), 1..200)) {
            let (mut line, mut twin) = (Line::new(6), VecDeque::new());
            for (what, index) in steps {
                match what {
                    0..=3 => {
                        line.push(index);
                        if !twin.contains(&index) {
                            twin.push_back(index);
                        }
                    }
                    4..=6 => prop_assert_eq!(line.pop(), twin.pop_front()),
                    _ => {
                        line.clear();
                        twin.clear();
                    }
                }
                prop_assert_eq!((line.front(), line.len()), (twin.front().copied(), twin.len()));
                prop_assert_eq!(line.is_empty(), twin.is_empty());
            }
        }
    }
}
