//! The access log's records. A serving thread fills one a request and puts it into a bounded ring; whoever holds the other end
//! writes lines. A full ring costs records, which are counted, and never time.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use crate::date;
use crate::head::{Field, Head};

/// The first bytes of a text, and how long it was. In a line three dots follow what was cut.
#[derive(Clone, Copy)]
pub struct Text<const BYTES: usize> {
    whole_bytes: u16,
    bytes: [u8; BYTES],
}

impl<const BYTES: usize> Text<BYTES> {
    fn of(text: &[u8]) -> Self {
        let mut bytes = [0; BYTES];
        let kept = text.len().min(BYTES);
        bytes[..kept].copy_from_slice(&text[..kept]);
        Text { whole_bytes: u16::try_from(text.len()).unwrap_or(u16::MAX), bytes }
    }

    /// What was kept.
    pub fn kept(&self) -> &[u8] {
        &self.bytes[..BYTES.min(usize::from(self.whole_bytes))]
    }

    /// Whether something was cut off.
    pub fn is_cut(&self) -> bool {
        usize::from(self.whole_bytes) > BYTES
    }
}

/// One request and its answer.
#[derive(Clone, Copy)]
pub struct Record {
    /// when the answer was made, nanoseconds since 1970
    pub unix_ns: u64,
    /// the client, as a trusted proxy tells it or as the connection has it
    pub client: SocketAddr,
    /// the status that was answered
    pub status: u16,
    /// the virtual host's place in the configuration
    pub host: u16,
    /// minor version of the request: 0 or 1
    pub minor_version: u8,
    /// content octets that were queued for the client; it may have left before it had them all
    pub body_bytes: u64,
    /// the method as it was sent; empty for what is no request
    pub method: Text<16>,
    /// the target as it was sent
    pub target: Text<256>,
    /// Referer; empty for none
    pub referer: Text<128>,
    /// User-Agent; empty for none
    pub agent: Text<192>,
}

impl Record {
    /// A request's, without its answer.
    pub(crate) fn of(head: &Head<'_, '_>, unix_ns: u64, client: SocketAddr) -> Record {
        Record {
            unix_ns,
            client,
            status: 0,
            host: 0,
            minor_version: u8::from(head.http11),
            body_bytes: 0,
            method: Text::of(head.token.as_bytes()),
            target: Text::of(head.target.as_bytes()),
            referer: Text::of(head.value(Field::Referer).unwrap_or_default()),
            agent: Text::of(head.value(Field::UserAgent).unwrap_or_default()),
        }
    }

    /// Of bytes that are no request: their first line stands for the target.
    pub(crate) fn of_bytes(bytes: &[u8], unix_ns: u64, client: SocketAddr) -> Record {
        let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
        let (method, target, none) = (Text::of(b""), Text::of(line), &b""[..]);
        let (referer, agent) = (Text::of(none), Text::of(none));
        Record { unix_ns, client, status: 0, host: 0, minor_version: 0, body_bytes: 0, method, target, referer, agent }
    }

    /// Adds the combined format's line, with its end. What could be mistaken for structure is written as `\xHH`.
    pub fn write_combined(&self, out: &mut Vec<u8>) {
        // writing to a vector does not fail
        let date = date::write(self.unix_ns / 1_000_000_000);
        let (day, month, year, time) = (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
        let _ = write!(out, "{} - - [{day}/{month}/{year}:{time} +0000] \"", self.client.ip());
        if self.method.kept().is_empty() {
            push_escaped(out, &self.target);
        } else {
            push_escaped(out, &self.method);
            out.push(b' ');
            push_escaped(out, &self.target);
            let _ = write!(out, " HTTP/1.{}", self.minor_version);
        }
        let _ = write!(out, "\" {} {} \"", self.status, self.body_bytes);
        push_or_dash(out, &self.referer);
        out.extend_from_slice(b"\" \"");
        push_or_dash(out, &self.agent);
        out.extend_from_slice(b"\"\n");
    }

    /// Adds one line of JSON, with what the virtual host is called. Octets that are not ASCII stand as the code points of the same numbers.
    pub fn write_json(&self, host: &str, out: &mut Vec<u8>) {
        let (s, ns) = (self.unix_ns / 1_000_000_000, self.unix_ns % 1_000_000_000);
        let (ip, port) = (self.client.ip(), self.client.port());
        let _ = write!(out, "{{\"time\":{s}.{ns:09},\"client\":\"{ip}\",\"port\":{port},\"method\":");
        push_json(out, &self.method);
        out.extend_from_slice(b",\"target\":");
        push_json(out, &self.target);
        let (minor, status, bytes) = (self.minor_version, self.status, self.body_bytes);
        let _ = write!(out, ",\"version\":\"1.{minor}\",\"host\":");
        push_json_octets(out, host.as_bytes());
        out.push(b'"');
        let _ = write!(out, ",\"status\":{status},\"bytes\":{bytes},\"referer\":");
        push_json(out, &self.referer);
        out.extend_from_slice(b",\"agent\":");
        push_json(out, &self.agent);
        out.extend_from_slice(b"}\n");
    }

    /// The client's address is another one, of which no port is known.
    pub(crate) fn set_client(&mut self, ip: IpAddr) {
        self.client = SocketAddr::new(ip, 0);
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut line = Vec::new();
        self.write_combined(&mut line);
        f.write_str(String::from_utf8_lossy(&line).trim_end())
    }
}

/// What stands where something was cut off.
const CUT: &[u8] = b"...";

fn push_or_dash<const BYTES: usize>(out: &mut Vec<u8>, text: &Text<BYTES>) {
    if text.kept().is_empty() {
        out.push(b'-');
    }
    push_escaped(out, text);
}

fn push_escaped<const BYTES: usize>(out: &mut Vec<u8>, text: &Text<BYTES>) {
    for &byte in text.kept() {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _ = write!(out, "\\x{byte:02X}");
            }
            _ => out.push(byte),
        }
    }
    out.extend_from_slice(if text.is_cut() { CUT } else { b"" });
}

fn push_json<const BYTES: usize>(out: &mut Vec<u8>, text: &Text<BYTES>) {
    push_json_octets(out, text.kept());
    out.extend_from_slice(if text.is_cut() { CUT } else { b"" });
    out.push(b'"');
}

/// A string without its end.
fn push_json_octets(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f | 0x7f.. => {
                let _ = write!(out, "\\u{byte:04x}");
            }
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            unix_ns: 784_111_777_000_000_005,
            client: "[2001:db8::1]:1234".parse().unwrap(),
            status: 206,
            host: 1,
            minor_version: 1,
            body_bytes: 17,
            method: Text::of(b"GET"),
            target: Text::of(b"/a\"b\\c\xc3"),
            referer: Text::of(b""),
            agent: Text::of(b"curl/8\x01"),
        }
    }

    #[test]
    fn lines_of_both_formats() {
        let mut out = Vec::new();
        record().write_combined(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "2001:db8::1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a\\x22b\\x5Cc\\xC3 HTTP/1.1\" 206 17 \"-\" \"curl/8\\x01\"\n"
        );
        let mut out = Vec::new();
        record().write_json("www.example", &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"time\":784111777.000000005,\"client\":\"2001:db8::1\",\"port\":1234,\"method\":\"GET\",\
             \"target\":\"/a\\\"b\\\\c\\u00c3\",\"version\":\"1.1\",\"host\":\"www.example\",\"status\":206,\"bytes\":17,\
             \"referer\":\"\",\"agent\":\"curl/8\\u0001\"}\n"
        );
    }

    #[test]
    fn what_is_no_request_shows_its_first_line() {
        let mut out = Vec::new();
        Record::of_bytes(b"\x16\x03\x01 x\r\nmore", 0, "192.0.2.1:1".parse().unwrap()).write_combined(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "192.0.2.1 - - [01/Jan/1970:00:00:00 +0000] \"\\x16\\x03\\x01 x\" 0 0 \"-\" \"-\"\n"
        );
    }

    #[test]
    fn what_was_cut_shows_that() {
        let mut long = record();
        (long.target, long.agent) = (Text::of(&[b'a'; 257]), Text::of(&[b'b'; 193]));
        (long.method, long.referer) = (Text::of(&[b'c'; 17]), Text::of(&[b'd'; 128]));
        let [c, a, d, b] = [("c", 16), ("a", 256), ("d", 128), ("b", 192)].map(|(octet, count)| octet.repeat(count));
        let mut out = Vec::new();
        long.write_combined(&mut out);
        let line = String::from_utf8(out).unwrap();
        assert!(line.ends_with(&format!("\"{c}... {a}... HTTP/1.1\" 206 17 \"{d}\" \"{b}...\"\n")), "{line}");
        let mut out = Vec::new();
        long.write_json("", &mut out);
        let line = String::from_utf8(out).unwrap();
        assert!(line.contains(&format!("\"method\":\"{c}...\",\"target\":\"{a}...\"")), "{line}");
        assert!(line.ends_with(&format!("\"referer\":\"{d}\",\"agent\":\"{b}...\"}}\n")), "{line}");
    }

    #[test]
    fn long_texts_are_cut() {
        let text = Text::<4>::of(b"12345");
        assert_eq!((text.kept(), text.is_cut()), (&b"1234"[..], true));
        assert!(!Text::<4>::of(b"1234").is_cut());
    }
}
