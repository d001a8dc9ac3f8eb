//! Page-aligned memory cut into chunks of one size: a UMEM, or the frames of an in-memory NIC.
//!
//! Ownership: [`Arena::new`] hands out one [`Frame`] a chunk. A frame is in somebody's hands, in a [`Pool`](crate::Pool), or
//! given up ([`Arena::give_up`]) to the kernel's rings as an address until [`Arena::frame_at`] makes it a frame again.
//! Pools hold the arena by `Arc` and, when they go, report how many frames they took along; the arena unmaps its memory
//! only when all chunks came home. A lost frame therefore costs memory, never safety.

#![allow(unsafe_code)]

use crate::Frame;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a fresh frame's packet begins in its chunk: room for a header in front, and the kernel's own AF_XDP headroom.
pub const HEADROOM_BYTES: u16 = 256;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of `chunks` chunks. Shared by the pools that hold its frames.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    chunks: u32,
    chunk_bytes: u16,
    /// the mapping itself, which begins before `base` when that had to be aligned
    mapped_at: NonNull<u8>,
    mapped_bytes: usize,
    /// frames that pools had when they went
    home: AtomicUsize,
}

// SAFETY: the arena gives no access to the bytes; frames do, and each chunk has one.
unsafe impl Send for Arena {}
// SAFETY: as above; the one field that changes is atomic.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `chunks` chunks of `chunk_bytes` (2048 or 4096, as AF_XDP wants them), zeroed and populated, on huge pages
    /// where the kernel has them, and one empty frame for each.
    ///
    /// # Errors
    /// The kernel's, when there is not that much memory; `InvalidInput` for another chunk size or no chunks.
    pub fn new(chunks: u32, chunk_bytes: u16) -> io::Result<(Arc<Arena>, Vec<Frame>)> {
        if chunks == 0 || !matches!(chunk_bytes, 2048 | 4096) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an arena has chunks of 2048 or 4096 bytes"));
        }
        let bytes = chunks as usize * usize::from(chunk_bytes);
        // small arenas (tests) are page-aligned by mmap; large ones are aligned so that huge pages can back them
        let slack = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let mapped_bytes = bytes + slack;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped_bytes, access, MapFlags::PRIVATE)?
        };
        let mapped_at = NonNull::new(mapped.cast::<u8>()).expect("mmap never returns address 0 here");
        let shift = if slack == 0 { 0 } else { mapped.cast::<u8>().align_offset(HUGE_PAGE_BYTES) };
        // SAFETY: `shift` is at most `slack`, so the result and `bytes` after it are inside the mapping.
        let base = unsafe { mapped_at.add(shift) };
        if slack != 0 {
            // SAFETY: advice about a range of our own mapping changes no byte; a refusal leaves small pages, which work too.
            let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        // SAFETY: the range is ours, mapped writable, and nothing else refers to it; touching it populates the pages now,
        // not at the first packet.
        unsafe { base.as_ptr().write_bytes(0, bytes) };
        let arena = Arena { base, chunks, chunk_bytes, mapped_at, mapped_bytes, home: AtomicUsize::new(0) };
        let frame = |n: u32| {
            // SAFETY: chunk `n` lies inside the mapping, is initialised, and this is the one handle made for it.
            unsafe { arena.handle(n as usize * usize::from(chunk_bytes), HEADROOM_BYTES, 0) }
        };
        let frames = (0..chunks).map(frame).collect();
        Ok((Arc::new(arena), frames))
    }

    /// # Safety
    /// `chunk_at` is a chunk's offset, and no other handle for that chunk exists.
    unsafe fn handle(&self, chunk_at: usize, start: u16, len: u16) -> Frame {
        // SAFETY: the offset is a chunk's, so it lies inside the mapping.
        let chunk = unsafe { self.base.add(chunk_at) };
        // SAFETY: the chunk is initialised; that it is the only handle is the caller's promise; it stays valid because the
        // arena is unmapped only when all handles are home.
        unsafe { Frame::new(chunk, self.chunk_bytes, start, len) }
    }

    /// The first byte, for registering the memory with the kernel.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> usize {
        self.chunks as usize * usize::from(self.chunk_bytes)
    }

    /// Chunks in the arena.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u16 {
        self.chunk_bytes
    }

    /// Whether `frame` is one of this arena's.
    pub fn holds(&self, frame: &Frame) -> bool {
        let at = frame.chunk().as_ptr() as usize;
        let base = self.base.as_ptr() as usize;
        at >= base && at < base + self.bytes()
    }

    /// The offset of the packet's first byte from the arena's first, as a descriptor carries it.
    ///
    /// # Panics
    /// When the frame is another arena's: its address would name somebody else's chunk.
    #[inline]
    pub fn address_of(&self, frame: &Frame) -> u64 {
        assert!(self.holds(frame), "a frame of another arena");
        (frame.chunk().as_ptr() as usize - self.base.as_ptr() as usize + frame.headroom()) as u64
    }

    /// Turns a frame into its address, for a ring of the kernel's. Until [`Arena::frame_at`] takes it back, nobody may
    /// touch the chunk.
    #[inline]
    pub fn give_up(&self, frame: Frame) -> u64 {
        self.address_of(&frame)
    }

    /// Takes a chunk back from the kernel: the frame whose packet is the `len` bytes at `address`.
    ///
    /// # Safety
    /// The chunk that `address` lies in was given up by [`Arena::give_up`] and not taken back since, and the kernel is done
    /// with it.
    ///
    /// # Panics
    /// When the packet does not lie inside one chunk of this arena.
    #[inline]
    pub unsafe fn frame_at(&self, address: u64, len: u32) -> Frame {
        let at = address as usize;
        assert!(at < self.bytes(), "address {address} outside the arena");
        // chunk sizes are powers of two
        let start = at & (usize::from(self.chunk_bytes) - 1);
        assert!(start + len as usize <= usize::from(self.chunk_bytes), "a packet across chunks at {address}");
        // SAFETY: rounded down to its chunk the offset is a chunk's; the rest is the caller's promise.
        unsafe { self.handle(at - start, start as u16, len as u16) }
    }

    pub(crate) fn came_home(&self, frames: usize) {
        self.home.fetch_add(frames, Ordering::AcqRel);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if *self.home.get_mut() == self.chunks as usize {
            // SAFETY: the mapping is ours, and every chunk's handle has gone with its pool, so nothing refers to it.
            let unmapped = unsafe { rustix::mm::munmap(self.mapped_at.as_ptr().cast(), self.mapped_bytes) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn frames_whose_pool_has_gone_before_they_come_home_are_home_all_the_same() {
        let (arena, mut frames) = Arena::new(6, 2048).unwrap();
        let rest = frames.split_off(4);
        let pools = [frames, rest].map(|frames| Pool::new(arena.clone(), frames));
        let [mut first, mut second] = <[Pool; 2]>::try_from(Pool::join(pools.into())).unwrap();
        let lent = [first.take(), first.take(), first.take()];
        let mut lent = lent.into_iter().flatten();
        second.give(lent.next().unwrap());
        drop(first);
        assert_eq!(arena.home.load(Ordering::Relaxed), 2);
        lent.for_each(|frame| second.give(frame));
        drop(second);
        assert_eq!(arena.home.load(Ordering::Relaxed), 6, "the memory can be unmapped");
    }

    #[test]
    fn a_frame_keeps_its_bytes_through_an_address() {
        let (arena, mut frames) = Arena::new(4, 4096).unwrap();
        let mut frame = frames.swap_remove(2);
        assert!(frame.fill(b"over the ring"));
        let address = arena.give_up(frame);
        assert_eq!(address, 2 * 4096 + u64::from(HEADROOM_BYTES));
        // SAFETY: given up one line above.
        let back = unsafe { arena.frame_at(address, 13) };
        assert_eq!(back.bytes(), b"over the ring");
    }

    #[test]
    fn a_foreign_frame_and_a_foreign_address_are_refused() {
        let (arena, _frames) = Arena::new(1, 2048).unwrap();
        let (_other, mut others) = Arena::new(1, 2048).unwrap();
        let foreign = others.pop().unwrap();
        assert!(std::panic::catch_unwind(|| arena.give_up(foreign)).is_err());
        for (address, len) in [(2048, 0), (u64::MAX, 1), (2047, 2)] {
            // SAFETY: never reached: the address is refused before a frame is made.
            let made = std::panic::catch_unwind(|| unsafe { arena.frame_at(address, len) });
            assert!(made.is_err(), "{address}+{len}");
        }
    }

    #[test]
    fn shapes_that_af_xdp_cannot_take_are_refused() {
        for (chunks, bytes) in [(0, 2048), (1, 1024), (1, 0), (1, 3000)] {
            assert!(Arena::new(chunks, bytes).is_err());
        }
    }

    #[test]
    fn memory_goes_only_when_every_frame_is_home() {
        let (arena, frames) = Arena::new(3, 2048).unwrap();
        let mut pool = Pool::new(arena.clone(), frames);
        let mut out = pool.take().unwrap();
        drop(pool);
        assert_eq!(arena.home.load(Ordering::Acquire), 2);
        drop(arena);
        // one frame was out, so its memory still stands
        assert!(out.fill(b"still mine"));
        assert_eq!(out.bytes(), b"still mine");
    }
}
