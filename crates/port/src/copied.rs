//! The paper's memcpy strategy as a port: what arrives is copied into a frame of ours, the answer is written there, and the
//! received frame goes home at once. Above it everything stays as it is.

use crate::{Facts, Port};
use base::{Burst, Frame};
use std::os::fd::BorrowedFd;

/// A port that, when told so, never lets a received frame be answered in place. One type for both, so that the choice can be
/// made at start.
#[derive(Debug)]
pub struct Copied<P> {
    inner: P,
    copies: bool,
    received: Burst,
}

impl<P: Port> Copied<P> {
    /// Over `inner`. With `copies` its own frames carry the answers; a frame for which none is free is dropped, which the inner
    /// port's pool is large enough to make rare. Without, everything passes as it is.
    pub fn new(inner: P, copies: bool) -> Copied<P> {
        Copied { inner, copies, received: Burst::new() }
    }

    /// The port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl<P: Port> Port for Copied<P> {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }

    #[inline]
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        if !self.copies {
            return self.inner.receive(into, limit);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::{self, Config};

    #[test]
    fn a_received_frame_goes_home_before_its_copy_is_answered() {
        for copies in [true, false] {
            // with two frames an end could not go on if either kept one
            let (mut a, mut b) = pipe::pair(&Config { frames: 2, ..Config::default() }).unwrap();
            let (mut asker, mut answerer) = (a.remove(0), Copied::new(b.remove(0), copies));
            for _ in 0..10 {
                let mut frame = asker.take().unwrap();
                assert!(frame.fill(b"question"));
                let mut burst = Burst::new();
                burst.push(frame);
                asker.transmit(&mut burst);
                assert_eq!(answerer.receive(&mut burst, 64), 1);
                assert_eq!(burst[0].bytes(), b"question");
                burst[0].bytes_mut().copy_from_slice(b"answered");
                asker.flush();
                // the asker has both its frames again exactly when the question was copied
                let (first, second) = (asker.take(), asker.take());
                assert_eq!((first.is_some(), second.is_some()), (true, copies));
                for frame in first.into_iter().chain(second) {
                    asker.give(frame);
                }
                answerer.transmit(&mut burst);
                answerer.flush();
                assert_eq!(asker.receive(&mut burst, 64), 1);
                assert_eq!(burst[0].bytes(), b"answered");
                asker.give(burst.pop().unwrap());
            }
        }
    }
}
