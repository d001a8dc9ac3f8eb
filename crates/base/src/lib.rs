//! What every floor of simoom stands on: time, frames and their pool, rings between threads, counters, published
//! tables, tables on huge pages, sequence numbers, keyed hashes, prefetch, the machine's clock, the timer wheel,
//! the heap and the policy that balances load between threads.
//!
//! Nothing here knows a protocol or does I/O. Unsafe code stands in `arena`, `frame`, `heap`, `huge`, `ring` and `prefetch` only; each of
//! those files opens with the argument for its soundness.

#![deny(unsafe_code)]

pub mod arena;
pub mod balance;
pub mod counter;
pub mod frame;
pub mod heap;
pub mod huge;
pub mod pool;
pub mod prefetch;
pub mod publish;
pub mod ring;
pub mod rng;
pub mod seq;
pub mod sip;
pub mod time;
pub mod wheel;

pub use arena::Arena;
pub use counter::Counter;
pub use frame::{BURST_FRAMES, Burst, Frame};
pub use pool::Pool;
pub use seq::Seq;
pub use time::{Clock, Instant};

/// Bytes of a cache line on every machine that simoom runs on; what one thread writes and another reads is kept apart by it.
pub const CACHE_LINE_BYTES: usize = 64;

/// A value alone on its cache lines (two of them: adjacent-line prefetchers fetch in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CacheAligned<T>(pub T);

impl<T> std::ops::Deref for CacheAligned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for CacheAligned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
