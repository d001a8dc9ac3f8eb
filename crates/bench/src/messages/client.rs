//! The load, from our own stack's client side over a [`Port`]: each connection has one message under way at most, and all of them together
//! as many as the plan says; who waits for its turn does so in a queue that begins in random order, so every connection is used as often
//! as any other and none follows from its neighbour. A closed loop: what comes back makes room for the next.
//!
//! With so many round trips a connection it is ended then, and another is made in its place from the next port. One that fails is not
//! made again: what fails here is counted, and the load is none. After start-up nothing is allocated for a message.

use super::{Head, MOST_BYTES, Outcome, Pattern, Progress};
use crate::http::{Peer, Sources, dial, stack_config};
use crate::load::Wait;
use anyhow::{Result, ensure};
use app::{Connection, DeadReason, Service, Streams};
use base::rng::Rng;
use base::{BURST_FRAMES, Instant};
use dataplane::Loop;
use port::Port;
use stack::Stack;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Without a new connection, or a message that comes back, for so long nothing more is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections asked for between two cycles at most, and handshakes under way at one time: what a listener's queue holds.
const DIALS: usize = 64;
const HANDSHAKES: usize = 1024;
/// The stack's blocks for messages, of 2 KiB.
const OWNED_BLOCKS: u32 = 32_768;
/// A message up to this length is copied into one of them.
const COPIED_BYTES: usize = 2048;

/// How a connection is ended that had its round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum End {
    /// by a reset, which leaves nothing behind at either end
    Rst,
    /// by a FIN of ours, which the server's answers; TIME-WAIT is ours
    Fin,
}

impl End {
    /// As on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            End::Rst => "rst",
            End::Fin => "fin",
        }
    }
}

/// How messages of one length are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// octets of a message
    pub(crate) bytes: u32,
    /// messages under way at most, of all connections together
    pub(crate) under_way: u32,
    /// round trips of a connection; None: as many as there is time for
    pub(crate) trips: Option<u64>,
    /// how it is ended then
    pub(crate) end: End,
    /// how long to ask
    pub(crate) span: Duration,
    /// how long to ask before that, with answers that do not count
    pub(crate) warm_up: Duration,
    /// what to do when nothing is there
    pub(crate) wait: Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// to be asked for
    Wanted,
    Connecting,
    /// its turn comes
    Ready,
    /// a message is under way
    Waiting,
    Failed,
}

#[derive(Debug)]
struct Slot {
    connection: Option<Connection>,
    state: State,
    /// how often the place was used before: events of a former connection are nobody's
    epoch: u32,
    number: u64,
    trips: u64,
    since: Instant,
    progress: Progress,
}

/// The client's half of the loop.
#[derive(Debug)]
struct Client {
    pattern: Pattern,
    slots: Vec<Slot>,
    ready: VecDeque<u32>,
    wanted: VecDeque<u32>,
    handshakes: usize,
    under_way: u32,
    plan: Plan,
    /// when asking ends
    until: Instant,
    outcome: Outcome,
    message: Vec<u8>,
}

impl Client {
    fn new(connections: u32, plan: Plan) -> Client {
        let slot = || Slot {
            connection: None,
            state: State::Wanted,
            epoch: 0,
            number: 0,
            trips: 0,
            since: Instant::ZERO,
            progress: Progress::default(),
        };
        Client {
            pattern: Pattern::new(MOST_BYTES),
            slots: (0..connections).map(|_| slot()).collect(),
            ready: VecDeque::with_capacity(connections as usize),
            wanted: (0..connections).collect(),
            handshakes: 0,
            under_way: 0,
            plan,
            until: Instant::ZERO,
            outcome: Outcome::new(plan.bytes),
            message: Vec::with_capacity(COPIED_BYTES),
        }
    }

    /// The slot of an event.
    #[inline]
    fn slot(&self, cookie: u64) -> Option<u32> {
        let (epoch, index) = ((cookie >> 32) as u32, cookie as u32);
        self.slots.get(index as usize).is_some_and(|slot| slot.epoch == epoch).then_some(index)
    }

    /// Connections that stand.
    fn standing(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.state, State::Ready | State::Waiting)).count()
    }

    fn is_alive(&self) -> bool {
        !self.ready.is_empty() || !self.wanted.is_empty() || self.under_way > 0 || self.handshakes > 0
    }

    /// Begins to ask, or with a span of none ends.
    fn begin(&mut self, now: Instant, plan: Plan, span: Duration) {
        (self.plan, self.until) = (plan, now + span);
        self.outcome = Outcome::new(plan.bytes);
        // as unlike the order in which they were made as can be
        let mut rng = Rng::new(u64::from(plan.bytes));
        rng.shuffle(self.ready.make_contiguous());
        if let Some(trips) = plan.trips {
            // each has some of its round trips behind it, or all of them would end together
            self.slots.iter_mut().for_each(|slot| slot.trips = rng.below(trips));
        }
        let bytes = plan.bytes as usize;
        self.message.clear();
        if bytes <= COPIED_BYTES {
            self.message.extend_from_slice(&self.pattern.octets()[..bytes]);
        }
    }

    /// Gives turns while there are some; true when it did.
    #[inline]
    fn pump<C: Streams>(&mut self, now: Instant, calls: &mut C) -> bool {
        let mut busy = false;
        while self.under_way < self.plan.under_way
            && now < self.until
            && let Some(index) = self.ready.pop_front()
        {
            self.ask(now, calls, index);
            busy = true;
        }
        busy
    }

    #[inline]
    fn ask<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection else { return };
        slot.number += 1;
        (slot.state, slot.since) = (State::Waiting, now);
        self.under_way += 1;
        self.outcome.sent += 1;
        let bytes = self.plan.bytes;
        let head = Head { bytes, connection: index, number: slot.number }.octets();
        let taken = if self.message.is_empty() {
            calls.sendv(connection, &[app::Range::Owned(&head), self.pattern.behind_head(bytes)])
        } else {
            self.message[..head.len()].copy_from_slice(&head);
            calls.send(connection, &self.message).map(|taken| taken as u64)
        };
        if taken != Ok(bytes.into()) {
            let _ = calls.abort(connection);
            self.fail(index, "a message was not taken whole by our own stack");
        }
    }

    #[cold]
    fn fail(&mut self, index: u32, why: &str) {
        let slot = &mut self.slots[index as usize];
        match std::mem::replace(&mut slot.state, State::Failed) {
            State::Failed => return,
            State::Waiting => self.under_way -= 1,
            State::Connecting => self.handshakes -= 1,
            State::Ready => self.ready.retain(|other| *other != index),
            State::Wanted => {}
        }
        slot.connection = None;
        slot.epoch += 1;
        self.outcome.fail(why);
    }

    /// Takes what came; None when it is not what was sent.
    #[inline]
    fn read(&mut self, now: Instant, index: u32, bytes: &[u8]) -> Option<bool> {
        let slot = &mut self.slots[index as usize];
        let (taken, whole) = slot.progress.feed(bytes, &self.pattern).ok()?;
        let Some(head) = whole else { return Some(false) };
        let expected = Head { bytes: self.plan.bytes, connection: index, number: slot.number };
        // one at a time: there is nothing behind it
        if head != expected || taken != bytes.len() || slot.state != State::Waiting {
            return None;
        }
        slot.state = State::Ready;
        slot.trips += 1;
        self.under_way -= 1;
        self.outcome.take((now - slot.since).as_nanos() as u64, now < self.until);
        Some(true)
    }

    /// The slot's message is back: its turn comes again, or another connection takes its place.
    #[inline]
    fn go_on<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32, connection: Connection) {
        let slot = &mut self.slots[index as usize];
        if self.plan.trips.is_none_or(|trips| slot.trips < trips) {
            return self.ready.push_back(index);
        }
        self.outcome.finished += u64::from(now < self.until);
        let _ = match self.plan.end {
            End::Rst => calls.abort(connection),
            End::Fin => calls.close(connection),
        };
        (slot.connection, slot.state, slot.trips) = (None, State::Wanted, 0);
        slot.epoch += 1;
        self.wanted.push_back(index);
    }
}

impl Service for Client {
    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        match (self.slot(cookie), outcome) {
            (Some(index), Ok(connection)) => {
                self.handshakes -= 1;
                let slot = &mut self.slots[index as usize];
                (slot.connection, slot.state, slot.progress) = (Some(connection), State::Ready, Progress::default());
                self.ready.push_back(index);
                self.pump(now, calls);
            }
            (Some(index), Err(reason)) => self.fail(index, &format!("not connected: {reason:?}")),
            (None, Ok(connection)) => {
                let _ = calls.abort(connection);
            }
            (None, Err(_)) => {}
        }
    }

    #[inline]
    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let _ = calls.recv_done(connection, bytes.len());
        let Some(index) = self.slot(cookie) else { return };
        match self.read(now, index, bytes) {
            Some(true) => {
                self.go_on(now, calls, index, connection);
                self.pump(now, calls);
            }
            Some(false) => {}
            None => {
                self.outcome.wrong += 1;
                let _ = calls.abort(connection);
                self.fail(index, "other octets came than were sent");
            }
        }
    }

    fn eof<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        if let Some(index) = self.slot(cookie) {
            self.fail(index, "the server ended a connection");
        }
        let _ = calls.close(connection);
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        if let Some(index) = self.slot(cookie) {
            self.fail(index, &format!("a connection is dead: {reason:?}"));
        }
    }
}

/// A generator.
#[derive(Debug)]
pub(crate) struct Load<P> {
    work: Loop<P, Client>,
    peer: Peer,
    sources: Sources,
}

impl<P: Port> Load<P> {
    /// A generator of so many connections over `port`; `secret` makes sequence numbers and timestamps.
    pub(crate) fn new(
        port: P,
        (connections, plan): (u32, Plan),
        peer: Peer,
        sources: Sources,
        secret: [u64; 2],
    ) -> Load<P> {
        let mut config = stack_config(sources.addresses(), connections, secret);
        if let Some(tcp) = &mut config.tcp {
            tcp.limits.owned_blocks = OWNED_BLOCKS;
        }
        let stack = Stack::new(config, port.facts());
        Load { work: Loop::new(port, stack, Client::new(connections, plan), BURST_FRAMES), peer, sources }
    }

    /// Opens all connections. `tick` tells the time, once an iteration; tests move it by hand and let the other end work there.
    pub(crate) fn connect(&mut self, wait: Wait, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) -> Result<()> {
        let mut heard = (usize::MAX, tick());
        loop {
            let now = self.step(wait, tick);
            let client = self.work.service();
            let missing = client.wanted.len() + client.handshakes;
            if missing == 0 || stop.load(Ordering::Relaxed) {
                break;
            }
            if missing != heard.0 {
                heard = (missing, now);
            }
            if now.saturating_since(heard.1) > PATIENCE {
                break;
            }
        }
        let client = self.work.service();
        let (standing, count, failures) = (client.standing(), client.slots.len(), &client.outcome.failures);
        ensure!(standing == count, "{standing} of {count} connections stand: {failures:?}");
        Ok(())
    }

    /// Asks as planned, and tells what came of it. `stop` ends it early.
    pub(crate) fn run(&mut self, plan: &Plan, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) -> Outcome {
        let warm_up = (!plan.warm_up.is_zero()).then(|| self.ask(plan, plan.warm_up, stop, tick));
        let mut outcome = self.ask(plan, plan.span, stop, tick);
        if let Some(before) = warm_up {
            outcome.inherit(before);
        }
        outcome
    }

    /// Asks for so long and waits for the last answers.
    fn ask(&mut self, plan: &Plan, span: Duration, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) -> Outcome {
        let start = tick();
        self.work.service().begin(start, *plan, span);
        self.work.poll_soon();
        let mut now = start;
        while now < self.work.service().until && self.work.service().is_alive() && !stop.load(Ordering::Relaxed) {
            now = self.step(plan.wait, tick);
        }
        let span = now - start;
        let client = self.work.service();
        client.until = client.until.min(now);
        let mut heard = (client.outcome.answered, now);
        while self.work.service().under_way > 0 && now.saturating_since(heard.1) < PATIENCE {
            now = self.step(plan.wait, tick);
            let answered = self.work.service().outcome.answered;
            if answered > heard.0 {
                heard = (answered, now);
            }
        }
        let client = self.work.service();
        let mut outcome = std::mem::replace(&mut client.outcome, Outcome::new(plan.bytes));
        outcome.unfinished = client.under_way.into();
        outcome.finish(span.as_nanos() as u64);
        outcome
    }

    /// Ends all connections by resets.
    pub(crate) fn close(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) {
        let now = tick();
        self.work.with_parts(|client, stack| {
            client.wanted.clear();
            let Some(mut calls) = stack.calls(now) else { return };
            for slot in &mut client.slots {
                slot.epoch += 1;
                if let Some(connection) = slot.connection.take() {
                    let _ = calls.abort(connection);
                }
            }
        });
        // a burst of resets a cycle
        let end = now + PATIENCE;
        let mut now = now;
        while self.connections() > 0 && now < end {
            self.work.poll_soon();
            now = self.step(wait, tick);
        }
    }

    fn connections(&mut self) -> u64 {
        self.work.stack().tcp_counters().map_or(0, |counters| counters.connections.get())
    }

    /// One cycle and what is due between two; the cycle's time.
    fn step(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> Instant {
        let now = tick();
        let activity = self.work.cycle(now);
        let (peer, sources) = (&self.peer, &mut self.sources);
        let wants = !self.work.service().wanted.is_empty();
        let asks = !self.work.service().ready.is_empty();
        let busy = (wants || asks)
            && self.work.with_parts(|client, stack| {
                let asked = asks && stack.calls(now).is_some_and(|mut calls| client.pump(now, &mut calls));
                wants && client_dials(client, now, stack, peer, sources) || asked
            });
        if busy {
            self.work.poll_soon();
        }
        // the receive thread of a veth's end may share this processor (see `load`)
        if wait == Wait::Yield || !(activity.is_busy() || busy) {
            let until = self.work.service().until;
            let next = activity.next.unwrap_or(Instant::MAX).min(if until > now { until } else { Instant::MAX });
            let span = if busy { Duration::ZERO } else { next.saturating_since(now) };
            wait.pass(self.work.port(), span.as_nanos() as u64, activity.outgoing);
        }
        now
    }
}

/// Asks for the connections that are wanted, as many as may be asked for now; true when there was one.
fn client_dials(client: &mut Client, now: Instant, stack: &mut Stack, peer: &Peer, sources: &mut Sources) -> bool {
    let mut busy = false;
    for _ in 0..DIALS {
        if client.handshakes >= HANDSHAKES {
            break;
        }
        let Some(index) = client.wanted.pop_front() else { break };
        busy = true;
        client.handshakes += 1;
        let slot = &mut client.slots[index as usize];
        slot.state = State::Connecting;
        let cookie = u64::from(slot.epoch) << 32 | u64::from(index);
        match dial(now, stack, peer, sources, cookie) {
            Ok(connection) => client.slots[index as usize].connection = Some(connection),
            Err(why) => client.fail(index, &why.to_string()),
        }
    }
    busy
}

#[cfg(test)]
impl<P: Port> Load<P> {
    /// How often each connection had its turn.
    pub(super) fn turns(&mut self) -> Vec<u64> {
        self.work.service().slots.iter().map(|slot| slot.number).collect()
    }
}
