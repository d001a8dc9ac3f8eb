//! A request's head: read by `httparse`, then judged by the rules that keep its framing unambiguous.
//!
//! Strict where leniency is how requests are smuggled (RFC 9112 section 11.2): lines end in CRLF and nothing else, no
//! folding, no space before a colon, one Host, one way to tell the body's length. Slices borrow the received bytes; nothing
//! is copied.

use std::mem::MaybeUninit;

use httparse::Header;
use memchr::{memchr, memchr_iter};

/// The longest request line; a longer one is answered 414.
pub(crate) const LINE_MAX_BYTES: usize = 8 << 10;
/// The longest head; a longer one is answered 431.
pub(crate) const HEAD_MAX_BYTES: usize = 16 << 10;
/// Header fields a request may have; more are answered 431.
const FIELDS: usize = 96;

/// Room for the fields of one request, not initialised until `httparse` writes them.
pub(crate) type Slots<'b> = [MaybeUninit<Header<'b>>; FIELDS];

/// Fresh [`Slots`].
#[inline(always)]
pub(crate) const fn slots<'b>() -> Slots<'b> {
    [const { MaybeUninit::uninit() }; FIELDS]
}

/// What the method asks for, as far as a static server tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// OPTIONS
    Options,
    /// a method that is known and never allowed here: POST, PUT, DELETE, PATCH, CONNECT, TRACE
    Known,
    /// any other token
    Unknown,
}

impl Method {
    /// From the token; methods are case-sensitive (RFC 9110 section 9.1).
    pub(crate) fn of(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"OPTIONS" => Method::Options,
            b"POST" | b"PUT" | b"DELETE" | b"PATCH" | b"CONNECT" | b"TRACE" => Method::Known,
            _ => Method::Unknown,
        }
    }
}

/// The fields that mean something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Field {
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    Expect,
    Range,
    IfRange,
    IfMatch,
    IfNoneMatch,
    IfModifiedSince,
    IfUnmodifiedSince,
    AcceptEncoding,
    ForwardedFor,
    Referer,
    UserAgent,
}
const KNOWN: usize = Field::UserAgent as usize + 1;

impl Field {
    /// By length first, so that most names cost one comparison or none.
    #[inline]
    fn of(name: &str) -> Option<Field> {
        let (field, text) = match name.len() {
            4 => (Field::Host, "host"),
            5 => (Field::Range, "range"),
            6 => (Field::Expect, "expect"),
            7 => (Field::Referer, "referer"),
            8 if name.as_bytes()[3].eq_ignore_ascii_case(&b'r') => (Field::IfRange, "if-range"),
            8 => (Field::IfMatch, "if-match"),
            10 if name.as_bytes()[0].eq_ignore_ascii_case(&b'c') => (Field::Connection, "connection"),
            10 => (Field::UserAgent, "user-agent"),
            13 => (Field::IfNoneMatch, "if-none-match"),
            14 => (Field::ContentLength, "content-length"),
            15 if name.as_bytes()[0].eq_ignore_ascii_case(&b'a') => (Field::AcceptEncoding, "accept-encoding"),
            15 => (Field::ForwardedFor, "x-forwarded-for"),
            17 if name.as_bytes()[0].eq_ignore_ascii_case(&b't') => (Field::TransferEncoding, "transfer-encoding"),
            17 => (Field::IfModifiedSince, "if-modified-since"),
            19 => (Field::IfUnmodifiedSince, "if-unmodified-since"),
            _ => return None,
        };
        name.eq_ignore_ascii_case(text).then_some(field)
    }
}

/// How the request's content is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// this many octets follow; 0 without a field
    Fixed(u64),
    Chunked,
}

/// Why a request is refused before anything is looked up; the connection ends with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// not HTTP, or a head that breaks its grammar (400)
    Malformed,
    /// no Host, several, or one that is no host (400, RFC 9112 section 3.2)
    Host,
    /// framing that two readers could understand differently (400, RFC 9112 section 11.2)
    Framing,
    /// content longer than the limit (413)
    ContentTooLarge,
    /// a request line over 8 KiB (414)
    TargetTooLong,
    /// an expectation that is not 100-continue (417)
    Expectation,
    /// a head over 16 KiB, or too many fields (431)
    HeadTooLarge,
    /// a transfer coding that is not known (501, RFC 9112 section 6.1)
    TransferCoding,
    /// another major version (505)
    Version,
    /// the head did not come in time (408)
    TimedOut,
    /// no buffer is free for a request in pieces (503)
    NoBuffer,
}

impl Refusal {
    /// Every refusal with what the counters call it.
    pub(crate) const ALL: [(Refusal, &'static str); 11] = [
        (Refusal::Malformed, "malformed"),
        (Refusal::Host, "host"),
        (Refusal::Framing, "framing"),
        (Refusal::ContentTooLarge, "content too large"),
        (Refusal::TargetTooLong, "target too long"),
        (Refusal::Expectation, "expectation"),
        (Refusal::HeadTooLarge, "head too large"),
        (Refusal::TransferCoding, "transfer coding"),
        (Refusal::Version, "version"),
        (Refusal::TimedOut, "timed out"),
        (Refusal::NoBuffer, "no buffer"),
    ];

    /// The status it is answered with.
    pub const fn status(self) -> u16 {
        match self {
            Refusal::Malformed | Refusal::Host | Refusal::Framing => 400,
            Refusal::TimedOut => 408,
            Refusal::ContentTooLarge => 413,
            Refusal::TargetTooLong => 414,
            Refusal::Expectation => 417,
            Refusal::HeadTooLarge => 431,
            Refusal::TransferCoding => 501,
            Refusal::NoBuffer => 503,
            Refusal::Version => 505,
        }
    }
}

/// A head that was read whole.
#[derive(Debug)]
pub(crate) struct Head<'h, 'b> {
    pub(crate) method: Method,
    /// the method as it stands in the request
    pub(crate) token: &'b str,
    /// the request target as it stands in the request
    pub(crate) target: &'b str,
    /// HTTP/1.1 or later in this major version
    pub(crate) http11: bool,
    headers: &'h [Header<'b>],
    /// index of each field's first line, NONE when absent
    first: [u8; KNOWN],
    /// bit n: field n has more than one line
    repeated: u32,
    /// the lines of the head, its request line and the empty one included
    pub(crate) bytes: usize,
    /// what the connection's fate is after the answer (RFC 9112 section 9.3)
    pub(crate) keep_alive: bool,
    pub(crate) length: Length,
    /// a 100-continue is expected before the content comes
    pub(crate) continues: bool,
}
const NONE: u8 = u8::MAX;

/// What reading a head came to.
#[derive(Debug)]
pub(crate) enum Outcome<'h, 'b> {
    /// the head has not ended
    Partial,
    Whole(Head<'h, 'b>),
    Refused(Refusal),
}

/// Reads the head at the start of `input`. Whatever pieces the bytes come in, the same bytes come to the same outcome: a head
/// is judged only when it is whole, over a limit, or does not begin as a method does.
pub(crate) fn read<'h, 'b>(input: &'b [u8], slots: &'h mut Slots<'b>) -> Outcome<'h, 'b> {
    // a TLS handshake on the wrong port, most often; it has no end to wait for
    if input.first().is_some_and(|first| !is_token(*first)) {
        return Outcome::Refused(Refusal::Malformed);
    }
    let mut request = httparse::Request::new(&mut []);
    let fault = match request.parse_with_uninit_headers(input, slots) {
        Ok(httparse::Status::Complete(bytes)) => {
            if let Err(refusal) = check_limits(&input[..bytes]) {
                return Outcome::Refused(refusal);
            }
            let httparse::Request { method, path, version, headers } = request;
            let (Some(token), Some(target), Some(version)) = (method, path, version) else {
                return Outcome::Refused(Refusal::Malformed);
            };
            return judge(token, target, version >= 1, headers, bytes);
        }
        Ok(httparse::Status::Partial) => None,
        Err(fault) => Some(fault),
    };
    match (end_of_head(input), fault) {
        (Some(bytes), Some(fault)) => Outcome::Refused(refusal_of(&input[..bytes], fault)),
        // the end is there, yet the parser wants more: its idea of the end is not ours
        (Some(_), None) => Outcome::Refused(Refusal::Malformed),
        (None, _) => partial(input, 0),
    }
}

/// [`read`] for a head of which the first `seen` octets came to [`Outcome::Partial`]. Those are not looked at again before the head has
/// ended: however many pieces it comes in, it is parsed in its first one and in its last one.
pub(crate) fn read_on<'h, 'b>(input: &'b [u8], seen: usize, slots: &'h mut Slots<'b>) -> Outcome<'h, 'b> {
    let from = seen.saturating_sub(END_MAX_BYTES - 1).min(input.len());
    match end_of_head(&input[from..]) {
        Some(_) => read(input, slots),
        None => partial(input, seen),
    }
}

/// An unfinished head, of which `seen` octets were judged before: refused when it can only become worse.
fn partial<'h, 'b>(input: &'b [u8], seen: usize) -> Outcome<'h, 'b> {
    let crosses = seen < LINE_MAX_BYTES && input.len() >= LINE_MAX_BYTES;
    if crosses && memchr(b'\n', &input[..LINE_MAX_BYTES]).is_none() {
        return Outcome::Refused(Refusal::TargetTooLong);
    }
    if input.len() > HEAD_MAX_BYTES {
        return Outcome::Refused(Refusal::HeadTooLarge);
    }
    Outcome::Partial
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The end of a line and an empty one, of which the first may be a lone LF.
const END_MAX_BYTES: usize = 3;

/// Where the first empty line ends, as the parser sees lines.
fn end_of_head(input: &[u8]) -> Option<usize> {
    let input = &input[..input.len().min(HEAD_MAX_BYTES)];
    memchr_iter(b'\n', input).find_map(|at| match input[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// The limits, and that every line ends in CRLF (RFC 9112 section 2.2 lets a recipient take a lone LF; this one does not).
fn check_limits(head: &[u8]) -> Result<(), Refusal> {
    let line = memchr(b'\n', head).unwrap_or(head.len());
    if line >= LINE_MAX_BYTES {
        return Err(Refusal::TargetTooLong);
    }
    if head.len() > HEAD_MAX_BYTES {
        return Err(Refusal::HeadTooLarge);
    }
    if memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r') {
        return Err(Refusal::Malformed);
    }
    Ok(())
}

/// What a head that the parser refuses is answered.
fn refusal_of(head: &[u8], fault: httparse::Error) -> Refusal {
    if let Err(refusal) = check_limits(head) {
        return refusal;
    }
    match fault {
        httparse::Error::TooManyHeaders => Refusal::HeadTooLarge,
        httparse::Error::Version => {
            let line = &head[..memchr(b'\n', head).unwrap_or(0)];
            let version = line.strip_suffix(b"\r").unwrap_or(line);
            let version = version.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
            match version {
                // what is wrong stands before it
                b"HTTP/1.0" | b"HTTP/1.1" => Refusal::Malformed,
                // no minor version above 1 exists; one is refused as other major versions are
                [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => Refusal::Version,
                _ => Refusal::Malformed,
            }
        }
        _ => Refusal::Malformed,
    }
}

fn judge<'h, 'b>(
    token: &'b str,
    target: &'b str,
    http11: bool,
    headers: &'h [Header<'b>],
    bytes: usize,
) -> Outcome<'h, 'b> {
    let mut head = Head {
        method: Method::of(token.as_bytes()),
        token,
        target,
        http11,
        headers,
        first: [NONE; KNOWN],
        repeated: 0,
        bytes,
        keep_alive: http11,
        length: Length::Fixed(0),
        continues: false,
    };
    for (at, header) in headers.iter().enumerate() {
        let Some(field) = Field::of(header.name) else { continue };
        match head.first[field as usize] {
            NONE => head.first[field as usize] = at as u8,
            _ => head.repeated |= 1 << field as u32,
        }
    }
    match head.judge() {
        Ok(()) => Outcome::Whole(head),
        Err(refusal) => Outcome::Refused(refusal),
    }
}

impl<'b> Head<'_, 'b> {
    /// The first line of a field, without white space around it.
    #[inline]
    pub(crate) fn value(&self, field: Field) -> Option<&'b [u8]> {
        match self.first[field as usize] {
            NONE => None,
            at => Some(self.headers[usize::from(at)].value.trim_ascii()),
        }
    }

    /// The value of a field that may stand once only; None as well when it is repeated (RFC 9110 section 5.3).
    #[inline]
    pub(crate) fn single(&self, field: Field) -> Option<&'b [u8]> {
        if self.is_repeated(field) { None } else { self.value(field) }
    }

    /// Whether any field is there that an answer of 200 could depend on: conditions and ranges.
    #[inline]
    pub(crate) fn has_conditions(&self) -> bool {
        let fields = &self.first[Field::Range as usize..=Field::IfUnmodifiedSince as usize];
        fields.iter().any(|at| *at != NONE)
    }

    fn is_repeated(&self, field: Field) -> bool {
        self.repeated & (1 << field as u32) != 0
    }

    /// Every line of a field, in order.
    pub(crate) fn values(&self, field: Field) -> impl DoubleEndedIterator<Item = &'b [u8]> + Clone {
        let lines = match self.first[field as usize] {
            NONE => &[],
            at if self.is_repeated(field) => &self.headers[usize::from(at)..],
            at => &self.headers[usize::from(at)..=usize::from(at)],
        };
        let ours = lines.iter().filter(move |header| Field::of(header.name) == Some(field));
        ours.map(|header| header.value.trim_ascii())
    }

    fn judge(&mut self) -> Result<(), Refusal> {
        self.judge_length()?;
        // RFC 9112 section 3.2: exactly one Host in HTTP/1.1, whatever the target's form
        let hosts = self.first[Field::Host as usize] != NONE;
        if self.is_repeated(Field::Host) || (self.http11 && !hosts) {
            return Err(Refusal::Host);
        }
        if self.first[Field::Connection as usize] != NONE {
            self.judge_connection();
        }
        if self.http11 && self.first[Field::Expect as usize] != NONE {
            let continues = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
            if !self.values(Field::Expect).flat_map(members).all(continues) {
                return Err(Refusal::Expectation);
            }
            self.continues = self.length != Length::Fixed(0);
            // the final status goes out at once (RFC 9110 section 10.1.1); whether the content still follows is not known then
            self.keep_alive &= !self.continues;
        }
        Ok(())
    }

    /// RFC 9112 section 6.3, with every ambiguity refused (section 6.1, 11.2).
    fn judge_length(&mut self) -> Result<(), Refusal> {
        let length = self.value(Field::ContentLength);
        if self.first[Field::TransferEncoding as usize] != NONE {
            // with a Content-Length beside it, or from HTTP/1.0, the framing is faulty (section 6.1)
            if length.is_some() || !self.http11 {
                return Err(Refusal::Framing);
            }
            let chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
            let (first, second) = {
                let mut codings = self.values(Field::TransferEncoding).flat_map(members);
                (codings.next(), codings.next())
            };
            self.length = match (first, second) {
                (Some(only), None) if chunked(only) => Length::Chunked,
                // chunked before the end, or none at all
                (None, _) => return Err(Refusal::Framing),
                (Some(first), Some(_)) if chunked(first) => return Err(Refusal::Framing),
                _ => return Err(Refusal::TransferCoding),
            };
            return Ok(());
        }
        if let Some(digits) = length {
            // a list of equal values may be taken (section 6.3); it is refused
            if self.is_repeated(Field::ContentLength) {
                return Err(Refusal::Framing);
            }
            self.length = Length::Fixed(decimal(digits).ok_or(Refusal::Framing)?);
        }
        Ok(())
    }

    /// RFC 9112 section 9.3: close wins; HTTP/1.0 persists when asked to.
    fn judge_connection(&mut self) {
        let (mut close, mut keep) = (false, false);
        for option in self.values(Field::Connection).flat_map(members) {
            close |= option.eq_ignore_ascii_case(b"close");
            keep |= option.eq_ignore_ascii_case(b"keep-alive");
        }
        self.keep_alive = !close && (self.http11 || keep);
    }
}

/// The members of a list (RFC 9110 section 5.6.1), empty ones left out; not for lists with quoted strings.
pub(crate) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

/// A number of digits only; None also when it is over 2^63.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0')).filter(|value| *value >> 63 == 0)
    })
}

#[cfg(test)]
mod tests;
