use super::*;
use proptest::prelude::*;

const PLAIN: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03wWw\x07example\x03com\x00\x00\x01\x00\x01";

fn with_opt(options: &[u8]) -> Vec<u8> {
    let mut message = PLAIN.to_vec();
    message[11] = 1;
    message.extend_from_slice(b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00");
    message.extend_from_slice(&(options.len() as u16).to_be_bytes());
    message.extend_from_slice(options);
    message
}

/// What is no question.
fn bare(message: &[u8]) -> Bare {
    match read(message, None, true) {
        Verdict::Bare(bare) => bare,
        other => panic!("{other:?}"),
    }
}

fn rcode(message: &[u8]) -> u16 {
    bare(message).rcode
}

fn ask(message: &[u8]) -> Ask {
    match read(message, None, true) {
        Verdict::Ask(ask) => ask,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plain_question_is_read() {
    assert_eq!(ask(PLAIN), Ask { name_bytes: 17, sent_bytes: 17, qtype: 1, qclass: 1, plain: true, edns: None });
}

#[test]
fn only_questions_without_anything_special_are_plain() {
    assert!(ask(&with_opt(b"")).plain);
    assert!(!ask(&with_opt(b"\0\x03\0\0")).plain);
    for (at, value) in [(30, 251), (30, 252), (32, 3), (32, 255), (39, 1)] {
        let mut message = with_opt(b"");
        message[at] = value;
        assert!(!ask(&message).plain, "octet {at} = {value}");
    }
}

#[test]
fn responses_and_stumps_get_nothing() {
    for len in 0..12 {
        assert_eq!(read(&PLAIN[..len], None, true), Verdict::Drop(DropReason::Short));
    }
    let mut response = PLAIN.to_vec();
    response[2] |= 0x80;
    assert_eq!(read(&response, None, true), Verdict::Drop(DropReason::Response));
}

#[test]
fn every_other_opcode_is_not_implemented() {
    for opcode in 1..16 {
        let mut message = PLAIN.to_vec();
        message[2] = opcode << 3;
        assert_eq!(rcode(&message), 4);
    }
}

#[test]
fn what_a_question_has_no_use_for_is_malformed() {
    for len in 12..PLAIN.len() {
        assert_eq!(bare(&PLAIN[..len]), Bare { rcode: 1, ask: Ask::default() }, "cut to {len}");
    }
    for (at, value) in [(5, 0), (5, 2), (7, 1), (9, 1), (11, 1), (11, 2), (12, 64), (12, 0xc0), (12, 4)] {
        let mut message = PLAIN.to_vec();
        message[at] = value;
        assert_eq!(rcode(&message), 1, "octet {at} = {value}");
    }
    let trailing = [PLAIN, b"\0"].concat();
    assert_eq!(rcode(&trailing), 1);
    let opt = with_opt(b"");
    for (at, value) in [(33, 1), (35, 1), (42, 1), (43, 1)] {
        let mut message = opt.clone();
        message[at] = value;
        assert_eq!(rcode(&message), 1, "octet {at} = {value}");
    }
    for options in [&b"\0"[..], b"\0\x03\0", b"\0\x03\0\x01", b"\0\x0a\0\x07abcdefg", b"\0\x0a\0\x09abcdefghi"] {
        assert_eq!(rcode(&with_opt(options)), 1, "{options:?}");
    }
}

#[test]
fn options_are_read_and_unknown_ones_passed_over() {
    let edns = ask(&with_opt(b"")).edns.unwrap();
    assert_eq!(edns, Edns { size: 1232, dnssec_ok: true, ..Edns::default() });
    // without cookies theirs is one of the unknown
    let odd = with_opt(b"\0\x0a\0\x07cookie!");
    let Verdict::Ask(passed) = read(&odd, None, false) else { panic!("a question") };
    assert_eq!((passed.edns.unwrap(), passed.plain), (edns, false));
    assert!(!passed.is_plain_but_for_a_cookie());
    let message = with_opt(b"\xff\xff\0\x02xx\0\x03\0\0\0\x0b\0\0\0\x0a\0\x08cookieme\0\x0a\0\x08ignored.");
    let edns = ask(&message).edns.unwrap();
    assert!(edns.nsid && edns.keepalive);
    let at = usize::from(edns.cookie_at);
    assert_eq!(&message[at..at + usize::from(edns.cookie_bytes)], b"cookieme");
}

fn named(name: &[u8]) -> Vec<u8> {
    let mut message = PLAIN[..12].to_vec();
    message.extend_from_slice(name);
    message.extend_from_slice(b"\0\x01\0\x01");
    message
}

#[test]
fn a_name_may_have_255_octets_and_no_more() {
    let mut name = Vec::new();
    for _ in 0..127 {
        name.extend_from_slice(b"\x01a");
    }
    let longest = [&name[..], b"\0"].concat();
    assert_eq!(ask(&named(&longest)).name_bytes, 255);
    let longer = [b"\x02aa", &name[2..], b"\0"].concat();
    let nothing = Verdict::Bare(Bare { rcode: 1, ask: Ask::default() });
    assert_eq!(read(&named(&longer), None, true), nothing);
    assert_eq!(read(&named(&longer), Some(&mut [0; 256]), true), nothing);
}

#[test]
fn a_compressed_question_is_read_when_accepted() {
    // the header's zero octets serve as the root: a pointer to the last count
    let message = named(b"\x03www\xc0\x0b");
    assert_eq!(rcode(&message), 1);
    let mut buffer = [0; 256];
    match read(&message, Some(&mut buffer), true) {
        Verdict::Ask(ask) => assert_eq!((ask.name_bytes, ask.sent_bytes, &buffer[..5]), (5, 6, &b"\x03www\0"[..])),
        other => panic!("{other:?}"),
    }
    for bad in [&b"\xc0\x0c"[..], b"\x01a\xc0\x0c", b"\xc0\x20"] {
        let nothing = Verdict::Bare(Bare { rcode: 1, ask: Ask::default() });
        assert_eq!(read(&named(bad), Some(&mut [0; 256]), true), nothing, "{bad:?}");
    }
}

#[test]
fn a_pointer_into_the_header_reads_what_stands_there() {
    // octet 0 is the root's empty label
    let message = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 1, 0, 1];
    let Verdict::Ask(ask) = read(&message, Some(&mut [0; 256]), true) else {
        panic!("the root's address is asked for")
    };
    assert_eq!((ask.name_bytes, ask.sent_bytes), (1, 2));
    // octets 0 and 1 of this one, the identifier, are a pointer themselves, before which nothing can stand
    let message = [0xc0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 1, 0, 1];
    let Verdict::Bare(Bare { rcode: 1, .. }) = read(&message, Some(&mut [0; 256]), true) else { panic!("malformed") };
}

proptest! {
    #[test]
    fn any_octets_are_read_without_harm(
        message in prop::collection::vec(any::<u8>(), 0..600),
        tidy in any::<bool>(),
    ) {
        let mut message = message;
        if tidy && message.len() >= 12 {
            message[2..12].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        }
        for verdict in [read(&message, None, true), read(&message, None, false), read(&message, Some(&mut [0; 256]), true)] {
            let ask = match verdict {
                Verdict::Ask(ask) => ask,
                Verdict::Bare(Bare { ask, .. }) if ask.name_bytes > 0 => ask,
                _ => continue,
            };
            prop_assert!(usize::from(ask.name_bytes) <= 255);
            prop_assert!(12 + usize::from(ask.sent_bytes) + 4 <= message.len());
        }
    }

    #[test]
    fn both_keyings_read_plain_questions_alike(labels in prop::collection::vec(1usize..64, 0..5), opt in any::<bool>()) {
        let mut message = PLAIN[..12].to_vec();
        for len in labels {
            message.push(len as u8);
            message.extend(vec![b'q'; len]);
        }
        message.extend_from_slice(b"\0\0\x1c\0\x01");
        if opt {
            message[11] = 1;
            message.extend_from_slice(b"\0\0\x29\x04\xd0\0\0\0\0\0\0");
        }
        prop_assert_eq!(read(&message, None, true), read(&message, Some(&mut [0; 256]), true));
    }
}
