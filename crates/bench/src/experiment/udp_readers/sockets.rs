//! Readers of kernel sockets: the socket engine, on loopback.

use super::{BYTES, Figures, Options, RUN, Readers, Sent, Sink, Spent, drained, send_for};
use anyhow::{Context as _, Result};
use app::Listener;
use sockets::{Balance, Config, Counters, Endpoint, Engine, Idle, Running, Spread, Transport};
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

/// Kernel memory that such a datagram takes in a receive queue: its buffer and its descriptor.
const TRUESIZE_BYTES: usize = 768;

/// Fills the queues, then has them read; the time to the last datagram.
pub(super) fn drain(options: &Options, readers: Readers, spread: Spread) -> Result<Figures> {
    let all = options.datagrams as usize;
    let (engine, to) = bind(all, readers, spread)?;
    let sources = sources(options, to)?;
    for n in 0..all {
        sources[n / RUN % sources.len()].send(&[b'x'; BYTES]).context("filling the queues")?;
    }
    let begun = Instant::now();
    let running = engine.start(|_| Sink).context("the readers")?;
    let seconds = drained(begun, all as u64, || Ok(received(&running)))
        .context("the kernel dropped the others: raise net.ipv4.udp_mem, or ask for fewer --datagrams")?;
    let figures = figures(&running, seconds, all as u64)?;
    running.stop();
    Ok(figures)
}

/// Sends as fast as it goes while the readers read.
pub(super) fn live(options: &Options, readers: Readers, spread: Spread) -> Result<Figures> {
    let (engine, to) = bind(options.live_datagrams(), readers, spread)?;
    let groups: Vec<_> = (0..options.senders).map(|_| sources(options, to)).collect::<Result<_>>()?;
    let running = engine.start(|_| Sink).context("the readers")?;
    let send = |sender: usize, run: usize| {
        let group = &groups[sender];
        let source = &group[run % group.len()];
        (0..RUN).filter(|_| source.send(&[b'x'; BYTES]).is_ok()).count() as u64
    };
    let Sent { sent, received, seconds } =
        send_for(options, readers.processors, send, || Ok(self::received(&running)))?;
    // what is read after the end is no throughput
    let figures = Figures { received, ..figures(&running, seconds, sent)? };
    running.stop();
    Ok(figures)
}

/// The engine on a port of loopback, bound and not started: its sockets fill, with `datagrams` at most.
fn bind(datagrams: usize, readers: Readers, spread: Spread) -> Result<(Engine, SocketAddr)> {
    let endpoint = Endpoint {
        listener: Listener(0),
        address: "127.0.0.1:0".parse().expect("an address"),
        transport: Transport::Udp,
        window_bytes: None,
        backlog: None,
    };
    let config = Config {
        endpoints: vec![endpoint],
        threads: readers.count.into(),
        cpus: readers.cpus(),
        batch: readers.batch.into(),
        datagram_bytes: 512,
        // any one socket may get all of it; SO_RCVBUFFORCE takes half of what the kernel then allows
        receive_buffer_bytes: datagrams * TRUESIZE_BYTES,
        idle: Idle::Block,
        receive: spread,
        balance: Balance::default(),
        ..Config::default()
    };
    let engine = Engine::bind(config).context("the readers' sockets")?;
    let to = engine.addresses()[0];
    Ok((engine, to))
}

fn sources(options: &Options, to: SocketAddr) -> Result<Vec<UdpSocket>> {
    let one = |_| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(to)?;
        Ok(socket)
    };
    (0..options.sources).map(one).collect::<std::io::Result<_>>().context("the senders' sockets; see ulimit -n")
}

fn received(running: &Running) -> u64 {
    total(running, |counters| counters.received.get())
}

fn total(running: &Running, of: impl Fn(&Counters) -> u64) -> u64 {
    running.counters().map(|counters| of(counters)).sum()
}

fn figures(running: &Running, seconds: f64, sent: u64) -> Result<Figures> {
    let spent = Spent::of_threads("sockets-")?;
    Ok(Figures {
        received: received(running),
        sent,
        seconds,
        busy_s: spent.busy_s,
        empty: total(running, |counters| counters.empty_receives.get()),
        slept: spent.slept,
        put_off: spent.put_off,
    })
}
