//! The form of an entry, as the program reads it.

use super::{Answer, Below, Key, Which};

/// Octets of `struct answer_head`, and of `struct cut`.
const HEAD_BYTES: usize = 8;
const CUT_BYTES: usize = 12;
pub(super) const SHORT: Sizes = Sizes { cuts: 1, name_at: 24, name_bytes: 48, body_bytes: 88 };
pub(super) const LONG: Sizes = Sizes { cuts: 4, name_at: 56, name_bytes: 256, body_bytes: 1216 };
/// Where a short entry has its name's seat: behind the only cut.
pub(super) const SEAT_AT: usize = HEAD_BYTES + CUT_BYTES;
pub(super) const SHORT_BYTES: usize = SHORT.bytes();
pub(super) const LONG_BYTES: usize = LONG.bytes();

const NOT_ANY: u8 = 1;
const NOT_DS: u8 = 2;
pub(super) const IS_LONG: u8 = 4;
const BELOW: u8 = 8;
const ABSENT: u8 = 16;
const WHOLE: u8 = 32;
const LEFT: u8 = 64;

/// Most pointers that move.
const MOVES: usize = 32;

/// `struct short_answer` or `struct long_answer`.
pub(super) struct Sizes {
    cuts: usize,
    name_at: usize,
    /// a multiple of 8
    name_bytes: usize,
    body_bytes: usize,
}

impl Sizes {
    pub(super) const fn bytes(&self) -> usize {
        self.name_at + self.name_bytes + self.body_bytes
    }

    pub(super) fn takes(&self, name: &[u8], answer: &Answer<'_>) -> bool {
        let (moves, moves_bytes) = answer.moves.map_or((0, 0), |moves| (moves.len(), 2 + 2 * moves.len()));
        let body_bytes = answer.body.len() + moves_bytes;
        let counts = answer.cuts.len() <= self.cuts && moves <= MOVES;
        counts && name.len() <= self.name_bytes && body_bytes <= self.body_bytes
    }

    pub(super) fn write(&self, entry: &mut [u8], name: &[u8], flags: u8, answer: &Answer<'_>) {
        entry[..4].copy_from_slice(&[name.len() as u8, answer.cuts.len() as u8, flags, answer.nxdomain.into()]);
        entry[4..HEAD_BYTES].copy_from_slice(&answer.zone.to_ne_bytes());
        for (cut, to) in answer.cuts.iter().zip(entry[HEAD_BYTES..].chunks_exact_mut(CUT_BYTES)) {
            to[..2].copy_from_slice(&cut.bytes.to_ne_bytes());
            to[2..4].copy_from_slice(&sum(&answer.body[..usize::from(cut.bytes)]).to_ne_bytes());
            for (count, to) in [cut.answer, cut.authority, cut.additional].iter().zip(to[4..10].chunks_exact_mut(2)) {
                to.copy_from_slice(&count.to_be_bytes());
            }
            to[10] = 0x80 | if answer.authoritative { 4 } else { 0 } | if cut.truncated { 2 } else { 0 };
            to[11] = if answer.nxdomain { 3 } else { 0 };
        }
        entry[self.name_at..self.name_at + name.len()].copy_from_slice(name);
        let body_at = self.name_at + self.name_bytes;
        entry[body_at..body_at + answer.body.len()].copy_from_slice(answer.body);
        if let Some(moves) = answer.moves {
            // behind the body, from the end: how many, and where from the first on
            let numbers = std::iter::once(moves.len() as u16).chain(moves.iter().copied());
            for (number, to) in numbers.zip(entry.rchunks_exact_mut(2)) {
                to.copy_from_slice(&number.to_ne_bytes());
            }
        }
    }
}

/// The key of type 0 is that of all others.
pub(super) const OTHERS: u16 = 0;

/// `struct answer_key`.
pub(super) fn key(hash: u64, generation: u32, rtype: u16) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&hash.to_ne_bytes());
    key[8..12].copy_from_slice(&generation.to_ne_bytes());
    key[12..14].copy_from_slice(&rtype.to_be_bytes());
    key
}

/// The type of an entry's key, and its flags.
pub(super) fn rtype_and_flags(which: Which) -> (u16, u8) {
    match which {
        Which::Type(rtype) => (rtype, 0),
        Which::Others { but_any, but_ds, below } => {
            let below = match below {
                Below::AsAbove => 0,
                Below::Left => BELOW | LEFT,
                Below::Answered { absent, whole } => {
                    BELOW | if absent { ABSENT } else { 0 } | if whole { WHOLE } else { 0 }
                }
            };
            (OTHERS, if but_any { NOT_ANY } else { 0 } | if but_ds { NOT_DS } else { 0 } | below)
        }
    }
}

/// `struct absence`.
pub(super) const ABSENCE_BYTES: usize = 40;

/// Lengths of names in octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths([u64; 4]);

impl Lengths {
    pub(super) fn add(&mut self, name: &[u8]) {
        if let Some(word) = self.0.get_mut(name.len() / 64) {
            *word |= 1 << (name.len() % 64);
        }
    }

    pub(super) fn join(self, other: Lengths) -> Lengths {
        Lengths(std::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    /// As the program reads them.
    pub(super) fn bytes(self, whole: bool) -> [u8; ABSENCE_BYTES] {
        let mut bytes = [0; ABSENCE_BYTES];
        for (word, to) in self.0.iter().zip(bytes.chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[32..].copy_from_slice(&u64::from(whole).to_ne_bytes());
        bytes
    }
}

/// The octets as words of the machine, the last one filled up with zeros.
fn words(octets: &[u8]) -> impl Iterator<Item = u64> {
    octets.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xa076_1d64_78bd_642f;

/// The factor of a seed's hash.
pub(super) fn secret(seed: u64) -> u64 {
    let secret = (seed ^ seed >> 32).wrapping_mul(K1);
    (secret ^ secret >> 29) | 1
}

/// `fold_name` of the program, of a name in lower case.
pub(super) fn hash(seed: u64, name: &[u8]) -> u64 {
    let secret = secret(seed);
    let hash = words(name).fold(seed ^ name.len() as u64, |hash, word| {
        let hash = (hash ^ (word ^ word >> 32).wrapping_mul(secret)).wrapping_mul(K0);
        hash ^ hash >> 32
    });
    let hash = hash.wrapping_mul(K1);
    hash ^ hash >> 29
}

/// The folded sum of octets that begin at an even place, in the machine's order (RFC 1071).
fn sum(octets: &[u8]) -> u16 {
    let pairs = words(octets).fold(0u64, |sum, word| sum + (word & 0xffff_ffff) + (word >> 32));
    let mut sum = pairs;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that differ in the high bits of neighbouring words, which a multiplication carries nowhere.
    #[test]
    fn nobody_makes_names_of_one_hash_without_the_seed() {
        let name = |differs: u32| {
            let mut name = [&[20][..], &[b'a'; 20], b"\x07example\0"].concat();
            // the highest bit of each half of the first three words
            for n in (0..6).filter(|n| differs & 1 << n != 0) {
                name[4 * n + 3] ^= 0x80;
            }
            name
        };
        for seed in [1, 2, 7, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            let mut hashes: Vec<u64> = (0..64).map(|differs| hash(seed, &name(differs))).collect();
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 64, "{seed:#x}");
        }
    }
}
