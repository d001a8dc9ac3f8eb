//! Packets that came in several chunks, until the last of them has.

use arrayvec::ArrayVec;
use base::Frame;
use std::collections::VecDeque;

/// Chunks of the longest packet: 64 KiB and a link header, 1792 bytes in each (chunks of 2048).
const MOST: usize = 37;

/// What has been received of a packet, and frames that found no room with the caller.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// of the packet that is arriving
    arriving: ArrayVec<Frame, MOST>,
    /// there were too many: what comes of this packet is thrown away
    spoiled: bool,
    /// frames for the next burst
    ready: VecDeque<Frame>,
}

impl Pieces {
    /// Whether the next descriptor goes on with a packet.
    #[inline(always)]
    pub(crate) fn is_inside(&self) -> bool {
        self.spoiled || !self.arriving.is_empty()
    }

    /// Whether frames wait for the next burst.
    #[inline(always)]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next of the frames that wait.
    #[cold]
    pub(crate) fn next_ready(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// Takes a piece, the last of its packet unless `more` follow. A whole packet becomes frames that wait; one that is none for a
    /// stack goes home, and the number of its pieces is returned.
    #[cold]
    pub(crate) fn take(&mut self, piece: Frame, more: bool, mut home: impl FnMut(Frame)) -> u64 {
        let mut refused = 0;
        if let Err(full) = self.arriving.try_push(piece) {
            self.spoiled = true;
            refused += self.abandon(&mut home) + 1;
            home(full.element());
        } else if self.spoiled {
            refused += self.abandon(&mut home);
        }
        if more {
            return refused;
        }
        self.spoiled = false;
        if port::separate(&mut self.arriving) {
            self.ready.extend(self.arriving.drain(..));
            return refused;
        }
        refused + self.abandon(home)
    }

    /// Sends home what has come of a packet; the rest of it will not come.
    pub(crate) fn forget(&mut self, home: impl FnMut(Frame)) {
        self.spoiled = false;
        self.abandon(home);
    }

    /// Sends home every frame.
    pub(crate) fn clear(&mut self, mut home: impl FnMut(Frame)) {
        self.forget(&mut home);
        self.ready.drain(..).for_each(home);
    }

    fn abandon(&mut self, home: impl FnMut(Frame)) -> u64 {
        let n = self.arriving.len() as u64;
        self.arriving.drain(..).for_each(home);
        n
    }
}
