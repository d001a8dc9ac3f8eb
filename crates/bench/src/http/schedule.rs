//! When requests are due.

use base::Instant;
use std::time::Duration;

/// The rule by which requests become due, from a start to an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    start: Instant,
    end: Instant,
    /// requests a second; None: one is due whenever a connection is free
    rate: Option<f64>,
    taken: u64,
}

impl Schedule {
    /// Nothing is ever due.
    pub(super) const NEVER: Schedule = Schedule { start: Instant::ZERO, end: Instant::ZERO, rate: None, taken: 0 };

    pub(super) fn new(start: Instant, span: Duration, rate: Option<f64>) -> Schedule {
        Schedule { start, end: start + span, rate, taken: 0 }
    }

    /// Takes a request that is due, if there is one: when it was due.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next_at(now);
        if now >= self.end || due > now {
            return None;
        }
        self.taken += 1;
        Some(due)
    }

    /// When the next one is due.
    #[inline]
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        match self.rate {
            Some(rate) => self.start + Duration::from_nanos((self.taken as f64 * 1e9 / rate) as u64),
            None => now,
        }
    }

    /// Those that were due by the end and never taken: no connection was free for them.
    pub(super) fn missed(&self, now: Instant) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let by = now.min(self.end).saturating_since(self.start);
        // the first is due at the start itself
        let due = (by.as_secs_f64() * rate).ceil() as u64;
        due.saturating_sub(self.taken)
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_open_loop_owes_what_it_could_not_ask() {
        let mut schedule = Schedule::new(ms(100), Duration::from_millis(50), Some(100.0));
        assert_eq!(schedule.take(ms(99)), None);
        assert_eq!(schedule.take(ms(100)), Some(ms(100)));
        assert_eq!((schedule.take(ms(109)), schedule.next_at(ms(109))), (None, ms(110)));
        // late, but the time it was due is told
        assert_eq!(schedule.take(ms(135)), Some(ms(110)));
        assert_eq!(schedule.missed(ms(135)), 2);
        assert_eq!(schedule.take(ms(150)), None);
        assert_eq!(schedule.missed(ms(500)), 3);
        assert!(schedule.is_over(ms(150)) && !schedule.is_over(ms(149)));
    }

    #[test]
    fn a_closed_loop_is_always_due_until_its_end() {
        let mut schedule = Schedule::new(ms(1), Duration::from_millis(1), None);
        assert_eq!(
            [schedule.take(ms(1)), schedule.take(ms(1)), schedule.take(ms(2))],
            [Some(ms(1)), Some(ms(1)), None]
        );
        assert_eq!(schedule.missed(ms(2)), 0);
        assert_eq!({ Schedule::NEVER }.take(Instant::ZERO), None);
    }
}
