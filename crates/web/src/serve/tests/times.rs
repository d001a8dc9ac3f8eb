//! What ends connections in time: idle ones, slow heads, slow content, slow readers.

use super::*;

#[test]
fn idle_connections_and_slow_heads_end_in_time() {
    // also one that has never said a word, whether or not a PROXY header should come first
    let proxy = Prefix { address: "192.0.2.0".parse().unwrap(), bits: 24 };
    for proxies in [vec![], vec![proxy]] {
        let mut talk = Talk::new(Options { proxies, ..options() });
        talk.pass(59);
        assert!(!talk.engine.closed);
        talk.pass(60);
        assert!(talk.engine.closed);
        assert_eq!(talk.server.stats().idle_closed.get(), 1);
    }

    // empty lines are no request (RFC 9112 section 2.2)
    for pieces in [&["\r\n"][..], &["\r", "\n"]] {
        let mut talk = Talk::new(options());
        for line in 1..10 {
            assert!(!talk.engine.closed, "{line}");
            pieces.iter().for_each(|piece| talk.receive(piece.as_bytes()));
            talk.pass(50 * line);
        }
        talk.drain();
        assert!(talk.engine.shut && talk.text().starts_with("HTTP/1.1 400 "), "{}", talk.text());
    }
    let mut talk = Talk::new(options());
    for _ in 0..2 {
        talk.receive(format!("{}{GET}", "\r\n".repeat(8)).as_bytes());
    }
    talk.drain();
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.closed), (2, false));

    // idle from the last byte
    let mut talk = Talk::new(options());
    talk.pass(59);
    talk.receive(GET.as_bytes());
    talk.drain();
    talk.pass(118);
    assert!(!talk.engine.closed);
    talk.pass(119);
    assert!(talk.engine.closed && talk.text().ends_with("0123456789"));

    // a head from its first byte, however it trickles (RFC 9110 section 15.5.9)
    let mut talk = Talk::new(options());
    for second in 0..14 {
        talk.receive(&GET.as_bytes()[second as usize..=second as usize]);
        talk.pass(second + 1);
        assert!(!talk.engine.closed);
    }
    talk.pass(15);
    assert!(talk.text().starts_with("HTTP/1.1 408 ") && talk.engine.shut);
    assert_eq!(talk.server.stats().refusals(Refusal::TimedOut), 1);
    talk.dead();
    assert_eq!(talk.server.buffers_used(), 0);
}

/// Room that others made is told to those who asked for it, and one whose request waits for it has asked for nothing.
#[test]
fn whole_requests_before_an_end_are_answered_also_where_nobody_tells_of_room() {
    let mut talk = Talk::new(options());
    talk.receive(GET.as_bytes());
    talk.engine.quota_bytes = talk.engine.unsent;
    talk.receive(format!("{GET}{}", &GET[..20]).as_bytes());
    assert_eq!(count(&talk.text(), "200 OK"), 1);
    talk.engine.quota_bytes = usize::MAX;
    talk.eof();
    talk.drain();
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.aborted), (2, false));
    assert!(talk.engine.closed);
}

#[test]
fn each_head_has_its_own_time() {
    let mut talk = Talk::new(options());
    talk.receive(&GET.as_bytes()[..5]);
    for round in 1..6 {
        talk.pass(10 * round);
        talk.receive(&GET.as_bytes()[5..]);
        talk.receive(&GET.as_bytes()[..5]);
        talk.drain();
    }
    assert_eq!((count(&talk.text(), "200 OK"), talk.engine.closed), (5, false));
    talk.pass(65);
    assert!(talk.engine.shut);
}

#[test]
fn slow_content_and_slow_readers_are_aborted() {
    let mut talk = Talk::new(options());
    talk.receive(b"GET /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
    talk.drain();
    for second in 0..30 {
        assert!(!talk.engine.aborted);
        talk.receive(b"x");
        talk.pass(second + 1);
    }
    assert!(talk.engine.aborted);
    assert_eq!(talk.server.stats().drops(DropReason::Content), 1);

    let mut talk = Talk::new(options());
    talk.receive(BIG.as_bytes());
    for second in 1..60 {
        // that more requests come is no progress
        talk.receive(b"G");
        talk.pass(second);
        assert!(!talk.engine.aborted);
    }
    talk.pass(60);
    assert!(talk.engine.aborted);
    assert_eq!(talk.server.stats().drops(DropReason::SlowReader), 1);

    let mut talk = Talk::new(options());
    talk.receive(BIG.as_bytes());
    let cookie = talk.engine.cookie.unwrap();
    for second in 1..10 {
        talk.pass(50 * second);
        talk.server.sent(talk.now, &mut talk.engine, CONNECTION, cookie, 1000, 0);
    }
    assert!(!talk.engine.aborted && !talk.engine.closed);
}
