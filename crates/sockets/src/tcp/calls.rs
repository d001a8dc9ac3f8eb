//! What the service may do, as [`Streams`] has it.

use super::{Fin, Limits, Phase, Slot, Table};
use crate::outbox::Bounds;
use app::{Addresses, CallError, Connection, DeadReason, Listener, Range, Streams};
use base::Instant;
use std::net::SocketAddr;

/// This part of the budget is for those that have next to nothing queued: who reads nothing cannot have all of it.
const KEPT: usize = 8;
/// Bytes that are next to nothing.
const FIRST_BYTES: usize = 4096;

/// What the budget, of which so much is queued, has for a connection that has `owned` of it.
fn most_owned(limits: &Limits, owned: usize, queued: usize) -> usize {
    let left = |budget: usize| owned + budget.saturating_sub(queued);
    left(limits.budget_bytes - limits.budget_bytes / KEPT).max(left(limits.budget_bytes).min(FIRST_BYTES))
}

impl Table {
    /// A connection that the service has, and has not closed.
    fn open(&mut self, connection: Connection) -> Result<&mut super::Conn, CallError> {
        let conn = self.conn(connection)?;
        if conn.phase == Phase::Open { Ok(conn) } else { Err(CallError::WrongState) }
    }
}

impl Streams for Table {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        let conn = self.conn(connection)?;
        if conn.phase != Phase::Knocked {
            return Err(CallError::WrongState);
        }
        conn.phase = Phase::Open;
        conn.cookie = cookie;
        self.counters.accepted.add(1);
        self.make_ready(connection.index);
        Ok(())
    }

    fn reject(&mut self, connection: Connection) -> Result<(), CallError> {
        if self.conn(connection)?.phase != Phase::Knocked {
            return Err(CallError::WrongState);
        }
        self.end(connection, DeadReason::Aborted, true);
        Ok(())
    }

    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let bounds = Bounds { owned_bytes: self.limits.queue_bytes, ranges: self.limits.queue_ranges };
        let Table { slots, versions, spare, queued_bytes, starved, unheld, limits, counters, .. } = self;
        let conn = match slots.get_mut(connection.index as usize) {
            Some(Slot { generation, conn: Some(conn) }) if *generation == connection.generation => conn,
            _ => return Err(CallError::NoConnection),
        };
        if conn.phase != Phase::Open || conn.fin != Fin::No {
            return Err(CallError::WrongState);
        }
        if !ranges.iter().all(Range::is_valid) {
            return Err(CallError::NoSuchRange);
        }
        if !conn.queue.has_memory()
            && let Some(queue) = spare.pop()
        {
            conn.queue = queue;
        }
        let owned = conn.queue.owned_bytes();
        let most = bounds.owned_bytes.min(most_owned(limits, owned, *queued_bytes));
        let taken = conn.queue.queue(ranges, Bounds { owned_bytes: most, ..bounds }, versions);
        *queued_bytes += conn.queue.owned_bytes() - owned;
        let wanted: u64 = ranges.iter().take(app::SENDV_RANGES).map(Range::bytes).sum();
        if taken < wanted && most < bounds.owned_bytes && conn.queue.owned_bytes() >= most {
            counters.budget_spent.add(1);
            if !std::mem::replace(&mut conn.starved, true) {
                starved.push_back(connection);
            }
        } else if taken < wanted && conn.queue.is_empty() && versions.chunks_left() == 0 {
            // nothing of its own will go, and tell it
            if !std::mem::replace(&mut conn.starved, true) {
                unheld.push_back(connection);
            }
        }
        self.make_ready(connection.index);
        Ok(taken)
    }

    fn room(&self, connection: Connection) -> usize {
        match self.slots.get(connection.index as usize) {
            Some(Slot { generation, conn: Some(conn) })
                if *generation == connection.generation && conn.phase == Phase::Open && conn.fin == Fin::No =>
            {
                let owned = conn.queue.owned_bytes();
                self.limits.queue_bytes.min(most_owned(&self.limits, owned, self.queued_bytes)).saturating_sub(owned)
            }
            _ => 0,
        }
    }

    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        let conn = self.open(connection)?;
        conn.delivered = conn.delivered.checked_sub(bytes).ok_or(CallError::TooMuch)?;
        self.make_ready(connection.index);
        Ok(())
    }

    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        let conn = self.open(connection)?;
        if conn.fin != Fin::No {
            return Err(CallError::WrongState);
        }
        conn.fin = Fin::Wanted;
        self.make_ready(connection.index);
        Ok(())
    }

    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        let end = self.now + self.limits.linger;
        self.open(connection)?.phase = Phase::Closing;
        self.schedule(connection, end);
        self.make_ready(connection.index);
        Ok(())
    }

    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        self.conn(connection)?;
        self.end(connection, DeadReason::Aborted, true);
        Ok(())
    }

    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        let conn = self.open(connection)?;
        match at {
            Some(at) => self.schedule(connection, at),
            None => conn.deadline = None,
        }
        Ok(())
    }

    fn connect(&mut self, remote: SocketAddr, local: Option<SocketAddr>, cookie: u64) -> Result<Connection, CallError> {
        self.ask(remote, local, cookie)
    }

    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        self.unasked.push(listener, ends, bytes)
    }

    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.alarms.set(cookie, at)
    }
}
