use super::*;
use crate::pipe::{self, Pipe};
use proptest::prelude::*;

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

fn rates() -> impl Strategy<Value = Rates> {
    (0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64, 0u64..100).prop_map(|(drop, duplicate, reorder, delay, ms)| {
        let delay_below = Duration::from_millis(ms);
        Rates { drop, corrupt: 0.0, duplicate, reorder, delay, delay_below }
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
