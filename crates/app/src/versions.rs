//! An engine thread's holds on versions of content, without an atomic count a call.
//!
//! A thread has one `Arc` for each version that it sends from, found by pointer, and a count of its own for what is queued.
//! The `Arc` of a live version stays when the count falls to zero, since the next answer wants it again; a
//! retired one goes with its last hold, or at the next [`Versions::sweep`].

use crate::{Content, Lifetime};
use std::sync::Arc;

/// A version's place in its thread's list, valid while something holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held(u16);

#[derive(Debug)]
struct Version {
    content: Arc<Content>,
    holds: u64,
}

/// The versions that one thread holds. A handful: the live one of each service, and those that drain.
#[derive(Debug, Default)]
pub struct Versions {
    places: Vec<Option<Version>>,
    /// where the version of the last call stands
    last: usize,
}

impl Versions {
    /// Holds nothing.
    pub fn new() -> Versions {
        Versions::default()
    }

    /// Holds a version once more.
    #[inline]
    pub fn hold(&mut self, content: &Arc<Content>) -> Held {
        let is = |place: &Option<Version>| place.as_ref().is_some_and(|version| Arc::ptr_eq(&version.content, content));
        if !self.places.get(self.last).is_some_and(is) {
            self.last = self.places.iter().position(is).unwrap_or_else(|| self.add(content));
        }
        if let Some(Some(version)) = self.places.get_mut(self.last) {
            version.holds += 1;
        }
        Held(self.last as u16)
    }

    #[cold]
    fn add(&mut self, content: &Arc<Content>) -> usize {
        let at = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        assert!(at <= usize::from(u16::MAX), "versions are retired long before there are so many");
        self.places[at] = Some(Version { content: content.clone(), holds: 0 });
        at
    }

    /// The version that is held.
    ///
    /// # Panics
    /// When it is not.
    #[inline]
    pub fn content(&self, held: Held) -> &Arc<Content> {
        match &self.places[usize::from(held.0)] {
            Some(version) => &version.content,
            None => panic!("{held:?} was released before"),
        }
    }

    /// Gives one hold back; the last one of a retired version lets it go.
    ///
    /// # Panics
    /// When it is not held.
    #[inline]
    pub fn release(&mut self, held: Held) {
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

    /// Whether this version's time to drain is over.
    #[inline]
    pub fn is_expired(&self, held: Held) -> bool {
        self.content(held).lifetime() == Lifetime::Expired
    }

    /// Lets go of what was retired and is not held. Called once a cycle; true when an expired version is still held, whose
    /// connections are to be aborted.
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
        let first = versions.hold(&content);
        assert_eq!(Arc::strong_count(&content), 2);
        for _ in 0..10 {
            let held = versions.hold(&content);
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
        let held_old = versions.hold(&old);
        old.retire();
        let held_new = versions.hold(&new);
        assert!(!versions.sweep() && Arc::strong_count(&old) == 2);
        versions.release(held_old);
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&new)), (1, 2));
        // its place is used again
        assert_eq!(versions.hold(&version(b"third")), held_old);
        assert!(Arc::ptr_eq(versions.content(held_new), &new));
    }

    #[test]
    fn an_expired_version_is_told_until_it_is_free() {
        let (mut versions, content) = (Versions::new(), version(b"a"));
        let held = versions.hold(&content);
        content.expire();
        assert!(versions.sweep() && versions.is_expired(held));
        versions.release(held);
        assert!(!versions.sweep());
        assert_eq!(Arc::strong_count(&content), 1);
    }

    #[test]
    fn a_version_that_is_retired_while_nothing_holds_it_goes_at_the_sweep() {
        let (mut versions, content) = (Versions::new(), version(b"a"));
        let held = versions.hold(&content);
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
        let held = versions.hold(&version(b"a"));
        versions.release(held);
        versions.release(held);
    }
}
