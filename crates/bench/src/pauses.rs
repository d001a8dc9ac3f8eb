//! What the machine takes from whoever runs on it: a virtual machine's processors are taken away now and then, for some milliseconds, and
//! no server answers meanwhile.
//!
//! It is measured where nothing else runs, by threads that only read the clock: a gap longer than a bound is a time in which a request
//! that becomes due waits longer than that bound, whoever is to answer it.

use crate::load::WINDOW_NS;
use crate::procs;
use anyhow::{Result, anyhow};
use std::time::{Duration, Instant};

/// A window is lost to a bound on the 99th percentile where more than so much of its time is such that who asks then waits longer.
const LOST_NS: u64 = WINDOW_NS / 100;

/// The share of windows in which a 99th percentile of at most `bound` is nobody's to have, since these processors are taken away for so
/// long. Keeps them busy for `span`.
///
/// # Errors
/// There is no such processor.
pub(crate) fn lost_windows(cpus: &[usize], span: Duration, bound: Duration) -> Result<f64> {
    let start = Instant::now();
    let all: Result<Vec<Gaps>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || watch(*cpu, start, span, bound))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a witness died")))).collect()
    });
    Ok(lost_share(&all?))
}

/// The share of the windows that any of the processors, or all together, lost.
fn lost_share(all: &[Gaps]) -> f64 {
    let windows = all.first().map_or(0, |gaps| gaps.windows_ns.len());
    let lost = |at: &usize| all.iter().map(|gaps| gaps.windows_ns[*at]).sum::<u64>() > LOST_NS;
    (0..windows).filter(lost).count() as f64 / windows.max(1) as f64
}

/// Reads the clock over and over.
fn watch(cpu: usize, start: Instant, span: Duration, bound: Duration) -> Result<Gaps> {
    procs::pin(cpu)?;
    let mut gaps = Gaps::new(span, bound);
    let mut before = start.elapsed();
    while before < span {
        let now = start.elapsed();
        gaps.take(before.as_nanos() as u64, now.as_nanos() as u64);
        before = now;
    }
    Ok(gaps)
}

/// One processor's gaps.
#[derive(Debug)]
struct Gaps {
    bound_ns: u64,
    /// of each window, the time in which who asks waits longer
    windows_ns: Vec<u64>,
}

impl Gaps {
    fn new(span: Duration, bound: Duration) -> Gaps {
        let windows = (span.as_nanos() as u64 / WINDOW_NS).max(1);
        Gaps { bound_ns: bound.as_nanos() as u64, windows_ns: vec![0; windows as usize] }
    }

    /// The processor did nothing from one moment to another.
    #[inline]
    fn take(&mut self, from_ns: u64, to_ns: u64) {
        if to_ns - from_ns > self.bound_ns {
            self.spread(from_ns, to_ns - self.bound_ns);
        }
    }

    #[cold]
    fn spread(&mut self, mut from_ns: u64, to_ns: u64) {
        while from_ns < to_ns {
            let at = from_ns / WINDOW_NS;
            let end_ns = to_ns.min((at + 1) * WINDOW_NS);
            if let Some(window_ns) = self.windows_ns.get_mut(at as usize) {
                *window_ns += end_ns - from_ns;
            }
            from_ns = end_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_window_is_lost_when_more_than_a_hundredth_of_those_who_ask_in_it_wait_longer() {
        let gaps = || Gaps::new(Duration::from_secs(1), Duration::from_micros(500));
        let share = |taken: &[(u64, u64)]| {
            let mut gaps = gaps();
            taken.iter().for_each(|(from_ns, to_ns)| gaps.take(*from_ns, *to_ns));
            lost_share(&[gaps])
        };
        assert_eq!(share(&[]), 0.0);
        // who asks in the last 500 us of a gap waits no longer than the bound
        assert_eq!(share(&[(10 * MS, 11 * MS + MS / 2)]), 0.0);
        assert_eq!(share(&[(10 * MS, 11 * MS + MS / 2 + 1)]), 0.1);
        // many short ones are none, and some longer ones add up
        let of = |gap_ns: u64| (0..50).map(|n| (n * 2 * MS, n * 2 * MS + gap_ns)).collect::<Vec<_>>();
        assert_eq!((share(&of(MS / 2)), share(&of(MS / 2 + MS / 20))), (0.0, 0.1));
        // over the edge of a window, and over the end
        assert_eq!(share(&[(99 * MS, 101 * MS)]), 0.0);
        assert_eq!(share(&[(98 * MS, 102 * MS)]), 0.2);
        assert_eq!(share(&[(999 * MS, 1100 * MS)]), 0.0);
        assert_eq!(share(&[(990 * MS, 1100 * MS)]), 0.1);
    }

    #[test]
    fn what_two_processors_lose_of_a_window_is_added() {
        let mut two = [0, 1].map(|_| Gaps::new(Duration::from_millis(200), Duration::from_micros(500)));
        for gaps in &mut two {
            gaps.take(0, MS + 2 * MS / 10);
        }
        assert_eq!((lost_share(&two[..1]), lost_share(&two), lost_share(&[])), (0.0, 0.5, 0.0));
    }

    #[test]
    fn it_is_measured_here() {
        let share = lost_windows(&[0], Duration::from_millis(300), Duration::from_secs(60)).unwrap();
        assert_eq!(share, 0.0, "a minute at once");
        assert!(lost_windows(&[100_000], Duration::from_millis(1), Duration::ZERO).is_err());
    }
}
