//! What the allocator holds and nobody uses.
//!
//! Soundness: the one call takes a number and returns one; the C library says that it may be called by any thread at any time.

#![allow(unsafe_code)]

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
        // smaller than what gets a mapping of its own, with every hundredth kept
        let mut blocks: Vec<Vec<u8>> = (0..16_384).map(|_| vec![1; 4000]).collect();
        let full = resident_pages();
        let kept: Vec<Vec<u8>> = blocks.drain(..).enumerate().filter(|(n, _)| n % 100 == 0).map(|(_, b)| b).collect();
        give_back();
        // 64 MiB were allocated; other tests of this process may allocate meanwhile
        assert!(resident_pages() + 8192 < full, "{} of {full} pages", resident_pages());
        assert_eq!(kept.len(), 164);
    }
}
