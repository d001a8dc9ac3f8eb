//! From a request to its answer: which status, which pieces, in RFC 9110's order of questions.
//!
//! An answer is a [`Plan`]: a list of pieces, each a part of an object or of the plan's own bytes. Nothing is allocated: the
//! plan is made once and its bounds are known.

use std::io::Write;

use app::ObjectId;
use arrayvec::ArrayVec;

use crate::conditional::{self, Validators, Verdict};
use crate::head::{Field, Head, LINE_MAX_BYTES, Method};
use crate::negotiate::Weights;
use crate::range::{self, PARTS_MAX, Part};
use crate::site::{Entry, NO_ORIGIN, PrefixRedirect, Representation, Site};
use crate::status;
use crate::target::{self, Form};

/// Own bytes of one answer. A location, or the part headers of a multipart answer, take the most.
pub(crate) const OWNED_MAX_BYTES: usize = 16 << 10;
/// Pieces of one answer: head and fields, a header and a body for each part, the end.
pub(crate) const PIECES_MAX: usize = 2 + 2 * PARTS_MAX + 1;
/// Longest media type that part headers repeat.
const PART_TYPE_MAX_BYTES: usize = 256;
/// Octets of a multipart boundary.
const BOUNDARY_BYTES: usize = 24;

const ALLOW: &[u8] = b"Allow: GET, HEAD, OPTIONS\r\n";

/// A piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// of the plan's own bytes
    Owned {
        start: u32,
        end: u32,
    },
    Object {
        object: ObjectId,
        start: u64,
        bytes: u64,
    },
    /// of a file that is sent in chunks
    File {
        origin: u32,
        start: u64,
        bytes: u64,
    },
}

impl Piece {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Piece::Owned { start, end } => u64::from(end - start),
            Piece::Object { bytes, .. } | Piece::File { bytes, .. } => *bytes,
        }
    }
}

/// An answer.
pub(crate) struct Plan {
    pub(crate) owned: Vec<u8>,
    pub(crate) pieces: ArrayVec<Piece, PIECES_MAX>,
    pub(crate) status: u16,
    /// content octets, without the head
    pub(crate) body_bytes: u64,
    /// the host that it is for
    pub(crate) host: u16,
}

impl Plan {
    pub(crate) fn new() -> Plan {
        Plan { owned: Vec::with_capacity(OWNED_MAX_BYTES), pieces: ArrayVec::new(), status: 0, body_bytes: 0, host: 0 }
    }

    fn begin(&mut self, host: u16) {
        self.owned.clear();
        self.pieces.clear();
        (self.status, self.body_bytes, self.host) = (0, 0, host);
    }

    /// All octets of the answer.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::bytes).sum()
    }

    fn own(&mut self, from: usize) {
        self.pieces.push(Piece::Owned { start: from as u32, end: self.owned.len() as u32 });
    }

    fn object(&mut self, object: ObjectId, start: u64, bytes: u64) {
        if bytes > 0 {
            self.pieces.push(Piece::Object { object, start, bytes });
        }
    }

    /// The fields of a representation from `from` on.
    fn fields(&mut self, of: &Representation, from: u16) {
        self.object(of.head, u64::from(from), u64::from(of.head_end - from));
    }

    fn body(&mut self, of: &Representation, part: Part) {
        self.part(of, part);
        self.body_bytes += part.bytes();
    }

    fn part(&mut self, of: &Representation, part: Part) {
        match of.origin {
            NO_ORIGIN => self.object(of.body, of.body_at + part.start, part.bytes()),
            _ if part.bytes() == 0 => {}
            origin => self.pieces.push(Piece::File { origin, start: part.start, bytes: part.bytes() }),
        }
    }

    /// The file that is sent in chunks: one at most, as an answer is of one representation.
    pub(crate) fn origin(&self) -> Option<u32> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::File { origin, .. } => Some(*origin),
            _ => None,
        })
    }
}

/// What an answer depends on besides the request and the site.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// the Date field with its line end
    pub(crate) date: &'a [u8],
    /// for the boundary of a multipart answer: another one each time, not to be foreseen; without it none is made
    pub(crate) boundary: Option<u64>,
}

/// How the answer's head ends what the request began.
#[derive(Clone, Copy)]
struct Manner {
    /// GET: the content goes out
    with_body: bool,
    http11: bool,
    keep_alive: bool,
}

struct Answering<'a> {
    site: &'a Site,
    moment: Moment<'a>,
    manner: Manner,
    plan: &'a mut Plan,
}

/// Plans the answer to a request.
pub(crate) fn answer(site: &Site, head: &Head<'_, '_>, moment: Moment<'_>, keep_alive: bool, plan: &mut Plan) {
    plan.begin(0);
    let manner = Manner { with_body: head.method != Method::Head, http11: head.http11, keep_alive };
    let mut answering = Answering { site, moment, manner, plan };
    answering.request(head);
}

/// Plans the answer to bytes that are no request, or none that is taken; the connection ends with it.
pub(crate) fn refuse(site: &Site, status: u16, bytes: &[u8], moment: Moment<'_>, plan: &mut Plan) {
    plan.begin(0);
    // whatever is wrong behind it, who asked for a head alone takes content for something else (RFC 9110 section 9.3.2)
    let with_body = !bytes.starts_with(b"HEAD ");
    let manner = Manner { with_body, http11: true, keep_alive: false };
    Answering { site, moment, manner, plan }.error(status);
}

impl Answering<'_> {
    fn request(&mut self, head: &Head<'_, '_>) {
        let form = target::split(head.method, head.target);
        let authority = form.as_ref().ok().and_then(|(_, authority)| *authority);
        let Ok(name) = target::host(head, authority) else { return self.error(400) };
        self.plan.host = self.site.host(name);
        match head.method {
            // a method that nobody here knows, or that no resource here has (RFC 9110 sections 15.6.2, 15.5.6)
            Method::Unknown => return self.error(501),
            Method::Known => return self.error(405),
            Method::Get | Method::Head | Method::Options => {}
        }
        let Ok((form, _)) = form else { return self.error(400) };
        match form {
            Form::Path { raw, query } if target::is_normal(raw) => self.path(head, raw, query),
            Form::Path { raw, query } => self.rewritten(head, raw, query),
            Form::Server => self.options(),
        }
    }

    /// A path with escapes or dot segments; apart, since few have them and the buffer is large.
    #[cold]
    #[inline(never)]
    fn rewritten(&mut self, head: &Head<'_, '_>, raw: &[u8], query: &[u8]) {
        let mut scratch = [0; LINE_MAX_BYTES];
        match target::normalise(raw, &mut scratch) {
            Ok(path) => self.path(head, path, query),
            Err(target::Malformed) => self.error(400),
        }
    }

    /// Begins the head; more fields may follow it in the plan's own bytes.
    fn head(&mut self, status: u16) {
        let plan = &mut self.plan;
        plan.status = status;
        plan.owned.extend_from_slice(status::line(status));
        plan.owned.extend_from_slice(self.moment.date);
        // HTTP/1.1 persists unless told; HTTP/1.0 wants to be told (RFC 9112 section 9.3)
        if !self.manner.keep_alive {
            plan.owned.extend_from_slice(b"Connection: close\r\n");
        } else if !self.manner.http11 {
            plan.owned.extend_from_slice(b"Connection: keep-alive\r\n");
        }
    }

    /// RFC 9110 section 9.3.7, for the server as for any resource: what is allowed is the same everywhere.
    fn options(&mut self) {
        self.head(204);
        self.plan.owned.extend_from_slice(ALLOW);
        self.plan.owned.extend_from_slice(b"\r\n");
        self.plan.own(0);
    }

    fn error(&mut self, status: u16) {
        self.head(status);
        if status == 405 {
            self.plan.owned.extend_from_slice(ALLOW);
        }
        self.error_content(status);
    }

    /// The page of a status behind a head that stands in the own bytes.
    fn error_content(&mut self, status: u16) {
        self.plan.own(0);
        if let Some(page) = self.site.error_page(self.plan.host, status) {
            self.whole(page);
        }
    }

    /// All fields and, for GET, the content.
    #[inline]
    fn whole(&mut self, of: &Representation) {
        if self.manner.with_body && of.body == of.head {
            // one range: the content stands behind the fields
            self.plan.object(of.head, 0, u64::from(of.head_end) + of.body_bytes);
            self.plan.body_bytes += of.body_bytes;
            return;
        }
        self.plan.fields(of, 0);
        if self.manner.with_body {
            self.plan.body(of, Part { start: 0, end: of.body_bytes });
        }
    }

    #[inline]
    fn path(&mut self, head: &Head<'_, '_>, path: &[u8], query: &[u8]) {
        let site = self.site;
        let host = self.plan.host;
        for prefix in &site.of_host(host).prefixes {
            if let Some(rest) = path.strip_prefix(&*prefix.from) {
                if let Some(Entry::Redirect { by_rule: true, status, at, bytes }) = site.entry(host, path) {
                    // what is said of one path stands above what is said of all below a prefix
                    return self.redirect(status, site.text(at, bytes), b"", query);
                }
                return self.elsewhere(prefix, rest, query);
            }
        }
        match site.entry(host, path) {
            None => self.error(404),
            Some(_) if head.method == Method::Options => self.options(),
            Some(Entry::Forbidden) => self.error(403),
            Some(Entry::Redirect { status, at, bytes, .. }) => self.redirect(status, site.text(at, bytes), b"", query),
            Some(Entry::Page { first, variants }) => {
                let weights = || match head.value(Field::AcceptEncoding) {
                    None => Weights::NONE,
                    Some(_) => Weights::of(head.values(Field::AcceptEncoding)),
                };
                self.page(head, site.variant(first, variants, weights));
            }
        }
    }

    fn elsewhere(&mut self, prefix: &PrefixRedirect, rest: &[u8], query: &[u8]) {
        self.redirect(prefix.status, &prefix.to, if prefix.with_rest { rest } else { b"" }, query);
    }

    /// RFC 9110 section 15.4; `rest` is percent-encoded on the way.
    fn redirect(&mut self, status: u16, location: &[u8], rest: &[u8], query: &[u8]) {
        if location.len() + 3 * rest.len() + query.len() > OWNED_MAX_BYTES - 512 {
            return self.error(414);
        }
        self.head(status);
        let owned = &mut self.plan.owned;
        // a query stands before the fragment (RFC 3986 section 3)
        let (location, fragment) = location.split_at(memchr::memchr(b'#', location).unwrap_or(location.len()));
        owned.extend_from_slice(b"Location: ");
        owned.extend_from_slice(location);
        crate::site::push_encoded(owned, rest);
        // what the client sent goes back to it, but only what can stand in a URI
        let graphic = |byte: &u8| byte.is_ascii_graphic();
        if !location.contains(&b'?') && query.iter().all(graphic) {
            owned.extend_from_slice(query);
        }
        owned.extend_from_slice(fragment);
        owned.extend_from_slice(b"\r\n");
        self.error_content(status);
    }

    #[inline]
    fn page(&mut self, head: &Head<'_, '_>, page: &Representation) {
        let site = self.site;
        if head.has_conditions() {
            let own = Validators {
                etag: site.etag(page),
                modified: site.modified(page),
                modified_unix_s: page.modified_unix_s,
            };
            match conditional::evaluate(head, &own) {
                Verdict::Go => {}
                Verdict::Failed => return self.error(412),
                Verdict::NotModified => {
                    // what a 200 would have had, without what describes content (RFC 9110 section 15.4.5)
                    self.head(304);
                    self.plan.own(0);
                    self.plan.fields(page, page.type_end);
                    return;
                }
            }
            // a Range is defined for GET alone (section 14.2); of nothing there are no parts
            if let Some(value) = head.single(Field::Range)
                && head.method == Method::Get
                && page.body_bytes > 0
                && conditional::range_applies(head, &own)
            {
                match range::read(value, page.body_bytes).as_deref() {
                    Some([]) => return self.unsatisfiable(page.body_bytes),
                    Some([part]) => return self.part(page, *part),
                    Some(parts) if self.parts(page, parts) => return,
                    None | Some(_) => {}
                }
            }
        }
        self.head(200);
        self.plan.own(0);
        self.whole(page);
    }

    /// RFC 9110 section 15.5.17.
    fn unsatisfiable(&mut self, total: u64) {
        self.head(416);
        // writing to a vector does not fail
        let _ = write!(self.plan.owned, "Content-Range: bytes */{total}\r\n");
        self.error_content(416);
    }

    /// RFC 9110 section 15.3.7.1.
    fn part(&mut self, page: &Representation, part: Part) {
        self.head(206);
        let (first, last, total) = (part.start, part.end - 1, page.body_bytes);
        let _ = write!(
            self.plan.owned,
            "Content-Range: bytes {first}-{last}/{total}\r\nContent-Length: {}\r\n",
            part.bytes()
        );
        self.plan.own(0);
        self.plan.fields(page, page.length_end);
        self.plan.body(page, part);
    }

    /// RFC 9110 section 15.3.7.2; false when the whole representation is sent instead: an encoded one would have its coding
    /// applied to the parts' headers too.
    fn parts(&mut self, page: &Representation, parts: &[Part]) -> bool {
        let site = self.site;
        let media_type = site.media_type(page);
        let Some(number) = self.moment.boundary else { return false };
        if page.encoding != crate::Encoding::Identity || media_type.len() > PART_TYPE_MAX_BYTES {
            return false;
        }
        // the parts' headers come first into the own bytes, as the head tells their length
        let boundary = boundary(number);
        for (n, part) in parts.iter().enumerate() {
            let owned = &mut self.plan.owned;
            let from = owned.len();
            owned.extend_from_slice(if n == 0 { b"--" } else { b"\r\n--" });
            owned.extend_from_slice(&boundary);
            owned.extend_from_slice(b"\r\nContent-Type: ");
            owned.extend_from_slice(media_type);
            let (first, last, total) = (part.start, part.end - 1, page.body_bytes);
            let _ = write!(owned, "\r\nContent-Range: bytes {first}-{last}/{total}\r\n\r\n");
            self.plan.own(from);
            self.plan.part(page, *part);
        }
        let from = self.plan.owned.len();
        self.plan.owned.extend_from_slice(b"\r\n--");
        self.plan.owned.extend_from_slice(&boundary);
        self.plan.owned.extend_from_slice(b"--\r\n");
        self.plan.own(from);
        self.plan.body_bytes = self.plan.bytes();
        let head_from = self.plan.owned.len() as u32;
        self.head(206);
        let owned = &mut self.plan.owned;
        owned.extend_from_slice(b"Content-Type: multipart/byteranges; boundary=");
        owned.extend_from_slice(&boundary);
        let _ = write!(owned, "\r\nContent-Length: {}\r\n", self.plan.body_bytes);
        let head = Piece::Owned { start: head_from, end: self.plan.owned.len() as u32 };
        let bytes = u64::from(page.head_end - page.type_end);
        let fields = Piece::Object { object: page.head, start: u64::from(page.type_end), bytes };
        self.plan.pieces.insert(0, head);
        self.plan.pieces.insert(1, fields);
        true
    }
}

/// A boundary that no content foresees (RFC 2046 section 5.1.1).
fn boundary(number: u64) -> [u8; BOUNDARY_BYTES] {
    let mut text = *b"simoom..0000000000000000";
    for (n, digit) in text[8..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * n) & 15) as usize];
    }
    text
}

#[cfg(test)]
mod tests;
