//! An HTTP/1.1 load from our own stack's client side over a [`Port`]: connections from own addresses, open or closed loop,
//! bodies checked.
//!
//! The loop is the dataplane's; between two cycles this floor gives due requests to free connections and asks for new ones.
//! Latency runs from when a request was due to when its answer was whole: in an open loop that is the schedule's time, in a
//! closed one the moment its connection was free, so the handshake of a new connection counts in either.
//!
//! Left out: pipelining, TLS, methods other than GET.

mod chunked;
mod client;
mod mix;
mod outcome;
mod response;
mod schedule;
mod sources;
mod synthetic;
#[cfg(test)]
mod tests;
mod thinking;

pub(crate) use client::{Client, Manner};
pub(crate) use mix::{Mix, Url};
pub(crate) use outcome::{Failure, Outcome};
pub(crate) use sources::Sources;

use crate::load::Wait;
use anyhow::{Result, bail};
use app::CallError;
use base::{BURST_FRAMES, Instant};
use dataplane::{Activity, Loop};
use mix::Body;
use port::{Mac, Port};
use schedule::Schedule;
use stack::{Claim, ClaimMode, OwnAddress, Stack, TcpConfig, TcpLimits, TcpTimes};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long answers are waited for when the span is over: several retransmission timeouts, for whoever lost the last segment, and three of a
/// SYN (1, 2 and 4 s), for whoever came to a full backlog.
const STRAGGLERS: Duration = Duration::from_secs(10);
/// How long the ends of connections are waited for.
const ENDINGS: Duration = Duration::from_secs(2);
/// Ports tried for a connection before none counts as free.
const PORTS_TRIED: usize = 64;
/// Connections asked for between two cycles at most.
const DIALS: usize = 128;

/// How a load is run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// requests a second; None: one whenever a connection is free
    pub(crate) rate: Option<f64>,
    /// how long to ask
    pub(crate) span: Duration,
    /// how long to ask before that, with answers that do not count
    pub(crate) warm_up: Option<Duration>,
    /// what to do when nothing is due
    pub(crate) wait: Wait,
    /// a line a second on standard error
    pub(crate) progress: bool,
}

/// Whom connections are asked of, and how.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// the server
    pub(crate) server: SocketAddr,
    /// the next hop's hardware address
    pub(crate) hop: Mac,
    /// bytes that it may send before they are read
    pub(crate) window_bytes: u32,
}

/// A generator.
#[derive(Debug)]
pub(crate) struct Load<P> {
    work: Loop<P, Client>,
    peer: Peer,
    sources: Sources,
}

/// What a stack for so many connections from these addresses is told.
pub(crate) fn stack_config(addresses: &[IpAddr], connections: u32, secret: [u64; 2]) -> stack::Config {
    // connections that are being ended have a place beside those that took their places
    let places = connections.saturating_mul(2).saturating_add(16_384);
    let limits = TcpLimits {
        connections: places,
        active: places,
        half_open: 16,
        ranges: places,
        records: places.max(65_536),
        owned_blocks: 16,
        connections_per_source: places,
        // no strangers here; what a run before left behind at the server is reset as fast as it is met
        challenges_per_second: 1_000_000,
        ..TcpLimits::default()
    };
    // what servers do not end stays with us; the ports are needed again soon
    let times = TcpTimes { time_wait: Duration::from_secs(1), linger: Duration::from_secs(2), ..TcpTimes::default() };
    let own = addresses.iter().map(|&addr| OwnAddress { addr, prefix_len: if addr.is_ipv4() { 32 } else { 128 } });
    stack::Config {
        own: own.collect(),
        tcp: Some(TcpConfig { limits, times, ecn: false, secret, ..TcpConfig::default() }),
        claim: Claim { mode: ClaimMode::Announce, ..Claim::default() },
        seed: secret[0],
        ..stack::Config::default()
    }
}

impl<P: Port> Load<P> {
    /// A generator over `port`; `secret` makes sequence numbers and timestamps.
    pub(crate) fn new(port: P, mix: Mix, manner: Manner, peer: Peer, sources: Sources, secret: [u64; 2]) -> Load<P> {
        let config = stack_config(sources.addresses(), manner.connections, secret);
        let stack = Stack::new(config, port.facts());
        let work = Loop::new(port, stack, Client::new(mix, manner), BURST_FRAMES);
        Load { work, peer, sources }
    }

    /// Learns the bodies that nobody told, then asks as planned, and tells what came of it. `stop` ends it early. `tick` tells
    /// the time, once an iteration; tests move it by hand and let the other end work there.
    pub(crate) fn run(&mut self, plan: &Plan, stop: &AtomicBool, mut tick: impl FnMut() -> Instant) -> Result<Outcome> {
        self.learn(plan.wait, stop, &mut tick)?;
        Ok(self.measure(plan, stop, tick))
    }

    /// From now on connections are asked of this port of the server.
    pub(crate) fn ask_of(&mut self, port: u16) {
        self.peer.server.set_port(port);
    }

    /// Asks for nothing until this file is there.
    pub(crate) fn wait_for(&mut self, file: &Path, wait: Wait, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) {
        eprintln!("waits for {}", file.display());
        while !file.exists() && !stop.load(Ordering::Relaxed) {
            self.step(wait, tick);
        }
    }

    /// Asks as planned, of pages that are known.
    pub(crate) fn measure(&mut self, plan: &Plan, stop: &AtomicBool, mut tick: impl FnMut() -> Instant) -> Outcome {
        self.work.service().spread(tick());
        if let Some(span) = plan.warm_up {
            let start = tick();
            self.begin(plan, start, span);
            self.ask(plan.wait, stop, &mut tick, |_, _| ());
        }
        let start = tick();
        self.begin(plan, start, plan.span);
        if plan.progress && plan.warm_up.is_some() {
            eprintln!("measures for {:?}", plan.span);
        }
        let mut teller = Teller { at: start, second: 0, told: (0, 0) };
        let now = self.ask(plan.wait, stop, &mut tick, |now, outcome| {
            if plan.progress {
                teller.tell(now, outcome);
            }
        });
        let client = self.work.service();
        let missed = client.schedule.missed(now);
        client.schedule = Schedule::NEVER;
        let unfinished = self.finish(plan.wait, &mut tick);
        let client = self.work.service();
        let mut outcome = std::mem::replace(&mut client.outcome, Outcome::new(None));
        outcome.span_ns = (now - start).as_nanos() as u64;
        outcome.missed = missed;
        outcome.unfinished = unfinished;
        outcome.finish();
        outcome
    }

    /// Has requests become due from now on for so long, and counts from here.
    fn begin(&mut self, plan: &Plan, now: Instant, span: Duration) {
        let client = self.work.service();
        let before = std::mem::replace(&mut client.outcome, Outcome::new(plan.rate));
        client.outcome.inherit(before);
        client.outcome.connections = client.connected();
        client.schedule = Schedule::new(now, span, plan.rate);
    }

    /// Asks until no more requests become due; the time then.
    fn ask(
        &mut self,
        wait: Wait,
        stop: &AtomicBool,
        tick: &mut impl FnMut() -> Instant,
        mut watch: impl FnMut(Instant, &Outcome),
    ) -> Instant {
        let mut now = tick();
        while !self.work.service().schedule.is_over(now) && !stop.load(Ordering::Relaxed) {
            now = self.step(wait, tick);
            watch(now, &self.work.service().outcome);
        }
        now
    }

    /// Asks for each page once whose body nobody told.
    pub(crate) fn learn(&mut self, wait: Wait, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) -> Result<()> {
        for page in 0..self.work.service().mix.pages.len() {
            if self.work.service().mix.pages[page].body != Body::Unknown {
                continue;
            }
            let now = tick();
            self.work.service().ask_once(now, page as u32);
            while !self.work.service().is_at_rest() && !stop.load(Ordering::Relaxed) {
                self.step(wait, tick);
            }
            let client = self.work.service();
            let outcome = std::mem::replace(&mut client.outcome, Outcome::new(None));
            let page = &client.mix.pages[page];
            let name = format!("http://{}{}", page.url.authority, page.url.path);
            if let Some((failure, _)) = outcome.failures.first() {
                bail!("{name}: {failure}");
            }
            if let Some(status) = outcome.statuses.keys().next() {
                eprintln!("{name} is answered with {status}; what it should be is not known, and not checked");
            }
        }
        Ok(())
    }

    /// Waits for the last answers and ends all connections; how many answers did not come.
    fn finish(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> u64 {
        let mut now = tick();
        let end = now + STRAGGLERS;
        while self.work.service().unanswered() > 0 && now < end {
            now = self.step(wait, tick);
        }
        let unfinished = self.work.service().unanswered();
        self.work.with_parts(|client, stack| {
            if let Some(mut calls) = stack.calls(now) {
                client.close_idle(&mut calls);
            }
        });
        self.work.poll_soon();
        let end = now + ENDINGS;
        while self.connections() > 0 && unfinished == 0 && now < end {
            now = self.step(wait, tick);
        }
        self.work.with_parts(|client, stack| {
            if let Some(mut calls) = stack.calls(now) {
                client.abort_rest(&mut calls);
            }
        });
        self.work.poll_soon();
        self.step(wait, tick);
        unfinished
    }

    /// The port.
    pub(crate) fn port(&mut self) -> &mut P {
        self.work.port()
    }

    /// Connections that our stack has.
    pub(crate) fn connections(&mut self) -> u64 {
        self.work.stack().tcp_counters().map_or(0, |counters| counters.connections.get())
    }

    /// One cycle and what is due between two; the cycle's time.
    fn step(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> Instant {
        let now = tick();
        let activity = self.work.cycle(now);
        let busy = self.serve_client(now);
        // the receive thread of a veth's end may share this processor (see `load`)
        if wait == Wait::Yield || !(activity.is_busy() || busy) {
            self.pass_time(now, wait, activity, busy);
        }
        now
    }

    fn pass_time(&mut self, now: Instant, wait: Wait, activity: Activity, busy: bool) {
        let next = self.work.service().next_at(now).min(activity.next.unwrap_or(Instant::MAX));
        let span = if busy { Duration::ZERO } else { next - now };
        wait.pass(self.work.port(), span.as_nanos() as u64, activity.outgoing);
    }

    /// Gives out due requests and asks for the connections that are wanted; true when there was something to do.
    fn serve_client(&mut self, now: Instant) -> bool {
        let (peer, sources) = (&self.peer, &mut self.sources);
        let busy = self.work.with_parts(|client, stack| {
            let mut busy =
                client.next_at(now) <= now && stack.calls(now).is_some_and(|mut calls| client.pump(now, &mut calls));
            for _ in 0..DIALS {
                let Some((index, cookie)) = client.wanted() else { break };
                let asked = dial(now, stack, peer, sources, cookie);
                client.on_asked(now, index, asked);
                busy = true;
            }
            busy
        });
        if busy {
            self.work.poll_soon();
        }
        busy
    }
}

/// Asks for a connection from the next port that is free.
pub(crate) fn dial(
    now: Instant,
    stack: &mut Stack,
    peer: &Peer,
    sources: &mut Sources,
    cookie: u64,
) -> Result<app::Connection, Failure> {
    for _ in 0..PORTS_TRIED {
        match stack.connect(now, sources.next(), peer.server, peer.hop, cookie, peer.window_bytes) {
            Ok(connection) => return Ok(connection),
            Err(CallError::InUse) => {}
            Err(_) => return Err(Failure::NoResources),
        }
    }
    Err(Failure::NoPort)
}

/// Tells the progress, a line a second.
struct Teller {
    at: Instant,
    second: u64,
    /// good answers and bytes told before
    told: (u64, u64),
}

impl Teller {
    fn tell(&mut self, now: Instant, outcome: &Outcome) {
        let span = (now - self.at).as_secs_f64();
        if span < 1.0 {
            return;
        }
        self.second += 1;
        let (answers, bytes) = (outcome.good_in_span - self.told.0, outcome.bytes - self.told.1);
        let failed = outcome.failed(|_| true);
        eprintln!(
            "{:>4} s  {:>8.0} requests/s  {:>8.1} MB/s  {failed} errors",
            self.second,
            answers as f64 / span,
            bytes as f64 / span / 1e6
        );
        (self.at, self.told) = (now, (outcome.good_in_span, outcome.bytes));
    }
}
