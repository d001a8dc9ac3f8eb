//! Bytes that are known without being kept, so that checking what came touches no memory of the server's.

fn word(n: u64) -> [u8; 8] {
    let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).to_le_bytes()
}

/// The byte at this offset.
fn byte(at: u64) -> u8 {
    word(at / 8)[(at % 8) as usize]
}

/// Fills `bytes` with what stands from `start`, a multiple of eight, on.
pub(crate) fn fill(start: u64, bytes: &mut [u8]) {
    debug_assert!(start.is_multiple_of(8), "an offset of whole words");
    for (n, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(start / 8 + n as u64)[..chunk.len()]);
    }
}

/// Where the bytes of a stream stand: an object that begins at `start`, repeated every `period` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeated {
    pub(crate) start: u64,
    pub(crate) period: u64,
}

impl Repeated {
    /// Whether `bytes` are those at position `at` of the stream; all of them, or the first eight and the last.
    pub(crate) fn holds(&self, at: u64, bytes: &[u8], all: bool) -> bool {
        let is_right = |n: usize| bytes[n] == byte(self.start + (at + n as u64) % self.period);
        if all {
            (0..bytes.len()).all(is_right)
        } else {
            (0..bytes.len().min(8)).all(is_right) && bytes.len().checked_sub(1).is_none_or(is_right)
        }
    }
}
