//! The paper's memcpy strategy as a port: what arrives is copied into a frame of ours, the answer is written there, and the
//! received frame goes home at once. Above it everything stays as it is.

use base::{Burst, Frame};
use port::{Facts, Port};
use std::os::fd::BorrowedFd;

/// A port that never lets a received frame be answered in place.
#[derive(Debug)]
pub(crate) struct Copied<P> {
    inner: P,
    received: Burst,
}

impl<P: Port> Copied<P> {
    /// Over `inner`, whose own frames carry the answers.
    pub(crate) fn new(inner: P) -> Copied<P> {
        Copied { inner, received: Burst::new() }
    }
}

impl<P: Port> Port for Copied<P> {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let before = into.len();
        self.inner.receive(&mut self.received, limit.min(into.remaining_capacity()));
        for frame in self.received.drain(..) {
            if let Some(mut ours) = self.inner.take() {
                // a frame of the same port holds whatever it receives
                let copied = ours.fill(frame.bytes());
                debug_assert!(copied, "{} bytes do not fit", frame.len());
                into.push(ours);
            }
            self.inner.give(frame);
        }
        into.len() - before
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        self.inner.transmit_room()
    }

    #[inline]
    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.inner.transmit(from)
    }

    #[inline]
    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        self.inner.take()
    }

    #[inline]
    fn give(&mut self, frame: Frame) {
        self.inner.give(frame);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
}
