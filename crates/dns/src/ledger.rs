//! Answers by zone: which counters are whose, over reloads.
//!
//! A zone has a *slot*, a number that stays its own from one table to the next. Whoever builds tables leases the slots of
//! their zones from the ledger and makes room for them in every thread's [`Row`]; a serving thread that takes the tables
//! finds its counters there, and neither allocates nor looks for a name. A slot is given up when the last table that has the
//! zone is dropped, which is after the last thread wrote to it: what was counted goes to the row's sum of removed zones, so
//! that nothing is lost, and the next new zone may have the slot.
//!
//! The lock is for those who build, drop or show. A serving thread takes it once, when its server is made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use base::Counter;
use zone::NameRef;

/// Blocks carry no extended RCODE.
pub(crate) const RCODES: usize = 16;
/// Slots of a row's first chunk; each further one is twice as large, so that counters never move.
const FIRST: u32 = 64;
const CHUNKS: usize = (u32::MAX.ilog2() - FIRST.ilog2() + 1) as usize;

type Counts = [Counter; RCODES];

/// The slots of all zones of all tables that live.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    slots: HashMap<Arc<str>, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    rows: Vec<Weak<Row>>,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    /// tables that have the zone; with none the slot is free
    tables: u32,
}

/// The slots of one table's zones, in their order; the zones keep them at least as long as this lives.
#[derive(Debug)]
pub(crate) struct Lease {
    ledger: Arc<Ledger>,
    slots: Box<[u32]>,
}

/// One thread's counts of the zones of a ledger.
#[derive(Debug)]
pub(crate) struct Row {
    ledger: Arc<Ledger>,
    chunks: [OnceLock<Box<[Counts]>>; CHUNKS],
    /// of zones that are in no table any more; written under the ledger's lock
    removed: Counts,
}

/// The chunk of a slot and the place in it.
#[inline(always)]
const fn place(slot: u32) -> (usize, usize) {
    let at = slot.wrapping_add(FIRST);
    let chunk = at.ilog2().saturating_sub(FIRST.ilog2());
    (chunk as usize, (at - (FIRST << chunk)) as usize)
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Book> {
        // each change leaves the book whole before anything that may panic
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots of these zones, with room for them in every row.
    pub(crate) fn lease<'n>(self: &Arc<Self>, names: impl Iterator<Item = NameRef<'n>>) -> Lease {
        let mut book = self.lock();
        let slots = names.map(|name| book.take(name)).collect();
        let count = book.entries.len();
        book.rows.retain(|row| row.upgrade().map(|row| row.reserve(count)).is_some());
        drop(book);
        Lease { ledger: self.clone(), slots }
    }

    /// A new thread's row.
    pub(crate) fn row(self: &Arc<Self>) -> Arc<Row> {
        let row = Arc::new(Row {
            ledger: self.clone(),
            chunks: [const { OnceLock::new() }; CHUNKS],
            removed: Default::default(),
        });
        let mut book = self.lock();
        row.reserve(book.entries.len());
        book.rows.push(Arc::downgrade(&row));
        row
    }
}

impl Book {
    fn take(&mut self, name: NameRef<'_>) -> u32 {
        let name: Arc<str> = name.to_lower().to_string().into();
        if let Some(&slot) = self.slots.get(&name) {
            self.entries[slot as usize].tables += 1;
            return slot;
        }
        let entry = Entry { name: name.clone(), tables: 1 };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.slots.insert(name, slot);
        slot
    }

    fn give(&mut self, slot: u32, rows: &[Arc<Row>]) {
        let entry = &mut self.entries[slot as usize];
        entry.tables -= 1;
        if entry.tables == 0 {
            self.slots.remove(&entry.name);
            rows.iter().for_each(|row| row.fold(slot));
            self.free.push(slot);
        }
    }
}

impl Lease {
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// All of them are below this.
    pub(crate) fn bound(&self) -> u32 {
        self.slots.iter().max().map_or(0, |slot| slot + 1)
    }

    /// The slot of the zone at `index` of its table.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u32) -> Option<u32> {
        self.slots.get(index as usize).copied()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut book = self.ledger.lock();
        let rows: Vec<_> = book.rows.iter().filter_map(Weak::upgrade).collect();
        for &slot in &self.slots {
            book.give(slot, &rows);
        }
    }
}

impl Row {
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Counts an answer; only the thread that owns the row does.
    #[inline(always)]
    pub(crate) fn answered(&self, slot: u32, rcode: u8) {
        self.answered_often(slot, rcode, 1);
    }

    /// Counts several.
    #[inline(always)]
    pub(crate) fn answered_often(&self, slot: u32, rcode: u8, times: u64) {
        if let Some(counts) = self.counts(slot) {
            counts[usize::from(rcode) % RCODES].add(times);
        }
    }

    #[inline(always)]
    fn counts(&self, slot: u32) -> Option<&Counts> {
        let (chunk, at) = place(slot);
        self.chunks[chunk].get()?.get(at)
    }

    fn reserve(&self, slots: usize) {
        let Some(last) = slots.checked_sub(1) else { return };
        for (n, chunk) in self.chunks[..=place(last as u32).0].iter().enumerate() {
            chunk.get_or_init(|| (0..FIRST << n).map(|_| Counts::default()).collect());
        }
    }

    /// Moves what a slot counted to the removed zones. Its thread writes there no more: the last table that leads there is
    /// being dropped.
    fn fold(&self, slot: u32) {
        let Some(counts) = self.counts(slot) else { return };
        for (count, sum) in counts.iter().zip(&self.removed) {
            sum.add(count.get());
            count.set(0);
        }
    }

    /// What was counted: zone (None for those removed), RCODE and count, zeros left out.
    pub(crate) fn figures(&self) -> Vec<(Option<Arc<str>>, usize, u64)> {
        let book = self.ledger.lock();
        let of = |name: Option<&Arc<str>>, counts: &Counts| {
            let counted = counts.iter().map(Counter::get).enumerate().filter(|(_, count)| *count > 0);
            counted.map(|(rcode, count)| (name.cloned(), rcode, count)).collect::<Vec<_>>()
        };
        let zones = book.entries.iter().enumerate().filter(|(_, entry)| entry.tables > 0);
        let zones = zones.filter_map(|(slot, entry)| Some((Some(&entry.name), self.counts(slot as u32)?)));
        zones.chain([(None, &self.removed)]).flat_map(|(name, counts)| of(name, counts)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use zone::Name;

    #[test]
    fn every_slot_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for slot in 0..10_000 {
            assert_eq!(place(slot), next);
            next = if next.1 + 1 == (FIRST as usize) << next.0 { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        assert_eq!(place(u32::MAX - FIRST), (CHUNKS - 1, (1 << 31) - 1));
    }

    /// Zone names 0..N.
    fn lease(ledger: &Arc<Ledger>, zones: &[u16]) -> Lease {
        let names: Vec<Name> = zones.iter().map(|zone| format!("z{zone}.").parse().unwrap()).collect();
        ledger.lease(names.iter().map(Name::view))
    }

    fn shown(row: &Row) -> BTreeMap<Option<String>, u64> {
        let mut sums = BTreeMap::new();
        for (zone, _, count) in row.figures() {
            *sums.entry(zone.map(|zone| zone.to_string())).or_default() += count;
        }
        sums
    }

    #[test]
    fn a_zone_that_comes_while_an_old_table_still_has_it_keeps_its_counts() {
        let ledger = Arc::new(Ledger::default());
        let row = ledger.row();
        let old = lease(&ledger, &[1, 2]);
        row.answered(old.slot(1).unwrap(), 3);
        let without = lease(&ledger, &[1]);
        let again = lease(&ledger, &[2]);
        drop(old);
        drop(without);
        assert_eq!(shown(&row), BTreeMap::from([(Some("z2.".to_owned()), 1)]));
        drop(again);
        assert_eq!(shown(&row), BTreeMap::from([(None, 1)]));
    }

    proptest! {
        /// Against a map by name: reloads in any order, several tables alive at once, two threads, late threads.
        #[test]
        fn nothing_is_lost_or_given_to_another_zone(
            reloads in prop::collection::vec((prop::collection::btree_set(0u16..90, 0..90), 1usize..4), 1..12),
        ) {
            let ledger = Arc::new(Ledger::default());
            let mut rows = vec![ledger.row()];
            let mut alive: Vec<(Vec<u16>, Lease)> = Vec::new();
            let mut model: BTreeMap<Option<String>, u64> = BTreeMap::new();
            for (n, (zones, keep)) in reloads.into_iter().enumerate() {
                let zones: Vec<u16> = zones.into_iter().collect();
                let slots = lease(&ledger, &zones);
                if n % 3 == 1 {
                    rows.push(ledger.row());
                }
                for (at, zone) in zones.iter().enumerate() {
                    let thread = usize::from(*zone) % rows.len();
                    rows[thread].answered(slots.slot(at as u32).unwrap(), *zone as u8);
                    *model.entry(Some(format!("z{zone}."))).or_default() += 1;
                }
                alive.push((zones, slots));
                while alive.len() > keep {
                    let (gone, slots) = alive.remove(0);
                    drop(slots);
                    for zone in gone.iter().filter(|zone| !alive.iter().any(|(others, _)| others.contains(zone))) {
                        let count = model.remove(&Some(format!("z{zone}."))).unwrap_or(0);
                        *model.entry(None).or_default() += count;
                    }
                    model.retain(|_, count| *count > 0);
                }
                let mut sums = BTreeMap::new();
                for (zone, count) in rows.iter().flat_map(|row| shown(row)) {
                    *sums.entry(zone).or_default() += count;
                }
                prop_assert_eq!(&sums, &model);
            }
        }
    }
}
