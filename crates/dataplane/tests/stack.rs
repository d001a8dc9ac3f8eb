//! The loop's threads with the real stack: a datagram crosses, is answered, and a reconfiguration takes hold while running.

use app::{Listener, Service};
use base::{Burst, Instant};
use dataplane::{Config, Dataplane};
use port::pipe::{self, Pipe};
use port::{Facts, Port};
use stack::{Claim, ClaimMode, OwnAddress, Readiness, Stack, UdpListener};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HEADERS_BYTES: usize = 14 + 20 + 8;

struct Upper;
impl Service for Upper {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        for datagram in burst {
            assert_ne!(datagram.question(), b"panic");
            let bytes = datagram.question().len();
            datagram.buffer()[..bytes].make_ascii_uppercase();
            datagram.reply(bytes);
        }
    }
}

fn listening(port: u16) -> stack::Config {
    let local = (SERVER, port).into();
    stack::Config {
        own: vec![OwnAddress { addr: SERVER.into(), prefix_len: 24 }],
        listeners: vec![UdpListener { listener: Listener(0), local }],
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..stack::Config::default()
    }
}

fn ends() -> (Client, Vec<Pipe>) {
    let (mut clients, servers) = pipe::pair(&pipe::Config::default()).unwrap();
    let server = servers[0].facts().clone();
    (Client { queue: clients.remove(0), server, answers: Vec::new() }, servers)
}

fn question(server: &Facts, client: &Facts, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_BYTES];
    frame.extend(payload);
    let link = Link { dst: server.mac, src: client.mac, tag: None, ether_type: EtherType::IPV4 };
    link.write(&mut frame);
    let payload_bytes = 8 + payload.len();
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    frame[14..34].copy_from_slice(&head);
    let pseudo = Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, payload_bytes as u16);
    udp::write(&mut frame[34..], 4000, port, pseudo);
    frame
}

/// The client's end, and what it may be answered.
struct Client {
    queue: Pipe,
    server: Facts,
    answers: Vec<Vec<u8>>,
}

impl Client {
    fn send(&mut self, port: u16, payload: &[u8]) {
        let frame = question(&self.server, self.queue.facts(), port, payload);
        // while nobody receives all of them are on their way
        let Some(mut question) = self.queue.take() else { return };
        assert!(question.fill(&frame));
        let mut burst = Burst::new();
        burst.push(question);
        self.queue.transmit(&mut burst);
    }

    /// Asks until this answer comes, since what was sent before a reconfiguration took hold is refused. Those to what was asked before
    /// may still come, and no other.
    fn ask(&mut self, port: u16, payload: &[u8], wanted: &[u8]) {
        let start = std::time::Instant::now();
        self.answers.push(wanted.to_vec());
        let mut burst = Burst::new();
        loop {
            assert!(start.elapsed() < Duration::from_secs(60), "no answer");
            self.send(port, payload);
            std::thread::sleep(Duration::from_millis(5));
            self.queue.flush();
            self.queue.receive(&mut burst, 64);
            let mut came = false;
            for frame in burst.drain(..) {
                // what else comes are claims of the address, and refusals
                if frame.bytes()[12..14] == [0x08, 0x00] && frame.bytes()[23] == Protocol::UDP.0 {
                    let answer = &frame.bytes()[HEADERS_BYTES..];
                    assert!(self.answers.iter().any(|known| known == answer), "{answer:?}");
                    came |= answer == wanted;
                }
                self.queue.give(frame);
            }
            if came {
                return;
            }
        }
    }
}

#[test]
fn datagrams_are_answered_and_a_new_configuration_takes_hold() {
    let (mut client, servers) = ends();
    let make_stack = |_, facts: &Facts| Stack::new(listening(53), facts);
    let dataplane: Dataplane<Pipe, Upper> =
        Dataplane::start(servers, &Config::default(), make_stack, |_| Upper).unwrap();
    client.ask(53, b"hello", b"HELLO");
    dataplane.command(|_, _, stack| stack.reconfigure(listening(5353)));
    client.ask(5353, b"moved", b"MOVED");
    dataplane.stop();
}

#[test]
fn own_addresses_stay_in_use_over_a_panic() {
    let (mut client, servers) = ends();
    let short = Duration::from_millis(1);
    let claim = Claim {
        mode: ClaimMode::Detect,
        wait: short,
        probe_interval: short,
        announce_interval: short,
        ..Claim::default()
    };
    let (made, shown) = (Arc::new(AtomicU64::new(0)), Arc::new(OnceLock::new()));
    let (count, show) = (made.clone(), shown.clone());
    let make_stack = move |_, facts: &Facts| {
        count.fetch_add(1, Ordering::Relaxed);
        let stack = Stack::new(stack::Config { claim, ..listening(53) }, facts);
        show.set(stack.counters()).expect("one stack only");
        stack
    };
    let dataplane: Dataplane<Pipe, Upper> =
        Dataplane::start(servers, &Config::default(), make_stack, |_| Upper).unwrap();
    let counters = dataplane.counters().next().unwrap().clone();
    let stack: &Arc<stack::Counters> = shown.get().unwrap();
    client.ask(53, b"hello", b"HELLO");
    let started = std::time::Instant::now();
    client.send(53, b"panic");
    while counters.panics.get() == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "no panic");
        std::thread::yield_now();
    }
    client.ask(53, b"again", b"AGAIN");
    assert_eq!(stack.own()[0].readiness, Readiness::Ready);
    assert_eq!(made.load(Ordering::Relaxed), 1);
    dataplane.stop();
}
