//! Flow groups move from busy threads to free ones.
//!
//! A thread is busy by its backlog, what waits in its port and in the rings from other threads when it comes to look, as
//! Affinity-Accept judges listeners (`base::balance::Load`): from when the backlog passes a high mark until its moving average
//! falls under a low one. It is busy, too, when it is *held up*, since its processor has other work: when for an eighth of an
//! interval it could have run and did not, by more than wake-ups take, or had to wait long whenever it was to run, by the scheduler's own count. Peers that
//! wait for answers before they ask again make no backlog, however late the answers are. Every 100 ms a thread without a backlog
//! asks a busy one for relief, in turn where there are several, and is handed flow groups, with their connections; one that is held up, too,
//! once it is known what a frame costs it, and so does one with a backlog whose frames take little of its time: they come in bursts, and
//! several threads whose flows wait for those of one that cannot keep up have all their frames at once. One that waits far longer each
//! time than the one that asks gives all for which that one has time.
//!
//! Where this differs from the paper, and why. There a migration reprograms the NIC and cannot take connections along, so one group
//! moves at a time, and stolen connections make up for it. Here a group takes its connections along within microseconds, and
//! its owner knows how many frames each group brought; so as many move as bring the two half-way to needing the same time ([`demand`]).

mod demand;

use crate::pulse::Waits;
use base::balance::{HELD, IDLE_PART, LONG_WAIT as LONGER_WAIT, Load, Policy, ROOM_PART, waits_longer};
use base::{CacheAligned, Instant};
use demand::{Demand, Need};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Less than this part of what a busy thread takes is not worth a move; it gives away so much when it is not known what a frame costs.
const LEAST_PART: u32 = 16;
/// And this part while it is held up, if that is not known or a frame takes far longer there: what it keeps is late however little it is.
const HELD_UP_PART: u32 = 2;

/// A thread is held up that waited for its processor for this part of an interval, until that is less than the second.
const LATE_PARTS: [u32; 2] = [8, 32];
/// Or that waited so long each time on average, a slice of the scheduler's rather than a wake-up or an interrupt, and for so long in
/// all. Groups and frames that others take leave it with few times, some of which will be short.
const LONG_WAIT: Duration = Duration::from_micros(500);
const LONG_WAITS: Duration = Duration::from_millis(2);
/// That is over when it waits no longer than this.
const SHORT_WAIT: Duration = Duration::from_micros(200);
/// One that is held up and on which each frame takes so many times as long as on the one that asks is relieved however busy that one is.
const SLOWER: u64 = 2;
/// One with a backlog that needs less than this of its time asks all the same: what waits came in a burst.
const SPARE: u64 = demand::WHOLE * 3 / 4;
/// Intervals after which what a thread has shown no longer counts.
const STALE: u32 = 3;
/// Intervals for which a thread asks for nothing that is to have a share of all groups: by then they have come, as a rule, and the others have
/// shown an interval without them.
const SHARED: u32 = 3;

/// What threads show each other.
#[derive(Debug, Default)]
struct Seat {
    /// when this was written, in nanoseconds of the threads' clock; one that sleeps does not write
    at: AtomicU64,
    /// it has a backlog; it is held up, and how long it waited each time that it was to run, in nanoseconds
    behind: AtomicBool,
    held_up: AtomicBool,
    each_ns: AtomicU64,
    /// frames of its groups, as the halved weights have them: those of one interval
    frames: AtomicU32,
    /// what each takes, in nanoseconds, and what part of its time all that comes to it does
    cost_ns: AtomicU64,
    need: AtomicU64,
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
    /// how the thread has waited for its processor, for how long it was busy, and when that was asked
    waits: Option<(Instant, Waits, u64)>,
    held_up: bool,
    /// how long it waited each time of the last interval, in nanoseconds
    each_ns: u64,
    /// what part of the time for which it was busy it ran, of [`demand::WHOLE`]
    ran: u64,
    /// until when it takes nothing over
    held_until: Option<Instant>,
    demand: Demand,
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
        let (load, demand) = (Load::default(), Demand::default());
        Balance {
            me,
            policy,
            load,
            waits: None,
            held_up: false,
            each_ns: 0,
            ran: demand::WHOLE,
            held_until: None,
            demand,
            weights,
            board,
            next_at: None,
            last: me,
        }
    }

    /// A frame of our group was taken.
    #[inline]
    pub(crate) fn took(&mut self, group: u16) {
        self.weights[usize::from(group)] += 1;
    }

    /// A group of ours goes to another thread, with its weight: what is gone must not seem to be here still, nor new there.
    pub(crate) fn departed(&mut self, group: u16) -> u32 {
        let weight = std::mem::take(&mut self.weights[usize::from(group)]);
        self.demand.went(weight);
        if self.held_up {
            self.held_until = self.next_at.map(|at| at + self.policy.migrate_every * HELD);
        }
        weight
    }

    /// A group comes with its weight.
    pub(crate) fn arrived(&mut self, group: u16, weight: u32) {
        self.weights[usize::from(group)] = weight;
        self.demand.came(weight);
    }

    /// What a group of ours weighs.
    pub(crate) fn weight(&self, group: u16) -> u32 {
        self.weights[usize::from(group)]
    }

    /// What the groups of a thread weigh, as it has shown.
    pub(crate) fn shown_by(&self, thread: usize) -> u32 {
        self.board.0[thread].frames.load(Ordering::Relaxed)
    }

    /// The thread is to have its share of all groups.
    pub(crate) fn shares(&mut self, now: Instant) {
        self.held_until = self.held_until.max(Some(now + self.policy.migrate_every * SHARED));
    }

    /// The thread takes no part for now: nobody is to ask it.
    pub(crate) fn rest(&self) {
        let seat = &self.board.0[usize::from(self.me)];
        seat.behind.store(false, Ordering::Relaxed);
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
        self.waits.is_none_or(|(at, ..)| now - at >= self.policy.migrate_every)
    }

    /// Takes in how the thread has waited for its processor since it began, by the scheduler, and for how long it was busy, waits included.
    pub(crate) fn on_delay(&mut self, now: Instant, waits: Waits, busy_ns: u64) {
        if let Some((at, before, busy_before)) = self.waits {
            let busy_ns = busy_ns.saturating_sub(busy_before);
            self.demand.spent(now - at, Duration::from_nanos(busy_ns));
            let waited = waits.ns.saturating_sub(before.ns);
            self.ran = demand::WHOLE - (waited.min(busy_ns) * demand::WHOLE).checked_div(busy_ns).unwrap_or(0);
            let each = Duration::from_nanos(waited / waits.times.saturating_sub(before.times).max(1));
            let waited = Duration::from_nanos(waited);
            // of a few waits nothing can be told
            self.each_ns = if waited >= (now - at) / LATE_PARTS[1] { each.as_nanos() as u64 } else { 0 };
            self.held_up = if self.held_up {
                waited >= (now - at) / LATE_PARTS[1] && each >= LONGER_WAIT || each >= SHORT_WAIT
            } else {
                // that it often waits for the kernel's own threads, a wake-up each time, is no other work
                waited >= (now - at) / LATE_PARTS[0] && each >= LONGER_WAIT || each >= LONG_WAIT && waited >= LONG_WAITS
            };
        }
        self.waits = Some((now, waits, busy_ns));
    }

    /// Whether it does not get its processor.
    pub(crate) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Takes in how many frames wait at `now`; at the end of each interval, what is to be done.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant, waiting: usize) -> Option<Advice> {
        let waiting = waiting.min(u32::MAX as usize) as u32;
        let busy = self.load.sample(&self.policy, now, waiting) || self.held_up;
        if self.next_at.is_some_and(|at| now < at) {
            return None;
        }
        Some(self.advise(now, waiting, busy))
    }

    #[cold]
    fn advise(&mut self, now: Instant, waiting: u32, busy: bool) -> Advice {
        let first = self.next_at.is_none();
        self.next_at = Some(now + self.policy.migrate_every);
        let before = self.frames();
        self.weights.iter_mut().for_each(|weight| *weight /= 2);
        let frames = self.frames();
        let need = self.demand.end(before, frames, waiting);
        let seat = &self.board.0[usize::from(self.me)];
        seat.at.store(now.as_nanos(), Ordering::Relaxed);
        seat.held_up.store(self.held_up, Ordering::Relaxed);
        seat.behind.store(self.load.is_busy(), Ordering::Relaxed);
        seat.each_ns.store(self.each_ns, Ordering::Relaxed);
        seat.frames.store(frames, Ordering::Relaxed);
        seat.cost_ns.store(need.cost_ns, Ordering::Relaxed);
        seat.need.store(need.part, Ordering::Relaxed);
        if first || !self.policy.migrate {
            return Advice::Nothing;
        }
        // one that is held up, or behind, may have time all the same: what its frames cost tells
        let held = self.held_until.is_some_and(|until| now < until);
        let known = need.cost_ns > 0;
        let may_ask = !held && (!self.load.is_busy() || known && need.part < SPARE) && (!self.held_up || known);
        match may_ask.then(|| self.ask(now, frames, need)).flatten() {
            Some(relief) => {
                self.last = relief.from;
                Advice::Ask(relief)
            }
            None if busy => Advice::CallForHelp,
            None => Advice::Nothing,
        }
    }

    /// The next busy one behind the last that was asked from which something is to be taken.
    fn ask(&self, now: Instant, frames: u32, need: Need) -> Option<Relief> {
        let threads = self.board.0.len() as u16;
        let mut others = (1..=threads).map(|n| (self.last + n) % threads).filter(|thread| *thread != self.me);
        others.find_map(|thread| self.relief(now, thread, frames, need))
    }

    /// What is to be taken from a thread, with so many frames and such a need of our own.
    fn relief(&self, now: Instant, from: u16, ours: u32, need: Need) -> Option<Relief> {
        let seat = &self.board.0[usize::from(from)];
        let seen = Instant::from_nanos(seat.at.load(Ordering::Relaxed));
        let [behind, held_up] = [&seat.behind, &seat.held_up].map(|flag| flag.load(Ordering::Relaxed));
        if !(behind || held_up) || now - seen > STALE * self.policy.migrate_every {
            return None;
        }
        let theirs = seat.frames.load(Ordering::Relaxed);
        let [cost_ns, part] = [&seat.cost_ns, &seat.need].map(|word| word.load(Ordering::Relaxed));
        let their_need = Need { cost_ns, part };
        let each_ns = seat.each_ns.load(Ordering::Relaxed);
        if !behind && waits_longer(self.each_ns, each_ns) {
            return None;
        }
        let slower = held_up && cost_ns >= SLOWER * need.known_cost(their_need);
        let least = theirs / if held_up { HELD_UP_PART } else { LEAST_PART };
        let frames = if cost_ns == 0 {
            // nothing is known of times
            (theirs.saturating_sub(ours) / 2).max(least).max(1)
        } else {
            let level = their_need.levelled_with(need, self.policy.migrate_every);
            let room = if held_up && waits_longer(each_ns, self.each_ns) { self.room(need, their_need) } else { 0 };
            let level = u32::try_from(level.max(room)).unwrap_or(u32::MAX).min(theirs);
            if slower { level.max(least).max(1) } else { level }
        };
        (frames > 0 && frames >= theirs / LEAST_PART).then_some(Relief { from, frames, of: theirs, held_up })
    }

    /// Frames an interval of another thread's for which we have room, waits apart, unless they are for other work.
    fn room(&self, ours: Need, theirs: Need) -> u64 {
        let runs = |of: u64| of * self.ran / demand::WHOLE;
        let frames = |part: u64, each_ns: u64| {
            let all = u128::from(part) * self.policy.migrate_every.as_nanos();
            (all / u128::from(demand::WHOLE * each_ns).max(1)) as u64
        };
        let cost_ns = ours.known_cost(theirs);
        let room = frames((demand::WHOLE / u64::from(ROOM_PART)).saturating_sub(runs(ours.part)), runs(cost_ns));
        // next to no time left is none
        let idle = demand::WHOLE.checked_sub(ours.part).filter(|part| *part >= demand::WHOLE / u64::from(IDLE_PART));
        if self.held_up { room.min(frames(idle.unwrap_or(0), cost_ns)) } else { room }
    }

    /// Which of our groups to give away for `frames` of the `of` that we had shown, from `from` on and round the end: none that would
    /// leave the other with more than was asked for, but one at least. Those that are `preferred` come before all others.
    pub(crate) fn choose(
        &self,
        [frames, of]: [u32; 2],
        from: u16,
        is_ours: impl Fn(u16) -> bool,
        preferred: impl Fn(u16) -> bool,
    ) -> Vec<u16> {
        let count = self.weights.len();
        // weights grow until they are halved, so it is a part that was asked for
        let part = u64::from(frames) * u64::from(self.frames()) / u64::from(of.max(1));
        let (mut chosen, mut left) = (Vec::new(), u32::try_from(part).unwrap_or(u32::MAX));
        let mut smallest = None;
        let ours = (0..count).map(|n| ((usize::from(from) + n) % count) as u16).filter(|group| is_ours(*group));
        let (first, then): (Vec<u16>, Vec<u16>) = ours.partition(|group| preferred(*group));
        for group in first.into_iter().chain(then) {
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
