//! What a service may do with connections.

use super::connection::Flags;
use super::engine::Engine;
use super::output::worthwhile;
use super::state::State;
use super::tick::Tick;
use app::{Addresses, CallError, DeadReason, Listener, Range, SENDV_RANGES, Streams};
use base::Instant;
use std::net::SocketAddr;

/// The engine as a service sees it during an event.
pub(crate) struct Calls<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) now: Instant,
}

impl Engine {
    /// Owned bytes that a connection with this active block may queue.
    pub(super) fn room(&mut self, active: u32) -> usize {
        let list = self.actives.get(active).map_or_else(Default::default, |a| a.list);
        self.queue.room(&list)
    }

    /// What a connection needs before it can finish or send; on want of it the connection ends.
    fn ready_to_send(&mut self, now: Instant, index: u32) -> bool {
        let ready = self.activate(now, index);
        if !ready {
            self.abort(index, DeadReason::NoResources);
        }
        ready
    }

    /// Of what was delivered so much is not given back: the peer is told when the window opens by much, or at all after it was closed
    /// (RFC 9293 section 3.8.6.2.2).
    fn open_window(&mut self, index: u32, delivered: u32) {
        let c = &mut self.connections[index as usize];
        c.rcv.delivered = delivered;
        if c.state.may_receive() && worthwhile(c) {
            c.flags.set(Flags::ACK_NOW);
            self.wake(index);
        }
    }

    /// Puts the FIN behind what is queued.
    fn finish(&mut self, now: Instant, index: u32) {
        let c = &mut self.connections[index as usize];
        let Some(state) = c.state.on_shutdown() else { return };
        if self.ready_to_send(now, index) {
            let c = &mut self.connections[index as usize];
            c.state = state;
            c.flags.set(Flags::FIN);
            self.wake(index);
        }
    }
}

impl Calls<'_> {
    /// The place of a live connection that the service has, and has not closed.
    fn accepted(&mut self, connection: app::Connection) -> Result<u32, CallError> {
        let c = self.engine.live(connection).ok_or(CallError::NoConnection)?;
        if !c.flags.has(Flags::ACCEPTED) {
            return Err(CallError::WrongState);
        }
        if c.flags.has(Flags::ABANDONED) {
            return Err(CallError::WrongState);
        }
        Ok(connection.index)
    }
}

impl Streams for Calls<'_> {
    fn accept(&mut self, connection: app::Connection, cookie: u64) -> Result<(), CallError> {
        let c = self.engine.live(connection).ok_or(CallError::NoConnection)?;
        if c.flags.has(Flags::ACCEPTED | Flags::CLIENT) {
            return Err(CallError::WrongState);
        }
        c.cookie = cookie;
        c.flags.set(Flags::ACCEPTED);
        Ok(())
    }

    fn reject(&mut self, connection: app::Connection) -> Result<(), CallError> {
        let c = self.engine.live(connection).ok_or(CallError::NoConnection)?;
        if c.flags.has(Flags::ACCEPTED | Flags::CLIENT) {
            return Err(CallError::WrongState);
        }
        self.engine.abort(connection.index, DeadReason::Aborted);
        Ok(())
    }

    fn sendv(&mut self, connection: app::Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let index = self.accepted(connection)?;
        let c = &self.engine.connections[index as usize];
        if !c.state.may_send() || c.flags.has(Flags::FIN) {
            return Err(CallError::WrongState);
        }
        if !ranges.iter().all(Range::is_valid) {
            return Err(CallError::NoSuchRange);
        }
        if ranges.iter().all(|range| range.bytes() == 0) {
            return Ok(0);
        }
        if !self.engine.ready_to_send(self.now, index) {
            return Err(CallError::NoConnection);
        }
        let (mut taken, mut short) = (0, None);
        if let Some(sender) = self.engine.sender(self.now, index) {
            for range in ranges.iter().take(SENDV_RANGES) {
                let bytes = sender.queue.push(&mut sender.a.list, sender.c.snd.end, range);
                sender.c.snd.end += bytes;
                taken += bytes;
                if bytes < range.bytes() {
                    short = Some(range);
                    break;
                }
            }
        }
        if let Some(range) = short {
            self.engine.on_short(index, range);
        }
        self.engine.wake(index);
        Ok(taken)
    }

    fn room(&self, connection: app::Connection) -> usize {
        let c = match self.engine.connections.get(connection.index as usize) {
            Some(c) if c.generation == connection.generation && c.state.may_send() => c,
            _ => return 0,
        };
        if c.flags.has(Flags::FIN | Flags::ABANDONED) || !c.flags.has(Flags::ACCEPTED) {
            return 0;
        }
        let list = self.engine.actives.peek(c.active).map_or_else(Default::default, |a| a.list);
        self.engine.queue.room(&list)
    }

    fn recv_done(&mut self, connection: app::Connection, bytes: usize) -> Result<(), CallError> {
        let index = self.accepted(connection)?;
        let c = &self.engine.connections[index as usize];
        let bytes = u32::try_from(bytes).map_err(|_| CallError::TooMuch)?;
        let left = c.rcv.delivered.checked_sub(bytes).ok_or(CallError::TooMuch)?;
        self.engine.open_window(index, left);
        Ok(())
    }

    fn shutdown(&mut self, connection: app::Connection) -> Result<(), CallError> {
        let index = self.accepted(connection)?;
        if self.engine.connections[index as usize].flags.has(Flags::FIN) {
            return Err(CallError::WrongState);
        }
        self.engine.finish(self.now, index);
        Ok(())
    }

    fn close(&mut self, connection: app::Connection) -> Result<(), CallError> {
        let index = self.accepted(connection)?;
        self.engine.finish(self.now, index);
        let c = &mut self.engine.connections[index as usize];
        if c.state == State::Closed {
            return Ok(());
        }
        // what arrives from now on is thrown away, and what was delivered needs no giving back
        c.flags.set(Flags::ABANDONED);
        c.user_at = None;
        c.idle_at = Tick::ahead(self.now, self.engine.times.linger);
        self.engine.open_window(index, 0);
        self.engine.arm(self.now, index);
        Ok(())
    }

    fn abort(&mut self, connection: app::Connection) -> Result<(), CallError> {
        self.engine.live(connection).ok_or(CallError::NoConnection)?;
        self.engine.abort(connection.index, DeadReason::Aborted);
        Ok(())
    }

    fn timer_set(&mut self, connection: app::Connection, at: Option<Instant>) -> Result<(), CallError> {
        let index = self.accepted(connection)?;
        self.engine.connections[index as usize].user_at = at;
        self.engine.arm(self.now, index);
        Ok(())
    }

    fn connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        cookie: u64,
    ) -> Result<app::Connection, CallError> {
        self.engine.ask(self.now, remote, local, cookie)
    }

    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        self.engine.outward.send_to(self.now, listener, ends, bytes)
    }

    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.engine.outward.alarm_set(cookie, at)
    }
}
