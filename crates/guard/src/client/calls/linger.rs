//! Connections that were closed while what they sent waits for credit. The dataplane is told of the end behind all of it, and only then does
//! its engine bound how long they linger; so it is bounded here until then. A peer that takes nothing would keep the place, the credit and the
//! version of what it is sent, for ever. One that is offered nothing is excused, a bounded number of times: the budget is others' then, or what
//! engines may queue, and whoever has that may take an octet now and then for ever.

use super::{Calls, Finish};
use crate::layout::{Call, CallKind};
use crate::{EXCUSES, LINGER};
use app::{Connection, DeadReason, Streams};
use base::Instant;

impl Calls {
    /// Behind a close: bounds what waits, if anything does.
    pub(super) fn linger(&mut self, connection: Connection) {
        self.moved(connection);
        let waits = |conn: &&mut super::Conn| conn.finish == Finish::Close;
        if let Some(until) = self.conn(connection).ok().filter(waits).map(|conn| conn.lingers_until) {
            self.look_again(connection, until);
        }
    }

    /// The peer has taken something: who takes what was sent, however slowly, is not cut off. The dataplane's timer is not set anew for
    /// it, since each call costs.
    pub(super) fn moved(&mut self, connection: Connection) {
        let until = self.now + LINGER;
        if let Ok(conn) = self.conn(connection) {
            (conn.lingers_until, conn.excused) = (until, 0);
        }
    }

    /// It could take nothing, or could not until now; whether that is believed once more.
    pub(super) fn excuse(&mut self, connection: Connection) -> bool {
        let until = self.now + LINGER;
        match self.conn(connection) {
            Ok(conn) if conn.excused < EXCUSES => {
                (conn.lingers_until, conn.excused) = (until, conn.excused + 1);
                true
            }
            _ => false,
        }
    }

    /// It was looked at again, at this time.
    pub(super) fn lingered(&mut self, connection: Connection, at: Instant) {
        let Ok(conn) = self.conn(connection) else { return };
        if conn.finish != Finish::Close {
            // the engine bounds it
            return;
        }
        let (until, is_offered) = (conn.lingers_until, conn.posted > 0);
        if until > at {
            self.look_again(connection, until);
        } else if !is_offered && self.excuse(connection) {
            self.look_again(connection, self.now + LINGER);
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
