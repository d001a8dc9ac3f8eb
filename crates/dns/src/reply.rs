//! Writing the answer over the question: header, body, OPT. The one place where octets of an answer are copied.

use crate::block::{Block, Counts};
use crate::compose::NAME_AT;
use crate::cookie;

const OPT_BYTES: usize = 11;
/// Bodies up to this size are copied as a whole piece of it: a few moves instead of a call.
const SMALL_BYTES: usize = 32;
/// What the arena has behind its last block, so that such a copy stays inside.
pub(crate) const ARENA_SLACK_BYTES: usize = SMALL_BYTES;

/// The OPT record of an answer; there is one exactly if the question had one (RFC 6891 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opt<'a> {
    pub(crate) size: u16,
    pub(crate) dnssec_ok: bool,
    pub(crate) nsid: Option<&'a [u8]>,
    pub(crate) cookie: Option<[u8; cookie::CLIENT_BYTES + cookie::SERVER_BYTES]>,
    /// in units of 100 ms (RFC 7828 section 3.1)
    pub(crate) keepalive: Option<u16>,
    /// an extended error's number (RFC 8914)
    pub(crate) error: Option<u16>,
}

impl Opt<'_> {
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        OPT_BYTES
            + self.nsid.map_or(0, |nsid| 4 + nsid.len())
            + if self.cookie.is_some() { cookie::OPTION_BYTES } else { 0 }
            + if self.keepalive.is_some() { 6 } else { 0 }
            + if self.error.is_some() { 6 } else { 0 }
    }

    /// Writes the record at the front of `out`; `rcode_high` is the upper part of the extended RCODE.
    #[inline(always)]
    fn write(&self, out: &mut [u8], rcode_high: u8) {
        let len = (self.bytes() - OPT_BYTES) as u16;
        let [size_high, size_low] = self.size.to_be_bytes();
        let [len_high, len_low] = len.to_be_bytes();
        let flags = if self.dnssec_ok { 0x80 } else { 0 };
        out[..OPT_BYTES].copy_from_slice(&[0, 0, 41, size_high, size_low, rcode_high, 0, flags, 0, len_high, len_low]);
        if len > 0 {
            self.write_options(&mut out[OPT_BYTES..]);
        }
    }

    fn write_options(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut option = |code: u16, data: &[u8]| {
            out[at..at + 2].copy_from_slice(&code.to_be_bytes());
            out[at + 2..at + 4].copy_from_slice(&(data.len() as u16).to_be_bytes());
            out[at + 4..at + 4 + data.len()].copy_from_slice(data);
            at += 4 + data.len();
        };
        if let Some(nsid) = self.nsid {
            option(3, nsid);
        }
        if let Some(cookie) = &self.cookie {
            option(10, cookie);
        }
        if let Some(keepalive) = self.keepalive {
            option(11, &keepalive.to_be_bytes());
        }
        if let Some(error) = self.error {
            option(15, &error.to_be_bytes());
        }
    }
}

/// What stands in the header and OPT beside the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// octets of the question's name, as it stands in the buffer
    pub(crate) name_bytes: usize,
    /// the most octets that the answer may have
    pub(crate) limit: usize,
    pub(crate) opt: Option<Opt<'a>>,
}

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: usize,
    pub(crate) truncated: bool,
}

/// Header, question and OPT record, with an RCODE and no records; the opcode and RD stay. `question_bytes` are those of a question
/// that stands in the buffer and is repeated, 0 for none. None where it does not fit.
pub(crate) fn bare(
    buffer: &mut [u8],
    question_bytes: usize,
    opt: Option<&Opt<'_>>,
    rcode: u16,
    limit: usize,
) -> Option<usize> {
    let begin = NAME_AT + question_bytes;
    let end = begin + opt.map_or(0, Opt::bytes);
    let out = buffer.get_mut(..end).filter(|_| end <= limit)?;
    if let Some(opt) = opt {
        opt.write(&mut out[begin..], (rcode >> 4) as u8);
    }
    let flags = 0x80 | (out[2] & 0x79);
    let (questions, records) = (u8::from(question_bytes > 0), u8::from(opt.is_some()));
    out[2..12].copy_from_slice(&[flags, (rcode & 15) as u8, 0, questions, 0, 0, 0, 0, 0, records]);
    Some(end)
}

/// The usual answer at once: one small set, an OPT record without options or none. Such an answer fits every limit. None
/// where it is not of this kind or the buffer is too short for copies of fixed size.
#[inline(always)]
pub(crate) fn small(buffer: &mut [u8], name_bytes: usize, block: Block<'_>, opt: Option<&Opt<'_>>) -> Option<usize> {
    let len = block.body_bytes();
    if len > SMALL_BYTES || !block.is_short() {
        return None;
    }
    let begin = NAME_AT + name_bytes + 4;
    let buffer = buffer.get_mut(..begin + SMALL_BYTES + OPT_BYTES)?;
    buffer[begin..begin + SMALL_BYTES].copy_from_slice(block.body_onwards().first_chunk::<SMALL_BYTES>()?);
    let mut end = begin + len;
    let records = if let Some(opt) = opt {
        let [size_high, size_low] = opt.size.to_be_bytes();
        let flags = if opt.dnssec_ok { 0x80 } else { 0 };
        buffer[end..end + OPT_BYTES].copy_from_slice(&[0, 0, 41, size_high, size_low, 0, 0, flags, 0, 0, 0]);
        end += OPT_BYTES;
        1
    } else {
        0
    };
    let [an_high, an_low] = block.counts().answer.to_be_bytes();
    let authoritative = if block.is_authoritative() { 4 } else { 0 };
    let first = 0x80 | authoritative | (buffer[2] & 1);
    buffer[2..12].copy_from_slice(&[first, block.rcode(), 0, 1, an_high, an_low, 0, 0, 0, records]);
    Some(end)
}

impl Frame<'_> {
    /// Writes the header and OPT around a body that ends at `body_end`.
    #[inline(always)]
    fn close(&self, buffer: &mut [u8], body_end: usize, rcode: u16, flags: u8, counts: Counts) -> usize {
        let mut end = body_end;
        let mut additional = counts.additional;
        if let Some(opt) = &self.opt {
            opt.write(&mut buffer[end..], (rcode >> 4) as u8);
            end += opt.bytes();
            additional += 1;
        }
        let [an_high, an_low] = counts.answer.to_be_bytes();
        let [ns_high, ns_low] = counts.authority.to_be_bytes();
        let [ar_high, ar_low] = additional.to_be_bytes();
        // QR; RD as asked; RA, Z, AD and CD clear
        let first = 0x80 | flags | (buffer[2] & 1);
        let second = (rcode & 15) as u8;
        buffer[2..12].copy_from_slice(&[first, second, 0, 1, an_high, an_low, ns_high, ns_low, ar_high, ar_low]);
        end
    }

    fn question_end(&self) -> usize {
        NAME_AT + self.name_bytes + 4
    }

    /// Octets for records between question and OPT record; none where not even these two fit.
    #[inline(always)]
    pub(crate) fn room(&self, buffer: &[u8]) -> Option<usize> {
        let after = self.question_end() + self.opt.as_ref().map_or(0, Opt::bytes);
        self.limit.min(buffer.len()).checked_sub(after)
    }

    /// The question with an RCODE and no records; none where not even that fits.
    pub(crate) fn empty(&self, buffer: &mut [u8], rcode: u16, truncated: bool) -> Option<Sent> {
        self.room(buffer)?;
        let flags = if truncated { 2 } else { 0 };
        let bytes = self.close(buffer, self.question_end(), rcode, flags, Counts::default());
        Some(Sent { bytes, truncated })
    }

    /// One record in the answer section, owned by the question's name.
    pub(crate) fn record(&self, buffer: &mut [u8], rtype: u16, class: u16, rdata: &[&[u8]]) -> Option<Sent> {
        let len: usize = rdata.iter().map(|part| part.len()).sum();
        if self.room(buffer)? < 12 + len {
            return self.empty(buffer, 0, true);
        }
        let mut at = self.question_end();
        let [rtype, class, len] = [rtype, class, len as u16].map(u16::to_be_bytes);
        for part in [&[0xc0, 0x0c][..], &rtype, &class, &[0; 4], &len].into_iter().chain(rdata.iter().copied()) {
            buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let bytes = self.close(buffer, at, 0, 0, Counts { answer: 1, ..Counts::default() });
        Some(Sent { bytes, truncated: false })
    }

    /// A prepared answer, cut after the last whole set that fits.
    #[inline(always)]
    pub(crate) fn block(
        &self,
        buffer: &mut [u8],
        block: Block<'_>,
        delta: u16,
        rcode: u8,
        authoritative: bool,
    ) -> Option<Sent> {
        let room = self.room(buffer)?;
        let (len, counts, truncated) = if block.body_bytes() <= room && block.is_short() {
            (block.body_bytes(), block.counts(), false)
        } else {
            fit(block, room)
        };
        let begin = self.question_end();
        let body = block.body_onwards();
        match (buffer.get_mut(begin..begin + SMALL_BYTES), body.first_chunk::<SMALL_BYTES>()) {
            (Some(to), Some(from)) if len <= SMALL_BYTES => to.copy_from_slice(from),
            _ => buffer[begin..begin + len].copy_from_slice(&body[..len]),
        }
        block.relocate(&mut buffer[begin..begin + len], delta);
        let mut flags = if truncated { 2 } else { 0 };
        if authoritative && block.is_authoritative() {
            flags |= 4;
        }
        let bytes = self.close(buffer, begin + len, u16::from(rcode), flags, counts);
        Some(Sent { bytes, truncated })
    }
}

/// What of the block's body fits, and whether something that is needed does not.
fn fit(block: Block<'_>, room: usize) -> (usize, Counts, bool) {
    let len = block.body_bytes();
    if len <= room {
        return (len, block.counts(), block.needed_bytes() > len);
    }
    let (end, counts) = block.cut(room);
    (end, counts, end < block.needed_bytes())
}
