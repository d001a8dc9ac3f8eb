//! Preconditions of RFC 9110 section 13, in the order of 13.2.2, against a representation's strong validator and date.

use crate::date;
use crate::head::{Field, Head, Method};

/// A representation's validators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validators<'a> {
    /// the strong entity tag, quotes included; empty when there is none
    pub(crate) etag: &'a [u8],
    /// Last-Modified as it is sent; empty when there is none
    pub(crate) modified: &'a [u8],
    pub(crate) modified_unix_s: u64,
}

/// What the preconditions come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// 200, or 206 if there is a range
    Go,
    /// 304
    NotModified,
    /// 412
    Failed,
}

/// Evaluates the four preconditions of 13.2.2, whose steps the numbers are. For GET and HEAD.
pub(crate) fn evaluate(head: &Head<'_, '_>, own: &Validators<'_>) -> Verdict {
    let has = |field| head.value(field).is_some();
    if has(Field::IfMatch) {
        // 1: strong comparison (13.1.1)
        if !any_tag(head.values(Field::IfMatch), |tag| !tag.weak && tag.opaque == own.etag) {
            return Verdict::Failed;
        }
    } else if let Some(unix_s) = head.single(Field::IfUnmodifiedSince).and_then(date::read)
        // 2: ignored when it is no date (13.1.4)
        && !own.modified.is_empty()
        && own.modified_unix_s > unix_s
    {
        return Verdict::Failed;
    }
    if has(Field::IfNoneMatch) {
        // 3: weak comparison (13.1.2)
        if any_tag(head.values(Field::IfNoneMatch), |tag| tag.opaque == own.etag) {
            return if matches!(head.method, Method::Get | Method::Head) {
                Verdict::NotModified
            } else {
                Verdict::Failed
            };
        }
    } else if let Some(value) = head.single(Field::IfModifiedSince)
        // 4: for GET and HEAD (13.1.3); most clients send back what they were given
        && !own.modified.is_empty()
        && (value == own.modified || date::read(value).is_some_and(|unix_s| own.modified_unix_s <= unix_s))
    {
        return Verdict::NotModified;
    }
    Verdict::Go
}

/// Step 5: whether a Range still counts under If-Range (13.1.5): a strong tag that matches. A date never does, since it is a strong
/// validator only for who knows that nothing changed twice within its second (8.8.2.2): a file may have been loaded twice in the second
/// in which it was written, may have been given the time of another one, and its variants have its time. Who has a tag must not send
/// a date (13.1.5), and whatever has a date here has a tag.
pub(crate) fn range_applies(head: &Head<'_, '_>, own: &Validators<'_>) -> bool {
    match head.value(Field::IfRange) {
        None => true,
        Some(value) => value.first() == Some(&b'"') && value == own.etag && head.single(Field::IfRange).is_some(),
    }
}

struct Tag<'a> {
    weak: bool,
    /// quotes included
    opaque: &'a [u8],
}

/// Whether a member of the lists matches: `*` does, as there is a representation. Members behind one that is no tag are not
/// looked at.
fn any_tag<'a>(lines: impl Iterator<Item = &'a [u8]>, matches: impl Fn(&Tag<'_>) -> bool) -> bool {
    let mut lines = lines;
    lines.any(|line| line == b"*" || tags(line).any(|tag| matches(&tag)))
}

/// The entity tags of one line (RFC 9110 section 8.8.3); commas inside quotes belong to the tag.
fn tags(mut line: &[u8]) -> impl Iterator<Item = Tag<'_>> {
    std::iter::from_fn(move || {
        let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b','))?;
        let (weak, quoted) = match &line[start..] {
            [b'W', b'/', quoted @ ..] => (true, quoted),
            quoted => (false, quoted),
        };
        let inside = quoted.strip_prefix(b"\"")?;
        let end = 2 + memchr::memchr(b'"', inside)?;
        line = &quoted[end..];
        Some(Tag { weak, opaque: &quoted[..end] })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{self, Outcome};

    const OWN: Validators<'_> =
        Validators { etag: b"\"xyzzy\"", modified: b"Sun, 06 Nov 1994 08:49:37 GMT", modified_unix_s: 784_111_777 };

    fn with<R>(fields: &str, judge: impl FnOnce(&Head<'_, '_>) -> R) -> R {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n\r\n", fields.replace('|', "\r\n"));
        let mut slots = head::slots();
        let Outcome::Whole(head) = head::read(text.as_bytes(), &mut slots) else { panic!("{text:?}") };
        judge(&head)
    }

    #[test]
    fn preconditions_in_their_order() {
        use Verdict::{Failed, Go, NotModified};
        let (before, same, after) =
            ("Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:38 GMT");
        for (fields, verdict) in [
            ("A: b".to_owned(), Go),
            // RFC 9110 section 13.1.1
            ("If-Match: \"xyzzy\"".to_owned(), Go),
            ("If-Match: \"r2d2xxxx\", \"xyzzy\", \"c3piozzzz\"".to_owned(), Go),
            ("If-Match: *".to_owned(), Go),
            ("If-Match: \"other\"".to_owned(), Failed),
            ("If-Match: W/\"xyzzy\"".to_owned(), Failed),
            ("If-Match: \"a\"|If-Match: \"xyzzy\"".to_owned(), Go),
            ("If-Match: xyzzy".to_owned(), Failed),
            // section 13.1.4, and that If-Match stands above it
            (format!("If-Unmodified-Since: {before}"), Failed),
            (format!("If-Unmodified-Since: {same}"), Go),
            (format!("If-Unmodified-Since: {after}"), Go),
            ("If-Unmodified-Since: never".to_owned(), Go),
            (format!("If-Match: \"xyzzy\"|If-Unmodified-Since: {before}"), Go),
            // section 13.1.2
            ("If-None-Match: \"xyzzy\"".to_owned(), NotModified),
            ("If-None-Match: W/\"xyzzy\"".to_owned(), NotModified),
            ("If-None-Match: \"a,\\ ,\", W/\"b\",,\"xyzzy\"".to_owned(), NotModified),
            ("If-None-Match: *".to_owned(), NotModified),
            ("If-None-Match: \"other\"".to_owned(), Go),
            ("If-None-Match: \"other\"|If-None-Match: \"xyzzy\"".to_owned(), NotModified),
            ("If-None-Match: \"xyzzy".to_owned(), Go),
            // section 13.1.3, and that If-None-Match stands above it
            (format!("If-Modified-Since: {before}"), Go),
            (format!("If-Modified-Since: {same}"), NotModified),
            (format!("If-Modified-Since: {after}"), NotModified),
            ("If-Modified-Since: 0".to_owned(), Go),
            (format!("If-None-Match: \"other\"|If-Modified-Since: {same}"), Go),
            // a failed If-Match comes first
            ("If-Match: \"other\"|If-None-Match: \"xyzzy\"".to_owned(), Failed),
            ("If-Match: \"xyzzy\"|If-None-Match: \"xyzzy\"".to_owned(), NotModified),
            (format!("If-Unmodified-Since: {before}|If-Modified-Since: {same}"), Failed),
        ] {
            assert_eq!(with(&fields, |head| evaluate(head, &OWN)), verdict, "{fields}");
        }
    }

    #[test]
    fn a_representation_without_a_date_knows_none() {
        let own = Validators { modified: b"", ..OWN };
        for fields in
            ["If-Unmodified-Since: Sun, 06 Nov 1974 08:49:37 GMT", "If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT"]
        {
            assert_eq!(with(fields, |head| evaluate(head, &own)), Verdict::Go, "{fields}");
        }
    }

    #[test]
    fn if_range_wants_the_very_same() {
        for (fields, applies) in [
            ("A: b", true),
            ("If-Range: \"xyzzy\"", true),
            ("If-Range: W/\"xyzzy\"", false),
            ("If-Range: \"other\"", false),
            ("If-Range: Sun, 06 Nov 1994 08:49:37 GMT", false),
            ("If-Range: Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("If-Range: junk", false),
            ("If-Range: \"xyzzy\"|If-Range: \"xyzzy\"", false),
        ] {
            assert_eq!(with(fields, |head| range_applies(head, &OWN)), applies, "{fields}");
        }
    }
}
