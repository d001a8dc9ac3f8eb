use super::*;
use crate::pipe::{self, Pipe};
use base::Counter;
use proptest::prelude::*;
use std::time::Duration;

/// Sends `count` numbered frames through a faulty sender and a faulty receiver; what arrived, and both counts.
fn run(seed: u64, receive: Rates, transmit: Rates, count: u16) -> (Vec<Vec<u8>>, [u64; 5], [u64; 5]) {
    let (mut a, mut b) = pipe::pair(&pipe::Config { frames: 512, ..pipe::Config::default() }).unwrap();
    let mut sender: Fault<Pipe> = Fault::new(a.remove(0), seed, Rates::default(), transmit);
    let mut receiver: Fault<Pipe> = Fault::new(b.remove(0), seed + 1, receive, Rates::default());
    let mut got = Vec::new();
    let mut step = |n: u32, packet: Option<u16>, sender: &mut Fault<Pipe>| {
        let now = Instant::ZERO + Duration::from_millis(1) * n;
        sender.set_time(now);
        receiver.set_time(now);
        if let Some(number) = packet {
            let mut frame = sender.take().expect("a free frame");
            assert!(frame.fill(&number.to_be_bytes()));
            let mut burst = Burst::new();
            burst.push(frame);
            assert_eq!(sender.transmit(&mut burst), 1);
        }
        sender.flush();
        let mut burst = Burst::new();
        receiver.receive(&mut burst, 64);
        for frame in burst.drain(..) {
            got.push(frame.bytes().to_vec());
            receiver.give(frame);
        }
        receiver.flush();
    };
    for n in 0..count {
        step(u32::from(n), Some(n), &mut sender);
    }
    for n in 0..200 {
        step(u32::from(count) + n, None, &mut sender);
    }
    let counts =
        |of: &Injuries| [&of.dropped, &of.corrupted, &of.duplicated, &of.reordered, &of.delayed].map(Counter::get);
    (got, counts(&sender.stats().transmitted), counts(&receiver.stats().received))
}

fn numbers(got: &[Vec<u8>]) -> Vec<u16> {
    got.iter().map(|bytes| u16::from_be_bytes(bytes[..].try_into().unwrap())).collect()
}

#[test]
fn without_rates_it_is_transparent() {
    let (got, sent, received) = run(1, Rates::default(), Rates::default(), 300);
    assert_eq!(numbers(&got), (0..300).collect::<Vec<_>>());
    assert_eq!((sent, received), ([0; 5], [0; 5]));
}

#[test]
fn everything_is_dropped_doubled_or_corrupted_at_rate_one() {
    let all = |set: fn(&mut Rates)| {
        let mut rates = Rates::default();
        set(&mut rates);
        rates
    };
    let (got, sent, _) = run(1, Rates::default(), all(|rates| rates.drop = 1.0), 50);
    assert_eq!((got.len(), sent), (0, [50, 0, 0, 0, 0]));
    let (got, _, received) = run(1, all(|rates| rates.duplicate = 1.0), Rates::default(), 50);
    assert_eq!((numbers(&got), received), ((0..50).flat_map(|n| [n, n]).collect(), [0, 0, 50, 0, 0]));
    let (got, sent, _) = run(1, Rates::default(), all(|rates| rates.corrupt = 1.0), 50);
    let flipped = numbers(&got).into_iter().zip(0u16..).map(|(got, sent)| (got ^ sent).count_ones());
    assert_eq!((flipped.collect::<Vec<_>>(), sent), (vec![1; 50], [0, 50, 0, 0, 0]));
}

#[test]
fn a_reordered_frame_comes_after_the_next_of_its_burst() {
    let (mut a, mut b) = pipe::pair(&pipe::Config::default()).unwrap();
    let mut burst = Burst::new();
    for n in 0..4u8 {
        let mut frame = a[0].take().unwrap();
        frame.fill(&[n]);
        burst.push(frame);
    }
    a[0].transmit(&mut burst);
    let rates = Rates { reorder: 1.0, ..Rates::default() };
    let mut port = Fault::new(b.remove(0), 1, rates, Rates::default());
    port.receive(&mut burst, 64);
    let order: Vec<u8> = burst.iter().map(|frame| frame.bytes()[0]).collect();
    assert_eq!(order, [1, 0, 3, 2]);
    assert_eq!(port.stats().received.reordered.get(), 2);
}

#[test]
fn a_delayed_frame_comes_when_it_is_due_and_not_before() {
    let (mut a, mut b) = pipe::pair(&pipe::Config::default()).unwrap();
    let rates = Rates { delay: 1.0, delay_below: Duration::from_millis(5), ..Rates::default() };
    let mut port = Fault::new(a.remove(0), 3, Rates::default(), rates);
    let mut burst = Burst::new();
    let mut frame = port.take().unwrap();
    frame.fill(b"late");
    burst.push(frame);
    assert_eq!(port.transmit(&mut burst), 1);
    assert_eq!(port.flush(), Outgoing::Waiting, "something is still on its way");
    let due_at = port.due_at().unwrap();
    assert!(due_at < Instant::ZERO + Duration::from_millis(5));
    port.set_time(Instant::from_nanos(due_at.as_nanos() - 1));
    port.flush();
    assert_eq!(b[0].receive(&mut burst, 64), 0);
    port.set_time(due_at);
    assert_eq!(port.flush(), Outgoing::Nothing);
    assert_eq!(b[0].receive(&mut burst, 64), 1);
    assert_eq!(port.due_at(), None);
}

/// Sends `bytes.len()` frames of those lengths at once and says when each arrives, in microseconds, and its first byte.
fn arrivals(rates: Rates, bytes: &[usize], until_us: u64) -> (Vec<(u64, u8)>, Fault<Pipe>) {
    let config = pipe::Config { frames: 512, ..pipe::Config::default() };
    let (mut a, mut b) = pipe::pair(&config).unwrap();
    let mut port = Fault::new(a.remove(0), 5, Rates::default(), rates);
    let mut burst = Burst::new();
    for (number, bytes) in (0u8..).zip(bytes) {
        let mut frame = port.take().unwrap();
        frame.fill(&vec![number; *bytes]);
        burst.push(frame);
    }
    assert_eq!(port.transmit(&mut burst), bytes.len());
    let mut got = Vec::new();
    for us in 0..until_us {
        port.set_time(Instant::from_nanos(us * 1000));
        port.flush();
        b[0].receive(&mut burst, 64);
        for frame in burst.drain(..) {
            got.push((us, frame.bytes()[0]));
            b[0].give(frame);
        }
        b[0].flush();
    }
    (got, port)
}

#[test]
fn a_long_path_delays_every_frame_and_keeps_their_order() {
    let rates = Rates { latency: Duration::from_millis(1), ..Rates::default() };
    let (got, port) = arrivals(rates, &[60; 5], 1200);
    assert_eq!(got, [0, 1, 2, 3, 4].map(|number| (1000, number)));
    assert_eq!(port.stats().transmitted.passed.get(), 5);
    assert_eq!((port.due_at(), port.stuck_frames()), (None, 0));
}

#[test]
fn a_line_sends_one_frame_after_another_and_its_queue_ends() {
    // 1000 bits take 100 us; the fourth waits 300 us, the fifth would wait 400
    let line = Some(Line { bits_per_s: 1e7, queue: Duration::from_micros(350) });
    let latency = Duration::from_micros(50);
    let (got, port) = arrivals(Rates { line, latency, ..Rates::default() }, &[125; 6], 1000);
    assert_eq!(got, [(150, 0), (250, 1), (350, 2), (450, 3)]);
    assert_eq!(port.stats().transmitted.overflowed.get(), 2);
}

#[test]
fn what_finds_no_room_is_lost_and_counted() {
    let rates = Rates { latency: Duration::from_micros(10), room_frames: Some(3), ..Rates::default() };
    let (got, port) = arrivals(rates, &[60; 7], 50);
    assert_eq!(got.len(), 3);
    let stats = &port.stats().transmitted;
    assert_eq!((stats.passed.get(), stats.overflowed.get()), (3, 4));
}

#[test]
fn a_frame_to_be_overtaken_waits_as_long_as_it_was_told() {
    let rates = Rates { reorder: 1.0, reorder_wait: Duration::from_micros(30), ..Rates::default() };
    assert_eq!(arrivals(rates, &[60, 60, 60], 100).0, [(0, 1), (0, 0), (30, 2)]);
    // and on a long path the distance comes on top
    let far = Rates { latency: Duration::from_micros(20), ..rates };
    assert_eq!(arrivals(far, &[60, 60, 60], 100).0, [(20, 1), (20, 0), (50, 2)]);
}

#[test]
fn bursts_of_loss_are_counted_apart() {
    let burst = Some(BurstLoss { enter: 1.0, leave: 0.0, drop: 1.0 });
    let (got, sent, _) = run(1, Rates::default(), Rates { burst, ..Rates::default() }, 50);
    assert_eq!((got.len(), sent[0]), (0, 0));
    let (_, port) = arrivals(Rates { burst, ..Rates::default() }, &[60; 9], 5);
    assert_eq!(port.stats().transmitted.burst_dropped.get(), 9);
}

fn rates() -> impl Strategy<Value = Rates> {
    (0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64, 0u64..100).prop_map(|(drop, duplicate, reorder, delay, ms)| {
        let delay_below = Duration::from_millis(ms);
        Rates { drop, duplicate, reorder, delay, delay_below, ..Rates::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_frame_is_accounted_for_and_a_seed_replays(seed in 0u64..1000, receive in rates(), transmit in rates()) {
        let (got, sent, received) = run(seed, receive, transmit, 200);
        let expect = 200 - sent[0] + sent[2] - received[0] + received[2];
        prop_assert_eq!(got.len() as u64, expect);
        prop_assert_eq!(run(seed, receive, transmit, 200).0, got);
    }
}

#[test]
fn gathered_frames_are_injured_as_others_are() {
    let shared: std::sync::Arc<[u8]> = (0..200).collect();
    let gather = |rates: Rates, count: u8| {
        let (mut a, mut b) = pipe::pair(&pipe::Config { frames: 512, ..pipe::Config::default() }).unwrap();
        let mut sender: Fault<Pipe> = Fault::new(a.remove(0), 5, Rates::default(), rates);
        assert!(Port::gather(&mut sender).is_none());
        sender.inner().set_gathers(true);
        let mut refused = 0;
        for n in 0..count {
            let gather = Port::gather(&mut sender).unwrap();
            let mut head = gather.frame().unwrap();
            assert!(head.fill(&[n]));
            if let Err(head) = gather.send(head, Piece::new(shared.clone(), usize::from(n), 50)) {
                gather.give_back(head);
                refused += 1;
            }
            sender.flush();
        }
        let mut got = Vec::new();
        let mut burst = Burst::new();
        while b[0].receive(&mut burst, 64) > 0 {
            for frame in burst.drain(..) {
                got.push(frame.bytes().to_vec());
                b[0].give(frame);
            }
        }
        assert_eq!(std::sync::Arc::strong_count(&shared), 1);
        (got, refused, sender.stats().transmitted.passed.get())
    };
    let whole = |n: u8| [&[n][..], &shared[usize::from(n)..][..50]].concat();
    let all: Vec<_> = (0..100).map(whole).collect();
    assert_eq!(gather(Rates::default(), 100), (all.clone(), 0, 100));
    let twice: Vec<_> = all.iter().flat_map(|packet| [packet.clone(), packet.clone()]).collect();
    assert_eq!(gather(Rates { duplicate: 1.0, ..Rates::default() }, 100), (twice, 0, 200));
    assert_eq!(gather(Rates { drop: 1.0, ..Rates::default() }, 100), (vec![], 100, 0));
    let (corrupted, _, _) = gather(Rates { corrupt: 1.0, ..Rates::default() }, 100);
    let bits = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    assert!(corrupted.iter().zip(&all).all(|(came, sent)| bits(came, sent) == 1));
}
