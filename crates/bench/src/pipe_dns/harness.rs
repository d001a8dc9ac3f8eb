//! A server and a client at the two ends of an in-memory pipe, in one thread: the client fills the pipe, the server's cycles
//! over what is there are timed, the client takes the answers out and checks them. Only the middle step is on the clock.

use super::{Keying, Setup, Transmit};
use crate::load::{Checksum, Ends, Template};
use crate::pipe::serve_waiting;
use crate::queries::{Content, Queries, Synthetic};
use crate::stats;
use anyhow::{Context as _, Result, anyhow, ensure};
use app::Listener;
use base::publish::Publisher;
use base::{Burst, Clock};
use dataplane::Loop;
use dns::{Options, QuestionCompression, Server, Tables};
use port::Port;
use port::pipe::{self, Pipe};
use stack::UdpListener;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// Questions that wait when the clock starts: a NIC's ring, well filled.
pub(crate) const RING_FRAMES: usize = 512;
const CLIENT: &str = "198.18.0.2";
const SERVER: &str = "198.18.0.1:53";
const FIRST_PORT: u16 = 20_000;
/// What `simoom dns --transmit precopy` gives a thread.
const RETAINED_BYTES: usize = 16 << 20;
/// One answer in so many is checked to the last byte.
const CHECK_EVERY: u64 = 64;

/// Client, pipe and server.
pub(crate) struct Harness {
    client: Pipe,
    server: Loop<Pipe, Server>,
    template: Template,
    queries: Queries,
    clock: Clock,
    asked: u64,
    answered: u64,
    sections_ns: Vec<f64>,
}

/// The tables of a synthetic zone of `names` names.
pub(crate) fn tables(names: u64) -> Result<Arc<Tables>> {
    let synthetic = Synthetic { origin: "example.com".into(), names, content: Content::Plain };
    let mut text = Vec::new();
    synthetic.write(&mut text)?;
    let source = zone::MemorySource::new().with("zone", text);
    let one_line = |errors: Vec<String>| anyhow!("the zone does not load: {}", errors.join("; "));
    let zone = zone::load(&source, "zone", None)
        .map_err(|errors| one_line(errors.iter().map(ToString::to_string).collect()))?;
    let tables =
        Tables::build(vec![zone], 1).map_err(|errors| one_line(errors.iter().map(ToString::to_string).collect()))?;
    Ok(Arc::new(tables))
}

impl Harness {
    /// A server over `tables`, which hold a synthetic zone of `setup.names` names.
    pub(crate) fn new(setup: &Setup, tables: Arc<Tables>) -> Result<Harness> {
        let config =
            pipe::Config { ring_frames: RING_FRAMES, frames: 2 * RING_FRAMES as u32, ..pipe::Config::default() };
        let (mut clients, mut servers) = pipe::pair(&config)?;
        let (client, server) = (clients.remove(0), servers.remove(0));
        let listen: SocketAddr = SERVER.parse()?;
        let keying = match setup.keying {
            Keying::Wire => QuestionCompression::Refuse,
            Keying::Name => QuestionCompression::Accept,
        };
        let retained_bytes = if setup.transmit == Transmit::Precopy { RETAINED_BYTES } else { 0 };
        let options = Options { question_compression: keying, retained_bytes, ..Options::default() };
        let service = Server::new(Publisher::new(tables).reader(), options);
        let stack_config = stack::Config {
            listeners: vec![UdpListener { listener: Listener(0), local: listen }],
            ..stack::Config::default()
        };
        let stack = crate::pipe::stack(stack_config, listen.ip(), server.facts());
        let server = Loop::new(server, stack, service, setup.batch).with_copies(setup.transmit == Transmit::Copy);
        let zone = Synthetic { origin: "example.com".into(), names: setup.names, content: Content::Plain };
        let queries = Queries::synthetic(&zone, None, 7)?;
        let ends = Ends {
            client_mac: config.macs[0],
            server_mac: config.macs[1],
            client: CLIENT.parse::<IpAddr>()?,
            server: listen,
        };
        let template = Template::new(ends, false);
        Ok(Harness {
            client,
            server,
            template,
            queries,
            clock: Clock::start(),
            asked: 0,
            answered: 0,
            sections_ns: Vec::new(),
        })
    }

    /// Asks `questions`, rounded up to whole rings; nanoseconds a question in the server's cycles, the median of the sections on
    /// the clock.
    pub(crate) fn run(&mut self, questions: u64) -> Result<f64> {
        let before = self.answered;
        self.sections_ns.clear();
        while self.answered - before < questions {
            self.fill()?;
            let now = self.clock.now();
            let start = Instant::now();
            serve_waiting(&mut self.server, now);
            self.sections_ns.push(start.elapsed().as_nanos() as f64 / RING_FRAMES as f64);
            self.drain()?;
        }
        stats::median(&self.sections_ns).context("no question was asked")
    }

    fn number(&self, sequence: u64) -> (u16, u16) {
        (FIRST_PORT + (sequence >> 16) as u16 % 16, sequence as u16)
    }

    fn fill(&mut self) -> Result<()> {
        let mut burst = Burst::new();
        for _ in 0..RING_FRAMES {
            let mut frame = self.client.take().ok_or_else(|| anyhow!("frames were lost"))?;
            let (port, id) = self.number(self.asked);
            let query = self.queries.get((self.asked % self.queries.len() as u64) as usize);
            self.template.fill(&mut frame, &query, id, port);
            self.asked += 1;
            burst.push(frame);
            if burst.is_full() {
                self.client.transmit(&mut burst);
            }
        }
        self.client.transmit(&mut burst);
        ensure!(self.client.stats().dropped.get() == 0, "the pipe is too small");
        Ok(())
    }

    /// Answers come in the order of the questions, since the server works in that order.
    fn drain(&mut self) -> Result<()> {
        let mut burst = Burst::new();
        while self.client.receive(&mut burst, base::BURST_FRAMES) > 0 {
            for frame in burst.drain(..) {
                let (port, id) = self.number(self.answered);
                let answer = self.template.answer(frame.bytes());
                let ours = answer.is_some_and(|(to, payload)| {
                    to == port && payload[..2] == id.to_be_bytes() && payload[3] & 15 == 0
                });
                ensure!(ours, "question {} was not answered next", self.answered);
                if self.answered.is_multiple_of(CHECK_EVERY) {
                    let query = self.queries.get((self.answered % self.queries.len() as u64) as usize);
                    let checked = self.template.check(frame.bytes(), &query);
                    let checked =
                        checked.map_err(|fault| anyhow!("the answer to question {}: {fault:?}", self.answered))?;
                    ensure!(
                        checked.checksum == Checksum::Whole,
                        "question {} has an unfinished checksum",
                        self.answered
                    );
                }
                self.answered += 1;
                self.client.give(frame);
            }
        }
        self.client.flush();
        ensure!(self.answered == self.asked, "{} of {} questions were answered", self.answered, self.asked);
        Ok(())
    }
}

#[cfg(test)]
impl Harness {
    /// Frames that ask: the `n`th question with this ID, from this port.
    pub(super) fn question(&mut self, n: u64, id: u16, port: u16) -> Vec<u8> {
        let mut frame = self.client.take().expect("a free frame");
        let query = self.queries.get((n % self.queries.len() as u64) as usize);
        self.template.fill(&mut frame, &query, id, port);
        let bytes = frame.bytes().to_vec();
        self.client.give(frame);
        bytes
    }

    /// Puts frames on the wire, has the server work, and gives what it sent.
    pub(super) fn exchange(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        for bytes in frames {
            let mut frame = self.client.take().expect("a free frame");
            assert!(frame.fill(bytes));
            burst.push(frame);
            if burst.is_full() {
                self.client.transmit(&mut burst);
            }
        }
        self.client.transmit(&mut burst);
        serve_waiting(&mut self.server, base::Instant::ZERO);
        let mut answers = Vec::new();
        while self.client.receive(&mut burst, base::BURST_FRAMES) > 0 {
            for frame in burst.drain(..) {
                answers.push(frame.bytes().to_vec());
                self.client.give(frame);
            }
        }
        answers
    }

    /// Free frames of both ends, with nothing on its way.
    pub(super) fn at_rest(&mut self) -> (usize, usize) {
        let count = |port: &mut Pipe| {
            port.flush();
            let frames: Vec<_> = std::iter::from_fn(|| port.take()).collect();
            let count = frames.len();
            frames.into_iter().for_each(|frame| port.give(frame));
            count
        };
        (count(&mut self.client), count(self.server.port()))
    }
}
