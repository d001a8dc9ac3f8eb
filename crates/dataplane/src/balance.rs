//! Flow groups move from busy threads to free ones.
//!
//! A thread is busy by its backlog, what waits in its port and in the rings from other threads when it comes to look, as
//! Affinity-Accept judges listeners (`base::balance::Load`): from when the backlog passes a high mark until its moving average
//! falls under a low one. It is busy, too, when it is *held up*, since its processor has other work: when for an eighth of an
//! interval it could have run and did not, or had to wait long whenever it was to run, by the scheduler's own count. Peers that
//! wait for answers before they ask again make no backlog, however late the answers are. Every 100 ms a free
//! thread asks a busy one for relief, in turn where there are several, and is handed flow groups, with their connections.
//!
//! Where this differs from the paper, and why. There a migration reprograms the NIC and cannot take connections along, so one group
//! moves at a time, and stolen connections make up for it. Here a group takes its connections along within microseconds, and
//! its owner knows how many frames each group brought; so as many move as level the two threads.

use crate::pulse::Waits;
use base::balance::{Load, Policy};
use base::{CacheAligned, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A busy thread gives away at least this part of what it takes, so that one that is slow and not loaded is relieved too.
const LEAST_PART: u32 = 16;
/// And this part while it is held up: what it keeps is late however little it is.
const HELD_UP_PART: u32 = 2;

/// A thread is held up that waited for its processor for this part of an interval, until that is less than the second.
const LATE_PARTS: [u32; 2] = [8, 32];
/// Or that waited so long each time on average, a slice of the scheduler's rather than a wake-up or an interrupt, and for so long in
/// all. Groups and frames that others take leave it with few times, some of which will be short.
const LONG_WAIT: Duration = Duration::from_micros(500);
const LONG_WAITS: Duration = Duration::from_millis(2);
/// That is over when it waits no longer than this.
const SHORT_WAIT: Duration = Duration::from_micros(200);
/// Intervals after which what a thread has shown no longer counts.
const STALE: u32 = 3;

/// What threads show each other.
#[derive(Debug, Default)]
struct Seat {
    /// when this was written, in nanoseconds of the threads' clock; one that sleeps does not write
    at: AtomicU64,
    busy: AtomicBool,
    held_up: AtomicBool,
    /// frames of its groups, as the halved weights have them: those of one interval
    frames: AtomicU32,
}

/// All threads' seats.
#[derive(Debug)]
pub(crate) struct Board(Box<[CacheAligned<Seat>]>);

impl Board {
    pub(crate) fn new(threads: usize) -> Arc<Board> {
        Arc::new(Board((0..threads).map(|_| CacheAligned::default()).collect()))
    }
}

/// What a free thread asks a busy one for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relief {
    /// whom
    pub(crate) from: u16,
    /// groups that brought so many frames in an interval
    pub(crate) frames: u32,
    /// of so many that it had; by the time that it chooses it has counted more
    pub(crate) of: u32,
    /// it does not get its processor
    pub(crate) held_up: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// nothing
    Nothing,
    /// ask for this
    Ask(Relief),
    /// we are busy: wake the others, so that they ask
    CallForHelp,
}

/// One thread's part.
#[derive(Debug)]
pub(crate) struct Balance {
    me: u16,
    policy: Policy,
    load: Load,
    /// how the thread has waited for its processor, and when that was asked
    waits: Option<(Instant, Waits)>,
    held_up: bool,
    /// frames by group, halved at each interval
    weights: Box<[u32]>,
    board: Arc<Board>,
    next_at: Option<Instant>,
    /// whom it asked last
    last: u16,
}

impl Balance {
    pub(crate) fn new(me: usize, groups: usize, policy: Policy, board: Arc<Board>) -> Balance {
        let me = me as u16;
        let weights = vec![0; groups].into();
        let load = Load::default();
        Balance { me, policy, load, waits: None, held_up: false, weights, board, next_at: None, last: me }
    }

    /// A frame of our group was taken.
    #[inline]
    pub(crate) fn took(&mut self, group: u16) {
        self.weights[usize::from(group)] += 1;
    }

    /// A group of ours goes to another thread, with its weight: what is gone must not seem to be here still, nor new there.
    pub(crate) fn departed(&mut self, group: u16) -> u32 {
        std::mem::take(&mut self.weights[usize::from(group)])
    }

    /// A group comes with its weight.
    pub(crate) fn arrived(&mut self, group: u16, weight: u32) {
        self.weights[usize::from(group)] = weight;
    }

    /// What a group of ours weighs.
    pub(crate) fn weight(&self, group: u16) -> u32 {
        self.weights[usize::from(group)]
    }

    /// What the groups of a thread weigh, as it has shown.
    pub(crate) fn shown_by(&self, thread: usize) -> u32 {
        self.board.0[thread].frames.load(Ordering::Relaxed)
    }

    /// The thread takes no part for now: nobody is to ask it.
    pub(crate) fn rest(&self) {
        let seat = &self.board.0[usize::from(self.me)];
        seat.busy.store(false, Ordering::Relaxed);
        seat.held_up.store(false, Ordering::Relaxed);
        seat.frames.store(0, Ordering::Relaxed);
    }

    /// What our groups weigh together.
    fn frames(&self) -> u32 {
        self.weights.iter().fold(0, |sum, weight| sum.saturating_add(*weight))
    }

    /// Whether [`Balance::on_delay`] is to be told.
    #[inline]
    pub(crate) fn wants_delay(&self, now: Instant) -> bool {
        self.waits.is_none_or(|(at, _)| now - at >= self.policy.migrate_every)
    }

    /// Takes in how the thread has waited for its processor since it began, by the scheduler.
    pub(crate) fn on_delay(&mut self, now: Instant, waits: Waits) {
        if let Some((at, before)) = self.waits {
            let waited = waits.ns.saturating_sub(before.ns);
            let each = Duration::from_nanos(waited / waits.times.saturating_sub(before.times).max(1));
            let waited = Duration::from_nanos(waited);
            self.held_up = if self.held_up {
                waited >= (now - at) / LATE_PARTS[1] || each >= SHORT_WAIT
            } else {
                waited >= (now - at) / LATE_PARTS[0] || each >= LONG_WAIT && waited >= LONG_WAITS
            };
        }
        self.waits = Some((now, waits));
    }

    /// Whether it does not get its processor.
    pub(crate) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Takes in how many frames wait at `now`; at the end of each interval, what is to be done.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant, waiting: usize) -> Option<Advice> {
        let busy = self.load.sample(&self.policy, now, waiting.min(u32::MAX as usize) as u32) || self.held_up;
        if self.next_at.is_some_and(|at| now < at) {
            return None;
        }
        Some(self.advise(now, busy))
    }

    #[cold]
    fn advise(&mut self, now: Instant, busy: bool) -> Advice {
        let first = self.next_at.is_none();
        self.next_at = Some(now + self.policy.migrate_every);
        self.weights.iter_mut().for_each(|weight| *weight /= 2);
        let frames = self.frames();
        let seat = &self.board.0[usize::from(self.me)];
        seat.at.store(now.as_nanos(), Ordering::Relaxed);
        seat.busy.store(busy, Ordering::Relaxed);
        seat.held_up.store(self.held_up, Ordering::Relaxed);
        seat.frames.store(frames, Ordering::Relaxed);
        if first || !self.policy.migrate {
            Advice::Nothing
        } else if busy {
            Advice::CallForHelp
        } else {
            self.ask(now, frames)
        }
    }

    /// The next busy one behind the last that was asked.
    fn ask(&mut self, now: Instant, ours: u32) -> Advice {
        let threads = self.board.0.len() as u16;
        let others = (1..=threads).map(|n| (self.last + n) % threads).filter(|thread| *thread != self.me);
        let is_busy = |thread: &u16| {
            let seat = &self.board.0[usize::from(*thread)];
            let seen = Instant::from_nanos(seat.at.load(Ordering::Relaxed));
            seat.busy.load(Ordering::Relaxed) && now - seen <= STALE * self.policy.migrate_every
        };
        let Some(from) = others.into_iter().find(is_busy) else { return Advice::Nothing };
        self.last = from;
        let seat = &self.board.0[usize::from(from)];
        let theirs = seat.frames.load(Ordering::Relaxed);
        let held_up = seat.held_up.load(Ordering::Relaxed);
        let least = theirs / if held_up { HELD_UP_PART } else { LEAST_PART };
        let frames = (theirs.saturating_sub(ours) / 2).max(least).max(1);
        Advice::Ask(Relief { from, frames, of: theirs, held_up })
    }

    /// Which of our groups to give away for `frames` of the `of` that we had shown, from `from` on and round the end: none that would
    /// leave the other with more than was asked for, but one at least.
    pub(crate) fn choose(&self, [frames, of]: [u32; 2], from: u16, is_ours: impl Fn(u16) -> bool) -> Vec<u16> {
        let count = self.weights.len();
        // weights grow until they are halved, so it is a part that was asked for
        let part = u64::from(frames) * u64::from(self.frames()) / u64::from(of.max(1));
        let (mut chosen, mut left) = (Vec::new(), u32::try_from(part).unwrap_or(u32::MAX));
        let mut smallest = None;
        for group in (0..count).map(|n| ((usize::from(from) + n) % count) as u16).filter(|group| is_ours(*group)) {
            let weight = self.weights[usize::from(group)];
            if weight == 0 {
                continue;
            }
            if weight <= left {
                chosen.push(group);
                left -= weight;
            } else if smallest.is_none_or(|(_, least)| weight < least) {
                smallest = Some((group, weight));
            }
            if left == 0 {
                break;
            }
        }
        if chosen.is_empty() { smallest.map(|(group, _)| group).into_iter().collect() } else { chosen }
    }

    /// Whether the thread is busy, and the moving average of its backlog.
    pub(crate) fn shown(&self) -> (bool, u32) {
        (self.load.is_busy() || self.held_up, self.load.average())
    }
}

#[cfg(test)]
mod tests;
