//! Two hosts, a link between them and a clock: everything follows from a seed. Frames of each host pass a faulty port, then a link
//! with a rate, a delay and a bounded queue. The first host may have a second stack ([`crate::twin`]).

use crate::router;
use crate::twin::Twin;
use app::{Connection, Listener, Service};
use base::rng::Rng;
use base::{Burst, Instant};
use port::Port;
use port::fault::{Fault, Rates};
use port::pipe::{self, Pipe};
use stack::{Claim, ClaimMode, Config, OwnAddress, Stack, TcpConfig, TcpLimits, TcpListener};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use wire::ethernet::HEADER_BYTES;

/// Where the first host listens.
pub const SERVER: &str = "192.0.2.1:80";
/// The same for IPv6.
pub const SERVER6: &str = "[2001:db8::1]:80";
/// The second host, at any port.
pub const CLIENT: &str = "192.0.2.2:0";
/// The same for IPv6.
pub const CLIENT6: &str = "[2001:db8::2]:0";

/// Calls in a row that a stack may want at once with nothing to send, as when it works through many timers.
const IN_VAIN_MOST: u32 = 1000;

/// One direction of the link.
#[derive(Debug)]
pub struct Link {
    /// from one end to the other
    pub delay: Duration,
    /// nanoseconds a byte
    pub byte_ns: u64,
    /// frames that wait at most
    pub queue: usize,
    /// packets above this many bytes vanish
    pub mtu: usize,
    /// a router says so; else it is a path that says nothing
    pub tells: bool,
    busy_until: Instant,
    frames: VecDeque<(Instant, Vec<u8>)>,
    /// frames that went over it
    pub carried: u64,
    /// frames that found no room
    pub overflowed: u64,
    /// frames that were larger than the MTU
    pub oversized: u64,
}

impl Link {
    fn new() -> Link {
        Link {
            delay: Duration::ZERO,
            byte_ns: 0,
            queue: 100_000,
            mtu: usize::MAX,
            tells: false,
            busy_until: Instant::ZERO,
            frames: VecDeque::new(),
            carried: 0,
            overflowed: 0,
            oversized: 0,
        }
    }

    /// Takes a frame; what a router answers to it.
    fn push(&mut self, now: Instant, frame: Vec<u8>) -> Option<Vec<u8>> {
        if frame.len() > self.mtu.saturating_add(HEADER_BYTES) {
            self.oversized += 1;
            return self.tells.then(|| router::too_big(&frame, self.mtu)).flatten();
        }
        if self.frames.len() >= self.queue {
            self.overflowed += 1;
            return None;
        }
        self.busy_until = self.busy_until.max(now) + Duration::from_nanos(self.byte_ns * frame.len() as u64);
        self.frames.push_back((self.busy_until + self.delay, frame));
        self.carried += 1;
        None
    }
}

/// A host.
pub struct Host<S> {
    /// its stack
    pub stack: Stack,
    /// through which it injures what passes
    pub port: Fault<Pipe>,
    /// the far end of the port
    pub wire: Pipe,
    /// its service
    pub service: S,
    /// the link away from it
    pub out: Link,
    /// as they begin every frame sent
    macs: [u8; 12],
    next: Option<Instant>,
}

/// Two hosts.
pub struct World<S> {
    /// the time
    pub now: Instant,
    /// the one that listens, and the one that asks
    pub hosts: [Host<S>; 2],
    /// frames each host may take at once
    pub batch: usize,
    /// sees every frame on its way, with the host that sent it
    pub tap: Option<Tap>,
    /// the second stack of the first host
    pub twin: Option<Twin<S>>,
}

/// What sees frames pass.
pub type Tap = Box<dyn FnMut(Instant, usize, &[u8])>;

/// Small pools, so that they are met.
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

/// TCP that listens at port 80, with receive windows of so many bytes.
///
/// # Panics
/// Never: its addresses are well formed.
pub fn tcp(window_bytes: u32) -> TcpConfig {
    let listen = |local: &str| TcpListener { listener: Listener(0), local: local.parse().unwrap(), window_bytes };
    TcpConfig {
        listeners: vec![listen("0.0.0.0:80"), listen("[::]:80")],
        limits: limits(),
        secret: [7, 9],
        ..TcpConfig::default()
    }
}

/// The configuration of the first host (0) or the second (1). Neither has neighbours to ask for: those are a stack's, not a
/// connection's, and the questions would be others where connections move.
///
/// # Panics
/// When there is no such host.
pub fn config(host: usize, tcp: TcpConfig) -> Config {
    let address = |sockets: [&str; 2], prefix_len| {
        let socket: SocketAddr = sockets[host].parse().unwrap();
        OwnAddress { addr: socket.ip(), prefix_len }
    };
    Config {
        own: vec![address([SERVER, CLIENT], 32), address([SERVER6, CLIENT6], 128)],
        steered: false,
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        tcp: Some(tcp),
        seed: host as u64,
        ..Config::default()
    }
}

impl<S: Service> World<S> {
    /// Two hosts with these services, TCP and MTUs. The seed decides what the links do.
    ///
    /// # Panics
    /// When an MTU is none that a pipe can have.
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
            let stack = Stack::new(self::config(n, tcp), &facts);
            let port = Fault::new(port, seed.wrapping_mul(2) + n as u64, Rates::default(), Rates::default());
            let mut begin = [0; 12];
            begin[..6].copy_from_slice(&macs[1 - n]);
            begin[6..].copy_from_slice(&macs[n]);
            let (wire, out, next) = (theirs.remove(0), Link::new(), Some(Instant::ZERO));
            hosts.push(Host { stack, port, wire, service, out, macs: begin, next });
        }
        let second = hosts.pop().unwrap();
        let first = hosts.pop().unwrap();
        World { now: Instant::ZERO, hosts: [first, second], batch: 64, tap: None, twin: None }
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
    ///
    /// # Panics
    /// When the stack refuses it.
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
        let mut twin = self.twin.as_mut().filter(|_| n == 0);
        let mut theirs = twin.as_mut().map_or_else(Burst::new, |twin| twin.take(&mut rx));
        host.service.cycle(now);
        host.stack.input(now, &mut rx, &mut tx, &mut free, &mut host.service);
        for frame in free.drain(..) {
            host.port.give(frame);
        }
        host.next = host.stack.poll(now, &mut host.port, &mut tx, &mut host.service);
        moved |= !tx.is_empty();
        host.port.transmit(&mut tx);
        assert!(tx.is_empty());
        if let Some(twin) = twin {
            moved |= twin.cycle(now, &mut theirs, &mut host.port);
        }
        host.port.flush();
        let (mut arrived, mut told) = (Burst::new(), Vec::new());
        while host.wire.receive(&mut arrived, 64) > 0 {
            for frame in arrived.drain(..) {
                if let Some(tap) = &mut self.tap {
                    tap(now, n, frame.bytes());
                }
                // a real link has a checksum over its own header
                if frame.bytes()[..12] == host.macs {
                    told.extend(host.out.push(now, frame.bytes().to_vec()));
                }
                host.wire.give(frame);
            }
        }
        for bytes in told {
            put(&mut host.wire, &bytes);
            moved = true;
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
            put(wire, &bytes);
            carried = true;
        }
        carried
    }

    /// Everything that happens at this moment; false when there was nothing.
    fn settle(&mut self) -> bool {
        self.shuffle();
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
    ///
    /// # Panics
    /// When a stack wants to be called at once again and again, and nothing comes of it.
    pub fn run(&mut self, end: Instant, mut done: impl FnMut(&mut World<S>) -> bool) -> bool {
        let mut in_vain = 0;
        loop {
            let mut rounds = 0;
            while self.settle() {
                in_vain = 0;
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
            let mut next = self.twin.as_ref().and_then(Twin::next).unwrap_or(Instant::MAX);
            for host in &self.hosts {
                next = next.min(host.next.unwrap_or(Instant::MAX));
                next = next.min(host.port.due_at().unwrap_or(Instant::MAX));
                next = next.min(host.out.frames.front().map_or(Instant::MAX, |(at, _)| *at));
            }
            if next == Instant::MAX || next > end {
                self.now = end;
                return done(self);
            }
            // who has more to do at once than one cycle does goes on a little later
            in_vain = if next > self.now { 0 } else { in_vain + 1 };
            assert!(in_vain < IN_VAIN_MOST, "called again and again for nothing at {:?}", self.now);
            self.now = if next > self.now { next } else { self.now + Duration::from_micros(1) };
        }
    }
}

/// Has a frame arrive at the other end of `wire`.
fn put(wire: &mut Pipe, bytes: &[u8]) {
    let mut frame = wire.take().expect("a free frame on the wire");
    assert!(frame.fill(bytes), "a frame of {} bytes", bytes.len());
    let mut burst = Burst::new();
    burst.push(frame);
    wire.transmit(&mut burst);
}

/// Up to `below`, that included.
pub fn random_duration(rng: &mut Rng, below: Duration) -> Duration {
    Duration::from_nanos(rng.below(below.as_nanos() as u64 + 1))
}

/// The address of a socket address.
///
/// # Panics
/// When it is none.
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
