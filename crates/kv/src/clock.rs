//! Seconds, as items count them: from two before the server started, so that none is 0.

use base::Instant;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is further away than this is no span but a date.
const SPAN_MOST_S: i64 = 30 * 24 * 3600;
/// The second of an engine's zero.
const FIRST_S: u64 = 2;

/// The wall clock at the zero of the engines' time, which several threads read. Engines' clocks count on when the machine's is set, and
/// stand still while it is suspended; a date that a client gives is the wall clock's all the same.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// With seconds since 1970 at [`Instant::ZERO`].
    pub const fn new(unix_at_zero_s: u64) -> Clock {
        Clock(AtomicU64::new(unix_at_zero_s))
    }

    /// Replaces them. What was given a date before keeps the seconds that it had left then.
    pub fn set(&self, unix_at_zero_s: u64) {
        self.0.store(unix_at_zero_s, Ordering::Relaxed);
    }

    /// Seconds since 1970 at [`Instant::ZERO`].
    #[inline]
    pub fn unix_at_zero_s(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The second of an instant, whatever the wall clock says.
    #[inline]
    pub(crate) fn second(now: Instant) -> u32 {
        (now.as_nanos() / 1_000_000_000 + FIRST_S) as u32
    }

    /// The second at which something dies that was given so many seconds to live, or a date; 0 is never. A date that is gone, and any negative
    /// number, is the first second.
    pub(crate) fn expiry(&self, given: i32, now: u32) -> u32 {
        let given = i64::from(given);
        match given {
            0 => 0,
            ..0 => 1,
            1..=SPAN_MOST_S => now.saturating_add(given as u32),
            date => (date - self.unix_at_zero_s() as i64 + FIRST_S as i64).max(1) as u32,
        }
    }

    /// Seconds since 1970 of a second.
    pub(crate) fn unix(&self, second: u32) -> u64 {
        (self.unix_at_zero_s() + u64::from(second)).saturating_sub(FIRST_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_dates_and_what_is_past() {
        let clock = Clock::new(1_700_000_000);
        let now = Clock::second(Instant::from_nanos(5_999_999_999));
        assert_eq!((now, clock.unix(now)), (7, 1_700_000_005));
        for (given, expiry) in [
            (0, 0),
            (-1, 1),
            (i32::MIN, 1),
            (1, 8),
            (2_592_000, 2_592_007),
            // one more is a date of 1970
            (2_592_001, 1),
            (1_700_000_000, 2),
            (1_700_000_009, 11),
            (1_699_999_998, 1),
        ] {
            assert_eq!(clock.expiry(given, now), expiry, "{given}");
        }
    }

    #[test]
    fn dates_follow_the_clock_when_it_is_set_and_spans_do_not() {
        let clock = Clock::new(1_700_000_000);
        let now = Clock::second(Instant::ZERO);
        let told = || (clock.unix(now), clock.expiry(1_700_000_700, now), clock.expiry(60, now));
        assert_eq!(told(), (1_700_000_000, 702, 62));
        clock.set(1_700_000_600);
        assert_eq!(told(), (1_700_000_600, 102, 62));
        clock.set(1_700_000_800);
        assert_eq!(told(), (1_700_000_800, 1, 62), "it is gone");
        clock.set(1_700_000_000);
        assert_eq!(told(), (1_700_000_000, 702, 62));
    }
}
