//! Peers that want harm, with exact timing: what each can make a connection of ours do or hold is bounded.

mod hand;

use app::{DeadReason, Listener, PerSource};
use base::Seq;
use hand::{Hand, Out, waiting};
use sim::{Script, pattern};
use stack::TcpListener;
use stack::tcp::{Event, Ignored, Usage};
use std::net::SocketAddr;
use std::time::Duration;
use wire::tcp::{Flags, Header, SackBlock, Timestamps};

/// The MSS that `Hand::open` announces.
const MSS: u32 = 1000;

/// Asks nothing and sends so many bytes.
fn sends(bytes: u64) -> Script {
    Script { send: bytes, piece: 60_000, ..Script::default() }
}

/// Payload bytes in what came.
fn bytes_of(segments: &[Out]) -> usize {
    segments.iter().map(|segment| segment.payload.len()).sum()
}

/// Opens a connection whose window is so wide that only congestion control holds data back; the first flight's bytes.
fn open_wide(hand: &mut Hand) -> u32 {
    let syn = Header { mss: Some(MSS as u16), window_scale: Some(7), sack_permitted: true, ..hand.head(Flags::SYN) };
    let answers = hand.send(syn, b"");
    (hand.seq, hand.ack) = (hand.seq + 1, answers[0].seq + 1);
    let flight = hand.send(hand.head(Flags::ACK), b"");
    bytes_of(&flight) as u32
}

#[test]
fn splitting_acknowledgements_gains_nothing() {
    // RFC 3465 section 2: growth counts bytes
    let sent_after = |pieces: u32| {
        let mut hand = Hand::new(sends(2_000_000), |_| {});
        let flight = open_wide(&mut hand);
        assert_eq!(flight, 10 * MSS);
        let first = hand.ack;
        let mut sent = 0;
        for n in 1..=pieces {
            // moments apart, so that what is sent does not join what was sent before; short enough not to be paced
            hand.now += Duration::from_nanos(10);
            hand.ack = first + flight / pieces * n;
            sent += bytes_of(&hand.send(hand.head(Flags::ACK), b""));
        }
        assert!(hand.stack.tcp_usage().records <= 40, "{:?}", hand.stack.tcp_usage());
        sent
    };
    let honest = sent_after(10);
    assert_eq!(honest as u32, 20 * MSS, "slow start doubles");
    for pieces in [20, 100, 1000, 10_000] {
        let split = sent_after(pieces);
        assert!(split <= honest, "{split} bytes after {pieces} acknowledgements, {honest} after 10");
    }
}

#[test]
fn acknowledging_what_was_never_sent_moves_nothing() {
    let mut hand = Hand::new(sends(2_000_000), |_| {});
    let flight = open_wide(&mut hand);
    let nxt = hand.ack + flight;
    let mut challenges = 0;
    for n in 0..1000u32 {
        hand.ack = nxt + 1 + n * 997;
        let answers = hand.send(hand.head(Flags::ACK), b"");
        assert_eq!(bytes_of(&answers), 0);
        challenges += answers.len();
    }
    assert!(challenges <= 1, "{challenges} within one moment");
    assert_eq!(hand.ignored(Ignored::AckBeyond), 1000);
    // what is sent may be acknowledged unseen, and earns no more than had it been seen
    hand.ack = nxt;
    let answers = hand.send(hand.head(Flags::ACK), b"");
    assert!(bytes_of(&answers) as u32 <= 2 * flight, "{}", bytes_of(&answers));
}

#[test]
fn sack_blocks_of_a_byte_each_take_no_memory_and_no_time() {
    let mut hand = Hand::new(sends(200_000), |_| {});
    let flight = open_wide(&mut hand);
    let una = hand.ack;
    for n in (0..flight).step_by(8) {
        let block = |at: u32| SackBlock { left: una + at + 1, right: una + at + 2 };
        let blocks = [block(n), block(n + 2), block(n + 4), block(n + 6)];
        hand.send(Header { sack: &blocks, ..hand.head(Flags::ACK) }, b"");
        let records = hand.stack.tcp_usage().records;
        assert!(records <= 2 * 10 + 2, "{records} records for 10 segments");
    }
    // and it goes on
    hand.take_all();
    assert_eq!(hand.end().acknowledged, 200_000);
}

/// Opens a connection with segments of 128 bytes, and acknowledges `step` of them at a time, each time moments later, until so many
/// are in flight; how many.
fn fly(hand: &mut Hand, segments: u32, step: u32) -> u32 {
    let syn = Header { mss: Some(128), window_scale: Some(14), sack_permitted: true, ..hand.head(Flags::SYN) };
    hand.ack = hand.send(syn, b"").remove(0).seq + 1;
    hand.seq += 1;
    let mut flight = bytes_of(&hand.send(hand.head(Flags::ACK), b"")) as u32 / 128;
    while flight < segments {
        hand.now += Duration::from_nanos(10);
        hand.ack += step * 128;
        let sent = bytes_of(&hand.send(hand.head(Flags::ACK), b"")) as u32 / 128;
        assert!(sent > 0, "{flight} in flight and no more to send");
        flight = flight + sent - step;
    }
    flight
}

#[test]
fn every_second_segment_held_makes_a_bounded_number_of_records() {
    const BYTES: u64 = 1_500_000;
    let mut hand = Hand::new(sends(BYTES), |tcp| tcp.limits.records = 65_536);
    let segments = fly(&mut hand, 2500, 10);
    let una = hand.ack;
    for n in (1..segments - 7).step_by(8) {
        hand.now += Duration::from_micros(1);
        let block = |n: u32| SackBlock { left: una + n * 128, right: una + (n + 1) * 128 };
        let blocks = [block(n + 6), block(n), block(n + 2), block(n + 4)];
        hand.send(Header { sack: &blocks, ..hand.head(Flags::ACK) }, b"");
    }
    let records = hand.stack.tcp_usage().records;
    assert!((500..=1024).contains(&records), "{records} records for {segments} segments");
    // by its own bound, which is no want of what others share
    assert!(hand.event(Event::ListFull) > 0);
    assert_eq!(hand.event(Event::RecordsShort), 0);
    // and it goes on
    hand.take_all();
    assert_eq!((hand.end().acknowledged, hand.end().dead), (BYTES, None));
}

#[test]
fn a_window_that_shrinks_is_not_overrun_and_ends_in_time_or_opens_again() {
    for opens in [true, false] {
        let mut hand = Hand::new(sends(30_000), |_| {});
        let flight = open_wide(&mut hand);
        // a part of the flight is acknowledged and the right edge moves back before it (RFC 9293 section 3.8.6)
        hand.ack += 2 * MSS;
        hand.send(Header { window: 4, ..hand.head(Flags::ACK) }, b"");
        let nxt = hand.ack + flight - 2 * MSS;
        let shrunk = hand.pass(Duration::from_secs(5));
        assert!(shrunk.iter().all(|out| (out.seq + out.payload.len() as u32).leq(nxt)), "something new: {shrunk:?}");
        assert!(
            shrunk.iter().any(|out| out.seq == hand.ack && !out.payload.is_empty()),
            "what was sent goes out again"
        );
        if opens {
            hand.take_all();
            assert_eq!(hand.end().acknowledged, 30_000);
        } else {
            hand.pass(Duration::from_secs(400));
            assert_eq!(hand.end().dead, Some(DeadReason::TimedOut));
            assert_eq!(hand.stack.tcp_usage(), Usage::default());
        }
    }
}

#[test]
fn a_window_that_stays_small_is_used_in_the_end() {
    let mut hand = Hand::new(sends(20_000), |_| {});
    open_wide(&mut hand);
    hand.ack += 10 * MSS;
    // far below a segment, and below half of what was offered (RFC 9293 section 3.8.6.2.1): without the override timeout
    // both sides would wait for ever
    let tiny = |hand: &Hand| Header { window: 1, ..hand.head(Flags::ACK) };
    let early = hand.send(tiny(&hand), b"");
    assert_eq!(bytes_of(&early), 0, "no small segment at once");
    let came = hand.pass(Duration::from_secs(2));
    let data: Vec<&Out> = came.iter().filter(|out| !out.payload.is_empty()).collect();
    assert!(!data.is_empty() && data.iter().all(|out| out.payload.len() <= 128), "{data:?}");
    let expected: Vec<u8> = (10_000..).map(pattern).take(data[0].payload.len()).collect();
    assert_eq!(data[0].payload, expected);
    hand.ack += data[0].payload.len() as u32;
    let came = hand.send(hand.head(Flags::ACK), b"");
    assert!(bytes_of(&came) > 0, "an open window ends it");
}

#[test]
fn windows_held_closed_give_their_memory_back() {
    const HELD: u16 = 40;
    let mut hand = Hand::new(sends(50_000), |_| {});
    for port in 0..HELD {
        hand.from = 5000 + port;
        let answers = hand.send(Header { window: 0, ..hand.head(Flags::SYN) }, b"");
        let ack = answers[0].seq + 1;
        hand.send(Header { seq: hand.seq + 1, ack, window: 0, ..hand.head(Flags::ACK) }, b"");
    }
    let held = hand.stack.tcp_usage();
    assert_eq!((held.connections, held.active), (usize::from(HELD), usize::from(HELD)), "{held:?}");
    // each probe is answered: the peers live, and hold their windows closed
    let begun = hand.now;
    while hand.stack.tcp_usage().connections > 0 {
        for out in hand.pass(Duration::from_millis(500)) {
            assert!(out.payload.is_empty(), "{out:?}");
            if !out.flags.contains(Flags::RST) {
                hand.from = out.to;
                let ack = out.seq + 1;
                hand.send(Header { seq: hand.seq + 1, ack, window: 0, ..hand.head(Flags::ACK) }, b"");
            }
        }
        assert!(hand.now - begun < Duration::from_secs(150), "{:?}", hand.stack.tcp_usage());
    }
    assert_eq!(hand.stack.tcp_usage(), Usage::default());
    assert!(hand.peer.ends.values().all(|end| end.dead == Some(DeadReason::TimedOut)));
}

#[test]
fn guessed_resets_and_syns_end_nothing_and_provoke_little() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let (seq, ack) = (hand.seq, hand.ack);
    let mut answers = 0;
    // a guess every millisecond for 20 s, all over the window and beyond
    for n in 0..20_000u32 {
        hand.now += Duration::from_millis(1);
        let flags = if n % 2 == 0 { Flags::RST } else { Flags::SYN };
        let guess = seq + 1 + n.wrapping_mul(214_013);
        answers += hand.send(Header { seq: guess, ack: ack + n, ..hand.head(flags) }, b"").len();
    }
    assert!(answers <= 41, "{answers} challenges in 20 s: two a second are allowed");
    assert!(hand.event(Event::Challenge) >= 20);
    assert_eq!(hand.end().dead, None);
    let bytes: Vec<u8> = (0..10).map(pattern).collect();
    hand.send(hand.head(Flags::ACK), &bytes);
    assert_eq!(hand.end().received, 10);
}

#[test]
fn a_syn_without_a_timestamp_is_challenged_where_others_are_dropped() {
    let mut hand = Hand::new(waiting(), |_| {});
    let clock = |value| Some(Timestamps { value, echo: 0 });
    let syn_ack = hand.send(Header { timestamps: clock(1), ..hand.head(Flags::SYN) }, b"");
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
    hand.send(Header { timestamps: clock(2), ..hand.head(Flags::ACK) }, b"");
    // a peer that began anew: the challenge makes it reset what it does not know (RFC 5961 section 4.2)
    assert_eq!(hand.send(hand.head(Flags::SYN), b"").len(), 1);
    assert!(hand.send(hand.head(Flags::ACK), b"x").is_empty());
    assert_eq!((hand.ignored(Ignored::UnexpectedSyn), hand.ignored(Ignored::NoTimestamp)), (1, 1));
}

#[test]
fn holes_in_what_is_sent_take_a_bounded_part_of_the_pool() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.blocks_per_connection = 16);
    hand.open(true);
    for n in 1..3000u32 {
        let header = Header { seq: hand.seq + 3 * n, ..hand.head(Flags::ACK) };
        let answers = hand.send(header, &[pattern(u64::from(3 * n))]);
        assert!(answers.iter().all(|out| out.sack.len() <= 4));
        assert!(hand.stack.tcp_usage().blocks <= 16);
    }
    assert!(hand.ignored(Ignored::NoBlock) > 2900);
    assert_eq!(hand.end().received, 0);
}

/// Opens a connection from a port, with SACK.
fn open_from(hand: &mut Hand, port: u16) {
    (hand.from, hand.seq) = (port, Seq::new(7));
    let syn_ack = hand.send(Header { sack_permitted: true, ..hand.head(Flags::SYN) }, b"").remove(0);
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack.seq + 1);
    hand.send(hand.head(Flags::ACK), b"");
}

#[test]
fn gaps_that_some_never_fill_keep_nobody_else_from_telling_what_came() {
    let mut hand = Hand::new(waiting(), |tcp| (tcp.limits.blocks, tcp.limits.blocks_per_connection) = (256, 16));
    // each second byte, as long as it is taken
    for port in 5000..5040 {
        open_from(&mut hand, port);
        for n in 1..=16 {
            hand.send(Header { seq: hand.seq + 2 * n, ..hand.head(Flags::ACK) }, b"x");
        }
    }
    assert!(hand.stack.tcp_usage().blocks > 128 + 64, "{:?}", hand.stack.tcp_usage());
    for port in 6000..6010 {
        open_from(&mut hand, port);
        let left = hand.seq + MSS;
        let answers = hand.send(Header { seq: left, ..hand.head(Flags::ACK) }, &[0; MSS as usize]);
        assert_eq!(answers[0].sack, [SackBlock { left, right: left + MSS }], "{:?}", hand.stack.tcp_usage());
    }
}

#[test]
fn spoofed_handshakes_of_a_source_do_not_lock_it_out() {
    let mut hand = Hand::new(sends(100), |tcp| tcp.limits.half_open_per_source = 3);
    for port in 1..=500 {
        hand.from = port;
        hand.send(hand.head(Flags::SYN), b"");
    }
    assert_eq!(hand.stack.tcp_usage().half_open, 3);
    hand.from = 4000;
    let syn_ack = hand.open(true);
    assert!(syn_ack.sack_permitted && syn_ack.scale.is_some());
    assert_eq!((hand.event(Event::CookieAccepted), hand.event(Event::Accepted)), (1, 1));
}

/// Handshakes from ten ports of one source, as far as they are answered.
fn connect_from_ten(hand: &mut Hand) {
    for port in 1..=10 {
        hand.from = port;
        let answers = hand.send(hand.head(Flags::SYN), b"");
        if let Some(syn_ack) = answers.first() {
            let ack = syn_ack.seq + 1;
            hand.send(Header { seq: hand.seq + 1, ack, ..hand.head(Flags::ACK) }, b"");
        }
    }
}

#[test]
fn connections_of_a_source_are_bounded_and_counted() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.connections_per_source = 3);
    connect_from_ten(&mut hand);
    assert_eq!((hand.event(Event::Accepted), hand.ignored(Ignored::SourceLimit)), (3, 7));
}

#[test]
fn what_a_source_has_with_one_service_does_not_count_with_another() {
    let mut hand = Hand::new(waiting(), |tcp| {
        let first = tcp.listeners[0];
        let local = SocketAddr::new(first.local.ip(), first.local.port() + 1);
        tcp.listeners.push(TcpListener { listener: Listener(first.listener.0 + 1), local, ..first });
        tcp.per_source = PerSource::new(vec![(first.listener, 3), (Listener(first.listener.0 + 1), 5)]);
    });
    for to in [hand.to, hand.to + 1] {
        hand.to = to;
        connect_from_ten(&mut hand);
    }
    assert_eq!((hand.event(Event::Accepted), hand.ignored(Ignored::SourceLimit)), (3 + 5, 7 + 5));
}
