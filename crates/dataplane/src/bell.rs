//! What wakes a thread.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A thread's bell: an eventfd that it polls while it sleeps.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Bell {
    asleep: AtomicBool,
    wake: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { asleep: AtomicBool::new(false), wake })
    }

    /// Wakes the thread, or keeps it from its next sleep.
    pub(crate) fn ring(&self) {
        // refused only when the count is full, and then the thread is about to wake
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Wakes the thread if it sleeps, after something was left for it: without a call while it is awake.
    pub(crate) fn wake_if_asleep(&self) {
        // either we see that it sleeps, or it sees what was left (`fall_asleep`)
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    /// The thread's: from now on others wake it. It must look once more for what they have left before it sleeps.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread's: it is awake.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether the thread sleeps, or is about to.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Takes what was rung.
    pub(crate) fn silence(&self) {
        // the count does not matter, only that it is taken
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
