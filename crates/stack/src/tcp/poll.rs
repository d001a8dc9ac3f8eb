//! What is done once a cycle: timers, events that are told once a cycle, and sending.

use super::calls::Calls;
use super::connection::Flags;
use super::counters::Event;
use super::engine::{Engine, FIRST, Named, Outlet};
use super::output::Turn;
use super::recovery::Expired;
use super::state::State;
use super::tick::Tick;
use app::{DeadReason, Service, Streams as _};
use arrayvec::ArrayVec;
use base::Instant;

/// Flushes of one poll, each but the first for what the one before has brought about.
const FLUSHES: usize = 4;
/// Timers that one poll works through at most.
const TIMERS_A_POLL: usize = 256;
/// Timers that are taken out of the wheel at a time.
const TIMERS_TOGETHER: usize = 16;

impl Engine {
    /// Does what is due, and sends as far as there are frames and room; when it wants to be called next.
    pub(crate) fn poll<S: Service>(&mut self, now: Instant, out: &mut Outlet<'_>, service: &mut S) -> Option<Instant> {
        self.polls = self.polls.wrapping_add(1);
        if !self.held.is_empty() {
            self.release_held(now);
        }
        service.woken(now, &mut Calls { engine: self, now });
        let mut more = self.run_timers(now, out, service);
        self.expire_waits(now);
        more |= !self.farewells.is_empty() && !self.send_farewells(out);
        if self.queue.versions.sweep() {
            self.abort_expired();
        }
        more |= self.ring_alarms(now, service);
        if self.feeds() {
            self.feed(now, service);
        }
        more |= self.turns(now, out, service);
        more |= self.flush(now, out, service, more);
        if more || !self.ready.is_empty() || self.feeds() {
            return Some(now);
        }
        self.wheel.next().map(|at| at.max(now))
    }

    /// Tells the end of the cycle, gives what is sent then its turn, and tells the end of that; true when the next poll goes on.
    fn flush<S: Service>(&mut self, now: Instant, out: &mut Outlet<'_>, service: &mut S, blocked: bool) -> bool {
        for _ in 0..FLUSHES {
            service.flush(now, &mut Calls { engine: self, now });
            if blocked || self.ready.is_empty() {
                return false;
            }
            if self.turns(now, out, service) {
                return true;
            }
        }
        true
    }

    /// Tells the service's own timers; whether some are left.
    fn ring_alarms<S: Service>(&mut self, now: Instant, service: &mut S) -> bool {
        for _ in 0..TIMERS_A_POLL {
            let Some(cookie) = self.outward.alarm(now) else { return false };
            service.alarm(now, &mut Calls { engine: self, now }, cookie);
        }
        true
    }

    /// Gives those with something to do their turns; whether some are left for want of frames, or of room.
    fn turns<S: Service>(&mut self, now: Instant, out: &mut Outlet<'_>, service: &mut S) -> bool {
        // connections that become ready meanwhile have their turn in this poll too, but none has two
        let turns = self.connections.len();
        let mut done = 0;
        while let Some(index) = self.ready.pop_front() {
            self.connections[index as usize].flags.clear(Flags::READY);
            if self.turn_of(now, index, out, service) {
                self.wake(index);
                return true;
            }
            done += 1;
            if done > turns {
                return !self.ready.is_empty();
            }
        }
        false
    }

    /// One connection's turn; true when there is no frame or no room for it now.
    fn turn_of<S: Service>(&mut self, now: Instant, index: u32, out: &mut Outlet<'_>, service: &mut S) -> bool {
        self.tell_sent(now, index, service);
        if self.draining {
            self.close_if_idle(now, index);
        }
        let c = &self.connections[index as usize];
        if c.state == State::Closed {
            // what has ended in this very turn is in the queue again, and is buried when that comes
            return !c.flags.has(Flags::READY) && self.bury(now, index, out, service);
        }
        let turn = self.transmit(now, index, out);
        self.watch_window(now, index);
        self.arm(now, index);
        if turn == Turn::More {
            self.wake(index);
        }
        turn == Turn::Blocked
    }

    /// Takes no further connection, and has every one looked at.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        for index in 0..self.connections.len() as u32 {
            if self.connections[index as usize].state != State::Closed {
                self.wake(index);
            }
        }
    }

    /// Resets every connection, and those that are on their way here when they come.
    pub(crate) fn abort_all(&mut self) {
        self.aborting = true;
        for index in 0..self.connections.len() as u32 {
            self.abort(index, DeadReason::Aborted);
        }
    }

    /// Closes a connection that was of use and on which neither side owes the other anything. One that is closed and of which
    /// the peer has everything is not waited for: whatever its peer still says is answered by a reset.
    #[cold]
    fn close_if_idle(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        if c.state == State::FinWait2 && c.flags.has(Flags::ABANDONED) {
            return self.kill(index, DeadReason::Closed);
        }
        // who was refused room has not said everything
        let used = c.snd.una > FIRST && c.snd.una == c.last() && !c.flags.has(Flags::STARVED);
        if used && c.state.may_send() && c.rcv.delivered == 0 && c.flags.has(Flags::ACCEPTED) {
            let handle = c.handle(index);
            // the handle is of this moment
            let _ = Calls { engine: self, now }.close(handle);
        }
    }

    /// Tells the service what the peer has taken; of what others have taken [`Engine::feed`] tells.
    fn tell_sent<S: Service>(&mut self, now: Instant, index: u32, service: &mut S) {
        let c = &mut self.connections[index as usize];
        let bytes = std::mem::take(&mut c.sent_bytes) as usize;
        if bytes == 0 || c.state == State::Closed || c.flags.has(Flags::ABANDONED) {
            return;
        }
        let (handle, cookie, active) = (c.handle(index), c.cookie, c.active);
        let room = self.room(active);
        service.sent(now, &mut Calls { engine: self, now }, handle, cookie, bytes, room);
    }

    /// The end of a connection: its reset, if there is one, then the service is told, then the place is free. True when the
    /// reset has to wait.
    fn bury<S: Service>(&mut self, now: Instant, index: u32, out: &mut Outlet<'_>, service: &mut S) -> bool {
        if self.connections[index as usize].flags.has(Flags::RESET_NOW)
            && self.transmit(now, index, out) == Turn::Blocked
        {
            return true;
        }
        let c = &mut self.connections[index as usize];
        let (handle, cookie) = (c.handle(index), c.cookie);
        let (reason, accepted) = (c.dead.take(), c.flags.has(Flags::ACCEPTED));
        let asked = c.flags.has(Flags::CLIENT);
        match reason {
            Some(reason) if accepted => service.dead(now, handle, cookie, reason),
            Some(reason) if asked => {
                service.connected(now, &mut Calls { engine: self, now }, cookie, Err(reason));
            }
            _ => {}
        }
        self.vacate(index);
        false
    }

    /// Connections that hold something of a version whose time to drain is over end, where no later one has it, too.
    #[cold]
    fn abort_expired(&mut self) {
        for index in 0..self.connections.len() as u32 {
            let c = &self.connections[index as usize];
            if c.state == State::Closed {
                continue;
            }
            if self.actives.get(c.active).is_some_and(|a| !self.queue.carry_over(&a.list)) {
                self.counters.on(Event::DrainExpired);
                self.abort(index, DeadReason::Aborted);
            }
        }
    }

    /// Works through the timers that are due; whether some are left.
    fn run_timers<S: Service>(&mut self, now: Instant, out: &mut Outlet<'_>, service: &mut S) -> bool {
        for _ in 0..TIMERS_A_POLL / TIMERS_TOGETHER {
            // together, so that the cache misses of their connections overlap. Nothing that one does gives another's place away,
            // and a connection that is looked at without need has nothing that is due
            let due: ArrayVec<u32, TIMERS_TOGETHER> =
                std::iter::from_fn(|| self.wheel.pop(now)).take(TIMERS_TOGETHER).collect();
            let more = due.is_full();
            due.iter().for_each(|value| self.foresee_timer(*value));
            for value in due {
                match Named::of(value) {
                    Named::Connection(index) => self.on_timer(now, index, service),
                    Named::HalfOpen(index) => self.on_half_open_timer(now, index, out),
                    Named::TimeWait(_) => debug_assert!(false, "TIME-WAIT has no timers"),
                }
            }
            if !more {
                return false;
            }
        }
        true
    }

    /// A connection's timer has fired: whatever is due is done.
    fn on_timer<S: Service>(&mut self, now: Instant, index: u32, service: &mut S) {
        let c = &mut self.connections[index as usize];
        c.timer = None;
        c.timer_at = Tick::NONE;
        if c.state == State::Closed {
            return;
        }
        if c.flags.has(Flags::PACED) {
            c.flags.clear(Flags::PACED);
            self.wake(index);
        }
        let c = &mut self.connections[index as usize];
        if c.ack_at.is_due(now) {
            c.ack_at = Tick::NONE;
            c.flags.set(Flags::ACK_NOW);
            self.counters.on(Event::DelayedAck);
            self.wake(index);
        }
        if self.connections[index as usize].stalled_at.is_due(now) {
            return self.abort(index, DeadReason::TimedOut);
        }
        if self.connections[index as usize].rtx_at.is_due(now) {
            if let Some(mut sender) = self.sender(now, index) {
                sender.settle_alarm();
            }
            if self.connections[index as usize].rtx_at.is_due(now) {
                self.on_alarm(now, index);
            }
        }
        if self.connections[index as usize].idle_at.is_due(now) {
            self.on_idle(now, index);
        }
        let c = &mut self.connections[index as usize];
        if c.state != State::Closed && c.user_at.is_some_and(|at| at <= now) {
            c.user_at = None;
            let (handle, cookie) = (c.handle(index), c.cookie);
            service.timer(now, &mut Calls { engine: self, now }, handle, cookie);
        }
        self.arm(now, index);
    }

    /// The retransmission timer, whatever it was set for.
    fn on_alarm(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        if matches!(c.state, State::SynSent | State::SynReceived) {
            c.rtx_at = Tick::NONE;
            c.flags.put(Flags::LOST_HANDSHAKE, c.backoff > 0);
            return self.on_syn_timeout(now, index);
        }
        let tries_most = self.times.retransmissions;
        let overruns = now < self.overrun_until;
        let Some(mut sender) = self.sender(now, index) else {
            debug_assert!(false, "an alarm of a connection that has nothing to send with");
            self.connections[index as usize].rtx_at = Tick::NONE;
            return;
        };
        if overruns && sender.put_off_alarm() {
            return self.counters.on(Event::PutOff);
        }
        match sender.on_alarm(tries_most) {
            Expired::Send => {
                let unanswered = sender.c.backoff;
                self.doubt_way(now, index, unanswered);
            }
            Expired::ProbeWindow => sender.c.flags.set(Flags::PROBE_NOW),
            Expired::GiveUp => return self.abort(index, DeadReason::TimedOut),
        }
        self.wake(index);
    }

    /// Keepalive (RFC 9293 section 3.8.4), or the end of lingering.
    fn on_idle(&mut self, now: Instant, index: u32) {
        let times = self.times;
        let c = &mut self.connections[index as usize];
        c.idle_at = Tick::NONE;
        if c.flags.has(Flags::ABANDONED) {
            return self.abort(index, DeadReason::TimedOut);
        }
        let (Some(keepalive), true) = (times.keepalive, c.state.is_synchronized()) else { return };
        // no more than a tick can say
        let keepalive = keepalive.min(super::tick::MAX_AHEAD);
        let heard_at = c.heard_at.near(now).unwrap_or(now);
        if now < heard_at + keepalive {
            c.flags.clear(Flags::SILENT);
            c.probes = 0;
            c.idle_at = Tick::ahead(heard_at, keepalive);
            return;
        }
        if c.flags.has(Flags::SILENT) {
            c.probes = c.probes.saturating_add(1);
        } else {
            c.probes = 1;
        }
        if c.probes > times.keepalive_probes {
            return self.abort(index, DeadReason::TimedOut);
        }
        c.flags.set(Flags::SILENT | Flags::PROBE_NOW);
        c.idle_at = Tick::ahead(now, times.keepalive_interval);
        let unanswered = c.probes;
        self.doubt_way(now, index, unanswered);
        self.counters.on(Event::Keepalive);
        self.wake(index);
    }

    /// Sees to it that the timer fires when the first of the connection's deadlines comes. A timer that fires early is left
    /// alone: it looks again then.
    pub(super) fn arm(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        if c.state == State::Closed {
            return;
        }
        let mut first = Tick::first(now, [c.rtx_at, c.ack_at, c.idle_at, c.stalled_at]);
        let within = |at: Instant| Tick::after(at.min(now + super::tick::MAX_AHEAD));
        if let Some(at) = c.user_at {
            first = Tick::first(now, [first, within(at)]);
        }
        if c.flags.has(Flags::PACED)
            && let Some(a) = self.actives.get(c.active)
        {
            first = Tick::first(now, [first, within(a.pace.next_at())]);
        }
        if c.timer_at.is_by(first, now) {
            return;
        }
        let Some(at) = first.near(now) else { return };
        if let Some(timer) = c.timer.take() {
            self.wheel.cancel(timer);
        }
        c.timer_at = first;
        // there is a place for each connection
        c.timer = self.wheel.set(at, Named::Connection(index).value()).ok();
    }
}
