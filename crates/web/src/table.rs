//! Keys to numbers, made once and only read: what requests are looked up in.
//!
//! Open addressing over a power of two of slots, at most half full, never rehashed. The hash is keyed (SipHash-1-3), so
//! nobody can aim look-ups at long runs of slots. A key is a scope, such as a host's number, and bytes.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    /// high half of the hash, so that a wrong key is seldom fetched
    tag: u32,
    row: u32,
}

struct Row {
    at: u32,
    bytes: u16,
    scope: u16,
    value: u32,
}

/// A table that is complete.
pub(crate) struct Table {
    seed: u64,
    slots: Box<[Slot]>,
    rows: Box<[Row]>,
    keys: Box<[u8]>,
}

/// Keys that are too long, or too many, for the table's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

impl Table {
    /// A table of these keys; of equal ones the first counts.
    pub(crate) fn build<'k>(seed: u64, keys: impl Iterator<Item = (u16, &'k [u8], u32)>) -> Result<Table, TooLarge> {
        let (mut rows, mut text) = (Vec::new(), Vec::new());
        for (scope, key, value) in keys {
            let at = u32::try_from(text.len()).map_err(|_| TooLarge)?;
            let bytes = u16::try_from(key.len()).map_err(|_| TooLarge)?;
            rows.push(Row { at, bytes, scope, value });
            text.extend_from_slice(key);
        }
        if rows.len() >= EMPTY as usize / 4 {
            return Err(TooLarge);
        }
        let slots = vec![Slot { tag: 0, row: EMPTY }; (rows.len() * 2).next_power_of_two().max(2)];
        let mut table = Table { seed, slots: slots.into(), rows: rows.into(), keys: text.into() };
        for row in 0..table.rows.len() {
            table.insert(row);
        }
        Ok(table)
    }

    fn insert(&mut self, row: usize) {
        let Row { at, bytes, scope, .. } = self.rows[row];
        let key = &self.keys[at as usize..at as usize + usize::from(bytes)];
        if self.get(scope, key).is_some() {
            return;
        }
        let hash = self.hash(scope, key);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while self.slots[slot].row != EMPTY {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = Slot { tag: (hash >> 32) as u32, row: row as u32 };
    }

    #[inline]
    fn hash(&self, scope: u16, key: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.seed, u64::from(scope));
        hasher.write(key);
        hasher.finish()
    }

    /// The number of a key.
    #[inline]
    pub(crate) fn get(&self, scope: u16, key: &[u8]) -> Option<u32> {
        let hash = self.hash(scope, key);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let Slot { tag, row } = self.slots[slot];
            if row == EMPTY {
                return None;
            }
            if tag == (hash >> 32) as u32 {
                let Row { at, bytes, scope: of, value } = self.rows[row as usize];
                if of == scope && self.keys[at as usize..at as usize + usize::from(bytes)] == *key {
                    return Some(value);
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (size_of_val(&*self.slots) + size_of_val(&*self.rows) + self.keys.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_as_a_map(
            seed in any::<u64>(), keys in prop::collection::vec((0u16..3, "[ab]{0,4}", any::<u32>()), 0..80),
            ask in prop::collection::vec((0u16..3, "[abc]{0,5}"), 0..80)
        ) {
            let mut twin = BTreeMap::new();
            for (scope, key, value) in &keys {
                twin.entry((*scope, key.clone())).or_insert(*value);
            }
            let rows = keys.iter().map(|(scope, key, value)| (*scope, key.as_bytes(), *value));
            let table = Table::build(seed, rows).unwrap();
            for (scope, key, _) in &keys {
                prop_assert_eq!(table.get(*scope, key.as_bytes()), twin.get(&(*scope, key.clone())).copied());
            }
            for (scope, key) in ask {
                prop_assert_eq!(table.get(scope, key.as_bytes()), twin.get(&(scope, key)).copied());
            }
        }
    }

    #[test]
    fn a_key_longer_than_a_table_can_hold_is_refused() {
        let long = vec![b'a'; 65_536];
        assert_eq!(Table::build(0, [(0, &long[..], 1)].into_iter()).err(), Some(TooLarge));
        assert!(Table::build(0, std::iter::empty()).unwrap().get(0, b"").is_none());
    }
}
