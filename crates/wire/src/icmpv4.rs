//! ICMP (RFC 792).

use crate::Sum;
use crate::icmp::{self, Message};

pub use crate::icmp::{HEADER_BYTES, Malformed};

/// Destination unreachable, code 2: no such protocol here.
pub const PROTOCOL_UNREACHABLE: [u8; 2] = [3, 2];
/// Destination unreachable, code 3: no such port here.
pub const PORT_UNREACHABLE: [u8; 2] = [3, 3];

const TYPE_ECHO_REPLY: u8 = 0;

/// What a message is, as far as an end host cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// echo request
    EchoRequest,
    /// echo reply
    EchoReply,
    /// an error that quotes a packet: unreachable, time exceeded, parameter problem (source quench and redirect are not
    /// acted upon: RFC 6633, RFC 1812 section 4.3.2)
    Error,
    /// anything else
    Other,
}

/// A message whose checksum verifies.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a>(Message<'a>);

impl<'a> Icmp<'a> {
    /// The message that `bytes` are.
    ///
    /// # Errors
    /// What is wrong with its form.
    pub fn parse(bytes: &'a [u8]) -> Result<Icmp<'a>, Malformed> {
        Message::parse(bytes, Sum::default()).map(Icmp)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match self.0.kind_and_code() {
            (8, 0) => Kind::EchoRequest,
            (TYPE_ECHO_REPLY, 0) => Kind::EchoReply,
            (3 | 11 | 12, _) => Kind::Error,
            _ => Kind::Other,
        }
    }

    /// Of "fragmentation needed", the next hop's MTU (RFC 1191 section 4); zero from routers that do not know it.
    pub fn mtu(&self) -> Option<u32> {
        (self.0.kind_and_code() == (3, 4)).then(|| self.0.parameter() & 0xffff)
    }

    /// Whether an error says that the destination itself takes no such packets: protocol or port unreachable (RFC 1122 section
    /// 3.2.2.1). What else routers say may pass.
    pub fn is_final(&self) -> bool {
        matches!(self.0.kind_and_code(), (3, 2 | 3))
    }

    /// The packet that an error quotes, possibly cut.
    pub fn quoted(&self) -> &'a [u8] {
        self.0.quoted()
    }
}

/// Makes an echo request its reply in place (RFC 792), the checksum by its difference.
///
/// # Panics
/// When `message` is shorter than a header.
pub fn answer_echo(message: &mut [u8]) {
    icmp::answer_echo(message, TYPE_ECHO_REPLY);
}

/// Writes the header of an error to the front of `message`, whose rest is the quoted packet.
///
/// # Panics
/// When `message` is shorter than a header.
pub fn write_error(message: &mut [u8], kind_and_code: [u8; 2]) {
    icmp::write_error(message, kind_and_code, 0, Sum::default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_echo_is_answered_and_still_verifies(rest in prop::collection::vec(any::<u8>(), 4..80)) {
            let mut message = [&[8, 0, 0, 0][..], &rest].concat();
            let checksum = Sum::of(&message).checksum();
            message[2..4].copy_from_slice(&checksum);
            prop_assert_eq!(Icmp::parse(&message).unwrap().kind(), Kind::EchoRequest);
            answer_echo(&mut message);
            prop_assert_eq!(Icmp::parse(&message).unwrap().kind(), Kind::EchoReply);
            prop_assert_eq!(&message[4..], &rest[..]);
        }

        #[test]
        fn any_bytes_are_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(icmp) = Icmp::parse(&bytes) {
                let _ = (icmp.kind(), icmp.quoted());
            }
        }
    }

    #[test]
    fn an_error_quotes_and_a_damaged_one_is_refused() {
        let mut message = [&[0xaa; 8][..], b"quoted"].concat();
        write_error(&mut message, PORT_UNREACHABLE);
        let icmp = Icmp::parse(&message).unwrap();
        assert_eq!((icmp.kind(), icmp.quoted(), &message[4..8]), (Kind::Error, &b"quoted"[..], &[0; 4][..]));
        message[9] ^= 1;
        assert_eq!(Icmp::parse(&message).err(), Some(Malformed::Checksum));
        assert_eq!(Icmp::parse(&message[..7]).err(), Some(Malformed::Short));
    }
}
