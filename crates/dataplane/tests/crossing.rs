//! Two threads, one of whose queues gets everything: frames go to the owners of their groups, groups move under load, and every
//! question is answered.

use app::{Listener, Service};
use base::{Burst, Instant};
use dataplane::{Config, Dataplane, Idle, Owners, Sharing};
use port::Port;
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, OwnAddress, Stack, UdpListener};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::flow::{Flow, Groups};
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HEADERS_BYTES: usize = 14 + 20 + 8;
const FLOWS: u16 = 48;

/// Echoes, with so much work for each datagram.
#[derive(Default)]
struct Echo(Duration);
impl Service for Echo {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        for datagram in burst {
            let start = std::time::Instant::now();
            while start.elapsed() < self.0 {
                std::hint::spin_loop();
            }
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

fn question(client: &Pipe, flow: u16, number: u32) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_BYTES];
    frame.extend(number.to_be_bytes());
    let link = Link { dst: [2, 0, 0, 0, 0, 2], src: client.facts().mac, tag: None, ether_type: EtherType::IPV4 };
    link.write(&mut frame);
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes: 12 }.write(&mut head);
    frame[14..34].copy_from_slice(&head);
    udp::write(&mut frame[34..], 5000 + flow, 7, Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, 12));
    frame
}

/// A client that asks through the first queue alone.
struct Client {
    queues: Vec<Pipe>,
    asked: u32,
}

impl Client {
    /// Asks once in each flow, and waits for every answer; how many came from each queue.
    fn ask_all(&mut self) -> [usize; 2] {
        self.ask(1)
    }

    /// The same, several times in each flow before it waits.
    fn ask(&mut self, times: u32) -> [usize; 2] {
        let mut wanted = BTreeSet::new();
        let mut burst = Burst::new();
        for _ in 0..times {
            for flow in 0..FLOWS {
                let mut frame = self.queues[0].take().expect("a free frame");
                assert!(frame.fill(&question(&self.queues[0], flow, self.asked)));
                wanted.insert(self.asked);
                self.asked += 1;
                burst.push(frame);
            }
            self.queues[0].transmit(&mut burst);
        }
        let (mut counts, start) = ([0; 2], std::time::Instant::now());
        while !wanted.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "{} answers are missing", wanted.len());
            for (queue, count) in self.queues.iter_mut().zip(&mut counts) {
                queue.flush();
                queue.receive(&mut burst, 64);
                for frame in burst.drain(..) {
                    if frame.bytes()[12..14] == [0x08, 0x00] {
                        let number = frame.bytes()[HEADERS_BYTES..].try_into().unwrap();
                        assert!(wanted.remove(&u32::from_be_bytes(number)), "an answer to nothing asked");
                        *count += 1;
                    }
                    queue.give(frame);
                }
            }
            std::thread::yield_now();
        }
        counts
    }
}

fn sharing(owners: Arc<Owners>) -> Vec<Sharing> {
    vec![Sharing { first: 0, owners, balance: None, steering: None }]
}

#[test]
fn a_free_thread_takes_groups_from_a_busy_one() {
    let (clients, servers) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
    let owners = Arc::new(Owners::new(Groups::keyed(16, [5, 7]), 2, |_| 0));
    let balance = Some(base::balance::Policy::default());
    let sharing = vec![Sharing { first: 0, owners: owners.clone(), balance, steering: None }];
    let config = Config { idle: Idle::Block, sharing, ..Config::default() };
    let echo = |_| Echo(Duration::from_micros(100));
    let dataplane: Dataplane<Pipe, Echo> = Dataplane::start(servers, &config, server, echo).unwrap();
    let mut client = Client { queues: clients, asked: 0 };
    let start = std::time::Instant::now();
    // the table changes before the group has arrived
    while dataplane.crossings().nth(1).unwrap().groups_in.get() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the other thread took nothing");
        client.ask(8);
    }
    assert!(owners.count(0) > 0, "not all at once: that would be to change places");
    let counters: Vec<[u64; 2]> =
        dataplane.crossings().map(|crossed| [crossed.lost.get(), crossed.groups_in.get()]).collect();
    assert_eq!((counters[0][0], counters[1][0]), (0, 0));
    assert!(counters[1][1] > 0);
}

#[test]
fn who_is_not_needed_leaves_at_the_device_what_others_have_no_room_for() {
    // more than a ring between two threads has places
    let frames = 4096;
    let config = pipe::Config { queues: 2, frames, ring_frames: 4096, ..pipe::Config::default() };
    let (clients, servers) = pipe::pair(&config).unwrap();
    let owners = Arc::new(Owners::new(Groups::keyed(16, [5, 7]), 2, |_| 1));
    let config = Config { idle: Idle::Block, sharing: sharing(owners.clone()), ..Config::default() };
    let echo = |_| Echo(Duration::from_micros(20));
    let dataplane: Dataplane<Pipe, Echo> = Dataplane::start(servers, &config, server, echo).unwrap();
    dataplane.set_threads(1);
    let start = std::time::Instant::now();
    while owners.count(0) < 16 {
        assert!(start.elapsed() < Duration::from_secs(60), "the second thread keeps its groups");
        std::thread::sleep(Duration::from_millis(1));
    }
    // all come to the queue of the thread that has nothing any more
    let mut client = Client { queues: clients.into_iter().rev().collect(), asked: 0 };
    assert_eq!(client.ask(frames / u32::from(FLOWS)), [0, (frames / u32::from(FLOWS) * u32::from(FLOWS)) as usize]);
    let counters: Vec<u64> = dataplane.crossings().map(|crossed| crossed.lost.get()).collect();
    assert_eq!(counters, [0, 0]);
}

#[test]
fn frames_go_to_the_owners_of_their_groups_wherever_they_arrive() {
    for idle in [Idle::Block, Idle::Spin] {
        let (clients, servers) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
        let owners = Arc::new(Owners::new(Groups::keyed(16, [5, 7]), 2, |group| group % 2));
        let config = Config { idle, sharing: sharing(owners.clone()), ..Config::default() };
        let dataplane: Dataplane<Pipe, Echo> = Dataplane::start(servers, &config, server, |_| Echo::default()).unwrap();
        let mut client = Client { queues: clients, asked: 0 };
        let of_second = |owners: &Owners| {
            let flows = (0..FLOWS)
                .map(|flow| Flow::new(Protocol::UDP, (CLIENT, 5000 + flow).into(), (SERVER, 7).into()).unwrap());
            flows.filter(|flow| owners.owner(owners.groups().of(flow)) == 1).count()
        };
        let second = of_second(&owners);
        assert!((1..usize::from(FLOWS)).contains(&second));
        assert_eq!(client.ask_all(), [usize::from(FLOWS) - second, second]);
        let crossed: Vec<[u64; 2]> =
            dataplane.crossings().map(|crossed| [crossed.frames_out.get(), crossed.frames_in.get()]).collect();
        assert_eq!(crossed, [[second as u64, 0], [0, second as u64]]);

        // all to one thread and to the other, while questions come
        for to in [0, 1, 0, 1] {
            (0..16).for_each(|group| assert!(dataplane.move_group(group, to)));
            let start = std::time::Instant::now();
            while owners.count(to as u16) < 16 {
                assert!(start.elapsed() < Duration::from_secs(60), "groups did not move");
                client.ask_all();
            }
            let mut counts = [0; 2];
            counts[to] = usize::from(FLOWS);
            assert_eq!(client.ask_all(), counts);
        }
        assert!(!dataplane.move_group(0, 2));
        let lost: u64 = dataplane.crossings().map(|crossed| crossed.lost.get()).sum();
        let moved: Vec<[u64; 2]> =
            dataplane.crossings().map(|crossed| [crossed.groups_out.get(), crossed.groups_in.get()]).collect();
        assert_eq!((lost, moved), (0, vec![[32, 24], [24, 32]]));
        // every frame finds home: those that waited here went with the first port
        let free: usize = dataplane.stop().iter_mut().map(|port| std::iter::from_fn(|| port.take()).count()).sum();
        assert_eq!(free, 2 * 4096);
    }
}

#[test]
#[should_panic(expected = "threads 0..3 of 2")]
fn owners_are_as_many_as_the_threads() {
    let (_clients, servers) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
    let owners = Arc::new(Owners::new(Groups::keyed(16, [5, 7]), 3, |_| 0));
    let config = Config { sharing: sharing(owners), ..Config::default() };
    let _: Dataplane<Pipe, Echo> = Dataplane::start(servers, &config, server, |_| Echo::default()).unwrap();
}
