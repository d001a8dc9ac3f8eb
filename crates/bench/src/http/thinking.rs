//! Who thinks about what to ask next, and for how long.

use base::Instant;
use base::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Nobody thinks longer than so many times as long as they do on average.
const LONGEST: u32 = 10;

/// Slots that think, each for a time of its own: exponentially distributed, as people's is in TPC-W. If all thought as long, those that
/// were answered together would go on asking together, and the server would have nothing to do meanwhile.
#[derive(Debug)]
pub(super) struct Thinking {
    mean: Duration,
    until: BinaryHeap<Reverse<(Instant, u32)>>,
    rng: Rng,
}

impl Thinking {
    /// For so many slots, that think so long on average.
    pub(super) fn new(mean: Duration, slots: usize) -> Thinking {
        Thinking { mean, until: BinaryHeap::with_capacity(slots), rng: Rng::new(8) }
    }

    /// For so long a slot thinks that was chosen by this number, from 0 to below 1.
    fn time(&self, chosen: f64) -> Duration {
        self.mean.mul_f64((-(1.0 - chosen).ln()).min(LONGEST.into()))
    }

    pub(super) fn begin(&mut self, now: Instant, slot: u32) {
        let chosen = self.rng.unit();
        self.until.push(Reverse((now + self.time(chosen), slot)));
    }

    /// The next slot that has done so by now.
    pub(super) fn next(&mut self, now: Instant) -> Option<u32> {
        self.next_at().filter(|at| *at <= now)?;
        self.until.pop().map(|Reverse((_, slot))| slot)
    }

    /// When the next slot will have.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.until.peek().map(|Reverse((at, _))| *at)
    }

    /// Leaves those slots alone for which this is so.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(u32) -> bool) {
        self.until.retain(|Reverse((_, slot))| stays(*slot));
    }

    pub(super) fn len(&self) -> usize {
        self.until.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exponentially_distributed() {
        let mean = Duration::from_millis(100);
        let mut thinking = Thinking::new(mean, 0);
        let count = 100_000;
        (0..count).for_each(|slot| thinking.begin(Instant::ZERO, slot));
        let mut done_by = |times_mean: f64| {
            let mut done = 0;
            while thinking.next(Instant::ZERO + mean.mul_f64(times_mean)).is_some() {
                done += 1;
            }
            f64::from(done) / f64::from(count)
        };
        // 1 - e^-x of them by x times the mean
        let mut so_far = 0.0;
        for times_mean in [0.5, 1.0, 2.0, 3.0] {
            so_far += done_by(times_mean);
            assert!((so_far - (1.0 - (-times_mean).exp())).abs() < 0.005, "{so_far} by {times_mean} times the mean");
        }
        assert_eq!(so_far + done_by(LONGEST.into()), 1.0, "nobody thinks longer");
    }

    #[test]
    fn who_has_thought_comes_in_turn() {
        let mut thinking = Thinking::new(Duration::from_millis(10), 3);
        (0..3).for_each(|slot| thinking.begin(Instant::ZERO, slot));
        thinking.retain(|slot| slot != 1);
        assert_eq!((thinking.len(), thinking.next(Instant::ZERO)), (2, None));
        let (first, mut seen) = (thinking.next_at().unwrap(), Vec::new());
        seen.extend(thinking.next(first));
        assert!(thinking.next_at().is_some_and(|second| second >= first));
        seen.extend(thinking.next(Instant::MAX));
        seen.sort_unstable();
        assert_eq!((seen, thinking.next_at()), (vec![0, 2], None));
        assert_eq!(thinking.time(0.0), Duration::ZERO);
        assert_eq!(thinking.time(1.0 - f64::EPSILON / 2.0), Duration::from_millis(100), "ten times ten");
    }
}
