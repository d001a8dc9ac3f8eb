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

    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    /// As an instant, near `now`; None when there is no deadline.
    pub(crate) fn near(self, now: Instant) -> Option<Instant> {
        if !self.is_set() {
            return None;
        }
        let here = now.as_nanos() >> SHIFT;
        let ahead = i64::from(self.0.wrapping_sub(here as u32).cast_signed());
        let tick = here.saturating_add_signed(ahead);
        Some(Instant::from_nanos(tick.saturating_mul(1 << SHIFT)))
    }

    /// Whether it lies ahead, by `span` at most, as what was set `span` ahead does while it lasts. Nine hours later what nobody
    /// has looked at seems to lie ahead again, but further.
    pub(crate) fn is_within(self, now: Instant, span: Duration) -> bool {
        let last = Tick::ahead(now, span).near(now);
        self.near(now).is_some_and(|at| at > now && Some(at) <= last)
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
