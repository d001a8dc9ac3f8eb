//! Frames gathered from several places: headers in a frame of ours, the payload from where it lies.
//!
//! What AF_XDP calls multi-buffer and network cards scatter-gather: a packet is a chain of descriptors. The first is a frame,
//! which is the port's from then on, as any that is transmitted; what follows is a [`Piece`] of bytes that nobody can change, so
//! that any number of packets may be on their way with the same ones.

use base::Frame;
use std::sync::Arc;

/// A part of immutable bytes that are shared. Whoever has one keeps them: a port, until the device is done with them.
#[derive(Clone, Debug)]
pub struct Piece {
    bytes: Arc<[u8]>,
    start: usize,
    len: usize,
}

impl Piece {
    /// `len` of these bytes, from `start` on.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline]
    pub fn new(bytes: Arc<[u8]>, start: usize, len: usize) -> Piece {
        assert!(len <= bytes.len() && start <= bytes.len() - len, "bytes {start}+{len} of {}", bytes.len());
        Piece { bytes, start, len }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies them behind the bytes of `head`, which has room for them.
    ///
    /// # Panics
    /// When it has not.
    pub fn append_to(&self, head: &mut Frame) {
        let at = head.len();
        head.set_len(at + self.len);
        head.bytes_mut()[at..].copy_from_slice(self.bytes());
    }
}

/// The part of a port that sends gathered frames.
pub trait Gather {
    /// A free frame for headers, empty, or None when all are in use.
    fn frame(&mut self) -> Option<Frame>;

    /// Takes a frame home that was not used after all.
    fn give_back(&mut self, frame: Frame);

    /// Sends one frame: the bytes of `head`, and behind them those of `piece`. Together they are no longer than the largest
    /// frame, and `head` has room for both.
    ///
    /// It goes at once: it overtakes frames that were handed over since the last [`flush`](crate::Port::flush).
    ///
    /// # Errors
    /// `head`, when it was not sent; the caller then sends the frame whole.
    fn send(&mut self, head: Frame, piece: Piece) -> Result<(), Frame>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_inside_its_bytes() {
        let bytes: Arc<[u8]> = (0..10).collect();
        let piece = Piece::new(bytes.clone(), 3, 4);
        assert_eq!((piece.bytes(), piece.len(), piece.is_empty()), (&[3, 4, 5, 6][..], 4, false));
        assert!(Piece::new(bytes.clone(), 10, 0).is_empty());
        for (start, len) in [(7, 4), (11, 0), (usize::MAX, 2)] {
            let bytes = bytes.clone();
            assert!(std::panic::catch_unwind(|| Piece::new(bytes, start, len)).is_err(), "{start}+{len}");
        }
    }
}
