//! Calls: copied once, judged, done.

use super::table::{Finish, Phase};
use super::{Remote, is_possible};
use crate::GROUP;
use crate::layout::{
    CALL_SLOTS, CREDIT_BYTES, Call, CallKind, Handle, NEVER, PAYLOAD_AT, SEND_BYTES, SLOT_BYTES, SLOTS_AT,
    TRANSMIT_BYTES, control, header,
};
use crate::stats::{DropReason, Reject};
use app::{Range, Streams};
use arrayvec::ArrayVec;
use base::{CACHE_LINE_BYTES, Instant};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Calls taken in one cycle.
const CALLS_A_CYCLE: u32 = 256;
/// Payload of calls that are taken together, behind which no further group is begun. Judging a call costs the same whatever it sends, copying
/// it does not. No more lies in the area at a time, so whoever writes each payload into a piece of its own is never held up by this; those
/// whose calls name the same bytes again and again are, until the next cycle.
const PAYLOAD_BYTES: usize = TRANSMIT_BYTES;
/// Connections whose bytes the engine has not taken that are looked at in a cycle.
const DEFERRED_TURNS: usize = 16;

impl Remote {
    /// Takes calls, a bounded number.
    pub(super) fn take_calls<C: Streams>(&mut self, calls: &mut C) {
        let allowed = self.allowance.calls();
        if allowed == 0 {
            return;
        }
        let head = self.channel.transmit.word(control::CALL_HEAD_AT).load(Ordering::Acquire);
        let mut left = match is_possible(head.wrapping_sub(self.call_tail)) {
            Ok(0) => return,
            Ok(waiting) => waiting.min(CALLS_A_CYCLE).min(allowed),
            Err(reason) => {
                // nothing between the two means anything
                self.stats.rejected(reason);
                self.allowance.refused();
                self.call_tail = head;
                0
            }
        };
        let (mut judged, mut payload_bytes) = (0, 0);
        // dear calls use it up before all that wait are judged
        while left > 0 && payload_bytes <= PAYLOAD_BYTES && !self.allowance.is_used_up() {
            let together = left.min(GROUP as u32);
            left -= together;
            judged += together;
            let group = self.copy_calls(together, left);
            for call in &group {
                // what is longer is refused before it is copied
                payload_bytes += (call.length as usize).min(SEND_BYTES);
                self.allowance.judged(call.kind());
                if let Err(reason) = self.take(calls, call) {
                    self.stats.rejected(reason);
                    // an honest one may be late
                    if reason != Reject::Stale {
                        self.allowance.refused();
                    }
                }
            }
        }
        self.channel.receive.word(header::CALL_TAIL_AT).store(self.call_tail, Ordering::Release);
        self.stats.calls.add(judged.into());
        self.stats.batches.add(1);
        if self.allowance.is_used_up() || left > 0 && payload_bytes > PAYLOAD_BYTES {
            self.stats.throttled.add(1);
        }
    }

    /// Private copies of the next calls, at most [`GROUP`]. What they name and the `ahead` calls behind them are asked for.
    fn copy_calls(&mut self, count: u32, ahead: u32) -> ArrayVec<Call, GROUP> {
        let transmit = &self.channel.transmit;
        let at = |index: u32| SLOTS_AT + (index % CALL_SLOTS) as usize * SLOT_BYTES;
        let mut group = ArrayVec::new();
        // on its way together with the slots that say where it is
        transmit.foresee(PAYLOAD_AT + self.next_payload as usize % TRANSMIT_BYTES, 2 * CACHE_LINE_BYTES);
        for _ in 0..count {
            let call = Call::decode(transmit.slot(at(self.call_tail)));
            self.call_tail = self.call_tail.wrapping_add(1);
            // nothing of it is judged: what is wrong asks for nothing
            transmit.foresee(PAYLOAD_AT.saturating_add(call.offset as usize), call.length as usize);
            self.table.foresee(call.handle.index);
            if call.length > 0 {
                self.next_payload = call.offset.wrapping_add(call.length);
            }
            group.push(call);
        }
        for index in (0..ahead.min(GROUP as u32)).step_by(CACHE_LINE_BYTES / SLOT_BYTES) {
            transmit.foresee(at(self.call_tail.wrapping_add(index)), SLOT_BYTES);
        }
        group
    }

    /// Does one call, a private copy.
    fn take<C: Streams>(&mut self, calls: &mut C, call: &Call) -> Result<(), Reject> {
        let kind = call.kind().ok_or(Reject::Kind)?;
        if call.zero != 0 {
            return Err(Reject::NotZero);
        }
        if call.owner != self.channel.owner {
            return Err(Reject::Owner);
        }
        match kind {
            CallKind::Reply => return self.reply(calls, call),
            CallKind::Connect => return self.connect(calls, call),
            CallKind::SendTo => return self.send_to(calls, call),
            CallKind::Alarm => return self.set_alarm(calls, call),
            _ => {}
        }
        let index = call.handle.index;
        if !self.table.has(index) {
            return Err(Reject::Index);
        }
        if self.table.handle(index) != call.handle {
            return Err(Reject::Stale);
        }
        let slot = self.table.at(index).ok_or(Reject::Stale)?;
        let connection = slot.connection;
        let allowed = match slot.phase {
            Phase::Free | Phase::Dead | Phase::Dropped => return Err(Reject::Stale),
            // handles can be guessed: who refuses what it was not told of would free places faster than it takes events
            Phase::Told => matches!(kind, CallKind::Accept | CallKind::Reject) && !slot.is_untold(),
            Phase::Asking => kind == CallKind::Abort,
            Phase::Open => !matches!(kind, CallKind::Accept | CallKind::Reject),
            Phase::Ended => matches!(kind, CallKind::Abort | CallKind::Done),
        };
        if !allowed {
            return Err(Reject::State);
        }
        if call.done > 0 {
            slot.told = slot.told.checked_sub(call.done.into()).ok_or(Reject::Done)?;
            let done = calls.recv_done(connection, call.done as usize).is_ok();
            // after its end an engine throws away what comes
            if !done && slot.phase != Phase::Ended {
                self.stats.dropped(DropReason::Engine);
            }
        }
        match kind {
            CallKind::Accept => slot.phase = Phase::Open,
            CallKind::Reject => {
                slot.phase = Phase::Dropped;
                let held = slot.waiting.take().map_or(0, |waiting| waiting.bytes.len() as u64);
                self.held_bytes -= held;
                self.abort(calls, call.handle);
            }
            CallKind::Send => return self.send(calls, call),
            CallKind::Done | CallKind::Reply | CallKind::Connect | CallKind::SendTo | CallKind::Alarm => {}
            CallKind::Shutdown if slot.shut => return Err(Reject::State),
            CallKind::Shutdown => {
                slot.shut = true;
                self.finish(calls, call.handle, Finish::Shutdown);
            }
            CallKind::Close => {
                (slot.shut, slot.phase) = (true, Phase::Ended);
                self.finish(calls, call.handle, Finish::Close);
            }
            CallKind::Abort => {
                (slot.shut, slot.phase) = (true, Phase::Ended);
                self.abort(calls, call.handle);
            }
            CallKind::Timer => {
                slot.timer_at = call.at;
                let at = (call.at != NEVER).then_some(Instant::from_nanos(call.at));
                if calls.timer_set(connection, at).is_err() {
                    self.stats.dropped(DropReason::Engine);
                }
            }
        }
        Ok(())
    }

    pub(super) fn abort<C: Streams>(&mut self, calls: &mut C, handle: Handle) {
        let Some(slot) = self.table.at(handle.index) else { return };
        self.pending_bytes -= slot.pending.len() as u64;
        slot.pending = VecDeque::new();
        // gone means that its death is under way
        let _ = calls.abort(slot.connection);
    }

    fn send<C: Streams>(&mut self, calls: &mut C, call: &Call) -> Result<(), Reject> {
        let (length, offset) = (call.length as usize, call.offset as usize);
        if length == 0 || length > SEND_BYTES {
            return Err(Reject::Length);
        }
        if offset > TRANSMIT_BYTES - length {
            return Err(Reject::Offset);
        }
        let slot = self.table.at(call.handle.index).ok_or(Reject::Stale)?;
        if slot.shut {
            return Err(Reject::State);
        }
        if slot.unsent + length as u64 > CREDIT_BYTES {
            return Err(Reject::Credit);
        }
        if self.unsent_bytes + length as u64 > self.budget_bytes {
            return Err(Reject::Budget);
        }
        let payload = &mut self.scratch[..length];
        self.channel.transmit.copy_out(PAYLOAD_AT + offset, payload);
        slot.unsent += length as u64;
        self.unsent_bytes += length as u64;
        self.stats.sent_bytes.add(length as u64);
        let taken = if slot.pending.is_empty() {
            match calls.sendv(slot.connection, &[Range::Owned(payload)]) {
                Ok(taken) => taken as usize,
                Err(_) => {
                    // it ended a moment ago, which will be told; what was sent goes nowhere
                    self.stats.dropped(DropReason::Engine);
                    return Ok(());
                }
            }
        } else {
            0
        };
        if taken < length {
            slot.pending.extend(&payload[taken..]);
            self.pending_bytes += (length - taken) as u64;
            self.deferred.push(call.handle.index);
        }
        Ok(())
    }

    /// Answers a datagram: to whom it came from, and to nobody else.
    fn reply<C: Streams>(&mut self, calls: &mut C, call: &Call) -> Result<(), Reject> {
        if call.length as usize > SEND_BYTES {
            return Err(Reject::Length);
        }
        lies_inside(call)?;
        let (listener, ends) = self.questions.take(call.handle, call.length).ok_or(Reject::Reply)?;
        self.stats.sent_bytes.add(call.length.into());
        let payload = self.payload(call)?;
        if calls.send_to(listener, ends, payload).is_err() {
            self.stats.dropped(DropReason::Engine);
        }
        Ok(())
    }

    /// A call's payload, copied once; its length was judged.
    pub(super) fn payload(&mut self, call: &Call) -> Result<&[u8], Reject> {
        lies_inside(call)?;
        let payload = self.scratch.get_mut(..call.length as usize).ok_or(Reject::Length)?;
        self.channel.transmit.copy_out(PAYLOAD_AT + call.offset as usize, payload);
        Ok(payload)
    }

    /// Ends the writing side when nothing waits for the engine any more.
    fn finish<C: Streams>(&mut self, calls: &mut C, handle: Handle, finish: Finish) {
        let Some(slot) = self.table.at(handle.index) else { return };
        if !slot.pending.is_empty() {
            slot.finish = finish;
            self.linger(calls, handle);
            return;
        }
        slot.finish = Finish::Nothing;
        let done = match finish {
            Finish::Nothing | Finish::Late => Ok(()),
            Finish::Shutdown => calls.shutdown(slot.connection),
            Finish::Close => calls.close(slot.connection),
        };
        if done.is_err() {
            self.stats.dropped(DropReason::Engine);
        }
    }

    /// Offers those that have stood in the line longest what the engine has not taken of them.
    pub(super) fn push_deferred<C: Streams>(&mut self, calls: &mut C) {
        for _ in 0..DEFERRED_TURNS.min(self.deferred.len()) {
            let Some(index) = self.deferred.pop() else { return };
            let handle = self.table.handle(index);
            if self.push(calls, handle) {
                self.offered(calls, handle);
            }
            if self.table.at(index).is_some_and(|slot| !slot.pending.is_empty()) {
                self.deferred.push(index);
            }
        }
    }

    /// Offers the engine what it has not taken yet of a connection; whether it has taken some and had nothing of it before.
    pub(super) fn push<C: Streams>(&mut self, calls: &mut C, handle: Handle) -> bool {
        if self.table.handle(handle.index) != handle {
            return false;
        }
        let Some(slot) = self.table.at(handle.index) else { return false };
        if slot.pending.is_empty() {
            return false;
        }
        let had_nothing = slot.is_all_pending();
        let (front, back) = slot.pending.as_slices();
        let sent = match back {
            [] => calls.sendv(slot.connection, &[Range::Owned(front)]),
            back => calls.sendv(slot.connection, &[Range::Owned(front), Range::Owned(back)]),
        };
        let (taken, is_first) = match sent {
            Ok(taken) => (taken as usize, taken > 0 && had_nothing),
            Err(_) => {
                self.stats.dropped(DropReason::Engine);
                (slot.pending.len(), false)
            }
        };
        slot.pending.drain(..taken);
        self.pending_bytes -= taken as u64;
        if slot.pending.is_empty() {
            // the most that ever waited is not kept for the connection's life
            slot.pending = VecDeque::new();
            let finish = slot.finish;
            self.finish(calls, handle, finish);
        }
        is_first
    }
}

/// Whether a call's payload lies where payload may lie.
fn lies_inside(call: &Call) -> Result<(), Reject> {
    let end = u64::from(call.offset) + u64::from(call.length);
    if end <= TRANSMIT_BYTES as u64 { Ok(()) } else { Err(Reject::Offset) }
}
