//! TCP allocates nothing once the stack is made: handshakes, data both ways, loss, closing, TIME-WAIT, cookies.

use app::{Addresses, Connection, Content, ContentBuilder, DeadReason, Listener, ObjectId, Range, Service, Streams};
use base::{Burst, Instant};
use port::Port;
use port::pipe::{self, Pipe};
use stack::Stack;
use stack::tcp::Event;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Answers a request of one byte with an object, and closes; as a client asks and reads to the end.
struct Web {
    content: Arc<Content>,
    object: ObjectId,
    received: u64,
    dead: u64,
}

impl Service for Web {
    fn knock<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _listener: Listener,
        connection: Connection,
        _addresses: Addresses,
    ) {
        calls.accept(connection, 7).unwrap();
    }

    fn connected<C: Streams>(
        &mut self,
        _now: Instant,
        calls: &mut C,
        _cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let connection = outcome.expect("the handshake is tried often enough");
        assert_eq!(calls.send(connection, b"?"), Ok(1));
        calls.shutdown(connection).unwrap();
    }

    fn recv<C: Streams>(&mut self, _now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        calls.recv_done(connection, bytes.len()).unwrap();
        self.received += bytes.len() as u64;
        if cookie == 7 {
            let bytes = self.content.bytes(self.object).len() as u64;
            let range = Range::Object { content: &self.content, object: self.object, start: 0, bytes };
            assert_eq!(calls.sendv(connection, &[range]), Ok(bytes));
            calls.close(connection).unwrap();
        }
    }

    fn dead(&mut self, _now: Instant, _connection: Connection, _cookie: u64, _reason: DeadReason) {
        self.dead += 1;
    }
}

struct Host {
    stack: Stack,
    port: Pipe,
    service: Web,
    cycles: u64,
}

impl Host {
    /// One cycle; every `lose`th received frame is lost. Whether a frame moved.
    fn cycle(&mut self, now: Instant, lose: u64) -> bool {
        let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
        let mut received = self.port.receive(&mut rx, 64);
        self.cycles += received as u64;
        if received > 0 && lose > 0 && self.cycles.is_multiple_of(lose) {
            received -= 1;
            self.port.give(rx.swap_remove(received));
        }
        self.service.cycle(now);
        self.stack.input(now, &mut rx, &mut tx, &mut free, &mut self.service);
        self.stack.poll(now, &mut self.port, &mut tx, &mut self.service);
        let sent = self.port.transmit(&mut tx);
        for frame in free.drain(..) {
            self.port.give(frame);
        }
        self.port.flush();
        received + sent > 0
    }
}

fn hosts(half_open: u32, large: bool, gathers: bool) -> [Host; 2] {
    let (mut ours, mut theirs) = pipe::pair(&pipe::Config::default()).unwrap();
    let mut builder = ContentBuilder::new();
    let object = builder.add(&vec![7; 100_000]);
    let content = builder.finish();
    [ours.remove(0), theirs.remove(0)]
        .into_iter()
        .enumerate()
        .map(|(n, mut port)| {
            port.set_segments(large);
            port.set_gathers(gathers);
            let mut tcp = sim::world::tcp(1 << 20);
            tcp.limits.half_open = half_open;
            let stack = Stack::new(sim::world::config(n, tcp), port.facts());
            Host { stack, port, service: Web { content: content.clone(), object, received: 0, dead: 0 }, cycles: 0 }
        })
        .collect::<Vec<_>>()
        .try_into()
        .unwrap_or_else(|_| panic!("two hosts"))
}

fn connections(half_open: u32, lose: u64, large: bool, gathers: bool) {
    let mut hosts = hosts(half_open, large, gathers);
    let (local, peer): (SocketAddr, SocketAddr) =
        (sim::world::CLIENT.parse().unwrap(), sim::world::SERVER.parse().unwrap());
    let mac = hosts[0].port.facts().mac;
    let mut now = Instant::ZERO;
    let mut counted = 0;
    for n in 0..300 {
        if n == 1 {
            // the first connection has made the content known
            counted = allocations::of_thread();
        }
        hosts[1].stack.connect(now, local, peer, mac, 1, 1 << 20).unwrap();
        let mut waits = 0;
        while hosts[1].service.dead <= n {
            let moved = hosts[0].cycle(now, lose) | hosts[1].cycle(now, lose);
            now += if moved { Duration::from_micros(100) } else { Duration::from_millis(5) };
            waits += 1;
            assert!(waits < 100_000, "connection {n} does not end");
        }
        now += Duration::from_millis(200);
    }
    assert_eq!(allocations::of_thread(), counted, "allocations");
    assert_eq!(hosts[1].service.received, 300 * 100_000);
    assert_eq!(hosts[0].port.stats().large.get() > 300, large);
    assert_eq!(hosts[0].port.stats().gathered.get() > 300, gathers);
    let events = |host: &Host, event| host.stack.tcp_counters().unwrap().event(event);
    assert_eq!(events(&hosts[0], Event::Retransmitted) > 0, lose > 0);
    assert_eq!(events(&hosts[0], Event::CookieAccepted) > 0, half_open == 0);
}

#[test]
fn nothing_is_allocated_for_a_connection() {
    for (half_open, lose) in [(16, 0), (16, 17), (0, 0)] {
        connections(half_open, lose, false, false);
    }
    for (large, gathers) in [(true, false), (false, true)] {
        connections(16, 0, large, gathers);
        connections(16, 17, large, gathers);
    }
    let counted = allocations::of_thread();
    drop(std::hint::black_box(vec![0u8; 10]));
    assert_eq!(allocations::of_thread(), counted + 1, "the count counts");
}
