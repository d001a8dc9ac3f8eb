//! An engine thread's holds on versions of content, without an atomic count a call.
//!
//! A thread has one `Arc` for each version that it sends from, found by pointer, and a count of its own for what is queued.
//! The `Arc` of a live version stays when the count falls to zero, since the next answer wants it again; a
//! retired one goes with its last hold, or at the next [`Versions::sweep`].
//!
//! Chunks ([`Content::is_chunk`]) are many and come and go, so each hold of one has an `Arc` and a place of its own: no list is
//! searched, and the count that the atomic one keeps is what tells the chunk's cache that it is in use.

use crate::{Content, Lifetime, ObjectId};
use std::sync::Arc;

/// Marks places of chunks.
const CHUNK: u16 = 1 << 15;
const CHUNKS_MOST: usize = Versions::CHUNKS_MOST;

/// The place of a version or a chunk in its thread's lists, valid while something holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held(u16);

#[derive(Debug)]
struct Version {
    content: Arc<Content>,
    holds: u64,
}

/// The versions that one thread holds. A handful: the live one of each service, and those that drain.
#[derive(Debug)]
pub struct Versions {
    places: Vec<Option<Version>>,
    /// where the version of the last call stands
    last: usize,
    chunks: Vec<Option<Arc<Content>>>,
    free_chunks: Vec<u16>,
}

impl Default for Versions {
    fn default() -> Versions {
        // room that nothing touches until it is used
        let (chunks, free_chunks) = (Vec::with_capacity(CHUNKS_MOST), Vec::with_capacity(CHUNKS_MOST));
        Versions { places: Vec::new(), last: 0, chunks, free_chunks }
    }
}

impl Versions {
    /// Holds of chunks that one thread has at most: 2 GiB of whole ones.
    pub const CHUNKS_MOST: usize = CHUNK as usize;

    /// Holds nothing.
    pub fn new() -> Versions {
        Versions::default()
    }

    /// Holds a version, or a chunk, once more; None when there are too many holds of chunks.
    #[inline]
    pub fn hold(&mut self, content: &Arc<Content>) -> Option<Held> {
        if content.is_chunk() {
            return self.hold_chunk(content);
        }
        let is = |place: &Option<Version>| place.as_ref().is_some_and(|version| Arc::ptr_eq(&version.content, content));
        if !self.places.get(self.last).is_some_and(is) {
            self.last = self.places.iter().position(is).unwrap_or_else(|| self.add(content));
        }
        if let Some(Some(version)) = self.places.get_mut(self.last) {
            version.holds += 1;
        }
        Some(Held(self.last as u16))
    }

    /// Chunks that can be held beside those that are.
    #[inline]
    pub fn chunks_left(&self) -> usize {
        CHUNKS_MOST - self.chunks.len() + self.free_chunks.len()
    }

    fn hold_chunk(&mut self, content: &Arc<Content>) -> Option<Held> {
        let place = match self.free_chunks.pop() {
            Some(place) => place,
            None if self.chunks.len() < CHUNKS_MOST => {
                self.chunks.push(None);
                (self.chunks.len() - 1) as u16
            }
            None => return None,
        };
        self.chunks[usize::from(place)] = Some(content.clone());
        Some(Held(CHUNK | place))
    }

    #[cold]
    fn add(&mut self, content: &Arc<Content>) -> usize {
        let at = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        assert!(at < usize::from(CHUNK), "versions are retired long before there are so many");
        self.places[at] = Some(Version { content: content.clone(), holds: 0 });
        at
    }

    /// The version that is held.
    ///
    /// # Panics
    /// When it is not.
    #[inline]
    pub fn content(&self, held: Held) -> &Arc<Content> {
        let content = if held.0 & CHUNK == 0 {
            self.places[usize::from(held.0)].as_ref().map(|version| &version.content)
        } else {
            self.chunks[usize::from(held.0 & !CHUNK)].as_ref()
        };
        match content {
            Some(content) => content,
            None => panic!("{held:?} was released before"),
        }
    }

    /// Gives one hold back; the last one of a retired version lets it go.
    ///
    /// # Panics
    /// When it is not held.
    #[inline]
    pub fn release(&mut self, held: Held) {
        if held.0 & CHUNK != 0 {
            return self.release_chunk(held);
        }
        let place = &mut self.places[usize::from(held.0)];
        match place {
            Some(version) if version.holds > 0 => {
                version.holds -= 1;
                if version.holds == 0 && version.content.lifetime() != Lifetime::Live {
                    *place = None;
                }
            }
            _ => panic!("{held:?} was released before"),
        }
    }

    fn release_chunk(&mut self, held: Held) {
        let place = held.0 & !CHUNK;
        let chunk = self.chunks[usize::from(place)].take();
        assert!(chunk.is_some(), "{held:?} was released before");
        self.free_chunks.push(place);
    }

    /// Whether this version's time to drain is over; that of a chunk never is.
    #[inline]
    pub fn is_expired(&self, held: Held) -> bool {
        self.content(held).lifetime() == Lifetime::Expired
    }

    /// Holds an object of an expired version as the same one of the version in its place from now on; None where that has none, and what
    /// was held still is.
    #[cold]
    pub fn carry(&mut self, held: Held, object: ObjectId) -> Option<(Held, ObjectId)> {
        let content = self.content(held).clone();
        let (live, object) = content.successor(object)?;
        let next = self.hold(live)?;
        self.release(held);
        Some((next, object))
    }

    /// Lets go of what was retired and is not held. Called once a cycle; true when an expired version is still held: what can be is
    /// carried over ([`Versions::carry`]), and the connections that hold anything else of it are to be aborted.
    #[inline]
    pub fn sweep(&mut self) -> bool {
        let mut overdue = false;
        for place in &mut self.places {
            let Some(version) = place else { continue };
            match version.content.lifetime() {
                Lifetime::Live => {}
                _ if version.holds == 0 => *place = None,
                Lifetime::Retired => {}
                Lifetime::Expired => overdue = true,
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ContentBuilder;

    fn version(text: &[u8]) -> Arc<Content> {
        let mut builder = ContentBuilder::new();
        builder.add(text);
        builder.finish()
    }

    #[test]
    fn a_call_touches_no_atomic_count() {
        let (mut versions, content) = (Versions::new(), version(b"a"));
        let first = versions.hold(&content).unwrap();
        assert_eq!(Arc::strong_count(&content), 2);
        for _ in 0..10 {
            let held = versions.hold(&content).unwrap();
            assert!(held == first && Arc::ptr_eq(versions.content(held), &content));
            versions.release(held);
        }
        versions.release(first);
        assert!(!versions.sweep());
        assert_eq!(Arc::strong_count(&content), 2);
    }

    #[test]
    fn a_retired_version_goes_with_its_last_hold() {
        let (mut versions, old, new) = (Versions::new(), version(b"old"), version(b"new"));
        let held_old = versions.hold(&old).unwrap();
        old.retire();
        let held_new = versions.hold(&new).unwrap();
        assert!(!versions.sweep() && Arc::strong_count(&old) == 2);
        versions.release(held_old);
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&new)), (1, 2));
        // its place is used again
        assert_eq!(versions.hold(&version(b"third")).unwrap(), held_old);
        assert!(Arc::ptr_eq(versions.content(held_new), &new));
    }

    #[test]
    fn an_expired_version_is_told_until_it_is_free() {
        let (mut versions, content) = (Versions::new(), version(b"a"));
        let held = versions.hold(&content).unwrap();
        content.expire();
        assert!(versions.sweep() && versions.is_expired(held));
        versions.release(held);
        assert!(!versions.sweep());
        assert_eq!(Arc::strong_count(&content), 1);
    }

    #[test]
    fn what_the_next_version_shares_is_held_on_as_its_own() {
        let (mut versions, old) = (Versions::new(), version(b"a"));
        let mut builder = ContentBuilder::new();
        builder.add(b"before it");
        let place = builder.add_shared(&old, ObjectId(0));
        let live = builder.finish();
        let holds = [0; 2].map(|_| versions.hold(&old).unwrap());
        old.expire_for(&live);
        assert!(versions.sweep());
        let carried = holds.map(|held| versions.carry(held, ObjectId(0)).unwrap());
        assert!(carried.iter().all(|(held, object)| Arc::ptr_eq(versions.content(*held), &live) && *object == place));
        assert!(!versions.sweep());
        assert_eq!(Arc::strong_count(&old), 1);
        carried.iter().for_each(|(held, _)| versions.release(*held));
        // what nobody has taken the place of cannot
        let held = versions.hold(&live).unwrap();
        live.expire();
        assert!(versions.carry(held, place).is_none() && versions.sweep());
    }

    #[test]
    fn a_version_that_is_retired_while_nothing_holds_it_goes_at_the_sweep() {
        let (mut versions, content) = (Versions::new(), version(b"a"));
        let held = versions.hold(&content).unwrap();
        versions.release(held);
        content.retire();
        assert_eq!(Arc::strong_count(&content), 2);
        assert!(!versions.sweep());
        assert_eq!(Arc::strong_count(&content), 1);
    }

    #[test]
    #[should_panic(expected = "released before")]
    fn a_hold_is_released_once() {
        let mut versions = Versions::new();
        let held = versions.hold(&version(b"a")).unwrap();
        versions.release(held);
        versions.release(held);
    }

    fn chunk(byte: u8) -> Arc<Content> {
        let fill = |memory: &mut [u8]| {
            memory.fill(byte);
            Ok::<_, ()>(())
        };
        ContentBuilder::chunk(3, fill).unwrap()
    }

    #[test]
    fn every_hold_of_a_chunk_counts_and_none_outlives_its_release() {
        let (mut versions, one, other) = (Versions::new(), chunk(1), chunk(2));
        let held = [&one, &other, &one].map(|chunk| versions.hold(chunk).unwrap());
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (3, 2));
        assert_eq!(held.map(|held| versions.content(held).bytes(crate::ObjectId(0))[0]), [1, 2, 1]);
        one.expire();
        // a chunk has no time to drain
        assert!(!versions.sweep());
        versions.release(held[0]);
        assert_eq!((Arc::strong_count(&one), versions.content(held[2]).bytes(crate::ObjectId(0))[0]), (2, 1));
        let again = versions.hold(&other).unwrap();
        assert_eq!(again, held[0]);
        [again, held[1], held[2]].into_iter().for_each(|held| versions.release(held));
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1));
    }

    #[test]
    fn holds_of_chunks_have_a_bound() {
        let (mut versions, chunk, version) = (Versions::new(), chunk(7), version(b"a"));
        let held: Vec<Held> = (0..CHUNKS_MOST).map(|_| versions.hold(&chunk).unwrap()).collect();
        assert_eq!(versions.hold(&chunk), None);
        assert!(versions.hold(&version).is_some());
        versions.release(held[77]);
        assert_eq!(versions.hold(&chunk), Some(held[77]));
    }

    #[test]
    #[should_panic(expected = "released before")]
    fn a_hold_of_a_chunk_is_released_once() {
        let mut versions = Versions::new();
        let held = versions.hold(&chunk(1)).unwrap();
        versions.release(held);
        versions.release(held);
    }
}
