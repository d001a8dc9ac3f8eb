//! The client as a service of the stack: its connections ask for one page after the other, and judge the answers.
//!
//! A slot is a connection's place. It asks when the schedule has a request for it; the last request that a connection may make
//! says that it is, so that the server ends the connection and keeps what outlasts it (TIME-WAIT). Connections are asked for
//! by the owner of the stack, who finds the slots that want one in [`Client::wanted`]. After start-up nothing is allocated for
//! a request.

use super::mix::{Body, Mix};
use super::outcome::{Failure, Outcome};
use super::response::{Answer, Malformed, Parser};
use super::schedule::Schedule;
use super::thinking::Thinking;
use crate::pages::Checker;
use app::{Connection, DeadReason, Service, Streams};
use base::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// A slot that failed waits so long: a server that is down is not to be flooded.
const REST: Duration = Duration::from_millis(10);
/// How often slots are looked at for requests that take too long.
const SWEEP: Duration = Duration::from_millis(100);
/// A server may take so long to end a connection after its last answer.
const LEAVE: Duration = Duration::from_secs(1);

/// How requests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// connections at a time
    pub(crate) connections: u32,
    /// requests on each; 0 is no limit
    pub(crate) requests_per_connection: u32,
    /// the content of every so manieth answer is compared; 0: none
    pub(crate) check_every: u64,
    /// how long an answer, or a connection, may take; and both, from when the request was due, not to count as late
    pub(crate) timeout: Duration,
    /// how long a connection that was answered waits before its next request, on average
    pub(crate) think: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// nothing to ask, or thinking about what to ask next
    Idle,
    /// a connection is asked for
    Connecting,
    /// an answer is due
    Waiting,
    /// the last answer came; the server is to end the connection
    Leaving,
}

/// A connection's place.
#[derive(Debug)]
struct Slot {
    state: State,
    connection: Option<Connection>,
    /// tells events of this connection from those of the ones before
    epoch: u32,
    /// requests made on it
    asked: u32,
    page: u32,
    /// the present answer's content is compared, and has been wrong
    checks: bool,
    wrong: bool,
    /// of the present answer, when it is a page of the synthetic site
    checker: Option<Checker>,
    /// the newest version of that site when the request was made
    floor: u64,
    /// when the request was due
    due: Instant,
    /// when the present state was entered
    since: Instant,
    parser: Parser,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            state: State::Idle,
            connection: None,
            epoch: 0,
            asked: 0,
            page: 0,
            checks: false,
            wrong: false,
            checker: None,
            floor: 0,
            due: Instant::ZERO,
            since: Instant::ZERO,
            parser: Parser::new(),
        }
    }

    /// Lets go of the connection; what is still to be heard of it is nobody's.
    fn part(&mut self) {
        self.connection = None;
        self.epoch = self.epoch.wrapping_add(1);
        self.state = State::Idle;
        self.asked = 0;
        self.parser.reset();
    }
}

/// The client.
#[derive(Debug)]
pub(crate) struct Client {
    manner: Manner,
    pub(super) mix: Mix,
    pub(super) schedule: Schedule,
    pub(super) outcome: Outcome,
    /// the newest version of a synthetic site that was seen
    newest: u64,
    slots: Vec<Slot>,
    /// slots without a request
    idle: VecDeque<u32>,
    /// slots that want a connection
    wanted: VecDeque<u32>,
    /// slots that failed, and until when they rest
    resting: VecDeque<(Instant, u32)>,
    /// slots that were answered, and think
    thinking: Thinking,
    /// slots that ask for the first time, and when
    beginning: VecDeque<(Instant, u32)>,
    sweep_at: Instant,
}

impl Client {
    /// A client with nothing to do yet.
    pub(crate) fn new(mix: Mix, manner: Manner) -> Client {
        let count = manner.connections as usize;
        let queue = || VecDeque::with_capacity(count);
        Client {
            manner,
            mix,
            schedule: Schedule::NEVER,
            outcome: Outcome::new(None),
            newest: 0,
            slots: (0..count).map(|_| Slot::new()).collect(),
            idle: (0..manner.connections).collect(),
            wanted: queue(),
            resting: VecDeque::with_capacity(count),
            thinking: Thinking::new(manner.think, if manner.think.is_zero() { 0 } else { count }),
            beginning: VecDeque::new(),
            sweep_at: Instant::ZERO,
        }
    }

    /// Has a page asked for once, outside of the schedule.
    pub(super) fn ask_once(&mut self, now: Instant, page: u32) {
        let Some(index) = self.idle.pop_front() else { return };
        let slot = &mut self.slots[index as usize];
        (slot.page, slot.due, slot.since, slot.state) = (page, now, now, State::Connecting);
        slot.asked = self.manner.requests_per_connection.saturating_sub(1);
        self.mix.pages[page as usize].body = Body::Learning(Vec::new());
        self.wanted.push_back(index);
    }

    /// Where connections think, has those that there are not yet begin one after the other over the time for which one thinks in all, as they
    /// go on to. All at once are more than a listener's queue and a receive ring may hold, and who is lost there tries again a second later.
    pub(super) fn spread(&mut self, now: Instant) {
        if self.manner.think.is_zero() {
            return;
        }
        let Client { slots, idle, thinking, beginning, .. } = self;
        idle.extend(beginning.drain(..).map(|(_, index)| index));
        // what a server or the end of a load has closed meanwhile
        thinking.retain(|index| {
            let stays = slots[index as usize].connection.is_some();
            if !stays {
                idle.push_back(index);
            }
            stays
        });
        let (first, count) = (self.idle.len(), self.slots.len() as u32);
        let all = self.manner.think * self.manner.requests_per_connection.saturating_sub(1).max(1);
        for n in 0..first as u32 {
            let Some(index) = self.idle.pop_front() else { break };
            if self.slots[index as usize].connection.is_some() {
                self.idle.push_back(index);
            } else {
                self.beginning.push_back((now + all * n / count, index));
            }
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.idle.len() + self.thinking.len() + self.beginning.len() == self.slots.len()
    }

    /// Slots that have a connection.
    pub(super) fn connected(&self) -> u64 {
        self.slots.iter().filter(|slot| slot.connection.is_some()).count() as u64
    }

    /// Requests that wait for their answers.
    pub(super) fn unanswered(&self) -> u64 {
        self.slots.iter().filter(|slot| matches!(slot.state, State::Connecting | State::Waiting)).count() as u64
    }

    /// When [`Client::pump`] has something to do at the latest.
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        let asks_no_more = self.idle.is_empty() || self.schedule.is_over(now);
        let asks = if asks_no_more { Instant::MAX } else { self.schedule.next_at(now) };
        let until = |waiting: &VecDeque<(Instant, u32)>| waiting.front().map_or(Instant::MAX, |(at, _)| *at);
        let thought = self.thinking.next_at().unwrap_or(Instant::MAX);
        [asks, self.sweep_at, thought, until(&self.resting)].into_iter().fold(until(&self.beginning), Instant::min)
    }

    /// Between events: gives due requests to free slots, and ends what takes too long. True when it did something.
    pub(super) fn pump<C: Streams>(&mut self, now: Instant, calls: &mut C) -> bool {
        let mut busy = false;
        while let Some(index) = self.thinking.next(now) {
            self.idle.push_back(index);
        }
        for waiting in [&mut self.resting, &mut self.beginning] {
            while let Some((at, index)) = waiting.front().copied()
                && at <= now
            {
                waiting.pop_front();
                self.idle.push_back(index);
            }
        }
        while !self.idle.is_empty()
            && let Some(due) = self.schedule.take(now)
            && let Some(index) = self.idle.pop_front()
        {
            self.begin(now, calls, index, due);
            busy = true;
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP;
            (0..self.slots.len() as u32).for_each(|index| self.look_at(now, calls, index));
            busy = true;
        }
        busy
    }

    /// Ends the connections that have nothing under way.
    pub(super) fn close_idle<C: Streams>(&mut self, calls: &mut C) {
        for slot in self.slots.iter_mut().filter(|slot| slot.state == State::Idle) {
            if let Some(connection) = slot.connection {
                slot.part();
                let _ = calls.close(connection);
            }
        }
    }

    /// Ends whatever is still under way, with resets.
    pub(super) fn abort_rest<C: Streams>(&mut self, calls: &mut C) {
        self.wanted.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            match (slot.state, slot.connection) {
                (State::Idle, _) => continue,
                (_, Some(connection)) => {
                    let _ = calls.abort(connection);
                }
                (_, None) => {}
            }
            slot.part();
            self.idle.push_back(index as u32);
        }
    }

    /// The next slot that wants a connection, with its cookie.
    pub(super) fn wanted(&mut self) -> Option<(u32, u64)> {
        let index = self.wanted.pop_front()?;
        Some((index, u64::from(self.slots[index as usize].epoch) << 32 | u64::from(index)))
    }

    /// What became of asking for the connection of [`Client::wanted`].
    pub(super) fn on_asked(&mut self, now: Instant, index: u32, outcome: Result<Connection, Failure>) {
        match outcome {
            Ok(connection) => self.slots[index as usize].connection = Some(connection),
            Err(failure) => self.fail(now, index, failure),
        }
    }

    fn slot(&self, cookie: u64) -> Option<u32> {
        let (epoch, index) = ((cookie >> 32) as u32, cookie as u32);
        self.slots.get(index as usize).is_some_and(|slot| slot.epoch == epoch).then_some(index)
    }

    /// A request is this slot's.
    fn begin<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32, due: Instant) {
        let page = self.mix.next();
        let slot = &mut self.slots[index as usize];
        (slot.page, slot.due) = (page, due);
        if slot.connection.is_some() {
            self.ask(now, calls, index);
        } else {
            (slot.state, slot.since) = (State::Connecting, now);
            self.wanted.push_back(index);
        }
    }

    /// Sends the slot's request.
    #[inline]
    fn ask<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection else { return };
        slot.asked += 1;
        (slot.state, slot.since) = (State::Waiting, now);
        let every = self.manner.check_every;
        slot.checks = every > 0 && self.outcome.sent.is_multiple_of(every);
        (slot.wrong, slot.checker, slot.floor) = (false, None, self.newest);
        self.outcome.sent += 1;
        let request = self.mix.request(slot.page, slot.asked == self.manner.requests_per_connection);
        let bytes = request.bytes();
        if calls.sendv(connection, &[request]) != Ok(bytes) {
            let _ = calls.abort(connection);
            self.fail(now, index, Failure::NoResources);
        }
    }

    /// The slot is free for the next request.
    #[inline]
    fn go_on<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32) {
        let slot = &mut self.slots[index as usize];
        if self.manner.think > Duration::ZERO && slot.connection.is_some() {
            slot.state = State::Idle;
            self.thinking.begin(now, index);
            return;
        }
        match self.schedule.take(now) {
            Some(due) => self.begin(now, calls, index, due),
            None => {
                self.slots[index as usize].state = State::Idle;
                self.idle.push_back(index);
            }
        }
    }

    fn fail(&mut self, now: Instant, index: u32, failure: Failure) {
        let slot = &mut self.slots[index as usize];
        self.outcome.fail(failure);
        let body = &mut self.mix.pages[slot.page as usize].body;
        if matches!(body, Body::Learning(_)) {
            *body = Body::Unknown;
        }
        slot.part();
        self.resting.push_back((now + REST, index));
    }

    #[cold]
    fn fail_and_abort<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32, failure: Failure) {
        if let Some(connection) = self.slots[index as usize].connection {
            let _ = calls.abort(connection);
        }
        self.fail(now, index, failure);
    }

    /// Ends what takes too long.
    fn look_at<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection else { return };
        let waited = now.saturating_since(slot.since);
        match slot.state {
            State::Connecting if waited > self.manner.timeout => {
                let _ = calls.abort(connection);
                self.fail(now, index, Failure::ConnectTimeout);
            }
            State::Waiting if waited > self.manner.timeout => {
                self.fail_and_abort(now, calls, index, Failure::Timeout);
            }
            State::Leaving if waited > LEAVE => {
                slot.part();
                let _ = calls.close(connection);
                self.idle.push_back(index);
            }
            _ => {}
        }
    }

    /// Reads what came for a slot that waits.
    #[inline]
    fn read<C: Streams>(&mut self, now: Instant, calls: &mut C, index: u32, bytes: &[u8]) {
        let Slot { parser, page, checks, wrong, checker, .. } = &mut self.slots[index as usize];
        let expected = &mut self.mix.pages[*page as usize].body;
        let read = parser.feed(bytes, |answer, part| match expected {
            Body::Known(body) if *checks && is_success(answer) => {
                let at = answer.body_bytes as usize;
                *wrong |= body.get(at..at + part.len()) != Some(part);
            }
            Body::Learning(body) => body.extend_from_slice(part),
            Body::Synthetic(expected) if is_success(answer) => {
                if answer.body_bytes == 0 {
                    *checker = expected.checker(answer);
                }
                if let Some(checker) = checker {
                    checker.take(part);
                }
            }
            _ => {}
        });
        match read {
            Err(why) => self.fail_and_abort(now, calls, index, Failure::Malformed(why)),
            Ok((_, None)) => {}
            Ok((taken, Some(answer))) => {
                self.on_answer(now, index, &answer);
                let slot = &mut self.slots[index as usize];
                if taken < bytes.len() {
                    self.fail_and_abort(now, calls, index, Failure::Malformed(Malformed::Extra));
                } else if answer.last || slot.asked == self.manner.requests_per_connection {
                    (slot.state, slot.since) = (State::Leaving, now);
                } else {
                    self.go_on(now, calls, index);
                }
            }
        }
    }

    /// An answer is whole.
    #[inline]
    fn on_answer(&mut self, now: Instant, index: u32, answer: &Answer) {
        let slot = &self.slots[index as usize];
        let outcome = &mut self.outcome;
        outcome.answered += 1;
        outcome.body_bytes += answer.body_bytes;
        let in_span = !self.schedule.is_over(now);
        outcome.answered_in_span += u64::from(in_span);
        let took = now - slot.due;
        outcome.record_latency(took.as_nanos() as u64);
        let body = &mut self.mix.pages[slot.page as usize].body;
        if !is_success(answer) {
            *outcome.statuses.entry(answer.status).or_default() += 1;
            if matches!(body, Body::Learning(_)) {
                *body = Body::Unknown;
            }
            return;
        }
        let mut wrong = None;
        match body {
            Body::Known(expected) => {
                outcome.checked += u64::from(slot.checks);
                if expected.len() as u64 != answer.body_bytes {
                    wrong = Some(Failure::WrongLength);
                } else if slot.wrong {
                    wrong = Some(Failure::WrongBody);
                }
            }
            Body::Synthetic(expected) => {
                outcome.checked += 1;
                match expected.judge(answer, slot.checker, slot.floor) {
                    Ok(Some(version)) if version > self.newest => {
                        self.newest = version;
                        outcome.versions += 1;
                    }
                    Ok(_) => {}
                    Err(failure) => wrong = Some(failure),
                }
            }
            Body::Learning(learned) => *body = Body::Known(std::mem::take(learned)),
            Body::Unknown => {}
        }
        match wrong {
            Some(failure) => outcome.fail(failure),
            // waits for a connection, and its handshake, are in it, each of which the time-out bounds by itself or not at all
            None => outcome.count_good(in_span, took <= self.manner.timeout),
        }
    }
}

fn is_success(answer: &Answer) -> bool {
    matches!(answer.status, 200..300)
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
                self.outcome.connections += 1;
                self.slots[index as usize].connection = Some(connection);
                self.ask(now, calls, index);
            }
            (Some(index), Err(reason)) => self.fail(now, index, Failure::of(reason, true)),
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
        self.outcome.bytes += bytes.len() as u64;
        if !self.schedule.is_over(now) {
            self.outcome.bytes_in_span += bytes.len() as u64;
        }
        match self.slots[index as usize].state {
            State::Waiting => self.read(now, calls, index, bytes),
            State::Connecting => {}
            State::Idle | State::Leaving => {
                self.idle.retain(|other| *other != index);
                self.thinking.retain(|other| other != index);
                self.fail_and_abort(now, calls, index, Failure::Malformed(Malformed::Extra));
            }
        }
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        if let Some(index) = self.slot(cookie) {
            let slot = &mut self.slots[index as usize];
            match slot.state {
                State::Waiting => match slot.parser.end() {
                    Some(answer) => {
                        self.on_answer(now, index, &answer);
                        self.slots[index as usize].part();
                        self.go_on(now, calls, index);
                    }
                    None => {
                        let failure = if slot.parser.has_begun() { Failure::Cut } else { Failure::Closed };
                        self.fail(now, index, failure);
                    }
                },
                State::Leaving => {
                    slot.part();
                    self.go_on(now, calls, index);
                }
                State::Idle | State::Connecting => slot.part(),
            }
        }
        let _ = calls.close(connection);
    }

    fn dead(&mut self, now: Instant, _connection: Connection, cookie: u64, reason: DeadReason) {
        let Some(index) = self.slot(cookie) else { return };
        let slot = &mut self.slots[index as usize];
        match slot.state {
            State::Waiting | State::Connecting => self.fail(now, index, Failure::of(reason, false)),
            State::Leaving => {
                slot.part();
                self.idle.push_back(index);
            }
            State::Idle => slot.part(),
        }
    }
}
