//! Counters with one writer: the thread that owns them adds without a locked instruction, anybody reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one thread raises and any thread reads. Two writers would lose counts (not memory safety), so a block of
/// counters belongs to one thread; readers sum over the blocks of all threads. A block is aligned as [`CacheAligned`](crate::CacheAligned)
/// is (`#[repr(align(128))]`), since those of several threads are made in one place: side by side, one thread's counts would cost the other time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Counter(AtomicU64::new(0))
    }

    /// Raises the count by `n`; only the owner calls this.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // one writer: a plain load and store, no lock prefix
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value, for gauges; only the owner calls this.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The count now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One figure of a report.
#[derive(Clone, Copy, Debug)]
pub struct Figure<'a> {
    /// a metric's name without the `simoom_` in front, in Prometheus's style: `udp_datagrams_received_total`
    pub name: &'a str,
    /// what it counts, in one line
    pub help: &'a str,
    /// a level rather than a count
    pub gauge: bool,
    /// label names and values, such as `("reason", "bad checksum")`
    pub labels: &'a [(&'a str, &'a str)],
    /// the value
    pub value: u64,
}

/// What can be shown: a block of counters that names its figures. Control adds up figures of the same name and labels over
/// the threads.
pub trait Report: Send + Sync {
    /// Calls `show` for each figure.
    fn report(&self, show: &mut dyn FnMut(Figure<'_>));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_and_is_seen_by_another_thread() {
        let counter = Counter::new();
        for n in 0..10 {
            counter.add(n);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(counter.get(), 45));
        });
    }
}
