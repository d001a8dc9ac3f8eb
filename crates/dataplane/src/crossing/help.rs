//! Frames that wait at a thread which is held up.
//!
//! A thread that shares its processor with other work cannot forward what arrives for groups that have left it. So the thread that
//! takes groups over from it also takes frames from its port, with the lease of [`port::Inlet`]: its own stay with it, the others
//! are put aside, and the port's thread takes them before what its port has. One thread helps another at a time, from when it
//! first asks for groups until the helped one is held up no longer.
//!
//! Order holds since all of it is done under the lease, the sorting of what the port's thread receives itself too. The helper keeps
//! frames of groups that are settled with it, as if the other had sent them over the ring, when that ring is empty; a group of which
//! frames were put aside goes on being put aside until none are.

use super::Crossing;
use base::{Burst, CacheAligned, Frame};
use port::{Inlet, Port, Waiting};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NOBODY: u16 = u16::MAX;
/// Its queue is another thread's for now, so there is nothing to help with.
const STOOD_FOR: u16 = u16::MAX - 1;
/// Frames put aside for a thread at most; the next wait in its port.
pub(super) const MOST_ASIDE: usize = 2048;

/// The receive sides of all threads' ports, and who helps whom.
#[derive(Debug)]
pub(crate) struct Helpers(Box<[Seat]>);

/// One thread that may be helped.
#[derive(Debug)]
struct Seat {
    /// written by who begins to help, and by the helped one when it is over
    helper: CacheAligned<AtomicU16>,
    inlet: Option<Arc<dyn Inlet>>,
    aside: Mutex<Aside>,
    /// frames in it, to be looked at without the lock
    frames_aside: AtomicUsize,
}

/// What was put aside; used with the inlet's lease alone, which the lock stands for.
#[derive(Debug)]
struct Aside {
    frames: VecDeque<Frame>,
    /// whether frames of a group may be among them
    groups: Box<[bool]>,
}

impl Helpers {
    /// Of threads whose ports have these receive sides, and so many flow groups.
    pub(crate) fn new(groups: usize, inlets: impl IntoIterator<Item = Option<Arc<dyn Inlet>>>) -> Arc<Helpers> {
        let seat = |inlet: Option<Arc<dyn Inlet>>| {
            // nothing is put aside where nobody helps, and nothing grows on the packet path where somebody does
            let frames = VecDeque::with_capacity(if inlet.is_some() { MOST_ASIDE } else { 0 });
            let aside = Mutex::new(Aside { frames, groups: vec![false; groups].into() });
            Seat { helper: CacheAligned(AtomicU16::new(NOBODY)), inlet, aside, frames_aside: AtomicUsize::new(0) }
        };
        Arc::new(Helpers(inlets.into_iter().map(seat).collect()))
    }

    fn helper(&self, of: u16) -> u16 {
        self.0[usize::from(of)].helper.load(Ordering::Relaxed)
    }
}

impl Seat {
    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one thread does for others.
#[derive(Debug)]
pub(super) struct Helping {
    all: Arc<Helpers>,
    victims: Vec<u16>,
    /// tells when something waits at one of them; made when it is first needed
    epoll: Option<OwnedFd>,
    /// something waits that cannot be taken now
    blocked: bool,
    /// those whose ports have not taken the wish to be told of arrivals
    unwatched: Vec<u16>,
}

impl Helping {
    pub(super) fn new(all: Arc<Helpers>) -> Helping {
        Helping { all, victims: Vec::new(), epoll: None, blocked: false, unwatched: Vec::new() }
    }

    fn is_blocked(&self) -> bool {
        self.blocked || !self.unwatched.is_empty()
    }
}

impl Crossing {
    /// The receive side of this thread's port, where others may help.
    pub(crate) fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.helping.all.0[usize::from(self.me)].inlet.clone()
    }

    /// Begins to help a thread that is held up, unless somebody does.
    pub(super) fn offer(&mut self, to: u16) {
        let seat = &self.helping.all.0[usize::from(to)];
        if seat.inlet.is_none() || self.is_off_duty() {
            return;
        }
        let helper = &seat.helper.0;
        if helper.compare_exchange(NOBODY, self.me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.helping.victims.push(to);
            self.watch(to, true);
        }
    }

    /// At the end of an interval, with whether this thread is held up itself.
    pub(super) fn review_help(&mut self, held_up: bool) {
        if !held_up {
            self.release_helper();
        }
        for queue in self.standing() {
            self.watch(queue, true);
        }
        for victim in std::mem::take(&mut self.helping.victims) {
            let ours = self.helping.all.helper(victim) == self.me;
            // asked for again and again: a port may have been made anew
            self.watch(victim, ours);
            if ours {
                self.helping.victims.push(victim);
            }
        }
    }

    /// Helps nobody any more: a thread that is not needed looks at no interval's end whether it still should.
    pub(super) fn stop_helping(&mut self) {
        for victim in std::mem::take(&mut self.helping.victims) {
            let helper = &self.helping.all.0[usize::from(victim)].helper.0;
            let _ = helper.compare_exchange(self.me, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
            self.watch(victim, false);
        }
    }

    /// Nobody is to help this thread any more, or yet.
    fn release_helper(&self) {
        let helper = &self.helping.all.0[usize::from(self.me)].helper;
        if helper.load(Ordering::Relaxed) != STOOD_FOR {
            helper.store(NOBODY, Ordering::Relaxed);
        }
    }

    /// Keeps others from taking anything at our port from now on; false when they have put something aside, or have it just now.
    pub(super) fn shut_out(&mut self) -> bool {
        let seat = &self.helping.all.0[usize::from(self.me)];
        let mut is_empty = false;
        let work = &mut |_: &mut dyn Waiting| {
            // with the lease: who has looked before has put aside what it took
            seat.helper.store(STOOD_FOR, Ordering::Relaxed);
            is_empty = seat.frames_aside.load(Ordering::Relaxed) == 0;
        };
        seat.inlet.as_ref().is_some_and(|inlet| inlet.lease(work)) && is_empty
    }

    /// The queue is ours again, or still: others may help.
    pub(super) fn let_in(&mut self) {
        let helper = &self.helping.all.0[usize::from(self.me)].helper;
        let _ = helper.compare_exchange(STOOD_FOR, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Takes the own queue from who stands in; false when that one has its lease just now.
    pub(super) fn break_in(&mut self) -> bool {
        let seat = &self.helping.all.0[usize::from(self.me)];
        // with the lease, with which that one sees whether it stands in
        let work = &mut |_: &mut dyn Waiting| seat.helper.store(NOBODY, Ordering::Relaxed);
        seat.inlet.as_ref().is_some_and(|inlet| inlet.lease(work))
    }

    #[cfg(test)]
    pub(super) fn is_stood_for(&self, queue: u16) -> bool {
        self.helping.all.helper(queue) == STOOD_FOR
    }

    #[cfg(test)]
    pub(super) fn set_put_aside(&self, frames: usize) {
        self.helping.all.0[usize::from(self.me)].frames_aside.store(frames, Ordering::Relaxed);
    }

    /// Whether another thread can receive at our port.
    pub(super) fn can_be_stood_for(&self) -> bool {
        self.helping.all.0[usize::from(self.me)].inlet.is_some()
    }

    /// Takes up to `limit` frames that have arrived at the queue of a thread that is off duty, and appends this thread's own to `rx`; what
    /// finds no way to its owner is appended to `lost`. How many were taken.
    pub(crate) fn stand_in<P: Port>(
        &mut self,
        queue: u16,
        rx: &mut Burst,
        received: &mut Burst,
        limit: usize,
        lost: &mut Burst,
        port: &mut P,
    ) -> usize {
        let all = self.helping.all.clone();
        let Some(inlet) = &all.0[usize::from(queue)].inlet else { return 0 };
        let (mut seen, mut left) = (0, 0);
        let work = &mut |waiting: &mut dyn Waiting| {
            if all.helper(queue) != STOOD_FOR {
                return; // its thread has it back
            }
            seen = waiting.receive(received, limit, &mut |frame| port.give(frame));
            left = waiting.waiting();
        };
        self.helping.blocked |= !inlet.lease(work) || limit == 0;
        self.sort_for_absent(queue, received, left, rx, lost);
        seen
    }

    /// Has what arrives at another thread's port end our sleep, or no longer. A port that does not take the wish is asked again before the
    /// ports of others are looked at, and sleeps are short until it does.
    pub(super) fn watch(&mut self, of: u16, on: bool) {
        let Helping { all, epoll, unwatched, .. } = &mut self.helping;
        if epoll.is_none() {
            *epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        }
        unwatched.retain(|queue| *queue != of);
        let Some(inlet) = &all.0[usize::from(of)].inlet else { return };
        if !epoll.as_ref().is_some_and(|epoll| inlet.watch(epoll.as_fd(), on)) && on {
            unwatched.push(of);
        }
    }

    #[cold]
    fn watch_again(&mut self) {
        std::mem::take(&mut self.helping.unwatched).into_iter().for_each(|of| self.watch(of, true));
    }

    /// What to poll for frames at the helped threads' ports, before a sleep; None when there are none.
    pub(crate) fn elsewhere(&self) -> Option<BorrowedFd<'_>> {
        let Helping { victims, epoll: Some(epoll), .. } = &self.helping else { return None };
        (!self.helping.is_blocked() && (!victims.is_empty() || self.stands_in())).then(|| epoll.as_fd())
    }

    /// Before the ports of others are looked at.
    #[inline]
    pub(super) fn look_anew(&mut self) {
        self.helping.blocked = false;
        if !self.helping.unwatched.is_empty() {
            self.watch_again();
        }
    }

    /// Whether frames wait elsewhere that could not be taken at the last look, or may arrive there unnoticed, or something waits for room to
    /// other threads.
    pub(crate) fn is_blocked(&self) -> bool {
        self.helping.is_blocked() || self.waits_for_room()
    }

    /// Frames that others have put aside for this thread.
    #[inline]
    pub(super) fn put_aside(&self) -> usize {
        self.helping.all.0[usize::from(self.me)].frames_aside.load(Ordering::Relaxed)
    }

    /// Under the lease of this thread's own port: takes up to `limit` of what was put aside; the port may be asked when that is less.
    pub(crate) fn take_aside(&mut self, into: &mut Burst, limit: usize) -> usize {
        if self.put_aside() == 0 {
            return 0;
        }
        let seat = &self.helping.all.0[usize::from(self.me)];
        let mut aside = seat.aside();
        let n = limit.min(aside.frames.len());
        into.extend(aside.frames.drain(..n));
        if aside.frames.is_empty() {
            aside.groups.fill(false);
        }
        seat.frames_aside.store(aside.frames.len(), Ordering::Relaxed);
        n
    }

    /// Takes frames from the ports of threads that are held up, until `rx` has `limit`: this thread's own are appended to it. How many
    /// were seen. `port` is this thread's, whose free frames replace them.
    pub(crate) fn help<P: Port>(&mut self, rx: &mut Burst, received: &mut Burst, limit: usize, port: &mut P) -> usize {
        let mut seen = 0;
        for at in 0..self.helping.victims.len() {
            let victim = self.helping.victims[at];
            let all = self.helping.all.clone();
            let Some(inlet) = &all.0[usize::from(victim)].inlet else { continue };
            let mut work = |waiting: &mut dyn Waiting| {
                let room = self.room_to_help(victim).min(limit.saturating_sub(rx.len()));
                // as many as came from there are given for them: this thread needs frames to send, too
                let mut taken = waiting.receive(received, room, &mut |frame| port.give(frame));
                seen += taken;
                self.sort_for(victim, received, rx);
                waiting.refill(&mut || {
                    taken = taken.checked_sub(1)?;
                    port.take()
                });
                self.helping.blocked |= room == 0;
            };
            self.helping.blocked |= !inlet.lease(&mut work);
        }
        seen
    }

    #[cfg(test)]
    pub(super) fn helps_nobody(&self) -> bool {
        let helps = |seat: &Seat| seat.helper.load(Ordering::Relaxed) == self.me;
        self.helping.victims.is_empty() && !self.helping.all.0.iter().any(helps)
    }

    /// Under the lease of `victim`'s port: how many frames may be taken there.
    pub(super) fn room_to_help(&mut self, victim: u16) -> usize {
        let is_ours = self.helping.all.helper(victim) == self.me;
        let older = self.into[usize::from(victim)].as_mut().is_none_or(|ring| ring.waiting(1) > 0);
        if !is_ours || older || !self.replayed.is_empty() {
            return 0;
        }
        MOST_ASIDE.saturating_sub(self.helping.all.0[usize::from(victim)].frames_aside.load(Ordering::Relaxed))
    }

    /// Under the lease: keeps the own frames of those that were taken, and puts the others aside.
    pub(super) fn sort_for(&mut self, victim: u16, received: &mut Burst, rx: &mut Burst) {
        let Crossing { helping, owners, mine, balance, counters, touched, .. } = self;
        let seat = &helping.all.0[usize::from(victim)];
        let mut aside = seat.aside();
        for frame in received.drain(..) {
            let group = owners.group(frame.bytes()).map(usize::from);
            if let Some(group) = group.filter(|group| mine[*group] && !aside.groups[*group]) {
                if let Some(balance) = balance {
                    balance.took(group as u16);
                }
                counters.helped.add(1);
                rx.push(frame);
            } else {
                group.into_iter().for_each(|group| aside.groups[group] = true);
                aside.frames.push_back(frame);
                touched[usize::from(victim)] = true;
                counters.passed.add(1);
            }
        }
        seat.frames_aside.store(aside.frames.len(), Ordering::Relaxed);
    }

    /// A group of ours that `victim` gave does not wait for what we have put aside for that one, who does not come round.
    pub(super) fn take_past_aside(&self, victim: u16, group: u16) {
        if self.helping.all.helper(victim) == self.me {
            self.helping.all.0[usize::from(victim)].aside().groups[usize::from(group)] = false;
        }
    }

    /// Every frame that was put aside for this thread, at the end.
    pub(super) fn clear_aside(&mut self, give: impl FnMut(Frame)) {
        let seat = &self.helping.all.0[usize::from(self.me)];
        let mut aside = seat.aside();
        seat.frames_aside.store(0, Ordering::Relaxed);
        aside.frames.drain(..).for_each(give);
    }
}
