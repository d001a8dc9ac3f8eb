//! A packet's memory as a handle that exactly one owner holds.
//!
//! A [`Frame`] is one chunk of an [`Arena`](crate::Arena) with a window (`start`, `len`) that holds the packet. It is not
//! `Clone`: whoever holds it is the only one who can touch the chunk, so it may become the transmitted frame in place. It
//! has no destructor, so that a burst moves in registers; a frame goes back to its pool by hand, and one that is dropped
//! is lost to the pool until the arena goes (the arena then stays mapped: nothing dangles).
//!
//! Soundness: a `Frame` is made by the arena for each chunk once, or by [`Arena::frame_at`](crate::Arena::frame_at), whose
//! caller promises that no other handle for the chunk exists. The arena is unmapped only when every handle is back in a
//! pool (see `arena`), so the pointer is valid as long as the handle is. `start + len <= chunk_bytes` holds from each
//! constructor on, every setter checks it, and the whole chunk is initialised memory (the kernel maps it zeroed).

#![allow(unsafe_code)]

use arrayvec::ArrayVec;
use std::ptr::NonNull;

/// The most frames that one cycle handles; IX's B.
pub const BURST_FRAMES: usize = 64;

/// The frames of one cycle.
pub type Burst = ArrayVec<Frame, BURST_FRAMES>;

/// The sole handle of one chunk: a packet of `len` bytes that begins `start` bytes into it.
#[must_use = "a frame that is dropped is lost to its pool"]
pub struct Frame {
    chunk: NonNull<u8>,
    start: u16,
    len: u16,
    chunk_bytes: u16,
}

const _: () = assert!(size_of::<Frame>() == 16 && size_of::<Option<Frame>>() == 16);

// SAFETY: the handle is the only access to its chunk, as a Box is to its allocation.
unsafe impl Send for Frame {}
// SAFETY: a shared handle gives only shared access to the bytes.
unsafe impl Sync for Frame {}

impl Frame {
    /// The handle of the chunk at `chunk`, empty, with its window at `start`.
    ///
    /// # Safety
    /// `chunk` points at `chunk_bytes` initialised bytes that stay valid while the handle lives, and no other handle for
    /// them exists.
    pub(crate) unsafe fn new(chunk: NonNull<u8>, chunk_bytes: u16, start: u16, len: u16) -> Frame {
        assert!(u32::from(start) + u32::from(len) <= u32::from(chunk_bytes), "a window outside its chunk");
        Frame { chunk, start, len, chunk_bytes }
    }

    pub(crate) fn chunk(&self) -> NonNull<u8> {
        self.chunk
    }

    /// The packet.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the window lies inside the chunk (module doc), which this handle alone refers to.
        let at = unsafe { self.chunk.add(usize::from(self.start)) };
        // SAFETY: as above; the bytes are initialised, and `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), usize::from(self.len)) }
    }

    /// The packet, to be changed in place.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = usize::from(self.len);
        &mut self.room_mut()[..len]
    }

    /// Everything from the packet's first byte to the chunk's end: what an answer in place may fill.
    #[inline(always)]
    pub fn room_mut(&mut self) -> &mut [u8] {
        // SAFETY: the window lies inside the chunk (module doc).
        let at = unsafe { self.chunk.add(usize::from(self.start)) };
        // SAFETY: from `start` to the chunk's end is initialised memory that this handle alone refers to.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), usize::from(self.chunk_bytes - self.start)) }
    }

    /// Bytes of the packet.
    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from the packet's start to the chunk's end.
    #[inline(always)]
    pub fn room(&self) -> usize {
        usize::from(self.chunk_bytes - self.start)
    }

    /// Bytes before the packet.
    pub fn headroom(&self) -> usize {
        usize::from(self.start)
    }

    /// Makes the packet `len` bytes long; its start stays.
    ///
    /// # Panics
    /// When that is more than [`Frame::room`].
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.room(), "a packet of {len} bytes in a room of {}", self.room());
        self.len = len as u16;
    }

    /// Moves the packet's first byte to `start` bytes into the chunk and makes it `len` bytes long.
    ///
    /// # Panics
    /// When that leaves the chunk.
    pub fn set_window(&mut self, start: usize, len: usize) {
        assert!(start + len <= usize::from(self.chunk_bytes), "a window of {start}+{len} bytes outside its chunk");
        self.start = start as u16;
        self.len = len as u16;
    }

    /// Copies `packet` in as the whole packet; false, and nothing changed, when it does not fit.
    pub fn fill(&mut self, packet: &[u8]) -> bool {
        if packet.len() > self.room() {
            return false;
        }
        self.set_len(packet.len());
        self.bytes_mut().copy_from_slice(packet);
        true
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({} bytes at {:p}+{})", self.len, self.chunk, self.start)
    }
}

#[cfg(test)]
mod tests {
    use crate::Arena;

    #[test]
    fn windows_stay_inside_the_chunk() {
        let (_arena, mut frames) = Arena::new(1, 2048).unwrap();
        let mut frame = frames.pop().unwrap();
        assert!(frame.fill(b"packet"));
        assert_eq!((frame.bytes(), frame.len()), (&b"packet"[..], 6));
        let room = frame.room();
        assert!(!frame.fill(&vec![0; room + 1]));
        assert_eq!(frame.bytes(), b"packet");
        frame.set_window(2047, 1);
        assert_eq!(frame.room(), 1);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| frame.set_window(2047, 2))).is_err());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| frame.set_len(2))).is_err());
    }
}
