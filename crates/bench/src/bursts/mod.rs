//! A closed loop of numbered requests to a reflector that answers each by several full frames (`reflect --segments`): whole bursts a
//! second, counted as `simoom-bench http` counts whole answers. So a reflector is the bound of a server of files.
//!
//! A frame that is lost must not stop the loop. Requests are answered in their order, so one of which a frame is missing when
//! those of a second later one have begun to come is given up as *short*; when nothing at all has come for the plan's timeout, the
//! oldest is. Either way another takes its place. The numbers of a run are not those of the run before, so what is late counts for nothing.
//!
//! Left out: looking at payloads and checksums, of which the reflector makes none.

mod outcome;
#[cfg(test)]
mod tests;

pub(crate) use outcome::Outcome;

use crate::load::{Ends, Wait};
use crate::queries::{folded, sum16};
use base::{BURST_FRAMES, Burst, Clock};
use port::Port;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request's frame: as large as that of a short GET.
const REQUEST_BYTES: usize = 132;
const NUMBER_BYTES: usize = 8;

/// How a load is run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// frames that answer a request
    pub(crate) segments: u32,
    /// requests at a time
    pub(crate) outstanding: u32,
    /// how long to ask
    pub(crate) span: Duration,
    /// silence after which the oldest request is given up
    pub(crate) timeout: Duration,
    /// what to do when nothing is due
    pub(crate) wait: Wait,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
struct Asked {
    sent_ns: u64,
    frames: u32,
    /// answered, or given up
    over: bool,
}

/// A generator.
#[derive(Debug)]
pub(crate) struct Load<P> {
    port: P,
    request: Vec<u8>,
    number_at: usize,
    clock: Clock,
    /// requests from the oldest that is not over
    asked: VecDeque<Asked>,
    /// the number of the first of them
    first: u64,
    /// how many of them are not over
    open: u32,
    /// when something arrived or was given up last
    heard_ns: u64,
    burst: Burst,
}

impl<P: Port> Load<P> {
    /// A generator between these ends, from UDP port `source`, whose numbers begin at `first`: above those of a run before.
    ///
    /// # Panics
    /// When the two addresses are not of one family.
    pub(crate) fn new(port: P, ends: &Ends, source: u16, first: u64) -> Load<P> {
        let (request, number_at) = request(ends, source);
        Load {
            port,
            request,
            number_at,
            clock: Clock::start(),
            asked: VecDeque::new(),
            first,
            open: 0,
            heard_ns: 0,
            burst: Burst::new(),
        }
    }

    /// Asks as planned and tells what came of it. `stop` ends it early. `between` is called once an iteration; tests let the other
    /// end work there.
    pub(crate) fn run(&mut self, plan: &Plan, stop: &AtomicBool, mut between: impl FnMut()) -> Outcome {
        let mut outcome = Outcome::new(plan.segments);
        let start_ns = self.now_ns();
        let end_ns = start_ns + plan.span.as_nanos() as u64;
        let timeout_ns = plan.timeout.as_nanos() as u64;
        self.heard_ns = start_ns;
        let mut now_ns = start_ns;
        while now_ns < end_ns && !stop.load(Ordering::Relaxed) {
            let received = self.receive(now_ns, &mut outcome);
            if self.open > 0 && now_ns.saturating_sub(self.heard_ns) > timeout_ns {
                self.heard_ns = now_ns;
                outcome.silent += 1;
                self.give_up_before(1, &mut outcome);
            }
            let sent = self.send(plan.outstanding - self.open, now_ns, &mut outcome);
            let outgoing = self.port.flush();
            between();
            // the receive thread of a veth's end may share this processor (see `load`)
            if plan.wait == Wait::Yield || (received == 0 && sent == 0) {
                plan.wait.pass(&self.port, timeout_ns, outgoing);
            }
            now_ns = self.now_ns();
        }
        outcome.span_ns = now_ns - start_ns;
        outcome.unfinished = u64::from(self.open);
        outcome.finish();
        // a later run begins above all these
        self.first += self.asked.len() as u64;
        self.asked.clear();
        self.open = 0;
        outcome
    }

    fn now_ns(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Sends up to `count` requests; returns how many went into the ring.
    fn send(&mut self, count: u32, now_ns: u64, outcome: &mut Outcome) -> usize {
        let count = (count as usize).min(self.port.transmit_room()).min(BURST_FRAMES);
        for ahead in 0..count as u64 {
            let Some(mut frame) = self.port.take() else { break };
            frame.set_len(self.request.len());
            let bytes = frame.bytes_mut();
            bytes.copy_from_slice(&self.request);
            let number = self.first + self.asked.len() as u64 + ahead;
            bytes[self.number_at..self.number_at + NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
            self.burst.push(frame);
        }
        let sent = self.port.transmit(&mut self.burst);
        // room was asked for, so this is rare; those numbers are used again by the next burst
        for frame in self.burst.drain(..) {
            self.port.give(frame);
        }
        self.asked.extend(std::iter::repeat_n(Asked { sent_ns: now_ns, frames: 0, over: false }, sent));
        self.open += sent as u32;
        outcome.sent += sent as u64;
        sent
    }

    /// Takes what has arrived, one burst; returns how many frames.
    fn receive(&mut self, now_ns: u64, outcome: &mut Outcome) -> usize {
        let received = self.port.receive(&mut self.burst, BURST_FRAMES);
        if received > 0 {
            self.heard_ns = now_ns;
        }
        let mut burst = std::mem::take(&mut self.burst);
        for frame in burst.drain(..) {
            self.on_frame(frame.bytes(), now_ns, outcome);
            self.port.give(frame);
        }
        self.burst = burst;
        received
    }

    fn on_frame(&mut self, frame: &[u8], now_ns: u64, outcome: &mut Outcome) {
        let Some(number) = self.number(frame) else {
            outcome.foreign += 1;
            return;
        };
        let at = number.wrapping_sub(self.first);
        let Some(asked) = self.asked.get_mut(at as usize).filter(|asked| !asked.over) else {
            outcome.late += 1;
            return;
        };
        outcome.frames += 1;
        outcome.bytes += frame.len() as u64;
        asked.frames += 1;
        if asked.frames == outcome.segments {
            asked.over = true;
            outcome.record_latency(now_ns.saturating_sub(asked.sent_ns));
            outcome.answered += 1;
            self.open -= 1;
        }
        // what was asked two before this one has lost a frame if it is not whole; only one before, it may have been overtaken
        self.give_up_before(at.saturating_sub(1) as usize, outcome);
    }

    /// Gives up those of the `count` oldest requests that are not over, and forgets all at the front that are.
    fn give_up_before(&mut self, count: usize, outcome: &mut Outcome) {
        for asked in self.asked.iter_mut().take(count).filter(|asked| !asked.over) {
            asked.over = true;
            self.open -= 1;
            outcome.short += 1;
        }
        while self.asked.front().is_some_and(|asked| asked.over) {
            self.asked.pop_front();
            self.first += 1;
        }
    }

    /// Which request a frame answers: it is UDP, and turned round.
    fn number(&self, frame: &[u8]) -> Option<u64> {
        let ports_at = self.number_at - 8;
        let number = frame.get(self.number_at..self.number_at + NUMBER_BYTES)?;
        let ours = frame[12..14] == self.request[12..14]
            && frame[ports_at..ports_at + 2] == self.request[ports_at + 2..ports_at + 4]
            && frame[ports_at + 2..ports_at + 4] == self.request[ports_at..ports_at + 2];
        ours.then(|| u64::from_be_bytes(number.try_into().expect("eight octets")))
    }
}

/// A request without its number, and where that stands. There is no UDP checksum: the reflector asks for none.
fn request(ends: &Ends, source: u16) -> (Vec<u8>, usize) {
    let mut frame = Vec::with_capacity(REQUEST_BYTES);
    frame.extend_from_slice(&ends.server_mac);
    frame.extend_from_slice(&ends.client_mac);
    match (ends.client, ends.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let bytes = (REQUEST_BYTES - 14) as u8;
            frame.extend_from_slice(&[8, 0, 0x45, 0, 0, bytes, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            frame.extend_from_slice(&client.octets());
            frame.extend_from_slice(&server.octets());
            let checksum = folded(sum16(&frame[14..34]));
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, (REQUEST_BYTES - 54) as u8, 17, 64]);
            frame.extend_from_slice(&client.octets());
            frame.extend_from_slice(&server.octets());
        }
        (client, server) => panic!("{client} cannot ask {server}"),
    }
    let udp_bytes = (REQUEST_BYTES - frame.len()) as u16;
    for field in [source, ends.server.port(), udp_bytes, 0] {
        frame.extend_from_slice(&field.to_be_bytes());
    }
    let number_at = frame.len();
    frame.resize(REQUEST_BYTES, 0);
    (frame, number_at)
}
