//! Large tables on huge pages: a table of hundreds of megabytes that is visited in random order costs a walk of the page tables for
//! every visit when its pages are small.
//!
//! Sound because `madvise` with this advice changes no byte of memory and no right to it, only what backs it, and because the
//! range is inside an allocation made here; shared bytes are written before they count as initialised. Giving pages back changes
//! bytes, those of an exclusive slice, to zeros.

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

/// Makes all of it zeros, and gives the kernel the whole pages back that it has: they take memory again when they are next written. For
/// memory of [`zeroed`], or other memory of the allocator's, which is nobody's file.
pub fn clear(memory: &mut [u8]) {
    let (at, page) = (memory.as_ptr().addr(), page_bytes());
    let from = at.next_multiple_of(page) - at;
    let to = ((at + memory.len()) / page * page).saturating_sub(at);
    if from >= to {
        return memory.fill(0);
    }
    let (head, rest) = memory.split_at_mut(from);
    let (pages, tail) = rest.split_at_mut(to - from);
    head.fill(0);
    tail.fill(0);
    // SAFETY: `pages` are whole pages of private anonymous memory that is exclusively ours: any value of its bytes is valid, and the next
    // access finds zeros (madvise(2)).
    if unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxDontNeed) }.is_err() {
        pages.fill(0);
    }
}

fn page_bytes() -> usize {
    // SAFETY: it takes a number and returns one; any thread may call it at any time.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(HUGE_PAGE_BYTES)
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
    fn what_is_cleared_is_zero_and_takes_no_memory() {
        let mut memory = zeroed(8 << 20);
        for (from, to) in [(0, 8 << 20), (1, 5000), (4095, 4097), (100_000, 5_000_001), (3, 3)] {
            memory.fill(7);
            clear(&mut memory[from..to]);
            let is_right = |(at, byte): (usize, &u8)| *byte == if (from..to).contains(&at) { 0 } else { 7 };
            assert!(memory.iter().enumerate().all(is_right), "{from} to {to}");
        }
        let resident = || -> usize {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse().unwrap()
        };
        let full_and_left = || {
            let mut large = zeroed(64 << 20);
            large.fill(1);
            let full = resident();
            clear(&mut large);
            let left = resident();
            assert!(large.iter().all(|byte| *byte == 0));
            (full, left)
        };
        // other tests of this process allocate meanwhile, some of them as much as this one in the moment in which it counts
        let mut counts = Vec::new();
        while counts.last().is_none_or(|(full, left)| left + 8192 >= *full) {
            assert!(counts.len() < 20, "{counts:?} pages");
            counts.push(full_and_left());
        }
    }

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
