//! Something else that takes a share of a processor from whoever runs there, the kernel's receive threads included: a server on what is
//! left is the bound of a measurement whose generator has no more than one processor either.

use crate::procs::Ahead;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The share is taken of each of these: meanwhile less arrives than receive rings hold, at some hundred thousand frames a second.
const PERIOD: Duration = Duration::from_millis(1);

const NAME: &str = "taken";

/// What a report says of it, a sentence after others.
pub(super) fn told(percent: u32) -> String {
    match percent {
        0 => String::new(),
        percent => format!(
            " Of processor 0 something else takes {percent}% (of each millisecond, as an interrupt would; it is in how busy that was), so that the \
             server is the bound."
        ),
    }
}

/// What takes it, as long as this is there.
#[derive(Debug)]
pub(super) struct Taken {
    _thread: Ahead,
}

impl Taken {
    /// Begins to take so many percent of a processor; nothing begins for none.
    pub(super) fn of(percent: u32, processor: usize) -> Result<Option<Taken>> {
        (percent > 0).then(|| Taken::start(percent, processor)).transpose()
    }

    fn start(percent: u32, processor: usize) -> Result<Taken> {
        let take = move |stopped: &AtomicBool| take(PERIOD * percent / 100, stopped);
        Ok(Taken { _thread: Ahead::start(NAME, processor, take)? })
    }
}

/// Runs for `share` of each period. What is late is not made up for.
fn take(share: Duration, stopped: &AtomicBool) {
    let mut begun = Instant::now();
    while !stopped.load(Ordering::Acquire) {
        while begun.elapsed() < share {
            std::hint::spin_loop();
        }
        let next = begun + PERIOD;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        begun = next.max(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procs::tests::assert_threads;
    use std::path::Path;
    use std::sync::Arc;

    /// The scheduling policy of the thread that takes, and for how long it has run.
    fn thread(task: &Path) -> Option<(String, Duration)> {
        let of = |file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        // policy (proc(5)) is the 39th field behind the name
        let policy = of("stat").rsplit_once(") ")?.1.split(' ').nth(38)?.to_owned();
        let ran_ns = of("schedstat").split(' ').next()?.parse().ok()?;
        Some((policy, Duration::from_nanos(ran_ns)))
    }

    #[test]
    fn it_takes_its_share_before_others_and_ends() {
        lab::require_programs(&["chrt"]);
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let beside = std::thread::spawn(move || {
            crate::procs::pin(0).unwrap();
            while !until.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        let taken = Taken::start(60, 0).unwrap();
        let task = assert_threads(NAME, 1).remove(0);
        let mut shares = Vec::new();
        // a hypervisor may have the processor for a while
        while shares.len() < 100 && !shares.last().is_some_and(|share| (0.3..0.75).contains(share)) {
            let (begun, before) = (Instant::now(), thread(&task).unwrap().1);
            std::thread::sleep(Duration::from_millis(300));
            let ran = thread(&task).unwrap().1 - before;
            shares.push(ran.as_secs_f64() / begun.elapsed().as_secs_f64());
        }
        let policy = thread(&task).unwrap().0;
        drop(taken);
        stop.store(true, Ordering::Release);
        beside.join().unwrap();
        assert_eq!(policy, "1", "SCHED_FIFO");
        assert!(shares.len() < 100, "{shares:?}");
        assert_threads(NAME, 0);
    }
}
