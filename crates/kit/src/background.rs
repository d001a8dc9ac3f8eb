//! Threads of an application's own.
//!
//! An elastic thread must not wait: not for a file, not for a lock that somebody holds long, not for a computation of milliseconds. Such
//! work is a *job* for a thread that may. Jobs and results each go through a queue, and the elastic thread is woken when a result is
//! there. The number of jobs that were submitted and not taken back bounds both queues.

use app::Waker;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// The work on a job panicked; the thread goes on with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the work on a job panicked")
    }
}

impl std::error::Error for Panicked {}

/// Threads that turn jobs into results, on behalf of one elastic thread. When it is dropped the threads end after the job in hand, and
/// nobody waits for them.
pub struct Background<J, R> {
    jobs: SyncSender<J>,
    results: Receiver<Result<R, Panicked>>,
    /// submitted, and the result not taken
    outstanding: usize,
    room: usize,
}

impl<J, R> fmt::Debug for Background<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Background({} of {} jobs)", self.outstanding, self.room)
    }
}

impl<J: Send + 'static, R: Send + 'static> Background<J, R> {
    /// Starts `threads` threads that do `work`, for at most `room` jobs at one time. `waker` is what
    /// [`begin`](app::Service::begin) gave; `name` is what the threads are called.
    ///
    /// # Errors
    /// The kernel's, when a thread cannot be made.
    ///
    /// # Panics
    /// Without threads or room.
    pub fn start(
        name: &str,
        threads: usize,
        room: usize,
        waker: &Waker,
        work: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> io::Result<Background<J, R>> {
        assert!(threads > 0 && room > 0, "{threads} threads for {room} jobs");
        let (jobs, taken) = sync_channel(room);
        let (give, results) = channel();
        let (taken, work) = (Arc::new(Mutex::new(taken)), Arc::new(work));
        for n in 0..threads {
            let (taken, give, work, waker) = (taken.clone(), give.clone(), work.clone(), waker.clone());
            let thread = std::thread::Builder::new().name(format!("{name}-{n}"));
            thread.spawn(move || serve(&taken, &give, &*work, &waker))?;
        }
        Ok(Background { jobs, results, outstanding: 0, room })
    }

    /// Hands a job over; never waits.
    ///
    /// # Errors
    /// The job, when there are as many as there is room for.
    pub fn submit(&mut self, job: J) -> Result<(), J> {
        if self.outstanding == self.room {
            return Err(job);
        }
        // there is room for all that are outstanding, and the threads live as long as this
        self.jobs.try_send(job).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(job) | std::sync::mpsc::TrySendError::Disconnected(job) => job,
        })?;
        self.outstanding += 1;
        Ok(())
    }

    /// The next result, in the order in which jobs were finished; None when there is none now. For
    /// [`woken`](app::Service::woken).
    pub fn take(&mut self) -> Option<Result<R, Panicked>> {
        match self.results.try_recv() {
            Ok(result) => {
                self.outstanding -= 1;
                Some(result)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Jobs whose results were not taken.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

/// One thread.
fn serve<J, R>(
    jobs: &Mutex<Receiver<J>>,
    results: &Sender<Result<R, Panicked>>,
    work: &(impl Fn(J) -> R + ?Sized),
    waker: &Waker,
) {
    loop {
        // who waits for a job holds the lock, and the others wait for that
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let result = catch_unwind(AssertUnwindSafe(|| work(job))).map_err(|_| Panicked);
        if results.send(result).is_err() {
            return;
        }
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn waker() -> (Waker, mpsc::Receiver<()>) {
        let (woken, wakes) = mpsc::channel();
        let wake = Waker::new(move || {
            // who waits may have seen enough
            let _ = woken.send(());
        });
        (wake, wakes)
    }

    #[test]
    fn every_job_comes_back_and_wakes() {
        let (waker, wakes) = waker();
        let mut background = Background::start("square", 3, 100, &waker, |n: u64| n * n).unwrap();
        for n in 0..100 {
            background.submit(n).unwrap();
        }
        assert_eq!(background.submit(100), Err(100));
        let mut results = Vec::new();
        while results.len() < 100 {
            wakes.recv_timeout(PATIENCE).unwrap();
            results.extend(std::iter::from_fn(|| background.take()).map(Result::unwrap));
        }
        results.sort_unstable();
        assert_eq!(results, (0..100).map(|n| n * n).collect::<Vec<_>>());
        assert_eq!((background.outstanding(), background.submit(3)), (0, Ok(())));
    }

    #[test]
    fn work_that_panics_is_told_and_the_thread_goes_on() {
        let (waker, wakes) = waker();
        let work = |n: u32| if n == 0 { panic!("asked to") } else { n };
        let mut background = Background::start("panics", 1, 2, &waker, work).unwrap();
        background.submit(0).unwrap();
        background.submit(7).unwrap();
        let mut results = Vec::new();
        while results.len() < 2 {
            wakes.recv_timeout(PATIENCE).unwrap();
            results.extend(std::iter::from_fn(|| background.take()));
        }
        assert_eq!(results, [Err(Panicked), Ok(7)]);
    }

    #[test]
    fn threads_end_when_nobody_gives_them_jobs() {
        let (waker, _wakes) = waker();
        let alive = Arc::new(());
        let held = alive.clone();
        let background = Background::start("ends", 2, 1, &waker, move |(): ()| Arc::strong_count(&held)).unwrap();
        assert!(Arc::strong_count(&alive) > 1);
        drop(background);
        let start = std::time::Instant::now();
        while Arc::strong_count(&alive) > 1 {
            assert!(start.elapsed() < PATIENCE, "a thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
