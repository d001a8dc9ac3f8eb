//! The Internet checksum (RFC 1071), its incremental update (RFC 1624 equation 3), and the pseudo-headers of IPv4 and IPv6.
//!
//! A [`Sum`] is kept in the machine's own byte order, since the one's complement sum does not depend on it (RFC 1071
//! section 2 (B)): nothing is swapped until the two bytes of the field are written.

use crate::Protocol;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A one's complement sum under way. Bytes are added from even offsets; see [`Sum::swapped`] for odd ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Nothing summed yet.
    pub const ZERO: Sum = Sum(0);

    /// The sum of `bytes`, the first of them at an even offset; an odd last byte is padded with zero.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        Sum::ZERO.bytes(bytes)
    }

    /// Adds `bytes`, the first of them at an even offset; an odd last byte is padded with zero, so it must be the last.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        // halves of 32 bits in sums of 64 leave no carry to bring back in, so this becomes vectors; one could run over after
        // 64 GiB, and no slice is as long
        let (blocks, rest) = bytes.as_chunks::<32>();
        let mut sum = self.0;
        if !blocks.is_empty() {
            let mut lanes = [0; 4];
            for block in blocks {
                for (lane, eight) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
                    let eight = u64::from_ne_bytes(*eight);
                    *lane += (eight >> 32) + (eight & 0xffff_ffff);
                }
            }
            sum = lanes.into_iter().fold(sum, add);
        }
        let (eights, rest) = rest.as_chunks::<8>();
        for eight in eights {
            sum = add(sum, u64::from_ne_bytes(*eight));
        }
        if rest.is_empty() { Sum(sum) } else { Sum(add(sum, tail(rest))) }
    }

    /// Adds one 16-bit number.
    #[inline]
    pub fn word(self, word: u16) -> Sum {
        Sum(add(self.0, u64::from(u16::from_ne_bytes(word.to_be_bytes()))))
    }

    /// Adds four bytes, the first of them at an even offset. What a header is made of is summed so, and not the header that was just
    /// written: a wide load of what narrow stores have left waits until they have reached the cache.
    #[inline]
    pub fn four(self, four: [u8; 4]) -> Sum {
        Sum(add(self.0, u64::from(u32::from_ne_bytes(four))))
    }

    /// Adds another sum whose bytes began at an even offset of the whole.
    #[inline]
    pub fn join(self, other: Sum) -> Sum {
        Sum(add(self.0, u64::from(other.fold())))
    }

    /// The same bytes as if they began at an odd offset (RFC 1071 section 2 (B)).
    #[inline]
    pub fn swapped(self) -> Sum {
        Sum(u64::from(self.fold().swap_bytes()))
    }

    /// Adds a part of a packet that starts `offset` bytes into it.
    #[inline]
    pub fn part(self, offset: usize, bytes: &[u8]) -> Sum {
        let sum = Sum::of(bytes);
        self.join(if offset & 1 == 1 { sum.swapped() } else { sum })
    }

    /// The 16-bit one's complement sum, in memory order.
    #[inline]
    fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    /// The 16-bit sum in memory order, for keeping.
    #[inline]
    pub fn folded(self) -> u16 {
        self.fold()
    }

    /// The sum that [`Sum::folded`] gave.
    #[inline]
    pub fn from_folded(folded: u16) -> Sum {
        Sum(u64::from(folded))
    }

    /// The checksum as it stands in the header.
    #[inline]
    pub fn checksum(self) -> [u8; 2] {
        (!self.fold()).to_ne_bytes()
    }

    /// The checksum of a UDP header: zero means "none" there, so it is sent as all ones (RFC 768).
    #[inline]
    pub fn udp_checksum(self) -> [u8; 2] {
        match self.checksum() {
            [0, 0] => [0xff, 0xff],
            other => other,
        }
    }

    /// Whether the bytes summed, the checksum field among them, are intact.
    #[inline]
    pub fn verifies(self) -> bool {
        self.fold() == 0xffff
    }

    /// The folded sum itself, not complemented: what a kernel leaves in the checksum field of a packet whose checksum the
    /// device is to finish, if `self` is the pseudo-header's sum.
    #[inline]
    pub fn partial(self) -> [u8; 2] {
        self.fold().to_ne_bytes()
    }

    /// The pseudo-header of a transport over IPv4 (RFC 768, RFC 9293 section 3.1).
    #[inline]
    pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, transport_bytes: u16) -> Sum {
        Sum::ZERO.four(src.octets()).four(dst.octets()).word(u16::from(protocol.0)).word(transport_bytes)
    }

    /// The pseudo-header of a transport over IPv6 (RFC 8200 section 8.1).
    #[inline]
    pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: Protocol, transport_bytes: u32) -> Sum {
        Sum::of(&src.octets())
            .bytes(&dst.octets())
            .word(u16::from(protocol.0))
            .word((transport_bytes >> 16) as u16)
            .word(transport_bytes as u16)
    }
}

/// One's complement addition of 64 bits: the carry comes back in at the bottom.
#[inline(always)]
fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// One to seven bytes, padded with zeros to eight; each part keeps its parity.
#[inline(always)]
fn tail(bytes: &[u8]) -> u64 {
    let (fours, bytes) = bytes.as_chunks::<4>();
    let (twos, bytes) = bytes.as_chunks::<2>();
    let four = fours.first().map_or(0, |four| u64::from(u32::from_ne_bytes(*four)));
    let two = twos.first().map_or(0, |two| u64::from(u16::from_ne_bytes(*two)));
    let one = bytes.first().map_or(0, |one| u64::from(u16::from_ne_bytes([*one, 0])));
    four + two + one
}

/// The checksum after one 16-bit word that it covers changed from `old` to `new`: HC' = ~(~HC + ~m + m') (RFC 1624
/// equation 3).
#[inline]
pub fn update(checksum: [u8; 2], old: [u8; 2], new: [u8; 2]) -> [u8; 2] {
    let [hc, m, m_new] = [checksum, old, new].map(u16::from_ne_bytes);
    Sum(u64::from(!hc) + u64::from(!m) + u64::from(m_new)).checksum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 1, word for word.
    fn twin(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    proptest! {
        #[test]
        fn is_the_sum_of_rfc_1071(bytes in prop::collection::vec(any::<u8>(), 0..400), skew in 0usize..8) {
            let bytes = &bytes[skew.min(bytes.len())..];
            prop_assert_eq!(Sum::of(bytes).checksum(), twin(bytes));
        }

        #[test]
        fn parts_at_any_offset_join(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(0usize..300, 0..5)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut sum = Sum::ZERO;
            for pair in cuts.windows(2) {
                sum = sum.part(pair[0], &bytes[pair[0]..pair[1]]);
            }
            prop_assert_eq!(sum.checksum(), twin(&bytes));
            prop_assert_eq!(Sum::from_folded(sum.folded()).checksum(), twin(&bytes));
        }

        #[test]
        fn numbers_sum_as_their_bytes(fours in prop::collection::vec(any::<[u8; 4]>(), 0..20), words in prop::collection::vec(any::<u16>(), 0..20)) {
            let sum = fours.iter().fold(Sum::ZERO, |sum, four| sum.four(*four));
            let sum = words.iter().fold(sum, |sum, word| sum.word(*word));
            let bytes: Vec<u8> = fours.concat().into_iter().chain(words.iter().flat_map(|word| word.to_be_bytes())).collect();
            prop_assert_eq!(sum.checksum(), twin(&bytes));
        }

        #[test]
        fn a_packet_with_its_checksum_verifies_and_a_changed_one_does_not(
            mut bytes in prop::collection::vec(any::<u8>(), 2..200), at in any::<prop::sample::Index>(), flip in 1u8..=255
        ) {
            bytes[..2].fill(0);
            let field = Sum::of(&bytes).checksum();
            bytes[..2].copy_from_slice(&field);
            prop_assert!(Sum::of(&bytes).verifies());
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(!Sum::of(&bytes).verifies());
        }

        #[test]
        fn an_update_is_a_new_computation(mut bytes in prop::collection::vec(any::<u8>(), 4..100), new: [u8; 2]) {
            bytes.truncate(bytes.len() & !1);
            bytes[0] |= 1; // not all zero: a sum of zero has two forms
            let before = Sum::of(&bytes).checksum();
            let old = [bytes[2], bytes[3]];
            bytes[2..4].copy_from_slice(&new);
            prop_assert_eq!(update(before, old, new), twin(&bytes));
        }
    }

    #[test]
    fn the_example_of_rfc_1624_section_4() {
        assert_eq!(update([0xdd, 0x2f], [0x55, 0x55], [0x32, 0x85]), [0x00, 0x00]);
    }

    #[test]
    fn lengths_up_to_a_whole_frame_and_all_ones() {
        for len in [0, 1, 2, 7, 8, 9, 1499, 1500, 65535] {
            let bytes = vec![0xff; len];
            assert_eq!(Sum::of(&bytes).checksum(), twin(&bytes), "{len}");
        }
    }

    #[test]
    fn a_udp_checksum_is_never_zero() {
        assert_eq!(Sum::of(&[0xff, 0xff]).udp_checksum(), [0xff, 0xff]);
        assert_eq!(Sum::of(&[0xff, 0xfe]).udp_checksum(), [0x00, 0x01]);
    }

    #[test]
    fn pseudo_headers_are_their_bytes() {
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 9));
        let bytes = [192, 0, 2, 1, 198, 51, 100, 9, 0, 17, 0x12, 0x34];
        assert_eq!(Sum::pseudo_v4(a, b, Protocol::UDP, 0x1234).checksum(), twin(&bytes));
        let (a, b): (Ipv6Addr, Ipv6Addr) = ("2001:db8::1".parse().unwrap(), "fe80::ffff:9".parse().unwrap());
        let mut bytes = [a.octets(), b.octets()].concat();
        bytes.extend([0, 1, 0x12, 0x34, 0, 0, 0, 58]);
        let sum = Sum::pseudo_v6(a, b, Protocol::ICMPV6, 0x1_1234);
        assert_eq!(sum.checksum(), twin(&bytes));
        assert_eq!(sum.partial().map(|byte| !byte), twin(&bytes));
    }
}
