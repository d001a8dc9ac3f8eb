//! Frames keep their order while the NIC's table follows a group.
//!
//! A group has settled with its thread, and the NIC still brings it to the queue of another, which forwards it.
//!
//! 1. The owner turns it: from now on what other threads forward is taken at once, and what comes by the own queue waits, since it
//!    is younger (but for TCP's pure acknowledgements, which may overtake, and for which senders' timers wait). Then it wishes for its queue in the table ([`Steering`]). Nothing has changed until that is written, and a wish that
//!    is refused ends here, with nothing lost.
//! 2. When it is written, which the writer says or a frame by the own queue shows while that is being done, the owner tells the thread of the old queue. That one waits until the device has passed on what it had
//!    hashed before the write (a time: [`Steering::grace`]), notes how many frames are in its receive ring by then, and when it has gone
//!    through so many, or has found the ring empty, everything old is in the ring to the owner. It says so behind that.
//! 3. The owner takes what waited, and from then on what comes by its own queue. The group is settled when the writer has answered, too.
//!
//! A thread that does not answer, because it hangs or may not run, is waited for a while and no longer: what it has is late already.
//! A group that is being turned stays with its thread; that takes milliseconds.

use super::{Coming, Crossing, Note};
use crate::steering::{Answer, Steering};
use base::Instant;
use base::balance::Turn;
use std::sync::Arc;
use std::time::Duration;
use wire::flow::is_plain;

/// How long the thread of the old queue may take to answer, beside the grace.
const PATIENCE: Duration = Duration::from_millis(50);
/// So long after a write the table is not judged by: packets may be on their way that were hashed before.
const QUIET: Duration = Duration::from_millis(50);
/// Frames that are looked at before the table is judged, and the part of them that may be where they should not.
const JUDGED_FRAMES: u32 = 1024;
const UNTRUE_PART: u32 = 16;

/// How far a group has turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turns {
    /// what comes by another way than the own queue is taken; nothing has come by that
    Quiet,
    /// something has, so the NIC brings it here
    Begun,
    /// nothing older will come, and everything is taken
    Open,
}

/// A group of ours whose entry is to name our queue.
#[derive(Debug)]
struct Turning {
    group: u16,
    /// whose queue it names, or named
    from: u16,
    number: u32,
    /// the writer has answered
    answered: bool,
    /// when the thread of the old queue is not waited for any more; None until it is told
    until: Option<Instant>,
    /// it is not: nothing older will come
    open: bool,
}

/// A group that the NIC does not bring to our queue any more.
#[derive(Debug)]
struct Draining {
    group: u16,
    to: u16,
    number: u32,
    /// when everything old is in the receive ring; None until the clock is read
    at: Option<Instant>,
    /// by then so many frames, of all since the start, will have been taken from it
    last: Option<u64>,
}

/// One thread's part.
#[derive(Debug)]
pub(super) struct Turner {
    me: u16,
    steering: Arc<Steering>,
    turning: Vec<Turning>,
    number: u32,
    draining: Vec<Draining>,
    /// groups that were drained since the last write
    drained: Vec<u16>,
    /// frames taken from the own queue
    taken: u64,
    /// writes that were seen, and until when that is new
    writes: u32,
    quiet_until: Instant,
    trusts: bool,
    lengthened: bool,
    /// of this many frames so many came where they should not
    judged: u32,
    untrue: u32,
}

impl Turner {
    pub(super) fn new(me: u16, steering: Arc<Steering>) -> Turner {
        Turner {
            me,
            steering,
            turning: Vec::new(),
            number: 0,
            draining: Vec::new(),
            drained: Vec::new(),
            taken: 0,
            writes: 0,
            quiet_until: Instant::ZERO,
            trusts: false,
            lengthened: false,
            judged: 0,
            untrue: 0,
        }
    }

    /// The queue that the table names for a group.
    pub(super) fn queue(&self, group: u16) -> u16 {
        self.steering.queue(group)
    }

    /// Frames came by the own queue.
    #[inline]
    pub(super) fn took(&mut self, frames: usize) {
        self.taken += frames as u64;
        if self.trusts {
            self.judged += frames as u32;
        }
    }

    #[inline]
    fn look(&mut self, now: Instant) {
        if self.writes != self.steering.writes() {
            self.writes = self.steering.writes();
            self.quiet_until = now + QUIET;
            self.lengthened = false;
            self.judged = 0;
            self.untrue = 0;
        }
        self.trusts = now >= self.quiet_until;
        if self.trusts && !self.drained.is_empty() {
            self.drained.clear();
        }
        if self.judged >= JUDGED_FRAMES {
            self.judge();
        }
    }

    #[cold]
    fn judge(&mut self) {
        if self.untrue > self.judged / UNTRUE_PART {
            self.steering.is_untrue();
        }
        (self.judged, self.untrue) = (0, 0);
    }

    /// Whether the NIC may bring a group here already, though the writer has not said so. Before that, what comes is left from when
    /// it did so the last time.
    pub(super) fn is_writing(&self, group: u16) -> bool {
        self.steering.is_writing(group)
    }

    /// A frame of another's group came by the own queue.
    pub(super) fn on_foreign(&mut self, group: u16, frame: &[u8]) {
        let steering = &self.steering;
        let expected = steering.queue(group) == self.me || self.draining.iter().any(|it| it.group == group);
        if expected || !steering.follows() || !is_plain(frame) {
            return;
        }
        let strays = steering.strays(self.me);
        if self.trusts {
            strays.untrue.add(1);
            self.untrue += 1;
        } else if self.drained.contains(&group) {
            strays.late.add(1);
            if !std::mem::replace(&mut self.lengthened, true) {
                steering.lengthen_grace();
            }
        }
    }

    /// From when on the NIC brings nothing to our queue any more, as far as can be told; None while something is still to be done for that.
    pub(super) fn done_at(&self) -> Option<Instant> {
        let steering = &self.steering;
        let is_named = || (0..steering.entries()).any(|entry| steering.queue(entry as u16) == self.me);
        let done = self.turning.is_empty() && self.draining.is_empty() && !(steering.follows() && is_named());
        // what was hashed before the last write may be on its way, and who has the group may not have asked yet
        done.then_some(self.quiet_until)
    }

    /// When there is something to do though nothing comes; nothing before arrivals are taken again if they are `left` at the device.
    fn next_at(&self, left: bool) -> Option<Instant> {
        let drains = self.draining.iter().filter(|it| !left || it.last.is_none());
        let drains = drains.map(|it| it.at.filter(|_| it.last.is_none()).unwrap_or(Instant::ZERO));
        drains.chain(self.turning.iter().filter(|it| !it.open).filter_map(|it| it.until)).min()
    }
}

impl Crossing {
    /// When the thread has something to do here though nothing comes.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let turns = self.turner.as_ref().and_then(|turner| turner.next_at(self.leaves_arrivals()));
        turns.into_iter().chain(self.duty.next_at()).chain(self.leaving_until()).chain(self.coming_until()).min()
    }

    /// A group of ours has settled: if the NIC brings it elsewhere, it is to bring it here.
    pub(super) fn turn(&mut self, group: u16) {
        let Some(turner) = &mut self.turner else { return };
        let from = turner.steering.queue(group);
        if from == self.me || !turner.steering.follows() {
            return;
        }
        turner.drained.retain(|drained| *drained != group);
        turner.number = turner.number.wrapping_add(1);
        turner.turning.push(Turning { group, from, number: turner.number, answered: false, until: None, open: false });
        self.mine[usize::from(group)] = false;
        self.coming.push(Coming::new(group, Some(Turns::Quiet)));
        turner.steering.wish(Turn { entry: group, queue: self.me });
        turner.steering.wake();
    }

    /// Looks at wishes and drains, with so many frames that wait in the port.
    #[inline]
    pub(super) fn follow_up(&mut self, now: Instant, waiting: usize) {
        let Some(turner) = &mut self.turner else { return };
        turner.look(now);
        if !turner.turning.is_empty() || !turner.draining.is_empty() {
            self.advance(now, waiting);
        }
    }

    #[cold]
    fn advance(&mut self, now: Instant, waiting: usize) {
        let Some(turner) = &mut self.turner else { return };
        let (mut turning, mut draining) = (std::mem::take(&mut turner.turning), std::mem::take(&mut turner.draining));
        turning.retain_mut(|turning| self.is_turning(now, turning));
        draining.retain_mut(|draining| self.is_draining(now, waiting, draining));
        if let Some(turner) = &mut self.turner {
            (turner.turning, turner.draining) = (turning, draining);
        }
    }

    fn is_turning(&mut self, now: Instant, turning: &mut Turning) -> bool {
        let Some(turner) = &self.turner else { return false };
        let &mut Turning { group, from, number, .. } = turning;
        let mut written = false;
        if !turning.answered {
            let answer = turner.steering.answered(group);
            turning.answered = answer != Answer::Pending;
            written = answer == Answer::Done;
        }
        let begun = |coming: &Coming| coming.group == group && coming.turns == Some(Turns::Begun);
        match turning.until {
            // nothing has changed, and nothing will
            None if turning.answered && !written => self.has_turned(group, true),
            None if written || self.coming.iter().any(begun) => {
                turning.until = Some(now + PATIENCE + turner.steering.grace());
                self.note(from, Note::Turned { group, number });
                true
            }
            None => true,
            Some(_) if turning.open => !turning.answered || self.has_turned(group, true),
            Some(until) if now < until => true,
            Some(_) => {
                turning.open = true;
                turner.steering.strays(self.me).unanswered.add(1);
                self.has_turned(group, turning.answered)
            }
        }
    }

    fn is_draining(&mut self, now: Instant, waiting: usize, draining: &mut Draining) -> bool {
        let Some(turner) = &mut self.turner else { return false };
        let grace = turner.steering.grace();
        if now < *draining.at.get_or_insert_with(|| now + grace) {
            return true;
        }
        let last = *draining.last.get_or_insert(turner.taken + waiting as u64);
        if turner.taken < last && waiting > 0 {
            return true;
        }
        let &mut Draining { group, to, number, .. } = draining;
        turner.drained.push(group);
        self.note(to, Note::Drained { group, number });
        false
    }

    /// The NIC brings a group to another's queue from now on.
    pub(super) fn drain(&mut self, to: u16, group: u16, number: u32) {
        if let Some(turner) = &mut self.turner {
            turner.draining.push(Draining { group, to, number, at: None, last: None });
        }
    }

    /// Nothing older will come by the old queue.
    pub(super) fn take_drained(&mut self, group: u16, number: u32) {
        let Some(turner) = &mut self.turner else { return };
        // an answer that is not waited for any more may come yet
        let is = |it: &Turning| it.group == group && it.number == number;
        let Some(at) = turner.turning.iter().position(is) else { return };
        turner.turning[at].open = true;
        let answered = turner.turning[at].answered;
        if answered {
            turner.turning.swap_remove(at);
        }
        self.has_turned(group, answered);
    }

    /// Nothing older than what waits will come. When the writer has `answered` the group may go elsewhere; if not, it is to be looked at
    /// again.
    fn has_turned(&mut self, group: u16, answered: bool) -> bool {
        let Some(at) = self.coming.iter().position(|coming| coming.group == group) else { return false };
        let coming = &mut self.coming[at];
        coming.turns = Some(Turns::Open);
        self.replayed.extend(coming.waiting.drain(..));
        if answered {
            self.coming.swap_remove(at);
            self.mine[usize::from(group)] = true;
        }
        !answered
    }
}
