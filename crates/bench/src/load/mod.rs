//! An open-loop DNS load over a [`Port`]: questions leave at the wanted rate whether or not answers come, each numbered by its
//! (source port, DNS id), so that every answer is matched, timed and counted once.
//!
//! A question whose number comes round again unanswered is lost, as is one unanswered when the run ends. Latency runs from
//! the moment the question was put into the transmit ring to the moment its answer was seen in the receive ring; questions the
//! generator could not send in time are counted as unsent and never timed.

mod outcome;
mod packet;
#[cfg(test)]
mod tests;
mod times;

pub(crate) use outcome::{Good, Outcome};
pub(crate) use packet::{Checksum, Ends, Fault, Template};
pub(crate) use times::{Latency, Times, WINDOW_NS, histogram};

use crate::queries::{Queries, VERSIONS};
use anyhow::{Result, ensure};
use base::{BURST_FRAMES, Burst, Clock};
use port::{Outgoing, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Behind its schedule by more than this, the generator gives questions up as unsent: a burst that makes up for a long pause
/// would measure the pause.
const LAG_MOST_FRAMES: u64 = 2048;

/// How the generator passes the time until something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wait {
    /// lets other threads of this processor run (the receive thread of a veth's end) after every burst, then looks again
    Yield,
    /// sleeps in poll() until something arrives or is due
    Poll,
    /// looks again at once
    Spin,
}

/// A sleep's length at most.
const WAIT_MOST_NS: u64 = 1_000_000;

impl Wait {
    /// Passes up to `span_ns`, and a millisecond at most, while nothing is due; a frame that arrives ends it.
    pub(crate) fn pass(self, port: &impl Port, span_ns: u64, outgoing: Outgoing) {
        match (self, port.descriptor()) {
            (Wait::Poll, Some(descriptor)) if outgoing < Outgoing::Waiting => {
                let span = Timespec { tv_sec: 0, tv_nsec: span_ns.min(WAIT_MOST_NS) as i64 };
                // an interrupted or failed wait is a short one
                let _ = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&span));
            }
            (Wait::Spin, _) => std::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
    }
}

/// How a load is run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// questions a second; None: as many as the port takes
    pub(crate) rate: Option<f64>,
    /// how long to send
    pub(crate) span: Duration,
    /// how long answers are waited for at most when all is sent
    pub(crate) stragglers: Duration,
    /// every so manieth answer is checked to the last byte; 0: none
    pub(crate) check_every: u64,
    /// what to do when nothing is due
    pub(crate) wait: Wait,
    /// questions put into the ring at once, at most
    pub(crate) burst_frames: usize,
    /// a line a second on standard error
    pub(crate) progress: bool,
}

/// One outstanding question.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// when it was sent, in ns of the load's clock; 0: answered, or never used
    sent_ns: u64,
    query: u32,
}

/// A generator: its numbers go on from run to run, so that an answer of the last run is not taken for one of this.
#[derive(Debug)]
pub(crate) struct Load<'a, P> {
    port: P,
    queries: &'a Queries,
    template: Template,
    clock: Clock,
    slots: Vec<Slot>,
    first_port: u16,
    ports: u16,
    /// questions sent since the start
    sequence: u64,
    newest_version: Option<u8>,
    burst: Burst,
}

/// Source ports that the generator uses: `ports` from `first` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourcePorts {
    /// the first
    pub(crate) first: u16,
    /// how many
    pub(crate) count: u16,
}

impl<'a, P: Port> Load<'a, P> {
    /// A generator of `queries` over `port`.
    pub(crate) fn new(port: P, ends: Ends, sources: SourcePorts, queries: &'a Queries) -> Result<Self> {
        let template = Template::new(ends, queries.edns());
        let needed = template.frame_bytes(queries.longest_bytes());
        ensure!(
            needed <= port.facts().frame_bytes,
            "a question makes a frame of {needed} bytes, too large for the port"
        );
        ensure!(sources.count > 0 && u16::MAX - sources.count >= sources.first, "no such source ports: {sources:?}");
        let slots = vec![Slot::default(); usize::from(sources.count) << 16];
        Ok(Load {
            port,
            queries,
            template,
            clock: Clock::start(),
            slots,
            first_port: sources.first,
            ports: sources.count,
            sequence: 0,
            newest_version: None,
            burst: Burst::new(),
        })
    }

    /// The port, for its counters.
    #[cfg(test)]
    pub(crate) fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Sends as planned, waits for stragglers, and tells what came of it. `stop` ends it early. `between` is called once an
    /// iteration; tests let the other end work there.
    pub(crate) fn run(&mut self, plan: &Plan, stop: &AtomicBool, mut between: impl FnMut()) -> Outcome {
        let mut outcome = Outcome::new(plan.rate);
        let start_ns = self.now_ns();
        let end_ns = start_ns + plan.span.as_nanos() as u64;
        let mut pace = Pace { rate: plan.rate, start_ns, given_up: 0 };
        let mut tell_ns = start_ns + 1_000_000_000;
        let mut told = (0, 0);
        loop {
            let now_ns = self.now_ns();
            if now_ns >= end_ns || stop.load(Ordering::Relaxed) {
                break;
            }
            let received = self.receive(plan, &mut outcome);
            let due = pace.due(now_ns, outcome.sent);
            let sent = self.send(due.min(plan.burst_frames as u64), now_ns, &mut outcome);
            let outgoing = self.port.flush();
            between();
            if plan.progress && now_ns >= tell_ns {
                let (sent, answered) = (outcome.sent - told.0, outcome.answered - told.1);
                eprintln!("{:>4} s  sent {sent:>8}/s  answered {answered:>8}/s", (now_ns - start_ns) / 1_000_000_000);
                told = (outcome.sent, outcome.answered);
                tell_ns += 1_000_000_000;
            }
            // the receive thread of a veth's end shares this processor: without a chance to run between two bursts it would
            // lose answers that the server did give
            if plan.wait == Wait::Yield || (received == 0 && sent == 0) {
                let until_ns = pace.next_ns(now_ns, outcome.sent);
                plan.wait.pass(&self.port, until_ns.saturating_sub(self.now_ns()), outgoing);
            }
        }
        outcome.span_ns = self.now_ns() - start_ns;
        outcome.unsent = pace.given_up;
        outcome.end_of_span();
        self.wait_for_stragglers(plan, &mut outcome, &mut between);
        outcome.finish();
        outcome
    }

    fn now_ns(&self) -> u64 {
        // 0 marks a free slot
        self.clock.now().as_nanos() + 1
    }

    fn wait_for_stragglers(&mut self, plan: &Plan, outcome: &mut Outcome, between: &mut impl FnMut()) {
        let end_ns = self.now_ns() + plan.stragglers.as_nanos() as u64;
        while outcome.answered < outcome.sent && self.now_ns() < end_ns {
            let received = self.receive(plan, outcome);
            let outgoing = self.port.flush();
            between();
            if received == 0 {
                plan.wait.pass(&self.port, WAIT_MOST_NS, outgoing);
            }
        }
        // what was not answered by now is lost; its number is free again, and a later answer matches nothing
        for slot in &mut self.slots {
            slot.sent_ns = 0;
        }
    }

    /// Sends up to `count` questions; returns how many went into the ring.
    fn send(&mut self, count: u64, now_ns: u64, outcome: &mut Outcome) -> usize {
        let count = (count as usize).min(self.port.transmit_room()).min(BURST_FRAMES);
        debug_assert!(self.burst.is_empty());
        for ahead in 0..count as u64 {
            let Some(mut frame) = self.port.take() else { break };
            let sequence = self.sequence + ahead;
            let at = (sequence % self.queries.len() as u64) as u32;
            let (port, id) = self.number(sequence);
            self.template.fill(&mut frame, &self.queries.get(at as usize), id, self.first_port + port);
            self.slots[slot_of(port, id)] = Slot { sent_ns: now_ns, query: at };
            self.burst.push(frame);
        }
        let sent = self.port.transmit(&mut self.burst);
        self.sequence += sent as u64;
        outcome.sent += sent as u64;
        // room was asked for, so this is rare; those numbers are used again by the next burst
        for frame in self.burst.drain(..) {
            self.port.give(frame);
        }
        sent
    }

    /// Neighbouring questions come from different ports, so that a server's queues are loaded evenly.
    fn number(&self, sequence: u64) -> (u16, u16) {
        let ports = u64::from(self.ports);
        ((sequence % ports) as u16, (sequence / ports) as u16)
    }

    /// Takes what has arrived, one burst; returns how many frames.
    fn receive(&mut self, plan: &Plan, outcome: &mut Outcome) -> usize {
        let received = self.port.receive(&mut self.burst, BURST_FRAMES);
        if received == 0 {
            return 0;
        }
        let now_ns = self.now_ns();
        let mut burst = std::mem::take(&mut self.burst);
        for frame in burst.drain(..) {
            self.on_frame(frame.bytes(), now_ns, plan, outcome);
            self.port.give(frame);
        }
        self.burst = burst;
        received
    }

    fn on_frame(&mut self, frame: &[u8], now_ns: u64, plan: &Plan, outcome: &mut Outcome) {
        let Some((port, payload)) = self.template.answer(frame) else {
            outcome.foreign += 1;
            return;
        };
        let id = u16::from_be_bytes([payload[0], payload[1]]);
        let port = port.wrapping_sub(self.first_port);
        let Some(slot) = self.slots.get_mut(slot_of(port, id)).filter(|slot| port < self.ports && slot.sent_ns != 0)
        else {
            outcome.unmatched += 1;
            return;
        };
        let Slot { sent_ns, query } = std::mem::take(slot);
        outcome.answered += 1;
        outcome.rcodes[usize::from(payload[3] & 15)] += 1;
        outcome.record_latency(sent_ns, now_ns.saturating_sub(sent_ns));
        if plan.check_every == 0 || !outcome.answered.is_multiple_of(plan.check_every) {
            return;
        }
        outcome.checked += 1;
        match self.template.check(frame, &self.queries.get(query as usize)) {
            Ok(checked) => {
                outcome.partial_checksums += u64::from(checked.checksum == Checksum::Partial);
                outcome.no_checksums += u64::from(checked.checksum == Checksum::Absent);
                if let Some(version) = checked.version {
                    self.on_version(version, outcome);
                }
            }
            Err(fault) => *outcome.faults.entry(fault).or_default() += 1,
        }
    }

    /// Versions go forward. An answer that was on its way when a newer one was seen may be one version behind.
    fn on_version(&mut self, version: u8, outcome: &mut Outcome) {
        let newest = *self.newest_version.get_or_insert(version);
        // in 16 bits, since the sum exceeds a byte
        match ((u16::from(version) + u16::from(VERSIONS - newest)) % u16::from(VERSIONS)) as u8 {
            0 => {}
            ahead if ahead < VERSIONS / 2 => {
                self.newest_version = Some(version);
                outcome.versions += u64::from(ahead);
            }
            behind if behind == VERSIONS - 1 => {}
            _ => *outcome.faults.entry(Fault::StaleVersion).or_default() += 1,
        }
    }
}

fn slot_of(port: u16, id: u16) -> usize {
    usize::from(port) << 16 | usize::from(id)
}

/// When questions are due.
struct Pace {
    rate: Option<f64>,
    start_ns: u64,
    given_up: u64,
}

impl Pace {
    /// How many should be sent now, `sent` being out already.
    fn due(&mut self, now_ns: u64, sent: u64) -> u64 {
        let Some(rate) = self.rate else { return u64::MAX };
        let wanted = ((now_ns - self.start_ns) as f64 * rate / 1e9) as u64;
        let due = wanted.saturating_sub(sent + self.given_up);
        let too_late = due.saturating_sub(LAG_MOST_FRAMES);
        self.given_up += too_late;
        due - too_late
    }

    /// When the next one is due.
    fn next_ns(&self, now_ns: u64, sent: u64) -> u64 {
        match self.rate {
            Some(rate) => self.start_ns + ((sent + self.given_up + 1) as f64 * 1e9 / rate) as u64,
            None => now_ns,
        }
    }
}
