//! What is asked for soon.
//!
//! The engine tells of a burst before it hands it over. The memory of its keys is asked for some requests before their turn, so that cache
//! misses overlap, and not for the whole burst at once ([`base::prefetch`] has why). It is asked for some keys together, since a lock waits
//! for all that was asked for before it; and behind a request, so that what follows in the engine, which takes no lock, has its time for
//! that.

use crate::store::{Foreseen, Store};
use arrayvec::ArrayVec;
use base::BURST_FRAMES;
use std::num::NonZeroU64;

/// Every so many requests, memory is asked for.
const TOGETHER: usize = 4;
/// Then, a key's bucket is asked for when its request is less than so many away, and its item, for which the bucket is read.
const BUCKETS_AHEAD: usize = 12;
const ITEMS_AHEAD: usize = 8;

/// Keys of requests that come.
#[derive(Default)]
pub(super) struct Ahead {
    /// each with the number of its request
    keys: ArrayVec<(usize, Foreseen), BURST_FRAMES>,
    /// requests that have come
    come: usize,
    /// keys of requests that have come
    behind: usize,
    /// keys whose buckets were asked for, and of these those whose items were
    buckets: usize,
    items: usize,
}

impl Ahead {
    /// A burst is told of: what was told of before has come, or does not come any more.
    pub(super) fn begin(&mut self) {
        self.keys.clear();
        (self.come, self.behind, self.buckets, self.items) = (0, 0, 0, 0);
    }

    /// Keys that there is room for.
    pub(super) fn room(&self) -> usize {
        self.keys.remaining_capacity()
    }

    /// A key of the request of this number, behind all those before.
    pub(super) fn push(&mut self, request: usize, key: Foreseen) {
        self.keys.push((request, key));
    }

    /// A request comes: the hash of its first key, if that was told of and nobody is missing. One that does not come makes those behind it
    /// be taken for others, and be asked for later.
    #[inline]
    pub(super) fn come(&mut self) -> Option<NonZeroU64> {
        let request = self.come;
        self.come += 1;
        let of = |at: usize| self.keys.get(at).map(|(of, key)| (*of, key.hash));
        while of(self.behind).is_some_and(|(of, _)| of < request) {
            self.behind += 1;
        }
        of(self.behind).filter(|(of, _)| *of == request).and_then(|(_, hash)| NonZeroU64::new(hash))
    }

    /// Asks for what is due.
    #[inline]
    pub(super) fn ask(&mut self, store: &Store) {
        if self.items < self.keys.len() && self.come.is_multiple_of(TOGETHER) {
            self.ask_some(store);
        }
    }

    fn ask_some(&mut self, store: &Store) {
        let buckets = self.buckets..self.due(self.buckets, BUCKETS_AHEAD);
        self.buckets = buckets.end;
        self.keys[buckets].iter().for_each(|(_, key)| store.foresee_bucket(*key));
        let items = self.items..self.due(self.items, ITEMS_AHEAD);
        self.items = items.end;
        store.foresee_items(self.keys[items].iter().map(|(_, key)| *key));
    }

    /// Where those end from this one on whose requests are less than so many away.
    fn due(&self, from: usize, ahead: usize) -> usize {
        let is_near = |(request, _): &&(usize, Foreseen)| *request < self.come + ahead;
        from + self.keys[from..].iter().take_while(is_near).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Limits;

    #[test]
    fn keys_are_asked_for_some_requests_before_their_turn() {
        let limits =
            Limits { memory_bytes: 1 << 20, item_bytes: 1 << 10, threads: 1, secret: [1, 2], shared_nothing: false };
        let (store, mut ahead) = (Store::new(limits), Ahead::default());
        let key = |hash| Foreseen { shard: 0, hash };
        // a request with many keys, one without, and others with one each
        (0..10).for_each(|n| ahead.push(0, key(100 + n)));
        (2..24).for_each(|request| ahead.push(request, key(request as u64)));
        ahead.ask(&store);
        assert_eq!((ahead.buckets, ahead.items), (10 + 10, 10 + 6));
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            told.push(ahead.come().map(NonZeroU64::get));
            ahead.ask(&store);
            asked.push((ahead.buckets, ahead.items));
        }
        // by requests: 0 to 3, 4 to 7 and so on
        assert_eq!(asked[..8], [[(20, 16); 3].as_slice(), &[(24, 20); 4], &[(28, 24)]].concat());
        assert_eq!((asked[11], asked[15], asked[29]), ((32, 28), (32, 32), (32, 32)));
        assert_eq!(told[..4], [Some(100), None, Some(2), Some(3)]);
        assert_eq!(told[23..26], [Some(23), None, None]);
        ahead.begin();
        assert_eq!(ahead.room(), BURST_FRAMES);
        assert_eq!(ahead.come(), None);
        ahead.push(1, key(7));
        ahead.ask(&store);
        assert_eq!((ahead.come, ahead.buckets, ahead.items), (1, 0, 0));
        assert_eq!(ahead.come(), NonZeroU64::new(7));
    }
}
