//! A server and a peer at the two ends of the pipe, and the clock that both are told.
//!
//! Time is made, not read: it goes on by [`FRAME_NS`] a frame that crosses, about what a busy server takes, so that timers fire as
//! often as they would and a run under valgrind, fifty times slower, does the same work as any other.

use super::peer::Peer;
use super::{serve_waiting, stack};
use crate::stats;
use anyhow::{Result, ensure};
use app::{Listener, Service};
use base::{Burst, Frame};
use dataplane::{Activity, Loop};
use port::Port as _;
use port::pipe::{self, Pipe};
use stack::tcp::Usage;
use stack::{TcpConfig, TcpListener};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

const SERVER: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(198, 18, 0, 1), 80);
/// What a frame takes of the time that stacks are told.
const FRAME_NS: u64 = 125;
/// Frames that the pipe holds in one direction.
const RING_FRAMES: usize = 2048;
/// Connections that are opened together.
const OPENED_TOGETHER: usize = 256;

/// Cycles after which a stack that has nothing to do is stopped asking.
const MOST_WAKES: u64 = 10_000_000;

/// How peer and server are made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// connections at a time
    pub(crate) connections: usize,
    /// frames a cycle, at most
    pub(crate) batch: usize,
    /// what the server's TCP is told; its listeners are set here
    pub(crate) tcp: TcpConfig,
    /// the server's receive window of each connection
    pub(crate) receive_bytes: u32,
    /// the peer's
    pub(crate) window_bytes: usize,
}

/// Both ends.
pub(crate) struct Bed<S> {
    pub(crate) peer: Peer,
    server: Loop<Pipe, S>,
    now: base::Instant,
    /// segments that the time so far accounts for
    counted: u64,
}

impl<S: Service> Bed<S> {
    /// A server with no connection yet; `before` is called when the pipe and the peer have their memory.
    pub(crate) fn new(setup: &Setup, service: S, before: impl FnOnce()) -> Result<Bed<S>> {
        let config =
            pipe::Config { ring_frames: RING_FRAMES, frames: 2 * RING_FRAMES as u32, ..pipe::Config::default() };
        let (mut clients, mut servers) = pipe::pair(&config)?;
        let (client, server) = (clients.remove(0), servers.remove(0));
        let peer = Peer::new(client, config.macs, SERVER, setup.connections, setup.window_bytes);
        before();
        let listener = TcpListener { listener: Listener(0), local: SERVER.into(), window_bytes: setup.receive_bytes };
        let tcp = TcpConfig { listeners: vec![listener], secret: [7, 9], ..setup.tcp.clone() };
        let stack_config = stack::Config { tcp: Some(tcp), ..stack::Config::default() };
        let stack = stack(stack_config, (*SERVER.ip()).into(), server.facts());
        let server = Loop::new(server, stack, service, setup.batch);
        let mut bed = Bed { peer, server, now: base::Instant::ZERO, counted: 0 };
        // the own address comes into use
        bed.exchange()?;
        Ok(bed)
    }

    /// Has the server's port take gathered frames.
    pub(crate) fn gather(&mut self) {
        self.server.port().set_gathers(true);
    }

    /// Frames that the server's port has gathered.
    pub(crate) fn gathered(&mut self) -> u64 {
        self.server.port().stats().gathered.get()
    }

    /// Has the server work on everything that the peer has sent; nanoseconds of its cycles.
    pub(crate) fn exchange(&mut self) -> Result<f64> {
        self.peer.flush()?;
        let start = Instant::now();
        serve_waiting(&mut self.server, self.now);
        let took_ns = start.elapsed().as_nanos() as f64;
        self.exchanged()?;
        Ok(took_ns)
    }

    /// The same; nanoseconds until the first answer has left. What the server does behind it is not in them.
    pub(crate) fn round_trip(&mut self) -> Result<f64> {
        self.peer.flush()?;
        let start = Instant::now();
        let answered = (0..MOST_WAKES).any(|_| self.server.cycle(self.now).transmitted > 0);
        let took_ns = start.elapsed().as_nanos() as f64;
        ensure!(answered, "no answer within {MOST_WAKES} cycles");
        serve_waiting(&mut self.server, self.now);
        self.exchanged()?;
        Ok(took_ns)
    }

    fn exchanged(&mut self) -> Result<()> {
        ensure!(self.server.port().stats().dropped.get() == 0, "the pipe is too small for what the server sends");
        let moved = self.peer.moved();
        self.pass(Duration::from_nanos((moved - self.counted) * FRAME_NS));
        self.counted = moved;
        Ok(())
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        self.peer.set_time(self.now);
    }

    /// Takes what the server has sent, in order: `work` sees each frame with the peer, to accept it, and may answer. How many
    /// there were.
    pub(crate) fn drain(&mut self, mut work: impl FnMut(&mut Peer, &Frame) -> Result<()>) -> Result<usize> {
        let mut burst = Burst::new();
        let mut frames = 0;
        while self.peer.receive(&mut burst) > 0 {
            frames += burst.len();
            for frame in burst.drain(..) {
                let done = work(&mut self.peer, &frame);
                self.peer.give(frame);
                done?;
            }
        }
        Ok(frames)
    }

    /// Opens the connections of all places.
    pub(crate) fn establish(&mut self) -> Result<()> {
        let mut from = 0;
        while from < self.peer.slots() {
            let until = (from + OPENED_TOGETHER).min(self.peer.slots());
            for slot in from..until {
                self.peer.open(slot)?;
            }
            self.exchange()?;
            let mut opened = 0;
            self.drain(|peer, frame| {
                opened += usize::from(peer.accept(frame.bytes())?.is_syn());
                Ok(())
            })?;
            ensure!(opened == until - from, "{opened} of {} connections were opened", until - from);
            for slot in from..until {
                self.peer.send(slot, 0, &[])?;
            }
            self.exchange()?;
            let said = self.drain(|_, _| Ok(()))?;
            ensure!(said == 0, "the server sent {said} segments unasked");
            from = until;
        }
        let usage = self.usage();
        ensure!(usage.half_open == 0, "connections are not established: {usage:?}");
        Ok(())
    }

    /// Lets `span` pass with nothing said, the server's cycles coming when its stack asks for them: how many there were, and how
    /// soon the first was asked for. What the stack sends is an error.
    pub(crate) fn rest(&mut self, span: Duration) -> Result<(u64, Option<Duration>)> {
        let end = self.now + span;
        let began = self.now;
        let (mut wakes, mut first) = (0, None);
        loop {
            let Activity { next, transmitted, .. } = self.server.cycle(self.now);
            ensure!(transmitted == 0, "the server sent {transmitted} segments unasked");
            let Some(at) = next else { break };
            ensure!(wakes < MOST_WAKES, "the stack asked for {MOST_WAKES} cycles with nothing to do");
            if wakes == 0 {
                first = Some(at - began);
            }
            if at > end {
                break;
            }
            self.now = at;
            wakes += 1;
        }
        self.now = self.now.max(end);
        self.peer.set_time(self.now);
        Ok((wakes, first))
    }

    /// How much of TCP's pools is in use.
    pub(crate) fn usage(&mut self) -> Usage {
        self.server.stack().tcp_usage()
    }
}

#[cfg(test)]
impl<S: Service> Bed<S> {
    /// The service.
    pub(crate) fn service(&mut self) -> &mut S {
        self.server.service()
    }
}

/// Server time by sections of the work, each of some operations.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    sections_ns: Vec<f64>,
    total_ns: f64,
    operations: u64,
}

/// What a round's sections say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundFigures {
    /// nanoseconds an operation, the median of the sections
    pub(crate) median_ns: f64,
    /// the same of all together
    pub(crate) mean_ns: f64,
}

impl Meter {
    /// Notes a section.
    pub(crate) fn note(&mut self, took_ns: f64, operations: u64) {
        if operations > 0 {
            self.sections_ns.push(took_ns / operations as f64);
            self.operations += operations;
        }
        self.total_ns += took_ns;
    }

    /// Operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.operations
    }

    /// What they say; None without operations.
    pub(crate) fn figures(&self) -> Option<RoundFigures> {
        let median_ns = stats::median(&self.sections_ns)?;
        Some(RoundFigures { median_ns, mean_ns: self.total_ns / self.operations as f64 })
    }
}
