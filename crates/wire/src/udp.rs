//! UDP (RFC 768).

use crate::{Sum, array, be16};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 8;

/// What the checksum of a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// it verifies
    Good,
    /// there is none (RFC 768); IPv6 does not allow it (RFC 8200 section 8.1)
    Absent,
    /// it is the folded pseudo-header sum: the sender left the rest to a device
    Partial,
    /// none of these
    Bad,
}

/// Why bytes are not a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// they end inside the header
    Short,
    /// the length is below 8 or more than there is
    Length,
}

/// A datagram whose length is sound; bytes that the IP payload has beyond it are left out.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    all: &'a [u8],
    head: &'a [u8; HEADER_BYTES],
}

impl<'a> Udp<'a> {
    /// The datagram at the front of `bytes`.
    ///
    /// # Errors
    /// What is wrong with its form.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Udp<'a>, Malformed> {
        let head = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed::Short)?;
        let len = usize::from(be16(head, 4));
        if len < HEADER_BYTES || len > bytes.len() {
            return Err(Malformed::Length);
        }
        Ok(Udp { all: &bytes[..len], head })
    }

    /// Source port; zero when no answer is wanted.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.head, 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.all.len()
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.all[HEADER_BYTES..]
    }

    /// Judges the checksum; `pseudo` is the sum of the pseudo-header.
    #[inline]
    pub fn verdict(&self, pseudo: Sum) -> Verdict {
        let field: [u8; 2] = array(self.head, 6);
        if field == [0, 0] {
            Verdict::Absent
        } else if pseudo.bytes(self.all).verifies() {
            Verdict::Good
        } else if field == pseudo.partial() {
            Verdict::Partial
        } else {
            Verdict::Bad
        }
    }
}

/// Writes the header to the front of `datagram`, whose rest is the payload, with the checksum over all of it; `pseudo` is
/// the sum of the pseudo-header. The checksum is never zero.
///
/// # Panics
/// When `datagram` is shorter than a header or longer than 65,535 bytes.
#[inline]
pub fn write(datagram: &mut [u8], src_port: u16, dst_port: u16, pseudo: Sum) {
    let len = u16::try_from(datagram.len()).expect("a datagram above 65,535 bytes");
    let head = datagram.first_chunk_mut::<HEADER_BYTES>().expect("room for a UDP header");
    head[..2].copy_from_slice(&src_port.to_be_bytes());
    head[2..4].copy_from_slice(&dst_port.to_be_bytes());
    head[4..6].copy_from_slice(&len.to_be_bytes());
    head[6..].fill(0);
    let checksum = pseudo.bytes(datagram).udp_checksum();
    datagram[6..8].copy_from_slice(&checksum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn pseudo(bytes: usize) -> Sum {
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        Sum::pseudo_v4(a, b, Protocol::UDP, bytes as u16)
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(udp) = Udp::parse(&bytes) {
                prop_assert_eq!(udp.bytes(), udp.payload().len() + HEADER_BYTES);
                let _ = udp.verdict(pseudo(udp.bytes()));
            }
        }

        #[test]
        fn a_written_datagram_verifies_and_its_checksum_is_not_zero(payload in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut datagram = [&[0; 8][..], &payload].concat();
            let sum = pseudo(datagram.len());
            write(&mut datagram, 53, 4097, sum);
            prop_assert_ne!(&datagram[6..8], &[0, 0]);
            let udp = Udp::parse(&datagram).unwrap();
            prop_assert_eq!((udp.src_port(), udp.dst_port(), udp.payload()), (53, 4097, &payload[..]));
            prop_assert_eq!(udp.verdict(sum), Verdict::Good);
        }
    }

    #[test]
    fn a_checksum_that_comes_out_as_zero_is_sent_as_ones() {
        // the payload's one word makes the sum all ones
        let mut datagram = [0; 10];
        let sum = pseudo(10);
        write(&mut datagram, 53, 53, sum);
        let word = [datagram[6], datagram[7]];
        datagram[8..].copy_from_slice(&word);
        write(&mut datagram, 53, 53, sum);
        assert_eq!(datagram[6..8], [0xff, 0xff]);
        assert_eq!(Udp::parse(&datagram).unwrap().verdict(sum), Verdict::Good);
    }

    #[test]
    fn verdicts() {
        let mut datagram = [0; 12];
        let sum = pseudo(12);
        write(&mut datagram, 1, 2, sum);
        datagram[6..8].fill(0);
        assert_eq!(Udp::parse(&datagram).unwrap().verdict(sum), Verdict::Absent);
        datagram[6..8].copy_from_slice(&sum.partial());
        assert_eq!(Udp::parse(&datagram).unwrap().verdict(sum), Verdict::Partial);
        datagram[7] ^= 1;
        assert_eq!(Udp::parse(&datagram).unwrap().verdict(sum), Verdict::Bad);
        assert_eq!(Udp::parse(&datagram[..11]).err(), Some(Malformed::Length));
        assert_eq!(Udp::parse(&datagram[..7]).err(), Some(Malformed::Short));
        datagram[5] = 7;
        assert_eq!(Udp::parse(&datagram).err(), Some(Malformed::Length));
    }
}
