//! Who the client is when somebody stands between: the PROXY protocol, version 2, and X-Forwarded-For. Both are believed
//! from configured prefixes only.
//!
//! Left out: version 1 (text), and the TLVs behind the addresses, which are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::head::members;

/// A prefix of addresses: whom something is believed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// an address inside; bits behind the prefix are ignored
    pub address: IpAddr,
    /// its length, at most 32 or 128
    pub bits: u8,
}

impl Prefix {
    /// Whether `address` is inside. An IPv4 address mapped into IPv6 is the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = |all: u32| all - u32::from(self.bits).min(all);
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// The signature that opens a header of version 2 (section 2.2 of the protocol's text).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_BYTES: usize = 16;
/// Longer headers are refused; real ones carry addresses and a few TLVs.
const MOST_BYTES: usize = 2048;

/// What reading a PROXY header came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Partial,
    /// its length, and the client it names; None for a connection of the proxy's own
    Whole(usize, Option<SocketAddr>),
    /// no header of version 2: the protocol says to end the connection
    Wrong,
}

/// Reads the header at the start of `input`.
pub(crate) fn read(input: &[u8]) -> Outcome {
    let known = input.len().min(SIGNATURE.len());
    if input[..known] != SIGNATURE[..known] {
        return Outcome::Wrong;
    }
    let Some((fixed, rest)) = input.split_first_chunk::<FIXED_BYTES>() else { return Outcome::Partial };
    let bytes = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if bytes > MOST_BYTES {
        return Outcome::Wrong;
    }
    let Some(body) = rest.get(..bytes) else { return Outcome::Partial };
    let whole = FIXED_BYTES + bytes;
    match (fixed[12], fixed[13]) {
        // LOCAL: the proxy's own health check
        (0x20, _) => Outcome::Whole(whole, None),
        // PROXY: TCP over IPv4, TCP over IPv6; of other families nothing is known
        (0x21, 0x11) => match body.first_chunk::<12>() {
            Some(&[a, b, c, d, _, _, _, _, high, low, _, _]) => {
                let from = SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])));
                Outcome::Whole(whole, Some(from))
            }
            None => Outcome::Wrong,
        },
        (0x21, 0x21) => match body.first_chunk::<36>() {
            Some(addresses) => {
                let ip: [u8; 16] = std::array::from_fn(|n| addresses[n]);
                let port = u16::from_be_bytes([addresses[32], addresses[33]]);
                Outcome::Whole(whole, Some(SocketAddr::from((Ipv6Addr::from(ip), port))))
            }
            None => Outcome::Wrong,
        },
        (0x21, _) => Outcome::Whole(whole, None),
        _ => Outcome::Wrong,
    }
}

/// The client as X-Forwarded-For tells it: from the right, past every address of a trusted proxy; the first that is not one
/// is what the last trusted proxy saw. None when the field tells nothing.
pub(crate) fn forwarded<'a>(lines: impl DoubleEndedIterator<Item = &'a [u8]>, trusted: &[Prefix]) -> Option<IpAddr> {
    let mut client = None;
    for line in lines.rev() {
        // members of one line, from the right
        let mut rest = line;
        while !rest.is_empty() {
            let at = rest.iter().rposition(|byte| *byte == b',');
            let (before, member) = match at {
                Some(at) => (&rest[..at], &rest[at + 1..]),
                None => (&rest[..0], rest),
            };
            rest = before;
            let Some(member) = members(member).next() else { continue };
            let Some(address) = address(member) else { return client };
            client = Some(address);
            if !trusted.iter().any(|prefix| prefix.contains(address)) {
                return client;
            }
        }
    }
    client
}

/// An address as proxies write it: alone, with a port, or in brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|both| both.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend_from_slice(&[command, family]);
        header.extend_from_slice(&(body.len() as u16).to_be_bytes());
        header.extend_from_slice(body);
        header
    }

    #[test]
    fn addresses_of_both_families_are_read_and_tlvs_skipped() {
        let v4 = header(0x21, 0x11, &[192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x34, 0, 80, 3, 0, 1, 9]);
        assert_eq!(read(&v4), Outcome::Whole(16 + 16, Some("192.0.2.7:4660".parse().unwrap())));
        let mut body = [0; 36];
        body[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        body[15] = 7;
        body[33] = 9;
        assert_eq!(read(&header(0x21, 0x21, &body)), Outcome::Whole(16 + 36, Some("[2001:db8::7]:9".parse().unwrap())));
    }

    #[test]
    fn local_and_unknown_families_keep_the_real_address() {
        assert_eq!(read(&header(0x20, 0x11, &[1; 12])), Outcome::Whole(28, None));
        assert_eq!(read(&header(0x20, 0, &[])), Outcome::Whole(16, None));
        assert_eq!(read(&header(0x21, 0x31, &[0; 216])), Outcome::Whole(232, None));
    }

    #[test]
    fn what_is_no_header_is_wrong() {
        for wrong in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            &header(0x11, 0x11, &[1; 12]),
            &header(0x22, 0x11, &[1; 12]),
            &header(0x21, 0x11, &[1; 11]),
            &header(0x21, 0x21, &[1; 35]),
            &header(0x21, 0x11, &[1; MOST_BYTES + 1]),
        ] {
            assert_eq!(read(wrong), Outcome::Wrong, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn every_prefix_of_a_header_waits(body in prop::collection::vec(any::<u8>(), 12..60), cut in any::<prop::sample::Index>()) {
            let whole = header(0x21, 0x11, &body);
            prop_assert_eq!(read(&whole[..cut.index(whole.len())]), Outcome::Partial);
            prop_assert!(matches!(read(&whole), Outcome::Whole(bytes, Some(_)) if bytes == whole.len()));
        }
    }

    fn from(lines: &[&str], trusted: &[Prefix]) -> Option<IpAddr> {
        forwarded(lines.iter().map(|line| line.as_bytes()), trusted)
    }

    #[test]
    fn forwarded_addresses_are_read_from_the_right_past_trusted_proxies() {
        let trusted = [Prefix { address: "10.0.0.0".parse().unwrap(), bits: 8 }];
        let ip = |text: &str| Some(text.parse().unwrap());
        assert_eq!(from(&["203.0.113.9"], &trusted), ip("203.0.113.9"));
        // what the client itself wrote stands left and is not believed
        assert_eq!(from(&["1.2.3.4, 203.0.113.9, 10.0.0.2"], &trusted), ip("203.0.113.9"));
        assert_eq!(from(&["1.2.3.4", "203.0.113.9,10.1.2.3 , 10.0.0.2"], &trusted), ip("203.0.113.9"));
        assert_eq!(from(&["10.9.9.9, 10.0.0.2"], &trusted), ip("10.9.9.9"));
        assert_eq!(from(&["[2001:db8::1]:443"], &trusted), ip("2001:db8::1"));
        assert_eq!(from(&["203.0.113.9:1234"], &trusted), ip("203.0.113.9"));
        assert_eq!(from(&["203.0.113.9, unknown, 10.0.0.2"], &trusted), ip("10.0.0.2"));
        assert_eq!(from(&["unknown"], &trusted), None);
        assert_eq!(from(&[" , ,"], &trusted), None);
    }

    #[test]
    fn prefixes_of_every_length() {
        let prefix = |text: &str, bits| Prefix { address: text.parse().unwrap(), bits };
        assert!(prefix("0.0.0.0", 0).contains("255.1.2.3".parse().unwrap()));
        assert!(!prefix("0.0.0.0", 0).contains("::1".parse().unwrap()));
        assert!(prefix("::", 0).contains("ffff::".parse().unwrap()));
        assert!(prefix("192.0.2.1", 32).contains("::ffff:192.0.2.1".parse().unwrap()));
        assert!(!prefix("192.0.2.1", 32).contains("192.0.2.0".parse().unwrap()));
        assert!(prefix("192.0.2.129", 25).contains("192.0.2.255".parse().unwrap()));
        assert!(!prefix("192.0.2.129", 25).contains("192.0.2.127".parse().unwrap()));
        assert!(prefix("2001:db8::", 33).contains("2001:db8:7fff::1".parse().unwrap()));
        assert!(!prefix("2001:db8::", 33).contains("2001:db8:8000::1".parse().unwrap()));
    }
}
