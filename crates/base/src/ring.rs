//! A bounded queue between two threads: one producer, one consumer, no lock.
//!
//! Each side keeps its own copy of both indices and looks at the other's shared one only when it runs short, so a burst
//! costs one cache-line transfer a side. Indices count up without end and wrap at 2^32; the slot is the index modulo the
//! capacity, a power of two.
//!
//! Soundness: the slots in `tail..head` are initialised and the consumer's; the others are the producer's. `head` is
//! written by the producer alone (Release, after the slots), `tail` by the consumer alone (Release, after reading), and
//! each is read by the other side with Acquire. Checked by loom (`make loom`) and against a VecDeque.

#![allow(unsafe_code)]

use crate::CacheAligned;
use shim::{Arc, AtomicU32, Ordering, UnsafeCell, fence};
use std::mem::MaybeUninit;

#[cfg(not(loom))]
mod shim {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicU32, Ordering, fence};

    /// std's cell with loom's interface.
    #[derive(Debug)]
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);
    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }
        #[inline(always)]
        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod shim {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

struct Shared<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    head: CacheAligned<AtomicU32>,
    tail: CacheAligned<AtomicU32>,
}

// SAFETY: the two ends touch disjoint slots (module doc) and pass a value on only through Release/Acquire, so sending the
// values is all that is shared.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, index: u32) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut tail, head) = (self.tail.load(Ordering::Acquire), self.head.load(Ordering::Acquire));
        while tail != head {
            // SAFETY: both ends are gone, and `tail..head` are the initialised slots.
            self.slot(tail).with_mut(|slot| unsafe { slot.cast::<T>().drop_in_place() });
            tail = tail.wrapping_add(1);
        }
    }
}

/// The end that puts in. It writes to itself with each value, so it shares no cache line with what lies beside it: the ends of several
/// threads are made in one place, and would lie side by side.
#[repr(align(128))]
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    head: u32,
    /// the consumer's index as last seen
    tail: u32,
}

/// The end that takes out. As above.
#[repr(align(128))]
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// the producer's index as last seen
    head: u32,
    tail: u32,
}

/// A queue of `capacity` values.
///
/// # Panics
/// When `capacity` is not a power of two between 1 and 2^31.
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two() && capacity <= 1 << 31, "a ring of {capacity} slots");
    let shared = Arc::new(Shared {
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        head: CacheAligned(AtomicU32::new(0)),
        tail: CacheAligned(AtomicU32::new(0)),
    });
    (Producer { shared: shared.clone(), head: 0, tail: 0 }, Consumer { shared, head: 0, tail: 0 })
}

impl<T: Send> Producer<T> {
    /// How many values fit now; looks at the shared index only when fewer than `want` seem to fit.
    #[inline]
    pub fn room(&mut self, want: usize) -> usize {
        let capacity = self.shared.slots.len();
        let room = capacity - self.head.wrapping_sub(self.tail) as usize;
        if room >= want {
            return room;
        }
        self.tail = self.shared.tail.load(Ordering::Acquire);
        capacity - self.head.wrapping_sub(self.tail) as usize
    }

    /// Whether the consumer has gone, so that nobody takes out what is put in.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Puts `value` in, or gives it back when the ring is full.
    ///
    /// # Errors
    /// The value, when there is no room.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(value);
        }
        self.write(value);
        self.publish();
        Ok(())
    }

    /// Puts in what fits from `values`, in order, with one look at the shared indices; the number put in. What did not fit
    /// is not taken from the iterator.
    #[inline]
    pub fn push_all(&mut self, values: &mut impl ExactSizeIterator<Item = T>) -> usize {
        let n = values.len().min(self.room(values.len()));
        let before = self.head;
        for value in values.take(n) {
            self.write(value);
        }
        self.publish();
        self.head.wrapping_sub(before) as usize
    }

    #[inline]
    fn write(&mut self, value: T) {
        // SAFETY: the caller saw room, so the slot at `head` is the producer's: no one reads it until `publish`.
        self.shared.slot(self.head).with_mut(|slot| unsafe { slot.write(MaybeUninit::new(value)) });
        self.head = self.head.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        self.shared.head.store(self.head, Ordering::Release);
    }
}

impl<T: Send> Consumer<T> {
    /// How many values wait; looks at the shared index only when fewer than `want` seem to.
    #[inline]
    pub fn waiting(&mut self, want: usize) -> usize {
        let waiting = self.head.wrapping_sub(self.tail) as usize;
        if waiting >= want {
            return waiting;
        }
        self.head = self.shared.head.load(Ordering::Acquire);
        self.head.wrapping_sub(self.tail) as usize
    }

    /// Whether nothing waits and nothing will ever come, since the producer is gone.
    pub fn is_finished(&mut self) -> bool {
        let abandoned = Arc::strong_count(&self.shared) == 1;
        // with the producer's release of its share: what it put in last is seen below
        fence(Ordering::Acquire);
        abandoned && self.waiting(1) == 0
    }

    /// The oldest value, or None.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.waiting(1) == 0 {
            return None;
        }
        // SAFETY: a value waits, so the slot at `tail` is initialised and the consumer's; it is read once, since `tail` moves
        // past it before the slot is given back.
        let value = self.shared.slot(self.tail).with_mut(|slot| unsafe { slot.cast::<T>().read() });
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.store(self.tail, Ordering::Release);
        Some(value)
    }
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Producer(at {} of {})", self.head, self.shared.slots.len())
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Consumer(at {} of {})", self.tail, self.shared.slots.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_as_a_bounded_queue(power in 0u32..5, steps in prop::collection::vec((any::<bool>(), 0usize..9), 1..200)) {
            let capacity = 1usize << power;
            let (mut producer, mut consumer) = ring(capacity);
            let mut twin = VecDeque::new();
            let mut next = 0u32;
            for (put, n) in steps {
                if put {
                    let values: Vec<u32> = (next..next + n as u32).collect();
                    let fits = n.min(capacity - twin.len());
                    prop_assert_eq!(producer.push_all(&mut values.iter().copied()), fits);
                    twin.extend(&values[..fits]);
                    next += fits as u32;
                } else {
                    for _ in 0..n {
                        prop_assert_eq!(consumer.pop(), twin.pop_front());
                    }
                }
                prop_assert_eq!(consumer.waiting(usize::MAX), twin.len());
            }
        }
    }

    #[test]
    fn indices_wrap() {
        let (mut producer, mut consumer) = ring(2);
        for end in [&mut producer.head, &mut producer.tail, &mut consumer.head, &mut consumer.tail] {
            *end = u32::MAX;
        }
        producer.shared.head.store(u32::MAX, Ordering::Relaxed);
        producer.shared.tail.store(u32::MAX, Ordering::Relaxed);
        for n in 0..5 {
            assert_eq!(producer.push(n), Ok(()));
            assert_eq!(producer.push(n + 100), Ok(()));
            assert_eq!(producer.push(0), Err(0));
            assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some(n), Some(n + 100), None));
        }
    }

    #[test]
    fn what_is_left_inside_is_dropped_once() {
        let token = Arc::new(());
        let (mut producer, mut consumer) = ring(4);
        for _ in 0..3 {
            producer.push(token.clone()).unwrap();
        }
        drop(consumer.pop());
        drop((producer, consumer));
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn it_is_finished_when_the_producer_is_gone_and_nothing_waits() {
        let (mut producer, mut consumer) = ring(4);
        assert!(!consumer.is_finished());
        producer.push(1).unwrap();
        drop(producer);
        assert!(!consumer.is_finished());
        assert_eq!(consumer.pop(), Some(1));
        assert!(consumer.is_finished());
    }

    #[test]
    fn two_threads_pass_everything_in_order() {
        let (mut producer, mut consumer) = ring(8);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0..20_000u32;
                while !next.is_empty() {
                    if producer.push_all(&mut next.by_ref()) == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut expect = 0;
            while expect < 20_000 {
                match consumer.pop() {
                    Some(value) => {
                        assert_eq!(value, expect);
                        expect += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn every_interleaving_keeps_order_and_loses_nothing() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let thread = loom::thread::spawn(move || {
                let mut sent = 0;
                for n in 0..3u32 {
                    if producer.push(Box::new(n)).is_ok() {
                        sent += 1;
                    }
                }
                sent
            });
            let mut last = None;
            let mut got = 0;
            for _ in 0..3 {
                if let Some(value) = consumer.pop() {
                    assert!(last.is_none_or(|last| *value > last));
                    last = Some(*value);
                    got += 1;
                }
            }
            // seen while the producer may still be at it: what it says must hold afterwards
            let finished = consumer.is_finished();
            let sent = thread.join().unwrap();
            assert!(!finished || consumer.waiting(1) == 0);
            while consumer.pop().is_some() {
                got += 1;
            }
            assert_eq!(got, sent);
        });
    }
}
