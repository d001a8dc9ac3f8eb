//! Who asks: connections of the pipe's peer, or nobody but a list of requests.

use crate::pipe::{Bed, Meter, PSH, RoundFigures, SEGMENT_BYTES, Setup};
use anyhow::{Context as _, Result, anyhow, ensure};
use app::{Addresses, CallError, Coming, Connection, Listener, Range, Service, Streams};
use arrayvec::ArrayVec;
use base::BURST_FRAMES;
use base::rng::Rng;
use kv::{Limits, Options, Server, Shared};
use stack::{TcpConfig, TcpLimits};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of the service alone that are timed together.
const SECTION: usize = 256;

/// What is stored, and how it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) items: u32,
    pub(super) bytes: usize,
    pub(super) connections: usize,
    pub(super) batch: usize,
    /// what comes goes back, and nothing is stored
    pub(super) echo: bool,
}

impl Plan {
    fn request(item: u32) -> Vec<u8> {
        format!("get key:{item:08}\r\n").into_bytes()
    }

    /// An item's value: its number again and again.
    fn value(&self, item: u32) -> Vec<u8> {
        format!("{item:08}").bytes().cycle().take(self.bytes).collect()
    }

    /// What is sent: a GET, or for an echo what is to come back.
    fn question(&self, item: u32) -> Vec<u8> {
        if self.echo { self.value(item) } else { Plan::request(item) }
    }

    fn answer(&self, item: u32) -> Vec<u8> {
        if self.echo {
            return self.value(item);
        }
        let head = format!("VALUE key:{item:08} 0 {}\r\n", self.bytes);
        [head.as_bytes(), &self.value(item), b"\r\nEND\r\n"].concat()
    }

    pub(super) fn options(&self) -> Options {
        let [connections, buffers] = [self.connections; 2].map(app::Bound::new);
        Options { connections, buffers, ..Options::default() }
    }
}

/// A store with all items.
pub(super) fn items(plan: &Plan) -> Result<Shared> {
    // twice what they take, so that nothing goes
    let memory_bytes = (u64::from(plan.items) * (plan.bytes as u64 + 128) * 2).max(64 << 20);
    let shared = Arc::new(Shared::new(Limits {
        memory_bytes,
        item_bytes: 1 << 20,
        threads: 1,
        secret: [5, 8],
        shared_nothing: false,
    }));
    let mut alone = Alone::new(plan, shared.clone());
    for item in 0..plan.items {
        let head = format!("set key:{item:08} 0 0 {} noreply\r\n", plan.bytes);
        alone.give(&[head.as_bytes(), &plan.value(item), b"\r\n"].concat());
    }
    drop(alone);
    Arc::into_inner(shared).context("the store is shared")
}

/// An engine that takes everything at once.
#[derive(Default)]
struct Sink {
    taken: Vec<u8>,
    failed: bool,
}

impl Streams for Sink {
    fn accept(&mut self, _: Connection, _: u64) -> Result<(), CallError> {
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        self.failed = true;
        Ok(())
    }
    fn sendv(&mut self, _: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        for range in ranges {
            match range {
                Range::Owned(bytes) => self.taken.extend_from_slice(bytes),
                Range::Object { .. } => self.failed = true,
            }
        }
        Ok(ranges.iter().map(Range::bytes).sum())
    }
    fn room(&self, _: Connection) -> usize {
        usize::MAX
    }
    fn recv_done(&mut self, _: Connection, _: usize) -> Result<(), CallError> {
        Ok(())
    }
    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        self.failed = true;
        Ok(())
    }
    fn timer_set(&mut self, _: Connection, _: Option<base::Instant>) -> Result<(), CallError> {
        Ok(())
    }
}

const CONNECTION: Connection = Connection { index: 0, generation: 0 };

/// The service, with one connection and no stack.
pub(super) struct Alone {
    plan: Plan,
    server: Server,
    sink: Sink,
    rng: Rng,
    now: base::Instant,
}

impl Alone {
    pub(super) fn new(plan: &Plan, shared: Arc<Shared>) -> Alone {
        let stats = shared.stats();
        let mut server = Server::new(shared, plan.options(), stats);
        let (mut sink, any) = (Sink::default(), ([192, 0, 2, 1], kv::PORT).into());
        let now = base::Instant::ZERO;
        server.knock(now, &mut sink, Listener(0), CONNECTION, Addresses { local: any, peer: any });
        Alone { plan: *plan, server, sink, rng: Rng::new(11), now }
    }

    fn give(&mut self, request: &[u8]) {
        self.server.recv(self.now, &mut self.sink, CONNECTION, 0, request);
    }

    /// So many GETs or more.
    pub(super) fn run(&mut self, gets: u64) -> Result<RoundFigures> {
        let mut meter = Meter::default();
        while meter.operations() < gets {
            let items: Vec<_> = (0..SECTION).map(|_| self.rng.below(u64::from(self.plan.items)) as u32).collect();
            let requests: Vec<_> = items.iter().map(|item| Plan::request(*item)).collect();
            let answers: Vec<u8> = items.iter().flat_map(|item| self.plan.answer(*item)).collect();
            self.sink.taken.clear();
            self.sink.taken.reserve(answers.len());
            self.now += Duration::from_micros(100);
            let start = Instant::now();
            for burst in requests.chunks(self.plan.batch) {
                // what an engine tells of a burst before it hands it over
                let coming = burst.iter().map(|request| Coming { cookie: 0, bytes: request });
                self.server.foresee(&coming.collect::<ArrayVec<_, BURST_FRAMES>>());
                for request in burst {
                    let before = self.sink.taken.len();
                    self.server.recv(self.now, &mut self.sink, CONNECTION, 0, request);
                    // what an engine says when the peer has it
                    let sent = self.sink.taken.len() - before;
                    self.server.sent(self.now, &mut self.sink, CONNECTION, 0, sent, usize::MAX);
                }
            }
            meter.note(start.elapsed().as_nanos() as f64, SECTION as u64);
            ensure!(self.sink.taken == answers && !self.sink.failed, "an answer is not what was stored");
        }
        meter.figures().context("nothing was asked for")
    }
}

/// The connections and the server.
pub(super) struct Clients<S> {
    bed: Bed<S>,
    plan: Plan,
    rng: Rng,
    awaited: Vec<u32>,
}

impl<S: Service> Clients<S> {
    pub(super) fn new(plan: Plan, service: S) -> Result<Clients<S>> {
        let limits = TcpLimits { connections: plan.connections as u32, ..TcpLimits::default() };
        let setup = Setup {
            connections: plan.connections,
            batch: plan.batch,
            tcp: TcpConfig { limits, ..TcpConfig::default() },
            receive_bytes: kv::WINDOW_BYTES as u32,
            window_bytes: 8 * SEGMENT_BYTES,
        };
        let mut bed = Bed::new(&setup, service, || {})?;
        bed.establish()?;
        Ok(Clients { bed, plan, rng: Rng::new(13), awaited: vec![0; plan.connections] })
    }

    /// So many GETs or more, one on each connection at a time; an answer is acknowledged by the next.
    pub(super) fn run(&mut self, gets: u64) -> Result<RoundFigures> {
        self.run_while(|done| done < gets)
    }

    /// The same, for so long.
    pub(super) fn run_for(&mut self, span: Duration) -> Result<RoundFigures> {
        let begun = Instant::now();
        self.run_while(|done| done == 0 || begun.elapsed() < span)
    }

    /// So many GETs or more on one connection, each until its answer has left.
    pub(super) fn round_trips(&mut self, gets: u64) -> Result<RoundFigures> {
        ensure!(self.plan.connections == 1, "round trips are those of one connection");
        self.exchange_while(|done| done < gets, Bed::round_trip)
    }

    fn run_while(&mut self, goes_on: impl Fn(u64) -> bool) -> Result<RoundFigures> {
        self.exchange_while(goes_on, Bed::exchange)
    }

    fn exchange_while(
        &mut self,
        goes_on: impl Fn(u64) -> bool,
        exchange: impl Fn(&mut Bed<S>) -> Result<f64>,
    ) -> Result<RoundFigures> {
        let mut meter = Meter::default();
        while goes_on(meter.operations()) {
            for (slot, awaited) in self.awaited.iter_mut().enumerate() {
                *awaited = self.rng.below(u64::from(self.plan.items)) as u32;
                self.bed.peer.send(slot, PSH, &self.plan.question(*awaited))?;
            }
            let took_ns = exchange(&mut self.bed)?;
            let (plan, awaited) = (self.plan, &self.awaited);
            let mut answers = 0;
            let frames = self.bed.drain(|peer, frame| {
                let arrival = peer.accept(frame.bytes())?;
                if arrival.payload.is_empty() {
                    return Ok(());
                }
                answers += 1;
                let right = arrival.payload == plan.answer(awaited[arrival.slot]);
                ensure!(right, anyhow!("connection {}: an answer is not what was stored", arrival.slot));
                Ok(())
            })?;
            ensure!(answers == self.awaited.len(), "{answers} of {} GETs were answered", self.awaited.len());
            // or it would have been timed until something else
            ensure!(self.awaited.len() > 1 || frames == 1, "an answer came in {frames} frames");
            meter.note(took_ns, self.awaited.len() as u64);
        }
        meter.figures().context("nothing was asked for")
    }

    #[cfg(test)]
    pub(super) fn expect_other_values(&mut self) {
        self.plan.bytes += 1;
    }
}
