//! How many calls an application may have judged: a part of its thread's time, whatever it writes.
//!
//! Judging a call costs the thread some tens of nanoseconds, a refused one for nothing. So each costs an allowance that time and
//! events give: with what happens to its connections an application has earned its answers, and without it can write as much as
//! the thread has time for, but no more. One that writes nonsense has used its allowance up soon, and its memory is not even looked at
//! then. Calls are not lost by that; they wait.

use base::Instant;

/// What a call costs. The unit is the nanosecond that gives it.
const CALL: i64 = 1_000;
/// What one costs that is refused.
const REFUSED: i64 = 16 * CALL;
/// What an event gives: its answer, what goes along with it, and as much for other connections.
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

    /// So many events were told.
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

    /// So many were judged, and so many of them refused; whether that has used it up.
    #[inline]
    pub(super) fn judged(&mut self, calls: u32, refused: u32) -> bool {
        self.left -= i64::from(calls) * CALL + i64::from(refused) * REFUSED;
        let used_up = self.left < CALL;
        self.used_up |= used_up;
        used_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_much_may_answer_and_who_writes_nonsense_waits() {
        let mut allowance = Allowance::new();
        let mut now = Instant::from_nanos(5_000_000);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 1024);
        // answers with something besides, for ever and in no time
        for _ in 0..1000 {
            allowance.told(256);
            assert!(allowance.calls() >= 1000 && !allowance.judged(1000, 0));
        }
        assert!(!allowance.judged(allowance.calls() - 1, 0) && allowance.judged(1, 0));
        assert_eq!(allowance.calls(), 0);
        // not before there is enough to look at
        now += std::time::Duration::from_nanos(63_999);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 0);
        now += std::time::Duration::from_nanos(1);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 64);
        // nonsense costs more, and is owed
        assert!(allowance.judged(16, 16));
        now += std::time::Duration::from_nanos(271_999);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 0);
        now += std::time::Duration::from_nanos(1);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 64);
        // a clock that stands still or goes back gives nothing
        allowance.pass(Instant::ZERO);
        allowance.pass(now);
        assert_eq!(allowance.calls(), 64);
    }
}
