//! What a shard has done. Written under the shard's lock, read by anybody.

use base::Counter;

/// One shard's figures.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// items now
    pub(crate) items: Counter,
    /// bytes of them now: headers, keys and values
    pub(crate) bytes: Counter,
    /// items stored
    pub(crate) stored: Counter,
    /// items that went while they were alive
    pub(crate) evictions: Counter,
    /// of which nobody had asked for so many
    pub(crate) evicted_unfetched: Counter,
    /// items whose time was over
    pub(crate) expired: Counter,
    /// items found after a flush_all
    pub(crate) flushed: Counter,
    /// stores that found no memory
    pub(crate) no_memory: Counter,
    /// pages that became ones of another size
    pub(crate) pages_moved: Counter,
    /// times that a panic emptied the shard
    pub(crate) reset: Counter,
}
