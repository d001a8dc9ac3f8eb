//! Whether a thread lives, as seen from outside.
//!
//! A thread that works comes round, one with nothing to do says that it sleeps, and one that may not run is counted by the scheduler.
//! What does none of the three hangs, if it is blocked or was seen to run: a thread that the scheduler takes for a running one, and whose
//! time does not grow, is on a processor that is away (a hypervisor's other guests have it).

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
    /// Of one that runs, or would if it were let: nanoseconds for which it has run since it began, as of its processor's last tick. None
    /// of one that is blocked, of one that sleeps, and where processors go without ticks.
    pub ran_ns: Option<u64>,
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
pub(crate) struct Scheduled {
    schedstat: Option<File>,
    /// None also where a processor may go without ticks for as long as one thread runs on it
    stat: Option<File>,
}

impl Scheduled {
    /// Of the calling thread; nothing where the kernel counts nothing.
    pub(crate) fn of_this_thread() -> Scheduled {
        // a list of processors, or "(null)" (nohz_full=, Documentation/timers/no_hz)
        let tickless = std::fs::read_to_string("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
        let ticks = !tickless.contains(|c: char| c.is_ascii_digit());
        let open = |name: &str| File::open(format!("/proc/thread-self/{name}")).ok();
        Scheduled { schedstat: open("schedstat"), stat: if ticks { open("stat") } else { None } }
    }

    /// How it has waited.
    pub(crate) fn waits(&self) -> Waits {
        let [_, ns, times] = self.counted();
        Waits { ns, times }
    }

    /// [`Pulse::ran_ns`] of a thread that does not sleep.
    pub(crate) fn ran_ns(&self) -> Option<u64> {
        let mut text = [0; 64];
        let read = self.stat.as_ref()?.read_at(&mut text, 0).ok()?;
        // its state follows its name, which is short and in parentheses, and may hold any (proc_pid_stat(5))
        let state = *text[..read].rsplit(|byte| *byte == b')').next()?.get(1)?;
        (state == b'R').then(|| self.counted()[0])
    }

    /// Nanoseconds that it ran and that it waited, and times that it was let run (Documentation/scheduler/sched-stats).
    fn counted(&self) -> [u64; 3] {
        let mut text = [0; 64];
        let read = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let figures = std::str::from_utf8(&text[..read]).unwrap_or_default();
        let mut figures = figures.split_ascii_whitespace().map(|figure| figure.parse().unwrap_or(0));
        [(); 3].map(|()| figures.next().unwrap_or(0))
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
    /// when it was looked at last, since the watching began, and what was found then
    last: Option<(Duration, Pulse)>,
    stands: Stands,
    hangs: bool,
}

/// Since a thread was last seen to come round or to sleep.
#[derive(Clone, Copy, Debug, Default)]
struct Stands {
    passed: Duration,
    /// of that
    ran: Duration,
    /// how long it had waited before
    waited_before_ns: u64,
}

impl Watched {
    /// Takes in how the thread was found at `now`, a time since the watching began. One that has not come round for `patience` hangs if it
    /// was kept waiting for less than half of that, and if it is not one that could run and ran for less than half.
    pub fn look(&mut self, now: Duration, pulse: Pulse, patience: Duration) -> Finding {
        let (then, before) = match self.last.replace((now, pulse)) {
            Some(last) if !pulse.asleep && pulse.cycles == last.1.cycles => last,
            _ => {
                self.stands = Stands { waited_before_ns: pulse.waited_ns, ..Stands::default() };
                let was = std::mem::replace(&mut self.hangs, false);
                return if was { Finding::Recovered } else { Finding::Same };
            }
        };
        // What lies between two looks that are far apart is not known: who looks was kept from it, and so may the thread have been. For
        // the same reason the thread's time does not grow by more than what has passed: that of a processor that was away is counted
        // when it is back.
        let passed = now.saturating_sub(then).min(patience / 2);
        let ran = match (before.ran_ns, pulse.ran_ns) {
            (Some(before), Some(now)) => Duration::from_nanos(now.saturating_sub(before)).min(passed),
            _ => Duration::ZERO,
        };
        let stands = &mut self.stands;
        stands.passed += passed;
        stands.ran += ran;
        let waited = Duration::from_nanos(pulse.waited_ns.saturating_sub(stands.waited_before_ns));
        let half = stands.passed / 2;
        let kept = waited >= half || pulse.ran_ns.is_some() && stands.ran < half;
        if self.hangs || stands.passed < patience || kept {
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

    fn look(
        watched: &mut Watched,
        ms: u64,
        (cycles, asleep): (u64, bool),
        waited_ms: u64,
        ran_ms: Option<u64>,
    ) -> Finding {
        let ns = |ms: u64| ms * 1_000_000;
        let pulse = Pulse { cycles, asleep, waited_ns: ns(waited_ms), ran_ns: ran_ms.map(ns) };
        watched.look(Duration::from_millis(ms), pulse, PATIENCE)
    }

    #[test]
    fn one_that_neither_comes_round_nor_sleeps_nor_waits_hangs() {
        let mut watched = Watched::default();
        for (ms, cycles, asleep, waited_ms, expected) in [
            (0, 1, false, 0, Finding::Same),
            (40, 2, false, 0, Finding::Same),
            (80, 2, false, 0, Finding::Same),
            (120, 2, false, 0, Finding::Same),
            (159, 2, false, 10, Finding::Same),
            (160, 2, false, 10, Finding::Hangs),
            (200, 2, false, 10, Finding::Same),
            (240, 3, false, 10, Finding::Recovered),
            (280, 3, true, 10, Finding::Same),
            (900, 3, true, 10, Finding::Same),
            (940, 3, false, 10, Finding::Same),
            (980, 3, false, 40, Finding::Same),
            // it was not let: 60 of 120 ms
            (1020, 3, false, 70, Finding::Same),
            (1060, 3, false, 70, Finding::Hangs),
            (1100, 3, true, 70, Finding::Recovered),
        ] {
            // blocked, or seen to run all the time
            assert_eq!(look(&mut watched, ms, (cycles, asleep), waited_ms, None), expected, "at {ms} ms");
        }
    }

    #[test]
    fn one_that_loops_hangs_and_one_whose_processor_is_away_does_not() {
        let mut looping = Watched::default();
        let mut away = Watched::default();
        for ms in (0..=1000).step_by(40) {
            // as of the last tick, of which there are a hundred a second
            let found = look(&mut looping, ms, (1, false), 0, Some(500 + ms / 10 * 10));
            assert_eq!(found, if ms == 120 { Finding::Hangs } else { Finding::Same }, "at {ms} ms");
            assert_eq!(look(&mut away, ms, (1, false), 0, Some(500)), Finding::Same, "at {ms} ms");
        }
        // Its processor is back, and its tick has the thread charged with all of the time; another thread is let run before it comes round.
        assert_eq!(look(&mut away, 1040, (1, false), 0, Some(1530)), Finding::Same);
        assert_eq!(look(&mut away, 1080, (1, false), 0, Some(1530)), Finding::Same);
        assert_eq!(look(&mut away, 1120, (2, false), 70, Some(1540)), Finding::Same);
        // now it loops
        for (ms, expected) in [(1160, Finding::Same), (1200, Finding::Same), (1240, Finding::Hangs)] {
            assert_eq!(look(&mut away, ms, (2, false), 70, Some(400 + ms)), expected, "at {ms} ms");
        }
    }

    #[test]
    fn one_that_was_away_together_with_who_looks_does_not_hang() {
        for ran_ms in [None, Some(700)] {
            let mut watched = Watched::default();
            assert_eq!(look(&mut watched, 0, (1, false), 0, ran_ms.map(|_| 0)), Finding::Same);
            assert_eq!(look(&mut watched, 700, (1, false), 0, ran_ms), Finding::Same);
            assert_eq!(look(&mut watched, 740, (2, false), 0, ran_ms), Finding::Same);
        }
    }

    #[test]
    fn the_scheduler_counts_of_the_thread_that_asked() {
        let scheduled = Scheduled::of_this_thread();
        assert!(scheduled.schedstat.is_some(), "a kernel without schedstat");
        let before = scheduled.waits();
        std::thread::sleep(Duration::from_millis(1));
        let after = scheduled.waits();
        assert!(after.ns >= before.ns && after.times > before.times, "{before:?} {after:?}");
    }

    #[test]
    fn a_thread_that_runs_is_told_from_one_that_is_blocked() {
        let (tell, told) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let looping = &std::sync::atomic::AtomicBool::new(true);
        let until = |holds: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !holds() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                tell.send(Scheduled::of_this_thread()).unwrap();
                // until the other end goes
                let _ = may_go_on.recv();
                while looping.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let scheduled = told.recv().unwrap();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                until(&|| scheduled.ran_ns().is_none());
                if scheduled.stat.is_none() {
                    // processors go without ticks here, and nothing is told
                    return;
                }
                go_on.send(()).unwrap();
                until(&|| scheduled.ran_ns().is_some());
                let before = scheduled.ran_ns().unwrap();
                until(&|| scheduled.ran_ns().is_some_and(|ran| ran > before + 50_000_000));
            }));
            drop(go_on);
            looping.store(false, std::sync::atomic::Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}
