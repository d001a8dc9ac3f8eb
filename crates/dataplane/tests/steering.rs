//! Two threads behind a NIC whose table follows the groups: they move while questions come, every question is answered, and in the
//! end each comes to the thread that answers it.

use app::{Listener, Service};
use base::balance::{IndirectionTable, Turn};
use base::{Burst, Instant};
use dataplane::{Config, Dataplane, Idle, Owners, Sharing, Steering};
use port::Port;
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, OwnAddress, Stack, UdpListener};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::flow::{Flow, Groups, Ports};
use wire::toeplitz::Key;
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HEADERS_BYTES: usize = 14 + 20 + 8;
const ENTRIES: u16 = 16;
const FLOWS: u16 = 200;
const PATIENCE: Duration = Duration::from_secs(60);

struct Echo;

impl Service for Echo {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        burst.iter_mut().for_each(|datagram| datagram.reply(datagram.question().len()));
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

/// The NIC's table.
#[derive(Clone)]
struct Entries(Arc<[AtomicU16]>, bool);

impl IndirectionTable for Entries {
    fn write(&mut self, turns: &[Turn]) -> Result<(), String> {
        if self.1 {
            return Err("locked".into());
        }
        turns.iter().for_each(|turn| self.0[usize::from(turn.entry)].store(turn.queue, Ordering::Relaxed));
        Ok(())
    }
    fn given_up(&mut self, why: &str) {
        assert_eq!(why, "locked");
    }
}

/// The client and the NIC that spreads what it sends, the threads, and who writes the table.
struct World {
    queues: Vec<Pipe>,
    groups: Groups,
    table: Arc<[AtomicU16]>,
    asked: u32,
    owners: Arc<Owners>,
    steering: Arc<Steering>,
    writer: Option<JoinHandle<()>>,
    dataplane: Dataplane<Pipe, Echo>,
}

impl World {
    fn new(idle: Idle, locked: bool) -> World {
        let (queues, servers) = pipe::pair(&pipe::Config { queues: 2, ..pipe::Config::default() }).unwrap();
        let groups = || Groups::toeplitz(usize::from(ENTRIES), &Key::MICROSOFT, Ports::ALL);
        let table: Arc<[AtomicU16]> = (0..ENTRIES).map(|entry| AtomicU16::new(entry % 2)).collect();
        let owners = Arc::new(Owners::new(groups(), 2, |group| group % 2));
        let in_turn: Vec<u16> = (0..ENTRIES).map(|entry| entry % 2).collect();
        let steering = Arc::new(Steering::new(&in_turn, 0..2).unwrap());
        let (served, mut entries) = (steering.clone(), Entries(table.clone(), locked));
        let writer = Some(std::thread::spawn(move || served.serve(&mut entries)));
        let (owned, steered) = (owners.clone(), Some(steering.clone()));
        let sharing = vec![Sharing { first: 0, owners: owned, balance: None, steering: steered }];
        let config = Config { idle, sharing, ..Config::default() };
        let dataplane = Dataplane::start(servers, &config, server, |_| Echo).unwrap();
        World { queues, groups: groups(), table, asked: 0, owners, steering, writer, dataplane }
    }

    /// Asks once in each flow, and waits for every answer.
    fn ask(&mut self) {
        let (mut wanted, mut burst, start) = (BTreeSet::new(), Burst::new(), std::time::Instant::now());
        for flow in 0..FLOWS {
            let flow_of = Flow::new(Protocol::UDP, (CLIENT, 5000 + flow).into(), (SERVER, 7).into()).unwrap();
            let entry = usize::from(self.groups.of(&flow_of));
            let queue = &mut self.queues[usize::from(self.table[entry].load(Ordering::Relaxed))];
            let mut frame = queue.take().expect("a free frame");
            assert!(frame.fill(&question(queue, flow, self.asked)));
            wanted.insert(self.asked);
            self.asked += 1;
            burst.push(frame);
            queue.transmit(&mut burst);
        }
        while !wanted.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} answers are missing", wanted.len());
            for queue in &mut self.queues {
                queue.flush();
                queue.receive(&mut burst, 64);
                for frame in burst.drain(..) {
                    if frame.bytes()[12..14] == [0x08, 0x00] {
                        let number = frame.bytes()[HEADERS_BYTES..].try_into().unwrap();
                        assert!(wanted.remove(&u32::from_be_bytes(number)), "an answer to nothing asked");
                    }
                    queue.give(frame);
                }
            }
            std::thread::yield_now();
        }
    }

    fn crossed(&self) -> u64 {
        self.dataplane.crossings().map(|crossed| crossed.frames_out.get()).sum()
    }

    /// Has one thread take all groups over, with questions under way.
    fn move_all(&mut self, to: u16) {
        let start = std::time::Instant::now();
        while self.owners.count(to) < usize::from(ENTRIES) {
            assert!(start.elapsed() < PATIENCE, "{} groups", self.owners.count(to));
            // one whose entry is being written stays where it is
            for group in 0..ENTRIES {
                self.dataplane.move_group(group, usize::from(to));
            }
            self.ask();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.steering.stop();
        self.writer.take().unwrap().join().unwrap();
    }
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

#[test]
fn the_table_follows_and_nothing_crosses_then() {
    for idle in [Idle::Block, Idle::Spin] {
        let mut world = World::new(idle, false);
        world.ask();
        assert_eq!(world.crossed(), 0);
        for to in [1, 0, 1] {
            world.move_all(to);
            let start = std::time::Instant::now();
            while world.table.iter().any(|queue| queue.load(Ordering::Relaxed) != to) {
                assert!(start.elapsed() < PATIENCE, "{:?}", world.table);
                world.ask();
            }
            // what had been sent to the old queue has been answered
            let before = world.crossed();
            for _ in 0..10 {
                world.ask();
            }
            assert_eq!(world.crossed(), before);
        }
        assert!(world.steering.follows());
    }
}

#[test]
fn a_table_that_cannot_be_written_costs_a_crossing_and_nothing_else() {
    let mut world = World::new(Idle::Block, true);
    for to in [1, 0, 1] {
        world.move_all(to);
    }
    let start = std::time::Instant::now();
    while world.steering.follows() {
        assert!(start.elapsed() < PATIENCE);
        world.ask();
    }
    let before = world.crossed();
    world.ask();
    assert!(world.crossed() > before);
}
