//! What a packet costs in the stack: bursts of queries are taken in and answered by a service that does nothing, on an
//! in-memory port, and the time inside `Stack::input` alone is taken. Run it with
//! `cargo run --release -p stack --example cost [BURST [PAYLOAD [ADDRESSES]]]`.

use app::{Datagram, Listener, Service};
use base::{BURST_FRAMES, Burst, Instant};
use port::{Port, pipe};
use stack::{Config, Stack, UdpListener};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::ethernet::{EtherType, Link};
use wire::{Protocol, Sum, ipv4, ipv6, udp};

/// Sends the question back.
struct Nothing;

impl Service for Nothing {
    fn datagrams(&mut self, _now: Instant, _listener: Listener, burst: &mut [Datagram<'_>]) {
        for slot in burst {
            slot.reply(slot.question().len());
        }
    }
}

/// Bursts a measurement.
const ROUNDS: usize = 20_000;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse().expect("a number"));
    let burst = arguments.next().unwrap_or(BURST_FRAMES).clamp(1, BURST_FRAMES);
    let payload = arguments.next().unwrap_or(40).min(1400);
    let addresses = arguments.next().unwrap_or(1).clamp(1, 1000) as u16;
    for v6 in [false, true] {
        let mut best = f64::MAX;
        for _ in 0..5 {
            best = best.min(measure(v6, burst, payload, addresses)?);
        }
        let family = if v6 { "IPv6" } else { "IPv4" };
        println!("{family}: {best:.1} ns a packet, {burst} a burst, {payload} bytes of payload, {addresses} addresses");
    }
    Ok(())
}

fn measure(v6: bool, burst: usize, payload: usize, addresses: u16) -> std::io::Result<f64> {
    let (mut ours, _theirs) = pipe::pair(&pipe::Config { frames: 128, ..pipe::Config::default() })?;
    let port = &mut ours[0];
    let listeners =
        (0..addresses).map(|n| UdpListener { listener: Listener(0), local: (local(v6, n), 53).into() }).collect();
    let mut stack = Stack::new(Config { listeners, ..Config::default() }, port.facts());
    let questions: Vec<Vec<u8>> =
        (0..burst as u16).map(|n| question(v6, port.facts().mac, n, local(v6, n % addresses), payload)).collect();
    let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
    let mut spent = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        for question in &questions {
            let mut frame = port.take().expect("a free frame");
            assert!(frame.fill(question));
            rx.push(frame);
        }
        let start = std::time::Instant::now();
        stack.input(Instant::ZERO, &mut rx, &mut tx, &mut free, &mut Nothing);
        spent.push(start.elapsed());
        assert_eq!(tx.len(), burst);
        for frame in tx.drain(..) {
            port.give(frame);
        }
    }
    // the median, since on a busy machine the mean is other people's time
    spent.sort_unstable();
    Ok(spent[ROUNDS / 2].as_nanos() as f64 / burst as f64)
}

fn local(v6: bool, n: u16) -> IpAddr {
    match v6 {
        false => Ipv4Addr::from(0xc612_0001 + u32::from(n)).into(),
        true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n + 1).into(),
    }
}

fn question(v6: bool, dst_mac: port::Mac, n: u16, dst: IpAddr, payload: usize) -> Vec<u8> {
    let mut datagram = vec![7; udp::HEADER_BYTES + payload];
    let bytes = datagram.len();
    let mut packet = vec![0; if v6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES }];
    let (ether_type, pseudo) = match dst {
        IpAddr::V4(dst) => {
            let src = Ipv4Addr::from(0xc613_0000 + u32::from(n));
            let header = ipv4::Header { src, dst, protocol: Protocol::UDP, ttl: 64, payload_bytes: bytes };
            header.write(packet.first_chunk_mut().expect("its bytes"));
            (EtherType::IPV4, Sum::pseudo_v4(src, dst, Protocol::UDP, bytes as u16))
        }
        IpAddr::V6(dst) => {
            let src = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, n);
            let header = ipv6::Header { src, dst, next_header: Protocol::UDP, hop_limit: 64, payload_bytes: bytes };
            header.write(packet.first_chunk_mut().expect("its bytes"));
            (EtherType::IPV6, Sum::pseudo_v6(src, dst, Protocol::UDP, bytes as u32))
        }
    };
    udp::write(&mut datagram, 1024 + n, 53, pseudo);
    let mut frame = vec![0; wire::ethernet::HEADER_BYTES];
    Link { dst: dst_mac, src: [2, 0, 0, 0, 0, 9], tag: None, ether_type }.write(&mut frame);
    [frame, packet, datagram].concat()
}
