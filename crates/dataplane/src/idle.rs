//! What a thread does between cycles: go on, let others run, or sleep.
//!
//! Asking again costs a processor, and on a machine where the kernel's receive thread shares it even delays the packets
//! that are waited for; sleeping costs two context switches and the wake-up's latency. The adaptive policy is the ski
//! rental's: ask again for at most as long as sleeping would cost, and only while that has lately paid. Whether it pays is
//! learned from the gaps themselves; when it does not, one gap in [`PROBE_GAPS`] is spent asking, to notice a change.
//!
//! A thread that always finds work lets others run now and then. Where the kernel's receive thread (threaded NAPI) has the
//! same processor, the scheduler would leave it waiting for whole ticks while a device's ring of some hundred frames runs
//! over. Where somebody else has the processor, each time would cost a slice of theirs, so it is done more rarely then.
//!
//! The policy reads no clock and makes no call; it says what to do.

use base::Instant;
use std::time::Duration;

/// What a thread does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// asks again and again: the lowest latency, a whole processor
    Spin,
    /// asks again for at most `spin` while that has lately paid, then sleeps
    Adaptive {
        /// the longest time to ask again; about what going to sleep and waking costs
        spin: Duration,
    },
    /// sleeps at once
    Block,
}

/// The adaptive policy's time to ask again, unless told otherwise.
pub const SPIN: Duration = Duration::from_micros(4);
/// While asking does not pay, it is tried in one gap of this many.
pub const PROBE_GAPS: u32 = 64;
/// Asking pays when at least half of the recent gaps ended while asking. The share is kept as a moving average in 1/256.
const PAYS: u32 = 128;
const ALL: u32 = 256;
/// A gap changes the average by 1/8 of the difference.
const WEIGHT_SHIFT: u32 = 3;

impl Default for Idle {
    fn default() -> Self {
        Idle::Adaptive { spin: SPIN }
    }
}

/// A busy thread lets others run this often: in that time a ring of 256 frames fills at two and a half million a second.
pub const YIELD_EVERY: Duration = Duration::from_micros(100);
/// Whoever runs longer than this is not a receive thread, which works off a ring.
const YIELD_LONG: Duration = Duration::from_micros(500);
/// After such a one the next comes that many times later than it took.
const YIELD_REST: u32 = 64;
/// But no later than this: who was stopped meanwhile, or frozen, or moved to another machine, has not lost that time to others.
const YIELD_MOST: Duration = Duration::from_secs(1);

/// What to do after a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// another cycle at once
    Cycle,
    /// let others of this processor run, tell [`Governor::yielded`], then another cycle
    Yield,
    /// sleep until something arrives
    Sleep,
}

/// A thread's policy with what it has learned.
#[derive(Clone, Debug)]
pub struct Governor {
    idle: Idle,
    /// when the present gap began
    since: Option<Instant>,
    /// whether the present gap is spent asking
    asking: bool,
    /// share of the gaps spent asking that ended while asking, of [`ALL`]
    share: u32,
    gaps: u32,
    /// when others could last run
    let_run: Option<Instant>,
    yield_every: Duration,
}

impl Governor {
    /// A policy that has learned nothing yet.
    pub fn new(idle: Idle) -> Self {
        Governor { idle, since: None, asking: false, share: ALL, gaps: 0, let_run: None, yield_every: YIELD_EVERY }
    }

    /// After a cycle that ended at `now` and moved frames (`busy`) or did not: what to do.
    #[inline]
    pub fn after_cycle(&mut self, now: Instant, busy: bool) -> Next {
        let next = self.judge(now, busy);
        let let_run = *self.let_run.get_or_insert(now);
        match next {
            Next::Cycle if now - let_run >= self.yield_every => {
                self.let_run = Some(now);
                Next::Yield
            }
            Next::Sleep => {
                self.let_run = None;
                Next::Sleep
            }
            next => next,
        }
    }

    /// Others could run; it is `now`.
    pub fn yielded(&mut self, now: Instant) {
        let took = self.let_run.replace(now).map_or(Duration::ZERO, |began| now - began);
        self.yield_every =
            if took > YIELD_LONG { took.saturating_mul(YIELD_REST).min(YIELD_MOST) } else { YIELD_EVERY };
    }

    fn judge(&mut self, now: Instant, busy: bool) -> Next {
        let spin = match self.idle {
            Idle::Spin => return Next::Cycle,
            Idle::Block => return if busy { Next::Cycle } else { Next::Sleep },
            Idle::Adaptive { spin } => spin,
        };
        if busy {
            if self.since.take().is_some() && self.asking {
                self.learn(ALL);
            }
            return Next::Cycle;
        }
        let since = match self.since {
            Some(since) => since,
            None => {
                self.since = Some(now);
                self.gaps = self.gaps.wrapping_add(1);
                self.asking = self.share >= PAYS || self.gaps.is_multiple_of(PROBE_GAPS);
                now
            }
        };
        if self.asking && now - since < spin {
            return Next::Cycle;
        }
        if self.asking {
            self.asking = false;
            self.learn(0);
        }
        Next::Sleep
    }

    fn learn(&mut self, outcome: u32) {
        self.share = self.share - (self.share >> WEIGHT_SHIFT) + (outcome >> WEIGHT_SHIFT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    /// Gaps of `gap_ns`, cycles of 100 ns; how many cycles were spent asking in all of `gaps`.
    fn asked(governor: &mut Governor, gap_ns: u64, gaps: u64) -> u64 {
        let (mut now, mut asked) = (0, 0);
        for _ in 0..gaps {
            assert_ne!(governor.after_cycle(at(now), true), Next::Sleep);
            let end = now + gap_ns;
            while now < end {
                match governor.after_cycle(at(now), false) {
                    Next::Cycle => {
                        asked += 1;
                        now += 100;
                    }
                    Next::Yield => {
                        asked += 1;
                        now += 100;
                        governor.yielded(at(now));
                    }
                    Next::Sleep => now = end,
                }
            }
        }
        asked
    }

    #[test]
    fn short_gaps_are_spent_asking() {
        let mut governor = Governor::new(Idle::default());
        assert_eq!(asked(&mut governor, 2_000, 100), 100 * 20);
    }

    #[test]
    fn long_gaps_are_slept_through_but_for_a_probe_now_and_then() {
        let mut governor = Governor::new(Idle::default());
        asked(&mut governor, 50_000, 100);
        let spin_cycles = SPIN.as_nanos() as u64 / 100;
        let gaps = 100 * u64::from(PROBE_GAPS);
        assert_eq!(asked(&mut governor, 50_000, gaps), 100 * spin_cycles);
    }

    #[test]
    fn a_change_is_noticed_both_ways() {
        let mut governor = Governor::new(Idle::default());
        asked(&mut governor, 50_000, 1000);
        asked(&mut governor, 1_000, 100 * u64::from(PROBE_GAPS));
        assert_eq!(asked(&mut governor, 1_000, 100), 100 * 10);
        let wasted = asked(&mut governor, 50_000, 32);
        assert!(wasted <= 10 * SPIN.as_nanos() as u64 / 100, "{wasted}");
    }

    /// How often in `cycles` busy ones of 1 us others were let run, who each took `theirs_ns`; the time of it all.
    fn yields(governor: &mut Governor, cycles: u64, theirs_ns: u64) -> (u64, u64) {
        let (mut now, mut yields) = (0, 0);
        for _ in 0..cycles {
            now += 1000;
            match governor.after_cycle(at(now), true) {
                Next::Cycle => {}
                Next::Yield => {
                    yields += 1;
                    now += theirs_ns;
                    governor.yielded(at(now));
                }
                Next::Sleep => panic!("asleep with work"),
            }
        }
        (yields, now)
    }

    #[test]
    fn who_is_busy_lets_others_run() {
        for idle in [Idle::default(), Idle::Block, Idle::Spin] {
            assert_eq!(yields(&mut Governor::new(idle), 10_000, 20_000).0, 10_000 / 100 - 1, "{idle:?}");
        }
    }

    #[test]
    fn who_keeps_the_processor_long_gets_it_rarely() {
        let mut governor = Governor::new(Idle::default());
        let (times, took) = yields(&mut governor, 1_000_000, 3_000_000);
        assert!(times > 2 && times * 3_000_000 <= took / 50, "{times} times in {took} ns");
        // and as often as before when that is over
        let mut after = Governor { yield_every: Duration::from_millis(1), let_run: None, ..governor };
        let (times, _) = yields(&mut after, 100_000, 20_000);
        assert!(times > 950, "{times}");
    }

    #[test]
    fn who_was_stopped_for_long_soon_lets_others_run_again() {
        let mut governor = Governor::new(Idle::default());
        assert_eq!(governor.after_cycle(at(0), true), Next::Cycle);
        assert_eq!(governor.after_cycle(at(100_000), true), Next::Yield);
        let back = 600 * 1_000_000_000;
        governor.yielded(at(back));
        let next = (1..=2000).find(|ms| governor.after_cycle(at(back + ms * 1_000_000), true) == Next::Yield);
        assert_eq!(next, Some(1000));
        // and as often as ever when that takes no time
        governor.yielded(at(back + 1_000_020_000));
        assert_eq!(governor.after_cycle(at(back + 1_000_120_000), true), Next::Yield);
    }

    #[test]
    fn a_sleep_lets_others_run() {
        let mut governor = Governor::new(Idle::Block);
        for cycle in 0..1000 {
            let now = at(cycle * 30_000);
            assert_eq!(governor.after_cycle(now, true), Next::Cycle);
            assert_eq!(governor.after_cycle(now, false), Next::Sleep);
        }
    }

    #[test]
    fn the_two_others_do_not_learn() {
        assert_eq!(asked(&mut Governor::new(Idle::Block), 1_000, 50), 0);
        assert_eq!(asked(&mut Governor::new(Idle::Spin), 50_000, 50), 50 * 500);
    }
}
