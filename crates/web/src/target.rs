//! Request targets and hosts: which host, which path.
//!
//! A path is percent-decoded once; then dot segments are resolved and repeated slashes merged, so whatever spelling a path
//! comes in, there is one key to look up. Nothing here touches a file: a path that names nothing in the table of a site is
//! not found, and climbing above the root is malformed.

use crate::head::{Field, Head, LINE_MAX_BYTES, Method};

/// Stands for an encoded slash in a decoded path: a control octet, which no target and no name of a file or a rule can have.
pub(crate) const ENCODED_SLASH: u8 = 0x01;

/// Room for a decoded path, which is never longer than it was.
pub(crate) type Scratch = [u8; LINE_MAX_BYTES];

/// What a target asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Form<'b> {
    /// `*`: the server itself (RFC 9112 section 3.2.4)
    Server,
    /// a path that begins with a slash, and the query with its question mark, or nothing
    Path { raw: &'b [u8], query: &'b [u8] },
}

/// A target or host that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The target's form, and the host that it names itself (RFC 9112 section 3.2).
pub(crate) fn split<'b>(method: Method, target: &'b str) -> Result<(Form<'b>, Option<&'b [u8]>), Malformed> {
    let target = target.as_bytes();
    // a fragment is no part of a target, and a control octet no part of a URI
    if target.iter().any(|byte| *byte == b'#' || *byte < b' ' || *byte == 0x7f) {
        return Err(Malformed);
    }
    if target.first() == Some(&b'/') {
        return Ok((path(target), None));
    }
    if target == b"*" {
        return if method == Method::Options { Ok((Form::Server, None)) } else { Err(Malformed) };
    }
    // absolute form: its authority stands above the Host field (section 3.2.2)
    let rest = strip_scheme(target, b"http://").or_else(|| strip_scheme(target, b"https://")).ok_or(Malformed)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let form = match rest.first() {
        Some(b'/') => path(rest),
        _ => Form::Path { raw: b"/", query: rest },
    };
    Ok((form, Some(authority)))
}

fn strip_scheme<'b>(target: &'b [u8], scheme: &[u8]) -> Option<&'b [u8]> {
    let (ours, rest) = target.split_at_checked(scheme.len())?;
    ours.eq_ignore_ascii_case(scheme).then_some(rest)
}

fn path(target: &[u8]) -> Form<'_> {
    let (raw, query) = target.split_at(memchr::memchr(b'?', target).unwrap_or(target.len()));
    Form::Path { raw, query }
}

/// Whether a path is its own normal form: without an escape, an empty or dot segment.
#[inline]
pub(crate) fn is_normal(raw: &[u8]) -> bool {
    let mut before = 0;
    for &byte in raw {
        if byte == b'%' || (before == b'/' && (byte == b'/' || byte == b'.')) {
            return false;
        }
        before = byte;
    }
    true
}

/// The one spelling of a path: decoded, without dot segments or repeated slashes. An encoded slash becomes [`ENCODED_SLASH`], so that it
/// is never a separator, nor the same as `%2F` in a name (no file has it: not found).
pub(crate) fn normalise<'s>(raw: &[u8], scratch: &'s mut Scratch) -> Result<&'s [u8], Malformed> {
    let mut end = 0;
    let mut at = 0;
    while at < raw.len() {
        let (byte, taken, escaped) = octet(&raw[at..])?;
        at += taken;
        if byte == b'/' && escaped {
            scratch[end] = ENCODED_SLASH;
            end += 1;
        } else if byte == b'/' {
            end = close_segment(scratch, end)?;
        } else {
            scratch[end] = byte;
            end += 1;
        }
    }
    // a last segment of dots names a directory (RFC 3986 section 5.2.4)
    if matches!(last_segment(&scratch[..end]), b"." | b"..") {
        end = close_segment(scratch, end)?;
    }
    Ok(&scratch[..end])
}

/// The octet at the start of `raw`, how much of it that takes, and whether it was escaped.
fn octet(raw: &[u8]) -> Result<(u8, usize, bool), Malformed> {
    match *raw {
        [b'%', high, low, ..] => {
            let digit = |byte: u8| (byte as char).to_digit(16).ok_or(Malformed);
            let byte = (digit(high)? << 4 | digit(low)?) as u8;
            // a NUL or another control octet is in no name that is served
            if byte < b' ' || byte == 0x7f { Err(Malformed) } else { Ok((byte, 3, true)) }
        }
        [b'%', ..] | [] => Err(Malformed),
        [byte, ..] => Ok((byte, 1, false)),
    }
}

fn last_segment(path: &[u8]) -> &[u8] {
    &path[path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)..]
}

/// A slash has come: what the segment before it was decides where the path goes on.
fn close_segment(scratch: &mut Scratch, end: usize) -> Result<usize, Malformed> {
    let path = &scratch[..end];
    match last_segment(path) {
        // the first slash, or one more
        b"" if end == 0 => {
            scratch[0] = b'/';
            Ok(1)
        }
        b"" => Ok(end),
        b"." => Ok(end - 1),
        b".." => {
            // behind the slash before the segment that is taken back
            let parent = path[..end - 3].iter().rposition(|byte| *byte == b'/').ok_or(Malformed)?;
            Ok(parent + 1)
        }
        _ => {
            scratch[end] = b'/';
            Ok(end + 1)
        }
    }
}

/// The host that a request is for, without port and final dot; empty when it names none.
#[inline]
pub(crate) fn host<'b>(head: &Head<'_, 'b>, authority: Option<&'b [u8]>) -> Result<&'b [u8], Malformed> {
    // the Host field must be well formed even when the target's authority stands above it
    let field = host_of(head.value(Field::Host).unwrap_or_default())?;
    let Some(authority) = authority else { return Ok(field) };
    let name = host_of(authority)?;
    // a URI names a host (RFC 9110 section 4.2.1); the field of a target without an authority may be empty
    if name.is_empty() { Err(Malformed) } else { Ok(name) }
}

/// uri-host [ ":" port ] without the port (RFC 9110 section 7.2, RFC 3986 section 3.2) and final dot.
fn host_of(authority: &[u8]) -> Result<&[u8], Malformed> {
    let (name, port) = match authority.first() {
        Some(b'[') => {
            let end = memchr::memchr(b']', authority).ok_or(Malformed)? + 1;
            let (literal, rest) = authority.split_at(end);
            let inside = &literal[1..end - 1];
            let known = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            if inside.is_empty() || !inside.iter().all(known) {
                return Err(Malformed);
            }
            (literal, rest)
        }
        _ => {
            let end = memchr::memchr(b':', authority).unwrap_or(authority.len());
            let (name, rest) = authority.split_at(end);
            let known =
                |byte: &u8| byte.is_ascii_alphanumeric() || b"-.".contains(byte) || b"_~!$&'()*+,;=%".contains(byte);
            if !name.iter().all(known) {
                return Err(Malformed);
            }
            (name, rest)
        }
    };
    let name = name.strip_suffix(b".").unwrap_or(name);
    match port {
        [] => Ok(name),
        [b':', digits @ ..] if digits.iter().all(u8::is_ascii_digit) && digits.len() <= 5 => Ok(name),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(raw: &str) -> Result<String, Malformed> {
        let mut scratch = [0; LINE_MAX_BYTES];
        let path = normalise(raw.as_bytes(), &mut scratch).map(|path| String::from_utf8_lossy(path).into_owned());
        if is_normal(raw.as_bytes()) {
            assert_eq!(path.as_deref(), Ok(raw), "a path that is said to be normal");
        }
        path
    }

    #[test]
    fn paths_have_one_spelling() {
        for (raw, path) in [
            ("/", "/"),
            ("/a/b.html", "/a/b.html"),
            ("/a%2ehtml", "/a.html"),
            ("/%41%6a", "/Aj"),
            ("/a//b///c", "/a/b/c"),
            ("//", "/"),
            ("/./a/./b/.", "/a/b/"),
            ("/a/b/../c", "/a/c"),
            ("/a/b/..", "/a/"),
            ("/a/../b/../", "/"),
            ("/a/..", "/"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e", "/"),
            ("/...", "/..."),
            ("/..a/.b", "/..a/.b"),
            // an encoded slash is no other name's spelling
            ("/a%2Fb", "/a\u{1}b"),
            ("/a%2fb%2F..", "/a\u{1}b\u{1}.."),
            ("/a%252Fb", "/a%2Fb"),
            // decoded once only
            ("/%2561", "/%61"),
            ("/%252e%252e/x", "/%2e%2e/x"),
            ("/caf%C3%A9", "/café"),
            ("/a+b", "/a+b"),
        ] {
            assert_eq!(normal(raw), Ok(path.to_owned()), "{raw}");
        }
    }

    #[test]
    fn what_climbs_out_or_is_no_path_is_malformed() {
        for raw in [
            "/..",
            "/../",
            "/a/../..",
            "/a/../../b",
            "/%2e%2e/etc/passwd",
            "/%",
            "/%4",
            "/%zz",
            "/%00",
            "/%01",
            "/%0a",
            "/%7f",
        ] {
            assert_eq!(normal(raw), Err(Malformed), "{raw}");
        }
    }

    /// RFC 3986 section 5.2.4 over a list of segments.
    fn twin(raw: &str) -> Option<String> {
        let mut segments: Vec<String> = Vec::new();
        let mut is_directory = true;
        for segment in raw.split('/').skip(1) {
            let segment = segment.replace("%2e", ".").replace("%61", "a").replace("%2f", "\u{1}");
            is_directory = matches!(&*segment, "" | "." | "..");
            match &*segment {
                "" | "." => {}
                ".." => drop(segments.pop()?),
                _ => segments.push(segment),
            }
        }
        let end = if is_directory && !segments.is_empty() { "/" } else { "" };
        Some(format!("/{}{end}", segments.join("/")))
    }

    proptest! {
        #[test]
        fn segments_are_resolved_as_a_list_is(pieces in prop::collection::vec(
            prop::sample::select(vec!["/", "/", "/", ".", "..", "a", "b", "%2e", "%61", "%2f"]), 0..12)
        ) {
            let raw = format!("/{}", pieces.concat());
            prop_assert_eq!(normal(&raw).ok(), twin(&raw));
        }

        #[test]
        fn a_path_that_is_normal_stays_as_it_is(raw in "/[a-z./%0-9A-F]{0,20}") {
            if let Ok(path) = normal(&raw)
                && !path.contains('%')
            {
                prop_assert_eq!(normal(&path), Ok(path));
            }
        }
    }

    #[test]
    fn targets_of_every_form() {
        let get = |target| split(Method::Get, target);
        let path = |raw: &'static str, query: &'static str| Form::Path { raw: raw.as_bytes(), query: query.as_bytes() };
        assert_eq!(get("/a?b?c"), Ok((path("/a", "?b?c"), None)));
        assert_eq!(get("http://h:80/a?b"), Ok((path("/a", "?b"), Some(&b"h:80"[..]))));
        assert_eq!(get("HTTPS://h"), Ok((path("/", ""), Some(&b"h"[..]))));
        assert_eq!(get("http://h?q"), Ok((path("/", "?q"), Some(&b"h"[..]))));
        assert_eq!(split(Method::Options, "*"), Ok((Form::Server, None)));
        for wrong in ["*", "a", "", "ftp://h/", "http:", "h:443", "/a#b"] {
            assert_eq!(get(wrong), Err(Malformed), "{wrong}");
        }
    }

    #[test]
    fn hosts_lose_their_port() {
        for (authority, host) in [
            ("", ""),
            ("example.org", "example.org"),
            ("Example.ORG:8080", "Example.ORG"),
            ("example.org:", "example.org"),
            ("[2001:db8::1]:80", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("a_b", "a_b"),
            ("a.b.:80", "a.b"),
            (".", ""),
        ] {
            assert_eq!(host_of(authority.as_bytes()), Ok(host.as_bytes()), "{authority}");
        }
        for wrong in
            ["a b", "a/b", "a@b", "a:b", "a:80:80", "a:123456", "[::1", "[]", "[::1]x", "[g]", "a\\b", "a?b", "é"]
        {
            assert_eq!(host_of(wrong.as_bytes()), Err(Malformed), "{wrong}");
        }
    }
}
