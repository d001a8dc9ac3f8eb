//! A queue's place in the steering program's map, from which others than its thread may take the socket.

use bpf::steering::Sockets;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The place of one queue's socket. While it is empty the kernel has the queue's packets, so that its own sockets answer at shared
/// addresses.
#[derive(Debug)]
pub struct Slot {
    sockets: Sockets,
    queue: u32,
    empty: AtomicBool,
}

impl Slot {
    pub(crate) fn new(sockets: Sockets, queue: u32) -> Slot {
        Slot { sockets, queue, empty: AtomicBool::new(false) }
    }

    /// The interface's queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Empties the place, when the thread of the queue does not look after it any more. Its next [`port::Port::flush`] fills it again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn empty(&self) -> io::Result<()> {
        // first, so that a thread that comes back meanwhile comes behind it
        self.sockets.clear(self.queue).map_err(|e| io::Error::other(e.to_string()))?;
        self.empty.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether somebody emptied it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Relaxed)
    }

    /// Puts the thread's socket in its place, which stays empty where the kernel refuses that.
    pub(crate) fn fill(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.empty.store(false, Ordering::Release);
        let filled = self.sockets.set(self.queue, socket).map_err(|e| io::Error::other(e.to_string()));
        if filled.is_err() {
            self.empty.store(true, Ordering::Release);
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::steering::{Attach, Config, Steering};
    use std::os::fd::AsFd;

    #[test]
    #[allow(
        deprecated,
        reason = "what replaces it is for flags that are not used here, and is no function for this crate"
    )]
    fn a_place_that_cannot_be_filled_stays_empty() {
        assert!(
            rustix::process::geteuid().is_root(),
            "this makes a network namespace and attaches a program: run it as root"
        );
        // in a namespace of its own, whose first interface is its lo
        let tested = std::thread::spawn(|| {
            rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).unwrap();
            let steering = Steering::load(1, Attach::Generic, &Config { queues: 1, ..Config::default() }).unwrap();
            let slot = Slot::new(steering.sockets(), 0);
            slot.empty().unwrap();
            let no_socket = std::fs::File::open("/dev/null").unwrap();
            assert!(slot.fill(no_socket.as_fd()).is_err());
            assert!(slot.is_empty(), "nobody would fill it again");
        });
        tested.join().unwrap();
    }
}
