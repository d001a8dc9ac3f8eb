//! The generator against the service, each on our own stack, at the two ends of a pipe; and messages taken apart.

use super::answer::Answer;
use super::*;
use crate::http::Peer;
use crate::load::Wait;
use app::Listener;
use base::{BURST_FRAMES, Instant};
use dataplane::Loop;
use port::pipe::{self, Pipe};
use port::{Mac, Port as _};
use proptest::prelude::*;
use stack::{Claim, ClaimMode, OwnAddress, Stack, TcpConfig, TcpLimits, TcpListener};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const SERVER: &str = "198.18.0.1:7";
/// How much time passes from one cycle to the next. Nothing here reads a clock.
const TICK: Duration = Duration::from_micros(20);

const PLAN: Plan = Plan {
    bytes: 64,
    under_way: 8,
    trips: None,
    end: End::Rst,
    span: Duration::from_millis(100),
    warm_up: Duration::ZERO,
    wait: Wait::Spin,
};

struct Bed {
    load: Load<Pipe>,
    server: Loop<Pipe, Answer>,
    now: Instant,
}

fn bed(connections: u32) -> Bed {
    let config = pipe::Config { ring_frames: 4096, frames: 16_384, macs: MACS, ..pipe::Config::default() };
    let (mut clients, mut servers) = pipe::pair(&config).unwrap();
    let (client, server) = (clients.remove(0), servers.remove(0));
    let at: SocketAddr = SERVER.parse().unwrap();
    let listener = TcpListener { listener: Listener(0), local: at, window_bytes: 65_536 };
    let limits = TcpLimits { connections: 100_000, ..TcpLimits::default() };
    let stack_config = stack::Config {
        own: vec![OwnAddress { addr: at.ip(), prefix_len: 24 }],
        tcp: Some(TcpConfig { listeners: vec![listener], limits, secret: [3, 4], ..TcpConfig::default() }),
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    };
    let facts = port::Facts { virtual_link: false, ..server.facts().clone() };
    let server = Loop::new(server, Stack::new(stack_config, &facts), Answer::new(16), BURST_FRAMES);
    let peer = Peer { server: at, hop: MACS[1], window_bytes: 65_536 };
    let sources = "198.18.0.3-198.18.0.4".parse().unwrap();
    Bed { load: Load::new(client, (connections, PLAN), peer, sources, [1, 2]), server, now: Instant::ZERO }
}

impl Bed {
    /// Works with the load; the server has a cycle each time the clock is read.
    fn with<T>(&mut self, work: impl FnOnce(&mut Load<Pipe>, &mut dyn FnMut() -> Instant) -> T) -> T {
        let Bed { load, server, now } = self;
        work(load, &mut || {
            *now += TICK;
            server.cycle(*now);
            *now
        })
    }

    fn connect(&mut self) {
        let stop = AtomicBool::new(false);
        self.with(|load, mut tick| load.connect(Wait::Spin, &stop, &mut tick)).unwrap();
    }

    fn run(&mut self, plan: &Plan) -> Outcome {
        self.with(|load, mut tick| load.run(plan, &AtomicBool::new(false), &mut tick))
    }

    fn server_connections(&mut self) -> u64 {
        // what the load sent last arrives
        self.with(|_, tick| tick());
        self.server.stack().tcp_counters().unwrap().connections.get()
    }
}

#[test]
fn messages_of_every_length_come_back() {
    let mut bed = bed(20);
    bed.connect();
    assert_eq!(bed.server_connections(), 20);
    for bytes in [16, 64, 1448, 1449, 2048, 2049, 70_000, 1 << 20] {
        let outcome = bed.run(&Plan { bytes, ..PLAN });
        assert_eq!((outcome.failed(), outcome.bytes), (0, bytes), "{outcome}");
        assert!(outcome.answered_in_span > 0 && outcome.answered == outcome.sent, "{outcome}");
        assert!(outcome.latency.p50_us >= 20.0, "{outcome}");
    }
    // a turn for each in its time: as many more under way bring as many more messages
    let one = bed.run(&Plan { under_way: 1, ..PLAN });
    let eight = bed.run(&PLAN);
    assert!(eight.answered > 6 * one.answered, "{one}, {eight}");
    bed.with(|load, mut tick| load.close(Wait::Spin, &mut tick));
    assert_eq!(bed.server_connections(), 0);
}

#[test]
fn every_connection_has_its_turn() {
    let mut bed = bed(1000);
    bed.connect();
    let outcome = bed.run(&Plan { under_way: 4, ..PLAN });
    assert_eq!(outcome.failed(), 0, "{outcome}");
    let turns = bed.with(|load, _| load.turns());
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(*least > 1 && most - least <= 1, "{least} to {most}");
}

#[test]
fn connections_end_after_their_round_trips_and_others_follow() {
    for end in [End::Rst, End::Fin] {
        for trips in [1, 3] {
            let mut bed = bed(8);
            bed.connect();
            let outcome = bed.run(&Plan { trips: Some(trips), end, ..PLAN });
            assert_eq!(outcome.failed(), 0, "{end:?}: {outcome}");
            assert!(outcome.finished > 50, "{end:?}: {outcome}");
            let expected = outcome.answered_in_span as f64 / trips as f64;
            assert!((outcome.finished as f64 - expected).abs() <= 8.0, "{end:?}, {trips}: {outcome}");
            assert!(bed.server_connections() <= 32, "{end:?}: {}", bed.server_connections());
        }
    }
}

#[test]
fn figures_follow_from_what_came() {
    let mut outcome = Outcome::new(1000);
    (1..=100).for_each(|us| outcome.take(us * 1000, us <= 50));
    outcome.finished = 5;
    outcome.finish(500_000_000);
    assert_eq!((outcome.messages_per_s(), outcome.connections_per_s()), (100.0, 10.0));
    assert!((outcome.goodput_gbps() - 100.0 * 8000.0 / 1e9).abs() < 1e-12);
    assert!((outcome.latency.p50_us - 50.0).abs() < 0.1 && outcome.failed() == 0);
    outcome.fail("a reason");
    (outcome.wrong, outcome.unfinished) = (1, 2);
    assert_eq!(outcome.failed(), 4);
    let told: Outcome = serde_json::from_str(&serde_json::to_string(&outcome).unwrap()).unwrap();
    assert_eq!((told.failed(), told.latency.p99_us), (4, outcome.latency.p99_us));
}

proptest! {
    #[test]
    fn messages_are_taken_apart_however_they_come(
        messages in prop::collection::vec((HEAD_BYTES as u32..5000, any::<u32>(), 0u64..64), 1..8),
        cuts in prop::collection::vec(1usize..3000, 1..20),
    ) {
        let pattern = Pattern::new(5000);
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (bytes, connection, number) in messages {
            let head = Head { bytes, connection, number };
            stream.extend_from_slice(&head.octets());
            stream.extend_from_slice(&pattern.octets()[HEAD_BYTES..bytes as usize]);
            expected.push(head);
        }
        let (mut progress, mut came, mut cuts) = (Progress::default(), Vec::new(), cuts.into_iter().cycle());
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let (mut part, behind) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            while !part.is_empty() {
                let (taken, whole) = progress.feed(part, &pattern).unwrap();
                prop_assert!(taken > 0);
                part = &part[taken..];
                came.extend(whole);
            }
            rest = behind;
        }
        prop_assert_eq!(came, expected);
        prop_assert!(progress.is_empty());
    }

    #[test]
    fn a_wrong_octet_of_a_compared_message_is_found(bytes in 17u32..3000, at: prop::sample::Index, bit in 0u8..8) {
        let pattern = Pattern::new(3000);
        let mut message = pattern.octets()[..bytes as usize].to_vec();
        message[..HEAD_BYTES].copy_from_slice(&Head { bytes, connection: 1, number: 3 * CHECK_EVERY }.octets());
        let at = HEAD_BYTES + at.index(bytes as usize - HEAD_BYTES);
        message[at] ^= 1 << bit;
        prop_assert_eq!(Progress::default().feed(&message, &pattern), Err(Wrong));
    }
}
