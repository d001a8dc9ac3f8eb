//! A table that control replaces while threads go on reading it.
//!
//! Each thread keeps its own `Arc` and asks at its cycle boundary, with one atomic load, whether a newer one was
//! published; only then does it take the lock. So nothing is locked or counted per packet, and the old table is freed when
//! the last thread has passed a boundary: the boundary is the quiescent point.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Shared<T> {
    version: AtomicU64,
    current: Mutex<Arc<T>>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Arc<T>> {
        // a panic while the lock was held cannot leave the pointer half written
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Control's end: replaces the table.
#[derive(Debug)]
pub struct Publisher<T>(Arc<Shared<T>>);

impl<T> Publisher<T> {
    /// Publishes `first` as version 0.
    pub fn new(first: Arc<T>) -> Self {
        Publisher(Arc::new(Shared { version: AtomicU64::new(0), current: Mutex::new(first) }))
    }

    /// Replaces the table; readers take it at their next boundary. Returns the new version's number.
    pub fn publish(&self, next: Arc<T>) -> u64 {
        let mut current = self.0.lock();
        *current = next;
        // inside the lock, so a reader that sees the number finds at least that table
        self.0.version.fetch_add(1, Ordering::Release) + 1
    }

    /// The table published last.
    pub fn current(&self) -> Arc<T> {
        self.0.lock().clone()
    }

    /// The number of the version published last.
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// A reader that starts with the current table.
    pub fn reader(&self) -> Reader<T> {
        let current = self.0.lock();
        Reader { version: self.0.version.load(Ordering::Acquire), held: current.clone(), shared: self.0.clone() }
    }
}

/// A thread's end: the table it works with until its next boundary.
#[derive(Debug)]
pub struct Reader<T> {
    held: Arc<T>,
    version: u64,
    shared: Arc<Shared<T>>,
}

impl<T> Reader<T> {
    /// Takes a newer table if one was published; true when the table changed. Called between bursts only.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        if self.shared.version.load(Ordering::Acquire) == self.version {
            return false;
        }
        self.take();
        true
    }

    #[cold]
    fn take(&mut self) {
        let current = self.shared.lock();
        self.held = current.clone();
        self.version = self.shared.version.load(Ordering::Acquire);
    }

    /// The number of the version held.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl<T> std::ops::Deref for Reader<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Reader { held: self.held.clone(), version: self.version, shared: self.shared.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_its_table_until_it_refreshes() {
        let publisher = Publisher::new(Arc::new(1));
        let mut reader = publisher.reader();
        assert_eq!(publisher.publish(Arc::new(2)), 1);
        assert_eq!(*reader, 1);
        assert!(reader.refresh());
        assert_eq!((*reader, reader.version()), (2, 1));
        assert!(!reader.refresh());
    }

    #[test]
    fn the_old_table_goes_when_the_last_reader_has_moved_on() {
        let old = Arc::new(String::from("old"));
        let publisher = Publisher::new(old.clone());
        let mut readers = [publisher.reader(), publisher.reader()];
        publisher.publish(Arc::new(String::from("new")));
        assert_eq!(Arc::strong_count(&old), 3);
        for reader in &mut readers {
            reader.refresh();
        }
        assert_eq!(Arc::strong_count(&old), 1);
    }

    #[test]
    fn readers_on_other_threads_end_with_the_last_version() {
        let publisher = Publisher::new(Arc::new(0u64));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let mut reader = publisher.reader();
                scope.spawn(move || {
                    let mut last = 0;
                    while last < 1000 {
                        reader.refresh();
                        assert!(*reader >= last, "went back from {last} to {}", *reader);
                        last = *reader;
                        std::thread::yield_now();
                    }
                });
            }
            for n in 1..=1000 {
                publisher.publish(Arc::new(n));
            }
        });
    }
}
