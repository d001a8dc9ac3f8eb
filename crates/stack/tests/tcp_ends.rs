//! How connections end: a place is free once, whoever ends the connection and during whichever event; and the last segment is sent
//! whatever the path.

mod hand;

use app::DeadReason;
use hand::{Hand, Out, waiting};
use sim::{Abort, Peer, Script, pattern};
use stack::tcp::{Event, Usage};
use std::time::Duration;
use wire::tcp::{Flags, Header};

/// Sends so many bytes and leaves the end to the peer.
fn stays(bytes: u64) -> Script {
    Script { send: bytes, piece: 60_000, stays: true, ..Script::default() }
}

/// A handshake from another port; the end that it made.
fn open_from(hand: &mut Hand, port: u16) -> Script {
    let known: Vec<u64> = hand.peer.ends.keys().copied().collect();
    hand.from = port;
    let syn_ack = hand.send(hand.head(Flags::SYN), b"").remove(0);
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack.seq + 1);
    hand.send(hand.head(Flags::ACK), b"");
    let mut fresh = hand.peer.ends.iter().filter(|(cookie, _)| !known.contains(cookie));
    fresh.next().expect("a connection").1.clone()
}

#[test]
fn a_service_that_aborts_in_an_event_frees_one_place() {
    for abort in [Abort::Sent(1), Abort::Received(1)] {
        let mut hand = Hand::new(Script { aborts: Some(abort), ..stays(100) }, |_| {});
        hand.open(false);
        hand.ack += 100;
        let answers = hand.send(hand.head(Flags::ACK), &[pattern(0)]);
        assert!(answers.iter().any(|answer| answer.flags.contains(Flags::RST)), "{abort:?}: {answers:?}");
        assert_eq!(hand.end().dead, Some(DeadReason::Aborted));
        assert_eq!(hand.stack.tcp_usage(), Usage::default());
        // two that come afterwards are not each other
        hand.peer.template = Some(waiting());
        let handles = [5000, 5001].map(|port| open_from(&mut hand, port).connection);
        assert_ne!(handles[0], handles[1], "{abort:?}");
        assert_eq!(hand.stack.tcp_usage().connections, 2);
    }
}

#[test]
fn a_connection_that_asked_and_aborts_frees_one_place() {
    let mut hand = Hand::new(waiting(), |_| {});
    let (local, peer) = ("192.0.2.1:80".parse().unwrap(), "192.0.2.2:4000".parse().unwrap());
    hand.peer = Peer::with(1, Script { aborts: Some(Abort::Sent(1)), ..stays(100) });
    hand.stack.connect(hand.now, local, peer, hand::THEIRS, 1, 10_000).unwrap();
    hand.ack = hand.turn().remove(0).seq + 1;
    hand.send(hand.head(Flags::SYN | Flags::ACK), b"");
    (hand.seq, hand.ack) = (hand.seq + 1, hand.ack + 100);
    hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(hand.end().dead, Some(DeadReason::Aborted));
    assert_eq!(hand.stack.tcp_usage(), Usage::default());
}

#[test]
fn draining_frees_what_only_waits_for_the_peers_fin_once() {
    let mut hand = Hand::new(Script { close: true, ..Script::default() }, |_| {});
    hand.open(false);
    hand.stack.drain();
    hand.turn();
    assert_eq!(hand.stack.tcp_usage().connections, 1, "our FIN is not acknowledged");
    hand.ack += 1;
    hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(hand.stack.tcp_usage(), Usage::default());
    assert_eq!(hand.end().dead, Some(DeadReason::Closed));
    hand.pass(Duration::from_secs(1));
    assert_eq!(hand.stack.tcp_usage(), Usage::default());
}

#[test]
fn a_full_last_segment_and_the_fin_leave_a_small_window_on_a_paced_path() {
    for segments in 5..30 {
        let script = Script { send: segments * 1000, piece: 60_000, ..Script::default() };
        let mut hand = Hand::new(script, |_| {});
        // a first flight of four segments, by the peer's window: half of it is what congestion control goes back to
        let syn = Header { mss: Some(1000), sack_permitted: true, ..hand.head(Flags::SYN) };
        let mut have = hand.send(syn, b"").remove(0).seq + 1;
        (hand.seq, hand.ack) = (hand.seq + 1, have);
        hand.now += Duration::from_millis(20);
        hand.send(Header { window: 4000, ..hand.head(Flags::ACK) }, b"");
        // the first of them is acknowledged 20 ms after it was sent; all others are lost
        hand.now += Duration::from_millis(20);
        (have, hand.ack) = (have + 1000, have + 1000);
        hand.send(Header { window: 3000, ..hand.head(Flags::ACK) }, b"");
        let mut came = hand.pass(Duration::from_millis(300));
        assert!(hand.event(Event::RetransmissionTimeout) > 0);
        let mut finished = false;
        for _ in 0..200 {
            for out in &came {
                let fin = out.flags.contains(Flags::FIN);
                let end = out.seq + out.payload.len() as u32 + u32::from(fin);
                if out.seq.leq(have) && end.gt(have) {
                    (have, finished) = (end, fin);
                }
            }
            hand.ack = have;
            came = hand.send(hand.head(Flags::ACK), b"");
            came.extend(called_when_due(&mut hand, Duration::from_millis(20)));
        }
        assert!(finished, "no FIN behind {segments} segments");
        assert_eq!(hand.end().acknowledged, segments * 1000);
    }
}

/// Lets time pass as the stack asks for it; what came. It has something to do whenever it wants to be called.
fn called_when_due(hand: &mut Hand, span: Duration) -> Vec<Out> {
    let (end, mut came, mut idle) = (hand.now + span, Vec::new(), 0);
    while let Some(due) = hand.due.filter(|due| *due <= end) {
        hand.now = hand.now.max(due);
        let sent = hand.turn();
        // a timer may have been for what was done meanwhile
        idle = if sent.is_empty() { idle + 1 } else { 0 };
        assert!(idle < 10, "called again and again at {:?}", hand.now);
        came.extend(sent);
    }
    hand.now = end;
    came
}
