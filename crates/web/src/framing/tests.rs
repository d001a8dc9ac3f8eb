use super::*;
use crate::head::slots;
use proptest::prelude::*;

const MOST: u64 = 1000;

/// What steps come to, pieces of a stream given one after the other; what was not consumed is given again.
fn run(pieces: &[&[u8]]) -> Vec<String> {
    let mut framer = Framer::new(false);
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    for piece in pieces {
        kept.extend_from_slice(piece);
        let mut used = 0;
        loop {
            let mut slots = slots();
            let (taken, step) = framer.step(&kept[used..], &mut slots, MOST);
            used += taken;
            match step {
                Step::More => break,
                Step::Skipped => {}
                Step::Request(head) => seen.push(format!("{} {}", head.token, head.target)),
                Step::Refused(refusal) => seen.push(format!("{refusal:?}")),
                Step::Broken(reason) => seen.push(format!("{reason:?}")),
                Step::Proxied(from) => seen.push(format!("{from:?}")),
            }
        }
        kept.drain(..used);
    }
    seen.push(if framer.in_head() { "in head" } else { "elsewhere" }.to_owned());
    seen
}

fn of(text: &str) -> Vec<String> {
    run(&[text.replace('|', "\r\n").as_bytes()])
}

#[test]
fn requests_follow_each_other_whatever_content_they_have() {
    let get = "GET /n HTTP/1.1|Host: h||";
    for (first, content) in [
        ("", ""),
        ("Content-Length: 0|", ""),
        ("Content-Length: 7|", "GET / H"),
        // RFC 9112 section 7.1: sizes in hexadecimal, extensions, trailers
        ("Transfer-Encoding: chunked|", "0||"),
        ("Transfer-Encoding: chunked|", "5|hello|0||"),
        ("Transfer-Encoding: chunked|", "A;name=value;q=\"x y\"|0123456789|00001|z|0;x|Trailer: a|B: c||"),
        ("Transfer-Encoding: chunked|", "1a|GET / HTTP/1.1\r\nHost: h\r\n\r|0||"),
    ] {
        let text = format!("||POST /first HTTP/1.1|Host: h|{first}|{content}|{get}{get}");
        assert_eq!(of(&text), ["POST /first", "GET /n", "GET /n", "in head"], "{first} {content}");
    }
}

#[test]
fn content_that_breaks_its_framing_ends_the_connection() {
    for content in [
        "x|",
        "|",
        "5 |hello|0||",
        "5|hellox",
        "5|hello0||",
        "-1|",
        "0x5|hello",
        "5\nhello",
        "5|hello\n0||",
        "5;a\0|",
        "5;a\nb|",
        "3e9|",
        "ffffffffffffffff1|",
        "3e8|",
        "0| folded: x||",
        "0|Trailer: a\n\n",
        "0|A\0: b||",
    ] {
        let text = format!("GET / HTTP/1.1|Host: h|Transfer-Encoding: chunked||{content}");
        let mut expected = vec!["GET /", "Content", "elsewhere"];
        if content == "3e8|" {
            // a thousand is the limit and still allowed
            expected.remove(1);
        }
        assert_eq!(of(&text), expected, "{content:?}");
    }
    let long = format!(
        "GET / HTTP/1.1|Host: h|Transfer-Encoding: chunked||1;{}|",
        "a".repeat(CHUNK_OVERHEAD_MAX_BYTES as usize)
    );
    assert_eq!(of(&long), ["GET /", "Content", "elsewhere"]);
    let total = format!("GET / HTTP/1.1|Host: h|Transfer-Encoding: chunked||3e8|{}|1|a|", "a".repeat(1000));
    assert_eq!(of(&total), ["GET /", "Content", "elsewhere"]);
}

#[test]
fn nothing_is_read_behind_the_last_request() {
    let get = "GET /n HTTP/1.1|Host: h||";
    for first in [
        "GET / HTTP/1.1|Host: h|Connection: close||",
        "GET / HTTP/1.0||",
        "GET / HTTP/1.1|Host: h|Expect: 100-continue|Content-Length: 5||",
    ] {
        assert_eq!(of(&format!("{first}{get}")), ["GET /", "elsewhere"], "{first}");
    }
    assert_eq!(of(&format!("GET / HTTP/1.1||{get}")), ["Host", "elsewhere"]);
    assert_eq!(of(&format!("GET / HTTP/1.1|Host: h|Content-Length: 1001||{get}")), ["ContentTooLarge", "elsewhere"]);
}

proptest! {
    /// The slow, obvious twin: the same stream in one piece, in single bytes, and cut anywhere.
    #[test]
    fn pieces_do_not_matter(
        parts in prop::collection::vec(prop::sample::select(vec![
            "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
            "GET /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n0\r\nT: v\r\n\r\n",
            "GET /d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", "GET /e HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "GET /f HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n", "\r\n", "\n", "\r", "5\r\n", "hello", "0\r\n", "GET ", "x",
            "GET /g HTTP/1.1\nHost: h\n\n", "Content-Length: 5\r\n", "GET /h HTTP/1.1\r\n",
        ]), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5)
    ) {
        let text = parts.concat();
        let bytes = text.as_bytes();
        let whole = run(&[bytes]);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&run(&single), &whole);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&run(&pieces), &whole);
    }
}
