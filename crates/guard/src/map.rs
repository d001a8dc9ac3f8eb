//! Shared memory as words and bytes: the only unsafe code of this crate.
//!
//! Soundness: a [`Map`] owns its mapping until it is dropped, and every access is checked against its length, which cannot shrink
//! (the file is sealed against that before another process has it; a file that is mapped from outside is measured first). No
//! reference to bytes ever leaves this module: the other side may write them at any time, so they are copied, and words are
//! atomics. What a copy of bytes that are being written contains is anything, and whoever asked for it judges the copy.

#![allow(unsafe_code)]

use base::CACHE_LINE_BYTES;
use rustix::io::FdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// So many bytes are asked for ahead: behind them the processor has seen where it goes.
const FORESEEN_BYTES: usize = 4 * CACHE_LINE_BYTES;

/// A mapping of a file.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to no thread, and all access is by atomics and copies (module doc).
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `bytes` of a file.
    ///
    /// # Errors
    /// The kernel's, or the file is shorter.
    pub(crate) fn new(file: impl AsFd, bytes: usize, writable: bool) -> io::Result<Map> {
        let has = rustix::fs::fstat(&file)?.st_size;
        if has < bytes as i64 {
            return Err(io::Error::other(format!("shared memory of {has} bytes, not {bytes}")));
        }
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, rights, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Map { start, bytes, writable })
    }

    /// The address of `count` bytes at `at`.
    #[inline]
    fn at(&self, at: usize, count: usize) -> *mut u8 {
        assert!(at <= self.bytes && count <= self.bytes - at, "{count} bytes at {at} of {}", self.bytes);
        self.start.as_ptr().wrapping_add(at)
    }

    /// The word at `at`, a multiple of 4.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        let place = self.at(at, 4).cast();
        // SAFETY: inside the mapping, which lives as long as `self`, aligned since pages are, and used by atomics alone. In a mapping
        // that is read only nothing but relaxed loads is done, which std allows there for words of this size.
        unsafe { AtomicU32::from_ptr(place) }
    }

    /// The long word at `at`, a multiple of 8.
    #[inline]
    pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        let place = self.at(at, 8).cast();
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// A slot of four long words.
    #[inline]
    pub(crate) fn slot(&self, at: usize) -> [u64; 4] {
        std::array::from_fn(|n| self.long(at + 8 * n).load(Ordering::Relaxed))
    }

    /// Writes a slot of four long words.
    #[inline]
    pub(crate) fn set_slot(&self, at: usize, words: [u64; 4]) {
        assert!(self.writable);
        for (n, word) in words.into_iter().enumerate() {
            self.long(at + 8 * n).store(word, Ordering::Relaxed);
        }
    }

    /// Copies bytes out, once.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, into: &mut [u8]) {
        let from = self.at(at, into.len());
        // SAFETY: the source is inside the mapping, the destination is the caller's alone, and no allocation of the caller's lies in
        // the mapping. The source is reached by pointer only; bytes that change meanwhile are bytes all the same.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Asks for the first lines of `count` bytes at `at` to be brought close. The rest of many comes by itself, and what lies outside
    /// is not asked for.
    #[inline]
    pub(crate) fn foresee(&self, at: usize, count: usize) {
        if at > self.bytes || count > self.bytes - at {
            return;
        }
        // pages begin with a line
        let (mut line, end) = (at / CACHE_LINE_BYTES * CACHE_LINE_BYTES, at + count.min(FORESEEN_BYTES));
        while line < end {
            base::prefetch::read(self.start.as_ptr().wrapping_add(line));
            line += CACHE_LINE_BYTES;
        }
    }

    /// The same, to write them: one after the other at the moment of writing, the other side's copies are much slower taken back.
    #[inline]
    pub(crate) fn claim(&self, at: usize, count: usize) {
        if at > self.bytes || count > self.bytes - at {
            return;
        }
        let (mut line, end) = (at / CACHE_LINE_BYTES * CACHE_LINE_BYTES, at + count.min(FORESEEN_BYTES));
        while line < end {
            claim_line(self.start.as_ptr().wrapping_add(line));
            line += CACHE_LINE_BYTES;
        }
    }

    /// Copies bytes in.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable);
        let to = self.at(at, bytes.len());
        // SAFETY: the destination is inside the mapping, which is writable, and the source is not.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once, and no reference to it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Asks for the cache line at `at` to be brought close to be written, away from other processors that have a copy.
#[inline(always)]
fn claim_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHW is a hint: it neither faults nor writes, for any address; a processor that lacks it does nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(at.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for all lines of a value.
#[inline]
pub(crate) fn foresee_value<T>(value: &T) {
    let at = std::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).step_by(CACHE_LINE_BYTES).for_each(|line| base::prefetch::read(at.wrapping_add(line)));
}

/// A descriptor of our own for one that this process was started with, closed with the last thread that has it; the number stays
/// open as it was.
///
/// # Errors
/// There is none of this number.
pub(crate) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    inherited(number, |descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 0))
}

/// Has a descriptor that this process was started with end here: the program that it executes next does not have it.
///
/// # Errors
/// There is none of this number.
pub(crate) fn close_on_exec(number: i32) -> io::Result<()> {
    inherited(number, |descriptor| rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC))
}

fn inherited<T>(number: i32, work: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>) -> io::Result<T> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: borrowed for this call alone; a number without a descriptor is refused by the kernel.
    Ok(work(unsafe { BorrowedFd::borrow_raw(number) })?)
}
