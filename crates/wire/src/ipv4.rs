//! IPv4 (RFC 791).

use crate::{Protocol, Sum, array, be16};
use std::net::Ipv4Addr;

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;

/// Why bytes are not an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// they end inside the header
    Short,
    /// the version is not 4
    Version,
    /// the header's length is below 5 words
    HeaderLength,
    /// the total length is less than the header or more than there is
    TotalLength,
    /// the header's checksum does not verify
    Checksum,
    /// an option's length leaves the header (RFC 791 section 3.1)
    Options,
}

/// A packet whose form is sound; bytes after its total length (padding of short frames) are left out.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    head: &'a [u8; HEADER_BYTES],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// The packet at the front of `bytes`, header checksum verified.
    ///
    /// # Errors
    /// What is wrong with its form; options are judged by [`Ipv4::source_routed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Ipv4<'a>, Malformed> {
        let head = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed::Short)?;
        if head[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let header_bytes = usize::from(head[0] & 15) * 4;
        if header_bytes < HEADER_BYTES {
            return Err(Malformed::HeaderLength);
        }
        let total_bytes = usize::from(be16(head, 2));
        if total_bytes < header_bytes || total_bytes > bytes.len() {
            return Err(Malformed::TotalLength);
        }
        if !Sum::of(head).bytes(&bytes[HEADER_BYTES..header_bytes]).verifies() {
            return Err(Malformed::Checksum);
        }
        let (options, payload) = bytes[HEADER_BYTES..total_bytes].split_at(header_bytes - HEADER_BYTES);
        Ok(Ipv4 { head, options, payload })
    }

    /// The packet that an ICMP error quotes: its header must be whole and plausible, its payload may be cut, and its
    /// checksum is not verified, since some routers quote it after changing the TTL.
    ///
    /// # Errors
    /// What is wrong with its form.
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<Ipv4<'a>, Malformed> {
        let head = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed::Short)?;
        let header_bytes = usize::from(head[0] & 15) * 4;
        if head[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        if header_bytes < HEADER_BYTES || header_bytes > bytes.len() {
            return Err(Malformed::HeaderLength);
        }
        let (options, payload) = bytes[HEADER_BYTES..].split_at(header_bytes - HEADER_BYTES);
        Ok(Ipv4 { head, options, payload })
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.head, 12))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.head, 16))
    }

    /// What the payload is.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.head[9])
    }

    /// Hops left.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.head[8]
    }

    /// DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.head[1]
    }

    /// Whether this is a part of a datagram: more follow, or it is not the first.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        be16(self.head, 6) & 0x3fff != 0
    }

    /// Whether this is a part but not the first, and so has no transport header.
    pub fn is_later_fragment(&self) -> bool {
        be16(self.head, 6) & 0x1fff != 0
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.options.len()
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Walks the options; true when one asks for source routing (RFC 791 section 3.1: types 131 and 137).
    ///
    /// # Errors
    /// [`Malformed::Options`] when a length leaves the header.
    pub fn source_routed(&self) -> Result<bool, Malformed> {
        let mut rest = self.options;
        while let Some((kind, after)) = rest.split_first() {
            match *kind {
                0 => break,
                1 => rest = after,
                131 | 137 => return Ok(true),
                _ => {
                    let bytes = usize::from(*after.first().ok_or(Malformed::Options)?);
                    if bytes < 2 || bytes > rest.len() {
                        return Err(Malformed::Options);
                    }
                    rest = &rest[bytes..];
                }
            }
        }
        Ok(false)
    }
}

/// A header to be written: no options, DF set, identification zero. Such datagrams are atomic, so the identification has
/// no meaning (RFC 6864 section 4.1).
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// source address
    pub src: Ipv4Addr,
    /// destination address
    pub dst: Ipv4Addr,
    /// what the payload is
    pub protocol: Protocol,
    /// hops it may make
    pub ttl: u8,
    /// bytes after the header
    pub payload_bytes: usize,
}

impl Header {
    /// Writes the header with its checksum.
    ///
    /// # Panics
    /// When header and payload exceed 65,535 bytes.
    #[inline]
    pub fn write(&self, out: &mut [u8; HEADER_BYTES]) {
        let total = u16::try_from(HEADER_BYTES + self.payload_bytes).expect("an IPv4 packet above 65,535 bytes");
        *out = [0x45, 0, 0, 0, 0, 0, 0x40, 0, self.ttl, self.protocol.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        // of the numbers, see `Sum::four`
        let fixed =
            Sum::ZERO.word(0x4500).word(total).word(0x4000).word(u16::from_be_bytes([self.ttl, self.protocol.0]));
        let sum = fixed.four(self.src.octets()).four(self.dst.octets());
        out[10..12].copy_from_slice(&sum.checksum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(options: &[u8], payload: &[u8]) -> Vec<u8> {
        let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let mut head = [0; HEADER_BYTES];
        Header { src, dst, protocol: Protocol::UDP, ttl: 64, payload_bytes: options.len() + payload.len() }
            .write(&mut head);
        head[0] += (options.len() / 4) as u8;
        let mut packet = [&head[..], options].concat();
        packet[10..12].fill(0);
        let checksum = Sum::of(&packet).checksum();
        packet[10..12].copy_from_slice(&checksum);
        packet.extend(payload);
        packet
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..90), shaped: bool) {
            if shaped && bytes.len() >= 20 {
                bytes[0] = 0x45 + (bytes[0] & 7);
                let total = bytes.len() as u16;
                bytes[2..4].copy_from_slice(&total.to_be_bytes());
                let header = (usize::from(bytes[0] & 15) * 4).min(bytes.len());
                bytes[10..12].fill(0);
                let checksum = Sum::of(&bytes[..header]).checksum();
                bytes[10..12].copy_from_slice(&checksum);
            }
            if let Ok(ip) = Ipv4::parse(&bytes) {
                prop_assert_eq!(ip.header_bytes() + ip.payload().len(), usize::from(be16(&bytes, 2)));
                let _ = ip.source_routed();
            }
            if let Ok(ip) = Ipv4::parse_quoted(&bytes) {
                let _ = ip.source_routed();
            }
        }
    }

    #[test]
    fn a_written_packet_parses_and_padding_is_left_out() {
        let mut bytes = packet(&[], b"payload");
        bytes.extend([0; 30]);
        let ip = Ipv4::parse(&bytes).unwrap();
        assert_eq!((ip.src(), ip.dst()), (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)));
        assert_eq!((ip.protocol(), ip.ttl(), ip.payload()), (Protocol::UDP, 64, &b"payload"[..]));
        assert!(!ip.is_fragment() && ip.source_routed() == Ok(false));
    }

    #[test]
    fn each_malformation_has_its_name() {
        let good = packet(&[], b"x");
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            Ipv4::parse(&bad).err()
        };
        assert_eq!(Ipv4::parse(&good[..19]).err(), Some(Malformed::Short));
        assert_eq!(with(0, 0x55), Some(Malformed::Version));
        assert_eq!(with(0, 0x44), Some(Malformed::HeaderLength));
        assert_eq!(with(3, 22), Some(Malformed::TotalLength));
        assert_eq!(with(3, 19), Some(Malformed::TotalLength));
        assert_eq!(with(8, 1), Some(Malformed::Checksum));
    }

    #[test]
    fn options_are_walked() {
        for (options, expect) in [
            (&[1, 1, 1, 0][..], Ok(false)),
            (&[148, 4, 0, 0], Ok(false)),            // router alert
            (&[1, 131, 3, 4], Ok(true)),             // loose source route
            (&[137, 7, 4, 1, 2, 3, 4, 0], Ok(true)), // strict source route
            (&[148, 5, 0, 0], Err(Malformed::Options)),
            (&[148, 1, 0, 0], Err(Malformed::Options)),
            (&[1, 1, 1, 7], Err(Malformed::Options)),
        ] {
            let bytes = packet(options, b"abc");
            let ip = Ipv4::parse(&bytes).unwrap();
            assert_eq!((ip.source_routed(), ip.payload()), (expect, &b"abc"[..]), "{options:?}");
        }
    }

    #[test]
    fn fragments_are_seen_and_df_is_not_one() {
        let mut bytes = packet(&[], b"");
        for (flags, any, later) in
            [(0x4000u16, false, false), (0x2000, true, false), (1, true, true), (0x2001, true, true)]
        {
            bytes[6..8].copy_from_slice(&flags.to_be_bytes());
            let ip = Ipv4::parse_quoted(&bytes).unwrap();
            assert_eq!((ip.is_fragment(), ip.is_later_fragment()), (any, later), "{flags:x}");
        }
    }
}
