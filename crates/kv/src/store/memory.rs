//! The memory of a shard: pages of 64 KiB, each of cells of one size or of chunks.
//!
//! Cells hold items, header, key and value together; their sizes grow by a quarter. Chunks hold 4 KiB of a large value each, as content
//! that engines send without copying; a chunk that an engine still holds is not given out again until it is free, so what is on its
//! way never changes. Pages of cells lie in one piece of memory, on huge pages, and are taken from its beginning; pages of chunks are allocated,
//! and are taken off its end, so that what is not written yet takes no memory twice. A page whose items are gone may become one of another kind.
//! Then the kernel gets the memory of its cells back, or the allocator that of its chunks: what is resident is what is used, and what the allocator
//! has not given back ([`crate::Shared::tend`]).

use super::index::NONE;
use super::lists::Lists;
use app::{Content, ContentBuilder, ObjectId};
use std::sync::Arc;

pub(crate) const PAGE_BYTES: usize = 64 << 10;
pub(crate) const CHUNK_BYTES: usize = 4096;
/// Chunks of a page: with what each needs beside its bytes they take a page.
const CHUNKS: usize = 15;
/// A place is where a cell begins, in so many bytes: what an item needs of it is found without asking its page.
const UNIT_BYTES: usize = 8;
const UNITS_A_PAGE: u32 = (PAGE_BYTES / UNIT_BYTES) as u32;
/// What one shard can number.
pub(crate) const MEMORY_MOST_BYTES: u64 = (NONE / UNITS_A_PAGE) as u64 * PAGE_BYTES as u64;
const CELL_LEAST_BYTES: usize = 64;
/// Bytes of the largest cell: what is larger stands in chunks.
pub(crate) const CELL_MOST_BYTES: usize = 2048;
/// Cache lines that are asked for of an item: header, key and a small value, wherever in a line they begin.
const FORESEEN_LINES: usize = 3;
/// Pages that are looked through, at a time, for a chunk or a page that nobody holds.
pub(super) const LOOKS: usize = 64;
const NO_CELL: u16 = u16::MAX;
/// The only list of those that are idle.
const ALL: usize = 0;

const _: () = assert!(CELL_LEAST_BYTES.is_multiple_of(UNIT_BYTES) && CELL_MOST_BYTES.is_multiple_of(UNIT_BYTES));

struct Chunks {
    contents: Vec<Arc<Content>>,
    next: [u32; CHUNKS],
    owner: [u32; CHUNKS],
    /// a bit for each that is free
    free: u16,
}

enum Kind {
    Free,
    Cells(u8),
    Chunks(Box<Chunks>),
}

struct Page {
    kind: Kind,
    cell_bytes: u32,
    /// the first of the cells that were freed, linked by their first two bytes
    freed: u16,
    /// cells that were never used
    fresh: u16,
    used: u16,
}

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// nothing
    Free,
    /// cells of this class
    Cells(usize),
    /// chunks
    Chunks,
}

/// See the module.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    pages: Vec<Page>,
    /// bytes of each class's cells
    classes: Vec<u32>,
    /// the class for so many times eight bytes
    by_size: Vec<u8>,
    /// pages with free cells of each class; behind the last class those with free chunks, of which the last was freed when nobody held it
    open: Lists,
    /// pages of which nothing is used, and that are not free yet, in one list: the last became so when nobody held it
    idle: Lists,
    /// pages of each class; the last is of chunks
    counts: Vec<u32>,
    /// pages from here to `high` were never used
    low: u32,
    high: u32,
    returned: Vec<u32>,
    /// pages of chunks that were freed: the allocator has their memory
    freed_chunks: u64,
    /// times that somebody went from a chunk to the one behind it
    #[cfg(test)]
    pub(super) followed: std::cell::Cell<usize>,
    /// pages that somebody looked at for what nobody holds
    #[cfg(test)]
    pub(super) looked: std::cell::Cell<usize>,
}

fn sizes() -> Vec<u32> {
    let mut sizes = vec![CELL_LEAST_BYTES as u32];
    while let Some(&last) = sizes.last()
        && last < CELL_MOST_BYTES as u32
    {
        sizes.push((last * 5 / 4).next_multiple_of(UNIT_BYTES as u32).min(CELL_MOST_BYTES as u32));
    }
    sizes
}

impl Memory {
    /// So many pages.
    pub(crate) fn new(pages: usize) -> Memory {
        let pages = pages.min((NONE / UNITS_A_PAGE) as usize);
        let classes = sizes();
        let class = |size: usize| classes.iter().position(|&most| size <= most as usize).unwrap_or_default() as u8;
        let empty = || Page { kind: Kind::Free, cell_bytes: 0, freed: NO_CELL, fresh: 0, used: 0 };
        Memory {
            bytes: base::huge::zeroed(pages * PAGE_BYTES),
            by_size: (0..=CELL_MOST_BYTES / 8).map(|eights| class(8 * eights)).collect(),
            open: Lists::new(classes.len() + 1, pages),
            idle: Lists::new(1, pages),
            counts: vec![0; classes.len() + 1],
            pages: (0..pages).map(|_| empty()).collect(),
            low: 0,
            high: pages as u32,
            returned: Vec::with_capacity(pages),
            freed_chunks: 0,
            #[cfg(test)]
            followed: 0.into(),
            #[cfg(test)]
            looked: 0.into(),
            classes,
        }
    }

    /// The class whose cells hold so many bytes; None when none does.
    #[inline]
    pub(crate) fn class(&self, bytes: usize) -> Option<usize> {
        self.by_size.get(bytes.div_ceil(8)).map(|class| usize::from(*class))
    }

    /// Bytes of each class's cells.
    pub(crate) fn classes(&self) -> &[u32] {
        &self.classes
    }

    /// Pages of a class; of chunks at the number behind the last class.
    pub(crate) fn pages_of(&self, class: usize) -> u32 {
        self.counts[class]
    }

    /// Pages of chunks that were ever freed.
    pub(crate) fn freed_chunks(&self) -> u64 {
        self.freed_chunks
    }

    /// Pages in all, and those that are free.
    pub(crate) fn pages(&self) -> (usize, usize) {
        (self.pages.len(), (self.high - self.low) as usize + self.returned.len())
    }

    /// Cells, or chunks, of one page of a class.
    pub(crate) fn cells_a_page(&self, class: usize) -> usize {
        self.classes.get(class).map_or(CHUNKS, |bytes| PAGE_BYTES / *bytes as usize)
    }

    /// The page of a place.
    pub(crate) fn page_of(place: u32) -> u32 {
        place / UNITS_A_PAGE
    }

    /// The page of a chunk.
    pub(crate) fn page_of_chunk(chunk: u32) -> u32 {
        chunk / CHUNKS as u32
    }

    /// From a cell's beginning to its page's end.
    #[inline]
    fn range(place: u32) -> std::ops::Range<usize> {
        let at = place as usize * UNIT_BYTES;
        at..(at | (PAGE_BYTES - 1)) + 1
    }

    /// The cell's place that has this number in its page.
    #[inline]
    fn place(page: u32, cell: u16, cell_bytes: u32) -> u32 {
        page * UNITS_A_PAGE + u32::from(cell) * (cell_bytes / UNIT_BYTES as u32)
    }

    /// A cell, and what its page has behind it: how long it is is known by what stands in it.
    #[inline]
    pub(crate) fn cell(&self, place: u32) -> &[u8] {
        &self.bytes[Memory::range(place)]
    }

    /// A cell, to be written.
    #[inline]
    pub(crate) fn cell_mut(&mut self, place: u32) -> &mut [u8] {
        &mut self.bytes[Memory::range(place)]
    }

    /// Asks for what a small item has in the first lines of its cell.
    #[inline]
    pub(crate) fn foresee(&self, place: u32) {
        let at = self.bytes.as_ptr().wrapping_add(place as usize * UNIT_BYTES);
        (0..FORESEEN_LINES).for_each(|line| base::prefetch::read(at.wrapping_add(line * base::CACHE_LINE_BYTES)));
    }

    /// A cell of this class, if a page of it has one.
    pub(crate) fn take_cell(&mut self, class: usize) -> Option<u32> {
        let number = self.open.last(class)?;
        let page = &mut self.pages[number as usize];
        let cell = if page.freed != NO_CELL {
            let cell = page.freed;
            let at = number as usize * PAGE_BYTES + usize::from(cell) * page.cell_bytes as usize;
            page.freed = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
            cell
        } else {
            page.fresh -= 1;
            ((PAGE_BYTES / page.cell_bytes as usize) as u16) - 1 - page.fresh
        };
        page.used += 1;
        let (cell_bytes, was_idle, is_full) =
            (page.cell_bytes, page.used == 1, page.freed == NO_CELL && page.fresh == 0);
        if was_idle {
            self.idle.remove(ALL, number);
        }
        if is_full {
            self.open.remove(class, number);
        }
        Some(Memory::place(number, cell, cell_bytes))
    }

    /// Takes a cell back.
    pub(crate) fn give_cell(&mut self, place: u32) {
        let number = Memory::page_of(place);
        let page = &mut self.pages[number as usize];
        let Kind::Cells(class) = page.kind else { return };
        let cell = (place % UNITS_A_PAGE * UNIT_BYTES as u32 / page.cell_bytes) as u16;
        let was_full = page.freed == NO_CELL && page.fresh == 0;
        let bytes = &mut self.bytes[Memory::range(place)];
        // nothing of what stood there may look like an item
        bytes[..super::item::HEADER_BYTES].fill(0);
        bytes[..2].copy_from_slice(&page.freed.to_le_bytes());
        page.freed = cell;
        page.used -= 1;
        let is_idle = page.used == 0;
        if was_full {
            self.open.push_last(usize::from(class), number);
        }
        if is_idle {
            self.dismiss(number);
        }
    }

    /// Of a page nothing is used.
    fn dismiss(&mut self, number: u32) {
        if self.is_held(number) { self.idle.push_first(ALL, number) } else { self.idle.push_last(ALL, number) }
    }

    /// Makes a free page one of cells of this class; false when none is free.
    pub(crate) fn add_cells(&mut self, class: usize) -> bool {
        let number = match self.returned.pop() {
            Some(number) => number,
            None if self.low < self.high => {
                self.low += 1;
                self.low - 1
            }
            None => return false,
        };
        let bytes = self.classes[class];
        let fresh = (PAGE_BYTES / bytes as usize) as u16;
        let at = number as usize * PAGE_BYTES;
        if self.pages[number as usize].cell_bytes != 0 {
            // its items are gone, but what stood there must not look like some
            self.bytes[at..at + PAGE_BYTES].fill(0);
        }
        let kind = Kind::Cells(class as u8);
        self.pages[number as usize] = Page { kind, cell_bytes: bytes, freed: NO_CELL, fresh, used: 0 };
        self.counts[class] += 1;
        self.open.push_last(class, number);
        self.dismiss(number);
        true
    }

    /// Makes a free page one of chunks; false when none is free.
    pub(crate) fn add_chunks(&mut self) -> bool {
        let number = match self.high {
            high if self.low < high => {
                self.high -= 1;
                self.high
            }
            _ => match self.returned.pop() {
                Some(number) => number,
                None => return false,
            },
        };
        let at = number as usize * PAGE_BYTES;
        if std::mem::take(&mut self.pages[number as usize].cell_bytes) != 0 {
            base::huge::clear(&mut self.bytes[at..at + PAGE_BYTES]);
        }
        let chunk = |_| match ContentBuilder::chunk(CHUNK_BYTES, |_| Ok::<_, std::convert::Infallible>(())) {
            Ok(chunk) => chunk,
            Err(never) => match never {},
        };
        let contents = (0..CHUNKS).map(chunk).collect();
        let chunks = Chunks { contents, next: [NONE; CHUNKS], owner: [NONE; CHUNKS], free: (1 << CHUNKS) - 1 };
        let page = &mut self.pages[number as usize];
        (page.kind, page.used) = (Kind::Chunks(Box::new(chunks)), 0);
        let class = self.classes.len();
        self.counts[class] += 1;
        self.open.push_last(class, number);
        self.dismiss(number);
        true
    }

    /// A chunk that nobody holds, for the item at `owner`; None when none of so many pages has one. Each has its turn before one has its second,
    /// and first of all comes what was freed last when nobody held it.
    pub(crate) fn take_chunk(&mut self, owner: u32, looks: usize) -> Option<u32> {
        let class = self.classes.len();
        for _ in 0..self.open.len(class).min(looks) {
            let number = self.open.last(class)?;
            #[cfg(test)]
            self.looked.set(self.looked.get() + 1);
            let page = &mut self.pages[number as usize];
            let Kind::Chunks(chunks) = &mut page.kind else { continue };
            let is_there = |n: &usize| chunks.free & 1 << n != 0 && Arc::strong_count(&chunks.contents[*n]) == 1;
            let Some(n) = (0..CHUNKS).find(is_there) else {
                self.open.remove(class, number);
                self.open.push_first(class, number);
                continue;
            };
            chunks.free &= !(1 << n);
            (chunks.next[n], chunks.owner[n]) = (NONE, owner);
            page.used += 1;
            let (was_idle, is_full) = (page.used == 1, chunks.free == 0);
            if was_idle {
                self.idle.remove(ALL, number);
            }
            if is_full {
                self.open.remove(class, number);
            }
            return Some(number * CHUNKS as u32 + n as u32);
        }
        None
    }

    fn chunks(&self, chunk: u32) -> Option<(&Chunks, usize)> {
        match &self.pages[chunk as usize / CHUNKS].kind {
            Kind::Chunks(chunks) => Some((chunks, chunk as usize % CHUNKS)),
            _ => None,
        }
    }

    fn chunks_mut(&mut self, chunk: u32) -> Option<(&mut Chunks, usize)> {
        match &mut self.pages[chunk as usize / CHUNKS].kind {
            Kind::Chunks(chunks) => Some((chunks, chunk as usize % CHUNKS)),
            _ => None,
        }
    }

    /// Takes a chunk back; the one behind it.
    pub(crate) fn give_chunk(&mut self, chunk: u32) -> u32 {
        let class = self.classes.len();
        let number = Memory::page_of_chunk(chunk);
        let Some((chunks, n)) = self.chunks_mut(chunk) else { return NONE };
        let (was_full, is_held) = (chunks.free == 0, Arc::strong_count(&chunks.contents[n]) > 1);
        chunks.free |= 1 << n;
        chunks.owner[n] = NONE;
        let next = std::mem::replace(&mut chunks.next[n], NONE);
        let page = &mut self.pages[number as usize];
        page.used -= 1;
        let is_idle = page.used == 0;
        match (was_full, is_held) {
            // an engine has it: it comes after what can be given out at once
            (true, true) => self.open.push_first(class, number),
            (false, true) => {}
            (_, false) => {
                if !was_full {
                    self.open.remove(class, number);
                }
                self.open.push_last(class, number);
            }
        }
        if is_idle {
            self.dismiss(number);
        }
        next
    }

    /// The content of a chunk.
    pub(crate) fn content(&self, chunk: u32) -> Option<&Arc<Content>> {
        self.chunks(chunk).map(|(chunks, n)| &chunks.contents[n])
    }

    /// The bytes of a chunk.
    pub(crate) fn chunk_bytes(&self, chunk: u32) -> &[u8] {
        self.content(chunk).map_or(&[], |content| content.bytes(ObjectId(0)))
    }

    /// The chunk behind a chunk.
    pub(crate) fn next(&self, chunk: u32) -> u32 {
        #[cfg(test)]
        self.followed.set(self.followed.get() + 1);
        self.chunks(chunk).map_or(NONE, |(chunks, n)| chunks.next[n])
    }

    /// Puts a chunk behind another.
    pub(crate) fn set_next(&mut self, chunk: u32, next: u32) {
        if let Some((chunks, n)) = self.chunks_mut(chunk) {
            chunks.next[n] = next;
        }
    }

    /// Writes into a chunk that was taken and is not linked yet.
    ///
    /// # Panics
    /// When somebody holds it: chunks are given out only when nobody does.
    pub(crate) fn write_chunk(&mut self, chunk: u32, start: usize, bytes: &[u8]) {
        let Some((chunks, n)) = self.chunks_mut(chunk) else { return };
        let written = Content::rewrite(&mut chunks.contents[n], start, bytes);
        assert!(written, "a chunk that is being filled is held by nobody else");
    }

    /// What a page is used for, and whether something of it is used.
    pub(crate) fn use_of(&self, page: u32) -> (Use, bool) {
        let page = &self.pages[page as usize];
        let of = match page.kind {
            Kind::Free => Use::Free,
            Kind::Cells(class) => Use::Cells(usize::from(class)),
            Kind::Chunks(_) => Use::Chunks,
        };
        (of, page.used > 0)
    }

    /// The places, or the owners of the chunks, of what of a page is used.
    pub(crate) fn items_of(&self, number: u32, into: &mut Vec<u32>) {
        into.clear();
        let page = &self.pages[number as usize];
        match &page.kind {
            Kind::Free => {}
            Kind::Cells(class) => {
                let cells = self.cells_a_page(usize::from(*class)) as u16;
                let places = (0..cells - page.fresh).map(|cell| Memory::place(number, cell, page.cell_bytes));
                into.extend(places.filter(|place| super::item::View(self.cell(*place)).is(super::item::USED)));
            }
            Kind::Chunks(chunks) => into.extend(chunks.owner.iter().filter(|owner| **owner != NONE)),
        }
    }

    /// Whether an engine holds something of a page.
    pub(crate) fn is_held(&self, number: u32) -> bool {
        match &self.pages[number as usize].kind {
            Kind::Chunks(chunks) => chunks.contents.iter().any(|content| Arc::strong_count(content) > 1),
            _ => false,
        }
    }

    /// A page of which nothing is used, and nothing held, if there is one among so many. Each has its turn before one has its second, and first
    /// of all comes what became so last when nobody held it.
    pub(crate) fn idle_page(&mut self, looks: usize) -> Option<u32> {
        for _ in 0..self.idle.len(ALL).min(looks) {
            let number = self.idle.last(ALL)?;
            #[cfg(test)]
            self.looked.set(self.looked.get() + 1);
            if !self.is_held(number) {
                return Some(number);
            }
            self.idle.remove(ALL, number);
            self.idle.push_first(ALL, number);
        }
        None
    }

    /// Frees a page of which nothing is used.
    pub(crate) fn free_page(&mut self, number: u32) {
        let class = match self.use_of(number) {
            (Use::Free, _) | (_, true) => return,
            (Use::Cells(class), false) => class,
            (Use::Chunks, false) => self.classes.len(),
        };
        self.open.remove(class, number);
        self.idle.remove(ALL, number);
        self.counts[class] -= 1;
        self.freed_chunks += u64::from(class == self.classes.len());
        self.pages[number as usize].kind = Kind::Free;
        self.returned.push(number);
    }

    /// Whether the lists of pages agree with the pages.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let listed = |lists: &Lists, count: usize| {
            let mut all = vec![None; self.pages.len()];
            for list in 0..count {
                lists.pages(list).for_each(|page| assert_eq!(all[page as usize].replace(list), None, "{page} twice"));
            }
            all
        };
        let (idle, open) = (listed(&self.idle, 1), listed(&self.open, self.classes.len() + 1));
        for (number, page) in self.pages.iter().enumerate() {
            let is_idle = page.used == 0 && !matches!(page.kind, Kind::Free);
            assert_eq!(is_idle, idle[number].is_some(), "{number} among the idle");
            let class = match &page.kind {
                Kind::Cells(class) if page.freed != NO_CELL || page.fresh > 0 => Some(usize::from(*class)),
                Kind::Chunks(chunks) if chunks.free != 0 => Some(self.classes.len()),
                _ => None,
            };
            assert_eq!(class, open[number], "{number} among the open");
        }
    }
}
