//! Time in four bytes: the timer wheel's ticks (2^14 ns, 16 us), modulo 2^32.
//!
//! A connection has several deadlines and shall be small. Deadlines less than nine hours apart keep their order; what is set
//! is never further away than [`MAX_AHEAD`], and is looked at again then; what no timer looks at is asked with
//! [`Tick::is_within`].

use base::Instant;
use std::time::Duration;

const SHIFT: u32 = 14;
/// The furthest that a deadline is set.
pub(crate) const MAX_AHEAD: Duration = Duration::from_secs(8 * 3600);
const MAX_AHEAD_NS: u64 = MAX_AHEAD.as_secs() * 1_000_000_000;

/// A deadline, rounded up, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick(u32);

impl Tick {
    /// No deadline.
    pub(crate) const NONE: Tick = Tick(0);

    /// The first tick that is not before `at`.
    pub(crate) fn after(at: Instant) -> Tick {
        Tick(((at.as_nanos().div_ceil(1 << SHIFT)) as u32).max(1))
    }

    /// `span` from now, rounded up.
    pub(crate) fn ahead(now: Instant, span: Duration) -> Tick {
        Tick::after(now + span.min(MAX_AHEAD))
    }

    /// So many nanoseconds from now, rounded up.
    #[inline]
    pub(crate) fn ahead_ns(now: Instant, ns: u64) -> Tick {
        Tick::after(Instant::from_nanos(now.as_nanos().saturating_add(ns.min(MAX_AHEAD_NS))))
    }

    /// The first of some deadlines, or none.
    #[inline]
    pub(crate) fn first<const N: usize>(now: Instant, ticks: [Tick; N]) -> Tick {
        let set = ticks.into_iter().filter(|tick| tick.is_set());
        set.min_by_key(|tick| tick.ahead_of(now)).unwrap_or(Tick::NONE)
    }

    /// Whether it comes no later than another one; never where there is no deadline.
    #[inline]
    pub(crate) fn is_by(self, other: Tick, now: Instant) -> bool {
        self.is_set() && (!other.is_set() || self.ahead_of(now) <= other.ahead_of(now))
    }

    /// Ticks from now to what is set.
    #[inline]
    fn ahead_of(self, now: Instant) -> i32 {
        self.0.wrapping_sub((now.as_nanos() >> SHIFT) as u32).cast_signed()
    }

    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    /// As an instant, near `now`; None when there is no deadline.
    pub(crate) fn near(self, now: Instant) -> Option<Instant> {
        if !self.is_set() {
            return None;
        }
        let tick = (now.as_nanos() >> SHIFT).saturating_add_signed(i64::from(self.ahead_of(now)));
        Some(Instant::from_nanos(tick.saturating_mul(1 << SHIFT)))
    }

    /// Whether it lies ahead, by `span` at most, as what was set `span` ahead does while it lasts. Nine hours later what nobody
    /// has looked at seems to lie ahead again, but further.
    pub(crate) fn is_within(self, now: Instant, span: Duration) -> bool {
        let last = Tick::ahead(now, span).near(now);
        self.near(now).is_some_and(|at| at > now && Some(at) <= last)
    }

    /// Whether it came more than `span` ago. Nineteen hours after it, it seems to have just come.
    pub(crate) fn is_past(self, now: Instant, span: Duration) -> bool {
        // it was rounded up, so it may lie a tick ahead
        let behind = ((now.as_nanos() >> SHIFT) as u32).wrapping_add(1).wrapping_sub(self.0);
        self.is_set() && u128::from(behind) << SHIFT > span.as_nanos() + (1 << SHIFT)
    }

    /// Whether it has come.
    pub(crate) fn is_due(self, now: Instant) -> bool {
        self.near(now).is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_the_first(now in 0u64..1 << 60, spans in prop::array::uniform4(prop::option::of(0u64..20_000_000_000_000))) {
            let now = Instant::from_nanos(now);
            let ticks = spans.map(|span| span.map_or(Tick::NONE, |ns| Tick::ahead_ns(now, ns)));
            let same = spans.map(|span| span.map_or(Tick::NONE, |ns| Tick::ahead(now, Duration::from_nanos(ns))));
            prop_assert_eq!(ticks, same);
            let first = Tick::first(now, ticks);
            prop_assert_eq!(first.near(now), ticks.iter().filter_map(|tick| tick.near(now)).min());
            for tick in ticks {
                prop_assert_eq!(first.is_by(tick, now), first.is_set());
                let later = tick.is_set() && tick.near(now) > first.near(now);
                prop_assert_eq!(tick.is_by(first, now), tick.is_set() && !later);
            }
        }

        #[test]
        fn never_early_and_less_than_two_ticks_late(now in 0u64..1 << 60, span in 0u64..20_000_000_000_000) {
            let now = Instant::from_nanos(now);
            let at = now + Duration::from_nanos(span);
            let tick = Tick::after(at);
            let got = tick.near(now).unwrap();
            prop_assert!(got >= at && got - at < Duration::from_nanos(2 << SHIFT), "{got:?} for {at:?}");
            prop_assert!(tick.is_due(got) && !(span > 0 && tick.is_due(now)));
            prop_assert!(tick.near(at).unwrap() == got);
        }

        #[test]
        fn what_came_long_ago_is_past(at in 0u64..1 << 60, span in 0u64..30_000_000_000_000, later in 0u64..60_000_000_000_000) {
            let (at, span, later) = (Instant::from_nanos(at), Duration::from_nanos(span), Duration::from_nanos(later));
            let past = Tick::after(at).is_past(at + later, span);
            prop_assert!(!past || later > span, "early");
            prop_assert!(past || later <= span + Duration::from_nanos(3 << SHIFT), "late");
        }

        #[test]
        fn what_lies_ahead_does_for_its_span_and_not_again_for_hours(
            set_at in 0u64..1 << 60, span in 1_000_000u64..1_000_000_000_000, later in 0u64..60_000_000_000_000
        ) {
            let (set_at, span) = (Instant::from_nanos(set_at), Duration::from_nanos(span));
            let tick = Tick::ahead(set_at, span);
            let later = Duration::from_nanos(later);
            prop_assert!(tick.is_within(set_at, span));
            if later < span {
                prop_assert!(tick.is_within(set_at + later, span), "while it lasts");
            } else if later >= span + Duration::from_nanos(2 << SHIFT) {
                prop_assert!(!tick.is_within(set_at + later, span), "when it is over");
            }
        }
    }
}
