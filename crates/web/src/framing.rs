//! One connection's bytes cut into requests: a state machine without I/O or buffers.
//!
//! [`Framer::step`] is shown the bytes that were not consumed yet and says how many it takes and what they came to. Content of
//! requests is read and thrown away, within limits; nothing of it reaches anybody. The state is a few words; where the bytes
//! stand, and whether partial heads are kept, is the caller's affair.

use crate::head::{self, Head, Length, Outcome, Refusal, Slots};
use crate::proxy;
use crate::stats::DropReason;

/// Octets that chunk sizes, extensions and trailers of one request may take.
const CHUNK_OVERHEAD_MAX_BYTES: u32 = 16 << 10;
/// Empty lines before a request that are ignored. RFC 9112 section 2.2 asks for one; with any number a connection could be kept by them
/// for ever.
const EMPTY_LINES: u8 = 8;

/// Where in the stream the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// a PROXY header comes first
    Proxy,
    /// before a head, behind so many empty lines, or inside one of which so many octets came and did not end it
    Head { empty_lines: u8, seen: u16 },
    /// inside content with so many octets left
    Fixed(u64),
    /// inside chunked content
    Chunked(Chunked),
    /// nothing more is read
    Over,
}

impl Phase {
    const START: Phase = Phase::Head { empty_lines: 0, seen: 0 };
}

/// A place in chunked content (RFC 9112 section 7.1), and what may still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunked {
    at: Place,
    /// octets of the chunk that are left, or its size while that is read
    chunk: u64,
    /// octets of content that may still come
    content_left: u64,
    overhead_left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// before the first digit of a size
    Size,
    /// behind at least one digit
    SizeMore,
    /// inside an extension
    Extension,
    /// CR was read behind a size
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// at a trailer line's first octet
    TrailerStart,
    Trailer,
    TrailerLf,
    /// CR of the last, empty line was read
    EndLf,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Step<'h, 'b> {
    /// nothing can be done without more bytes
    More,
    /// bytes were taken that need no answer
    Skipped,
    /// the address that a proxy names, if it names one
    Proxied(Option<std::net::SocketAddr>),
    /// a request to answer
    Request(Head<'h, 'b>),
    /// answer with this, then end the connection
    Refused(Refusal),
    /// end the connection without an answer: it had one, or its PROXY header is wrong
    Broken(DropReason),
}

/// The framing state of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framer(Phase);

impl Framer {
    /// A connection's start; `proxied` when a PROXY header must come first.
    pub(crate) fn new(proxied: bool) -> Framer {
        Framer(if proxied { Phase::Proxy } else { Phase::START })
    }

    /// Whether the next byte begins or continues a head.
    pub(crate) fn in_head(&self) -> bool {
        matches!(self.0, Phase::Head { .. } | Phase::Proxy)
    }

    /// Takes no more.
    pub(crate) fn end(&mut self) {
        self.0 = Phase::Over;
    }

    /// One step over `input`, the bytes from the first that was not consumed; how many of them are consumed now, and what
    /// came of it. `content_max_bytes` bounds a request's content.
    pub(crate) fn step<'h, 'b>(
        &mut self,
        input: &'b [u8],
        slots: &'h mut Slots<'b>,
        content_max_bytes: u64,
    ) -> (usize, Step<'h, 'b>) {
        if input.is_empty() {
            return (0, Step::More);
        }
        match &mut self.0 {
            Phase::Head { empty_lines, seen } => {
                let (empty_lines, seen) = (*empty_lines, *seen);
                self.head(input, (empty_lines, seen), slots, content_max_bytes)
            }
            Phase::Proxy => match proxy::read(input) {
                proxy::Outcome::Partial => (0, Step::More),
                proxy::Outcome::Whole(bytes, from) => {
                    self.0 = Phase::START;
                    (bytes, Step::Proxied(from))
                }
                proxy::Outcome::Wrong => self.over(Step::Broken(DropReason::ProxyHeader)),
            },
            Phase::Fixed(left) => {
                let taken = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                if *left == 0 {
                    self.0 = Phase::START;
                }
                (taken, Step::Skipped)
            }
            Phase::Chunked(chunked) => match chunked.skip(input) {
                Ok((taken, done)) => {
                    if done {
                        self.0 = Phase::START;
                    }
                    (taken, Step::Skipped)
                }
                Err(Garbled) => self.over(Step::Broken(DropReason::Content)),
            },
            Phase::Over => (input.len(), Step::Skipped),
        }
    }

    fn over<'h, 'b>(&mut self, step: Step<'h, 'b>) -> (usize, Step<'h, 'b>) {
        self.0 = Phase::Over;
        (0, step)
    }

    fn head<'h, 'b>(
        &mut self,
        input: &'b [u8],
        (empty_lines, seen): (u8, u16),
        slots: &'h mut Slots<'b>,
        content_max_bytes: u64,
    ) -> (usize, Step<'h, 'b>) {
        match *input {
            [b'\r', b'\n', ..] if empty_lines == EMPTY_LINES => return self.over(Step::Refused(Refusal::Malformed)),
            [b'\r', b'\n', ..] => {
                self.0 = Phase::Head { empty_lines: empty_lines + 1, seen: 0 };
                return (2, Step::Skipped);
            }
            [b'\r'] => return (0, Step::More),
            _ => {}
        }
        let outcome = match seen {
            0 => head::read(input, slots),
            seen => head::read_on(input, seen.into(), slots),
        };
        let head = match outcome {
            Outcome::Partial => {
                // a partial head is never longer than the limit
                self.0 = Phase::Head { empty_lines, seen: u16::try_from(input.len()).unwrap_or(0) };
                return (0, Step::More);
            }
            Outcome::Refused(refusal) => return self.over(Step::Refused(refusal)),
            Outcome::Whole(head) => head,
        };
        self.0 = match head.length {
            Length::Fixed(bytes) if bytes > content_max_bytes => {
                return self.over(Step::Refused(Refusal::ContentTooLarge));
            }
            Length::Fixed(0) => Phase::START,
            Length::Fixed(bytes) => Phase::Fixed(bytes),
            Length::Chunked => Phase::Chunked(Chunked {
                at: Place::Size,
                chunk: 0,
                content_left: content_max_bytes,
                overhead_left: CHUNK_OVERHEAD_MAX_BYTES,
            }),
        };
        if !head.keep_alive {
            self.0 = Phase::Over;
        }
        (head.bytes, Step::Request(head))
    }
}

/// Chunked content that breaks its grammar or a limit.
struct Garbled;

impl Chunked {
    /// Reads on; how many octets were taken, and whether the content has ended.
    fn skip(&mut self, input: &[u8]) -> Result<(usize, bool), Garbled> {
        let mut taken = 0;
        while taken < input.len() {
            if self.at == Place::Data {
                let bytes = (input.len() - taken).min(usize::try_from(self.chunk).unwrap_or(usize::MAX));
                self.chunk -= bytes as u64;
                taken += bytes;
                if self.chunk == 0 {
                    self.at = Place::DataCr;
                }
                continue;
            }
            let byte = input[taken];
            taken += 1;
            self.overhead_left = self.overhead_left.checked_sub(1).ok_or(Garbled)?;
            if self.octet(byte)? {
                return Ok((taken, true));
            }
        }
        Ok((taken, false))
    }

    /// One octet of the framing; true at the end.
    fn octet(&mut self, byte: u8) -> Result<bool, Garbled> {
        self.at = match (self.at, byte) {
            (Place::Size | Place::SizeMore, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = (byte as char).to_digit(16).ok_or(Garbled)?;
                // the limit also keeps this from overflowing
                self.chunk = (self.chunk << 4) | u64::from(digit);
                if self.chunk > self.content_left {
                    return Err(Garbled);
                }
                Place::SizeMore
            }
            (Place::SizeMore | Place::Extension, b'\r') => Place::SizeLf,
            // bad white space before an extension (RFC 9112 section 7.1.1) is no way to end a size
            (Place::SizeMore, b';') => Place::Extension,
            (Place::Extension, b'\t' | b' '..=b'~' | 0x80..) => Place::Extension,
            (Place::SizeLf, b'\n') if self.chunk == 0 => Place::TrailerStart,
            (Place::SizeLf, b'\n') => {
                self.content_left -= self.chunk;
                Place::Data
            }
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => Place::Size,
            (Place::TrailerStart, b'\r') => Place::EndLf,
            // a line that begins with white space would be folded
            (Place::TrailerStart, b'!'..=b'~') | (Place::Trailer, b'\t' | b' '..=b'~' | 0x80..) => Place::Trailer,
            (Place::Trailer, b'\r') => Place::TrailerLf,
            (Place::TrailerLf, b'\n') => Place::TrailerStart,
            (Place::EndLf, b'\n') => return Ok(true),
            _ => return Err(Garbled),
        };
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
