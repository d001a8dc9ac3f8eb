//! Asking for a cache line before it is needed.
//!
//! Some turns before, and not for a whole burst at once: the nearest cache does not hold that, and what is brought into one that the processor
//! shares, with the other thread of its core or with another guest of its host, may be gone again some microseconds later.
//!
//! Sound because a prefetch never faults and has no architectural effect, whatever the address.

#![allow(unsafe_code)]

/// Asks for the cache line at `at` to be brought close for reading. Any address is allowed, even one past the end.
#[inline(always)]
pub fn read<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 is a hint: it neither faults nor reads as far as the program can tell, for any address; SSE is part
    // of every x86_64.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
