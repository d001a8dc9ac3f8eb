//! A thread's free frames: a stack, so that the warmest chunk is used next.
//!
//! Threads hand frames to each other, and each pool shall go on having its own: pools that are joined ([`Pool::join`]) know
//! each other's chunks, and a frame that is given to another pool than its home travels there over a ring.

use crate::arena::HEADROOM_BYTES;
use crate::ring::{Consumer, Producer, ring};
use crate::{Arena, Frame};
use std::ops::Range;
use std::sync::Arc;

/// Free frames of one arena. Several pools, one a thread, may share an arena; unless they are joined, frames may go home to any
/// of them.
#[derive(Debug)]
pub struct Pool {
    arena: Arc<Arena>,
    free: Vec<Frame>,
    homes: Option<Homes>,
}

/// The ways between joined pools.
#[derive(Debug)]
struct Homes {
    /// where each pool's chunks lie in memory
    all: Arc<[Range<usize>]>,
    /// each one's
    arenas: Arc<[Arc<Arena>]>,
    me: usize,
    /// to each other pool
    out: Vec<Option<Producer<Frame>>>,
    /// from each other pool
    into: Vec<Consumer<Frame>>,
}

impl Homes {
    #[inline]
    fn is_mine(&self, frame: &Frame) -> bool {
        self.all[self.me].contains(&frame.chunk().addr().get())
    }

    /// The way to where the chunk at this address is at home. None when nobody is there any more: then it counts as having come home.
    fn way(&mut self, at: usize) -> Option<&mut Producer<Frame>> {
        let home = self.all.iter().position(|range| range.contains(&at)).expect("a frame of no pool that was joined");
        // to ourselves there is no way, and nothing is sent there
        let way = self.out[home].as_mut().expect("a way to every other pool");
        if way.is_abandoned() {
            // as when its pool had it in the end
            self.arenas[home].came_home(1);
            return None;
        }
        Some(way)
    }
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
        Pool { arena, free, homes: None }
    }

    /// Joins pools, of one arena or of several, that have all their frames: from now on each frame goes home to the pool that has
    /// it now, whichever it is given to. One pool alone stays as it is.
    ///
    /// # Panics
    /// When the frames of a pool are not neighbours in memory.
    #[must_use]
    pub fn join(mut pools: Vec<Pool>) -> Vec<Pool> {
        if pools.len() < 2 {
            return pools;
        }
        let all: Arc<[Range<usize>]> = pools.iter().map(Pool::span).collect();
        let arenas: Arc<[Arc<Arena>]> = pools.iter().map(|pool| pool.arena.clone()).collect();
        let home = |me| Homes { all: all.clone(), arenas: arenas.clone(), me, out: Vec::new(), into: Vec::new() };
        let mut homes: Vec<Homes> = (0..pools.len()).map(home).collect();
        for from in 0..pools.len() {
            for to in 0..pools.len() {
                let way = (from != to).then(|| ring(pools[to].len().next_power_of_two()));
                let (out, into) = way.unzip();
                homes[from].out.push(out);
                homes[to].into.extend(into);
            }
        }
        pools.iter_mut().zip(homes).for_each(|(pool, homes)| pool.homes = Some(homes));
        pools
    }

    /// Where its chunks lie.
    fn span(&self) -> Range<usize> {
        let chunk_bytes = usize::from(self.arena.chunk_bytes());
        let starts = || self.free.iter().map(|frame| frame.chunk().addr().get());
        let start = starts().min().unwrap_or(0);
        let end = starts().max().map_or(0, |last| last + chunk_bytes);
        assert_eq!(end - start, self.free.len() * chunk_bytes, "a pool whose frames are not neighbours");
        start..end
    }

    /// The arena that the frames belong to.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// A free frame, empty, or None when all are in use.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.bring_home();
        }
        self.free.pop()
    }

    /// Takes a frame home, or sends it there.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        match &mut self.homes {
            Some(homes) if !homes.is_mine(&frame) => {
                if let Some(way) = homes.way(frame.chunk().addr().get()) {
                    way.push(emptied(frame)).expect("the ring has room for every frame of its pool");
                }
            }
            _ => {
                debug_assert!(self.arena.holds(&frame), "a frame of another arena");
                self.free.push(emptied(frame));
            }
        }
    }

    /// Takes what other pools have sent home. Once a cycle is enough, and when frames run short.
    #[inline]
    pub fn bring_home(&mut self) {
        let Some(homes) = &mut self.homes else { return };
        for way in &mut homes.into {
            while let Some(frame) = way.pop() {
                self.free.push(frame);
            }
        }
    }

    /// Whether a frame that is given here stays; else it is another's that this pool is joined with.
    #[inline]
    pub fn is_home_of(&self, frame: &Frame) -> bool {
        self.homes.as_ref().is_none_or(|homes| homes.is_mine(frame))
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

/// A frame as it lies in a pool.
#[inline(always)]
fn emptied(mut frame: Frame) -> Frame {
    frame.set_window(usize::from(HEADROOM_BYTES), 0);
    frame
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.bring_home();
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

    #[test]
    fn a_frame_finds_the_pool_that_it_came_from() {
        let (arena, mut frames) = Arena::new(6, 2048).unwrap();
        let rest = frames.split_off(4);
        let (other_arena, others) = Arena::new(3, 4096).unwrap();
        let pools = [(arena.clone(), frames), (arena, rest), (other_arena, others)];
        let mut pools = Pool::join(pools.map(|(arena, frames)| Pool::new(arena, frames)).into());
        let sizes: Vec<usize> = pools.iter().map(Pool::len).collect();
        assert_eq!(sizes, [4, 2, 3]);
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (0, 0)] {
            for _ in 0..20 {
                let mut frame = pools[from].take().unwrap();
                assert!(frame.fill(b"away"));
                assert_eq!(pools[to].is_home_of(&frame), from == to);
                pools[to].give(frame);
            }
            pools.iter_mut().for_each(Pool::bring_home);
            assert!(pools.iter().map(Pool::len).eq(sizes.iter().copied()), "from {from} to {to}");
        }
        // and is found there when all others are in use
        let away = pools[0].take().unwrap();
        let taken: Vec<Frame> = std::iter::from_fn(|| pools[0].take()).collect();
        pools[2].give(away);
        assert!(pools[0].is_empty() && pools[0].take().is_some_and(|frame| frame.is_empty()));
        taken.into_iter().for_each(|frame| pools[1].give(frame));
    }

    #[test]
    #[should_panic(expected = "not neighbours")]
    fn frames_here_and_there_have_no_home() {
        let (arena, frames) = Arena::new(4, 2048).unwrap();
        let (even, odd): (Vec<_>, Vec<_>) = frames.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
        let pool = |frames: Vec<(usize, Frame)>| {
            Pool::new(arena.clone(), frames.into_iter().map(|(_, frame)| frame).collect())
        };
        let _ = Pool::join(vec![pool(even), pool(odd)]);
    }
}
