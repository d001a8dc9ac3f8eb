//! How long a service keeps its thread.
//!
//! A service that waits, or computes for milliseconds, holds up everybody whom its thread serves. The engine measures each cycle and
//! counts those that took longer than a limit. What the scheduler took from the thread meanwhile is not the service's, and is left out
//! as far as it is known. Who looks from outside sees a cycle that goes on and on by [`Cycles::step`].

use base::Counter;
use base::Instant;
use base::counter::{Figure, Report};
use std::sync::OnceLock;
use std::time::Duration;

/// One thread's cycles: written by it twice in each, read by anybody. Alone on its cache lines, since those of all threads are made in one
/// place.
#[derive(Debug)]
#[repr(align(128))]
pub struct Cycles {
    engine: &'static str,
    thread: String,
    service: OnceLock<&'static str>,
    /// cycles that took longer than the limit
    pub slow: Counter,
    /// nanoseconds in those
    pub slow_ns: Counter,
    /// nanoseconds of the longest cycle
    pub longest_ns: Counter,
    /// odd while a cycle is under way; another number each time
    pub step: Counter,
}

impl Cycles {
    /// The limit unless told otherwise.
    pub const SLOW_AFTER: Duration = Duration::from_millis(10);

    /// Of the thread `thread` of an engine.
    pub fn new(engine: &'static str, thread: usize) -> Cycles {
        Cycles {
            engine,
            thread: thread.to_string(),
            service: OnceLock::new(),
            slow: Counter::new(),
            slow_ns: Counter::new(),
            longest_ns: Counter::new(),
            step: Counter::new(),
        }
    }

    /// The engine, and the thread's number there.
    pub fn thread(&self) -> (&'static str, &str) {
        (self.engine, &self.thread)
    }

    /// The thread has made its service, which is called this. The first name counts.
    pub fn serves(&self, name: &'static str) {
        // a service that is made again after a panic has the same
        let _ = self.service.set(name);
    }

    /// What the service is called; nothing before there is one.
    pub fn service(&self) -> &'static str {
        self.service.get().copied().unwrap_or_default()
    }
}

impl Report for Cycles {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let labels = [("engine", self.engine), ("thread", self.thread.as_str()), ("service", self.service())];
        let mut one = |name, help, gauge, counter: &Counter| {
            show(Figure { name, help, gauge, labels: &labels, value: counter.get() });
        };
        one("slow_cycles_total", "cycles in which the service kept its thread past the limit", false, &self.slow);
        one("slow_cycles_nanoseconds_total", "nanoseconds in such cycles", false, &self.slow_ns);
        one("longest_cycle_nanoseconds", "the longest that a service kept its thread", true, &self.longest_ns);
    }
}

/// The engine's side: takes the time of each cycle.
#[derive(Debug)]
pub struct Stopwatch {
    slow_after: Duration,
    /// what the scheduler had taken from the thread when that was looked at last
    waited_ns: u64,
    look_at: Instant,
}

impl Stopwatch {
    /// Counts cycles longer than `slow_after`.
    pub fn new(slow_after: Duration) -> Stopwatch {
        Stopwatch { slow_after, waited_ns: 0, look_at: Instant::ZERO }
    }

    /// A cycle begins.
    #[inline]
    pub fn begin(&mut self, cycles: &Cycles) {
        cycles.step.add(1);
    }

    /// It ended, and ran from `began` to `now`. `waited_ns` tells what the scheduler has taken from the thread so far; it is asked now and
    /// then, and after long cycles.
    #[inline]
    pub fn end(&mut self, cycles: &Cycles, began: Instant, now: Instant, waited_ns: impl FnOnce() -> u64) {
        cycles.step.add(1);
        let took = now - began;
        if took >= self.slow_after || now >= self.look_at {
            self.look(cycles, now, took, waited_ns());
        } else if took.as_nanos() as u64 > cycles.longest_ns.get() {
            cycles.longest_ns.set(took.as_nanos() as u64);
        }
    }

    #[cold]
    fn look(&mut self, cycles: &Cycles, now: Instant, took: Duration, waited_ns: u64) {
        // of what it waited since the last look all may have been in this cycle
        let waited = Duration::from_nanos(waited_ns.saturating_sub(self.waited_ns));
        (self.waited_ns, self.look_at) = (waited_ns, now + self.slow_after);
        let own = took.saturating_sub(waited);
        let own_ns = own.as_nanos() as u64;
        cycles.longest_ns.set(own_ns.max(cycles.longest_ns.get()));
        if own >= self.slow_after {
            cycles.slow.add(1);
            cycles.slow_ns.add(own_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn long_cycles_are_counted_but_for_what_the_scheduler_took() {
        let (cycles, mut watch) = (Cycles::new("test", 3), Stopwatch::new(Duration::from_millis(10)));
        let mut waited_us = 0;
        let mut cycle = |from: u64, to: u64, waits_us: u64| {
            waited_us += waits_us;
            watch.begin(&cycles);
            assert_eq!(cycles.step.get() % 2, 1);
            watch.end(&cycles, at(from), at(to), || waited_us * 1000);
            (cycles.slow.get(), cycles.longest_ns.get() / 1000)
        };
        assert_eq!(cycle(0, 9_000, 0), (0, 9_000));
        assert_eq!(cycle(10_000, 22_000, 0), (1, 12_000));
        assert_eq!(cycle(30_000, 45_000, 6_000), (1, 12_000), "six of fifteen were not its own");
        assert_eq!(cycle(50_000, 80_000, 10_000), (2, 20_000));
        assert_eq!((cycles.slow_ns.get(), cycles.step.get()), (32_000_000, 8));
    }

    #[test]
    fn a_report_names_thread_and_service() {
        let cycles = Cycles::new("sockets", 1);
        cycles.serves("kv");
        cycles.slow.add(2);
        let mut seen = Vec::new();
        cycles.report(&mut |figure| seen.push(format!("{} {:?} {}", figure.name, figure.labels, figure.value)));
        let labels = r#"[("engine", "sockets"), ("thread", "1"), ("service", "kv")]"#;
        assert_eq!(seen[0], format!("slow_cycles_total {labels} 2"));
    }
}
