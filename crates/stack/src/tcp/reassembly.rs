//! Data that arrived beyond a gap: copied into a bounded pool of blocks, told to the peer by SACK (RFC 2018), delivered when the
//! gap is filled.
//!
//! A connection's list is in order of the stream and without overlaps: of bytes that came twice the first copy counts. What
//! finds no block, or is beyond a connection's share, is not kept and not acknowledged, so what SACK says is the truth; nothing
//! that was told is thrown away before it is delivered. A FIN is kept with the last data before it; one that comes alone is
//! not, and the peer sends it again.
//!
//! All connections share the pool, and nobody has to fill the gaps that he leaves. So a connection's share is the smaller the less of
//! the pool is free, and the last eighth is for those that have nothing there: whoever loses a segment can tell what came behind it.
//! Small segments in a row share a block.

use arrayvec::ArrayVec;
use base::Seq;
use wire::tcp::{MAX_SACK_BLOCKS, SackBlock};

const NONE: u32 = u32::MAX;
/// Runs that are told before others: so many acknowledgements in a row tell of each segment (RFC 2018 section 4).
const RECENT_RUNS: usize = 3;
/// Blocks of a connection while no more than half of the pool is free, and more than a quarter.
const HALF_MOST: u16 = 16;
/// Blocks of a connection while less is free, and more than an eighth, which is left to first ones.
const QUARTER_MOST: u16 = 4;

#[derive(Clone, Copy, Debug)]
struct Meta {
    seq: Seq,
    next: u32,
    bytes: u16,
    fin: bool,
}

impl Meta {
    fn end(&self) -> Seq {
        self.seq + u32::from(self.bytes)
    }
}

/// A connection's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    blocks: u16,
    /// how far the runs reached that grew last when they did, the last one first
    recent: [Seq; RECENT_RUNS],
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, blocks: 0, recent: [Seq::new(0); RECENT_RUNS] }
    }
}

impl List {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// A segment came, and `from..to` is kept.
    fn on_grown(&mut self, from: Seq, to: Seq) {
        // its run is known by an end that it reached before, or takes the place of the one that has not grown for longest
        let known = self.recent.iter().position(|end| from.leq(*end) && end.leq(to));
        self.recent[..=known.unwrap_or(RECENT_RUNS - 1)].rotate_right(1);
        self.recent[0] = to;
    }
}

/// A connection's blocks out of their pool, on the way to another one.
#[derive(Debug)]
pub(crate) struct Packed {
    /// in order of the stream: the first number, the bytes, whether the FIN stands behind them
    blocks: Vec<(Seq, Box<[u8]>, bool)>,
    recent: [Seq; RECENT_RUNS],
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// all that was new is kept
    Kept,
    /// every byte was kept before
    Duplicate,
    /// some or all found no block
    Full,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Blocks {
    memory: Vec<Box<[u8]>>,
    metas: Vec<Meta>,
    free: Vec<u32>,
    per_connection: u16,
}

/// A block on its way to the service; it goes back by [`Blocks::give_back`].
#[derive(Debug)]
pub(crate) struct Taken {
    index: u32,
    memory: Box<[u8]>,
    from: usize,
    to: usize,
    /// the peer's FIN stands behind these bytes
    pub(crate) fin: bool,
}

impl Taken {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.from..self.to]
    }
}

impl Blocks {
    /// So many blocks of `block_bytes`, of which a connection may have `per_connection`.
    pub(crate) fn new(blocks: usize, block_bytes: usize, per_connection: u16) -> Blocks {
        let meta = Meta { seq: Seq::new(0), next: NONE, bytes: 0, fin: false };
        Blocks {
            memory: (0..blocks).map(|_| vec![0; block_bytes.min(usize::from(u16::MAX))].into()).collect(),
            metas: vec![meta; blocks],
            free: (0..blocks as u32).rev().collect(),
            per_connection,
        }
    }

    /// Blocks that somebody has.
    pub(crate) fn used(&self) -> usize {
        self.metas.len() - self.free.len()
    }

    /// Keeps what of `payload` at `seq`, which is beyond a gap and inside the window, is not there yet.
    pub(crate) fn insert(&mut self, list: &mut List, seq: Seq, payload: &[u8], fin: bool) -> Stored {
        let end = seq + payload.len() as u32;
        let (mut at, mut previous) = (list.head, NONE);
        let mut from = seq;
        let mut stored = Stored::Duplicate;
        while from.lt(end) {
            // past what ends before the next byte wanted
            while at != NONE && self.metas[at as usize].end().leq(from) {
                (previous, at) = (at, self.metas[at as usize].next);
            }
            let to = match at {
                NONE => end,
                at => {
                    let next = self.metas[at as usize];
                    if next.seq.leq(from) {
                        from = next.end();
                        continue;
                    }
                    end.min(next.seq)
                }
            };
            let (a, b) = (from.since(seq) as usize, to.since(seq) as usize);
            let fin = fin && to == end;
            if !self.append(previous, from, &payload[a..b], fin) {
                let may = list.blocks < self.share();
                let new = if may { self.store(list, previous, at, from, &payload[a..b], fin) } else { None };
                let Some(new) = new else {
                    stored = Stored::Full;
                    break;
                };
                previous = new;
            }
            (from, stored) = (to, Stored::Kept);
        }
        if from != seq {
            list.on_grown(seq, from);
        }
        stored
    }

    /// Blocks that a connection may have as things are.
    fn share(&self) -> u16 {
        let (free, all) = (self.free.len(), self.metas.len());
        let most = match () {
            () if free > all / 2 => self.per_connection,
            () if free > all / 4 => HALF_MOST,
            () if free > all / 8 => QUARTER_MOST,
            () => 1,
        };
        most.min(self.per_connection)
    }

    /// Keeps bytes in the block that those before them are in, if they are in one that has room; whether they are.
    fn append(&mut self, index: u32, seq: Seq, bytes: &[u8], fin: bool) -> bool {
        let Some(meta) = self.metas.get_mut(index as usize) else { return false };
        let memory = &mut self.memory[index as usize];
        let at = usize::from(meta.bytes);
        if meta.end() != seq || meta.fin || memory.len() - at < bytes.len() {
            return false;
        }
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        meta.bytes += bytes.len() as u16;
        meta.fin = fin;
        true
    }

    fn store(&mut self, list: &mut List, previous: u32, next: u32, seq: Seq, bytes: &[u8], fin: bool) -> Option<u32> {
        let index = self.free.pop()?;
        let memory = &mut self.memory[index as usize];
        if bytes.len() > memory.len() {
            self.free.push(index);
            return None;
        }
        memory[..bytes.len()].copy_from_slice(bytes);
        self.metas[index as usize] = Meta { seq, next, bytes: bytes.len() as u16, fin };
        match previous {
            NONE => list.head = index,
            previous => self.metas[previous as usize].next = index,
        }
        list.blocks += 1;
        Some(index)
    }

    /// The first block, if it has the byte at `next` or only older ones; what is older is left out.
    pub(crate) fn take(&mut self, list: &mut List, next: Seq) -> Option<Taken> {
        let index = list.head;
        let meta = *self.metas.get(index as usize)?;
        if meta.seq.gt(next) {
            return None;
        }
        list.head = meta.next;
        list.blocks -= 1;
        let to = usize::from(meta.bytes);
        let from = (next.since(meta.seq) as usize).min(to);
        let memory = std::mem::take(&mut self.memory[index as usize]);
        Some(Taken { index, memory, from, to, fin: meta.fin })
    }

    pub(crate) fn give_back(&mut self, taken: Taken) {
        self.memory[taken.index as usize] = taken.memory;
        self.free.push(taken.index);
    }

    /// Takes a list out of the pool, to be put into another one.
    pub(crate) fn take_out(&mut self, list: &mut List) -> Packed {
        let mut packed = Packed { blocks: Vec::with_capacity(list.blocks.into()), recent: list.recent };
        let mut at = list.head;
        while let Some(meta) = self.metas.get(at as usize) {
            let bytes = &self.memory[at as usize][..usize::from(meta.bytes)];
            packed.blocks.push((meta.seq, bytes.into(), meta.fin));
            at = meta.next;
        }
        self.clear(list);
        packed
    }

    /// Makes `list`, which is empty, the one that was taken out of another pool; false when there is no room for all of it.
    pub(crate) fn put_in(&mut self, list: &mut List, packed: &Packed) -> bool {
        let mut previous = NONE;
        for (seq, bytes, fin) in &packed.blocks {
            let Some(index) = self.store(list, previous, NONE, *seq, bytes, *fin) else {
                self.clear(list);
                return false;
            };
            previous = index;
        }
        list.recent = packed.recent;
        true
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, list: &mut List) {
        while list.head != NONE {
            self.free.push(list.head);
            list.head = self.metas[list.head as usize].next;
        }
        *list = List::default();
    }

    /// What is kept, as runs: those that grew last first, then the others in order, as many as `most`.
    pub(crate) fn runs(&self, list: &List, most: usize) -> ArrayVec<SackBlock, MAX_SACK_BLOCKS> {
        let mut recent = [None; RECENT_RUNS];
        let mut others: ArrayVec<SackBlock, MAX_SACK_BLOCKS> = ArrayVec::new();
        let mut at = list.head;
        while at != NONE {
            let meta = &self.metas[at as usize];
            let mut run = SackBlock { left: meta.seq, right: meta.end() };
            let mut last = meta;
            while last.next != NONE && self.metas[last.next as usize].seq == run.right {
                last = &self.metas[last.next as usize];
                run.right = last.end();
            }
            at = last.next;
            let place = list.recent.iter().position(|end| end.gt(run.left) && end.leq(run.right));
            // it has a number of its own: who sent it takes a segment for held when the block covers all of it
            run.right += u32::from(last.fin);
            match place {
                Some(place) => recent[place] = Some(run),
                None if others.is_full() => {}
                None => others.push(run),
            }
        }
        recent.into_iter().flatten().chain(others).take(most.min(MAX_SACK_BLOCKS)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The byte that belongs at an offset.
    fn byte(at: u32) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 24) as u8
    }

    proptest! {
        #[test]
        fn keeps_what_a_map_of_bytes_keeps(
            base in any::<u32>(), pieces in prop::collection::vec((1u32..400, 1u32..100, any::<bool>()), 1..40), blocks in 1usize..30
        ) {
            let seq = |at: u32| Seq::new(base.wrapping_add(at));
            let mut pool = Blocks::new(blocks, 100, 20);
            let mut list = List::default();
            let mut twin: BTreeMap<u32, u8> = BTreeMap::new();
            let mut next = 0;
            for (start, length, fill) in pieces {
                let start = next + start;
                let payload: Vec<u8> = (start..start + length).map(byte).collect();
                let fresh: Vec<u32> = (start..start + length).filter(|at| !twin.contains_key(at)).collect();
                match pool.insert(&mut list, seq(start), &payload, false) {
                    Stored::Duplicate => prop_assert!(fresh.is_empty()),
                    Stored::Kept => twin.extend(fresh.into_iter().map(|at| (at, byte(at)))),
                    Stored::Full => {
                        // the front of what was new may be kept: as SACK tells it, in full when all runs can be told
                        let mut at = list.head;
                        while at != NONE {
                            let meta = pool.metas[at as usize];
                            let from = meta.seq.since(seq(0));
                            twin.extend((from..from + u32::from(meta.bytes)).map(|at| (at, byte(at))));
                            at = meta.next;
                        }
                    }
                }
                for run in pool.runs(&list, 4) {
                    let (left, right) = (run.left.since(seq(0)), run.right.since(seq(0)));
                    prop_assert!(left < right && (left..right).all(|at| twin.contains_key(&at)));
                    prop_assert!(!twin.contains_key(&right) && !twin.contains_key(&(left - 1)));
                }
                prop_assert_eq!(pool.runs(&list, 3).is_empty(), twin.is_empty());
                if length % 4 == 0 {
                    let runs = pool.runs(&list, 4);
                    let packed = pool.take_out(&mut list);
                    prop_assert!(pool.used() == 0 && list.is_empty());
                    let kept = packed.blocks.len();
                    let (mut short, mut nothing) = (Blocks::new(kept.saturating_sub(1), 100, 20), List::default());
                    prop_assert!(kept == 0 || !short.put_in(&mut nothing, &packed));
                    prop_assert!(short.used() == 0 && nothing.is_empty());
                    pool = Blocks::new(blocks, 100, 20);
                    prop_assert!(pool.put_in(&mut list, &packed));
                    prop_assert_eq!((pool.runs(&list, 4), pool.used()), (runs, kept));
                }
                if fill {
                    // the gap is filled up to the first byte kept
                    let Some((first, _)) = twin.first_key_value() else { continue };
                    next = *first;
                    while let Some(taken) = pool.take(&mut list, seq(next)) {
                        for got in taken.bytes() {
                            prop_assert_eq!(Some(*got), twin.remove(&next));
                            next += 1;
                        }
                        pool.give_back(taken);
                    }
                    prop_assert!(!twin.contains_key(&next));
                }
            }
            pool.clear(&mut list);
            prop_assert_eq!(pool.used(), 0);
        }
    }

    proptest! {
        /// RFC 2018 section 4: so that two acknowledgements may be lost.
        #[test]
        fn each_segment_is_told_in_three_acknowledgements(
            base in any::<u32>(), pieces in prop::collection::vec((0u32..300, 1u32..30), 1..60)
        ) {
            let (mut pool, mut list) = (Blocks::new(200, 100, 100), List::default());
            let mut kept: Vec<(Seq, Seq)> = Vec::new();
            for (start, length) in pieces {
                let left = Seq::new(base.wrapping_add(start));
                prop_assert!(pool.insert(&mut list, left, &vec![0; length as usize], false) != Stored::Full);
                kept.push((left, left + length));
                let runs = pool.runs(&list, 3);
                for (left, right) in kept.iter().rev().take(3) {
                    prop_assert!(runs.iter().any(|run| run.left.leq(*left) && right.leq(run.right)), "{:?} {:?}", runs, kept);
                }
                let newest = kept.last().unwrap();
                prop_assert!(runs[0].left.leq(newest.0) && newest.1.leq(runs[0].right), "{:?} {:?}", runs, kept);
            }
        }
    }

    #[test]
    fn runs_that_grew_last_are_told_first() {
        let mut pool = Blocks::new(20, 100, 20);
        let mut list = List::default();
        let mut told_after = |at, bytes| {
            let stored = pool.insert(&mut list, Seq::new(at), &vec![0; bytes], false);
            let lefts: Vec<u32> = pool.runs(&list, 4).iter().map(|run| run.left.get()).collect();
            (stored, lefts)
        };
        for at in [10, 30, 50, 70] {
            told_after(at, 5);
        }
        assert_eq!(told_after(90, 5), (Stored::Kept, vec![90, 70, 50, 10]));
        // one that goes on, however long, keeps its place and no other's
        for at in [95, 100, 105, 110] {
            assert_eq!(told_after(at, 5), (Stored::Kept, vec![90, 70, 50, 10]));
        }
        assert_eq!(told_after(35, 5), (Stored::Kept, vec![30, 90, 70, 10]));
        assert_eq!(told_after(75, 5), (Stored::Kept, vec![70, 30, 90, 10]));
        assert_eq!(told_after(91, 2), (Stored::Duplicate, vec![90, 70, 30, 10]));
        // what fills the space between two makes them one
        assert_eq!(told_after(80, 10), (Stored::Kept, vec![70, 30, 10, 50]));
    }
}
