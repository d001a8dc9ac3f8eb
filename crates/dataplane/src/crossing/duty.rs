//! Threads that are not needed, and come back.
//!
//! Of the threads of an interface the first so many are *on duty* ([`Owners::on_duty`]); the first always is. Each sees by itself whether
//! it is meant.
//!
//! One that is not needed gives all its groups away, with their connections, to those that are. Where the NIC's table follows, it waits
//! until that brings nothing to its queue any more. What arrives there all the same the first thread takes: it *stands in*, by the lease of
//! [`port::Inlet`]. Then nothing wakes the thread that is off duty but notes of other threads and an empty fill ring, and its
//! processor is free. A group with connections that cannot leave ([`app::Service::can_move`]) stays meanwhile and is served, and the queue
//! with it; whether they have ended is looked at now and then.
//!
//! A queue changes its server so that no frame overtakes another: who has it stops taking, and asks all others, who answer behind the frames
//! that it forwarded to them (a *fence*). With the last answer every frame of the queue is where it belongs, and the next one begins.
//! What arrives meanwhile waits in the receive ring. It goes back in the same way. Who gets it first lets the groups settle that are on
//! their way from there: their new owner takes what comes from there at once, and lets older frames of that queue wait, which had come
//! from its server before. A thread that does not answer is waited for a while and no longer; but the first one, from whom a thread has its
//! queue back, for as long as it takes, unless it is known to hang ([`Owners::hangs`]). Then every thread is on duty, each with its own
//! queue: it takes that by the lease, and the first thread, when it comes round, finds that it does not stand in any more. What that one
//! has taken by then is late.
//!
//! A thread that is on duty again asks each one before it for a share of its groups, once it has its queue. What is uneven then levels
//! out by the balance, but not before the others have shown what they are left with.
//!
//! A port without an inlet keeps its queue: its thread forwards what comes, and sleeps between.

use super::{Crossing, Departure, Note};
use base::{Burst, Instant};
use std::time::Duration;

/// How long a fence is waited for.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a group that could not leave is looked at again.
const STAYS: Duration = Duration::from_millis(100);
/// How often a queue is tried for that the first thread is at, and does not come back from.
const TRIES: Duration = Duration::from_millis(5);
/// After so many frames of a queue its own thread is to fill it up.
const FILL_EVERY: usize = 1024;
/// Who stands in.
const FIRST: u16 = 0;

/// Who has the queue of this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queue {
    /// it has it itself
    #[default]
    Kept,
    /// nobody: it is on its way to the first thread
    Going,
    /// the first thread
    Gone,
    /// the first thread, who is asked for it
    AskedFor,
}

/// A queue that this thread has for another.
#[derive(Debug)]
struct Standing {
    queue: u16,
    /// frames taken since its thread was woken
    taken: usize,
    /// frames that waited there after the last look
    left: usize,
}

/// A queue on its way to another thread.
#[derive(Debug)]
struct Fence {
    queue: u16,
    to: u16,
    /// which of ours it is: a late answer to one does not count for the next of the same queue
    number: u32,
    /// which request of its thread it answers
    asked: u32,
    /// threads that have not answered
    silent: Vec<u16>,
    /// when they are not waited for any more; None until the clock is read
    until: Option<Instant>,
}

/// A queue that this thread is to have.
#[derive(Debug)]
struct Offered {
    queue: u16,
    /// groups that left before and have not settled elsewhere
    leaving: Vec<u16>,
    /// when they are not waited for any more; None until the clock is read
    until: Option<Instant>,
}

/// One thread's part.
#[derive(Debug, Default)]
pub(super) struct Duty {
    /// it serves no groups
    off: bool,
    queue: Queue,
    /// it has not yet asked for a share
    returns: bool,
    /// how often it has asked for its queue
    requests: u32,
    standing: Vec<Standing>,
    fences: Vec<Fence>,
    /// fences since the start
    set: u32,
    offered: Vec<Offered>,
    /// who wants a share
    asked: Vec<u16>,
    /// something has happened since the last look, so that there may be a next step
    again: bool,
    /// when there will be
    later: Option<Instant>,
    /// a group could not leave, and is not asked to before
    stays_until: Option<Instant>,
}

impl Duty {
    /// Whether it serves groups.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.off
    }

    /// Whether others want their shares.
    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether there is nothing to be done about it.
    #[inline]
    fn is_settled(&self) -> bool {
        !self.off && !self.returns && self.queue == Queue::Kept && self.fences.is_empty() && self.offered.is_empty()
    }

    #[inline]
    pub(super) fn on_note(&mut self) {
        self.again = !self.is_settled();
    }

    #[inline]
    pub(super) fn wants_another_look(&self) -> bool {
        self.again && !self.is_settled()
    }

    #[cfg(test)]
    pub(super) fn fences_silent(&self) -> Vec<Vec<u16>> {
        self.fences.iter().map(|fence| fence.silent.clone()).collect()
    }

    /// When there is something to do though nothing comes.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waited_for = self.fences.iter().map(|it| it.until).chain(self.offered.iter().map(|it| it.until));
        waited_for.map(|until| until.unwrap_or(Instant::ZERO)).chain(self.later).min()
    }
}

impl Crossing {
    /// Whether this thread serves groups, or is to.
    pub(super) fn is_on_duty(&self) -> bool {
        usize::from(self.me) < self.owners.on_duty()
    }

    /// Whether this thread is not needed.
    pub(crate) fn is_off_duty(&self) -> bool {
        self.duty.off
    }

    /// Whether what arrives at this thread's queue is its own to take.
    #[inline]
    pub(crate) fn has_queue(&self) -> bool {
        self.duty.queue == Queue::Kept
    }

    /// Queues of others that this thread serves.
    pub(crate) fn standing(&self) -> arrayvec::ArrayVec<u16, { crate::MOST_THREADS }> {
        self.duty.standing.iter().map(|standing| standing.queue).collect()
    }

    #[inline]
    pub(crate) fn stands_in(&self) -> bool {
        !self.duty.standing.is_empty()
    }

    /// Frames that waited at queues of others at the last look.
    #[inline]
    pub(super) fn waits_elsewhere(&self) -> usize {
        self.duty.standing.iter().map(|standing| standing.left).sum()
    }

    /// Looks whether the thread is needed, with so many frames that wait at its port.
    #[inline]
    pub(super) fn attend(&mut self, now: Instant, waiting: usize) {
        if !self.is_on_duty() || !self.duty.is_settled() {
            self.attend_to_change(now, waiting);
        }
    }

    #[cold]
    fn attend_to_change(&mut self, now: Instant, waiting: usize) {
        self.duty.again = false;
        self.duty.later = None;
        self.look_at_fences(now);
        self.look_at_offers(now);
        let on = self.is_on_duty();
        if on == self.duty.off {
            self.duty.off = !on;
            self.duty.returns = on;
            self.duty.stays_until = None;
            // what was to go elsewhere is thought over
            self.departures.clear();
            if !on {
                self.wishes.clear();
                self.stop_helping();
                self.balance.iter().for_each(crate::balance::Balance::rest);
                self.counters.busy.set(0);
                self.counters.backlog.set(0);
            }
        }
        if on {
            self.come_back(now);
        } else {
            self.go(now, waiting);
        }
    }

    fn come_back(&mut self, now: Instant) {
        match self.duty.queue {
            Queue::Kept if self.duty.returns => {
                self.duty.returns = false;
                // others were shut out, perhaps, while something that they had put aside kept the queue here
                self.let_in();
                // what is known of the others includes what is on its way here
                self.balance.iter_mut().for_each(|balance| balance.shares(now));
                let me = self.me;
                (0..me).for_each(|other| self.note_once(other, Note::Share { by: me }));
            }
            Queue::Gone => {
                self.duty.queue = Queue::AskedFor;
                self.duty.requests = self.duty.requests.wrapping_add(1);
                self.note(FIRST, Note::Back { queue: self.me, asked: self.duty.requests });
                self.take_from_who_hangs(now);
            }
            Queue::AskedFor => self.take_from_who_hangs(now),
            Queue::Kept | Queue::Going => {}
        }
    }

    /// The queue that was asked for is ours again if the first thread hangs, and not just at it.
    fn take_from_who_hangs(&mut self, now: Instant) {
        if !self.owners.hangs(FIRST) {
            return;
        }
        if self.break_in() {
            self.counters.hurried.add(1);
            self.duty.queue = Queue::Kept;
            self.duty.again = true;
        } else {
            self.duty.later = Some(now + TRIES);
        }
    }

    fn go(&mut self, now: Instant, waiting: usize) {
        if self.departures.is_empty() && self.mine.contains(&true) {
            match self.duty.stays_until.filter(|until| now < *until) {
                None => self.deal_out(now),
                until => self.duty.later = until,
            }
        }
        if self.duty.queue != Queue::Kept || !self.can_be_stood_for() || !self.has_nothing() {
            return;
        }
        if self.owners.hangs(FIRST) {
            self.duty.later = Some(now + STAYS);
            return;
        }
        // what has arrived at the queue of groups whose entries have turned is older than what arrives at their new one
        let turned_at = self.turner.as_ref().map_or(Some(now), super::Turner::done_at);
        let Some(turned_at) = turned_at else { return };
        if now < turned_at {
            self.duty.later = Some(turned_at);
            return;
        }
        if (waiting == 0 || self.turner.is_none()) && self.shut_out() {
            self.duty.queue = Queue::Going;
            self.fence(self.me, FIRST, 0);
        } else {
            self.duty.again = true;
        }
    }

    /// A group that was to leave has something that cannot.
    pub(crate) fn on_stay(&mut self, now: Instant) {
        self.duty.stays_until = Some(now + STAYS);
    }

    /// Whether no group is here, on its way here, or still to be forwarded from here.
    fn has_nothing(&self) -> bool {
        self.departures.is_empty()
            && self.coming.is_empty()
            && self.leaving.is_empty()
            && self.arrivals.is_empty()
            && self.replayed.is_empty()
            // who hangs is told when he comes round
            && self.unsent.iter().all(|(to, _)| self.is_stuck(*to))
            && self.owners.count(self.me) == 0
    }

    /// Gives every group to one of those on duty that come round, whoever has the least then.
    fn deal_out(&mut self, now: Instant) {
        let balance = self.balance.as_ref();
        let seen = |thread: u16| u64::from(balance.map_or(0, |balance| balance.shown_by(usize::from(thread))));
        let on_duty = (0..self.owners.on_duty() as u16).filter(|thread| !self.is_stuck(*thread));
        let mut loads: Vec<(u16, u64)> = on_duty.map(|thread| (thread, seen(thread))).collect();
        if loads.is_empty() {
            self.on_stay(now);
            self.duty.later = self.duty.stays_until;
            return;
        }
        for group in (0..self.mine.len()).map(|group| group as u16) {
            let Some((to, load)) = loads.iter_mut().min_by_key(|(_, load)| *load) else { return };
            if self.may_depart(group, *to) {
                // one without a frame counts too, lest all of those go to one thread
                *load += 1 + u64::from(balance.map_or(0, |balance| balance.weight(group)));
                self.departures.push_back(Departure { group, to: *to });
            }
        }
    }

    /// A thread wants a share. It may have gone and come back a thousand times while this one did not come round: what is found of that
    /// at once counts as one.
    pub(super) fn on_share(&mut self, by: u16) {
        if !self.duty.asked.contains(&by) {
            self.duty.asked.push(by);
        }
    }

    /// Gives those their shares who have asked since the last time.
    #[cold]
    pub(super) fn share_out(&mut self) {
        for by in std::mem::take(&mut self.duty.asked) {
            // one that has gone since asks again
            if !self.duty.off && usize::from(by) < self.owners.on_duty() {
                self.share(by);
            }
        }
    }

    /// A thread that is on duty again gets as large a part of our groups as it and all before it are to have: those whose frames come to
    /// its queue first, so that they cross over no longer.
    fn share(&mut self, by: u16) {
        let weight = |group: &u16| self.balance.as_ref().map_or(0, |balance| balance.weight(*group));
        // one without a frame counts too, lest all of those stay
        let sum = |groups: &[u16]| groups.iter().map(|group| 1 + u64::from(weight(group))).sum::<u64>();
        let mut goes = vec![false; self.mine.len()];
        self.departures.iter().for_each(|departure| goes[usize::from(departure.group)] = true);
        let ours = (0..self.mine.len()).map(|group| group as u16);
        let ours = ours.filter(|group| self.may_depart(*group, by) && !goes[usize::from(*group)]);
        let (mut theirs, mut others): (Vec<u16>, Vec<u16>) = ours.partition(|group| self.is_brought_to(*group, by));
        others.sort_by_key(|group| std::cmp::Reverse(weight(group)));
        let (at_theirs, elsewhere) = (sum(&theirs), sum(&others));
        let missing = ((at_theirs + elsewhere) / (u64::from(by) + 1)).saturating_sub(at_theirs);
        if let Some(every) = elsewhere.checked_div(missing) {
            // every so manieth of the others, from the heaviest on
            let every = every.max(1) as usize;
            theirs.extend(others.into_iter().skip(every / 2).step_by(every));
        }
        // only so many leave between two bursts: those first that make most difference
        theirs.sort_by_key(|group| std::cmp::Reverse(weight(group)));
        self.departures.extend(theirs.into_iter().map(|group| Departure { group, to: by }));
    }

    /// Whether the NIC brings a group's frames to the queue of `thread`, as far as is known.
    pub(super) fn is_brought_to(&self, group: u16, thread: u16) -> bool {
        self.turner.as_ref().map_or_else(|| self.owners.home(group), |turner| turner.queue(group)) == thread
    }

    fn fence(&mut self, queue: u16, to: u16, asked: u32) {
        let silent: Vec<u16> = (0..self.owners.threads() as u16).filter(|thread| *thread != self.me).collect();
        self.duty.set = self.duty.set.wrapping_add(1);
        let number = self.duty.set;
        silent.iter().for_each(|other| self.note(*other, Note::Fence { queue, number }));
        self.duty.fences.push(Fence { queue, to, number, asked, silent, until: None });
    }

    pub(super) fn take_fenced(&mut self, from: u16, queue: u16, number: u32) {
        let is = |fence: &Fence| fence.queue == queue && fence.number == number;
        let Some(at) = self.duty.fences.iter().position(is) else { return };
        let silent = &mut self.duty.fences[at].silent;
        silent.retain(|thread| *thread != from);
        if silent.is_empty() {
            self.hand_over(at);
        }
    }

    /// Those that were not answered for long are done: what has not been taken by then is late already.
    fn look_at_fences(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.duty.fences.len() {
            if now < *self.duty.fences[at].until.get_or_insert(now + PATIENCE) {
                at += 1;
            } else {
                self.counters.hurried.add(1);
                self.hand_over(at);
            }
        }
    }

    fn hand_over(&mut self, at: usize) {
        let Fence { queue, to, asked, .. } = self.duty.fences.swap_remove(at);
        if queue == self.me {
            self.duty.queue = Queue::Gone;
            self.duty.again = true;
        }
        self.note(to, Note::Queue { queue, asked });
    }

    /// The queue is this thread's to serve, soon.
    pub(super) fn offer_queue(&mut self, queue: u16, asked: u32) {
        let waits = self.duty.queue == Queue::AskedFor && self.duty.requests == asked;
        if queue == self.me && !waits {
            return; // it was not waited for
        }
        let leaving = self.leaving.iter().map(|leaving| leaving.group).collect();
        self.duty.offered.push(Offered { queue, leaving, until: None });
        self.duty.again = true;
    }

    fn look_at_offers(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.duty.offered.len() {
            let Offered { queue, leaving, until } = &mut self.duty.offered[at];
            let late = now >= *until.get_or_insert(now + PATIENCE);
            let queue = *queue;
            if !late && self.leaving.iter().any(|it| leaving.contains(&it.group)) {
                at += 1;
                continue;
            }
            self.counters.hurried.add(u64::from(late));
            self.duty.offered.swap_remove(at);
            self.take_queue(queue);
        }
    }

    fn take_queue(&mut self, queue: u16) {
        if queue == self.me {
            self.let_in();
            self.duty.queue = Queue::Kept;
            self.duty.again = true;
        } else {
            self.duty.standing.push(Standing { queue, taken: 0, left: 0 });
            self.watch(queue, true);
        }
    }

    /// Its own thread wants a queue back.
    pub(super) fn give_back(&mut self, queue: u16, asked: u32) {
        if let Some(at) = self.duty.offered.iter().position(|offered| offered.queue == queue) {
            self.duty.offered.swap_remove(at);
        } else if let Some(at) = self.duty.standing.iter().position(|standing| standing.queue == queue) {
            self.duty.standing.swap_remove(at);
            self.watch(queue, false);
        } else {
            return;
        }
        self.fence(queue, queue, asked);
        self.duty.again = true;
    }

    /// Sorts what has arrived at the queue of a thread that is off duty, as that one would; `left` wait there still.
    pub(super) fn sort_for_absent(
        &mut self,
        queue: u16,
        received: &mut Burst,
        left: usize,
        rx: &mut Burst,
        lost: &mut Burst,
    ) {
        if let Some(standing) = self.duty.standing.iter_mut().find(|standing| standing.queue == queue) {
            standing.left = left;
            standing.taken += received.len();
            if standing.taken >= FILL_EVERY {
                standing.taken = 0;
                self.touched[usize::from(queue)] = true;
            }
        }
        // by a way of its own: the other thread may still forward older ones of a group that came to it since
        let way = Some(self.me);
        for frame in received.drain(..) {
            match self.owners.group(frame.bytes()) {
                None => rx.push(frame),
                Some(group) => self.place(group, frame, way, rx, lost),
            }
        }
    }
}
