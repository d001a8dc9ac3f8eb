//! Services and helpers for the tests.

#![allow(dead_code, unreachable_pub)] // each test program uses its part

pub mod objects;

use app::{Addresses, Connection, Datagram, DeadReason, Listener, Service, Streams};
use base::Instant;
use sockets::{Config, Counters, Endpoint, Engine, Running, Transport};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn endpoint(address: &str, transport: Transport) -> Endpoint {
    Endpoint { listener: Listener(7), address: address.parse().unwrap(), transport, window_bytes: None, backlog: None }
}

pub fn config(address: &str, transport: Transport) -> Config {
    Config { endpoints: vec![endpoint(address, transport)], ..Config::default() }
}

pub fn start<S: Service>(config: Config, make: impl Fn(usize) -> S + Send + Sync + 'static) -> (Running, SocketAddr) {
    let engine = Engine::bind(config).unwrap();
    let address = engine.addresses()[0];
    (engine.start(make).unwrap(), address)
}

pub fn total(running: &Running, of: impl Fn(&Counters) -> u64) -> u64 {
    running.counters().map(|counters| of(counters)).sum()
}

/// Waits until `done` or fails.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the kernel has a socket for a connection's end: one that was reset has none any more.
pub fn kernel_has(local: SocketAddr, peer: SocketAddr) -> bool {
    kernel_line(local, peer).is_some()
}

/// Whether a connection's end was read up to the peer's end.
pub fn is_read_out(local: SocketAddr, peer: SocketAddr) -> bool {
    let line = kernel_line(local, peer).expect("a socket");
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    // it is established no more, and nothing waits, where the end counts as a byte
    fields[3] != "01" && fields[4].ends_with(":00000000")
}

/// What the kernel tells of a connection's end.
fn kernel_line(local: SocketAddr, peer: SocketAddr) -> Option<String> {
    let ends = [local, peer].map(|end| match end {
        SocketAddr::V4(end) => format!("{:08X}:{:04X}", u32::from_ne_bytes(end.ip().octets()), end.port()),
        SocketAddr::V6(_) => panic!("{end} is in another file"),
    });
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    table.lines().find(|line| line.split_ascii_whitespace().skip(1).take(2).eq(&ends)).map(String::from)
}

/// Answers each datagram with its bytes reversed; panics at "panic", leaves "silence" unanswered, and answers "grow N" with
/// N bytes of 'x' as far as they fit.
pub struct Reverse;

impl Service for Reverse {
    fn datagrams(&mut self, _: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        assert_eq!(listener, Listener(7));
        for datagram in burst {
            let bytes = datagram.question().len();
            match datagram.question() {
                b"panic" => panic!("asked to"),
                b"silence" => continue,
                b"ecn" => {
                    datagram.buffer()[0] = b'0' + datagram.ecn as u8;
                    datagram.reply(1);
                    continue;
                }
                _ => {}
            }
            let asked = std::str::from_utf8(datagram.question()).ok().and_then(|q| q.strip_prefix("grow "));
            if let Some(n) = asked.and_then(|n| n.parse::<usize>().ok()) {
                let n = n.min(datagram.capacity());
                datagram.buffer()[..n].fill(b'x');
                datagram.reply(n);
            } else {
                datagram.buffer()[..bytes].reverse();
                datagram.reply(bytes);
            }
        }
    }
}

/// What a stream service saw.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Accepted(Addresses),
    Eof,
    Dead(DeadReason),
    Timer,
}

/// Echoes streams, with commands: a first byte of 'A' aborts, 'C' closes, 'T' sets a timer 30 ms away (which sends "tick"),
/// 'P' panics, 'F' floods: keeps the queue full; 'H' holds: never opens the window; others are echoed.
pub struct Echo {
    pub seen: Sender<Seen>,
    held: std::collections::HashMap<u64, Vec<u8>>,
    flooding: bool,
    accepted: u64,
}

pub fn echo() -> (impl Fn(usize) -> Echo + Send + Sync + 'static, Receiver<Seen>) {
    let (seen, events) = channel();
    let make = move |_| Echo { seen: seen.clone(), held: Default::default(), flooding: false, accepted: 0 };
    (make, events)
}

impl Echo {
    fn push<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64) {
        if self.flooding {
            while calls.send(connection, &[b'f'; 4096]).unwrap() > 0 {}
            return;
        }
        let held = self.held.entry(cookie).or_default();
        let taken = calls.send(connection, held).unwrap();
        held.drain(..taken);
        // what was echoed may be received again
        calls.recv_done(connection, taken).unwrap();
    }
}

impl Service for Echo {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, at: Addresses) {
        self.accepted += 1;
        calls.accept(connection, self.accepted).unwrap();
        assert!(calls.accept(connection, 0).is_err());
        self.seen.send(Seen::Accepted(at)).unwrap();
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        match bytes[0] {
            b'A' => calls.abort(connection).unwrap(),
            b'C' => calls.close(connection).unwrap(),
            b'T' => calls.timer_set(connection, Some(now + Duration::from_millis(30))).unwrap(),
            b'P' => panic!("asked to"),
            b'H' => {}
            first => {
                self.flooding |= first == b'F';
                self.held.entry(cookie).or_default().extend_from_slice(bytes);
                self.push(calls, connection, cookie);
            }
        }
    }

    fn eof<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        self.seen.send(Seen::Eof).unwrap();
        if self.held.get(&cookie).is_none_or(Vec::is_empty) {
            calls.send(connection, b"bye").unwrap();
            calls.close(connection).unwrap();
            assert!(calls.send(connection, b"late").is_err());
            assert_eq!(calls.room(connection), 0);
        }
    }

    fn sent<C: Streams>(&mut self, _: Instant, calls: &mut C, c: Connection, cookie: u64, bytes: usize, room: usize) {
        // nothing went, but others' bytes did and made room
        assert!((bytes > 0 || room > 0) && room == calls.room(c));
        self.push(calls, c, cookie);
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        self.held.remove(&cookie);
        let _ = self.seen.send(Seen::Dead(reason));
    }

    fn timer<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64) {
        self.seen.send(Seen::Timer).unwrap();
        calls.send(connection, b"tick").unwrap();
    }
}
