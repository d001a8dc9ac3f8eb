//! A token bucket without tokens: one instant says when the bucket will be full again (the generic cell rate algorithm).

use base::Instant;
use std::time::Duration;

/// Lets `burst` events through at once and `per_second` in the long run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    full_at: Instant,
    interval: Duration,
    depth: Duration,
}

impl Bucket {
    /// A full bucket. Zero a second or a burst of zero lets nothing through.
    pub(crate) fn new(per_second: u32, burst: u32) -> Bucket {
        let (interval, depth) = match per_second {
            0 => (Duration::MAX, Duration::ZERO),
            rate => {
                let interval = Duration::from_nanos(1_000_000_000 / u64::from(rate));
                (interval, interval * burst)
            }
        };
        Bucket { full_at: Instant::ZERO, interval, depth }
    }

    /// Whether one more event may happen now; takes its share if so.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let allowed = full_at - now <= self.depth;
        if allowed {
            self.full_at = full_at;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_exceeds_burst_and_rate(rate in 1u32..5000, burst in 0u32..100, gaps in prop::collection::vec(0u64..3_000_000, 1..400)) {
            let mut bucket = Bucket::new(rate, burst);
            let (mut now, mut passed) = (Instant::ZERO, 0u64);
            for gap in gaps {
                now += Duration::from_nanos(gap);
                passed += u64::from(bucket.allow(now));
                let bound = u64::from(burst) + now.as_nanos() / (1_000_000_000 / u64::from(rate));
                prop_assert!(passed <= bound, "{} passed of {}", passed, bound);
            }
        }
    }

    #[test]
    fn a_quiet_time_fills_it_again() {
        let mut bucket = Bucket::new(10, 3);
        let mut at = |ms: u64| (0..5).filter(|_| bucket.allow(Instant::from_nanos(ms * 1_000_000))).count();
        assert_eq!([at(0), at(99), at(100), at(10_000)], [3, 0, 1, 3]);
        assert!(!Bucket::new(0, 9).allow(Instant::from_nanos(u64::MAX / 2)));
        assert!(!Bucket::new(9, 0).allow(Instant::from_nanos(1)));
    }
}
