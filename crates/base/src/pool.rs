//! A thread's free frames: a stack, so that the warmest chunk is used next.

use crate::arena::HEADROOM_BYTES;
use crate::{Arena, Frame};
use std::sync::Arc;

/// Free frames of one arena. Several pools, one a thread, may share an arena; frames may go home to any of them.
#[derive(Debug)]
pub struct Pool {
    arena: Arc<Arena>,
    free: Vec<Frame>,
}

impl Pool {
    /// A pool that starts with `frames`, all of them `arena`'s.
    ///
    /// # Panics
    /// When one is not.
    pub fn new(arena: Arc<Arena>, frames: Vec<Frame>) -> Pool {
        assert!(frames.iter().all(|frame| arena.holds(frame)), "a frame of another arena");
        let mut free = frames;
        // every chunk could come home to this pool; growing later would allocate on the packet path
        free.reserve_exact((arena.chunks() as usize).saturating_sub(free.len()));
        Pool { arena, free }
    }

    /// The arena that the frames belong to.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// A free frame, empty, or None when all are in use.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Takes a frame home.
    #[inline]
    pub fn give(&mut self, mut frame: Frame) {
        debug_assert!(self.arena.holds(&frame), "a frame of another arena");
        frame.set_window(usize::from(HEADROOM_BYTES), 0);
        self.free.push(frame);
    }

    /// Free frames.
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether no frame is free.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.arena.came_home(self.free.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_empty_and_first() {
        let (arena, frames) = Arena::new(8, 2048).unwrap();
        let mut pool = Pool::new(arena.clone(), frames);
        let mut frame = pool.take().unwrap();
        assert!(frame.fill(b"x"));
        frame.set_window(0, 1);
        let address = arena.address_of(&frame);
        pool.give(frame);
        let again = pool.take().unwrap();
        assert_eq!(arena.address_of(&again), address + u64::from(HEADROOM_BYTES));
        assert!(again.is_empty());
        pool.give(again);
        assert_eq!(pool.len(), 8);
    }

    #[test]
    fn an_empty_pool_says_so() {
        let (arena, frames) = Arena::new(2, 2048).unwrap();
        let mut pool = Pool::new(arena, frames);
        let taken = [pool.take(), pool.take()];
        assert!(taken.iter().all(Option::is_some));
        assert!(pool.take().is_none() && pool.is_empty());
        for frame in taken.into_iter().flatten() {
            pool.give(frame);
        }
    }
}
