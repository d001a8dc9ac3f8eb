//! Headers as they are on the wire: strict views, builders, Internet checksums, flows and their groups, the Toeplitz hash,
//! and the filter expressions of captures.
//!
//! A view borrows the packet, checks every length once in its `parse`, and never panics, whatever the bytes. It judges form
//! only: what an address or a port may be is the stack's to decide. Builders write into memory of the caller.
//!
//! Left out: link layers other than Ethernet with one 802.1Q tag.

#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod filter;
pub mod flow;
pub mod icmp;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod toeplitz;
pub mod udp;

pub use checksum::Sum;
pub use ethernet::{EtherType, Mac};

/// A protocol number of the IPv4 header, a next-header value of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options (RFC 8200 section 4.3)
    pub const HOP_BY_HOP: Protocol = Protocol(0);
    /// ICMP (RFC 792)
    pub const ICMP: Protocol = Protocol(1);
    /// TCP (RFC 9293)
    pub const TCP: Protocol = Protocol(6);
    /// UDP (RFC 768)
    pub const UDP: Protocol = Protocol(17);
    /// IPv6 routing header (RFC 8200 section 4.4)
    pub const ROUTING: Protocol = Protocol(43);
    /// IPv6 fragment header (RFC 8200 section 4.5)
    pub const FRAGMENT: Protocol = Protocol(44);
    /// ICMPv6 (RFC 4443)
    pub const ICMPV6: Protocol = Protocol(58);
    /// nothing follows (RFC 8200 section 4.7)
    pub const NO_NEXT_HEADER: Protocol = Protocol(59);
    /// IPv6 destination options (RFC 8200 section 4.6)
    pub const DESTINATION_OPTIONS: Protocol = Protocol(60);
}

/// The 16-bit number at `at` in `bytes`, most significant byte first; callers know that it is there.
#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The `N` bytes at `at`; callers know that they are there.
#[inline(always)]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
