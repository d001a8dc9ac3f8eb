//! What is answered without records: malformed messages, other opcodes, and questions for cookies alone.

use super::{counted, datagram, example, find, with_options};
use crate::cookie;
use crate::question::DropReason;
use crate::rrl;
use crate::serve::{From, Options, Server};
use base::Instant;

const PEER: &str = "192.0.2.77";
const CLIENT: &[u8] = b"\0\x0a\0\x08clientco";

fn options() -> Options {
    let cookies = cookie::Config::fixed(vec![[9; 16]], 1_700_000_000);
    Options { cookies: Some(cookies), nsid: b"ns1".to_vec(), ..Options::default() }
}

/// An OPT record as clients send it.
fn opt(version: u8, flags: u8, options: &[u8]) -> Vec<u8> {
    [&[0, 0, 41, 4, 208, 0, version, flags, 0, 0, options.len() as u8], options].concat()
}

fn message(flags: u8, counts: [u8; 4], sections: &[&[u8]]) -> Vec<u8> {
    let [questions, answers, authorities, more] = counts;
    let header = [0xab, 0xcd, flags, 0, 0, questions, 0, answers, 0, authorities, 0, more];
    [&header, &sections.concat()[..]].concat()
}

/// The answer's flags, extended RCODE and counts of questions and additional records, and what follows the header.
fn go(server: &mut Server, message: &[u8]) -> (u8, u16, [u8; 2], Vec<u8>) {
    let answer = datagram(server, Instant::ZERO, PEER, message).unwrap();
    assert_eq!((&answer[..2], &answer[6..10]), (&[0xab, 0xcd][..], &[0; 4][..]), "{answer:02x?}");
    assert_eq!([answer[4], answer[10], answer[3] & 0xf0], [0; 3]);
    let behind = |fixed: &[u8]| find(&answer, fixed).map(|at| &at[4..]);
    let question = behind(b"\0\x01\0\x01").or_else(|| behind(b"\0\xfb\0\x01"));
    let after = if answer[5] > 0 { question.unwrap() } else { &answer[12..] };
    let high = if answer[11] > 0 { u16::from(after[5]) << 4 } else { 0 };
    (answer[2], high | u16::from(answer[3]), [answer[5], answer[11]], answer[12..].to_vec())
}

/// RFC 6891 sections 6.1.1 and 7.
#[test]
fn errors_have_the_question_and_an_opt_record_where_they_were_asked_with_them() {
    let mut server = example(options());
    let question = &b"\x03wWw\x07example\0\0\x01\0\x01"[..];
    let record = &b"\x03www\x07example\0\0\x01\0\x01\0\0\0\0\0\x04abcd"[..];
    let (plain, secure) = (opt(0, 0, b""), opt(0, 0x80, b""));
    let cut = [&opt(0, 0, b"")[..9], &[0, 9]].concat();
    let odd_owner = [b"\x01a", &plain[..]].concat();
    let endless =
        [&b"\x3fabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabc".repeat(5)[..], b"\0\0\x01\0\x01"]
            .concat();
    const QUERY: u8 = 1;
    const UPDATE: u8 = 5 << 3;
    type Row<'a> = (&'a str, u8, [u8; 4], &'a [&'a [u8]], u8, &'a [u8], &'a [u8]);
    let [change, other] = [&b"\x03wWw\x07example\0\0\xfb\0\x01"[..], b"\xc0\x0c\0\x06\0\x01\0\0\0\0\0\x16\0\0"];
    let soa = [other, &[0; 20]].concat();
    let table: [Row<'_>; 28] = [
        ("an option's end is missing", QUERY, [1, 0, 0, 1], &[question, &opt(0, 0, b"\0\x03\0")], 1, question, &plain),
        (
            "an option is too long",
            QUERY,
            [1, 0, 0, 1],
            &[question, &opt(0, 0x80, b"\0\x01\0\x05")],
            1,
            question,
            &secure,
        ),
        ("the record is too long", QUERY, [1, 0, 0, 1], &[question, &cut], 1, question, &plain),
        ("behind the record", QUERY, [1, 0, 0, 1], &[question, &plain, &[0]], 1, question, &plain),
        ("behind the question", QUERY, [1, 0, 0, 0], &[question, &[0]], 1, question, &[]),
        ("half a record", QUERY, [1, 0, 0, 1], &[question, &plain[..9]], 1, question, &[]),
        ("no record", QUERY, [1, 0, 0, 1], &[question], 1, question, &[]),
        ("two of them", QUERY, [1, 0, 0, 2], &[question, &secure, &plain], 1, question, &secure),
        ("of another owner", QUERY, [1, 0, 0, 1], &[question, &odd_owner], 1, question, &plain),
        ("behind an answer", QUERY, [1, 1, 0, 1], &[question, record, &plain], 1, question, &plain),
        ("among the answers", QUERY, [1, 1, 0, 0], &[question, &plain], 1, question, &plain),
        ("another record", QUERY, [1, 0, 0, 1], &[question, record], 1, question, &[]),
        // RFC 1995 section 3: refused, since there are no transfers
        ("IXFR", QUERY, [1, 0, 1, 1], &[change, &soa, &secure], 5, change, &secure),
        ("IXFR without the client's version", QUERY, [1, 0, 1, 0], &[change, record], 1, change, &[]),
        ("a version with another question", QUERY, [1, 0, 1, 0], &[question, &soa], 1, question, &[]),
        ("two questions", QUERY, [2, 0, 0, 1], &[question, question, &plain], 1, &[], &plain),
        ("no question", QUERY, [0, 0, 0, 1], &[&plain], 1, &[], &plain),
        ("nothing", QUERY, [0, 0, 0, 0], &[], 1, &[], &[]),
        ("a question that cannot be read", QUERY, [1, 0, 0, 1], &[b"\x07exa", &plain], 1, &[], &[]),
        ("its name is compressed", QUERY, [1, 0, 0, 1], &[b"\x03www\xc0\x0b\0\x01\0\x01", &secure], 1, &[], &secure),
        ("its name is too long", QUERY, [1, 0, 0, 1], &[&endless, &plain], 1, &[], &plain),
        ("its type is missing", QUERY, [1, 0, 0, 0], &[b"\x03www\0"], 1, &[], &[]),
        ("a later version's options", QUERY, [1, 0, 0, 1], &[question, &opt(1, 0x80, b"?")], 16, question, &secure),
        ("NOTIFY", 4 << 3, [1, 0, 0, 1], &[question, &plain], 4, question, &plain),
        ("NOTIFY without EDNS", 4 << 3 | 1, [1, 0, 0, 0], &[question], 4, question, &[]),
        ("UPDATE with records", UPDATE, [1, 0, 1, 1], &[question, record, &secure], 4, question, &secure),
        (
            "an opcode of nobody's, of a later version",
            7 << 3,
            [1, 0, 0, 1],
            &[question, &opt(9, 0, b"")],
            16,
            question,
            &plain,
        ),
        ("octets with an opcode", 7 << 3, [1, 0, 0, 1], &[&[0xff; 20]], 4, &[], &[]),
    ];
    for (what, flags, counts, sections, rcode, repeated, record) in table {
        let (got_flags, got_rcode, got_counts, got) = go(&mut server, &message(flags, counts, sections));
        let counts = [u8::from(!repeated.is_empty()), u8::from(!record.is_empty())];
        assert_eq!((got_flags, got_rcode, got_counts), (0x80 | flags, u16::from(rcode), counts), "{what}");
        let mut expected = [repeated, record].concat();
        if !record.is_empty() {
            expected[repeated.len() + 5] = rcode >> 4;
        }
        assert_eq!(got, expected, "{what}");
    }
}

/// The options before the one that is malformed were understood (RFC 7873 section 5.2: who sent a cookie gets one).
#[test]
fn errors_have_what_the_options_ask_for() {
    let mut server = example(options());
    let malformed = [CLIENT, b"\0\x03\0\0", b"\0\x0b\0"].concat();
    let (_, rcode, counts, answer) = go(&mut server, &with_options("www.example", &malformed));
    assert_eq!((rcode, counts), (1, [1, 1]));
    assert!(find(&answer, b"\0\x03\0\x03ns1\0\x0a\0\x18clientco\x01\0\0\0").is_some(), "{answer:?}");
    let mut notify = with_options("www.example", CLIENT);
    notify[2] = 4 << 3;
    let (_, rcode, _, answer) = go(&mut server, &notify);
    assert_eq!(rcode, 4);
    assert!(find(&answer, b"\0\x0a\0\x18clientco\x01\0\0\0").is_some(), "{answer:?}");
    // over a stream also how long it may be idle
    let mut buffer = [0; 512];
    let asks = with_options("www.example", b"\0\x0b\0\0\0\x03\0");
    buffer[..asks.len()].copy_from_slice(&asks);
    let from = From { now: Instant::ZERO, peer: PEER.parse().unwrap(), stream: true };
    let bytes = server.core.one(from, &mut buffer, asks.len()).unwrap();
    assert_eq!(buffer[3], 1);
    assert!(buffer[..bytes].ends_with(b"\0\x06\0\x0b\0\x02\0\x64"), "{:?}", &buffer[..bytes]);
}

/// The longest identifier and the longest question are too much for the least that a client takes; what is asked is answered.
#[test]
fn a_long_identifier_is_left_out_where_it_does_not_fit() {
    let nsid = vec![b'n'; 255];
    let mut server = example(Options { nsid: nsid.clone(), ..options() });
    let label = |octets: usize| "l".repeat(octets);
    let mut left_out = 0;
    for octets in 1..=60 {
        let below = format!("{}.{}.{}.{}", label(octets), label(61), label(61), label(60));
        for origin in ["example", "exampl"] {
            for (flags, options) in
                [(0, &b"\0\x03\0\0"[..]), (0, b"\0\x03\0\0\0\x0a\0\x08clientco"), (4 << 3, b"\0\x03\0\0")]
            {
                let mut question = with_options(&format!("{below}.{origin}"), options);
                question[2] = flags;
                let at = question.len() - options.len() - 8;
                for size in [0u16, 511, 512, 520, 600, 1232, 4096] {
                    question[at..at + 2].copy_from_slice(&size.to_be_bytes());
                    let answer = datagram(&mut server, Instant::ZERO, PEER, &question).expect("an answer");
                    assert!(answer.len() <= usize::from(size.clamp(512, 1232)));
                    let has_it = find(&answer, &nsid).is_some();
                    assert!(has_it || size < 600, "{octets} {origin} {options:?} {size}");
                    left_out += u64::from(!has_it);
                    assert_eq!(find(&answer, b"\0\x0a\0\x18clientco").is_some(), options.len() > 4);
                }
            }
        }
    }
    assert!(left_out > 0);
    assert_eq!(server.stats().drops(DropReason::NoRoom), 0);
}

/// RFC 7873 section 5.4.
#[test]
fn who_asks_for_a_cookie_alone_gets_one() {
    let mut server = example(options());
    let question = |options: &[u8]| message(1, [0, 0, 0, 1], &[&opt(0, 0x80, options)]);
    let (flags, rcode, counts, answer) = go(&mut server, &question(CLIENT));
    assert_eq!((flags, rcode, counts), (0x81, 0, [0, 1]));
    let (fixed, cookie) = answer.split_at(11);
    assert_eq!(fixed, [0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 28]);
    assert!(cookie.starts_with(b"\0\x0a\0\x18clientco\x01\0\0\0"), "{answer:?}");
    // whether the one that he has is good
    assert_eq!(go(&mut server, &question(cookie)).1, 0);
    let mut forged = cookie.to_vec();
    forged[27] ^= 1;
    let (_, rcode, _, answer) = go(&mut server, &question(&forged));
    assert_eq!((rcode, &answer[11..]), (23, cookie));
    assert_eq!(server.stats().cookies_valid.get(), 1);
    assert_eq!(counted(&server, "dns_answers_total", "BADCOOKIE"), 1);
    // with what else there may be, and with what may not
    let with_nsid = go(&mut server, &question(&[b"\0\x03\0\0", CLIENT].concat()));
    assert!(find(&with_nsid.3, b"\0\x03\0\x03ns1\0\x0a\0\x18clientco").is_some(), "{with_nsid:?}");
    for (rcode, sections) in [
        (1, opt(0, 0, b"")),
        (1, opt(0, 0, b"\0\x0a\0\x07cookie!")),
        (1, [opt(0, 0, CLIENT), vec![0]].concat()),
        (16, opt(1, 0, CLIENT)),
    ] {
        assert_eq!(go(&mut server, &message(0, [0, 0, 0, 1], &[&sections])).1, rcode, "{sections:?}");
    }
    let mut status = question(CLIENT);
    status[2] = 2 << 3;
    assert_eq!(go(&mut server, &status).1, 4);
    // for who makes none it is no question
    let mut without = example(Options::default());
    assert_eq!(go(&mut without, &question(CLIENT)).1, 1);
}

/// Forged questions make few answers, which count as errors; a cookie that is good exempts here, too.
#[test]
fn what_has_no_records_is_limited_as_errors_are() {
    let limits = rrl::Config { errors_per_second: 5, ..rrl::Config::default() };
    let malformed = |options: &[u8]| with_options("www.example", &[options, &[0]].concat());
    let cookie = |options: &[u8]| message(0, [0, 0, 0, 1], &[&opt(0, 0, options)]);
    for question in [&malformed as &dyn Fn(&[u8]) -> Vec<u8>, &cookie] {
        let mut server = example(Options { rrl: Some(limits.clone()), ..options() });
        let mut answered = |message: &[u8], peer| datagram(&mut server, Instant::ZERO, peer, message);
        let first = answered(&cookie(CLIENT), PEER).unwrap();
        let good = &first[first.len() - 28..];
        let first = question(CLIENT);
        assert_eq!((0..100).filter(|_| answered(&first, PEER).is_some()).count(), 4);
        assert_eq!((0..100).filter(|_| answered(&question(good), PEER).is_some()).count(), 100);
        assert_eq!((0..100).filter(|_| answered(&question(good), "203.0.113.1").is_some()).count(), 5, "another's");
    }
}
