//! When requests are due: a Poisson process, or whenever somebody is free.

use base::Instant;
use base::rng::Rng;
use std::time::Duration;

/// The rule by which requests become due, from a start to an end.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    end: Instant,
    next: Instant,
    /// nanoseconds between two on average; None: one is due whenever a connection is free
    gap_ns: Option<f64>,
    rng: Rng,
}

impl Schedule {
    /// Nothing is ever due.
    pub(super) fn never() -> Schedule {
        Schedule { end: Instant::ZERO, next: Instant::MAX, gap_ns: None, rng: Rng::new(0) }
    }

    /// `rate` a second at random moments; None: as soon as can be.
    pub(super) fn new(start: Instant, span: Duration, rate: Option<f64>, seed: u64) -> Schedule {
        let gap_ns = rate.map(|rate| 1e9 / rate);
        let mut schedule = Schedule { end: start + span, next: start, gap_ns, rng: Rng::new(seed) };
        schedule.advance();
        schedule
    }

    /// The time between two events of a Poisson process has an exponential distribution.
    fn advance(&mut self) {
        if let Some(gap_ns) = self.gap_ns {
            // above 0, and 1 at most
            let random = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            self.next += Duration::from_nanos((-random.ln() * gap_ns) as u64);
        }
    }

    /// Takes a request that is due, if there is one: when it was due.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next_at(now);
        if due > now || due == Instant::MAX {
            return None;
        }
        self.advance();
        Some(due)
    }

    /// When the next one is due; MAX when none comes before the end.
    #[inline]
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        let next = if self.gap_ns.is_some() { self.next } else { now };
        if next < self.end { next } else { Instant::MAX }
    }

    /// Counts, and forgets, those that were due by now and never taken.
    pub(super) fn missed(&mut self, now: Instant) -> u64 {
        let mut missed = 0;
        while self.gap_ns.is_some() && self.next < self.end.min(now) {
            missed += 1;
            self.advance();
        }
        missed
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
    fn a_rate_is_kept_on_average_and_the_gaps_are_exponential() {
        let mut schedule = Schedule::new(ms(100), Duration::from_secs(10), Some(10_000.0), 7);
        assert_eq!(schedule.take(ms(99)), None);
        let mut due = Vec::new();
        while let Some(at) = schedule.take(ms(1_000_000)) {
            due.push(at);
        }
        assert!((98_500..101_500).contains(&due.len()), "{}", due.len());
        assert!(due.iter().all(|at| *at >= ms(100) && *at < ms(10_100)));
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]).as_nanos() as f64).collect();
        // the standard deviation of an exponential distribution is its mean
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.03, "{mean} {deviation}");
    }

    #[test]
    fn what_nobody_was_free_for_is_missed_once() {
        let mut schedule = Schedule::new(ms(0), Duration::from_millis(100), Some(1000.0), 1);
        while schedule.take(ms(50)).is_some() {}
        assert_eq!(schedule.missed(ms(50)), 0);
        let missed = schedule.missed(ms(500));
        assert!((20..90).contains(&missed), "{missed}");
        assert_eq!((schedule.missed(ms(500)), schedule.take(ms(500))), (0, None));
    }

    #[test]
    fn a_closed_loop_is_always_due_until_its_end() {
        let mut schedule = Schedule::new(ms(1), Duration::from_millis(1), None, 0);
        assert_eq!([1, 1, 2].map(|at| schedule.take(ms(at))), [Some(ms(1)), Some(ms(1)), None]);
        assert_eq!(schedule.missed(ms(2)), 0);
        assert_eq!(Schedule::never().take(ms(5)), None);
    }
}
