//! Large tables on huge pages: a table of hundreds of megabytes that is visited in random order costs a walk of the page tables for
//! every visit when its pages are small.
//!
//! Sound because `madvise` with this advice changes no byte of memory and no right to it, only what backs it, and because the
//! range is inside an allocation made here; shared bytes are written before they count as initialised.

#![allow(unsafe_code)]

use rustix::mm::{Advice, madvise};
use std::mem::MaybeUninit;
use std::sync::Arc;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An empty vector with room for `capacity` values, on huge pages where the kernel has them and the room is that large. It is
/// to be filled and not to grow: growing would move it.
pub fn vec<T>(capacity: usize) -> Vec<T> {
    let mut room = Vec::<T>::new();
    room.reserve_exact(capacity);
    advise(room.as_mut_ptr().cast(), capacity * size_of::<T>());
    room
}

/// So many bytes of zeros, which take memory when they are first written.
pub fn zeroed(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    advise(memory.as_mut_ptr(), bytes);
    memory
}

/// So many zeros to be shared: what `Arc::get_mut` fills while nobody else has it.
pub fn shared(bytes: usize) -> Arc<[u8]> {
    let mut memory = Arc::<[u8]>::new_uninit_slice(bytes);
    let room = Arc::get_mut(&mut memory).expect("made above, and not shared yet");
    advise(room.as_mut_ptr().cast(), bytes);
    room.fill(MaybeUninit::new(0));
    // SAFETY: every byte was written above.
    unsafe { memory.assume_init() }
}

/// Asks for huge pages under the whole ones inside an allocation: what shares one with its ends is somebody else's.
fn advise(start: *mut u8, bytes: usize) {
    let at = start.addr();
    let from = at.next_multiple_of(HUGE_PAGE_BYTES);
    let to = (at + bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if from < to {
        // SAFETY: `from..to` lies inside an allocation of the caller's, of which the advice touches no byte. A refusal leaves
        // small pages, which work too.
        let _ = unsafe { madvise(start.wrapping_add(from - at).cast(), to - from, Advice::LinuxHugepage) };
    }
}

/// A table of `len` values on huge pages, the one at `n` being `value(n)`.
pub fn table<T>(len: usize, value: impl FnMut(usize) -> T) -> Vec<T> {
    let mut table = vec(len);
    table.extend((0..len).map(value));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_what_was_asked_for_whatever_its_size() {
        for len in [0, 1, 1000, 300_000, 1_500_000] {
            let numbers = table(len, |n| n as u64);
            assert!(numbers.iter().enumerate().all(|(n, number)| *number == n as u64), "{len} numbers");
            assert_eq!((numbers.len(), numbers.capacity()), (len, len));
        }
        let room = vec::<[u8; 33]>(1 << 20);
        assert!(room.is_empty() && room.capacity() == 1 << 20);
        for bytes in [0, 5, 5 << 20] {
            let memory = zeroed(bytes);
            assert!(memory.len() == bytes && memory.iter().all(|byte| *byte == 0));
            let mut memory = shared(bytes);
            assert!(memory.len() == bytes && memory.iter().all(|byte| *byte == 0));
            assert!(Arc::get_mut(&mut memory).is_some());
        }
    }
}
