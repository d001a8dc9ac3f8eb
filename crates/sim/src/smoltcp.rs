//! smoltcp at the other end: an independent reading of the same RFCs asks for our connections and takes ours, over a path that loses,
//! doubles, reorders, corrupts and delays frames and becomes narrower, as a seed says.
//!
//! smoltcp finds no path's MTU, so what it sends meets none; and addresses are resolved over a path that is whole, since neither ARP
//! nor a neighbour's cache is the matter here.

use crate::wire_end::Wire;
use crate::world::{self, CLIENT, CLIENT6, SERVER, SERVER6, random_duration};
use crate::{Peer, Script, Show, pattern, router, show};
use ::wire::ethernet::{EtherType, HEADER_BYTES, Link};
use app::{DeadReason, Service};
use base::rng::Rng;
use base::{Burst, Instant};
use port::Port;
use port::pipe::{self, Pipe};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use stack::Stack;
use stack::tcp::{Event, Usage};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// A path is bad for so long; after it everything must come to its end.
const BAD: Duration = Duration::from_secs(60);
/// A run that takes longer never ends.
const END: Duration = Duration::from_secs(4000);
/// Neither side is looked at more often.
const STEP: Duration = Duration::from_millis(1);
/// What comes of a path's narrowness is seen within so much.
const NARROWS_BELOW: Duration = Duration::from_secs(1);
/// How often smoltcp asks whether we are still there.
const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(1);
/// The protocol number of TCP.
const TCP: u8 = 6;

/// What happens to the frames of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Harm {
    lost: f64,
    doubled: f64,
    corrupted: f64,
    /// comes later than what follows it
    late: f64,
    late_below: Duration,
}

/// One direction of the path.
#[derive(Debug)]
struct Lane {
    harm: Harm,
    delay: Duration,
    mtu: usize,
    /// a router says when a packet is larger
    tells: bool,
    oversized: u64,
    /// by the time of arrival, and a number
    held: BTreeMap<(Instant, u64), Vec<u8>>,
    count: u64,
}

impl Lane {
    fn draw(rng: &mut Rng) -> Lane {
        let mut rate = |most: f64| if rng.chance(0.5) { 0.0 } else { rng.below(1000) as f64 / 1000.0 * most };
        let harm = Harm {
            lost: rate(0.15),
            doubled: rate(0.1),
            corrupted: rate(0.05),
            late: rate(0.2),
            late_below: Duration::from_millis(30),
        };
        let delay = random_duration(rng, Duration::from_millis(20));
        Lane { harm, delay, mtu: usize::MAX, tells: false, oversized: 0, held: BTreeMap::new(), count: 0 }
    }

    /// Takes a frame; what a router answers to it.
    fn push(&mut self, now: Instant, rng: &mut Rng, mut frame: Vec<u8>) -> Option<Vec<u8>> {
        if frame.len() > self.mtu.saturating_add(HEADER_BYTES) {
            self.oversized += 1;
            return self.tells.then(|| router::too_big(&frame, self.mtu)).flatten();
        }
        let harm = if is_tcp(&frame) { self.harm } else { Harm::default() };
        if rng.chance(harm.lost) {
            return None;
        }
        let copies = 1 + usize::from(rng.chance(harm.doubled));
        if rng.chance(harm.corrupted) {
            // a link has a checksum over its own header
            let bit = rng.below((frame.len() - HEADER_BYTES) as u64 * 8) as usize;
            frame[HEADER_BYTES + bit / 8] ^= 1 << (bit % 8);
        }
        for _ in 0..copies {
            let late = if rng.chance(harm.late) { random_duration(rng, harm.late_below) } else { Duration::ZERO };
            self.count += 1;
            self.held.insert((now + self.delay + late, self.count), frame.clone());
        }
        None
    }

    /// A frame that has arrived.
    fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self.held.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }

    fn next_at(&self) -> Instant {
        self.held.first_key_value().map_or(Instant::MAX, |((at, _), _)| *at)
    }
}

fn is_tcp(frame: &[u8]) -> bool {
    let Some(link) = Link::parse(frame) else { return false };
    let at = match link.ether_type {
        EtherType::IPV4 => 9,
        EtherType::IPV6 => 6,
        _ => return false,
    };
    frame.get(link.bytes() + at) == Some(&TCP)
}

/// All that a seed decides.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// smoltcp asks for the connection
    asks: bool,
    v6: bool,
    /// smoltcp's receive buffer, and our window
    windows: [usize; 2],
    /// what we send, and what smoltcp sends
    bytes: [u64; 2],
    /// of what we send
    mtu: usize,
    /// of what smoltcp sends
    their_mtu: usize,
    /// when our path becomes narrower, how much, and whether a router says so
    narrows: Option<(Instant, usize, bool)>,
    /// how long we keep what is received
    slow: Option<Duration>,
}

impl Case {
    fn draw(rng: &mut Rng) -> Case {
        let v6 = rng.chance(0.4);
        let mtus: &[usize] = if v6 { &[1500, 1400, 1280] } else { &[1500, 1280, 1006, 576] };
        let mtu = |rng: &mut Rng| mtus[rng.below(mtus.len() as u64) as usize];
        let size = |rng: &mut Rng| {
            let most = [1, 500, 5000, 60_000, 200_000][rng.below(5) as usize];
            rng.below(most)
        };
        let windows = [
            [100, 500, 3000, 60_000, 200_000][rng.below(5) as usize],
            [64, 600, 3000, 20_000, 200_000][rng.below(5) as usize],
        ];
        // a window of a few bytes takes its time
        let bytes = [size(rng).min(windows[0] as u64 * 500), size(rng).min(windows[1] as u64 * 500)];
        let narrow = (Instant::ZERO + random_duration(rng, NARROWS_BELOW), mtu(rng), rng.chance(0.5));
        Case {
            asks: rng.chance(0.5),
            v6,
            windows,
            bytes,
            mtu: mtu(rng),
            their_mtu: mtu(rng),
            narrows: rng.chance(0.5).then_some(narrow),
            slow: rng.chance(0.2).then(|| random_duration(rng, Duration::from_millis(200))),
        }
    }
}

/// Our host (addresses of the world's server) and smoltcp's.
struct Bench {
    now: Instant,
    stack: Stack,
    port: Pipe,
    far: Pipe,
    peer: Peer,
    /// when our stack wants to be polled
    next: Instant,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    rng: Rng,
    /// from us to smoltcp, and back
    lanes: [Lane; 2],
    sent: u64,
    received: u64,
    frames: bool,
}

impl Bench {
    fn new(case: &Case, mut rng: Rng, frames: bool) -> Bench {
        let script =
            Script { send: case.bytes[0], piece: 7000, owned: rng.chance(0.5), slow: case.slow, ..Script::default() };
        let peer = if case.asks { Peer::new(Some(script)) } else { Peer::with(1, script) };
        let config = pipe::Config { macs: [OURS, THEIRS], mtu: case.mtu, ..pipe::Config::default() };
        let (mut ours, mut theirs) = pipe::pair(&config).expect("a pipe");
        let (port, far) = (ours.remove(0), theirs.remove(0));
        // who accepts unfinished checksums takes one corrupted segment in 65,536 for such a one
        let facts = port::Facts { virtual_link: false, ..port.facts().clone() };
        let mut tcp = world::tcp(case.windows[1] as u32);
        tcp.secret = [rng.next_u64(), rng.next_u64()];
        // bad luck in a row is no reason to give up here
        tcp.times.linger = Duration::from_secs(200);
        let stack = Stack::new(world::config(0, tcp), &facts);
        let mut wire = Wire { mtu: case.their_mtu, ..Wire::default() };
        let hardware = HardwareAddress::Ethernet(EthernetAddress(THEIRS));
        let mut interface = Interface::new(InterfaceConfig::new(hardware), &mut wire, Time::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::from(world::address(CLIENT)), 24)).expect("room for an address");
            addresses.push(IpCidr::new(IpAddress::from(world::address(CLIENT6)), 64)).expect("room for an address");
        });
        let buffer = || SocketBuffer::new(vec![0; case.windows[0]]);
        let mut sockets = SocketSet::new(vec![]);
        let mut socket = Socket::new(buffer(), buffer());
        // smoltcp 0.14 has no timer left when one for data in flight expires after an older acknowledgement has come late and closed
        // the window again: without this it would wait for us, and we for it
        socket.set_keep_alive(Some(KEEP_ALIVE));
        let handle = sockets.add(socket);
        let lanes = [Lane::draw(&mut rng), Lane::draw(&mut rng)];
        let (now, next) = (Instant::ZERO, Instant::ZERO);
        Bench {
            now,
            stack,
            port,
            far,
            peer,
            next,
            wire,
            interface,
            sockets,
            handle,
            rng,
            lanes,
            sent: 0,
            received: 0,
            frames,
        }
    }

    /// The side that asks asks for the connection.
    fn connect(&mut self, case: &Case) {
        let parse = |text: &str| -> SocketAddr { text.parse().expect("an address") };
        if case.asks {
            let server = parse(if case.v6 { SERVER6 } else { SERVER });
            let context = self.interface.context();
            let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
            socket.connect(context, server, 40_000).expect("a socket that is free");
            return;
        }
        self.socket().listen(80).expect("a socket that is free");
        let (mut local, mut peer) =
            if case.v6 { (parse(SERVER6), parse(CLIENT6)) } else { (parse(SERVER), parse(CLIENT)) };
        local.set_port(0);
        peer.set_port(80);
        let window = case.windows[1] as u32;
        self.stack.connect(self.now, local, peer, THEIRS, 1, window).expect("a connection to ask for");
        self.next = self.now;
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn tell(&self, from: &str, frame: &[u8]) {
        if self.frames {
            eprintln!("{:?} {from} {}", self.now, world::describe(frame));
        }
    }

    fn theirs(&mut self) {
        while let Some(frame) = self.lanes[0].pop(self.now) {
            self.wire.arrived.push_back(frame);
        }
        let now = Time::from_micros((self.now.as_nanos() / 1000) as i64);
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        for frame in std::mem::take(&mut self.wire.sent) {
            self.tell("smoltcp", &frame);
            self.lanes[1].push(self.now, &mut self.rng, frame);
        }
    }

    fn ours(&mut self) {
        while let Some(bytes) = self.lanes[1].pop(self.now) {
            self.bring(&bytes);
        }
        loop {
            let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
            let received = self.port.receive(&mut rx, 64);
            self.peer.cycle(self.now);
            self.stack.input(self.now, &mut rx, &mut tx, &mut free, &mut self.peer);
            self.next = self.stack.poll(self.now, &mut self.port, &mut tx, &mut self.peer).unwrap_or(Instant::MAX);
            let sent = self.port.transmit(&mut tx);
            for frame in free.drain(..) {
                self.port.give(frame);
            }
            self.port.flush();
            let mut burst = Burst::new();
            let mut told = Vec::new();
            while self.far.receive(&mut burst, 64) > 0 {
                for frame in burst.drain(..) {
                    self.tell("ours", frame.bytes());
                    told.extend(self.lanes[0].push(self.now, &mut self.rng, frame.bytes().to_vec()));
                    self.far.give(frame);
                }
            }
            self.far.flush();
            told.iter().for_each(|bytes| self.bring(bytes));
            if received + sent + told.len() == 0 {
                break;
            }
        }
    }

    /// Has a frame arrive at our port.
    fn bring(&mut self, bytes: &[u8]) {
        let mut frame = self.far.take().expect("a free frame");
        assert!(frame.fill(bytes));
        let mut burst = Burst::new();
        burst.push(frame);
        self.far.transmit(&mut burst);
        self.far.flush();
    }

    /// smoltcp's application: sends so many bytes of the pattern, then finishes; checks what it gets.
    fn exchange(&mut self, send: u64) {
        let (mut sent, mut received) = (self.sent, self.received);
        let socket = self.socket();
        while sent < send && socket.can_send() {
            let bytes: Vec<u8> = (sent..(sent + 1000).min(send)).map(pattern).collect();
            sent += socket.send_slice(&bytes).expect("room to send") as u64;
        }
        if sent == send && socket.may_send() {
            socket.close();
        }
        while socket.can_recv() {
            let check = |bytes: &mut [u8]| {
                for byte in &*bytes {
                    assert_eq!(*byte, pattern(received), "byte {received}");
                    received += 1;
                }
                (bytes.len(), ())
            };
            socket.recv(check).expect("bytes to receive");
        }
        (self.sent, self.received) = (sent, received);
    }

    /// When something happens next.
    fn pass_time(&mut self) {
        let now = Time::from_micros((self.now.as_nanos() / 1000) as i64);
        let theirs = match self.interface.poll_at(now, &self.sockets) {
            Some(at) => Instant::from_nanos(at.total_micros().max(0) as u64 * 1000),
            None => Instant::MAX,
        };
        let next = self.lanes.iter().map(Lane::next_at).chain([theirs, self.next]).min().unwrap_or(Instant::MAX);
        self.now = next.min(self.now + BAD).max(self.now + STEP);
    }

    /// Whether both ends have ended.
    fn is_over(&mut self) -> bool {
        matches!(self.socket().state(), State::Closed | State::TimeWait)
            && !self.peer.ends.is_empty()
            && self.peer.ends.values().all(|end| end.dead.is_some())
    }
}

/// What was met in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// frames larger than the path's MTU
    pub oversized: u64,
    /// times that our stack lowered it
    pub lowered: u64,
}

/// One connection.
///
/// # Panics
/// When a byte does not arrive or arrives wrong, the connection does not end, or something is left behind.
pub fn run(seed: u64, what: Show) -> Met {
    let mut rng = Rng::new(seed ^ 0x736D_6F6C);
    let case = Case::draw(&mut rng);
    let mut bench = Bench::new(&case, rng, what.frames);
    bench.connect(&case);
    let mut narrows = case.narrows;
    while !bench.is_over() && bench.now < Instant::ZERO + END {
        if let Some((at, mtu, tells)) = narrows.filter(|(at, ..)| *at <= bench.now) {
            (bench.lanes[0].mtu, bench.lanes[0].tells, narrows) = (mtu, tells, None);
            let _ = at;
        }
        if bench.now > Instant::ZERO + BAD {
            bench.lanes.iter_mut().for_each(|lane| lane.harm = Harm::default());
        }
        bench.theirs();
        bench.ours();
        if bench.socket().may_send() || bench.socket().can_recv() || bench.socket().may_recv() {
            bench.exchange(case.bytes[1]);
        }
        bench.pass_time();
    }
    if what.counters {
        eprintln!("{case:#?}");
        show(&*bench.stack.tcp_counters().expect("a stack with TCP"));
        show(&*bench.stack.counters());
        eprintln!("{:?} {:?}", bench.stack.tcp_usage(), bench.lanes);
    }
    bench.judge(&case)
}

impl Bench {
    fn judge(mut self, case: &Case) -> Met {
        let state = self.socket().state();
        assert!(
            self.is_over(),
            "not over: {state:?} {:?} sent {} received {}",
            self.peer.ends,
            self.sent,
            self.received
        );
        assert_eq!(self.peer.ends.len(), 1, "one connection");
        let end = self.peer.ends.values().next().expect("a connection");
        assert_eq!((end.received, self.received), (case.bytes[1], case.bytes[0]), "{case:?} {end:?}");
        // who finished last may learn only by a reset that the other has forgotten all of it
        assert!(matches!(end.dead, Some(DeadReason::Closed | DeadReason::Reset)), "{:?}", end.dead);
        let usage = self.stack.tcp_usage();
        let (time_wait, half_open) = (usage.time_wait, usage.half_open);
        assert_eq!(usage, Usage { time_wait, half_open, timers: half_open, ..Usage::default() });
        let counters = self.stack.tcp_counters().expect("a stack with TCP");
        Met { oversized: self.lanes[0].oversized, lowered: counters.event(Event::PathMtu) }
    }
}
