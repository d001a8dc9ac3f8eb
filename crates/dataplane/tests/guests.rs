//! A queue and several threads: those without a queue answer, sleep when there is nothing to do, and survive a panic of the one that has it.

use app::{Listener, Service};
use base::{Burst, Instant};
use dataplane::{Config, Dataplane, Idle, Owners, Sharing};
use port::Port;
use port::guest::{Housed, house};
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, OwnAddress, Stack, UdpListener};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::flow::Groups;
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HEADERS_BYTES: usize = 14 + 20 + 8;
const FLOWS: u16 = 48;
const PATIENCE: Duration = Duration::from_secs(60);

/// Echoes; some number panics.
struct Echo(u32);
impl Service for Echo {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        for datagram in burst {
            assert_ne!(datagram.question(), self.0.to_be_bytes());
            datagram.reply(datagram.question().len());
        }
    }
}

fn server(_: usize, facts: &port::Facts) -> Stack {
    let config = stack::Config {
        own: vec![OwnAddress { addr: SERVER.into(), prefix_len: 24 }],
        listeners: vec![UdpListener { listener: Listener(0), local: (SERVER, 7).into() }],
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    };
    Stack::new(config, facts)
}

/// A pipe whose thread can sleep: it is readable when the client has rung.
struct Rung {
    pipe: Pipe,
    bell: Arc<OwnedFd>,
}

impl Port for Rung {
    fn facts(&self) -> &port::Facts {
        self.pipe.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.pipe.receive(into, limit)
    }
    fn waiting(&mut self) -> usize {
        self.pipe.waiting()
    }
    fn transmit_room(&mut self) -> usize {
        self.pipe.transmit_room()
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.pipe.transmit(from)
    }
    fn flush(&mut self) -> port::Outgoing {
        self.pipe.flush()
    }
    fn take(&mut self) -> Option<base::Frame> {
        self.pipe.take()
    }
    fn give(&mut self, frame: base::Frame) {
        self.pipe.give(frame);
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }
}

struct Client {
    queue: Pipe,
    bell: Arc<OwnedFd>,
    asked: u32,
}

impl Client {
    fn send(&mut self, flow: u16, number: u32) {
        let mut bytes = vec![0; HEADERS_BYTES];
        bytes.extend(number.to_be_bytes());
        let link =
            Link { dst: [2, 0, 0, 0, 0, 2], src: self.queue.facts().mac, tag: None, ether_type: EtherType::IPV4 };
        link.write(&mut bytes);
        let mut head = [0; 20];
        ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes: 12 }.write(&mut head);
        bytes[14..34].copy_from_slice(&head);
        udp::write(&mut bytes[34..], 5000 + flow, 7, Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, 12));
        let mut frame = self.queue.take().expect("a free frame");
        assert!(frame.fill(&bytes));
        let mut burst = Burst::new();
        burst.push(frame);
        self.queue.transmit(&mut burst);
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes()).unwrap();
    }

    /// Asks once in each flow, and waits for every answer.
    fn ask_all(&mut self) {
        let mut wanted = BTreeSet::new();
        for flow in 0..FLOWS {
            self.send(flow, self.asked);
            wanted.insert(self.asked);
            self.asked += 1;
        }
        let (mut burst, start) = (Burst::new(), std::time::Instant::now());
        while !wanted.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} answers are missing", wanted.len());
            self.queue.flush();
            self.queue.receive(&mut burst, 64);
            for frame in burst.drain(..) {
                let number = frame.bytes()[HEADERS_BYTES..][..4].try_into().unwrap();
                assert!(wanted.remove(&u32::from_be_bytes(number)), "an answer to nothing asked");
                self.queue.give(frame);
            }
            std::thread::yield_now();
        }
    }
}

fn start(guests: usize) -> (Client, Dataplane<Housed<Rung>, Echo>, Arc<Owners>) {
    let (mut clients, servers, pools) = pipe::pair_with_pools(&pipe::Config::default(), guests).unwrap();
    let flags = rustix::event::EventfdFlags::NONBLOCK;
    let bell = Arc::new(rustix::event::eventfd(0, flags).unwrap());
    let servers = servers.into_iter().map(|pipe| Rung { pipe, bell: bell.clone() }).collect();
    let threads = 1 + guests;
    let owners = Arc::new(Owners::new(Groups::keyed(64, [5, 7]), threads, |group| group % threads as u16));
    let sharing = vec![Sharing { first: 0, owners: owners.clone(), balance: None, steering: None }];
    let config = Config { idle: Idle::Block, sharing, ..Config::default() };
    let dataplane = Dataplane::start(house(servers, pools, 0), &config, server, |_| Echo(u32::MAX)).unwrap();
    (Client { queue: clients.remove(0), bell, asked: 0 }, dataplane, owners)
}

/// Waits until no thread comes round in half a second. Whoever had to stand still may have something to do for longer than that.
fn rests(dataplane: &Dataplane<Housed<Rung>, Echo>) {
    let cycles = || dataplane.counters().map(|counters| counters.cycles.get()).collect::<Vec<_>>();
    let (start, mut before) = (std::time::Instant::now(), cycles());
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let after = cycles();
        if after == before {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "with nothing to do threads come round: {before:?}, then {after:?} times");
        before = after;
    }
}

#[test]
fn threads_without_a_queue_answer_and_sleep() {
    let (mut client, dataplane, _) = start(2);
    (0..20).for_each(|_| client.ask_all());
    // what was sent is counted after it has come
    rests(&dataplane);
    let out: Vec<u64> = dataplane.counters().map(|counters| counters.transmitted.get()).collect();
    assert!(out.iter().all(|out| *out >= 20) && out.iter().sum::<u64>() == 20 * u64::from(FLOWS), "{out:?}");
    client.ask_all();
    let ports = dataplane.stop();
    let sent: Vec<u64> = ports.iter().filter_map(|port| port.guest()).map(|guest| guest.stats().sent.get()).collect();
    assert!(sent.iter().all(|sent| *sent > 20), "{sent:?}");
}

#[test]
fn threads_that_are_not_needed_have_nothing_and_come_back() {
    let (mut client, dataplane, owners) = start(2);
    for count in [1, 3, 2, 1, 2, 3] {
        dataplane.set_threads(count);
        client.ask_all();
        let begun = std::time::Instant::now();
        while (0..3).any(|thread| (owners.count(thread) > 0) != (usize::from(thread) < count)) {
            assert!(
                begun.elapsed() < PATIENCE,
                "{count} threads: {:?}",
                (0..3).map(|it| owners.count(it)).collect::<Vec<_>>()
            );
            client.ask_all();
        }
        rests(&dataplane);
    }
    let crew = dataplane.crews().next().unwrap();
    assert_eq!((crew.threads(), crew.on_duty()), (3, 3));
}

#[test]
fn a_panic_of_the_thread_with_the_queue_costs_what_it_had_in_hand() {
    let (mut clients, servers, pools) = pipe::pair_with_pools(&pipe::Config::default(), 1).unwrap();
    let bell = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap());
    let servers = servers.into_iter().map(|pipe| Rung { pipe, bell: bell.clone() }).collect();
    // all groups are the host's but one
    let owners = Arc::new(Owners::new(Groups::keyed(64, [5, 7]), 2, |group| group % 2));
    let sharing = vec![Sharing { first: 0, owners, balance: None, steering: None }];
    let config = Config { idle: Idle::Block, sharing, ..Config::default() };
    let dataplane: Dataplane<Housed<Rung>, Echo> =
        Dataplane::start(house(servers, pools, 0), &config, server, |_| Echo(1_000_000)).unwrap();
    let mut client = Client { queue: clients.remove(0), bell, asked: 0 };
    client.ask_all();
    // in every flow, so on every thread
    (0..FLOWS).for_each(|flow| client.send(flow, 1_000_000));
    let begun = std::time::Instant::now();
    while dataplane.counters().any(|counters| counters.panics.get() == 0) {
        assert!(begun.elapsed() < PATIENCE, "no panic");
        std::thread::sleep(Duration::from_millis(1));
    }
    // all of it was in somebody's hand: nothing is left that would be taken for an answer later
    let dropped = || dataplane.counters().map(|counters| counters.dropped_panic.get()).sum::<u64>();
    while dropped() < u64::from(FLOWS) {
        assert!(begun.elapsed() < PATIENCE, "{} frames were dropped", dropped());
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..3).for_each(|_| client.ask_all());
}
