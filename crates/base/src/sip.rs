//! SipHash (Aumasson, Bernstein 2012) of what is short and all there: no state is carried from call to call.
//!
//! SipHash-2-4 makes what a stranger sees and must not guess (initial sequence numbers, cookies, clock offsets).
//! SipHash-1-3 places connections and items in tables: nobody sees its output, and one round a word keeps it at some 20
//! instructions more than a hash without a key, whose collisions anybody could compute and aim at one bucket.
//!
//! The input is bytes, or whole 64-bit words and up to seven bytes behind them, as tuples have.

/// A secret of 128 bits, drawn once by who owns the entropy.
#[derive(Clone, Copy)]
pub struct Key {
    k0: u64,
    k1: u64,
}

/// The secret stays out of logs.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The last word of an input: up to seven bytes, and the length of all of it in the highest byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail(u64);

impl Tail {
    /// `count` bytes (the lowest of `bytes`, the first byte lowest) behind `words` whole words.
    #[inline(always)]
    pub const fn new(words: usize, bytes: u64, count: u32) -> Tail {
        debug_assert!(count < 8 && bytes >> (8 * count) == 0);
        let length = words as u64 * 8 + count as u64;
        Tail(length << 56 | bytes)
    }
}

impl Key {
    /// The key of these two words.
    pub const fn new(k0: u64, k1: u64) -> Key {
        Key { k0, k1 }
    }

    /// Another key for another use, that tells nothing of this one.
    #[must_use]
    pub fn derive(self, purpose: u32) -> Key {
        let half = |bit: u64| self.hash24(&[], Tail::new(0, u64::from(purpose) << 8 | bit, 5));
        Key { k0: half(0), k1: half(1) }
    }

    /// SipHash-1-3, for tables.
    #[inline(always)]
    pub const fn hash13<const N: usize>(self, words: &[u64; N], tail: Tail) -> u64 {
        self.hash::<1, 3, N>(words, tail)
    }

    /// SipHash-1-3 of bytes, for tables.
    #[inline]
    pub fn hash13_of(self, bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<8>();
        let behind = match bytes.last_chunk::<8>() {
            // one read in place of one a byte
            Some(last) if !rest.is_empty() => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            _ => rest.iter().rev().fold(0, |behind, byte| behind << 8 | u64::from(*byte)),
        };
        let v = words.iter().fold(self.begin(), |v, word| absorb::<1>(v, u64::from_le_bytes(*word)));
        end::<1, 3>(v, Tail::new(words.len(), behind, rest.len() as u32))
    }

    /// SipHash-2-4, for what strangers see.
    #[inline(always)]
    pub const fn hash24<const N: usize>(self, words: &[u64; N], tail: Tail) -> u64 {
        self.hash::<2, 4, N>(words, tail)
    }

    #[inline(always)]
    const fn hash<const C: usize, const D: usize, const N: usize>(self, words: &[u64; N], tail: Tail) -> u64 {
        let mut v = self.begin();
        let mut at = 0;
        while at < N {
            v = absorb::<C>(v, words[at]);
            at += 1;
        }
        end::<C, D>(v, tail)
    }

    #[inline(always)]
    const fn begin(self) -> [u64; 4] {
        // "somepseudorandomlygeneratedbytes"
        [
            self.k0 ^ 0x736f_6d65_7073_6575,
            self.k1 ^ 0x646f_7261_6e64_6f6d,
            self.k0 ^ 0x6c79_6765_6e65_7261,
            self.k1 ^ 0x7465_6462_7974_6573,
        ]
    }
}

#[inline(always)]
const fn end<const C: usize, const D: usize>(v: [u64; 4], tail: Tail) -> u64 {
    let mut v = absorb::<C>(v, tail.0);
    v[2] ^= 0xff;
    v = rounds::<D>(v);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
const fn absorb<const C: usize>(mut v: [u64; 4], word: u64) -> [u64; 4] {
    v[3] ^= word;
    v = rounds::<C>(v);
    v[0] ^= word;
    v
}

#[inline(always)]
const fn rounds<const COUNT: usize>(mut v: [u64; 4]) -> [u64; 4] {
    let mut round = 0;
    while round < COUNT {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
        round += 1;
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use siphasher::sip::{SipHasher13, SipHasher24};
    use std::hash::Hasher;

    proptest! {
        #[test]
        fn is_the_siphash_of_others(k0: u64, k1: u64, words: [u64; 5], bytes: u64, count in 0u32..8) {
            let bytes = bytes & ((1u128 << (8 * count)) - 1) as u64;
            let key = Key::new(k0, k1);
            let mut input: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            input.extend(&bytes.to_le_bytes()[..count as usize]);
            let (mut h13, mut h24) = (SipHasher13::new_with_keys(k0, k1), SipHasher24::new_with_keys(k0, k1));
            h13.write(&input);
            h24.write(&input);
            let tail = Tail::new(5, bytes, count);
            prop_assert_eq!((key.hash13(&words, tail), key.hash24(&words, tail)), (h13.finish(), h24.finish()));
        }
    }

    proptest! {
        #[test]
        fn of_bytes_it_is_the_siphash_of_others(k0: u64, k1: u64, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut other = SipHasher13::new_with_keys(k0, k1);
            other.write(&bytes);
            prop_assert_eq!(Key::new(k0, k1).hash13_of(&bytes), other.finish());
        }
    }

    #[test]
    fn the_vector_of_the_paper() {
        // appendix A: key 00..0f, input 00..0e
        let key = Key::new(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let tail = Tail::new(1, 0x000e_0d0c_0b0a_0908, 7);
        assert_eq!(key.hash24(&[0x0706_0504_0302_0100], tail), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn derived_keys_differ_and_stay_out_of_logs() {
        let key = Key::new(1, 2);
        let hash = |key: Key| key.hash13(&[7], Tail::new(1, 0, 0));
        let all = [hash(key), hash(key.derive(0)), hash(key.derive(1)), hash(key.derive(256))];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
