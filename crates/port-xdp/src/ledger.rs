//! Which chunks the kernel has.

#![allow(unsafe_code)]

use base::{Arena, Frame};

/// Which chunks the kernel holds from one side of a port: a bit a chunk.
#[derive(Debug)]
pub(crate) struct Ledger {
    bits: Box<[u64]>,
    chunk_shift: u32,
}

impl Ledger {
    pub(crate) fn new(arena: &Arena) -> Ledger {
        let words = (arena.chunks() as usize).div_ceil(64);
        Ledger { bits: vec![0; words].into(), chunk_shift: arena.chunk_bytes().trailing_zeros() }
    }

    /// The kernel gets this chunk; its address.
    #[inline(always)]
    pub(crate) fn give_up(&mut self, arena: &Arena, frame: Frame) -> u64 {
        let address = arena.give_up(frame);
        self.set(address);
        address
    }

    #[inline(always)]
    fn set(&mut self, address: u64) {
        let chunk = (address >> self.chunk_shift) as usize;
        self.bits[chunk / 64] |= 1 << (chunk % 64);
    }

    /// Whether the chunk was held; it no longer is.
    #[inline(always)]
    fn take_back(&mut self, address: u64) -> bool {
        let chunk = (address >> self.chunk_shift) as usize;
        let Some(word) = self.bits.get_mut(chunk / 64) else { return false };
        let bit = 1 << (chunk % 64);
        let held = *word & bit != 0;
        *word &= !bit;
        held
    }

    /// Makes a frame of what the kernel gave back.
    ///
    /// # Panics
    /// When the kernel was given no such chunk from here: the rings are corrupt and nothing in them can be believed.
    #[inline(always)]
    pub(crate) fn reclaim(&mut self, arena: &Arena, address: u64, len: u32) -> Frame {
        assert!(self.take_back(address), "the kernel gave back chunk {address:#x}, which it did not have");
        // SAFETY: the ledger had the chunk as given up by `Arena::give_up` and not taken back since, and no longer has. The kernel
        // is done with it: it put the address into a ring of ours, or (`reclaim_all`) the socket that it served is closed.
        unsafe { arena.frame_at(address, len) }
    }

    /// Every chunk that the kernel had, once the socket is closed that it had them from.
    pub(crate) fn reclaim_all(&mut self, arena: &Arena) -> Vec<Frame> {
        self.held().into_iter().map(|address| self.reclaim(arena, address, 0)).collect()
    }

    /// The addresses of all chunks held.
    fn held(&self) -> Vec<u64> {
        let chunks = 0..self.bits.len() * 64;
        let held = chunks.filter(|chunk| self.bits[chunk / 64] & 1 << (chunk % 64) != 0);
        held.map(|chunk| (chunk as u64) << self.chunk_shift).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_back_once_and_only_if_it_was_given() {
        let (arena, _frames) = Arena::new(130, 4096).unwrap();
        let mut ledger = Ledger::new(&arena);
        for chunk in [0, 63, 64, 129] {
            ledger.set(chunk * 4096 + 256);
        }
        assert_eq!(ledger.held(), [0, 63 * 4096, 64 * 4096, 129 * 4096]);
        // the kernel may name any byte of the chunk
        assert!(ledger.take_back(64 * 4096 + 4095));
        assert!(!ledger.take_back(64 * 4096));
        assert!(!ledger.take_back(65 * 4096));
        assert!(!ledger.take_back(u64::MAX));
        assert_eq!(ledger.held(), [0, 63 * 4096, 129 * 4096]);
    }
}
