//! Acknowledgements that are lost in our own receive queue.

mod hand;

use hand::Hand;
use sim::Script;
use stack::tcp::Event;
use std::time::Duration;
use wire::tcp::{Flags, Header, SackBlock};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Sends so many segments of 1,000 bytes as soon as there is a connection.
fn sends(segments: u64) -> Hand {
    Hand::new(Script { send: 1000 * segments, piece: 60_000, stays: true, ..Script::default() }, |_| {})
}

/// A connection that has sent them, of which nothing is acknowledged.
fn unanswered(segments: u64) -> Hand {
    let mut hand = sends(segments);
    hand.open(true);
    hand
}

/// How long from now it takes until something comes, within that time.
fn comes(hand: &mut Hand, within: Duration) -> Option<Duration> {
    let (begun, came) = (hand.now, hand.pass(within));
    came.first().map(|out| out.at - begun)
}

#[test]
fn what_is_missing_is_not_sent_again_for_a_second() {
    for segments in [1, 4] {
        let mut hand = unanswered(segments);
        let (mut plain, begun, sent) = (unanswered(segments), hand.now, hand.ack);
        // without an overrun a probe goes out, or with one segment the timeout comes, long before
        let soon = comes(&mut plain, ms(900)).expect("a probe or a timeout");
        assert!(soon < ms(500), "{soon:?}");
        let mut came = Vec::new();
        while came.is_empty() && hand.now - begun < ms(2000) {
            hand.stack.overrun(hand.now);
            came = hand.pass(ms(10));
        }
        let waited = came[0].at - begun;
        assert!((ms(1000)..ms(1030)).contains(&waited), "{segments}: {waited:?}");
        assert_eq!((hand.event(Event::PutOff), hand.event(Event::TailLossProbe)), (1, 0), "{segments}");
        assert_eq!(hand.event(Event::RetransmissionTimeout), 1, "{segments}");
        // it is put off once: from here on timeouts double as ever
        let next = comes(&mut hand, ms(3000)).expect("the next timeout");
        assert!(next < ms(1000), "{segments}: {next:?}");
        hand.take_all();
        assert_eq!(hand.ack.since(sent), 1000 * segments as u32, "{segments}");
    }
}

#[test]
fn an_overrun_is_forgotten() {
    for (ago, is_remembered) in [(ms(0), true), (ms(600), false)] {
        let mut hand = sends(4);
        hand.stack.overrun(hand.now);
        hand.pass(ago);
        hand.open(true);
        let came = comes(&mut hand, ms(1500)).expect("a probe or a timeout");
        assert_eq!(came >= ms(1000), is_remembered, "{ago:?}: {came:?}");
    }
}

#[test]
fn a_loss_that_the_peer_tells_of_is_repaired_at_once() {
    let mut hand = unanswered(8);
    hand.stack.overrun(hand.now);
    hand.pass(ms(10));
    let sack = [SackBlock { left: hand.ack + 1000, right: hand.ack + 6000 }];
    let mut came = hand.send(Header { sack: &sack, ..hand.head(Flags::ACK) }, b"");
    came.extend(hand.pass(ms(100)));
    assert!(came.iter().any(|out| out.seq == hand.ack), "{came:?}");
    assert_eq!(hand.event(Event::RetransmissionTimeout), 0);
}
