use super::*;
use proptest::prelude::*;

/// All answers of a stream that comes in these pieces, with their bodies.
fn read(pieces: &[&[u8]], ends: bool) -> Result<Vec<(Answer, Vec<u8>)>, Malformed> {
    let mut parser = Parser::new();
    let (mut answers, mut body) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (taken, answer) = parser.feed(rest, |told, part| {
                assert_eq!(told.body_bytes, body.len() as u64);
                body.extend_from_slice(part);
            })?;
            assert!(taken == rest.len() || answer.is_some(), "all bytes are taken unless an answer ends");
            rest = &rest[taken..];
            if let Some(answer) = answer {
                assert_eq!(answer.body_bytes, body.len() as u64);
                answers.push((answer, std::mem::take(&mut body)));
            }
        }
    }
    if ends && let Some(answer) = parser.end() {
        answers.push((answer, std::mem::take(&mut body)));
    }
    Ok(answers)
}

fn one(text: &str) -> Result<(Answer, Vec<u8>), Malformed> {
    let mut answers = read(&[text.as_bytes()], true)?;
    assert_eq!(answers.len(), 1, "{text}");
    Ok(answers.remove(0))
}

#[test]
fn lengths_chunks_and_ends() {
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", false),
        ("HTTP/1.1 200\r\ncontent-LENGTH:3\r\nConnection: Close\r\n\r\nabc", 200, "abc", true),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: x, close\r\n\r\n", 404, "", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, "abcde", false),
        ("HTTP/1.1 200 OK\r\nServer: x\r\n\r\neverything to the end", 200, "everything to the end", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, "a", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na", 200, "a", false),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n", 304, "", false),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", false),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz",
            200,
            "z",
            false,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", 200, "ab", false),
    ];
    for (text, status, body, last) in cases {
        let (answer, got) = one(text).unwrap();
        assert_eq!(
            (answer.status, String::from_utf8(got).unwrap().as_str(), answer.last),
            (status, body, last),
            "{text}"
        );
    }
}

#[test]
fn what_is_malformed_says_how() {
    let cases = [
        ("SSH-2.0-x\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 99 x\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 777 x\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 200 OK\r\nno field\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 101 Switching\r\n\r\n", Malformed::Upgrade),
        ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", Malformed::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n", Malformed::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", Malformed::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Malformed::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::TransferEncoding),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Malformed::TransferEncoding),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", Malformed::Chunk),
    ];
    for (text, why) in cases {
        assert_eq!(one(text), Err(why), "{text}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEAD_MOST_BYTES));
    assert_eq!(read(&[endless.as_bytes()], true), Err(Malformed::HeadTooLong));
    let pieces: Vec<&[u8]> = endless.as_bytes().chunks(1000).collect();
    assert_eq!(read(&pieces, true), Err(Malformed::HeadTooLong));
}

#[test]
fn an_answer_cut_short_is_none() {
    for text in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"] {
        assert_eq!(read(&[text.as_bytes()], true).unwrap(), vec![], "{text}");
    }
    let mut parser = Parser::new();
    parser.feed(b"HTTP/1.1 2", |_, _| {}).unwrap();
    assert!(parser.has_begun() && parser.end().is_none());
    parser.reset();
    assert!(!parser.has_begun());
}

#[test]
fn every_cut_gives_the_same() {
    let text: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\nServer: cut\r\n\r\n0123456\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nabcde\r\n10\r\n0123456789abcdef\r\n0\r\nT: u\r\n\r\n\
        HTTP/1.1 404 No\r\n\r\nthe rest";
    let whole = read(&[text], true).unwrap();
    assert_eq!(whole.len(), 3);
    for cut in 0..=text.len() {
        let (first, second) = text.split_at(cut);
        assert_eq!(read(&[first, second], true).unwrap(), whole, "cut at {cut}");
    }
    let octets: Vec<&[u8]> = text.chunks(1).collect();
    assert_eq!(read(&octets, true).unwrap(), whole);
}

/// One answer of each framing, as a server would write it, with what is to be read of it.
fn framed() -> impl Strategy<Value = (Vec<u8>, u16, Vec<u8>)> {
    let body = proptest::collection::vec(any::<u8>(), 0..300);
    let statuses = prop_oneof![Just(200u16), Just(206), Just(404), Just(503)];
    (statuses, body, proptest::option::of(proptest::collection::vec(1usize..50, 1..8)), any::<bool>()).prop_map(
        |(status, body, chunks, interim)| {
            let mut text = if interim { b"HTTP/1.1 102 Processing\r\n\r\n".to_vec() } else { Vec::new() };
            text.extend(format!("HTTP/1.1 {status} Some Words\r\nDate: now\r\n").as_bytes());
            match chunks {
                None => {
                    text.extend(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                    text.extend(&body);
                }
                Some(sizes) => {
                    text.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                    let mut rest = &body[..];
                    for size in sizes.iter().cycle() {
                        let part = (*size).min(rest.len());
                        if part == 0 {
                            break;
                        }
                        text.extend(format!("{part:x}\r\n").as_bytes());
                        text.extend(&rest[..part]);
                        text.extend(b"\r\n");
                        rest = &rest[part..];
                    }
                    text.extend(b"0\r\n\r\n");
                }
            }
            (text, status, body)
        },
    )
}

/// What is known from the answer before changes nothing: whatever one octet of it is instead.
#[test]
fn the_answer_before_is_no_answer_to_another() {
    let first = "HTTP/1.1 200 OK\r\nDate: Tue, 24 Nov 2026 10:00:00 GMT\r\nETag: \"a\"\r\nContent-Length: 12\r\n\r\nhello, world";
    let fed = |parser: &mut Parser, bytes: &[u8]| {
        let mut body = Vec::new();
        let read = parser.feed(bytes, |_, part| body.extend_from_slice(part));
        (read, body, parser.state)
    };
    let mut parser = Parser::new();
    let (read, body, _) = fed(&mut parser, first.as_bytes());
    assert_eq!((read.unwrap().0, body.as_slice()), (first.len(), &b"hello, world"[..]));
    assert_eq!(fed(&mut parser, first.as_bytes()), fed(&mut Parser::new(), first.as_bytes()));
    for at in 0..first.len() {
        for octet in *b"0129 x\r\n:" {
            let mut second = first.as_bytes().to_vec();
            second[at] = octet;
            let mut parser = Parser::new();
            let _ = fed(&mut parser, first.as_bytes());
            assert_eq!(fed(&mut parser, &second), fed(&mut Parser::new(), &second), "{at}: {}", second.escape_ascii());
        }
    }
}

proptest! {
    #[test]
    fn streams_of_answers_in_any_pieces(
        answers in proptest::collection::vec(framed(), 1..5),
        sizes in proptest::collection::vec(1usize..100, 1..20),
    ) {
        let stream: Vec<u8> = answers.iter().flat_map(|(text, ..)| text.clone()).collect();
        let mut pieces = Vec::new();
        let mut rest = &stream[..];
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let got = read(&pieces, false).unwrap();
        prop_assert_eq!(got.len(), answers.len());
        for ((answer, body), (_, status, sent)) in got.iter().zip(&answers) {
            prop_assert_eq!(answer.status, *status);
            prop_assert_eq!(body, sent);
        }
    }

    #[test]
    fn noise_ends_without_a_panic_and_the_same_in_pieces(
        noise in proptest::collection::vec(prop_oneof![
            Just(b"HTTP/1.1 200 OK\r\n".to_vec()),
            Just(b"Content-Length: 3\r\n".to_vec()),
            Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"1\r\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..4),
        ], 0..12),
        size in 1usize..9,
    ) {
        let stream: Vec<u8> = noise.concat();
        let pieces: Vec<&[u8]> = stream.chunks(size).collect();
        let (whole, cut) = (read(&[&stream], true), read(&pieces, true));
        match (&whole, &cut) {
            // which of two faults is met first may depend on the pieces
            (Err(_), Err(_)) => {}
            _ => prop_assert_eq!(&whole, &cut),
        }
    }
}
