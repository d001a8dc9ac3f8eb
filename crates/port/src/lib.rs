//! Frames in, frames out.
//!
//! A [`Port`] is one receive queue and one transmit queue of a network interface, together with the free frames of the
//! thread that owns it. `pipe` is one in memory; crate `port-xdp` has the AF_XDP one. `capture` and `fault` wrap any.
//!
//! A port whose device segments TCP has [`Large`] sends beside frames, one whose device fetches a packet from several places
//! [`Gather`]; a stack sees frames and those as [`Supply`].
//!
//! A port whose receive side other threads may help out at has an [`Inlet`]. A thread without a queue has a port that sends through
//! another's ([`guest`]).
//!
//! Ownership: [`Port::receive`] gives frames to the caller; each must go out by [`Port::transmit`] or home by
//! [`Port::give`]. What `transmit` accepts is the port's until the device has sent it, then it is a free frame again.

#![forbid(unsafe_code)]

pub mod capture;
pub mod fault;
pub mod guest;
pub mod pipe;

mod gather;
mod inlet;
mod large;
mod pieces;

pub use gather::{Gather, Piece};
pub use inlet::{Inlet, Waiting};
pub use large::{Cuts, Large, MAX_PIECES, MOST_BYTES, Segmentation, Supply};
pub use pieces::separate;

use base::{Burst, Frame};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A hardware address.
pub type Mac = [u8; 6];

/// What does not change while the port is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// the interface's hardware address
    pub mac: Mac,
    /// bytes of the largest packet above the link layer, as the interface has it
    pub mtu: usize,
    /// bytes of the largest frame, link header included, that fits a chunk; what is larger is neither received nor sent
    pub frame_bytes: usize,
    /// frames may come from a kernel of the same machine (veth, the pipe, receive offload), which leaves the folded pseudo-header
    /// sum where the checksum belongs; such frames are to be accepted
    pub virtual_link: bool,
    /// frames that the receive queue holds at most
    pub receive_slots: usize,
}

impl Facts {
    /// Whether a receive queue of which so many frames waited may have lost some for want of room. It had room for an eighth, or less: where
    /// the kernel's receive work has the same processor it fills the queue in one go, and there is room until it does so again.
    #[inline]
    pub fn overran(&self, waited: usize) -> bool {
        waited >= self.receive_slots - self.receive_slots / 8
    }
}

/// What has become of the frames that were transmitted; of several ports the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outgoing {
    /// all have come back
    Nothing,
    /// the device has them all and gives them back in its own time; flushing now and then is enough
    Underway,
    /// the device must be asked again, or frames are short until some come back: flush soon
    Waiting,
    /// as many are on their way as the device takes without losing some, so whoever answers need not receive either: let others run,
    /// then flush
    Full,
}

/// One receive queue and one transmit queue, owned by one thread.
pub trait Port {
    /// What the stack must know of this port.
    fn facts(&self) -> &Facts;

    /// Appends up to `limit` received frames to `into` (never past its capacity) and returns how many. Does not wait.
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize;

    /// Frames that [`Port::receive`] would give now, as far as the port can tell: a measure of how far behind its owner is.
    fn waiting(&mut self) -> usize {
        0
    }

    /// Frames that [`Port::transmit`] would accept now.
    fn transmit_room(&mut self) -> usize;

    /// Takes frames from the front of `from` until it is empty or the transmit ring is full; what stays in `from` was not
    /// sent. Returns how many were taken. They may wait in the ring until [`Port::flush`].
    fn transmit(&mut self, from: &mut Burst) -> usize;

    /// Makes the device start on what was transmitted, takes back what it has finished, and keeps the receive side
    /// supplied with free frames. Called once a cycle, also when there was nothing to send; what it returns says how soon it
    /// wants to be called again.
    fn flush(&mut self) -> Outgoing;

    /// A free frame, empty, or None when all are in use.
    fn take(&mut self) -> Option<Frame>;

    /// Takes a frame home.
    fn give(&mut self, frame: Frame);

    /// What sends super-segments, which the device cuts; None where it does not, or not now.
    fn large(&mut self) -> Option<&mut dyn Large> {
        None
    }

    /// What sends frames whose payload lies elsewhere; None where the device does not gather, or not now.
    fn gather(&mut self) -> Option<&mut dyn Gather> {
        None
    }

    /// The receive side, for threads that help the owner; None for a port whose frames only its owner takes.
    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        None
    }

    /// What to poll for readability before sleeping; None for a port that has no descriptor (the owner then does not
    /// sleep, or sleeps for bounded times).
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// For a port without a queue ([`guest`]): the thread, among those of the interface, through whose port it sends. Nothing arrives here, and
    /// that thread is to be woken for what was transmitted.
    fn host(&self) -> Option<usize> {
        None
    }

    /// Whether all that was transmitted before the last flush is the device's, so that nothing which another port sends from now on
    /// overtakes it here.
    fn has_left(&self) -> bool {
        true
    }

    /// For a host: puts what guests have sent into the transmit ring, as far as there is room; how many frames. Called before each
    /// flush.
    fn carry(&mut self) -> usize {
        0
    }

    /// For a host: whether guests have sent something that is not in the transmit ring yet.
    fn is_asked(&mut self) -> bool {
        false
    }
}
