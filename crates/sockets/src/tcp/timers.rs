//! When connections are looked at again: a heap, with the earliest time of each connection in it. One that is superseded stays until it
//! is due, or until there are too many of those.

use super::{Phase, Table};
use app::{Connection, DeadReason, Service};
use base::Instant;
use std::cmp::Reverse;

/// Entries that the timer heap has for each place, and beside, before those of connections that have gone are looked for: an entry stays
/// until its time, which a short connection with a long timer does not.
pub(super) const TIMERS_A_PLACE: usize = 4;
pub(super) const SPARE_TIMERS: usize = 64;

impl Table {
    /// Does what is due, at most so much.
    pub(super) fn fire_timers<S: Service>(&mut self, most: usize, service: &mut S) {
        for _ in 0..most {
            let now = self.now;
            let Some(&Reverse((at, index, generation))) = self.timers.peek() else { return };
            if at > now {
                return;
            }
            self.timers.pop();
            let handle = Connection { index, generation };
            let Ok(conn) = self.conn(handle) else { continue };
            // an entry is the connection's own only if it is the earliest; others were superseded
            if conn.heaped != Some(at) {
                continue;
            }
            conn.heaped = None;
            match conn.deadline {
                Some(due) if due <= now => {
                    conn.deadline = None;
                    if conn.phase == Phase::Open {
                        let cookie = conn.cookie;
                        service.timer(now, self, handle, cookie);
                    } else if conn.phase == Phase::Asking {
                        self.end(handle, DeadReason::TimedOut, true);
                    } else {
                        // what the kernel has taken it goes on sending, and keeps its own time with a peer that is gone
                        let reset = conn.phase != Phase::Lingering;
                        self.counters.linger_expired.add(1);
                        self.end(handle, DeadReason::TimedOut, reset);
                    }
                }
                Some(due) => self.schedule(handle, due),
                None => {}
            }
        }
    }

    /// Has a connection looked at then.
    pub(super) fn schedule(&mut self, handle: Connection, at: Instant) {
        let Ok(conn) = self.conn(handle) else { return };
        conn.deadline = Some(at);
        if conn.heaped.is_none_or(|heaped| at < heaped) {
            conn.heaped = Some(at);
            self.timers.push(Reverse((at, handle.index, handle.generation)));
            if self.timers.len() > TIMERS_A_PLACE * self.slots.len() + SPARE_TIMERS {
                self.forget_dead_timers();
            }
        }
    }

    /// Keeps the one entry of each connection that counts. Since the last time there were more new ones than places, so a new entry pays
    /// for a bounded part of this.
    #[cold]
    fn forget_dead_timers(&mut self) {
        self.timers.clear();
        self.timers.extend(self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let at = slot.conn.as_ref()?.heaped?;
            Some(Reverse((at, index, slot.generation)))
        }));
    }
}
