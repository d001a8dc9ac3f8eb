//! What is sent again and when, and what the peer is told that it may send again: segments by hand, some of which are lost.

mod hand;

use hand::{Hand, waiting};
use sim::{Script, pattern};
use stack::tcp::Event;
use std::time::Duration;
use wire::tcp::{Flags, Header, SackBlock};

/// A connection that sends so many bytes, whose first flight of ten segments is on its way.
fn sending(bytes: u64, sack: bool) -> Hand {
    let mut hand = Hand::new(Script { send: bytes, piece: 60_000, stays: true, ..Script::default() }, |_| {});
    hand.open(sack);
    hand
}

/// An acknowledgement that tells of what is held from one segment of the stream up to another.
fn holds(hand: &mut Hand, blocks: &[(u32, u32)]) -> Vec<hand::Out> {
    let first = hand.ack;
    let sack: Vec<SackBlock> = blocks
        .iter()
        .map(|(left, right)| SackBlock { left: first + left * 1000, right: first + right * 1000 })
        .collect();
    hand.send(Header { sack: &sack, ..hand.head(Flags::ACK) }, b"")
}

#[test]
fn without_sack_a_partial_acknowledgement_has_the_next_hole_repaired_at_once() {
    // the first two are lost: the eight that came have an acknowledgement each, and there is no other
    let mut hand = sending(10_000, false);
    let mut again = Vec::new();
    for _ in 0..8 {
        again.extend(hand.send(hand.head(Flags::ACK), b""));
    }
    assert_eq!(again.iter().map(|out| out.seq).collect::<Vec<_>>(), [hand.ack], "the first");
    hand.ack += 1000;
    let again = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(
        again.iter().map(|out| (out.seq, out.payload.len())).collect::<Vec<_>>(),
        [(hand.ack, 1000)],
        "the second"
    );
    hand.ack += 9000;
    hand.take_all();
    assert_eq!((hand.end().acknowledged, hand.event(Event::RetransmissionTimeout)), (10_000, 0));
}

#[test]
fn losses_in_two_windows_in_a_row_are_answered_for_twice() {
    for second in [false, true] {
        let mut hand = sending(200_000, true);
        let (begin, reductions) = (hand.ack, |hand: &Hand| hand.event(Event::Recovery));
        // the first is lost, and its repair is, too
        let mut came = holds(&mut hand, &[(1, 10)]);
        assert_eq!((came[0].seq, reductions(&hand)), (begin, 1));
        came.retain(|out| out.seq.gt(begin));
        let new = came.len() as u32;
        assert!(new >= 3 && came[0].seq == begin + 10_000, "{came:?}");
        hand.now += Duration::from_millis(5);
        // of what was sent meanwhile the first is lost, or nothing
        let held = if second { 11 } else { 10 };
        let again = holds(&mut hand, &[(held, 10 + new), (1, 10)]);
        let again: Vec<_> = again.iter().map(|out| out.seq).collect();
        assert_eq!(again.contains(&(begin + 10_000)), second, "{again:?}");
        // recovery is over: all that was in flight when it began is there
        hand.now += Duration::from_millis(5);
        hand.ack += held * 1000 - u32::from(second) * 1000;
        let news: &[(u32, u32)] = if second { &[(1, new)] } else { &[] };
        holds(&mut hand, news);
        assert_eq!(reductions(&hand), 1 + u64::from(second));
        hand.take_all();
        assert_eq!((hand.end().acknowledged, reductions(&hand)), (200_000, 1 + u64::from(second)));
    }
}

#[test]
fn a_fin_that_is_kept_is_told_as_held() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let bytes: Vec<u8> = (0..1500).map(pattern).collect();
    let (first, last) = bytes.split_at(1000);
    let fin = Header { seq: hand.seq + 1000, ..hand.head(Flags::ACK | Flags::FIN) };
    let answers = hand.send(fin, last);
    assert_eq!(answers[0].sack, [SackBlock { left: hand.seq + 1000, right: hand.seq + 1501 }]);
    // one that is not kept is not
    let answers = hand.send(hand.head(Flags::ACK), first);
    assert!(answers[0].sack.is_empty() && answers[0].ack == hand.seq + 1501, "{answers:?}");
    assert!(hand.end().finished);
}

#[test]
fn acknowledgements_stay_within_a_window_that_became_smaller() {
    let mut hand = sending(10_000, true);
    let bytes: Vec<u8> = (0..2000).map(pattern).collect();
    // 2,000 bytes, in units of four
    let answers: Vec<_> = bytes
        .chunks(1000)
        .flat_map(|some| {
            let answers = hand.send(Header { window: 500, ..hand.head(Flags::ACK) }, some);
            hand.seq += 1000;
            answers
        })
        .collect();
    let told: Vec<_> = answers.iter().map(|out| (out.seq, out.ack, out.payload.len())).collect();
    assert_eq!(told, [(hand.ack + 2000, hand.seq, 0)]);
    // and it goes on where the window is as it was
    hand.ack += 10_000;
    hand.take_all();
    assert_eq!(hand.end().acknowledged, 10_000);
}
