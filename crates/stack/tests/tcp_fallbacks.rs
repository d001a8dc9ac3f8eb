//! Segments by hand where something is tried, and what was tried before is answered: ECN that one of two handshakes had, a cookie that is
//! acknowledged when a place was found, timeouts and tail loss probes without need, ends that cross.

mod hand;

use app::DeadReason;
use base::Burst;
use hand::{A, B, Hand, Out};
use port::Port as _;
use sim::{Script, pattern};
use stack::tcp::{Event, Usage};
use std::time::Duration;
use wire::tcp::{Flags, Header, PayloadSum};
use wire::{Protocol, Sum};

fn sends(bytes: u64) -> Script {
    Script { send: bytes, piece: 60_000, stays: true, ..Script::default() }
}

/// A handshake with options of our own, and a window.
fn open(hand: &mut Hand, sack_permitted: bool, window: u16) -> Vec<Out> {
    let syn = Header { mss: Some(1000), sack_permitted, window, ..hand.head(Flags::SYN) };
    let syn_ack = hand.send(syn, b"").remove(0);
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack.seq + 1);
    hand.send(Header { window, ..hand.head(Flags::ACK) }, b"")
}

/// The ECN bits of every frame with data that came so far.
fn marks(hand: &Hand) -> Vec<u8> {
    let with_data = hand.log.iter().filter(|(_, frame)| frame.len() > 14 + 20 + 60);
    with_data.map(|(_, frame)| frame[15] & 3).collect()
}

fn segment(header: Header<'_>, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; header.bytes()];
    segment.extend(payload);
    let pseudo = Sum::pseudo_v4(B, A, Protocol::TCP, segment.len() as u16);
    header.write(&mut segment, pseudo, PayloadSum::Known(Sum::of(payload)));
    Hand::frame(Protocol::TCP, &segment)
}

/// What a router marks on its way to us.
fn congested(mut frame: Vec<u8>) -> Vec<u8> {
    frame[15] = 3;
    frame[24..26].fill(0);
    let sum = Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum);
    frame
}

/// Who has sent one answer without ECN, or was asked without it, marks nothing; but of marks on the way to us it tells, since the
/// peer may have believed the other one (RFC 3168 section 6.1.1).
#[test]
fn after_a_handshake_with_and_without_ecn_nothing_of_ours_is_marked() {
    for lost in ["nothing", "our answer", "its question"] {
        let mut hand = Hand::new(sends(5000), |_| {});
        let setup = Flags::SYN | Flags::ECE | Flags::CWR;
        let syn_ack = hand.send(hand.head(setup), b"").remove(0);
        assert!(syn_ack.flags.contains(Flags::ECE));
        match lost {
            "our answer" => {
                let again = hand.pass(Duration::from_millis(1100));
                assert_eq!(again.iter().map(|out| out.flags).collect::<Vec<_>>(), [Flags::SYN | Flags::ACK]);
            }
            "its question" => {
                let again = hand.send(hand.head(Flags::SYN), b"").remove(0);
                assert_eq!((again.seq, again.flags), (syn_ack.seq, Flags::SYN | Flags::ACK));
            }
            _ => {}
        }
        (hand.seq, hand.ack) = (hand.seq + 1, syn_ack.seq + 1);
        hand.send(hand.head(Flags::ACK), b"");
        let marks = marks(&hand);
        assert!(
            !marks.is_empty() && marks.iter().all(|mark| *mark == if lost == "nothing" { 2 } else { 0 }),
            "{lost}: {marks:?}"
        );
        let frame = congested(segment(hand.head(Flags::ACK), &[pattern(0)]));
        assert!(hand.inject(&frame).iter().any(|out| out.flags.contains(Flags::ECE)), "{lost}");
    }
}

#[test]
fn a_cookie_is_taken_when_its_syn_has_found_a_place_meanwhile() {
    let mut hand = Hand::new(sends(10), |tcp| tcp.limits.half_open = 1);
    hand.from = 1;
    hand.send(hand.head(Flags::SYN), b"");
    hand.from = 4000;
    let cookie = hand.send(hand.head(Flags::SYN), b"").remove(0);
    assert_eq!(hand.event(Event::Cookie), 1);
    // the other one gives up, and our SYN comes again
    hand.from = 1;
    hand.send(Header { seq: hand.seq + 1, ..hand.head(Flags::RST) }, b"");
    hand.from = 4000;
    let other = hand.send(hand.head(Flags::SYN), b"").remove(0);
    assert!(other.seq != cookie.seq && hand.stack.tcp_usage().half_open == 1);
    // neither of a guess
    (hand.seq, hand.ack) = (hand.seq + 1, cookie.seq + 2);
    assert_eq!(hand.send(hand.head(Flags::ACK), b"")[0].flags, Flags::RST);
    hand.ack = cookie.seq + 1;
    let answers = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(answers.iter().map(|out| (out.seq, out.payload.len())).collect::<Vec<_>>(), [(hand.ack, 10)]);
    assert_eq!((hand.event(Event::CookieAccepted), hand.stack.tcp_usage().half_open), (1, 0));
}

/// A window that has room for half a segment lets nothing new go to test whether a timeout was needless: repairs go on (RFC 5682 section
/// 2.1, step 2b).
#[test]
fn a_timeout_behind_a_small_window_is_repaired_at_once() {
    let mut hand = Hand::new(sends(20_000), |_| {});
    let sent = open(&mut hand, false, 9500);
    assert_eq!(sent.iter().map(|out| out.payload.len()).collect::<Vec<_>>(), [1000; 9]);
    let again = hand.pass(Duration::from_millis(300));
    assert_eq!(again.iter().map(|out| (out.seq, out.payload.len())).collect::<Vec<_>>(), [(hand.ack, 1000)]);
    hand.ack += 1000;
    let sent = hand.send(Header { window: 8500, ..hand.head(Flags::ACK) }, b"");
    assert_eq!(sent.first().map(|out| (out.seq, out.payload.len())), Some((hand.ack, 1000)), "{sent:?}");
    assert_eq!(hand.event(Event::RetransmissionTimeout), 1);
}

/// From a peer that says nothing of what it had twice, the second acknowledgement of the same tells (RFC 8985 section 7.4.2).
#[test]
fn a_needless_tail_loss_probe_reduces_nothing() {
    let mut hand = Hand::new(sends(3000), |_| {});
    assert_eq!(open(&mut hand, true, 1000).len(), 1);
    let probe = hand.pass(Duration::from_millis(300));
    assert_eq!((probe.len(), hand.event(Event::TailLossProbe), probe[0].seq), (1, 1, hand.ack));
    // what was late, and then the copy
    hand.ack += 1000;
    for _ in 0..2 {
        assert!(hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"").is_empty());
    }
    assert_eq!(hand.send(hand.head(Flags::ACK), b"").len(), 2);
    hand.ack += 2000;
    hand.send(hand.head(Flags::ACK), b"");
    let mut threshold = None;
    let sender = |view: stack::tcp::View| threshold = view.sender.map(|sender| sender.threshold_bytes);
    hand.stack.tcp_view(hand.now, 0, u32::MAX, &mut { sender });
    assert_eq!(threshold, Some(u32::MAX), "nothing was lost");
}

/// Its FIN, and the acknowledgement of ours, in one burst: the first one is acknowledged, too (RFC 9293 section 3.10.7.4).
#[test]
fn a_fin_right_before_the_last_acknowledgement_is_acknowledged() {
    let mut hand = Hand::new(Script { close: true, ..Script::default() }, |_| {});
    let sent = open(&mut hand, false, 1000);
    assert!(sent[0].flags.contains(Flags::FIN));
    let fin = segment(hand.head(Flags::FIN | Flags::ACK), b"");
    (hand.seq, hand.ack) = (hand.seq + 1, hand.ack + 1);
    let last = segment(hand.head(Flags::ACK), b"");
    let mut burst = Burst::new();
    for bytes in [fin, last] {
        let mut frame = hand.far.take().unwrap();
        assert!(frame.fill(&bytes));
        burst.push(frame);
    }
    hand.far.transmit(&mut burst);
    let answers = hand.turn();
    assert_eq!(
        answers.iter().map(|out| (out.seq, out.ack, out.flags)).collect::<Vec<_>>(),
        [(hand.ack, hand.seq, Flags::ACK)]
    );
    assert_eq!(hand.end().dead, Some(DeadReason::Closed));
    assert_eq!(hand.stack.tcp_usage(), Usage { time_wait: 1, ..Usage::default() });
}
