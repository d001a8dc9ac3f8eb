//! Pacing: segments leave evenly over a round trip instead of in one burst, where the path is long enough for it to
//! matter (RFC 9002 section 7.7 says why; TCP has no RFC of its own for it).
//!
//! There are no tokens: one instant says when the next bytes may leave. Each permission is for a quantum, so that a
//! timer serves several segments; a timer that comes late is made up for, up to one quantum. A quantum is as large as a
//! burst may be: the initial window (RFC 9002 section 7.7). The finer the segments of many connections were mixed, the
//! more of them one burst of losses would hit, each of which then has its window reduced; and who receives merges fewer.
//! But it is at most a quarter of the window: what leaves later than a repair is what tells when that is lost, too.
//! Where the least round-trip time is a millisecond or less nothing is held back: there a burst is shorter than the
//! machine's own jitter, and acknowledgements clock well.

use super::congestion::initial_window;
use base::Instant;

/// Paths whose least round-trip time is above this are paced.
pub const LEAST_RTT_NS: u64 = 1_000_000;
/// Time that a quantum should last where that is more than the initial window: fewer timers than packets.
const QUANTUM_NS: u64 = 1_000_000;
/// A quantum is at most this part of the window
const WINDOW_PART: u32 = 4;
/// and at most these segments, a super-segment of 64 KiB.
const MAX_QUANTUM_SEGMENTS: u32 = 44;

/// When the next bytes of one connection may leave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    next_at: Instant,
}

/// How fast a connection may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    bytes_per_s: u64,
    quantum_bytes: u32,
}

impl Rate {
    /// The rate of a window over a round trip, with room to grow: twice that in slow start, which doubles the window
    /// each round trip, 6/5 of it otherwise. `None` when the path is not to be paced.
    #[inline]
    pub fn of(cwnd_bytes: u32, smoothed_ns: u64, min_ns: u64, slow_start: bool, mss_bytes: u32) -> Option<Rate> {
        if min_ns <= LEAST_RTT_NS || smoothed_ns == 0 {
            return None;
        }
        let window = u64::from(cwnd_bytes) * if slow_start { 20 } else { 12 } / 10;
        let bytes_per_s = (window * 1_000_000_000 / smoothed_ns).max(1);
        let worth = bytes_per_s.saturating_mul(QUANTUM_NS) / 1_000_000_000;
        let burst = worth.max(u64::from(initial_window(mss_bytes))).min(u64::from(cwnd_bytes / WINDOW_PART));
        let most = u64::from(MAX_QUANTUM_SEGMENTS * mss_bytes);
        Some(Rate { bytes_per_s, quantum_bytes: burst.clamp(u64::from(mss_bytes), most) as u32 })
    }

    /// Bytes a second.
    #[inline]
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Bytes that may leave at once.
    #[inline]
    pub fn quantum_bytes(&self) -> u32 {
        self.quantum_bytes
    }

    /// The time that `bytes` take.
    #[inline]
    fn ns(&self, bytes: u64) -> u64 {
        // a window's worth fits: 2^30 bytes and 2^30 ns
        bytes.saturating_mul(1_000_000_000) / self.bytes_per_s
    }
}

impl Pace {
    /// The bytes that may leave now, zero or a quantum. The last segment may go beyond it: what is sent is charged.
    #[inline]
    pub fn allowance(&self, now: Instant, rate: Rate) -> u32 {
        if now >= self.next_at { rate.quantum_bytes } else { 0 }
    }

    /// When bytes may leave again, for the timer.
    #[inline]
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Charges what left.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, bytes: u64, rate: Rate) {
        // a late timer or an idle while gives back one quantum's time and no more
        let credit_ns = rate.ns(u64::from(rate.quantum_bytes));
        let from_ns = self.next_at.as_nanos().max(now.as_nanos().saturating_sub(credit_ns));
        self.next_at = Instant::from_nanos(from_ns.saturating_add(rate.ns(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 1448;

    proptest! {
        /// Whenever the timer comes, what left since any permission is at most the rate's worth and three quanta: the
        /// one that is sent at once, the one that makes up for a late timer, the one at the end.
        #[test]
        fn never_faster_than_the_rate_and_not_much_slower(
            cwnd_segments in 1u32..3000, rtt_us in 1001u64..500_000, late_us in prop::collection::vec(0u64..400, 50..300), idle_us in 0u64..9_000_000
        ) {
            let rate = Rate::of(cwnd_segments * MSS, rtt_us * 1000, rtt_us * 1000, false, MSS).unwrap();
            let mut pace = Pace::default();
            let mut now = Instant::from_nanos(idle_us * 1000);
            let (begin, mut sent, mut lost_ns) = (now, 0u64, 0u64);
            for late in late_us {
                let allowed = pace.allowance(now, rate);
                prop_assert!(allowed > 0);
                let whole = u64::from(allowed.next_multiple_of(MSS)); // the last segment whole
                pace.on_sent(now, whole, rate);
                sent += whole;
                let elapsed_ns = (now - begin).as_nanos() as u64;
                let worth = u128::from(rate.bytes_per_s()) * u128::from(elapsed_ns) / 1_000_000_000;
                let bound = worth as u64 + 3 * u64::from(rate.quantum_bytes()) + 3 * u64::from(MSS);
                prop_assert!(sent <= bound, "{} of {}", sent, bound);
                let gap = rate.ns(u64::from(rate.quantum_bytes()));
                lost_ns += (late * 1000).saturating_sub(gap);
                now = Instant::from_nanos(pace.next_at().as_nanos().max(now.as_nanos()) + late * 1000);
            }
            // lateness within a quantum costs nothing
            let elapsed_ns = (now - begin).as_nanos() as u64 - lost_ns;
            let worth = u128::from(rate.bytes_per_s()) * u128::from(elapsed_ns) / 1_000_000_000;
            prop_assert!(sent + 2 * u64::from(rate.quantum_bytes() + MSS) >= worth as u64, "{} of {}", sent, worth);
        }
    }

    #[test]
    fn short_paths_are_not_paced() {
        assert_eq!(Rate::of(1 << 20, 2_000_000, 1_000_000, true, MSS), None);
        assert_eq!(Rate::of(1 << 20, 0, 2_000_000, true, MSS), None);
        assert!(Rate::of(1 << 20, 2_000_000, 1_000_001, true, MSS).is_some());
    }

    #[test]
    fn a_quantum_is_the_initial_window_where_the_window_is_four_of_it() {
        let quantum =
            |segments, rtt_ns| Rate::of(segments * MSS, rtt_ns, rtt_ns, false, MSS).unwrap().quantum_bytes() / MSS;
        // a rate of 600 segments a second
        assert_eq!(quantum(50, 100_000_000), 10);
        assert_eq!([1, 4, 8, 39, 40].map(|segments| quantum(segments, 100_000_000)), [1, 1, 2, 9, 10]);
        // a millisecond's worth is more, but most of the window
        assert_eq!(quantum(40, 1_500_000), 10);
        assert_eq!(quantum(1000, 40_000_000), 30);
    }

    #[test]
    fn the_rate_is_the_window_over_the_round_trip_with_room_to_grow() {
        let rate = |slow_start| Rate::of(1_000_000, 100_000_000, 90_000_000, slow_start, MSS).unwrap();
        assert_eq!([rate(true), rate(false)].map(|rate| rate.bytes_per_s()), [20_000_000, 12_000_000]);
        assert_eq!(rate(true).quantum_bytes(), 20_000);
        let tiny = Rate::of(MSS, 900_000_000, 900_000_000, false, MSS).unwrap();
        assert_eq!(tiny.quantum_bytes(), MSS);
        let huge = Rate::of(u32::MAX, 1_000_001, 1_000_001, true, MSS).unwrap();
        assert_eq!(huge.quantum_bytes(), 44 * MSS);
    }
}
