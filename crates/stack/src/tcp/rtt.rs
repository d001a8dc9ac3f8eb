//! Round-trip time and the retransmission timeout (RFC 6298), with many samples a round trip (RFC 7323 appendix G), and
//! the least round-trip time of late, which RACK (RFC 8985 section 6.2) and pacing use.
//!
//! The caller keeps Karn's rule (RFC 6298 section 3): no sample from a segment that was sent twice, unless its echoed
//! timestamp tells which of the two was answered. Clocks and timers are the caller's too.

use base::Instant;

/// Before any sample (RFC 6298 section 2.1).
pub const INITIAL_RTO_NS: u64 = 1_000_000_000;
/// Least wait beyond the smoothed round-trip time. RFC 6298 section 2.4 would have a second for the whole; 200 ms, as
/// widely deployed, is still more than a peer delays an acknowledgement in practice. It bounds the variance term and
/// not the sum, so that a long, steady path, whose variance goes to zero, still has all of it to spare.
pub const MIN_VARIANCE_NS: u64 = 200_000_000;
/// The largest timeout (RFC 6298 section 2.5).
pub const MAX_RTO_NS: u64 = 60_000_000_000;
/// What data begin with when the handshake was timed out (RFC 6298 section 5.7).
pub const AFTER_LOST_SYN_RTO_NS: u64 = 3_000_000_000;

/// Bits of the smoothed values below a nanosecond. With thousands of samples a round trip each moves them by less than
/// one.
const FRACTION_BITS: u32 = 16;
/// Doublings that lead from the least timeout past the largest.
const MAX_BACKOFF: u8 = 9;

/// The estimate of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    /// SRTT in 2^-16 ns; zero before the first sample
    srtt: u64,
    /// RTTVAR in 2^-16 ns
    rttvar: u64,
    least: Least,
    /// times that the timeout was doubled
    backoff: u8,
    /// the handshake ran into a timeout
    lost_syn: bool,
}

const _: () = assert!(size_of::<Rtt>() <= 32);

impl Default for Rtt {
    fn default() -> Self {
        Rtt::new()
    }
}

impl Rtt {
    /// Nothing known.
    pub const fn new() -> Rtt {
        Rtt { srtt: 0, rttvar: 0, least: Least::NONE, backoff: 0, lost_syn: false }
    }

    /// Takes a sample. `samples_per_rtt` is how many are expected in a round trip: RFC 7323 appendix G has flight size
    /// / (2 MSS), rounded up; zero counts as one. The timeout is no longer doubled after it (RFC 6298 section 5, the
    /// note at its end).
    pub fn on_sample(&mut self, now: Instant, sample_ns: u64, samples_per_rtt: u32) {
        let sample_ns = sample_ns.clamp(1, MAX_RTO_NS);
        self.least.take(now, sample_ns);
        self.backoff = 0;
        let sample = sample_ns << FRACTION_BITS;
        if self.srtt == 0 {
            // RFC 6298 section 2.2
            (self.srtt, self.rttvar) = (sample, sample / 2);
            return;
        }
        // RFC 6298 section 2.3 with alpha = 1/8 and beta = 1/4, RTTVAR first; RFC 7323 appendix G divides both by the
        // count, which is one as a rule: said apart, so that it divides by shifting
        let step = |n| (approach(self.rttvar, self.srtt.abs_diff(sample), 4 * n), approach(self.srtt, sample, 8 * n));
        let (rttvar, srtt) = if samples_per_rtt <= 1 { step(1) } else { step(u64::from(samples_per_rtt)) };
        (self.rttvar, self.srtt) = (rttvar, srtt.max(1));
    }

    /// SRTT, `None` before the first sample.
    #[inline]
    pub fn smoothed_ns(&self) -> Option<u64> {
        (self.srtt != 0).then_some((self.srtt >> FRACTION_BITS).max(1))
    }

    /// RTTVAR; zero before the first sample.
    #[inline]
    pub fn variance_ns(&self) -> u64 {
        self.rttvar >> FRACTION_BITS
    }

    /// The least sample of the last one to two minutes, `None` before the first. Above 68 s it counts as 68 s, below 16
    /// ns as 16.
    #[inline]
    pub fn min_ns(&self) -> Option<u64> {
        self.least.get()
    }

    /// The timeout now, doublings included.
    #[inline]
    pub fn rto_ns(&self) -> u64 {
        let base = match self.smoothed_ns() {
            None if self.lost_syn => AFTER_LOST_SYN_RTO_NS,
            None => INITIAL_RTO_NS,
            Some(srtt) => srtt + (4 * self.variance_ns()).max(MIN_VARIANCE_NS),
        };
        (base << self.backoff).min(MAX_RTO_NS)
    }

    /// How often the timeout was doubled since the last sample or progress.
    #[inline]
    pub fn backoff(&self) -> u8 {
        self.backoff
    }

    /// The timer expired and data are sent again: the timeout doubles (RFC 6298 section 5.5).
    pub fn on_timeout(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// New data were acknowledged, or a timeout turned out spurious (RFC 5682): the doublings are taken back.
    pub fn on_progress(&mut self) {
        self.backoff = 0;
    }

    /// The handshake is complete. `timed_out`: SYN or SYN-ACK had to be sent again, so that without a sample the first
    /// data wait for 3 s (RFC 6298 section 5.7).
    pub fn on_established(&mut self, timed_out: bool) {
        self.lost_syn = timed_out;
        self.backoff = 0;
    }
}

/// One step of an exponential average: `old + (target - old) / divisor`.
#[inline(always)]
fn approach(old: u64, target: u64, divisor: u64) -> u64 {
    if target >= old { old + (target - old) / divisor } else { old - (old - target) / divisor }
}

/// The least of the samples in this period and in the one before: a minimum over one to two periods in 12 bytes.
#[derive(Clone, Copy, Debug)]
struct Least {
    current_16ns: u32,
    before_16ns: u32,
    /// when the current period began; wraps after 49 days, which a connection that is idle so long may mistake for a
    /// moment
    since_ms: u32,
}

const PERIOD_MS: u32 = 60_000;

impl Least {
    const NONE: Least = Least { current_16ns: u32::MAX, before_16ns: u32::MAX, since_ms: 0 };

    #[inline]
    fn take(&mut self, now: Instant, sample_ns: u64) {
        let sample = u32::try_from(sample_ns / 16).unwrap_or(u32::MAX - 1).clamp(1, u32::MAX - 1);
        let now_ms = (now.as_nanos() / 1_000_000) as u32;
        let age_ms = now_ms.wrapping_sub(self.since_ms);
        if self.current_16ns == u32::MAX || age_ms >= 2 * PERIOD_MS {
            *self = Least { current_16ns: sample, before_16ns: u32::MAX, since_ms: now_ms };
        } else if age_ms >= PERIOD_MS {
            let since_ms = self.since_ms.wrapping_add(PERIOD_MS);
            *self = Least { current_16ns: sample, before_16ns: self.current_16ns, since_ms };
        } else {
            self.current_16ns = self.current_16ns.min(sample);
        }
    }

    #[inline]
    fn get(&self) -> Option<u64> {
        let least = self.current_16ns.min(self.before_16ns);
        (least != u32::MAX).then_some(u64::from(least) * 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    proptest! {
        /// The twin is RFC 6298 in real numbers.
        #[test]
        fn follows_the_rfc_in_real_numbers(samples in prop::collection::vec((1u64..2_000_000_000, 0u32..3000), 1..200)) {
            let mut rtt = Rtt::new();
            let mut twin: Option<(f64, f64)> = None;
            for (sample, count) in samples {
                rtt.on_sample(Instant::ZERO, sample, count);
                let (r, n) = (sample as f64, f64::from(count.max(1)));
                let (srtt, rttvar) = match twin {
                    None => (r, r / 2.0),
                    Some((srtt, rttvar)) => {
                        let rttvar = (1.0 - 0.25 / n) * rttvar + 0.25 / n * (srtt - r).abs();
                        ((1.0 - 0.125 / n) * srtt + 0.125 / n * r, rttvar)
                    }
                };
                twin = Some((srtt, rttvar));
                let near = |ours: u64, exact: f64| (ours as f64 - exact).abs() <= 2.0 + exact * 1e-6;
                prop_assert!(near(rtt.smoothed_ns().unwrap(), srtt.max(1.0)), "{:?} {}", rtt, srtt);
                prop_assert!(near(rtt.variance_ns(), rttvar), "{:?} {}", rtt, rttvar);
                let exact = (srtt + (4.0 * rttvar).max(200e6)).min(60e9);
                prop_assert!((rtt.rto_ns() as f64 - exact).abs() <= 12.0 + exact * 1e-5);
            }
        }

        /// The least sample is one of the last two periods, and at most the least of the last period.
        #[test]
        fn the_least_is_of_late(samples in prop::collection::vec((0u64..40_000, 16u64..4_000_000_000), 1..100)) {
            let mut rtt = Rtt::new();
            let (mut now_ms, mut all) = (0, Vec::new());
            for (gap_ms, sample) in samples {
                now_ms += gap_ms;
                all.push((now_ms, sample / 16 * 16));
                rtt.on_sample(at(now_ms), sample, 1);
                let least_since = |ms: u64| all.iter().filter(|(when, _)| when + ms > now_ms).map(|(_, s)| *s).min().unwrap();
                let min = rtt.min_ns().unwrap();
                prop_assert!(min <= least_since(60_000), "{} is above the last minute's {}", min, least_since(60_000));
                prop_assert!(min >= least_since(120_000), "{} is below the last two minutes' {}", min, least_since(120_000));
            }
        }
    }

    #[test]
    fn timeouts_begin_at_a_second_double_and_stop_at_a_minute() {
        let mut rtt = Rtt::new();
        let mut seen = Vec::new();
        for _ in 0..9 {
            seen.push(rtt.rto_ns() / MS);
            rtt.on_timeout();
        }
        assert_eq!(seen, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        rtt.on_progress();
        assert_eq!(rtt.rto_ns(), INITIAL_RTO_NS);
        for _ in 0..200 {
            rtt.on_timeout();
        }
        assert_eq!(rtt.rto_ns(), MAX_RTO_NS);
        rtt.on_sample(at(0), 10 * MS, 1);
        assert_eq!((rtt.rto_ns() / MS, rtt.backoff()), (210, 0));
        for _ in 0..200 {
            rtt.on_timeout();
        }
        assert_eq!(rtt.rto_ns(), MAX_RTO_NS);
    }

    #[test]
    fn a_lost_syn_makes_the_first_data_wait_unless_a_sample_came() {
        let mut rtt = Rtt::new();
        rtt.on_timeout();
        rtt.on_established(true);
        assert_eq!(rtt.rto_ns(), AFTER_LOST_SYN_RTO_NS);
        rtt.on_sample(at(1), 5 * MS, 1);
        assert_eq!(rtt.rto_ns(), 205 * MS);
        let mut calm = Rtt::new();
        calm.on_established(false);
        assert_eq!(calm.rto_ns(), INITIAL_RTO_NS);
    }

    #[test]
    fn thousands_of_small_samples_a_round_trip_still_move_the_average() {
        // a long flight over a short path: after ten round trips of 3000 samples each the old value is forgotten
        let mut rtt = Rtt::new();
        rtt.on_sample(at(0), 300_000, 1);
        for _ in 0..30 * 3000 {
            rtt.on_sample(at(1), 10_000, 3000);
        }
        assert!(rtt.smoothed_ns().unwrap() < 25_000 && rtt.variance_ns() < 25_000, "{rtt:?}");
        assert_eq!(rtt.rto_ns() / MS, 200);
    }

    #[test]
    fn samples_at_the_ends_of_the_range_are_taken() {
        let mut rtt = Rtt::new();
        rtt.on_sample(at(0), 0, 0);
        assert_eq!((rtt.smoothed_ns(), rtt.min_ns()), (Some(1), Some(16)));
        rtt.on_sample(at(0), u64::MAX, 1);
        assert_eq!(rtt.rto_ns(), MAX_RTO_NS);
        assert_eq!(rtt.min_ns(), Some(16));
    }
}
