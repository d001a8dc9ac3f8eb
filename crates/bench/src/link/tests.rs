use super::*;
use port::fault::{BurstLoss, Line};
use port::pipe::{self, Pipe};
use proptest::prelude::*;

/// A host's end of a pipe, and what it got.
struct Host {
    port: Pipe,
    got: Vec<Vec<u8>>,
}

impl Host {
    fn send(&mut self, bytes: &[u8]) {
        let mut frame = self.port.take().expect("a free frame");
        assert!(frame.fill(bytes));
        let mut burst = Burst::new();
        burst.push(frame);
        assert_eq!(self.port.transmit(&mut burst), 1);
    }

    fn hear(&mut self) {
        self.port.flush();
        let mut burst = Burst::new();
        self.port.receive(&mut burst, 64);
        for frame in burst.drain(..) {
            self.got.push(frame.bytes().to_vec());
            self.port.give(frame);
        }
        self.port.flush();
    }
}

/// `count` frames each way, one a step of 100 us, and then silence; what arrived at either host, and the counts.
fn run(seed: u64, rates: [Rates; 2], count: u32, queues: usize) -> ([Vec<Vec<u8>>; 2], [Counts; 2]) {
    let config = pipe::Config { queues, frames: 2048, ..pipe::Config::default() };
    let (mut host_a, end_a) = pipe::pair(&config).unwrap();
    let (end_b, mut host_b) = pipe::pair(&config).unwrap();
    let mut link = Link::new([end_a, end_b], seed, rates);
    // the last queue, so that all of them are looked at
    let mut hosts = [host_a.pop(), host_b.pop()].map(|port| Host { port: port.unwrap(), got: Vec::new() });
    // what is passed on leaves by the first
    let mut first = [host_a.pop(), host_b.pop()].map(|port| port.map(|port| Host { port, got: Vec::new() }));
    for step in 0..count + 2000 {
        if step < count {
            hosts[0].send(&step.to_be_bytes());
            hosts[1].send(&(step | 1 << 31).to_be_bytes());
        }
        hosts.iter_mut().for_each(Host::hear);
        link.cycle(Instant::ZERO + Duration::from_micros(100) * step);
        hosts.iter_mut().for_each(Host::hear);
        first.iter_mut().flatten().for_each(Host::hear);
    }
    assert_eq!(link.idle(Instant::MAX), None, "nothing is left");
    let [a, b] = hosts;
    let got = match first {
        [Some(a), Some(b)] => [a.got, b.got],
        _ => [a.got, b.got],
    };
    (got, link.counts())
}

fn numbers(got: &[Vec<u8>]) -> Vec<u32> {
    got.iter().map(|bytes| u32::from_be_bytes(bytes[..].try_into().unwrap()) & !(1 << 31)).collect()
}

#[test]
fn a_wire_without_faults_passes_everything_on_in_order() {
    for queues in [1, 2] {
        let (got, counts) = run(1, [Rates::default(); 2], 300, queues);
        for direction in [0, 1] {
            assert_eq!(numbers(&got[direction]), (0..300).collect::<Vec<_>>());
            assert_eq!(counts[direction], Counts { arrived: 300, passed: 300, ..Counts::default() });
        }
    }
}

#[test]
fn directions_have_faults_of_their_own() {
    let lost = Rates { drop: 1.0, ..Rates::default() };
    let (got, counts) = run(1, [lost, Rates::default()], 50, 1);
    // at the second host nothing arrives, at the first all does
    assert_eq!((got[0].len(), got[1].len()), (50, 0));
    assert_eq!((counts[0].lost, counts[1].passed), (50, 50));
}

#[test]
fn a_frame_too_long_for_the_other_side_is_lost_and_counted() {
    let (mut host, end) = pipe::pair(&pipe::Config { mtu: 3000, ..pipe::Config::default() }).unwrap();
    let (small, _far) = pipe::pair(&pipe::Config::default()).unwrap();
    let mut link = Link::new([end, small], 1, [Rates::default(); 2]);
    let mut host = Host { port: host.remove(0), got: Vec::new() };
    host.send(&[7; 3000]);
    host.port.flush();
    link.cycle(Instant::ZERO);
    assert_eq!(link.counts()[0], Counts { arrived: 1, overflow: 1, ..Counts::default() });
}

fn rates() -> impl Strategy<Value = Rates> {
    let probability = || prop_oneof![Just(0.0), 0.0..0.3f64];
    let line =
        prop::option::of((1e5..1e8f64).prop_map(|bits_per_s| Line { bits_per_s, queue: Duration::from_millis(3) }));
    let burst = prop::option::of((0.01..0.3f64, 1.0..9.0f64)).prop_map(|of| of.and_then(|(p, n)| BurstLoss::new(p, n)));
    let room = prop::option::of(1usize..40);
    ((probability(), probability(), probability(), probability()), line, burst, 0u64..50, room).prop_map(
        |((drop, duplicate, reorder, corrupt), line, burst, ms, room_frames)| Rates {
            drop,
            duplicate,
            reorder,
            corrupt,
            reorder_wait: Duration::from_micros(300),
            line,
            burst,
            latency: Duration::from_millis(ms),
            room_frames,
            ..Rates::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_frame_is_accounted_for_and_a_seed_replays(seed: u64, there in rates(), back in rates()) {
        let (got, counts) = run(seed, [there, back], 200, 1);
        for (counts, got) in counts.iter().zip([&got[1], &got[0]]) {
            prop_assert_eq!((counts.arrived, counts.held, counts.passed), (200, 0, got.len() as u64));
            let gone = counts.passed + counts.lost + counts.burst_lost + counts.overflow;
            prop_assert_eq!(counts.arrived + counts.duplicated, gone);
        }
        prop_assert_eq!(run(seed, [there, back], 200, 1), (got, counts));
    }
}
