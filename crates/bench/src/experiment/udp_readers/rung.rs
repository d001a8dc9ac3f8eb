//! What wakes a dataplane thread that sleeps, when something was put into its queue of the in-memory NIC: where a device has an
//! interrupt.

use anyhow::{Context as _, Result};
use base::{Burst, Frame};
use port::pipe::Pipe;
use port::{Facts, Outgoing, Port};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A descriptor that becomes readable when it is rung. While nobody has silenced it, ringing it again costs no system call.
#[derive(Debug)]
pub(super) struct Rung {
    bell: OwnedFd,
    /// the bell is readable, or about to become so
    rings: AtomicBool,
}

impl Rung {
    pub(super) fn new() -> Result<Arc<Rung>> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK).context("an eventfd")?;
        Ok(Arc::new(Rung { bell, rings: AtomicBool::new(false) }))
    }

    /// To be called when something has been put into the queue.
    pub(super) fn ring(&self) {
        if !self.rings.swap(true, Ordering::AcqRel) {
            // refused only when its count is full, and then it is readable
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was rung; it is silent then. Whoever looks into the queue afterwards finds what was put there by all who did not ring
    /// because it rang already.
    pub(super) fn silence(&self) -> bool {
        let rings = self.rings.load(Ordering::Relaxed);
        // what is not readable yet is rung just now, and stays rung for the next time
        if rings && rustix::io::read(&self.bell, &mut [0; 8]).is_ok() {
            // an exchange, not a store, which a look into the queue could overtake
            self.rings.swap(false, Ordering::AcqRel);
        }
        rings
    }

    /// To be polled for readability.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The server's end of a queue of the in-memory NIC, whose thread may sleep until it is rung.
pub(super) struct Queue {
    pub(super) pipe: Pipe,
    rung: Arc<Rung>,
}

impl Queue {
    pub(super) fn new(pipe: Pipe, rung: Arc<Rung>) -> Queue {
        Queue { pipe, rung }
    }
}

impl Port for Queue {
    fn facts(&self) -> &Facts {
        self.pipe.facts()
    }

    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        match self.pipe.receive(into, limit) {
            // only who finds nothing may come to sleep; the system call is for that
            0 if limit > 0 && self.rung.silence() => self.pipe.receive(into, limit),
            received => received,
        }
    }

    fn waiting(&mut self) -> usize {
        self.pipe.waiting()
    }

    fn transmit_room(&mut self) -> usize {
        self.pipe.transmit_room()
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.pipe.transmit(from)
    }

    fn flush(&mut self) -> Outgoing {
        self.pipe.flush()
    }

    fn take(&mut self) -> Option<Frame> {
        self.pipe.take()
    }

    fn give(&mut self, frame: Frame) {
        self.pipe.give(frame);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rung.descriptor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(rung: &Rung) -> bool {
        let bell = rung.descriptor();
        poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    #[test]
    fn it_is_readable_from_the_first_ring_until_it_is_silenced() {
        let rung = Rung::new().unwrap();
        assert!(!is_readable(&rung) && !rung.silence());
        for _ in 0..3 {
            rung.ring();
            rung.ring();
            assert!(is_readable(&rung) && rung.silence());
            assert!(!is_readable(&rung) && !rung.silence());
        }
    }

    #[test]
    fn nobody_sleeps_over_what_was_put_in_before_the_ring() {
        let rung = Rung::new().unwrap();
        let (mut put, mut taken) = base::ring::ring::<u32>(4);
        const ALL: u32 = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..ALL {
                    while put.push(value).is_err() {
                        std::thread::yield_now();
                    }
                    rung.ring();
                }
            });
            let mut next = 0;
            while next < ALL {
                match taken.pop().or_else(|| rung.silence().then(|| taken.pop()).flatten()) {
                    Some(value) => {
                        assert_eq!(value, next);
                        next += 1;
                    }
                    None => {
                        let bell = PollFd::from_borrowed_fd(rung.descriptor(), PollFlags::IN);
                        let most = Timespec { tv_sec: 60, tv_nsec: 0 };
                        assert_eq!(poll(&mut [bell], Some(&most)), Ok(1), "asleep with {next} of {ALL}");
                    }
                }
            }
        });
    }
}
