//! ICMPv6 (RFC 4443), neighbour discovery (RFC 4861) and listener reports (RFC 3810), as far as an end host with fixed
//! addresses needs them.

use crate::icmp::{self, Message};
use crate::{Mac, Protocol, Sum, array, be16};
use std::net::Ipv6Addr;

pub use crate::icmp::{HEADER_BYTES, Malformed};

/// Bytes of a neighbour solicitation or advertisement without options.
pub const NEIGHBOUR_BYTES: usize = 24;

/// Destination unreachable, code 4: no such port here.
pub const PORT_UNREACHABLE: [u8; 2] = [1, 4];
/// Parameter problem, code 0: a header field is wrong.
pub const PROBLEM_FIELD: [u8; 2] = [4, 0];
/// Parameter problem, code 1: a next header is not known.
pub const PROBLEM_NEXT_HEADER: [u8; 2] = [4, 1];
/// Parameter problem, code 2: an option is not known.
pub const PROBLEM_OPTION: [u8; 2] = [4, 2];

const TYPE_ECHO_REPLY: u8 = 129;
const TYPE_NEIGHBOUR_SOLICITATION: u8 = 135;
const TYPE_NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const TYPE_REPORT_V2: u8 = 143;
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;

/// What a message is, as far as an end host cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// echo request
    EchoRequest,
    /// echo reply
    EchoReply,
    /// neighbour solicitation
    Solicitation,
    /// neighbour advertisement
    Advertisement,
    /// a router asks which groups are listened to (RFC 3810 section 5.1)
    ListenerQuery,
    /// an error that quotes a packet
    Error,
    /// anything else
    Other,
}

/// A message whose checksum verifies.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a>(Message<'a>);

/// The pseudo-header's sum for a message of `bytes`.
#[inline]
fn pseudo(src: Ipv6Addr, dst: Ipv6Addr, bytes: usize) -> Sum {
    Sum::pseudo_v6(src, dst, Protocol::ICMPV6, bytes as u32)
}

impl<'a> Icmp<'a> {
    /// The message that `bytes` are, between these addresses.
    ///
    /// # Errors
    /// What is wrong with its form.
    pub fn parse(bytes: &'a [u8], src: Ipv6Addr, dst: Ipv6Addr) -> Result<Icmp<'a>, Malformed> {
        Message::parse(bytes, pseudo(src, dst, bytes.len())).map(Icmp)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match self.0.kind_and_code() {
            (128, 0) => Kind::EchoRequest,
            (TYPE_ECHO_REPLY, 0) => Kind::EchoReply,
            (TYPE_NEIGHBOUR_SOLICITATION, 0) => Kind::Solicitation,
            (TYPE_NEIGHBOUR_ADVERTISEMENT, 0) => Kind::Advertisement,
            (130, _) => Kind::ListenerQuery,
            (0..=127, _) => Kind::Error,
            _ => Kind::Other,
        }
    }

    /// Of "packet too big", the next hop's MTU (RFC 4443 section 3.2).
    pub fn mtu(&self) -> Option<u32> {
        (self.0.kind_and_code().0 == 2).then(|| self.0.parameter())
    }

    /// Whether an error says that the destination itself takes no such packets: port unreachable (RFC 4443 section 3.1). What else is
    /// said may pass.
    pub fn is_final(&self) -> bool {
        self.0.kind_and_code() == (1, 4)
    }

    /// The packet that an error quotes, possibly cut.
    pub fn quoted(&self) -> &'a [u8] {
        self.0.quoted()
    }

    /// The message as a neighbour solicitation or advertisement, its options checked (RFC 4861 sections 7.1.1, 7.1.2: every
    /// option has a length above zero and ends inside the message; the target is no group). Nor has a neighbour an address that no packet on a
    /// link may have: the unspecified one, loopback (RFC 4291 sections 2.5.2, 2.5.3), or a mapped IPv4 one, which is ARP's.
    pub fn neighbour(&self) -> Option<Neighbour> {
        let bytes = self.0.bytes;
        let fixed = bytes.first_chunk::<NEIGHBOUR_BYTES>()?;
        let mut neighbour = Neighbour {
            target: Ipv6Addr::from(array(fixed, 8)),
            solicited: fixed[4] & 0x40 != 0,
            overrides: fixed[4] & 0x20 != 0,
            source_mac: None,
            target_mac: None,
        };
        let target = neighbour.target;
        if target.is_multicast() || target.is_unspecified() || target.is_loopback() || target.to_ipv4_mapped().is_some()
        {
            return None;
        }
        let mut rest = &bytes[NEIGHBOUR_BYTES..];
        while !rest.is_empty() {
            let bytes = usize::from(*rest.get(1)?) * 8;
            if bytes == 0 || bytes > rest.len() {
                return None;
            }
            let value = array(rest, 2);
            match (rest[0], bytes) {
                (OPTION_SOURCE_MAC, 8) => neighbour.source_mac = Some(value),
                (OPTION_TARGET_MAC, 8) => neighbour.target_mac = Some(value),
                _ => {}
            }
            rest = &rest[bytes..];
        }
        Some(neighbour)
    }

    /// Of a listener query, the group asked about (unspecified for all) and how long the answer may take, in milliseconds
    /// (RFC 3810 sections 5.1.3, 5.1.5); None when it is too short.
    pub fn query(&self) -> Option<Query> {
        let bytes = self.0.bytes;
        let fixed = bytes.first_chunk::<24>()?;
        let code = be16(fixed, 4);
        let v2 = bytes.len() >= 28;
        // a floating-point code above 32767: mantissa and exponent
        let delay_ms = match code {
            0..0x8000 => u32::from(code),
            _ if v2 => u32::from(code & 0xfff | 0x1000) << (((code >> 12) & 7) + 3),
            _ => u32::from(code),
        };
        Some(Query { group: Ipv6Addr::from(array(fixed, 8)), delay_ms })
    }
}

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// the address in question
    pub target: Ipv6Addr,
    /// of an advertisement: it answers a solicitation
    pub solicited: bool,
    /// of an advertisement: it goes before what was told earlier (RFC 4861 section 4.4)
    pub overrides: bool,
    /// the sender's hardware address, if told
    pub source_mac: Option<Mac>,
    /// the target's hardware address, if told
    pub target_mac: Option<Mac>,
}

/// A listener query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// the group asked about; unspecified for all
    pub group: Ipv6Addr,
    /// how long the answer may take
    pub delay_ms: u32,
}

/// Bytes of an advertisement as [`write_advertisement`] writes it.
pub const ADVERTISEMENT_BYTES: usize = NEIGHBOUR_BYTES + 8;
/// Bytes of a solicitation as [`write_solicitation`] writes it.
pub const SOLICITATION_BYTES: usize = NEIGHBOUR_BYTES + 8;
/// Bytes of a solicitation as [`write_probe`] writes it.
pub const PROBE_BYTES: usize = NEIGHBOUR_BYTES;
/// Bytes of a report as [`write_report`] writes it.
pub const REPORT_BYTES: usize = 8 + 20;

/// Writes an advertisement of `target` at `mac` with the override flag (RFC 4861 section 4.4).
pub fn write_advertisement(
    out: &mut [u8; ADVERTISEMENT_BYTES],
    (src, dst): (Ipv6Addr, Ipv6Addr),
    (target, mac): (Ipv6Addr, Mac),
    solicited: bool,
) {
    *out = [0; ADVERTISEMENT_BYTES];
    out[0] = TYPE_NEIGHBOUR_ADVERTISEMENT;
    out[4] = if solicited { 0x60 } else { 0x20 };
    out[8..24].copy_from_slice(&target.octets());
    out[24..26].copy_from_slice(&[OPTION_TARGET_MAC, 1]);
    out[26..32].copy_from_slice(&mac);
    finish(out, src, dst);
}

/// Writes the solicitation by which duplicates of `target` are looked for (RFC 4862 section 5.4.2).
/// It has no options: one of our own that comes back is known by its hardware address.
pub fn write_probe(out: &mut [u8; PROBE_BYTES], dst: Ipv6Addr, target: Ipv6Addr) {
    *out = [0; PROBE_BYTES];
    out[0] = TYPE_NEIGHBOUR_SOLICITATION;
    out[8..24].copy_from_slice(&target.octets());
    finish(out, Ipv6Addr::UNSPECIFIED, dst);
}

/// Writes a solicitation of `target` by who is at `mac` (RFC 4861 section 4.3).
pub fn write_solicitation(
    out: &mut [u8; SOLICITATION_BYTES],
    (src, dst): (Ipv6Addr, Ipv6Addr),
    target: Ipv6Addr,
    mac: Mac,
) {
    *out = [0; SOLICITATION_BYTES];
    out[0] = TYPE_NEIGHBOUR_SOLICITATION;
    out[8..24].copy_from_slice(&target.octets());
    out[24..26].copy_from_slice(&[OPTION_SOURCE_MAC, 1]);
    out[26..32].copy_from_slice(&mac);
    finish(out, src, dst);
}

/// Writes a version 2 report that `group` is listened to from everyone (RFC 3810 section 5.2); `change` when it is new.
pub fn write_report(out: &mut [u8; REPORT_BYTES], (src, dst): (Ipv6Addr, Ipv6Addr), group: Ipv6Addr, change: bool) {
    *out = [0; REPORT_BYTES];
    out[0] = TYPE_REPORT_V2;
    out[7] = 1;
    out[8] = if change { 4 } else { 2 };
    out[12..28].copy_from_slice(&group.octets());
    finish(out, src, dst);
}

/// Makes an echo request its reply in place (RFC 4443 section 4.2), the checksum by its difference. The addresses are
/// swapped too, which changes nothing in the sum.
///
/// # Panics
/// When `message` is shorter than a header.
pub fn answer_echo(message: &mut [u8]) {
    icmp::answer_echo(message, TYPE_ECHO_REPLY);
}

/// Writes the header of an error to the front of `message`, whose rest is the quoted packet. `parameter` is the pointer of
/// a parameter problem, otherwise 0.
///
/// # Panics
/// When `message` is shorter than a header.
pub fn write_error(message: &mut [u8], kind_and_code: [u8; 2], parameter: u32, src: Ipv6Addr, dst: Ipv6Addr) {
    let sum = pseudo(src, dst, message.len());
    icmp::write_error(message, kind_and_code, parameter, sum);
}

fn finish(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
    let sum = pseudo(src, dst, message.len());
    icmp::finish(message, sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 126u8..145) {
            if bytes.len() >= 4 {
                bytes[0] = kind;
                bytes[1] = 0;
                finish(&mut bytes, A, B);
            }
            if let Ok(icmp) = Icmp::parse(&bytes, A, B) {
                let _ = (icmp.kind(), icmp.quoted(), icmp.neighbour(), icmp.query());
            }
        }

        #[test]
        fn an_echo_is_answered_and_still_verifies(rest in prop::collection::vec(any::<u8>(), 4..80)) {
            let mut message = [&[128, 0, 0, 0][..], &rest].concat();
            finish(&mut message, A, B);
            prop_assert_eq!(Icmp::parse(&message, A, B).unwrap().kind(), Kind::EchoRequest);
            answer_echo(&mut message);
            prop_assert_eq!(Icmp::parse(&message, B, A).unwrap().kind(), Kind::EchoReply);
        }
    }

    #[test]
    fn neighbours_are_read_as_written() {
        let mut out = [0; ADVERTISEMENT_BYTES];
        write_advertisement(&mut out, (A, B), (A, [2, 0, 0, 0, 0, 9]), true);
        let icmp = Icmp::parse(&out, A, B).unwrap();
        let neighbour = icmp.neighbour().unwrap();
        assert_eq!((icmp.kind(), neighbour.target, neighbour.solicited), (Kind::Advertisement, A, true));
        assert!(neighbour.overrides);
        out[4] = 0x40;
        finish(&mut out, A, B);
        let without = Icmp::parse(&out, A, B).unwrap().neighbour().unwrap();
        assert_eq!(without, Neighbour { overrides: false, ..neighbour });
        assert_eq!(neighbour.target_mac, Some([2, 0, 0, 0, 0, 9]));
        let mut out = [0; PROBE_BYTES];
        write_probe(&mut out, B, A);
        let icmp = Icmp::parse(&out, Ipv6Addr::UNSPECIFIED, B).unwrap();
        let neighbour = icmp.neighbour().unwrap();
        assert_eq!((icmp.kind(), neighbour.target, neighbour.source_mac), (Kind::Solicitation, A, None));
    }

    #[test]
    fn targets_that_no_neighbour_has_are_refused() {
        for target in ["ff02::1", "::", "::1", "::ffff:192.0.2.1"] {
            let mut out = [0; ADVERTISEMENT_BYTES];
            write_advertisement(&mut out, (A, B), (target.parse().unwrap(), [2; 6]), true);
            assert_eq!(Icmp::parse(&out, A, B).unwrap().neighbour(), None, "{target}");
            let mut out = [0; SOLICITATION_BYTES];
            write_solicitation(&mut out, (A, B), target.parse().unwrap(), [2; 6]);
            assert_eq!(Icmp::parse(&out, A, B).unwrap().neighbour(), None, "{target}");
        }
    }

    #[test]
    fn options_of_length_zero_or_beyond_the_message_are_refused() {
        let mut good = [0; ADVERTISEMENT_BYTES];
        write_advertisement(&mut good, (A, B), (A, [2; 6]), true);
        for (at, value) in [(25, 0), (25, 2)] {
            let mut bad = good;
            bad[at] = value;
            finish(&mut bad, A, B);
            assert_eq!(Icmp::parse(&bad, A, B).unwrap().neighbour(), None, "byte {at}");
        }
        assert_eq!(Icmp(Message { bytes: &good[..23] }).neighbour(), None);
        assert_eq!(Icmp(Message { bytes: &good[..25] }).neighbour(), None);
    }

    #[test]
    fn query_delays_have_two_forms() {
        let mut query = [0; 28];
        query[0] = 130;
        query[4..6].copy_from_slice(&10_000u16.to_be_bytes());
        assert_eq!(Icmp(Message { bytes: &query }).query().unwrap().delay_ms, 10_000);
        // exponent 1, mantissa 2: (2 | 0x1000) << 4
        query[4..6].copy_from_slice(&0x9002u16.to_be_bytes());
        assert_eq!(Icmp(Message { bytes: &query }).query().unwrap().delay_ms, 0x1002 << 4);
        assert_eq!(Icmp(Message { bytes: &query[..24] }).query().unwrap().delay_ms, 0x9002);
        assert_eq!(Icmp(Message { bytes: &query[..23] }).query(), None);
    }
}
