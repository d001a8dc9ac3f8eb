//! Segments by hand against a connection of ours: resets and SYNs that are guessed, old and mad acknowledgements, closed windows,
//! silence, floods, TIME-WAIT, ICMP.

mod hand;

use app::DeadReason;
use base::{Burst, Seq};
use hand::{A, B, Hand, OURS, THEIRS, waiting};
use port::Port as _;
use sim::{Peer, Script, pattern};
use stack::tcp::{Event, Ignored};
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::tcp::{Flags, Header, PayloadSum, Tcp, Timestamps, Verdict};
use wire::{Protocol, Sum, icmpv4, icmpv6, ipv4, ipv6};

#[test]
fn only_the_exact_reset_resets() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    for (offset, answered) in [(1u32, true), (5000, true), (20_000, false), (0u32.wrapping_sub(1), false)] {
        hand.pass(Duration::from_secs(1));
        let answers = hand.send(Header { seq: hand.seq + offset, ..hand.head(Flags::RST) }, b"");
        assert_eq!(answers.len(), usize::from(answered), "{offset}");
        assert_eq!(hand.end().dead, None);
    }
    assert_eq!((hand.ignored(Ignored::ResetInWindow), hand.ignored(Ignored::ResetOutside)), (2, 2));
    // challenges are limited
    let answers: usize =
        (1..100).map(|n| hand.send(Header { seq: hand.seq + n, ..hand.head(Flags::RST) }, b"").len()).sum();
    assert!(answers <= 1, "{answers}");
    assert!(hand.send(hand.head(Flags::RST), b"").is_empty());
    assert_eq!(hand.end().dead, Some(DeadReason::Reset));
}

#[test]
fn a_syn_or_a_mad_acknowledgement_is_challenged_and_changes_nothing() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let (seq, ack) = (hand.seq, hand.ack);
    for header in [
        Header { seq: seq + 7, ..hand.head(Flags::SYN) },
        Header { ack: ack + 1, ..hand.head(Flags::ACK) },
        Header { ack: ack - 200_000, ..hand.head(Flags::ACK) },
        Header { seq: seq + 40_000, ..hand.head(Flags::ACK) },
    ] {
        hand.pass(Duration::from_secs(1));
        let answers = hand.send(header, b"");
        assert_eq!(answers.len(), 1, "{header:?}");
        assert_eq!((answers[0].flags, answers[0].seq, answers[0].ack), (Flags::ACK, ack, seq));
    }
    assert_eq!(hand.event(Event::Challenge), 4);
    assert_eq!(hand.end().dead, None);
    // and it goes on
    let bytes: Vec<u8> = (0..10).map(pattern).collect();
    hand.send(hand.head(Flags::ACK), &bytes);
    assert_eq!(hand.end().received, 10);
}

#[test]
fn a_connection_of_many_hours_is_challenged_as_a_young_one() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let old = |hand: &mut Hand| hand.send(Header { seq: hand.seq - 1, ..hand.head(Flags::ACK) }, b"").len();
    assert_eq!((old(&mut hand), old(&mut hand)), (1, 0), "one within half a second");
    for n in 0..60 {
        hand.now += Duration::from_secs(1800);
        hand.send(hand.head(Flags::ACK), &[pattern(n)]);
        hand.seq += 1;
        hand.pass(Duration::from_millis(100));
        assert_eq!((old(&mut hand), old(&mut hand)), (1, 0), "{n}");
        // and who is not challenged for most of a day
        if n == 20 {
            for _ in 0..22 {
                hand.now += Duration::from_secs(1800);
                hand.send(hand.head(Flags::ACK), b"");
            }
            assert_eq!(old(&mut hand), 1);
        }
    }
    assert_eq!((hand.end().dead, hand.end().received), (None, 60));
}

#[test]
fn silence_of_more_than_a_tick_can_say_is_asked_about_after_eight_hours() {
    for hours in [8, 9, 12, 200] {
        let mut hand = Hand::new(waiting(), |tcp| tcp.times.keepalive = Some(Duration::from_secs(hours * 3600)));
        hand.open(true);
        let end = hand.now + Duration::from_secs(9 * 3600);
        let (mut turns, mut probes) = (0, Vec::new());
        while let Some(due) = hand.due.filter(|due| *due < end) {
            hand.now = hand.now.max(due);
            probes.extend(hand.turn());
            turns += 1;
            assert!(turns < 2000, "called again and again at {:?}", hand.now);
        }
        assert_eq!(probes[0].at.as_nanos() / 60_000_000_000, 8 * 60, "{hours} hours");
        assert!(probes.last().unwrap().flags.contains(Flags::RST));
        assert_eq!(hand.end().dead, Some(DeadReason::TimedOut));
    }
}

#[test]
fn after_a_silence_in_which_its_clock_may_go_round_a_peer_is_heard() {
    let clock = |value: u32| Some(Timestamps { value, echo: 0 });
    let opened = || {
        let mut hand = Hand::new(waiting(), |tcp| tcp.times.keepalive = None);
        let syn_ack = hand.send(Header { timestamps: clock(7), ..hand.head(Flags::SYN) }, b"");
        (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
        hand.send(Header { timestamps: clock(7), ..hand.head(Flags::ACK) }, b"");
        hand
    };
    let byte = |hand: &mut Hand, n: u64, value| {
        hand.send(Header { timestamps: clock(value), ..hand.head(Flags::ACK) }, &[pattern(n)]);
        hand.end().received
    };
    // 2^31 microseconds are 2,147.5 s
    for (seconds, heard) in [(2_147, 0), (2_148, 1), (60_000, 1)] {
        let mut hand = opened();
        hand.now += Duration::from_secs(seconds);
        assert_eq!(
            (byte(&mut hand, 0, 7u32.wrapping_sub(1000)), hand.ignored(Ignored::OldTimestamp)),
            (heard, 1 - heard)
        );
    }
    // an hour of a clock of microseconds, and from then on its word counts
    let mut hand = opened();
    hand.now += Duration::from_secs(3600);
    assert_eq!(byte(&mut hand, 0, 7u32.wrapping_add(3_600_000_000)), 1);
    hand.seq += 1;
    hand.pass(Duration::from_secs(1));
    let older = 7u32.wrapping_add(3_599_999_999);
    assert_eq!((byte(&mut hand, 1, older), hand.ignored(Ignored::OldTimestamp)), (1, 1), "older than the last");
    assert_eq!(byte(&mut hand, 1, 7u32.wrapping_add(3_601_000_000)), 2);
}

#[test]
fn sack_tells_what_is_kept_and_what_came_twice() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let bytes: Vec<u8> = (0..5000).map(pattern).collect();
    let seq = hand.seq;
    let piece = |hand: &mut Hand, from: u32, to: u32| {
        let answers =
            hand.send(Header { seq: seq + from, ..hand.head(Flags::ACK) }, &bytes[from as usize..to as usize]);
        let last = answers.last().expect("an acknowledgement at once").clone();
        let blocks: Vec<(u32, u32)> =
            last.sack.iter().map(|block| (block.left.since(seq), block.right.since(seq))).collect();
        (last.ack.since(seq), blocks)
    };
    assert_eq!(piece(&mut hand, 1000, 2000), (0, vec![(1000, 2000)]));
    assert_eq!(piece(&mut hand, 3000, 4000), (0, vec![(3000, 4000), (1000, 2000)]));
    assert_eq!(piece(&mut hand, 1000, 2000), (0, vec![(1000, 2000), (1000, 2000), (3000, 4000)]));
    assert_eq!(piece(&mut hand, 0, 1000), (2000, vec![(3000, 4000)]));
    assert_eq!(piece(&mut hand, 500, 1500), (2000, vec![(500, 1500), (3000, 4000)]));
    assert_eq!(piece(&mut hand, 2000, 3000), (4000, vec![]));
    assert_eq!(hand.end().received, 4000);
}

#[test]
fn small_segments_in_a_row_beyond_a_gap_share_blocks() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.blocks_per_connection = 6);
    hand.open(true);
    let bytes: Vec<u8> = (0..9000).map(pattern).collect();
    let (seq, mut told) = (hand.seq, Vec::new());
    for from in (100..9000u32).step_by(100) {
        let flags = if from == 8900 { Flags::ACK | Flags::FIN } else { Flags::ACK };
        let answers = hand.send(Header { seq: seq + from, ..hand.head(flags) }, &bytes[from as usize..][..100]);
        told = answers[0].sack.iter().map(|block| (block.left.since(seq), block.right.since(seq))).collect();
    }
    // the FIN as well, which has a number of its own
    assert_eq!((told, hand.stack.tcp_usage().blocks), (vec![(100, 9001)], 6));
    let answers = hand.send(hand.head(Flags::ACK), &bytes[..100]);
    assert_eq!(answers[0].ack, seq + 9001, "the FIN as well");
    assert_eq!((hand.end().received, hand.end().eof, hand.stack.tcp_usage().blocks), (9000, true, 0));
}

#[test]
fn a_closed_window_is_probed_and_given_up_or_opened() {
    for opens in [false, true] {
        let mut hand = Hand::new(Script { send: 100, piece: 100, ..Script::default() }, |_| {});
        let syn_ack = hand.send(Header { window: 0, ..hand.head(Flags::SYN) }, b"");
        (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
        assert!(hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"").is_empty());
        let probes = hand.pass(Duration::from_secs(60));
        assert!((4..=8).contains(&probes.len()), "{}", probes.len());
        let gaps: Vec<Duration> = probes.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        assert!(gaps.windows(2).all(|pair| pair[1] > pair[0]), "{gaps:?}");
        if opens {
            let data = hand.send(hand.head(Flags::ACK), b"");
            assert_eq!(data[0].payload, (0..100).map(pattern).collect::<Vec<u8>>());
        } else {
            // acknowledged probes keep nobody's memory for ever
            for _ in 0..10 {
                hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"");
                hand.pass(Duration::from_secs(10));
            }
            assert_eq!(hand.end().dead, Some(DeadReason::TimedOut));
            assert_eq!(hand.stack.tcp_usage(), stack::tcp::Usage::default());
        }
    }
}

#[test]
fn a_scaled_window_does_not_creep_beyond_the_buffer() {
    for window_bytes in [65_536, 1 << 20] {
        let script = Script { slow: Some(Duration::from_secs(3600)), ..waiting() };
        let mut hand = Hand::new(script, |tcp| {
            tcp.listeners.iter_mut().for_each(|listener| listener.window_bytes = window_bytes);
        });
        hand.open(true);
        let bytes: Vec<u8> = (0..2 * u64::from(window_bytes)).map(pattern).collect();
        let mut taken = 0;
        // full segments, then single bytes, each of which is acknowledged; nothing is given back
        for _ in 0..u64::from(window_bytes) / 1000 + 1800 {
            let most = if window_bytes - taken > 1500 { 1000 } else { 1 };
            let some = &bytes[taken as usize..][..most];
            hand.send(hand.head(Flags::ACK), some);
            hand.seq += some.len() as u32;
            let answers = hand.pass(Duration::from_millis(50));
            taken = hand.end().received as u32;
            assert!(taken <= window_bytes, "{taken} of {window_bytes} bytes and more");
            hand.seq = answers.last().map_or(hand.seq, |out| out.ack);
        }
        assert!(taken > window_bytes - 1000, "{taken} of {window_bytes} bytes");
    }
}

#[test]
fn probes_of_a_closed_window_are_no_retransmissions() {
    for probes in 1..8 {
        let mut hand = Hand::new(Script { send: 5000, piece: 5000, ..Script::default() }, |_| {});
        let syn = Header { mss: Some(1000), window: 0, sack_permitted: true, ..hand.head(Flags::SYN) };
        let syn_ack = hand.send(syn, b"");
        (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
        hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"");
        while hand.event(Event::WindowProbe) < probes {
            hand.pass(Duration::from_millis(100));
            hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"");
        }
        // it opens, and all of the first flight is lost
        assert_eq!(hand.send(hand.head(Flags::ACK), b"").len(), 5);
        let mut again = Vec::new();
        while hand.event(Event::RetransmissionTimeout) < 2 {
            again.extend(hand.pass(Duration::from_millis(10)));
        }
        // the probe for the loss of the last segment may be the FIN alone
        let data = again.iter().filter(|out| !out.flags.contains(Flags::FIN));
        assert_eq!(data.map(|out| out.payload.len()).collect::<Vec<_>>(), [1000, 1000], "{probes} probes");
        assert_eq!((hand.event(Event::PathMtu), hand.end().dead), (0, None), "{probes} probes");
        hand.take_all();
        assert_eq!(hand.end().acknowledged, 5000);
    }
}

/// Three segments are in flight, and the last acknowledgement is of a moment ago.
fn in_flight() -> Hand {
    let mut hand = Hand::new(Script { send: 3000, piece: 3000, ..Script::default() }, |_| {});
    hand.open(true);
    hand
}

#[test]
fn an_acknowledgement_that_comes_when_the_timer_is_due_is_heard_first() {
    let mut silent = in_flight();
    while silent.event(Event::TailLossProbe) == 0 {
        silent.now += Duration::from_micros(100);
        silent.turn();
    }
    for (acknowledged, probes) in [(1000, 0), (0, 1)] {
        let mut hand = in_flight();
        hand.now = silent.now;
        hand.ack += acknowledged;
        let again = hand.send(hand.head(Flags::ACK), b"");
        assert_eq!((hand.event(Event::TailLossProbe), again.len()), (probes, probes as usize), "{acknowledged} bytes");
        // and what it leaves in flight has a timer of its own
        hand.pass(Duration::from_millis(300));
        assert_eq!(hand.event(Event::TailLossProbe), 1, "{acknowledged} bytes");
    }
}

#[test]
fn who_closes_with_a_full_window_opens_it_at_once() {
    // the FIN does not tell it: it waits behind data for which the peer has no room
    let script =
        Script { send: 1500, piece: 500, close: true, slow: Some(Duration::from_secs(3600)), ..Script::default() };
    let mut hand = Hand::new(script, |tcp| {
        tcp.limits.ranges_per_connection = 2;
        tcp.listeners.iter_mut().for_each(|listener| listener.window_bytes = 2000);
    });
    let syn_ack = hand.send(Header { mss: Some(1000), ..hand.head(Flags::SYN) }, b"");
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
    hand.send(Header { window: 1000, ..hand.head(Flags::ACK) }, b"");
    let bytes: Vec<u8> = (0..2000).map(pattern).collect();
    let mut told = None;
    for some in bytes.chunks(1000) {
        told = hand.send(Header { window: 1000, ..hand.head(Flags::ACK) }, some).last().map(|out| out.window);
        hand.seq += 1000;
    }
    assert_eq!((told, hand.end().received, hand.end().finished), (Some(0), 2000, false));
    // there is room for the last range, and it closes
    hand.ack += 1000;
    let answers = hand.send(Header { window: 0, ..hand.head(Flags::ACK) }, b"");
    assert!(hand.end().finished);
    assert_eq!(answers.iter().map(|out| (out.ack, out.window)).collect::<Vec<_>>(), [(hand.seq, 2000)]);
}

#[test]
fn a_handshake_that_was_lost_twice_begins_with_one_segment() {
    let script = Script { send: 50_000, piece: 50_000, ..Script::default() };
    let header = |hand: &Hand, flags| Header { mss: Some(1000), ..hand.head(flags) };
    for (lost, begins) in [(0, 10), (1, 10), (2, 1), (3, 1)] {
        for asks in [false, true] {
            let mut hand = Hand::new(script.clone(), |_| {});
            let (mut came, answer) = if asks {
                hand.peer = Peer::with(1, script.clone());
                let (local, peer) = (SocketAddr::new(A.into(), 80), SocketAddr::new(B.into(), 4000));
                hand.stack.connect(hand.now, local, peer, THEIRS, 1, 10_000).unwrap();
                (hand.turn(), Flags::SYN | Flags::ACK)
            } else {
                (hand.send(header(&hand, Flags::SYN), b""), Flags::ACK)
            };
            while came.len() <= lost {
                came.extend(hand.pass(Duration::from_millis(10)));
            }
            hand.seq += u32::from(!asks);
            hand.ack = came[0].seq + 1;
            let mut flight = hand.send(header(&hand, answer), b"");
            flight.retain(|out| !out.payload.is_empty());
            assert_eq!(flight.len(), begins, "{lost} lost, we ask: {asks}");
        }
    }
}

/// Opens a connection without SACK and lets its first flight, of nine segments or ten, run into the timeout.
fn timed_out(send: u64) -> Hand {
    let mut hand = Hand::new(Script { send, piece: 60_000, ..Script::default() }, |_| {});
    hand.open(false);
    let again = hand.pass(Duration::from_millis(300));
    assert_eq!((again.len(), again[0].seq, again[0].payload.len()), (1, hand.ack, 1000), "the first again");
    assert_eq!(hand.event(Event::RetransmissionTimeout), 1);
    hand
}

#[test]
fn a_repair_that_closes_a_gap_does_not_make_its_timeout_spurious() {
    // all of it is in flight
    let mut hand = timed_out(9000);
    // the first and the fifth were lost; without SACK nobody knows that the three between had long been there
    hand.ack += 4000;
    let again = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!((hand.event(Event::Undone), again[0].seq), (0, hand.ack));
    let mut smoothed = None;
    hand.stack.tcp_view(hand.now, 0, u32::MAX, &mut |view| smoothed = view.round_trip.map(|(smoothed, _)| smoothed));
    assert!(smoothed.unwrap() < Duration::from_millis(1), "{smoothed:?} with what waited for the repair");
    hand.take_all();
    assert_eq!(hand.end().acknowledged, 9000);
}

#[test]
fn without_sack_the_second_acknowledgement_tells_that_a_timeout_was_spurious() {
    let mut hand = timed_out(50_000);
    let nxt = hand.ack + 10_000;
    hand.ack += 2000;
    let new = hand.send(hand.head(Flags::ACK), b"");
    assert!(!new.is_empty() && new.iter().all(|out| out.seq.geq(nxt)), "only new data tell: {new:?}");
    assert_eq!(hand.event(Event::Undone), 0);
    hand.ack += 1000;
    hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(hand.event(Event::Undone), 1);
    hand.take_all();
    assert_eq!(hand.end().acknowledged, 50_000);
}

#[test]
fn silence_is_asked_about_and_ends() {
    let mut hand = Hand::new(waiting(), |tcp| {
        tcp.times.keepalive = Some(Duration::from_secs(10));
        tcp.times.keepalive_interval = Duration::from_secs(5);
        tcp.times.keepalive_probes = 3;
    });
    hand.open(true);
    let probes = hand.pass(Duration::from_secs(12));
    assert_eq!((probes.len(), probes[0].seq), (1, hand.ack - 1));
    hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(hand.pass(Duration::from_secs(9)).len(), 0);
    let probes = hand.pass(Duration::from_secs(17));
    assert_eq!(probes.iter().filter(|probe| !probe.flags.contains(Flags::RST)).count(), 3);
    assert!(probes.last().unwrap().flags.contains(Flags::RST));
    assert_eq!(hand.end().dead, Some(DeadReason::TimedOut));
}

#[test]
fn strangers_get_resets_and_their_resets_none() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.challenges_per_second = 10);
    hand.to = 81;
    let answers = hand.send(hand.head(Flags::SYN), b"");
    assert_eq!((answers[0].flags, answers[0].ack), (Flags::RST | Flags::ACK, hand.seq + 1));
    let answers = hand.send(Header { ack: Seq::new(77), ..hand.head(Flags::ACK) }, b"abc");
    assert_eq!((answers[0].flags, answers[0].seq), (Flags::RST, Seq::new(77)));
    assert!(hand.send(hand.head(Flags::RST), b"").is_empty());
    let answers: usize = (0..100).map(|_| hand.send(hand.head(Flags::ACK), b"").len()).sum();
    assert!(answers <= 15, "{answers}");
}

#[test]
fn a_peer_that_remembers_an_older_connection_is_reset_and_asked_again_soon() {
    let mut hand = Hand::new(waiting(), |_| {});
    let (local, peer) = (SocketAddr::new(A.into(), 80), SocketAddr::new(B.into(), 4000));
    hand.peer = Peer::with(1, waiting());
    hand.stack.connect(hand.now, local, peer, THEIRS, 1, 10_000).unwrap();
    let syn = hand.turn().remove(0);
    let old = Header { ack: syn.seq - 5000, ..hand.head(Flags::ACK) };
    let answers = hand.send(old, b"");
    assert_eq!((answers.len(), answers[0].flags, answers[0].seq), (1, Flags::RST, syn.seq - 5000));
    let again = hand.pass(Duration::from_millis(50));
    assert_eq!((again.len(), again[0].seq), (1, syn.seq));
    assert!(again[0].flags.contains(Flags::SYN));
    // once: a stranger cannot have SYNs sent
    assert_eq!(hand.send(old, b"")[0].flags, Flags::RST);
    assert!(hand.pass(Duration::from_millis(900)).is_empty());
    hand.ack = syn.seq + 1;
    hand.send(hand.head(Flags::SYN | Flags::ACK), b"");
    assert_eq!(hand.event(Event::Connected), 1);
}

#[test]
fn a_flood_gets_cookies_that_keep_sack_and_scale() {
    let mut hand = Hand::new(Script { send: 50_000, piece: 50_000, ..Script::default() }, |tcp| {
        tcp.limits.half_open = 4;
    });
    for port in 1..=1000 {
        hand.from = port;
        hand.send(Header { mss: Some(1460), ..hand.head(Flags::SYN) }, b"");
    }
    assert_eq!((hand.event(Event::HalfOpen), hand.event(Event::Cookie)), (4, 996));
    assert_eq!(hand.stack.tcp_usage().half_open, 4);
    hand.from = 4000;
    let syn_ack = hand.open(true);
    assert!(syn_ack.sack_permitted && syn_ack.scale.is_some() && syn_ack.mss == Some(1460));
    assert_eq!(hand.event(Event::CookieAccepted), 1);
    // the scale of 2 counts: more than 65,535 bytes are allowed, and the answer begins with ten segments
    let data = hand.send(Header { window: 20_000, ..hand.head(Flags::ACK) }, b"");
    assert_eq!(data.len(), 0, "the first window was sent with the handshake");
    // a guess does not pass
    hand.from = 4001;
    let answers = hand.send(hand.head(Flags::ACK), b"");
    assert!(answers[0].flags.contains(Flags::RST));
    assert_eq!(hand.ignored(Ignored::BadCookie), 1);
}

#[test]
fn half_open_entries_are_retried_and_end_and_sources_are_bounded() {
    let mut hand = Hand::new(waiting(), |tcp| tcp.limits.half_open_per_source = 3);
    for port in 1..=5 {
        hand.from = port;
        hand.send(hand.head(Flags::SYN), b"");
    }
    // beyond the bound cookies go out, since somebody may send in the source's name
    assert_eq!((hand.event(Event::SourceHalfOpen), hand.event(Event::Cookie)), (2, 2));
    assert_eq!(hand.ignored(Ignored::SourceLimit), 0);
    let again = hand.pass(Duration::from_secs(40));
    assert_eq!(again.len(), 3 * 4, "each four times more");
    assert_eq!(hand.event(Event::HalfOpenTimeout), 3);
    assert_eq!(hand.stack.tcp_usage(), stack::tcp::Usage::default());
}

#[test]
fn a_repeated_syn_is_answered_with_its_own_clock() {
    let mut hand = Hand::new(waiting(), |_| {});
    let mut echo_of_syn = |seq_off: u32, value| {
        let syn = hand.head(Flags::SYN);
        let timestamps = Some(Timestamps { value, echo: 0 });
        let answers = hand.send(Header { seq: syn.seq + seq_off, timestamps, ..syn }, b"");
        answers[0].timestamps.map(|clock| clock.echo)
    };
    assert_eq!(echo_of_syn(0, u32::MAX - 10), Some(u32::MAX - 10));
    // a second later: the peer's clock has wrapped (RFC 7323 section 4.3 (2))
    assert_eq!(echo_of_syn(0, 990), Some(990));
    // the first one, late; and a SYN with another number, which is challenged
    assert_eq!(echo_of_syn(0, u32::MAX - 10), Some(990));
    assert_eq!(echo_of_syn(7, 2000), Some(990));
    assert_eq!(hand.stack.tcp_usage().half_open, 1);
}

#[test]
fn time_wait_answers_the_fin_again_and_lets_a_newer_connection_in() {
    let mut hand = Hand::new(Script::default(), |_| {});
    hand.open(false);
    // the service finished at once; so do we
    hand.ack += 1;
    let answers = hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
    assert_eq!((answers.len(), answers[0].ack), (1, hand.seq + 1));
    assert_eq!(hand.end().dead, Some(DeadReason::Closed));
    assert_eq!(hand.stack.tcp_usage().time_wait, 1);
    let answers = hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
    assert_eq!((answers.len(), answers[0].ack, answers[0].seq), (1, hand.seq + 1, hand.ack));
    // an old SYN is not a new connection
    let old = hand.send(Header { seq: hand.seq - 5, ..hand.head(Flags::SYN) }, b"");
    assert!(!old[0].flags.contains(Flags::SYN));
    let new = hand.send(Header { seq: hand.seq + 100, ..hand.head(Flags::SYN) }, b"");
    assert_eq!(new[0].flags, Flags::SYN | Flags::ACK);
    assert!(new[0].seq.gt(hand.ack), "beyond the old connection's numbers");
    assert_eq!(hand.event(Event::TimeWaitReused), 1);
    assert_eq!(hand.stack.tcp_usage().time_wait, 0);
}

/// While only a cookie could answer: its number is anywhere, and without timestamps nothing tells the old segments from the new ones.
#[test]
fn time_wait_lets_nobody_in_whom_neither_a_number_nor_a_clock_tells_apart() {
    for stamped in [false, true] {
        let mut hand = Hand::new(Script::default(), |tcp| tcp.limits.half_open = 1);
        hand.open(false);
        hand.ack += 1;
        hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
        assert_eq!(hand.stack.tcp_usage().time_wait, 1);
        hand.from += 1;
        hand.send(hand.head(Flags::SYN), b"");
        assert_eq!(hand.stack.tcp_usage().half_open, 1);
        hand.from -= 1;
        let timestamps = stamped.then_some(Timestamps { value: 1000, echo: 0 });
        let syn = Header { seq: hand.seq + 100, mss: Some(1460), timestamps, ..hand.head(Flags::SYN) };
        let answers = hand.send(syn, b"");
        assert_eq!(answers.len(), usize::from(stamped));
        assert_eq!((hand.event(Event::Cookie), hand.event(Event::TimeWaitReused)), (stamped.into(), stamped.into()));
        assert_eq!(hand.ignored(Ignored::NoHalfOpen), u64::from(!stamped));
        // TIME-WAIT goes on where the SYN was not taken
        assert_eq!(hand.stack.tcp_usage().time_wait, usize::from(!stamped));
    }
}

#[test]
fn time_wait_ends() {
    let mut hand = Hand::new(Script::default(), |tcp| tcp.times.time_wait = Duration::from_secs(2));
    hand.open(false);
    hand.ack += 1;
    hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
    assert_eq!(hand.stack.tcp_usage().time_wait, 1);
    hand.pass(Duration::from_secs(3));
    assert_eq!(hand.stack.tcp_usage(), stack::tcp::Usage::default());
}

#[test]
fn time_wait_that_is_over_answers_nobody() {
    for syn in [false, true] {
        let mut hand = Hand::new(Script::default(), |tcp| tcp.times.time_wait = Duration::from_secs(2));
        hand.open(false);
        hand.ack += 1;
        hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
        assert_eq!(hand.stack.tcp_usage().time_wait, 1);
        // nothing has called the stack meanwhile
        hand.now += Duration::from_secs(3);
        if syn {
            // older than the connection was: TIME-WAIT would not let it in
            let answers = hand.send(Header { seq: hand.seq - 5, ..hand.head(Flags::SYN) }, b"");
            assert_eq!((answers.len(), answers[0].flags), (1, Flags::SYN | Flags::ACK));
        } else {
            let answers = hand.send(hand.head(Flags::FIN | Flags::ACK), b"");
            assert_eq!((answers.len(), answers[0].flags), (1, Flags::RST));
        }
        assert_eq!((hand.stack.tcp_usage().time_wait, hand.event(Event::TimeWaitReused)), (0, 0));
    }
}

#[test]
fn a_router_lowers_the_mtu_only_for_what_is_in_flight() {
    let mut hand = Hand::new(Script { send: 5000, piece: 5000, ..Script::default() }, |_| {});
    let syn_ack = hand.send(Header { mss: Some(1460), ..hand.head(Flags::SYN) }, b"");
    (hand.seq, hand.ack) = (hand.seq + 1, syn_ack[0].seq + 1);
    let data = hand.send(hand.head(Flags::ACK), b"");
    assert_eq!(data[0].payload.len(), 1460);
    let error = |seq: Seq, mtu: u16| {
        let mut message = vec![3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8];
        let mut quoted = [0; 20];
        ipv4::Header { src: A, dst: B, protocol: Protocol::TCP, ttl: 60, payload_bytes: 1480 }.write(&mut quoted);
        message.extend(quoted);
        message.extend([0, 80, 0x0f, 0xa0]);
        message.extend(seq.to_be_bytes());
        let sum = Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&sum);
        assert!(icmpv4::Icmp::parse(&message).is_ok());
        Hand::frame(Protocol::ICMP, &message)
    };
    assert!(hand.inject(&error(hand.ack - 1000, 1000)).is_empty());
    assert_eq!((hand.event(Event::IcmpIgnored), hand.event(Event::PathMtu)), (1, 0));
    let again = hand.inject(&error(hand.ack, 1000));
    assert_eq!(hand.event(Event::PathMtu), 1);
    assert!(!again.is_empty() && again.iter().all(|segment| segment.payload.len() <= 960), "{}", again.len());
    assert_eq!(again[0].seq, hand.ack);
    // an absurd MTU is not believed
    hand.inject(&error(hand.ack, 68));
    let again = hand.pass(Duration::from_secs(3));
    assert!(again.iter().all(|segment| segment.payload.len() > 500 || segment.flags.contains(Flags::FIN)), "{again:?}");
}

#[test]
fn addresses_reach_the_service() {
    let mut hand = Hand::new(waiting(), |_| {});
    hand.open(true);
    let expect: (SocketAddr, SocketAddr) = ("192.0.2.1:80".parse().unwrap(), "192.0.2.2:4000".parse().unwrap());
    assert_eq!((hand.peer.addresses[0].local, hand.peer.addresses[0].peer), expect);
}

/// An ICMP error of kind and code about the segment of ours that a frame holds.
fn error_about(frame: &[u8], [kind, code]: [u8; 2], mtu: u32) -> Vec<u8> {
    let packet = &frame[14..];
    let mut message = vec![0; 8];
    message.extend(&packet[..packet.len().min(60)]);
    if packet[0] >> 4 == 4 {
        message[..2].copy_from_slice(&[kind, code]);
        let sum = Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&sum);
        return Hand::frame(Protocol::ICMP, &message);
    }
    let [ours, theirs]: [Ipv6Addr; 2] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
    icmpv6::write_error(&mut message, [kind, code], mtu, theirs, ours);
    let mut head = [0; ipv6::HEADER_BYTES];
    let (next_header, payload_bytes) = (Protocol::ICMPV6, message.len());
    ipv6::Header { src: theirs, dst: ours, next_header, hop_limit: 64, payload_bytes }.write(&mut head);
    let mut link = [0; 14];
    Link { dst: OURS, src: THEIRS, tag: None, ether_type: EtherType::IPV6 }.write(&mut link);
    [&link[..], &head, &message].concat()
}

/// Asks for a connection and returns the SYN, as a frame.
fn ask(hand: &mut Hand, local: &str, remote: &str) -> Vec<u8> {
    hand.peer = Peer::with(1, waiting());
    let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
    hand.stack.connect(hand.now, local, remote, THEIRS, 1, 10_000).unwrap();
    let (mut tx, mut syns) = (Burst::new(), Burst::new());
    hand.stack.poll(hand.now, &mut hand.port, &mut tx, &mut hand.peer);
    hand.port.transmit(&mut tx);
    hand.far.receive(&mut syns, 64);
    let syn = syns.drain(..).next().expect("a SYN");
    let bytes = syn.bytes().to_vec();
    hand.far.give(syn);
    hand.far.flush();
    bytes
}

#[test]
fn only_the_destinations_own_word_ends_a_connection_that_is_asked_for() {
    let families = [("192.0.2.1:80", "192.0.2.2:4000"), ("[2001:db8::1]:80", "[2001:db8::2]:4000")];
    let passing: [&[[u8; 2]]; 2] = [
        &[[3, 0], [3, 1], [3, 5], [3, 9], [3, 10], [3, 13], [11, 0], [12, 0]],
        &[[1, 0], [1, 1], [1, 3], [1, 5], [3, 0], [4, 1]],
    ];
    let last: [&[[u8; 2]]; 2] = [&[[3, 2], [3, 3]], &[[1, 4]]];
    for (n, (local, remote)) in families.into_iter().enumerate() {
        for (errors, ends) in [(passing[n], false), (last[n], true)] {
            for error in errors {
                let mut hand = Hand::new(waiting(), |_| {});
                let syn = ask(&mut hand, local, remote);
                hand.inject(&error_about(&syn, *error, 0));
                assert_eq!(hand.event(Event::IcmpIgnored), 0, "{remote} {error:?} was not taken");
                let refused: &[DeadReason] = if ends { &[DeadReason::Unreachable] } else { &[] };
                assert_eq!(hand.peer.refused, refused, "{remote} {error:?}");
            }
        }
    }
}

#[test]
fn no_link_of_ipv6_is_narrower_than_1280() {
    for (mtu, ignored) in [(0, 1), (68, 1), (1279, 1), (1280, 0), (1400, 0)] {
        let mut hand = Hand::new(waiting(), |_| {});
        let syn = ask(&mut hand, "[2001:db8::1]:80", "[2001:db8::2]:4000");
        hand.inject(&error_about(&syn, [2, 0], mtu));
        assert_eq!(hand.event(Event::IcmpIgnored), ignored, "{mtu}");
    }
}

/// A segment over IPv6 without data, behind a destination-options header of so many bytes of padding.
fn behind_options(header: &Header<'_>, option_bytes: usize) -> Vec<u8> {
    let [ours, theirs]: [Ipv6Addr; 2] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
    let mut options = vec![Protocol::TCP.0, (option_bytes / 8).saturating_sub(1) as u8];
    while options.len() < option_bytes {
        // PadN (RFC 8200 section 4.2)
        let bytes = match option_bytes - options.len() {
            rest @ ..=257 => rest,
            rest => 257.min(rest - 2),
        };
        options.extend([1, (bytes - 2) as u8]);
        options.resize(options.len() + bytes - 2, 0);
    }
    options.truncate(option_bytes);
    let mut segment = vec![0; header.bytes()];
    let sum = Sum::pseudo_v6(theirs, ours, Protocol::TCP, segment.len() as u32);
    header.write(&mut segment, sum, PayloadSum::Known(Sum::ZERO));
    let mut head = [0; ipv6::HEADER_BYTES];
    let next_header = if option_bytes > 0 { Protocol::DESTINATION_OPTIONS } else { Protocol::TCP };
    let payload_bytes = options.len() + segment.len();
    ipv6::Header { src: theirs, dst: ours, next_header, hop_limit: 64, payload_bytes }.write(&mut head);
    let mut link = [0; 14];
    Link { dst: OURS, src: THEIRS, tag: None, ether_type: EtherType::IPV6 }.write(&mut link);
    [&link[..], &head, &options, &segment].concat()
}

/// What answers a frame at once, in the same frame.
fn answers(hand: &mut Hand, bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
    let mut frame = hand.port.take().unwrap();
    assert!(frame.fill(bytes), "{} bytes", bytes.len());
    rx.push(frame);
    hand.stack.input(hand.now, &mut rx, &mut tx, &mut free, &mut hand.peer);
    let sent = tx.iter().map(|frame| frame.bytes().to_vec()).collect();
    tx.drain(..).chain(free.drain(..)).for_each(|frame| hand.port.give(frame));
    sent
}

#[test]
fn an_answer_finds_room_wherever_in_its_frame_the_segment_stood() {
    let mut hand = Hand::new(waiting(), |_| {});
    let timestamps = Some(Timestamps { value: 1, echo: 0 });
    let syn = Header { mss: Some(1000), timestamps, ..hand.head(Flags::SYN) };
    assert_eq!(answers(&mut hand, &behind_options(&syn, 0)).len(), 1, "a SYN-ACK");
    // another number, of the same tuple, without room for what the answer has behind it: a challenge with a timestamp
    let again = Header { seq: hand.seq + 1000, ..hand.head(Flags::SYN) };
    for option_bytes in [0, 8, 800, 1712] {
        hand.now += Duration::from_secs(1);
        let came = answers(&mut hand, &behind_options(&again, option_bytes));
        let [challenge] = &came[..] else { panic!("{came:?}") };
        let ip = ipv6::Ipv6::parse(&challenge[14..]).unwrap();
        let tcp = Tcp::parse(ip.payload()).unwrap();
        assert_eq!((ip.next_header(), ip.payload().len()), (Protocol::TCP, 32));
        let pseudo = Sum::pseudo_v6(ip.src(), ip.dst(), Protocol::TCP, 32);
        assert_eq!((tcp.verdict(pseudo), tcp.flags()), (Verdict::Good, Flags::ACK));
        assert!(tcp.options().timestamps.is_some());
        assert_eq!((&challenge[..6], &challenge[6..12]), (&THEIRS[..], &OURS[..]));
    }
}
