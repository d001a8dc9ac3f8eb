//! Every name of every zone in one hash table, with its answers beside it.
//!
//! Two cache misses a question: the bucket (one line: twelve references with an octet of hash each) and the node, behind
//! which its blocks stand. A question that is not in the table falls back to its longest existing suffix: every suffix of a
//! name in the table is in the table, too (empty non-terminals, and *phantoms* above and between the zones), so existence is
//! monotone in the number of labels and a binary search finds it.
//!
//! ```text
//! node   name bytes (1)  flags (1)  types (2)  zone (4)  order (4)  name in lower case, padded
//!        with LINKED: link (4)  fallback (4)          types x [ type (2)  0 (2)  block (4) ]          blocks ...
//! ```
//!
//! `order` is the name's place in its zone's canonical order, which signed zones will ask for predecessors. References count
//! units of 8 octets from the arena's start, unit 0 is nobody's. Names at or below a cut's other side are not here.

use crate::block::UNIT_BYTES;
use crate::key;
use crate::ledger::Lease;
use zone::{Name, NameRef, Rtype, Zone};

/// A node's flags.
pub(crate) mod flag {
    /// the owner of an NS set that is not an apex
    pub(crate) const CUT: u8 = 1;
    /// names below are redirected
    pub(crate) const DNAME: u8 = 2;
    /// types that the directory lacks are answered by the fallback block
    pub(crate) const ALIAS: u8 = 4;
    /// answered from the zone itself
    pub(crate) const DEPENDS: u8 = 8;
    /// no name of its zone: `link` is the closest name above that is one, or 0
    pub(crate) const PHANTOM: u8 = 16;
    pub(crate) const APEX: u8 = 32;
    /// `link` (the wildcard child, or 0) and the fallback block stand in the node
    pub(crate) const LINKED: u8 = 64;
    /// a cut below which another zone of these tables is, though not at it
    pub(crate) const OUTER: u8 = 128;
}

const BUCKET_ENTRIES: usize = 12;
const OVERFLOWED_AT: usize = 15;
pub(crate) const HEADER_BYTES: usize = 12;

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    /// hash octets of the entries, 0 for none; the last one tells that entries went on to the next bucket
    tags: [u8; 16],
    nodes: [u32; BUCKET_ENTRIES],
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// A zone and what every question under it shares.
#[derive(Debug)]
pub(crate) struct ZoneEntry {
    pub(crate) zone: Zone,
    /// the zone whose word on this one's DS counts, if it is here
    pub(crate) parent: Option<u32>,
    /// the SOA as authority, for NODATA and NXDOMAIN
    pub(crate) negative: u32,
    pub(crate) apex_bytes: u8,
}

/// The answers of all zones; immutable once built. See the module's text.
#[derive(Debug)]
pub struct Tables {
    buckets: Vec<Bucket>,
    pub(crate) arena: Vec<u8>,
    pub(crate) zones: Vec<ZoneEntry>,
    pub(crate) seed: u64,
    names: usize,
    /// the zones' counters, by the zones' index
    pub(crate) counted: Lease,
}

/// A node in the arena.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'t> {
    pub(crate) unit: u32,
    bytes: &'t [u8],
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl<'t> Entry<'t> {
    #[inline(always)]
    pub(crate) fn name_bytes(self) -> usize {
        usize::from(self.bytes[0])
    }

    #[inline(always)]
    pub(crate) fn has(self, flags: u8) -> bool {
        self.bytes[1] & flags != 0
    }

    #[inline(always)]
    fn is(self, key: &Key, bytes: &[u8], at: usize, len: usize) -> bool {
        self.name_bytes() == len && key::same(&key.short, bytes, at, len, &self.bytes[HEADER_BYTES..])
    }

    #[inline(always)]
    fn types(self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[2], self.bytes[3]]))
    }

    #[inline(always)]
    pub(crate) fn zone(self) -> u32 {
        u32_at(self.bytes, 4)
    }

    /// The name's place in its zone's canonical order: the index of its node, or of the first one behind it.
    fn order(self) -> u32 {
        u32_at(self.bytes, 8)
    }

    /// The name, in lower case.
    pub(crate) fn wire(self) -> &'t [u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.name_bytes()]
    }

    /// The types that have blocks.
    pub(crate) fn rtypes(self) -> impl Iterator<Item = Rtype> + use<'t> {
        let begin = self.after_name() + if self.has(flag::LINKED) { 8 } else { 0 };
        (0..self.types())
            .map(move |n| Rtype(u16::from_le_bytes([self.bytes[begin + 8 * n], self.bytes[begin + 8 * n + 1]])))
    }

    #[inline(always)]
    pub(crate) fn is_wildcard(self) -> bool {
        self.bytes[HEADER_BYTES..HEADER_BYTES + 2] == *b"\x01*"
    }

    #[inline(always)]
    fn after_name(self) -> usize {
        (HEADER_BYTES + self.name_bytes()).next_multiple_of(UNIT_BYTES)
    }

    #[inline(always)]
    pub(crate) fn link(self) -> u32 {
        if self.has(flag::LINKED) { u32_at(self.bytes, self.after_name()) } else { 0 }
    }

    #[inline(always)]
    pub(crate) fn fallback(self) -> u32 {
        if self.has(flag::LINKED) { u32_at(self.bytes, self.after_name() + 4) } else { 0 }
    }

    /// The block of a type; of the lowest type for ANY (RFC 8482 section 4.1).
    #[inline(always)]
    pub(crate) fn block(self, rtype: Rtype) -> Option<u32> {
        let begin = self.after_name() + if self.has(flag::LINKED) { 8 } else { 0 };
        if self.types() > FEW_TYPES {
            if let Some(block) = self.block_of_many(begin, rtype) {
                return Some(block);
            }
        } else {
            for n in 0..self.types() {
                let (found, block) = self.row(begin, n);
                if found == rtype {
                    return Some(block);
                }
            }
        }
        if rtype == Rtype::ANY && self.types() > 0 {
            // an alias alone: the directory also has what its target leads to
            return if self.has(flag::ALIAS) { self.lowest_own() } else { Some(u32_at(self.bytes, begin + 4)) };
        }
        None
    }

    #[inline(always)]
    fn row(self, begin: usize, n: usize) -> (Rtype, u32) {
        let at = begin + 8 * n;
        (Rtype(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])), u32_at(self.bytes, at + 4))
    }

    /// The first row is an alias's own; the types of all others ascend.
    #[cold]
    fn block_of_many(self, begin: usize, rtype: Rtype) -> Option<u32> {
        let (first, block) = self.row(begin, 0);
        if first == rtype {
            return Some(block);
        }
        let (mut low, mut high) = (1, self.types());
        while low < high {
            let middle = low.midpoint(high);
            match self.row(begin, middle) {
                (found, block) if found == rtype => return Some(block),
                (found, _) if found < rtype => low = middle + 1,
                _ => high = middle,
            }
        }
        None
    }

    /// The lowest type that the owner of a CNAME itself has; the build puts it first.
    fn lowest_own(self) -> Option<u32> {
        Some(u32_at(self.bytes, self.after_name() + 8 + 4))
    }
}

/// So many types of a name are looked at one after the other.
const FEW_TYPES: usize = 16;

/// A name ready to be looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Key {
    pub(crate) hash: u64,
    /// the node that probably is it; 0 for none
    candidate: u32,
    short: key::Short,
}

impl Key {
    #[inline(always)]
    pub(crate) fn new(seed: u64, bytes: &[u8], at: usize, len: usize) -> Key {
        let (hash, short) = key::fold(seed, bytes, at, len);
        Key { hash, candidate: 0, short }
    }
}

impl Tables {
    /// Tables of these names, with room for `more` of them, and an empty arena.
    pub(crate) fn with(names: &[(u64, u32)], more: usize, zones: Vec<ZoneEntry>, seed: u64, counted: Lease) -> Tables {
        // 9 of 12 entries used on average: few buckets overflow
        let count = ((names.len() + more) / 9 + 1).min(u32::MAX as usize);
        let empty = Bucket { tags: [0; 16], nodes: [0; BUCKET_ENTRIES] };
        let mut tables = Tables { buckets: vec![empty; count], arena: Vec::new(), zones, seed, names: 0, counted };
        for &(hash, unit) in names {
            tables.put(hash, unit);
        }
        tables
    }

    pub(crate) fn put(&mut self, hash: u64, unit: u32) {
        self.names += 1;
        let mut at = self.bucket_of(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(free) = bucket.tags[..BUCKET_ENTRIES].iter().position(|tag| *tag == 0) {
                bucket.tags[free] = tag_of(hash);
                bucket.nodes[free] = unit;
                return;
            }
            bucket.tags[OVERFLOWED_AT] = 1;
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
    }

    #[inline(always)]
    fn bucket_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Asks for the bucket of a hash.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, hash: u64) {
        base::prefetch::read(&raw const self.buckets[self.bucket_of(hash)]);
    }

    /// Asks for the node that probably has the key's hash, and notes it.
    #[inline(always)]
    pub(crate) fn prefetch_node(&self, key: &mut Key) {
        let bucket = &self.buckets[self.bucket_of(key.hash)];
        let matches = bucket.matches(tag_of(key.hash));
        key.candidate = if matches == 0 { 0 } else { bucket.nodes[first(matches)] };
        let at = self.arena.as_ptr().wrapping_add(key.candidate as usize * UNIT_BYTES);
        base::prefetch::read(at);
        base::prefetch::read(at.wrapping_add(64));
    }

    #[inline(always)]
    pub(crate) fn entry(&self, unit: u32) -> Entry<'_> {
        Entry { unit, bytes: &self.arena[unit as usize * UNIT_BYTES..] }
    }

    /// The node of a question's name, which stands at `at` of `bytes`.
    #[inline(always)]
    pub(crate) fn find(&self, key: &Key, bytes: &[u8], at: usize, len: usize) -> Option<Entry<'_>> {
        if key.candidate != 0 {
            let entry = self.entry(key.candidate);
            if entry.is(key, bytes, at, len) {
                return Some(entry);
            }
        }
        self.search(key, bytes, at, len)
    }

    #[inline(never)]
    fn search(&self, key: &Key, bytes: &[u8], at: usize, len: usize) -> Option<Entry<'_>> {
        let mut bucket_at = self.bucket_of(key.hash);
        loop {
            let bucket = &self.buckets[bucket_at];
            let mut matches = bucket.matches(tag_of(key.hash));
            while matches != 0 {
                let entry = self.entry(bucket.nodes[first(matches)]);
                if entry.is(key, bytes, at, len) {
                    return Some(entry);
                }
                matches &= matches - 1;
            }
            if bucket.tags[OVERFLOWED_AT] == 0 {
                return None;
            }
            bucket_at = if bucket_at + 1 == self.buckets.len() { 0 } else { bucket_at + 1 };
        }
    }

    /// Every node, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let used = |bucket: &Bucket| bucket.tags[..BUCKET_ENTRIES].iter().take_while(|tag| **tag != 0).count();
        self.buckets.iter().flat_map(move |bucket| bucket.nodes[..used(bucket)].iter().map(|unit| self.entry(*unit)))
    }

    /// The node of a name, in any letter case.
    pub(crate) fn lookup(&self, wire: &[u8]) -> Option<Entry<'_>> {
        let (hash, short) = key::fold(self.seed, wire, 0, wire.len());
        self.search(&Key { hash, candidate: 0, short }, wire, 0, wire.len())
    }

    /// The node of the longest proper suffix that exists, for a name in wire form that does not. None is impossible but for
    /// tables without a zone.
    pub(crate) fn encloser(&self, wire: &[u8]) -> Option<Entry<'_>> {
        let mut starts = [0u8; 128];
        let (mut count, mut at) = (0, 0);
        while wire[at] != 0 {
            starts[count] = at as u8;
            count += 1;
            at += 1 + usize::from(wire[at]);
        }
        starts[count] = at as u8;
        // starts[low..] do not exist, starts[high..] do; the parent first, since most misses are one label off
        let (mut low, mut high) = (0, count + 1);
        let mut best = None;
        let mut probe = 1;
        while low + 1 < high {
            match self.lookup(&wire[usize::from(starts[probe])..]) {
                Some(entry) => (best, high) = (Some(entry), probe),
                None => low = probe,
            }
            probe = low.midpoint(high);
        }
        best
    }

    /// The zones' names, in the order they were given.
    pub fn zones(&self) -> impl ExactSizeIterator<Item = NameRef<'_>> {
        self.zones.iter().map(|entry| entry.zone.origin())
    }

    /// The zone of this name.
    pub fn zone(&self, origin: &Name) -> Option<&Zone> {
        self.zones.iter().map(|entry| &entry.zone).find(|zone| zone.origin() == origin.view())
    }

    /// The zone that a name exists in and the name's place in its canonical order: the index of its node, or, for an empty
    /// non-terminal, of the first node behind it.
    pub fn place(&self, name: NameRef<'_>) -> Option<(&Zone, usize)> {
        let entry = self.lookup(name.as_wire()).filter(|entry| !entry.has(flag::PHANTOM))?;
        Some((&self.zones[entry.zone() as usize].zone, entry.order() as usize))
    }

    /// How many names the table holds, empty non-terminals and phantoms included.
    pub fn names(&self) -> usize {
        self.names
    }

    /// Octets of memory, the zones included.
    pub fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
            + self.arena.capacity()
            + self.zones.iter().map(|entry| entry.zone.bytes() + size_of::<ZoneEntry>()).sum::<usize>()
    }
}

#[inline(always)]
fn tag_of(hash: u64) -> u8 {
    // 0 is an empty entry
    (hash as u8).max(1)
}

/// The entry that the lowest bit of [`Bucket::matches`] stands for.
#[inline(always)]
fn first(matches: u128) -> usize {
    (matches.trailing_zeros() / 8) as usize
}

impl Bucket {
    /// The high bit of each octet whose entry has this tag, and perhaps of one right above such an entry.
    #[inline(always)]
    fn matches(&self, tag: u8) -> u128 {
        const ONES: u64 = 0x0101_0101_0101_0101;
        let [low, high] = self.tags.as_chunks::<8>().0 else { return 0 };
        let zeros = |tags: &[u8; 8]| {
            let differ = u64::from_le_bytes(*tags) ^ (u64::from(tag) * ONES);
            differ.wrapping_sub(ONES) & !differ & (0x80 * ONES)
        };
        u128::from(zeros(low)) | u128::from(zeros(high) & 0x8080_8080) << 64
    }
}
