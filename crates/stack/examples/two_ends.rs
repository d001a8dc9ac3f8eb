//! A UDP echo server on the stack, as a user of the library writes it: an in-memory NIC pair, the stack at one end, a client
//! that writes frames by hand at the other. Run it with `cargo run -p stack --example two_ends`.

use app::{Datagram, Listener, Service};
use base::{Burst, Clock, Instant};
use port::{Port, pipe};
use stack::{Claim, ClaimMode, Config, OwnAddress, Stack, UdpListener};
use std::net::Ipv4Addr;
use wire::ethernet::{EtherType, Link};
use wire::ipv4::Ipv4;
use wire::udp::Udp;
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Answers every datagram with its own bytes.
struct Echo;

impl Service for Echo {
    fn datagrams(&mut self, _now: Instant, _listener: Listener, burst: &mut [Datagram<'_>]) {
        for slot in burst {
            slot.reply(slot.question().len());
        }
    }
}

fn main() -> std::io::Result<()> {
    let (mut servers, mut clients) = pipe::pair(&pipe::Config::default())?;
    let (server, client) = (&mut servers[0], &mut clients[0]);
    let config = Config {
        own: vec![OwnAddress { addr: SERVER.into(), prefix_len: 24 }],
        listeners: vec![UdpListener { listener: Listener(0), local: (Ipv4Addr::UNSPECIFIED, 7).into() }],
        steered: false,
        // on a real link: ClaimMode::Detect, the default, and call `poll` when it asks for it
        claim: Claim { mode: ClaimMode::Silent, ..Claim::default() },
        ..Config::default()
    };
    let mut stack = Stack::new(config, server.facts());
    let clock = Clock::start();

    let mut burst = Burst::new();
    burst.extend(client.take().map(|mut frame| {
        assert!(frame.fill(&question(client.facts().mac, server.facts().mac, b"hello")));
        frame
    }));
    client.transmit(&mut burst);

    let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
    server.receive(&mut rx, base::BURST_FRAMES);
    stack.input(clock.now(), &mut rx, &mut tx, &mut free, &mut Echo);
    server.transmit(&mut tx);
    for frame in free.drain(..) {
        server.give(frame);
    }
    server.flush();

    client.receive(&mut burst, base::BURST_FRAMES);
    for frame in burst.drain(..) {
        let link = Link::parse(frame.bytes()).expect("an Ethernet header");
        let packet = Ipv4::parse(&frame.bytes()[link.bytes()..]).expect("an IPv4 packet");
        let answer = Udp::parse(packet.payload()).expect("a datagram");
        println!("{} says: {}", packet.src(), String::from_utf8_lossy(answer.payload()));
        client.give(frame);
    }
    Ok(())
}

fn question(src_mac: port::Mac, dst_mac: port::Mac, payload: &[u8]) -> Vec<u8> {
    let mut datagram = [&[0; udp::HEADER_BYTES], payload].concat();
    let pseudo = Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, datagram.len() as u16);
    udp::write(&mut datagram, 4000, 7, pseudo);
    let mut head = [0; ipv4::HEADER_BYTES];
    let header =
        ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes: datagram.len() };
    header.write(&mut head);
    let mut link = [0; wire::ethernet::HEADER_BYTES];
    Link { dst: dst_mac, src: src_mac, tag: None, ether_type: EtherType::IPV4 }.write(&mut link);
    [&link[..], &head, &datagram].concat()
}
