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

fn question(facts: &Facts, client: &Facts, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_BYTES];
    frame.extend(payload);
    let link = Link { dst: facts.mac, src: client.mac, tag: None, ether_type: EtherType::IPV4 };
    link.write(&mut frame);
    let payload_bytes = 8 + payload.len();
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    frame[14..34].copy_from_slice(&head);
    let pseudo = Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, payload_bytes as u16);
    udp::write(&mut frame[34..], 4000, port, pseudo);
    frame
}

/// Asks until an answer comes, since what was sent before a reconfiguration took hold is dropped.
fn ask(client: &mut Pipe, frame: &[u8]) -> Vec<u8> {
    let start = std::time::Instant::now();
    let mut burst = Burst::new();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "no answer");
        let mut question = client.take().expect("a free frame");
        assert!(question.fill(frame));
        burst.push(question);
        client.transmit(&mut burst);
        std::thread::sleep(Duration::from_millis(5));
        client.flush();
        client.receive(&mut burst, 64);
        let mut answer = None;
        for frame in burst.drain(..) {
            // what else comes are claims of the address
            if frame.bytes()[12..14] == [0x08, 0x00] {
                answer = Some(frame.bytes()[HEADERS_BYTES..].to_vec());
            }
            client.give(frame);
        }
        if let Some(answer) = answer {
            return answer;
        }
    }
}

#[test]
fn datagrams_are_answered_and_a_new_configuration_takes_hold() {
    let (mut clients, servers) = pipe::pair(&pipe::Config::default()).unwrap();
    let (facts, client) = (servers[0].facts().clone(), &mut clients[0]);
    let client_facts = client.facts().clone();
    let make_stack = |_, facts: &Facts| Stack::new(listening(53), facts);
    let dataplane: Dataplane<Pipe, Upper> =
        Dataplane::start(servers, &Config::default(), make_stack, |_| Upper).unwrap();
    assert_eq!(ask(client, &question(&facts, &client_facts, 53, b"hello")), b"HELLO");
    dataplane.command(|_, _, stack| stack.reconfigure(listening(5353)));
    assert_eq!(ask(client, &question(&facts, &client_facts, 5353, b"moved")), b"MOVED");
    dataplane.stop();
}

#[test]
fn own_addresses_stay_in_use_over_a_panic() {
    let (mut clients, servers) = pipe::pair(&pipe::Config::default()).unwrap();
    let (facts, client) = (servers[0].facts().clone(), &mut clients[0]);
    let client_facts = client.facts().clone();
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
    assert_eq!(ask(client, &question(&facts, &client_facts, 53, b"hello")), b"HELLO");
    let started = std::time::Instant::now();
    let mut panic = client.take().expect("a free frame");
    assert!(panic.fill(&question(&facts, &client_facts, 53, b"panic")));
    let mut burst = Burst::new();
    burst.push(panic);
    client.transmit(&mut burst);
    client.flush();
    while counters.panics.get() == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "no panic");
        std::thread::yield_now();
    }
    assert_eq!(ask(client, &question(&facts, &client_facts, 53, b"again")), b"AGAIN");
    assert_eq!(stack.own()[0].readiness, Readiness::Ready);
    assert_eq!(made.load(Ordering::Relaxed), 1);
    dataplane.stop();
}
