//! Copies of the frames that pass, for a capture while the server runs. What AF_XDP takes is invisible to tcpdump.
//!
//! The loop puts copies into a bounded ring and never waits for the reader: what finds the ring full is counted as missed.
//! With no tap the cost is one branch a burst.

use crate::Counters;
use base::ring::{Consumer, Producer, ring};
use base::{Frame, Instant};

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// received
    In,
    /// handed to the port for sending
    Out,
}

/// A copy of one frame.
#[derive(Debug)]
pub struct Copy {
    /// the cycle's time
    pub at: Instant,
    /// which way it went
    pub direction: Direction,
    /// the frame from its Ethernet header on
    pub bytes: Box<[u8]>,
}

/// The loop's end of a tap.
#[derive(Debug)]
pub struct Tap(Producer<Copy>);

/// A tap for one thread and where its copies come out. Dropping the reader does not end the tap; command that.
///
/// # Panics
/// When `frames` is not a power of two.
pub fn tap(frames: usize) -> (Tap, Consumer<Copy>) {
    let (producer, consumer) = ring(frames);
    (Tap(producer), consumer)
}

impl Tap {
    /// Copies `frames` as far as the ring has room.
    #[cold]
    pub(crate) fn copy(&mut self, at: Instant, direction: Direction, frames: &[Frame], counters: &Counters) {
        for frame in frames {
            self.copy_one(at, direction, counters, || frame.bytes().into());
        }
    }

    /// Copies one frame, made when there is room for it.
    pub(crate) fn copy_one(
        &mut self,
        at: Instant,
        direction: Direction,
        counters: &Counters,
        bytes: impl FnOnce() -> Box<[u8]>,
    ) {
        if self.0.room(1) == 0 {
            counters.tap_missed.add(1);
        } else if self.0.push(Copy { at, direction, bytes: bytes() }).is_ok() {
            counters.tapped.add(1);
        }
    }
}
