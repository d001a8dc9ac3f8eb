//! What ICMP (RFC 792) and ICMPv6 (RFC 4443) share: a header of type, code, checksum and four bytes that depend on the type,
//! echo, and errors that quote a packet. Their sums begin differently: ICMPv6 has a pseudo-header.

use crate::{Sum, array, checksum};

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 8;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// they end inside the header
    Short,
    /// the checksum does not verify
    Checksum,
}

/// A message whose checksum verifies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message that `bytes` are; `sum` is that of what stands before them.
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8], sum: Sum) -> Result<Self, Malformed> {
        if bytes.len() < HEADER_BYTES {
            return Err(Malformed::Short);
        }
        if !sum.bytes(bytes).verifies() {
            return Err(Malformed::Checksum);
        }
        Ok(Message { bytes })
    }

    pub(crate) fn kind_and_code(&self) -> (u8, u8) {
        (self.bytes[0], self.bytes[1])
    }

    /// The four bytes that depend on the type.
    pub(crate) fn parameter(&self) -> u32 {
        u32::from_be_bytes(array(self.bytes, 4))
    }

    /// The packet that an error quotes, possibly cut.
    pub(crate) fn quoted(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }
}

/// Makes an echo request a reply of type `kind` in place, the checksum by its difference.
///
/// # Panics
/// When `message` is shorter than a header.
pub(crate) fn answer_echo(message: &mut [u8], kind: u8) {
    let head = message.first_chunk_mut::<HEADER_BYTES>().expect("an ICMP header");
    let old = [head[0], head[1]];
    head[..2].copy_from_slice(&[kind, 0]);
    let checksum = checksum::update([head[2], head[3]], old, [kind, 0]);
    head[2..4].copy_from_slice(&checksum);
}

/// Writes the header of an error to the front of `message`, whose rest is the quoted packet; `sum` is as for parsing.
///
/// # Panics
/// When `message` is shorter than a header.
pub(crate) fn write_error(message: &mut [u8], kind_and_code: [u8; 2], parameter: u32, sum: Sum) {
    message[..2].copy_from_slice(&kind_and_code);
    message[4..HEADER_BYTES].copy_from_slice(&parameter.to_be_bytes());
    finish(message, sum);
}

/// Writes the checksum.
pub(crate) fn finish(message: &mut [u8], sum: Sum) {
    message[2..4].fill(0);
    let checksum = sum.bytes(message).checksum();
    message[2..4].copy_from_slice(&checksum);
}
