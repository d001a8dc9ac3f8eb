//! What the scheduler has counted of a thread, read by the others.

use base::balance::Scheduled;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Where it stands.
#[derive(Debug)]
pub(crate) struct Source(File);

impl Source {
    /// Of the calling thread, for whichever thread reads it; None where the kernel counts nothing.
    pub(crate) fn of_this_thread() -> Option<Source> {
        Some(Source(File::open("/proc/thread-self/schedstat").ok()?))
    }

    /// What was counted so far (Documentation/scheduler/sched-stats: the three figures).
    pub(crate) fn read(&self) -> Option<Scheduled> {
        let mut text = [0; 64];
        let read = self.0.read_at(&mut text, 0).ok()?;
        let mut figures = std::str::from_utf8(&text[..read]).ok()?.split_ascii_whitespace();
        let mut next = || figures.next()?.parse().ok();
        Some(Scheduled { ran_ns: next()?, waited_ns: next()?, times: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_reads_what_another_has_run() {
        let (opened, source) = std::sync::mpsc::channel();
        let (go, on) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            opened.send(Source::of_this_thread().expect("a kernel without schedstat")).unwrap();
            on.recv().unwrap();
            let own = Source::of_this_thread().unwrap();
            let begun = own.read().unwrap();
            while own.read().unwrap().ran_ns < begun.ran_ns + 5_000_000 {}
            opened.send(own).unwrap();
            on.recv().unwrap();
        });
        let source_of_other = source.recv().unwrap();
        let before = source_of_other.read().unwrap();
        go.send(()).unwrap();
        let _same = source.recv().unwrap();
        let after = source_of_other.read().unwrap();
        assert!(after.ran_ns >= before.ran_ns + 5_000_000, "{before:?} {after:?}");
        assert!(after.waited_ns >= before.waited_ns);
        go.send(()).unwrap();
        other.join().unwrap();
        // who joins is woken a moment before the kernel forgets the thread
        let begun = std::time::Instant::now();
        while let Some(scheduled) = source_of_other.read() {
            assert!(begun.elapsed().as_secs() < 30, "it has ended: {scheduled:?}");
            std::thread::yield_now();
        }
    }
}
