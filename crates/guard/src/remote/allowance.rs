//! How many calls an application may have judged: a part of its thread's time, whatever it writes.
//!
//! Judging a call costs the thread some tens of nanoseconds, a refused one for nothing, and what it asks for may cost the engine more. So
//! each costs an allowance that time and events give: with what happens to its connections an application has earned its answers, and
//! without it can write as much as the thread has time for, but no more. One that writes nonsense has used its allowance up soon, and its
//! memory is not even looked at then. Calls are not lost by that; they wait.

use crate::layout::CallKind;
use base::Instant;

/// What a call costs. The unit is the nanosecond that gives it.
const CALL: i64 = 1_000;
/// What one costs that is refused.
const REFUSED: i64 = 16 * CALL;
/// What a connection costs that is asked for, beside the call: on kernel sockets three system calls.
const CONNECT: i64 = 15 * CALL;
/// And a datagram that answers none: one.
const SEND_TO: i64 = 3 * CALL;
/// What an event gives that others have brought about: its answer, what goes along with it, and as much for other connections.
const EVENT: i64 = 8 * CALL;
/// The most that is saved up: a ring full of calls.
const MOST: i64 = crate::layout::CALL_SLOTS as i64 * CALL;
/// Who has used it up goes on with so much, or the thread would look at every call of its.
const ENOUGH: i64 = 64 * CALL;

/// See the module.
#[derive(Debug)]
pub(super) struct Allowance {
    left: i64,
    at: Instant,
    used_up: bool,
}

impl Allowance {
    pub(super) fn new() -> Allowance {
        Allowance { left: MOST, at: Instant::ZERO, used_up: false }
    }

    /// Time has passed.
    #[inline]
    pub(super) fn pass(&mut self, now: Instant) {
        let passed = now.saturating_since(self.at).as_nanos();
        self.at = self.at.max(now);
        self.give(i64::try_from(passed).unwrap_or(MOST));
    }

    /// So many events were told that earn calls.
    #[inline]
    pub(super) fn told(&mut self, events: u32) {
        self.give(i64::from(events) * EVENT);
    }

    #[inline]
    fn give(&mut self, gift: i64) {
        self.left = self.left.saturating_add(gift).min(MOST);
        if self.left >= ENOUGH {
            self.used_up = false;
        }
    }

    /// How many calls may be judged now.
    #[inline]
    pub(super) fn calls(&self) -> u32 {
        if self.used_up { 0 } else { (self.left / CALL).clamp(0, i64::from(u32::MAX)) as u32 }
    }

    /// One call is judged.
    #[inline]
    pub(super) fn judged(&mut self, kind: Option<CallKind>) {
        self.left -= CALL
            + match kind {
                Some(CallKind::Connect) => CONNECT,
                Some(CallKind::SendTo) => SEND_TO,
                _ => 0,
            };
    }

    /// It was refused.
    #[inline]
    pub(super) fn refused(&mut self) {
        self.left -= REFUSED;
    }

    /// Whether what was judged has used it up.
    #[inline]
    pub(super) fn is_used_up(&mut self) -> bool {
        let used_up = self.left < CALL;
        self.used_up |= used_up;
        used_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// So many calls of a kind, of which so many are refused; whether that has used it up.
    fn judge(allowance: &mut Allowance, kind: CallKind, calls: u32, refused: u32) -> bool {
        (0..calls).for_each(|_| allowance.judged(Some(kind)));
        (0..refused).for_each(|_| allowance.refused());
        allowance.is_used_up()
    }

    #[test]
    fn who_is_told_much_may_answer_and_who_writes_nonsense_waits() {
        let mut allowance = Allowance::new();
        let mut now = Instant::from_nanos(5_000_000);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 1024);
        // answers with something besides, for ever and in no time
        for _ in 0..1000 {
            allowance.told(256);
            assert!(allowance.calls() >= 1000 && !judge(&mut allowance, CallKind::Send, 1000, 0));
        }
        let left = allowance.calls();
        assert!(!judge(&mut allowance, CallKind::Send, left - 1, 0) && judge(&mut allowance, CallKind::Send, 1, 0));
        assert_eq!(allowance.calls(), 0);
        // not before there is enough to look at
        now += Duration::from_nanos(63_999);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 0);
        now += Duration::from_nanos(1);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 64);
        // nonsense costs more, and is owed
        assert!(judge(&mut allowance, CallKind::Send, 16, 16));
        now += Duration::from_nanos(271_999);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 0);
        now += Duration::from_nanos(1);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 64);
        // a clock that stands still or goes back gives nothing
        allowance.pass(Instant::ZERO);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 64);
    }

    #[test]
    fn what_the_engine_has_to_do_for_it_is_in_a_calls_price() {
        for (kind, most) in [(CallKind::Alarm, 1024), (CallKind::SendTo, 256), (CallKind::Connect, 64)] {
            let mut allowance = Allowance::new();
            assert!(!judge(&mut allowance, kind, most - 1, 0), "{kind:?}");
            assert!(judge(&mut allowance, kind, 1, 0), "{kind:?}");
        }
    }
}
