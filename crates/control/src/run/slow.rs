//! Says which application takes no events for too long: once a second it is looked at what the engines' threads have counted.

use crate::config::Times;
use guard::stats::{DropReason, Stats};
use std::sync::Arc;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

/// Of all threads.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// times that it was unresponsive
    times: u64,
    /// how long it was so, as often as it is over
    time_ns: u64,
    /// connections that were reset for it
    reset: u64,
}

/// What an application's threads have counted, and what of it was said.
#[derive(Debug)]
pub(super) struct Watch {
    stats: Vec<Arc<Stats>>,
    times: Times,
    said: Counts,
    looked: Instant,
}

impl Watch {
    /// Of an application with so many threads, which may take nothing for so long.
    pub(super) fn new(stats: Vec<Arc<Stats>>, times: Times) -> Watch {
        Watch { stats, times, said: Counts::default(), looked: Instant::now() }
    }

    /// Says what is new of the application of this name, once a second.
    pub(super) fn look(&mut self, name: &str) {
        if self.looked.elapsed() < EVERY {
            return;
        }
        self.looked = Instant::now();
        let sum = |count: fn(&Stats) -> u64| self.stats.iter().map(|stats| count(stats)).sum();
        let now = Counts {
            times: sum(Stats::unresponsive),
            time_ns: sum(Stats::unresponsive_ns),
            reset: sum(|stats| stats.drops(DropReason::Stuck)),
        };
        for words in news(std::mem::replace(&mut self.said, now), now, self.times) {
            tracing::warn!("application {name}: {words}");
        }
    }
}

/// What has happened between two looks.
fn news(before: Counts, now: Counts, limits: Times) -> Vec<String> {
    let (times, reset) = (now.times - before.times, now.reset - before.reset);
    let ms = Duration::from_nanos(now.time_ns - before.time_ns).as_millis();
    let Times { slow_after, reset_after } = limits;
    let mut all = Vec::new();
    if times > 0 {
        let how_long = if ms > 0 { format!(", {ms} ms in all") } else { String::new() };
        all.push(format!(
            "it took no event for {} ms and more, {} in the last second{how_long}; meanwhile datagrams for it are dropped, and its connections wait",
            slow_after.as_millis(),
            count(times, "time")
        ));
    } else if ms > 0 {
        all.push(format!("it takes events again, after {ms} ms"));
    }
    if reset > 0 {
        all.push(format!(
            "it took no event for {} ms, and its connections were reset ({reset}); new ones are refused until it takes one",
            reset_after.as_millis()
        ));
    }
    all
}

fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_is_said_once() {
        let limits = Times { slow_after: Duration::from_millis(25), reset_after: Duration::from_millis(700) };
        let counts = |times, ms: u64, reset| Counts { times, time_ns: ms * 1_000_000, reset };
        let said = |before, now| news(before, now, limits).join("\n");
        assert_eq!(said(Counts::default(), Counts::default()), "");
        let slow = said(counts(4, 100, 7), counts(6, 172, 7));
        assert!(
            slow.starts_with("it took no event for 25 ms and more, 2 times in the last second, 72 ms in all;"),
            "{slow}"
        );
        // one that hangs, is given up, and goes on
        let hangs = said(counts(6, 172, 7), counts(7, 172, 7));
        assert!(hangs.starts_with("it took no event for 25 ms and more, 1 time in the last second;"), "{hangs}");
        let given_up = said(counts(7, 172, 7), counts(7, 172, 9));
        assert!(given_up.starts_with("it took no event for 700 ms, and its connections were reset (2);"), "{given_up}");
        assert_eq!(said(counts(7, 172, 9), counts(7, 5172, 9)), "it takes events again, after 5000 ms");
    }
}
