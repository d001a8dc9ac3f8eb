//! The pool of records, one for each run of segments in flight: what some connections hold of it keeps others neither from sending
//! nor from being repaired, and no list is long.

mod hand;

use hand::{Hand, Out};
use sim::Script;
use stack::tcp::Event;
use std::time::Duration;
use wire::tcp::{Flags, Header, SackBlock};

/// Segments that hands ask for.
const SEGMENT: u32 = 128;

/// Asks nothing and sends so many bytes.
fn sends(bytes: u64) -> Script {
    Script { send: bytes, piece: 60_000, ..Script::default() }
}

/// Payload bytes in what came for a port.
fn bytes_for(port: u16, came: &[Out]) -> u32 {
    came.iter().filter(|out| out.to == port).map(|out| out.payload.len() as u32).sum()
}

/// Opens a connection from a port; the first flight's bytes, and what acknowledges the SYN.
fn open(hand: &mut Hand, port: u16) -> u32 {
    (hand.from, hand.seq) = (port, base::Seq::new(7));
    let syn =
        Header { mss: Some(SEGMENT as u16), window_scale: Some(14), sack_permitted: true, ..hand.head(Flags::SYN) };
    let answers = hand.send(syn, b"");
    let syn_ack = answers.iter().find(|out| out.to == port && out.flags.contains(Flags::SYN)).unwrap();
    (hand.ack, hand.seq) = (syn_ack.seq + 1, hand.seq + 1);
    let came = hand.send(hand.head(Flags::ACK), b"");
    bytes_for(port, &came)
}

/// Acknowledges so many bytes more, moments after what was before; the bytes that this lets out.
fn step(hand: &mut Hand, bytes: u32) -> u32 {
    hand.now += Duration::from_nanos(10);
    hand.ack += bytes;
    let came = hand.send(hand.head(Flags::ACK), b"");
    bytes_for(hand.from, &came)
}

/// Acknowledges all that comes, moments later each time, until all has come; how many bytes, `flight` counted, which came before.
fn take(hand: &mut Hand, mut flight: u32) -> u32 {
    let mut all = 0;
    while flight > 0 {
        all += flight;
        flight = step(hand, flight);
    }
    all
}

#[test]
fn what_some_have_in_flight_keeps_nobody_else_from_sending() {
    const BYTES: u64 = 40_000;
    let mut hand = Hand::new(sends(BYTES), |tcp| tcp.limits.records = 256);
    // each acknowledges a segment at a time, so that whatever it lets out is a record, and then nothing any more
    for port in 4000..4040 {
        let mut flight = open(&mut hand, port);
        assert!(flight > 0, "nothing for {port} with {:?}", hand.stack.tcp_usage());
        for _ in 0..60 {
            flight = flight + step(&mut hand, SEGMENT) - SEGMENT;
        }
        assert!(flight > 60 * SEGMENT, "{flight} bytes for {port}");
    }
    let held = hand.stack.tcp_usage();
    assert!(held.records > 128 + 32, "{held:?}");
    // whoever comes then is served as if they were not there
    for port in 5000..5010 {
        let flight = open(&mut hand, port);
        assert_eq!(u64::from(take(&mut hand, flight)), BYTES);
    }
    assert_eq!(hand.event(Event::RetransmissionTimeout), 0);
}

#[test]
fn acknowledging_a_little_at_a_time_makes_no_long_list() {
    const BYTES: u64 = 1_500_000;
    let mut hand = Hand::new(sends(BYTES), |tcp| tcp.limits.records = 65_536);
    let mut flight = open(&mut hand, 4000);
    while flight < 2500 * SEGMENT {
        flight = flight + step(&mut hand, 10 * SEGMENT) - 10 * SEGMENT;
    }
    for _ in 0..1250 {
        flight = flight + step(&mut hand, 2 * SEGMENT) - 2 * SEGMENT;
        let records = hand.stack.tcp_usage().records;
        assert!(records <= 512, "{records} records");
    }
    // all but the end is lost, and sent again a segment at a time
    let end = hand.ack + flight;
    for n in 1..=200 {
        let block = SackBlock { left: end - n * SEGMENT, right: end };
        hand.now += Duration::from_micros(10);
        hand.send(Header { sack: &[block], ..hand.head(Flags::ACK) }, b"");
        let records = hand.stack.tcp_usage().records;
        assert!(records <= 520, "{records} records");
    }
    assert!(hand.event(Event::Recovery) > 0 && hand.event(Event::Retransmitted) > 100);
    hand.take_all();
    assert_eq!((hand.end().acknowledged, hand.end().dead), (BYTES, None));
    assert_eq!(hand.stack.tcp_usage().records, 0);
}

#[test]
fn who_waits_for_a_record_sends_as_soon_as_there_is_one() {
    let mut hand = Hand::new(sends(100), |tcp| tcp.limits.records = 2);
    assert_eq!([open(&mut hand, 4000), open(&mut hand, 4001)], [100, 100]);
    let first = (hand.seq, hand.ack);
    assert_eq!([open(&mut hand, 4002), open(&mut hand, 4003)], [0, 0], "there are two records");
    assert!(hand.event(Event::RecordsShort) >= 2);
    hand.pass(Duration::from_millis(150));
    // each that is acknowledged, its FIN as well, lets one go, in the order in which they came
    (hand.from, hand.seq, hand.ack) = (4001, first.0, first.1 + 101);
    let came = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!([4002, 4003].map(|port| bytes_for(port, &came)), [100, 0]);
    assert_eq!(hand.event(Event::WindowProbe), 0);
    // a reset does, too
    hand.from = 4000;
    let came = hand.send(Header { seq: first.0, ..hand.head(Flags::RST) }, b"");
    assert_eq!(bytes_for(4003, &came), 100);
    let usage = hand.stack.tcp_usage();
    assert_eq!((usage.connections, usage.records), (3, 2), "{usage:?}");
}

#[test]
fn who_has_few_records_repairs_what_is_lost_and_no_more() {
    for records in [2, 3, 5] {
        let mut hand = Hand::new(sends(3000), |tcp| tcp.limits.records = records);
        let flight = open(&mut hand, 4000);
        assert_eq!(flight, 10 * SEGMENT);
        // the second is lost, and the end of the flight is held, which is more than can be noted
        hand.now += Duration::from_millis(1);
        hand.ack += SEGMENT;
        for n in 3..=10 {
            hand.now += Duration::from_micros(100);
            let block = SackBlock { left: hand.ack + SEGMENT, right: hand.ack + (n - 1) * SEGMENT };
            hand.send(Header { sack: &[block], ..hand.head(Flags::ACK) }, b"");
        }
        hand.take_all();
        assert_eq!((hand.end().acknowledged, hand.end().dead), (3000, None), "{records} records");
        assert!(hand.event(Event::Retransmitted) < 60, "{records}: {}", hand.event(Event::Retransmitted));
    }
}
