//! One shard: items found by key, stored, evicted, swept. Everything here is done under the shard's lock, and takes a bounded time: for large
//! values one that grows with their length, since their chunks are taken, given back and, for append and prepend, copied in one hold, and a number
//! among them is read and written anew.

use super::figures::Figures;
use super::index::{Index, NONE};
use super::item::{self, BINARY, FETCHED, HEADER_BYTES, LARGE, LINKED, STALE, USED, View, WON};
#[cfg(test)]
use super::memory::Use;
use super::memory::{CELL_MOST_BYTES, CHUNK_BYTES, Memory, PAGE_BYTES};
use super::queues::Queues;
use room::Search;
use std::sync::Arc;

mod room;

/// An item that was asked for is hottest at this.
const HEAT_MOST: u8 = 3;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// What is to be stored, apart from the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) mode: Mode,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expiry: u32,
    /// the one that must be there; 0 is any
    pub(crate) cas: u64,
    /// an older one will do, and leaves the item out of date
    pub(crate) invalidate: bool,
    /// the key came in base64
    pub(crate) binary: bool,
}

/// The value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// these bytes
    Bytes(&'a [u8]),
    /// an item that was made and filled
    Built(u32),
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// with this number
    Stored(u64),
    Exists,
    NotFound,
    NotStored,
    NoMemory,
}

/// Where in an item's value the next bytes go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// of a large value
    chunk: u32,
    /// in the chunk, or in a small value
    at: u32,
}

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// See the module.
pub(crate) struct Shard {
    index: Index,
    memory: Memory,
    queues: Queues,
    /// the number given last
    cas: u64,
    /// what is older is gone
    flushed: u64,
    /// when everything will be; 0 is never
    flush_at: u32,
    swept: usize,
    /// evictions of each queue since it was last compared with the others
    evicted: Vec<u32>,
    places: Vec<u32>,
    copied: Vec<u8>,
    /// how often it was made anew: places of the one before mean nothing
    generation: u32,
    /// bytes of the largest item, as they are counted
    item_bytes: u64,
    figures: Arc<Figures>,
}

impl Shard {
    pub(crate) fn new(bytes: u64, item_bytes: u64, figures: Arc<Figures>) -> Shard {
        let memory = Memory::new((bytes / PAGE_BYTES as u64) as usize);
        let queues = memory.classes().len() + 1;
        let index = Index::new(bytes);
        let ghosts = (index.buckets() * 4).max(64);
        Shard {
            queues: Queues::new(queues, ghosts),
            evicted: vec![0; queues],
            cas: 0,
            flushed: 0,
            flush_at: 0,
            generation: 0,
            item_bytes,
            swept: 0,
            places: Vec::with_capacity(PAGE_BYTES / 64),
            copied: Vec::with_capacity(CHUNK_BYTES),
            index,
            memory,
            figures,
        }
    }

    fn large_queue(&self) -> usize {
        self.memory.classes().len()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    pub(crate) fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Where the index stands, see [`super::index::foresee`].
    pub(crate) fn outline(&self) -> (usize, usize) {
        self.index.outline()
    }

    /// Asks for the items that a hash most likely stands for, when the index's bucket has come.
    #[inline]
    pub(crate) fn foresee(&self, hash: u64) {
        self.index.likely(hash).for_each(|place| self.memory.foresee(place));
    }

    /// An item.
    #[inline]
    pub(crate) fn view(&self, place: u32) -> View<'_> {
        View(self.memory.cell(place))
    }

    /// An item's cell, to change its expiry and marks.
    pub(crate) fn cell_mut(&mut self, place: u32) -> &mut [u8] {
        self.memory.cell_mut(place)
    }

    fn is_dead(&self, view: View<'_>, now: u32) -> bool {
        (view.expiry() != 0 && view.expiry() <= now) || view.cas() < self.flushed
    }

    /// The live item of a key. What is dead is removed.
    #[inline]
    pub(crate) fn find(&mut self, hash: u64, key: &[u8], now: u32) -> Option<u32> {
        if self.flush_at != 0 && now >= self.flush_at {
            self.flush();
        }
        let memory = &self.memory;
        // a part of the hash is the same already, and the key decides
        let is = |place: u32| View(memory.cell(place)).key() == key;
        let place = self.index.find(hash, is)?;
        if self.is_dead(self.view(place), now) {
            self.remove_dead(place, now);
            return None;
        }
        Some(place)
    }

    #[cold]
    fn remove_dead(&mut self, place: u32, now: u32) {
        self.count_dead(self.view(place), now);
        self.remove(place);
    }

    fn count_dead(&self, view: View<'_>, now: u32) {
        let expired = view.expiry() != 0 && view.expiry() <= now;
        let counter = if expired { &self.figures.expired } else { &self.figures.flushed };
        counter.add(1);
    }

    /// Notes that an item was asked for.
    #[inline]
    pub(crate) fn bump(&mut self, place: u32, now: u32) {
        let cell = self.memory.cell_mut(place);
        let view = View(cell);
        let (heat, state, read) = (view.heat(), view.state(), view.read());
        if heat < HEAT_MOST {
            item::set_heat(cell, heat + 1);
        }
        if state & FETCHED == 0 {
            item::set_state(cell, state | FETCHED);
        }
        if read != now {
            item::set_read(cell, now);
        }
    }

    /// Notes that an item was worked on by who did not see its value: that is no less a use, but no fetch.
    pub(crate) fn note_use(&mut self, place: u32, now: u32) {
        let cell = self.memory.cell_mut(place);
        let heat = View(cell).heat();
        item::set_heat(cell, (heat + 1).min(HEAT_MOST));
        item::set_read(cell, now);
    }

    /// How often it was made anew.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// An empty one in its place, with the same numbers for stores, and a flush that was put off.
    pub(crate) fn renewed(&self, bytes: u64, figures: Arc<Figures>) -> Shard {
        let Shard { cas, flush_at, item_bytes, .. } = *self;
        let generation = self.generation.wrapping_add(1);
        Shard { cas, flush_at, generation, ..Shard::new(bytes, item_bytes, figures) }
    }

    /// A new number for a store.
    fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    /// Gives an item a new number; it.
    pub(crate) fn renumber(&mut self, place: u32) -> u64 {
        let cas = self.next_cas();
        item::set_cas(self.memory.cell_mut(place), cas);
        cas
    }

    /// Everything that is stored now is gone.
    pub(crate) fn flush(&mut self) {
        self.flush_at = 0;
        self.flushed = self.next_cas();
    }

    /// Everything that is stored then will be gone.
    pub(crate) fn flush_at(&mut self, at: u32) {
        self.flush_at = at;
    }

    /// Makes an item that is not in the store yet, with room for its value.
    pub(crate) fn build(&mut self, order: &Order<'_>, bytes: usize, now: u32) -> Result<u32, NoMemory> {
        let whole = HEADER_BYTES + order.key.len() + bytes;
        let large = whole > CELL_MOST_BYTES;
        let in_cell = if large { HEADER_BYTES + order.key.len() } else { whole };
        let class = self.memory.class(in_cell).ok_or(NoMemory)?;
        let mut search = Search::new(now);
        let place = self.take_cell(class, &mut search)?;
        let queue = if large { self.large_queue() } else { class };
        let cell = self.memory.cell_mut(place);
        cell[..HEADER_BYTES].fill(0);
        item::set_bytes(cell, bytes as u32);
        item::set_flags(cell, order.flags);
        item::set_expiry(cell, order.expiry);
        item::set_hash(cell, order.hash);
        item::set_key_bytes(cell, order.key.len() as u8);
        item::set_read(cell, now);
        item::set_queue(cell, queue as u8);
        item::set_chunk(cell, NONE);
        let binary = if order.binary { BINARY } else { 0 };
        item::set_state(cell, USED | binary | if large { LARGE } else { 0 });
        cell[HEADER_BYTES..HEADER_BYTES + order.key.len()].copy_from_slice(order.key);
        if large && !self.take_chunks(place, bytes.div_ceil(CHUNK_BYTES), &mut search) {
            self.discard(place);
            return Err(NoMemory);
        }
        Ok(place)
    }

    /// Takes an item out of the store.
    pub(crate) fn remove(&mut self, place: u32) {
        let view = self.view(place);
        let (hash, bytes) = (view.hash(), view.size());
        let known = self.index.remove(hash, place);
        debug_assert!(known, "what is linked is in the index");
        self.queues.remove(&mut self.memory, place);
        self.figures.items.set(self.figures.items.get() - 1);
        self.figures.bytes.set(self.figures.bytes.get() - bytes);
        self.discard(place);
    }

    /// Gives the memory back of an item that is not, or no more, in the store.
    pub(crate) fn discard(&mut self, place: u32) {
        let mut chunk = if self.view(place).is(LARGE) { self.view(place).chunk() } else { NONE };
        while chunk != NONE {
            chunk = self.memory.give_chunk(chunk);
        }
        self.memory.give_cell(place);
    }

    /// Puts an item that was built into the store, in place of another of the same key.
    fn link(&mut self, place: u32, old: Option<u32>, now: u32) -> Outcome {
        let hash = self.view(place).hash();
        let linked = match old {
            Some(old) => {
                let bytes = self.view(old).size();
                self.index.replace(hash, old, place);
                self.queues.remove(&mut self.memory, old);
                self.figures.items.set(self.figures.items.get() - 1);
                self.figures.bytes.set(self.figures.bytes.get() - bytes);
                self.discard(old);
                true
            }
            None => self.index.add(hash, place) || (self.evict_for_index(hash, now) && self.index.add(hash, place)),
        };
        if !linked {
            self.figures.no_memory.add(1);
            self.discard(place);
            return Outcome::NoMemory;
        }
        let cell = self.memory.cell_mut(place);
        // a large one may have been long in coming
        item::set_read(cell, now);
        item::mark(cell, LINKED, true);
        self.queues.add(&mut self.memory, place);
        self.figures.items.add(1);
        self.figures.stored.add(1);
        self.figures.bytes.add(self.view(place).size());
        Outcome::Stored(self.renumber(place))
    }

    /// Stores a value as `order` says.
    pub(crate) fn store(&mut self, order: &Order<'_>, value: Source<'_>, now: u32) -> Outcome {
        let old = self.find(order.hash, order.key, now);
        let (stays_stale, verdict) = self.judge(order, old);
        if let (Mode::Add, Some(old)) = (order.mode, old) {
            self.note_use(old, now);
        }
        let result = match verdict {
            Some(refused) => refused,
            None => match (order.mode, old) {
                (Mode::Append | Mode::Prepend, Some(old)) => self.join(order, old, value, now),
                _ => return self.put(order, old, value, stays_stale, now),
            },
        };
        if let Source::Built(place) = value {
            self.discard(place);
        }
        result
    }

    /// Whether the store is refused; and, if an older number will do, the marks that the item keeps.
    fn judge(&mut self, order: &Order<'_>, old: Option<u32>) -> (Option<(u8, u32)>, Option<Outcome>) {
        let Some(old) = old else {
            let refused = match order.mode {
                Mode::Set | Mode::Add => None,
                Mode::Cas => Some(Outcome::NotFound),
                Mode::Replace | Mode::Append | Mode::Prepend => Some(Outcome::NotStored),
            };
            return (None, refused);
        };
        let view = self.view(old);
        let matches = order.cas == view.cas() && order.cas != 0;
        match order.mode {
            Mode::Add => (None, Some(Outcome::NotStored)),
            Mode::Cas if matches => (None, None),
            Mode::Cas if order.invalidate && order.cas != 0 && order.cas < view.cas() => {
                (Some((STALE | view.state() & WON, view.expiry())), None)
            }
            Mode::Cas => (None, Some(Outcome::Exists)),
            Mode::Append | Mode::Prepend if order.cas != 0 && !matches => (None, Some(Outcome::Exists)),
            _ => (None, None),
        }
    }

    /// Puts a value in place of what is there.
    fn put(
        &mut self,
        order: &Order<'_>,
        old: Option<u32>,
        value: Source<'_>,
        stale: Option<(u8, u32)>,
        now: u32,
    ) -> Outcome {
        let place = match value {
            Source::Built(place) => place,
            Source::Bytes(bytes) => {
                if let Some(old) = old.filter(|_| stale.is_none())
                    && self.fits(old, bytes.len())
                {
                    return self.overwrite(order, old, bytes, now);
                }
                let Ok(place) = self.build(order, bytes.len(), now) else { return Outcome::NoMemory };
                let mut cursor = self.start(place);
                self.write(place, &mut cursor, bytes);
                place
            }
        };
        if let Some((marks, expiry)) = stale {
            let cell = self.memory.cell_mut(place);
            item::mark(cell, marks, true);
            item::set_expiry(cell, expiry);
        }
        // what had to go for the new one may have been the old one
        let old = old.and_then(|_| self.find(order.hash, order.key, now));
        self.link(place, old, now)
    }

    /// Whether a value would get just such a cell as the item has.
    fn fits(&self, place: u32, bytes: usize) -> bool {
        let view = self.view(place);
        let whole = HEADER_BYTES + usize::from(view.key_bytes()) + bytes;
        !view.is(LARGE) && self.memory.class(whole) == Some(usize::from(view.queue()))
    }

    /// Writes a value over the one before, which no one holds: small values leave as copies.
    fn overwrite(&mut self, order: &Order<'_>, place: u32, bytes: &[u8], now: u32) -> Outcome {
        let before = self.view(place).size();
        self.note_use(place, now);
        let cell = self.memory.cell_mut(place);
        item::set_bytes(cell, bytes.len() as u32);
        item::set_flags(cell, order.flags);
        item::set_expiry(cell, order.expiry);
        item::mark(cell, FETCHED | STALE | WON | BINARY, false);
        item::mark(cell, BINARY, order.binary);
        item::value_mut(cell).copy_from_slice(bytes);
        let after = View(cell).size();
        self.figures.bytes.set(self.figures.bytes.get() + after - before);
        self.figures.stored.add(1);
        Outcome::Stored(self.renumber(place))
    }

    /// Where the value of an item that is to be filled begins.
    pub(crate) fn start(&self, place: u32) -> Cursor {
        Cursor { chunk: self.view(place).chunk(), at: 0 }
    }

    /// Writes the next part of a value that is being filled.
    pub(crate) fn write(&mut self, place: u32, cursor: &mut Cursor, mut bytes: &[u8]) {
        if !self.view(place).is(LARGE) {
            let at = cursor.at as usize;
            item::value_mut(self.memory.cell_mut(place))[at..at + bytes.len()].copy_from_slice(bytes);
            cursor.at += bytes.len() as u32;
            return;
        }
        while !bytes.is_empty() {
            if cursor.at as usize == CHUNK_BYTES {
                *cursor = Cursor { chunk: self.memory.next(cursor.chunk), at: 0 };
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - cursor.at as usize));
            self.memory.write_chunk(cursor.chunk, cursor.at as usize, now);
            cursor.at += now.len() as u32;
            bytes = later;
        }
    }

    /// Writes a whole value: a text, and spaces behind it.
    pub(crate) fn write_padded(&mut self, place: u32, text: &[u8]) {
        static SPACES: [u8; CHUNK_BYTES] = [b' '; CHUNK_BYTES];
        let mut left = self.view(place).bytes() as usize - text.len();
        let mut cursor = self.start(place);
        self.write(place, &mut cursor, text);
        while left > 0 {
            let part = left.min(CHUNK_BYTES);
            self.write(place, &mut cursor, &SPACES[..part]);
            left -= part;
        }
    }

    /// Whether an engine holds something of a value, which it does of large ones alone.
    pub(crate) fn is_held(&self, place: u32) -> bool {
        let content = |(chunk, _)| self.memory.content(chunk);
        self.chunks(place).filter_map(content).any(|content| Arc::strong_count(content) > 1)
    }

    /// The chunks of an item with the bytes that each has of its value; none when the value is small.
    pub(crate) fn chunks(&self, place: u32) -> impl Iterator<Item = (u32, usize)> + Clone {
        let view = self.view(place);
        let mut chunk = if view.is(LARGE) { view.chunk() } else { NONE };
        let mut left = view.bytes() as usize;
        std::iter::from_fn(move || {
            let this = (chunk != NONE).then_some(chunk)?;
            let bytes = left.min(CHUNK_BYTES);
            left -= bytes;
            chunk = self.memory.next(this);
            Some((this, bytes))
        })
    }

    /// Stores what was there with something before or behind it.
    fn join(&mut self, order: &Order<'_>, old: u32, value: Source<'_>, now: u32) -> Outcome {
        let added = match value {
            Source::Bytes(bytes) => bytes.len(),
            Source::Built(place) => self.view(place).bytes() as usize,
        };
        let view = self.view(old);
        let (kept, binary) = (view.bytes() as usize, view.is(BINARY));
        let order = Order { flags: view.flags(), expiry: view.expiry(), binary, ..*order };
        if super::counted_bytes(order.key.len(), order.flags, kept + added) > self.item_bytes {
            return Outcome::NotStored;
        }
        let Ok(place) = self.build(&order, kept + added, now) else { return Outcome::NotStored };
        // the old one may have had to go for it
        let Some(old) = self.find(order.hash, order.key, now) else {
            self.discard(place);
            return Outcome::NotStored;
        };
        let mut cursor = self.start(place);
        if order.mode == Mode::Append {
            self.copy(old, place, &mut cursor);
        }
        match value {
            Source::Bytes(bytes) => self.write(place, &mut cursor, bytes),
            Source::Built(from) => self.copy(from, place, &mut cursor),
        }
        if order.mode == Mode::Prepend {
            self.copy(old, place, &mut cursor);
        }
        self.link(place, Some(old), now)
    }

    /// Copies an item's value into that of another, from there on.
    fn copy(&mut self, from: u32, to: u32, cursor: &mut Cursor) {
        let mut copied = std::mem::take(&mut self.copied);
        let view = self.view(from);
        let (mut chunk, mut left) = (NONE, 0);
        if view.is(LARGE) {
            (chunk, left) = (view.chunk(), view.bytes() as usize);
        } else {
            copied.clear();
            copied.extend_from_slice(view.value());
            self.write(to, cursor, &copied);
        }
        while chunk != NONE && left > 0 {
            let bytes = left.min(CHUNK_BYTES);
            copied.clear();
            copied.extend_from_slice(&self.memory.chunk_bytes(chunk)[..bytes]);
            self.write(to, cursor, &copied);
            left -= bytes;
            chunk = self.memory.next(chunk);
        }
        self.copied = copied;
    }

    /// Whether everything agrees with everything else: the index, the queues, the memory and the figures.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.memory.check();
        let mut places: Vec<u32> = (0..self.index.buckets()).flat_map(|bucket| self.index.places(bucket)).collect();
        places.sort_unstable();
        assert_eq!(places.len() as u64, self.figures.items.get());
        assert_eq!(places.len(), self.index.entries());
        let bytes: u64 = places.iter().map(|place| self.view(*place).size()).sum();
        assert_eq!(bytes, self.figures.bytes.get());
        let queued: u32 = (0..=self.large_queue()).flat_map(|queue| self.queues.lengths(queue)).sum();
        assert_eq!(queued as usize, places.len());
        let mut found = Vec::new();
        let mut chunks = 0;
        for page in 0..self.memory.pages().0 as u32 {
            let mut items = Vec::new();
            self.memory.items_of(page, &mut items);
            match self.memory.use_of(page).0 {
                Use::Cells(_) => found.extend(items.into_iter().filter(|place| self.view(*place).is(LINKED))),
                Use::Chunks => chunks += items.len(),
                Use::Free => assert!(items.is_empty()),
            }
        }
        found.sort_unstable();
        assert_eq!(found, places, "cells in use");
        let of_items: usize = places.iter().map(|place| self.chunks(*place).count()).sum();
        assert_eq!(of_items, chunks, "chunks in use");
        for place in places {
            let (view, queue) = (self.view(place), usize::from(self.view(place).queue()));
            assert!(view.is(LINKED | USED) && view.is(LARGE) == (queue == self.large_queue()));
            let sum: usize = self.chunks(place).map(|(_, bytes)| bytes).sum();
            assert_eq!(sum, if view.is(LARGE) { view.bytes() as usize } else { 0 });
        }
    }

    /// Looks through so many buckets for what has died, where it left off last.
    pub(crate) fn sweep(&mut self, now: u32, buckets: usize) {
        if self.flush_at != 0 && now >= self.flush_at {
            self.flush();
        }
        let mut places = std::mem::take(&mut self.places);
        for _ in 0..buckets.min(self.index.buckets()) {
            self.swept = (self.swept + 1) % self.index.buckets();
            places.clear();
            places.extend(self.index.places(self.swept).take(places.capacity()));
            for place in &places {
                if self.is_dead(self.view(*place), now) {
                    self.remove_dead(*place, now);
                }
            }
        }
        self.places = places;
    }
}

impl View<'_> {
    /// Bytes of an item, as they are counted.
    pub(crate) fn size(self) -> u64 {
        (HEADER_BYTES + usize::from(self.key_bytes())) as u64 + u64::from(self.bytes())
    }
}
