//! Connections that were closed while what they sent waits for credit. The dataplane is told of the end behind all of it, and only then does
//! its engine bound how long they linger; so it is bounded here until then. A peer that takes nothing would keep the place, the credit and the
//! version of what it is sent, for ever.

use super::{Calls, Finish};
use crate::LINGER;
use crate::layout::{Call, CallKind};
use app::{Connection, DeadReason, Streams};
use base::Instant;

impl Calls {
    /// Behind a close: bounds what waits, if anything does.
    pub(super) fn linger(&mut self, connection: Connection) {
        self.lingers_on(connection);
        let waits = |conn: &&mut super::Conn| conn.finish == Finish::Close;
        if let Some(until) = self.conn(connection).ok().filter(waits).map(|conn| conn.lingers_until) {
            self.look_again(connection, until);
        }
    }

    /// The peer has taken something: who takes what was sent, however slowly, is not cut off. The dataplane's timer is not set anew for
    /// it, since each call costs.
    pub(super) fn lingers_on(&mut self, connection: Connection) {
        let until = self.now + LINGER;
        if let Ok(conn) = self.conn(connection) {
            conn.lingers_until = until;
        }
    }

    /// It was looked at again, at this time.
    pub(super) fn lingered(&mut self, connection: Connection, at: Instant) {
        let Ok(conn) = self.conn(connection) else { return };
        let until = conn.lingers_until;
        if conn.finish != Finish::Close {
            // the engine bounds it
        } else if until > at {
            self.look_again(connection, until);
        } else {
            // it is there, as was seen above
            let _ = self.abort(connection);
            if let Some(conn) = self.known(connection) {
                conn.finish = Finish::Late;
            }
        }
    }

    /// Why a connection has ended, of which the dataplane says this.
    pub(in super::super) fn reason(&mut self, connection: Connection, told: DeadReason) -> DeadReason {
        let is_late = self.known(connection).is_some_and(|conn| conn.finish == Finish::Late);
        if is_late { DeadReason::TimedOut } else { told }
    }

    fn look_again(&mut self, connection: Connection, at: Instant) {
        if let Ok(conn) = self.conn(connection) {
            conn.timer = Some(at);
            self.post(Call { at: at.as_nanos(), ..self.call(CallKind::Timer, connection) });
        }
    }
}
