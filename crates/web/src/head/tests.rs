use super::*;
use proptest::prelude::*;

fn outcome(text: &str) -> Result<(Method, Length, bool), Option<Refusal>> {
    let text = text.replace('|', "\r\n");
    let mut slots = slots();
    match read(text.as_bytes(), &mut slots) {
        Outcome::Partial => Err(None),
        Outcome::Refused(refusal) => Err(Some(refusal)),
        Outcome::Whole(head) => {
            assert_eq!(head.bytes, text.len());
            Ok((head.method, head.length, head.keep_alive))
        }
    }
}

#[test]
fn whole_heads() {
    use Length::{Chunked, Fixed};
    for (text, expected) in [
        ("GET / HTTP/1.1|Host: h||", (Method::Get, Fixed(0), true)),
        ("HEAD / HTTP/1.1|host:h||", (Method::Head, Fixed(0), true)),
        ("OPTIONS * HTTP/1.1|HOST:\t h \t||", (Method::Options, Fixed(0), true)),
        ("POST / HTTP/1.1|Host:||", (Method::Known, Fixed(0), true)),
        ("get / HTTP/1.1|Host: h||", (Method::Unknown, Fixed(0), true)),
        ("BREW / HTTP/1.1|Host: h||", (Method::Unknown, Fixed(0), true)),
        // RFC 9112 section 9.3
        ("GET / HTTP/1.0||", (Method::Get, Fixed(0), false)),
        ("GET / HTTP/1.0|Connection: Keep-Alive||", (Method::Get, Fixed(0), true)),
        ("GET / HTTP/1.0|Connection: keep-alive, close||", (Method::Get, Fixed(0), false)),
        ("GET / HTTP/1.1|Host: h|Connection: close||", (Method::Get, Fixed(0), false)),
        ("GET / HTTP/1.1|Host: h|Connection: x , CLOSE,||", (Method::Get, Fixed(0), false)),
        ("GET / HTTP/1.1|Host: h|Connection: x|Connection: close||", (Method::Get, Fixed(0), false)),
        ("GET / HTTP/1.1|Host: h|Connection: keep-alive||", (Method::Get, Fixed(0), true)),
        // section 6.3
        ("GET / HTTP/1.1|Host: h|Content-Length: 5||", (Method::Get, Fixed(5), true)),
        ("GET / HTTP/1.1|Host: h|Content-Length: 005||", (Method::Get, Fixed(5), true)),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: Chunked||", (Method::Get, Chunked, true)),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: , chunked,||", (Method::Get, Chunked, true)),
        // section 6.1 of RFC 9110: the content that follows is unknown after a final answer
        ("GET / HTTP/1.1|Host: h|Expect: 100-Continue|Content-Length: 5||", (Method::Get, Fixed(5), false)),
        ("GET / HTTP/1.1|Host: h|Expect: 100-continue||", (Method::Get, Fixed(0), true)),
        (
            "GET / HTTP/1.0|Expect: 100-continue|Content-Length: 5|Connection: keep-alive||",
            (Method::Get, Fixed(5), true),
        ),
    ] {
        assert_eq!(outcome(text), Ok(expected), "{text}");
    }
}

#[test]
fn refused_heads() {
    use Refusal::{Expectation, Framing, HeadTooLarge, Host, Malformed, TargetTooLong, TransferCoding, Version};
    let many = format!("GET / HTTP/1.1|Host: h|{}|", "A: b|".repeat(FIELDS));
    let long_line = format!("GET /{} HTTP/1.1|Host: h||", "a".repeat(LINE_MAX_BYTES));
    let long_head = format!("GET / HTTP/1.1|Host: h|A: {}||", "a".repeat(HEAD_MAX_BYTES));
    for (text, refusal) in [
        // RFC 9112 section 3.2
        ("GET / HTTP/1.1||", Host),
        ("GET / HTTP/1.1|Host: a|Host: a||", Host),
        ("GET / HTTP/1.0|Host: a|Host: b||", Host),
        ("GET http://a/ HTTP/1.1||", Host),
        // section 6.1
        ("GET / HTTP/1.1|Host: h|Content-Length: 5|Transfer-Encoding: chunked||", Framing),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: chunked|Content-Length: 5||", Framing),
        ("GET / HTTP/1.0|Transfer-Encoding: chunked||", Framing),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: gzip, chunked||", TransferCoding),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: identity||", TransferCoding),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: xchunked||", TransferCoding),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: chunked, identity||", Framing),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding: chunked|Transfer-Encoding: chunked||", Framing),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding:||", Framing),
        // section 6.3
        ("GET / HTTP/1.1|Host: h|Content-Length: 5|Content-Length: 5||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length: 5, 5||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length: +5||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length: -5||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length: 0x5||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length: 5 5||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length:||", Framing),
        ("GET / HTTP/1.1|Host: h|Content-Length: 18446744073709551616||", Framing),
        // section 5.1, 5.2, 2.2
        ("GET / HTTP/1.1|Host : h||", Malformed),
        ("GET / HTTP/1.1|Host: h|Transfer-Encoding : chunked||", Malformed),
        ("GET / HTTP/1.1|Host: h|A: b| c||", Malformed),
        ("GET / HTTP/1.1| Host: h||", Malformed),
        ("GET / HTTP/1.1|Host: h|A: b\rc||", Malformed),
        ("GET / HTTP/1.1|Host: h|A: b\0||", Malformed),
        ("GET / HTTP/1.1|Host: h|A: b\nContent-Length: 5||", Malformed),
        ("GET / HTTP/1.1\nHost: h\n\n", Malformed),
        ("GET / HTTP/1.1|Host: h\r\n\n", Malformed),
        ("GET / HTTP/1.1|Host: h|: b||", Malformed),
        ("GET / HTTP/1.1|Host: h|no colon||", Malformed),
        // section 3
        ("GET  / HTTP/1.1|Host: h||", Malformed),
        ("GET /  HTTP/1.1|Host: h||", Malformed),
        ("GET / a HTTP/1.1|Host: h||", Malformed),
        ("GET /||", Malformed),
        ("GET / HTTP/11|Host: h||", Malformed),
        ("GET / http/1.1|Host: h||", Malformed),
        ("GET / HTTP/1.1 |Host: h||", Malformed),
        (" GET / HTTP/1.1|Host: h||", Malformed),
        // RFC 9110 section 15.6.6
        ("GET / HTTP/2.0|Host: h||", Version),
        ("PRI * HTTP/2.0||", Version),
        ("GET / HTTP/0.9||", Version),
        ("GET / HTTP/1.2|Host: h||", Version),
        ("GET / HTTP/1.1|Host: h|Expect: 200-ok||", Expectation),
        (&many, HeadTooLarge),
        (&long_head, HeadTooLarge),
        (&long_line, TargetTooLong),
    ] {
        assert_eq!(outcome(text), Err(Some(refusal)), "{:.80}", text);
    }
}

#[test]
fn what_can_only_become_worse_does_not_wait() {
    assert_eq!(outcome("GET / HT"), Err(None));
    assert_eq!(outcome("\u{16}\u{3}\u{1}"), Err(Some(Refusal::Malformed)));
    assert_eq!(outcome(&"G".repeat(LINE_MAX_BYTES - 1)), Err(None));
    assert_eq!(outcome(&"G".repeat(LINE_MAX_BYTES)), Err(Some(Refusal::TargetTooLong)));
    let fields = |bytes: usize| format!("GET / HTTP/1.1|{}", "A".repeat(bytes - 16));
    assert_eq!(outcome(&fields(HEAD_MAX_BYTES)), Err(None));
    assert_eq!(outcome(&fields(HEAD_MAX_BYTES + 1)), Err(Some(Refusal::HeadTooLarge)));
}

#[test]
fn values_of_lists_and_of_single_fields() {
    let text = b"GET / HTTP/1.1\r\nHost: h\r\nIf-Match: \"a\"\r\nRange: bytes=0-1\r\nif-match:\"b\" \r\nRange: bytes=2-3\r\nExpect:\r\n\r\n";
    let mut slots = slots();
    let Outcome::Whole(head) = read(text, &mut slots) else { panic!("a whole head") };
    assert_eq!(head.values(Field::IfMatch).collect::<Vec<_>>(), [b"\"a\"", b"\"b\""]);
    assert_eq!(head.values(Field::IfMatch).next_back(), Some(&b"\"b\""[..]));
    assert_eq!((head.value(Field::Host), head.single(Field::Range)), (Some(&b"h"[..]), None));
    assert_eq!(head.values(Field::IfRange).count(), 0);
}

#[test]
fn every_field_is_found_by_its_name() {
    for (name, field) in [
        ("Host", Field::Host),
        ("Connection", Field::Connection),
        ("Content-Length", Field::ContentLength),
        ("Transfer-Encoding", Field::TransferEncoding),
        ("Expect", Field::Expect),
        ("Range", Field::Range),
        ("If-Range", Field::IfRange),
        ("If-Match", Field::IfMatch),
        ("If-None-Match", Field::IfNoneMatch),
        ("If-Modified-Since", Field::IfModifiedSince),
        ("If-Unmodified-Since", Field::IfUnmodifiedSince),
        ("Accept-Encoding", Field::AcceptEncoding),
        ("X-Forwarded-For", Field::ForwardedFor),
        ("Referer", Field::Referer),
        ("User-Agent", Field::UserAgent),
    ] {
        assert_eq!(Field::of(name), Some(field));
        assert_eq!(Field::of(&name.to_ascii_uppercase()), Some(field));
        assert_eq!(Field::of(&format!("{}_", &name[..name.len() - 1])), None);
    }
}

/// Nearly as long as a request line may be.
static LONG: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| "l".repeat(LINE_MAX_BYTES - 20));

#[test]
fn what_was_partial_is_parsed_again_when_the_head_has_ended_and_not_before() {
    // nothing that begins so is a head, if anybody looks
    let refused = b"\0\0\0\0\0\0\n\r";
    for piece in [&b"A"[..], b"A: b\r\nC: d\r\n", b"\rx"] {
        let input = [&refused[..], piece].concat();
        assert!(matches!(read_on(&input, refused.len(), &mut slots()), Outcome::Partial), "{piece:?}");
    }
    for piece in [&b"\n"[..], b"A\n\n", b"A\r\n\r\nGET"] {
        let input = [&refused[..], piece].concat();
        let mut slots = slots();
        let outcome = read_on(&input, refused.len(), &mut slots);
        assert!(matches!(outcome, Outcome::Refused(Refusal::Malformed)), "{piece:?}");
    }
    assert!(matches!(read(refused, &mut slots()), Outcome::Refused(Refusal::Malformed)));
}

proptest! {
    /// Cut anywhere, a head waits or is refused as the whole one is; it is never taken early.
    #[test]
    fn a_cut_head_is_never_taken(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "GET / HTTP/1.1", "GET", " ", "/", "HTTP/1.1", "Host: h", "A: b", "Content-Length: 1", "Transfer-Encoding: chunked",
            "\r\n", "\r\n", "\r\n", "\n", "\r", ":", "\t", "\0", "x",
        ]), 0..14),
        cut in any::<prop::sample::Index>()
    ) {
        let text = pieces.concat();
        let mut whole_slots = slots();
        let whole = read(text.as_bytes(), &mut whole_slots);
        let at = cut.index(text.len() + 1);
        let mut cut_slots = slots();
        match (read(&text.as_bytes()[..at], &mut cut_slots), whole) {
            (Outcome::Partial, _) => {}
            (Outcome::Refused(early), Outcome::Refused(late)) => prop_assert_eq!(early, late),
            (Outcome::Whole(early), Outcome::Whole(late)) => prop_assert_eq!(early.bytes, late.bytes),
            (early, late) => prop_assert!(false, "{:?} at {}, {:?} in the end", early, at, late),
        }
    }

    /// The slow, obvious twin parses everything again for each piece.
    #[test]
    fn what_came_before_needs_no_second_look(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "GET / HTTP/1.1", "GET /", "Host: h", "A: b", "A:\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\0", "x", LONG.as_str(),
        ]), 1..14)
    ) {
        let (mut text, mut seen) = (String::new(), 0);
        for piece in pieces {
            text.push_str(piece);
            let (mut all, mut rest) = (slots(), slots());
            let twin = read(text.as_bytes(), &mut all);
            let outcome = if seen == 0 { read(text.as_bytes(), &mut rest) } else { read_on(text.as_bytes(), seen, &mut rest) };
            match (outcome, twin) {
                (Outcome::Partial, Outcome::Partial) => seen = text.len(),
                (Outcome::Refused(refusal), Outcome::Refused(expected)) => {
                    prop_assert_eq!(refusal, expected);
                    break;
                }
                (Outcome::Whole(head), Outcome::Whole(expected)) => {
                    prop_assert_eq!((head.bytes, head.target), (expected.bytes, expected.target));
                    break;
                }
                (outcome, twin) => prop_assert!(false, "{:?}, where all of it comes to {:?}", outcome, twin),
            }
        }
    }

    #[test]
    fn any_bytes_come_to_an_outcome(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut slots = slots();
        if let Outcome::Whole(head) = read(&bytes, &mut slots) {
            prop_assert!(head.bytes <= bytes.len());
        }
    }

    #[test]
    fn decimals_are_digits_only(text in "[0-9+ -]{0,21}") {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 19;
        let twin = text.parse::<u64>().ok().filter(|value| plain && *value < 1 << 63);
        prop_assert_eq!(decimal(text.as_bytes()), twin);
    }
}
