//! Says which service keeps its thread for too long.
//!
//! The engines measure each cycle ([`app::Cycles`]); here what they have counted is looked at once a second, and said in a line: how often
//! a thread was kept past the limit, and for how long at most. A thread that is in one and the same cycle at two looks is unresponsive.
//! What can be done about it is done elsewhere: over AF_XDP the watchdog leaves its queue to the kernel, on kernel sockets other threads
//! take over what waits for it.

use app::Cycles;
use base::Counter;
use base::counter::{Figure, Report};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Threads that are in one cycle for longer than a second.
#[derive(Debug, Default)]
pub(crate) struct Unresponsive {
    now: Counter,
    began: Counter,
}

impl Report for Unresponsive {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let help = "times a service kept its thread for a second and more";
        show(Figure { name: "unresponsive_total", help, gauge: false, labels: &[], value: self.began.get() });
        let help = "threads that their service keeps for a second and more";
        show(Figure { name: "unresponsive_threads", help, gauge: true, labels: &[], value: self.now.get() });
    }
}

/// A thread's cycles, as they were seen last.
#[derive(Debug)]
struct Seen {
    cycles: Arc<Cycles>,
    slow: u64,
    slow_ns: u64,
    step: u64,
    unresponsive: bool,
}

/// What a look shows.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// so many cycles were slow since the last look, so many milliseconds each on average
    Slow(u64, u64),
    Unresponsive,
    Responsive,
}

impl Seen {
    fn new(cycles: Arc<Cycles>) -> Seen {
        Seen { cycles, slow: 0, slow_ns: 0, step: 0, unresponsive: false }
    }

    /// What is new.
    fn look(&mut self) -> Vec<Finding> {
        let mut found = Vec::new();
        let (slow, slow_ns, step) = (self.cycles.slow.get(), self.cycles.slow_ns.get(), self.cycles.step.get());
        if slow > self.slow {
            let count = slow - self.slow;
            found.push(Finding::Slow(count, slow_ns.saturating_sub(self.slow_ns) / count / 1_000_000));
        }
        let unresponsive = step % 2 == 1 && step == self.step;
        match (self.unresponsive, unresponsive) {
            (false, true) => found.push(Finding::Unresponsive),
            (true, false) => found.push(Finding::Responsive),
            _ => {}
        }
        (self.slow, self.slow_ns, self.step, self.unresponsive) = (slow, slow_ns, step, unresponsive);
        found
    }
}

/// The thread that looks. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct SlowWatch {
    join: Option<JoinHandle<()>>,
    end: Option<Sender<()>>,
    unresponsive: Arc<Unresponsive>,
}

impl SlowWatch {
    /// Watches these threads; `limit` is what the engines count by.
    pub(crate) fn start(cycles: Vec<Arc<Cycles>>, limit: Duration) -> io::Result<SlowWatch> {
        let unresponsive = Arc::new(Unresponsive::default());
        let (counted, (end, ended)) = (unresponsive.clone(), channel());
        let join = std::thread::Builder::new().name("slow-watch".into()).spawn(move || {
            let mut seen: Vec<Seen> = cycles.into_iter().map(Seen::new).collect();
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                for thread in &mut seen {
                    for finding in thread.look() {
                        say(&thread.cycles, &finding, limit);
                        counted.began.add(u64::from(finding == Finding::Unresponsive));
                    }
                }
                counted.now.set(seen.iter().filter(|thread| thread.unresponsive).count() as u64);
            }
        })?;
        Ok(SlowWatch { join: Some(join), end: Some(end), unresponsive })
    }

    /// What it counts.
    pub(crate) fn unresponsive(&self) -> &Arc<Unresponsive> {
        &self.unresponsive
    }
}

fn say(cycles: &Cycles, finding: &Finding, limit: Duration) {
    let ((engine, thread), service) = (cycles.thread(), cycles.service());
    match finding {
        Finding::Slow(count, ms) => {
            let limit_ms = limit.as_millis();
            tracing::warn!(
                "{engine} thread {thread}: its service ({service}) kept it for more than {limit_ms} ms in {count} of the last second's cycles, {ms} ms on average"
            );
        }
        Finding::Unresponsive => {
            tracing::error!(
                "{engine} thread {thread}: its service ({service}) is unresponsive: one cycle goes on for a second and more"
            );
        }
        Finding::Responsive => tracing::warn!("{engine} thread {thread}: its service ({service}) comes round again"),
    }
}

impl Drop for SlowWatch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(join) = self.join.take() {
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_cycles_are_said_once_and_a_thread_that_stays_in_one_is_marked() {
        let cycles = Arc::new(Cycles::new("dataplane", 2));
        cycles.serves("web");
        let mut seen = Seen::new(cycles.clone());
        assert_eq!(seen.look(), []);
        cycles.slow.add(3);
        cycles.slow_ns.add(60_000_000);
        assert_eq!(seen.look(), [Finding::Slow(3, 20)]);
        assert_eq!(seen.look(), []);
        cycles.step.add(1);
        assert_eq!(seen.look(), [], "a cycle began");
        assert_eq!(seen.look(), [Finding::Unresponsive]);
        assert_eq!(seen.look(), []);
        cycles.step.add(2);
        assert_eq!(seen.look(), [Finding::Responsive], "another one");
        cycles.step.add(1);
        assert_eq!((seen.look(), seen.look()), (vec![], vec![]), "asleep between two");
    }
}
