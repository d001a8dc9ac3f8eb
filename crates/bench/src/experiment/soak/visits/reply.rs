//! An answer as a kernel client reads it.

use anyhow::{Context as _, Result, ensure};
use std::io::{self, Read};

/// The longest head.
const HEAD_MOST_BYTES: usize = 16 << 10;
const FIELDS_MOST: usize = 64;

/// An answer, or its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// names in lower case
    fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// octets of the whole answer as the head has it
    pub(super) whole_bytes: u64,
}

impl Reply {
    /// Reads a whole answer; to HEAD (`head_only`) there is no body.
    pub(super) fn read(stream: &mut impl Read, head_only: bool) -> Result<Reply> {
        let mut reply = Reply::read_head(stream)?;
        let has_body = !head_only && reply.status != 304;
        let length = if has_body { reply.length()? } else { 0 };
        if !has_body {
            reply.whole_bytes = reply.whole_bytes.saturating_sub(reply.length().unwrap_or(0));
        }
        let had = reply.body.len() as u64;
        ensure!(had <= length, "{had} octets behind a head that tells {length}");
        stream.take(length - had).read_to_end(&mut reply.body)?;
        ensure!(reply.body.len() as u64 == length, "{} octets of {length}", reply.body.len());
        Ok(reply)
    }

    /// Reads a head, and what comes with it of the body.
    pub(super) fn read_head(stream: &mut impl Read) -> Result<Reply> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = match stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            ensure!(count > 0, "the connection ended within a head");
            bytes.extend_from_slice(&buffer[..count]);
            if let Some(reply) = Reply::parse(&bytes)? {
                return Ok(reply);
            }
            ensure!(bytes.len() < HEAD_MOST_BYTES, "a head without an end");
        }
    }

    fn parse(bytes: &[u8]) -> Result<Option<Reply>> {
        let mut slots = [httparse::EMPTY_HEADER; FIELDS_MOST];
        let mut response = httparse::Response::new(&mut slots);
        let httparse::Status::Complete(head_bytes) = response.parse(bytes).context("no head")? else { return Ok(None) };
        let status = response.code.context("no status")?;
        let field = |field: &httparse::Header<'_>| {
            (field.name.to_ascii_lowercase(), String::from_utf8_lossy(field.value).into_owned())
        };
        let fields = response.headers.iter().map(field).collect();
        let mut reply = Reply { status, fields, body: bytes[head_bytes..].to_vec(), whole_bytes: 0 };
        reply.whole_bytes = head_bytes as u64 + reply.length().unwrap_or(0);
        Ok(Some(reply))
    }

    /// A field's value.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Octets of the body as the head has it.
    pub(super) fn length(&self) -> Result<u64> {
        let length = self.field("content-length").context("no Content-Length")?;
        length.parse().with_context(|| format!("a length of {length}"))
    }

    /// The ETag.
    pub(super) fn tag(&self) -> Result<String> {
        self.field("etag").map(String::from).context("no ETag")
    }

    /// The parts of a multipart/byteranges body (RFC 9110 section 14.6): each its Content-Range and its octets.
    pub(super) fn parts(&self) -> Result<Vec<(String, &[u8])>> {
        ensure!(self.status == 206, "{} instead of 206", self.status);
        let kind = self.field("content-type").unwrap_or_default();
        let boundary =
            kind.strip_prefix("multipart/byteranges; boundary=").with_context(|| format!("of type {kind}"))?;
        let delimiter = format!("\r\n--{boundary}");
        let mut rest =
            self.body.strip_prefix(&delimiter.as_bytes()[2..]).or(self.body.strip_prefix(delimiter.as_bytes()));
        let mut parts = Vec::new();
        loop {
            let part = rest.context("no delimiter at the beginning")?;
            if part.starts_with(b"--") {
                return Ok(parts);
            }
            let head_bytes = find(part, b"\r\n\r\n").context("a part without fields")? + 4;
            let end = find(part, delimiter.as_bytes()).context("a part without an end")?;
            ensure!(head_bytes <= end, "a part without fields");
            let head = String::from_utf8_lossy(&part[..head_bytes]);
            let mut fields = head.lines().filter_map(|line| line.split_once(": "));
            let range = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-range"));
            parts.push((range.context("a part without a range")?.1.to_owned(), &part[head_bytes..end]));
            rest = Some(&part[end + delimiter.len()..]);
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_head_and_so_many_octets() {
        let text = b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\ncontent-LENGTH: 5\r\n\r\nhelloHTTP";
        // all at once is more than it has
        assert!(Reply::read(&mut &text[..], false).is_err());
        let text = &text[..text.len() - 4];
        let reply = Reply::read(&mut &text[..], false).unwrap();
        assert_eq!((reply.status, reply.body.as_slice(), reply.whole_bytes), (200, &b"hello"[..], text.len() as u64));
        assert_eq!(reply.tag().unwrap(), "\"x\"");
        assert!(Reply::read(&mut &text[..text.len() - 1], false).is_err());
        let head = &text[..text.len() - 5];
        assert_eq!(Reply::read(&mut &head[..], true).unwrap().whole_bytes, head.len() as u64);
        let none = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(Reply::read(&mut &none[..], false).unwrap().whole_bytes, none.len() as u64);
        for wrong in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"what\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(Reply::read(&mut &wrong[..], false).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parts_have_ranges_and_octets() {
        let body = "--b\r\nContent-Type: a/b\r\nContent-Range: bytes 0-1/9\r\n\r\nab\r\n--b\r\nContent-Range: bytes 8-8/9\r\n\r\ni\r\n--b--\r\n";
        let of = |body: &str| {
            let head = "HTTP/1.1 206 Partial Content\r\nContent-Type: multipart/byteranges; boundary=b\r\n";
            let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            Reply::read(&mut text.as_bytes(), false).unwrap()
        };
        let expected = [("bytes 0-1/9".to_owned(), &b"ab"[..]), ("bytes 8-8/9".to_owned(), b"i")];
        assert_eq!(of(body).parts().unwrap(), expected);
        assert_eq!(of(&format!("\r\n{body}")).parts().unwrap(), expected);
        for wrong in ["", "x", "--b\r\n\r\nab\r\n--b--", "--b\r\nContent-Range: x\r\n\r\nab"] {
            assert!(of(wrong).parts().is_err(), "{wrong}");
        }
    }
}
