//! Names as keys: lower-cased eight octets at a time, hashed and compared without a copy.
//!
//! Length octets are at most 63 and so never a letter: a whole name in wire form is folded as if it were text (RFC 4343).

/// ASCII letters of eight octets in lower case, the other octets as they are.
#[inline(always)]
pub(crate) const fn lower(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low = word & (0x7f * ONES);
    let from_a = low.wrapping_add((0x80 - b'A' as u64) * ONES);
    let past_z = low.wrapping_add((0x7f - b'Z' as u64) * ONES);
    let upper = (from_a ^ past_z) & !word & (0x80 * ONES);
    word | (upper >> 2)
}

/// Names up to this length are folded whole, without a branch.
pub(crate) const SHORT_BYTES: usize = 32;
const SHORT_WORDS: usize = SHORT_BYTES / 8;

/// The first octets of a name in lower case, zero behind its end.
pub(crate) type Short = [u64; SHORT_WORDS];

/// What of four words belongs to a name of each length.
const MASKS: [Short; SHORT_BYTES + 1] = {
    let mut masks = [[0; SHORT_WORDS]; SHORT_BYTES + 1];
    let mut len = 0;
    while len <= SHORT_BYTES {
        let mut octet = 0;
        while octet < len {
            masks[len][octet / 8] |= 0xff << (8 * (octet % 8));
            octet += 1;
        }
        len += 1;
    }
    masks
};

#[inline(always)]
fn load(octets: &[u8; SHORT_BYTES], len: usize) -> Short {
    let mask = &MASKS[len];
    let (words, _) = octets.as_chunks::<8>();
    std::array::from_fn(|n| u64::from_le_bytes(words[n]) & mask[n])
}

/// Up to eight octets at `at` as a little-endian word, zero where `len` octets have ended.
#[inline(always)]
fn word(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut octets = [0; 8];
    let len = len.min(8);
    octets[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(octets)
}

/// The hash of the name of `len` octets at `at`, in any letter case, and, of a short name, its octets in lower case.
#[inline(always)]
pub(crate) fn fold(seed: u64, bytes: &[u8], at: usize, len: usize) -> (u64, Short) {
    if len > SHORT_BYTES {
        return (long_hash(seed, bytes, at, len), Short::default());
    }
    let short = match bytes.get(at..).and_then(|from| from.first_chunk()) {
        Some(octets) => load(octets, len),
        // near the buffer's end
        None => {
            let mut octets = [0; SHORT_BYTES];
            octets[..len].copy_from_slice(&bytes[at..at + len]);
            load(&octets, len)
        }
    }
    .map(lower);
    let halves = mix(short[0] ^ seed, short[1] ^ K0) ^ mix(short[2] ^ seed.rotate_left(32), short[3] ^ K1);
    (mix(halves ^ len as u64, K1), short)
}

/// The hash alone; see [`fold`].
pub(crate) fn hash(seed: u64, bytes: &[u8], at: usize, len: usize) -> u64 {
    fold(seed, bytes, at, len).0
}

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xa076_1d64_78bd_642f;

#[inline(never)]
fn long_hash(seed: u64, bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut hash = seed ^ len as u64;
    for done in (0..len).step_by(8) {
        hash = mix(hash ^ lower(word(bytes, at + done, len - done)), K0);
    }
    mix(hash, K1)
}

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Whether the name of `len` octets at `at`, folded to `short`, is, but for letter case, the one that `stored` begins with
/// in lower case.
#[inline(always)]
pub(crate) fn same(short: &Short, bytes: &[u8], at: usize, len: usize, stored: &[u8]) -> bool {
    if len > SHORT_BYTES {
        return bytes[at..at + len].eq_ignore_ascii_case(&stored[..len]);
    }
    match stored.first_chunk() {
        Some(octets) => {
            let stored = load(octets, len);
            (0..SHORT_WORDS).fold(0, |differ, n| differ | (stored[n] ^ short[n])) == 0
        }
        None => bytes[at..at + len].eq_ignore_ascii_case(&stored[..len]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lower_is_ascii_lower(octets in any::<[u8; 8]>()) {
            let expected = u64::from_le_bytes(octets.map(|octet| octet.to_ascii_lowercase()));
            prop_assert_eq!(lower(u64::from_le_bytes(octets)), expected);
        }

        #[test]
        fn case_and_what_stands_around_do_not_count(
            name in prop::collection::vec(any::<u8>(), 1..255),
            before in 0usize..20,
            after in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            let mut bytes = vec![7; before];
            bytes.extend(name.to_ascii_uppercase());
            bytes.extend(after);
            let stored = name.to_ascii_lowercase();
            let (hashed, short) = fold(1, &bytes, before, name.len());
            prop_assert_eq!(hashed, hash(1, &stored, 0, name.len()));
            prop_assert!(same(&short, &bytes, before, name.len(), &stored));
            let longer = [&stored[..], &[9; 40]].concat();
            prop_assert!(same(&short, &bytes, before, name.len(), &longer));
            let mut other = longer.clone();
            other[name.len() - 1] ^= 0x80;
            prop_assert!(!same(&short, &bytes, before, name.len(), &other));
            prop_assert!(!same(&short, &bytes, before, name.len(), &other[..name.len()]));
            prop_assert_ne!(hashed, hash(1, &other, 0, name.len()));
        }
    }
}
