//! Ethernet II with at most one 802.1Q tag.

use crate::{array, be16};

/// A hardware address.
pub type Mac = [u8; 6];

/// Everyone on the link.
pub const BROADCAST: Mac = [0xff; 6];
/// Bytes of a header without a tag.
pub const HEADER_BYTES: usize = 14;
/// Bytes of a header with a tag.
pub const TAGGED_HEADER_BYTES: usize = 18;

/// What a frame carries. Values below 0x0600 are lengths (IEEE 802.3), not types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP
    pub const ARP: EtherType = EtherType(0x0806);
    /// IEEE 802.1Q tag
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6
    pub const IPV6: EtherType = EtherType(0x86dd);
}

/// Whether the address is a group's: multicast or broadcast.
#[inline]
pub const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

/// A frame's link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// whom it is for
    pub dst: Mac,
    /// who sent it
    pub src: Mac,
    /// the tag's control information (priority, drop eligibility, VLAN) when there is a tag
    pub tag: Option<u16>,
    /// what follows the header
    pub ether_type: EtherType,
}

impl Link {
    /// The header of `frame`, or None when the frame ends inside it.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Link> {
        let head = frame.first_chunk::<HEADER_BYTES>()?;
        let (dst, src) = (array(head, 0), array(head, 6));
        let ether_type = EtherType(be16(head, 12));
        if ether_type != EtherType::VLAN {
            return Some(Link { dst, src, tag: None, ether_type });
        }
        let head = frame.first_chunk::<TAGGED_HEADER_BYTES>()?;
        Some(Link { dst, src, tag: Some(be16(head, 14)), ether_type: EtherType(be16(head, 16)) })
    }

    /// Bytes of the header.
    #[inline]
    pub const fn bytes(&self) -> usize {
        if self.tag.is_some() { TAGGED_HEADER_BYTES } else { HEADER_BYTES }
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`Link::bytes`].
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let at = self.bytes() - 2;
        out[..6].copy_from_slice(&self.dst);
        out[6..12].copy_from_slice(&self.src);
        if let Some(tag) = self.tag {
            out[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
            out[14..16].copy_from_slice(&tag.to_be_bytes());
        }
        out[at..at + 2].copy_from_slice(&self.ether_type.0.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_short(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(link) = Link::parse(&bytes) {
                let mut out = [0; TAGGED_HEADER_BYTES];
                link.write(&mut out);
                prop_assert_eq!(&out[..link.bytes()], &bytes[..link.bytes()]);
            } else {
                prop_assert!(bytes.len() < TAGGED_HEADER_BYTES);
            }
        }

        #[test]
        fn a_written_header_parses_back(dst: Mac, src: Mac, tag: Option<u16>, kind in 0x600u16..) {
            prop_assume!(kind != 0x8100);
            let link = Link { dst, src, tag, ether_type: EtherType(kind) };
            let mut out = [0; 20];
            link.write(&mut out);
            prop_assert_eq!(Link::parse(&out), Some(link));
        }
    }

    #[test]
    fn a_tag_cut_off_is_short() {
        let mut frame = [0; 17];
        frame[12..14].copy_from_slice(&[0x81, 0]);
        assert_eq!(Link::parse(&frame), None);
    }
}
