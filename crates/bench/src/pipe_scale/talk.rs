//! What is said: questions to a DNS server, and requests to a web server over connections that stay. One frame of a flow is on its
//! way at a time, so whoever holds it may write what is known of the flow; the rings that it came over order that.

use crate::load::{Checksum, Ends, Template};
use crate::pipe::{self, ACK, Fields, Maker, PSH, RST, Repeated, SYN, WINDOW_SCALE};
use crate::pipe_http::head;
use crate::queries::{Content, Queries, Synthetic};
use anyhow::{Result, anyhow, ensure};
use base::{CacheAligned, Frame};
use port::Mac;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use wire::Protocol;
use wire::flow::{Flow, Groups};

pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FIRST_PORT: u16 = 1024;
const NOBODY: u16 = u16::MAX;

/// The clients' flows: each a port of one address.
#[derive(Clone, Debug)]
pub(super) struct Flows {
    ports: Vec<u16>,
    groups: Vec<u16>,
    of_port: Vec<u16>,
}

impl Flows {
    /// `each` flows for each of so many threads, where thread `group % threads` has a group.
    pub(super) fn new(groups: &Groups, threads: usize, each: usize, protocol: Protocol, port: u16) -> Result<Flows> {
        let mut flows = Flows { ports: Vec::new(), groups: Vec::new(), of_port: vec![NOBODY; 1 << 16] };
        let mut missing = vec![each; threads];
        for source in FIRST_PORT..=u16::MAX {
            let flow = Flow::new(protocol, (CLIENT, source).into(), (SERVER, port).into());
            let group = groups.of(&flow.ok_or_else(|| anyhow!("addresses of two families"))?);
            let missing = &mut missing[usize::from(group) % threads];
            if *missing > 0 {
                *missing -= 1;
                flows.of_port[usize::from(source)] = flows.ports.len() as u16;
                flows.ports.push(source);
                flows.groups.push(group);
            }
        }
        ensure!(flows.count() == each * threads, "one address has no {each} flows for each of {threads} threads");
        Ok(flows)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.ports.len()
    }

    /// The group of a flow.
    pub(super) fn group(&self, flow: usize) -> u16 {
        self.groups[flow]
    }

    fn of_port(&self, port: u16) -> Result<usize> {
        let flow = self.of_port[usize::from(port)];
        ensure!(flow != NOBODY, "an answer came for port {port}, which is nobody's");
        Ok(usize::from(flow))
    }
}

/// What a frame from the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// an answer on this flow
    Answer(usize),
    /// the flow's connection is open
    Opened(usize),
    /// nothing that asks for a reaction
    Nothing,
}

/// The clients' side of a protocol.
pub(super) trait Talk: Send + Sync + 'static {
    /// The flows.
    fn flows(&self) -> &Flows;

    /// Makes `frame` the first of a flow; whether it is a question.
    fn open(&self, flow: usize, frame: &mut Frame) -> bool;

    /// Judges what came; to the last octet when it is to be `checked`.
    fn take(&self, frame: &Frame, checked: bool) -> Result<Came>;

    /// Makes `frame` the flow's next question.
    fn ask(&self, flow: usize, frame: &mut Frame);

    /// Questions that were answered on a flow so far.
    fn answered(&self, flow: usize) -> u32;
}

/// Questions for uniformly random names of a synthetic zone.
pub(super) struct Dns {
    flows: Flows,
    template: Template,
    queries: Queries,
    // flows of different threads shall not share a cache line
    answered: Vec<CacheAligned<AtomicU32>>,
}

impl Dns {
    pub(super) const PORT: u16 = 53;

    pub(super) fn new(flows: Flows, macs: [Mac; 2], names: u64) -> Result<Dns> {
        let ends = Ends {
            client_mac: macs[0],
            server_mac: macs[1],
            client: IpAddr::V4(CLIENT),
            server: SocketAddr::from((SERVER, Self::PORT)),
        };
        let zone = Synthetic { origin: "example.com".into(), names, content: Content::Plain };
        let answered = (0..flows.count()).map(|_| CacheAligned::default()).collect();
        Ok(Dns { flows, template: Template::new(ends, false), queries: Queries::synthetic(&zone, None, 7)?, answered })
    }

    fn query(&self, flow: usize, number: u32) -> usize {
        // flows begin far from each other
        (flow * 7919 + number as usize) % self.queries.len()
    }
}

impl Talk for Dns {
    fn flows(&self) -> &Flows {
        &self.flows
    }

    fn open(&self, flow: usize, frame: &mut Frame) -> bool {
        self.ask(flow, frame);
        true
    }

    #[inline]
    fn take(&self, frame: &Frame, checked: bool) -> Result<Came> {
        let (port, payload) =
            self.template.answer(frame.bytes()).ok_or_else(|| anyhow!("something came that is no answer of ours"))?;
        let flow = self.flows.of_port(port)?;
        let number = self.answered[flow].load(Relaxed);
        let ours = payload[..2] == (number as u16).to_be_bytes() && payload[3] & 15 == 0;
        ensure!(ours, "question {number} of port {port} was not answered next");
        if checked {
            let query = self.queries.get(self.query(flow, number));
            let checked = self.template.check(frame.bytes(), &query);
            let checked =
                checked.map_err(|fault| anyhow!("the answer to question {number} of port {port}: {fault:?}"))?;
            ensure!(checked.checksum == Checksum::Whole, "question {number} of port {port} has an unfinished checksum");
        }
        self.answered[flow].store(number.wrapping_add(1), Relaxed);
        Ok(Came::Answer(flow))
    }

    #[inline]
    fn ask(&self, flow: usize, frame: &mut Frame) {
        let number = self.answered[flow].load(Relaxed);
        let query = self.queries.get(self.query(flow, number));
        self.template.fill(frame, &query, number as u16, self.flows.ports[flow]);
    }

    fn answered(&self, flow: usize) -> u32 {
        self.answered[flow].load(Relaxed)
    }
}

/// What is known of a connection.
#[derive(Debug, Default)]
struct Link {
    snd_nxt: AtomicU32,
    rcv_nxt: AtomicU32,
    /// the server's clock, to be echoed
    echo: AtomicU32,
    answered: AtomicU32,
}

/// Requests for one file, whose answer is one segment, over a connection a flow.
pub(super) struct Web {
    flows: Flows,
    maker: Maker,
    server: SocketAddrV4,
    request: Vec<u8>,
    content: Repeated,
    content_bytes: u64,
    /// octets of an answer with its head, once one was checked
    answer_bytes: AtomicU32,
    // as above
    links: Vec<CacheAligned<Link>>,
}

impl Web {
    pub(super) const PORT: u16 = 80;
    /// With its head in one segment.
    pub(super) const FILE_BYTES: u64 = 1024;
    const CLOCK_MS: u32 = 1;
    const WINDOW: u16 = (65_536u32 >> WINDOW_SCALE) as u16;

    pub(super) fn new(flows: Flows, macs: [Mac; 2], request: Vec<u8>, content: Repeated) -> Web {
        let server = SocketAddrV4::new(SERVER, Self::PORT);
        let links = (0..flows.count()).map(|_| CacheAligned::default()).collect();
        let (maker, answer_bytes) = (Maker::new(macs, server), AtomicU32::new(0));
        Web { flows, maker, server, request, content, content_bytes: Self::FILE_BYTES, answer_bytes, links }
    }

    fn source(&self, flow: usize) -> SocketAddrV4 {
        SocketAddrV4::new(CLIENT, self.flows.ports[flow])
    }

    fn check(&self, frame: &Frame, payload: &[u8]) -> Result<()> {
        let (content, bytes) = head(payload).ok_or_else(|| anyhow!("no answer with status 200"))?;
        ensure!(bytes == self.content_bytes && content.len() as u64 == bytes, "an answer of {} octets", content.len());
        ensure!(self.content.holds(0, content, true), "an answer with wrong octets");
        ensure!(pipe::checksums_are_good(frame.bytes()), "a wrong checksum");
        // beside it lies what all threads read
        if self.answer_bytes.load(Relaxed) != payload.len() as u32 {
            self.answer_bytes.store(payload.len() as u32, Relaxed);
        }
        Ok(())
    }
}

impl Talk for Web {
    fn flows(&self) -> &Flows {
        &self.flows
    }

    fn open(&self, flow: usize, frame: &mut Frame) -> bool {
        let iss = (flow as u32).wrapping_mul(0x9e37_79b9);
        self.links[flow].snd_nxt.store(iss.wrapping_add(1), Relaxed);
        self.maker.syn(frame, self.source(flow), iss, Self::CLOCK_MS);
        false
    }

    #[inline]
    fn take(&self, frame: &Frame, checked: bool) -> Result<Came> {
        let segment = pipe::parse(frame.bytes(), self.server)
            .filter(|segment| segment.client == CLIENT)
            .ok_or_else(|| anyhow!("something came that is no segment of ours"))?;
        let flow = self.flows.of_port(segment.port)?;
        ensure!(segment.flags & RST == 0, "connection {flow} was reset");
        let link = &self.links[flow];
        let rcv_nxt = link.rcv_nxt.load(Relaxed);
        if segment.flags & SYN != 0 {
            if rcv_nxt != 0 {
                return Ok(Came::Nothing);
            }
            link.rcv_nxt.store(segment.seq.wrapping_add(1), Relaxed);
            link.echo.store(segment.clock.unwrap_or(0), Relaxed);
            return Ok(Came::Opened(flow));
        }
        // a mere acknowledgement, or what was sent again since this side was put off its processor for long
        let behind = rcv_nxt.wrapping_sub(segment.seq).cast_signed();
        if segment.payload.is_empty() || behind >= segment.payload.len() as i32 {
            return Ok(Came::Nothing);
        }
        let in_order = behind == 0 && segment.flags & ACK != 0 && segment.ack == link.snd_nxt.load(Relaxed);
        ensure!(in_order, "connection {flow}: a segment {behind} octets before the next in order");
        let (bytes, expected) = (segment.payload.len() as u32, self.answer_bytes.load(Relaxed));
        if checked || expected == 0 {
            self.check(frame, segment.payload)?;
        }
        ensure!(expected == 0 || bytes == expected, "connection {flow}: an answer of {bytes} octets");
        link.rcv_nxt.store(rcv_nxt.wrapping_add(bytes), Relaxed);
        link.echo.store(segment.clock.unwrap_or(0), Relaxed);
        link.answered.store(link.answered.load(Relaxed).wrapping_add(1), Relaxed);
        Ok(Came::Answer(flow))
    }

    #[inline]
    fn ask(&self, flow: usize, frame: &mut Frame) {
        let link = &self.links[flow];
        let (seq, ack) = (link.snd_nxt.load(Relaxed), link.rcv_nxt.load(Relaxed));
        link.snd_nxt.store(seq.wrapping_add(self.request.len() as u32), Relaxed);
        let fields = Fields { seq, ack, flags: PSH | ACK, window: Self::WINDOW };
        let clocks = [Self::CLOCK_MS, link.echo.load(Relaxed)];
        self.maker.segment(frame, self.source(flow), fields, clocks, &self.request);
    }

    fn answered(&self, flow: usize) -> u32 {
        self.links[flow].answered.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_as_many_flows() {
        let groups = Groups::keyed(64, [3, 5]);
        let flows = Flows::new(&groups, 3, 20, Protocol::UDP, 53).unwrap();
        let of = |thread| (0..flows.count()).filter(|flow| usize::from(flows.group(*flow)) % 3 == thread).count();
        assert_eq!([of(0), of(1), of(2)], [20, 20, 20]);
        assert_eq!(flows.of_port(flows.ports[7]).unwrap(), 7);
        assert!(flows.of_port(1).unwrap_err().to_string().contains("port 1, which is nobody's"));
        assert!(Flows::new(&groups, 2, 40_000, Protocol::UDP, 53).is_err());
    }
}
