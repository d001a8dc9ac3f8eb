//! What is asked for soon.
//!
//! The engine tells of a burst before it hands it over. The memory of its keys is asked for some requests before their turn, so that cache
//! misses overlap, and not for the whole burst at once ([`base::prefetch`] has why).

use crate::store::{Foreseen, Store};
use arrayvec::ArrayVec;
use base::BURST_FRAMES;

/// So many requests before its turn a key's bucket is asked for, and then its item, for which the bucket is read.
const BUCKETS_AHEAD: usize = 8;
const ITEMS_AHEAD: usize = 4;

/// Keys of requests that come.
#[derive(Default)]
pub(super) struct Ahead {
    /// each with the number of its request
    keys: ArrayVec<(usize, Foreseen), BURST_FRAMES>,
    /// requests that have come
    come: usize,
    /// keys whose buckets were asked for, and of these those whose items were
    buckets: usize,
    items: usize,
}

impl Ahead {
    /// A burst is told of: what was told of before has come, or does not come any more.
    pub(super) fn begin(&mut self) {
        self.keys.clear();
        (self.come, self.buckets, self.items) = (0, 0, 0);
    }

    /// Keys that there is room for.
    pub(super) fn room(&self) -> usize {
        self.keys.remaining_capacity()
    }

    /// A key of the request of this number, behind all those before.
    pub(super) fn push(&mut self, request: usize, key: Foreseen) {
        self.keys.push((request, key));
    }

    /// A request comes. One that does not leaves those behind it to be asked for later.
    #[inline]
    pub(super) fn come(&mut self, store: &Store) {
        if self.items < self.keys.len() {
            self.come += 1;
            self.ask(store);
        }
    }

    /// Asks for what is due.
    pub(super) fn ask(&mut self, store: &Store) {
        let buckets = self.buckets..self.due(self.buckets, BUCKETS_AHEAD);
        let items = self.items..self.due(self.items, ITEMS_AHEAD);
        (self.buckets, self.items) = (buckets.end, items.end);
        self.keys[buckets].iter().for_each(|(_, key)| store.foresee_bucket(*key));
        store.foresee_items(self.keys[items].iter().map(|(_, key)| *key));
    }

    /// Where those end from this one on whose requests are no more than so many away.
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
        let key = Foreseen { shard: 0, hash: 7 };
        // a request with many keys, one without, and others with one each
        (0..10).for_each(|_| ahead.push(0, key));
        (2..24).for_each(|request| ahead.push(request, key));
        ahead.ask(&store);
        assert_eq!((ahead.buckets, ahead.items), (10 + 6, 10 + 2));
        let mut asked = Vec::new();
        for _ in 0..30 {
            ahead.come(&store);
            asked.push((ahead.buckets, ahead.items));
        }
        assert_eq!(asked[..3], [(17, 13), (18, 14), (19, 15)]);
        assert_eq!((asked[15], asked[18], asked[19]), ((32, 28), (32, 31), (32, 32)));
        assert_eq!(asked[29], (32, 32));
        ahead.begin();
        assert_eq!(ahead.room(), BURST_FRAMES);
        ahead.come(&store);
        ahead.push(0, key);
        ahead.ask(&store);
        assert_eq!((ahead.come, ahead.buckets, ahead.items), (0, 1, 1));
    }
}
