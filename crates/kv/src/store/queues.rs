//! Whose turn it is to be evicted: S3-FIFO (Yang and others, SOSP 2023), a pair of queues for each size of cells and one for large
//! values.
//!
//! What is new goes into the small queue, about a tenth of all; what was asked for twice before it reached the end goes on into the
//! main queue, the rest leaves and is remembered as a ghost. A ghost that comes back goes into the main queue at once. There, what was asked
//! for goes round again, once for each time up to three. So a scan of what nobody asks for again passes through a tenth of the memory, and a
//! hit changes one octet of the item. Items are linked by their headers ([`super::item`]).

use super::index::NONE;
use super::item::{self, MAIN, View};
use super::memory::Memory;

/// The small queue is one in so many.
const SMALL_PART: u32 = 10;
/// Steps of one eviction, after which the next goes whether it was asked for or not.
const STEPS: usize = 64;
/// Asked for so often, an item goes from the small queue to the main one.
const PROVED: u8 = 2;

#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

const EMPTY: List = List { newest: NONE, oldest: NONE, len: 0 };

/// The queues of a shard.
pub(crate) struct Queues {
    /// small and main, of each
    lists: Vec<[List; 2]>,
    /// half of a hash at the place of the other half
    ghosts: Vec<u32>,
}

impl Queues {
    /// So many pairs, and room for so many ghosts, a power of two.
    pub(crate) fn new(queues: usize, ghosts: usize) -> Queues {
        Queues { lists: vec![[EMPTY; 2]; queues], ghosts: vec![0; ghosts.next_power_of_two()] }
    }

    fn ghost(&self, hash: u64) -> (usize, u32) {
        // not the bits that choose the shard, which are the same for all that comes here
        let at = hash >> (u64::BITS - self.ghosts.len().trailing_zeros());
        (at as usize, hash as u32 | 1)
    }

    /// Puts an item in, whose header says in which queue.
    pub(crate) fn add(&mut self, memory: &mut Memory, place: u32) {
        let view = View(memory.cell(place));
        let (at, print) = self.ghost(view.hash());
        let came_back = self.ghosts[at] == print;
        if came_back {
            self.ghosts[at] = 0;
        }
        item::set_heat(memory.cell_mut(place), 0);
        self.link(memory, place, came_back);
    }

    fn link(&mut self, memory: &mut Memory, place: u32, main: bool) {
        let cell = memory.cell_mut(place);
        let list = &mut self.lists[usize::from(View(cell).queue())][usize::from(main)];
        item::mark(cell, MAIN, main);
        item::set_newer(cell, NONE);
        item::set_older(cell, list.newest);
        let before = std::mem::replace(&mut list.newest, place);
        list.len += 1;
        if before == NONE {
            list.oldest = place;
        } else {
            item::set_newer(memory.cell_mut(before), place);
        }
    }

    /// Takes an item out.
    pub(crate) fn remove(&mut self, memory: &mut Memory, place: u32) {
        let view = View(memory.cell(place));
        let (newer, older) = (view.newer(), view.older());
        let list = &mut self.lists[usize::from(view.queue())][usize::from(view.is(MAIN))];
        list.len -= 1;
        if newer == NONE {
            list.newest = older
        } else {
            item::set_older(memory.cell_mut(newer), older)
        }
        if older == NONE { list.oldest = newer } else { item::set_newer(memory.cell_mut(older), newer) }
    }

    /// The item that is to be evicted next of a queue, which stays where it is.
    pub(crate) fn next(&mut self, memory: &mut Memory, queue: usize) -> Option<u32> {
        for step in 0.. {
            let [small, main] = self.lists[queue];
            let of_small = small.len > (small.len + main.len) / SMALL_PART || main.len == 0;
            let place = if of_small { small.oldest } else { main.oldest };
            if place == NONE {
                return None;
            }
            let view = View(memory.cell(place));
            let (heat, hash) = (view.heat(), view.hash());
            let stays = if of_small { heat >= PROVED } else { heat > 0 };
            if !stays || step >= STEPS {
                if of_small {
                    let (at, print) = self.ghost(hash);
                    self.ghosts[at] = print;
                }
                return Some(place);
            }
            self.remove(memory, place);
            item::set_heat(memory.cell_mut(place), if of_small { 0 } else { heat - 1 });
            self.link(memory, place, true);
        }
        None
    }

    /// The second in which the oldest items of a queue were asked for last, and the one that was so first.
    pub(crate) fn oldest(&self, memory: &Memory, queue: usize) -> Option<(u32, u32)> {
        let ends = self.lists[queue].iter().map(|list| list.oldest).filter(|place| *place != NONE);
        ends.map(|place| (View(memory.cell(place)).read(), place)).min()
    }

    /// Items of a queue: small, main.
    pub(crate) fn lengths(&self, queue: usize) -> [u32; 2] {
        self.lists[queue].map(|list| list.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Home, Limits, Store};

    #[test]
    fn the_hashes_of_one_shard_of_many_may_stand_at_every_ghosts_place() {
        let (memory_bytes, item_bytes) = (64 << 20, 64 << 10);
        let store = Store::new(Limits { memory_bytes, item_bytes, threads: 8, secret: [1, 2], shared_nothing: false });
        assert_eq!(store.shards(), 32);
        let queues = Queues::new(1, 512);
        let hashes = (0..1u32 << 18).map(|n| store.hash(&n.to_le_bytes())).filter(|h| store.number(Home::All, *h) == 7);
        let mut places: Vec<usize> = hashes.map(|hash| queues.ghost(hash).0).collect();
        places.sort_unstable();
        places.dedup();
        // sixteen hashes a place, so one in e^16 is missing
        assert_eq!(places.len(), 512);
    }
}
