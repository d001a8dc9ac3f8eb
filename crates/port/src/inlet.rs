//! The receive side of a port, for threads that do not own it.
//!
//! A thread that the scheduler has taken off its processor receives nothing, and what arrives for it waits. Another thread may
//! take it meanwhile: whoever receives holds a lease on the receive side, and whose frames they are is decided before the lease
//! ends, so that they stay in their order.

use base::{Burst, Frame};
use std::os::fd::BorrowedFd;

/// What has arrived at a port, while one holds the lease.
pub trait Waiting {
    /// Appends up to `limit` received frames to `into` (never past its capacity) and returns how many. Chunks of packets that are
    /// none for a stack are given to `home`.
    fn receive(&mut self, into: &mut Burst, limit: usize, home: &mut dyn FnMut(Frame)) -> usize;

    /// Frames that [`Waiting::receive`] would give now.
    fn waiting(&mut self) -> usize;

    /// Gives the device free frames, as many as it has room for and `supply` has.
    fn refill(&mut self, supply: &mut dyn FnMut() -> Option<Frame>);
}

/// A port's receive side, which threads take turns at. The port's own [`Port::receive`](crate::Port::receive) takes the lease too.
pub trait Inlet: std::fmt::Debug + Send + Sync {
    /// Has `work` done with the lease; false, and nothing is done, while another thread has it. Does not wait.
    fn lease(&self, work: &mut dyn FnMut(&mut dyn Waiting)) -> bool;

    /// Has the epoll instance tell when something waits, or tell no longer. To ask for what stands already is no error; a port that
    /// was made anew tells no longer, so it is to be asked again now and then. Whether it is so now: one that another thread is at may not
    /// take the wish to begin.
    fn watch(&self, epoll: BorrowedFd<'_>, on: bool) -> bool;
}
