//! The items of all threads: shards by key, each under a lock of its own.
//!
//! Every connection sees every item, whichever thread has it. A thread that works on a key takes the lock of the key's shard for some
//! hundred nanoseconds; nothing is sent, waited for or logged under it. With one thread there is one shard, and its lock is never
//! waited for. Under [`Limits::shared_nothing`] there is a shard for each thread, or some where one cannot number a thread's memory, and a
//! connection sees the items of one thread alone.
//!
//! A panic under a lock empties the shard: half of a change would be worse than a cache that has to be filled again.

mod figures;
pub(crate) mod index;
pub(crate) mod item;
mod lists;
pub(crate) mod memory;
pub(crate) mod queues;
pub(crate) mod shard;
#[cfg(test)]
mod tests;

use base::CacheAligned;
use base::sip::Key;
pub(crate) use figures::Figures;
use memory::MEMORY_MOST_BYTES;
use shard::Shard;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Shards for each thread, so that two threads seldom want the same.
const SHARDS_A_THREAD: usize = 4;
/// A shard has room for so many of the largest items, or there are fewer.
const LARGEST_ITEMS: u64 = 16;
/// What it costs to say how large a key is and so on, in memcached's count: the largest item is the same.
const ITEM_BYTES: u64 = 56;
/// Buckets that are looked through for what has died, at a time.
const SWEEP_BUCKETS: usize = 64;

/// What an operator can set.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// bytes for items
    pub memory_bytes: u64,
    /// bytes of the largest item, as memcached counts them: value, key and 59 or 63 more
    pub item_bytes: u64,
    /// threads that will use it
    pub threads: usize,
    /// from the machine's entropy: what keys are hashed with
    pub secret: [u64; 2],
    /// a connection sees the items of its thread's shards alone, so that threads never meet
    pub shared_nothing: bool,
}

/// Which shards the keys of a connection stand in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Home {
    /// all, by their hashes
    #[default]
    All,
    /// so many, a power of two, from this one on, by their hashes
    Of { first: u32, count: u32 },
}

impl Home {
    /// Where the keys of the connections stand that a thread accepts.
    fn new(limits: &Limits, thread: usize) -> Home {
        if !limits.shared_nothing {
            return Home::All;
        }
        let count = shards_a_thread(limits);
        Home::Of { first: (thread % limits.threads.max(1) * count) as u32, count: count as u32 }
    }

    /// The number of a hash's shard, of so many.
    #[inline]
    fn number(self, shards: usize, hash: u64) -> usize {
        // not the bits that choose buckets (low) or make tags (high)
        let turn = (hash >> 32) as usize;
        match self {
            Home::All => turn & (shards - 1),
            Home::Of { first, count } => first as usize + (turn & (count as usize - 1)),
        }
    }
}

/// A key that is about to be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreseen {
    pub(crate) shard: usize,
    pub(crate) hash: u64,
}

/// Where a shard's index stands: known without its lock, and of use for prefetching alone.
struct Outline {
    at: AtomicUsize,
    first: AtomicUsize,
}

impl Outline {
    fn new((at, first): (usize, usize)) -> Outline {
        Outline { at: at.into(), first: first.into() }
    }

    fn set(&self, (at, first): (usize, usize)) {
        self.at.store(at, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> (usize, usize) {
        (self.at.load(Ordering::Relaxed), self.first.load(Ordering::Relaxed))
    }
}

/// See the module.
pub struct Store {
    shards: Box<[CacheAligned<Mutex<Shard>>]>,
    outlines: Box<[Outline]>,
    figures: Box<[Arc<Figures>]>,
    limits: Limits,
}

impl Store {
    /// An empty store.
    pub fn new(limits: Limits) -> Store {
        let shards = shards(&limits);
        let figures: Box<[_]> = (0..shards).map(|_| Arc::<Figures>::default()).collect();
        let each = limits.memory_bytes / shards as u64;
        let shards: Vec<Shard> =
            figures.iter().map(|figures| Shard::new(each, limits.item_bytes, figures.clone())).collect();
        let outlines = shards.iter().map(|shard| Outline::new(shard.outline())).collect();
        let shards = shards.into_iter().map(|shard| CacheAligned(Mutex::new(shard))).collect();
        Store { shards, outlines, figures, limits }
    }

    /// The limits it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A key's hash.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let [k0, k1] = self.limits.secret;
        Key::new(k0, k1).hash13_of(key)
    }

    /// The number of a hash's shard.
    #[inline]
    pub(crate) fn number(&self, home: Home, hash: u64) -> usize {
        home.number(self.shards.len(), hash)
    }

    /// Where the keys of the connections stand that a thread accepts.
    pub(crate) fn home(&self, thread: usize) -> Home {
        Home::new(&self.limits, thread)
    }

    /// Asks for the memory of a key's bucket.
    #[inline]
    pub(crate) fn foresee_bucket(&self, Foreseen { shard, hash }: Foreseen) {
        index::foresee(self.outlines[shard].get(), hash);
    }

    /// Asks for the memory of the items of these keys, for which their buckets are read. What another thread works on is left out.
    #[inline]
    pub(crate) fn foresee_items(&self, keys: impl Iterator<Item = Foreseen>) {
        let mut locked: Option<(usize, MutexGuard<'_, Shard>)> = None;
        for Foreseen { shard: number, hash } in keys {
            if locked.as_ref().is_none_or(|(held, _)| *held != number) {
                // one at a time, or two threads could wait for each other
                drop(locked.take());
                locked = match self.shards[number].try_lock() {
                    Ok(shard) => Some((number, shard)),
                    Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => continue,
                };
            }
            if let Some((_, shard)) = &locked {
                shard.foresee(hash);
            }
        }
    }

    /// A shard, while it is worked on.
    #[inline]
    pub(crate) fn shard(&self, number: usize) -> MutexGuard<'_, Shard> {
        match self.shards[number].lock() {
            Ok(shard) => shard,
            Err(poisoned) => self.reset(number, poisoned.into_inner()),
        }
    }

    #[cold]
    fn reset<'s>(&'s self, number: usize, mut shard: MutexGuard<'s, Shard>) -> MutexGuard<'s, Shard> {
        let figures = &self.figures[number];
        self.shards[number].clear_poison();
        figures.items.set(0);
        figures.bytes.set(0);
        figures.reset.add(1);
        let bytes = self.limits.memory_bytes / self.shards.len() as u64;
        *shard = shard.renewed(bytes, figures.clone());
        self.outlines[number].set(shard.outline());
        shard
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// What the shards have done.
    pub(crate) fn figures(&self) -> impl Iterator<Item = &Figures> {
        self.figures.iter().map(|figures| &**figures)
    }

    /// Whether an item is larger than the limit, counted as memcached does.
    pub(crate) fn is_too_large(&self, key_bytes: usize, flags: u32, bytes: usize) -> bool {
        counted_bytes(key_bytes, flags, bytes) > self.limits.item_bytes
    }

    /// Looks through a part of a shard for what has died.
    pub(crate) fn sweep(&self, number: usize, now: u32) {
        self.shard(number % self.shards.len()).sweep(now, SWEEP_BUCKETS);
    }
}

/// How many shards there are: as many for each thread as its memory needs under `shared_nothing`, else some for each, a power of two.
fn shards(limits: &Limits) -> usize {
    if limits.shared_nothing {
        return limits.threads.max(1) * shards_a_thread(limits);
    }
    let most = if limits.threads > 1 { limits.threads * SHARDS_A_THREAD } else { 1 };
    let room = limits.memory_bytes / (LARGEST_ITEMS * limits.item_bytes).max(1);
    let shards = (most.next_power_of_two() as u64).min(room.max(1));
    // the largest power of two that is not larger, or what it takes to number all memory
    (1 << shards.ilog2()).max(limits.memory_bytes.div_ceil(MEMORY_MOST_BYTES).next_power_of_two() as usize)
}

/// Shards of a thread under `shared_nothing`, a power of two: what it takes to number its memory.
fn shards_a_thread(limits: &Limits) -> usize {
    let each = limits.memory_bytes.div_ceil(limits.threads.max(1) as u64);
    each.div_ceil(MEMORY_MOST_BYTES).next_power_of_two() as usize
}

/// Bytes of an item as memcached counts them, so that the largest one is the same.
pub(crate) fn counted_bytes(key_bytes: usize, flags: u32, bytes: usize) -> u64 {
    let flags = if flags == 0 { 0 } else { 4 };
    ITEM_BYTES + key_bytes as u64 + 1 + flags + bytes as u64 + 2
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({} shards, {:?})", self.shards.len(), self.limits)
    }
}
