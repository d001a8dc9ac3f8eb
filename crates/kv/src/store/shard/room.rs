//! Room for what is to be stored: cells, chunks and places in the index, for which others may have to go.

use super::{NoMemory, Shard};
use crate::store::index::NONE;
use crate::store::item::{self, FETCHED, LARGE, LINKED};
use crate::store::memory::{LOOKS, Memory, Use};
use arrayvec::ArrayVec;
use std::ops::Range;

/// What is tried to get memory, at most, before there is none.
const TRIES: usize = 64;
/// Whoever was asked for last may have to give a page up.
const ANYBODY: u32 = u32::MAX;
/// Pages that are looked at where many would be in vain: whether one is held takes a while to see.
const FEW_LOOKS: usize = 4;
/// A page goes to another size when what is oldest there was not asked for so much longer.
const AGE_FACTOR: u32 = 2;
const AGE_LEAST_S: u32 = 10;

/// One store's search for memory. It looks far until that was in vain: what engines hold they may hold for long, and what goes from then on
/// to make room is found at the first look.
pub(super) struct Search {
    now: u32,
    /// pages of chunks that are looked at for one that nobody holds
    chunk_looks: usize,
    /// idle pages that are looked at before a page is taken from another size
    idle_looks: usize,
    /// no other size has a page that can be taken: what is in the way stays, since nobody else has the lock
    in_vain: bool,
}

impl Search {
    pub(super) fn new(now: u32) -> Search {
        Search { now, chunk_looks: LOOKS, idle_looks: LOOKS, in_vain: false }
    }
}

impl Shard {
    /// A cell, for which others may have to go.
    pub(super) fn take_cell(&mut self, class: usize, search: &mut Search) -> Result<u32, NoMemory> {
        for _ in 0..TRIES {
            if let Some(place) = self.memory.take_cell(class) {
                return Ok(place);
            }
            let found = self.memory.add_cells(class)
                || self.free_idle(FEW_LOOKS)
                || self.evict(class, search)
                || self.steal(class, search)
                || self.evict(self.large_queue(), search);
            if !found {
                break;
            }
        }
        self.figures.no_memory.add(1);
        Err(NoMemory)
    }

    /// Chunks for an item; false when there are not so many. What was taken is the item's already.
    pub(super) fn take_chunks(&mut self, place: u32, count: usize, search: &mut Search) -> bool {
        let mut last = NONE;
        for _ in 0..count {
            let Some(chunk) = self.take_chunk(place, search) else {
                self.figures.no_memory.add(1);
                return false;
            };
            if last == NONE {
                item::set_chunk(self.memory.cell_mut(place), chunk);
            } else {
                self.memory.set_next(last, chunk);
            }
            last = chunk;
        }
        true
    }

    fn take_chunk(&mut self, place: u32, search: &mut Search) -> Option<u32> {
        let large = self.large_queue();
        for _ in 0..TRIES {
            if let Some(chunk) = self.memory.take_chunk(place, search.chunk_looks) {
                return Some(chunk);
            }
            search.chunk_looks = FEW_LOOKS;
            let has = self.memory.add_chunks() || self.free_idle(FEW_LOOKS);
            if !(has || self.evict(large, search) || self.steal(large, search)) {
                break;
            }
        }
        None
    }

    /// Frees a page of another size of which nothing is used, looking at so many: nobody has to go as long as there is one.
    fn free_idle(&mut self, looks: usize) -> bool {
        let Some(page) = self.memory.idle_page(looks) else { return false };
        self.memory.free_page(page);
        true
    }

    /// Evicts the next of a queue; false when it is empty. Now and then gives the queue a page of one whose items are older.
    fn evict(&mut self, queue: usize, search: &mut Search) -> bool {
        let now = search.now;
        self.evicted[queue] += 1;
        if self.evicted[queue] as usize >= self.memory.cells_a_page(queue) {
            self.evicted[queue] = 0;
            if let Some((read, _)) = self.queues.oldest(&self.memory, queue) {
                let own = now.saturating_sub(read);
                let older = now.checked_sub((AGE_FACTOR * own).max(own + AGE_LEAST_S));
                if older.is_some_and(|until| self.take_page(queue, until, now)) {
                    return true;
                }
            }
        }
        let Some(place) = self.queues.next(&mut self.memory, queue) else { return false };
        self.count_eviction(place, now);
        self.remove(place);
        true
    }

    fn count_eviction(&mut self, place: u32, now: u32) {
        let view = self.view(place);
        if self.is_dead(view, now) {
            return self.count_dead(view, now);
        }
        self.figures.evictions.add(1);
        if !view.is(FETCHED) {
            self.figures.evicted_unfetched.add(1);
        }
    }

    /// Of the other queues than this one that come behind `last`, by when their oldest items were asked for, the first; and when that was.
    fn next_oldest(&self, queue: usize, last: Option<(u32, usize)>) -> Option<(u32, usize)> {
        let others = (0..=self.large_queue()).filter(|other| *other != queue && self.memory.pages_of(*other) > 0);
        let aged = others.filter_map(|other| Some((self.queues.oldest(&self.memory, other)?.0, other)));
        aged.filter(|at| Some(*at) > last).min()
    }

    /// Gives a queue's size a page, whoever has to go; false when none can be had.
    fn steal(&mut self, queue: usize, search: &mut Search) -> bool {
        if self.free_idle(search.idle_looks) {
            return true;
        }
        search.idle_looks = FEW_LOOKS;
        search.in_vain = search.in_vain || !self.take_page(queue, ANYBODY, search.now);
        !search.in_vain
    }

    /// Takes a page from another size, with what stands in it: from the one whose oldest item was asked for the longest ago, and where its pages
    /// have to stay from the next, as long as that was no later than `until`.
    fn take_page(&mut self, queue: usize, until: u32, now: u32) -> bool {
        // of all sizes together each page is looked at once, beside those of the oldest items, and so many are tried
        let (mut pages, mut tries) = (0..self.memory.pages().0 as u32, TRIES);
        let mut last = None;
        while let Some((read, from)) = self.next_oldest(queue, last).filter(|(read, _)| *read <= until) {
            if self.take_page_of(from, &mut pages, &mut tries, now) {
                return true;
            }
            last = Some((read, from));
        }
        false
    }

    /// The same from this size: the page of its oldest item, or another, which are looked for among `pages`.
    fn take_page_of(&mut self, from: usize, pages: &mut Range<u32>, tries: &mut usize, now: u32) -> bool {
        let Some((_, place)) = self.queues.oldest(&self.memory, from) else { return false };
        let first = match self.view(place).is(LARGE) {
            true => Memory::page_of_chunk(self.view(place).chunk()),
            false => Memory::page_of(place),
        };
        // what is being filled, or is on its way, keeps a page; so others are tried as well
        self.empty(first, now) || {
            // all that there are beside it, for which the rest need not be looked at
            let count = (self.memory.pages_of(from) as usize - 1).min(*tries);
            let is_such = |page: &u32| *page != first && self.memory.use_of(*page).0 == self.use_by(from);
            let others: ArrayVec<u32, TRIES> = pages.filter(is_such).take(count).collect();
            *tries -= others.len();
            others.into_iter().any(|page| self.empty(page, now))
        }
    }

    fn use_by(&self, queue: usize) -> Use {
        if queue == self.large_queue() { Use::Chunks } else { Use::Cells(queue) }
    }

    /// Evicts what stands in a page and frees it; false when something has to stay.
    fn empty(&mut self, page: u32, now: u32) -> bool {
        let mut places = std::mem::take(&mut self.places);
        self.memory.items_of(page, &mut places);
        let free = !self.memory.is_held(page) && places.iter().all(|place| self.view(*place).is(LINKED));
        if free {
            for place in &places {
                // an item may have several chunks here
                if self.view(*place).is(LINKED) {
                    self.count_eviction(*place, now);
                    self.remove(*place);
                }
            }
            self.memory.free_page(page);
            self.figures.pages_moved.add(1);
        }
        self.places = places;
        free
    }

    /// Makes room for a hash in an index that is full of small items. Only what stands in the same buckets makes any there: of these the dead
    /// go first, then what was asked for longest ago. They are some twenty, so this comes near to the least recently used of all.
    #[cold]
    pub(super) fn evict_for_index(&mut self, hash: u64, now: u32) -> bool {
        let turn = |place: &u32| {
            let view = self.view(*place);
            (!self.is_dead(view, now), view.read(), view.cas())
        };
        let Some(place) = self.index.beside(hash).min_by_key(turn) else { return false };
        self.count_eviction(place, now);
        self.remove(place);
        true
    }
}
