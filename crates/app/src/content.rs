//! Immutable bytes that answers are made of: what [`Streams::sendv`](crate::Streams::sendv) sends without copying.
//!
//! A [`Content`] is one version of everything a service may send: its objects never change and never move, so an engine can
//! make any segment again from (object, offset) until its last byte is acknowledged, and keeps no copy. Checksum sums are
//! prepared when an object is added: a prefix sum at every [`STRIDE_BYTES`], so that any range costs two numbers and at most
//! two partial strides, however long it is.
//!
//! Ownership: an object's bytes belong to every version that has it; a version, to whoever holds its `Arc`. Engines hold a
//! version by [`Versions`](crate::Versions), with counts of their own thread, as long as anything of it is queued.
//!
//! A chunk is content too, of one object: a part of something that is too large to be held, read when it is wanted. It belongs
//! to no version, and whoever cached it gets it back when nothing of it is queued any more. Who owns one alone may write it anew
//! ([`Content::rewrite`]): what is held elsewhere never changes.
//!
//! Left out: loading. Whoever builds a version reads the files.

use std::collections::HashMap;
use std::fmt;
use std::ops;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use wire::checksum::Sum;

/// Bytes between two prefix sums: 2 bytes of sums for 256 of content, and a range's ends cost a quarter of this on average.
const STRIDE_BYTES: usize = 256;

/// Objects from this size on are not taken for cached.
const FORESEEN_OBJECT_BYTES: usize = 2 << 20;

/// An object of one [`Content`]: its number in the order of adding, without meaning in another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// How a version stands to its successors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// new answers are made of it
    Live,
    /// a newer version has taken its place: engines let it go as soon as nothing of it is queued
    Retired,
    /// its time to drain is over: engines abort the connections that still hold what its successor has not
    Expired,
}

#[derive(Clone)]
struct Object {
    bytes: Arc<[u8]>,
    /// sums[n]: the sum of the first (n + 1) strides; empty for an object shorter than one
    sums: Arc<[u16]>,
}

impl Object {
    fn new(bytes: Arc<[u8]>) -> Object {
        let mut sum = Sum::ZERO;
        let strides = bytes.as_chunks::<STRIDE_BYTES>().0;
        let prefix = strides.iter().map(|stride| {
            sum = sum.bytes(stride);
            number(sum)
        });
        Object { sums: prefix.collect(), bytes }
    }

    /// The sum of the first `end` bytes, from the prefix sum nearest to it.
    #[inline]
    fn sum_to(&self, end: usize) -> Sum {
        let strides = ((end + STRIDE_BYTES / 2) / STRIDE_BYTES).min(self.sums.len());
        let at = strides * STRIDE_BYTES;
        let prefix = strides.checked_sub(1).map_or(Sum::ZERO, |n| Sum::ZERO.word(self.sums[n]));
        if at <= end {
            prefix.bytes(&self.bytes[at..end])
        } else {
            prefix.word(!number(Sum::ZERO.part(end, &self.bytes[end..at])))
        }
    }

    /// Writes bytes where nobody else holds the object, and sums what they stand in anew.
    fn rewrite(&mut self, start: usize, bytes: &[u8]) -> bool {
        let (Some(memory), Some(sums)) = (Arc::get_mut(&mut self.bytes), Arc::get_mut(&mut self.sums)) else {
            return false;
        };
        let end = start + bytes.len();
        memory[start..end].copy_from_slice(bytes);
        let first = start / STRIDE_BYTES;
        let mut sum = first.checked_sub(1).map_or(Sum::ZERO, |n| Sum::ZERO.word(sums[n]));
        // the stride of the last byte too: a sum up to there is taken from the nearest stride, which may end behind it
        let strides = memory.as_chunks::<STRIDE_BYTES>().0.iter().zip(sums).enumerate();
        for (_, (stride, place)) in strides.take(end.div_ceil(STRIDE_BYTES)).skip(first) {
            sum = sum.bytes(stride);
            *place = number(sum);
        }
        true
    }

    fn sum(&self, range: ops::Range<usize>) -> u16 {
        assert!(range.start <= range.end && range.end <= self.bytes.len(), "bytes {range:?} of {}", self.bytes.len());
        if range.len() <= 2 * STRIDE_BYTES {
            return number(Sum::of(&self.bytes[range]));
        }
        let sum = self.sum_to(range.end).word(!number(self.sum_to(range.start)));
        // bytes from an odd offset stand in the other half of their words (RFC 1071 section 2 (B))
        number(if range.start.is_multiple_of(2) { sum } else { sum.swapped() })
    }
}

/// Parts of an object one behind the other: the sum up to where one ends is the sum up to where the next begins, so each costs
/// one prefix sum and not two.
#[derive(Clone, Copy)]
pub struct Parts<'c> {
    object: &'c Object,
    at: usize,
    /// of all before
    sum: Sum,
}

impl<'c> Parts<'c> {
    /// The next `bytes` bytes, and their sum as [`Content::sum`] has it.
    ///
    /// # Panics
    /// When the object is shorter.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> (&'c [u8], u16) {
        let end = self.at + bytes;
        let part = &self.object.bytes[self.at..end];
        let all = self.object.sum_to(end);
        let sum = all.word(!number(self.sum));
        // as in `Object::sum`
        let sum = number(if self.at.is_multiple_of(2) { sum } else { sum.swapped() });
        (self.at, self.sum) = (end, all);
        (part, sum)
    }

    /// Asks for what the sum up to `ahead` bytes from here is made of, where the object is larger than caches are: who reads the sums
    /// alone jumps from one part's end to the next, which no processor foresees.
    #[inline]
    pub fn foresee(&self, ahead: usize) {
        let end = self.at + ahead;
        if self.object.bytes.len() < FORESEEN_OBJECT_BYTES || end >= self.object.bytes.len() {
            return;
        }
        let strides = (end + STRIDE_BYTES / 2) / STRIDE_BYTES;
        base::prefetch::read(self.object.sums.as_ptr().wrapping_add(strides));
        let (from, to) = (end.min(strides * STRIDE_BYTES), end.max(strides * STRIDE_BYTES));
        for line in (from..to).step_by(base::CACHE_LINE_BYTES) {
            base::prefetch::read(self.object.bytes.as_ptr().wrapping_add(line));
        }
        base::prefetch::read(self.object.bytes.as_ptr().wrapping_add(to));
    }

    /// Where the next part begins.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }
}

impl fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts(at {} of {})", self.at, self.object.bytes.len())
    }
}

/// A sum as a number, the first byte high.
#[inline]
fn number(sum: Sum) -> u16 {
    u16::from_be_bytes(sum.partial())
}

/// One version of a service's immutable objects.
pub struct Content {
    objects: Box<[Object]>,
    lifetime: AtomicU8,
    chunk: bool,
    successor: OnceLock<Successor>,
}

/// The version that has an expired one's place, and where it has the objects of that.
struct Successor {
    live: Arc<Content>,
    /// [`NOWHERE`] for those that it has not
    places: Box<[u32]>,
}

const NOWHERE: u32 = u32::MAX;

impl Successor {
    fn of(old: &Content, live: &Arc<Content>) -> Successor {
        // shared memory is what makes two of them one
        let address = |object: &Object| object.bytes.as_ptr().addr();
        let places: HashMap<usize, u32> = live.objects.iter().map(address).zip(0..).collect();
        let place = |object: &Object| places.get(&address(object)).copied().filter(|_| !object.bytes.is_empty());
        Successor {
            live: live.clone(),
            places: old.objects.iter().map(|object| place(object).unwrap_or(NOWHERE)).collect(),
        }
    }
}

impl Content {
    /// An object's bytes.
    ///
    /// # Panics
    /// When this version has no such object; [`Content::get`] asks.
    #[inline]
    pub fn bytes(&self, id: ObjectId) -> &[u8] {
        &self.objects[id.0 as usize].bytes
    }

    /// An object's bytes, if this version has it.
    #[inline]
    pub fn get(&self, id: ObjectId) -> Option<&[u8]> {
        self.objects.get(id.0 as usize).map(|object| &*object.bytes)
    }

    /// An object's bytes as they are shared, for who keeps them longer than this version.
    ///
    /// # Panics
    /// When this version has no such object.
    #[inline]
    pub fn shared(&self, id: ObjectId) -> &Arc<[u8]> {
        &self.objects[id.0 as usize].bytes
    }

    /// An object in parts one behind the other, from the byte at `start` on.
    ///
    /// # Panics
    /// When this version has no such object, or it is shorter.
    #[inline]
    pub fn parts(&self, id: ObjectId, start: usize) -> Parts<'_> {
        let object = &self.objects[id.0 as usize];
        Parts { object, at: start, sum: object.sum_to(start) }
    }

    /// The one's complement sum of a range of an object (RFC 1071): folded, not inverted, as a number whose high half is the
    /// sum's first byte, and as if the range began at an even offset. The empty sum is 0; a sum that is a multiple of 0xffff
    /// is given as 0 or 0xffff, which are the same number in one's complement.
    ///
    /// # Panics
    /// When this version has no such object, or the range is not inside it.
    #[inline]
    pub fn sum(&self, id: ObjectId, range: ops::Range<usize>) -> u16 {
        self.objects[id.0 as usize].sum(range)
    }

    /// How many objects there are; their numbers are the ones below.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Bytes of memory that the objects and their sums take, those shared with other versions counted in full.
    pub fn memory_bytes(&self) -> u64 {
        self.objects.iter().map(|object| memory_bytes(object.bytes.len())).sum()
    }

    /// Whether it is a chunk, which belongs to no version.
    #[inline]
    pub fn is_chunk(&self) -> bool {
        self.chunk
    }

    /// How this version stands to its successors.
    #[inline]
    pub fn lifetime(&self) -> Lifetime {
        match self.lifetime.load(Ordering::Relaxed) {
            0 => Lifetime::Live,
            1 => Lifetime::Retired,
            _ => Lifetime::Expired,
        }
    }

    /// Writes `bytes` at `start` of a chunk of which nobody else has a hold; false, and nothing is written, when somebody has.
    /// Bytes are to be written from the beginning on: behind those that were written last, sums may be those of what stood there
    /// before.
    ///
    /// # Panics
    /// When it is no chunk, or shorter.
    #[must_use]
    pub fn rewrite(chunk: &mut Arc<Content>, start: usize, bytes: &[u8]) -> bool {
        assert!(chunk.chunk, "versions never change");
        Arc::get_mut(chunk).is_some_and(|content| content.objects[0].rewrite(start, bytes))
    }

    /// Says that a newer version has taken its place. Engines let it go at their next cycle in which nothing of it is queued.
    pub fn retire(&self) {
        self.lifetime.fetch_max(1, Ordering::Relaxed);
    }

    /// Says that its time to drain is over. Engines abort the connections that still hold it.
    pub fn expire(&self) {
        self.lifetime.fetch_max(2, Ordering::Release);
    }

    /// The same, where `live` has its place by now: what both share goes on being sent as that one's, so that a connection ends only over
    /// what was replaced.
    pub fn expire_for(&self, live: &Arc<Content>) {
        self.successor.get_or_init(|| Successor::of(self, live));
        self.expire();
    }

    /// Where the version that has an expired one's place has an object of it, if it shares that.
    pub fn successor(&self, id: ObjectId) -> Option<(&Arc<Content>, ObjectId)> {
        // with what was said before it expired
        self.lifetime.load(Ordering::Acquire);
        let Successor { live, places } = self.successor.get()?;
        let place = *places.get(id.0 as usize)?;
        (place != NOWHERE).then_some((live, ObjectId(place)))
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} objects, {:?})", self.objects.len(), self.lifetime())
    }
}

/// Bytes of memory that an object of `bytes` bytes takes with its sums, known before it is loaded.
pub const fn memory_bytes(bytes: usize) -> u64 {
    let arc_counts = 2 * size_of::<usize>();
    (size_of::<Object>() + 2 * arc_counts + bytes + bytes / STRIDE_BYTES * size_of::<u16>()) as u64
}

/// Puts a [`Content`] together.
#[derive(Default)]
pub struct ContentBuilder {
    objects: Vec<Object>,
}

impl ContentBuilder {
    /// Nothing yet.
    pub fn new() -> ContentBuilder {
        ContentBuilder::default()
    }

    /// Adds an object with a copy of `bytes`.
    ///
    /// # Panics
    /// With more objects than a number of 32 bits can tell apart.
    pub fn add(&mut self, bytes: &[u8]) -> ObjectId {
        let mut memory = base::huge::shared(bytes.len());
        Arc::get_mut(&mut memory).expect("made above, and not shared yet").copy_from_slice(bytes);
        self.push(Object::new(memory))
    }

    /// Adds an object of `bytes` bytes that `fill` writes, all zero at first, such as a file read in place. When it fails,
    /// nothing is added.
    ///
    /// # Errors
    /// What `fill` says.
    pub fn add_with<E>(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<ObjectId, E> {
        let mut memory = base::huge::shared(bytes);
        fill(Arc::get_mut(&mut memory).expect("made above, and not shared yet"))?;
        Ok(self.push(Object::new(memory)))
    }

    /// Adds an object of another version, whose memory both then share.
    ///
    /// # Panics
    /// When that version has no such object.
    pub fn add_shared(&mut self, from: &Content, id: ObjectId) -> ObjectId {
        self.push(from.objects[id.0 as usize].clone())
    }

    /// The bytes of an object that was added.
    ///
    /// # Panics
    /// When there is none such.
    pub fn bytes(&self, id: ObjectId) -> &[u8] {
        &self.objects[id.0 as usize].bytes
    }

    fn push(&mut self, object: Object) -> ObjectId {
        let id = u32::try_from(self.objects.len()).expect("fewer than 2^32 objects");
        self.objects.push(object);
        ObjectId(id)
    }

    fn into_content(self, chunk: bool) -> Arc<Content> {
        let (objects, lifetime, successor) = (self.objects.into(), AtomicU8::new(0), OnceLock::new());
        Arc::new(Content { objects, lifetime, chunk, successor })
    }

    /// The version, with what was added.
    pub fn finish(self) -> Arc<Content> {
        self.into_content(false)
    }

    /// A chunk of `bytes` bytes that `fill` writes, all zero at first; its one object is the first.
    ///
    /// # Errors
    /// What `fill` says.
    pub fn chunk<E>(bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Arc<Content>, E> {
        let mut builder = ContentBuilder::new();
        builder.add_with(bytes, fill)?;
        Ok(builder.into_content(true))
    }
}

impl fmt::Debug for ContentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentBuilder({} objects)", self.objects.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 1, word for word, with zero in one form.
    fn twin(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        one_zero(sum as u16)
    }

    fn one_zero(sum: u16) -> u16 {
        if sum == 0xffff { 0 } else { sum }
    }

    fn content(bytes: &[u8]) -> Arc<Content> {
        let mut builder = ContentBuilder::new();
        builder.add(b"another object");
        builder.add(bytes);
        builder.finish()
    }

    proptest! {
        #[test]
        fn sums_of_any_range_are_the_naive_sum(
            bytes in prop::collection::vec(any::<u8>(), 0..5000), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()
        ) {
            let (a, b) = (a.index(bytes.len() + 1), b.index(bytes.len() + 1));
            let range = a.min(b)..a.max(b);
            let content = content(&bytes);
            let whole = content.sum(ObjectId(1), 0..bytes.len());
            prop_assert_eq!(one_zero(whole), twin(&bytes));
            prop_assert_eq!(one_zero(content.sum(ObjectId(1), range.clone())), twin(&bytes[range]));
        }

        /// The places where a range's ends change the way they are summed: at strides and half strides, odd and even.
        #[test]
        fn sums_at_the_strides_edges(
            byte in any::<u8>(), start in 0usize..9, end in 0usize..9, skew in 0usize..5, other_skew in 0usize..5, tail in 0usize..3
        ) {
            let bytes: Vec<u8> = (0..2048 + tail).map(|n| byte.wrapping_mul(31).wrapping_add((n * 7 % 251) as u8)).collect();
            let at = |edge: usize| edge.min(bytes.len());
            let (a, b) = (at((start * 256 + skew).saturating_sub(2)), at(end * 256 + other_skew + 126));
            let range = a.min(b)..a.max(b);
            let content = content(&bytes);
            prop_assert_eq!(one_zero(content.sum(ObjectId(1), range.clone())), twin(&bytes[range]));
        }
    }

    proptest! {
        #[test]
        fn parts_are_the_object_in_order_with_their_sums(
            bytes in prop::collection::vec(any::<u8>(), 0..5000), start in any::<prop::sample::Index>(), parts in prop::collection::vec(0usize..1600, 0..9)
        ) {
            let content = content(&bytes);
            let mut at = start.index(bytes.len() + 1);
            let mut walk = content.parts(ObjectId(1), at);
            for part in parts {
                let part = part.min(bytes.len() - at);
                walk.foresee(part);
                let (found, sum) = walk.take(part);
                prop_assert_eq!(found, &bytes[at..at + part]);
                prop_assert_eq!(one_zero(sum), twin(found));
                at += part;
                prop_assert_eq!(walk.at(), at);
            }
        }
    }

    #[test]
    fn sums_of_zeros_and_of_all_ones() {
        for fill in [0, 0xff] {
            let bytes = vec![fill; 3001];
            let content = content(&bytes);
            for range in [0..0, 3001..3001, 0..1, 0..3001, 1..3000, 7..2048, 256..2560] {
                assert_eq!(one_zero(content.sum(ObjectId(1), range.clone())), twin(&bytes[range]));
            }
        }
        assert_eq!(content(&[0; 700]).sum(ObjectId(1), 9..9), 0);
    }

    #[test]
    fn a_range_outside_its_object_is_refused() {
        let content = content(&[1; 1000]);
        assert!(std::panic::catch_unwind(|| content.sum(ObjectId(1), 0..1001)).is_err());
        assert!(std::panic::catch_unwind(|| content.sum(ObjectId(2), 0..0)).is_err());
        assert_eq!(content.get(ObjectId(2)), None);
    }

    #[test]
    fn a_new_version_shares_what_did_not_change() {
        let mut builder = ContentBuilder::new();
        let same = builder.add(b"the same");
        let old = builder.finish();
        let mut builder = ContentBuilder::new();
        let new_id = builder.add(b"new");
        let same_id = builder.add_shared(&old, same);
        let new = builder.finish();
        assert_eq!((new.bytes(new_id), new.bytes(same_id)), (&b"new"[..], &b"the same"[..]));
        assert_eq!(new.bytes(same_id).as_ptr(), old.bytes(same).as_ptr());
        drop(old);
        assert_eq!(new.bytes(same_id), b"the same");
    }

    #[test]
    fn an_object_is_filled_in_place_or_not_added() {
        let mut builder = ContentBuilder::new();
        assert_eq!(builder.add_with(4, |_| Err("unreadable")), Err("unreadable"));
        let fill = |memory: &mut [u8]| {
            assert_eq!(memory, [0; 600]);
            memory.fill(7);
            Ok::<_, ()>(())
        };
        assert_eq!(builder.add_with(600, fill), Ok(ObjectId(0)));
        let content = builder.finish();
        assert_eq!((content.objects(), content.bytes(ObjectId(0))), (1, &[7; 600][..]));
        assert_eq!(content.sum(ObjectId(0), 0..600), twin(&[7; 600]));
        assert!(content.memory_bytes() >= 604);
    }

    proptest! {
        #[test]
        fn a_chunk_that_is_written_anew_has_the_sums_of_what_stands_there(
            old in prop::collection::vec(any::<u8>(), 4096), new in prop::collection::vec(any::<u8>(), 0..=4096),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
            a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()
        ) {
            let mut chunk = ContentBuilder::chunk(4096, |memory| { memory.copy_from_slice(&old); Ok::<_, ()>(()) }).unwrap();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(new.len() + 1)).chain([0, new.len()]).collect();
            cuts.sort_unstable();
            for part in cuts.windows(2) {
                prop_assert!(Content::rewrite(&mut chunk, part[0], &new[part[0]..part[1]]));
            }
            prop_assert_eq!(&chunk.bytes(ObjectId(0))[..new.len()], &new[..]);
            prop_assert_eq!(&chunk.bytes(ObjectId(0))[new.len()..], &old[new.len()..]);
            let (a, b) = (a.index(new.len() + 1), b.index(new.len() + 1));
            let range = a.min(b)..a.max(b);
            prop_assert_eq!(one_zero(chunk.sum(ObjectId(0), range.clone())), twin(&new[range]));
        }
    }

    #[test]
    fn a_chunk_that_somebody_holds_is_not_written() {
        let mut chunk = ContentBuilder::chunk(10, |_| Ok::<_, ()>(())).unwrap();
        let held = chunk.clone();
        assert!(!Content::rewrite(&mut chunk, 0, b"new"));
        assert_eq!(held.bytes(ObjectId(0)), [0; 10]);
        drop(held);
        assert!(Content::rewrite(&mut chunk, 0, b"new"));
        assert_eq!(&chunk.bytes(ObjectId(0))[..4], b"new\0");
    }

    #[test]
    fn an_expired_version_tells_where_its_successor_has_what_both_share() {
        let mut builder = ContentBuilder::new();
        let [gone, kept, empty] = [&b"gone"[..], b"kept", b""].map(|bytes| builder.add(bytes));
        let old = builder.finish();
        let mut builder = ContentBuilder::new();
        // the same octets, and not the same memory
        let (_, _, kept_id) = (builder.add(b"gone"), builder.add(b""), builder.add_shared(&old, kept));
        let live = builder.finish();
        assert!(old.successor(kept).is_none());
        old.expire_for(&live);
        assert_eq!(old.lifetime(), Lifetime::Expired);
        let (content, id) = old.successor(kept).unwrap();
        assert!(Arc::ptr_eq(content, &live) && id == kept_id);
        assert!([gone, empty, ObjectId(9)].iter().all(|id| old.successor(*id).is_none()));
        // and the first word holds
        old.expire_for(&content.clone());
        assert_eq!(Arc::strong_count(&live), 2);
    }

    #[test]
    fn a_lifetime_only_goes_on() {
        let content = ContentBuilder::new().finish();
        assert_eq!(content.lifetime(), Lifetime::Live);
        content.expire();
        content.retire();
        assert_eq!(content.lifetime(), Lifetime::Expired);
    }
}
