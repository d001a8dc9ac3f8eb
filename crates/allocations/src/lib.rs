//! For tests: the system's allocator with a count, to show that a packet costs no allocation.
//!
//! A test program that wants it says so, and compares the counts before and after what must not allocate:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: allocations::Counting = allocations::Counting;
//!
//! let before = allocations::of_thread();
//! let boxed = std::hint::black_box(Box::new(7));
//! assert_eq!(allocations::of_thread(), before + 1);
//! drop(boxed);
//! ```
//!
//! A crate of its own, since it needs unsafe code and those that use it forbid that, and since `lab` needs root and builds
//! for minutes. Left out: how much was allocated, and what was freed.

#![deny(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, which counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // neither initialised lazily nor dropped, so it may be used wherever memory is
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Allocations by the calling thread.
pub fn of_thread() -> u64 {
    OF_THREAD.get()
}

/// Allocations by all threads.
pub fn of_process() -> u64 {
    OF_PROCESS.load(Ordering::Relaxed)
}

// SAFETY: every call goes on to the system's allocator unchanged; counting touches no memory of the caller's and allocates
// nothing. The methods that are not written here are made of these two.
#[allow(unsafe_code, reason = "an allocator is unsafe to write")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OF_THREAD.set(OF_THREAD.get() + 1);
        OF_PROCESS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    #[test]
    fn allocations_are_counted_and_frees_are_not() {
        let (thread, process) = (of_thread(), of_process());
        let mut grows = black_box(Vec::with_capacity(1));
        grows.push(1);
        assert_eq!(of_thread(), thread + 1);
        // growing is an allocation too
        grows.extend([2, 3, 4]);
        assert_eq!(of_thread(), thread + 2);
        drop(grows);
        assert_eq!(of_thread(), thread + 2);
        let elsewhere = std::thread::spawn(|| {
            let before = of_thread();
            drop(black_box(Box::new(5)));
            of_thread() - before
        });
        assert_eq!(elsewhere.join().unwrap(), 1);
        assert!(of_process() >= process + 3);
    }
}
