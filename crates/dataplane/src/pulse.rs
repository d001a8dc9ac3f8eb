//! Whether a thread lives, as seen from outside.
//!
//! A thread that works comes round, one with nothing to do says that it sleeps, and one that may not run is counted by the scheduler.
//! What does none of the three hangs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How one thread was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// how often it has come round
    pub cycles: u64,
    /// it sleeps until something comes
    pub asleep: bool,
    /// nanoseconds for which it could have run and was not let, since it began
    pub waited_ns: u64,
}

/// How often a thread has waited for its processor since it began, and how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) ns: u64,
    /// times that it was let run
    pub(crate) times: u64,
}

/// What the scheduler counts of a thread.
#[derive(Debug)]
pub(crate) struct Scheduled(Option<File>);

impl Scheduled {
    /// Of the calling thread; nothing where the kernel counts nothing.
    pub(crate) fn of_this_thread() -> Scheduled {
        Scheduled(File::open("/proc/thread-self/schedstat").ok())
    }

    /// How it has waited (Documentation/scheduler/sched-stats: the second figure and the third).
    pub(crate) fn waits(&self) -> Waits {
        let mut text = [0; 64];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let figures = std::str::from_utf8(&text[..read]).unwrap_or_default();
        let mut figures = figures.split_ascii_whitespace().skip(1).map(|figure| figure.parse().unwrap_or(0));
        let mut next = || figures.next().unwrap_or(0);
        Waits { ns: next(), times: next() }
    }
}

/// What a look at a thread shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// nothing new
    Same,
    /// it hangs, since now
    Hangs,
    /// it comes round again
    Recovered,
}

/// One thread, looked at again and again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched {
    /// when it was last seen to come round or to sleep, since the watching began, and how long it had waited then
    alive: Option<(Duration, u64)>,
    cycles: u64,
    hangs: bool,
}

impl Watched {
    /// Takes in how the thread was found at `now`, a time since the watching began. One that has not come round for `patience`, of
    /// which it was kept waiting less than half, hangs.
    pub fn look(&mut self, now: Duration, pulse: Pulse, patience: Duration) -> Finding {
        let moved = pulse.asleep || pulse.cycles != self.cycles;
        let (since, waited_before) = match self.alive {
            Some(alive) if !moved => alive,
            _ => {
                self.alive = Some((now, pulse.waited_ns));
                self.cycles = pulse.cycles;
                let was = std::mem::replace(&mut self.hangs, false);
                return if was { Finding::Recovered } else { Finding::Same };
            }
        };
        let passed = now.saturating_sub(since);
        let waited = Duration::from_nanos(pulse.waited_ns.saturating_sub(waited_before));
        if self.hangs || passed < patience || waited >= passed / 2 {
            return Finding::Same;
        }
        self.hangs = true;
        Finding::Hangs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(120);

    fn look(watched: &mut Watched, ms: u64, cycles: u64, asleep: bool, waited_ms: u64) -> Finding {
        let pulse = Pulse { cycles, asleep, waited_ns: waited_ms * 1_000_000 };
        watched.look(Duration::from_millis(ms), pulse, PATIENCE)
    }

    #[test]
    fn one_that_neither_comes_round_nor_sleeps_nor_waits_hangs() {
        let mut watched = Watched::default();
        for (ms, cycles, asleep, waited_ms, expected) in [
            (0, 1, false, 0, Finding::Same),
            (40, 2, false, 0, Finding::Same),
            (80, 2, false, 0, Finding::Same),
            (150, 2, false, 10, Finding::Same),
            (160, 2, false, 10, Finding::Hangs),
            (200, 2, false, 10, Finding::Same),
            (240, 3, false, 10, Finding::Recovered),
            (280, 3, true, 10, Finding::Same),
            (900, 3, true, 10, Finding::Same),
            (940, 3, false, 10, Finding::Same),
            // it was not let: 60 of 120 ms
            (1020, 3, false, 70, Finding::Same),
            (1060, 3, false, 70, Finding::Hangs),
            (1100, 3, true, 70, Finding::Recovered),
        ] {
            assert_eq!(look(&mut watched, ms, cycles, asleep, waited_ms), expected, "at {ms} ms");
        }
    }

    #[test]
    fn the_scheduler_counts_of_the_thread_that_asked() {
        let scheduled = Scheduled::of_this_thread();
        assert!(scheduled.0.is_some(), "a kernel without schedstat");
        let before = scheduled.waits();
        std::thread::sleep(Duration::from_millis(1));
        let after = scheduled.waits();
        assert!(after.ns >= before.ns && after.times > before.times, "{before:?} {after:?}");
    }
}
