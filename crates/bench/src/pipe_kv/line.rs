//! The yardstick of what crosses processors: one cache line that goes there and back. Two virtual processors may lie anywhere on their
//! host and move, so it is measured in the same run as what depends on it.

use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use base::CacheAligned;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Journeys of a round.
pub(super) const JOURNEYS: u32 = 20_000;
/// Journeys that are timed together: an interruption falls into one of many.
const TOGETHER: u32 = 50;
/// An answer that takes so long does not come: the other processor belongs to somebody else.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until a line says `journey`; false when that takes too long, or who is to write it is gone.
fn await_line(line: &AtomicU32, journey: u32, is_gone: impl Fn() -> bool) -> bool {
    let mut looks = 0u32;
    let mut begun = None;
    while line.load(Ordering::Acquire) != journey {
        std::hint::spin_loop();
        looks = looks.wrapping_add(1);
        let mut late = || begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE;
        if looks.is_multiple_of(1 << 16) && (is_gone() || late()) {
            return false;
        }
    }
    true
}

/// Nanoseconds from this thread to a processor and back, over some rounds of so many journeys.
pub(super) fn there_and_back(cpu: u32, rounds: u16, journeys: u32) -> Result<Summary> {
    let [there, back] = [const { CacheAligned(AtomicU32::new(0)) }; 2];
    let all = u32::from(rounds) * journeys;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            crate::procs::pin(cpu as usize)?;
            for journey in 1..=all {
                ensure!(await_line(&there.0, journey, || false), "nothing comes to processor {cpu}");
                back.0.store(journey, Ordering::Release);
            }
            Ok(())
        });
        let mut figures = Vec::new();
        'all: for round in 0..u32::from(rounds) {
            let mut sections = Vec::new();
            let end = (round + 1) * journeys;
            let mut journey = round * journeys;
            while journey < end {
                let (begun, first) = (Instant::now(), journey);
                for _ in 0..TOGETHER.min(end - first) {
                    journey += 1;
                    there.0.store(journey, Ordering::Release);
                    if !await_line(&back.0, journey, || other.is_finished()) {
                        // the other thread says why
                        break 'all;
                    }
                }
                sections.push(begun.elapsed().as_nanos() as f64 / f64::from(journey - first));
            }
            figures.extend(stats::median(&sections));
        }
        other.join().map_err(|_| anyhow::anyhow!("the other thread has panicked"))??;
        Summary::of(&figures).context("no round was run")
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_comes_back() {
        let cpu = rustix::thread::sched_getcpu() as u32;
        // on the same processor each journey takes a time slice or two
        let summary = super::there_and_back(cpu, 2, 10).unwrap();
        assert!(summary.rounds == 2 && summary.least > 0.0);
        assert!(super::there_and_back(1 << 20, 1, 1).is_err());
    }
}
