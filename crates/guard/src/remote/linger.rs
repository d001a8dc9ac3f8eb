//! Connections that were closed while bytes of theirs wait for the engine. It bounds how long they linger from when it is told of the end,
//! which goes behind all of it; so it is bounded here until then, and in the application's half where that one has some too.
//!
//! A peer is to blame for nothing while the engine has nothing of what it is sent: then all that engines may queue is others'. It is
//! excused a bounded number of times, since who has it need not give it back: peers that take nothing end, of closed connections after
//! [`LINGER`], of others as engine and service bound it, but one that takes an octet now and then ends when it likes.

use super::Remote;
use super::table::{Finish, Phase};
use crate::layout::Handle;
use crate::stats::DropReason;
use crate::{EXCUSES, LINGER};
use app::Streams;

impl Remote {
    /// Bounds how long a close waits, while the peer takes nothing: who takes what was sent, however slowly, is not cut off.
    pub(super) fn linger<C: Streams>(&mut self, calls: &mut C, handle: Handle) {
        let until = self.now + LINGER;
        let Some(slot) = self.table.at(handle.index) else { return };
        let waits = slot.finish == Finish::Close && !slot.pending.is_empty();
        if waits && calls.timer_set(slot.connection, Some(until)).is_err() {
            self.stats.dropped(DropReason::Engine);
        }
    }

    /// The engine has taken something of which it had nothing: from now on it is the peer that is waited for.
    pub(super) fn offered<C: Streams>(&mut self, calls: &mut C, handle: Handle) {
        match self.table.at(handle.index).map(|slot| slot.phase) {
            Some(Phase::Open) => self.tell_sent(handle, 0),
            _ => self.linger(calls, handle),
        }
    }

    /// Before the application hears of its timer, which may be its half's that waits behind a close: tells it that the peer could take
    /// nothing, if it could not.
    pub(super) fn excuse(&mut self, handle: Handle) {
        if self.table.at(handle.index).is_some_and(|slot| slot.is_all_pending()) {
            self.tell_sent(handle, 0);
        }
    }

    /// A connection's timer has gone off that its application has closed.
    pub(super) fn lingered<C: Streams>(&mut self, calls: &mut C, handle: Handle) {
        let Some(slot) = self.table.at(handle.index) else { return };
        if slot.pending.is_empty() {
            return;
        }
        if slot.is_all_pending() && slot.excused < EXCUSES {
            slot.excused += 1;
            return self.linger(calls, handle);
        }
        slot.finish = Finish::Late;
        self.stats.dropped(DropReason::Lingered);
        self.abort(calls, handle);
    }
}
