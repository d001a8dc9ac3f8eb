//! What the allocator holds and nobody uses.
//!
//! Soundness: the calls take numbers and return one; the C library says that they may be called by any thread at any time.

#![allow(unsafe_code)]

/// Free bytes at the end of a heap that the allocator may keep; what the C library begins with.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;

/// Has the allocator keep little at the end of each of its heaps, for as long as the process runs; to be called first. The C library
/// keeps the more there the larger the blocks were that were freed, to twice 32 MiB, and what the heaps of threads but the first one
/// keep there [`give_back`] does not reach: so a reload would leave some megabytes more or less, as its threads happen to share heaps.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: see above; a number that it does not take changes nothing.
    let _ = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES) };
}

/// Has the allocator give whole pages that nothing uses back to the kernel, also from the middle of its heaps: what one thread
/// allocated and another freed, such as a replaced version of content, would stay with the process otherwise. Walks through the
/// heaps under their locks, so it is for threads that may wait.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: see above; zero bytes are to be kept at the top.
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn pages_in_the_middle_of_the_heap_go_back() {
        // other tests of this process allocate meanwhile, some of them as much as this one in the moment in which it counts
        let mut counts = Vec::new();
        // half of the 64 MiB that are allocated each time
        while counts.last().is_none_or(|(full, left)| left + 8192 >= *full) {
            assert!(counts.len() < 20, "{counts:?} pages");
            counts.push(pages_before_and_behind());
        }
    }

    /// Resident pages with many blocks, smaller than what gets a mapping of its own, and with every hundredth of them.
    fn pages_before_and_behind() -> (usize, usize) {
        let mut blocks: Vec<Vec<u8>> = (0..16_384).map(|_| vec![1; 4000]).collect();
        let full = resident_pages();
        let kept: Vec<Vec<u8>> = blocks.drain(..).enumerate().filter(|(n, _)| n % 100 == 0).map(|(_, b)| b).collect();
        give_back();
        let left = resident_pages();
        assert_eq!(kept.len(), 164);
        (full, left)
    }
}
