//! Two hosts, a link between them and a clock: everything follows from a seed. Frames of each host pass a faulty port, then a link
//! with a rate, a delay and a bounded queue.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this module")]

use app::{Addresses, Connection, Content, ContentBuilder, DeadReason, Listener, ObjectId, Range, Service, Streams};
use base::rng::Rng;
use base::{Burst, Instant};
use port::Port;
use port::fault::{Fault, Rates};
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, Config, OwnAddress, Stack, TcpConfig, TcpLimits, TcpListener};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub const SERVER: &str = "192.0.2.1:80";
pub const SERVER6: &str = "[2001:db8::1]:80";
pub const CLIENT: &str = "192.0.2.2:0";
pub const CLIENT6: &str = "[2001:db8::2]:0";

/// Bytes of the object that everything sent is made of; a prime, so that no segment boundary repeats.
pub const PATTERN_BYTES: usize = 65_537;

pub fn pattern(at: u64) -> u8 {
    let at = at % PATTERN_BYTES as u64;
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// One direction of the link.
pub struct Link {
    pub delay: Duration,
    /// nanoseconds a byte
    pub byte_ns: u64,
    /// frames that wait at most
    pub queue: usize,
    /// packets above this many bytes vanish, as on a path with a smaller MTU that says nothing
    pub mtu: usize,
    busy_until: Instant,
    frames: VecDeque<(Instant, Vec<u8>)>,
    pub carried: u64,
    pub overflowed: u64,
}

impl Link {
    fn new() -> Link {
        Link {
            delay: Duration::ZERO,
            byte_ns: 0,
            queue: 100_000,
            mtu: usize::MAX,
            busy_until: Instant::ZERO,
            frames: VecDeque::new(),
            carried: 0,
            overflowed: 0,
        }
    }

    fn push(&mut self, now: Instant, frame: Vec<u8>) {
        if self.frames.len() >= self.queue || frame.len() > self.mtu.saturating_add(14) {
            self.overflowed += 1;
            return;
        }
        self.busy_until = self.busy_until.max(now) + Duration::from_nanos(self.byte_ns * frame.len() as u64);
        self.frames.push_back((self.busy_until + self.delay, frame));
        self.carried += 1;
    }
}

pub struct Host<S> {
    pub stack: Stack,
    pub port: Fault<Pipe>,
    /// the far end of the port
    pub wire: Pipe,
    pub service: S,
    pub out: Link,
    /// as they begin every frame sent
    macs: [u8; 12],
    next: Option<Instant>,
}

pub struct World<S> {
    pub now: Instant,
    pub hosts: [Host<S>; 2],
    /// frames each host may take at once
    pub batch: usize,
    /// sees every frame on its way, with the host that sent it
    pub tap: Option<Tap>,
}

/// What sees frames pass.
pub type Tap = Box<dyn FnMut(Instant, usize, &[u8])>;

pub fn limits() -> TcpLimits {
    TcpLimits {
        connections: 64,
        active: 64,
        half_open: 16,
        time_wait: 64,
        records: 4096,
        blocks: 512,
        blocks_per_connection: 128,
        ranges: 1024,
        ranges_per_connection: 64,
        owned_blocks: 256,
        owned_blocks_per_connection: 32,
        ..TcpLimits::default()
    }
}

pub fn tcp(window_bytes: u32) -> TcpConfig {
    let listen = |local: &str| TcpListener { listener: Listener(0), local: local.parse().unwrap(), window_bytes };
    TcpConfig {
        listeners: vec![listen("0.0.0.0:80"), listen("[::]:80")],
        limits: limits(),
        secret: [7, 9],
        ..TcpConfig::default()
    }
}

pub fn config(host: usize, tcp: TcpConfig) -> Config {
    let address = |sockets: [&str; 2], prefix_len| {
        let socket: SocketAddr = sockets[host].parse().unwrap();
        OwnAddress { addr: socket.ip(), prefix_len }
    };
    Config {
        own: vec![address([SERVER, CLIENT], 24), address([SERVER6, CLIENT6], 64)],
        steered: false,
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        tcp: Some(tcp),
        seed: host as u64,
        ..Config::default()
    }
}

impl<S: Service> World<S> {
    pub fn new(services: [S; 2], tcp: [TcpConfig; 2], mtus: [usize; 2], seed: u64) -> World<S> {
        let [first, second] = tcp;
        let mut hosts = Vec::new();
        for (n, (service, tcp)) in services.into_iter().zip([first, second]).enumerate() {
            let config = pipe::Config { frames: 2048, mtu: mtus[n], ..pipe::Config::default() };
            let macs = config.macs;
            let (mut ours, mut theirs) = pipe::pair(&pipe::Config { macs: [macs[n], macs[1 - n]], ..config }).unwrap();
            let port = ours.remove(0);
            // who accepts unfinished checksums takes one corrupted segment in 65,536 for such a one
            let facts = port::Facts { virtual_link: false, ..port.facts().clone() };
            let stack = Stack::new(super::world::config(n, tcp), &facts);
            let port = Fault::new(port, seed.wrapping_mul(2) + n as u64, Rates::default(), Rates::default());
            let mut begin = [0; 12];
            begin[..6].copy_from_slice(&macs[1 - n]);
            begin[6..].copy_from_slice(&macs[n]);
            let (wire, out, next) = (theirs.remove(0), Link::new(), Some(Instant::ZERO));
            hosts.push(Host { stack, port, wire, service, out, macs: begin, next });
        }
        let second = hosts.pop().unwrap();
        let first = hosts.pop().unwrap();
        World { now: Instant::ZERO, hosts: [first, second], batch: 64, tap: None }
    }

    /// Has both ports take super-segments.
    pub fn segment(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.port.inner().set_segments(true));
    }

    /// Has both ports take gathered frames.
    pub fn gather(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.port.inner().set_gathers(true));
    }

    /// Frames that each host's port gathered.
    pub fn gathered(&mut self) -> [u64; 2] {
        self.hosts.each_mut().map(|host| host.port.inner().stats().gathered.get())
    }

    /// Super-segments that each host sent.
    pub fn large(&mut self) -> [u64; 2] {
        self.hosts.each_mut().map(|host| host.port.inner().stats().large.get())
    }

    /// Asks for a connection from the second host to the first.
    pub fn connect(&mut self, v6: bool, cookie: u64, window_bytes: u32) -> Connection {
        let (local, peer) = if v6 { (CLIENT6, SERVER6) } else { (CLIENT, SERVER) };
        let mac = self.hosts[0].port.facts().mac;
        let host = &mut self.hosts[1];
        host.next = Some(self.now);
        let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
        host.stack.connect(self.now, local, peer, mac, cookie, window_bytes).expect("a connection to ask for")
    }

    /// One cycle of a host; whether a frame moved.
    fn cycle(&mut self, n: usize) -> bool {
        let now = self.now;
        let host = &mut self.hosts[n];
        host.port.set_time(now);
        let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
        let mut moved = host.port.receive(&mut rx, self.batch) > 0;
        host.service.cycle(now);
        host.stack.input(now, &mut rx, &mut tx, &mut free, &mut host.service);
        for frame in free.drain(..) {
            host.port.give(frame);
        }
        host.next = host.stack.poll(now, &mut host.port, &mut tx, &mut host.service);
        moved |= !tx.is_empty();
        host.port.transmit(&mut tx);
        assert!(tx.is_empty());
        host.port.flush();
        let mut arrived = Burst::new();
        while host.wire.receive(&mut arrived, 64) > 0 {
            for frame in arrived.drain(..) {
                if let Some(tap) = &mut self.tap {
                    tap(now, n, frame.bytes());
                }
                // a real link has a checksum over its own header
                if frame.bytes()[..12] == host.macs {
                    host.out.push(now, frame.bytes().to_vec());
                }
                host.wire.give(frame);
            }
        }
        host.wire.flush();
        moved
    }

    /// Brings frames whose time has come to the other host; whether there were any.
    fn carry(&mut self, from: usize) -> bool {
        let now = self.now;
        let mut carried = false;
        while self.hosts[from].out.frames.front().is_some_and(|(at, _)| *at <= now) {
            let (_, bytes) = self.hosts[from].out.frames.pop_front().unwrap();
            let wire = &mut self.hosts[1 - from].wire;
            let mut frame = wire.take().expect("a free frame on the wire");
            assert!(frame.fill(&bytes));
            let mut burst = Burst::new();
            burst.push(frame);
            wire.transmit(&mut burst);
            carried = true;
        }
        carried
    }

    /// Everything that happens at this moment; false when there was nothing.
    fn settle(&mut self) -> bool {
        let mut any = false;
        for n in 0..2 {
            any |= self.carry(n);
        }
        for n in 0..2 {
            any |= self.cycle(n);
        }
        any
    }

    /// Runs until `done` says so or until `end`; whether it was done.
    pub fn run(&mut self, end: Instant, mut done: impl FnMut(&mut World<S>) -> bool) -> bool {
        loop {
            let mut rounds = 0;
            while self.settle() {
                rounds += 1;
                // a link without delay would let the hosts talk for ever at one moment
                if rounds % 8 == 0 {
                    self.now += Duration::from_micros(20);
                }
                if done(self) {
                    return true;
                }
            }
            if done(self) {
                return true;
            }
            let mut next = Instant::MAX;
            for host in &self.hosts {
                next = next.min(host.next.unwrap_or(Instant::MAX));
                next = next.min(host.port.due_at().unwrap_or(Instant::MAX));
                next = next.min(host.out.frames.front().map_or(Instant::MAX, |(at, _)| *at));
            }
            if next == Instant::MAX || next > end {
                self.now = end;
                return done(self);
            }
            self.now = next.max(self.now + Duration::from_micros(1));
        }
    }
}

/// What one end of a connection does, and has seen.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// bytes to send
    pub send: u64,
    /// bytes of each range at most; from an object, or owned
    pub piece: u64,
    pub owned: bool,
    /// begins to send when the peer has finished
    pub after_eof: bool,
    /// bytes are given back only after this long
    pub slow: Option<Duration>,
    /// closes instead of shutting down, when everything is queued
    pub close: bool,
    /// leaves the end to the peer
    pub stays: bool,
    pub connection: Option<Connection>,
    pub queued: u64,
    pub acknowledged: u64,
    pub received: u64,
    pub undone: usize,
    pub eof: bool,
    pub finished: bool,
    pub dead: Option<DeadReason>,
}

/// A service whose every byte is known before.
pub struct Peer {
    pub content: Arc<Content>,
    object: ObjectId,
    /// what was sent as chunks
    pub chunks: Vec<Weak<Content>>,
    /// by cookie
    pub ends: HashMap<u64, Script>,
    /// for connections that knock
    pub template: Option<Script>,
    knocked: u64,
    pub refused: Vec<DeadReason>,
    pub addresses: Vec<Addresses>,
}

impl Peer {
    pub fn new(template: Option<Script>) -> Peer {
        let mut builder = ContentBuilder::new();
        let bytes: Vec<u8> = (0..PATTERN_BYTES as u64).map(pattern).collect();
        let object = builder.add(&bytes);
        Peer {
            content: builder.finish(),
            object,
            chunks: Vec::new(),
            ends: HashMap::new(),
            template,
            knocked: 1 << 32,
            refused: Vec::new(),
            addresses: Vec::new(),
        }
    }

    pub fn with(cookie: u64, script: Script) -> Peer {
        let mut peer = Peer::new(None);
        peer.ends.insert(cookie, script);
        peer
    }

    /// Queues as much as is taken.
    fn push<C: Streams>(&mut self, calls: &mut C, cookie: u64) {
        let Some(end) = self.ends.get_mut(&cookie) else { return };
        let Some(connection) = end.connection.filter(|_| !end.finished && end.dead.is_none()) else { return };
        if end.after_eof && !end.eof {
            return;
        }
        while end.queued < end.send {
            let start = end.queued % PATTERN_BYTES as u64;
            let bytes = (end.send - end.queued).min(end.piece.max(1)).min(PATTERN_BYTES as u64 - start);
            let part = start as usize..(start + bytes) as usize;
            // every second service lets go of what it sends at once: only the stack keeps it until it is acknowledged
            let copy = |memory: &mut [u8]| {
                memory.copy_from_slice(&self.content.bytes(self.object)[part.clone()]);
                Ok::<_, ()>(())
            };
            let chunk = (end.send % 2 == 1).then(|| ContentBuilder::chunk(bytes as usize, copy).expect("a copy"));
            self.chunks.extend(chunk.as_ref().map(Arc::downgrade));
            let range = match (end.owned, &chunk) {
                (true, _) => Range::Owned(&self.content.bytes(self.object)[part]),
                (false, Some(content)) => Range::Object { content, object: ObjectId(0), start: 0, bytes },
                (false, None) => Range::Object { content: &self.content, object: self.object, start, bytes },
            };
            let taken = calls.sendv(connection, &[range]).expect("an open connection");
            end.queued += taken;
            if taken < bytes {
                return;
            }
        }
        if end.stays && !end.eof {
            return;
        }
        end.finished = true;
        let finished = if end.close { calls.close(connection) } else { calls.shutdown(connection) };
        finished.expect("an open connection");
    }
}

impl Service for Peer {
    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        let Some(template) = &self.template else { return };
        self.knocked += 1;
        let script = Script { connection: Some(connection), ..template.clone() };
        self.ends.insert(self.knocked, script);
        self.addresses.push(addresses);
        calls.accept(connection, self.knocked).unwrap();
        let _ = now;
        self.push(calls, self.knocked);
    }

    fn connected<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        match outcome {
            Ok(connection) => {
                self.ends.get_mut(&cookie).expect("asked for").connection = Some(connection);
                self.push(calls, cookie);
            }
            Err(reason) => {
                self.refused.push(reason);
                self.ends.get_mut(&cookie).expect("asked for").dead = Some(reason);
            }
        }
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        assert!(end.dead.is_none() && !end.eof, "data after the end");
        assert!(!end.finished || !end.close, "data after close");
        for (n, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, pattern(end.received + n as u64), "byte {} of {cookie}", end.received + n as u64);
        }
        end.received += bytes.len() as u64;
        match end.slow {
            None => calls.recv_done(connection, bytes.len()).unwrap(),
            Some(wait) => {
                if end.undone == 0 {
                    calls.timer_set(connection, Some(now + wait)).unwrap();
                }
                end.undone += bytes.len();
            }
        }
    }

    fn eof<C: Streams>(&mut self, _now: Instant, calls: &mut C, _connection: Connection, cookie: u64) {
        self.ends.get_mut(&cookie).expect("an accepted connection").eof = true;
        self.push(calls, cookie);
    }

    fn sent<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _connection: Connection,
        cookie: u64,
        bytes: usize,
        _room: usize,
    ) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        end.acknowledged += bytes as u64;
        assert!(end.acknowledged <= end.queued, "more acknowledged than queued");
        self.push(calls, cookie);
    }

    fn dead(&mut self, _now: Instant, _connection: Connection, cookie: u64, reason: DeadReason) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        assert_eq!(end.dead, None, "dead twice");
        end.dead = Some(reason);
    }

    fn timer<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let end = self.ends.get_mut(&cookie).expect("an accepted connection");
        let undone = std::mem::take(&mut end.undone);
        calls.recv_done(connection, undone).unwrap();
    }
}

impl World<Peer> {
    /// Both ends of every connection are dead.
    pub fn is_over(&mut self) -> bool {
        self.hosts.iter().all(|host| host.service.ends.values().all(|end| end.dead.is_some()))
    }

    /// The ends, with their hosts.
    pub fn ends(&self) -> impl Iterator<Item = (usize, &u64, &Script)> {
        self.hosts.iter().enumerate().flat_map(|(n, host)| host.service.ends.iter().map(move |(k, v)| (n, k, v)))
    }
}

pub fn random_duration(rng: &mut Rng, below: Duration) -> Duration {
    Duration::from_nanos(rng.below(below.as_nanos() as u64 + 1))
}

pub fn address(text: &str) -> IpAddr {
    text.parse::<SocketAddr>().unwrap().ip()
}

/// A frame in one line.
pub fn describe(frame: &[u8]) -> String {
    use wire::ethernet::{EtherType, Link};
    let Some(link) = Link::parse(frame) else { return "runt".into() };
    let packet = &frame[link.bytes()..];
    let segment = match link.ether_type {
        EtherType::IPV4 => wire::ipv4::Ipv4::parse(packet).map(|ip| ip.payload()).ok(),
        EtherType::IPV6 => wire::ipv6::Ipv6::parse(packet).map(|ip| ip.payload()).ok(),
        _ => None,
    };
    let Some(tcp) = segment.and_then(|bytes| wire::tcp::Tcp::parse(bytes).ok()) else { return "not TCP".into() };
    let sacks: Vec<String> =
        tcp.options().sack_blocks().map(|block| format!("{}-{}", block.left.get(), block.right.get())).collect();
    let (seq, ack) = (tcp.seq().get(), tcp.ack().get());
    let clock = tcp.options().timestamps.map(|clock| (clock.value, clock.echo));
    format!(
        "{:?} seq {seq} +{} ack {ack} window {} {sacks:?} {clock:?}",
        tcp.flags(),
        tcp.payload().len(),
        tcp.window()
    )
}
