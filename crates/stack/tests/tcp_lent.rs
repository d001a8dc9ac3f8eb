//! What a connection sends with is lent while it sends nothing, and may be gone when it looks again.

mod hand;

use hand::Hand;
use sim::Script;
use stack::tcp::Event;
use std::time::Duration;
use wire::tcp::{Flags, Header};

const BYTES: u64 = 900;

/// One that sends as soon as it stands, with what one connection needs to send.
fn hand() -> Hand {
    Hand::new(Script { send: BYTES, piece: BYTES, stays: true, ..Script::default() }, |tcp| {
        (tcp.limits.connections, tcp.limits.active) = (10, 1);
    })
}

/// The handshake of a peer at a port but for its last segment.
fn begin(hand: &mut Hand, port: u16) {
    hand.from = port;
    let syn = Header { mss: Some(1000), ..hand.head(Flags::SYN) };
    let seq = syn.seq + 1;
    let answers = hand.send(syn, b"");
    (hand.seq, hand.ack) = (seq, answers[0].seq + 1);
}

#[test]
fn who_loses_it_before_its_turn_has_no_timer_left() {
    let mut hand = hand();
    begin(&mut hand, 4000);
    let came = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(came[0].payload.len() as u64, BYTES);
    let (seq, ack) = (hand.seq, hand.ack + BYTES as u32);
    begin(&mut hand, 4001);
    // in one burst: nothing of the first one's is under way any more, and the second one sends
    let last = hand.head(Flags::ACK);
    hand.put(Header { src_port: 4000, seq, ack, ..last }, b"");
    let came = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!((came[0].to, came[0].payload.len() as u64), (4001, BYTES));
    hand.ack += BYTES as u32;
    hand.send(hand.head(Flags::ACK), b"");
    for _ in 0..500 {
        hand.now += Duration::from_millis(10);
        hand.turn();
        assert!(hand.due.is_none_or(|due| due > hand.now), "called again for nothing after {:?}", hand.now);
    }
    assert_eq!(hand.event(Event::RetransmissionTimeout), 0);
}
