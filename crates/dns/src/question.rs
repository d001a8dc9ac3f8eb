//! Reading a question: the header, the one name, and the OPT record (RFC 6891). Strict: what a question has no use for makes
//! it malformed. Nothing is copied but the few octets of a cookie, since the answer is written over the question.
//!
//! Left out: TSIG and SIG(0), which are answered as by a server that does not know them (FORMERR).

mod bare;

use crate::compose::NAME_AT;
use zone::name::{MAX_LABEL_BYTES, MAX_NAME_BYTES};

const HEADER_BYTES: usize = 12;
const OPT: u16 = 41;
/// octets of an OPT record without options
const OPT_BYTES: usize = 11;
const IXFR: u16 = 251;
const AXFR: u16 = 252;
const OPTION_NSID: u16 = 3;
const OPTION_COOKIE: u16 = 10;
const OPTION_KEEPALIVE: u16 = 11;

/// The longest cookie option: the client's 8 octets and the server's 8 to 32 (RFC 7873 section 4).
pub(crate) const COOKIE_MAX_BYTES: usize = 40;

/// Why a message gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// shorter than a header
    Short,
    /// it is a response
    Response,
    /// response rate limiting
    RateLimited,
    /// the slot cannot take even the question again
    NoRoom,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Drop(DropReason),
    Bare(Bare),
    Ask(Ask),
}

/// What is answered by an RCODE and no records, and looked up nowhere: what is malformed or has another opcode, and, with NOERROR,
/// what asks for a server's cookie alone (RFC 7873 section 5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bare {
    pub(crate) rcode: u16,
    /// as much of it as could be read; a name of no octets is no question
    pub(crate) ask: Ask,
}

/// A question. Its name stands at octet 12 of the message, in wire form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    /// octets of the name, decompressed
    pub(crate) name_bytes: u8,
    /// octets of the name as it came; differs where it was compressed
    pub(crate) sent_bytes: u8,
    pub(crate) qtype: u16,
    pub(crate) qclass: u16,
    /// class IN, no transfer, not compressed, and EDNS, if at all, of version 0 without options: nearly every question
    pub(crate) plain: bool,
    pub(crate) edns: Option<Edns>,
}

/// The OPT record of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edns {
    pub(crate) size: u16,
    pub(crate) version: u8,
    pub(crate) dnssec_ok: bool,
    pub(crate) nsid: bool,
    pub(crate) keepalive: bool,
    /// where the cookie option's octets stand in the message, and how many they are; 0 for none
    pub(crate) cookie_at: u16,
    pub(crate) cookie_bytes: u8,
    /// it is the only option, and a client's cookie alone or with one of ours (RFC 9018 section 4)
    pub(crate) cookie_alone: bool,
}

impl Ask {
    /// As [`Ask::plain`], with a cookie.
    pub(crate) fn is_plain_but_for_a_cookie(&self) -> bool {
        let suits = self.qclass == 1 && self.qtype != IXFR && self.qtype != AXFR && self.name_bytes == self.sent_bytes;
        suits && self.edns.is_some_and(|edns| edns.version == 0 && edns.cookie_alone)
    }
}

impl Edns {
    /// Of an OPT record at the root, without its options.
    #[inline(always)]
    fn of(fixed: &[u8]) -> Edns {
        Edns { size: u16_at(fixed, 3), version: fixed[6], dnssec_ok: fixed[7] & 0x80 != 0, ..Edns::default() }
    }
}

#[inline(always)]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a message. With `decompressed` compression in the question is accepted and its name, in wire form, goes there. Who knows
/// `cookies` finds malformed ones malformed; for others the option is like any that they do not know.
#[inline(always)]
pub(crate) fn read(message: &[u8], mut decompressed: Option<&mut [u8; 256]>, cookies: bool) -> Verdict {
    if message.len() < HEADER_BYTES {
        return Verdict::Drop(DropReason::Short);
    }
    if message[2] & 0x80 != 0 {
        return Verdict::Drop(DropReason::Response);
    }
    if message[2] & 0x78 != 0 {
        return Verdict::Bare(bare::read(message, decompressed, cookies));
    }
    // one question, no answers, no authority, and one additional record at most: almost every question
    let counts = u64::from_be_bytes([
        message[4],
        message[5],
        message[6],
        message[7],
        message[8],
        message[9],
        message[10],
        message[11],
    ]);
    let read = match counts {
        0x0001_0000_0000_0000 | 0x0001_0000_0000_0001 => {
            question(message, counts & 1 == 1, decompressed.as_deref_mut(), cookies)
        }
        _ => None,
    };
    match read {
        Some(ask) => Verdict::Ask(ask),
        None => Verdict::Bare(bare::read(message, decompressed, cookies)),
    }
}

#[inline(always)]
fn question(message: &[u8], additional: bool, decompressed: Option<&mut [u8; 256]>, cookies: bool) -> Option<Ask> {
    let (mut ask, end) = asked(message, decompressed)?;
    if additional {
        let edns = opt(message, end, cookies)?;
        ask.plain &= edns.version == 0 && end + OPT_BYTES == message.len();
        ask.edns = Some(edns);
    } else if end != message.len() {
        return None;
    }
    Some(ask)
}

/// What stands in the question section of one question, and where it ends.
#[inline(always)]
fn asked(message: &[u8], decompressed: Option<&mut [u8; 256]>) -> Option<(Ask, usize)> {
    let (name_bytes, sent_bytes) = match decompressed {
        None => {
            let bytes = name(message)?;
            (bytes, bytes)
        }
        Some(buffer) => expand(message, buffer)?,
    };
    let at = NAME_AT + sent_bytes;
    let fixed = message.get(at..at + 4)?;
    let mut ask = Ask {
        name_bytes: name_bytes as u8,
        sent_bytes: sent_bytes as u8,
        qtype: u16_at(fixed, 0),
        qclass: u16_at(fixed, 2),
        plain: false,
        edns: None,
    };
    ask.plain = ask.qclass == 1 && ask.qtype != IXFR && ask.qtype != AXFR && name_bytes == sent_bytes;
    Some((ask, at + 4))
}

/// Octets of the uncompressed name at octet 12.
#[inline(always)]
fn name(message: &[u8]) -> Option<usize> {
    let mut at = NAME_AT;
    loop {
        let len = usize::from(*message.get(at)?);
        at += 1 + len;
        if len == 0 {
            break;
        }
        // a pointer (RFC 1035 4.1.4) or a label type that does not exist
        if len > MAX_LABEL_BYTES {
            return None;
        }
    }
    (at - NAME_AT <= MAX_NAME_BYTES).then_some(at - NAME_AT)
}

/// Writes the name at octet 12 uncompressed to `buffer`; its octets there and in the message. A pointer must point before
/// itself, so following them ends.
fn expand(message: &[u8], buffer: &mut [u8; 256]) -> Option<(usize, usize)> {
    let (mut at, mut done, mut sent) = (NAME_AT, 0, None);
    loop {
        let len = usize::from(*message.get(at)?);
        match len {
            0xc0..=0xff => {
                let to = (len & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
                // only the first stands behind the header; a later one may stand in it
                sent.get_or_insert_with(|| at + 2 - NAME_AT);
                if to >= at {
                    return None;
                }
                at = to;
            }
            0..=MAX_LABEL_BYTES => {
                let label = message.get(at..at + 1 + len)?;
                if done + 1 + len > MAX_NAME_BYTES {
                    return None;
                }
                buffer[done..done + 1 + len].copy_from_slice(label);
                done += 1 + len;
                at += 1 + len;
                if len == 0 {
                    // a pointer may have led into the header, before the name
                    return Some((done, sent.unwrap_or_else(|| at - NAME_AT)))
                        .filter(|(_, sent)| *sent <= MAX_NAME_BYTES);
                }
            }
            _ => return None,
        }
    }
}

/// Reads the OPT record that is all that may follow the question (RFC 6891 section 6.1.1: at most one, at the root).
#[inline(always)]
fn opt(message: &[u8], at: usize, cookies: bool) -> Option<Edns> {
    let fixed = message.get(at..at + OPT_BYTES)?;
    if fixed[0] != 0 || u16_at(fixed, 1) != OPT {
        return None;
    }
    let mut edns = Edns::of(fixed);
    let len = usize::from(u16_at(fixed, 9));
    if at + OPT_BYTES + len != message.len() {
        return None;
    }
    if len > 0 {
        options(message, at + OPT_BYTES, &mut edns, cookies)?;
    }
    Some(edns)
}

fn options(message: &[u8], mut at: usize, edns: &mut Edns, cookies: bool) -> Option<()> {
    let first = at + 4;
    while at < message.len() {
        let head = message.get(at..at + 4)?;
        let (code, len) = (u16_at(head, 0), usize::from(u16_at(head, 2)));
        at += 4;
        if at + len > message.len() {
            return None;
        }
        match code {
            OPTION_NSID => edns.nsid = true,
            OPTION_KEEPALIVE => edns.keepalive = true,
            OPTION_COOKIE if edns.cookie_bytes == 0 => {
                if len == 8 || (16..=COOKIE_MAX_BYTES).contains(&len) {
                    edns.cookie_at = at as u16;
                    edns.cookie_bytes = len as u8;
                    edns.cookie_alone = at == first && at + len == message.len() && matches!(len, 8 | 24);
                } else if cookies {
                    // RFC 7873 section 5.2.2: any other length is malformed
                    return None;
                }
            }
            // unknown options are ignored (RFC 6891 section 6.1.2); a second cookie, too (RFC 7873 section 5.2)
            _ => {}
        }
        at += len;
    }
    Some(())
}

#[cfg(test)]
mod tests;
