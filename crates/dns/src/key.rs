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

/// Up to eight octets at `at` as a little-endian word, zero where `len` octets have ended.
#[inline(always)]
fn word(bytes: &[u8], at: usize, len: usize) -> u64 {
    if let Some(eight) = bytes.get(at..at + 8) {
        let word = u64::from_le_bytes([eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7]]);
        return if len >= 8 { word } else { word & ((1 << (8 * len)) - 1) };
    }
    // near the buffer's end
    let mut word = 0;
    for (n, octet) in bytes[at..].iter().take(len).enumerate() {
        word |= u64::from(*octet) << (8 * n);
    }
    word
}

/// The hash of the name of `len` octets at `at`, in any letter case. Octets behind it may be read but do not count.
#[inline(always)]
pub(crate) fn hash(seed: u64, bytes: &[u8], at: usize, len: usize) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = seed ^ len as u64;
    let mut done = 0;
    while done < len {
        hash = fold(hash ^ lower(word(bytes, at + done, len - done)), K);
        done += 8;
    }
    fold(hash, K)
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Whether the name of `len` octets at `at` is, but for letter case, the one that `stored` holds in lower case.
#[inline(always)]
pub(crate) fn same(bytes: &[u8], at: usize, len: usize, stored: &[u8]) -> bool {
    let mut done = 0;
    while done < len {
        if lower(word(bytes, at + done, len - done)) != word(stored, done, len - done) {
            return false;
        }
        done += 8;
    }
    true
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
            prop_assert_eq!(hash(1, &bytes, before, name.len()), hash(1, &stored, 0, name.len()));
            prop_assert!(same(&bytes, before, name.len(), &stored));
            let mut other = stored.clone();
            let last = other.len() - 1;
            other[last] ^= 0x80;
            prop_assert!(!same(&bytes, before, name.len(), &other));
            prop_assert_ne!(hash(1, &bytes, before, name.len()), hash(1, &other, 0, name.len()));
        }
    }
}
