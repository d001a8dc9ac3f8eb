//! What a connection needs while it has something to send: its queue, what is in flight, congestion control and recovery.
//!
//! Blocks are taken from a pool when the first range is queued and kept as long as nobody else wants them: a connection that
//! has sent everything is a lender, and when the pool is empty the one that lent first loses its block, and with it what it
//! knew of the path. It begins again with the initial window, as after a long pause (RFC 5681 section 4.1).

use super::congestion::{Algorithm, Congestion};
use super::inflight::Board;
use super::pace::Pace;
use super::prr::Prr;
use super::rack::Rack;
use super::send::List;
use base::Instant;

const NONE: u32 = u32::MAX;

/// What the retransmission timer is set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// retransmission (RFC 6298)
    Retransmit,
    /// a probe for the loss of the last segments (RFC 8985 section 7)
    TailProbe,
    /// segments that were overtaken count as lost then (RFC 8985 section 6.2 step 5)
    Reorder,
    /// a probe of the peer's closed window (RFC 9293 section 3.8.6.1)
    Persist,
}

/// How the sender stands to loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// nothing is known to be lost
    Open,
    /// losses that acknowledgements told of are repaired (RFC 6675, RFC 9937)
    Recovery,
    /// the retransmission timer expired (RFC 5681 section 3.1)
    Loss,
}

/// How far the question is whether a timeout was spurious (RFC 5682 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spurious {
    /// it is not asked
    No,
    /// the first segment went out again; the next acknowledgement tells
    Asked,
    /// new data went out; the next acknowledgement decides
    Tested,
}

/// What may be taken back when a recovery turns out to be without need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// segments sent again that the peer has not told to be duplicates
    pub(crate) resent: u32,
    /// our clock when the first of them went out
    pub(crate) clock: Option<u32>,
}

/// A tail loss probe under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// where it ended (TLP.end_seq)
    pub(crate) end: u64,
    /// it carried old data
    pub(crate) resent: bool,
}

/// The search for a wider path, once it was found to be narrower than the link (RFC 4821 section 7).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wider {
    /// data bytes of the segment that is tried next
    pub(crate) bytes: u16,
    /// of those that the link carries
    pub(crate) most: u16,
    /// when one is tried
    pub(crate) at: Instant,
    /// where it ends, while it is on its way
    pub(crate) tried: Option<u64>,
}

/// The block, which begins on a cache line of its own: all of it is asked for before a segment is taken.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Active {
    pub(crate) board: Board,
    pub(crate) list: List,
    pub(crate) congestion: Congestion,
    pub(crate) prr: Option<Prr>,
    pub(crate) pace: Pace,
    pub(crate) rack: Rack,
    pub(crate) phase: Phase,
    pub(crate) alarm: Alarm,
    pub(crate) spurious: Spurious,
    pub(crate) undo: Option<Undo>,
    pub(crate) probe: Option<Probe>,
    pub(crate) wider: Option<Wider>,
    /// a tail loss probe is to go out
    pub(crate) probe_now: bool,
    /// one segment may go out whatever the congestion window says: the first of a recovery; or however small the peer's window
    pub(crate) force: bool,
    /// what had been sent when the window last held data back: acknowledgements of that may make it grow
    pub(crate) limited_to: u64,
    /// since the timer was set last the first segment went out again
    pub(crate) head_resent: bool,
    /// and new data did
    pub(crate) sent_new: bool,
    /// and something was acknowledged
    pub(crate) progress: bool,
    /// and an acknowledgement came that may change it: it is set anew in the connection's turn, or before it is looked at
    pub(crate) unset: bool,
    /// acknowledgements without news in a row, where there is no SACK
    pub(crate) duplicates: u8,
    /// where the recovery under way ends: what was sent when it began
    pub(crate) point: u64,
    /// something that was sent behind there has been lost meanwhile
    pub(crate) lost_beyond: bool,
    /// when data went out last
    pub(crate) sent_at: Instant,
    /// the poll in which data went into the burst last, which what goes at once in the same poll would overtake
    pub(crate) framed_in: u32,
    owner: u32,
    older: u32,
    newer: u32,
    lent: bool,
}

impl Active {
    pub(crate) fn new(algorithm: Algorithm, mss: u16) -> Active {
        Active {
            board: Board::default(),
            list: List::default(),
            congestion: Congestion::new(algorithm, u32::from(mss)),
            prr: None,
            pace: Pace::default(),
            rack: Rack::default(),
            phase: Phase::Open,
            alarm: Alarm::Retransmit,
            spurious: Spurious::No,
            undo: None,
            probe: None,
            wider: None,
            probe_now: false,
            force: false,
            limited_to: 0,
            head_resent: false,
            sent_new: false,
            progress: false,
            unset: false,
            duplicates: 0,
            point: 0,
            lost_beyond: false,
            sent_at: Instant::ZERO,
            framed_in: 0,
            owner: NONE,
            older: NONE,
            newer: NONE,
            lent: false,
        }
    }
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Actives {
    pool: Vec<Active>,
    free: Vec<u32>,
    /// of those that lend, who lent first and who lent last
    oldest: u32,
    newest: u32,
}

impl Actives {
    pub(crate) fn new(blocks: usize, algorithm: Algorithm) -> Actives {
        Actives {
            pool: base::huge::table(blocks, |_| Active::new(algorithm, 536)),
            free: (0..blocks as u32).rev().collect(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Blocks that somebody has, those lent counted.
    pub(crate) fn used(&self) -> usize {
        self.pool.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<&mut Active> {
        self.pool.get_mut(index as usize)
    }

    #[inline]
    pub(crate) fn peek(&self, index: u32) -> Option<&Active> {
        self.pool.get(index as usize)
    }

    /// A block for `owner`: its index, and who lost it for that. None when every block is in use.
    pub(crate) fn take(&mut self, owner: u32, fresh: Active) -> Option<(u32, Option<u32>)> {
        let (index, loser) = match self.free.pop() {
            Some(index) => (index, None),
            None if self.oldest != NONE => {
                let index = self.oldest;
                self.claim(index);
                (index, Some(self.pool[index as usize].owner))
            }
            None => return None,
        };
        self.pool[index as usize] = Active { owner, ..fresh };
        Some((index, loser))
    }

    /// The owner has nothing to send: others may have the block.
    pub(crate) fn lend(&mut self, index: u32) {
        let newest = self.newest;
        let block = &mut self.pool[index as usize];
        if block.lent {
            return;
        }
        (block.lent, block.older, block.newer) = (true, newest, NONE);
        match newest {
            NONE => self.oldest = index,
            newest => self.pool[newest as usize].newer = index,
        }
        self.newest = index;
    }

    /// The owner wants its block for itself again.
    pub(crate) fn claim(&mut self, index: u32) {
        let block = &mut self.pool[index as usize];
        if !block.lent {
            return;
        }
        let (older, newer) = (block.older, block.newer);
        block.lent = false;
        match older {
            NONE => self.oldest = newer,
            older => self.pool[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.pool[newer as usize].older = older,
        }
    }

    /// Whether a block is free without anybody losing one.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The owner goes and takes along what is in its block; whether it was lent.
    pub(crate) fn take_out(&mut self, index: u32) -> (Active, bool) {
        let lent = self.pool[index as usize].lent;
        self.release(index);
        let empty = Active::new(Algorithm::NewReno, 536);
        (std::mem::replace(&mut self.pool[index as usize], empty), lent)
    }

    /// The owner is gone.
    pub(crate) fn release(&mut self, index: u32) {
        self.claim(index);
        self.pool[index as usize].owner = NONE;
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lent_first_loses_its_block_first() {
        let mut pool = Actives::new(3, Algorithm::NewReno);
        let fresh = || Active::new(Algorithm::NewReno, 1000);
        let blocks: Vec<u32> = (0..3).map(|owner| pool.take(owner, fresh()).unwrap().0).collect();
        assert!(pool.take(9, fresh()).is_none());
        for block in [2, 0, 1] {
            pool.lend(blocks[block]);
        }
        pool.claim(blocks[0]);
        assert_eq!(pool.take(7, fresh()), Some((blocks[2], Some(2))));
        assert_eq!(pool.take(8, fresh()), Some((blocks[1], Some(1))));
        assert!(pool.take(9, fresh()).is_none());
        for block in blocks {
            pool.release(block);
        }
        assert_eq!(pool.used(), 0);
    }
}
