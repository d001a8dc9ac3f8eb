//! Which item a hash may belong to: buckets of one cache line each, nine entries of a 16-bit tag and a place. What finds its
//! bucket full goes into a bucket behind it.
//!
//! The table is sized at start by the memory for items and never grows, so no look-up waits for a move. There is an entry for
//! every 128 bytes of memory, and room for as many behind full buckets, which takes memory when it is used. Hashes do not fill buckets
//! evenly, so the smallest items fill it before they fill the memory: those in cells of 64 bytes at 77 % of it, in cells of 80 at 97 %, larger
//! ones never. Room for all of the smallest would make the table a seventh of the memory instead of a tenth, for every load.

const ENTRIES: usize = 9;
/// Bytes of items for each entry in the buckets that hashes lead to.
const ITEM_BYTES: u64 = 128;
/// No place.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone)]
#[repr(align(64))]
struct Bucket {
    places: [u32; ENTRIES],
    tags: [u16; ENTRIES],
    /// the bucket behind this one
    next: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

const EMPTY: Bucket = Bucket { places: [NONE; ENTRIES], tags: [0; ENTRIES], next: NONE };

/// Hashes and places of items.
pub(crate) struct Index {
    buckets: Vec<Bucket>,
    /// buckets that hashes lead to; the rest stand behind others
    first: usize,
    /// buckets that stood behind others and are free, linked by `next`
    free: u32,
    entries: usize,
}

/// Tags are the half of a hash that chooses no bucket.
fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// The bucket that a hash leads to: the low 32 bits choose, without a division.
#[inline]
fn bucket_of(hash: u64, first: usize) -> usize {
    (((hash & 0xffff_ffff) * first as u64) >> 32) as usize
}

/// Asks for the bucket of a hash, in a table whose [`Index::outline`] this is.
#[inline]
pub(crate) fn foresee((at, first): (usize, usize), hash: u64) {
    base::prefetch::read(std::ptr::without_provenance::<Bucket>(at + bucket_of(hash, first) * size_of::<Bucket>()));
}

impl Bucket {
    /// The places with this tag.
    #[inline]
    fn matching(&self, tag: u16) -> impl Iterator<Item = u32> {
        // all tags are compared first: which of them fits cannot be foretold, so a branch a tag would often be a wrong one
        let mut fits = self.tags.iter().enumerate().fold(0u32, |fits, (n, own)| fits | u32::from(*own == tag) << n);
        std::iter::from_fn(move || {
            while fits != 0 {
                let entry = fits.trailing_zeros() as usize;
                fits &= fits - 1;
                if self.places[entry] != NONE {
                    return Some(self.places[entry]);
                }
            }
            None
        })
    }
}

impl Index {
    /// For items in so many bytes.
    pub(crate) fn new(memory_bytes: u64) -> Index {
        let first = (memory_bytes / (ITEM_BYTES * ENTRIES as u64)).clamp(16, u64::from(u32::MAX / 4)) as usize;
        let mut buckets = base::huge::vec(2 * first);
        buckets.resize(first, EMPTY);
        Index { buckets, first, free: NONE, entries: 0 }
    }

    #[inline]
    fn at(&self, hash: u64) -> usize {
        bucket_of(hash, self.first)
    }

    /// The first place of this hash of which `is` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mut bucket = &self.buckets[self.at(hash)];
        loop {
            if let Some(place) = bucket.matching(tag).find(|place| is(*place)) {
                return Some(place);
            }
            bucket = self.buckets.get(bucket.next as usize)?;
        }
    }

    /// The places that a hash most likely stands for, by the bucket that it leads to alone.
    #[inline]
    pub(crate) fn likely(&self, hash: u64) -> impl Iterator<Item = u32> {
        self.buckets[self.at(hash)].matching(tag(hash))
    }

    /// Where its buckets stand, and how many there are that hashes lead to.
    pub(crate) fn outline(&self) -> (usize, usize) {
        (self.buckets.as_ptr().addr(), self.first)
    }

    /// Adds a place, which is not there; false when there is no room for it.
    #[must_use]
    pub(crate) fn add(&mut self, hash: u64, place: u32) -> bool {
        let mut at = self.at(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(entry) = bucket.places.iter().position(|place| *place == NONE) {
                (bucket.places[entry], bucket.tags[entry]) = (place, tag(hash));
                self.entries += 1;
                return true;
            }
            if bucket.next == NONE {
                let Some(behind) = self.take() else { return false };
                self.buckets[at].next = behind;
            }
            at = self.buckets[at].next as usize;
        }
    }

    /// An empty bucket to stand behind another.
    fn take(&mut self) -> Option<u32> {
        if self.free != NONE {
            let taken = self.free;
            self.free = std::mem::replace(&mut self.buckets[taken as usize].next, NONE);
            return Some(taken);
        }
        // never beyond what was reserved: growing would move the table
        if self.buckets.len() == self.buckets.capacity() {
            return None;
        }
        self.buckets.push(EMPTY);
        Some((self.buckets.len() - 1) as u32)
    }

    /// Puts another place where `old` stands.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        if let Some((bucket, entry, _)) = self.seek(hash, old) {
            self.buckets[bucket].places[entry] = new;
        }
    }

    /// Takes a place out; false when it is not there.
    pub(crate) fn remove(&mut self, hash: u64, place: u32) -> bool {
        let Some((at, entry, before)) = self.seek(hash, place) else { return false };
        let bucket = &mut self.buckets[at];
        bucket.places[entry] = NONE;
        self.entries -= 1;
        if let Some(before) = before
            && bucket.places == [NONE; ENTRIES]
        {
            let next = std::mem::replace(&mut bucket.next, self.free);
            self.free = at as u32;
            self.buckets[before].next = next;
        }
        true
    }

    /// The bucket and the entry of a place, and the bucket before.
    fn seek(&self, hash: u64, place: u32) -> Option<(usize, usize, Option<usize>)> {
        let (mut at, mut before) = (self.at(hash), None);
        loop {
            let bucket = &self.buckets[at];
            if let Some(entry) = bucket.places.iter().position(|known| *known == place) {
                return Some((at, entry, before));
            }
            if bucket.next == NONE {
                return None;
            }
            before = Some(at);
            at = bucket.next as usize;
        }
    }

    /// Places in the table.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Buckets that hashes lead to.
    pub(crate) fn buckets(&self) -> usize {
        self.first
    }

    /// The places among which a hash stands, or would stand.
    pub(crate) fn beside(&self, hash: u64) -> impl Iterator<Item = u32> {
        self.places(self.at(hash))
    }

    /// Some place of a bucket and those behind it.
    pub(crate) fn places(&self, bucket: usize) -> impl Iterator<Item = u32> {
        let mut at = Some(bucket);
        std::iter::from_fn(move || {
            let bucket = self.buckets.get(at?)?;
            at = (bucket.next != NONE).then_some(bucket.next as usize);
            Some(bucket.places)
        })
        .flatten()
        .filter(|place| *place != NONE)
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Few buckets, so that most things stand behind others.
        #[test]
        fn it_finds_what_is_in_it_and_nothing_else(
            steps in prop::collection::vec((0u64..400, prop::bool::weighted(0.6)), 0..900)
        ) {
            let mut index = Index::new(0);
            let mut twin = HashMap::new();
            let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (key, add) in steps {
                if add && !twin.contains_key(&key) {
                    if index.add(hash(key), key as u32) {
                        twin.insert(key, key as u32);
                    } else {
                        prop_assert!(index.buckets.len() == index.buckets.capacity());
                    }
                } else if !add {
                    prop_assert_eq!(index.remove(hash(key), key as u32), twin.remove(&key).is_some());
                }
                prop_assert_eq!(index.entries(), twin.len());
            }
            for key in 0..400 {
                let found = index.find(hash(key), |place| u64::from(place) == key);
                prop_assert_eq!(found, twin.get(&key).copied());
            }
            let all: usize = (0..index.buckets()).map(|bucket| index.places(bucket).count()).sum();
            prop_assert_eq!(all, twin.len());
        }
    }

    #[test]
    fn a_full_table_says_so_and_takes_again_what_was_freed() {
        let mut index = Index::new(0);
        let mut added = 0;
        while index.add(7, added) {
            added += 1;
        }
        // the bucket of the hash, and all that may stand behind others
        assert_eq!(added as usize, ENTRIES * 17);
        for place in 0..added {
            assert!(index.remove(7, place));
        }
        assert!((0..added).all(|place| index.add(7, place)) && !index.add(7, added));
        index.replace(7, 3, 1000);
        assert_eq!((index.find(7, |place| place == 3), index.find(7, |place| place == 1000)), (None, Some(1000)));
    }
}
