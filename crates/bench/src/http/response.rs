//! A client's side of HTTP/1.1 framing (RFC 9112): bytes as they come, answers taken apart, no I/O and no copies of bodies.
//!
//! Answers to GET alone; one at a time, since requests are not pipelined. Heads are parsed in the received bytes; one that
//! comes in pieces is kept meanwhile, and so is the last one that came whole: a server says the same again until the second
//! changes, and what is the same octet by octet need not be parsed again. Only these two allocate, once a connection. Interim
//! answers (1xx) are skipped. A parser that gave an error is of no use any more, and neither is its connection.

use super::chunked::Chunked;
use serde::{Deserialize, Serialize};
use web::Encoding;

/// The longest head.
const HEAD_MOST_BYTES: usize = 16 << 10;
/// The most fields of a head.
const FIELDS_MOST: usize = 64;

/// Why bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Malformed {
    /// no status line, or no fields behind it
    Head,
    /// the head does not end
    HeadTooLong,
    /// the length is no number, or there are several
    ContentLength,
    /// a transfer coding beside a length, or one that we did not ask for
    TransferEncoding,
    /// no chunk where one should be
    Chunk,
    /// bytes behind the answer that nobody asked for
    Extra,
    /// the protocol was switched without our asking
    Upgrade,
}

/// An answer that has been read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// the status code
    pub(crate) status: u16,
    /// octets of the body, the transfer coding taken off
    pub(crate) body_bytes: u64,
    /// no other answer will come on this connection
    pub(crate) last: bool,
    /// of its ETag; 0 without one
    pub(crate) tag_hash: u64,
    /// of its Content-Encoding; None: one that we do not know, or several
    pub(crate) coding: Option<Encoding>,
}

/// Where the parser stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length { left: u64 },
    Chunked(Chunked),
    UntilEnd,
}

/// What a head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    bytes: usize,
    answer: Answer,
    body: State,
}

/// Reads the answers of one connection.
#[derive(Debug)]
pub(crate) struct Parser {
    state: State,
    answer: Answer,
    /// a head that has not come whole
    held: Vec<u8>,
    /// the octets of the last head that came whole, and what they say; empty where there was none
    last: Vec<u8>,
    said: Head,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::new()
    }
}

impl Parser {
    /// At the start of an answer.
    pub(crate) fn new() -> Parser {
        let said = Head { bytes: 0, answer: NO_ANSWER, body: State::Head };
        Parser { state: State::Head, answer: NO_ANSWER, held: Vec::new(), last: Vec::new(), said }
    }

    /// Starts anew, on another connection; memory is kept.
    pub(crate) fn reset(&mut self) {
        (self.state, self.answer) = (State::Head, NO_ANSWER);
        self.held.clear();
    }

    /// Takes bytes, and gives those of the body to `body`: how many were taken, and the answer if it ends with them. All
    /// bytes are taken unless an answer ends before.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        mut body: impl FnMut(&Answer, &[u8]),
    ) -> Result<(usize, Option<Answer>), Malformed> {
        let mut at = 0;
        loop {
            if self.state == State::Head {
                let Some((head, taken)) = self.head(&bytes[at..])? else { return Ok((bytes.len(), None)) };
                at += taken;
                if head.answer.status < 200 {
                    continue;
                }
                self.answer = head.answer;
                self.state = head.body;
            }
            let (taken, ended) = self.body(&bytes[at..], &mut body)?;
            at += taken;
            return Ok((at, ended.then(|| self.take())));
        }
    }

    /// The connection was ended by the peer: the answer that this ends, if it does.
    pub(crate) fn end(&mut self) -> Option<Answer> {
        (self.state == State::UntilEnd).then(|| self.take())
    }

    /// Whether something of an answer has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.state != State::Head || !self.held.is_empty()
    }

    fn take(&mut self) -> Answer {
        self.state = State::Head;
        std::mem::replace(&mut self.answer, NO_ANSWER)
    }

    /// The head, if it is whole, and how many of `bytes` belong to it.
    #[inline]
    fn head(&mut self, bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
        if self.held.is_empty() {
            if !self.last.is_empty() && bytes.starts_with(&self.last) {
                return Ok(Some((self.said, self.last.len())));
            }
            if let Some(head) = parse(bytes)? {
                self.last.clear();
                self.last.extend_from_slice(&bytes[..head.bytes]);
                self.said = head;
                return Ok(Some((head, head.bytes)));
            }
            if bytes.len() > HEAD_MOST_BYTES {
                return Err(Malformed::HeadTooLong);
            }
            self.held.extend_from_slice(bytes);
            return Ok(None);
        }
        let before = self.held.len();
        let room = HEAD_MOST_BYTES - before;
        self.held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        match parse(&self.held)? {
            Some(head) => {
                self.held.clear();
                Ok(Some((head, head.bytes - before)))
            }
            None if bytes.len() >= room => Err(Malformed::HeadTooLong),
            None => Ok(None),
        }
    }

    /// What of `bytes` belongs to the body, and whether it is at its end.
    #[inline]
    fn body(&mut self, bytes: &[u8], body: &mut impl FnMut(&Answer, &[u8])) -> Result<(usize, bool), Malformed> {
        let answer = &mut self.answer;
        let mut tell = |part: &[u8]| {
            if !part.is_empty() {
                body(answer, part);
                answer.body_bytes += part.len() as u64;
            }
        };
        match &mut self.state {
            State::Head => Ok((0, false)),
            State::Length { left } => {
                let part = (*left).min(bytes.len() as u64) as usize;
                tell(&bytes[..part]);
                *left -= part as u64;
                Ok((part, *left == 0))
            }
            State::Chunked(chunked) => chunked.feed(bytes, &mut tell).map_err(|_| Malformed::Chunk),
            State::UntilEnd => {
                tell(bytes);
                Ok((bytes.len(), false))
            }
        }
    }
}

const NO_ANSWER: Answer =
    Answer { status: 0, body_bytes: 0, last: false, tag_hash: 0, coding: Some(Encoding::Identity) };

/// The head at the start of `bytes`, if it is whole.
fn parse(bytes: &[u8]) -> Result<Option<Head>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MOST];
    let mut response = httparse::Response::new(&mut fields);
    let head_bytes = match response.parse(bytes) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed::Head),
    };
    let status = response.code.ok_or(Malformed::Head)?;
    if !(100..600).contains(&status) {
        return Err(Malformed::Head);
    }
    if status == 101 {
        return Err(Malformed::Upgrade);
    }
    let said = Said::by(response.headers)?;
    let last = said.closes || (response.version == Some(0) && !said.keeps);
    let body = said.body(status)?;
    let last = last || body == State::UntilEnd;
    let answer = Answer { status, body_bytes: 0, last, tag_hash: said.tag_hash, coding: said.coding };
    Ok(Some(Head { bytes: head_bytes, answer, body }))
}

/// What the fields say about framing and the representation.
struct Said {
    length: Option<u64>,
    chunked: bool,
    closes: bool,
    keeps: bool,
    tag_hash: u64,
    coding: Option<Encoding>,
}

impl Said {
    fn by(fields: &[httparse::Header<'_>]) -> Result<Said, Malformed> {
        let mut said = Said {
            length: None,
            chunked: false,
            closes: false,
            keeps: false,
            tag_hash: 0,
            coding: Some(Encoding::Identity),
        };
        for field in fields {
            // told apart by their length first: there are many fields, and few matter
            match field.name.len() {
                4 if field.name.eq_ignore_ascii_case("etag") => said.tag_hash = hash(field.value),
                16 if field.name.eq_ignore_ascii_case("content-encoding") => {
                    said.coding = Encoding::ALL
                        .into_iter()
                        .find(|coding| field.value.trim_ascii().eq_ignore_ascii_case(coding.token().as_bytes()));
                }
                10 if field.name.eq_ignore_ascii_case("connection") => {
                    said.closes |= has_token(field.value, b"close");
                    said.keeps |= has_token(field.value, b"keep-alive");
                }
                14 if field.name.eq_ignore_ascii_case("content-length") => {
                    let length = number(field.value).ok_or(Malformed::ContentLength)?;
                    // RFC 9112 section 6.3: several that agree may be taken for one
                    if said.length.is_some_and(|other| other != length) {
                        return Err(Malformed::ContentLength);
                    }
                    said.length = Some(length);
                }
                17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                    // no coding but chunked may be sent to who did not ask for it (RFC 9110 section 10.1.4)
                    if said.chunked || !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                        return Err(Malformed::TransferEncoding);
                    }
                    said.chunked = true;
                }
                _ => {}
            }
        }
        Ok(said)
    }

    /// RFC 9112 section 6.3.
    fn body(&self, status: u16) -> Result<State, Malformed> {
        match (status, self.chunked, self.length) {
            (..200 | 204 | 304, ..) => Ok(State::Length { left: 0 }),
            (_, true, Some(_)) => Err(Malformed::TransferEncoding),
            (_, true, None) => Ok(State::Chunked(Chunked::new())),
            (_, false, Some(left)) => Ok(State::Length { left }),
            (_, false, None) => Ok(State::UntilEnd),
        }
    }
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|octet| *octet == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

/// FNV-1a: tells tags apart that nobody chose to collide.
fn hash(value: &[u8]) -> u64 {
    value.iter().fold(0xCBF2_9CE4_8422_2325, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(0x100_0000_01B3))
}

fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests;
