//! From a connection's tuple to its index: open addressing over slots of eight bytes, made once, never grown.
//!
//! A slot holds 32 bits of the tuple's hash and a 32-bit value, the index, in whose highest bits the caller may say
//! what kind of thing it is (a connection, a half-open one, TIME-WAIT). The tuple itself stays in what the index names
//! and is compared there, through a closure, only when all 32 bits agree: for a stranger's tuple that is once in 2^32
//! slots seen.
//!
//! There are at least two slots for each entry that may live, so a look-up sees 1.5 slots when it finds and 2.5 when it
//! does not, on average, eight of them on one cache line. Removal moves later entries of the run back (Knuth, volume 3,
//! 6.4, algorithm R): no tombstones, so a table that was full once is as fast afterwards as it was. The hash is keyed
//! ([`super::sip`]): nobody can aim at one run.
//!
//! For a burst: hash all, [`Table::prefetch`] all, then [`Table::find`] each.

use super::tuple::{Tuple, Tuple4, Tuple6};
use base::sip::Key;

/// What a value may not be: it marks an empty slot.
pub const NO_VALUE: u32 = u32::MAX;

/// A tuple's hash, as the table keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hash(pub u32);

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    value: u32,
}

const EMPTY: Slot = Slot { hash: 0, value: NO_VALUE };

/// As many entries as the table was made for are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The table.
#[derive(Debug)]
pub struct Table {
    slots: Box<[Slot]>,
    mask: u32,
    len: u32,
    capacity: u32,
    key: Key,
}

impl Table {
    /// A table for at most `capacity` entries, hashed under a secret. It takes 16 to 32 bytes an entry.
    ///
    /// # Panics
    /// When `capacity` is above 2^30.
    pub fn new(capacity: u32, secret: Key) -> Table {
        assert!(capacity <= 1 << 30, "a table for {capacity} entries");
        let slots = (capacity.max(4) * 2).next_power_of_two();
        Table {
            slots: base::huge::table(slots as usize, |_| EMPTY).into_boxed_slice(),
            mask: slots - 1,
            len: 0,
            capacity,
            key: secret.derive(4),
        }
    }

    /// Entries in it.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most that may be in it.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of memory that the slots take.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Hashes a tuple.
    #[inline(always)]
    pub fn hash(&self, tuple: &Tuple) -> Hash {
        Hash(tuple.hash13(self.key) as u32)
    }

    /// Hashes a tuple of IPv4.
    #[inline]
    pub fn hash4(&self, tuple: &Tuple4) -> Hash {
        Hash(tuple.hash13(self.key) as u32)
    }

    /// Hashes a tuple of IPv6.
    #[inline]
    pub fn hash6(&self, tuple: &Tuple6) -> Hash {
        Hash(tuple.hash13(self.key) as u32)
    }

    /// Asks for the cache line where a look-up will begin.
    #[inline]
    pub fn prefetch(&self, hash: Hash) {
        base::prefetch::read(&raw const self.slots[(hash.0 & self.mask) as usize]);
    }

    /// The value whose tuple is the one; `is_it` compares, asked only for values whose whole hash agrees.
    #[inline]
    pub fn find(&self, hash: Hash, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash.0 & self.mask;
        loop {
            let slot = self.slots[at as usize];
            if slot.value == NO_VALUE {
                return None;
            }
            if slot.hash == hash.0 && is_it(slot.value) {
                return Some(slot.value);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// The first value with that hash, whoever it belongs to, so that its tuple can be asked for in time.
    #[inline]
    pub fn candidate(&self, hash: Hash) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Adds an entry. Whether its tuple is in already is the caller's to know.
    ///
    /// # Errors
    /// When the table is full.
    ///
    /// # Panics
    /// When `value` is [`NO_VALUE`].
    pub fn insert(&mut self, hash: Hash, value: u32) -> Result<(), Full> {
        assert_ne!(value, NO_VALUE, "the mark of an empty slot as a value");
        if self.len == self.capacity {
            return Err(Full);
        }
        let mut at = hash.0 & self.mask;
        while self.slots[at as usize].value != NO_VALUE {
            at = (at + 1) & self.mask;
        }
        self.slots[at as usize] = Slot { hash: hash.0, value };
        self.len += 1;
        Ok(())
    }

    /// Puts another value in the place of one, as when a connection goes to TIME-WAIT. Whether there was such an entry.
    ///
    /// # Panics
    /// When `new` is [`NO_VALUE`].
    pub fn replace(&mut self, hash: Hash, old: u32, new: u32) -> bool {
        assert_ne!(new, NO_VALUE, "the mark of an empty slot as a value");
        match self.position(hash, old) {
            Some(at) => {
                self.slots[at as usize].value = new;
                true
            }
            None => false,
        }
    }

    /// Takes an entry out. Whether there was one.
    pub fn remove(&mut self, hash: Hash, value: u32) -> bool {
        let Some(mut hole) = self.position(hash, value) else { return false };
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at as usize];
            if slot.value == NO_VALUE {
                break;
            }
            // it may move back to the hole if its run began there or before: its own home is not between the two
            let from_home = at.wrapping_sub(slot.hash) & self.mask;
            let from_hole = at.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.slots[hole as usize] = slot;
                hole = at;
            }
        }
        self.slots[hole as usize] = EMPTY;
        self.len -= 1;
        true
    }

    fn position(&self, hash: Hash, value: u32) -> Option<u32> {
        let mut at = hash.0 & self.mask;
        loop {
            let slot = self.slots[at as usize];
            if slot.value == NO_VALUE {
                return None;
            }
            if slot.hash == hash.0 && slot.value == value {
                return Some(at);
            }
            at = (at + 1) & self.mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
        Replace(u32),
    }

    fn a_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u32..60).prop_map(Step::Insert),
            2 => (0u32..60).prop_map(Step::Remove),
            1 => (0u32..60).prop_map(Step::Replace),
        ]
    }

    proptest! {
        /// The twin is a map from keys to values. Hashes come from a few, so that runs are long, wrap round the end and
        /// hold several keys of one whole hash.
        #[test]
        fn is_a_map_whatever_the_hashes(
            steps in prop::collection::vec(a_step(), 1..300), hashes in prop::collection::vec(prop_oneof![0u32..5, 60u32..70, any::<u32>()], 60)
        ) {
            let mut table = Table::new(24, Key::new(1, 2));
            let mut twin: BTreeMap<u32, u32> = BTreeMap::new();
            // a key's values are its number with something added, so that the closure can tell whose it is
            let (hash, owner) = (|key: u32| Hash(hashes[key as usize]), |value: u32| value % 100);
            for (round, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(key) if !twin.contains_key(&key) => {
                        let value = key + 100 * round as u32;
                        let taken = table.insert(hash(key), value);
                        prop_assert_eq!(taken.is_ok(), twin.len() < 24);
                        if taken.is_ok() {
                            twin.insert(key, value);
                        }
                    }
                    Step::Remove(key) => {
                        let gone = twin.remove(&key);
                        prop_assert_eq!(table.remove(hash(key), gone.unwrap_or(key)), gone.is_some());
                    }
                    Step::Replace(key) => {
                        let value = key + 100 * round as u32;
                        if let Some(old) = twin.get_mut(&key) {
                            prop_assert!(table.replace(hash(key), *old, value));
                            *old = value;
                        } else {
                            prop_assert!(!table.replace(hash(key), value, value));
                        }
                    }
                    Step::Insert(_) => {}
                }
                prop_assert_eq!(table.len() as usize, twin.len());
                for key in 0..60 {
                    prop_assert_eq!(table.find(hash(key), |value| owner(value) == key), twin.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn an_emptied_table_is_as_new() {
        let mut table = Table::new(1000, Key::new(1, 2));
        let hash = |table: &Table, n: u32| {
            table.hash4(&Tuple4 { local: [192, 0, 2, 1].into(), remote: n.into(), local_port: 80, remote_port: 4000 })
        };
        for n in 0..1000 {
            table.insert(hash(&table, n), n).unwrap();
        }
        assert_eq!(table.insert(Hash(0), 5000), Err(Full));
        for n in 0..1000 {
            assert_eq!(table.find(hash(&table, n), |value| value == n), Some(n));
            assert!(table.candidate(hash(&table, n)).is_some());
        }
        for n in 0..1000 {
            assert!(table.remove(hash(&table, n), n));
        }
        assert!(table.is_empty());
        assert!(table.slots.iter().all(|slot| slot.value == NO_VALUE));
        assert_eq!((table.memory_bytes(), size_of::<Slot>()), (2048 * 8, 8));
    }

    #[test]
    fn look_ups_are_short_in_a_full_table() {
        let mut table = Table::new(1 << 15, Key::new(7, 8));
        let hash = |table: &Table, n: u32| {
            table.hash(
                &Tuple::new("192.0.2.1:80".parse().unwrap(), ([10, 0, 0, (n >> 16) as u8], n as u16).into()).unwrap(),
            )
        };
        let seen = |table: &Table, hash: Hash| {
            let mut at = hash.0 & table.mask;
            let mut seen = 1;
            while table.slots[at as usize].value != NO_VALUE {
                at = (at + 1) & table.mask;
                seen += 1;
            }
            seen
        };
        for n in 0..1 << 15 {
            table.insert(hash(&table, n), n).unwrap();
        }
        let strangers = 1 << 15;
        let all: u64 = (strangers..2 * strangers).map(|n| seen(&table, hash(&table, n))).sum();
        // half full: 2.5 slots on average (Knuth, volume 3, 6.4)
        let mean = all as f64 / f64::from(strangers);
        assert!((2.3..2.7).contains(&mean), "{mean} slots a miss");
    }
}
