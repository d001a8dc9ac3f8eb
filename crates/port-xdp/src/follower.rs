//! The thread that follows what becomes of an interface.

use crate::handle::{Followed, Handle};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// How long nothing is tried after the kernel has refused something, whatever is heard meanwhile.
const REST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A thread that has a [`Handle`] and keeps what is taken in step with the machine's addresses and the interface's. When it is dropped the
/// thread ends, and the program is detached.
#[derive(Debug)]
pub struct Follower {
    join: Option<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
}

impl Follower {
    /// Starts it. `tell` gets what was found, on that thread; None when nothing is new and `every` has passed. What the kernel refused is
    /// tried again a second later.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(
        mut handle: Handle,
        every: Option<Timespec>,
        mut tell: impl FnMut(Option<Followed>) + Send + 'static,
    ) -> io::Result<Follower> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let told = stop.clone();
        let join = std::thread::Builder::new().name("addresses".into()).spawn(move || {
            let mut due = true;
            loop {
                let found = due.then(|| handle.follow());
                let failed = found.as_ref().is_some_and(|found| found.failed.is_some());
                tell(found);
                let heard = handle.descriptors().filter(|_| !failed);
                let descriptors = std::iter::once(told.as_fd()).chain(heard);
                let mut ready: Vec<_> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                // an interrupted sleep is a short one
                let _ = poll(&mut ready, if failed { Some(&REST) } else { every.as_ref() });
                if !ready[0].revents().is_empty() {
                    return;
                }
                // what failed is not told again by the kernel
                due = failed || ready[1..].iter().any(|heard| !heard.revents().is_empty());
            }
        })?;
        Ok(Follower { join: Some(join), stop })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // an eventfd refuses only when its count is full
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(join) = self.join.take() {
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}
