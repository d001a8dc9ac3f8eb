//! Time as the stack knows it: nanoseconds since an origin that the caller chose, passed in and never read here by the
//! stack itself. [`Clock`] is the one reader, for the loops that own a thread; tests start at 0 and move time by hand.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time: nanoseconds since the owner's origin. 64 bits last 584 years.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);
    /// Later than every other instant.
    pub const MAX: Instant = Instant(u64::MAX);

    /// The instant `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Instant(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero when `earlier` is later.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The same in nanoseconds: for what every packet asks, since a [`Duration`] takes seconds and the rest apart.
    #[inline]
    pub const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, span: Duration) -> Instant {
        // without the 128 bits of `as_nanos`
        let ns = span.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(span.subsec_nanos()));
        Instant(self.0.saturating_add(ns))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The machine's monotonic clock (CLOCK_MONOTONIC), counted from when the `Clock` was made. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero_ns: u64,
}

impl Clock {
    /// Finds how the clock is read without a system call (vdso(7)), which is looked for at the first reading and never again: a process that is
    /// going to confine itself does this before, since it may not be able to look then.
    pub fn find() {
        monotonic_ns();
    }

    /// A clock whose origin is now.
    pub fn start() -> Self {
        Clock { zero_ns: monotonic_ns() }
    }

    /// A clock whose origin is that by the machine's clock, as another's [`zero_ns`](Clock::zero_ns) tells it, perhaps another process's.
    pub const fn at(zero_ns: u64) -> Self {
        Clock { zero_ns }
    }

    /// The time since the origin.
    pub fn now(&self) -> Instant {
        Instant(monotonic_ns().saturating_sub(self.zero_ns))
    }

    /// The origin by the machine's clock, in nanoseconds: for who reads that clock by himself and is to tell the same time.
    pub fn zero_ns(&self) -> u64 {
        self.zero_ns
    }
}

fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // it begins at the machine's start and is never negative
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_saturate_at_both_ends() {
        let at = Instant::from_nanos(5);
        assert_eq!(at - Instant::from_nanos(7), Duration::ZERO);
        assert_eq!((at.nanos_since(Instant::from_nanos(2)), at.nanos_since(Instant::from_nanos(7))), (3, 0));
        assert_eq!(at + Duration::MAX, Instant::MAX);
        assert_eq!(at + Duration::new(18_446_744_073, 709_551_610), Instant::MAX);
        assert_eq!(at + Duration::new(18_446_744_073, 709_551_609), Instant::from_nanos(u64::MAX - 1));
        assert_eq!((at + Duration::from_micros(1)) - at, Duration::from_micros(1));
    }

    #[test]
    fn a_clock_never_goes_back_and_copies_agree_on_the_origin() {
        let clock = Clock::start();
        let copy = clock;
        let first = clock.now();
        assert!(copy.now() >= first);
    }

    /// Who reads the machine's clock by himself finds the same time.
    #[test]
    fn the_origin_is_the_machine_s() {
        let clock = Clock::start();
        let (before, now, after) = (monotonic_ns(), clock.now(), monotonic_ns());
        assert!((before..=after).contains(&(clock.zero_ns() + now.as_nanos())));
    }

    #[test]
    fn debug_form_keeps_leading_zeros_of_the_fraction() {
        assert_eq!(format!("{:?}", Instant::from_nanos(1_000_000_007)), "1.000000007s");
    }
}
