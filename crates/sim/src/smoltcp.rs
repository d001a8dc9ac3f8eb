//! smoltcp at the other end: an independent reading of the same RFCs asks for our connections and takes ours, over a link that
//! loses and doubles frames as a seed says.

mod smoltcp_wire;
mod world;

use app::{DeadReason, Service};
use base::rng::Rng;
use base::{Burst, Instant};
use port::Port;
use port::pipe::{self, Pipe};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use smoltcp_wire::Wire;
use stack::Stack;
use stack::tcp::Usage;
use std::net::SocketAddr;
use std::time::Duration;
use world::{CLIENT, CLIENT6, Peer, SERVER, SERVER6, Script, pattern};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Our host (addresses of the world's server) and smoltcp's.
struct Bench {
    now: Instant,
    stack: Stack,
    port: Pipe,
    far: Pipe,
    peer: Peer,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    rng: Rng,
    loss: f64,
    sent: u64,
    received: u64,
}

impl Bench {
    fn new(peer: Peer, seed: u64, loss: f64, window: usize) -> Bench {
        let config = pipe::Config { macs: [OURS, THEIRS], ..pipe::Config::default() };
        let (mut ours, mut theirs) = pipe::pair(&config).unwrap();
        let (port, far) = (ours.remove(0), theirs.remove(0));
        let stack = Stack::new(world::config(0, world::tcp(20_000)), port.facts());
        let mut wire = Wire::default();
        let hardware = HardwareAddress::Ethernet(EthernetAddress(THEIRS));
        let mut interface = Interface::new(InterfaceConfig::new(hardware), &mut wire, Time::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::from(world::address(CLIENT)), 24)).unwrap();
            addresses.push(IpCidr::new(IpAddress::from(world::address(CLIENT6)), 64)).unwrap();
        });
        let buffer = || SocketBuffer::new(vec![0; window]);
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(Socket::new(buffer(), buffer()));
        Bench {
            now: Instant::ZERO,
            stack,
            port,
            far,
            peer,
            wire,
            interface,
            sockets,
            handle,
            rng: Rng::new(seed),
            loss,
            sent: 0,
            received: 0,
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// What the link makes of a frame: none, one or two.
    fn copies(&mut self) -> usize {
        if self.rng.chance(self.loss) {
            0
        } else if self.rng.chance(self.loss / 2.0) {
            2
        } else {
            1
        }
    }

    /// One millisecond.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        let now = Time::from_micros((self.now.as_nanos() / 1000) as i64);
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        for bytes in std::mem::take(&mut self.wire.sent) {
            for _ in 0..self.copies() {
                let mut frame = self.far.take().expect("a free frame");
                assert!(frame.fill(&bytes));
                let mut burst = Burst::new();
                burst.push(frame);
                self.far.transmit(&mut burst);
            }
        }
        loop {
            let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
            let received = self.port.receive(&mut rx, 64);
            self.peer.cycle(self.now);
            self.stack.input(self.now, &mut rx, &mut tx, &mut free, &mut self.peer);
            self.stack.poll(self.now, &mut self.port, &mut tx, &mut self.peer);
            let sent = self.port.transmit(&mut tx);
            for frame in free.drain(..) {
                self.port.give(frame);
            }
            self.port.flush();
            if received + sent == 0 {
                break;
            }
        }
        let mut burst = Burst::new();
        while self.far.receive(&mut burst, 64) > 0 {
            for frame in burst.drain(..) {
                for _ in 0..self.copies() {
                    self.wire.arrived.push_back(frame.bytes().to_vec());
                }
                self.far.give(frame);
            }
        }
        self.far.flush();
    }

    /// smoltcp's application: sends so many bytes of the pattern, then finishes; checks what it gets.
    fn exchange(&mut self, send: u64) {
        let (mut sent, mut received) = (self.sent, self.received);
        let socket = self.socket();
        while sent < send && socket.can_send() {
            let bytes: Vec<u8> = (sent..(sent + 1000).min(send)).map(pattern).collect();
            sent += socket.send_slice(&bytes).unwrap() as u64;
        }
        if sent == send && socket.may_send() {
            socket.close();
        }
        while socket.can_recv() {
            socket
                .recv(|bytes| {
                    for byte in &*bytes {
                        assert_eq!(*byte, pattern(received), "byte {received}");
                        received += 1;
                    }
                    (bytes.len(), ())
                })
                .unwrap();
        }
        (self.sent, self.received) = (sent, received);
    }

    fn finish(&mut self, ours: u64, theirs: u64) {
        for _ in 0..600_000 {
            self.step();
            if self.socket().may_send() || self.socket().can_recv() || self.socket().may_recv() {
                self.exchange(theirs);
            }
            let closed = matches!(self.socket().state(), State::Closed | State::TimeWait);
            if closed && self.peer.ends.values().all(|end| end.dead.is_some()) && !self.peer.ends.is_empty() {
                let end = self.peer.ends.values().next().unwrap();
                assert_eq!(end.dead, Some(DeadReason::Closed));
                assert_eq!((end.received, self.received), (theirs, ours));
                let usage = self.stack.tcp_usage();
                assert_eq!(usage, Usage { time_wait: usage.time_wait, ..Usage::default() });
                return;
            }
        }
        panic!("not over: {:?} {:?} {} {}", self.socket().state(), self.peer.ends, self.sent, self.received);
    }
}

fn cases() -> impl Iterator<Item = (u64, f64, usize, u64, u64, bool)> {
    (0..60).map(|seed| {
        let mut rng = Rng::new(seed);
        let loss = [0.0, 0.01, 0.05, 0.15][rng.below(4) as usize];
        let window = [500, 3000, 60_000, 200_000][rng.below(4) as usize];
        (seed, loss, window, rng.below(60_000), rng.below(60_000), rng.chance(0.5))
    })
}

#[test]
fn smoltcp_is_served() {
    for (seed, loss, window, ours, theirs, v6) in cases() {
        let script = Script { send: ours, piece: 7000, ..Script::default() };
        let mut bench = Bench::new(Peer::new(Some(script)), seed, loss, window);
        let server: SocketAddr = if v6 { SERVER6 } else { SERVER }.parse().unwrap();
        let context = bench.interface.context();
        bench.sockets.get_mut::<Socket<'_>>(bench.handle).connect(context, server, 40_000).unwrap();
        bench.finish(ours, theirs);
    }
}

#[test]
fn smoltcp_serves() {
    for (seed, loss, window, ours, theirs, v6) in cases() {
        let script = Script { send: ours, piece: 7000, owned: true, ..Script::default() };
        let mut bench = Bench::new(Peer::with(1, script), seed + 1000, loss, window);
        bench.socket().listen(80).unwrap();
        // smoltcp learns our hardware address by asking; the first answers may be lost
        let (local, peer) = if v6 { (SERVER6, CLIENT6) } else { (SERVER, CLIENT) };
        let mut local: SocketAddr = local.parse().unwrap();
        local.set_port(0);
        let peer = SocketAddr::new(world::address(peer), 80);
        bench.stack.connect(bench.now, local, peer, THEIRS, 1, 30_000).unwrap();
        bench.finish(ours, theirs);
    }
}
