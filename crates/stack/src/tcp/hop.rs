//! What stands in front of a segment: link and network.

use super::tuple::Tuple;
use wire::ethernet::Mac;
use wire::{Protocol, Sum, ipv4, ipv6};

/// Where a connection's frames go: the station that the last one came from, or, where nothing comes any more, the one that its
/// neighbour is by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Hop {
    pub(crate) mac: Mac,
    /// the tag's control information; all ones without a tag (VLAN 4095 is reserved)
    tag: u16,
}

impl Hop {
    pub(crate) fn new(mac: Mac, tag: Option<u16>) -> Hop {
        Hop { mac, tag: tag.unwrap_or(u16::MAX) }
    }

    /// Whether nobody has said yet which station it is.
    pub(crate) fn is_unknown(&self) -> bool {
        self.mac == [0; 6]
    }

    pub(crate) fn tag(&self) -> Option<u16> {
        (self.tag != u16::MAX).then_some(self.tag)
    }
}

/// The pseudo-header's sum of a segment of so many bytes, in either direction.
#[inline]
pub(crate) fn pseudo(tuple: &Tuple, bytes: usize) -> Sum {
    match tuple {
        Tuple::V4(tuple) => Sum::pseudo_v4(tuple.local, tuple.remote, Protocol::TCP, bytes as u16),
        Tuple::V6(tuple) => Sum::pseudo_v6(tuple.local, tuple.remote, Protocol::TCP, bytes as u32),
    }
}

/// Bytes of the IP header.
#[inline]
pub(crate) const fn ip_bytes(tuple: &Tuple) -> usize {
    match tuple {
        Tuple::V4(_) => ipv4::HEADER_BYTES,
        Tuple::V6(_) => ipv6::HEADER_BYTES,
    }
}
