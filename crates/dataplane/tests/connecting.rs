//! Two threads ask for connections, and a NIC with a Toeplitz hash brings each the answers to its own: nothing crosses.

use app::{Addresses, CallError, Connection, Listener, Service, Streams};
use base::{Burst, Clock, Instant};
use dataplane::{Config, Dataplane, Idle, Owners, Sharing};
use port::Port;
use port::pipe::{self, Pipe};
use stack::tcp::Event;
use stack::{Claim, ClaimMode, OwnAddress, Stack, TcpConfig, TcpLimits, TcpListener};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wire::flow::{Flow, Groups, Ports};
use wire::toeplitz::Key;

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const EACH: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(60);

fn a_stack(own: Ipv4Addr, listeners: Vec<TcpListener>, facts: &port::Facts) -> Stack {
    let limits =
        TcpLimits { connections: 512, connections_per_source: 512, half_open_per_source: 512, ..TcpLimits::default() };
    let config = stack::Config {
        own: vec![OwnAddress { addr: own.into(), prefix_len: 24 }],
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        tcp: Some(TcpConfig { listeners, limits, ..TcpConfig::default() }),
        ..stack::Config::default()
    };
    Stack::new(config, facts)
}

/// Counts the connections that come about, of all threads.
#[derive(Clone, Default)]
struct Asks(Arc<AtomicU64>);

impl Service for Asks {
    fn connected<C: Streams>(&mut self, _: Instant, _: &mut C, _: u64, outcome: Result<Connection, app::DeadReason>) {
        outcome.expect("a connection");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes what knocks.
struct Takes;

impl Service for Takes {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
    }
}

/// The other host, and the NIC in front of our two queues.
struct Peer {
    queues: Vec<Pipe>,
    stack: Stack,
    groups: Groups,
    clock: Clock,
}

impl Peer {
    /// Answers what has come, each packet to the queue that its hash names.
    fn cycle(&mut self) {
        let now = self.clock.now();
        for from in 0..2 {
            let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
            self.queues[from].receive(&mut rx, 64);
            self.stack.input(now, &mut rx, &mut tx, &mut free, &mut Takes);
            self.stack.poll(now, &mut self.queues[from], &mut tx, &mut Takes);
            free.drain(..).for_each(|frame| self.queues[from].give(frame));
            for frame in tx.drain(..) {
                let flow = Flow::of_frame(frame.bytes());
                let queue = flow.map_or(0, |flow| usize::from(self.groups.of(&flow) % 2));
                let mut one = Burst::new();
                one.push(frame);
                self.queues[queue].transmit(&mut one);
            }
        }
        for queue in &mut self.queues {
            queue.flush();
        }
        std::thread::yield_now();
    }
}

/// What became of it.
struct Outcome {
    /// what each thread was told
    told: [Told; 2],
    /// connections that came about
    there: u64,
    /// frames that went from thread to thread
    crossed: u64,
    /// asked for and refused
    refused: u64,
}

type Told = Vec<Result<Connection, CallError>>;

/// Two threads whose groups are owned as said ask for connections.
fn ask(owner: impl Fn(u16) -> u16) -> Outcome {
    let (peers, ours) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
    let groups = || Groups::toeplitz(128, &Key::MICROSOFT, Ports::ALL);
    let owners = Arc::new(Owners::new(groups(), 2, owner));
    let listener = TcpListener { listener: Listener(0), local: (SERVER, 80).into(), window_bytes: 10_000 };
    let stack = a_stack(SERVER, vec![listener], peers[0].facts());
    let hop = peers[0].facts().mac;
    let mut peer = Peer { queues: peers, stack, groups: groups(), clock: Clock::start() };
    let sharing = vec![Sharing { first: 0, owners, balance: None, steering: None }];
    let config = Config { idle: Idle::Block, sharing, ..Config::default() };
    let there = Asks::default();
    let service = there.clone();
    let counted = Arc::<Mutex<Vec<_>>>::default();
    let counts = counted.clone();
    let make = move |_: usize, facts: &port::Facts| {
        let stack = a_stack(CLIENT, Vec::new(), facts);
        counts.lock().unwrap().push(stack.tcp_counters().unwrap());
        stack
    };
    let dataplane: Dataplane<Pipe, Asks> = Dataplane::start(ours, &config, make, move |_| service.clone()).unwrap();
    let (give, take) = channel();
    let clock = Clock::start();
    dataplane.command(move |thread, _, stack| {
        for _ in 0..EACH {
            let asked = stack.connect(clock.now(), (CLIENT, 0).into(), (SERVER, 80).into(), hop, 0, 10_000);
            give.send((thread, asked)).unwrap();
        }
    });
    let (mut told, start) = ([Vec::new(), Vec::new()], std::time::Instant::now());
    let begun = |told: &[Told; 2]| told.iter().flatten().filter(|told| told.is_ok()).count();
    while told.iter().any(|told| told.len() < EACH as usize) || there.0.load(Ordering::Relaxed) < begun(&told) as u64 {
        assert!(start.elapsed() < PATIENCE, "{told:?} {}", there.0.load(Ordering::Relaxed));
        peer.cycle();
        take.try_iter().for_each(|(thread, asked)| told[thread].push(asked));
    }
    let crossed = dataplane.crossings().map(|crossed| crossed.frames_out.get()).sum();
    let refused = counted.lock().unwrap().iter().map(|counters| counters.event(Event::Elsewhere)).sum();
    Outcome { told, there: there.0.load(Ordering::Relaxed), crossed, refused }
}

#[test]
fn connections_come_to_the_thread_that_asked_for_them() {
    let Outcome { told, there, crossed, refused } = ask(|group| group % 2);
    assert!(told.iter().flatten().all(Result::is_ok), "{told:?}");
    assert_eq!((there, crossed, refused), (2 * EACH, 0, 0));
}

#[test]
fn a_thread_without_groups_is_told_that_no_answer_would_reach_it() {
    let Outcome { told, there, refused, .. } = ask(|_| 0);
    assert!(told[0].iter().all(Result::is_ok));
    assert!(told[1].iter().all(|told| *told == Err(CallError::Elsewhere)));
    assert_eq!((there, refused), (EACH, EACH));
}
