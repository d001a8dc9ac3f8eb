//! Pages and header fields that are written at load: directory listings, error pages, the fields of a representation.

use std::fmt::Write;

use crate::date;
use crate::negotiate::Encoding;
use crate::site::Span;
use crate::target::ENCODED_SLASH;

/// What the fields of a representation are made from.
pub(super) struct Fields<'a> {
    pub(super) body_bytes: u64,
    pub(super) media_type: &'a str,
    pub(super) encoding: Encoding,
    /// a strong tag's opaque part; None sends no tag, no date and takes no ranges
    pub(super) tag: Option<u64>,
    pub(super) modified_unix_s: Option<u64>,
    pub(super) varies: bool,
    pub(super) cache: Option<&'a str>,
    pub(super) extra: &'a [(&'a str, &'a str)],
    pub(super) server: Option<&'a str>,
}

/// The fields as bytes, and where their parts are.
#[derive(Default)]
pub(super) struct Head {
    pub(super) text: Vec<u8>,
    pub(super) length_end: u16,
    pub(super) type_end: u16,
    pub(super) head_end: u16,
    pub(super) etag: Span,
    pub(super) modified: Span,
}

impl Fields<'_> {
    /// Writes them; None when they take 64 KiB or more.
    pub(super) fn write(&self) -> Option<Head> {
        let mut head = Head::default();
        let mut text = String::new();
        // writing to a string does not fail
        let _ = write!(text, "Content-Length: {}\r\n", self.body_bytes);
        let length_end = text.len();
        let _ = write!(text, "Content-Type: {}\r\n", self.media_type);
        if self.encoding != Encoding::Identity {
            let _ = write!(text, "Content-Encoding: {}\r\n", self.encoding.token());
        }
        let type_end = text.len();
        if let Some(modified_unix_s) = self.modified_unix_s {
            let _ = write!(text, "Last-Modified: {}\r\n", date::write(modified_unix_s));
            head.modified = Span::last(&text, date::DATE_BYTES)?;
        }
        if let Some(tag) = self.tag {
            // strong: the tag is made of the octets themselves (RFC 9110 section 8.8.1)
            let _ = write!(text, "ETag: \"{tag:016x}\"\r\n");
            head.etag = Span::last(&text, 18)?;
            text.push_str("Accept-Ranges: bytes\r\n");
        }
        if self.varies {
            text.push_str("Vary: Accept-Encoding\r\n");
        }
        if let Some(cache) = self.cache {
            let _ = write!(text, "Cache-Control: {cache}\r\n");
        }
        for (name, value) in self.extra {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if let Some(server) = self.server {
            let _ = write!(text, "Server: {server}\r\n");
        }
        text.push_str("\r\n");
        head.length_end = u16::try_from(length_end).ok()?;
        head.type_end = u16::try_from(type_end).ok()?;
        head.head_end = u16::try_from(text.len()).ok()?;
        head.text = text.into_bytes();
        Some(head)
    }
}

impl Span {
    /// The value that ends before the line end at the end of `text`.
    fn last(text: &str, bytes: usize) -> Option<Span> {
        let end = u16::try_from(text.len() - 2).ok()?;
        Some(Span { start: end - bytes as u16, end })
    }
}

/// The page of a status that has no page of its own.
pub(super) fn error(status: u16, reason: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{status} {reason}</title></head>\
         <body><h1>{status} {reason}</h1></body></html>\n"
    )
}

/// One line of a listing.
pub(super) struct Line<'a> {
    pub(super) name: &'a [u8],
    /// None for a directory
    pub(super) bytes: Option<u64>,
    pub(super) modified_unix_s: u64,
}

/// A directory's page. `path` begins and ends with a slash.
pub(super) fn listing(path: &[u8], lines: &[Line<'_>]) -> String {
    let title = escape(&String::from_utf8_lossy(path));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Index of {title}</title></head><body>\n\
         <h1>Index of {title}</h1>\n<table>\n<tr><th>Name</th><th>Size</th><th>Modified</th></tr>\n"
    );
    if path != b"/" {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for line in lines {
        let slash = if line.bytes.is_none() { "/" } else { "" };
        // "./" keeps a name with a colon from being read as a scheme (RFC 3986 section 4.2)
        let mut link = b"./".to_vec();
        push_encoded(&mut link, line.name);
        let link = String::from_utf8_lossy(&link).replace('&', "&amp;").replace('\'', "&#39;");
        let name = escape(&String::from_utf8_lossy(line.name));
        let (size, modified) = match line.bytes {
            Some(bytes) => (bytes.to_string(), date::write(line.modified_unix_s).to_string()),
            None => Default::default(),
        };
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{link}{slash}\">{name}{slash}</a></td><td>{size}</td><td>{modified}</td></tr>"
        );
    }
    page.push_str("</table>\n</body></html>\n");
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

/// Percent-encodes what cannot stand in a path (RFC 3986 section 3.3); an encoded slash is one again.
pub(crate) fn push_encoded(out: &mut Vec<u8>, path: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte) {
            out.push(byte);
        } else if byte == ENCODED_SLASH {
            out.extend_from_slice(b"%2F");
        } else {
            out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_escapes_names_in_text_and_links() {
        let lines = [
            Line { name: b"sub", bytes: None, modified_unix_s: 0 },
            Line { name: b"<b>&\"x\" 'y'?#.txt", bytes: Some(7), modified_unix_s: 784_111_777 },
            Line { name: b"a:b\xff", bytes: Some(0), modified_unix_s: 0 },
        ];
        let page = listing(b"/d<i>/", &lines);
        assert!(page.contains("<h1>Index of /d&lt;i&gt;/</h1>"), "{page}");
        assert!(page.contains("<a href=\"./sub/\">sub/</a>"), "{page}");
        let link = "<a href=\"./%3Cb%3E&amp;%22x%22%20&#39;y&#39;%3F%23.txt\">&lt;b&gt;&amp;&quot;x&quot; &#39;y&#39;?#.txt</a>";
        assert!(page.contains(link), "{page}");
        assert!(page.contains("<td>7</td><td>Sun, 06 Nov 1994 08:49:37 GMT</td>"), "{page}");
        assert!(page.contains("<a href=\"./a:b%FF\">"), "{page}");
        assert!(page.contains("href=\"../\"") && !listing(b"/", &[]).contains("href=\"../\""));
    }

    #[test]
    fn fields_know_where_their_parts_are() {
        let fields = Fields {
            body_bytes: 5,
            media_type: "text/html; charset=utf-8",
            encoding: Encoding::Brotli,
            tag: Some(0xabc),
            modified_unix_s: Some(784_111_777),
            varies: true,
            cache: Some("no-cache"),
            extra: &[("X-A", "b")],
            server: Some("simoom"),
        };
        let head = fields.write().unwrap();
        let part =
            |start: u16, end: u16| std::str::from_utf8(&head.text[usize::from(start)..usize::from(end)]).unwrap();
        assert_eq!(part(0, head.length_end), "Content-Length: 5\r\n");
        let types = "Content-Type: text/html; charset=utf-8\r\nContent-Encoding: br\r\n";
        assert_eq!(part(head.length_end, head.type_end), types);
        assert_eq!(
            part(head.type_end, head.head_end),
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nETag: \"0000000000000abc\"\r\nAccept-Ranges: bytes\r\n\
             Vary: Accept-Encoding\r\nCache-Control: no-cache\r\nX-A: b\r\nServer: simoom\r\n\r\n"
        );
        assert_eq!(part(head.etag.start, head.etag.end), "\"0000000000000abc\"");
        assert_eq!(part(head.modified.start, head.modified.end), "Sun, 06 Nov 1994 08:49:37 GMT");
        let long = "x".repeat(1 << 16);
        assert!(Fields { cache: Some(&long), ..fields }.write().is_none());
    }
}
